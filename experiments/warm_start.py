"""Makes the embedded tiny model: a Qwen3 from scratch, taught to plan and to design.

    python -m experiments.warm_start --out=NEW_FOLDER

The plans are the exact solver's, on random lakes that are not in the validation set; the designs
are demonstrations of `experiments.families.lakes.demonstrations.rule_design`. One supervised run
teaches both to the same weights, and stops early enough that reinforcement learning has something
left to do.
"""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import app, flags

import mapf_jax
from engineer import proposal
from engineer.space import ConfigurationSpace
from experiments import command_line, process
from experiments import settings as settings_lib
from experiments import store as files
from experiments.designing import design_completer
from experiments.errors import UserError
from experiments.families import Record
from experiments.families.lakes import demonstrations, tiny_tokenizer
from experiments.families.lakes import texts as lakes
from experiments.families.lakes.family import Lakes
from experiments.families.lakes.options import LakesOptions
from experiments.policy import Policy
from experiments.validation import Validator, validation_completer, validation_set
from learner import tokens
from learner.devices import sharding
from learner.qwen3 import model, weights
from learner.qwen3.config import Qwen3Config
from learner.training import sft, train_state
from learner.training.task import prompt_indices
from mapf_jax import formats

_CONFIG = command_line.define_config()
_OUT = flags.DEFINE_string("out", None, "Folder of the new checkpoint.", required=True)
_SEED = flags.DEFINE_integer("seed", 0, "Seed of data, initial weights and order.", lower_bound=0)
_STEPS = flags.DEFINE_integer("steps", 1300, "Optimizer steps.", lower_bound=1)
_ROWS = flags.DEFINE_integer("rows", 64, "Examples in a step.", lower_bound=1)
_PLANS = flags.DEFINE_integer("plans", 60_000, "Solved instances to learn from.", lower_bound=1)
_DESIGNS = flags.DEFINE_integer("designs", 12_000, "Designs to learn from.", lower_bound=1)
_LEARNING_RATE = flags.DEFINE_float("learning_rate", 2e-3, "Highest learning rate.", lower_bound=0)
_VALIDATE_EVERY = flags.DEFINE_integer("validate_every", 250, "Steps.", lower_bound=1)

HOLE_RATIOS = (0.0, 0.1, 0.2, 0.3, 0.4)
_TOKENIZER_SAMPLES = 2_000
_VOCAB_LIMIT = 1024
_MICRO_BATCH_ROWS = 32
_DESIGNS_EXAMINED = 128
_DESIGN_PERIOD = 6  # One step in so many teaches designs.

Pair = tuple[list[dict[str, str]], str]


def plan_pairs(options: LakesOptions, exclude: set[bytes], seed: int, count: int) -> list[Pair]:
    """Prompts with an optimal answer, on lakes of all sizes and `HOLE_RATIOS`."""
    pairs: list[Pair] = []
    for i, hole_ratio in enumerate(HOLE_RATIOS):
        instances, _ = mapf_jax.generate(
            jax.random.fold_in(jax.random.key(seed), i),
            mapf_jax.EnvironmentConfig.uniform(options.sizes, hole_ratio, 0.25),
            -(-count // len(HOLE_RATIOS)),
            options.num_agents,
            exclude=exclude,
            max_candidates=1 << 18,
        )
        for instance in (instances[j] for j in range(len(instances))):
            solution = instance.solution
            assert solution is not None
            message = {"role": "user", "content": mapf_jax.prompt(instance, options.list_holes)}
            answer = mapf_jax.render_answer(solution.paths, int(solution.num_steps))
            pairs.append(([message], answer))
    return pairs


def design_pairs(
    settings: settings_lib.Settings, space: ConfigurationSpace, seed: int, count: int
) -> list[Pair]:
    """Contexts of the configured variant with the answer of the simple rule."""
    return [
        demonstrations.demonstration(
            np.random.SeedSequence([seed, i]), settings.engineer.spec, space, lakes.TEXTS
        )
        for i in range(count)
    ]


def tiny_architecture(tokenizer: Any, scan_unroll: int) -> Qwen3Config:
    """About a million parameters in the shape of Qwen3, embeddings tied as in the small ones."""
    return Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
        max_position_embeddings=1024,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        scan_unroll=scan_unroll,
    )


def build_tokenizer(pairs: Sequence[Pair]) -> Any:
    """The tiny tokenizer, trained on what changes from text to text."""
    texts = [text for messages, answer in pairs for text in (messages[0]["content"], answer)]
    constants = mapf_jax.text.RULES, lakes.INSTRUCTION, lakes.GUIDELINE, lakes.OUTPUT_FORMAT
    for constant in constants:
        texts = [text.replace(constant, "") for text in texts]
    return tiny_tokenizer.train_tokenizer(texts, _VOCAB_LIMIT)


