"""The tokenizer of the embedded tiny model, in the format of `transformers`.

A byte-level BPE like Qwen's, which can encode any text. Extra tokens keep the sequences of a tiny
model short: every text that is constant in all prompts is one token, and so is every cell, time and
two-decimal number.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.families.lakes.texts import TEXTS
from mapf_jax.text import RULES

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
_SPECIAL = (PAD, START, END)
_WORDS = r" ?[A-Za-z_]+:?| ?[0-9]+[:,]?|\n+| ?[^A-Za-z_0-9\s]+|\s+"
_LARGEST_COORDINATE, _LARGEST_TIME = 9, 63

#: Qwen3's chat format without the thinking block: the tiny model answers directly.
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")


def extra_tokens() -> list[str]:
    """Texts encoded as one token each, in addition to the learned tokens."""
    cells = range(_LARGEST_COORDINATE + 1)
    return [
        RULES,
        TEXTS.instruction,
        TEXTS.guideline,
        TEXTS.output_format,
        f"{START}user\n",
        f"{END}\n{START}assistant\n",
        "<answer>",
        "\n</answer>",
        " {data_ratio:",
        ", hole_ratio:",
        ", wait_ratio:",
        *(f" ({row},{column})" for row in cells for column in cells),
        *(f"\n{time}:" for time in range(_LARGEST_TIME + 1)),
        *(f" {hundredths / 100:.2f}" for hundredths in range(101)),
    ]


def train_tokenizer(corpus: Iterable[str], vocab_size: int) -> Any:
    """Trains the byte-pair encoding on texts and adds the extra tokens.

    Args:
      corpus: texts, such as prompts, answers, contexts and designs.
      vocab_size: total number of ids, extra tokens included.
    """
    from transformers import PreTrainedTokenizerFast  # Slow; a run first prints a line.

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    extra = extra_tokens()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(extra),
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in extra])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
