"""Hours and chip-hours of the published budget, and where the time of a round goes at scale.

    python -m experiments.scaling --machines=Qwen3-4B@v5p-64 --mean_tokens=1000
    python -m experiments.scaling --chips=32,128,512,1024 --model=Qwen3-4B

A simulation at data-sheet peaks times assumed shares of them; see `experiments.round_time`. The
first form is of the configurations of `experiments.machines`, all of them if none is named; the
second one of ever more v5p chips with the batch that is asked for.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from experiments import machines
from experiments.errors import UserError
from experiments.round_time import PHASES, AnswerLengths, Phases, Workload, round_phases
from learner.hardware import ACCELERATORS, Assumptions
from learner.roofline import Deployment, mesh_for


def budget_table(names: Sequence[str], lengths: AnswerLengths, assumptions: Assumptions) -> str:
    """Tokens a second, hours and chip-hours of all rounds, for configurations, as Markdown."""
    lines = [
        "| configuration | chips | sampled tokens/s | of the update | hours | chip-hours | "
        "of peak |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in names:
        settings = machines.run_settings(machines.config(name))
        machine = machines.deployment(name, assumptions)
        workload = Workload(settings, lengths, machines.PROMPT_TOKENS)
        phases = round_phases(workload, machine)
        hours = settings.loop.rounds * phases.seconds / 3600
        sampling = phases.exchange + phases.prefill + phases.decoding + phases.stragglers
        trained = workload.nondegenerate_fraction * phases.tokens
        lines.append(
            f"| {name} | {machine.chips} | {phases.tokens / sampling:,.0f} "
            f"| {trained / phases.update:,.0f} | {hours:.1f} | {hours * machine.chips:.0f} "
            f"| {phases.products / phases.seconds:.1%} |"
        )
    return "\n".join(lines)


def scale_table(columns: Sequence[tuple[str, Phases, int]], rounds: int) -> str:
    """Where the time of a round goes: a column for each (title, phases, chips), as Markdown."""
    titles = [title for title, _, _ in columns]
    lines = ["| | " + " | ".join(titles) + " |", "| --- |" + " --- |" * len(columns)]

    def row(name: str, values: Sequence[str]) -> None:
        lines.append(f"| {name} | " + " | ".join(values) + " |")

    row("minutes of a round", [f"{phases.seconds / 60:.1f}" for _, phases, _ in columns])
    for name in PHASES:
        shares = [getattr(phases, name) / phases.seconds for _, phases, _ in columns]
        row(name, [f"{share:.1%}" for share in shares])
    row("lanes in use", [f"{phases.lanes:.0%}" for _, phases, _ in columns])
    row("products at peak", [f"{p.products / p.seconds:.2%}" for _, p, _ in columns])
    hours = [rounds * phases.seconds * chips / 3600 for _, phases, chips in columns]
    row(f"chip-hours of {rounds} rounds", [f"{value:,.0f}" for value in hours])
    return "\n".join(lines)


def pod(
    model: str,
    chips: int,
    lengths: AnswerLengths,
    assumptions: Assumptions,
    prompts: int,
    tensor: int,
    budget: int,
) -> tuple[Workload, Deployment]:
    """A model on so many v5p chips.

    Args:
        prompts: of a training step.
        tensor: size of that mesh axis.
        budget: most tokens of an answer.

    Raises:
        ValueError: the chips do not go with the axes.
    """
    fsdp = min(8, chips // tensor)
    data, fsdp, tensor = mesh_for(chips, max(1, fsdp), tensor)
    options = machines.config(f"{model}@v5p-64")
    options.mesh.data, options.mesh.fsdp, options.mesh.tensor = data, fsdp, tensor
    options.training.prompts_per_step = prompts
    options.training.max_new_tokens = budget
    options.validation.max_new_tokens = budget
    shards, answers = data * fsdp, prompts * options.training.group_size
    place = machines.layout(f"{model}@v5p-64")
    # No more rows at a time than a device has answers, and no fewer than one.
    rows = max(1, min(place.rows, answers // shards))
    options.training.micro_batch_rows = rows * shards
    options.training.sampling_rows = place.answers * tensor * shards
    machine = Deployment(
        machines.model_config(f"{model}@v5p-64"), ACCELERATORS["v5p"], data, fsdp, tensor,
        assumptions,
    )  # fmt: skip
    settings = machines.run_settings(options)
    return Workload(settings, lengths, machines.PROMPT_TOKENS), machine


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r}: numbers separated by commas are needed") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Simulate, print Markdown; 2 if the options are wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.scaling",
        description=__doc__.split("\n\n")[0] if __doc__ else None,
    )
    add = parser.add_argument
    add("--machines", default="", help=f"configurations: {', '.join(machines.NAMES)}")
    add("--chips", default="", help="v5p chips, several numbers: where the time goes")
    add("--model", choices=machines.MODELS, default="Qwen3-4B", help="with --chips")
    add("--prompts", default="32", help="with --chips: prompts of a step; one or as many as chips")
    add("--tensor", type=int, default=1, help="with --chips: size of that mesh axis")
    add("--budget", type=int, default=4096, help="with --chips: most tokens of an answer")
    add("--mean_tokens", type=float, default=1000.0, help="mean length of an answer")
    add("--sigma", type=float, default=0.6, help="of the logarithm of the lengths")
    add("--lengths_of", default="", help="a run's folder whose spread of lengths takes its place")
    for field in dataclasses.fields(Assumptions):
        add(f"--{field.name}", type=float, default=field.default, help="see learner.hardware")
    options = parser.parse_args(argv)
    try:
        assumptions = Assumptions(
            **{
                field.name: getattr(options, field.name)
                for field in dataclasses.fields(Assumptions)
            }
        )
        lengths = AnswerLengths(options.mean_tokens, sigma=options.sigma)
        if options.lengths_of:
            lengths = AnswerLengths.of_run(options.lengths_of, options.mean_tokens)
        if not options.chips:
            names = options.machines.split(",") if options.machines else machines.NAMES
            print(budget_table(names, lengths, assumptions))
            return 0
        chips, prompts = _numbers(options.chips), _numbers(options.prompts)
        if len(prompts) not in (1, len(chips)):
            raise ValueError(f"prompts={options.prompts}: one number, or one for each of --chips")
        columns = []
        for i, count in enumerate(chips):
            asked = prompts[i % len(prompts)]
            workload, machine = pod(
                options.model, count, lengths, assumptions, asked, options.tensor, options.budget
            )
            mesh = f"{machine.data}x{machine.fsdp}x{machine.tensor}"
            title = f"{count} chips ({mesh}), {asked} prompts"
            columns.append((title, round_phases(workload, machine), count))
        print(scale_table(columns, workload.settings.loop.rounds))
    except (ValueError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
