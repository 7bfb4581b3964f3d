"""Trains a model to solve and to design, for any family: an existing one, or a tiny new Qwen3.

    python -m experiments.warm_start --out=NEW_FOLDER
    python -m experiments.warm_start --out=NEW_FOLDER --model=smollm2

A command that was stopped goes on when it is started again. The solutions are the family's own,
for problems outside validation and test sets; the designs are demonstrations of
`experiments.families.demonstrations`, by a rule or at random. One supervised run teaches both, and
stops early enough to leave room for reinforcement learning.
"""

import dataclasses
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from absl import app, flags
from absl import logging as absl_logging

from engineer import proposal
from engineer.context import ContextSpec, context_spec
from engineer.evidence import FailureBreakdown
from experiments import settings as settings_lib
from experiments.families import Family, FamilyError, Problem, demonstrations, examination
from experiments.ring.designing import design_completer
from experiments.ring.outcomes import outcome_metrics, training_texts
from experiments.ring.validation import test_set, validate, validation_completers, validation_set
from experiments.run import process, versions
from experiments.run import store as files
from experiments.run.policy import Policy, load_params, load_policy
from experiments.run.status import Reporter, solved
from experiments.settings import command_line
from experiments.text.errors import (
    UserError,
    ended_in_one_line,
    memory_errors,
    user_errors,
)
from learner import tokens
from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.devices import preemption, sharding
from learner.sampling.completer import Completer
from learner.training import lora, sft, train_state
from learner.training.checkpoints import Checkpoints
from learner.training.task import prompt_indices
from learner.training.train_state import TrainState

