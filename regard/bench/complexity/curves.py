"""How time and memory grow: one picture, a column for each group of rows, exact attention in all of them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from regard.bench.complexity.rows import ROWS
from regard.bench.complexity.table import Table
from regard.storage.files import replace_file
from regard.text.packages import needed

FILE = "complexity.png"
GROUPS = {"classic": "layers", "patterns": "patterns", "mechanisms": "mechanisms"}
EXACT = "softmax"
# Okabe and Ito's colours, which all eyes tell apart; a mark of its own for each besides.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C510A")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")


def draw_table(table: Table, folder: Path) -> Path | None:
    """Draw `complexity.png`; None where no row has two lengths.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    measured = {name: row for name, row in table.rows.items() if name in ROWS and len(row["times"]) > 1}
    groups = [group for group in GROUPS if any(ROWS[name].group == group for name in measured)]
    if not groups:
        return None
    with needed("matplotlib", "a picture"):
        import matplotlib
        from matplotlib.figure import Figure
    with matplotlib.rc_context(matplotlib.rcParamsDefault):
        figure = Figure(figsize=(4.6 * len(groups), 9.6), facecolor="white", layout="constrained")
        panels = figure.subplots(2, len(groups), sharex=True, sharey="row", squeeze=False)
        for column, group in enumerate(groups):
            names = [name for name in measured if ROWS[name].group == group and name != EXACT]
            _draw(panels[0, column], names, measured, "times", "median", 1.0)
            _draw(panels[1, column], names, measured, "memory", "bytes", 2.0**20)
            panels[0, column].set_title(GROUPS[group])
            panels[1, column].set_xlabel("length n")
            panels[1, column].legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14))
        panels[0, 0].set_ylabel("seconds of CPU time, 1 thread, forward")
        panels[1, 0].set_ylabel("MiB beside the tensors")
        picture = BytesIO()
        figure.savefig(picture, format="png", dpi=120, metadata={"Software": None})
    replace_file(folder / FILE, picture.getvalue())
    return folder / FILE


def _draw(axes: Any, names: list[str], measured: dict[str, Any], points: str, key: str, unit: float) -> None:
    styles = [("black", "")] + list(zip(COLOURS, MARKS, strict=True))
    for name, (colour, mark) in zip([EXACT, *names], styles, strict=False):
        found = measured.get(name, {}).get(points, [])
        lengths, values = [point["length"] for point in found], [point[key] / unit for point in found]
        width = 2.4 if name == EXACT else 1.3
        axes.plot(lengths, values, color=colour, marker=mark, markersize=4, linewidth=width, label=ROWS[name].title)
    axes.set(xscale="log", yscale="log")
    axes.grid(alpha=0.3)
