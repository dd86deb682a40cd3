"""One browser for all tests of pages, and trainings that draw no pixels."""

import pytest
from explorer.browsing import chromium

from regard.storage.files import replace_file
from regard_lab.seeing import canvas
from regard_lab.training import draw_curves
from regard_lab.training.recipes import run_folder


@pytest.fixture(scope="session")
def browser():
    with chromium() as running:
        yield running


def compose_curves(log, picture):
    """What a training draws at its end, without its pixels: they took half of the CPU time of a small training.

    `training/test_record.py` draws curves whole.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas, "save", lambda figure, path: replace_file(path, b"\x89PNG\r\n\x1a\n"))
        return draw_curves(log, picture)


@pytest.fixture(autouse=True, scope="session")
def _curves_of_runs_without_pixels():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_folder, "draw_curves", compose_curves)
        yield
