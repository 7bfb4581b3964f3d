"""The closed loop: generate, train, validate, design; each step is recorded before the next.

Every random choice derives from the run's seed and the round, and every finished step leaves a
file, so a run that is killed anywhere resumes with the same results. Several processes run the loop
together; the store decides which one touches the files.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from engineer import designers
from engineer.designers import Designer
from engineer.evidence import FailureBreakdown
from engineer.space import Configuration
from experiments.families import Problem, examination
from experiments.ring import designing, outcomes, problem_sets, reading
from experiments.ring.change import Change, change_of
from experiments.ring.hindsight import Hindsight
from experiments.ring.metrics import check_packages, of_design, of_validation, open_writers
from experiments.ring.problem_sets import ProblemSets
from experiments.ring.validation import Written, validate, validation_completers, write_validation
from experiments.run import branching, policy, process
from experiments.run.checkpoint import Position, RunCheckpoints
from experiments.run.reading import readings
from experiments.run.status import Reporter, describe, memory_advice, plan, round_title, truncation
from experiments.run.store import READING, TEST, TRACE, RunStore, append_log, open_steps
from experiments.settings import Settings
from experiments.text.errors import UserError, memory_errors, user_errors
from learner.devices import distributed
from learner.devices.preemption import Preemption
from learner.training import metrics
from learner.training.trainer import GRPOTrainer, frozen_params

Outcomes = tuple[FailureBreakdown, FailureBreakdown]
"""Those of sampled and of greedy answers in a validation."""


class Loop:
    """One run in one folder.

    Args:
      store: the files of the run; a run that is there is resumed.
      reporter: shows progress.
      resume_from: the checkpoint to resume from; None is the last one.

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
        self._processor = 0.0
        # Seconds of validation and design since the last step, named for the log.
        self._since_step: dict[str, float] = {}

    def run(self) -> None:
        """Runs or resumes to the end.

        Raises:
          UserError: an option does not go with another one or with the model.
          NonFiniteError: a number of a training step was NaN or infinite; the folder `non_finite`
            has its metrics and, except in supervised steps, its batch.
          OutOfMemoryError: sampling or an update needs more memory than there is.
          Preempted: SIGTERM or SIGINT came; all work up to the current step is saved.
        """
        settings, store = self._settings, self._store
        with self._preemption.watch(), contextlib.ExitStack() as stack:
            # Whatever may reject the settings comes before anything slow.
            params = self._load()
            distributed.on_first(lambda: store.claim(settings))
            planned = plan(settings, self._trainer)
            self._reporter.notes(planned)
            stack.enter_context(memory_errors(memory_advice(settings, planned)))
            self._checkpoints = stack.enter_context(RunCheckpoints(settings, store))
            self._begun = self._checkpoints.done(self._resume_from)
            # TensorBoard hides what an interrupted run wrote for steps that are now repeated.
            opened = open_writers(settings, store.root, self._begun + 1)
            self._write_metrics = stack.enter_context(opened)
            self._problems = ProblemSets(settings, self._family, store, self._reporter, self._first)
            self._preemption.agree()
            validated = self._validate(params, store.root / "initial", 0)
            if settings.loop.rounds > settings.engineer.kept_rounds:
                self._read(params, store.root / "initial", 0)
            self._report("before training", store.root / "initial", validated)
            self._test(params, store.root / "initial", 0)
            position = self._start(params)
            del params  # Training donates them.
            for index in range(settings.loop.rounds):
                folder = store.round(index)
                if index < position.round:
                    validated = self._validated(folder)
                else:
                    self._train(index, position)
                    params = self._trainer.policy_params(position.state)
                    validated = self._validate(params, folder, position.total)
                    if index + 1 == settings.loop.rounds:
                        self._test(params, folder, position.total)
                    self._checkpoints.keep_weights(self._policy, params, index)
                    del params  # Training donates them.
                    outcomes.round_evidence(store, self._family, index)
                    if index + 1 < settings.loop.rounds:
                        self._train_engineer(index, position)
                        self._design(index, position)
                self._report(f"round {index + 1}", folder, validated)

    def _load(self) -> Any:
        """Sets up everything but the files of the run; returns the initial parameters."""
        settings = self._settings
        distributed.on_first(lambda: check_packages(settings))
        with user_errors():
            if line := designing.ask_server(settings):
                self._reporter.line(line)
            seed = problem_sets.round_seed(settings, problem_sets.COLD_START, 0)
            self._first = distributed.on_first(
                lambda: designing.start_config(settings, self._family.space, seed)
            )
            if settings.family_file:
                tried = examination.own_errors(settings.family_file)(examination.try_once)
                distributed.on_first(lambda: tried(self._family))
            params = distributed.on_all(self._load_model)
            self._trainer = GRPOTrainer(
                settings.training,
                model_config=self._policy.config,
                mesh=self._policy.mesh,
                tokenizer=self._policy.tokenizer,
                frozen_params=frozen_params(settings.training, params),
            )
        for line in policy.describe(settings, self._policy, params):
            self._reporter.line(line)
        return params

    def _load_model(self) -> Any:
        """Loads the model, and checks the settings that depend on it."""
        settings, family = self._settings, self._family
        self._policy = policy.load_policy(settings)
        designs = settings.engineer.designer in designing.MODEL_DESIGNERS
        window = self._policy.config.max_position_embeddings
        for name in ("training", "validation", *["engineer"] * designs):
            if (budget := getattr(settings, name).max_new_tokens) >= window:
                raise ValueError(
                    f"{name}.max_new_tokens={budget}: the model's window has {window} tokens "
                    "(max_position_embeddings), for the prompt, too"
                )
        self._sampled, self._greedy = validation_completers(settings, self._policy)
        self._engineer = None
        if designs:
            self._engineer = designing.design_completer(settings, family, self._policy)
        designing.make_designer(settings, family)
        return policy.load_params(settings, self._policy)

    def _start(self, params: Any) -> Position:
        """The position at the checkpoint to resume from, or at the start of a run or branch."""
        if self._begun:
            position = self._checkpoints.resume(self._policy, self._begun)
        else:
            params, begin = branching.fresh_start(self._store, self._policy, params)
            state = self._trainer.init_state(params, jax.random.key(self._settings.seed))
            position = Position(state, **begin)
            self._begun = position.total
        if position.total:
            title = round_title(position.round)
            self._reporter.line(f"resuming after step {position.step} of {title}")
        return position

    def _train(self, index: int, position: Position) -> None:
        """Trains to the end of a round, with checkpoints on the way."""
        settings, problems = self._settings, self._problems.training(index)
        self._preemption.agree()
        if index > position.round:
            # Its prompts are new, so scores of others say nothing.
            position.round, position.step, position.prompt_scores = index, 0, None
        task = self._family.task(problems)
        if position.task:
            task.restore(position.task)
        steps = settings.steps_per_round
        if position.total == self._begun and position.step < steps:
            self._reporter.compiling(f"round {index + 1}", self._trainer.sampler.capacities)
        path, begin = self._store.round(index) / "train.jsonl", position.step
        distributed.on_first(lambda: open_steps(path, begin))
        key = problem_sets.round_key(settings, problem_sets.TRAINING, index)
        results = self._trainer.run(
            position.state,
            task,
            key,
            begin,
            steps,
            self._preemption.release,
            position.prompt_scores,
        )
        profiled = settings.training.profiled
        results = metrics.traced(results, self._store.root / TRACE, position.total, profiled)
        with (
            self._preemption.hold(),
            self._checkpoints.saved_if_preempted(position),
            self._reporter.bar(f"round {index + 1} training", steps, begin, True) as advance,
            self._checkpoints.batch_kept(f"round-{index}", self._reporter),
        ):
            for result in results:
                breakdown = self._family.breakdown(result.scores.records)
                values = result.metrics | outcomes.outcome_metrics(breakdown, "task/")
                values["machine/processor_seconds"] = self._processor_seconds()
                position.advance(result, task)
                if distributed.is_first():
                    append_log(path, [{"step": result.step, **values, **self._since_step}])
                self._since_step = {}
                self._write_metrics(position.total, values)
                note = f"reward {values['reward']:.2f} valid {values['task/valid']:.2f}"
                advance(position.step, note)
                last = position.step == steps
                if last:
                    drawn = outcomes.training_failures(self._family, problems, result)
                    self._store.write(self._store.round(index) / "train_failures.json", drawn)
                self._preemption.agree()
                leave = self._preemption.requested
                self._checkpoints.after_step(position, last, leave)
                if leave:
                    break
        process.return_freed_memory()

    @contextlib.contextmanager
    def _timed(self, phase: str, steps: int) -> Iterator[None]:
        """Logs the seconds of a phase after `steps` steps in all; returns its memory afterwards."""
        name = f"{metrics.MACHINE}{phase}_seconds"
        with metrics.timed(self._since_step, name):
            yield
        process.return_freed_memory()
        self._write_metrics(steps, {name: self._since_step[name]})

    def _processor_seconds(self) -> float:
        """Processor seconds of this process since the last call, or since it began."""
        before, self._processor = self._processor, time.process_time()
        return self._processor - before

    def _validate(self, params: Any, folder: Path, steps: int) -> Outcomes:
        """Validates the parameters after `steps` steps in all, unless that is done already."""
        if self._store.exists(folder / "validation.json"):
            return self._validated(folder)
        if not steps:
            self._reporter.line("compiling the sampler, then validating the untrained model")
        problems = self._problems.validation
        with self._timed("validation", steps):
            done = self._answer(folder, problems, params)
        if self._settings.log.on:
            path = folder / "environment.yaml"
            config = self._store.read(path, Configuration.from_dict) if steps else None
            shown = outcomes.example(self._store, self._family, folder)
            found = of_validation(self._family, problems, done.records, config, shown)
            self._write_metrics(steps, {**done.metrics, **found})
        self._preemption.agree()
        return done.sampled, done.greedy

    def _validated(self, folder: Path) -> Outcomes:
        """The outcomes of a validation that has its files."""
        found = self._store.read(folder / "validation.json")
        return FailureBreakdown.from_dict(found), FailureBreakdown.from_dict(found["greedy"])

    def _test(self, params: Any, validated: Path, steps: int) -> None:
        """Answers the test set, if any, beside a validation, unless that is done already."""
        folder = validated / TEST
        if self._problems.test and not self._store.exists(folder / "validation.json"):
            with self._timed("validation", steps):
                self._answer(folder, self._problems.test, params)
            self._preemption.agree()

    def _answer(self, folder: Path, problems: Sequence[Problem], params: Any) -> Written:
        """Writes the files of a validation; see `write_validation`."""
        return write_validation(
            self._store,
            folder,
            self._family,
            lambda respond, count: validate(
                self._settings, self._family, respond, problems, params, count
            ),
            self._sampled,
            self._greedy,
            self._settings.validation.samples,
        )

    def _read(self, params: Any, folder: Path, steps: int) -> None:
        """Measures whether the engineer, a model, reads its evidence, unless that is done."""
        settings, path = self._settings, folder / READING
        asked = self._engineer is not None and settings.engineer.reading_questions
        if not asked or self._store.exists(path):
            return
        with self._timed("reading", steps):
            try:
                found = reading.measure(settings, self._family, self._policy, params)
            except UserError as error:  # A run that designs does not need it.
                self._reporter.line(f"reading was not measured: {error}")
                found = {}
        if found:
            each = {rule: dataclasses.asdict(one) for rule, one in found.items()}
            self._store.write(path, each)
            rates = {f"design/follows_{r}": one.follows / one.questions for r, one in found.items()}
            self._write_metrics(steps, rates)
        self._preemption.agree()

    @functools.cached_property
    def _hindsight(self) -> Hindsight:
        assert self._engineer is not None
        return Hindsight(self._settings, self._family, self._policy, self._engineer.fits)

    def _train_engineer(self, index: int, position: Position) -> None:
        """Trains the checkpoint as engineer; repeated after a resume, whose state is older."""
        if not self._settings.engineer.training.hindsight_steps:
            return
        record = outcomes.run_record(self._store, self._settings, self._family, index + 1)
        key = problem_sets.round_key(self._settings, problem_sets.HINDSIGHT, index)
        with self._checkpoints.batch_kept(f"round-{index}-engineer", self._reporter):
            position.state, steps = self._hindsight(position.state, record, key)
        self._store.write(self._store.round(index) / "engineer_training.jsonl", steps)

    def _design(self, index: int, position: Position) -> None:
        """Designs the configuration of the next round, unless that is done."""
        settings, store, family = self._settings, self._store, self._family
        folder = store.round(index) / "design"
        seed = problem_sets.round_seed(settings, problem_sets.DESIGN, index + 1)
        if store.exists(folder / "design.json"):
            return
        kept = index + 1 < settings.engineer.kept_rounds
        if settings.engineer.designer != "base" and not kept:  # That was asked before training.
            params = self._trainer.policy_params(position.state)
            self._read(params, store.round(index), position.total)
        with self._timed("design", position.total):
            designer = self._designer(index, position)
            record = outcomes.run_record(store, settings, family, index + 1)
            design = designing.design_round(store, folder, designer, record, family.space, seed)
        change = self._change(store.round(index), store.read(folder / "design.json"))
        self._write_metrics(position.total, of_design(design, change))
        self._preemption.agree()

    def _designer(self, index: int, position: Position) -> Designer:
        """The designer of the configuration of the next round."""
        settings, store = self._settings, self._store
        if index + 1 < settings.engineer.kept_rounds:
            return designers.fixed
        given: dict[str, Any] = {"usage": store.root / designing.USAGE}
        if settings.engineer.designer == "base":
            given["params"] = policy.load_params(settings, self._policy)
        elif self._engineer is not None:
            given["params"] = self._trainer.policy_params(position.state)
        return designing.make_designer(settings, self._family, self._engineer, **given)

    def _change(self, folder: Path, design: Mapping[str, Any]) -> Change:
        """What the design after the round in `folder`, in its JSON form, changed."""
        was = self._store.read(folder / "environment.yaml", Configuration.from_dict)
        now = {**design, "config": Configuration.from_dict(design["config"])}
        shuffled = self._settings.engineer.shuffle_evidence
        return change_of(was, now, self._validated(folder)[0], self._family, shuffled=shuffled)

    def _report(self, title: str, folder: Path, validated: Outcomes) -> None:
        """Shows a validation, and the design that followed, if any."""
        path, changed = folder / "design" / "design.json", []
        ending = ""
        if self._store.exists(path):
            design = self._store.read(path)
            was = self._store.read(folder / "environment.yaml", Configuration.from_dict)
            ending = describe(design, was, self._family.space)
            change = self._change(folder, design)
            changed = [f"the design {change.sentence()}"] if change.moves else []
        self._reporter.validation(title, *validated, ending)
        if self._store.exists(folder / READING):
            found = self._store.read(folder / READING, readings)
            self._reporter.notes([f"reading: {reading.summary(found)}", *reading.advice(found)])
        self._reporter.notes(changed)
        self._reporter.notes(truncation(validated[0], self._settings.validation.max_new_tokens))
        if self._store.exists(folder / "train.jsonl"):
            remark = outcomes.faint_signal(self._store.read(folder / "train.jsonl"))
            self._reporter.notes([remark] if remark else [])
        self._reporter.notes(outcomes.example(self._store, self._family, folder))
