"""Rounds that the model in training designs, in TRL's `GRPOTrainer`: one epoch is one round.

    rounds = DesignedRounds(family, rounds=3, num_instances=64)
    trl.GRPOTrainer(
        model, rounds.reward, train_dataset=rounds.dataset(), callbacks=[rounds], args=...
    ).train()

After each epoch the model answers the validation set, reads the evidence of its failures and writes
the configuration of the next training set. `args` has `num_train_epochs=3`.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

try:
    import datasets
    import torch
    import transformers
except ModuleNotFoundError as error:
    text = "DesignedRounds needs TRL; in a clone of the project: pip install -e '.[trl]'"
    raise ImportError(text) from error

from engineer.context import DEFAULT_VARIANT, VARIANTS, ContextSpec
from engineer.designers import Designer, ModelDesigner
from engineer.evidence import FailureBreakdown
from experiments.bridges.rounds import Rounds, check_designer
from experiments.families.family import Family
from learner.chat import Completion, Message

_BATCH = 32  # Validation answers sampled at once.


class DesignedRounds(Rounds, transformers.TrainerCallback):
    """A training set that its own model configures anew after each epoch.

    Each process designs for itself from the same weights and seeds; shards of parameters (FSDP,
    ZeRO-3) are not gathered.

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
        super().__init__(
            family,
            rounds=rounds,
            num_instances=num_instances,
            num_validation=num_validation,
            seed=seed,
        )
        if designer is not None:
            check_designer(designer)
        self._answer_tokens, self._design_tokens = max_answer_tokens, max_design_tokens
        self._spec, self._designer = spec, designer

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
        indices = np.array([self._index(one) for one in slot])
        return self._task.score(indices, answers).rewards.tolist()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Validates the model before training.

        Raises:
          ValueError: training goes on from a checkpoint, has another number of epochs, or keeps the
            processes that read data.
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
        if args.dataloader_persistent_workers:
            # They would keep the first round's problems, which `reward` no longer looks up.
            raise ValueError(
                "dataloader_persistent_workers=True: each round begins with new workers; "
                "allowed is False"
            )
        self._initial = self._validate(model, others["processing_class"])

    def on_epoch_end(
        self, args: Any, state: Any, control: Any, model: Any = None, **others: Any
    ) -> None:
        """Validates the model, and begins the round that it designs."""
        tokenizer = others["processing_class"]
        found = self._validate(model, tokenizer)
        designer = self._designer or self._model_designer(model, tokenizer)
        self._finish_round(found, designer)

    def _look_up(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """The problems of slots."""
        prompts = [self._messages(slot) for slot in batch["slot"]]
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
    inputs = _encoded(tokenizer, chats).to(model.device)
    options = {"do_sample": False} if seed is None else {"do_sample": True, "temperature": 1.0}
    with _evaluating(model), torch.random.fork_rng():
        torch.manual_seed(0 if seed is None else seed)
        found = model.generate(
            **inputs, **options, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id
        )
    new = found[:, inputs["input_ids"].shape[1] :].tolist()
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
