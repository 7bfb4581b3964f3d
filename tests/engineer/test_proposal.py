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

BOMB = "a: &a [x, x]\n" + "\n".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}, *{a}]"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)
NOT_READABLE = {
    "bomb": f"```yaml\n{BOMB}\nhole_ratio: {{3: *j}}\n```",
    "deep": "[" * 30_000 + "hole_ratio" + "]" * 30_000,
    "deep mappings": "{hole_ratio: " * 2_000 + "1" + "}" * 2_000,
    "surrogates": "3: {hole_ratio: \ud800}",
    "zero bytes": "3: {hole_ratio: \x00}",
}


@pytest.mark.parametrize("text", NOT_READABLE.values(), ids=NOT_READABLE.keys())
def test_says_why_nothing_was_read(text):
    reading = parse(text, SPACE)
    assert isinstance(reading, Unreadable)
    assert reading.reason.strip()


def test_commas_separate_thousands_where_a_parameter_reaches_them():
    parameters = Parameter("fraction"), Parameter("largest", (10, 100_000), decimals=0)
    space = ConfigurationSpace("row", ("01", "02"), (*parameters, Parameter("rate")), "fraction")
    for one, two in (("1,000", "50,000"), ('"1,000"', "'50,000'"), ("1000", "50,000.0")):
        text = f"01: {{fraction: 0,5, largest: {one}, rate: 0,125}}\n02: {{fraction: 0.5, "
        values = parse(text + f"largest: {two}, rate: 0.5}}", space).values
        assert values["01"] == {"fraction": 0.5, "largest": 1000, "rate": 0.125}
        assert values["02"]["largest"] == 50_000
    config = space.uniform()
    assert parse(render_config(config, space), space).values == config.to_dict()


def test_rows_of_one_parameter_need_no_name():
    space = ConfigurationSpace("size", ("3", "4"), (Parameter("part"),), "part")
    for text in ("3: 0.2\n4: 0.8", '{"3": 0.2, "4": 0.8}', "size 3: part 0.2\nsize 4: part 0.8"):
        assert parse(text, space).values == {"3": {"part": 0.2}, "4": {"part": 0.8}}
    named = "Rates were 3: 0.9 and 4: 0.1.\n3: {part: 0.2}\n4: {part: 0.8}"
    assert parse(named, space).values == {"3": {"part": 0.2}, "4": {"part": 0.8}}


def test_reads_the_end_of_a_megabyte():
    assert parse("lorem {ipsum: [3: " * 60_000 + "\n" + ASKED, SPACE).values == WANTED


