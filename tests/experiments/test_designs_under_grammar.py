"""Designs of models that cannot design, sampled by the real sampler under the grammar."""

import dataclasses

import jax
import numpy as np
import pytest

from engineer.context import VARIANTS
from engineer.proposal import Unreadable, parse, project, render_config
from experiments import settings as settings_lib
from experiments.configs import tiny
from experiments.families import demonstrations
from experiments.families.lakes import texts as lakes
from experiments.families.lakes.family import Lakes
from experiments.ring.designing import design_completer
from experiments.run.policy import load_params, load_policy
from learner.decoder import model

COUNT = 200


@pytest.fixture(scope="module")
def world():
    """(settings, policy, untrained parameters, contexts)."""
    settings = settings_lib.from_config(tiny.get_config())
    policy = load_policy(settings)
    params = jax.device_put(
        model.init_params(jax.random.key(0), policy.config),
        model.param_shardings(policy.config, policy.mesh),
    )
    space = Lakes(settings.lakes).space
    chats = [
        demonstrations.demonstration(seed, VARIANTS["V6"], space, lakes.TEXTS)[0]
        for seed in range(COUNT)
    ]
    return settings, policy, params, chats


def with_engineer(settings, **options):
    engineer = dataclasses.replace(
        settings.engineer, temperature=1.0, top_p=1.0, top_k=0, **options
    )
    return dataclasses.replace(settings, engineer=engineer)


def read(answers, space):
    return [parse(answer.text, space) for answer in answers]


@pytest.mark.slow
def test_all_are_well_formed(world):
    settings, policy, params, chats = world
    space = Lakes(settings.lakes).space
    under = with_engineer(settings, decoding="grammar")
    answers = design_completer(under, Lakes(under.lakes), policy)(params, chats, jax.random.key(1))
    configs = set()
    for answer in answers:
        assert not answer.truncated
        config, repairs = project(parse(answer.text, space), space)
        assert repairs == ()
        assert answer.text == render_config(config, space)
        configs.add(config)
    assert len(answers) == COUNT
    assert len(configs) == COUNT  # the grammar leaves the choice to the model
    free = design_completer(with_engineer(settings), Lakes(settings.lakes), policy)
    free = free(params, chats, jax.random.key(1))
    readable = sum(not isinstance(reading, Unreadable) for reading in read(free, space))
    print(f"untrained: {COUNT} of {COUNT} under the grammar, {readable} without")
    assert readable < COUNT / 10

    # The committed checkpoint, which has learned to design.
    trained = load_params(settings, policy)
    answers = design_completer(under, Lakes(under.lakes), policy)(trained, chats, jax.random.key(1))
    wanted = [project(reading, space) for reading in read(answers, space)]
    assert all(repairs == () for _, repairs in wanted)
    ratios = np.array([config.column("hole_ratio") for config, _ in wanted])
    assert ratios.std() < 0.2  # it chooses, rather than draws at random


@pytest.mark.slow
def test_reasoning_comes_first_and_ends(world):
    settings, policy, params, chats = world
    space = Lakes(settings.lakes).space
    under = with_engineer(settings, decoding="grammar", reasoning_tokens=20)
    answers = design_completer(under, Lakes(under.lakes), policy)(
        params, chats[:40], jax.random.key(2)
    )
    # A stop token within the reasoning is no way out: such answers are finished.
    assert len({answer.num_tokens for answer in answers}) > 1
    for answer in answers:
        _, found, design = answer.text.rpartition("\nConfiguration:\n")
        assert found
        assert not answer.truncated
        assert project(parse(design, space), space)[1] == ()


def test_a_budget_that_is_too_small_is_refused(world):
    settings, policy, _, _ = world
    small = with_engineer(settings, decoding="grammar", max_new_tokens=20)
    with pytest.raises(ValueError, match="max_new_tokens=20: a design under the grammar takes up"):
        design_completer(small, Lakes(small.lakes), policy)
    thoughtful = with_engineer(settings, thinking_tokens=10)
    with pytest.raises(ValueError, match="no token </think>"):
        design_completer(thoughtful, Lakes(thoughtful.lakes), policy)
