"""Reports of measurements that take minutes: a benchmark writes one, and a lesson reads its figures from it.

A report is a JSON file in `regard_lab/teaching/reports/`. It holds the command, the date and the machine, so that a
lesson can print where its figures come from. `benchmarks/report.py` writes it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError

REPORTS = Path(__file__).parent / "reports"


@dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of a benchmark, with the command that measured them.

    Args:
        command: what was run.
        day: the date, as in 2026-11-22.
        machine: processor architecture, cores and versions.
        figures: JSON values.
    """

    command: str
    day: str
    machine: str
    figures: dict[str, Any]

    @property
    def source(self) -> str:
        """One sentence that says where the figures come from."""
        return f"Measured by “{self.command}” on {self.day} ({self.machine}); the lesson reads the committed report."


def read_report(name: str) -> Report:
    """Read the report of that name."""
    path = REPORTS / f"{name}.json"
    if not path.is_file():
        names = sorted(path.stem for path in REPORTS.glob("*.json"))
        raise ArgumentError(f"there is no report {name!r}; there are {', '.join(names) or 'none'}")
    return Report(**json.loads(path.read_text(encoding="utf-8")))
