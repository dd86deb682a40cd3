"""`regard bench` measures speed, `regard doctor` checks backends, `regard approximation` measures cheaper attention."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch
from typer import Argument, Option

from regard.errors import ArgumentError, NotFoundError, RegardError
from regard_lab.bench import describe_health, describe_results, examine, run_bench
from regard_lab.bench.complexity import CostTable, describe_table, run_complexity
from regard_lab.bench.results import Results
from regard_lab.cli.console import check_picture_name, counting, keeping, note, out_json, out_lines
from regard_lab.cli.console import out as out_line
from regard_lab.cli.options import Json, default
from regard_lab.seeing import approximation as compare_approximations
from regard_lab.walkthrough import read_weights

COMPLEXITY = "complexity"
NAMES = ("q", "k", "v")


def bench(
    names: Annotated[
        list[str] | None,
        Argument(metavar="NAME", help="Cases [default: all]; or complexity, and rows of that table."),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Smaller sizes; takes less than two minutes.")] = False,
    out: Annotated[Path, Option(metavar="FOLDER", help="Folder for results, report and curves.")] = Path("runs/bench"),
    resume: Annotated[bool, Option("--resume", help="Continue with the results in the folder.")] = False,
    device: Annotated[str, Option(help="cpu or cuda.")] = default(run_bench, "device"),
    as_json: Json = False,
) -> None:
    """Run cases, or rows of the table of costs, and report; raise a RegardError if a result of regard was wrong."""
    names = names or []
    table = names[:1] == [COMPLEXITY]
    if table and device != "cpu":
        raise ArgumentError(
            f"'regard bench complexity' measures CPU time on 1 thread and takes no --device {device!r}; leave it out"
        )
    file, kept = CostTable.file if table else Results.file, f"finished results are in {out}, and the same command with"
    with counting("measuring"), keeping(lambda: f"{kept} --resume goes on" if (out / file).exists() else None):
        if table:
            found = run_complexity(names[1:], quick=quick, out=out, resume=resume, tell=note)
            lines = describe_table(found)
        else:
            found = run_bench(names, quick=quick, out=out, resume=resume, device=device, tell=note)
            lines = describe_results(found)
    _report(found, lines, out, as_json)


def _report(results: Results, lines: Iterable[str], folder: Path, as_json: bool) -> None:
    if as_json:
        out_json(results.to_json())
    else:
        for line in lines:
            out_line(line)
        note(f"results, report and curves are in {folder}")
    if results.our_mistakes:
        raise RegardError(f"regard was wrong or failed: {'; '.join(results.our_mistakes)}")


def doctor(as_json: Json = False) -> None:
    """Probe and report; raise a RegardError if a backend is wrong."""
    if not as_json:
        note("trying every backend on small problems ...")
    with counting("checking"):
        health = examine()
    if as_json:
        out_json(health.to_json())
    else:
        for line in describe_health(health):
            out_line(line)
    if not health.sound:
        wrong = [finding.backend for finding in health.findings if finding.status == "wrong"]
        raise RegardError(f"wrong answers from {', '.join(wrong)}; do not trust this installation, and report it")


def approximation(
    file: Annotated[Path, Argument(metavar="FILE.safetensors", help="A file with the tensors q, k and v of a call.")],
    pattern: Annotated[str, Option(metavar="PATTERN", help="Pattern of the call, such as 'causal'.")] = "full",
    candidate: Annotated[
        list[str] | None,
        Option(metavar="CANDIDATE", help="A pattern or mechanism; may be repeated. [default: a sweep]"),
    ] = None,
    scale: Annotated[float | None, Option(help="Factor of the scores. [default: 1 / sqrt(head_dim)]")] = None,
    seeds: Annotated[int, Option(min=1, help="Number of seeds for random mechanisms.")] = len(
        default(compare_approximations, "seeds")
    ),
    tolerance: Annotated[float, Option(help="Largest relative error of a suggested candidate.")] = default(
        compare_approximations, "tolerance"
    ),
    plot: Annotated[
        Path | None, Option(metavar="FILE", help="Also draw error against time, into this PNG, SVG or PDF.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print what cheaper attention would lose on these tensors, as a table or as JSON, and draw it where asked."""
    if plot is not None:
        check_picture_name(plot)
    with counting("measuring"):
        report = compare_approximations(
            *read_operands(file), pattern=pattern, mechanisms=candidate or None, scale=scale, seeds=range(seeds),
            tolerance=tolerance,
        )  # fmt: skip
    if as_json:
        out_json(report.to_json())
    else:
        out_lines(str(report))
    if plot is not None:
        report.plot(plot)
        note(f"drawn in {plot}")


def read_operands(file: Path) -> list[torch.Tensor]:
    """q, k and v from a safetensors file, whoever wrote it.

    Raises:
        CheckpointError: it is no such file, or one of the three is not in it.
    """
    tensors = read_weights(file)
    if missing := [name for name in NAMES if name not in tensors]:
        raise NotFoundError(
            f"{file} holds {', '.join(sorted(tensors)) or 'no tensor'} and lacks {', '.join(missing)}; it needs q, k "
            f"and v, each (batch, heads, length, size)"
        )
    return [tensors[name] for name in NAMES]
