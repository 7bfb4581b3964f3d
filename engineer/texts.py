"""What an engineer knows of an environment family besides its space: checks and texts."""

import dataclasses
from collections.abc import Mapping, Sequence

from engineer.space import ConfigurationSpace, column

SUMMARY_REQUEST = (
    "Before the configuration, explain in at most three sentences what it is meant to achieve. "
    "You will be shown this explanation when you design the next round."
)
"""Asked for only where module S carries the explanation forward."""

NO_HISTORY = "no round to show yet"
NO_SUMMARY = "no explanation yet"


@dataclasses.dataclass(frozen=True)
class FamilyTexts:
    """The checks of a family, and the texts of a context that do not change from round to round.

    Attributes:
      label: what a row is called; as in the space.
      checks: what every answer is checked for; it is valid if it passes all of them.
      alone: checks after whose failure nothing else can be judged of an answer.
      instruction: what the task is, what may be changed, how the results are to be read.
      guideline: module G, how the parameters bear on learnability.
      output_format: how the configuration is to be written.
      failure_words: the failures shown, in this order, each with the checks that it counts.
      explanation: of the designs in demonstrations, where a context carries one forward.
    """

    label: str
    checks: tuple[str, ...]
    alone: tuple[str, ...]
    instruction: str
    guideline: str
    output_format: str
    failure_words: Mapping[str, tuple[str, ...]]
    explanation: str


def plain_texts(space: ConfigurationSpace, task: str, checks: Sequence[str]) -> FamilyTexts:
    """Texts for any space, made of the names and meanings of its parameters.

    Args:
      space: its parameters' `meaning`s are quoted.
      task: what the trained model learns, such as "to add numbers".
      checks: names of the checks, each shown under its own name.
    """
    meanings = " ".join(
        f"{parameter.name}: {parameter.meaning or 'a number of the generator'}"
        f"{'' if (parameter.meaning or '.').endswith('.') else '.'}"
        for parameter in space.parameters
    )
    sums = " ".join(
        f"The numbers {', '.join(f'{name} of {row}' for row, name in group)} sum to 1."
        if set(group) != set(column(space.rows, group[0][1]))
        else f"The {group[0][1]} of all {space.label}s sum to 1."
        for group in space.simplexes
    )
    low_high = ", ".join(
        f"{parameter.name} from {min(low for low, _ in parameter.bounds):g} to "
        f"{max(high for _, high in parameter.bounds):g}"
        for parameter in space.parameters
    )
    form = ", ".join(f"{name}: number" for name in space.names)
    return FamilyTexts(
        label=space.label,
        checks=tuple(checks),
        alone=(),
        instruction=(
            f"You design the training data for a language model that learns {task}. A generator "
            f"makes the next training set from some numbers for each {space.label}. {meanings} "
            f"{sums} You may change these numbers and nothing else. Choose the numbers with which "
            "one more round of training improves the valid and optimal rates on the validation "
            "set most. In the results, valid and optimal are rates from 0 to 1, and the other "
            "numbers count the answers that failed a check."
        ),
        guideline=(
            "Guideline: the model is trained by reinforcement learning on groups of its own "
            "answers. A group teaches only if some of its answers succeed and others fail. Give "
            "the largest fraction to what is solved about half of the time, a small one to what "
            "already works, and change what works in small steps."
        ),
        output_format=(
            "You may reason first. End with exactly one configuration in YAML, one line for each "
            f"{space.label} in the given order, {low_high}, in this form: NAME: {{{form}}}"
        ),
        failure_words={check: (check,) for check in checks},
        explanation=(
            f"More data for each {space.label} that is solved about half of the time, harder "
            "problems where most answers are valid, easier ones where few are."
        ),
    )
