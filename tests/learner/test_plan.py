"""The plan: targets, the reader of compiled programs, layouts, and what the command refuses."""

import dataclasses
import functools
import json
import re
import types
from pathlib import Path

import forward_pass
import jax
import jax.numpy as jnp
import micro_model
import numpy as np
import pytest

from learner.decoder import model
from learner.decoder.config import NAMES, published
from learner.devices import sharding
from learner.devices.chips import CHIPS
from learner.plan import __main__ as command
from learner.plan import layout, programs, schedule, targets
from learner.plan.cost import cost
from learner.plan.hlo import Module
from learner.plan.layout import Layout, Work
from learner.plan.programs import Program
from learner.plan.schedule import Schedule
from learner.plan.targets import Target
from learner.training import metrics

GB = 10**9


@pytest.mark.parametrize(
    ("name", "billions", "without_embedding"),
    [
        ("Qwen3-0.6B", 0.6, 0.44),
        ("Qwen/Qwen3-1.7B", 1.7, 1.4),
        ("Qwen3-4B", 4.0, 3.6),
        ("Qwen3-8B", 8.2, 6.95),
    ],
)
def test_published_sizes_are_those_of_the_report(name, billions, without_embedding):
    """Parameters, all and without embeddings, as the model cards round them."""
    config = published(name)
    total = sum(x.size for x in jax.tree.leaves(model.abstract_params(config)))
    matrices = (1 if config.tie_word_embeddings else 2) * config.vocab_size * config.hidden_size
    assert total / 1e9 == pytest.approx(billions, abs=0.05)
    assert (total - matrices) / 1e9 == pytest.approx(without_embedding, abs=0.05)
    assert {published(n).head_dim for n in NAMES} == {128}
    with pytest.raises(ValueError, match=r"name is 'Qwen3-5B'; published are"):
        published("Qwen3-5B")


@pytest.mark.parametrize(
    ("name", "chip", "count", "per_host"),
    [
        ("h200", "h200", 1, 1),
        ("h100-16", "h100", 16, 8),
        ("v5e-8", "v5e", 8, 8),
        ("v5e-16", "v5e", 16, 4),
        ("v5p-64", "v5p", 32, 4),  # Named by its cores, two a chip.
        ("v5p", "v5p", 1, 1),
    ],
)
def test_targets_have_the_names_of_their_clouds(name, chip, count, per_host):
    target = Target.parse(name)
    assert (target.chip, target.count, target.per_host) == (CHIPS[chip], count, per_host)


@pytest.mark.parametrize("name", ["v9-8", "h200-3", "v5p-3", "v5e-0", "", "8"])
def test_other_targets_are_refused(name):
    with pytest.raises(ValueError, match=re.escape(f"chips={name!r}: ")):
        Target.parse(name)


SMALL = micro_model.config(
    head_dim=128, vocab_size=1024, hidden_size=256, intermediate_size=512, num_hidden_layers=4
)

