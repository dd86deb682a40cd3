"""`regard compare`: several attentions trained under one budget, and one report about them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.console import StoppedError, out_json, out_lines, say
from regard.cli.options import Json, with_settings
from regard.cli.progress import training_progress
from regard.studies.comparison.study import Comparison


@with_settings(Comparison.Config)
def compare(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for one run of each model, and the report.")],
    given: Mapping[str, Any],
    resume: Annotated[bool, typer.Option("--resume", help="Continue; finished models are kept.")] = False,
    as_json: Json = False,
) -> None:
    """Compare, and print the report."""
    comparison = Comparison.of(out, given, resume=resume, tell=say, showing=training_progress)
    compared = comparison.run(out)
    if compared.interrupted:
        go_on = shlex.join(["regard", "compare", "--out", str(out), "--resume"])
        raise StoppedError("interrupted; what is done is kept", go_on)
    if as_json:
        out_json(compared.record.rstrip("\n"))
    else:
        out_lines(compared.markdown.rstrip("\n"))