@pytest.mark.parametrize(
    "piece",
    [
        "{", "[", "}", "3: {", "3: {data_ratio: ", "{hole_ratio}", "hole_ratio:\n", "- ", "? ",
        "a:" + " " * 900 + "x hole_ratio\n", "- " + " " * 900 + "x hole_ratio\n", "9" * 500,
        "&a hole_ratio: *a ", "3 ", "'hole_ratio", "<think>", "</think>", "\u2028", "3: {}\n",
        "{3: {data_ratio: 9e99999999}} ", "3: {data_ratio: 1}\n", "```\nhole_ratio\n",
        "# " * 9_000 + "{", "|" * 70 + "\n", "| 3 | hole_ratio |\n", "3,hole_ratio\n", "## 3 (x)\n",
        "**3**=", "`3` =>", "[a.3]\n", "size 3 (" + "x" * 38 + ")", "1/3 ", "0,25 ", "3 \xd7 ",
        "size " * 9_000 + ":", "hole_ratio: " + "x " * 9_000, "'\"",
    ],
)  # fmt: skip
def test_a_megabyte_of_anything_is_read_in_a_moment(piece):
    text = piece * (1_000_000 // len(piece))
    start = time.thread_time()
    assert isinstance(parse(text, SPACE), (Proposal, Unreadable))
    assert time.thread_time() - start < 2.0


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


rows = st.fixed_dictionaries(dict.fromkeys(PARAMETERS, finite))
others = st.dictionaries(st.integers(0, 12).map(str), st.dictionaries(st.just("part"), finite))


@settings(max_examples=400)
@given(st.one_of(st.text(), st.lists(FRAGMENTS, max_size=60).map("".join)), spaces())
def test_any_text_gives_a_configuration_or_a_reason(text, space):
    reading = parse(text, space)
    if isinstance(reading, Unreadable):
        assert reading.reason
        return
    assert all(math.isfinite(v) for row in reading.values.values() for v in row.values())
    assert set(space.cells) <= {(row, name) for row, of in reading.values.items() for name in of}
    space.check(project(reading, space)[0])


@given(others, spaces(), st.data())
def test_projection_lands_in_the_space_and_rests_there(unknown, space, data):
    raw = Proposal(unknown | data.draw(st.fixed_dictionaries(dict.fromkeys(space.rows, rows))))
    config, repairs = project(raw, space)
    space.check(config)
    assert Configuration.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    again, none = project(Proposal(config.to_dict()), space)
    assert again == config
    assert none == ()
    if not repairs:  # unrepaired means as proposed
        assert config.to_dict() == raw.values


def test_projection_tells_every_change():
    space = lake_space((3, 4, 5), {3: (0.0, 0.3), 4: (0.0, 0.4), 5: (0.0, 0.5)})
    raw = Proposal(
        {
            "3": {"data_ratio": 1.0, "hole_ratio": 0.9, "wait_ratio": -0.5},
            "4": {"data_ratio": 0.5, "hole_ratio": 0.2, "wait_ratio": 0.25},
            "5": {"data_ratio": 0.5, "hole_ratio": 0.3, "wait_ratio": 0.6},
            "11": {"data_ratio": 1.0},
        },
        notes=("4 hole_ratio: 'low' is not a finite number",),
    )
    config, repairs = project(raw, space)
    assert config.column("data_ratio") == (0.5, 0.25, 0.25)
    assert config.column("hole_ratio") == (0.3, 0.2, 0.3)
    assert config.column("wait_ratio") == (0.0, 0.25, 0.6)
    assert repairs == (
        "4 hole_ratio: 'low' is not a finite number",
        "unknown sizes dropped: 11",
        "size 3 hole_ratio: 0.90 clipped to 0.30",
        "size 3 wait_ratio: -0.50 clipped to 0.00",
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
        config, repairs = project(raw, space)
        assert config.column("data_ratio") == expected
        assert bool(repairs) == ((first, second) != (0.75, 0.25))


@settings(max_examples=300)
@given(st.lists(st.integers(1, 10**6), min_size=3, max_size=3), st.sampled_from([-1, 0, 1, 2]))
def test_fractions_that_nearly_sum_to_one(weights, off):
    # Six decimals whose sum is off by millionths, at the edge of what a configuration allows.
    cents = [round(10**6 * w / sum(weights)) for w in weights]
    cents[0] += 10**6 + off - sum(cents)
    assume(cents[0] >= 0)  # A negative one is clipped, which changes the sum.
    space = lake_space((3, 4, 5))
    values = space.uniform().to_dict()
    for row, part in zip(space.rows, cents, strict=True):
        values[row]["data_ratio"] = part / 10**6
    config, repairs = project(Proposal(values), space)
    assert math.isclose(math.fsum(config.column("data_ratio")), 1.0, abs_tol=1e-8)
    assert any("rescaled" in repair for repair in repairs) == (off != 0)


def test_a_remark_after_the_configuration_does_not_replace_it():
    space = lake_space((3, 4, 5))
    text = render_config(space.uniform(), space)
    remark = "\n\nHere I raised size 5: {wait_ratio: 0.9}."
    assert parse(text + remark, space) == parse(text, space)
    most = "\n\nRather:\n" + "\n".join(text.splitlines()[:2])
    assert parse(text + most, space) == Unreadable(
        "missing: size 5 data_ratio, size 5 hole_ratio, size 5 wait_ratio"
    )


@given(configs())
def test_rendering_is_read_back_exactly(config):
    space = lake_space([int(row) for row in config.rows])
    text = render_config(config, space)
    assert len(text.splitlines()) == len(config.rows)
    assert project(parse(text, space), space) == (config, ())
    plain = yaml.safe_load(text)  # and any YAML reader sees numbers
    assert Configuration.from_dict(plain) == config


def test_rows_may_be_large_numbers():
    rows = ("60", "10800", "2147483647")
    space = ConfigurationSpace("seconds", rows, (Parameter("part"),), "part")
    config = space.random(0)
    assert project(parse(render_config(config, space), space), space) == (config, ())


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
    assert isinstance(parse(text, SPACE), Unreadable)
    reading = parse(text, SPACE, trigger=" plan")
    assert reading.values == WANTED
    assert reading.explanation == "Maybe 3: {data_ratio:"
    assert parse(ASKED, SPACE, trigger=" plan") == parse(ASKED, SPACE)  # it has none
    twice = parse(f"{OTHER} plan hm plan{ASKED}", SPACE, trigger=" plan")
    assert twice.values == WANTED


def test_percentages_are_noted_and_numbers_barely_out_of_range_are_clipped():
    space = lake_space((3, 4), {3: (0.0, 0.3), 4: (0.0, 0.4)})
    reading = parse(ASKED.replace("0.10", "10").replace("0.20", "50"), space)
    assert reading.notes == ("hole_ratio: read as percentages",)
    config, repairs = project(reading, space)
    assert config.column("hole_ratio") == (0.1, 0.4)
    assert repairs == ("hole_ratio: read as percentages", "size 4 hole_ratio: 0.50 clipped to 0.40")
    reading = parse(ASKED.replace("0.10", "0.31").replace("0.20", "0.41"), space)
    assert project(reading, space)[0].column("hole_ratio") == (0.3, 0.4)


def test_whole_numbers_far_from_their_bounds_are_no_percentages():
    space = ConfigurationSpace(
        "kind", ("easy", "hard"), (Parameter("part"), Parameter("level", ((1, 6),), 0)), "part"
    )
    form = "easy: {{part: 0.5, level: {}}}\nhard: {{part: 0.5, level: {}}}"
    assert parse(form.format(6, 11), space).values["hard"]["level"] == 11
    assert parse(form.format(6.4, 6.5), space).values["hard"]["level"] == 6.5
    assert isinstance(parse(form.format(8, 11), space), Unreadable)
    assert parse(form.format(12, 400), space) == Unreadable(
        "level: no number is near its bounds, such as 12.00"
    )


STYLES = {
    "yaml": lambda rows: yaml.safe_dump({int(row): numbers for row, numbers in rows.items()}),
    "json": lambda rows: json.dumps(rows, indent=1),
    "list": lambda rows: json.dumps([{"size": int(row)} | rows[row] for row in rows]),
    "columns": lambda rows: yaml.safe_dump(
        {name: {int(row): rows[row][name] for row in rows} for name in PARAMETERS}
    ),
    "table": lambda rows: "\n".join(
        f"| {' | '.join(map(str, line))} |"
        for line in [["size", *PARAMETERS], "----", *([row, *rows[row].values()] for row in rows)]
    ),
    "headings": lambda rows: "\n\n".join(
        "\n".join([f"## Size {row}", *(f"* **{n}**: {v!r} (so)" for n, v in rows[row].items())])
        for row in rows
    ),
    "fragments": lambda rows: "".join(
        f"{row}x{row} = {{{', '.join(f'{n} = {v!r}' for n, v in rows[row].items())}}} // so\n"
        for row in rows
    ),
}


@settings(max_examples=60)
@given(configs(), st.sampled_from(list(STYLES)), st.sampled_from(list(STYLES)))
def test_every_style_is_read_back_exactly(config, style, draft):
    space = lake_space([int(row) for row in config.rows])
    text = STYLES[style](config.to_dict())
    assert parse(text, space).values == config.to_dict()
    before = STYLES[draft](space.random(0).to_dict())
    assert parse(f"First I thought\n{before}\nbut now\n\n{text}", space).values == config.to_dict()
