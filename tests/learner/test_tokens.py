"""Tokenizer helpers, on a byte-level tokenizer."""

import copy
import json
import resource
import signal
import sys
from typing import ClassVar

import numpy as np
import pytest
from whole_runs import python

from learner import tokens
from learner.chat import Completion
from learner.decoder.config import ARCHITECTURES
from learner.training import sft

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(byte_tokenizer, tmp_path_factory):
    tokenizer = copy.deepcopy(byte_tokenizer)
    tokenizer.chat_template = TEMPLATE
    path = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(path)
    return path


def test_chat_round_trip(folder):
    tokenizer = tokens.load_tokenizer(folder)
    messages = [{"role": "user", "content": "hé 你 world"}]
    ids = tokens.encode_chat(tokenizer, messages)
    assert isinstance(ids, list)
    assert all(type(token) is int for token in ids)
    text = tokenizer.decode(ids)
    assert text.startswith(
        "<|im_start|>user\nhé 你 world<|im_end|>\n<|im_start|>assistant\n<think>"
    )
    assert "<think>" not in tokenizer.decode(
        tokens.encode_chat(tokenizer, messages, enable_thinking=True)
    )
    assert tokens.decode(tokenizer, np.array(ids[:-4])).startswith("user\nhé 你 world\n")
    ends = tokens.stop_token_ids(tokenizer)
    assert tokenizer.convert_ids_to_tokens(list(ends)) == ["<|endoftext|>", "<|im_end|>"]


def test_only_what_has_no_token_is_named(byte_tokenizer):
    with pytest.raises(ValueError, match=r"no token for its characters '\\ud800'$"):
        tokens.encode_texts(byte_tokenizer, ["hé 你\n\ud800 world"])


