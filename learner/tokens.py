"""Text to token ids and back, and the padding of id lists to static shapes."""

import contextlib
import dataclasses
import os
import re
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learner import checks

_TOKENIZER_FILES = ("tokenizer.json", "vocab.json")
# Classes of tokenizers that are what their tokenizer.json says, by their names in transformers.
_GENERIC = ("TokenizersBackend", "PreTrainedTokenizerFast")

THINK_BEGIN, THINK_END = "<think>", "</think>"
# How Qwen3's thought is ended when it is cut off (arXiv 2505.09388, section 4.3).
_EARLY_STOP = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the "
    f"thinking directly now.\n{THINK_END}"
)
# What a chat template may take for a chat of one word; for any chat the seconds, the memory of all
# that are encoded together, which other threads need as well, and the characters that it may write
# beside those for a chat of one word, for each of the chat's own.
_TEMPLATE_SECONDS, _TEMPLATE_MEMORY, _TEMPLATE_CHARACTERS = 10, 1 << 30, 1 << 20
_CHAT_SECONDS, _CHAT_MEMORY, _CHAT_EXPANSION = 60, 1 << 33, 64


@dataclasses.dataclass(frozen=True)
class ThinkingBudget:
    """A limit on how long a completion may think, as Qwen3's (arXiv 2505.09388, section 4.3).

    A completion begins in thought and leaves it with a trigger such as `</think>`. After
    `max_tokens` tokens without it, the tokens `closing_ids` are forced, and the completion goes on
    after them. Their log-probabilities are 0: the model did not choose them.

    Attributes:
        max_tokens: at least 0.
        closing_ids: tokens that end the thought; the last of them are the trigger, so that the rest
            of the completion always follows a trigger.
        trigger_length: how many tokens the trigger has, at least 1.

    Raises:
        ValueError: `max_tokens` is negative.
    """

    max_tokens: int
    closing_ids: tuple[int, ...]
    trigger_length: int = 1

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise ValueError(f"max_tokens of thinking is {self.max_tokens}; it must be at least 0")

    @property
    def trigger(self) -> tuple[int, ...]:
        """The tokens that end a thought, whether chosen or forced."""
        return self.closing_ids[-self.trigger_length :]

    def forced(self, tokens: np.ndarray) -> np.ndarray:
        """bool[N, M]: which tokens of completions, i32[N, M], were forced to end a thought.

        Only for a trigger of one token.
        """
        (trigger,) = self.trigger
        begin, places = self.max_tokens, np.arange(tokens.shape[1])
        cut = ~(tokens[:, :begin] == trigger).any(axis=1)
        return cut[:, None] & (places >= begin) & (places < begin + len(self.closing_ids))


def load_tokenizer(folder: str | Path) -> Any:
    """The Hugging Face tokenizer saved in `folder`; the network is not used.

    The ends of sequence in the folder's `generation_config.json` become its attribute
    `generation_stop_ids`, which `stop_token_ids` reads: models that chat may end a turn by a token
    that their tokenizer does not call its end. Without that file those of `config.json` do, as far
    as the tokenizer has them.

    Raises:
        ValueError: there is no such folder, or no tokenizer in it that can be read, or its chat
            template loops or writes without end.
    """
    if not Path(folder).is_dir():
        raise ValueError(f"tokenizer folder is {str(folder)!r}; it must be an existing folder")
    # Without any, transformers makes one up that knows a single token.
    if not any((Path(folder) / name).is_file() for name in _TOKENIZER_FILES):
        raise ValueError(f"folder {str(folder)!r} has none of {', '.join(_TOKENIZER_FILES)}")
    # Otherwise transformers advises to install torch, which a tokenizer does not need.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        # `AutoTokenizer` cuts text as Qwen2's does wherever config.json has that model type.
        kind = PreTrainedTokenizerFast if _is_generic(Path(folder)) else AutoTokenizer
        tokenizer = kind.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # Broken files raise many kinds of errors.
        raise ValueError(
            f"the tokenizer in {str(folder)!r} cannot be read: {checks.first_line(error)}"
        ) from error
    path = Path(folder) / "generation_config.json"
    ids = checks.json_object(path).get("eos_token_id") if path.is_file() else None
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    most = vocab_size(tokenizer)
    if not all(type(one) is int and 0 <= one < most for one in ids):
        raise ValueError(
            f"{path}: eos_token_id={checks.shortened(ids)}: allowed are ids from 0 to {most - 1}"
        )
    config = Path(folder) / "config.json"
    if not path.is_file() and config.is_file():
        said = checks.json_object(config).get("eos_token_id")
        said = said if isinstance(said, list) else [said]
        ids = [one for one in said if type(one) is int and 0 <= one < most]
    tokenizer.generation_stop_ids = tuple(ids)
    try:
        _try_template(tokenizer)
    except ValueError as error:
        raise ValueError(f"the chat template in {str(folder)!r} {error}") from error
    return tokenizer


