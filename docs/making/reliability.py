"""The table of the page about reliability, from the committed file of results."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from docs.making.measured import RESULTS

APART = ("law ", "regard ", "as ")  # counts by law, by command and by machine: many, and in the file
MOST = 3


@cache
def runs() -> dict[str, dict[str, Any]]:
    """The committed results of the long tier."""
    return json.loads((RESULTS / "reliability.json").read_text(encoding="utf-8"))["runs"]


def table() -> str:
    """A row for each run: what it shows, what was counted, and when."""
    lines = ["| run | what it shows | cases | counted | wrong | date |", "|---|---|---|---|---|---|"]
    for name, record in runs().items():
        counts = sorted(record["counts"].items(), key=lambda one: -one[1])
        words = [f"{count:,} {what}" for what, count in counts if not what.startswith(APART)][:MOST]
        few = f" of {record['asked']:,}" if record["cases"] < record["asked"] else ""
        unit = record["unit"].replace("parts", "part") if record["cases"] == 1 else record["unit"]
        cases = f"{record['cases']:,}{few} {unit}"
        cells = (name, record["claim"], cases, ", ".join(words), len(record["wrong"]), record["last"])
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def summary() -> str:
    """How much was run."""
    minutes = sum(record["cpu_seconds"] for record in runs().values()) / 60
    return f"The {len(runs())} runs took {minutes:.0f} minutes of CPU time in all."


PARTS = {"reliability-runs": table, "reliability-summary": summary}