# A compiled program in the form in which compilers for TPUs write theirs.
TEXT = """HloModule jit_f, is_scheduled=true

%slice_of (param_0: f32[4,1024], param_1: s32[]) -> f32[1,1024] {
  %param_0 = f32[4,1024]{1,0:T(8,128)} parameter(0)
  %param_1 = s32[]{:T(128)} parameter(1)
  %zero = s32[] constant(0)
  ROOT %part = f32[1,1024]{1,0:T(8,128)} dynamic-slice(%param_0, %param_1, %zero), dynamic_slice_sizes={1,1024}
}

%write_into (param_0: f32[4,1024], param_1: f32[1,1024], param_2: s32[]) -> f32[4,1024] {
  %param_0 = f32[4,1024]{1,0:T(8,128)} parameter(0)
  %param_1 = f32[1,1024]{1,0:T(8,128)} parameter(1)
  %param_2 = s32[]{:T(128)} parameter(2)
  %zero.1 = s32[] constant(0)
  ROOT %written = f32[4,1024]{1,0:T(8,128)} dynamic-update-slice(%param_0, %param_1, %param_2, %zero.1)
}

%condition (state: (s32[], f32[4,1024])) -> pred[] {
  %state = (s32[]{:T(128)}, f32[4,1024]{1,0:T(8,128)}) parameter(0)
  %number = s32[]{:T(128)} get-tuple-element(%state), index=0
  %bound = s32[]{:T(128)} constant(4)
  ROOT %less = pred[]{:T(512)} compare(%number, %bound), direction=LT
}

%body (state.1: (s32[], f32[4,1024])) -> (s32[], f32[4,1024]) {
  %state.1 = (s32[]{:T(128)}, f32[4,1024]{1,0:T(8,128)}) parameter(0)
  %number.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %all = f32[4,1024]{1,0:T(8,128)} get-tuple-element(%state.1), index=1
  %one = f32[1,1024]{1,0:T(8,128)S(1)} fusion(%all, %number.1), kind=kLoop, calls=%slice_of, backend_config={"window_config":{"estimated_cycles":"500"}}
  %new = f32[4,1024]{1,0:T(8,128)} fusion(%all, %one, %number.1), kind=kLoop, calls=%write_into, backend_config={"window_config":{"estimated_cycles":"700"}}
  ROOT %next = (s32[]{:T(128)}, f32[4,1024]{1,0:T(8,128)}) tuple(%number.1, %new)
}

ENTRY %main (x: f32[4,1024]) -> f32[4,1024] {
  %x = f32[4,1024]{1,0:T(8,128)} parameter(0)
  %start = s32[]{:T(128)} constant(0)
  %fetch = (f32[4,1024]{1,0:T(8,128)S(1)}, f32[4,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x)
  %fetched = f32[4,1024]{1,0:T(8,128)S(1)} copy-done(%fetch)
  %kernel = f32[4,1024]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", backend_config={"custom_call_config": {
"cost_estimate":{"bytes_accessed":"12345"}
}}
  %init = (s32[]{:T(128)}, f32[4,1024]{1,0:T(8,128)}) tuple(%start, %kernel)
  %loop = (s32[]{:T(128)}, f32[4,1024]{1,0:T(8,128)}) while(%init), condition=%condition, body=%body
  %gathered = f32[8,1024]{1,0:T(8,128)} all-gather(%x), dimensions={0}
  ROOT %out = f32[4,1024]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""  # noqa: E501


def test_cost_counts_loops_slices_and_what_stays_on_the_chip(monkeypatch):
    chip = CHIPS["v5e"]
    assert cost(TEXT, chip).seconds is None  # What a kernel takes is not known.
    kernel = Schedule(2, 100, (30,))
    monkeypatch.setattr(schedule, "find", {"kernel": kernel}.get)
    got = cost(TEXT, chip)
    row, whole = 4 * 1024, 4 * 4 * 1024
    # The prefetch reads all; the kernel says what it moves; each of four iterations reads one row
    # and writes one, the row itself being on the chip; the exchange reads and writes memory too.
    moved = whole + 12345 + 4 * (row + row) + (whole + 2 * whole)
    # Scalars: the number of the iteration is read twice, and compared with its bound.
    assert got.nbytes == moved + 4 * (4 + 4) + 4 * (4 + 4 + 1)
    assert got.cycles == 4 * (500 + 700)
    # Two steps, and two that fill and drain the pipeline.
    seconds = (got.cycles + 4 * 100 + 2 * 30) / chip.clock
    seconds += 36 / chip.bandwidth + 2 * whole / chip.link
    assert got.seconds == pytest.approx(seconds)
    assert got.least == got.seconds
    assert got.attention == 0
    monkeypatch.setattr(schedule, "find", {"kernel": Schedule(2, 1, ())}.get)
    slow = cost(TEXT, chip).seconds  # By the kernel's bytes.
    assert slow - seconds == pytest.approx(12345 / chip.bandwidth - 460 / chip.clock)
    assert cost(TEXT, CHIPS["h200"])[1:] == (None,) * 4


def test_what_has_no_estimate_counts_by_its_schedule(monkeypatch):
    """As gathers do: by their bytes they would be nearly free."""
    chip, kernel = CHIPS["v5e"], Schedule(2, 100, (30,))
    without = TEXT.replace(', backend_config={"window_config":{"estimated_cycles":"500"}}', "")
    assert without != TEXT

    def seconds(text, **schedules):
        monkeypatch.setattr(schedule, "find", {"kernel": kernel, **schedules}.get)
        return cost(text, chip).seconds

    difference = seconds(without, one=Schedule(6, 1000, ())) - seconds(TEXT)
    assert difference == pytest.approx(4 * (8 * 1000 - 500) / chip.clock)
    # Its own schedule comes before that of one alike, and a straight one counts once.
    straight = Schedule(1, 900, (), fill=0)
    both = without.replace("  %new = ", re.search(r"  %one = .*\n", without)[0] + "  %new = ")
    both = both.replace("%one = ", "%one.2 = ", 1)
    two = {"one": Schedule(6, 1000, ()), "one.2": straight}
    assert seconds(both, **two) - seconds(without, one=two["one"]) == pytest.approx(
        4 * 900 / chip.clock
    )
    # What has both counts by the estimate, and at least by its schedule or its bytes.
    for steps, took in ((6, 8 * 1000 / chip.clock), (0, (4 * 1024 + 4) / chip.bandwidth)):
        monkeypatch.setattr(
            schedule,
            "find",
            {"kernel": kernel, "one": Schedule(steps, 1000, (), fill=2 * (steps > 0))}.get,
        )
        got = cost(TEXT, chip)
        assert got.seconds == seconds(TEXT)
        assert got.least - got.seconds == pytest.approx(4 * (took - 500 / chip.clock))
    # Without a schedule, or with one whose steps depend on data, by its bytes.
    by_bytes = seconds(TEXT) + 4 * ((4 * 1024 + 4) / chip.bandwidth - 500 / chip.clock)
    for schedules in ({}, {"one": Schedule(None, 1000, ())}):
        assert seconds(without, **schedules) == pytest.approx(by_bytes)


def test_a_kernel_takes_the_time_of_its_products(monkeypatch):
    """At least, at the peak of the data sheet: some schedules are shorter."""
    chip = CHIPS["v5e"]
    monkeypatch.setattr(schedule, "find", {"kernel": Schedule(2, 1, ())}.get)
    before = cost(TEXT, chip)
    counted = schedule.Call(2.0, attention=True, flops=chip.flops)
    monkeypatch.setattr(schedule, "call", lambda *_: counted)
    assert cost(TEXT, chip).attention == pytest.approx(1)
    assert before.attention == 0


def test_kernels_alike_share_a_schedule(monkeypatch):
    """The compiler writes one for all that have operands of the same kind in the same memories."""
    chip = CHIPS["v5e"]
    monkeypatch.setattr(schedule, "find", {"kernel": Schedule(2, 10**6, ())}.get)
    line = re.search(r"  %kernel = .*\n.*\n}}\n", TEXT)[0]
    other = line.replace("%kernel", "%kernel.2")
    once, twice = (cost(TEXT.replace(line, lines), chip) for lines in (line, line + other))
    assert twice.seconds - once.seconds == pytest.approx(4 * 10**6 / chip.clock)
    on_chip = other.replace("(%x)", "(%fetched)")
    assert cost(TEXT.replace(line, line + on_chip), chip).seconds is None


def test_the_schedule_of_a_kernel():
    """A stored one, of JAX's splash attention's gradient: 4 heads, 7 x 7 tiles."""
    text = Path(__file__).with_name("splash_dq.final_bundles.txt").read_text()
    made = schedule.parse(text)
    assert made == Schedule(4 * 7 * 7, 97, (33, 502, 49))
    assert made.every + sum(made.parts) == 0x2B0 + 1 + 4 - 0xC  # The loop, with what a branch lags.
    straight = schedule.parse("  0x1 : {}\n  0x2 : {}\n")
    assert straight == Schedule(1, 3, (), fill=0)
    assert straight.cycles() == 3
    # On a chip whose two cores share the grid they wait for each other at its beginning.
    shared = schedule.parse(f"{text}\n  0x2b1 : {{}} /* scheckeq: BarrierMegacore cookie: 1 */\n")
    assert shared == made._replace(cores=2)


@pytest.mark.parametrize("backward", [False, True])
def test_whole_sequences_cost_their_tiles(backward, monkeypatch):
    """Two sequences of 4 x 4 tiles, three key/value heads of two query heads."""
    parts = (70, 900, 1000, 80) if not backward else (7, 500, 70, 900, 1000, 80, 300)
    name = "checkpoint_jvp_flash_backward__.3" if backward else "jvp_flash_forward_.1"
    kernel = Schedule(60, 100, parts)
    operands = [(20,), (2, 3, 2, 2048, 128), (2, 3, 2048, 128), (2, 1, 2048)]
    got = schedule.call(name, operands, kernel, None)
    # Of ten tiles four are on the diagonal; a row of tiles begins and ends once.
    want = 62 * 100 + 6 * (4 * 70 + 6 * 900 + 4 * 1000 + 4 * 80)
    if backward:  # So does a sequence; what is around that runs in each step.
        want += 60 * 7 + 6 * (500 + 300)
    assert (got.cycles, got.attention) == (want, True)
    assert got.flops == 6 * 10 * 2 * 512 * 512 * 128 * 2 * (5 if backward else 2)
    # Three completions of a tile see their prompt, of a tile too, and themselves.
    monkeypatch.setattr(schedule, "_COMPLETIONS", 6)
    monkeypatch.setattr(schedule, "_GROUP", 3)
    caches = schedule.Caches(512, lambda count: np.full(count, 511))
    packed = schedule.call(name, operands, kernel, caches)
    assert got.cycles - packed.cycles == 6 * 3 * 900
    assert packed.flops == 0.7 * got.flops
    # Of two cores each has half of the heads.
    half = schedule.call(name, operands, kernel._replace(cores=2, steps=30), None)
    assert 2 * (half.cycles - 2 * 100) == want - 2 * 100


def test_decoding_costs_what_its_grid_visits():
    """Two groups of four samples and two prompts, in blocks of 512 tokens."""
    kernel = Schedule(None, 682, (71, 198, 108, 140, 4))
    cache, prompts = (49, 1, 128, 512), (4, 1, 128, 512)
    scalars = [(), (880,), (4,), (8,), (8,)]
    operands = [*scalars, (2, 4, 256), *[()] * 5, prompts, prompts, cache, cache]

    def call(*lengths):
        caches = schedule.Caches(500, lambda count: np.array(lengths * (count // len(lengths))))
        return schedule.call("append_and_attend.7", operands, kernel, caches)

    once = 2 * 71 + 8 * 140 + 2 * 4  # A group's beginning and end; a token of each sample.
    blocks = 2 * 512 * 128 * 2  # Bytes of keys and values.
    steps = 2 * (2 + 4 * 2)
    assert call(1000)[:3] == ((steps + 2) * 682 + 4 * 198 + 8 * 2 * 108 + once, 20 * blocks, True)
    # Each sample has as many steps as blocks, an empty one a single step.
    steps = 2 * (2 + 3 * 1 + 8)
    assert call(0, 10, 10, 4000)[:3] == (
        (steps + 2) * 682 + 4 * 198 + 2 * 10 * 108 + once,
        (4 + 2 * 10) * blocks,
        True,
    )
    # Both groups have as many steps as the fuller one.
    assert call(*[10] * 7, 4000)[:3] == (
        (steps + 2) * 682 + 4 * 198 + (7 + 8) * 108 + once,
        (4 + 7 + 8) * blocks,
        True,
    )
    # Two cores have a group each, and the one with more to read takes longer.
    kernel = kernel._replace(cores=2)
    assert call(*[10] * 7, 4000)[:3] == (
        (steps // 2 + 2) * 682 + 2 * 198 + (3 + 8) * 108 + once // 2,
        (4 + 7 + 8) * blocks,
        True,
    )
    assert schedule.full(500, 4096).completions(3).tolist() == [4095] * 3
    drawn = schedule.mixed(500, 4096).completions(100_000)
    assert drawn.max() == 4095
    assert drawn.mean() == pytest.approx(950, abs=20)  # Of 1,000 before the longest are cut.


def test_the_reader_knows_the_programs_of_this_machine():
    """A scan as XLA writes it for CPUs: products and their number of iterations."""

    def step(x, w):
        return jnp.tanh(x @ w), None

    def f(x, ws):
        return jax.lax.scan(step, x, ws)[0]

    text = jax.jit(f).lower(jnp.ones((64, 64)), jnp.ones((5, 64, 64))).compile().as_text()
    module = Module.parse(text)
    products = [times for each, times in module.visits() if "dot_general" in each.attributes]
    assert products
    assert set(products) == {5}
    # The compiler for TPUs names the cores that run a computation, if they are others.
    for end in ("\n}\n", '\n}, execution_thread="sparsecore"\n'):
        assert len(Module.parse(text.replace("\n}\n", end)).computations) == len(
            module.computations
        )
    with pytest.raises(ValueError, match="no ENTRY computation"):
        Module.parse("HloModule empty")


def test_layouts_divide_the_model_and_stay_on_a_host():
    for name in NAMES:
        config = published(name, dtype="bfloat16", remat="full")
        for chips in ("v5e-8", "v5p-64", "v6e-16", "h100-8", "h200"):
            target = Target.parse(chips)
            found = layout.layouts(config, target, Work(max_new_tokens=4096))
            # The kernel of TPUs makes it worth while to keep more.
            on_tpu = programs.for_target(config, Target.parse("v5e-8"))
            of_kernel = layout.layouts(on_tpu, target, Work(max_new_tokens=4096))
            assert {x.remat for x in of_kernel} <= {"attention"}
            for one in found:
                assert one.shards * one.tensor == target.count
                assert one.tensor <= target.per_host
                assert config.hidden_size % one.fsdp == config.num_key_value_heads % one.tensor == 0
                assert one.shards * one.completions <= 256
                one.training(Work())  # Raises where the batch does not divide.
                assert one.remat == "full"
            assert found or name == "Qwen3-8B", (name, chips)


def test_layouts_of_single_cards():
    """By weights and state alone; what the compilers say is in docs/scaling.md."""
    for name, chip, work, found in (
        ("Qwen3-0.6B", "t4", Work(moment_dtype="int8"), True),
        ("Qwen3-4B", "l4", Work(lora_rank=16), True),
        ("Qwen3-4B", "l4", Work(moment_dtype="int8"), False),
        ("Qwen3-4B", "a100_40gb", Work(moment_dtype="int8"), False),
        ("Qwen3-4B", "t4", Work(lora_rank=16), False),
    ):
        target = Target.parse(chip)
        config = published(name, dtype=target.chip.half, remat="full")
        assert bool(layout.layouts(config, target, work)) == found, (name, chip)
        kernel = "reference" if chip == "t4" else "cudnn"
        assert programs.for_target(config, target).attention == kernel


def test_what_does_not_fit_is_halved_where_it_is_too_much():
    target = Target.parse("v5e-8")
    over = int(target.chip.memory)
    one = Layout(1, 1, 8, sequences=2, completions=32)
    sampling = [Program("segment", arguments=over), Program("gradients")]
    assert layout._smaller(one, sampling, target) == Layout(1, 1, 8, 2, 16)
    update = [Program("segment"), Program("gradients", problem="out of memory")]
    assert layout._smaller(one, update, target) == Layout(1, 1, 8, 1, 32)
    assert layout._smaller(Layout(1, 1, 8, 1, 32), update, target) is None
    # The last to go before a layout is given up is what attention returned.
    kept = [Layout(1, 1, 8, count, 32, "attention") for count in (2, 1)]
    assert layout._smaller(kept[0], update, target) == kept[1]
    assert layout._smaller(kept[1], update, target) == Layout(1, 1, 8, 1, 32, "full")
    assert layout._smaller(kept[1], sampling[:1], target).remat == "attention"
    assert layout.fits([Program("segment", arguments=int(0.9 * over))], target)


def test_advice_begins_with_what_needs_most(tiny_model):
    one, work = Layout(1, 8, 1, 4, 32), Work()
    made = [Program("segment", arguments=2 * GB), Program("gradients", arguments=GB)]
    first, *_ = command.advice(made, one, work, tiny_model)
    assert first.startswith("fewer completions at a time (--completions, now 32)")
    made = [Program("segment"), Program("gradients", arguments=GB)]
    found = command.advice(made, one, work, tiny_model)
    assert found[0] == "fewer sequences at a time (--sequences, now 4)"
    assert "--remat=full (now none)" in found
    assert "--moment_dtype=int8" in found


def test_operations_of_an_update_are_those_of_its_products(tiny_model):
    """Against XLA's count of a forward pass of one sequence: the update has three times as many."""
    mesh = sharding.make_mesh(1, 1, 1, devices=jax.devices()[:1])
    unrolled = dataclasses.replace(tiny_model, scan_unroll=tiny_model.num_hidden_layers)
    params = model.abstract_params(unrolled)
    length = 64
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def forward(params, tokens, positions):
        return forward_pass.logits(params, unrolled, tokens, positions)

    with sharding.use(mesh):
        counted = jax.jit(forward).lower(params, ids, ids).cost_analysis()["flops"]
    ours = metrics.update_flops(tiny_model, np.array([0]), np.array([length]))
    # Attention's reference multiplies all pairs; norms, rotation and softmax are not products.
    assert 0.8 * counted < ours / 3 < counted


