"""The tables of the page about several processes: a million positions on paper, and forecasts beside real runs."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from docs.making.measured import RESULTS


@cache
def results() -> dict[str, Any]:
    """What `benchmarks/forecasts.py` wrote."""
    return json.loads((RESULTS / "forecasts_cpu" / "forecasts.json").read_text(encoding="utf-8"))


def name_of(pattern: str) -> str:
    """A pattern as a table names it: BigBird's is too long for a cell."""
    return "BigBird" if "random_blocks" in pattern else f"`{pattern}`"


def milliseconds(seconds: float) -> str:
    """Milliseconds with three digits; a difference that is a rounding error is 0.

    >>> milliseconds(1.407), milliseconds(0.0055), milliseconds(1e-12)
    ('1,407', '5.50', '0')
    """
    number = 1e3 * seconds
    if number < 1e-6:
        return "0"
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}"


def million() -> str:
    """The plan of a million positions."""
    lines = [
        "| pattern | layout, form | GPUs | MiB received | MiB of memory | ms computing | ms in all | ms waiting "
        "| computing |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in results()["million"]:
        cells = (
            name_of(row["pattern"]), f"{row['layout']}, {row['form']}", f"{row['gpus']:,}",
            f"{row['received'] / 2**20:,.0f}", f"{row['memory'] / 2**20:,.0f}", milliseconds(row["compute"]),
            milliseconds(row["seconds"]), milliseconds(row["waiting"]), f"{row['efficiency']:.0%}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def compared() -> str:
    """The forecast of each call from constants measured right before it, and what the call took."""
    lines = [
        "| pattern | layout, form | processes | positions of each | ms computing | ms forecast | ms measured "
        "| measured / forecast |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in results()["compared"]:
        cells = (
            name_of(row["pattern"]), f"{row['layout']}, {row['form']}", str(row["processes"]),
            f"{row['positions']:,}", milliseconds(row["computing"]), milliseconds(row["forecast"]),
            f"{milliseconds(row['measured'])} ({milliseconds(row['least'])} to {milliseconds(row['most'])})",
            f"{row['measured'] / row['forecast']:.2f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


PARTS = {"forecast-million": million, "forecast-compared": compared}
