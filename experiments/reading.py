"""Measures whether a model reads its evidence, before a run relies on its designs.

    python -m experiments.reading --config=smollm2

Of two designs, the model should find the one likelier that matches the evidence in its context. The
contexts are made up, for the model, family and context of a configuration: as they are in its runs,
and under two controls for copying. See `engineer.reading`.
"""

from collections.abc import Iterator, Sequence

from absl import app, flags

from engineer import reading
from engineer.reading import CONTROLS, Control, Reading
from experiments import settings as settings_lib
from experiments.ring.reading import CHANCE, INSTEAD, RULES, interval, questions, scorer
from experiments.run import policy, process
from experiments.settings import Settings, command_line
from experiments.text.errors import ended_in_one_line, memory_errors, user_errors

_CONFIG = command_line.define_config()
_RULE = flags.DEFINE_enum(
    "rule",
    RULES[0],
    ("target", "mastery", "learnability", "failures"),
    "Whose designs match the evidence; by target (or mastery) experiments.warm_start teaches.",
)
_QUESTIONS = flags.DEFINE_integer("questions", 200, "Pairs of contexts of a kind.", lower_bound=1)

_CONTROLS: dict[Control, str] = {
    "plain": "as in runs",
    "order": "rows in another order",
    "names": "letters for rows",
}


def verdict(found: dict[Control, Reading]) -> str:
    """A line on whether a run can rely on the model, and on what else if it cannot."""
    reads = {control: interval(one).low > CHANCE for control, one in found.items()}
    if not reads["plain"]:
        return f"reading is at chance: {INSTEAD}"
    lost = [_CONTROLS[control] for control, one in reads.items() if not one]
    if lost:
        return f"reads contexts as they are in runs, but is at chance with {' and '.join(lost)}"
    return "reads: its designs follow the evidence"


def table(found: dict[Control, Reading]) -> Iterator[str]:
    """Yields the lines of a table of the readings."""
    width = max(map(len, _CONTROLS.values()))
    yield f"{'contexts'.ljust(width)}  matching likelier  follows evidence (95 %)  gain, nats"
    for control, one in found.items():
        low, high = interval(one)
        follows = f"{one.follows / one.questions:.0%} ({low:.0%} to {high:.0%})"
        cells = f"{one.likelier:>15.0%}  {follows:>23}  {one.margin:>10.2f}"
        yield f"{_CONTROLS[control].ljust(width)}    {cells}"


def measure(settings: Settings, rule: str, count: int) -> dict[Control, Reading]:
    """Reads `count` questions of each kind with the model of a configuration.

    Raises:
      UserError: an option, the family or the model is wrong, or the rule makes too few questions.
    """
    with user_errors():
        family = settings.load_family()
        model = policy.load_policy(settings)
        params = policy.load_params(settings, model)
    score = scorer(model, params)
    return {
        control: reading.read(
            questions(family, settings.engineer.spec, rule, count, control), score
        )
        for control in CONTROLS
    }


def main(argv: Sequence[str]) -> None:
    """Runs the command; user errors end it with one line."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}; options look like --name=value")
    process.quieten()
    less = "--config.model.dtype=bfloat16 and a shorter --config.engineer.context need less"
    with ended_in_one_line(), memory_errors(less):
        with user_errors():
            settings = settings_lib.from_config(_CONFIG.value)
        found = measure(settings, _RULE.value, _QUESTIONS.value)
    print(
        f"{settings.model.path} on {settings.family}: {_QUESTIONS.value} pairs of contexts "
        f"{settings.engineer.context}, designs by {_RULE.value}; without reading 50 %"
    )
    print("\n".join(table(found)))
    print(verdict(found))


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
