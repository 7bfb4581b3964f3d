"""The pages: links lead somewhere, code runs, commands and options exist."""

import importlib.util
import json
import re
import runpy
import shlex
import sys

import pytest
import yaml
from whole_runs import ROOT, python

from experiments import new_family
from experiments.settings import TINY_MODEL, check_field, command_line, from_config
from mapf_jax import __version__
from mapf_jax.cli import main as mapf_jax_main

PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "contexts"]
)
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
# Pages of measurements keep the command of the revision that made them.
CURRENT = [name for name in NAMES if not (ROOT / name).with_suffix(".json").exists()]
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def blocks(path, language):
    """The fenced blocks of a page in one language."""
    return [code for kind, code in _FENCE.findall(path.read_text()) if kind == language]


def with_modules(text):
    """A text whose console scripts, where they begin a line or code, are the modules they start."""

    def module(script):
        folder, name = script[1], script[2].replace("-", "_")
        apart = {"jax": "mapf_jax", "plan": "learner.plan", "train": "experiments.main"}
        return f"{folder}python -m {apart.get(name, f'experiments.{name}')}"

    begin = r"(?:^|(?<=`))"
    return re.sub(begin + r"((?:\.venv/bin/)?)mapf-([a-z-]+)", module, text, flags=re.MULTILINE)


def anchors(path):
    """What the headings of a page are called in links, as GitHub makes it."""
    text = _FENCE.sub("", path.read_text())
    found: dict[str, int] = {}
    for title in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        title = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).lower()
        name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        found[name] = found.get(name, 0) + 1
    return {f"{name}-{i}" if i else name for name, count in found.items() for i in range(count)}


def test_console_scripts_are_read_as_their_modules():
    read = with_modules(".venv/bin/mapf-new-family a\nmapf-train, `mapf-jax solve`, a/mapf-b")
    new, others = read.splitlines()
    assert new == ".venv/bin/python -m experiments.new_family a"
    assert others == "python -m experiments.main, `python -m mapf_jax solve`, a/mapf-b"


def test_the_first_page_is_short():
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) < 700
    assert len(text.splitlines()) <= 110
    claims = text.partition("## What it reaches")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\| [^|\n-]", claims, re.MULTILINE)) <= 8


def hello():
    """The programs of the first page: a block of Python for each, and lines of shell."""
    text = (ROOT / "README.md").read_text().partition("## What it reaches")[0]
    assert text.splitlines()[5] == "## Hello"  # After the title and two lines.
    found = [(kind, code) for kind, code in _FENCE.findall(text) if kind in ("sh", "python")]
    assert [kind for kind, _ in found] == ["sh", "python", "python", "sh"]
    assert all(len(list(filter(None, code.splitlines()))) <= 8 for _, code in found)
    assert "pip install -e" in found[0][1]
    return found[1][1], found[2][1], found[3][1]


def test_the_first_program_needs_only_the_base():
    hidden = ("numba", "flax", "optax", "orbax", "transformers", "matplotlib", "jinja2", "yaml")
    program = f"import sys\nsys.modules.update(dict.fromkeys({hidden}))\n{hello()[0]}"
    assert python("-c", f"{program}\nprint(timesteps.reward.shape)").stdout == "(4096, 2)\n"


@pytest.mark.slow
@pytest.mark.usefixtures("optimised")
def test_the_second_program_learns_its_task():
    rewards = list(map(float, python("-c", hello()[1]).stdout.split()))
    assert len(rewards) == 20
    assert max(rewards[-3:]) > 1.5 * rewards[0]


@pytest.mark.slow
def test_the_first_page_writes_a_family_that_is_usable(tmp_path):
    *commands, ring = with_modules(hello()[2]).splitlines()
    # Other tests run it in small: `whole_runs.SMALL`.
    assert ring.endswith("-m experiments.main --config=tiny --config.engineer.designer=current")
    for command in commands:
        done = python(*shlex.split(command)[1:], cwd=tmp_path)
    assert done.stdout.endswith("the family is usable\n")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = ROOT / name
    text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", page.read_text()))
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"<img [^>]*src=\"(.*?)\"", text)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{name}: {target}"
        assert path.is_relative_to(ROOT), f"{name}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{name}: {target}"


