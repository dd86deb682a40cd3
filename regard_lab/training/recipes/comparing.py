"""`regard compare` from Python: trained models on the same data, such as one before and after a fine-tuning."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard.errors import ArgumentError, NotFoundError
from regard.storage.files import replace_file
from regard_lab.bench.report import markdown_table
from regard_lab.models import LanguageModel
from regard_lab.models.storage import kind_of_model, load_model
from regard_lab.training.checkpoint import read_run
from regard_lab.training.loop import make_folder
from regard_lab.training.recipes.evaluation import Counting, evaluate_run, evaluate_text, uncounted
from regard_lab.training.recipes.recipe import Tell, silent

MARKDOWN = "compare.md"
JSON = "compare.json"
OF_TRANSLATORS = (
    "bleu",
    "chrf",
    "exact_match",
    "perplexity",
    "empty",
    "unfinished",
    "count",
    "trained_on",
)
OF_WRITERS = ("loss", "perplexity", "bits_per_character", "line_count", "trained_on")
OF_TRAINING = ("parameters", "steps", "tokens", "best_step", "best_loss")


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
    kinds = {str(run): kind_of_model(run) == LanguageModel.KIND for run in runs}
    if len(set(kinds.values())) > 1:
        raise ArgumentError(
            f"{' and '.join(kinds)} are a translator and a language model; compare models of one kind"
        )
    writes = all(kinds.values())
    out = Path(out)
    rows = list[dict[str, Any]]()
    trained = {str(run): _training(run) for run in runs}
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
            markdown, record = _report(rows, OF_WRITERS if writes else OF_TRANSLATORS, trained)
            for name, text in ((MARKDOWN, markdown), (JSON, record)):
                replace_file(out / name, text.encode())
    return markdown, record


def _training(run: str | Path) -> dict[str, Any]:
    """The parameters of a model, and how it was trained where its folder is that of a run."""
    tensors = {id(tensor): tensor.numel() for tensor in load_model(run).state.values()}
    found: dict[str, Any] = {**dict.fromkeys(OF_TRAINING), "parameters": sum(tensors.values())}
    with suppress(NotFoundError):  # a model without a run
        done = read_run(run)
        found |= {"steps": done.step, **{name: getattr(done, name) for name in OF_TRAINING[2:]}}
    return found


def _report(
    rows: Sequence[dict[str, Any]], names: Sequence[str], trained: dict[str, dict[str, Any]]
) -> tuple[str, str]:
    """The report on the rows, as Markdown and as JSON."""
    runs, tests = (len({row[name] for row in rows}) for name in ("run", "test"))
    done = [{"run": run, **training} for run, training in trained.items()]
    lines = [
        f"# {count_of(runs, 'runs')} on {count_of(tests, 'files')}",
        "",
        *_table(rows, ("run", "test"), names),
        "",
        "## Training",
        "",
        *_table(done, ("run",), OF_TRAINING),
        "",
    ]
    record = {"rows": rows, "training": done}
    return "\n".join(lines), json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def _table(rows: Sequence[dict[str, Any]], keys: Sequence[str], names: Sequence[str]) -> list[str]:
    head = [name.replace("_", " ") for name in (*keys, *names)]
    return markdown_table(
        head,
        [[*(row[key] for key in keys), *(_shown(row[name]) for name in names)] for row in rows],
    )


def _shown(value: float | None) -> str:
    """A count with its commas, another number with three decimals."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
