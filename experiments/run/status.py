"""What a run prints: progress bars with the time left on a terminal, plain lines elsewhere."""

import contextlib
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from engineer.curricula import BY_RULE
from engineer.evidence import FailureBreakdown, GroupOutcome
from engineer.space import Configuration, ConfigurationSpace
from experiments.settings import Settings
from experiments.text.templates import paragraphs
from learner.training.trainer import GRPOTrainer

_SECONDS_BETWEEN_LINES = 15.0
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_AT_MOST = 4.0  # Median steps: longer ones are taken to compile.

Advance = Callable[[int, str], None]


def round_title(index: int) -> str:
    """The number of a round, from 1, with its folder, from 0: where a round is first named."""
    return f"round {index + 1} (rounds/{index})"


class Reporter:
    """Prints progress and results.

    Args:
      quiet: print nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        # In a notebook, FORCE_COLOR would make rich take the pipe for a terminal.
        terminal = sys.stdout.isatty()
        self._console = Console(
            highlight=False, soft_wrap=True, quiet=quiet, force_terminal=terminal, emoji=False
        )

    def line(self, text: str) -> None:
        """Prints a line, without the characters by which a model could command the terminal."""
        self._console.print(_COMMANDS.sub("\N{REPLACEMENT CHARACTER}", text), markup=False)

    def notes(self, texts: Iterable[str]) -> None:
        """Prints indented lines below the previous one."""
        for text in texts:
            self.line(f"  {text}")

    def validation(
        self, title: str, found: FailureBreakdown, greedy: FailureBreakdown, ending: str = ""
    ) -> None:
        """Prints a line about a validation; optimal rates only if they differ from valid ones."""
        all_optimal = all(row.optimal == row.valid for row in (*found.by_group, *greedy.by_group))
        kinds = ("valid",) if all_optimal else ("valid", "optimal")

        def rates(of: FailureBreakdown | GroupOutcome, form: str) -> list[str]:
            return [format(getattr(of, f"{kind}_rate"), form) for kind in kinds]

        overall = " ".join(map(" ".join, zip(kinds, rates(found, ".1%"), strict=True)))
        groups = ", ".join(
            f"{found.label} {row.name} {'/'.join(rates(row, '.0%'))}" for row in found.by_group
        )
        self.line(
            f"{title}: {overall}, greedy {' '.join(rates(greedy, '.1%'))} "
            f"({'/'.join(kinds)}: {groups}){ending}"
        )

    def compiling(self, title: str, capacities: Sequence[int]) -> None:
        """Prints a line before the first step of a process; `capacities` as in `plan`."""
        sampler = "the sampler"
        if len(capacities) > 1:
            sampler += f", for up to {len(capacities)} lengths"
        self.line(
            f"{title}: compiling the first step: {sampler}, log-probabilities and update (about "
            "1 min for a tiny model on a CPU; less where they were compiled before)"
        )

    @contextlib.contextmanager
    def bar(
        self, title: str, total: int, done: int = 0, compiles: bool = False
    ) -> Iterator[Advance]:
        """A progress bar; call the yielded function with (steps done, note) after each step.

        Args:
          title: of the bar.
          total: number of steps.
          done: steps done before.
          compiles: some steps, the first among them, compile. They do not count for the time left.
        """
        left = _TimeLeft(done, total, compiles)
        if self._console.is_terminal:
            with Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                transient=True,
            ) as progress:
                task = progress.add_task(title, total=total, completed=done, left="", note="")
                yield lambda now, note: progress.update(
                    task, completed=now, left=left(now), note=note
                )
            return
        last = time.monotonic()

        def advance(now: int, note: str) -> None:
            nonlocal last
            moment, known = time.monotonic(), left(now)
            if moment - last < _SECONDS_BETWEEN_LINES and now < total:
                return
            last = moment
            self.line(f"{title}: " + ", ".join(filter(None, (f"{now}/{total}", known, note))))

        yield advance


class _TimeLeft:
    """The time left as a text, empty while it is unknown; called with the steps done, after each.

    It follows from the mean duration of a step so far. With `compiles` the first does not count,
    and a step that takes far longer than most counts as `_AT_MOST` of them.
    """

    def __init__(self, done: int, total: int, compiles: bool) -> None:
        self._begin = self._last = time.monotonic(), done
        self._total, self._compiles = total, compiles
        self._steps: list[float] = []

    def __call__(self, now: int) -> str:
        last, self._last = self._last, (time.monotonic(), now)
        self._steps.append(_seconds_a_step(last, self._last))
        if now >= self._total:
            return "0 s left"
        if not self._compiles:
            one = _seconds_a_step(self._begin, self._last)
        elif len(self._steps) > 1:
            most = _AT_MOST * statistics.median(self._steps[1:])
            one = statistics.fmean(min(step, most) for step in self._steps[1:])
        else:
            return ""
        return f"{one * (self._total - now):.0f} s left"


def _seconds_a_step(since: tuple[float, int], until: tuple[float, int]) -> float:
    """Between two pairs of (moment, steps done)."""
    return (until[0] - since[0]) / max(until[1] - since[1], 1)


def solved(found: FailureBreakdown) -> str:
    """The valid rate, overall and by row."""
    rows = ", ".join(f"{found.label} {row.name} {row.valid_rate:.0%}" for row in found.by_group)
    return f"valid {found.valid_rate:.1%} ({rows})"


def truncation(found: FailureBreakdown, budget: int) -> list[str]:
    """A warning if many answers of some row were truncated, else nothing.

    Args:
      budget: tokens that an answer could have, `validation.max_new_tokens`.
    """
    rows = [f"{row.truncated_rate:.0%} of {found.label} {row.name}" for row in found.truncated_rows]
    if not rows:
        return []
    return [
        f"truncated answers: {', '.join(rows)} reach validation.max_new_tokens={budget} and may "
        "fail for no other reason"
    ]


def plan(settings: Settings, trainer: GRPOTrainer) -> list[str]:
    """A few lines on what a run is going to do, and the device memory that it needs."""
    return paragraphs(
        "plan.md",
        settings=settings,
        of_model=settings.engineer.designer not in BY_RULE,
        memory=trainer.memory(),
        capacities=trainer.sampler.capacities,
    )


def memory_advice(settings: Settings, planned: Sequence[str]) -> str:
    """What needs the memory by `plan`, and the options that need less."""
    training, remat = settings.training, settings.model.remat
    return (
        f"planned without activations: {planned[-1]}. An update needs less with a smaller "
        f"training.micro_batch_size={training.micro_batch_size}, another model.remat={remat!r} "
        f"('full' needs least) or training.lora.rank; sampling with a smaller "
        f"training.sampling_slots={training.sampling_slots}"
    )


def describe(design: Mapping[str, Any], was: Configuration, space: ConfigurationSpace) -> str:
    """The end of a line about a design.

    Args:
      design: its JSON form.
      was: the configuration before it.
      space: of both.
    """
    config = numbers(Configuration.from_dict(design["config"]), space, was)
    kept = f" (kept: {design['reason']})" if design["kept_previous"] else ""
    nothing = design.get("nothing")  # Older runs lack this field.
    return f"{f'; designed nothing: {nothing}' if nothing else ''}; next: {config}{kept}"


def numbers(
    config: Configuration, space: ConfigurationSpace, was: Configuration | None = None
) -> str:
    """A configuration row by row; a number that differs from the one before as in "0.18 -> 0.24".

    Args:
      config: what to show.
      space: of both.
      was: the configuration before it, if any.
    """

    def shown(row: str, name: str) -> str:
        form = f".{space.parameter(name).decimals}f"
        now = format(config[row, name], form)
        before = now if was is None else format(was[row, name], form)
        return f"{name} {now}" if now == before else f"{name} {before} -> {now}"

    return "; ".join(
        f"{space.label} {row}: {', '.join(shown(row, name) for name in space.names)}"
        for row in space.rows
    )