def test_loading_without_torch_is_silent(folder):
    """transformers advises to install torch; nothing of that may reach the terminal."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from learner.tokens import load_tokenizer\n"
        f"print(len(load_tokenizer({str(folder)!r})))"
    )
    done = python("-c", program)
    assert int(done.stdout) > 256
    assert done.stderr == ""


def test_missing_folder():
    with pytest.raises(ValueError, match="tokenizer folder is '/nowhere'"):
        tokens.load_tokenizer("/nowhere")


def test_geometric_bucket():
    """Every size holds its n; few sizes; a bounded fraction of padding."""
    for multiple, per_doubling in ((8, 4), (32, 2), (3, 1), (1, 4)):
        sizes = [tokens.geometric_bucket(n, multiple, per_doubling) for n in range(1, 5000)]
        assert all(size >= n for n, size in enumerate(sizes, 1))
        assert all(size % multiple == 0 for size in sizes)
        assert sizes == sorted(sizes)
        assert len(set(sizes)) <= 2 * per_doubling * 13
        assert all(
            size <= max(multiple, n * (1 + 1 / per_doubling) + multiple)
            for n, size in enumerate(sizes, 1)
        )
    assert tokens.geometric_bucket(0, 8, 4) == 8
    assert [tokens.geometric_bucket(n, 32, 2) for n in (33, 128, 129, 193, 257)] == [
        64, 128, 192, 256, 384,
    ]  # fmt: skip


def test_thinking_budget_has_the_models_own_closing_text():
    class Words:
        """As much of a tokenizer as is asked for: words and the tag are tokens."""

        vocabulary: ClassVar[dict[str, int]] = {"</think>": 7}

        def get_vocab(self):
            return self.vocabulary

        def encode(self, text, add_special_tokens):
            assert not add_special_tokens
            assert text.startswith("\n\nConsidering the limited time by the user, I have to")
            assert text.endswith("directly now.\n</think>")
            return [self.vocabulary.get(word, 1) for word in text.split()]

    budget = tokens.thinking_budget(Words(), 40, 64)
    assert budget.max_tokens == 40
    assert budget.closing_ids == (1,) * 19 + (7,)


def test_a_template_may_open_the_thought_itself(folder):
    tokenizer = tokens.load_tokenizer(folder)
    for template, opened in (
        (TEMPLATE, [False, False]),  # Qwen3's closes the thought, or leaves it to the model.
        (TEMPLATE.partition("{% if not")[0] + "<think>\n{% endif %}", [True, True]),
        (TEMPLATE.replace("</think>", "").replace("not ", ""), [False, True]),
    ):
        tokenizer.chat_template = template
        assert [tokens.opens_thought(tokenizer, thinking) for thinking in (False, True)] == opened
        tokens.check_thinking(tokenizer)
    tokenizer.chat_template = TEMPLATE.partition("{% if not")[0] + "{% endif %}"
    assert not tokens.opens_thought(tokenizer, True)
    with pytest.raises(
        ValueError, match=r"thinking is asked for, .* neither begins a thought nor depends"
    ):
        tokens.check_thinking(tokenizer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7", "7"),
        (" 7\n", " 7\n"),
        ("<think>6?</think>\n\n7", "7"),
        ("6?\n</think>\n\n7", "7"),
        ("<think>\n6? 7", ""),
        ("<think>6</think>7<think>8</think>9<think>10", "9"),
        ("</think>", ""),
    ],
)
def test_the_answer_follows_the_thought(text, answer):
    assert Completion(text, 1, False).answer == answer


def test_the_tokens_that_end_a_thought_are_known():
    budget = tokens.ThinkingBudget(max_tokens=3, closing_ids=(5, 1))
    rng = np.random.default_rng(0)
    completions = rng.integers(0, 7, (200, 7))
    for sequence, forced in zip(completions.tolist(), budget.forced(completions), strict=True):
        cut = 1 not in sequence[:3]
        assert forced.tolist() == [cut and place in (3, 4) for place in range(7)]


def test_conversations_are_encoded_together_as_alone(folder):
    tokenizer = tokens.load_tokenizer(folder)
    texts = ["Hello", "a <|im_end|> b", "\ue000 and <|im_start|>", ""]
    chats = [[{"role": "user", "content": text}] for text in texts]
    chats.append([*chats[0], {"role": "assistant", "content": "Hi"}, *chats[1]])
    alone = [tokens.encode_chat(tokenizer, chat) for chat in chats]
    assert tokens.encode_chats(tokenizer, chats) == alone
    assert tokens.encode_chats(tokenizer, []) == []
    tokenizer.chat_template = "{% if messages|length > 1 %}{{ raise_exception('no') }}{% endif %}Hi"
    assert len(tokens.encode_chats(tokenizer, chats[:-1])) == 4
    with pytest.raises(ValueError, match="chat template fails: no"):
        tokens.encode_chats(tokenizer, chats)
    with pytest.raises(ValueError, match=r"content: \[.*\] is no text"):
        tokens.encode_chats(tokenizer, [[{"role": "user", "content": [{"type": "text"}]}]])


def test_each_conversation_has_the_whole_time(folder, monkeypatch):
    tokenizer, set_to = tokens.load_tokenizer(folder), []
    rendered = tokenizer.apply_chat_template

    def render(chat, **options):
        set_to.append(chat[0]["content"])
        return rendered(chat, **options)

    monkeypatch.setattr(tokenizer, "apply_chat_template", render)
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: set_to.append(seconds))
    tokens.encode_chats(tokenizer, [[{"role": "user", "content": text}] for text in "abc"])
    whole = tokens._CHAT_SECONDS
    assert set_to == [whole, whole, "a", whole, "b", whole, "c", 0]


def test_a_template_may_not_write_far_more_than_the_chat(folder, monkeypatch):
    tokenizer = tokens.load_tokenizer(folder)
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    tokenizer.chat_template = "{% if messages|length > 1 %}{{ 'a' * (3 * 10**7) }}{% endif %}Hi"
    tokens.encode_chat(tokenizer, chat[:1])
    words = r"writes 30,000,002 characters for a chat of 20; allowed are 1,049,856"
    with pytest.raises(ValueError, match=words):
        tokens.encode_chat(tokenizer, chat)
    monkeypatch.setattr(tokens, "_TEMPLATE_CHARACTERS", 100)  # Long chats may have long texts.
    tokenizer.chat_template = "{% for m in messages %}{{ m.content * 60 }}{% endfor %}"
    tokens.encode_chat(tokenizer, [{"role": "user", "content": "a" * 200}])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits a process's memory")
@pytest.mark.parametrize("text", ["'a' * 10**11", "(range(10**5)|list) * 10**6"])
def test_a_template_may_not_fill_the_memory(folder, text):
    tokenizer = tokens.load_tokenizer(folder)
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    tokenizer.chat_template = f"{{% if messages[1] %}}{{% set x = {text} %}}{{% endif %}}Hi"
    assert tokens.encode_chat(tokenizer, chat[:1])
    words = r"takes more than 8192 MiB for a chat of \['user', 'assistant'\]$"
    with pytest.raises(ValueError, match=words):
        tokens.encode_chat(tokenizer, chat)
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_thinking_needs_a_model_that_thinks(folder):
    with pytest.raises(ValueError, match=r"thinking_tokens=4: .* no token </think>"):
        tokens.thinking_budget(tokens.load_tokenizer(folder), 4, 64)


def test_pad_right():
    padded = tokens.pad_right([[1, 2], [], [3]], 3, 9)
    np.testing.assert_array_equal(padded, [[1, 2, 9], [9, 9, 9], [3, 9, 9]])
    assert padded.dtype == np.int32


def test_character_tokenizer(tmp_path):
    tokenizer = tokens.character_tokenizer("ab +1")
    assert tokenizer.encode("b a+1") == [1, 2, 0, 3, 4]
    assert tokens.decode(tokenizer, [1, 2, 0, 5, 5]) == "b a"
    assert tokens.encode_chat(tokenizer, [{"role": "user", "content": "a+b"}]) == [0, 3, 1, 5]
    assert tokens.stop_token_ids(tokenizer) == (5,)
    assert tokens.pad_id(tokenizer) == 5
    assert tokens.vocab_size(tokenizer) == 6
    for prompt, completion in (("a<", "b"), ("a", "b<")):
        with pytest.raises(ValueError, match=r"no token for its characters '<'$"):
            sft.encode_examples(tokenizer, [([{"role": "user", "content": prompt}], completion)])
    tokenizer.save_pretrained(tmp_path)
    assert tokens.load_tokenizer(tmp_path).encode("ab") == [0, 1]
    for kind in ARCHITECTURES:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert tokens.load_tokenizer(tmp_path).encode("b a+1") == [1, 2, 0, 3, 4]
    # A chat model's own file may name further ends.
    for said, stops in ((None, (5,)), (3, (3, 5)), ([5, 0], (0, 5))):
        contents = json.dumps({"eos_token_id": said, "temperature": 0.6})
        (tmp_path / "generation_config.json").write_text(contents)
        assert tokens.stop_token_ids(tokens.load_tokenizer(tmp_path)) == stops
    for wrong in (6, [0, -1], True, "a"):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
        with pytest.raises(ValueError, match=r"eos_token_id=.*from 0 to 5"):
            tokens.load_tokenizer(tmp_path)
    # Without that file the model's own configuration does, in which more ids may be than tokens.
    for said, stops in ((3, (3, 5)), ([5, 0, 6], (0, 5)), (None, (5,)), (9, (5,))):
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": "qwen3", "eos_token_id": said})
        )
        (tmp_path / "generation_config.json").write_text('{"eos_token_id": 1}')
        assert tokens.stop_token_ids(tokens.load_tokenizer(tmp_path)) == (1, 5)
        (tmp_path / "generation_config.json").unlink()
        assert tokens.stop_token_ids(tokens.load_tokenizer(tmp_path)) == stops
    with pytest.raises(ValueError, match="'aba'"):
        tokens.character_tokenizer("aba")
