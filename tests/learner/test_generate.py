"""The command that streams a completion, on a tiny model of its own."""

import copy
import dataclasses
import io
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from learner import generate, tokens
from learner.decoder import model, weights
from learner.devices import sharding
from learner.sampling.sampler import Chunk, Sampler, SamplingParams


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model, byte_tokenizer):
    path = tmp_path_factory.mktemp("model")
    params = model.init_params(jax.random.key(3), tiny_model)
    weights.save(path, params, tiny_model, tokenizer=byte_tokenizer)
    return path


CHAT = [{"role": "user", "content": "hé"}]


def completion(folder, tiny_model, byte_tokenizer, budget, chat=CHAT, seed=7, **sampling):
    """What the sampler says when it is asked directly."""
    sampler = Sampler(
        tiny_model,
        sharding.make_mesh(),
        SamplingParams(
            max_new_tokens=budget, stop_token_ids=tokens.stop_token_ids(byte_tokenizer), **sampling
        ),
        tokens.pad_id(byte_tokenizer),
        vocab_size=tokens.vocab_size(byte_tokenizer),
    )
    ids = tokens.encode_chat(byte_tokenizer, chat)
    samples = sampler(weights.load(folder, tiny_model), [ids], jax.random.key(seed)[None])
    return samples.tokens[0, : samples.lengths[0]]


def test_the_answer_goes_out_and_the_reason_to_the_log(folder, tiny_model, byte_tokenizer, capsys):
    status = generate.main([f"--model={folder}", "--prompt=hé", "--seed=7", "--max_new_tokens=30"])
    printed = capsys.readouterr()
    want = completion(folder, tiny_model, byte_tokenizer, 30)
    assert status == 0
    assert printed.out == tokens.decode(byte_tokenizer, want) + "\n"
    reason = "stop token" if want[-1] in tokens.stop_token_ids(byte_tokenizer) else "length"
    assert f"[{reason}; {len(want)} tokens after a prompt of" in printed.err
    assert "tokens/s" in printed.err


