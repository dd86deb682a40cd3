"""The tables of the page about reliability, from the committed file of results."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from docs.making.measured import RESULTS


@cache
def results() -> dict[str, Any]:
    """The committed results of the long tier."""
    return json.loads((RESULTS / "reliability.json").read_text(encoding="utf-8"))


def goals() -> str:
    """A row for each goal: what is asked, what was measured, when, and by which command."""
    lines = ["| | goal | asked | measured | met | date | command |", "|---|---|---|---|---|---|---|"]
    for row in results()["goals"]:
        met = "yes" if row["met"] else f"no: {row['why']}" if row["why"] else "no"
        commands = "<br>".join(f"`{command}`" for command in row["commands"])
        cells = (row["number"], row["name"], row["asked"], row["figure"], met, row["date"], commands)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def summary() -> str:
    """How many goals are met."""
    rows = results()["goals"]
    met = sum(row["met"] for row in rows)
    minutes = sum(record["cpu_seconds"] for record in results()["runs"].values()) / 60
    return (
        f"{met} of {len(rows)} goals are met. The figures of this page took {minutes:.0f} minutes of CPU time in all."
    )


PARTS = {"reliability-goals": goals, "reliability-summary": summary}
