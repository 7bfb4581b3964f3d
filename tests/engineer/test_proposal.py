"""Whatever text comes, reading ends soon and gives a valid configuration or a reason."""

import json
import math
import time

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lake_records import bounded

from engineer import proposal
from engineer.proposal import Proposal, Unreadable, parse, project, render_config
from engineer.space import Configuration, ConfigurationSpace, Parameter
from experiments.families.lakes.texts import lake_space

SPACE = lake_space((3, 4))
PARAMETERS = SPACE.names
WANTED = {
    "3": {"data_ratio": 0.4, "hole_ratio": 0.1, "wait_ratio": 0.25},
    "4": {"data_ratio": 0.6, "hole_ratio": 0.2, "wait_ratio": 0.5},
}
ASKED = (
    "3: {data_ratio: 0.40, hole_ratio: 0.10, wait_ratio: 0.25}\n"
    "4: {data_ratio: 0.60, hole_ratio: 0.20, wait_ratio: 0.50}"
)
OTHER = ASKED.replace("0.40", "0.90").replace("0.60", "0.10")
BY_INTEGER = {int(size): row for size, row in WANTED.items()}
BY_NAME = {name: {int(size): WANTED[size][name] for size in WANTED} for name in PARAMETERS}
AS_LIST = [{"size": size, **row} for size, row in BY_INTEGER.items()]
PREVIOUS = Configuration(("3", "4"), PARAMETERS, ((0.25, 0.3, 0.1), (0.75, 0.4, 0.2)))

READABLE = {
    "as asked": ASKED,
    "fenced": f"Some reasons.\n```yaml\n{ASKED}\n```\nThat is all.",
    "indented fence": "Final:\n  ```yaml\n" + ASKED + "\n  ```",
    "fence left open": f"```\n{ASKED}",
    "between prose": f"I lower the holes: 4 was too hard.\n{ASKED}\nThis should work: let us see.",
    "after a heading": f"Configuration:\n\n{ASKED}",
    "on one line": "```yaml " + ASKED.replace("\n", " ") + " ```",
    "bullets": "- " + ASKED.replace("\n", "\n- "),
    "blank lines": ASKED.replace("\n", "\n\n"),
    "sizes as 3x3": ASKED.replace("3:", "3x3:").replace("4:", "4x4:"),
    "sizes as words": ASKED.replace("3:", "size 3:").replace("4:", "Size_4:"),
    "block style": yaml.safe_dump(BY_INTEGER, default_flow_style=False),
    "block style in prose": "Well.\n\n" + yaml.safe_dump(BY_INTEGER) + "\nDone!",
    "under a key": yaml.safe_dump({"sizes": BY_INTEGER}),
    "under two keys": yaml.safe_dump({"environment": {"sizes": BY_INTEGER}}),
    "by parameter": yaml.safe_dump(BY_NAME),
    "list": yaml.safe_dump(AS_LIST),
    "list of rows": yaml.safe_dump([{size: row} for size, row in BY_INTEGER.items()]),
    "list in flow": yaml.safe_dump(AS_LIST, default_flow_style=True),
    "json": json.dumps(WANTED),
    "json with tabs": json.dumps({"sizes": WANTED}, indent="\t"),
    "json in a sentence": f"I choose {json.dumps(WANTED)} because of [1] and {{2}}.",
    "json over lines": f"I choose: {json.dumps(WANTED, indent=2)}\nas said.",
    "json list": json.dumps(AS_LIST, indent=1),
    "json by parameter": json.dumps(BY_NAME),
    "numbers as texts": json.dumps(
        {s: {k: str(v) for k, v in row.items()} for s, row in WANTED.items()}
    ),
    "after thinking": f"<think>maybe\n{OTHER}\n</think>\n{ASKED}",
    "thinking begun by the prompt": f"maybe\n{OTHER}\n</think>\n\n{ASKED}",
    "the last of two fences": f"```yaml\n{OTHER}\n```\nNo, better:\n```yaml\n{ASKED}\n```",
    "the last of two, close by": f"{OTHER}\n{ASKED}",
    "prose with braces after it": f"{ASKED}\n\nThe form {{data_ratio: number}} is kept.",
    "broken fence after it": f"{ASKED}\n```yaml\n3: {{data_ratio: \n```",
    "after a megabyte": "lorem {ipsum: [3: " * 60_000 + "\n" + ASKED,
    "heading on its line": "### Answer: " + ASKED.replace("\n", " "),
    "without commas": ASKED.replace(",", ""),
    "comments": ASKED.replace("}", "}  # was 3: 0.2, too much").replace("4:", "# now size 4\n4:"),
    "a remark as a value": '{"3": {"why": "4: {data_ratio: 1}", ' + json.dumps(WANTED)[7:],
    "quoted template before it": "N: {data_ratio: number, hole_ratio: number}\n" + ASKED,
}


