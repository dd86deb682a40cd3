"""Writes the report of the lesson `generation` from the measurements of `benchmarks/kv_heads.py`.

python benchmarks/generation_story.py

It takes a second: the trainings are those of benchmarks/results/kv_heads_cpu, and command, day and machine are copied.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard_lab.lessons.report import REPORTS, Report

FOLDER = Path(__file__).parent / "results" / "kv_heads_cpu"
KEPT = ("seed", "kv_heads", "kv_bytes", "kv_bytes_before", "before", "converted", "uptrained", "control")


def report_of(source: dict[str, Any], page: str) -> Report:
    """The report of the lesson from the results and the page of `benchmarks/kv_heads.py`; the page has the day."""
    day = re.search(r"`, (\d{4}-\d{2}-\d{2}), torch", page)
    assert day is not None, "the second line of kv_heads.md has the day"
    at, recipe = source["environment"], source["recipe"]
    cores, threads = count_of(at["cores"], "cores"), count_of(at["threads"], "threads")
    machine = f"{at['processor']}, {cores}, {threads}, torch {at['torch']}"
    figures = {
        "heads": recipe["heads"], "layers": recipe["layers"], "dim": recipe["dim"], "steps": recipe["steps"],
        "uptrain_steps": recipe["uptrain_steps"], "held_out": recipe["held_out"],
        "rows": [{name: row[name] for name in KEPT} for row in source["rows"] if row["method"] == "mean"],
    }  # fmt: skip
    return Report(command=source["command"], day=day[1], machine=machine, figures=figures)


def main() -> None:
    source = json.loads((FOLDER / "kv_heads.json").read_text(encoding="utf-8"))
    report = report_of(source, (FOLDER / "kv_heads.md").read_text(encoding="utf-8"))
    text = json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n"
    (REPORTS / "generation.json").write_text(text, encoding="utf-8")
    print(report.source)


if __name__ == "__main__":
    main()
