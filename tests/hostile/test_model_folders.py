"""Broken model folders: refused by `ValueError`, in a line that names the file or the field."""

import json
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from experiments.bridges import verl
from learner import checks, generate, tokens
from learner.decoder import weights
from learner.decoder.config import DecoderConfig
from mapf_jax.bridges import rewards

TINY = Path(generate.__file__).parents[1] / "experiments" / "models" / "tiny"
CONFIG = json.loads((TINY / "config.json").read_text())
NESTED = '{"a": ' + "[" * 100_000
STRANGE = [[1], {"a": 1}, "x", 10**400, float("inf"), float("nan"), -1, True, [[1]], [1, "a"]]


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(TINY, tmp_path / "model"))


@pytest.mark.parametrize("value", STRANGE, ids=lambda value: str(value)[:12])
def test_fields_of_other_types_are_refused_by_name(value):
    plain = {name: entry for name, entry in CONFIG.items() if name != "rope_parameters"}
    for name in ("rope_theta", "rms_norm_eps", "initializer_range", "layer_types", "pad_token_id"):
        with pytest.raises(ValueError, match=rf"^{name}=") as caught:
            DecoderConfig.from_hf({**plain, "rope_theta": 1e6, name: value})
        assert len(str(caught.value)) < 250
    with pytest.raises(ValueError, match=r"^rope_theta="):
        DecoderConfig.from_hf({**CONFIG, "rope_parameters": {"rope_theta": value}})
    if value is not True:
        with pytest.raises(ValueError, match=r"^tie_word_embeddings="):
            DecoderConfig.from_hf({**CONFIG, "tie_word_embeddings": value})
    if value != [1]:
        with pytest.raises(ValueError, match=r"^eos_token_id="):
            DecoderConfig.from_hf({**CONFIG, "eos_token_id": value})


def test_sizes_beyond_any_machine_are_refused():
    for name in ("vocab_size", "head_dim", "max_position_embeddings"):
        with pytest.raises(ValueError, match=rf"^{name}="):
            DecoderConfig.from_hf({**CONFIG, name: 10**400})


def test_nested_files_are_refused_by_name(folder):
    for name, read in (
        ("config.json", DecoderConfig.from_folder),
        (weights.GENERATION_FILE, weights.read_generation_config),
        (weights.INDEX_FILE, lambda folder: weights.load(folder, DecoderConfig.from_folder(TINY))),
    ):
        (folder / weights.SINGLE_FILE).unlink(missing_ok=True)
        (folder / name).write_text(NESTED)
        with pytest.raises(ValueError, match=rf"{name} is not JSON"):
            read(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": "x"},
        {"shape": ["1"]},
        {"shape": [-1, 2]},
        {"shape": [2**62, 2**62]},
        {"dtype": ["F32"]},
        {"dtype": "F8_E4M3"},
        {"data_offsets": [0, float("inf")]},
        {"data_offsets": [0, 10**400]},
    ],
    ids=str,
)
def test_headers_of_weights_that_say_anything_are_refused(folder, change):
    path = folder / weights.SINGLE_FILE
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["model.norm.weight"].update(change)
    told = json.dumps(header).encode()
    path.write_bytes(len(told).to_bytes(8, "little") + told + whole[8 + size :])
    with pytest.raises(ValueError, match=r"model\.safetensors|model\.norm\.weight"):
        weights.load(folder, DecoderConfig.from_folder(folder))


def test_weights_that_are_not_numbers_are_refused(folder, capsys):
    path = folder / weights.SINGLE_FILE
    tensors = safetensors.numpy.load_file(path)
    for value in (np.nan, np.inf):
        damaged = tensors["model.norm.weight"].copy()
        damaged[3] = value
        safetensors.numpy.save_file({**tensors, "model.norm.weight": damaged}, path)
        with pytest.raises(ValueError, match=r"hold NaN or infinity: final_norm\.scale$"):
            weights.load(folder, DecoderConfig.from_folder(folder))
    assert generate.main([f"--model={folder}", "--prompt=Hello"]) == 2
    assert capsys.readouterr().err.startswith("error: weights in ")