@pytest.mark.parametrize("text", READABLE.values(), ids=READABLE.keys())
def test_reads_every_shape(text):
    reading = parse(text, SPACE)
    assert isinstance(reading, Proposal)
    assert reading.values == WANTED
    assert reading.notes == ()


BOMB = "a: &a [x, x]\n" + "\n".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
NOT_READABLE = {
    "empty": "",
    "blank": " \n\t ",
    "prose": "The hole_ratio of size 3 is to be lower, the wait_ratio higher.",
    "the template itself": "N: {data_ratio: number, hole_ratio: number, wait_ratio: number}",
    "inside the reasoning": f"<think>\n{ASKED}",
    "before more reasoning only": f"<think>{ASKED}</think>",
    "other sizes": ASKED.replace("3:", "7:").replace("4:", "8:"),
    "not finite": "3: {data_ratio: .nan, hole_ratio: .inf, wait_ratio: 1e999}",
    "alias": "x: &r {data_ratio: 0.4}\n3: *r\n4: *r",
    "bomb": f"```yaml\n{BOMB}\nhole_ratio: {{3: *j}}\n```",
    "tag": '3: {data_ratio: !!python/object/apply:os.system ["true"]}',
    "deep": "[" * 30_000 + "hole_ratio" + "]" * 30_000,
    "deep mappings": "{hole_ratio: " * 2_000 + "1" + "}" * 2_000,
    "surrogates": "3: {hole_ratio: \ud800}",
    "zero bytes": "3: {hole_ratio: \x00}",
    "digits of another script": "3: {hole_ratio: \u0660.\u0665}",
    "sexagesimal": "3: {hole_ratio: '1:30'}",
}


@pytest.mark.parametrize("text", NOT_READABLE.values(), ids=NOT_READABLE.keys())
def test_says_why_nothing_was_read(text):
    reading = parse(text, SPACE)
    assert isinstance(reading, Unreadable)
    assert reading.reason.strip()


@pytest.mark.parametrize(
    "piece",
    [
        "{", "[", "}", "3: {", "3: {data_ratio: ", "{hole_ratio}", "hole_ratio:\n", "- ", "? ",
        "a:" + " " * 900 + "x hole_ratio\n", "- " + " " * 900 + "x hole_ratio\n", "9" * 500,
        "&a hole_ratio: *a ", "3 ", "'hole_ratio", "<think>", "</think>", "\u2028", "3: {}\n",
        "{3: {data_ratio: 9e99999999}} ", "3: {data_ratio: 1}\n", "```\nhole_ratio\n",
        "# " * 9_000 + "{", "size " * 9_000 + ":", "hole_ratio: " + "x " * 9_000, "'\"",
    ],
)  # fmt: skip
def test_a_megabyte_of_anything_is_read_in_a_moment(piece):
    text = piece * (1_000_000 // len(piece))
    start = time.perf_counter()
    assert isinstance(parse(text, SPACE), (Proposal, Unreadable))
    assert time.perf_counter() - start < 2.0


FRAGMENTS = st.sampled_from(
    [
        "3", "4", "size", ":", " ", "\n", "\n  ", "{", "}", "[", "]", ",", "-", "```", "```yaml\n",
        "data_ratio", "hole_ratio: ", "wait_ratio: 0.5", "0.4", "-1", "1e308", "nan", ".inf", '"',
        "&a", "*a", "!!int", "<think>", "</think>", "#", "---\n", "\t", "\u2028", "\x85", "\u0663",
        "3: {data_ratio: 0.40, hole_ratio: 0.10, wait_ratio: 0.25}\n",
    ]
)  # fmt: skip


unit = st.floats(0.0, 1.0)
sizes = st.sets(st.integers(3, 10), min_size=1).map(lambda s: tuple(sorted(s)))
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def spaces(draw):
    chosen = draw(sizes)
    pairs = st.tuples(unit, unit).map(lambda pair: (min(pair), max(pair)))
    bounds = st.lists(pairs, min_size=len(chosen), max_size=len(chosen)).map(tuple)
    space = lake_space(chosen, dict(zip(chosen, draw(bounds), strict=True)))
    return bounded(space, "wait_ratio", *draw(bounds))


@st.composite
def configs(draw, rows=None):
    rows = rows or tuple(str(size) for size in draw(sizes))
    n = len(rows)
    weights = draw(st.lists(st.floats(0.0, 1.0), min_size=n, max_size=n))
    total = sum(weights)
    fractions = [w / total for w in weights] if total > 1e-3 else [1.0 / n] * n
    column = st.lists(unit, min_size=n, max_size=n).map(tuple)
    values = tuple(zip(fractions, draw(column), draw(column), strict=True))
    return Configuration(rows, PARAMETERS, values)


rows = st.dictionaries(st.sampled_from(PARAMETERS), finite)
proposals = st.dictionaries(st.integers(0, 12).map(str), rows).map(Proposal)


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(st.text(), st.lists(FRAGMENTS, max_size=60).map("".join)),
    spaces(),
    st.data(),
)
def test_any_text_gives_a_configuration_or_a_reason(text, space, data):
    reading = parse(text, space)
    if isinstance(reading, Unreadable):
        assert reading.reason
        return
    assert all(math.isfinite(v) for row in reading.values.values() for v in row.values())
    assert any(reading.values.get(row) for row in space.rows)
    previous = data.draw(configs(space.rows))
    space.check(project(reading, previous, space)[0])