def _is_generic(folder: Path) -> bool:
    """Whether the folder's tokenizer has no class of its own in transformers."""
    path = folder / "tokenizer_config.json"
    if not (path.is_file() and (folder / "tokenizer.json").is_file()):
        return False
    return checks.json_object(path).get("tokenizer_class") in _GENERIC


def _try_template(tokenizer: Any) -> None:
    """Renders a chat of one word within limits: a template is a program that anybody wrote.

    Other errors than those of the limits wait for a chat that needs the template.

    Raises:
        ValueError: it takes too long, or too much memory.
    """
    chat = [{"role": "user", "content": "Hello"}]
    for thinking in (False, True):
        text = ""
        try:
            with _limits(_TEMPLATE_SECONDS, _TEMPLATE_MEMORY):
                text = tokenizer.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
                )
        except _LimitError as error:
            raise ValueError(f"takes more than {error} for a chat of one word") from error
        except Exception:
            continue
        if len(text) > _TEMPLATE_CHARACTERS:
            raise ValueError(f"writes {len(text):,} characters for a chat of one word")


class _LimitError(BaseException):
    """Not an `Exception`: a template's compiler goes on after those of constant expressions."""


@contextlib.contextmanager
def _limits(seconds: int, memory: int) -> Iterator[Callable[[], None]]:
    """Limits the body's processor time, of all threads together, and on Linux its new memory.

    Only the main thread can limit time.

    Args:
        memory: bytes.

    Yields:
        A function that gives the body its whole time again.

    Raises:
        _LimitError: it needs more than that, which is its text.
    """

    def late(*_: Any) -> None:
        raise _LimitError(f"{seconds} s")

    # Python calls handlers of signals in this thread alone.
    handles = threading.current_thread() is threading.main_thread()

    def restart() -> None:
        if handles:
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds)

    with contextlib.ExitStack() as stack:
        if handles:
            stack.callback(signal.signal, signal.SIGVTALRM, signal.signal(signal.SIGVTALRM, late))
            stack.callback(signal.setitimer, signal.ITIMER_VIRTUAL, 0)
        restart()
        pages = Path("/proc/self/statm")  # Its first number is of address space.
        if pages.exists():
            taken = int(pages.read_text("utf-8").split()[0]) * resource.getpagesize()
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            if soft == resource.RLIM_INFINITY or soft > taken + memory:
                stack.callback(resource.setrlimit, resource.RLIMIT_AS, (soft, hard))
                resource.setrlimit(resource.RLIMIT_AS, (taken + memory, hard))
        try:
            yield restart
        except MemoryError as error:
            raise _LimitError(f"{memory >> 20} MiB") from error


def character_tokenizer(characters: str, texts: Sequence[str] = ()) -> Any:
    """A tokenizer with one token for each character.

    For small tasks whose models are trained from scratch. A chat is its messages one after
    another, each ended by the token <|im_end|>, which ends completions and pads too.

    Args:
        characters: all that may occur, each once; ids are given in this order. `encode_chats` and
            `encode_texts` refuse others.
        texts: strings that are one token each wherever they occur.

    Raises:
        ValueError: a character occurs twice, or there is none.
    """
    if not characters or len(set(characters)) != len(characters):
        raise ValueError(f"characters are {characters!r}; each must occur once, and one at least")
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    end = "<|im_end|>"
    vocabulary = {character: index for index, character in enumerate(characters)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=end))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([end])
    core.add_tokens([AddedToken(text, normalized=False, special=False) for text in texts])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=end,
        pad_token=end,
        unk_token=end,
        chat_template="{% for m in messages %}{{ m.content }}" + end + "{% endfor %}",
    )


