"""Commands about what was trained: the mean of a run's checkpoints, and what a classifier says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training, or a saved model.")]


def add_run_commands(app: typer.Typer) -> None:
    """Put the commands of this file under `regard`."""
    app.command()(average)
    app.command()(classify)


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a training that kept some (--keep).")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the new model.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints.")] = 5,
) -> None:
    """Average the last checkpoints of a training: a model that is often a little better."""
    from regard.cli.average import run_average

    run_average(run, last, out)


def classify(
    run: Run,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Or lines on standard input.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer with JSON on standard output.")] = False,
) -> None:
    """Sort texts by their labels: one line out for each line in."""
    from regard.cli.classify import run_classify

    run_classify(run, texts or [], as_json=as_json)
