"""`regard bench`: measure, report, and say where the results are."""

from __future__ import annotations

from pathlib import Path

from regard.bench import describe_results, run_bench
from regard.cli.console import out as answer
from regard.cli.console import say
from regard.errors import RegardError


def run_bench_command(names: list[str], *, quick: bool, out: Path, resume: bool, device: str, as_json: bool) -> None:
    """Run cases, and report; raises a RegardError if regard itself answered wrongly."""
    try:
        results = run_bench(names, quick=quick, out=out, resume=resume, device=device, tell=say)
    except KeyboardInterrupt:
        raise RegardError(
            f"interrupted; the cases that were finished are in {out}, and the same command with --resume goes on"
        ) from None
    if as_json:
        answer(results.to_json())
    else:
        for line in describe_results(results):
            answer(line)
        say(f"results, report and curves are in {out}")
    if results.our_mistakes:
        raise RegardError(f"regard was wrong or failed: {'; '.join(results.our_mistakes)}")
