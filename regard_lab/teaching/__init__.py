"""What the lessons are made with: cells of a page, tables, claims, figures, seeded vectors, reports of measurements.

Names load when they are first used, so that the lessons can be listed without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers
    from regard_lab.teaching.board import does_not_hold as does_not_hold
    from regard_lab.teaching.board import figure as figure
    from regard_lab.teaching.board import holds as holds
    from regard_lab.teaching.board import model_drawing as model_drawing
    from regard_lab.teaching.board import table as table
    from regard_lab.teaching.board import undecided as undecided
    from regard_lab.teaching.estimates import Estimate as Estimate
    from regard_lab.teaching.estimates import every as every
    from regard_lab.teaching.exercises import CODE as CODE
    from regard_lab.teaching.exercises import NUMBER as NUMBER
    from regard_lab.teaching.exercises import WHOLE_NUMBERS as WHOLE_NUMBERS
    from regard_lab.teaching.exercises import exercise as exercise
    from regard_lab.teaching.exercises import one_of as one_of
    from regard_lab.teaching.figures import draw_bars as draw_bars
    from regard_lab.teaching.figures import draw_cells as draw_cells
    from regard_lab.teaching.figures import draw_curves as draw_curves
    from regard_lab.teaching.figures import draw_line as draw_line
    from regard_lab.teaching.figures import draw_map as draw_map
    from regard_lab.teaching.figures import draw_reading as draw_reading
    from regard_lab.teaching.figures import label_axes as label_axes
    from regard_lab.teaching.figures import legend_below as legend_below
    from regard_lab.teaching.figures import logarithmic as logarithmic
    from regard_lab.teaching.figures import mark_column as mark_column
    from regard_lab.teaching.figures import scale_beside as scale_beside
    from regard_lab.teaching.figures import write_numbers as write_numbers
    from regard_lab.teaching.inputs import embedded as embedded
    from regard_lab.teaching.inputs import normal as normal
    from regard_lab.teaching.inputs import seeded as seeded
    from regard_lab.teaching.inputs import words_of as words_of
    from regard_lab.teaching.measures import ROUNDING as ROUNDING
    from regard_lab.teaching.measures import comparisons as comparisons
    from regard_lab.teaching.measures import largest as largest
    from regard_lab.teaching.measures import milliseconds as milliseconds
    from regard_lab.teaching.measures import operations as operations
    from regard_lab.teaching.measures import rounded as rounded
    from regard_lab.teaching.page import LessonPage as LessonPage
    from regard_lab.teaching.report import read_report as read_report
    from regard_lab.teaching.watching import watch as watch

# The names that each module defines.
_MODULES = {
    "board": "does_not_hold figure holds model_drawing table undecided",
    "estimates": "Estimate every",
    "exercises": "CODE NUMBER WHOLE_NUMBERS exercise one_of",
    "figures": "draw_bars draw_cells draw_curves draw_line draw_map draw_reading label_axes "
    "legend_below logarithmic mark_column scale_beside write_numbers",
    "inputs": "embedded normal seeded words_of",
    "measures": "ROUNDING comparisons largest milliseconds operations rounded",
    "page": "LessonPage",
    "report": "read_report",
    "watching": "watch",
}
_MODULE_OF: dict[str, str] = {}
for _module, _names in _MODULES.items():
    _MODULE_OF |= dict.fromkeys(_names.split(), _module)

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'regard_lab.teaching' has no attribute {name!r}")
    return getattr(import_module(f"regard_lab.teaching.{_MODULE_OF[name]}"), name)
