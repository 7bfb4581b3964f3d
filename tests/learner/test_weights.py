"""Checkpoints in and out: placement, memory, refusals by name, what transformers makes of them."""

import dataclasses
import functools
import json
import tracemalloc

import chex
import jax
import jax.numpy as jnp
import micro_model
import numpy as np
import pytest
import safetensors.numpy
import torch
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoTokenizer, GenerationConfig, Qwen3ForCausalLM

from learner import tokens
from learner.decoder import hub, model, weights
from learner.decoder.config import DecoderConfig
from learner.devices import sharding

CONFIG = micro_model.config(
    vocab_size=264,
    intermediate_size=48,
    num_hidden_layers=3,
    max_position_embeddings=64,
    eos_token_id=(3, 4),
    pad_token_id=0,
)
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def params():
    return model.init_params(jax.random.key(0), CONFIG)


@pytest.fixture
def folder(params, tmp_path):
    """A checkpoint of several files."""
    weights.save(tmp_path, params, CONFIG, max_file_bytes=20_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    return tmp_path


# Reading ---------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (1, 4, 2)])
def test_load_reads_every_slice_once_and_places_it(folder, params, axes, monkeypatch):
    mesh = sharding.make_mesh(*axes)
    read: dict[str, int] = {}
    original = weights._open

    class Spy:
        def __init__(self, name, slices):
            self.name, self.slices = name, slices

        def __getitem__(self, index):
            part = self.slices[index]
            read.setdefault(self.name, []).append(part.size)
            return part

        def __getattr__(self, name):
            return getattr(self.slices, name)

    spy = lambda *args: {n: Spy(n, slices) for n, slices in original(*args).items()}  # noqa: E731
    monkeypatch.setattr(weights, "_open", spy)
    got = weights.load(folder, CONFIG, mesh)
    chex.assert_trees_all_equal(got, params)
    assert jax.tree.map(lambda x: x.sharding, got) == model.param_shardings(CONFIG, mesh)
    # All of every tensor, nothing twice, however many devices hold a copy of it.
    assert {name: sum(sizes) for name, sizes in read.items()} == {
        name: np.prod(tensor.shape) for name, tensor in weights.tensors_of(CONFIG).items()
    }
    assert len(read[QUERY]) == axes[1] * axes[2]


def test_values_are_cast_to_the_parameters_dtype(params, tmp_path):
    """float32 -> bfloat16 on reading, and float16 files."""
    weights.save(tmp_path, params, CONFIG)
    half = dataclasses.replace(CONFIG, param_dtype="bfloat16")
    want = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    chex.assert_trees_all_equal(weights.load(tmp_path, half), want)
    tensors = safetensors.numpy.load_file(tmp_path / weights.SINGLE_FILE)
    small = {name: value.astype(np.float16) for name, value in tensors.items()}
    safetensors.numpy.save_file(small, tmp_path / weights.SINGLE_FILE)
    want = jax.tree.map(lambda x: x.astype(jnp.float16).astype(jnp.float32), params)
    chex.assert_trees_all_equal(weights.load(tmp_path, CONFIG), want)


@pytest.mark.slow
def test_host_memory_is_that_of_a_tensor_or_file_and_not_of_the_model(tmp_path):
    """NumPy's and Python's allocations while loading and saving, on one device and on eight."""
    config = micro_model.config(
        head_dim=128,
        vocab_size=2048,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=6,
        num_key_value_heads=4,
    )
    params = jax.block_until_ready(model.init_params(jax.random.key(0), config))
    total = sum(x.nbytes for x in jax.tree.leaves(params))
    largest = config.vocab_size * config.hidden_size * 4
    assert total > 24 * largest
    mesh = sharding.make_mesh(fsdp=4, tensor=2)

    def peak(function, *args):
        tracemalloc.start()
        result = function(*args)
        jax.block_until_ready(result)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most, result

    save = functools.partial(weights.save, max_file_bytes=2 * largest)
    save(tmp_path, params, config)  # Once untraced: compiling allocates too.
    weights.load(tmp_path, config, mesh)
    saved, _ = peak(save, tmp_path, params, config)
    loaded, one = peak(weights.load, tmp_path, config)
    split, eight = peak(weights.load, tmp_path, config, mesh)
    chex.assert_trees_all_equal(one, params)
    chex.assert_trees_all_equal(eight, params)
    # Here a device's memory is the host's, and JAX takes over a host array that is aligned.
    assert max(saved, loaded, split) < 3 * largest, (saved, loaded, split, largest)


def test_bad_checkpoints_are_refused_by_the_tensors_name(params, tmp_path):
    weights.save(tmp_path, params, CONFIG)
    path = tmp_path / weights.SINGLE_FILE
    good = safetensors.numpy.load_file(path)

    def load(**changes):
        tensors = {k: v for k, v in (good | changes).items() if v is not None}
        safetensors.numpy.save_file(tensors, path)
        return weights.load(tmp_path, CONFIG)

    with pytest.raises(ValueError, match=rf"{QUERY} is missing"):
        load(**{QUERY: None})
    with pytest.raises(ValueError, match=r"q_proj\.bias is unknown"):
        load(**{"model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32)})
    with pytest.raises(ValueError, match=rf"{QUERY} has shape \(32, 31\), expected \(32, 32\)"):
        load(**{QUERY: np.zeros((32, 31), np.float32)})
    with pytest.raises(ValueError, match=rf"{QUERY} has dtype I8, supported are F32, F16, BF16"):
        load(**{QUERY: np.zeros((32, 32), np.int8)})
    # All at once.
    with pytest.raises(ValueError, match=r"norm\.weight is missing; extra is unknown"):
        load(**{"model.norm.weight": None, "extra": np.zeros(1, np.float32)})
    load(**{"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4)})  # Of old checkpoints.
    # A tied checkpoint may hold the matrix twice, but not two different matrices.
    embedding = good["model.embed_tokens.weight"]
    load(**{"lm_head.weight": embedding})
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed"):
        load(**{"lm_head.weight": embedding + 1})
    path.unlink()
    with pytest.raises(ValueError, match=r"neither model\.safetensors nor"):
        weights.load(tmp_path, CONFIG)


def test_cut_files_are_refused_by_name(folder):
    index = json.loads((folder / weights.INDEX_FILE).read_text())["weight_map"]
    path = folder / index[QUERY]
    whole = path.read_bytes()
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    begin, end = header[QUERY]["data_offsets"]
    start = len(whole) - max(x["data_offsets"][1] for n, x in header.items() if n[0] != "_")

    for contents in (
        whole[: start + end - 4],
        whole[: start + begin],
        whole[:40],
        whole[:8] + b"?" * (len(whole) - 8),
    ):
        path.write_bytes(contents)
        with pytest.raises(ValueError, match=rf"{path.name} is cut off or no safetensors file"):
            weights.load(folder, CONFIG)
    path.unlink()
    with pytest.raises(ValueError, match=rf"names {path.name}, which is not in"):
        weights.load(folder, CONFIG)


def test_a_tensor_in_two_files_is_refused(folder):
    safetensors.numpy.save_file({QUERY: np.zeros((32, 32), np.float32)}, folder / "z.safetensors")
    path = folder / weights.INDEX_FILE
    index = json.loads(path.read_text())
    index["weight_map"][QUERY] = "z.safetensors"
    path.write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"{QUERY} is in z\.safetensors and in another file"):
        weights.load(folder, CONFIG)


def test_files_that_are_not_of_the_format_are_refused_by_name(params, folder):
    index = folder / weights.INDEX_FILE
    for text, message in (
        ("[1", rf"{weights.INDEX_FILE} is not JSON"),
        ("[]", rf"{weights.INDEX_FILE} holds \[\]; it must be a JSON object"),
        ("{}", rf"{weights.INDEX_FILE} has no weight_map"),
        ('{"weight_map": {"a": 1}}', rf"{weights.INDEX_FILE} has no weight_map"),
    ):
        index.write_text(text)
        with pytest.raises(ValueError, match=message):
            weights.load(folder, CONFIG)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        DecoderConfig.from_folder(folder)
    (folder / weights.GENERATION_FILE).write_text("3")
    with pytest.raises(ValueError, match=r"generation_config\.json holds 3; it must"):
        weights.read_generation_config(folder)

    weights.save(folder, params, CONFIG)
    with open(folder / weights.SINGLE_FILE, "ab") as file:
        file.write(bytes(8))  # Of no tensor: what was written after the data is not known.
    with pytest.raises(ValueError, match=r"model\.safetensors is cut off or no safetensors"):
        weights.load(folder, CONFIG)


def test_a_single_file_goes_before_an_index_as_in_transformers(params, folder, tmp_path):
    """An index is left behind where a model of several files is replaced by one of one."""
    other = jax.tree.map(lambda x: x + 1, params)
    weights.save(tmp_path / "one", other, CONFIG)
    (tmp_path / "one" / weights.SINGLE_FILE).rename(folder / weights.SINGLE_FILE)
    assert (folder / weights.INDEX_FILE).is_file()
    chex.assert_trees_all_equal(weights.load(folder, CONFIG), other)
    theirs = Qwen3ForCausalLM.from_pretrained(folder).model.embed_tokens.weight
    np.testing.assert_array_equal(theirs.detach().numpy(), np.asarray(other["embedding"]))


# Writing ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_transformers_loads_what_is_written(params, byte_tokenizer, dtype, tmp_path):
    """From eight devices, over an older checkpoint of more files, with everything beside it."""
    weights.save(tmp_path, params, CONFIG, max_file_bytes=10_000)
    placed = jax.device_put(params, model.param_shardings(CONFIG, sharding.make_mesh(2, 2, 2)))
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "eos_token_id": [3, 4]}
    weights.save(
        tmp_path, placed, CONFIG, byte_tokenizer, dtype=dtype, generation_config=generation,
        max_file_bytes=15_000 * jnp.dtype(dtype).itemsize,
    )  # fmt: skip

    files = {path.name for path in tmp_path.glob("model*")}
    assert files == {
        weights.INDEX_FILE,
        *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
    }
    assert all((tmp_path / f).stat().st_size < 64_000 for f in files)
    index = json.loads((tmp_path / weights.INDEX_FILE).read_text())
    assert index["metadata"]["total_size"] == sum(
        x.size * jnp.dtype(dtype).itemsize for x in jax.tree.leaves(params)
    )
    # safetensors' own reader agrees with the writer here.
    for name, file in index["weight_map"].items():
        with safetensors.safe_open(tmp_path / file, "numpy") as opened:
            assert name in opened.keys()  # noqa: SIM118
            assert opened.metadata() == {"format": "pt"}

    # Servers choose their implementation by it.
    said = json.loads((tmp_path / "config.json").read_text())
    assert said["architectures"] == ["Qwen3ForCausalLM"]
    assert {"tokenizer.json", "tokenizer_config.json"} <= {p.name for p in tmp_path.iterdir()}
    back, info = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype="auto", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert back.dtype == getattr(torch, dtype)
    query = np.asarray(params["layers"]["attention"]["q_proj"]["kernel"][1].T.astype(dtype))
    got = back.model.layers[1].self_attn.q_proj.weight.detach().float().numpy()
    np.testing.assert_array_equal(got, query.astype(np.float32))
    assert back.generation_config.top_k == 20
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == [3, 4]
    assert weights.read_generation_config(tmp_path) == generation
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "Hello"}]
    assert tokens.encode_chat(tokenizer, chat) == tokens.encode_chat(byte_tokenizer, chat)

    again = dataclasses.replace(CONFIG, param_dtype=dtype)
    assert DecoderConfig.from_folder(tmp_path, param_dtype=dtype) == again
    chex.assert_trees_all_equal(
        weights.load(tmp_path, again), jax.tree.map(lambda x: x.astype(dtype), params)
    )


def test_generation_config_states_the_special_ids_and_saves_are_checked(params, tmp_path):
    assert weights.read_generation_config(tmp_path) is None
    weights.save(tmp_path, params, CONFIG)
    assert weights.read_generation_config(tmp_path) == {"eos_token_id": [3, 4], "pad_token_id": 0}
    for key, expected in (("embedding", r"\("), ("adapters", "nothing")):
        said = rf"params\.{key} is \(2, 2\); by the configuration it is {expected}"
        with pytest.raises(ValueError, match=said):
            weights.save(tmp_path, {**params, key: jnp.zeros((2, 2))}, CONFIG)
    with pytest.raises(ValueError, match=r"dtype='float64': allowed are"):
        weights.save(tmp_path, params, CONFIG, dtype="float64")


def test_an_interrupted_save_leaves_the_old_weights(params, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = jax.tree.map(lambda x: x + 1, params)
    count = 0

    def fail_at_the_third(*args):
        nonlocal count
        count += 1
        if count == 3:
            raise OSError("disk full")
        return original(*args)

    original = safetensors.numpy.save_file
    monkeypatch.setattr(safetensors.numpy, "save_file", fail_at_the_third)
    with pytest.raises(OSError, match="disk full"):
        weights.save(folder, other, CONFIG, max_file_bytes=20_000)
    assert {name: (folder / name).read_bytes() for name in before} == before
    monkeypatch.undo()
    weights.save(folder, other, CONFIG)
    assert not list(folder.glob("*.part"))
    chex.assert_trees_all_equal(weights.load(folder, CONFIG), other)


# Where a model is --------------------------------------------------------------


def test_model_folder_is_a_folder_first_and_a_hub_name_then(tmp_path, monkeypatch):
    assert hub.model_folder(tmp_path) == tmp_path
    with pytest.raises(ValueError, match=r"'/nowhere/at/all' is not a folder; allowed are"):
        hub.model_folder("/nowhere/at/all")
    # The tests are offline (HF_HUB_OFFLINE), and no cache has this name.
    with pytest.raises(ValueError, match=r"'nobody/nothing' .* without a connection"):
        hub.model_folder("nobody/nothing")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match=r"'runs/tinny' is not a folder; allowed are"):
        hub.model_folder("runs/tinny")

    asked = []

    def download(name, **patterns):
        asked.append((name, patterns))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert hub.model_folder("some/model") == hub.model_folder("some/model") == tmp_path
    ((name, patterns),) = asked
    assert name == "some/model"
    there = ["config.json", "model.safetensors", "consolidated.safetensors", "onnx/config.json"]
    assert list(filter_repo_objects(there, **patterns)) == there[:2]


def test_what_a_folder_asks_of_sampling_in_vain_is_named():
    named = {
        "repetition_penalty": 1.1, "presence_penalty": 1.5, "frequency_penalty": 0.5,
        "diversity_penalty": 0.2, "penalty_alpha": 0.6, "guidance_scale": 2, "min_p": 0.05,
        "stop_strings": ["\n"], "forced_eos_token_id": 0, "begin_suppress_tokens": [1],
        "sequence_bias": {"1": 2.0}, "exponential_decay_length_penalty": [5, 1.1],
        "max_new_tokens": 9, "chat_format": "chatml", "typical_p": 0, "min_length": 1,
    }  # fmt: skip
    for name, value in named.items():
        line = f"of its generation_config.json, not used in sampling: {name}={value!r}"
        assert weights.unused_generation_config({name: value}) == line
    together = weights.unused_generation_config(named, "min_p")
    assert all((f"{name}=" in together) == (name != "min_p") for name in named)
    neutral = {"repetition_penalty": 1.0, "num_beams": 1, "min_p": 0, "typical_p": 1.0} | {
        "presence_penalty": 0.0,
        "guidance_scale": 1.0,
        "eos_token_id": [3, 4],
    }
    neutral |= {"transformers_version": "4.51.0", "temperature": 0.6, "stop_strings": []}
    assert weights.unused_generation_config(neutral) is None
    assert weights.unused_generation_config(None) is None
