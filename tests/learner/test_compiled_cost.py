"""Partitioned programs, read and counted: by hand, for known programs, against closed forms."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from learner import compiled_cost, hlo
from learner.devices import sharding
from learner.hardware import ACCELERATORS, Assumptions
from learner.qwen3.config import Qwen3Config
from learner.roofline import Deployment
from learner.training.trainer import GRPOConfig

CONFIG = Qwen3Config(
    vocab_size=1024,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    tie_word_embeddings=True,
    dtype="bfloat16",
    remat="full",
)

TEXT = """HloModule example

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%inner_condition (p: (s32[], f32[4,8])) -> pred[] {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %three = s32[] constant(3)
  %copied = s32[] copy(%three)
  ROOT %less = pred[] compare(%i, %copied), direction=LT
}

%inner_body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %p = (s32[], f32[4,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=1
  %w = f32[8,8]{1,0} all-gather(%x), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={0}
  %y = f32[4,8]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %out = (s32[], f32[4,8]{1,0}) tuple(%i, %y)
}

ENTRY %main (x: f32[4,8]) -> bf16[1,8] {
  %x = f32[4,8]{1,0} parameter(0), metadata={op_name="the (first) one"}
  %zero = s32[] constant(0)
  %start = (s32[], f32[4,8]{1,0}) tuple(%zero, %x)
  %loop = (s32[], f32[4,8]{1,0}) while(%start), condition=%inner_condition, body=%inner_body
  %known = (s32[], /*index=1*/f32[4,8]{1,0}) while(%loop), condition=%inner_condition, body=%inner_body, backend_config={"known_trip_count":{"n":"5"}}
  %y = f32[4,8]{1,0} get-tuple-element(%known), index=1
  %half = bf16[4,8]{1,0} convert(%y)
  %summed = bf16[4,8]{1,0} all-reduce(%half), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %part = bf16[1,8]{1,0} dynamic-slice(%summed, %zero, %zero), dynamic_slice_sizes={1,8}
  ROOT %all = bf16[1,8]{1,0} all-reduce(%part), replica_groups=[4,2]<=[8], to_apply=%add
}
"""  # noqa: E501


def test_a_module_by_hand():
    module = hlo.Module.parse(TEXT, devices=8)
    assert module.entry == "main"
    first = module.computations["main"].instructions["x"]
    assert first.shapes == (hlo.Shape("f32", (4, 8)),)
    assert (first.nbytes, first.source) == (128, "the (first) one")
    loops = [v for v in module.visits() if v.instruction.opcode == "dot"]
    assert [visit.loops for visit in loops] == [(3,), (5,)]

    got = compiled_cost.cost(module)
    # Eight products of [4, 8] by [8, 8].
    assert got.flops == 8 * 2 * 4 * 8 * 8
    assert got.bytes == 8 * 4 * (4 * 8 + 8 * 8 + 4 * 8)
    gathered, scattered, summed = got.collectives
    assert gathered == compiled_cost.Collective("all-gather", "f32", 4, 8, 8 * 8 * 8 * 4)
    assert gathered.sent == 0.75 * gathered.payload
    # Each device goes on with its quarter of this sum.
    assert scattered == compiled_cost.Collective("reduce-scatter", "bf16", 4, 1, 64)
    assert scattered.sent == 48
    assert summed == compiled_cost.Collective("all-reduce", "bf16", 2, 1, 16)
    assert summed.sent == 16  # There and back: twice half of it.
    assert got.sent == sum(one.sent for one in got.collectives)


def test_endless_loops_and_other_texts_are_refused():
    endless = TEXT.replace("direction=LT", "direction=NE", 1)
    with pytest.raises(ValueError, match=r"loop loop of .* fixed number of iterations"):
        list(hlo.Module.parse(endless, 8).visits())
    with pytest.raises(ValueError, match="no ENTRY computation"):
        hlo.Module.parse("HloModule nothing", 8)


@pytest.mark.parametrize("devices", [1, 4])
def test_a_program_whose_cost_is_known(devices):
    """Five layers with split weights: one gather each, and the products of a device's rows."""
    mesh = sharding.make_mesh(fsdp=devices, devices=jax.devices()[:devices])
    weights = jax.ShapeDtypeStruct(
        (5, 16, 16), jnp.float32, sharding=NamedSharding(mesh, P(None, "fsdp"))
    )
    rows = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("fsdp")))

    def program(x, w):
        def layer(x, w):
            whole = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, P()))
            return jnp.tanh(x @ whole), None

        return jax.lax.scan(layer, x, w)[0]

    lowered = jax.jit(program, out_shardings=rows.sharding).lower(rows, weights)
    got = compiled_cost.cost(hlo.partitioned(lowered, devices))
    assert got.flops == 5 * 2 * (8 // devices) * 16 * 16
    if devices == 1:
        assert got.collectives == ()
    else:
        want = compiled_cost.Collective("all-gather", "f32", devices, 5, 5 * 16 * 16 * 4)
        assert got.collectives == (want,)


def update_cost(size, rows=8):
    mesh = sharding.make_mesh(*size)
    training = GRPOConfig(
        prompts_per_step=rows, micro_batch_rows=rows, max_new_tokens=48, sampling_rows=2 * rows
    )
    return compiled_cost.update_cost(CONFIG, training, mesh, prompt_length=16)


@pytest.mark.parametrize("size", [(1, 1, 1), (1, 8, 1), (2, 4, 1), (1, 2, 2)])
def test_the_roofline_s_operations_and_bytes_are_those_of_the_compiled_update(size):
    """Closed forms in the sizes of model, rows and mesh, against the compiled program."""
    got = update_cost(size)
    whole = Assumptions(causal=1.0)  # The reference computes masked scores too.
    machine = Deployment(CONFIG, ACCELERATORS["v5p"], *size, whole)
    rows = 8 // machine.row_shards
    assert got.flops == pytest.approx(machine.micro_batch_flops(rows, 64, 48), rel=0.03)
    if machine.chips == 1:
        assert got.sent == 0 == machine.micro_batch_sent(rows, 64)
    else:
        assert got.sent == pytest.approx(machine.micro_batch_sent(rows, 64), rel=0.05)


def test_the_command_shows_strong_scaling(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    options = ["--rows=8", "--prompt_length=16", "--max_new_tokens=48"]
    mesh = "--mesh=1x1x1,1x8x1"
    assert compiled_cost.main([f"--config={tmp_path}", mesh, *options]) == 0
    shown = capsys.readouterr().out
    assert "one micro-batch of 8 rows of 64 tokens" in shown
    assert re.search(r"\| 8 \| all-gather \| bf16 \| 8 \| 44 \|", shown)  # 14 a layer, and 2.
    one, eight = update_cost((1, 1, 1)), update_cost((1, 8, 1))
    assert eight.flops == one.flops / 8
    assert eight.sent > 0 == one.sent
    assert compiled_cost.main([f"--config={tmp_path}", "--mesh=8"]) == 2
    assert "it must be data x fsdp x tensor" in capsys.readouterr().err


def test_times_follow_from_peaks():
    """Of a step bound by memory, by products and by links, each by hand."""
    ideal = Assumptions(1.0, 1.0, 1.0, layer_seconds=0.0, exchange_seconds=0.0, causal=1.0)
    chip = dataclasses.replace(ACCELERATORS["H100"], flops=1e12, bandwidth=1e9, link=1e9)
    machine = Deployment(CONFIG, chip, data=1, fsdp=4, assumptions=ideal)
    weights = machine.layer_parameters + machine.vocabulary_matrix
    assert machine.cache_bytes == 2 * 3 * 2 * 32 * 2
    # Two slots of one lane: weights and caches of 40 + 60 tokens each, in bfloat16, once.
    moved = 2 * weights + machine.cache_bytes * 2 * (40 + 60)
    assert machine.decode_seconds(2, 1, 40, 60) == pytest.approx(moved / 1e9)
    slow = dataclasses.replace(machine, chip=dataclasses.replace(chip, flops=1e6))
    flops = 2 * 2 * weights + 4 * 3 * 4 * 32 * 2 * (40 + 60)
    assert slow.decode_seconds(2, 1, 40, 60) == pytest.approx(flops / 1e6)
    assert machine.exchange_seconds() == pytest.approx((2 + 4 / 4) * machine.parameters / 1e9)
    assert machine.optimizer_seconds() == pytest.approx(28 * machine.parameters / 4 / 1e9)
    assert machine.micro_batch_seconds(1, 64, 48) == machine.micro_batch_sent(1, 64) / 1e9
    assert slow.micro_batch_seconds(1, 64, 48) == machine.micro_batch_flops(1, 64, 48) / 1e6
    halved = dataclasses.replace(ideal, products=0.5, memory=0.5, links=0.5)
    assert dataclasses.replace(machine, assumptions=halved).decode_seconds(2, 1, 40, 60) == (
        pytest.approx(2 * moved / 1e9)
    )
    with pytest.raises(ValueError, match="products=0"):
        Assumptions(products=0)
    assert np.isclose(ACCELERATORS["v5p"].link, 600e9)
