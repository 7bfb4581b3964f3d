"""Logs that are continued, and figures of the machine."""

import contextlib
import html
import types

import jax
import pytest
import tensorboard_events

from learner.training import metrics


def test_tensorboard_keeps_the_history_of_a_resumed_run(tmp_path):
    """Only steps from `first_step` on are hidden; TensorBoard does that at the START event."""
    events = pytest.importorskip("tensorboardX.event_file_writer")
    runs = {
        1: {1: {"reward": 0.25, "task/valid_3": 1.0}, 2: {"reward": 0.5}, 3: {"reward": 1.0}},
        3: {3: {"reward": 33.0}, 4: {"reward": 34.0}},
    }
    for first, steps in runs.items():
        folder = tmp_path / str(first)  # A file of its own: names are cut to seconds.
        with metrics.tensorboard(folder, first) as write:
            for step, numbers in steps.items():
                write(step, numbers)
    shown = {}
    for first in runs:
        (file,) = (tmp_path / str(first)).iterdir()
        for event in tensorboard_events.read(file):
            if event.session_log.status == events.event_pb2.SessionLog.START:
                shown = {key: value for key, value in shown.items() if key[1] < event.step}
            for value in event.summary.value:
                shown[value.tag, event.step] = value.simple_value
    expected = runs[1] | runs[3]
    assert shown == {(tag, step): x for step in expected for tag, x in expected[step].items()}


EVIL = "<script>alert(1)</script>\n\n# [x](javascript:alert)"


def test_texts_are_shown_as_they_are(tmp_path):
    pytest.importorskip("tensorboardX")
    with metrics.tensorboard(tmp_path / "tb") as write:
        write(1, {"completion/1": EVIL})
    (file,) = (tmp_path / "tb").iterdir()
    shown = [v.tensor.string_val for e in tensorboard_events.read(file) for v in e.summary.value]
    # A block of code in the Markdown that TensorBoard makes of it.
    assert [[text.decode() for text in texts] for texts in shown] == [
        ["    <script>alert(1)</script>\n    \n    # [x](javascript:alert)"]
    ]


def test_weights_and_biases_gets_numbers_and_escaped_texts(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # It reads its environment once.
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with metrics.weights_and_biases("watch", tmp_path, "abc123", {"seed": 3}) as write:
        write(0, {"validation/valid": 0.5, "completion/1": EVIL})
        write(1, {"reward": 0.25})
    wandb.teardown()
    (run,) = (tmp_path / "wandb").glob("offline-run-*-abc123")
    (media,) = (run / "files" / "media" / "html" / "completion").glob("1_0_*.html")
    assert media.read_text() == f"<pre>{html.escape(EVIL)}</pre>"
    (log,) = run.glob("*.wandb")
    for name in (b"validation/valid", b"reward", b"seed"):
        assert name in log.read_bytes()


@pytest.mark.parametrize(
    ("first", "end", "traced", "made"),
    [
        (0, 5, range(1, 3), [0, "on", 1, 2, "off", 3, 4]),
        (2, 4, range(1, 3), ["on", 2, "off", 3]),  # Resumed.
        (0, 2, range(1, 3), [0, "on", 1, "off"]),  # The next ones follow in another round.
        (0, 2, range(0), [0, 1]),
    ],
)
def test_some_steps_are_traced(monkeypatch, tmp_path, first, end, traced, made):
    happened = []

    @contextlib.contextmanager
    def trace(folder):
        assert folder == tmp_path
        happened.append("on")
        yield
        happened.append("off")

    def steps():
        for step in range(first, end):
            happened.append(step)
            yield step

    monkeypatch.setattr(jax.profiler, "trace", trace)
    assert list(metrics.traced(steps(), tmp_path, first, traced)) == list(range(first, end))
    assert happened == made


def test_a_trace_is_written_even_if_its_step_fails(tmp_path):
    def steps():
        yield jax.numpy.ones(3).sum()
        raise RuntimeError("not finite")

    with pytest.raises(RuntimeError, match="not finite"):
        list(metrics.traced(steps(), tmp_path, 0, range(1, 2)))
    (written,) = tmp_path.rglob("*.xplane.pb")
    assert written.stat().st_size > 0


def test_fraction_of_the_peak_on_known_chips(monkeypatch):
    chip = types.SimpleNamespace(device_kind="NVIDIA H200", memory_stats=dict)
    given = {"update": 2.0}, {}, {"update": 989e12}
    assert "machine/update_mfu" not in metrics.machine(*given)
    monkeypatch.setattr(jax, "local_devices", lambda: [chip])
    assert metrics.machine(*given)["machine/update_mfu"] == pytest.approx(0.5)


def test_machine_figures():
    seconds = {}
    for _ in range(2):
        with metrics.timed(seconds, "sample"):
            sum(range(1000))
    figures = metrics.machine(seconds, {}) | metrics.machine({"update": 2.0}, {"update": 300})
    assert all(name.startswith(metrics.MACHINE) for name in figures)
    assert figures["machine/sample_seconds"] > 0
    assert figures["machine/update_tokens_per_second"] == 150
    assert 0.01 < figures["machine/host_memory"] < 1000
