"""Trains a tiny Qwen3 from scratch to solve and to design, for any family.

    python -m experiments.warm_start --out=NEW_FOLDER

The solutions are the family's own, for problems outside validation and test sets; the designs are
demonstrations of `experiments.families.demonstrations`, by a rule or at random. One supervised run
teaches both, and stops early enough to leave room for reinforcement learning.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from absl import app, flags

from engineer import proposal
from engineer.context import VARIANTS, ContextSpec
from experiments import check_family, command_line, process, versions
from experiments import settings as settings_lib
from experiments import store as files
from experiments.designing import design_completer
from experiments.errors import UserError, ended_in_one_line, user_errors
from experiments.evidence import outcome_metrics, training_texts
from experiments.families import Family, FamilyError, Problem, demonstrations
from experiments.policy import Policy
from experiments.validation import test_set, validate, validation_completers, validation_set
from learner import tokens
from learner.decoder import model, weights
from learner.decoder.config import DecoderConfig
from learner.devices import sharding
from learner.sampling.completer import Completer
from learner.training import sft, train_state
from learner.training.task import prompt_indices

_CONFIG = command_line.define_config()
_OUT = flags.DEFINE_string("out", None, "Folder of the new checkpoint.", required=True)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of data, initial weights and order.", lower_bound=0)
_STEPS = flags.DEFINE_integer("steps", 1300, "Optimizer steps.", lower_bound=1)
_ROWS = flags.DEFINE_integer("rows", 64, "Examples in a step.", lower_bound=1)
_SOLUTIONS = flags.DEFINE_integer("solutions", 60_000, "Solved problems.", lower_bound=1)
_DESIGNS = flags.DEFINE_integer("designs", 12_000, "Designs to learn from.", lower_bound=1)
_DESIGN_EVERY = flags.DEFINE_integer(
    "design_every", 6, "One step in so many teaches designs.", lower_bound=2
)
_CONTEXTS = flags.DEFINE_list(
    "contexts",
    None,
    "Contexts from which to design, in turn: V1 to V6, full (V4 with all training details). The "
    "configured one if not given.",
)
_DESIGNS_BY = flags.DEFINE_enum(
    "designs_by",
    "rule",
    get_args(demonstrations.By),
    "The rule that makes designs, or random: that teaches only the form.",
)
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 2e-3, "Highest learning rate.", lower_bound=0)
_DECAY = flags.DEFINE_enum(
    "decay", "cosine", get_args(train_state.Decay), "How the learning rate falls."
)
_LAYERS = flags.DEFINE_integer("layers", 4, "Layers of the model.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 128, "Its width, a multiple of 64.", lower_bound=64)
_INITIALIZER_RANGE = flags.DEFINE_float(
    "initializer_range", 0.02, "Standard deviation of its first weights.", lower_bound=0
)
_VALIDATE_EVERY = flags.DEFINE_integer("validate_every", 250, "Steps.", lower_bound=1)

_TOKENIZER_SAMPLES = 2_000
_MICRO_BATCH_ROWS = 32
_DESIGNS_EXAMINED = 128

#: The contexts that `--contexts` names.
CONTEXTS = VARIANTS | {"full": dataclasses.replace(VARIANTS["V4"], training="full")}

Pair = tuple[list[dict[str, str]], str]


def solution_pairs(family: Family, exclude: Sequence[Problem], seed: int, count: int) -> list[Pair]:
    """Prompts of the family's lessons, with valid completions."""
    problems = family.lessons(jax.random.key(seed), count, exclude)
    task, solutions = family.task(problems), family.solutions(problems)
    return [([dict(m) for m in task.messages(i)], text) for i, text in enumerate(solutions)]


def design_pairs(
    settings: settings_lib.Settings,
    family: Family,
    seed: int,
    count: int,
    contexts: Sequence[ContextSpec] = (),
    by: demonstrations.By = "rule",
) -> list[Pair]:
    """Demonstrations from `contexts` in turn, or from the configured one if there are none."""
    engineer = settings.engineer
    contexts = contexts or (engineer.spec,)
    texts, training = engineer.texts(family.texts), training_texts(settings, family)
    return [
        demonstrations.demonstration(
            np.random.SeedSequence([seed, i]),
            contexts[i % len(contexts)],
            family.space,
            texts,
            training,
            by,
        )
        for i in range(count)
    ]


