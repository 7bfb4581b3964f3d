"""The promises of the training step on 256 devices: kept, and seen to be broken when they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from learner import step_check
from learner.qwen3.config import Qwen3Config

# One step that keeps its promises, and a broken one for every rule. The others take a minute.
FAST = (
    "small 32x8x1",
    "gradients on every device",
    "logits of all tokens",
    "float32 residual stream",
)


def variants(*rows):
    """Parameters of a test, those of slow variants marked so."""
    slow = pytest.mark.slow
    return [pytest.param(*row, marks=() if row[0] in FAST else slow) for row in rows]


@pytest.fixture(scope="module")
def found(request):
    """Variant -> the violations that the check finds in it, on 256 devices."""
    fast = FAST if request.config.option.markexpr == "not slow" else ()
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("broken_steps.py")), *fast],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "variant", variants(("Qwen3-4B 32x8x1",), ("Qwen3-4B 8x8x4",), ("small 32x8x1",))
)
def test_the_training_step_keeps_its_promises(found, variant):
    assert found[variant] == []


@pytest.mark.parametrize(
    ("variant", "rule", "what"),
    variants(
        ("parameters gathered before the loop", "parameters", "holds a matrix of all layers"),
        ("layers gathered one by one", "parameters", "gathered outside the loops"),
        ("gradients on every device", "parameters", "holds a matrix of all layers"),
        ("layers not scanned", "parameters", "0 loops of 4 iterations"),
        ("logits of all tokens", "logits", "has logits of"),
        ("computed in float32", "bfloat16", "carries activations as f32"),
        ("float32 residual stream", "bfloat16", "carries activations as f32"),
        ("weights cast behind the gather", "bfloat16", "gathers float32"),
        ("weights not cast", "bfloat16", "multiplies float32 by a weight"),
        ("embedding gathered", "bfloat16", "gathers float32"),
    ),
)
def test_a_broken_step_is_seen(found, variant, rule, what):
    assert any(text.startswith(f"{rule}:") and what in text for text in found[variant]), found[
        variant
    ]


def test_shapes_that_cannot_tell_are_refused():
    config = Qwen3Config(
        vocab_size=4096,
        hidden_size=2048,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    mesh = {"data": 2, "fsdp": 2, "tensor": 1}
    with pytest.raises(
        ValueError, match=r"completions of one device have 512 tokens.*more than 1024"
    ):
        step_check.Expectation(config, mesh, tokens=600, completion_tokens=512)
    with pytest.raises(ValueError, match=r"another number than \[1024, 2048\]"):
        step_check.Expectation(config, mesh, tokens=2100, completion_tokens=2048)
