"""`regard compare`: several attentions trained under one budget, and one report about them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from regard_lab.cli.console import StoppedError, keeping, out_json, out_lines, say
from regard_lab.cli.options import Json, with_settings
from regard_lab.cli.progress import training_progress
from regard_lab.models.storage import CHECKPOINTS_FILE
from regard_lab.training.comparison.study import Comparison

KEPT = "what is done is kept"


@with_settings(Comparison.Config)
def compare(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for one run of each model, and the report.")],
    given: Mapping[str, Any],
    resume: Annotated[bool, typer.Option("--resume", help="Continue; finished models are kept.")] = False,
    as_json: Json = False,
) -> None:
    """Compare, and print the report."""
    comparison = Comparison.of(out, given, resume=resume, tell=say, showing=training_progress)
    go_on = ["regard", "compare", "--out", str(out), "--resume"]
    with keeping(lambda: KEPT if any(out.glob(f"*/{CHECKPOINTS_FILE}")) else None, go_on):
        compared = comparison.run(out)
    if compared.interrupted:
        raise StoppedError(f"interrupted; {KEPT}", shlex.join(go_on))
    if as_json:
        out_json(compared.record.rstrip("\n"))
    else:
        out_lines(compared.markdown.rstrip("\n"))