def test_every_page_can_be_reached():
    index = (ROOT / "docs" / "index.md").read_text()
    linked = {(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#]+)", index)}
    for path in (ROOT / "docs").glob("*.md"):
        assert path.name == "index.md" or path in linked, path.name
    assert "docs/index.md" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", CURRENT)
def test_commands_and_options_exist(name):
    text = with_modules((ROOT / name).read_text())
    for module in re.findall(r"-m ((?:mapf_jax|learner|engineer|experiments)[\w.]*)", text):
        assert importlib.util.find_spec(module), f"{name}: {module}"
    for file in re.findall(
        r"\b((?:mapf_jax|learner|engineer|experiments|tests)/[\w/]+\.\w+|docs/[a-z_/]+\.py)\b", text
    ):
        assert (ROOT / file).is_file(), f"{name}: {file}"
    for option in re.findall(r"--config\.([a-z_.0-9]+[a-z_0-9])=", text):
        check_field(option)


# Prints what `--help` of each command prints, under the command's name.
HELP = """
import contextlib, io, json, runpy, sys
from absl import app, flags

app.define_help_flags()
texts = {}
for command in json.loads(sys.argv[1]):
    sys.argv = [*command.split(), "--help"]
    known, text = set(flags.FLAGS), io.StringIO()
    streams = contextlib.redirect_stdout(text), contextlib.redirect_stderr(text)
    with streams[0], streams[1], contextlib.suppress(SystemExit):
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    # Two commands may have one flag, or one module that defines some.
    for module in flags.FLAGS.flags_by_module_dict():
        parent, _, name = module.rpartition(".")
        if module.startswith("experiments") and sys.modules.pop(module, None):
            delattr(sys.modules[parent], name)
    for name in set(flags.FLAGS) - known:
        delattr(flags.FLAGS, name)
    texts[command] = text.getvalue()
print(json.dumps(texts))
"""


def test_options_of_commands_exist():
    named: dict[str, dict[str, str]] = {}
    for name in CURRENT:
        text = with_modules((ROOT / name).read_text()).replace("\\\n", " ")
        text = re.sub(r"(?<!`)`[^`]+`(?!`)", lambda code: code[0].replace("\n", " "), text)
        for module, words in re.findall(
            r"-m ((?:mapf_jax|learner|engineer|experiments)[\w.]*)([^\n`;&|#]*)", text
        ):
            command = " ".join([module, *words.split()[: module == "mapf_jax"]])
            options = re.findall(r"(?<= )--[a-z][\w-]*", words)
            named.setdefault(command, {}).update(dict.fromkeys(options, name))
    assert len(named) >= 15
    done = python("-c", HELP, json.dumps(list(named)))
    for command, text in json.loads(done.stdout.splitlines()[-1]).items():
        known = set(re.findall(r"--(?:\[no\])?([a-z][\w-]*)", text))
        assert known, command
        for option, page in named[command].items():
            assert option.removeprefix("--") in known, f"{page}: {command} {option}"


def run_commands(path):
    """What follows `-m experiments.main` or `experiments.study` in the shell blocks of a page."""
    for block in blocks(path, "sh"):
        for line in with_modules(block).replace("\\\n", " ").splitlines():
            if found := re.search(r"-m experiments\.(?:main|study) (.*?)(?:[;&#]|$)", line):
                yield shlex.split(found[1])


def test_runs_of_the_pages_have_options_that_go_together():
    """A mesh that divides the batches, say; the checkpoint's folder need not be here."""
    checked = 0
    for page in PAGES:
        for words in run_commands(page):
            options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
            given = command_line.config_file(options.pop("config", "tiny"))
            file, _, argument = given.partition(":")
            get_config = runpy.run_path(str(ROOT / file))["get_config"]
            config = get_config(argument) if argument else get_config()
            for name, value in options.items():
                if name.startswith("config.") and name != "config.model.path":
                    field = name.removeprefix("config.")
                    # What `mapf-new-family my_task` writes for the reader.
                    value = value.replace("my_task.py", str(new_family.TEMPLATE))
                    config.update_from_flattened_dict({field: yaml.safe_load(value)})
            config.model.path = TINY_MODEL
            if config.family == "my_task.py:family":  # A copy of the template that a page makes.
                config.family = "experiments/families/template.py:family"
            from_config(config)
            checked += 1
    assert checked >= 12


def test_the_code_of_extending_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = blocks(ROOT / "docs" / "extending.md", "python")
    assert len(code) >= 6
    space = {"__name__": "page"}
    monkeypatch.setitem(sys.modules, "page", type(sys)("page"))  # Dataclasses look there.
    for number, block in enumerate(code):
        exec(compile(block, f"extending.md, block {number}", "exec"), space)
    printed = capsys.readouterr().out
    assert "Valid rates of the rounds so far" in printed
    assert "length 3: answers" in printed
    assert "[1. 0.]" in printed


def test_the_code_of_integrations_runs(tmp_path, monkeypatch, capsys):
    """Each block where its packages are installed; the others are named and left out.

    The sets are smaller than on the page, so that few programs are compiled.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    page = ROOT / "docs" / "integrations.md"
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            if line.startswith("python -m mapf_jax") and _installed("datasets"):
                line = re.sub(r"(?<=-instances )\d+", "20", line).replace("3-10", "3-4")
                assert mapf_jax_main(shlex.split(line)[3:]) == 0
    space = {"__name__": "page"}
    left_out = []
    for number, block in enumerate(blocks(page, "python")):
        names = re.findall(r"^(?:import|from) ([\w.]+)", block, re.MULTILINE)
        if re.search(r"\b(record|data)\[", block):  # Of the first block.
            names.append("datasets")
        missing = [name for name in names if not _installed(name)]
        if missing:
            left_out.append(f"block {number}: no {missing[0]}")
            continue
        exec(compile(block, f"integrations.md, block {number}", "exec"), space)
    if _installed("datasets"):
        assert "1.0 1.0" in capsys.readouterr().out
    if left_out:
        pytest.skip("; ".join(left_out))


def _installed(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_the_hypotheses_of_the_page_are_those_computed():
    folder = ROOT / "docs" / "studies"
    script = runpy.run_path(str(folder / "hypotheses.py"))
    lines, looks = script["hypotheses"](), script["further_looks"]()
    assert len(lines) == 2 + 27
    for table in (lines, looks):
        assert "\n\n" + "\n".join(table) + "\n\n" in (folder / "README.md").read_text()
    # The page of all results quotes them: points, p in the study, p over all.
    registered = re.findall(
        r"registered \((?:p )?([\d.]+); (?:over all )?([\d.]+)\) \| ([^|]*?\))[ ,]",
        (ROOT / "docs" / "results.md").read_text(),
    )
    assert len(registered) >= 14
    for p_study, p_all, points in registered:
        assert any(
            f" | {points} | " in line and f" | {p_study} | {p_all} | " in line for line in lines
        )


def test_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors", "license", "type"} <= set(citation)
    assert "\nversion = attr: mapf_jax.__version__\n" in (ROOT / "setup.cfg").read_text()
    assert citation["version"] == __version__
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    (paper,) = citation["references"]
    assert paper["identifiers"][0]["value"] == "arXiv:2606.17682"
