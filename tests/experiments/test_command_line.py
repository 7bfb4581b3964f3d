"""Runs are started from anywhere, by the names of packaged configurations, and told apart."""

import configparser
import contextlib
import io
import pkgutil
import runpy
import signal
import sys
from importlib import metadata

import jax
import pytest
from absl import app
from whole_runs import ROOT, python

import experiments
from experiments import export, new_family, probe
from experiments.benchmark import __main__ as benchmark
from experiments.settings import command_line
from experiments.settings.page import options_page

CONFIGS = ROOT / "experiments" / "configs"


def start(folder, *options, code=None):
    """(exit code, output, errors) of `experiments.main`, or of other code, in a folder."""
    program = ("-c", code) if code else ("-m", "experiments.main")
    done = python(*program, *options, cwd=folder, fails=None)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ("tiny", "tiny.py"),
        ("hardware:Qwen3-4B@h200", "hardware.py:Qwen3-4B@h200"),
        ("studies/designers", "studies/designers.py"),
    ],
)
def test_configurations_have_names(given, file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_line.config_file(given) == f"{CONFIGS}/{file}"
    (tmp_path / given).parent.mkdir(exist_ok=True)
    (tmp_path / "own.py").touch()
    for own in ("own.py", "own.py:argument"):
        assert command_line.config_file(own) == own


def test_a_name_that_is_none_is_answered_with_those_there_are():
    with pytest.raises(SystemExit, match=r"config=.tony.: there is no such file; .* tiny"):
        command_line.config_file("tony")


def test_a_run_starts_outside_the_clone_in_a_folder_of_its_name(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tiny").touch()
    script = f"import sys; sys.argv[0] = 'mapf-train'; {call_of('mapf-train')}"
    code, out, err = start(tmp_path, "--config=tiny", code=script)
    assert (code, out) == (1, "")
    assert err == "error: workdir=runs/tiny: a file is there; allowed are folders\n"


def test_a_folder_may_be_named_from_the_home(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").touch()
    assert start(tmp_path, "--workdir=~/a")[2].startswith(f"error: workdir={tmp_path}/a: a file")
    assert benchmark.main(["--out=~/a"]) == 1
    assert f"out={tmp_path}/a: " in capsys.readouterr().err
    monkeypatch.setattr(export, "export", lambda run, out, *_: sys.exit(str(out)))
    with pytest.raises(SystemExit, match=f"^{tmp_path}/a$"):
        export.main(["runs/tiny", "--out=~/a"])


def test_the_page_of_options_is_what_the_command_prints(tmp_path):
    code, out, err = start(tmp_path, "--list_options")
    assert (code, err) == (0, "")
    assert out == options_page()


def call_of(script):
    """What a console script of the packaging file runs."""
    module, name = scripts()[script].split(":")
    return f"from {module} import {name}; sys.exit({name}())"


def scripts():
    """Names of the console scripts with the functions that they call, as MODULE:NAME."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options.entry_points"]["console_scripts"].strip().split("\n")
    return dict(line.split(" = ") for line in lines)


@pytest.mark.parametrize("script", scripts())
def test_every_script_starts_a_command(script, monkeypatch):
    """The module that `python -m` starts: it exists and does something as `__main__`."""
    started = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: started.append(name))
    monkeypatch.setattr(experiments, "begin_command", lambda: None)  # Not in this process.
    module, _, name = scripts()[script].partition(":")
    target = pkgutil.resolve_name(f"{module}:{name}")
    if module != "experiments.commands":
        assert callable(target)
        return
    if name == "plan":
        monkeypatch.setattr("learner.plan.__main__.main", lambda: started.append("learner.plan"))
        with pytest.raises(SystemExit):
            target()
        assert started == ["learner.plan"]
        return
    target()
    assert started == [f"experiments.{ {'train': 'main'}.get(name, name) }"]
    file = CONFIGS.parent / started[0].partition(".")[2]
    main = file / "__main__.py" if file.is_dir() else file.with_suffix(".py")
    assert 'if __name__ == "__main__":' in main.read_text()


PINNED = {
    "jax_enable_x64": (False, True),
    "jax_default_prng_impl": ("threefry2x32", "rbg"),
    "jax_threefry_partitionable": (True, False),
}


@pytest.mark.parametrize(
    "target",
    [*dict.fromkeys(scripts().values()), "learner.generate:main", "learner.plan.__main__:main"],
)
def test_no_command_draws_by_settings_from_outside(target, monkeypatch):
    """The settings of JAX after the beginning of a command, whatever they were."""
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", ["", "--help"])
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.delitem(sys.modules, "experiments.commands", raising=False)  # It begins anew.
    handler = signal.getsignal(signal.SIGTERM)
    try:
        for setting, (_, odd) in PINNED.items():
            jax.config.update(setting, odd)
        with contextlib.suppress(SystemExit):
            pkgutil.resolve_name(target)()
        assert {setting: getattr(jax.config, setting) for setting in PINNED} == {
            setting: pinned for setting, (pinned, _) in PINNED.items()
        }
    finally:
        signal.signal(signal.SIGTERM, handler)
        for setting, (pinned, _) in PINNED.items():
            jax.config.update(setting, pinned)


def test_commands_call_themselves_by_the_script_that_is_installed(monkeypatch, capsys):
    """A folder may have another package `experiments`, where `python -m` does not find them."""
    names = {"export": export.main, "benchmark": benchmark.main, "probe": probe.main}
    entries = [
        metadata.EntryPoint(name, value, "console_scripts") for name, value in scripts().items()
    ]
    for found, expected in ((entries, "mapf-{}"), ([], "python -m experiments.{}")):
        monkeypatch.setattr(metadata, "entry_points", lambda group, found=found: found)
        for name, main in names.items():
            with pytest.raises(SystemExit):
                main(["--help"])
            assert capsys.readouterr().out.startswith(f"usage: {expected.format(name)} ")
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    assert experiments.name_of("main") == "mapf-train"


def test_a_template_says_what_comes_next(monkeypatch, tmp_path, capsys):
    entries = [
        metadata.EntryPoint(name, value, "console_scripts") for name, value in scripts().items()
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    monkeypatch.chdir(tmp_path)
    new_family.main(["new_family", "my_task"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mapf-")]
    assert [line.split()[0] for line in lines] == [
        "mapf-check-family",
        "mapf-warm-start",
        "mapf-train",
    ]
    assert all("my_task.py:family" in line for line in lines)
    with pytest.raises(app.UsageError, match="'numbers': the file would hide a module"):
        new_family.main(["new_family", "numbers"])


def test_the_help_of_the_report_says_what_it_does():
    program = "import runpy, sys; sys.argv[1:] = ['--help']; "
    program += "runpy.run_module('experiments.report', run_name='__main__', alter_sys=True)"
    done = python("-c", program, fails=True)  # As absl has it.
    assert "Writes a self-contained page, without scripts, about a run" in done.stdout
    assert "report.html" in done.stdout


def test_a_script_runs_in_a_folder_with_another_package_of_the_name(tmp_path):
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "__init__.py").write_text("raise ValueError('not this one')")
    scripts_folder = tmp_path / "bin"  # As installed: Python looks first where the script is.
    scripts_folder.mkdir()
    script = scripts_folder / "mapf-report"
    script.write_text(f"import sys; {call_of('mapf-report')}")
    done = python(script, "nowhere", cwd=tmp_path, fails=True)
    assert done.stderr.startswith("error: nowhere: neither a run (with a config.json) nor")


def test_an_interrupt_while_a_command_is_imported_prints_nothing(tmp_path):
    interrupt = """if True:
        import os, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Background jobs ignore it.
        os.kill(os.getpid(), signal.SIGINT)
    """
    (tmp_path / "optax.py").write_text(interrupt)  # In place of a slow package.
    assert start(tmp_path) == (-signal.SIGINT, "", "")  # As a shell sees it: 130.
    (tmp_path / "optax.py").write_text("raise ValueError('told')")
    code, out, err = start(tmp_path)
    assert (code, out) == (1, "")
    assert err.endswith("ValueError: told\n")


INTERRUPTED = """
import os, signal
from absl import app
from experiments import main
from experiments.settings import command_line
from experiments.settings.page import options_page
from experiments.ring import loop

def run(self):
    with self._preemption.watch(), self._preemption.hold():
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
loop.Loop.run = run
app.run(main.main, flags_parser=command_line.parse_flags)
"""


def test_an_interrupt_and_a_finished_run_are_one_line_each(tmp_path):
    code, out, err = start(tmp_path, code=INTERRUPTED)
    assert (code, err) == (130, "")
    saved = "asked to leave: saved; the same command goes on from here"
    assert out.splitlines() == ["runs/tiny: starting", saved]
    run = tmp_path / "runs" / "tiny"
    (run / "rounds" / "2").mkdir(parents=True)
    shows = '<meta name="finished-rounds" content="{}">'
    (run / "report.html").write_text(shows.format(2))
    (run / "rounds" / "2" / "evidence.json").touch()
    assert start(tmp_path, code=INTERRUPTED)[1].splitlines() == ["runs/tiny: starting", saved]
    (run / "report.html").write_text(shows.format(3))
    times = (run / "times.jsonl").read_text()
    code, out, err = start(tmp_path)
    assert (code, err) == (0, "")
    assert out == "runs/tiny: the run is finished; report: runs/tiny/report.html\n"
    assert (run / "times.jsonl").read_text() == times
