"""The metrics of a study, from hand-made runs."""

import numpy as np
import pytest

from experiments.configs.studies import bases
from experiments.report import study as study_page
from experiments.settings import from_config
from experiments.study import results
from experiments.study.variants import Study, Variant

STUDY = Study("?", (Variant("a", "a"), Variant("b", "b")), "a", (0,))


def point(steps, *valid, answers=10):
    """A validation of rows with so many valid answers of ten each."""
    rows = {str(i): {"answers": answers, "valid": v, "optimal": v} for i, v in enumerate(valid)}
    total = {"answers": answers * len(valid), "valid": sum(valid), "optimal": sum(valid)}
    greedy = {"greedy": sum(valid), "greedy_answers": answers * len(valid)}
    return {"steps": steps, **total, **greedy, "by_row": rows, "processor_seconds": 2.0 * steps}


def run(variant, *points, shared=None, seconds=7.0):
    known = {"variant": variant, "seed": 0, "status": "finished", "cpu_seconds": seconds}
    return {**known, "shared": shared, "points": list(points)}


def test_metrics_of_a_run():
    points = [point(0, 0, 0), point(10, 8, 0), point(20, 2, 4), point(30, 6, 8), point(40, 4, 8)]
    runs = [run("a", *points, shared={"cpu_seconds": 3.0}), run("b", *points)]
    found = {
        entry["metric"]: entry["values"]["0"]
        for entry in results.compare(STUDY, runs)
        if entry["variant"] == "a"
    }
    assert found["valid_final"] == 0.6
    assert found["valid_last3"] == pytest.approx((0.3 + 0.7 + 0.6) / 3)
    assert found["valid_area"] == pytest.approx((0.2 + 0.35 + 0.5 + 0.65) / 4)
    assert found["valid_worst"] == pytest.approx((0.2 + 0.6 + 0.4) / 3)  # Row 0, not row 1.
    assert found["valid_fall"] == pytest.approx(0.6)  # Row 0, from 0.8 to 0.2.
    assert found["cpu_seconds"] == 10.0


def test_only_a_row_that_was_mastered_can_fall():
    assert results.largest_fall(np.array([[0.4, 0.5], [0.1, 0.5]])) == 0
    assert results.largest_fall(np.array([[0.5, 0.5], [0.1, 0.7]])) == pytest.approx(0.4)
    assert results.largest_fall(np.array([[0.1], [0.6]])) == 0


def test_learning_is_drawn_over_what_it_costs():
    runs = [run("a", point(0, 1), point(10, 5)), run("b", point(0, 2), point(10, 6))]
    study = {
        "variants": [{"name": name, "label": name} for name in "ab"],
        "runs": [{**one, "status": "finished"} for one in runs],
    }
    *_, chart = charts = study_page._mean_curves(study)
    assert [chart.name for chart in charts][2:] == ["learning_cost"]
    assert [(line.x, line.y) for line in chart.series] == [
        ([0.0, 20.0], [10.0, 50.0]),
        ([0.0, 20.0], [20.0, 60.0]),
    ]
    runs[0]["points"][1]["processor_seconds"] = None  # Of an older study.
    assert len(study_page._mean_curves(study)) == 2


def test_new_studies_sample_four_answers_and_registered_ones_keep_one():
    registered, new = (
        from_config(options).validation
        for options in (bases.tiny_base(), bases.measured(bases.tiny_base()))
    )
    assert (registered.samples, new.samples) == (1, 4)
    greedy = bases.tiny_base()
    greedy.validation.temperature = 0.0
    assert from_config(bases.measured(greedy)).validation.temperature == 1.0


def test_test_sets_are_compared_where_all_runs_have_one():
    last = {**point(10, 5), "test": {"answers": 4, "valid": 3}}
    runs = [run(name, point(0, 1), last) for name in "ab"]
    found = {entry["metric"]: entry["values"] for entry in results.compare(STUDY, runs)}
    assert found["valid_test"] == {"0": 0.75}
    runs[0] = run("a", point(0, 1), point(10, 5))
    assert "valid_test" not in [entry["metric"] for entry in results.compare(STUDY, runs)]
