"""Sets of instances: proportions, distinctness, determinism and exact labels."""

import dataclasses
import os
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapf_jax import (
    EnvironmentConfig,
    benchmark_instances,
    fingerprints,
    generate,
    generator,
    solve,
    verify,
)
from mapf_jax.benchmark import CHECKSUM, VERSION, checksum
from mapf_jax.environment_config import max_hole_ratio, num_holes
from mapf_jax.generator import apportion, draw

CONFIG = EnvironmentConfig((3, 4, 6), (0.5, 0.3, 0.2), (0.2, 0.3, 0.1), (0.5, 0.25, 1.0))


@pytest.fixture(scope="module")
def made():
    return generate(jax.random.key(3), CONFIG, 200)


def test_asked_proportions_are_met(made):
    instances, report = made
    assert len(instances) == report.made == 200
    for i, (size, row) in enumerate(zip(CONFIG.sizes, report.sizes, strict=True)):
        here = instances.size == size
        assert here.sum() == row.made == row.asked == 200 * CONFIG.data_ratio[i]
        waits = instances.solution.needs_wait[here]
        assert waits.sum() == row.made_wait == round(row.asked * CONFIG.wait_ratio[i])
        holes = instances.blocked[here][:, :size, :size].sum((1, 2))
        assert set(holes) == {num_holes(CONFIG.hole_ratio[i], size)}
    outside = instances.blocked[instances.size == 3]
    assert outside[:, 3:].all()
    assert outside[:, :, 3:].all()


def test_labels_are_those_of_the_solver(made):
    instances, _ = made
    again = solve(dataclasses.replace(instances, solution=None))
    for name in ("status", "cost", "makespan", "needs_wait"):
        np.testing.assert_array_equal(
            getattr(again, name), getattr(instances.solution, name), err_msg=name
        )


def test_sets_are_distinct_disjoint_and_deterministic(made):
    instances, _ = made
    names = fingerprints(instances)
    assert len(set(names)) == len(names)
    again, _ = generate(jax.random.key(3), CONFIG, 200)
    jax.tree.map(np.testing.assert_array_equal, instances, again)
    other, _ = generate(jax.random.key(3), CONFIG, 200, exclude=names)
    assert not set(names) & set(fingerprints(other))


def test_another_set_compiles_nothing(made):
    before = generator.draw._cache_size()
    config = dataclasses.replace(CONFIG, hole_ratio=(0.1, 0.2, 0.3))
    generate(jax.random.key(4), config, 150)
    assert generator.draw._cache_size() == before


def test_what_cannot_be_made_is_reported_and_filled_up():
    # A 3x3 lake with 5 holes leaves 4 cells for two starts and two goals: few can be solved.
    config = EnvironmentConfig((3, 4), (0.5, 0.5), (5 / 9, 0.1), (1.0, 0.0))
    instances, report = generate(jax.random.key(0), config, 1000, max_candidates=2048)
    small, large = report.sizes
    assert small.exhausted
    assert 0 < small.made < small.asked
    assert small.made_wait < small.asked_wait
    assert large.made == 1000 - small.made
    assert len(instances) == 1000
    row = report.to_dict()["sizes"][0]
    assert row["achieved_wait_ratio"] < row["asked_wait_ratio"] == 1.0


def test_impossible_configurations_are_refused():
    config = EnvironmentConfig.uniform((3,), max_hole_ratio(3, 2) + 0.12, 0.0)
    with pytest.raises(ValueError, match="no solvable instance"):
        generate(jax.random.key(0), config, 10)
    with pytest.raises(ValueError, match="no lake has cells for its holes and 2 starts"):
        generate(jax.random.key(0), EnvironmentConfig.uniform((3,), 0.95, 0.0), 10)
    with pytest.raises(ValueError, match="among 0 candidates"):
        generate(jax.random.key(0), CONFIG, 10, max_candidates=0)
    with pytest.raises(ValueError, match="num_agents=9: 18 cells are needed, there are 9"):
        draw(jax.random.key(0), 3, 0, 3, 4, 9)
    with pytest.raises(ValueError, match="num_instances=0"):
        generate(jax.random.key(0), CONFIG, 0)
    with pytest.raises(ValueError, match="num_agents=6"):
        generate(jax.random.key(0), CONFIG, 5, num_agents=6)


def test_optima_of_three_agents_are_proven_again():
    config = EnvironmentConfig.uniform((4, 5), 0.2, 0.5)
    instances, report = generate(jax.random.key(0), config, 40, num_agents=3)
    assert [(row.size, row.num_agents, row.made, row.made_wait) for row in report.sizes] == [
        (4, 3, 20, 10), (5, 3, 20, 10),
    ]  # fmt: skip
    assert len(set(fingerprints(instances))) == 40
    again = solve(dataclasses.replace(instances, solution=None))
    assert np.asarray(verify(instances, instances.solution).optimal).all()
    for name in ("status", "cost", "makespan", "needs_wait"):
        np.testing.assert_array_equal(
            getattr(again, name), getattr(instances.solution, name), err_msg=name
        )


