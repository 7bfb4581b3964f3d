"""What an engineer is shown: the variants differ by their modules and nothing else."""

import dataclasses
import json

import pytest

from engineer import context
from engineer.context import VARIANTS, ContextSpec, context_spec, fitted
from engineer.evidence import (
    DrawnFailure,
    Evidence,
    FailureBreakdown,
    GroupOutcome,
    Statistics,
    TrainingEvidence,
)
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from engineer.texts import NO_HISTORY, NO_SUMMARY, SUMMARY_REQUEST, plain_texts
from experiments.families.demonstrations import random_record
from experiments.families.lakes import texts as lakes
from experiments.settings import EngineerSettings


def _failed(**counts):
    return {check: counts.get(check, 0) for check in lakes.CHECKS}


def blocks(spec, record):
    return context.blocks(spec, record, lakes.TEXTS)


def compose(spec, record):
    return context.compose(spec, record, lakes.TEXTS)


PARAMETERS = ("data_ratio", "hole_ratio", "wait_ratio")
CONFIG = Configuration(("3", "4"), PARAMETERS, ((0.4, 0.1, 0.25), (0.6, 1 / 3, 0.5)))
FIRST = FailureBreakdown(
    (
        GroupOutcome("3", 40, 10, 5, _failed(parsable=30)),
        GroupOutcome("4", 40, 0, 0, _failed(parsable=40)),
    ),
    "size",
)
LATEST = FailureBreakdown(
    (
        GroupOutcome("3", 40, 25, 22, _failed(conflict_free=12, no_holes=5, goals_reached=1)),
        GroupOutcome(
            "4", 40, 8, 8, _failed(parsable=2, legal_moves=3, in_bounds=4, conflict_free=30)
        ),
    ),
    "size",
)
RECORD = RunRecord(
    history=(
        RoundRecord(0, CONFIG, Evidence(FIRST), True),
        RoundRecord(1, CONFIG, Evidence(LATEST), False),
    ),
    round=2,
    total_rounds=3,
    epochs_per_round=2,
    summary="Fewer holes on size 4.",
    training={"objective": "GRPO", "reward": "accuracy", "schedule": "constant"},
)

F = """Latest results
all sizes: answers 80 valid 0.41 optimal 0.38
size 3: answers 40 valid 0.62 optimal 0.55 parse 0 illegal 0 conflict 12 hole 5 bounds 0 goal 1
size 4: answers 40 valid 0.20 optimal 0.20 parse 2 illegal 3 conflict 30 hole 0 bounds 4 goal 0"""
ROUND_0 = """round 0
size 3: data_ratio 0.40 hole_ratio 0.10 wait_ratio 0.25 valid 0.25 optimal 0.12 parse 30 \
illegal 0 conflict 0 hole 0 bounds 0 goal 0
size 4: data_ratio 0.60 hole_ratio 0.33 wait_ratio 0.50 valid 0.00 optimal 0.00 parse 40 \
illegal 0 conflict 0 hole 0 bounds 0 goal 0"""
ROUND_1 = """round 1
size 3: data_ratio 0.40 hole_ratio 0.10 wait_ratio 0.25 valid 0.62 optimal 0.55 parse 0 \
illegal 0 conflict 12 hole 5 bounds 0 goal 1
size 4: data_ratio 0.60 hole_ratio 0.33 wait_ratio 0.50 valid 0.20 optimal 0.20 parse 2 \
illegal 3 conflict 30 hole 0 bounds 4 goal 0"""
T = "Training: round 2 of rounds 0 to 2, epochs per round 2, total epochs 6"
S = "Your explanation of the current configuration\nFewer holes on size 4."


