"""Rounds that are designed inside verl's `RayPPOTrainer`, by verl's hook for data sets.

A file of one's own says what verl is to train on:

    plan = Plan(family, rounds=4, steps_per_round=10, num_instances=256, designer=..., file=...)
    DataSet, compute_score = plan.dataset_class(), plan.compute_score

and verl's options name both: `data.custom_cls` the class, `reward.custom_reward_function` the
function. After each step verl hands the batch with its answers to `on_batch_end`; every
`steps_per_round` steps they become the evidence from which the next training set is designed.
"""

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

try:
    import torch
    from torch.utils.data import Dataset
except ModuleNotFoundError as error:
    text = "a plan of rounds needs verl; in a clone of the project: pip install -e '.[verl]'"
    raise ImportError(text) from error

from engineer import designers
from engineer.designers import Design, Designer, NoAnswerError
from engineer.record import RunRecord
from engineer.space import ConfigurationSpace
from experiments.bridges.rounds import Rounds, check_designer
from experiments.families.family import Family, Record
from learner.chat import Completion

TRAINING, VALIDATION = "rounds", "validation"
"""What `data.train_files` and `data.val_files` are; also the `data_source` of their problems."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What verl trains on.

    Attributes:
      family: of this package (`FamilySettings("words:sums").load_family()`) or of one's own.
      rounds: at least 1; a design follows each but the last, which lasts until training ends.
      steps_per_round: steps of training, at least 1.
      num_instances: problems in a round's training set, at least verl's batch.
      designer: `curricula.BY_RULE["mastery"]`, say, or a `ModelDesigner` that asks an `Endpoint`.
      file: of a JSON line for each round, with its configuration, the design that led to it, and
        the evidence of the round before. It must not be there yet.
      num_validation: problems of the fixed validation set, on which verl itself reports.
      tokenizer: folder or hub name of the trained model's tokenizer, with which the reward counts
        an answer's tokens; None counts none, for rewards that do not depend on length.
      seed: of problems and designs.

    Raises:
      ValueError: a number is below 1, the designer is only a name, or tokens cost but are not
        counted.
    """

    family: Family
    rounds: int
    steps_per_round: int
    num_instances: int
    designer: Designer
    file: str | Path
    num_validation: int = 64
    tokenizer: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "steps_per_round", "num_instances", "num_validation"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: allowed is 1 or more")
        check_designer(self.designer)
        if self.family.token_cost and self.tokenizer is None:
            raise ValueError(
                f"tokenizer=None: token_cost={self.family.token_cost:g} needs one that counts"
            )

    def dataset_class(self) -> type["DesignedRounds"]:
        """The class for `data.custom_cls`."""
        return type("PlannedRounds", (DesignedRounds,), {"plan": self})

    def compute_score(
        self,
        data_source: str,
        solution_str: str,
        ground_truth: str,
        extra_info: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> dict[str, float]:
        """The reward of one answer, for `reward.custom_reward_function`.

        verl scores answers one by one in several processes. A family whose reward follows an
        average over answers starts that average anew for each.

        Args:
          data_source: ignored.
          solution_str: the answer without special tokens.
          ground_truth: the problem as JSON.
          extra_info: ignored.
          **others: ignored.

        Returns:
          `score`, the reward, and `acc`, 1 for a valid answer and else 0.
        """
        num_tokens = len(_encoder(self.tokenizer)(solution_str)) if self.tokenizer else 0
        answer = Completion(solution_str, num_tokens, truncated=False)
        scores = self.family.task([json.loads(ground_truth)]).score(np.zeros(1, int), [answer])
        return {"score": float(scores.rewards[0]), "acc": float(scores.records[0]["valid"])}


class DesignedRounds(Rounds, Dataset[dict[str, Any]]):
    """A training set that is configured anew every few steps, or the validation set.

    The evidence of a round is of its training answers, since a data set cannot ask the workers'
    model. A row of the space that the round did not train on keeps its latest evidence.

    Args:
      data_files: "rounds" for the training set, "validation" for the validation set.
      tokenizer: of the trained model; decodes its answers.
      config: verl's options under `data`.
      processor: ignored; problems are text.
      max_samples: ignored if -1, else refused.

    Raises:
      ValueError: an argument, or an option of `config`, does not go together with rounds, or the
        file of the plan is there.
    """

    plan: ClassVar[Plan]

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: Any,
        config: Mapping[str, Any],
        processor: Any = None,
        max_samples: int = -1,
    ) -> None:
        plan = self.plan
        names = [data_files] if isinstance(data_files, str) else list(data_files)
        if names not in ([TRAINING], [VALIDATION]):
            raise ValueError(
                f"data_files={names}: allowed are {TRAINING!r} as data.train_files and "
                f"{VALIDATION!r} as data.val_files"
            )
        if max_samples != -1:
            raise ValueError(f"max_samples={max_samples}: allowed is -1, all that the plan says")
        self._source, self._tokenizer = names[0], tokenizer
        training = self._source == TRAINING
        batch = (training and (config.get("gen_batch_size") or config["train_batch_size"])) or 0
        if training:
            _check(config, batch, plan)
        super().__init__(
            plan.family,
            rounds=plan.rounds,
            num_instances=plan.num_instances,
            num_validation=plan.num_validation,
            seed=plan.seed,
            epochs_per_round=batch * plan.steps_per_round / plan.num_instances or 1,
        )
        self._seen: dict[str, list[Record]] = {}  # Of the current round, by row of the space.
        self._latest: dict[str, list[Record]] = {}  # Of the latest finished round that had any.
        self._steps = self._reads = 0
        if training:
            self._note("x", None)
        else:
            self._count = plan.num_validation
            self._pose(self._validation)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, slot: int) -> dict[str, Any]:
        """The problem of a slot, with the fields that verl reads.

        Raises:
          RuntimeError: verl has trained on the set for long without telling it.
        """
        self._reads += 1
        if self._source == TRAINING and self._reads > 2 * len(self):
            raise RuntimeError(
                f"{self._reads} problems were read without a call of on_batch_end: this trainer of "
                "verl has no such hook; trainer.use_v1=False chooses one that has"
            )
        return {
            "raw_prompt": self._messages(slot),
            "data_source": self._source,
            "reward_model": {
                "style": "rule",
                "ground_truth": json.dumps(dict(self._problems[self._index(slot)])),
            },
            "extra_info": {"index": slot, "round": len(self.history)},
            "index": slot,
            "tools_kwargs": {},
            "interaction_kwargs": {},
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),  # verl wants a tensor in a batch.
        }

    def on_batch_end(self, batch: Any) -> None:
        """Takes the answers of a step as evidence, and begins the next round when it is time.

        Args:
          batch: verl's `DataProto` of N answers: the tensors `responses`, i64[N, T], and
            `response_mask`, [N, T], 1 for tokens of the answer; and `extra_info` of the problems.

        Raises:
          ValueError: the answers are to problems of another round, which was sampled ahead.
        """
        self._reads = 0
        number = len(self.history)
        if number + 1 == self.plan.rounds:
            return
        infos = batch.non_tensor_batch["extra_info"]
        if others := {info["round"] for info in infos} - {number}:
            raise ValueError(
                f"round={min(others)}: the answers of this step are to problems of another round; "
                f"allowed is {number}, so trainers that sample ahead are not"
            )
        indices = np.array([self._index(info["index"]) for info in infos])
        answers = self._answers(batch.batch["responses"], batch.batch["response_mask"])
        for record, answer in zip(self._task.score(indices, answers).records, answers, strict=True):
            noted = {**record, "tokens": answer.num_tokens, "truncated": answer.truncated}
            self._seen.setdefault(str(record["group"]), []).append(noted)
        self._steps += 1
        if self._steps == self.plan.steps_per_round:
            self._latest |= self._seen
            self._steps, self._seen = 0, {}
            found = [record for records in self._latest.values() for record in records]
            self._finish_round(self._family.breakdown(found), self._design)
            self._note("a", self.designs[-1])

    def _answers(self, ids: torch.Tensor, mask: torch.Tensor) -> list[Completion]:
        """The answers as text; one that fills its budget without an end token is truncated."""
        answers = []
        for response, own in zip(ids.cpu(), mask.cpu().bool(), strict=True):
            tokens = response[own].tolist()
            ended = tokens[-1:] == [self._tokenizer.eos_token_id]
            text = self._tokenizer.decode(tokens, skip_special_tokens=True)
            truncated = len(tokens) == len(response) and not ended
            answers.append(Completion(text, len(tokens), truncated))
        return answers

    def _design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The plan's design; without an answer the configuration stays, and training goes on."""
        try:
            return self.plan.designer(record, space, seed)
        except NoAnswerError as error:
            logging.warning("round %d keeps its configuration: %s", record.round + 1, error)
            return designers.keep(record, space, "none", str(error))

    def _note(self, mode: str, design: Design | None) -> None:
        """Writes the line of the round that begins."""
        line = {
            "round": len(self.history),
            "config": self.config.to_dict(),
            "design": design and design.to_dict(),
            "evidence": self.history[-1].evidence.to_dict() if self.history else None,
        }
        try:
            with Path(self.plan.file).open(mode, encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except FileExistsError:
            raise ValueError(
                f"file={str(self.plan.file)!r}: is there already; rounds begin with their "
                "training and do not go on from a checkpoint of verl; allowed is a new file"
            ) from None


def _check(config: Mapping[str, Any], batch: int, plan: Plan) -> None:
    """Refuses options with which no round would be trained on, or never change."""
    if workers := config.get("dataloader_num_workers", 0):
        raise ValueError(
            f"data.dataloader_num_workers={workers}: allowed is 0, as others keep copies of the "
            "first round"
        )
    if not 1 <= batch <= plan.num_instances:
        raise ValueError(
            f"data.train_batch_size={batch}: allowed are 1 to num_instances={plan.num_instances}"
        )


@functools.cache
def _encoder(tokenizer: str) -> Callable[[str], Sequence[int]]:
    import transformers

    loaded = transformers.AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    return lambda text: loaded(text, add_special_tokens=False).input_ids
