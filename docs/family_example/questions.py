"""A Hugging Face data set with a scoring function as a family (docs/extending.md)."""

import os

import datasets

from experiments import families

# Or load_dataset("openai/gsm8k", "main"), with columns of its own.
DATA = datasets.load_dataset("json", data_files=os.environ["QUESTIONS"], split="train")
LEVEL, QUESTION, ANSWER = "level", "question", "answer"


class Questions(families.DataSet):
    """A row for each level of the data set."""

    def prompt(self, problem):
        """The question."""
        return problem[QUESTION]

    def verify(self, problem, text):
        """Whether the completion ends with the answer: put your own scoring here."""
        right = text.split()[-1:] == str(problem[ANSWER]).split()
        return {"failed": [] if right else ["right_value"], "reward": float(right)}


family = Questions(
    [{**question, "group": str(question[LEVEL])} for question in DATA],
    label="level",
    task="to answer questions",
    checks=["right_value"],
)
