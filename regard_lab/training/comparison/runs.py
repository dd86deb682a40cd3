"""Trained models side by side on the same data, such as one before and after a fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard.storage.files import replace_file
from regard_lab.bench.report import markdown_table
from regard_lab.models import LanguageModel
from regard_lab.models.storage import kind_of_model
from regard_lab.training.comparison.report import JSON, MARKDOWN, shown_number
from regard_lab.training.recipes.evaluation import evaluate_run, evaluate_text
from regard_lab.training.recipes.recipe import Tell, silent
from regard_lab.training.recipes.run_folder import make_folder

OF_TRANSLATORS = ("bleu", "chrf", "exact_match", "perplexity", "empty", "unfinished", "count", "trained_on")
OF_WRITERS = ("loss", "perplexity", "bits_per_character", "line_count", "trained_on")


def compare_runs(
    runs: Sequence[str | Path], tests: Sequence[str | Path], out: str | Path, *, tell: Tell = silent
) -> tuple[str, str]:
    """Evaluate each run on each file, and write `compare.md` and `compare.json` into a folder.

    Args:
        runs: translators, or language models.
        tests: files of pairs, or of text; each is a test of its own.
        out: the folder.
        tell: is handed remarks on what is read.

    Returns:
        The report as Markdown and as JSON.

    Raises:
        ArgumentError: fewer than two runs, no data, or models of different kinds.
        CheckpointError: a folder that holds no such model, or cannot be written.
    """
    if len(runs) < 2 or not tests:
        raise ArgumentError("runs are compared on the same data: name two or more by --runs A,B, and files by --data")
    kinds = {str(run): kind_of_model(run) == LanguageModel.KIND for run in runs}
    if len(set(kinds.values())) > 1:
        raise ArgumentError(f"{' and '.join(kinds)} are a translator and a language model; compare models of one kind")
    writes = all(kinds.values())
    rows: list[dict[str, Any]] = []
    for test in tests:
        for run in runs:
            tell(f"== {run} on {test}")
            scores = (evaluate_text if writes else evaluate_run)(run, [test], tell=tell)
            rows.append({"run": str(run), **scores.to_dict(), "test": str(test)})
    names = OF_WRITERS if writes else OF_TRANSLATORS
    shown = [["-" if row[name] is None else shown_number(row[name]) for name in names] for row in rows]
    table = markdown_table(
        ["run", "data", *(name.replace("_", " ") for name in names)],
        [[row["run"], row["test"], *values] for row, values in zip(rows, shown, strict=True)],
    )
    lines = [f"# {count_of(len(runs), 'runs')} on {count_of(len(tests), 'files')}", "", *table, ""]
    markdown, record = "\n".join(lines), json.dumps({"rows": rows}, ensure_ascii=False, indent=1) + "\n"
    out = Path(out)
    make_folder(out)
    for name, text in ((MARKDOWN, markdown), (JSON, record)):
        replace_file(out / name, text.encode())
    return markdown, record
