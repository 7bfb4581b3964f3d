"""Several processes as one program: starting them, exchanging values, placing arrays.

All processes run the same program on the same values and make the same calls in the same order.
`on_first`, `gather` and `sharded_map` share what only one process has (files, its part of the
completions). `on_all` runs what may fail on one process alone, so that no other waits for it. With
one process none of these communicates.

An update is one program over the devices of all processes (`put` places its inputs). Sampling is
not: each process samples its part of the prompts alone, with the decoding copy of the weights on
its own devices (`local_copy`). In one program, every token would wait for all hosts, and a free
sequence slot for the slowest of them; this way the processes meet once, when all completions are
done. The price: prompts are dealt out beforehand, so a process with short completions waits for
the one with the longest, and a copy of the weights must fit the devices of one process, so mesh
axis `tensor` must not span several processes.

If one process fails or is killed, the others cannot go on. Between processes on CPUs and GPUs the
next exchange fails at once (`lost_process`). If it hangs instead, the coordination service of
`jax.distributed` ends a process that has not heard from another one for `HEARTBEAT_SECONDS`.
"""

import faulthandler
import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding

from learner.tokens import geometric_bucket

T = TypeVar("T")

#: Exit code of a process that lost another one: EX_UNAVAILABLE of sysexits.h.
LOST_PROCESS_EXIT_CODE = 69
#: If a process is silent for this long, JAX ends the others with SIGABRT.
HEARTBEAT_SECONDS = 40
# How long JAX waits at exit for the other processes to exit.
_SHUTDOWN_SECONDS = 30
_SECONDS_TO_NOTICE = 5
# A signal that comes just before the main thread blocks, or to another thread, does not wake it.
_SECONDS_TO_HEED = 0.5
# Words in the errors of failed exchanges: gloo, NCCL, the coordination service.
_LOST = ("gloo", "connection closed by peer", "connection reset", "nccl", "coordination service",
         "unavailable:", "heartbeat", "barrier")  # fmt: skip
_alone = threading.local()


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins the other processes, if there are any. Call it before any other JAX function.

    Without arguments JAX detects Slurm, Open MPI or a TPU pod and takes what it needs from there;
    elsewhere the process stays alone.

    Args:
      coordinator: HOST:PORT of process 0, which the others can reach.
      num_processes: number of processes; 1 stays alone and detects nothing.
      process_id: number of this process, from 0.

    Raises:
      ValueError: an argument is out of range, or is missing and cannot be detected.
    """
    if num_processes is not None and num_processes < 1:
        raise ValueError(f"num_processes={num_processes}: allowed are integers from 1 up")
    if num_processes == 1:
        return
    given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if process_id is not None and not 0 <= process_id < (num_processes or math.inf):
        last = f"0 to num_processes - 1 = {num_processes - 1}" if num_processes else "0, 1, ..."
        raise ValueError(f"process_id={process_id}: allowed are {last}")
    if coordinator is not None and not coordinator.rpartition(":")[2].isdigit():
        raise ValueError(f"coordinator={coordinator!r}: HOST:PORT is needed")
    if faulthandler.is_enabled():  # As absl does.
        # JAX aborts from a thread of its own when another process is gone. To print where all other
        # threads are, which go on meanwhile, may end in a segmentation fault.
        faulthandler.enable(all_threads=False)
    # Its handler of SIGTERM would replace that of `learner.devices.preemption`.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        _heeding_signals(
            jax.distributed.initialize,
            coordinator,
            num_processes,
            process_id,
            # With all arguments given there is nothing to detect, least of all the devices.
            cluster_detection_method=None if missing else "deactivate",
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except ValueError as error:
        if len(missing) == len(given) and "coordinator_address" in str(error):
            return  # No cluster was found, nor does JAX_COORDINATOR_ADDRESS name one.
        if missing:
            raise ValueError(
                f"{', '.join(missing)}: not given, and there is no cluster that would tell; all of "
                f"{', '.join(given)} are needed"
            ) from error
        raise


def _heeding_signals(function: Callable[..., None], *args: Any, **options: Any) -> None:
    """Calls what may wait for long outside Python; the main thread handles signals meanwhile."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            function(*args, **options)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SECONDS_TO_HEED)
    if errors:
        raise errors[0]


def leave(code: int) -> NoReturn:
    """Ends this process; a normal exit would wait for other processes, which may be gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    if together() and is_first():
        # The others need its coordination service: this gives them time to notice the loss.
        time.sleep(_SECONDS_TO_NOTICE)
    os._exit(code)


def lost_process(error: BaseException) -> bool:
    """Whether an exchange failed because another process is gone."""
    if isinstance(error, OSError) and error.errno is not None:
        return False  # From a file or a server ("temporarily unavailable"), not an exchange.
    text = str(error).lower()
    return num_processes() > 1 and any(sign in text for sign in _LOST)


def together() -> bool:
    """Whether there are other processes. Alone, it does not ask for devices."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def num_processes() -> int:
    """How many processes share the work: 1 within `on_first`."""
    return 1 if getattr(_alone, "now", False) else jax.process_count()