def build_tokenizer(family: Family, pairs: Sequence[Pair]) -> Any:
    """The family's new tokenizer, trained on texts without the family's constants."""
    texts = [text for messages, answer in pairs for text in (messages[0]["content"], answer)]
    for constant in family.constants:
        texts = [text.replace(constant, "") for text in texts]
    return family.new_tokenizer(texts)


def examine_designs(
    settings: settings_lib.Settings,
    family: Family,
    policy: Policy,
    params: Any,
    seed: int,
    by: demonstrations.By = "rule",
) -> dict[str, float]:
    """Measures how well the model designs for new contexts, beside the designs of a rule.

    Returns:
      Fractions of answers that are readable, and readable without repair; and the mean absolute
      difference of each parameter from that of the rule, over the readable ones.
    """
    completer = design_completer(settings, family, policy)
    space = family.space
    pairs = design_pairs(settings, family, seed + 1, _DESIGNS_EXAMINED, by=by)
    answers = completer(params, [messages for messages, _ in pairs], jax.random.key(seed))
    clean, differences = 0, []
    for (_, expected), answer in zip(pairs, answers, strict=True):
        shown = proposal.parse(expected, space)
        assert isinstance(shown, proposal.Proposal)  # It was rendered from a configuration.
        truth, _ = proposal.project(shown, space.uniform(), space)
        reading = proposal.parse(answer.text, space)
        if isinstance(reading, proposal.Unreadable):
            continue
        config, repairs = proposal.project(reading, truth, space)
        clean += not repairs
        differences.append(
            [np.abs(np.subtract(config.column(p), truth.column(p))) for p in space.names]
        )
    mean = np.mean(differences, axis=(0, 2)) if differences else np.full(len(space.names), np.nan)
    return {
        "readable": len(differences) / len(pairs),
        "readable_without_repair": clean / len(pairs),
        **{f"{p}_error": round(float(e), 4) for p, e in zip(space.names, mean, strict=True)},
    }


def _lessons(name: str, tokenizer: Any, pairs: Sequence[Pair], budget: int) -> list[sft.Example]:
    """Encodes pairs, without those whose completion exceeds the budget of a run."""
    examples = [sft.encode_example(tokenizer, *pair) for pair in pairs]
    kept = [example for example in examples if len(example.completion) <= budget]
    print(f"{name}: {len(examples) - len(kept)} of {len(examples)} take more than {budget} tokens")
    if not kept:
        raise UserError(f"{name}: all take more than the {budget} tokens allowed")
    return kept