_CONFIG = command_line.define_config()
_OUT = flags.DEFINE_string("out", None, "Folder of the new checkpoint.", required=True)
_MODEL = flags.DEFINE_string(
    "model",
    None,
    "The model to train further, as config.model.path names it, in full or by the adapters of "
    "config.training.lora; a tiny new one if not given.",
)
_SEED = flags.DEFINE_integer(
    "seed",
    0,
    "Seed of data, initial weights and order.",
    lower_bound=0,
    upper_bound=2**32 - 2,  # Its examination uses the next one as well.
)
_STEPS = flags.DEFINE_integer("steps", 1300, "Optimizer steps.", lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Examples in a step.", lower_bound=1)
_SOLUTIONS = flags.DEFINE_integer("solutions", 60_000, "Solved problems.", lower_bound=1)
_DESIGNS = flags.DEFINE_integer("designs", 12_000, "Designs to learn from.", lower_bound=1)
_DESIGN_EVERY = flags.DEFINE_integer(
    "design_every", 6, "One step in so many teaches designs.", lower_bound=2
)
_CONTEXTS = flags.DEFINE_list(
    "contexts",
    None,
    "Contexts from which to design, in turn, such as V1,V4+training=full. The configured one if "
    "not given.",
)
_DESIGNS_BY = flags.DEFINE_enum(
    "designs_by",
    "rule",
    get_args(demonstrations.By),
    "The rule that makes designs, or random: that teaches only the form.",
)
_LEARNING_RATE = flags.DEFINE_float(
    "learning_rate",
    None,
    "Highest learning rate; 2e-3 for a new model, 2e-5 for an existing one, 2e-4 for adapters if "
    "not given.",
    lower_bound=0,
)
_DECAY = flags.DEFINE_enum(
    "decay", "cosine", get_args(train_state.Decay), "How the learning rate falls."
)
_LAYERS = flags.DEFINE_integer("layers", 4, "Layers of a new model.", lower_bound=1)
_WIDTH = flags.DEFINE_integer("width", 128, "Its width, a multiple of 64.", lower_bound=64)
flags.register_validator("width", lambda width: width % 64 == 0, "allowed are multiples of 64")
_INITIALIZER_RANGE = flags.DEFINE_float(
    "initializer_range", 0.02, "Standard deviation of its first weights.", lower_bound=0
)
_VALIDATE_EVERY = flags.DEFINE_integer("validate_every", 250, "Steps.", lower_bound=1)

_TOKENIZER_SAMPLES = 2_000
_MICRO_BATCH_SIZE = 32
_DESIGNS_EXAMINED = 128
_SECONDS_BETWEEN_SAVES = 300.0
_LESS_MEMORY = (
    "the model, its optimizer and the examples of a step need it; a smaller --batch_size, "
    "--config.model.remat=full and, with --model, --config.training.lora.rank=16 need less"
)
_UNFINISHED = "unfinished"  # The folder of checkpoints; removed at the end.

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
    texts, training = family.texts, training_texts(settings, family)
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
        truth, _ = proposal.project(shown, space)
        reading = proposal.parse(answer.text, space)
        if isinstance(reading, proposal.Unreadable):
            continue
        config, repairs = proposal.project(reading, space)
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
    examples = sft.encode_examples(tokenizer, pairs)
    kept = [example for example in examples if len(example.completion) <= budget]
    print(f"{name}: {len(examples) - len(kept)} of {len(examples)} take more than {budget} tokens")
    if not kept:
        raise UserError(f"{name}: all take more than the {budget} tokens allowed")
    return kept


def _new_policy(settings: settings_lib.Settings, family: Family, pairs: Sequence[Pair]) -> Policy:
    """A tiny Qwen3 with the family's tokenizer, trained on the texts of `pairs`."""
    tokenizer = build_tokenizer(family, pairs)
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
    return Policy(architecture, tokenizer, sharding.make_mesh())


def _optimizer(settings: settings_lib.Settings) -> train_state.OptimizerConfig:
    rate = _LEARNING_RATE.value
    if rate is None:
        rate = 2e-3 if _MODEL.value is None else 2e-4 if settings.training.lora.rank else 2e-5
    return train_state.OptimizerConfig(
        learning_rate=rate,
        warmup_steps=min(100, _STEPS.value // 8),
        decay=_DECAY.value,
        total_steps=_STEPS.value,
        weight_decay=0.01,
    )


def main(argv: Sequence[str]) -> None:
    """Trains and writes the checkpoint; user errors end it with one line."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}; options look like --name=value")
    process.keep_freed_memory()
    process.quieten(absl_logging.WARNING)
    with ended_in_one_line(), user_errors():
        settings = settings_lib.from_config(_CONFIG.value)
        if _MODEL.value is not None:
            model_settings = dataclasses.replace(settings.model, path=_MODEL.value)
            settings = dataclasses.replace(settings, model=model_settings)
        elif settings.training.lora.rank:
            raise UserError("training.lora.rank: adapters need an existing --model")
    try:
        with ended_in_one_line(FamilyError), memory_errors(_LESS_MEMORY):
            _make(settings, Reporter())
    except preemption.Preempted as asked:
        print("asked to leave: saved; the same command goes on from here", flush=True)
        sys.exit(asked.exit_code)


def _make(settings: settings_lib.Settings, reporter: Reporter) -> None:
    with user_errors():
        contexts = [context_spec(text) for text in _CONTEXTS.value or []]
    out = Path(_OUT.value)
    if out.exists() and any(path.name != _UNFINISHED for path in out.iterdir()):
        raise UserError(f"out={out}: the folder is not empty; allowed are new or empty ones")
    out.mkdir(parents=True, exist_ok=True)  # Now, not after the training, if it cannot be made.
    begin = time.perf_counter()
    with user_errors():
        optimizer = _optimizer(settings)
        family = settings.load_family()
    if settings.family_file:
        with examination.own_errors(settings.family_file):
            examination.try_once(family)
    made = validation_set(settings, family).problems
    try:
        family.solutions(made)  # Before the many of the lessons are made.
    except NotImplementedError as error:
        raise UserError(f"family={settings.family!r}: {error}") from error
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
        contexts,
        _DESIGNS_BY.value,
    )
    seconds = time.perf_counter() - begin
    reporter.line(f"{len(solutions)} solutions and {len(designs)} designs, {seconds:.0f} s")

    init_key, order_key = jax.random.split(jax.random.key(_SEED.value))
    with user_errors():
        if _MODEL.value is None:
            half = _TOKENIZER_SAMPLES // 2
            policy = _new_policy(settings, family, solutions[:half] + designs[:half])
            params = model.init_params(init_key, policy.config)
        else:
            policy = load_policy(settings)
            params = load_params(settings, policy)
    budgets = settings.validation.max_new_tokens, settings.engineer.max_new_tokens
    lessons = {
        "solutions": _lessons("solutions", policy.tokenizer, solutions, budgets[0]),
        "designs": _lessons("designs", policy.tokenizer, designs, budgets[1]),
    }
    # What a run would refuse is refused before the training, not after it.
    with user_errors():
        design_completer(settings, family, policy)
        sampled, greedy = validation_completers(settings, policy)
    adapters = settings.training.lora
    trainer = sft.SFTTrainer(
        sft.SFTConfig(
            batch_size=_BATCH_SIZE.value,
            micro_batch_size=min(_MICRO_BATCH_SIZE, _BATCH_SIZE.value),
            length_multiple=16,
            max_completion_tokens=max(budgets),
            optimizer=optimizer,
        ),
        policy.config,
        policy.mesh,
        tokens.pad_id(policy.tokenizer),
        adapters,
        params if adapters.rank else None,
    )
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    reporter.line(f"{count:,} parameters, vocabulary of {len(policy.tokenizer):,}")
    trained = lora.init(init_key, adapters, policy.config) if adapters.rank else params
    state = train_state.create_train_state(trained, policy.config, optimizer, policy.mesh, adapters)
    decisive = _decisive(settings)

    def outcome(respond: Completer, state: TrainState) -> FailureBreakdown:
        params = trainer.policy_params(state)
        return family.breakdown(validate(settings, family, respond, validation, params))

    state, curve = _train(
        trainer, state, lessons, decisive, order_key, out, reporter, partial(outcome, greedy)
    )
    process.return_freed_memory()
    found = outcome(sampled, state)  # As a run validates it.
    temperature = settings.validation.temperature
    reporter.line(f"sampled at temperature {temperature:g}: {solved(found)}")
    last = {"temperature": temperature, **outcome_metrics(found)}
    params = lora.merge(trainer.policy_params(state))
    del state, trained
    policy.save(out, params, None)
    process.return_freed_memory()
    by: demonstrations.By = "rule" if _DESIGNS_BY.value == "random" else _DESIGNS_BY.value
    designing = examine_designs(settings, family, policy, params, _SEED.value, by)
    errors = {name: designing[f"{name}_error"] for name in family.space.names}
    reporter.line(
        f"designs: {designing['readable']:.0%} readable, "
        f"{designing['readable_without_repair']:.0%} without repair; mean error against the rule: "
        + ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
    )
    files.write_file(
        out / "warm_start.json",
        {
            "flags": _flags(),
            "parameters": count,
            "greedy_validation": curve,
            "validation": last,
            "designs": designing,
        },
    )
    shutil.rmtree(out / _UNFINISHED, ignore_errors=True)
    reporter.line(f"written to {out}")


def _flags() -> dict[str, Any]:
    """The flags that decide what is learned."""
    of_data = (
        *(_MODEL, _SEED, _STEPS, _BATCH_SIZE, _SOLUTIONS, _DESIGNS, _DESIGN_EVERY, _LEARNING_RATE),
        *(_CONTEXTS, _DESIGNS_BY, _DECAY, _LAYERS, _WIDTH, _INITIALIZER_RANGE),
    )
    return {flag.name: flag.value for flag in of_data}


def _decisive(settings: settings_lib.Settings) -> dict[str, Any]:
    """What else than code decides what is learned: options and the contents of files, by name."""
    return {
        **{f"--{name}": value for name, value in _flags().items()},
        **settings.to_dict(),
        "the family's file": files.family_digest(settings),
        "the model's files": versions.model_files(settings.model.folder) if _MODEL.value else {},
    }


def _train(
    trainer: sft.SFTTrainer,
    state: TrainState,
    lessons: dict[str, list[sft.Example]],
    decisive: dict[str, Any],
    order_key: jax.Array,
    out: Path,
    reporter: Reporter,
    outcome: Callable[[TrainState], FailureBreakdown],
) -> tuple[TrainState, list[dict[str, float]]]:
    """All steps that are left; saved now and then, and when the process is asked to leave.

    Returns:
      The last state, and the rates of every validation.
    """
    curve: list[dict[str, float]] = []
    start, used = 0, 0.0
    watcher = preemption.Preemption()
    with Checkpoints(out / _UNFINISHED, keep=1) as checkpoints, watcher.watch():
        if checkpoints.latest_step() is not None:
            with user_errors():  # Another architecture, or a damaged file.
                state, saved = checkpoints.restore(trainer.abstract_state)
            changed = files.changes(saved.get("decisive"), decisive)
            if other := [change for change in changed if not change.startswith(files.FREE)]:
                raise UserError(
                    f"--out={out}: what was begun there is another warm start "
                    f"({'; '.join(other)}); remove it"
                )
            start, curve, used = int(state.step), saved["curve"], saved["seconds"]
        last = _STEPS.value
        reporter.line(f"training, step {start + 1} to {last}; each length is compiled first")
        begin = last_save = time.perf_counter()

        def seconds() -> float:
            return round(used + time.perf_counter() - begin, 1)

        def save() -> None:
            metadata = {"decisive": decisive, "curve": curve, "seconds": seconds()}
            checkpoints.save(int(state.step), state, metadata)

        with reporter.bar("warm start", last, start, compiles=True) as advance:
            for step in range(start, last):
                # Designs are far longer than solutions; separate batches avoid padding.
                name = "solutions" if (step + 1) % _DESIGN_EVERY.value else "designs"
                size = _BATCH_SIZE.value
                if name == "designs":
                    size = min(_MICRO_BATCH_SIZE, size)
                done, examples = step + 1, lessons[name]
                with watcher.hold():
                    chosen = prompt_indices(order_key, step, size, len(examples))
                    state, metrics = trainer.step(state, [examples[i] for i in chosen], step)
                    late = time.perf_counter() - last_save > _SECONDS_BETWEEN_SAVES
                    if done < last and (late or watcher.requested):
                        save()
                        checkpoints.wait()
                        last_save = time.perf_counter()
                advance(done, f"loss {metrics['loss']:.3f} on {name}")
                if done % _VALIDATE_EVERY.value == 0 or done == last:
                    found = outcome(state)
                    point = {"step": done, "seconds": seconds(), "loss": round(metrics["loss"], 4)}
                    curve.append({**point, **outcome_metrics(found)})
                    reporter.line(f"step {done}, greedy: {solved(found)}")
    return state, curve


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