def encode_chat(
    tokenizer: Any, messages: Sequence[Mapping[str, str]], enable_thinking: bool = False
) -> list[int]:
    """Token ids of one conversation, as of `encode_chats`."""
    return encode_chats(tokenizer, [messages], enable_thinking)[0]


def encode_chats(
    tokenizer: Any,
    chats: Sequence[Sequence[Mapping[str, str]]],
    enable_thinking: bool = False,
) -> list[list[int]]:
    """Token ids of conversations, each up to where the model's completion begins.

    Only the template writes special tokens. Where a message's content has the text of one, such as
    `<|im_end|>`, it is encoded as ordinary text, so that no content can end its turn or begin one.

    Args:
        tokenizer: has a chat template.
        chats: each of messages with "role" and "content".
        enable_thinking: passed to the template; Qwen3's then lets the model reason first.

    Raises:
        ValueError: a content is no text, or the template is broken, loops, fills the memory,
            refuses a conversation or writes far more; or as `encode_texts`.
    """
    for chat in chats:
        for message in chat:
            if not isinstance(message["content"], str):
                raise ValueError(f"content: {checks.shortened(message['content'])} is no text")
    if not chats:
        return []
    added = tokenizer.added_tokens_decoder.values()
    special = [re.escape(t.content) for t in added if t.special and len(t.content) > 1]
    first_character = re.compile(rf"(?=(?:{'|'.join(special) or '(?!)'}))(.)", re.DOTALL)
    # A character that is in no message marks where the text of a special token is split.
    used = set().union(*(message["content"] for chat in chats for message in chat))
    mark = next(char for char in map(chr, range(0xE000, 0xF900)) if char not in used)
    texts: list[str] = []
    try:
        with _limits(_CHAT_SECONDS, _CHAT_MEMORY) as restart:
            for chat in chats:
                restart()
                marked = [
                    {**one, "content": first_character.sub(rf"\1{mark}", one["content"])}
                    for one in chat
                ]
                text = tokenizer.apply_chat_template(
                    marked,
                    tokenize=False,
                    add_generation_prompt=True,
                    enable_thinking=enable_thinking,
                )
                texts.append(text)
    except _LimitError as error:
        roles = checks.shortened([message["role"] for message in chats[len(texts)]])
        raise ValueError(
            f"the tokenizer's chat template takes more than {error} for a chat of {roles}"
        ) from error
    except Exception as error:  # A template is a program: it may fail in any way.
        raise ValueError(f"the tokenizer's chat template fails: {error}") from error
    for chat, text in zip(chats, texts, strict=True):
        own = sum(len(message["role"]) + len(message["content"]) for message in chat)
        if len(text) > (most := _TEMPLATE_CHARACTERS + _CHAT_EXPANSION * own):
            raise ValueError(
                f"the tokenizer's chat template writes {len(text):,} characters for a chat of "
                f"{own:,}; allowed are {most:,}"
            )
    split = [text.split(mark) for text in texts]
    parts = [part for of_chat in split for part in of_chat]
    ids = iter(encode_texts(tokenizer, parts))
    return [[token for _ in of_chat for token in next(ids)] for of_chat in split]


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, with no special tokens around them.

    Raises:
        ValueError: the tokenizer cannot encode a text; the message has its characters without a
            token.
    """
    try:
        return tokenizer(texts, add_special_tokens=False).input_ids
    except Exception as error:  # The package tokenizers has no class for it.
        added = "|".join(map(re.escape, tokenizer.get_added_vocab()))
        characters = set().union(*(re.sub(added, "", text) for text in texts))
        unknown = "".join(one for one in sorted(characters) if not _encodes(tokenizer, one))
        if not unknown:
            raise
        shown = checks.shortened(unknown)
        raise ValueError(
            f"the tokenizer cannot encode a text ({checks.first_line(error)}); it has no token for "
            f"its characters {shown}"
        ) from error


def _encodes(tokenizer: Any, text: str) -> bool:
    try:
        tokenizer(text)
    except Exception:
        return False
    return True


def opens_thought(tokenizer: Any, enable_thinking: bool) -> bool:
    """Whether the chat template itself begins the model's thought, as Qwen3-Thinking's does.

    Raises:
        ValueError: as `encode_chat`.
    """
    ids = encode_chat(tokenizer, [{"role": "user", "content": ""}], enable_thinking)
    return THINK_BEGIN in tokenizer.decode(ids).rpartition(THINK_END)[2]


def check_thinking(tokenizer: Any) -> None:
    """Checks that the chat template lets a model think: it begins the thought, or knows the option.

    Raises:
        ValueError: neither, as with Qwen3-4B-Instruct-2507's; or as `encode_chat`.
    """
    chat = [{"role": "user", "content": ""}]
    without, with_thought = (encode_chat(tokenizer, chat, thinking) for thinking in (False, True))
    if without == with_thought and not opens_thought(tokenizer, True):
        raise ValueError(
            "thinking is asked for, but the tokenizer's chat template neither begins a thought nor "
            "depends on enable_thinking, so the model would not think; allowed is thinking_tokens=0"
        )


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of token ids, without special tokens."""
    return tokenizer.decode([int(token) for token in ids], skip_special_tokens=True)