@settings(deadline=None)
@given(proposals, spaces(), st.data())
def test_projection_lands_in_the_space_and_rests_there(raw, space, data):
    previous = data.draw(configs(space.rows))
    config, repairs = project(raw, previous, space)
    space.check(config)
    assert Configuration.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    again, none = project(Proposal(config.to_dict()), previous, space)
    assert again == config
    assert none == ()
    if not repairs:  # unrepaired means as proposed
        assert config.to_dict() == raw.values


def test_projection_tells_every_change():
    space = lake_space((3, 4, 5), {3: (0.0, 0.3), 4: (0.0, 0.4), 5: (0.0, 0.5)})
    previous = Configuration(
        space.rows, PARAMETERS, ((0.2, 0.1, 0.4), (0.3, 0.2, 0.5), (0.5, 0.3, 0.6))
    )
    raw = Proposal(
        {
            "3": {"data_ratio": 1.0, "hole_ratio": 0.9, "wait_ratio": -0.5},
            "4": {"data_ratio": 0.5, "wait_ratio": 0.25},
            "11": {"data_ratio": 1.0},
        },
        notes=("4 hole_ratio: 'low' is not a finite number",),
    )
    config, repairs = project(raw, previous, space)
    assert config.column("data_ratio") == (
        0.5,
        0.25,
        0.25,
    )  # 1.0, 0.5 and the previous 0.5 over their sum
    assert config.column("hole_ratio") == (0.3, 0.2, 0.3)
    assert config.column("wait_ratio") == (0.0, 0.25, 0.6)
    assert repairs == (
        "4 hole_ratio: 'low' is not a finite number",
        "unknown sizes dropped: 11",
        "size 3 hole_ratio: 0.90 clipped to 0.30",
        "size 3 wait_ratio: -0.50 clipped to 0.00",
        "size 4 hole_ratio: missing, 0.20 kept from the previous configuration",
        "size 5: missing, kept from the previous configuration",
        "data_ratio: sum 2.00 rescaled to 1",
    )


def test_fractions_that_are_all_zero_or_huge():
    space = SPACE
    rest = {"hole_ratio": 0.1, "wait_ratio": 0.1}
    for first, second, expected in (
        (0.0, -3.0, (0.5, 0.5)),
        (1.7e308, 1.7e308, (0.5, 0.5)),
        (5e-324, 5e-324, (0.5, 0.5)),
        (1.0000001, 0.0, (1.0, 0.0)),
        (0.75, 0.25, (0.75, 0.25)),
    ):
        raw = Proposal({"3": {"data_ratio": first, **rest}, "4": {"data_ratio": second, **rest}})
        config, repairs = project(raw, PREVIOUS, space)
        assert config.column("data_ratio") == expected
        assert bool(repairs) == ((first, second) != (0.75, 0.25))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=3), st.sampled_from([-1, 0, 1, 2]))
