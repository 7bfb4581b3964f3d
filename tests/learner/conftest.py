"""A byte-level tokenizer, a Qwen3 of a few thousand parameters and a task for the learner."""

import dataclasses

import jax
import micro_model
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from learner.decoder import model
from learner.devices import sharding
from learner.training.task import Scores

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def byte_tokenizer():
    """One token a byte, and the chat tokens: 259 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )


@pytest.fixture(scope="session")
def tiny_model():
    """Divides over 2 x 2 x 2 devices; more output rows than the tokenizer has ids."""
    return micro_model.config(vocab_size=264, max_position_embeddings=128)


@pytest.fixture(scope="session")
def one_device():
    return sharding.make_mesh(devices=jax.devices()[:1])


@pytest.fixture
def tiny_params(tiny_model):
    """Fresh for every test, because training donates them."""
    return model.init_params(jax.random.key(0), tiny_model)


@dataclasses.dataclass
class LetterTask:
    """Reward: the share of lower-case letters in the completion, plus a slowly moving baseline."""

    problems: int = 6
    average: float = 0.0

    def __len__(self):
        return self.problems

    def messages(self, index):
        return [{"role": "user", "content": "letters" + "!" * index}]

    def score(self, indices, completions):
        assert len(indices) == len(completions)
        share = np.array(
            [sum("a" <= c <= "z" for c in a.text) / 4 for a in completions], np.float32
        )
        self.average = 0.9 * self.average + 0.1 * float(share.mean())
        # Depends on the state, so that a resumed run shows whether that was restored.
        rewards = share * np.float32(1 + self.average)
        return Scores(rewards, {"letters": float(share.mean())})

    def state(self):
        return {"average": self.average}

    def restore(self, state):
        self.average = state["average"]


@pytest.fixture(scope="session")
def make_letter_task():
    return LetterTask


@pytest.fixture
def letter_task():
    return LetterTask()
