"""The ladder of sums of 3 to 12 digits with rewards of 0 and 1: only a whole sum counts."""

from experiments.configs.sums_ladder import Ladder


class WholeSums(Ladder):
    """The ladder without credit for the digits before the first error."""

    reward = "1 for a right sum, else 0"

    def verify(self, problem, text):
        """Returns the failed check, if any; the reward follows from it."""
        return {"failed": super().verify(problem, text)["failed"]}


family = WholeSums()
