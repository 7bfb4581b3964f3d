"""One page about a run: validation by round and size, every configuration, failures drawn.

python -m experiments.report RUN_FOLDER
"""

import base64
import html
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import yaml
from absl import app

import mapf_jax
from experiments import run_directory as files
from experiments.evidence import one_of_each_kind
from mapf_jax import formats, render

# Okabe and Ito's palette, told apart by people with any kind of colour vision.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
_MARKERS = "osD^vP*X"
_FAILURES_SHOWN = 6

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { margin-top: 2.2rem; border-bottom: 1px solid #8886; }
table { border-collapse: collapse; } .scroll { overflow-x: auto; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; background: white; }
pre { line-height: 1.2; overflow-x: auto; }
.failures { display: grid; gap: 1rem;
            grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); }
.failures > div { border: 1px solid #8886; border-radius: 6px; padding: .5rem 1rem; }
.note { color: GrayText; }
"""


def write(root: Path) -> Path:
    """Writes `report.html` and `figures/` into the folder of a run; returns the page's path.

    Raises:
      ValueError: the folder holds no run with at least one validation.
    """
    if not (root / "initial" / "validation.json").exists():
        raise ValueError(f"workdir={root}: no run with a finished validation is there")
    rounds = _finished_rounds(root)
    validations = [("start", files.read_json(root / "initial" / "validation.json"))]
    validations += [
        (str(index), files.read_json(root / "rounds" / str(index) / "validation.json"))
        for index in rounds
    ]
    figures = {
        "validation.png": _validation_figure(validations),
        "training.png": _training_figure(root, rounds),
        "configurations.png": _configuration_figure(root, rounds),
    }
    parts = [
        *_summary(root, validations),
        *_validation_section(validations, figures["validation.png"]),
        *_configuration_section(root, rounds, figures["configurations.png"]),
        "<h2>Training</h2>",
        _image(figures["training.png"], "Reward and share of valid answers by training step"),
        *_failure_section(root, rounds),
    ]
    for name, picture in figures.items():
        path = root / "figures" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Run {html.escape(root.name)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
    files.write_text(root / "report.html", page)
    return root / "report.html"


def _finished_rounds(root: Path) -> list[int]:
    found = (root / "rounds").glob("*/validation.json")
    return sorted(int(path.parent.name) for path in found)


def _summary(root: Path, validations: Sequence[tuple[str, Any]]) -> list[str]:
    config = files.read_json(root / "config.json")
    version = files.read_json(root / "versions.json")
    first, last = validations[0][1], validations[-1][1]
    engineer = config["engineer"]
    facts = [
        ("Model", config["model"]["path"]),
        ("Seed", config["seed"]),
        ("Rounds finished", f"{len(validations) - 1} of {config['loop']['rounds']}"),
        ("Designer", f"{engineer['designer']}, context {engineer['context']}"),
        (
            "Validation",
            f"{last['answers']} instances, answers sampled at temperature "
            f"{config['validation']['temperature']}",
        ),
        ("Training instances a round", config["environment"]["num_instances"]),
        ("Epochs a round", config["training"]["epochs"]),
        ("Devices", version["devices"]),
        ("Versions", ", ".join(f"{k} {version[k]}" for k in ("jax", "flax", "optax", "python"))),
    ]
    return [
        f"<h1>Run {html.escape(root.name)}</h1>",
        "<p>A language model plans paths for several agents on frozen lakes, is trained on it by "
        "reinforcement learning, and designs its own next training environment after every round. "
        f"On the fixed validation set of {last['answers']} instances the share of valid answers "
        f"went from <b>{first['valid_rate']:.1%}</b> before training to "
        f"<b>{last['valid_rate']:.1%}</b>, of optimal ones from {first['optimal_rate']:.1%} to "
        f"{last['optimal_rate']:.1%}. This is one run with one seed.</p>",
        _table(("Option", "Value"), facts),
    ]


def _validation_section(validations: Sequence[tuple[str, Any]], picture: bytes) -> list[str]:
    sizes = sorted({int(size) for _, v in validations for size in v["by_size"]})
    header = ["After round", "valid", "optimal"]
    header += [f"{size}x{size} valid / optimal" for size in sizes]
    rows = []
    for name, v in validations:
        cells = [name, f"{v['valid_rate']:.1%}", f"{v['optimal_rate']:.1%}"]
        for size in sizes:
            row = v["by_size"][str(size)]
            cells.append(f"{row['valid_rate']:.1%} / {row['optimal_rate']:.1%}")
        rows.append(cells)
    checks = ["After round", *(check.replace("_", " ") for check in mapf_jax.CHECKS)]
    failed = [[name, *(v["failed"][c] for c in mapf_jax.CHECKS)] for name, v in validations]
    return [
        "<h2>Validation</h2>",
        _image(picture, "Share of valid and of optimal answers by round and lake size"),
        _table(header, rows),
        "<p>Answers that failed each check (an answer may fail several):</p>",
        _table(checks, failed),
    ]


def _configuration_section(root: Path, rounds: Sequence[int], picture: bytes) -> list[str]:
    rows = []
    for index in rounds:
        folder = root / "rounds" / str(index)
        config = yaml.safe_load((folder / "environment.yaml").read_text())
        report = files.read_json(folder / "generated.json")
        achieved = {row["size"]: row for row in report["sizes"]}
        for size, values in config.items():
            row = achieved[int(size)]
            rows.append(
                [
                    index,
                    f"{size}x{size}",
                    f"{values['data_ratio']:.2f} / {row['achieved_data_ratio']:.2f}",
                    f"{values['hole_ratio']:.2f} ({row['holes']} holes)",
                    f"{values['wait_ratio']:.2f} / {row['achieved_wait_ratio']:.2f}",
                    row["made"],
                ]
            )
    notes = []
    for index in rounds:
        note = files.read_json(root / "rounds" / str(index) / "generated.json").get("note")
        if note:
            notes.append(f"<li>{html.escape(f'Round {index}: {note}')}</li>")
        path = root / "rounds" / str(index) / "design" / "design.json"
        if path.exists():
            design = files.read_json(path)
            text = f"Round {index + 1} was designed by: {design['source']}."
            if design["kept_previous"]:
                text += f" The previous configuration was kept: {design['reason']}."
            if design["repairs"]:
                text += f" Repairs: {'; '.join(design['repairs'])}."
            notes.append(f"<li>{html.escape(text)}</li>")
    header = ("Round", "Lake", "share asked / made", "hole ratio", "waits asked / made", "made")
    return [
        "<h2>Configurations</h2>",
        _image(picture, "Data share, hole ratio and wait ratio by round and lake size"),
        _table(header, rows),
        f"<ul>{''.join(notes)}</ul>" if notes else "",
    ]


def _failure_section(root: Path, rounds: Sequence[int]) -> list[str]:
    folder = root / "rounds" / str(rounds[-1]) if rounds else root / "initial"
    instances = list(formats.read_jsonl(root / "validation" / "instances.jsonl"))
    by_id = {record["id"]: record for record in instances}
    answers = [r for r in formats.read_jsonl(folder / "answers.jsonl") if not r["valid"]]
    drawings = []
    for answer in one_of_each_kind(answers, lambda row: tuple(row["failed"]), _FAILURES_SHOWN):
        instance = formats.from_records([by_id[answer["id"]]])
        plan = mapf_jax.plans_from_texts([answer["text"]], instance.starts.shape[-2])
        failed = ", ".join(check.replace("_", " ") for check in answer["failed"])
        if plan.parsable[0] and plan.num_agents[0] == instance.starts.shape[-2]:
            frames = render.ascii_frames(instance[0], jax.tree.map(lambda leaf: leaf[0], plan))
            drawing = "\n\n".join(frames)
        else:
            drawing = render.ascii_instance(instance[0]) + "\n\n" + answer["text"]
        drawings.append(
            f"<div><p><b>{html.escape(answer['id'])}</b>: failed {html.escape(failed)}</p>"
            f"<details><summary>Step by step</summary><pre>{html.escape(drawing)}</pre></details>"
            f"<pre>{html.escape(render.ascii_instance(instance[0]))}</pre></div>"
        )
    return [
        "<h2>Failures after the last round</h2>",
        '<p class="note">S and s are the starts, G and g the goals of agents 0 and 1, F is frozen, '
        "H a hole; step by step digits are the agents and # marks a broken rule.</p>",
        f'<div class="failures">{"".join(drawings)}</div>' if drawings else "<p>None.</p>",
    ]


def _axes(panels: int, width: float = 4.6) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, panels, figsize=(width * panels, 3.4), layout="constrained", squeeze=False
    )
    for panel in axes[0]:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.3)
    return figure, axes[0]


def _png(figure: Any) -> bytes:
    import io

    from matplotlib import pyplot

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130)
    pyplot.close(figure)
    return buffer.getvalue()


def _validation_figure(validations: Sequence[tuple[str, Any]]) -> bytes:
    figure, panels = _axes(2)
    names = [name for name, _ in validations]
    sizes = sorted({int(size) for _, v in validations for size in v["by_size"]})
    for panel, kind in zip(panels, ("valid", "optimal"), strict=True):
        mean = [100 * v[f"{kind}_rate"] for _, v in validations]
        panel.plot(names, mean, color="black", linewidth=2.5, label="all sizes")
        for i, size in enumerate(sizes):
            values = [100 * v["by_size"][str(size)][f"{kind}_rate"] for _, v in validations]
            panel.plot(
                names, values, marker=_MARKERS[i % 8], color=_COLOURS[i % 8], label=f"{size}x{size}"
            )
        panel.set_title(f"{kind} answers")
        panel.set_xlabel("after round")
        panel.set_ylabel("percent")
        panel.set_ylim(0, 100)
    panels[0].legend(fontsize="small")
    return _png(figure)


def _training_figure(root: Path, rounds: Iterable[int]) -> bytes:
    figure, panels = _axes(2)
    curves: dict[str, list[float]] = {"reward": [], "task/valid": [], "signal_share": []}
    starts = []
    for index in rounds:
        starts.append(len(curves["reward"]))
        for line in (root / "rounds" / str(index) / "train.jsonl").read_text().splitlines():
            record = json.loads(line)
            for name, values in curves.items():
                values.append(record[name])
    panels[0].plot(curves["reward"], color=_COLOURS[0])
    panels[0].set_title("mean reward")
    panels[1].plot(curves["task/valid"], color=_COLOURS[2], label="valid answers")
    panels[1].plot(
        curves["signal_share"], color=_COLOURS[1], linestyle="--", label="groups with signal"
    )
    panels[1].set_title("share in the training batches")
    panels[1].set_ylim(0, 1)
    panels[1].legend(fontsize="small")
    for panel in panels:
        panel.set_xlabel("training step (dotted: a round begins)")
        for start in starts:
            panel.axvline(start, color="grey", linestyle=":")
    return _png(figure)


def _configuration_figure(root: Path, rounds: Sequence[int]) -> bytes:
    figure, panels = _axes(3, 3.6)
    configs = [
        yaml.safe_load((root / "rounds" / str(index) / "environment.yaml").read_text())
        for index in rounds
    ]
    sizes = sorted({size for config in configs for size in config})
    for panel, name in zip(panels, ("data_ratio", "hole_ratio", "wait_ratio"), strict=True):
        for i, size in enumerate(sizes):
            values = [config[size][name] for config in configs]
            panel.plot(
                [str(index) for index in rounds],
                values,
                marker=_MARKERS[i % 8],
                color=_COLOURS[i % 8],
                label=f"{size}x{size}",
            )
        panel.set_title(name.replace("_", " "))
        panel.set_xlabel("round")
        panel.set_ylim(-0.03, 1.03)
    if sizes:
        panels[0].legend(fontsize="small")
    return _png(figure)


def _image(picture: bytes, caption: str) -> str:
    data = base64.b64encode(picture).decode()
    return f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'


def _table(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    def line(cells: Sequence[Any], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(c))}</{tag}>" for c in cells) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(header, "th")}\n{body}</table></div>'


def main(argv: Sequence[str]) -> None:
    """Writes the report of the run in the folder that is named."""
    if len(argv) != 2:
        raise app.UsageError("one argument is needed: the folder of a run")
    try:
        print(write(Path(argv[1])))
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    app.run(main)
