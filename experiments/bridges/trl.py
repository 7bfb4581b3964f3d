"""Rounds that the model in training designs, in TRL's `GRPOTrainer`: one epoch is one round.

    rounds = DesignedRounds(family, rounds=3, num_instances=64)
    trl.GRPOTrainer(
        model, rounds.reward, train_dataset=rounds.dataset(), callbacks=[rounds], args=...
    ).train()

After each epoch the model answers the validation set, reads the evidence of its failures and writes
the configuration of the next training set. `args` has `num_train_epochs=3`.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import datasets
import jax
import numpy as np
import torch
import transformers

from engineer import proposal
from engineer.context import DEFAULT_VARIANT, VARIANTS, ContextSpec
from engineer.designers import Design, Designer, ModelDesigner
from engineer.evidence import Evidence, FailureBreakdown
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from experiments.families.family import Family, NoProblemError
from learner.chat import Completion, Message

_BATCH = 32  # Validation answers sampled at once.


class DesignedRounds(transformers.TrainerCallback):
    """A training set that its own model configures anew after each epoch.

    TRL makes its data loader once, so the data set has numbers of slots, and a slot's problem is
    looked up when it is read. Each process designs for itself from the same weights and seeds;
    shards of parameters (FSDP, ZeRO-3) are not gathered.

    Args:
      family: of this package (`FamilySettings("words:sums").load_family()`) or of one's own.
      rounds: epochs, at least 1; a design follows each but the last.
      num_instances: problems in a round's training set.
      num_validation: problems that the model answers greedily before training and after each round.
      max_answer_tokens: budget of such an answer.
      max_design_tokens: budget of a design.
      spec: the modules of the context in which the model designs.
      designer: designs in the model's place, such as `curricula.BY_RULE["mastery"]`.
      seed: of problems and designs.

    Attributes:
      config: the configuration of the current round.
      history: a record of each finished round.
      designs: what was written after each of them.
    """

    def __init__(
        self,
        family: Family,
        *,
        rounds: int,
        num_instances: int,
        num_validation: int = 64,
        max_answer_tokens: int = 256,
        max_design_tokens: int = 512,
        spec: ContextSpec = VARIANTS[DEFAULT_VARIANT],
        designer: Designer | None = None,
        seed: int = 0,
    ) -> None:
        for name, value in {"rounds": rounds, "num_instances": num_instances}.items():
            if value < 1:
                raise ValueError(f"{name}={value}: allowed is 1 or more")
        self._family, self._rounds, self._count = family, rounds, num_instances
        self._answer_tokens, self._design_tokens = max_answer_tokens, max_design_tokens
        self._spec, self._designer, self._seed = spec, designer, seed
        key = jax.random.fold_in(jax.random.key(seed), 0)
        self._validation = family.validation_set(key, num_validation).problems
        self._initial: FailureBreakdown | None = None
        self.history: list[RoundRecord] = []
        self.designs: list[Design] = []
        self._begin_round(family.space.uniform())

    def dataset(self) -> datasets.Dataset:
        """The training set for `train_dataset`: columns `prompt`, a chat, and `slot`."""
        slots = datasets.Dataset.from_dict({"slot": list(range(self._count))})
        return slots.with_transform(self._look_up)

    def reward(
        self, completions: Sequence[Any], completion_ids: Sequence[Any], slot: Any, **_: Any
    ) -> list[float]:
        """The rewards of completions, for `reward_funcs`; the arguments are those of TRL."""
        answers = [
            Completion(
                one if isinstance(one, str) else "".join(turn["content"] for turn in one),
                len(ids),
                truncated=False,
            )
            for one, ids in zip(completions, completion_ids, strict=True)
        ]
        indices = np.asarray(slot) % len(self._problems)
        return self._task.score(indices, answers).rewards.tolist()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Validates the model before training.

        Raises:
          ValueError: training goes on from a checkpoint, or has another number of epochs.
        """
        if state.global_step:
            raise ValueError(
                f"global_step={state.global_step}: designed rounds begin with their training; "
                "allowed is 0"
            )
        if args.num_train_epochs != self._rounds or args.max_steps > 0:
            raise ValueError(
                f"num_train_epochs={args.num_train_epochs:g}, max_steps={args.max_steps}: allowed "
                f"are {self._rounds}, one epoch a round, and -1"
            )
        self._initial = self._validate(model, others["processing_class"])

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Validates the model, and begins the round that it designs."""
        tokenizer = others["processing_class"]
        found = self._validate(model, tokenizer)
        number = len(self.history)
        past = RoundRecord(number, self.config, Evidence(found), cold_start=not number)
        self.history.append(past)
        if number + 1 == self._rounds:
            return
        record = RunRecord(
            tuple(self.history), number + 1, self._rounds, epochs_per_round=1, initial=self._initial
        )
        designer = self._designer or self._model_designer(model, tokenizer)
        design = designer(record, self._family.space, self._seed)
        self.designs.append(design)
        text = proposal.render_config(design.config, self._family.space)
        logging.info("round %d:\n%s%s", number + 1, text, design.nothing or design.reason)
        try:
            self._begin_round(design.config)
        except NoProblemError as error:  # As in a run, the previous configuration stays.
            logging.warning("round %d keeps its configuration: %s", number + 1, error)
            self._begin_round(self.config)

    def _begin_round(self, config: Configuration) -> None:
        key = jax.random.fold_in(jax.random.key(self._seed), 1 + len(self.history))
        made = self._family.generate(key, config, self._count, self._validation)
        self.config, self._problems = config, made.problems
        self._task = self._family.task(self._problems)

    def _look_up(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The rows of slots; problems repeat where a configuration has fewer than slots."""
        prompts = [
            list(map(dict, self._task.messages(slot % len(self._problems))))
            for slot in batch["slot"]
        ]
        return {"prompt": prompts, "slot": list(batch["slot"])}

    def _validate(self, model: Any, tokenizer: Any) -> FailureBreakdown:
        task = self._family.task(self._validation)
        chats = [task.messages(i) for i in range(len(task))]
        answers = [
            answer
            for begin in range(0, len(chats), _BATCH)
            for answer in _sample(
                model, tokenizer, chats[begin : begin + _BATCH], self._answer_tokens
            )
        ]
        records = task.score(np.arange(len(chats)), answers).records
        return self._family.breakdown(
            [
                {**record, "tokens": answer.num_tokens, "truncated": answer.truncated}
                for record, answer in zip(records, answers, strict=True)
            ]
        )

    def _model_designer(self, model: Any, tokenizer: Any) -> Designer:
        window = model.config.max_position_embeddings - self._design_tokens

        def generate(chat: Sequence[Message], seed: int) -> str:
            return _sample(model, tokenizer, [chat], self._design_tokens, seed)[0].text

        def fits(chat: Sequence[Message]) -> bool:
            return _encoded(tokenizer, [chat])["input_ids"].shape[1] <= window

        return ModelDesigner(generate, self._family.texts, self._spec, fits=fits)


