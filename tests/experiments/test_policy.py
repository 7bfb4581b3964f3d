"""What a run says about its model when it starts."""

import types

import jax
import numpy as np
import pytest

from experiments.run import policy
from learner.decoder.attention import Choice


@pytest.mark.parametrize(
    ("platform", "updates", "decoding", "warnings"),
    [
        ("gpu", "cudnn", "cudnn", []),
        ("gpu", "cudnn", "reference", ["  warning: no kernel for decoding: that of"]),
        ("gpu", "reference", "reference", ["  warning: no kernel: attention of long sequences"]),
        ("cpu", "reference", "reference", []),
    ],
)
def test_a_kernel_that_is_not_used_is_a_warning(monkeypatch, platform, updates, decoding, warnings):
    monkeypatch.setattr(policy.attention, "choose", lambda config: Choice(updates, "it failed"))
    monkeypatch.setattr(policy, "choose_decoding", lambda config: Choice(decoding, "it failed"))
    device = types.SimpleNamespace(platform=platform, device_kind="kind")
    made = types.SimpleNamespace(
        config=None,
        mesh=types.SimpleNamespace(devices=np.array([device], object)),
        generation_config={"temperature": 0.6, "repetition_penalty": 1.1, "num_beams": 1},
    )
    settings = types.SimpleNamespace(model=types.SimpleNamespace(path="model"))
    first, unused, *said = policy.describe(settings, made, [jax.numpy.zeros(3)])
    assert unused.endswith("not used in sampling: repetition_penalty=1.1")
    assert first == "model model: 3 parameters on 1 x kind"
    assert said[0] == f"attention: {updates} (it failed)"
    found = [line for line in said if "warning" in line]
    assert len(found) == len(warnings)
    assert all(line.startswith(start) for line, start in zip(found, warnings, strict=True))
    shown = f"attention of decoding: {decoding} (it failed)" in said
    assert shown == (updates != "reference")
