"""Writes a self-contained page, without scripts, about a run or a study.

    python -m experiments.report FOLDER

writes `report.html` into the folder, each of its charts as `figures/NAME.png`, and the numbers of
each chart as `data/NAME.csv`.
"""

from pathlib import Path

from experiments import store as files
from experiments.report import run, study
from experiments.report.charts import Gallery
from experiments.run_reading import is_run, read_run


def write(root: Path) -> Path:
    """Writes the page about the run or the study in a folder, and its figures and data.

    The page of an incomplete run or study covers the part that exists.

    Args:
      root: the folder.

    Returns:
      The page's path.

    Raises:
      ValueError: the folder contains neither a run nor a study, or one of its files is damaged;
        the message names it.
    """
    gallery = Gallery(root)
    if (root / study.FILE).is_file():
        written = study.page(root, gallery)
    elif is_run(root):
        written = run.page(read_run(root), gallery)
    else:
        raise ValueError(
            f"{root}: neither a run (with a config.json) nor a study (with a study.json) is there"
        )
    files.write_text(root / "report.html", written)
    return root / "report.html"
