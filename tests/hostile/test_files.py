"""The problem sets of a run, damaged as storage and people damage them, are refused."""

import random

import pytest
from hostile_texts import hostile_text

from experiments.run import store
from experiments.text.errors import UserError


def damaged(rng, raw):
    """The bytes cut, doubled, swapped or replaced."""
    lines = raw.splitlines(keepends=True)
    at, line = rng.randrange(len(raw)), rng.randrange(len(lines))
    return rng.choice(
        (
            lambda: raw[:at],
            lambda: b"",
            lambda: raw[:at] + bytes(len(raw) - at),  # Blocks that a crash left unwritten.
            lambda: raw[:at] + rng.randbytes(9) + raw[at + 9 :],
            lambda: hostile_text(rng, [raw.decode()]).encode("utf-8", "surrogatepass"),
            lambda: b"".join(lines[:line] + lines[line + 1 :]),
            lambda: b"".join(lines[: line + 1] + lines[line:]),
        )
    )()


def test_a_damaged_problem_set_is_refused(tmp_path):
    path = tmp_path / "instances.jsonl"
    problems = [{"id": f"p-{i}", "text": "S F G", "holes": [i, 2 * i]} for i in range(9)]
    about = {"made": len(problems), "sha256": store.set_digest(problems)}
    store.write_file(tmp_path / "generated.json", about)
    store.write_file(path, problems)
    whole = path.read_bytes()
    for seed in range(500):
        path.write_bytes(damaged(random.Random(seed), whole))
        if path.read_bytes() != whole:
            with pytest.raises(UserError, match=r"instances\.jsonl: damaged: "):
                store.read_file(path)
