"""Speed of the sampler, beside transformers' `generate` and google-tunix's sampler.

    python -m experiments.speed.sampler [--quick] [--out=docs/benchmarks]

On a CPU: tokens a second of all three at equal model, weights, batch, lengths and precision
(float32, greedy), and what refilling slots gains over fixed batches where answers are uneven; the
CPU counts as one device of JAX for each of its cores or as a single one. On a GPU: seconds of a
decoding step with Qwen3-4B's shapes as a share of the bandwidth roofline, beside `generate`.
Engines run in processes of their own and take turns.
"""

import argparse
import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.speed import records
from learner.qwen3 import model, weights
from learner.qwen3.config import Qwen3Config
from learner.qwen3.sizes import published

_ENGINES = Path(__file__).with_name("sampler_engines.py")
_ROOT = Path(__file__).parents[2]

SMALL = Qwen3Config(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=32,
    tie_word_embeddings=True,
    max_position_embeddings=1024,
)
QWEN3_4B = published("Qwen3-4B", dtype="bfloat16", param_dtype="bfloat16")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
      rounds: turns of every engine; the best of each counts.
      batch, prompt_tokens, new_tokens: the even comparison.
      slots, answers, uneven_prompt_tokens, uneven_new_tokens: refilling against fixed batches.
      model: of both.
    """

    rounds: int = 5
    batch: int = 32
    prompt_tokens: int = 128
    new_tokens: int = 256
    slots: int = 32
    answers: int = 512
    uneven_prompt_tokens: int = 32
    uneven_new_tokens: int = 256
    model: Qwen3Config = SMALL

    @property
    def devices(self) -> int:
        """Devices of JAX that the CPU counts as: its cores, as far as all get equal shares.

        Of rows in the sampler of this project, of key/value heads in that of google-tunix.
        """
        return math.gcd(
            len(records.cores()), self.batch, self.slots, self.model.num_key_value_heads
        )


QUICK = Scale(rounds=2, new_tokens=128, answers=192)

# What the rows of a table call the engines.
_NAMES = {
    "own": "own",
    "own_on_one": "own, one device",
    "transformers": "transformers",
    "tunix": "tunix",
    "tunix_on_one": "tunix, one device",
}


class Engine:
    """One engine in its process."""

    def __init__(self, name: str, task: Path, python: str, script: Path = _ENGINES) -> None:
        self.name = name
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        variables = {
            "PYTHONPATH": path,
            "TRANSFORMERS_VERBOSITY": "error",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92",
        }
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (`close` closes it)
        self._process = subprocess.Popen(
            [python, str(script), name, str(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | variables,
        )
        first = self._line()
        self.obstacle = None if first == "ready" else self._obstacle(first)

    def measure(self) -> dict[str, Any] | None:
        """One measurement; None if the engine cannot run, `obstacle` then says why."""
        if self.obstacle is not None:
            return None
        assert self._process.stdin is not None
        self._process.stdin.write("measure\n")
        self._process.stdin.flush()
        line = self._line()
        if not line:
            self.obstacle = self._obstacle(line)
            return None
        return json.loads(line)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _obstacle(self, line: str) -> str:
        if line:
            return f"not installed ({json.loads(line)['missing']})"
        self._process.communicate()
        self._errors.seek(0)
        last = self._errors.read().strip().splitlines()[-1:]
        return f"failed: {last[0][:300] if last else 'no message'}"

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._errors.close()


def compare(engines: Sequence[Engine], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """One untimed measurement of each, then `rounds` in turns; nothing of an engine that fails."""
    for engine in engines:
        engine.measure()
    results: dict[str, list[dict[str, Any]]] = {engine.name: [] for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            if (result := engine.measure()) is not None:
                results[engine.name].append(result)
    return results


def _devices(scale: Scale) -> str:
    return "one device" if scale.devices == 1 else f"{scale.devices} devices"


def even_lengths(scale: Scale, folder: Path, peers: Mapping[str, str]) -> records.Table:
    """Tokens a second where all answers have one length."""
    rng = np.random.default_rng(0)
    shape = (scale.batch, scale.prompt_tokens)
    task = {
        "folder": str(folder),
        "prompts": rng.integers(1, scale.model.vocab_size, shape).tolist(),
        "new_tokens": scale.new_tokens,
        "devices": scale.devices,
    }
    pythons = {"own": sys.executable, "own_on_one": sys.executable, **peers}
    if scale.devices == 1:  # Then these are the same once more.
        pythons = {name: path for name, path in pythons.items() if not name.endswith("_on_one")}
    engines = _start(pythons, task, folder)
    results = compare(engines, scale.rounds)
    if not results["own"]:
        for engine in engines:
            engine.close()
        raise RuntimeError(f"the sampler could not run: {engines[0].obstacle}")
    own = np.array(results["own"][0]["tokens"])
    fastest = min(result["seconds"] for result in results["own"])
    rows: list[tuple[Any, ...]] = []
    for engine in engines:
        engine.close()
        seconds = [result["seconds"] for result in results[engine.name]]
        if engine.obstacle is not None or not seconds:
            rows.append((_NAMES[engine.name], None, None, None, None, engine.obstacle))
            continue
        tokens = np.array(results[engine.name][0]["tokens"])
        rows.append(
            (
                _NAMES[engine.name],
                own.size / min(seconds),
                own.size / float(np.median(seconds)),
                min(seconds) / fastest,
                float((tokens == own).mean()) if tokens.shape == own.shape else None,
                "",
            )
        )
    return records.Table(
        f"{scale.batch} prompts of {scale.prompt_tokens} tokens, {scale.new_tokens} new ones each",
        ("engine", "tokens/s, best", "tokens/s, median", "own is faster by", "same tokens", "note"),
        rows,
        note=f"Whole calls, the prompts' share included; {scale.rounds} rounds in turns, after one "
        "that compiles. float32, greedy, the same weights. Unless a row "
        f"says otherwise, the CPU is {_devices(scale)} of JAX for own and tunix.",
    )


def uneven_lengths(scale: Scale, folder: Path) -> records.Table:
    """Refilled slots against fixed batches, answers of geometric length."""
    rng = np.random.default_rng(1)
    shape = (scale.answers, scale.uneven_prompt_tokens)
    longest = scale.uneven_new_tokens
    budgets = np.minimum(rng.geometric(4 / longest, scale.answers), longest)
    task = {
        "folder": str(folder),
        "prompts": rng.integers(1, scale.model.vocab_size, shape).tolist(),
        "new_tokens": longest,
        "budgets": budgets.tolist(),
        "slots": scale.slots,
        "devices": scale.devices,
    }
    (engine,) = _start({"own_uneven": sys.executable}, task, folder)
    results = compare([engine], scale.rounds)["own_uneven"]
    engine.close()
    if not results:
        raise RuntimeError(f"the sampler could not run: {engine.obstacle}")
    best = {name: min(result[name] for result in results) for name in ("refilled", "fixed")}
    rows = [
        (name, budgets.sum() / seconds, best["fixed"] / seconds) for name, seconds in best.items()
    ]
    same = min(result["same_answers"] for result in results)
    return records.Table(
        f"{scale.answers} answers through {scale.slots} slots",
        ("slots", "tokens/s, best", "times fixed batches"),
        rows,
        note=f"Lengths are geometric, cut at a budget of {longest}: {budgets.mean():.0f} on "
        f"average; prompts of {scale.uneven_prompt_tokens} tokens, temperature 1; the CPU is "
        f"{_devices(scale)} of JAX. {same:.1%} of "
        "the answers are the same both ways, token by token (sums in other shapes are rounded "
        "differently, which may move a draw to the next token).",
    )


def roofline(
    config: Qwen3Config,
    cases: Sequence[tuple[int, int]],
    folder: Path,
    rounds: int = 5,
    steps: int = 32,
    copy_bytes: int = 1 << 32,
) -> records.Table:
    """Decoding steps against the time that reading weights and cache takes at copy speed.

    Args:
      cases: batch and context of each measurement.
      steps: decoding steps in one measurement.
      copy_bytes: of the array whose copy measures the bandwidth.
    """
    rows = []
    for batch, context in cases:
        task = {
            "config": dataclasses.asdict(config),
            "batch": batch,
            "context": context,
            "steps": steps,
            "copy_bytes": copy_bytes,
        }
        steps_of: dict[str, dict[str, Any]] = {}
        notes = []
        for name in ("own_roofline", "transformers_roofline"):  # one at a time: they share memory
            (engine,) = _start({name: sys.executable}, task, folder)
            results = compare([engine], rounds)[name]
            engine.close()
            if results:
                steps_of[name] = min(results, key=lambda result: result["step_seconds"])
            else:
                notes.append(f"{name.partition('_')[0]} {engine.obstacle}")
        own, torch = (steps_of.get(name) for name in ("own_roofline", "transformers_roofline"))
        bound = own and (own["weight_bytes"] + own["cache_bytes"]) / own["copy_bandwidth"]
        rows.append(
            (
                batch,
                context,
                own and own["copy_bandwidth"] / 1e9,
                own and batch / own["step_seconds"],
                bound and own and bound / own["step_seconds"],
                torch and batch / torch["step_seconds"],
                torch and own and torch["step_seconds"] / own["step_seconds"],
                "; ".join(notes),
            )
        )
    return records.Table(
        f"Decoding, {config.dtype}: {config.num_hidden_layers} layers of {config.hidden_size}",
        (
            "batch",
            "context",
            "copy GB/s",
            "tokens/s",
            "share of roofline",
            "generate tokens/s",
            "times generate",
            "note",
        ),
        rows,
        note="Decoding alone, random weights. The roofline is the time to read all weights and the "
        "keys and values of the context once a step at the speed of a large copy (bytes read and "
        "written). The context lies in the cache of the prompts, which has no room to spare, but "
        f"for its last {steps // 2} to {3 * steps // 2} tokens: the layout that is best for the "
        "sampler. Where the rooms of its caches are not full, it reads more than it needs: up to "
        "1.25 times for long prompts, up to 1.5 times for long answers.",
    )


def _start(pythons: Mapping[str, str], task: Mapping[str, Any], folder: Path) -> list[Engine]:
    path = folder / f"{'-'.join(pythons)}.json"
    path.write_text(json.dumps(task))
    return [Engine(name, path, python) for name, python in pythons.items()]


def run(scale: Scale, peers: Mapping[str, str]) -> list[records.Table]:
    """All tables for a CPU."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights.save(folder, model.init_params(jax.random.key(0), scale.model), scale.model)
        return [even_lengths(scale, folder, peers), uneven_lengths(scale, folder)]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.speed.sampler", description="Speed of the sampler."
    )
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--out", default="docs/benchmarks", help="folder of the results")
    parser.add_argument(
        "--tunix_python",
        default=sys.executable,
        help="interpreter of an environment with google-tunix, which pins other versions",
    )
    parsed = parser.parse_args(arguments)
    # This process only asks what the machine is; the memory is for those of the engines.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    about = records.facts()
    if jax.default_backend() == "cpu":
        scale = QUICK if parsed.quick else Scale()
        peers = {"transformers": sys.executable}
        peers |= dict.fromkeys(("tunix", "tunix_on_one"), parsed.tunix_python)
        tables = run(scale, peers)
        about.pop("devices")  # Each engine has its own number of them; the tables say it.
    else:
        cases = [(64, 1024)] if parsed.quick else [(64, 1024), (256, 1024), (64, 8192), (256, 8192)]
        with tempfile.TemporaryDirectory() as name:
            tables = [roofline(QWEN3_4B, cases, Path(name), rounds=2 if parsed.quick else 5)]
    for table in tables:
        print(table.to_markdown())
    pages = records.write("sampler", "Sampler", tables, folder=parsed.out, about=about)
    print(*pages, sep="\n")


if __name__ == "__main__":
    main()
