"""Designers, and the demonstrations from which a small model learns to be one."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engineer import modules
from engineer.context import VARIANTS, compose, variant
from engineer.demonstrations import EXPLANATION, demonstration, random_record, rule_design
from engineer.designers import (
    DESIGNERS,
    MAX_RANDOM_HOLE_RATIO,
    FixedDesigner,
    ModelDesigner,
    RandomDesigner,
    make_designer,
    random_config,
)
from engineer.evidence import CHECKS, FailureBreakdown, RoundRecord, RunRecord, SizeOutcome
from engineer.proposal import parse, project, render_config
from engineer.space import ConfigurationSpace
from mapf_jax.environment_config import EnvironmentConfig

SPACE = ConfigurationSpace((3, 4, 5), hole_bounds=((0.0, 0.3), (0.0, 0.4), (0.0, 0.5)))
RECORD = random_record(1, SPACE)
GOOD = render_config(random_config(5, SPACE))


@st.composite
def spaces(draw):
    sizes = sorted(draw(st.sets(st.integers(3, 10), min_size=1)))
    pair = st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)).map(lambda p: tuple(sorted(p)))
    bounds = {size: draw(pair) for size in sizes}
    return ConfigurationSpace.from_mappings(sizes, bounds, {sizes[0]: draw(pair)})


class Answers:
    """Gives prepared answers in order and remembers how it was asked."""

    def __init__(self, *texts):
        self.texts = list(texts)
        self.calls = []

    def __call__(self, chats, seed):
        self.calls.append((chats, seed))
        return [self.texts[len(self.calls) - 1]]


def test_a_model_is_asked_until_an_answer_can_be_read():
    answers = Answers("I do not know.", "3: {data_ratio: much}", GOOD)
    design = ModelDesigner(answers, variant("V3"), tries=5).design(RECORD, SPACE, seed=7)
    assert design.config == random_config(5, SPACE)
    assert design.raw_texts == ("I do not know.", "3: {data_ratio: much}", GOOD)
    assert (design.kept_previous, design.reason, design.repairs) == (False, "", ())
    assert list(design.context_messages) == compose("V3", RECORD)
    assert all(chats == [compose("V3", RECORD)] for chats, _ in answers.calls)
    seeds = [seed for _, seed in answers.calls]
    assert len(set(seeds)) == 3
    again = Answers("", "", GOOD)
    ModelDesigner(again, variant("V3"), tries=3).design(RECORD, SPACE, seed=7)
    assert [seed for _, seed in again.calls] == seeds
    assert json.loads(json.dumps(design.to_dict()))["config"] == design.config.to_dict()


def test_unreadable_answers_keep_the_previous_configuration():
    answers = Answers("no", "<think>forever", "never asked")
    design = ModelDesigner(answers, tries=2).design(RECORD, SPACE, seed=0)
    assert design.config == RECORD.config
    assert design.kept_previous
    assert design.raw_texts == ("no", "<think>forever")
    assert design.reason.startswith("try 0: no configuration")
    assert "try 1: the answer ends within its reasoning" in design.reason


def test_an_answer_is_projected_and_the_changes_are_recorded():
    answers = Answers("```yaml\n3: {data_ratio: 2, hole_ratio: 0.9, wait_ratio: 0.5}\n```")
    design = ModelDesigner(answers).design(RECORD, SPACE, seed=0)
    assert SPACE.contains(design.config)
    assert design.config.hole_ratio[0] == 0.3
    assert "size 3 hole_ratio: 0.90 clipped to 0.30" in design.repairs
    assert "size 5: missing, kept from the previous configuration" in design.repairs


def test_the_explanation_is_carried_forward_only_where_it_was_asked_for():
    text = f"Size 5 is too hard.\n{GOOD}"
    with_s = ModelDesigner(Answers(text), variant("V5")).design(RECORD, SPACE, 0)
    assert with_s.summary == "Size 5 is too hard."
    following = dataclasses.replace(RECORD, summary=with_s.summary)
    assert "Size 5 is too hard." in compose("V5", following)[0]["content"]
    kept = ModelDesigner(Answers("no"), variant("V5"), tries=1).design(following, SPACE, 0)
    assert kept.summary == "Size 5 is too hard."  # it still explains the current configuration
    assert ModelDesigner(Answers(text), variant("V6")).design(RECORD, SPACE, 0).summary == ""


def test_the_oldest_rounds_are_left_out_of_a_context_that_does_not_fit():
    record = next(r for seed in range(50) if len((r := random_record(seed, SPACE)).history) == 3)
    lengths = [
        len(
            compose("V3", dataclasses.replace(record, history=record.history[first:]))[0]["content"]
        )
        for first in range(3)
    ]
    for left_out, limit in ((0, lengths[0]), (1, lengths[1]), (2, lengths[2])):

        def fits(chat, limit=limit):
            return len(chat[0]["content"]) <= limit

        design = ModelDesigner(Answers(GOOD), variant("V3"), fits=fits).design(record, SPACE, 1)
        shown = dataclasses.replace(record, history=record.history[left_out:])
        assert list(design.context_messages) == compose("V3", shown)
        assert len(design.repairs) == (left_out > 0)
    answers = Answers()
    design = ModelDesigner(answers, fits=lambda chat: False).design(record, SPACE, 1)
    assert (design.kept_previous, answers.calls) == (True, [])
    assert "does not fit" in design.reason


def test_a_generator_that_answers_too_much_is_refused():
    with pytest.raises(ValueError, match="2 texts for one chat"):
        ModelDesigner(lambda chats, seed: [GOOD, GOOD]).design(RECORD, SPACE, 0)
    with pytest.raises(ValueError, match="tries=0"):
        ModelDesigner(Answers(GOOD), tries=0)


def test_fixed_and_random():
    fixed = FixedDesigner().design(RECORD, SPACE, seed=3)
    assert fixed.config == RECORD.config
    assert fixed.kept_previous
    one, same, other = (RandomDesigner().design(RECORD, SPACE, seed=s).config for s in (3, 3, 4))
    assert one == same != other
    later = dataclasses.replace(RECORD, round=RECORD.round + 1, total_rounds=99)
    assert RandomDesigner().design(later, SPACE, seed=3).config != one  # new in every round


def test_a_previous_configuration_out_of_bounds_is_clipped_aloud():
    loose = EnvironmentConfig.uniform((3, 4, 5), 0.45, 0.5)
    record = dataclasses.replace(
        RECORD,
        history=(*RECORD.history[:-1], dataclasses.replace(RECORD.history[-1], config=loose)),
    )
    design = FixedDesigner().design(record, SPACE, seed=0)
    assert design.config.hole_ratio == (0.3, 0.4, 0.45)
    assert len(design.repairs) == 2


def test_designers_by_name():
    made = [make_designer(name, generate=Answers(GOOD), spec="V2", tries=4) for name in DESIGNERS]
    assert [type(d) for d in made] == [ModelDesigner, FixedDesigner, RandomDesigner]
    assert (made[0].spec, made[0].tries) == (variant("V2"), 4)
    with pytest.raises(ValueError, match=r"'oracle' .*'current', 'fixed', 'random'"):
        make_designer("oracle")
    with pytest.raises(ValueError, match="generate=None"):
        make_designer("current")
    with pytest.raises(ValueError, match="variant='V9'"):
        make_designer("current", generate=Answers(GOOD), spec="V9")


@settings(deadline=None)
@given(spaces(), st.integers(0, 2**32 - 1))
def test_random_configurations_are_of_the_space(space, seed):
    config = random_config(seed, space)
    assert space.contains(config)
    assert sum(round(100 * share) for share in config.data_ratio) == 100
    for hole, (low, _) in zip(config.hole_ratio, space.hole_bounds, strict=True):
        assert hole <= max(low, MAX_RANDOM_HOLE_RATIO)


def test_random_configurations_have_the_stated_distribution():
    space = ConfigurationSpace((3, 4))
    drawn = [random_config(seed, space) for seed in range(2_000)]
    for values, high in (
        ([c.data_ratio[0] for c in drawn], 1.0),  # Dirichlet(1, 1) is uniform
        ([c.hole_ratio[0] for c in drawn], 0.5),
        ([c.wait_ratio[1] for c in drawn], 1.0),
    ):
        quantiles = np.quantile(values, [0.1, 0.25, 0.5, 0.75, 0.9])
        np.testing.assert_allclose(quantiles / high, [0.1, 0.25, 0.5, 0.75, 0.9], atol=0.05)


def test_the_rule_by_hand():
    config = EnvironmentConfig(
        (3, 4, 5, 6), (0.25,) * 4, (0.1, 0.2, 0.3, 0.02), (0.9, 0.5, 0, 0.98)
    )
    rates = {3: 8, 4: 5, 5: 1, 6: 9}  # valid answers out of 10
    breakdown = FailureBreakdown(
        tuple(
            SizeOutcome(s, 10, v, 0, tuple(10 - v if c == "parsable" else 0 for c in CHECKS))
            for s, v in rates.items()
        )
    )
    record = RunRecord((RoundRecord(0, config, breakdown, cold_start=True),), 1, 3, 2)
    space = ConfigurationSpace((3, 4, 5, 6))
    seen = rule_design(record, space, "V3")
    assert seen.hole_ratio == (0.15, 0.2, 0.25, 0.07)
    assert seen.wait_ratio == (0.95, 0.5, 0.0, 1.0)
    # Weights 0.21, 0.30, 0.14, 0.14 over 0.79: 26.58, 37.97, 17.72, 17.72 hundredths.
    assert seen.data_ratio == (0.26, 0.38, 0.18, 0.18)
    unseen = rule_design(record, space, "V6")  # the only configuration was the cold start
    assert unseen.hole_ratio == unseen.wait_ratio == (0.25, 0.2, 0.15, 0.25)
    assert unseen.data_ratio == seen.data_ratio


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(VARIANTS)), spaces())
def test_demonstrations_answer_in_the_asked_form(seed, name, space):
    messages, answer = demonstration(seed, name, space)
    record = random_record(seed, space)
    assert messages == compose(name, record)
    reading = parse(answer, space.sizes)
    wanted = rule_design(record, space, name)
    assert project(reading, record.config, space) == (wanted, ())
    assert space.contains(wanted)
    assert reading.explanation == (EXPLANATION if variant(name).summary else "")
    assert demonstration(seed, name, space) == (messages, answer)


def test_the_rule_uses_nothing_that_is_not_shown():
    """Records with equal contexts get equal answers: the demonstrations can be learned."""
    for seed in range(20):
        record = random_record(seed, SPACE)
        hidden = dataclasses.replace(
            record,
            history=tuple(
                dataclasses.replace(p, config=random_config(99 + seed, SPACE))
                if p.cold_start
                else p
                for p in record.history
            ),
        )
        assert compose("V6", hidden) == compose("V6", record)
        assert rule_design(hidden, SPACE, "V6") == rule_design(record, SPACE, "V6")


def test_random_records_cover_the_range_of_outcomes():
    records = [random_record(seed, SPACE) for seed in range(300)]
    rates = [row.valid_rate for r in records for row in r.breakdown.by_size]
    share_hard, share_easy = np.mean(np.array(rates) < 0.3), np.mean(np.array(rates) > 0.7)
    assert min(share_hard, share_easy) > 0.1
    assert {len(r.history) for r in records} == {1, 2, 3}
    assert all(r.history[0].cold_start and r.round == len(r.history) for r in records)
    shown = sum(modules.NO_HISTORY in compose("V6", r)[0]["content"] for r in records)
    assert 0 < shown < len(records)