@pytest.mark.slow
def test_the_command_measures_on_the_devices_at_hand(tmp_path, monkeypatch, capsys, tiny_model):
    """All programs run, on a CPU without predictions and limits, on two of its devices."""
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:2])
    folder, out = tmp_path / "model", tmp_path / "measured.json"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(tiny_model.to_hf()))
    options = [f"--config={folder}", "--mesh=1x2x1", "--completions=2", f"--json={out}"]
    lengths = ["--prompt_length=20", "--max_new_tokens=40", "--prompts_per_step=2"]
    assert command.main([*options, *lengths, "--group_size=2", "--measure"]) == 0
    printed = capsys.readouterr().out
    assert "on cpu-2" in printed
    assert "fits. Measured: " in printed
    assert "- decoding: reference (there are kernels beside flash and cuDNN only)" in printed
    made = json.loads(out.read_text())
    assert {row["program"] for row in made["programs"]} == set(programs.PARTS)
    assert all(row["measured"] > 0 and row["seconds"] is None for row in made["programs"])
    (row,) = made["targets"]
    step = next(x["measured"] for x in made["programs"] if x["program"] == "segment")
    assert row["measured"]["decode_tokens_per_second"] == pytest.approx(4 / step)
    assert row["run_hours"] is row["measured"]["update_mfu"] is None