def main(argv: Sequence[str]) -> None:
    """Trains and writes the checkpoint; user errors end it with one line."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}; options look like --name=value")
    versions.pin()
    process.keep_freed_memory()
    with ended_in_one_line(FamilyError):
        _make(settings_lib.from_config(_CONFIG.value))


def _make(settings: settings_lib.Settings) -> None:
    contexts = _CONTEXTS.value or []
    if unknown := sorted({*contexts} - {*CONTEXTS}):
        raise app.UsageError(f"--contexts={','.join(unknown)}: allowed are {', '.join(CONTEXTS)}")
    out = Path(_OUT.value)
    if out.exists() and any(out.iterdir()):
        raise app.UsageError(f"--out={out}: the folder is not empty")
    out.mkdir(parents=True, exist_ok=True)  # Now, not after the training, if it cannot be made.
    begin = time.perf_counter()
    with user_errors():
        family = settings.load_family()
    if settings.family_file:
        check_family.try_once(family)
    made = validation_set(settings, family).problems
    validation = [{**problem, "id": str(i)} for i, problem in enumerate(made)]
    held_out: list[Problem] = [*validation]
    if settings.validation.test_instances:
        held_out += test_set(settings, family, validation).problems
    solutions = solution_pairs(family, held_out, _SEED.value, _SOLUTIONS.value)
    designs = design_pairs(
        settings,
        family,
        _SEED.value,
        _DESIGNS.value,
        [CONTEXTS[name] for name in contexts],
        _DESIGNS_BY.value,
    )
    seconds = time.perf_counter() - begin
    print(f"{len(solutions)} solutions and {len(designs)} designs, {seconds:.0f} s")

    half = _TOKENIZER_SAMPLES // 2
    tokenizer = build_tokenizer(family, solutions[:half] + designs[:half])
    width = _WIDTH.value
    architecture = DecoderConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=_LAYERS.value,
        num_attention_heads=width // 32,
        num_key_value_heads=width // 64,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        scan_unroll=settings.model.scan_unroll,
        initializer_range=_INITIALIZER_RANGE.value,
    )
    policy = Policy(architecture, tokenizer, sharding.make_mesh())
    budgets = settings.validation.max_new_tokens, settings.engineer.max_new_tokens
    lessons = {
        "solutions": _lessons("solutions", tokenizer, solutions, budgets[0]),
        "designs": _lessons("designs", tokenizer, designs, budgets[1]),
    }
    optimizer = train_state.OptimizerConfig(
        learning_rate=_LEARNING_RATE.value,
        warmup_steps=min(100, _STEPS.value // 8),
        decay=_DECAY.value,
        total_steps=_STEPS.value,
        weight_decay=0.01,
    )
    trainer = sft.SFTTrainer(
        sft.SFTConfig(
            batch_rows=_ROWS.value,
            micro_batch_rows=min(_MICRO_BATCH_ROWS, _ROWS.value),
            length_multiple=16,
            max_completion_tokens=max(budgets),
            optimizer=optimizer,
        ),
        architecture,
        policy.mesh,
        tokens.pad_id(tokenizer),
    )
    init_key, order_key = jax.random.split(jax.random.key(_SEED.value))
    params = model.init_params(init_key, architecture)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{count} parameters, vocabulary of {len(tokenizer)}")
    state = train_state.create_train_state(params, architecture, optimizer, policy.mesh)
    sampled, greedy = validation_completers(settings, policy)

    def rates(respond: Completer) -> dict[str, float]:
        records = validate(settings, family, respond, validation, state.params)
        return outcome_metrics(family.breakdown(records))

    curve = []
    begin = time.perf_counter()
    for step in range(_STEPS.value):
        # Designs are far longer than solutions; separate batches avoid padding.
        name = "solutions" if (step + 1) % _DESIGN_EVERY.value else "designs"
        rows = _MICRO_BATCH_ROWS if name == "designs" else _ROWS.value
        examples = lessons[name]
        chosen = prompt_indices(order_key, step, rows, len(examples))
        state, metrics = trainer.step(state, [examples[i] for i in chosen], step)
        done = step + 1
        if done % _VALIDATE_EVERY.value == 0 or done == _STEPS.value:
            row = {
                "step": done,
                "seconds": round(time.perf_counter() - begin, 1),
                "loss": round(metrics["loss"], 4),
                **rates(greedy),
            }
            curve.append(row)
            print(json.dumps(row), flush=True)
    # As a run validates it, possibly sampled.
    last = {"temperature": settings.validation.temperature, **rates(sampled)}
    print(json.dumps(last))
    weights.save(out, state.params, architecture, tokenizer)
    by: demonstrations.By = "rule" if _DESIGNS_BY.value == "random" else _DESIGNS_BY.value
    designing = examine_designs(settings, family, policy, state.params, _SEED.value, by)
    print(json.dumps(designing))
    flags_of_data = (
        *(_SEED, _STEPS, _ROWS, _SOLUTIONS, _DESIGNS, _DESIGN_EVERY, _LEARNING_RATE),
        *(_CONTEXTS, _DESIGNS_BY, _DECAY, _LAYERS, _WIDTH, _INITIALIZER_RANGE),
    )
    files.write_file(
        out / "warm_start.json",
        {
            "flags": {flag.name: flag.value for flag in flags_of_data},
            "parameters": count,
            "greedy_validation": curve,
            "validation": last,
            "designs": designing,
        },
    )
    print(f"written to {out}")


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