def examine_designs(
    settings: settings_lib.Settings, family: Lakes, policy: Policy, params: Any, seed: int
) -> dict[str, float]:
    """How well the model designs for contexts it has not seen.

    Returns:
      Fractions of answers that are readable, and readable without any repair; and the mean absolute
      difference of each parameter to the rule that was demonstrated, over the readable ones.
    """
    completer = design_completer(settings, family, policy)
    space = family.space
    pairs = design_pairs(settings, space, seed + 1, _DESIGNS_EXAMINED)
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
    mean = np.mean(differences, axis=(0, 2)) if differences else np.full(3, np.nan)
    return {
        "readable": len(differences) / len(pairs),
        "readable_without_repair": clean / len(pairs),
        **{f"{p}_error": round(float(e), 4) for p, e in zip(space.names, mean, strict=True)},
    }


def _rates(family: Lakes, records: Sequence[Record]) -> dict[str, Any]:
    breakdown = family.breakdown(records)
    return {
        "valid": round(breakdown.valid_rate, 4),
        "optimal": round(breakdown.optimal_rate, 4),
        "valid_by_size": {r.name: round(r.valid_rate, 4) for r in breakdown.by_group},
    }


def _lessons(name: str, tokenizer: Any, pairs: Sequence[Pair], budget: int) -> list[sft.Example]:
    """The pairs encoded, without what is too long to be given as a completion in a run."""
    examples = [sft.encode_example(tokenizer, *pair) for pair in pairs]
    kept = [example for example in examples if len(example.completion) <= budget]
    print(f"{name}: {len(examples) - len(kept)} of {len(examples)} take more than {budget} tokens")
    if not kept:
        raise UserError(f"{name}: all take more than the {budget} tokens allowed")
    return kept


def main(argv: Sequence[str]) -> None:
    """Trains and writes the checkpoint."""
    del argv
    process.keep_freed_memory()
    settings = settings_lib.from_config(_CONFIG.value)
    out = Path(_OUT.value)
    if out.exists() and any(out.iterdir()):
        raise app.UsageError(f"--out={out}: the folder is not empty")
    begin = time.perf_counter()
    family = Lakes(settings.lakes)
    made = validation_set(settings, family).problems
    validation = [{**problem, "id": str(i)} for i, problem in enumerate(made)]
    exclude = set(mapf_jax.fingerprints(formats.from_records(validation)))
    plans = plan_pairs(settings.lakes, exclude, _SEED.value, _PLANS.value)
    designs = design_pairs(settings, family.space, _SEED.value, _DESIGNS.value)
    print(f"{len(plans)} plans and {len(designs)} designs, {time.perf_counter() - begin:.0f} s")

    half = _TOKENIZER_SAMPLES // 2
    tokenizer = build_tokenizer(plans[:half] + designs[:half])
    architecture = tiny_architecture(tokenizer, settings.model.scan_unroll)
    policy = Policy(architecture, tokenizer, sharding.make_mesh())
    budgets = settings.validation.max_new_tokens, settings.engineer.max_new_tokens
    lessons = {
        "plans": _lessons("plans", tokenizer, plans, budgets[0]),
        "designs": _lessons("designs", tokenizer, designs, budgets[1]),
    }
    optimizer = train_state.OptimizerConfig(
        learning_rate=_LEARNING_RATE.value,
        warmup_steps=min(100, _STEPS.value // 10),
        decay="cosine",
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
    greedy = dataclasses.replace(
        settings, validation=dataclasses.replace(settings.validation, temperature=0.0)
    )
    validator = Validator(greedy, family, validation_completer(greedy, policy), validation)
    curve = []
    begin = time.perf_counter()
    for step in range(_STEPS.value):
        # Designs are far longer than plans: in batches of their own neither pads the other.
        name = "designs" if step % _DESIGN_PERIOD == _DESIGN_PERIOD - 1 else "plans"
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
                **_rates(family, validator(state.params)),
            }
            curve.append(row)
            print(json.dumps(row), flush=True)
    # As a run validates it, which may be sampled.
    validator = Validator(settings, family, validation_completer(settings, policy), validation)
    sampled = _rates(family, validator(state.params))
    print(json.dumps({"temperature": settings.validation.temperature, **sampled}))
    designing = examine_designs(settings, family, policy, state.params, _SEED.value)
    print(json.dumps(designing))
    weights.save(out, state.params, architecture, tokenizer)
    flags_of_data = (_SEED, _STEPS, _ROWS, _PLANS, _DESIGNS, _LEARNING_RATE)
    files.write_json(
        out / "warm_start.json",
        {
            "flags": {flag.name: flag.value for flag in flags_of_data},
            "parameters": count,
            "greedy_validation": curve,
            "validation": {"temperature": settings.validation.temperature, **sampled},
            "designs": designing,
        },
    )
    print(f"written to {out}")


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
