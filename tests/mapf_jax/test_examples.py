"""The example that trains agents, cut short."""

import re
import subprocess
import sys

import pytest
from whole_runs import ROOT, environment

EXAMPLE = ROOT / "docs" / "examples" / "ippo.py"


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_agents_learn_and_are_drawn(tmp_path):
    line = [sys.executable, str(EXAMPLE), f"--out={tmp_path}", "--updates=20"]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    before, after, others = map(int, re.findall(r"(\d+)%", done.stdout))
    assert before < 10
    assert after > 25
    assert others > 20
    assert (tmp_path / "curve.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "episode.gif").read_bytes()[:3] == b"GIF"
    assert len(EXAMPLE.read_text().splitlines()) <= 150
