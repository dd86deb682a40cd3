"""Reports of measurements that take minutes: a benchmark writes one, and a lesson reads its figures from it.

A report is a JSON file in `regard_lab/teaching/reports/`. It holds the command, the date and the machine, so that a
lesson can print where its figures come from.
"""

import json
import os
import platform
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
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


def write_report(name: str, command: str, figures: dict[str, Any]) -> Path:
    """Write a report with today's date and this machine, and return its path."""
    cores = count_of(os.cpu_count() or 1, "cores")
    threads = count_of(torch.get_num_threads(), "threads")
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    machine = f"{platform.machine()}, {cores}, {threads}, {versions}"
    report = Report(command=command, day=f"{date.today()}", machine=machine, figures=figures)
    return store_report(name, report)


def store_report(name: str, report: Report) -> Path:
    """Write a report as it is, such as one that was measured elsewhere, and return its path."""
    fields = asdict(report)
    figures = ",\n".join(f"  {line}" for line in _json_lines(fields.pop("figures")))
    head = "".join(f" {line},\n" for line in _json_lines(fields))

    path = REPORTS / f"{name}.json"
    path.write_text(f'{{\n{head} "figures": {{\n{figures}\n }}\n}}\n', encoding="utf-8")
    return path


def _json_lines(values: dict[str, Any]) -> list[str]:
    """One line for each value, so that a difference between two reports names the figures that differ."""
    to_json = partial(json.dumps, ensure_ascii=False)
    return [f"{to_json(name)}: {to_json(value)}" for name, value in values.items()]
