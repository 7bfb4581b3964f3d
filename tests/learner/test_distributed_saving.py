"""Two processes save together; the disk of one of them is full."""

import pytest
from several_processes import two_processes

LINES = """
import resource, signal

import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from learner.devices import sharding
from learner.training import checkpoints as checkpoints_module
from learner.training.checkpoints import Checkpoints
from learner.training.train_state import TrainState

mesh = sharding.make_mesh(fsdp=2)

def state(value):
    whole = sharding.replicated(mesh)
    rows = np.full((4, 2), value, np.float32)
    return TrainState(
        step=distributed.put(np.int32(value), whole),
        updates=distributed.put(np.int32(value), whole),
        params={"a": distributed.put(rows, NamedSharding(mesh, PartitionSpec("fsdp")))},
        opt_state={},
    )

checkpoints_module._COPIED = BYTES
try:
    with Checkpoints(folder, keep=None) as checkpoints:
        checkpoints.save(1, state(1), {"name": "good"})
        checkpoints.wait()
        restored, metadata = checkpoints.restore(state(0))
        rows = [np.asarray(shard.data) for shard in restored.params["a"].addressable_shards]
        print("restored", metadata, int(restored.step), [row.tolist() for row in rows], flush=True)
        if index == 1:
            # No file may have a byte from now on.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        checkpoints.save(2, state(2), {"name": "bad"})
        checkpoints.save(3, state(3), {"name": "never"})
except Exception as error:
    lost = distributed.lost_process(error)
    print("left", lost, f"{type(error).__name__}: {error}", flush=True)
    distributed.leave(distributed.LOST_PROCESS_EXIT_CODE if lost else 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("copied", [2**28, 0], ids=["copied", "written at once"])
def test_a_full_disk_of_one_process_stops_both(tmp_path, copied):
    folder = tmp_path / "checkpoints"
    codes, texts = two_processes(LINES.replace("BYTES", str(copied)), folder)
    for text in texts:
        assert "restored {'name': 'good'} 1 [[[1.0, 1.0], [1.0, 1.0]]]" in text
    assert codes[1] == 1, texts[1][-3000:]
    assert "left False" in texts[1]
    assert "File too large" in texts[1]
    assert codes[0] in (69, -6), texts[0][-3000:]
    assert sorted(path.name for path in folder.iterdir() if path.name.isdigit()) == ["1"]