def _encoded(tokenizer: Any, chats: Sequence[Sequence[Message]]) -> Any:
    texts = [
        tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)
        for chat in chats
    ]
    return tokenizer(
        texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False
    )


def _sample(
    model: Any,
    tokenizer: Any,
    chats: Sequence[Sequence[Message]],
    max_new_tokens: int,
    seed: int | None = None,
) -> list[Completion]:
    """An answer to each chat: greedy without a seed, else at temperature 1."""
    rows = _encoded(tokenizer, chats).to(model.device)
    options = {"do_sample": False} if seed is None else {"do_sample": True, "temperature": 1.0}
    with _evaluating(model), torch.random.fork_rng():
        torch.manual_seed(0 if seed is None else seed)
        found = model.generate(
            **rows, **options, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id
        )
    new = found[:, rows["input_ids"].shape[1] :].tolist()
    texts = tokenizer.batch_decode(new, skip_special_tokens=True)
    ends = model.generation_config.eos_token_id or tokenizer.eos_token_id
    return [
        Completion(text, *_length(ids, np.atleast_1d(ends).tolist()))
        for text, ids in zip(texts, new, strict=True)
    ]


def _length(ids: Sequence[int], ends: Sequence[int]) -> tuple[int, bool]:
    """Tokens up to the first that ends, which counts, and whether there is none."""
    found = [ids.index(end) for end in ends if end in ids]
    return (min(found) + 1, False) if found else (len(ids), True)


@contextlib.contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
