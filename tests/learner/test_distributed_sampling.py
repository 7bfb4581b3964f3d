"""Two processes sample together; one of them is asked to leave, so both leave after the call."""

from several_processes import two_processes

LINES = """
import os, signal

import jax, numpy as np

from learner.devices import sharding
from learner.devices.preemption import Preempted, Preemption
from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.sampling.sampler import Sampler, SamplingParams

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

def call(ends=None):
    preemption = Preemption()
    sampling = SamplingParams(max_new_tokens=12, stop_token_ids=(1, 2, 3))
    options = {"sampling_slots": 4, "segment_tokens": 2}
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
    with preemption.watch():
        try:
            samples = sampler(params, prompts, jax.random.split(jax.random.key(1), 5), 3)
            preemption.agree()
        except Preempted as left:
            print("left", left.exit_code, flush=True)
    return samples

whole, disturbed = call(), call(ends=3 if index == 1 else None)
for one, other in zip(whole, disturbed, strict=True):
    np.testing.assert_array_equal(one, other)
assert whole.tokens.shape[0] == 15 and (whole.lengths > 0).all()
print("same", flush=True)
"""


def test_both_leave_after_the_call(tmp_path):
    codes, texts = two_processes(LINES, tmp_path)
    assert codes == [0, 0], texts
    for text in texts:
        assert text.splitlines()[-2:] == ["left 75", "same"], texts
