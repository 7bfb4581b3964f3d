"""Two processes sample together; one of them is asked to leave."""

from several_processes import two_processes

LINES = """
import os, pathlib, signal

import jax, numpy as np

from learner.devices import sharding
from learner.devices.preemption import Preempted, Preemption
from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.sampling.interrupted import InterruptedCalls
from learner.sampling.sampler import Sampler, SamplingParams
from learner.sampling.slots import Sequences

config = DecoderConfig(
    vocab_size=96,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=8,
    tie_word_embeddings=True,
    initializer_range=0.3,
)
mesh = sharding.make_mesh(data=2)
params = model.init_params(jax.random.key(0), config)
params = distributed.put(params, sharding.replicated(mesh))
prompts = [[number + 1] * (number + 2) for number in range(5)]
begun = []
start = Sequences.start
Sequences.start = lambda self, *args: (begun.append(args), start(self, *args))

def call(ends=None):
    preemption = Preemption()
    interrupted = InterruptedCalls(pathlib.Path(folder), preemption)
    sampling = SamplingParams(max_new_tokens=12, stop_token_ids=(1, 2, 3))
    options = {"max_rows": 4, "segment_tokens": 2, "interrupted": interrupted}
    sampler = Sampler(config, mesh, sampling, 0, **options)
    run, ended = sampler._run, 0

    def counted(*args):
        nonlocal ended
        for chunk in run(*args):
            ended += chunk.finish is not None
            if ended == ends:
                os.kill(os.getpid(), signal.SIGTERM)
            yield chunk

    sampler._run = counted
    begun.clear()
    with preemption.watch():
        samples = sampler(params, prompts, jax.random.split(jax.random.key(1), 5), 3)
    return samples

whole = call()
print("alone", len(begun), flush=True)
try:
    call(ends=3 if index == 1 else None)
except Preempted as left:
    print("left", left.exit_code, flush=True)
rest = call()
print("rest", len(begun), flush=True)
for name in ("tokens", "lengths", "finish"):
    np.testing.assert_array_equal(getattr(rest, name), getattr(whole, name))
np.testing.assert_allclose(rest.logprobs, whole.logprobs, atol=1e-5)
print("same", flush=True)
"""


def test_ended_completions_of_both_are_kept(tmp_path):
    codes, texts = two_processes(LINES, tmp_path / "kept")
    assert codes == [0, 0], texts
    # Three prompts and two, each three times; the second process stopped after three.
    for text, lines in zip(texts, (("alone 9", "rest 0"), ("alone 6", "rest 3")), strict=True):
        for line in (*lines, "left 75", "same"):
            assert line in text.splitlines(), texts
    assert len(list((tmp_path / "kept").iterdir())) == 1