def test_the_variants_are_the_published_combinations():
    head, tail = [lakes.TEXTS.instruction], ["Sizes 3 4", lakes.TEXTS.output_format]
    with_all, without = [f"History\n{ROUND_0}\n{ROUND_1}"], [f"History\n{ROUND_1}"]
    g = [lakes.TEXTS.guideline]
    assert blocks(VARIANTS["V1"], RECORD) == [*head, F, *tail]
    assert blocks(VARIANTS["V2"], RECORD) == [*head, *g, F, *tail]
    assert blocks(VARIANTS["V3"], RECORD) == [*head, *g, *with_all, F, *tail]
    assert blocks(VARIANTS["V4"], RECORD) == [*head, *g, *without, F, *tail]
    assert blocks(VARIANTS["V5"], RECORD) == [*head, *g, *without, F, S, *tail, SUMMARY_REQUEST]
    assert blocks(VARIANTS["V6"], RECORD) == [*head, *g, *without, F, T, *tail]
    full = ContextSpec(training="full")
    details = f"{T}\nobjective: GRPO\nreward: accuracy\nschedule: constant"
    assert blocks(full, RECORD) == [*head, F, details, *tail]


def truncated(breakdown, *counts):
    rows = [
        dataclasses.replace(row, truncated=count)
        for row, count in zip(breakdown.by_group, counts, strict=True)
    ]
    return dataclasses.replace(breakdown, by_group=tuple(rows))


def test_truncated_answers_are_shown_where_they_are_many():
    def recorded(first, latest):
        past = [dataclasses.replace(RECORD.history[i], evidence=Evidence(found))
                for i, found in enumerate((first, latest))]  # fmt: skip
        return dataclasses.replace(RECORD, history=tuple(past))

    few = recorded(truncated(FIRST, 8, 0), truncated(LATEST, 8, 8))
    for spec in VARIANTS.values():
        assert blocks(spec, few) == blocks(spec, RECORD)
    many = blocks(VARIANTS["V3"], recorded(FIRST, truncated(LATEST, 1, 9)))
    round_1 = ROUND_1.replace("goal 1", "goal 1 truncated 1").replace(
        "goal 0", "goal 0 truncated 9"
    )
    assert f"History\n{ROUND_0}\n{round_1}" in many
    failures = F.replace("goal 1", "goal 1 truncated 1").replace("goal 0", "goal 0 truncated 9")
    (shown,) = [text for text in many if text.startswith(failures)]
    assert shown.removeprefix(failures).startswith("\ntruncated counts answers")


def test_the_configuration_to_be_replaced_is_shown_once():
    rows = ["size 3: data_ratio 0.40 hole_ratio 0.10 wait_ratio 0.25",
            "size 4: data_ratio 0.60 hole_ratio 0.33 wait_ratio 0.50"]  # fmt: skip
    shown = "\n".join(["Current configuration", *rows])
    first = dataclasses.replace(RECORD, history=RECORD.history[:1])
    for name in VARIANTS:
        spec = EngineerSettings(context=f"{name}+current").spec
        assert dataclasses.replace(spec, current=False) == VARIANTS[name]
        assert (shown in blocks(spec, RECORD)) == (name in ("V1", "V2"))
        # Of the random configuration only the whole history tells.
        assert (shown in blocks(spec, first)) == (name != "V3")
        without = [text for text in blocks(spec, first) if text != shown]
        assert without == blocks(VARIANTS[name], first)


@pytest.mark.parametrize(
    "family", [lakes.TEXTS, plain_texts(lakes.lake_space((3, 4)), "to plan", lakes.CHECKS)]
)
def test_the_neutral_guideline_takes_the_place_of_the_other(family):
    spec, neutral = context_spec("V2"), context_spec("V2+neutral")
    told, explained = context.blocks(spec, RECORD, family), context.blocks(neutral, RECORD, family)
    assert [text for text in told if text not in explained] == [family.guideline]
    assert [text for text in explained if text not in told] == [family.neutral_guideline]
    # It neither says which rates to aim at nor how far to move.
    advice = ("0.", "largest", "half", "lower", "raise", "keep", "small steps")
    assert any(word in family.guideline for word in advice)
    assert not any(word in family.neutral_guideline for word in advice)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_context_is_one_user_message_of_all_blocks(name):
    (message,) = compose(VARIANTS[name], RECORD)
    assert message == {"role": "user", "content": "\n\n".join(blocks(VARIANTS[name], RECORD))}


