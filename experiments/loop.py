"""The closed loop: generate, train, validate, record, design; each step recorded before the next.

Every random choice is derived from the run's seed and the round, and every finished step leaves a
file, so a run that was killed anywhere goes on as if it had not been.

Several processes (`learner.devices.distributed`) go through it together. Only the first touches the
files
of the run, checkpoints apart: what it reads it tells the others, so all take the same turns.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml

import mapf_jax
from engineer import analysis
from engineer.context import Message
from engineer.endpoint import RefusedError
from engineer.evidence import Evidence, FailureBreakdown
from engineer.proposal import render_config
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from experiments import designing, evidence
from experiments import store as files
from experiments.engineer_training import EngineerTrainer
from experiments.errors import UserError, user_errors
from experiments.families.lakes.task import MapfTask
from experiments.policy import Policy, load_params, load_policy
from experiments.progress import Reporter
from experiments.settings import Settings
from experiments.validation import (
    ValidationResult,
    Validator,
    validation_responder,
    validation_set,
)
from learner.devices import distributed
from learner.devices.preemption import Preempted, Preemption
from learner.qwen3 import attention
from learner.sampling.completer import Completer
from learner.training import metrics, train_state
from learner.training.checkpoints import Checkpoints
from learner.training.train_state import TrainState
from learner.training.trainer import GRPOTrainer, StepResult
from learner.training.update import NonFiniteError
from mapf_jax import EnvironmentConfig, formats

# What the run's key is folded with, so that no two uses share one.
_GENERATION, _TRAINING, _DESIGN, _COLD_START, _ENGINEER = range(5)

_JUDGE_SET = "engineer_judge.jsonl"


@dataclasses.dataclass(frozen=True)
class Position:
    """Where a checkpoint stands: `step` training steps of round `round` are done.

    `total` counts those of earlier rounds too and names the checkpoint.
    """

    round: int
    step: int
    total: int


class Loop:
    """One run in one folder.

    Args:
      settings: the options.
      directory: where the run lives; another run of the same options is continued.
      reporter: where progress is shown.
    """

    def __init__(
        self, settings: Settings, directory: files.RunDirectory, reporter: Reporter
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._reporter = reporter
        self._space = settings.environment.space()
        self._key = jax.random.key(settings.seed)
        self._preemption = Preemption()

    def run(self) -> None:
        """Runs or resumes to the end.

        Raises:
          UserError: an option does not go with another one or with the model.
          NonFiniteError: a number that steers training was NaN or infinite; what the step trained
            on is in the folder `non_finite`.
          Preempted: SIGTERM came; all work up to the current step is saved.
        """
        with self._preemption.watch():
            self._run()

    def _run(self) -> None:
        settings, directory = self._settings, self._directory
        # Everything that can refuse its settings comes before anything that takes long.
        distributed.on_first(self._check_packages)
        with user_errors():
            self._start = distributed.on_first(
                lambda: designing.start_config(
                    settings, self._space, self._round_seed(_COLD_START, 0)
                )
            )
            policy, responder, engineer, params = distributed.on_all(self._load)
            base = params if settings.training.lora.rank else None
            reference = None
            if settings.training.objective.kl_coef > 0:
                # Training donates the first arrays, unless they are only the base of adapters.
                reference = params if base is not None else jax.tree.map(jnp.copy, params)
            trainer = GRPOTrainer(
                settings.training, policy.config, policy.mesh, policy.tokenizer, reference, base
            )
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        self._reporter.line(
            f"model {settings.model.path}: {count:,} parameters on "
            f"{policy.mesh.devices.size} x {policy.mesh.devices.flat[0].device_kind}"
            + (f" of {jax.process_count()} processes" if distributed.together() else "")
        )
        chosen = attention.choose(policy.config)
        self._reporter.line(f"attention: {chosen.name} ({chosen.reason})")
        validation = self._validation_set()
        validator = Validator(settings, responder, validation)
        names = set(mapf_jax.fingerprints(validation))
        engineer_trainer = None
        if settings.engineer.training.steps:
            assert engineer is not None  # Only the current checkpoint is trained as engineer.
            engineer_trainer = EngineerTrainer(
                settings,
                policy,
                trainer,
                responder,
                names,
                engineer.fits,
                reference,
                base,
                pause=self._preemption.agree,
            )
        with contextlib.ExitStack() as stack:
            checkpoints = stack.enter_context(
                Checkpoints(
                    directory.root / "checkpoints",
                    keep=settings.checkpoint.keep,
                    keep_best=settings.checkpoint.keep_best,
                )
            )
            initial = directory.root / "initial" / "validation.json"
            if not _exists(initial):
                self._validate(validator, params, initial)
            self._line("before training", self._breakdown(initial))
            task_state: dict[str, Any] = {}
            rewards: list[float] = []
            position = Position(0, 0, 0)
            if checkpoints.latest_step() is None:
                state = trainer.init_state(params, self._key)
            else:
                training = settings.training
                state, metadata = checkpoints.restore(
                    train_state.abstract_train_state(
                        policy.config, training.optimizer, policy.mesh, training.lora
                    )
                )
                position = Position(**metadata["position"])
                task_state, rewards = metadata["task"], metadata["rewards"]
                self._reporter.line(
                    f"resuming after step {position.step} of round {position.round}"
                )
            del params
            # Not earlier: TensorBoard hides what an interrupted run wrote of the steps to come.
            writers = stack.enter_context(contextlib.closing(self._writers(position.total + 1)))
            for index in range(settings.loop.rounds):
                if index < position.round:
                    self._report_round(index)
                    continue
                judged = self._fingerprints(_JUDGE_SET, index)
                instances = self._training_set(index, names | judged)
                if index > position.round:
                    position = Position(index, 0, position.total)
                state, position, task_state = self._train(
                    trainer, state, instances, task_state, rewards, position, checkpoints, writers
                )
                rewards = []
                path = directory.round(index) / "validation.json"
                policy_params = trainer.policy_params(state)
                if not _exists(path):
                    self._validate(validator, policy_params, path)
                    writers.write(position.total, _validation_figures(self._breakdown(path)))
                self._evidence(index)
                if index + 1 < settings.loop.rounds:
                    if engineer_trainer is not None:
                        # Done anew after a resume: the state of the checkpoint is from before it.
                        with self._batch_kept(f"round-{index}-engineer", checkpoints):
                            state = engineer_trainer(
                                state,
                                self._record(index + 1),
                                self._judge_set(index, engineer_trainer),
                                self._round_key(_ENGINEER, index),
                                directory.round(index) / "engineer_training.jsonl",
                            )
                        policy_params = trainer.policy_params(state)
                    self._design(index + 1, policy, engineer, policy_params)
                del policy_params  # The next step of training donates it.
                self._report_round(index)

    def _load(self) -> tuple[Policy, Completer, Completer | None, Any]:
        """The model, how it answers and designs, and its parameters; checks the designer too."""
        settings = self._settings
        policy = load_policy(settings)
        responder = validation_responder(settings, policy)
        engineer = None
        if settings.engineer.designer in designing.MODEL_DESIGNERS:
            engineer = designing.design_responder(settings, policy)
        designing.make_designer(settings, _no_answer, lambda chat: True)
        designing.make_reader(settings)
        return policy, responder, engineer, load_params(settings, policy)

    def _check_packages(self) -> None:
        log = self._settings.log
        for package, wanted in (("tensorboardX", log.tensorboard), ("wandb", log.wandb_project)):
            if wanted and importlib.util.find_spec(package) is None:
                raise UserError(
                    f"log={log}: needs the package {package}, which is not installed; "
                    "the extras `tensorboard` and `wandb` have them"
                )

    def _writers(self, first_step: int) -> metrics.Writers:
        """Where figures go beside the files of the rounds; steps count over all rounds."""
        log, root = self._settings.log, self._directory.root
        writers: list[metrics.Writer] = []
        if not distributed.is_first():
            return metrics.Writers(writers)
        if log.tensorboard:
            writers.append(metrics.TensorBoard(root / "tensorboard", first_step))
        if log.wandb_project:
            run_id = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
            options = self._settings.to_dict()
            writers.append(metrics.WandB(log.wandb_project, root, run_id, options))
        return metrics.Writers(writers)

    # Training sets

    def _validation_set(self) -> mapf_jax.Instance:
        folder = self._directory.root / "validation"
        path = folder / "instances.jsonl"
        if not _exists(path):
            self._reporter.line("making the validation set")
            instances, report = validation_set(self._settings)
            self._tell_shortfall(report)
            if distributed.is_first():
                files.write_json(folder / "generated.json", report.to_dict())
                self._write_instances(path, instances, "validation")
            self._preemption.agree()
        return _read_instances(path)

    def _training_set(self, index: int, exclude: set[bytes]) -> mapf_jax.Instance:
        """The instances of a round; makes them if that has not been done."""
        folder = self._directory.round(index)
        path = folder / "instances.jsonl"
        if not _exists(path):
            config, note = self._asked_config(index), ""
            self._reporter.line(f"round {index}: making the training set")
            try:
                instances, report = self._generate(index, config, exclude)
            except mapf_jax.NoInstanceError as error:
                if index == 0:
                    raise UserError(f"environment: {error}") from error
                # A design without a single solvable instance is no reason to stop the run.
                config, note = self._config(index - 1), f"previous configuration kept: {error}"
                self._reporter.line(f"round {index}: {note}")
                instances, report = self._generate(index, config, exclude)
            self._tell_shortfall(report)
            if distributed.is_first():
                files.write_json(folder / "generated.json", {"note": note, **report.to_dict()})
                text = render_config(config, self._space)
                files.write_text(folder / "environment.yaml", text + "\n")
                self._write_instances(path, instances, f"round-{index}")
            self._preemption.agree()
        return _read_instances(path)

    def _judge_set(self, index: int, trainer: EngineerTrainer) -> mapf_jax.Instance:
        """What the designs of a round are judged on in training; no round trains on any of it."""
        path = self._directory.round(index) / _JUDGE_SET
        if not _exists(path):
            trained = self._fingerprints("instances.jsonl", index + 1)
            judged = trainer.judge_set(self._round_key(_ENGINEER, index), trained)
            if distributed.is_first():
                self._write_instances(path, judged, f"judge-{index}")
        return _read_instances(path)

    def _fingerprints(self, name: str, rounds: int) -> set[bytes]:
        """Of all instances in the files of that name of the first rounds, where there are any."""
        paths = [self._directory.round(index) / name for index in range(rounds)]
        return distributed.on_first(
            lambda: {
                fingerprint
                for path in paths
                if path.exists()
                for fingerprint in mapf_jax.fingerprints(_read_instances(path))
            }
        )

    def _tell_shortfall(self, report: mapf_jax.GenerationReport) -> None:
        for row in report.sizes:
            if row.made < row.asked or row.made_wait < row.asked_wait:
                self._reporter.line(
                    f"  {row.size}x{row.size}: {row.made} of {row.asked} instances, "
                    f"{row.made_wait} of {row.asked_wait} that need a wait, "
                    f"from {row.candidates} lakes"
                )

    def _generate(
        self, index: int, config: Configuration, exclude: set[bytes]
    ) -> tuple[mapf_jax.Instance, mapf_jax.GenerationReport]:
        environment = self._settings.environment
        return mapf_jax.generate(
            self._round_key(_GENERATION, index),
            EnvironmentConfig.from_dict(config.to_dict()),
            environment.num_instances,
            environment.num_agents,
            exclude=exclude,
            max_candidates=environment.max_candidates,
            spread=distributed.sharded_map,
        )

    def _write_instances(self, path: Path, instances: mapf_jax.Instance, prefix: str) -> None:
        records = (formats.to_record(instances[i], f"{prefix}-{i}") for i in range(len(instances)))
        files.write_jsonl(path, records)

    def _asked_config(self, index: int) -> Configuration:
        """What round 0 starts from, or what the engineer designed for a later round."""
        if index == 0:
            return self._start
        design = _read_json(self._directory.round(index - 1) / "design" / "design.json")
        return Configuration.from_dict(design["config"])

    def _config(self, index: int) -> Configuration:
        """What the training set of a round was made from."""
        path = self._directory.round(index) / "environment.yaml"
        return Configuration.from_dict(
            distributed.on_first(lambda: yaml.safe_load(path.read_text()))
        )

    # Training

    def _train(
        self,
        trainer: GRPOTrainer,
        state: TrainState,
        instances: mapf_jax.Instance,
        task_state: dict[str, Any],
        rewards: list[float],
        position: Position,
        checkpoints: Checkpoints,
        writers: metrics.Writers,
    ) -> tuple[TrainState, Position, dict[str, Any]]:
        """Trains from `position` to the end of its round, with checkpoints on the way.

        `rewards` are the means of the steps since the last regular checkpoint. The next regular
        one is scored by them, so the one that is written on leaving keeps them and has no score.
        """
        settings, index = self._settings, position.round
        task = MapfTask(instances, settings.reward, settings.environment.list_holes)
        if task_state:
            task.restore(task_state)
        steps = settings.training.num_steps(len(task))
        log: metrics.Writer = metrics.Writers(())
        if distributed.is_first():
            log = metrics.JsonLines(self._directory.round(index) / "train.jsonl", position.step)
        results = trainer.run(state, task, self._round_key(_TRAINING, index), position.step, steps)
        rewards = list(rewards)
        with (
            self._preemption.hold(),
            contextlib.closing(log),
            self._reporter.bar(f"round {index} training", steps, position.step) as advance,
            self._batch_kept(f"round-{index}", checkpoints),
        ):
            for result in results:
                state, figures = result.state, result.metrics
                position = Position(index, result.step + 1, position.total + 1)
                log.write(result.step, figures)
                writers.write(position.total, figures)
                rewards.append(figures["reward"])
                advance(
                    position.step,
                    f"reward {figures['reward']:.2f} valid {figures['task/valid']:.2f}",
                )
                last = position.step == steps
                if last:
                    self._draw_failures(index, instances, result)
                self._preemption.agree()
                leave = self._preemption.requested
                regular = last or position.step % settings.checkpoint.every_steps == 0
                if leave or regular:
                    score = float(np.mean(rewards)) if regular else None
                    rewards = [] if regular else rewards
                    metadata = {
                        "position": dataclasses.asdict(position),
                        "task": task.state(),
                        "rewards": rewards,
                    }
                    checkpoints.save(position.total, state, metadata, score)
                if leave:
                    checkpoints.wait()
                    raise Preempted
        return state, position, task.state()

    @contextlib.contextmanager
    def _batch_kept(self, name: str, checkpoints: Checkpoints) -> Iterator[None]:
        """Keeps what a step trained on that stops with `NonFiniteError`, and says where."""
        try:
            yield
        except NonFiniteError as error:
            folder = self._directory.root / "non_finite" / f"{name}-step-{error.step}"
            # JSON has no word for NaN.
            known = {k: v if np.isfinite(v) else str(v) for k, v in error.metrics.items()}
            if distributed.is_first():
                error.rollout.save(folder)
                files.write_json(folder / "metrics.json", known)
            self._reporter.line(
                f"{name} stopped at step {error.step}: its batch is in {folder}, the "
                f"last good checkpoint is {checkpoints.latest_step()}"
            )
            raise

    def _draw_failures(self, index: int, instances: mapf_jax.Instance, result: StepResult) -> None:
        texts = [answer.text for answer in result.completions]
        failures = evidence.training_failures(instances, result.indices, texts)
        if distributed.is_first():
            files.write_json(self._directory.round(index) / "train_failures.json", failures)

    # Validation

    def _validate(self, validator: Validator, params: Any, path: Path) -> None:
        result = validator(params)
        tokens = [answer.num_tokens for answer in result.answers]
        truncated = [answer.truncated for answer in result.answers]
        if distributed.is_first():
            files.write_jsonl(path.with_name("answers.jsonl"), _answer_records(result))
            files.write_json(
                path,
                {
                    **result.judgement.breakdown(np.asarray(tokens)).to_dict(),
                    "completion_tokens_mean": round(float(np.mean(tokens)), 2),
                    "truncated_fraction": round(float(np.mean(truncated)), 4),
                },
            )
        self._preemption.agree()

    def _breakdown(self, path: Path) -> FailureBreakdown:
        return FailureBreakdown.from_dict(_read_json(path))

    def _evidence(self, index: int) -> Evidence:
        """All that is known of a finished round; gathered once."""
        path = self._directory.round(index) / "evidence.json"

        def known() -> dict[str, Any]:
            if not path.exists():
                gathered = evidence.round_evidence(
                    path.parent, self._directory.root / "validation" / "instances.jsonl"
                )
                files.write_json(path, gathered.to_dict())
            return files.read_json(path)

        return Evidence.from_dict(distributed.on_first(known))

    # Design

    def _design(self, index: int, policy: Policy, responder: Completer | None, params: Any) -> None:
        """Designs the configuration of round `index`, unless that has been done."""
        settings = self._settings
        folder = self._directory.round(index - 1) / "design"
        if _exists(folder / "design.json"):
            return
        if settings.engineer.designer == "base":
            params = load_params(settings, policy)

        def generate(chat: Sequence[Message], count: int, seed: int) -> list[str]:
            assert responder is not None
            answers = responder(params, [chat], jax.random.key(seed), count)
            return [answer.text for answer in answers]

        fits = (lambda chat: True) if responder is None else responder.fits
        designer = designing.make_designer(settings, generate, fits)
        record = self._record(index)
        reader, seed = designing.make_reader(settings), self._round_seed(_DESIGN, index)
        try:
            design = designer.design(record, self._space, seed)
            context = "\n\n".join(message["content"] for message in design.context_messages)
            answers = "\n\n---\n\n".join(design.raw_texts)
            if reader is not None and design.raw_texts:
                made = f"{answers}\n\nUsed next:\n{render_config(design.config, self._space)}"
                reading = analysis.judge_design(reader, context, made, seed)
                told = None if reading is None else dataclasses.asdict(reading)
                if distributed.is_first():
                    files.write_json(folder / "reading.json", told)
        except RefusedError as error:
            raise UserError(f"engineer: {error}") from error
        self._preemption.agree()
        if not distributed.is_first():
            return
        files.write_text(folder / "context.md", context + "\n")
        files.write_text(folder / "answers.md", answers + "\n")
        files.write_json(folder / "record.json", record.to_dict())
        measures = analysis.analyse(record, design.config, self._space)
        files.write_json(folder / "analysis.json", measures.to_dict())
        files.write_json(folder / "design.json", design.to_dict())

    def _record(self, index: int) -> RunRecord:
        """What is known when round `index` is designed."""
        history = tuple(
            RoundRecord(
                round=past,
                config=self._config(past),
                evidence=self._evidence(past),
                cold_start=past == 0,
                summary=self._explanation(past),
            )
            for past in range(index)
        )
        return RunRecord(
            history=history,
            round=index,
            total_rounds=self._settings.loop.rounds,
            epochs_per_round=self._settings.training.epochs,
            summary=history[-1].summary,
            training=designing.training_texts(self._settings),
            initial=self._breakdown(self._directory.root / "initial" / "validation.json"),
        )

    def _explanation(self, index: int) -> str | None:
        """The engineer's own, of the configuration that round `index` was trained with."""
        if index == 0:
            return None
        if _read_json(self._directory.round(index) / "generated.json")["note"]:
            return self._explanation(index - 1)  # The design was not used.
        design = _read_json(self._directory.round(index - 1) / "design" / "design.json")
        return design["summary"] or None

    # Keys and lines

    def _round_key(self, purpose: int, index: int) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(self._key, purpose), index)

    def _round_seed(self, purpose: int, index: int) -> int:
        entropy = [self._settings.seed, purpose, index]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0]) >> 1

    def _report_round(self, index: int) -> None:
        folder = self._directory.round(index)
        line = ""
        path = folder / "design" / "design.json"
        if _exists(path):
            design = _read_json(path)
            line = describe(Configuration.from_dict(design["config"]))
            if design["kept_previous"]:
                line += f" (kept: {design['reason']})"
        self._line(f"round {index}", self._breakdown(folder / "validation.json"), line)

    def _line(self, title: str, breakdown: FailureBreakdown, design: str = "") -> None:
        sizes = " ".join(
            f"{row.name}x{row.name} {row.valid_rate:.0%}/{row.optimal_rate:.0%}"
            for row in breakdown.by_group
        )
        text = (
            f"{title}: valid {breakdown.valid_rate:.1%} optimal {breakdown.optimal_rate:.1%}"
            f" (valid/optimal {sizes})"
        )
        self._reporter.line(text + (f"; next: {design}" if design else ""))


