"""`regard bench`: measure, report, and say where the results are; `regard bench complexity` is the table of costs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regard.bench import describe_results, run_bench
from regard.bench.complexity import describe_table, run_complexity
from regard.bench.results import Results
from regard.cli.console import out, out_json, say
from regard.errors import ArgumentError, RegardError

COMPLEXITY = "complexity"


def run_bench_command(names: list[str], *, quick: bool, out: Path, resume: bool, device: str, as_json: bool) -> None:
    """Run cases, or rows of the table of costs, and report; raises a RegardError if regard itself answered wrongly."""
    table = names[:1] == [COMPLEXITY]
    if table and device != "cpu":
        raise ArgumentError(f"the table of costs is in CPU time on 1 thread, and was asked for on {device!r}")
    try:
        if table:
            costs = run_complexity(names[1:], quick=quick, out=out, resume=resume, tell=say)
            _report(costs, describe_table(costs), out, as_json)
        else:
            results = run_bench(names, quick=quick, out=out, resume=resume, device=device, tell=say)
            _report(results, describe_results(results), out, as_json)
    except KeyboardInterrupt:
        raise RegardError(
            f"interrupted; what was finished is in {out}, and the same command with --resume goes on"
        ) from None


def _report(results: Results, lines: Iterable[str], folder: Path, as_json: bool) -> None:
    if as_json:
        out_json(results.to_json())
    else:
        for line in lines:
            out(line)
        say(f"results, report and curves are in {folder}")
    if results.our_mistakes:
        raise RegardError(f"regard was wrong or failed: {'; '.join(results.our_mistakes)}")