def test_empty_modules_say_so():
    start = dataclasses.replace(RECORD, history=RECORD.history[:1], summary=None)
    assert f"History\n{NO_HISTORY}" in blocks(VARIANTS["V4"], start)
    assert f"History\n{ROUND_0}" in blocks(VARIANTS["V3"], start)
    assert context.module("summary", start).endswith(NO_SUMMARY)


def test_sizes_of_validation_and_training_may_differ():
    config = Configuration(("4", "5"), PARAMETERS, ((0.5, 0.1, 0.2), (0.5, 0.1, 0.2)))
    record = RunRecord((RoundRecord(0, config, Evidence(LATEST), False),), 1, 2, 1)
    lines = context.module("history", record, lakes.TEXTS, True).splitlines()[2:]
    assert [line.split(":")[0] for line in lines] == ["size 3", "size 4", "size 5"]
    assert lines[0].startswith("size 3: valid 0.62")
    assert lines[1].startswith("size 4: data_ratio 0.50 hole_ratio 0.10 wait_ratio 0.20 valid 0.20")
    assert lines[2] == "size 5: data_ratio 0.50 hole_ratio 0.10 wait_ratio 0.20"
    assert context.module("rows", record, lakes.TEXTS) == "Sizes 4 5"


def test_a_context_is_short_for_a_small_vocabulary():
    constants = (lakes.TEXTS.instruction, lakes.TEXTS.guideline, lakes.TEXTS.output_format)
    assert all("\n" not in text and text == text.strip() for text in constants)
    longest = 0
    for seed in range(60):
        record = random_record(seed, lakes.lake_space((3, 4, 5)), lakes.TEXTS)
        if len(record.history) != 2:
            continue
        content = compose(VARIANTS["V6"], record)[0]["content"]
        for constant in constants:
            assert content.count(constant) == 1
            content = content.replace(constant, "CONSTANT")
        longest = max(longest, len(content.split()))
    assert 0 < longest < 250


FULL = ContextSpec(
    guideline=True, history="all", summary=True, training="full", details=True, results=True,
    examples=2,
)  # fmt: skip
TOLD = dataclasses.replace(
    RECORD,
    history=(
        RECORD.history[0],
        dataclasses.replace(
            RECORD.history[1],
            evidence=Evidence(
                dataclasses.replace(
                    LATEST,
                    by_group=(
                        dataclasses.replace(
                            LATEST.by_group[0], gap=Statistics(9, 1.5, 0, 1, 4), length=None
                        ),
                        LATEST.by_group[1],
                    ),
                ),
                TrainingEvidence(
                    12, 0.25, 0.375, 0.5, {"3": 0.75},
                    {"3": {"hole_ratio": 0.3}}, {"3": {"hole_ratio": 0.222}},
                ),
                (
                    DrawnFailure("3", ("no_holes",), "VALIDATION ITEM", held_out=True),
                    DrawnFailure("3", ("no_holes", "in_bounds"), "F H\nF F", held_out=False),
                    DrawnFailure("4", ("parsable",), "nonsense", held_out=False),
                ),
            ),
        ),
    ),
)  # fmt: skip


def test_modules_beyond_the_publication():
    texts = blocks(FULL, TOLD)
    assert texts[4] == (
        "Details of the latest results: mean, median and largest\n"
        "size 3: cost above optimum 1.50 1.00 4.00\nsize 4: not recorded"
    )
    assert texts[5] == (
        "Latest training\nsteps 12 reward 0.25 last quarter 0.38 groups with signal 0.50\n"
        "size 3: valid 0.75 hole_ratio asked 0.30 made 0.22"
    )
    assert texts[6] == (
        "Examples of failures in training\n\nfailed no_holes, in_bounds\nF H\nF F\n\n"
        "failed parsable\nnonsense"
    )
    assert "nonsense" not in "\n".join(blocks(dataclasses.replace(FULL, examples=1), TOLD))
    bare = blocks(FULL, RECORD)
    assert bare[5].endswith("not recorded")
    assert bare[6].endswith("none recorded")


