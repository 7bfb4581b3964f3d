"""Every map of `maps.yaml` is the same lake; a new maker is a new line there."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from mapf_jax import movingai, solve, verify
from mapf_jax.draw.render import ascii_instance
from mapf_jax.types import MAX_LAKE_SIZE

CORPUS = yaml.safe_load(Path(__file__).with_name("maps.yaml").read_text("utf-8"))
AGENTS = "0\tone.map\t3\t2\t0\t0\t0\t1\t1\n"
SCENARIOS = {
    "tabs": f"version 1\n{AGENTS}",
    "decimals": f"version 1.0\n{AGENTS}",
    "blanks": "version 1\n0 one.map 3 2 0 0 0 1 1\n",
    "blank lines": f"\nversion 1\n\n{AGENTS}\n",
    "byte order mark": f"\ufeffVersion 1\r\n{AGENTS}",
}


def read(folder, map_text, scenario):
    (folder / "one.map").write_text(map_text, "utf-8", newline="")
    (folder / "one.scen").write_text(scenario, "utf-8", newline="")
    return movingai.read_movingai(folder / "one.scen")


@pytest.mark.parametrize("map_text", CORPUS.values(), ids=CORPUS.keys())
def test_reads_the_map(map_text, tmp_path):
    lake = read(tmp_path, map_text, SCENARIOS["tabs"])
    assert ascii_instance(lake) == "S F H\nG H F\nH H H"


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_reads_the_scenario(scenario, tmp_path):
    lake = read(tmp_path, CORPUS["game"], scenario)
    assert (lake.starts.tolist(), lake.goals.tolist()) == ([[0, 0]], [[1, 0]])


@pytest.mark.slow
def test_wide_maps_are_read_and_solved(tmp_path):
    width = 257  # As many public maps have.
    text = f"type octile\nheight 2\nwidth {width}\nmap\n" + f"{'.' * width}\n" * 2
    agents = f"0\tone.map\t{width}\t2\t0\t0\t{width - 1}\t1\t1\n"
    batch = read(tmp_path, text, f"version 1\n{agents}")[None]
    solution = solve(batch)
    assert solution.cost.tolist() == [width]
    assert np.asarray(verify(batch, solution).valid).all()
    wider = text.replace(f"width {width}", f"width {MAX_LAKE_SIZE + 1}")
    with pytest.raises(ValueError, match=r"width='2049': allowed are 1 to 2048"):
        read(tmp_path, wider, f"version 1\n{agents}")
