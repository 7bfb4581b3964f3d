"""Reading by likelihood, measured on scorers that read in known ways."""

import re

import numpy as np

from engineer import reading
from engineer.context import VARIANTS
from engineer.curricula import BY_RULE
from engineer.reading import CONTROLS, Reading
from engineer.space import ConfigurationSpace, Parameter
from engineer.texts import plain_texts
from experiments.families.demonstrations import random_record
from experiments.families.template import family

RULE = BY_RULE["learnability"]
COUNT = 30


def questions(control="plain", variant="V3", rule=RULE):
    made = (
        reading.question(
            random_record(seed, family.space, family.texts),
            family.space,
            family.texts,
            VARIANTS[variant],
            rule,
            seed,
            control,
        )
        for seed in range(COUNT)
    )
    return [one for one in made if one is not None]


def reader(by_name):
    """Finds an answer likelier the more data it gives to rows with a high p (1 - p).

    It knows which line of the results belongs to which row by its name, or only by its position.
    """

    def score(pairs):
        scores = []
        for (message,), answers in pairs:
            results = message["content"].rpartition("Latest results")[2]
            rates = dict(
                re.findall(r"^length (\w+): answers .* valid (\S+) optimal", results, re.M)
            )
            (rows,) = re.findall(r"^Lengths (.*)$", results, re.M)
            names = rows.split() if by_name else list(rates)
            p = np.array([float(rates[name]) for name in names])
            fractions = [[float(n) for n in re.findall(r"fraction: (\S+)}", a)] for a in answers]
            scores.append([float(np.dot(p * (1 - p), one)) for one in fractions])
        return scores

    return score


def test_a_reader_is_told_from_one_that_copies_by_position():
    for control in CONTROLS:
        found = reading.read(questions(control), reader(by_name=True))
        assert found.likelier > 0.9
        assert found.follows > 0.9 * found.questions > 20
        assert found.margin > 0
        copied = reading.read(questions(control), reader(by_name=False))
        assert (copied.follows > 0.9 * copied.questions) == (control != "order")


def test_a_model_that_always_prefers_the_same_design_does_not_read():
    def score(pairs):
        return [[len(answer) + 1e-6 * hash(answer) for answer in answers] for _, answers in pairs]

    assert reading.read(questions(), score) == Reading(len(questions()), 0.5, 0, 0.0)


def test_a_preference_for_one_design_hides_no_reading():
    def score(pairs):
        read = reader(by_name=True)(pairs)
        preferred = [np.array(answers) == max(answers) for _, answers in pairs]
        return np.array(read) + 10.0 * np.array(preferred)

    found = reading.read(questions(), score)
    assert found.likelier == 0.5
    assert found.follows > 0.9 * found.questions


def test_contexts_differ_in_the_outcomes_of_rows_alone():
    for one in questions("plain", "V1"):
        first, second = (chat[0]["content"] for chat in one.contexts)
        assert first != second
        swapped = [re.sub(r"length \w+", "length", text).splitlines() for text in (first, second)]
        assert sorted(swapped[0]) == sorted(swapped[1])
    for one in questions("names"):
        assert not re.search(r"length \d", one.contexts[0][0]["content"])
        assert re.fullmatch(r"([a-z]: \{fraction: \S+\}\n?){6}", one.answers[0])
    (plain, *_), (other, *_) = questions("plain"), questions("order")
    assert plain.answers == other.answers
    lines = [one.contexts[0][0]["content"].splitlines() for one in (plain, other)]
    assert lines[0] != lines[1]
    assert sorted(lines[0]) == sorted(lines[1])


def test_names_of_rows_suffice_and_are_none_of_a_parameter():
    rows = tuple(map(str, range(30)))
    space = ConfigurationSpace("topic", rows, (Parameter("x"),), "x")
    texts = plain_texts(space, "to learn", ("right",))
    run = random_record(0, space, texts)
    one = reading.question(run, space, texts, VARIANTS["V1"], RULE, 0, "names")
    names = {*"abcdefghijklmnopqrstuvwyz", "aa", "ab", "ac", "ad", "ae"}
    assert set(re.findall(r"^\w+", one.answers[0], re.M)) == names


def test_there_is_no_question_about_a_rule_that_reads_nothing():
    assert questions(rule=BY_RULE["fixed"]) == []
