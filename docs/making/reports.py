"""The pages of committed reports, written again from the numbers that are stored beside them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath

from docs.making.measured import RESULTS
from regard_lab.bench import Results
from regard_lab.bench import report as bench_report
from regard_lab.bench.complexity import CostTable
from regard_lab.bench.complexity import report as complexity_report
from regard_lab.seeing.lens_study import LensReport
from regard_lab.training.comparison import report as comparison_report
from regard_lab.training.comparison.measures import Measures

FROM_DOCS = PurePosixPath("../benchmarks/results")
BENCHES = ("attention_cpu", "attention_cuda", "mechanisms_cpu")
COMPARISONS = ("pronouns", "heads", "one_or_eight")


def report_pages() -> dict[str, str]:
    """The text of every report whose numbers are stored, by its path from docs/."""
    pages = {f"{name}/bench.md": bench_report.render_markdown(Results.load(RESULTS / name)) for name in BENCHES}
    pages["complexity_cpu/complexity.md"] = complexity_report.render_markdown(
        CostTable.load(RESULTS / "complexity_cpu")
    )
    pages["lenses_cpu/lenses.md"] = "\n".join(LensReport.load(RESULTS / "lenses_cpu").markdown()) + "\n"
    pages |= {f"compare_cpu/{name}/compare.md": comparison(name) for name in COMPARISONS}
    return {(FROM_DOCS / name).as_posix(): text for name, text in pages.items()}


def comparison(name: str) -> str:
    """The report of one comparison, without peak memory: the first model's had all that the process loaded once."""
    stored = json.loads((RESULTS / "compare_cpu" / name / "compare.json").read_text(encoding="utf-8"))
    rows = [Measures.from_dict(row) for row in stored["rows"]]
    rows = [replace(row, spent=replace(row.spent, peak_bytes=None)) for row in rows]
    return comparison_report.render_markdown(rows, stored["asked"])