def test_what_cannot_be_measured_is_still_planned(tmp_path, monkeypatch, capsys, tiny_model):
    def out_of_memory(*args):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")

    monkeypatch.setattr(command, "measure", out_of_memory)
    (tmp_path / "config.json").write_text(json.dumps(tiny_model.to_hf()))
    options = [f"--config={tmp_path}", "--mesh=1x1x1", "--prompt_length=20", "--max_new_tokens=40"]
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    assert command.main([*options, "--completions=8", "--measure"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: not measured: RESOURCE_EXHAUSTED")
    assert "fits." in printed.out
    assert "Measured" not in printed.out


def test_devices_at_hand_are_known_by_their_kind(monkeypatch):
    kinds = [kind for chip in CHIPS.values() for kind in chip.kinds]
    assert len(kinds) == len(set(kinds))
    for kind, count, name in (
        ("NVIDIA H200", 1, "h200"),
        ("NVIDIA H100 80GB HBM3", 8, "h100-8"),
        ("TPU v5 lite", 4, "v5e-4"),
        ("TPU v5", 4, "v5p-8"),
    ):
        device = types.SimpleNamespace(device_kind=kind, platform="tpu or gpu")
        monkeypatch.setattr(jax, "local_devices", lambda device=device, n=count: [device] * n)
        target = Target.of_this_process()
        assert target == dataclasses.replace(Target.parse(name), at_hand=True)
    device.device_kind = "TPU v2"
    with pytest.raises(ValueError, match="device_kind='TPU v2': known are TPU v5 lite, TPU v5e"):
        Target.of_this_process()


def test_what_layouts_share_is_compiled_once(monkeypatch):
    """What JAX has compiled before it returns without schedules."""
    made = []

    def compile_program(name, *_, **__):
        made.append(name)
        return Program(name, problem="too large" if made == ["gradients"] else "")

    monkeypatch.setattr(programs, "PARTS", {"gradients": "update", **programs.PARTS})
    monkeypatch.setattr(programs, "compile_program", compile_program)
    one, found = layout.plan(micro_model.config(), Target.of_this_process(), Work())
    assert made.count("gradients") == 2
    assert sorted({*made}) == sorted(x.name for x in found)
    assert len(made) == len(found) + 1
    assert one.sequences == 2


def test_the_command_refuses_by_name(capsys):
    for options, message in (
        (["--chips=v9"], "chips='v9': allowed are v5e, v5p"),
        (["--mesh=8"], "mesh is '8'; it must be data x fsdp x tensor"),
        (["--config=no-such-model"], "'no-such-model' is not a folder"),
        (["--prompt_length=0"], "prompt_length=0: allowed are integers from 1 up"),
        (["--group_size=0"], "group_size=0: allowed are integers from 2 up"),
        (["--prompts_per_step=0"], "prompts_per_step=0: allowed are integers from 1 up"),
        (["--cache_fraction=1.5"], "cache_fraction=1.5: allowed are numbers in [0, 1]"),
        (["--cache_fraction=0"], "cache_fraction=0.0: allowed are finite numbers above 0"),
        (["--lora_rank=-1"], "lora_rank=-1: allowed are integers from 0 up"),
        (["--kl_coef=-1"], "kl_coef=-1.0: allowed are finite numbers from 0 up"),
        (["--moment_dtype=foo"], "moment_dtype='foo': allowed are ('float32', "),
        ([f"--json={__file__}/plan.json"], f"error: {__file__}: File exists"),
    ):
        assert command.main(options) == 2
        assert message in capsys.readouterr().err


# With the compiler of TPUs ------------------------------------------------------------------


@functools.cache
def small(of_cache):
    """The row and the programs, by name, of a small model on four chips."""
    targets.use_compilers()
    target, work = Target.parse("v5e-4"), Work(max_new_tokens=1100)
    config = dataclasses.replace(SMALL, dtype="bfloat16", cache_dtype=of_cache)
    config = programs.for_target(config, target)
    one, made = layout.plan(config, target, work, Layout(1, 4, 1, 1, 8, "attention"))
    row = {"config": "small", **command.summary(config, target, work, one, made)}
    assert "fits. Predicted:" in command.table(row, made)
    return row, {program.name: program for program in made}


@pytest.mark.aot
def test_a_small_model_compiles_for_tpus():
    """All programs for four chips: they fit, decoding is in place, and kernels have schedules."""
    pytest.importorskip("libtpu")
    row, made = small("")
    assert set(made) == set(programs.PARTS) - {"resize"}  # A kernel's cache has pages.
    assert all(program.seconds > 0 for program in made.values())
    assert 0 < row["decode_attention"] < 1
    assert 0 < row["update_attention"] < 1
    segment = made["segment"]
    assert segment.mixed < segment.seconds
    # The kernels of whole sequences count their tiles; the forward one runs once a block.
    gradients = made["gradients"]
    assert gradients.mixed < gradients.seconds
    assert row["update_mfu"] < row["mixed_update_mfu"] < row["least"]["mixed_update_mfu"]
    kernels = re.findall(r"%(\w*flash_\w*)[.\d]* = ", gradients.executable.as_text())
    assert sorted("backward" in name for name in kernels) == [False, True]
    # The cache is written in place: no second copy of it among the temporaries.
    assert segment.temporaries < 0.5 * segment.reused
    assert segment.bytes_moved < 3 * segment.bytes_ideal


@pytest.mark.aot
def test_a_cache_in_8_bits_is_half_as_large_on_tpus():
    pytest.importorskip("libtpu")
    wide, narrow = (small(of_cache)[1]["segment"] for of_cache in ("", "float8_e4m3fn"))
    assert narrow.reused == pytest.approx(wide.reused / 2, rel=0.01)
    assert narrow.temporaries < 0.5 * narrow.reused
    # Half of the cache less to read, and nothing else more to move.
    saved = wide.bytes_ideal - narrow.bytes_ideal
    assert wide.bytes_moved - narrow.bytes_moved >= 0.9 * saved
