"""Trains every translator on the embedded corpus by the defaults, and reports the share of exactly right sentences.

python benchmarks/every_model.py [MODEL ...] [--runs FOLDER] [--report]

Each run has one thread and a number of steps that takes less than 600 CPU seconds; all else is chosen by the data and
the budget. A finished run is not trained again; `--report` only writes the report, from the records that are there.
"""

import json
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.real_pairs import scored, trained
from benchmarks.report import RESULTS, heading, options
from regard_lab.bench.report import markdown_table
from regard_lab.training.recipes.run_folder import read_test

GOAL, BUDGET = 0.9, 600  # exact match, CPU seconds
STEPS = {
    "transformer": 3_000, "bahdanau": 2_200, "luong-dot": 3_200, "luong-general": 5_000, "luong-concat": 3_800,
    "none": 4_000,
}  # fmt: skip


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("models", nargs="*", default=list(STEPS), help=", ".join(STEPS))
    parser.add_argument("--runs", type=Path, default=Path("runs/every_model"))
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    for model in () if asked.report else asked.models:
        given = {"data": ("pronouns",), "model": model, "steps": STEPS[model]}
        run = asked.runs / model
        record = {**trained(run, given), "beam 1": scored(run, read_test(run), 1)}
        (asked.runs / f"{model}.json").write_text(json.dumps(record, indent=1) + "\n")
    records = {model: json.loads((asked.runs / f"{model}.json").read_text()) for model in STEPS
               if (asked.runs / f"{model}.json").exists()}  # fmt: skip
    path = RESULTS / f"every_model_cpu_{date.today():%Y%m}.md"
    path.write_text("\n".join(report(records)) + "\n")
    print(path)


def report(records: dict[str, Any]) -> list[str]:
    """The report in Markdown."""

    def is_good(record: dict[str, Any]) -> bool:
        return record["beam 1"]["exact_match"] >= GOAL and record["cpu_seconds"] <= BUDGET

    missed, unmeasured = ([model for model in STEPS if model in records and not is_good(records[model])],
                          [model for model in STEPS if model not in records])  # fmt: skip
    return [
        *heading("Every translator by its defaults", ", one thread of a shared machine"),
        "`regard train translation --data pronouns --model MODEL --steps N`, nothing else given: 60,000 training "
        "sentences of the built-in corpus, scored by greedy search on 600 sentences with new pairs of nouns.",
        "",
        *markdown_table(
            ("model", "exact match", "BLEU", "steps", "CPU seconds"),
            [(model, f"{one['beam 1']['exact_match']:.3f}", f"{one['beam 1']['bleu']:.2f}", f"{one['steps']:,}",
              f"{one['cpu_seconds']:.0f}") for model, one in records.items()],
        ),
        "",
        f"The goal is an exact match of {GOAL} within {BUDGET} CPU seconds. "
        + (f"Missed by: {', '.join(missed)}." if missed else "Each model of the table keeps it."),
        *([f"Not measured yet: {', '.join(unmeasured)}."] if unmeasured else []),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