def _exists(path: Path) -> bool:
    return distributed.on_first(path.exists)


def _read_json(path: Path) -> Any:
    return distributed.on_first(lambda: files.read_json(path))


def _read_instances(path: Path) -> mapf_jax.Instance:
    return distributed.on_first(lambda: formats.from_records(list(formats.read_jsonl(path))))


def describe(config: Configuration) -> str:
    """A configuration in one short line: share, holes and waits of each size."""
    words = {"data_ratio": "share", "hole_ratio": "holes", "wait_ratio": "waits"}
    return ", ".join(
        f"{size}x{size} "
        + " ".join(f"{words.get(name, name)} {number:.2f}" for name, number in numbers.items())
        for size, numbers in config.to_dict().items()
    )


def _no_answer(chat: Sequence[Message], count: int, seed: int) -> list[str]:
    """Stands in for a model where a designer is only checked, not asked."""
    raise AssertionError("a designer was asked before the run began")


def _validation_figures(breakdown: FailureBreakdown) -> dict[str, float]:
    figures = {
        "validation/valid": breakdown.valid_rate,
        "validation/optimal": breakdown.optimal_rate,
    }
    for row in breakdown.by_group:
        figures[f"validation/valid_{row.name}"] = row.valid_rate
        figures[f"validation/optimal_{row.name}"] = row.optimal_rate
    return figures


def _answer_records(result: ValidationResult) -> list[dict[str, Any]]:
    verdict, judgement = result.judgement.verdict, result.judgement
    return [
        {
            "id": f"validation-{i}",
            "size": int(judgement.sizes[i]),
            "valid": bool(verdict.valid[i]),
            "optimal": bool(verdict.optimal[i]),
            "failed": [name for name in mapf_jax.CHECKS if not getattr(verdict, name)[i]],
            "cost": int(verdict.cost[i]) if verdict.valid[i] else None,
            "optimum": int(judgement.optimum[i]),
            "tokens": answer.num_tokens,
            "text": answer.text,
        }
        for i, answer in enumerate(result.answers)
    ]
