"""What a round called for, and training on it."""

import jax
import numpy as np
import pytest
from lake_records import SPACE, config, record

from engineer.controls import exchanged, with_rows_renamed
from engineer.proposal import Proposal, parse
from experiments import settings
from experiments.configs import sums
from experiments.families.demonstrations import random_record
from experiments.ring.designing import design_completer
from experiments.ring.hindsight import LESSONS, Hindsight, best_in_hindsight
from experiments.run.policy import load_params, load_policy
from experiments.text.errors import UserError
from learner.training.train_state import create_train_state


def test_hindsight_divides_a_set_by_the_signal_of_its_round():
    configs = [config(0.2, 0.3, 0.5), config(0.5, 0.5, 0.0, holes=0.1)]
    found = best_in_hindsight(record((90, 50, 20), (100, 70, 40), configs=configs), 1, SPACE)
    before, after = np.array([0.9, 0.5, 0.2]), np.array([1.0, 0.7, 0.4])
    signal = (before * (1 - before) + after * (1 - after)) / 2 + 0.05
    np.testing.assert_allclose(found.column("data_ratio"), signal / signal.sum(), atol=0.01)
    assert found.column("hole_ratio") == (0.1,) * 3  # What else was designed stays.


def test_hindsight_divides_a_set_by_the_progress_of_its_round():
    run = record((90, 50, 20), (80, 80, 20), configs=[config(0.2, 0.3, 0.5)] * 2)
    found = best_in_hindsight(run, 1, SPACE, "learning_progress")
    # Four fifths in proportion to |change|, 0.1 to 0.3 to 0; one fifth in equal parts.
    wanted = np.array([0.8 / 4, 0.8 * 3 / 4, 0]) + 0.2 / 3
    np.testing.assert_allclose(found.column("data_ratio"), wanted, atol=0.01)
    still = record((90, 50, 20), (90, 50, 20), configs=[config(0.2, 0.3, 0.5)] * 2)
    equal = best_in_hindsight(still, 1, SPACE, "learning_progress").column("data_ratio")
    np.testing.assert_allclose(equal, 1 / 3, atol=0.01)


def test_renamed_rows_take_everything_with_them():
    configs = [config(0.2, 0.3, 0.5), config(0.6, 0.3, 0.1)]
    run = record((90, 50, 20), (100, 70, 40), configs=configs)
    there = {"3": "4", "4": "5", "5": "3"}
    moved = with_rows_renamed(run, there, configs=True)
    assert moved.config["5", "data_ratio"] == run.config["4", "data_ratio"]
    assert moved.valid_rates(SPACE.rows)["5"] == 0.7
    best, again = best_in_hindsight(run, 1, SPACE), best_in_hindsight(moved, 1, SPACE)
    assert {there[row]: best[row, "data_ratio"] for row in there} == {
        row: again[row, "data_ratio"] for row in there
    }
    back = {row: old for row in SPACE.rows for old, new in there.items() if new == row}
    assert with_rows_renamed(moved, back, configs=True) == run
    names = exchanged(SPACE, np.random.default_rng(0))
    assert sorted(names) == sorted(names.values()) == sorted(SPACE.rows)


@pytest.fixture(scope="module")
def on_sums():
    options = sums.get_config()
    options.engineer.training.hindsight_steps = 2
    found = settings.from_config(options)
    family, policy = found.load_family(), load_policy(found)
    fits = design_completer(found, family, policy).fits
    return found, family, policy, Hindsight(found, family, policy, fits)


def state_of(found, policy):
    params = load_params(found, policy)
    return create_train_state(params, policy.config, found.training.optimizer, policy.mesh)


def run_of(family, rounds):
    """A record of so many rounds."""
    for seed in range(100):
        run = random_record(seed, family.space, family.texts)
        if len(run.history) == rounds:
            return run
    raise AssertionError(rounds)


@pytest.mark.slow
def test_lessons_lower_their_loss(on_sums):
    found, family, policy, hindsight = on_sums
    state = state_of(found, policy)
    run, losses = run_of(family, 3), []
    for number in range(4):
        state, steps = hindsight(state, run, jax.random.key(number))
        losses += [step["metrics"]["loss"] for step in steps]
    assert len(losses) == 8
    assert np.mean(losses[-3:]) < np.mean(losses[:3])


def test_the_first_round_has_no_lessons(on_sums):
    found, family, policy, hindsight = on_sums
    state = state_of(found, policy)
    assert hindsight(state, run_of(family, 1), jax.random.key(0)) == (state, [])


def test_lessons_are_contexts_of_past_designs_with_their_answers(on_sums):
    _, family, policy, hindsight = on_sums
    run, rows = run_of(family, 3), family.space.rows
    wanted = [best_in_hindsight(run, i, family.space).column("fraction") for i in (1, 2)]
    lessons, seen = hindsight._lessons(run, np.random.default_rng(0)), set()
    for _ in range(LESSONS):
        answer = parse(policy.tokenizer.decode(next(lessons).completion[:-1]), family.space)
        assert isinstance(answer, Proposal)
        fractions = tuple(answer.values[row]["fraction"] for row in rows)
        (of,) = (i for i, column in enumerate(wanted) if sorted(column) == sorted(fractions))
        seen.add((of, fractions == wanted[of]))
    assert seen == {(0, True), (0, False), (1, True), (1, False)}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("designer", "base", "only for designer='current'"),
        ("context", "V5", "without thinking, reasoning and summary"),
    ],
)
def test_options_that_do_not_go_with_lessons_are_refused(field, value, message):
    options = sums.get_config()
    options.engineer.training.hindsight_steps = 2
    options.engineer[field] = value
    with pytest.raises(UserError, match=message):
        settings.from_config(options)
    options.engineer[field] = {"designer": "current", "context": "V1"}[field]
    options.training.lora.rank = 4
    with pytest.raises(UserError, match="only without adapters"):
        settings.from_config(options)
