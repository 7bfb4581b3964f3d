"""The automaton walked at random: whatever it allows is a well-formed configuration."""

import functools
import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from engineer import grammar
from engineer.context import VARIANTS
from engineer.proposal import parse, project, render_config
from engineer.space import ConfigurationSpace, Parameter
from experiments.families.demonstrations import demonstration
from experiments.families.lakes import texts as lakes
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import ThinkingBudget

TINY = Path(__file__).parent.parent.parent / "experiments" / "models" / "tiny" / "tokenizer.json"
STOPS = (0, 2)
# Qwen's pattern, in which every digit stands alone, and one in the manner of GPT-2, in which
# digits merge and a blank belongs to the number after it.
SINGLE_DIGITS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGED_DIGITS = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@functools.cache
def tokenizer(kind):
    if kind == "tiny":
        return Tokenizer.from_file(str(TINY))
    made = Tokenizer(models.BPE())
    pattern = SINGLE_DIGITS if kind == "single digits" else MERGED_DIGITS
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    space = lakes.lake_space(range(3, 11))
    corpus = [demonstration(seed, VARIANTS["V6"], space, lakes.TEXTS) for seed in range(40)]
    made.train_from_iterator(
        [text for messages, answer in corpus for text in (messages[0]["content"], answer)],
        trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "</think>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return made


KINDS = ("tiny", "single digits", "merged digits")


def encode(kind):
    return lambda text: tokenizer(kind).encode(text, add_special_tokens=False).ids


def walk(tables, rng, vocab, longest):
    """Tokens of a random answer without its stop token, as a sampler would go on."""
    state, ids = 0, []
    while True:
        listed = tables.tokens[state][tables.tokens[state] >= 0]
        free = hasattr(tables, "free") and tables.free[state]
        token = int(rng.integers(3, vocab)) if free else int(rng.choice(listed))
        if token in STOPS:
            return ids
        ids.append(token)
        assert len(ids) < longest
        hit = np.flatnonzero(tables.tokens[state] == token)
        state = int(tables.targets[state][hit[0]] if hit.size else tables.otherwise[state])


SPACES = {
    "tiny": lakes.lake_space((3, 4, 5), {3: (0.0, 5 / 9), 4: (0.0, 0.6), 5: (0.1, 0.6)}),
    "all sizes": lakes.lake_space(range(3, 11), {9: (0.3, 0.3), 10: (0.3333, 0.3336)}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SPACES)
def test_every_answer_is_a_configuration_that_needs_no_repair(kind, name):
    space = SPACES[name]
    tables = grammar.build(space, encode(kind), STOPS)
    assert tables.tokens.dtype == tables.targets.dtype == np.int32
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(100):
        ids = walk(tables, rng, 700, tables.longest)
        text = tokenizer(kind).decode(ids)
        reading = parse(text, space)
        config, repairs = project(reading, space)
        assert repairs == ()
        space.check(config)
        assert text == render_config(config, space)
        # As the tokenizer would have it, so nothing that the model has never seen.
        assert ids == encode(kind)(text)
        assert round(math.fsum(config.column("data_ratio")), 9) == 1.0
        seen.add(config)
    assert len(seen) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_every_configuration_can_be_said(kind):
    tables = grammar.build(SPACES["tiny"], encode(kind), STOPS)
    for seed in range(100):
        config = SPACES["tiny"].random(seed)
        state = 0
        for token in [*encode(kind)(render_config(config, SPACES["tiny"])), STOPS[0]]:
            (hit,) = np.flatnonzero(tables.tokens[state] == token)
            state = int(tables.targets[state][hit])


def paths(tables):
    """Number of answers that the automaton allows, each up to its stop token."""

    @functools.cache
    def count(state):
        row = tables.tokens[state]
        if set(row[row >= 0]) == set(STOPS):
            return 1
        return sum(count(int(t)) for k, t in zip(row, tables.targets[state], strict=True) if k >= 0)

    return count(0)


def test_exactly_the_configurations_of_a_space_are_allowed():
    rows = ("add", "carry")
    space = ConfigurationSpace(
        "topic",
        rows,
        (
            Parameter("fraction", decimals=1),
            Parameter("digits", ((1, 3), (11, 12)), decimals=0),
            Parameter("noise", ((-0.1, 0.1),), decimals=1),
            Parameter("easy", decimals=1),
        ),
        "fraction",
    )
    fractions, digits, noise, free = 11, 3 * 2, 3 * 3, 11 * 11
    exact = grammar.build(space, encode("single digits"), STOPS)
    assert paths(exact) == fractions * digits * noise * free
    scaled = grammar.build(space, encode("single digits"), STOPS, exact_fractions=False)
    assert paths(scaled) == 11**2 * digits * noise * free
    assert len(scaled.tokens) < len(exact.tokens) / 5
    rng = np.random.default_rng(1)
    for tables, changes in ((exact, False), (scaled, True)):
        told = []
        for _ in range(50):
            text = tokenizer("single digits").decode(walk(tables, rng, 700, tables.longest))
            config, repairs = project(parse(text, space), space)
            space.check(config)
            assert changes or text == render_config(config, space)
            told += repairs
        assert bool(told) == changes  # only fractions that had to be rescaled
        assert all("rescaled" in line or "all 0" in line for line in told)


@pytest.mark.parametrize("trigger", ["</think>", "\nFinal: aab aaab\n"])
def test_reasoning_is_free_up_to_its_budget_and_the_trigger(trigger):
    kind, space, budget = "single digits", SPACES["tiny"], 30
    ids = encode(kind)(trigger)
    found = grammar.build(space, encode(kind), STOPS, opening="\n\n")
    thought = ThinkingBudget(budget, tuple(ids), len(ids))
    tables = TokenAutomaton.thinking(thought, TokenAutomaton.create(found.tokens, found.targets))
    longest = budget + len(ids) + found.longest
    rng = np.random.default_rng(2)

    def follow(tokens):
        state = 0
        for token in tokens:
            hit = np.flatnonzero(tables.tokens[state] == token)
            assert hit.size or tables.free[state]
            state = int(tables.targets[state][hit[0]] if hit.size else tables.otherwise[state])
        return state

    config = space.random(3)
    answer = [*encode(kind)("\n\n" + render_config(config, space)), STOPS[1]]
    # Said early, after a false start, at the last moment, and by force after the budget.
    starts = [] if len(ids) == 1 else [ids[:-2], [9, ids[0], ids[0]]]
    for thought in ([], [5, 6, 7], *starts, [5] * (budget - len(ids))):
        follow([*thought, *ids, *answer])
    follow([*[5] * budget, *ids, *answer])
    assert not tables.free[follow([5] * budget)]
    for _ in range(50):
        said = walk(tables, rng, 700, longest)
        text = tokenizer(kind).decode(said, skip_special_tokens=False)
        _, found, rest = text.partition(trigger)
        assert found
        assert project(parse(rest, space), space)[1] == ()


def test_bad_arguments_are_named():
    space = SPACES["tiny"]
    with pytest.raises(ValueError, match="joins it with the number before"):
        grammar.build(space, lambda text: [abs(hash(text)) % 10_000], STOPS)
    columns = Parameter("fraction"), Parameter("x", ((0, 10**6),), decimals=0)
    wide = ConfigurationSpace("row", ("a",), columns, "fraction")
    with pytest.raises(ValueError, match="1000001 values"):
        grammar.build(wide, encode("tiny"), STOPS)
