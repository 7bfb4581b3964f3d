"""Whatever a text holds, it leads to a configuration or a reason, always the same, and soon."""

import math
import random
import string
import time

import pytest

from engineer.context import VARIANTS
from engineer.designers import keep
from engineer.proposal import Unreadable, parse, project, render_config
from experiments.families.demonstrations import demonstration, random_record
from experiments.families.lakes import texts as lakes

SPACE = lakes.lake_space(range(3, 11), {3: (0.0, 5 / 9), **dict.fromkeys(range(4, 11), (0.0, 0.6))})
RECORD = random_record(0, SPACE, lakes.TEXTS)
PIECES = (
    "3: {", "4:", "data_ratio", "hole_ratio: ", "wait_ratio", "size", "3x3", "{", "}", "[", "]",
    ",", ": ", "\n", "\n  ", "- ", "```yaml\n", "```\n", "<think>", "</think>", "&a ", "*a",
    "!!float ", "? ", "| ", "> ", "# ", "---\n", "...\n", '"', "'", "\\", "\t", "\x00", "\ud800",
    "\u2028", "\xa0", "\u0663", "\uff13", "nan", ".nan", ".inf", "-.inf", "1e999", "-1e999",
    "1e-999", "9" * 400, "0x1F", "1_000", "1:30", "0.1.2", "--3", "+.5", "5.", "true", "null",
    "~", "<<: ", "%YAML 1.1\n", "\r\n", "\U0001f600", "e\u0301", "\x85",
    "N: {data_ratio: number}",
)  # fmt: skip
UNICODE = "".join(map(chr, (*range(32, 400), *range(0x600, 0x700), 0x200B, 0xFEFF, 0x1F600)))


def noise(rng):
    alphabet = rng.choice(
        [string.printable, UNICODE, "{}[]:,-\n 0123456789.eE", "3: {data_ratio}\n"]
    )
    return "".join(rng.choices(alphabet, k=rng.randrange(400)))


def assembled(rng):
    return "".join(rng.choices(PIECES, k=rng.randrange(1, 120)))


def design(rng):
    if rng.random() < 0.3:
        return demonstration(rng.randrange(10**6), VARIANTS["V5"], SPACE, lakes.TEXTS)[1]
    return f"{noise(rng)}\n{render_config(SPACE.random(rng.randrange(10**6)), SPACE)}"


def mutated(rng):
    text = list(design(rng))
    for _ in range(rng.randrange(1, 30)):
        at = rng.randrange(len(text) + 1)
        how = rng.random()
        if how < 0.4 and text:
            del text[at : at + rng.randrange(1, 6)]
        elif how < 0.7:
            text.insert(at, rng.choice(PIECES))
        else:
            text.insert(at, rng.choice(string.printable))
    return "".join(text)


def truncated(rng):
    text = design(rng)
    start, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    return rng.choice([text[:end], text[start:], text[start:end]])


def nested(rng):
    opening, closing = rng.choice(
        [("[", "]"), ("{a: ", "}"), ("3: {", "}"), ("- ", ""), ("\n ", "")]
    )
    depth = rng.choice([3, 20, 300, 5000])
    return opening * depth + design(rng) + closing * rng.choice([0, depth])


def huge_numbers(rng):
    def number(_):
        digits, exponent = "9" * rng.randrange(1, 500), f"1e{rng.randrange(-9999, 9999)}"
        large = str(rng.uniform(-1e300, 1e300))
        return rng.choice([digits, exponent, large, "-0", ".nan", "NaN", "inf", "-5e-324"])

    text = design(rng)
    return "".join(number(c) if c.isdigit() and rng.random() < 0.2 else c for c in text)


def repeated(rng):
    return design(rng) * rng.randrange(2, 40)


def megabyte(rng):
    piece = rng.choice([design, assembled, noise])(rng) or "x"
    return piece * (1_000_000 // len(piece)) + rng.choice(["", design(rng)])


KINDS = (noise, assembled, design, mutated, truncated, nested, huge_numbers, repeated)


def text_of(seed):
    rng = random.Random(seed)
    return (megabyte if seed % 200 == 0 else rng.choice(KINDS))(rng)


def outcome(text):
    reading = parse(text, SPACE)
    if isinstance(reading, Unreadable):
        assert reading.reason
        return keep(RECORD, SPACE, "fuzz", reading.reason).config, reading
    return project(reading, SPACE)[0], reading


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_no_text_does_harm(count):
    seconds, read = [], 0
    for seed in range(count):
        text = text_of(seed)
        start = time.thread_time()
        config, reading = outcome(text)
        seconds.append(time.thread_time() - start)
        SPACE.check(config)
        assert math.isclose(math.fsum(config.column("data_ratio")), 1.0, abs_tol=1e-9)
        assert outcome(text) == (config, reading)
        read += not isinstance(reading, Unreadable)
    seconds.sort()
    print(
        f"{count} texts, {read} readable; seconds at the median {seconds[count // 2]:.5f}, "
        f"at 99% {seconds[count * 99 // 100]:.4f}, at most {seconds[-1]:.3f}"
    )
    assert 0.2 < read / count < 0.9
    assert seconds[count // 2] < 0.05
