"""`regard evaluate`: the quality of a translator or language model; `regard lenses`: which lens shows what it uses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.errors import ArgumentError
from regard_lab.cli.console import counting, keeping, note, out_console, out_json
from regard_lab.cli.console import out as out_line
from regard_lab.cli.options import Alpha, Beam, Json, Normalisation, Run, check_search, default
from regard_lab.cli.running import remark_on_training
from regard_lab.decoding import Translator, sharing
from regard_lab.models import LanguageModel
from regard_lab.models.storage import kind_of_model
from regard_lab.seeing.lens_study import LensReport, study_lenses
from regard_lab.seeing.lens_study.known import SWAPS
from regard_lab.seeing.lens_study.study import COLUMNS, JSON, LENS_ROWS
from regard_lab.training.recipes.evaluation import RunScores, TextScores, evaluate_run, evaluate_text, uncounted
from regard_lab.training.recipes.run_folder import silent


def evaluate(
    run: Run,
    test: Annotated[
        list[str] | None,
        Argument(
            metavar="TEST",
            help="Files of pairs [default: the run's own test split]; for a language model, files of text.",
        ),
    ] = None,
    beam: Beam = default(Translator.n_best, "beam"),
    normalisation: Normalisation = default(Translator.n_best, "normalisation"),
    alpha: Alpha = default(Translator.n_best, "alpha"),
    as_json: Json = False,
) -> None:
    """Evaluate on the named files, or on the run's test split; a run of the embedded corpus also on its pronouns.

    torchrun divides sentences, or batches of text, among its processes, of which the first one prints.
    """
    check_search(normalisation, beam)
    search = {"beam": beam, "normalisation": normalisation, "alpha": alpha}
    with sharing() as share:
        first = share is None or share.rank == 0
        if first:
            note(remark_on_training(run))
        common: dict[str, Any] = {"tell": note if first else silent, "share": share}
        scores: RunScores | TextScores
        if kind_of_model(run) == LanguageModel.KIND:
            _check_language_model(run, search)
            scores = evaluate_text(run, test or [], **common)
        else:
            counts = partial(counting, "translating") if first else uncounted
            scores = evaluate_run(run, test or [], counting=counts, **common, **search)
    if first and as_json:
        out_json(json.dumps(scores.to_dict()))
    elif first:
        for line in scores.lines():
            out_line(line)


def _check_language_model(run: Path, search: dict[str, Any]) -> None:
    """Refuse what is for translators."""
    if given := [f"--{name}" for name, value in search.items() if value != default(Translator.n_best, name)]:
        raise ArgumentError(f"{' and '.join(given)} is for translators, and {run} is a language model; leave it out")


def lenses(
    run: Run,
    sentences: Annotated[int, Option(min=1, help="Number of test sentences.")] = default(study_lenses, "sentences"),
    seed: Annotated[int, Option(min=0, help="Seed of the corpus and of the swaps.")] = default(study_lenses, "seed"),
    out: Annotated[
        Path | None,
        Option(metavar="DIR", help="Write the report into this folder; an interrupted one is continued."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify causes by swaps, measure the lenses, and print the table."""
    translator = Translator.load(run)
    kept = f"{out} keeps the lenses that are measured, and the same command goes on"
    with keeping(lambda: kept if out is not None and (out / JSON).exists() else None):
        report = study_lenses(translator, sentences=sentences, seed=seed, out=out, name=run.name, tell=note)
    if as_json:
        out_json(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show(report)
    if out is not None:
        note(f"the report is in {out}")


def _show(report: LensReport) -> None:
    from rich import box
    from rich.table import Table

    for line in report.summary():
        out_line(line)
    routes = Table("swapped", box=box.SIMPLE, title="Probability of the pronoun after a swap", title_justify="left")
    for kind, count in zip(("last", "first"), report.routes["counts"], strict=True):
        routes.add_column(f"clause {kind} ({count})", justify="right")
    for name, words in SWAPS.items():
        found = (report.routes[kind].get(name) for kind in ("last", "first"))
        routes.add_row(words, *("-" if probability is None else f"{probability:.3f}" for probability in found))
    table = Table("lens", box=box.SIMPLE, title="Lenses", title_justify="left")
    for title in (*COLUMNS.values(), "passes", "ms"):
        table.add_column(title, justify="right")
    for name, row in report.rows.items():
        back = f" + {row['backward_passes']:.0f}" if row["backward_passes"] else ""
        cells = (f"{row[column]:.3f}" for column in COLUMNS)
        table.add_row(LENS_ROWS[name], *cells, f"{row['passes']:.0f}{back}", f"{row['milliseconds']:.1f}")
    console = out_console(width=120)
    console.print(routes)
    console.print(table)
    out_line(report.legend)