def thinking_budget(tokenizer: Any, max_tokens: int, max_new_tokens: int) -> ThinkingBudget | None:
    """A limit on Qwen3's thinking: after `max_tokens` tokens, its own early-stop text.

    Returns:
        None if nothing is limited: without thinking (`max_tokens` 0), or where a completion of
        `max_new_tokens` ends no later.

    Raises:
        ValueError: the tokenizer has no token `</think>`.
    """
    if not 0 < max_tokens < max_new_tokens:
        return None
    if THINK_END not in tokenizer.get_vocab():
        raise ValueError(
            f"thinking_tokens={max_tokens}: the tokenizer has no token {THINK_END}; allowed are "
            "tokenizers of models that think, and limits from max_new_tokens up, which are none"
        )
    closing = tokenizer.encode(_EARLY_STOP, add_special_tokens=False)
    return ThinkingBudget(max_tokens, tuple(int(token) for token in closing))


def stop_token_ids(tokenizer: Any) -> tuple[int, ...]:
    """The ids that end a completion, ascending: end of sequence, and end of turn in chat format.

    All that the tokenizer, its folder's `generation_config.json` (without one its `config.json`)
    and the chat format name.

    Raises:
        ValueError: the tokenizer knows neither.
    """
    ids = {tokenizer.eos_token_id} - {None}
    known = tokenizer.get_vocab()
    ids |= {known[token] for token in ("<|im_end|>", "<|endoftext|>") if token in known}
    ids |= set(getattr(tokenizer, "generation_stop_ids", ()))
    if not ids:
        raise ValueError("eos_token of the tokenizer is None; it must name a token")
    return tuple(sorted(ids))


def pad_id(tokenizer: Any) -> int:
    """The id that pads sequences: the tokenizer's own, else a stop token."""
    own = tokenizer.pad_token_id
    return stop_token_ids(tokenizer)[0] if own is None else int(own)


def vocab_size(tokenizer: Any) -> int:
    """One more than the largest id; a model may have more outputs, which no policy uses."""
    return max(tokenizer.get_vocab().values()) + 1


def geometric_bucket(n: int, multiple: int, per_doubling: int) -> int:
    """The smallest allowed length that holds n tokens: few lengths, little padding.

    Allowed are the multiples of a step: `multiple`, doubled as often as leaves at least
    `per_doubling` lengths from one power of two to the next. So at most 1 / per_doubling of a long
    sequence is padding. More tokens never get a shorter length.
    """
    power = 1 << max(0, max(0, n - 1).bit_length() - 1)  # of two, below n
    step = multiple << max(0, (power // (per_doubling * multiple)).bit_length() - 1)
    return max(1, -(-n // step)) * step


def pad_right(sequences: Sequence[Sequence[int]], length: int, pad_id: int) -> np.ndarray:
    """Ids as one array i32[B, length], with `pad_id` after the end of each sequence."""
    tokens = np.full((len(sequences), length), pad_id, np.int32)
    for index, ids in enumerate(sequences):
        tokens[index, : len(ids)] = ids
    return tokens