def test_fractions_that_nearly_sum_to_one(weights, off):
    # Six decimals whose sum is off by millionths, at the edge of what a configuration allows.
    cents = [round(10**6 * w / sum(weights)) for w in weights]
    cents[0] += 10**6 + off - sum(cents)
    assume(cents[0] >= 0)  # A negative one is clipped, which changes the sum.
    space = lake_space((3, 4, 5))
    previous = space.uniform()
    values = {row: {"data_ratio": c / 10**6} for row, c in zip(space.rows, cents, strict=True)}
    config, repairs = project(Proposal(values), previous, space)
    assert math.isclose(math.fsum(config.column("data_ratio")), 1.0, abs_tol=1e-8)
    assert any("rescaled" in repair for repair in repairs) == (off != 0)


def test_a_remark_after_the_configuration_does_not_replace_it():
    space = lake_space((3, 4, 5))
    text = render_config(space.uniform(), space)
    remark = "\n\nHere I raised size 5: {wait_ratio: 0.9}."
    assert parse(text + remark, space) == parse(text, space)
    partial = parse("I only say 5: {wait_ratio: 0.9}", space)
    assert partial.values == {"5": {"wait_ratio": 0.9}}


def test_projection_refuses_a_previous_configuration_of_other_sizes():
    with pytest.raises(ValueError, match=r"previous: rows \('3', '4'\) .* \('3', '5'\)"):
        project(Proposal({}), PREVIOUS, lake_space((3, 5)))


@settings(deadline=None)
@given(configs())
def test_rendering_is_read_back_exactly(config):
    space = lake_space([int(row) for row in config.rows])
    text = render_config(config, space)
    assert len(text.splitlines()) == len(config.rows)
    assert project(parse(text, space), config, space) == (config, ())
    plain = yaml.safe_load(text)  # and any YAML reader sees numbers
    assert Configuration.from_dict(plain) == config


def test_rows_may_be_large_numbers():
    rows = ("60", "10800", "2147483647")
    space = ConfigurationSpace("seconds", rows, (Parameter("part"),), "part")
    config = space.random(0)
    assert project(parse(render_config(config, space), space), space.uniform(), space) == (
        config,
        (),
    )


def test_rendering_is_the_asked_form():
    assert render_config(Configuration.from_dict(WANTED), SPACE) == ASKED


def test_prose_before_the_configuration_is_the_explanation():
    text = f"<think>hidden</think>Size 3 works.\n\nSo I move on.\n```yaml\n{ASKED}\n```\nBye."
    assert parse(text, SPACE).explanation == "Size 3 works. So I move on."
    long = parse("word " * 1_000 + "\n" + ASKED, SPACE).explanation
    assert len(long) <= proposal.MAX_EXPLANATION
    assert set(long.split()) == {"word"}


def test_after_a_trigger_nothing_before_it_is_read():
    text = f"Maybe 3: {{data_ratio: plan{ASKED}"  # reasoning that breaks off within a row
    assert parse(text, SPACE).values != WANTED
    reading = parse(text, SPACE, trigger=" plan")
    assert reading.values == WANTED
    assert reading.explanation == "Maybe 3: {data_ratio:"
    assert parse(ASKED, SPACE, trigger=" plan") == parse(ASKED, SPACE)  # it has none
    twice = parse(f"{OTHER} plan hm plan{ASKED}", SPACE, trigger=" plan")
    assert twice.values == WANTED


def test_a_remark_beside_a_number_costs_that_number_alone():
    text = ASKED.replace("0.10", "0.10 (less)")
    reading = parse(text, SPACE)
    assert reading.values == {**WANTED, "3": {"data_ratio": 0.4, "wait_ratio": 0.25}}
    assert reading.notes == ("3 hole_ratio: '0.10 (less)' is not a finite number",)


def test_numbers_that_are_none_are_noted():
    reading = parse("3: {data_ratio: high, hole_ratio: [1], wait_ratio: 0.5}", SPACE)
    assert reading.values == {"3": {"wait_ratio": 0.5}}
    assert reading.notes == (
        "3 data_ratio: 'high' is not a finite number",
        "3 hole_ratio: '[1]' is not a finite number",
    )
