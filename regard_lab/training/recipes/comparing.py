"""`regard compare` from Python: trained models on the same data, such as one before and after a fine-tuning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard.errors import ArgumentError, NotFoundError
from regard.storage.files import replace_file
from regard_lab.models import LanguageModel
from regard_lab.models.storage import kind_of_model, load_model
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.writing import markdown_table
from regard_lab.training.checkpoint import read_run
from regard_lab.training.folders import make_folder
from regard_lab.training.recipes.evaluation import Counting, evaluate_run, evaluate_text, uncounted

MARKDOWN = "compare.md"
JSON = "compare.json"
# The columns of the tables.
TRANSLATOR_SCORES = (
    "bleu",
    "chrf",
    "exact_match",
    "perplexity",
    "empty",
    "unfinished",
    "count",
    "trained_on",
)
WRITER_SCORES = ("loss", "perplexity", "bits_per_character", "line_count", "trained_on")
TRAINING_FIGURES = ("parameters", "steps", "tokens", "best_step", "best_loss")


@dataclass(frozen=True)
class RunComparison:
    """How each run was trained, and a row of scores for each run and file that was evaluated so far."""

    columns: Sequence[str]  # the scores that the table shows; the JSON has all
    training: list[dict[str, Any]]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def markdown(self) -> str:
        """The report as text."""
        runs = {row["run"] for row in self.rows}
        tests = {row["test"] for row in self.rows}
        lines = [
            f"# {count_of(len(runs), 'runs')} on {count_of(len(tests), 'files')}",
            "",
            *_table(self.rows, ["run", "test"], self.columns),
            "",
            "## Training",
            "",
            *_table(self.training, ["run"], TRAINING_FIGURES),
            "",
        ]
        return "\n".join(lines)

    def json(self) -> str:
        """The report as JSON."""
        record = {"rows": self.rows, "training": self.training}
        return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def compare_runs(
    runs: Sequence[str | Path],
    tests: Sequence[str | Path],
    out: str | Path,
    *,
    tell: Tell = silent,
    counting: Counting = uncounted,
) -> tuple[str, str]:
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
        raise ArgumentError(
            "runs are compared on the same data: name two or more by --runs A,B, and files by --data"
        )
    writes = {str(run): kind_of_model(run) == LanguageModel.KIND for run in runs}
    if len(set(writes.values())) > 1:
        raise ArgumentError(
            f"{' and '.join(writes)} are a translator and a language model; compare models of one kind"
        )
    are_writers = all(writes.values())
    out = Path(out)

    columns = WRITER_SCORES if are_writers else TRANSLATOR_SCORES
    comparison = RunComparison(columns, [_training_of(run) for run in writes])
    make_folder(out)
    for test in tests:
        for run in runs:
            tell(f"== {run} on {test}")
            if are_writers:
                scores = evaluate_text(run, [test], tell=tell)
            else:
                scores = evaluate_run(run, [test], tell=tell, counting=counting)
            comparison.rows.append({"run": str(run), **scores.to_dict(), "test": str(test)})
            replace_file(out / MARKDOWN, comparison.markdown().encode())
            replace_file(out / JSON, comparison.json().encode())
    return comparison.markdown(), comparison.json()


def _training_of(run: str) -> dict[str, Any]:
    """The parameters of a model, and how it was trained where its folder is that of a run."""
    tensors = {id(tensor): tensor.numel() for tensor in load_model(run).state.values()}
    figures = {"run": run, **dict.fromkeys(TRAINING_FIGURES)}
    figures["parameters"] = sum(tensors.values())
    with suppress(NotFoundError):  # a model without a run
        result = read_run(run)
        figures["steps"] = result.step
        figures["tokens"] = result.tokens
        figures["best_step"] = result.best_step
        figures["best_loss"] = result.best_loss
    return figures


def _table(
    rows: Sequence[dict[str, Any]], keys: Sequence[str], columns: Sequence[str]
) -> list[str]:
    """A row for each of `rows`: the texts that say what it is of, and its figures."""
    header = [name.replace("_", " ") for name in (*keys, *columns)]
    cells = []
    for row in rows:
        texts = [row[key] for key in keys]
        cells.append([*texts, *(_shown(row[column]) for column in columns)])
    return markdown_table(header, cells)


def _shown(figure: float | None) -> str:
    """A count with its commas, another number with three decimals."""
    if figure is None:
        return "-"
    return f"{figure:,}" if isinstance(figure, int) else f"{figure:.3f}"