@pytest.mark.parametrize(
    "template",
    [
        "{% for",
        "{{ messages[99].x.y }}",
        "{{ raise_exception('no') }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "",
    ],
)
def test_chat_templates_with_errors_are_refused(folder, template):
    (folder / "chat_template.jinja").write_text(template)
    if not template:
        (folder / "chat_template.jinja").unlink()
    tokenizer = tokens.load_tokenizer(folder)
    if not template:
        tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"the tokenizer's chat template fails: "):
        tokens.encode_chat(tokenizer, [{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ 'a' * 10**10 }}", "takes more than 1024 MiB"),
        ("{{ 'a' * 2**21 }}", "writes 2,097,152 characters"),
        ("{% if enable_thinking %}{{ 'a' * 10**10 }}{% endif %}", "takes more than 1024 MiB"),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{% for k in range(9999) %}"
            "{% endfor %}{% endfor %}{% endfor %}",
            "takes more than 1 s",
        ),
        ("{{ 9 ** (9 ** 9) }}", "takes more than 1 s"),
    ],
)
def test_chat_templates_without_end_are_refused(folder, template, message, monkeypatch):
    (folder / "chat_template.jinja").write_text(template)
    monkeypatch.setattr(tokens, "_TEMPLATE_SECONDS", 1)
    limits = resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM)
    with pytest.raises(ValueError, match=rf"^the chat template in '.*' {message}.*one word"):
        tokens.load_tokenizer(folder)
    assert limits == (resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM))
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_a_chat_template_that_loops_later_is_refused(folder, monkeypatch):
    loop = "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
    template = f"{{% if messages|length > 1 %}}{loop}{{% endif %}}Hi"
    (folder / "chat_template.jinja").write_text(template)
    monkeypatch.setattr(tokens, "_CHAT_SECONDS", 0.5)
    tokenizer = tokens.load_tokenizer(folder)
    chat = [{"role": "user", "content": "Hello"}]
    assert tokens.encode_chat(tokenizer, chat)
    message = r"template takes more than 0\.5 s for a chat of \['user', 'user'\]$"
    with pytest.raises(ValueError, match=message):
        tokens.encode_chat(tokenizer, chat * 2)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


@pytest.mark.parametrize("load", [tokens.load_tokenizer, rewards._tokenizer, verl._encoder])
def test_code_of_a_tokenizer_is_not_run(folder, load, monkeypatch):
    ran = folder / "ran"
    code = f"open({str(ran)!r}, 'w')\nfrom transformers import PreTrainedTokenizerFast as Mine\n"
    (folder / "own.py").write_text(code)
    fields = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "own.Mine"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    (folder / "config.json").unlink()  # Of a model that transformers knows it takes its own class.
    monkeypatch.setattr("builtins.input", lambda _: "y")  # transformers may ask whether it shall.
    with pytest.raises(ValueError, match="contains custom code"):
        load(str(folder))
    assert not ran.exists()


def test_errors_quote_little():
    assert len(checks.shortened("x" * 10**6)) < 140
    assert len(checks.shortened([[["x" * 999] * 99] * 99] * 99)) < 2000
    assert len(checks.shortened(10**4000)) < 140


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        (lambda name: name.replace("q_proj.weight", "q_proj.qweight"), "GPTQ or AWQ"),
        (lambda name: name.replace("k_proj.weight", "k_proj.weight_scale_inv"), "FP8"),
        (lambda name: name.replace("q_proj.weight", "q_proj.lora_A.weight"), "PEFT adapter"),
        (lambda name: f"_orig_mod.{name}", "begin with _orig_mod"),
        (lambda name: name.removeprefix("model."), "lack model"),
        (lambda name: f"other.{name}", "is missing; and [0-9]+ more$"),
    ],
)
def test_checkpoints_of_other_kinds_are_named_in_one_sentence(folder, rename, message):
    path = folder / weights.SINGLE_FILE
    tensors = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file({rename(name): x for name, x in tensors.items()}, path)
    with pytest.raises(ValueError, match=message) as caught:
        weights.load(folder, DecoderConfig.from_folder(folder))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd"])
def test_an_index_names_no_file_outside_its_folder(folder, name):
    (folder / weights.SINGLE_FILE).rename(folder.parent / "model.safetensors")
    index = {"metadata": {}, "weight_map": {"model.norm.weight": name}}
    (folder / weights.INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=f"names '{name}'; allowed are files of its own folder"):
        weights.load(folder, DecoderConfig.from_folder(folder))