def test_details_show_the_answers_to_problems_with_a_feature():
    rows = [
        {"group": 3, "valid": valid, "failed": [] if valid else ["no_holes"], "features": features}
        for valid, features in (
            (True, []), (False, ["needs wait"]), (True, ["needs wait"]), (False, ["needs wait"]),
        )
    ]  # fmt: skip
    found = FailureBreakdown.from_records(rows, checks=lakes.CHECKS, label="size")
    assert found.by_group[0].features == {"needs wait": {"answers": 3, "valid": 1}}
    assert FailureBreakdown.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    latest = RoundRecord(0, RECORD.history[0].config, Evidence(found), cold_start=True)
    record = dataclasses.replace(RECORD, history=(latest,), round=1)
    text = blocks(ContextSpec(details=True), record)[2]
    assert text.splitlines()[1:] == [
        "size 3: not recorded",
        "size 3 needs wait: answers 3 valid 0.33",
    ]


def test_no_held_out_item_is_ever_shown():
    for spec in (FULL, *VARIANTS.values()):
        assert "VALIDATION ITEM" not in compose(spec, TOLD)[0]["content"]


def test_a_context_is_shortened_in_the_stated_order():
    limits, notes = [], []
    record = dataclasses.replace(
        TOLD,
        history=(RECORD.history[0], dataclasses.replace(RECORD.history[0], round=1),
                 dataclasses.replace(TOLD.history[1], round=2)),
        round=3, total_rounds=5,
    )  # fmt: skip
    longest = len(compose(FULL, record)[0]["content"])
    seen = set()
    for limit in range(longest, 0, -1):
        shown = fitted(
            FULL, record, lakes.TEXTS, lambda chat, n=limit: len(chat[0]["content"]) <= n
        )
        if shown is None:
            break
        (message,), left_out = shown
        assert len(message["content"]) <= limit
        assert lakes.TEXTS.instruction in message["content"]  # never cut within
        assert F.splitlines()[2] in message["content"]
        assert message["content"].rstrip().endswith((lakes.TEXTS.output_format, SUMMARY_REQUEST))
        if left_out not in seen:
            seen.add(left_out)
            limits.append(limit)
            notes = left_out
    assert len(limits) == 11
    assert [note.removeprefix("context: ").partition(" left out")[0] for note in notes] == [
        "round 0 of the history",
        "round 1 of the history",
        "the history",
        "example 2",
        "example 1",
        "the results of training",
        "the details of the validation",
        "the training details",
        "the explanation",
        "the guideline",
    ]


def test_a_context_is_a_variant_and_what_is_added():
    assert {name: context_spec(name) for name in VARIANTS} == VARIANTS
    assert context_spec("V4+training=full+examples=2+current") == dataclasses.replace(
        VARIANTS["V4"], training="full", examples=2, current=True
    )
    assert context_spec("V1+history=all+guideline") == VARIANTS["V3"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "context='': allowed are V1, V2"),
        ("details", "context='details': allowed are V1, V2"),
        ("V6 + details", "context='V6 . details': allowed are V1, V2"),
        ("V6+", "'' is unknown; allowed are guideline, history=designed, history=all"),
        ("V6+details=True", "'details=True' is unknown"),
        ("V6+training", "'training' is unknown"),
        ("V6+training=none", "'training=none' is unknown"),
        ("V6+examples", "'examples' is unknown; .* and examples=N"),
        ("V6+examples=-1", "'examples=-1' is unknown"),
    ],
)
def test_an_unknown_context_is_refused(text, named):
    with pytest.raises(ValueError, match=named):
        context_spec(text)


def test_bad_numbers_and_missing_details_are_refused():
    with pytest.raises(ValueError, match="examples=-1"):
        ContextSpec(examples=-1)
    training = {"objective": "GRPO", "schedule": "constant"}
    incomplete = dataclasses.replace(RECORD, training=training)
    with pytest.raises(ValueError, match=r"\['reward'\] missing"):
        compose(ContextSpec(training="full"), incomplete)