def is_first() -> bool:
    """Whether this is the process that writes files and prints."""
    return jax.process_index() == 0


# Values -------------------------------------------------------------------------------------------


def on_first(function: Callable[[], T]) -> T:
    """Calls `function` on the first process; all return its result or raise its error.

    Inside `function` that process counts as alone: it may call anything in this module.

    Args:
      function: its result is pickled.
    """
    if num_processes() == 1:
        return function()
    value, own_error = None, None
    if is_first():
        _alone.now = True
        try:
            value = function()
        except Exception as raised:
            own_error = raised
        finally:
            _alone.now = False
    data = pickle.dumps((value, _portable(own_error)))
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    buffer = multihost_utils.broadcast_one_to_all(_padded(data if is_first() else b"", size))
    value, error = pickle.loads(buffer[:size].tobytes())
    if error is not None:
        raise own_error or error
    return value  # type: ignore[return-value]


def on_all(function: Callable[[], T]) -> T:
    """Calls `function` on every process and returns its own result; if one raises, all raise.

    For what may fail on one process alone, such as reading its copy of a file.

    Args:
      function: must not communicate with other processes.

    Raises:
      ValueError, RuntimeError: it raised on another process, which the message names; a
        `ValueError` if it was one there.
    """
    if num_processes() == 1:
        return function()
    error = None
    try:
        value = function()
    except Exception as raised:
        error = raised
    errors = gather(_portable(error))
    if error is not None:
        raise error
    for index, other in enumerate(errors):
        if other is not None:
            kind = ValueError if isinstance(other, ValueError) else RuntimeError
            raise kind(f"process {index}: {other}") from other
    return value


def gather(value: T) -> list[T]:
    """The values of all processes, in the order of the processes; values are pickled."""
    if num_processes() == 1:
        return [value]
    # With the number of the sender: buffers arrive in the order of the devices.
    data = pickle.dumps((jax.process_index(), value))
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    buffers = multihost_utils.process_allgather(_padded(data, int(sizes.max())))
    sent = [
        pickle.loads(buffer[:size].tobytes()) for buffer, size in zip(buffers, sizes, strict=True)
    ]
    return [value for _, value in sorted(sent, key=lambda pair: pair[0])]


def sharded_map(function: Callable[[np.ndarray], T], count: int) -> T:
    """`function(np.arange(count))`, each process computing its part of the indices.

    Args:
      function: from i64[n] to a list of n values or a pytree of host arrays [n, ...]; the result
        for an index must not depend on the others.
      count: at least 1. If it is below the number of processes, the first one computes all.
    """
    if num_processes() == 1:
        return function(np.arange(count))
    if count < num_processes():
        return on_first(lambda: function(np.arange(count)))
    part = np.array_split(np.arange(count), num_processes())[jax.process_index()]
    parts: list[Any] = gather(function(part))
    if isinstance(parts[0], list):
        return [one for part in parts for one in part]  # type: ignore[return-value]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def _padded(data: bytes, size: int) -> np.ndarray:
    """The data as u8[at least `size`]; of few different lengths, as each is compiled once."""
    buffer = np.zeros(geometric_bucket(size, 1024, 2), np.uint8)
    buffer[: len(data)] = np.frombuffer(data, np.uint8)
    return buffer


def _portable(error: Exception | None) -> Exception | None:
    """The error itself if it can be pickled, else one with the same message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# Arrays -------------------------------------------------------------------------------------------


def put(tree: Any, where: Any) -> Any:
    """Places arrays by shardings that may span several processes.

    Args:
      tree: host arrays, equal on every process, or arrays on devices.
      where: a sharding, or a tree of shardings that is a prefix of `tree`.
    """
    if jax.process_count() == 1:
        return jax.device_put(tree, where)

    def place(value: Any, where: Any) -> jax.Array:
        if isinstance(value, jax.Array) and not value.is_fully_addressable:
            return jax.device_put(value, where)
        host = np.asarray(value)
        return jax.make_array_from_callback(host.shape, where, host.__getitem__)

    return jax.tree.map(place, tree, jax.tree.broadcast(where, tree))


def local_mesh(mesh: Mesh) -> Mesh:
    """This process's part of a mesh.

    Raises:
      ValueError: its axis `tensor` spans several processes.
    """
    if jax.process_count() == 1:
        return mesh
    part = mesh.local_mesh
    if part.shape["tensor"] != mesh.shape["tensor"]:
        raise ValueError(
            f"mesh axis tensor={mesh.shape['tensor']} reaches over several processes; allowed are "
            f"divisors of the {jax.local_device_count()} devices of a process"
        )
    return part


def local_copy(tree: Any) -> Any:
    """Arrays, split over mesh axis `tensor` at most, as arrays on `local_mesh`.

    Nothing is copied: the buffers are the same.
    """
    if jax.process_count() == 1:
        return tree

    def local(x: jax.Array) -> jax.Array:
        assert isinstance(x.sharding, NamedSharding)
        assert isinstance(x.sharding.mesh, Mesh)
        where = NamedSharding(local_mesh(x.sharding.mesh), x.sharding.spec)
        buffers = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, where, buffers)

    return jax.tree.map(local, tree)
