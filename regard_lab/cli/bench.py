"""`regard bench` measures and reports, `regard bench complexity` is the table of costs; `regard doctor` probes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from regard.errors import ArgumentError, RegardError
from regard_lab.bench import describe_health, describe_results, examine, run_bench
from regard_lab.bench.complexity import Table, describe_table, run_complexity
from regard_lab.bench.results import Results
from regard_lab.cli.console import StoppedError, out_json, say
from regard_lab.cli.console import out as out_line
from regard_lab.cli.options import Json, default

COMPLEXITY = "complexity"


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Cases [default: all]; or complexity, and rows of that table."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller sizes; takes less than two minutes.")] = False,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for results, report and curves.")] = Path(
        "runs/bench"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="Continue with the results in the folder.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = default(run_bench, "device"),
    as_json: Json = False,
) -> None:
    """Run cases, or rows of the table of costs, and report; raises a RegardError if regard itself answered wrongly."""
    names = names or []
    table = names[:1] == [COMPLEXITY]
    if table and device != "cpu":
        raise ArgumentError(
            f"'regard bench complexity' measures CPU time on 1 thread and takes no --device {device!r}; leave it out"
        )
    try:
        if table:
            costs = run_complexity(names[1:], quick=quick, out=out, resume=resume, tell=say)
            _report(costs, describe_table(costs), out, as_json)
        else:
            results = run_bench(names, quick=quick, out=out, resume=resume, device=device, tell=say)
            _report(results, describe_results(results), out, as_json)
    except KeyboardInterrupt:
        begun = (out / (Table.file if table else Results.file)).exists()
        raise StoppedError(
            f"interrupted; finished results are in {out}, and the same command with --resume goes on"
            if begun
            else "interrupted"
        ) from None


def _report(results: Results, lines: Iterable[str], folder: Path, as_json: bool) -> None:
    if as_json:
        out_json(results.to_json())
    else:
        for line in lines:
            out_line(line)
        say(f"results, report and curves are in {folder}")
    if results.our_mistakes:
        raise RegardError(f"regard was wrong or failed: {'; '.join(results.our_mistakes)}")


def doctor(as_json: Json = False) -> None:
    """Probe and report; raises a RegardError if a backend is wrong."""
    if not as_json:
        say("trying every backend on small problems ...")
    health = examine()
    if as_json:
        out_json(health.to_json())
    else:
        for line in describe_health(health):
            out_line(line)
    if not health.sound:
        wrong = [finding.backend for finding in health.findings if finding.status == "wrong"]
        raise RegardError(f"wrong answers from {', '.join(wrong)}; do not trust this installation, and report it")
