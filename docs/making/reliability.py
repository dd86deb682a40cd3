"""The table of the page about reliability, from the committed file of results."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from docs.making.measured import RESULTS

APART = ("law ", "regard ", "as ")  # counts by law, by command and by machine: many, and in the file
MOST = 5


@cache
def runs() -> dict[str, dict[str, Any]]:
    """The committed results of the long tier."""
    return json.loads((RESULTS / "reliability.json").read_text(encoding="utf-8"))["runs"]


def table() -> str:
    """A row for each run: what it shows, what was counted, when, and by which command."""
    lines = ["| what is shown | cases | counted | wrong | date | command |", "|---|---|---|---|---|---|"]
    for record in runs().values():
        counts = sorted(record["counts"].items(), key=lambda one: -one[1])
        words = [f"{count:,} {name}" for name, count in counts if not name.startswith(APART)][:MOST]
        few = f" of {record['asked']:,}" if record["cases"] < record["asked"] else ""
        cases = f"{record['cases']:,}{few} {record['unit']}"
        cells = (record["claim"], cases, ", ".join(words), len(record["wrong"]), record["last"])
        lines.append(f"| {' | '.join(map(str, cells))} | `{record['command']}` |")
    return "\n".join(lines)


def summary() -> str:
    """How much was run."""
    minutes = sum(record["cpu_seconds"] for record in runs().values()) / 60
    return f"The {len(runs())} runs took {minutes:.0f} minutes of CPU time in all."


PARTS = {"reliability-runs": table, "reliability-summary": summary}
