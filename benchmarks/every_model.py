"""Trains every translator on the embedded corpus by the defaults, and reports the share of exactly right sentences.

python benchmarks/every_model.py [MODEL ...] [--runs FOLDER] [--report]

Each run has one thread and a number of steps that takes less than 600 CPU seconds; all else is chosen by the data and
the budget. A finished run is not trained again; `--report` only writes the report, from the records that are there.
"""

from __future__ import annotations

import argparse
import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

import torch

from benchmarks.real_pairs import trained

RESULTS = Path(__file__).parent / "results"
GOAL, BUDGET = 0.9, 600  # exact match, CPU seconds
STEPS = {
    "transformer": 3_000, "bahdanau": 2_200, "luong-dot": 3_200, "luong-general": 5_000, "luong-concat": 3_800,
    "none": 4_000,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(STEPS), help=", ".join(STEPS))
    parser.add_argument("--runs", type=Path, default=Path("runs/every_model"))
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    for model in () if asked.report else asked.models:
        given = {"data": ("pronouns",), "model": model, "steps": STEPS[model]}
        record = trained(asked.runs / model, given)
        (asked.runs / f"{model}.json").write_text(json.dumps(record, indent=1) + "\n")
    records = {model: json.loads((asked.runs / f"{model}.json").read_text()) for model in STEPS
               if (asked.runs / f"{model}.json").exists()}  # fmt: skip
    path = RESULTS / f"every_model_cpu_{date.today():%Y%m}.md"
    path.write_text(report(records))
    print(path)


def report(records: dict[str, Any]) -> str:
    """The report in Markdown."""
    rows = [
        f"| {model} | {record['beam 1']['exact_match']:.3f} | {record['beam 1']['bleu']:.2f} | {record['steps']:,} | "
        f"{record['cpu_seconds']:.0f} |"
        for model, record in records.items()
    ]
    missed = [
        model
        for model, record in records.items()
        if record["beam 1"]["exact_match"] < GOAL or record["cpu_seconds"] > BUDGET
    ]
    unmeasured = [model for model in STEPS if model not in records]
    return "\n".join(
        [
            "# Every translator by its defaults",
            "",
            f"`python benchmarks/every_model.py`, {date.today()}, torch {torch.__version__}, Python "
            f"{platform.python_version()}, one thread of a shared machine.",
            "",
            "`regard train translation --data pronouns --model MODEL --steps N`, nothing else given: 60,000 training "
            "sentences of the embedded corpus, scored by greedy search on 600 sentences with new pairs of nouns.",
            "",
            "| model | exact match | BLEU | steps | CPU seconds |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"The goal is an exact match of {GOAL} within {BUDGET} CPU seconds. "
            + (f"Missed by: {', '.join(missed)}." if missed else "Each model of the table keeps it."),
            *([f"Not measured yet: {', '.join(unmeasured)}."] if unmeasured else []),
            "",
        ]
    )


if __name__ == "__main__":
    main()
