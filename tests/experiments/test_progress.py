"""What a run prints."""

from engineer.evidence import FailureBreakdown, GroupOutcome
from experiments.progress import Reporter


def breakdown(*rows):
    """Of (answers, valid, optimal) of sizes 3, 4, ..."""
    return FailureBreakdown(
        tuple(
            GroupOutcome(str(3 + i), answers, valid, optimal, {"parsable": answers - valid})
            for i, (answers, valid, optimal) in enumerate(rows)
        ),
        "size",
    )


def test_a_validation_says_what_is_optimal_only_where_that_is_another_thing(capsys):
    reporter = Reporter()
    reporter.validation(
        "start", breakdown((10, 5, 4), (10, 0, 0)), breakdown((10, 6, 6), (10, 1, 1))
    )
    plain = breakdown((10, 5, 5), (30, 0, 0))
    reporter.validation("round 1", plain, plain, "; next: more")
    assert capsys.readouterr().out.splitlines() == [
        "start: valid 25.0% optimal 20.0%, greedy 35.0% 35.0% (valid/optimal by size: "
        "3 50%/40% 4 0%/0%)",
        "round 1: valid 12.5%, greedy 12.5% (valid by size: 3 50% 4 0%); next: more",
    ]


def test_there_is_no_bar_where_output_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # As notebooks do.
    with Reporter().bar("round 1 training", 2) as advance:
        advance(1, "reward 0.10")
        advance(2, "reward 0.20")
    assert capsys.readouterr().out == "round 1 training: 2/2, 0 s left, reward 0.20\n"
