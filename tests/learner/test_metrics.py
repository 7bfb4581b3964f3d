"""Logs that are continued, and figures of the machine."""

import json

import pytest

from learner import metrics


def test_json_lines_go_on_where_the_checkpoint_stands(tmp_path):
    path = tmp_path / "new" / "train.jsonl"
    log = metrics.JsonLines(path, 0)
    for step in range(4):
        log.write(step, {"loss": step / 2})
    log.close()
    path.write_text(path.read_text() + '{"step": 4, "lo')  # What a kill leaves behind.
    log = metrics.JsonLines(path, 2)
    log.write(2, {"loss": 7.0})
    log.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"step": i, "loss": loss} for i, loss in enumerate((0.0, 0.5, 7.0))]


def test_tensorboard_and_several_writers(tmp_path):
    events = pytest.importorskip("tensorboardX.event_file_writer")
    writers = metrics.Writers(
        [metrics.TensorBoard(tmp_path / "tb"), metrics.JsonLines(tmp_path / "log", 0)]
    )
    writers.write(1, {"reward": 0.25, "task/valid_3": 1.0})
    writers.write(2, {"reward": 0.5})
    writers.close()
    assert len((tmp_path / "log").read_text().splitlines()) == 2
    (file,) = (tmp_path / "tb").iterdir()
    found = []
    content = file.read_bytes()
    while content:  # Records of: length, its checksum, the event, its checksum.
        length = int.from_bytes(content[:8], "little")
        event = events.event_pb2.Event.FromString(content[12 : 12 + length])
        found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
        content = content[16 + length :]
    assert found == [("reward", 1, 0.25), ("task/valid_3", 1, 1.0), ("reward", 2, 0.5)]


def test_machine_figures():
    clock = metrics.Clock()
    for _ in range(2):
        with clock.measure("sample"):
            sum(range(1000))
    figures = metrics.machine(clock.seconds) | metrics.rate("sample", 300, {"sample": 2.0})
    assert all(name.startswith(metrics.MACHINE) for name in figures)
    assert figures["machine/sample_seconds"] > 0
    assert figures["machine/sample_tokens_per_second"] == 150
    assert 0.01 < figures["machine/host_memory"] < 1000
