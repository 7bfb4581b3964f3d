"""A whole run that several files of tests read."""

import os

import pytest
import whole_runs


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """(folder, printed text) of a run that nobody stopped; to be read only.

    The workers of xdist, each with a folder of its own in that of the session, share it.
    """
    folder = tmp_path_factory.getbasetemp()
    return whole_runs.undisturbed(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
