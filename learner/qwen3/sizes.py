"""The published dense Qwen3 models, by name: what their `config.json` says.

Source: the files `Qwen/<name>/config.json` on the Hugging Face hub and the model cards beside them
(Qwen3 technical report, arXiv 2505.09388, table 1).
"""

from learner.qwen3.config import Qwen3Config

# hidden_size, intermediate_size, layers, query heads, key/value heads, tied embeddings
_SIZES = {
    "Qwen3-0.6B": (1024, 3072, 28, 16, 8, True),
    "Qwen3-1.7B": (2048, 6144, 28, 16, 8, True),
    "Qwen3-4B": (2560, 9728, 36, 32, 8, True),
    "Qwen3-8B": (4096, 12288, 36, 32, 8, False),
}

NAMES = tuple(_SIZES)


def published(name: str, **compute: object) -> Qwen3Config:
    """The configuration of a published model.

    Args:
        name: one of `NAMES`, with or without "Qwen/" before it.
        compute: compute options, as of `Qwen3Config.from_hf`.

    Raises:
        ValueError: there is no such model, or an option is invalid.
    """
    sizes = _SIZES.get(name.removeprefix("Qwen/"))
    if sizes is None:
        raise ValueError(f"name is {name!r}; published are {NAMES}")
    hidden, intermediate, layers, heads, kv_heads, tied = sizes
    return Qwen3Config.from_hf(
        {
            "model_type": "qwen3",
            "vocab_size": 151_936,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000,
            "tie_word_embeddings": tied,
            "max_position_embeddings": 40_960,
            "initializer_range": 0.02,
            "bos_token_id": 151_643,
            "eos_token_id": 151_645,
        },
        **compute,
    )
