"""Designers, and the demonstrations from which a small model learns to be one."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_records import bounded, config
from lake_records import record as recorded

from engineer import context, designers
from engineer.context import VARIANTS
from engineer.evidence import Evidence, FailureBreakdown, GroupOutcome
from engineer.proposal import parse, project, render_config
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from engineer.texts import NO_HISTORY
from experiments.families import demonstrations
from experiments.families.demonstrations import rule_design
from experiments.families.lakes import texts as lakes

SPACE = lakes.lake_space((3, 4, 5), {3: (0.0, 0.3), 4: (0.0, 0.4), 5: (0.0, 0.5)})


def random_record(seed, space):
    return demonstrations.random_record(seed, space, lakes.TEXTS)


def compose(spec, record):
    return context.compose(spec, record, lakes.TEXTS)


def ModelDesigner(generate, spec=VARIANTS["V6"], **options):
    return designers.ModelDesigner(generate, lakes.TEXTS, spec, **options)


RECORD = random_record(1, SPACE)
GOOD = render_config(SPACE.random(5), SPACE)


@st.composite
def spaces(draw):
    sizes = sorted(draw(st.sets(st.integers(3, 10), min_size=1)))
    pair = st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)).map(lambda p: tuple(sorted(p)))
    space = lakes.lake_space(sizes, {size: draw(pair) for size in sizes})
    return bounded(space, "wait_ratio", draw(pair), *[(0.0, 1.0)] * (len(sizes) - 1))


class Answers:
    """Gives prepared answers in order and remembers how it was asked."""

    def __init__(self, *texts):
        self.texts = list(texts)
        self.calls = []

    def __call__(self, messages, seed):
        self.calls.append((messages, seed))
        return self.texts[len(self.calls) - 1]


def test_a_model_is_asked_until_an_answer_can_be_read():
    answers = Answers("I do not know.", "3: {data_ratio: much}", GOOD)
    design = ModelDesigner(answers, VARIANTS["V3"], tries=5)(RECORD, SPACE, seed=7)
    assert design.config == SPACE.random(5)
    assert design.raw_texts == ("I do not know.", "3: {data_ratio: much}", GOOD)
    assert (design.kept_previous, design.reason, design.repairs) == (False, "", ())
    assert list(design.context_messages) == compose(VARIANTS["V3"], RECORD)
    assert all(chat == compose(VARIANTS["V3"], RECORD) for chat, _ in answers.calls)
    seeds = [seed for _, seed in answers.calls]
    assert len(set(seeds)) == 3
    again = Answers("", "", GOOD)
    ModelDesigner(again, VARIANTS["V3"], tries=3)(RECORD, SPACE, seed=7)
    assert [seed for _, seed in again.calls] == seeds
    assert json.loads(json.dumps(design.to_dict()))["config"] == design.config.to_dict()


def test_unreadable_answers_keep_the_previous_configuration():
    answers = Answers("no", "<think>forever", "never asked")
    design = ModelDesigner(answers, tries=2)(RECORD, SPACE, seed=0)
    assert design.config == RECORD.config
    assert design.kept_previous
    assert design.nothing == "no answer could be read"
    assert design.raw_texts == ("no", "<think>forever")
    assert design.reason.startswith("try 0: no configuration")
    assert "try 1: the answer ends within its reasoning" in design.reason


@pytest.mark.parametrize(
    ("fractions", "nothing"),
    [
        ("1.0 1.0 1.0", "the same numbers for all sizes"),
        ("0.0 0.0 0.0", "the same numbers for all sizes"),
        ("0.33 0.33 0.34", "the same numbers for all sizes"),
        ("0.3 0.33 0.37", ""),
        ("0.9 0.9 0.8", ""),  # Weights.
        ("0.6 0.3 0.1", "the previous configuration again"),
        ("1.2 0.6 0.2", "the previous configuration again"),
        ("0.6 0.31 0.09", ""),
    ],
)
def test_a_model_that_designs_nothing_is_told_apart(fractions, nothing):
    space = lakes.lake_space((3, 4, 5))
    rows = zip("345", fractions.split(), strict=True)
    answer = "\n".join(
        f"{row}: {{data_ratio: {one}, hole_ratio: 0.2, wait_ratio: 0.4}}" for row, one in rows
    )
    past = recorded((50, 50, 50), configs=[config(0.6, 0.3, 0.1)])
    design = ModelDesigner(Answers(answer))(past, space, seed=0)
    assert design.nothing == nothing
    assert designers.fixed(past, space, seed=0).nothing == ""


def test_an_answer_is_projected_and_the_changes_are_recorded():
    row = "{data_ratio: 2, hole_ratio: 0.45, wait_ratio: 0.5}"
    incomplete, complete = f"3: {row}", f"3: {row}\n4: {row}\n5: {row}"
    answers = Answers(incomplete, complete, "never asked")
    design = ModelDesigner(answers)(RECORD, SPACE, seed=0)
    SPACE.check(design.config)
    assert design.raw_texts == (incomplete, complete)
    assert design.config["3", "hole_ratio"] == 0.3
    assert "size 3 hole_ratio: 0.45 clipped to 0.30" in design.repairs


def test_the_explanation_is_carried_forward_only_where_it_was_asked_for():
    text = f"Size 5 is too hard.\n{GOOD}"
    with_s = ModelDesigner(Answers(text), VARIANTS["V5"])(RECORD, SPACE, 0)
    assert with_s.summary == "Size 5 is too hard."
    following = dataclasses.replace(RECORD, summary=with_s.summary)
    assert "Size 5 is too hard." in compose(VARIANTS["V5"], following)[0]["content"]
    kept = ModelDesigner(Answers("no"), VARIANTS["V5"], tries=1)(following, SPACE, 0)
    assert kept.summary == "Size 5 is too hard."  # it still explains the current configuration
    assert ModelDesigner(Answers(text), VARIANTS["V6"])(RECORD, SPACE, 0).summary == ""


def test_the_oldest_rounds_are_left_out_of_a_context_that_does_not_fit():
    record = next(r for seed in range(50) if len((r := random_record(seed, SPACE)).history) == 3)
    lengths = [
        len(
            compose(VARIANTS["V3"], dataclasses.replace(record, history=record.history[first:]))[0][
                "content"
            ]
        )
        for first in range(3)
    ]
    for left_out, limit in ((0, lengths[0]), (1, lengths[1]), (2, lengths[2])):

        def fits(chat, limit=limit):
            return len(chat[0]["content"]) <= limit

        design = ModelDesigner(Answers(GOOD), VARIANTS["V3"], fits=fits)(record, SPACE, 1)
        shown = dataclasses.replace(record, history=record.history[left_out:])
        assert list(design.context_messages) == compose(VARIANTS["V3"], shown)
        assert len(design.repairs) == left_out
    answers = Answers()
    design = ModelDesigner(answers, fits=lambda chat: False)(record, SPACE, 1)
    assert (design.kept_previous, answers.calls) == (True, [])
    assert "does not fit" in design.reason


def test_fixed_and_random():
    fixed = designers.fixed(RECORD, SPACE, seed=3)
    assert fixed.config == RECORD.config
    assert fixed.kept_previous
    one, same, other = (designers.random(RECORD, SPACE, seed=s).config for s in (3, 3, 4))
    assert one == same != other
    later = dataclasses.replace(RECORD, round=RECORD.round + 1, total_rounds=99)
    assert designers.random(later, SPACE, seed=3).config != one  # new in every round


def test_a_previous_configuration_out_of_bounds_is_clipped_aloud():
    loose = Configuration(
        SPACE.rows, SPACE.names, ((0.25, 0.45, 0.5), (0.25, 0.45, 0.5), (0.5, 0.45, 0.5))
    )
    record = dataclasses.replace(
        RECORD,
        history=(*RECORD.history[:-1], dataclasses.replace(RECORD.history[-1], config=loose)),
    )
    design = designers.fixed(record, SPACE, seed=0)
    assert design.config.column("hole_ratio") == (0.3, 0.4, 0.45)
    assert len(design.repairs) == 2


@given(spaces(), st.integers(0, 2**32 - 1))
def test_random_configurations_are_of_the_space(space, seed):
    config = space.random(seed)
    space.check(config)
    assert sum(round(100 * fraction) for fraction in config.column("data_ratio")) == 100
    for row in space.rows:
        low, _ = space.bounds(row, "hole_ratio")
        assert config[row, "hole_ratio"] <= max(low, lakes.MAX_RANDOM_HOLE_RATIO)


def test_random_configurations_have_the_stated_distribution():
    space = lakes.lake_space((3, 4))
    drawn = [space.random(seed) for seed in range(2_000)]
    for values, high in (
        ([c["3", "data_ratio"] for c in drawn], 1.0),  # Dirichlet(1, 1) is uniform
        ([c["3", "hole_ratio"] for c in drawn], 0.5),
        ([c["4", "wait_ratio"] for c in drawn], 1.0),
    ):
        quantiles = np.quantile(values, [0.1, 0.25, 0.5, 0.75, 0.9])
        np.testing.assert_allclose(quantiles / high, [0.1, 0.25, 0.5, 0.75, 0.9], atol=0.05)


def test_the_rule_by_hand():
    space = lakes.lake_space((3, 4, 5, 6))
    holes, waits = (0.1, 0.2, 0.3, 0.02), (0.9, 0.5, 0, 0.98)
    values = tuple((0.25, hole, wait) for hole, wait in zip(holes, waits, strict=True))
    config = Configuration(space.rows, space.names, values)
    rates = {3: 8, 4: 5, 5: 1, 6: 9}  # valid answers out of 10
    breakdown = FailureBreakdown(
        tuple(
            GroupOutcome(str(s), 10, v, 0, {**dict.fromkeys(lakes.CHECKS, 0), "parsable": 10 - v})
            for s, v in rates.items()
        ),
        "size",
    )
    record = RunRecord((RoundRecord(0, config, Evidence(breakdown), cold_start=True),), 1, 3, 2)
    seen = rule_design(record, space, VARIANTS["V3"])
    assert seen.column("hole_ratio") == (0.15, 0.2, 0.25, 0.07)
    assert seen.column("wait_ratio") == (0.95, 0.5, 0.0, 1.0)
    # Weights 0.21, 0.30, 0.14, 0.14 over 0.79: 26.58, 37.97, 17.72, 17.72 hundredths.
    assert seen.column("data_ratio") == (0.26, 0.38, 0.18, 0.18)
    unseen = rule_design(record, space, VARIANTS["V6"])  # the only configuration was the cold start
    assert unseen.column("hole_ratio") == unseen.column("wait_ratio") == (0.25, 0.2, 0.15, 0.25)
    assert unseen.column("data_ratio") == seen.column("data_ratio")


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(VARIANTS)), spaces())
def test_demonstrations_answer_in_the_asked_form(seed, name, space):
    messages, answer = demonstrations.demonstration(seed, VARIANTS[name], space, lakes.TEXTS)
    record = random_record(seed, space)
    assert messages == compose(VARIANTS[name], record)
    reading = parse(answer, space)
    wanted = rule_design(record, space, VARIANTS[name])
    assert project(reading, space) == (wanted, ())
    space.check(wanted)
    assert reading.explanation == (lakes.TEXTS.explanation if VARIANTS[name].summary else "")
    again = demonstrations.demonstration(seed, VARIANTS[name], space, lakes.TEXTS)
    assert again == (messages, answer)


def test_random_demonstrations_teach_the_form_alone():
    spec = VARIANTS["V1"]
    pairs = [
        demonstrations.demonstration(seed, spec, SPACE, lakes.TEXTS, by=by)
        for seed in range(100)
        for by in ("rule", "random")
    ]
    ruled, free = pairs[::2], pairs[1::2]
    assert [messages for messages, _ in ruled] == [messages for messages, _ in free]

    def fractions(pairs):
        designs = [project(parse(answer, SPACE), SPACE)[0] for _, answer in pairs]
        return np.ravel([design.column("data_ratio") for design in designs])

    assert abs(np.corrcoef(fractions(ruled), fractions(free))[0, 1]) < 0.2


def test_the_rule_uses_nothing_that_is_not_shown():
    """Records with equal contexts get equal answers: the demonstrations can be learned."""
    for seed in range(20):
        record = random_record(seed, SPACE)
        hidden = dataclasses.replace(
            record,
            history=tuple(
                dataclasses.replace(p, config=SPACE.random(99 + seed)) if p.cold_start else p
                for p in record.history
            ),
        )
        assert compose(VARIANTS["V6"], hidden) == compose(VARIANTS["V6"], record)
        assert rule_design(hidden, SPACE, VARIANTS["V6"]) == rule_design(
            record, SPACE, VARIANTS["V6"]
        )


def test_random_records_cover_the_range_of_outcomes():
    records = [random_record(seed, SPACE) for seed in range(300)]
    rates = [row.valid_rate for r in records for row in r.breakdown.by_group]
    fraction_hard, fraction_easy = np.mean(np.array(rates) < 0.3), np.mean(np.array(rates) > 0.7)
    assert min(fraction_hard, fraction_easy) > 0.1
    assert {len(r.history) for r in records} == {1, 2, 3}
    assert all(r.history[0].cold_start and r.round == len(r.history) for r in records)
    shown = sum(NO_HISTORY in compose(VARIANTS["V6"], r)[0]["content"] for r in records)
    assert 0 < shown < len(records)
