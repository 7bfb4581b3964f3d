"""One page about a run or a study, that needs no other file and no script.

    python -m experiments.report FOLDER

writes `report.html` into the folder, every chart of it as `figures/NAME.png`, and the numbers that
the chart shows as `data/NAME.csv`.
"""

from pathlib import Path

from experiments import store as files
from experiments.report import run, study
from experiments.report.charts import Gallery
from experiments.run_reading import is_run, read_run


def write(root: Path) -> Path:
    """Writes the page about the run or the study in a folder, and its figures and data.

    A run or study that is not complete gets a page about what there is.

    Args:
      root: the folder.

    Returns:
      The page's path.

    Raises:
      ValueError: there is neither a run nor a study, or a file of it is damaged; the message
        names it.
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
