"""A second environment family, adding numbers: a space and the names of its checks.

Everything else (contexts, reading, projection, designers, analysis) is the
package's own, as it is for lakes.
"""

import pytest

from engineer import analysis, context, curricula, designers
from engineer.evidence import FailureBreakdown
from engineer.proposal import Unreadable, parse, project, render_config
from engineer.space import ConfigurationSpace, Parameter
from engineer.texts import plain_texts
from experiments.families import demonstrations

TOPICS = ("plain", "carry", "three_terms")
SPACE = ConfigurationSpace(
    "topic",
    TOPICS,
    (
        Parameter("fraction", meaning="the part of the set that has this topic."),
        Parameter("digits", ((1, 6), (2, 6), (1, 4)), decimals=0, meaning="digits of a number."),
        Parameter("spaced", meaning="the part of the problems written with blanks."),
    ),
    "fraction",
)
CHECKS = ("is_number", "right_length", "right_value")
TEXTS = plain_texts(SPACE, "to add numbers", CHECKS)
RECORD = demonstrations.random_record(1, SPACE, TEXTS)
WANTED = SPACE.random(9)
ANSWER = render_config(WANTED, SPACE)


def test_a_check_alone_is_no_list_of_checks():
    with pytest.raises(ValueError, match=r"checks='right': names are needed, such as \('right',\)"):
        plain_texts(SPACE, "to add numbers", "right")


def test_evidence_is_kept_by_topic():
    assert list(RECORD.breakdown.to_dict())[-1] == "by_topic"
    assert FailureBreakdown.from_dict(RECORD.breakdown.to_dict()) == RECORD.breakdown


@pytest.mark.parametrize("name", context.VARIANTS)
def test_contexts(name):
    content = context.compose(context.VARIANTS[name], RECORD, TEXTS)[0]["content"]
    assert "topic carry: answers" in content
    assert "Topics plain carry three_terms" in content
    assert "to add numbers" in content
    assert "right_value" in content
    assert "{fraction: number, digits: number, spaced: number}" in content
    assert not {"hole", "lake", "lakes", "agents", "conflict"} & set(content.lower().split())


def test_reading_and_projection():
    assert project(parse(ANSWER, SPACE), SPACE) == (WANTED, ())
    text = """Carries fail, so:
```json
{"Topic carry": {"fraction": 3, "digits": 2.6, "Spaced": 0.25},
 "Plain": {"fraction": 1, "digits": 1, "spaced": 10%},
 "three terms": {"fraction": 1, "digits": 99, "spaced": 1/4}, "four": {"fraction": 1}}
```"""
    config, repairs = project(parse(text, SPACE), SPACE)
    SPACE.check(config)
    assert (config["carry", "digits"], config["three_terms", "digits"]) == (3.0, 4.0)
    assert config["carry", "fraction"] == 3 * config["plain", "fraction"]
    assert config.column("spaced") == (0.1, 0.25, 0.25)
    assert "topic carry digits: 2.60 rounded to 3" in repairs
    assert "topic three_terms digits: 99.00 clipped to 4.00" in repairs
    assert isinstance(parse("plain and carry", SPACE), Unreadable)


def test_every_designer():
    model = designers.ModelDesigner(lambda chat, seed: ANSWER, TEXTS, context.VARIANTS["V6"])
    assert model(RECORD, SPACE, 0).config == WANTED
    for designer in (
        designers.fixed,
        designers.random,
        curricula.failure_proportional,
        curricula.learnability_proportional,
        curricula.progress_bandit,
        curricula.mastery,
    ):
        SPACE.check(designer(RECORD, SPACE, 1).config)
    assert list(analysis.analyse(RECORD, WANTED, SPACE)) == list(analysis.MEASURES)
