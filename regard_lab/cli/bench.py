"""`regard bench` measures speed, `regard doctor` checks backends."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from regard.errors import RegardError
from regard_lab.bench import describe_health, describe_results, examine, run_bench
from regard_lab.bench.costs import costs_to_json, describe_costs, measure_costs
from regard_lab.bench.results import Results
from regard_lab.cli.console import counting, keeping, note, out_result
from regard_lab.cli.options import Json, default


def bench(
    names: Annotated[
        list[str] | None,
        Argument(metavar="NAME", help="Cases, or with --costs figures [default: all]."),
    ] = None,
    quick: Annotated[
        bool, Option("--quick", help="Smaller sizes; takes less than two minutes.")
    ] = False,
    out: Annotated[
        Path, Option(metavar="FOLDER", help="Folder for the results and the report.")
    ] = Path("runs/bench"),
    resume: Annotated[
        bool, Option("--resume", help="Continue with the results in the folder.")
    ] = False,
    device: Annotated[str, Option(help="cpu or cuda.")] = default(run_bench, "device"),
    costs: Annotated[
        bool,
        Option(
            "--costs",
            help="Measure the figures that plans compare instead, and print what to send.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare the speed of regard with other installed libraries; results are checked before timing."""

    if costs:
        with counting("measuring"):
            figures = measure_costs(names or [], tell=note)
        out_result(as_json, lambda: costs_to_json(figures), lambda: describe_costs(figures))
        return

    def how_to_go_on() -> str | None:
        if not (out / Results.file).exists():
            return None
        return f"finished results are in {out}, and the same command with --resume goes on"

    with counting("measuring"), keeping(how_to_go_on):
        results = run_bench(
            names or [], quick=quick, out=out, resume=resume, device=device, tell=note
        )
    out_result(as_json, results.to_json, lambda: describe_results(results))
    if not as_json:
        note(f"results and report are in {out}")
    if results.our_mistakes:
        raise RegardError(f"regard was wrong or failed: {'; '.join(results.our_mistakes)}")


def doctor(as_json: Json = False) -> None:
    """Print versions, and check every backend on small problems."""
    if not as_json:
        note("trying every backend on small problems ...")
    with counting("checking"):
        health = examine()
    out_result(as_json, health.to_json, lambda: describe_health(health))
    if not health.sound:
        wrong = [finding.backend for finding in health.findings if finding.status == "wrong"]
        raise RegardError(
            f"wrong answers from {', '.join(wrong)}; do not trust this installation, and report it"
        )