def test_64_bits_change_no_draw_and_no_verdict():
    of_32 = draw(jax.random.key(0), 4, 3, 5, 16, 2, distinct=False)
    verdicts = verify(of_32[0], solve(of_32[0]))
    with jax.enable_x64(True):
        of_64 = draw(jax.random.key(0), 4, 3, 5, 16, 2, distinct=False)
        again = verify(of_64[0], solve(of_64[0]))
    for one, other in ((of_32, of_64), (verdicts, again)):
        chex.assert_trees_all_equal(one, other)
        chex.assert_trees_all_equal_dtypes(one, other)


def test_agents_may_start_on_the_goals_of_others():
    config = EnvironmentConfig.uniform((3, 5), 0.2, 0.5)
    instances, _ = generate(jax.random.key(0), config, 60, num_agents=3, distinct=False)
    same = (instances.starts[:, :, None] == instances.goals[:, None]).all(-1)
    assert not same.diagonal(axis1=1, axis2=2).any()
    assert 0.2 < same.any((1, 2)).mean() < 0.9
    for cells in (instances.starts, instances.goals):
        assert all(len({tuple(cell) for cell in row}) == 3 for row in cells.tolist())
    assert np.asarray(verify(instances, instances.solution).optimal).all()
    apart, _ = generate(jax.random.key(0), config, 60, num_agents=3)
    assert not (apart.starts[:, :, None] == apart.goals[:, None]).all(-1).any()
    # Four cells do for two agents that change places.
    full, connected = generator.draw(jax.random.key(1), 2, 0, 2, 500, 3, distinct=False)
    assert connected.sum() > 100
    assert not full.blocked.any()


def test_benchmark_has_the_published_make_up():
    made = benchmark_instances(1, num_agents=(3,), sizes=(3, 4), per_hole_ratio=2)
    assert len(made.ids) == len(set(made.ids)) == len(made.instances) == 2 * 3 * 5 * 2
    assert made.ids[0] == "3ag_3x3_hr0.1_wr0.25_000"
    assert len(set(fingerprints(made.instances))) == len(made.ids)
    assert np.all(made.instances.active.sum(1) == 3)
    waits = made.instances.solution.needs_wait
    for size in (3, 4):
        for ratio, number in ((0.25, 2), (0.5, 5), (0.75, 8)):
            here = (made.instances.size == size) & np.isclose(made.wait_ratio, ratio)
            assert here.sum() == 10
            assert waits[here].sum() == number
    # Four holes leave five cells of a 3x3 lake, too few for six starts and goals.
    (impossible,) = [row for row in made.reports if row.size == 3 and row.holes == 4]
    assert impossible.exhausted
    assert impossible.made == 0
    again = benchmark_instances(1, num_agents=(3,), sizes=(3, 4), per_hole_ratio=2)
    jax.tree.map(np.testing.assert_array_equal, made.instances, again.instances)


def test_a_benchmark_of_the_same_make_with_two_agents():
    made = benchmark_instances(0, num_agents=(2, 3), sizes=(3,), per_hole_ratio=1)
    assert made.instances.active.sum(1).tolist() == [2] * 15 + [3] * 15
    assert {name[:7] for name in made.ids} == {"2ag_3x3", "3ag_3x3"}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.usefixtures("optimised")
def test_the_benchmark_is_the_same_everywhere():
    """On eight devices and, at the same time, on one."""
    assert jax.device_count() == 8
    command = [sys.executable, "-m", "mapf_jax", "generate", "--benchmark", "--out", os.devnull]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as other:
        made = benchmark_instances(0)
        assert len(made.ids) == 3150
        assert checksum(made) == CHECKSUM
        assert other.communicate()[1].endswith(f"version {VERSION}, checksum {CHECKSUM}\n")


@given(st.integers(1, 5000), st.lists(st.integers(0, 100), min_size=1, max_size=8))
@settings(max_examples=200)
def test_parts_sum_to_the_total(total, weights):
    weights = [w + (sum(weights) == 0) for w in weights]
    ratios = [w / sum(weights) for w in weights]
    parts = apportion(total, ratios)
    assert sum(parts) == total
    assert all(
        abs(part - total * ratio) < 1 + 1e-6 for part, ratio in zip(parts, ratios, strict=True)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": (4, 3, 6)}, "ascending"),
        ({"sizes": (2, 3, 6)}, "sizes: 2 is not allowed"),
        ({"data_ratio": (0.5, 0.5, 0.5)}, "sum to 1.5"),
        ({"hole_ratio": (0.5, 1.5, 0.5)}, "hole_ratio of size 4: 1.5"),
        ({"wait_ratio": (0.5, float("nan"), 0.5)}, "wait_ratio of size 4: nan"),
        ({"wait_ratio": (0.5, 0.5)}, "one number for each"),
    ],
)
def test_bad_configurations_name_the_field(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_configuration_dicts():
    assert EnvironmentConfig.from_dict(CONFIG.to_dict()) == CONFIG
    with pytest.raises(ValueError, match="unknown field 'holes'"):
        EnvironmentConfig.from_dict({"3": {"holes": 1}})
    with pytest.raises(ValueError, match="hole_ratio is missing"):
        EnvironmentConfig.from_dict({"3": {"data_ratio": 1.0, "wait_ratio": 0.0}})
    assert num_holes(0.29, 10) == 29
    assert num_holes(0.1, 3) == 0
