"""The embedded models: what their cards claim, and that a tokenizer fits the texts of today."""

import json
import runpy
import types
from pathlib import Path

import jax
import numpy as np
import pytest

import mapf_jax
from engineer import context, proposal
from experiments import settings as settings_lib
from experiments import warm_start
from experiments.configs import sums, sums_ladder, sums_tiny, tiny
from experiments.families import demonstrations
from experiments.families.lakes import texts as lakes
from experiments.families.lakes.family import Lakes
from experiments.ring.outcomes import training_texts
from experiments.ring.validation import validate, validation_completers, validation_set
from experiments.run.policy import load_params, load_policy
from mapf_jax.text import RULES

ROOT = Path(__file__).parents[2]
STUDIES = {
    name: types.SimpleNamespace(**runpy.run_path(str(ROOT / f"docs/studies/{name}/study.py")))
    for name in ("contexts_ladder", "learning_ladder", "climbing_ladder")
}


@pytest.fixture(scope="module")
def settings():
    return settings_lib.from_config(tiny.get_config())


@pytest.fixture(scope="module")
def model(settings):
    policy = load_policy(settings)
    return policy, load_params(settings, policy)


def test_size_and_form(settings, model):
    policy, params = model
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert 1_000_000 <= count <= 3_000_000
    assert len(policy.tokenizer) <= policy.config.vocab_size
    assert sum(path.stat().st_size for path in settings.model.folder.iterdir()) < 10_000_000


def test_constant_texts_are_single_tokens(model):
    tokenizer = model[0].tokenizer
    for text in (RULES, lakes.TEXTS.instruction, lakes.TEXTS.guideline, lakes.TEXTS.output_format):
        assert len(tokenizer.encode(text)) == 1
    for text in (" (3,4)", "\n7:", " 0.35", "<answer>"):
        assert len(tokenizer.encode(text)) == 1


def test_texts_survive_the_tokenizer(settings, model):
    tokenizer = model[0].tokenizer
    instances, _ = mapf_jax.generate(
        jax.random.key(5), mapf_jax.EnvironmentConfig.uniform((3, 5), 0.2, 0.5), 8
    )
    for i in range(len(instances)):
        instance = instances[i]
        question = mapf_jax.prompt(instance, settings.lakes.list_holes)
        answer = mapf_jax.render_answer(instance.solution.paths, instance.solution.num_steps)
        for text in (question, answer):
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer.encode(question)) < 80
    messages, design = demonstrations.demonstration(
        1, context.VARIANTS["V6"], Lakes(settings.lakes).space, lakes.TEXTS
    )
    for text in (messages[0]["content"], design, "ärger \U0001f600\x00 (12,3) 0.123"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.slow
def test_it_plans_as_well_as_the_card_says_and_has_room_to_learn(settings, model):
    policy, params = model
    family = Lakes(settings.lakes)
    problems = [
        {**problem, "id": str(i)}
        for i, problem in enumerate(validation_set(settings, family).problems)
    ]
    completer, _ = validation_completers(settings, policy)
    breakdown = family.breakdown(validate(settings, family, completer, problems, params))
    assert 0.40 <= breakdown.valid_rate <= 0.75
    card = json.loads((settings.model.folder / "warm_start.json").read_text())
    # Another machine rounds differently, and a greedy answer may then differ.
    assert breakdown.valid_rate == pytest.approx(card["validation"]["valid"], abs=0.03)
    assert f"{card['validation']['valid']:.1%}" in (settings.model.folder / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_it_designs(settings, model):
    policy, params = model
    figures = warm_start.examine_designs(settings, Lakes(settings.lakes), policy, params, 0)
    assert figures["readable"] >= 0.95
    assert figures["hole_ratio_error"] < 0.1


def test_designs_are_taught_in_contexts_in_turn(settings):
    family = Lakes(settings.lakes)
    v1, full = context.context_spec("V1"), context.context_spec("V4+training=full")
    pairs = warm_start.design_pairs(settings, family, 0, 4, (v1, full))
    texts = [messages[0]["content"] for messages, _ in pairs]
    assert [family.texts.guideline in text for text in texts] == [False, True] * 2
    for text in training_texts(settings, family).values():
        assert [text in one for one in texts] == [False, True] * 2
    configured = warm_start.design_pairs(settings, family, 0, 2)
    assert configured == warm_start.design_pairs(settings, family, 0, 2, (context.VARIANTS["V6"],))


def test_a_context_of_a_real_validation_is_within_the_models_window(settings, model):
    policy, _ = model
    space = Lakes(settings.lakes).space
    record = demonstrations.random_record(np.random.SeedSequence(4), space, lakes.TEXTS)
    chat = context.compose(context.VARIANTS["V3"], record, lakes.TEXTS)
    ids = policy.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    limit = policy.config.max_position_embeddings
    assert len(ids) + settings.engineer.max_new_tokens < limit
    assert isinstance(proposal.parse("no design", space), proposal.Unreadable)


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize("config", [sums, sums_tiny, sums_ladder, *STUDIES.values()])
def test_a_model_of_sums_adds_and_designs_as_well_as_its_card_says(config):
    if config is sums_tiny:
        pytest.importorskip("reasoning_gym")
    settings = settings_lib.from_config(config.get_config())
    family, policy = settings.load_family(), load_policy(settings)
    params = load_params(settings, policy)
    problems = [
        {**problem, "id": str(i)}
        for i, problem in enumerate(validation_set(settings, family).problems)
    ]
    card = json.loads((settings.model.folder / "warm_start.json").read_text())
    text = (settings.model.folder / "README.md").read_text()
    claims = (card["validation"], card["greedy_validation"][-1])
    for greedy, claimed in enumerate(claims):
        completer = validation_completers(settings, policy)[greedy]
        breakdown = family.breakdown(validate(settings, family, completer, problems, params))
        assert breakdown.valid_rate == pytest.approx(claimed["valid"], abs=0.03)
        assert f"{claimed['valid']:.1%}" in text
    by = "mastery" if config is STUDIES["climbing_ladder"] else "rule"
    figures = warm_start.examine_designs(settings, family, policy, params, 0, by)
    assert figures["readable"] == 1.0
    if config is STUDIES["learning_ladder"]:  # Its model knows the form alone, and no rule.
        assert figures["fraction_error"] > 0.06
    else:
        assert figures["fraction_error"] < 0.045
