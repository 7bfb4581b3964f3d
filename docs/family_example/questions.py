"""A Hugging Face data set with a scoring function as a family (docs/extending.md)."""

import os

import datasets
import jax
import numpy as np

from engineer.space import ConfigurationSpace, Parameter
from engineer.texts import plain_texts
from experiments import families

# Or load_dataset("openai/gsm8k", "main"), with columns of its own.
DATA = datasets.load_dataset("json", data_files=os.environ["QUESTIONS"], split="train")
LEVEL, QUESTION, ANSWER = "level", "question", "answer"


class Questions(families.Family):
    """A row for each level of the data set; the engineer chooses how much of each."""

    space = ConfigurationSpace(
        "level",
        tuple(map(str, sorted(set(DATA[LEVEL])))),
        (Parameter("fraction", meaning="the part of the set that has this level."),),
        "fraction",
    )
    texts = plain_texts(space, "to answer questions", ("right_value",))

    def generate(self, key, config, count, exclude):
        """Draws without replacement; a level that is used up gives fewer."""
        order = np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(len(DATA))
        seen, left = {problem["index"] for problem in exclude}, self.counts(config, count)
        problems = []
        for index in order.tolist():
            row = str(DATA[index][LEVEL])
            if left.get(row, 0) and index not in seen:
                left[row] -= 1
                problems.append({"group": row, "index": index, **DATA[index]})
        return self.generated(problems, config, count)

    def prompt(self, problem):
        """The question."""
        return problem[QUESTION]

    def verify(self, problem, text):
        """Whether the completion ends with the answer: put your own scoring here."""
        right = text.split()[-1:] == str(problem[ANSWER]).split()
        return {"failed": [] if right else ["right_value"], "reward": float(right)}


family = Questions()
