"""What the lessons are made with: cells of a page, tables, claims, figures, seeded vectors, reports of measurements."""

# ruff: noqa: F401
from regard_lab.teaching.board import does_not_hold, figure, holds, table, undecided
from regard_lab.teaching.estimates import Estimate, every
from regard_lab.teaching.figures import (
    draw_bars,
    draw_cells,
    draw_curves,
    draw_line,
    draw_map,
    draw_reading,
    label_axes,
    legend_below,
    logarithmic,
    mark_column,
    scale_beside,
    write_numbers,
)
from regard_lab.teaching.page import Page
from regard_lab.teaching.report import read_report
from regard_lab.teaching.words import (
    ROUNDING,
    comparisons,
    embedded,
    largest,
    milliseconds,
    normal,
    operations,
    rounded,
    seeded,
    watch,
    words_of,
)
