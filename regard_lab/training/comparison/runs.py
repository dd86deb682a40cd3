"""Trained models side by side on the same data, such as one before and after a fine-tuning."""

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
from regard_lab.training.recipes.evaluation import Counting, evaluate_run, evaluate_text, uncounted
from regard_lab.training.recipes.recipe import Tell, silent
from regard_lab.training.recipes.run_folder import make_folder

OF_TRANSLATORS = ("bleu", "chrf", "exact_match", "perplexity", "empty", "unfinished", "count", "trained_on")
OF_WRITERS = ("loss", "perplexity", "bits_per_character", "line_count", "trained_on")


def compare_runs(
    runs: Sequence[str | Path], tests: Sequence[str | Path], out: str | Path, *, tell: Tell = silent,
    counting: Counting = uncounted,
) -> tuple[str, str]:  # fmt: skip
    """Evaluate each run on each file, and write `compare.md` and `compare.json` into a folder after each of them.

    Args:
        runs: translators, or language models.
        tests: files of pairs, or of text; each is a test of its own.
        out: the folder.
        tell: is handed remarks on what is read.
        counting: shows how many sentences are translated, as for `evaluate_run`.

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
    writes, out, rows = all(kinds.values()), Path(out), list[dict[str, Any]]()
    markdown = record = ""
    make_folder(out)
    for test in tests:
        for run in runs:
            tell(f"== {run} on {test}")
            if writes:
                scores = evaluate_text(run, [test], tell=tell).to_dict()
            else:
                scores = evaluate_run(run, [test], tell=tell, counting=counting).to_dict()
            rows.append({"run": str(run), **scores, "test": str(test)})
            markdown, record = _report(rows, OF_WRITERS if writes else OF_TRANSLATORS)
            for name, text in ((MARKDOWN, markdown), (JSON, record)):
                replace_file(out / name, text.encode())
    return markdown, record


def _report(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> tuple[str, str]:
    """The report on the rows, as Markdown and as JSON."""
    shown = [["-" if row[name] is None else shown_number(row[name]) for name in names] for row in rows]
    table = markdown_table(
        ["run", "data", *(name.replace("_", " ") for name in names)],
        [[row["run"], row["test"], *values] for row, values in zip(rows, shown, strict=True)],
    )
    runs, tests = (len({row[name] for row in rows}) for name in ("run", "test"))
    lines = [f"# {count_of(runs, 'runs')} on {count_of(tests, 'files')}", "", *table, ""]
    return "\n".join(lines), json.dumps({"rows": rows}, ensure_ascii=False, indent=1) + "\n"
