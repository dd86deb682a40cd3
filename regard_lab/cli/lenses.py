"""`regard lenses`: which lens shows what a trained translator uses, where the truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard_lab.cli.console import answers, keeping, out_json, say
from regard_lab.cli.console import out as out_line
from regard_lab.cli.options import Json, Run, default
from regard_lab.decoding import Translator
from regard_lab.seeing.lens_study import LensReport, study_lenses
from regard_lab.seeing.lens_study.known import SWAPS
from regard_lab.seeing.lens_study.study import COLUMNS, JSON, LENS_ROWS


def lenses(
    run: Run,
    sentences: Annotated[int, typer.Option(min=1, help="Number of test sentences.")] = default(
        study_lenses, "sentences"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the corpus and of the swaps.")] = default(
        study_lenses, "seed"
    ),
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the report into this folder; an interrupted one is continued."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify causes by swaps, measure the lenses, and print the table."""
    translator = Translator.load(run)
    kept = f"{out} keeps the lenses that are measured, and the same command goes on"
    with keeping(lambda: kept if out is not None and (out / JSON).exists() else None):
        report = study_lenses(translator, sentences=sentences, seed=seed, out=out, name=run.name, tell=say)
    if as_json:
        out_json(json.dumps(report.to_dict(), ensure_ascii=False))
    else:
        _show(report)
    if out is not None:
        say(f"the report is in {out}")


def _show(report: LensReport) -> None:
    from rich import box
    from rich.table import Table

    for line in report.summary():
        out_line(line)
    last, first = report.routes["counts"]
    routes = Table(box=box.SIMPLE, title="Probability of the pronoun after a swap", title_justify="left")
    routes.add_column("swapped")
    for name, count in (("clause last", last), ("clause first", first)):
        routes.add_column(f"{name} ({count})", justify="right")
    for name, words in SWAPS.items():
        cells = (f"{report.routes[kind][name]:.3f}" if name in report.routes[kind] else "-"
                 for kind in ("last", "first"))  # fmt: skip
        routes.add_row(words, *cells)
    shown = Table(box=box.SIMPLE, title="Lenses", title_justify="left")
    shown.add_column("lens")
    for title in (*COLUMNS.values(), "passes", "ms"):
        shown.add_column(title, justify="right")
    for name, row in report.rows.items():
        back = f" + {row['backward_passes']:.0f}" if row["backward_passes"] else ""
        cells = (f"{row[column]:.3f}" for column in COLUMNS)
        shown.add_row(LENS_ROWS[name], *cells, f"{row['passes']:.0f}{back}", f"{row['milliseconds']:.1f}")
    console = answers(width=120)
    for table in (routes, shown):
        console.print(table)
    out_line(report.legend)
