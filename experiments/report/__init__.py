"""Writes a self-contained page, without scripts, about a run, and the figures of a run or a study.

    python -m experiments.report FOLDER

writes `report.html` into the folder of a run. Each chart of a run or of a study is
`figures/NAME.png`, with its numbers in `data/NAME.csv`; the tables of a study are in its
`comparison.md`.
"""

from pathlib import Path

from experiments.report import run, study
from experiments.report.charts import Gallery
from experiments.run import store as files
from experiments.run.reading import is_run, read_run
from experiments.study.results import FILE


def write(root: Path) -> Path:
    """Writes the page about the run in a folder, or the figures of the study there, and their data.

    Those of an incomplete run or study cover the part that exists.

    Args:
      root: the folder.

    Returns:
      The page's path, or that of the figures.

    Raises:
      ValueError: the folder contains neither a run nor a study, or one of its files is damaged;
        the message names it.
    """
    gallery = Gallery(root)
    if (root / FILE).is_file():
        for chart in study.figures(root):
            gallery.add(chart)
        return root / "figures"
    if not is_run(root):
        raise ValueError(
            f"{root}: neither a run (with a config.json) nor a study (with a study.json) is there"
        )
    files.write_file(root / "report.html", run.page(read_run(root), gallery))
    return root / "report.html"