def test_what_the_checkpoint_recommends_in_vain_is_told(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    recommended = {"repetition_penalty": 1.1, "min_p": 0.1, "top_k": 5}
    (tmp_path / weights.GENERATION_FILE).write_text(json.dumps(recommended))
    assert generate.main([f"--model={tmp_path}", "--prompt=h", "--max_new_tokens=1"]) == 0
    told = capsys.readouterr().err.splitlines()[0]
    assert told == "[of its generation_config.json, not used in sampling: repetition_penalty=1.1]"


def test_greedy_with_a_prompt_from_standard_input(
    folder, tiny_model, byte_tokenizer, capsys, monkeypatch
):
    monkeypatch.setattr("sys.stdin", io.StringIO("hé"))
    generate.main([f"--model={folder}", "--prompt=-", "--temperature=0", "--max_new_tokens=9"])
    want = completion(folder, tiny_model, byte_tokenizer, 9, temperature=0.0)
    assert capsys.readouterr().out == tokens.decode(byte_tokenizer, want) + "\n"


def test_every_option_reaches_the_sampler(folder, tiny_model, byte_tokenizer, capsys):
    chat = [{"role": "system", "content": "s"}, *CHAT]
    options = {"temperature": 2.0, "top_k": 50, "top_p": 0.9, "min_p": 0.01}

    def directly(**options):
        got = completion(folder, tiny_model, byte_tokenizer, 25, chat, 3, **options)
        return tokens.decode(byte_tokenizer, got)

    def said(**options):
        given = [f"--{name}={value}" for name, value in options.items()]
        fixed = ["--prompt=hé", "--system=s", "--tensor=2", "--seed=3", "--max_new_tokens=25"]
        assert generate.main([f"--model={folder}", *fixed, *given]) == 0
        printed = capsys.readouterr()
        assert "float32, reference attention]" in printed.err
        return printed.out.removesuffix("\n")

    free = directly(**options)
    assert said(**options) == free
    assert free not in {directly(**options | {name: 0.1}) for name in ("temperature", "top_p")}
    for name, value in options.items():  # Each reaches its own field.
        arguments = generate._parser().parse_args(["--model=m", "--prompt=p", f"--{name}={value}"])
        sampling = generate.sampling_params(arguments, {}, byte_tokenizer, 50)
        assert getattr(sampling, name) == value != getattr(SamplingParams(max_new_tokens=1), name)


def test_thinking_ends_after_its_budget(tiny_model, byte_tokenizer, tmp_path, capsys):
    tokenizer = copy.deepcopy(byte_tokenizer)
    tokenizer.add_tokens(["<think>", "</think>"])
    config = dataclasses.replace(tiny_model, max_position_embeddings=256)
    params = model.init_params(jax.random.key(3), config)
    weights.save(tmp_path, params, config, tokenizer=tokenizer)
    closing = tokens.thinking_budget(tokenizer, 4, 99).closing_ids
    given = ["--thinking", "--thinking_tokens=4", f"--max_new_tokens={4 + len(closing) + 3}"]
    assert generate.main([f"--model={tmp_path}", "--prompt=h", *given, "--seed=1"]) == 0
    completion = capsys.readouterr().out
    thought, closed, rest = completion.partition(tokens.decode(tokenizer, closing))
    assert closed
    assert len(thought) <= 4  # A token is a byte, and so at most one character.
    assert rest.strip()


def test_characters_are_shown_when_their_bytes_are_complete(byte_tokenizer):
    ids = byte_tokenizer.encode("aé你b", add_special_tokens=False)
    assert len(ids) == 7
    chunks = [
        Chunk(0, i, np.array([token]), np.zeros(1), None if i < 6 else generate.FinishReason.LENGTH)
        for i, token in enumerate(ids)
    ]
    shown = [text for text, _ in generate.readable(byte_tokenizer, iter(chunks))]
    assert shown == ["a", "", "é", "", "", "你", "b"]


def test_defaults_come_from_the_checkpoint(byte_tokenizer):
    def params(*given, **defaults):
        arguments = generate._parser().parse_args(["--model=m", "--prompt=p", *given])
        return generate.sampling_params(arguments, defaults, byte_tokenizer, 50)

    both = params(temperature=0.6, top_k=20, top_p=0.95, do_sample=True)
    assert (both.temperature, both.top_k, both.top_p, both.min_p) == (0.6, 20, 0.95, 0.0)
    assert both.max_new_tokens == 50
    mine = params("--temperature=0.9", "--top_p=1", temperature=0.6, top_p=0.5)
    assert (mine.temperature, mine.top_p) == (0.9, 1.0)
    assert params(do_sample=False).temperature == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--model=/nowhere"], "model '/nowhere' is not a folder"),
        (["--temperature=-1"], "temperature=-1"),
        ([f"--seed={1 << 32}"], "seed=4294967296: allowed are integers from 0 to 2**32 - 1"),
        (["--max_new_tokens=0"], "max_new_tokens=0: allowed are integers from 1 up"),
        ([f"--model={Path(__file__).parent}"], "has no config.json"),
        (["--max_new_tokens=127"], "prompts[0]: has"),
        (["--thinking_tokens=5"], "thinking_tokens is 5; it is for --thinking only"),
        (["--thinking", "--thinking_tokens=0"], "thinking_tokens is 0; it must be at least 1"),
        (["--thinking", "--thinking_tokens=5"], "has no token </think>"),
    ],
)
def test_errors_are_one_line(folder, capsys, given, message):
    status = generate.main([f"--model={folder}", "--prompt=hé", *given])
    error = capsys.readouterr().err
    assert status == 2
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_a_run_is_told_from_a_model(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"seed": 0, "model": {"path": "tiny"}}')
    assert generate.main([f"--model={tmp_path}", "--prompt=Hello"]) == 2
    assert "this is a run; its models are in rounds/R/weights" in capsys.readouterr().err
