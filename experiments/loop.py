"""The closed loop: generate, train, validate, design; each step recorded before the next.

Every random choice is derived from the run's seed and the round, and every finished step leaves a
file, so a run that was killed anywhere goes on as if it had not been. Several processes go through
it together; the store says who touches the files.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engineer.context import Message
from engineer.evidence import FailureBreakdown
from engineer.space import Configuration
from experiments import designing, evidence
from experiments.engineer_training import EngineerTrainer
from experiments.errors import UserError, user_errors
from experiments.families import Problem
from experiments.hindsight import Hindsight
from experiments.policy import describe_policy, load_params, load_policy
from experiments.problem_sets import (
    COLD_START,
    DESIGN,
    ENGINEER,
    HINDSIGHT,
    TRAINING,
    ProblemSets,
    round_key,
    round_seed,
)
from experiments.progress import Reporter, describe, plan
from experiments.run_checkpoint import Position, Progress, resume
from experiments.run_metrics import check_packages, open_writers
from experiments.settings import Settings
from experiments.store import RunStore, check_steps
from experiments.trials import Trials
from experiments.validation import validate, validation_completer, write_validation
from learner.devices import distributed
from learner.devices.preemption import Preempted, Preemption
from learner.qwen3 import attention, weights
from learner.qwen3.cached_attention import choose_decoding
from learner.training import metrics
from learner.training.checkpoints import Checkpoints
from learner.training.trainer import GRPOTrainer
from learner.training.update import NonFiniteError


class Loop:
    """One run in one folder.

    Args:
      store: the files of the run; another run of the same options is continued.
      reporter: where progress is shown.
      resume_from: the checkpoint to go on from; None is the last one.

    Raises:
      UserError: the family cannot be loaded.
    """

    def __init__(
        self,
        settings: Settings,
        store: RunStore,
        reporter: Reporter,
        resume_from: int | None = None,
    ) -> None:
        self._settings = settings
        self._resume_from = resume_from
        self._store = store
        self._reporter = reporter
        with user_errors():
            self._family = settings.load_family()
        self._preemption = Preemption()

    def run(self) -> None:
        """Runs or resumes to the end.

        Raises:
          UserError: an option does not go with another one or with the model.
          NonFiniteError: a number that steers training was NaN or infinite; what the step trained
            on is in the folder `non_finite`.
          Preempted: SIGTERM or SIGINT came; all work up to the current step is saved.
        """
        settings, store = self._settings, self._store
        with self._preemption.watch(), contextlib.ExitStack() as stack:
            # Everything that can refuse its settings comes before anything that takes long.
            params = self._load()
            trainer = self._trainer
            self._reporter.notes(plan(settings, trainer.memory(), trainer.capacities))
            kept = settings.checkpoint
            with user_errors():
                checkpoints = Checkpoints(store.root / "checkpoints", kept.keep, kept.keep_best)
            self._checkpoints = stack.enter_context(checkpoints)
            asked, there = self._resume_from, checkpoints.steps()
            if asked not in (None, *there):
                raise UserError(f"resume_from={asked}: no checkpoint {asked}, there are {there}")
            # TensorBoard hides what an interrupted run wrote of the steps to come.
            to_come = (self._resume_from or checkpoints.latest_step() or 0) + 1
            self._write_metrics = stack.enter_context(open_writers(settings, store.root, to_come))
            self._problems = ProblemSets(settings, self._family, store, self._reporter, self._first)
            self._preemption.agree()
            self._validate(params, store.root / "initial", 0)
            self._report("before training", store.root / "initial")
            progress = self._start(params)
            del params  # Training donates them.
            self._begun, self._saved = progress.position.total, time.monotonic()
            for index in range(settings.loop.rounds):
                if index >= progress.position.round:
                    self._train(index, progress)
                    params = self._trainer.policy_params(progress.state)
                    self._validate(params, store.round(index), progress.position.total)
                    self._keep_weights(params, index)
                    del params  # Training donates them.
                    evidence.round_evidence(store, self._family, index)
                    if index + 1 < settings.loop.rounds:
                        self._train_engineer(index, progress)
                        self._design(index, progress)
                self._report_round(index)

    def _load(self) -> Any:
        """The parameters that the run starts from; whatever else of the model it needs is kept."""
        settings = self._settings
        distributed.on_first(lambda: check_packages(settings))
        with user_errors():
            for line in designing.ask_servers(settings):
                self._reporter.line(line)
            seed = round_seed(settings, COLD_START, 0)
            self._first = distributed.on_first(
                lambda: designing.start_config(settings, self._family.space, seed)
            )
            params = distributed.on_all(self._load_model)
            base = params if settings.training.lora.rank else None
            reference = None
            if settings.training.objective.kl_coef > 0:
                # Training donates the first arrays, unless they are only the base of adapters.
                reference = jax.tree.map(jnp.copy, params) if base is None else params
            policy = self._policy
            self._make_trainer = functools.partial(
                GRPOTrainer,
                model_config=policy.config,
                mesh=policy.mesh,
                tokenizer=policy.tokenizer,
                reference_params=reference,
                base_params=base,
            )
            self._trainer = self._make_trainer(settings.training)
        self._reporter.line(f"model {settings.model.path}: {describe_policy(policy, params)}")
        chosen = attention.choose(policy.config)
        self._reporter.line(f"attention: {chosen.name} ({chosen.reason})")
        if chosen.name == "splash":
            chosen = choose_decoding(policy.config)
            self._reporter.line(f"attention of decoding: {chosen.name} ({chosen.reason})")
        return params

    def _load_model(self) -> Any:
        """Loads it, and checks whatever else of the settings depends on it."""
        settings, family = self._settings, self._family
        self._policy = load_policy(settings)
        self._completer = self._greedy = validation_completer(settings, self._policy)
        if settings.validation.temperature > 0:
            self._greedy = validation_completer(settings, self._policy, greedy=True)
        self._engineer = None
        if settings.engineer.designer in designing.MODEL_DESIGNERS:
            self._engineer = designing.design_completer(settings, family, self._policy)
        designing.make_designer(settings, family, _unused, lambda chat: True, _unused)
        designing.make_judge(settings)
        return load_params(settings, self._policy)

    def _start(self, params: Any) -> Progress:
        """The progress of the last checkpoint, of the one asked for, or of a run's beginning."""
        if self._checkpoints.latest_step() is None and self._resume_from is None:
            key = jax.random.key(self._settings.seed)
            return Progress(self._trainer.init_state(params, key))
        progress = resume(self._checkpoints, self._settings, self._policy, self._resume_from)
        position = progress.position
        self._reporter.line(f"resuming after step {position.step} of round {position.round}")
        return progress

    # Training

    def _train(self, index: int, progress: Progress) -> None:
        """Trains to the end of a round, with checkpoints on the way."""
        settings, position = self._settings, progress.position
        problems = self._problems.training(index)
        self._preemption.agree()
        if index > position.round:
            position = progress.position = Position(index, 0, position.total)
        task = self._family.task(problems)
        if progress.task:
            task.restore(progress.task)
        steps = settings.training.num_steps(len(task))
        if position.total == self._begun and position.step < steps:
            self._reporter.line(f"round {index}: compiling the first step, a minute or more")
        path = self._store.round(index) / "train.jsonl"
        distributed.on_first(lambda: check_steps(path, position.step))
        write = metrics.json_lines(path, position.step) if distributed.is_first() else None
        key = round_key(settings, TRAINING, index)
        results = self._trainer.run(
            progress.state, task, key, position.step, steps, self._preemption.release
        )
        with (
            self._preemption.hold(),
            self._saved_if_preempted(progress),
            self._reporter.bar(f"round {index} training", steps, position.step) as advance,
            self._batch_kept(f"round-{index}"),
        ):
            for result in results:
                records, last = result.scores.records, result.step + 1 == steps
                outcomes = evidence.outcome_metrics(records)
                values = result.metrics | {f"task/{k}": v for k, v in outcomes.items()}
                position = Position(index, result.step + 1, position.total + 1)
                progress.state, progress.position = result.state, position
                progress.task = task.state()
                progress.rewards.append(values["reward"])
                if write is not None:
                    write(result.step, values)
                self._write_metrics(position.total, values)
                note = f"reward {values['reward']:.2f} valid {values['task/valid']:.2f}"
                advance(position.step, note)
                if last:
                    chosen = [problems[i] for i in result.indices.tolist()]
                    texts = [completion.text for completion in result.completions]
                    drawn = evidence.drawn_failures(self._family, records, chosen, texts, False)
                    self._store.write(self._store.round(index) / "train_failures.json", drawn)
                self._preemption.agree()
                leave = self._preemption.requested
                regular = last or self._due(position.step)
                if leave or regular:
                    keep = last and settings.checkpoint.of_rounds == "state"
                    progress.save(self._checkpoints, regular, keep)
                    self._saved = time.monotonic()
                if leave:
                    self._checkpoints.wait()
                    break

    def _due(self, step: int) -> bool:
        """Whether a checkpoint is due after a step of a round, by steps or by time."""
        kept = self._settings.checkpoint
        if kept.every_steps and step % kept.every_steps == 0:
            return True
        if not kept.every_minutes:
            return False
        seconds = 60 * kept.every_minutes
        return distributed.on_first(lambda: time.monotonic() - self._saved >= seconds)

    def _keep_weights(self, params: Any, index: int) -> None:
        """Writes the weights after a round, if the settings ask for it, unless that is done."""
        folder = self._store.round(index) / "weights"
        if self._settings.checkpoint.of_rounds != "weights" or self._store.exists(folder):
            return
        policy, begun = self._policy, folder.with_name("weights.tmp")
        weights.save(
            begun,
            params,
            policy.config,
            policy.tokenizer,
            dtype="bfloat16",
            generation_config=weights.read_generation_config(self._settings.model.folder),
        )
        distributed.on_first(lambda: begun.rename(folder))

    @contextlib.contextmanager
    def _saved_if_preempted(self, progress: Progress) -> Iterator[None]:
        """Saves what the last step left where the next one is stopped while it samples."""
        try:
            yield
        except Preempted:
            if progress.position.total > (self._checkpoints.latest_step() or 0):
                progress.save(self._checkpoints, regular=False)
            self._checkpoints.wait()
            raise

    @contextlib.contextmanager
    def _batch_kept(self, name: str) -> Iterator[None]:
        """Keeps what a step trained on that stops with `NonFiniteError`, and says where."""
        try:
            yield
        except NonFiniteError as error:
            folder = self._store.root / "non_finite" / f"{name}-step-{error.step}"
            if error.rollout is not None and distributed.is_first():
                error.rollout.save(folder)
            # JSON has no word for NaN.
            known = {k: v if np.isfinite(v) else str(v) for k, v in error.metrics.items()}
            self._store.write(folder / "metrics.json", known)
            self._reporter.line(
                f"{name} stopped at step {error.step}: its batch is in {folder}, the "
                f"last good checkpoint is {self._checkpoints.latest_step()}"
            )
            raise

    # Validation

    def _validate(self, params: Any, folder: Path, steps: int) -> None:
        """Validates what so many steps in all have trained, unless that has been done."""
        if self._store.exists(folder / "validation.json"):
            return
        if not steps:
            self._reporter.line("validating the model as it is, once that is compiled")
        problems, family = self._problems.validation, self._family
        settings, store, values = self._settings, self._store, {}
        records = greedy = validate(settings, family, self._completer, problems, params)
        if self._greedy is not self._completer:
            greedy = validate(settings, family, self._greedy, problems, params)
            found = evidence.outcome_metrics(greedy)
            values = {f"validation_greedy/{name}": value for name, value in found.items()}
        write_validation(store, folder, family, records, greedy)
        found = evidence.outcome_metrics(records)
        values |= {f"validation/{name}": value for name, value in found.items()}
        self._write_metrics(steps, values)
        self._preemption.agree()

    # Design

    @functools.cached_property
    def _trials(self) -> Trials:
        return Trials(
            self._settings.engineer.training,
            self._family,
            self._trainer,
            self._completer,
            self._problems.validation,
            self._preemption.agree,
        )

    @functools.cached_property
    def _engineer_trainer(self) -> EngineerTrainer:
        assert self._engineer is not None  # Only the current checkpoint is trained as engineer.
        return EngineerTrainer(
            self._settings, self._family, self._make_trainer, self._trials, self._engineer.fits
        )

    @functools.cached_property
    def _hindsight(self) -> Hindsight:
        assert self._engineer is not None  # Only the current checkpoint is trained as engineer.
        return Hindsight(self._settings, self._family, self._policy, self._engineer.fits)

    def _probe(self, index: int) -> tuple[list[Problem], jax.Array]:
        """What shows the progress of a round's trials, and their key."""
        key = round_key(self._settings, ENGINEER, index)
        size = self._settings.engineer.training.probe_set_size
        return self._problems.probe(index, size, jax.random.fold_in(key, 0)), key

    def _train_engineer(self, index: int, progress: Progress) -> None:
        """Trains the checkpoint on designing; again after a resume, whose state is older."""
        options = self._settings.engineer.training
        steps: list[dict[str, Any]] = []
        if not (options.steps or options.hindsight_steps):
            return
        record = evidence.run_record(self._store, self._settings, self._family, index + 1)
        with self._batch_kept(f"round-{index}-engineer"):
            if options.hindsight_steps:
                key = round_key(self._settings, HINDSIGHT, index)
                progress.state, steps = self._hindsight(progress.state, record, key)
            if options.steps:
                probe, key = self._probe(index)
                trained = self._engineer_trainer(progress.state, record, probe, key)
                progress.state, steps = trained[0], steps + trained[1]
        self._store.write(self._store.round(index) / "engineer_training.jsonl", steps)

    def _design(self, index: int, progress: Progress) -> None:
        """Designs the configuration of the next round, unless that has been done."""
        settings, store, family = self._settings, self._store, self._family
        folder = store.round(index) / "design"
        if store.exists(folder / "design.json"):
            return
        completer = self._engineer
        if settings.engineer.designer == "base":
            params = load_params(settings, self._policy)
        else:
            params = self._trainer.policy_params(progress.state)

        def generate(chat: Sequence[Message], seed: int) -> str:
            assert completer is not None
            (completion,) = completer(params, [chat], jax.random.key(seed))
            return completion.text

        trial: Callable[[Configuration], float] = _unused
        if settings.engineer.designer in designing.PROBING_DESIGNERS:
            trial = self._trials.progress(progress.state, *self._probe(index))
        fits = (lambda chat: True) if completer is None else completer.fits
        designer = designing.make_designer(settings, family, generate, fits, trial)
        record = evidence.run_record(store, settings, family, index + 1)
        seed = round_seed(settings, DESIGN, index + 1)
        designing.design_round(settings, store, folder, designer, record, family.space, seed)
        self._preemption.agree()

    # Lines

    def _report_round(self, index: int) -> None:
        folder = self._store.round(index)
        path = folder / "design" / "design.json"
        design = self._store.read(path) if self._store.exists(path) else None
        self._report(f"round {index}", folder, "" if design is None else describe(design))

    def _report(self, title: str, folder: Path, ending: str = "") -> None:
        found = self._store.read(folder / "validation.json")
        sampled, greedy = map(FailureBreakdown.from_dict, (found, found["greedy"]))
        self._reporter.validation(title, sampled, greedy, ending)


def _unused(*arguments: Any) -> Any:
    raise AssertionError(f"{arguments}: this designer asks for none")
