"""`regard approximation`: what cheaper attention would lose on the queries, keys and values in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from regard.errors import CheckpointError, NotFoundError
from regard.packages import needed
from regard_lab.cli.console import check_picture_name, out_json, out_lines, say
from regard_lab.cli.options import Json, default
from regard_lab.seeing import approximation as compare_approximations

NAMES = ("q", "k", "v")


def approximation(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.safetensors", help="A file with the tensors q, k and v of a call.")
    ],
    pattern: Annotated[str, typer.Option(metavar="PATTERN", help="Pattern of the call, such as 'causal'.")] = "full",
    candidate: Annotated[
        list[str] | None,
        typer.Option(metavar="CANDIDATE", help="A pattern or mechanism; may be repeated. [default: a sweep]"),
    ] = None,
    scale: Annotated[float | None, typer.Option(help="Factor of the scores. [default: 1 / sqrt(head_dim)]")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds for random mechanisms.")] = len(
        default(compare_approximations, "seeds")
    ),
    tolerance: Annotated[float, typer.Option(help="Largest relative error of a suggested candidate.")] = default(
        compare_approximations, "tolerance"
    ),
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Also draw error against time, into this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the report, as a table or as JSON, and draw it where asked."""
    if plot is not None:
        check_picture_name(plot)
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
        say(f"drawn in {plot}")


def read_operands(file: Path) -> list[torch.Tensor]:
    """q, k and v from a safetensors file, whoever wrote it.

    Raises:
        CheckpointError: it is no such file, or one of the three is not in it.
        MissingPackageError: safetensors is not installed.
    """
    with needed("safetensors", "reading tensors"):
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    if Path(file).is_dir():
        raise NotFoundError(f"{file} is a folder; name a safetensors file inside it")
    try:
        tensors = load_file(file)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise NotFoundError(f"{file} does not exist; name a safetensors file") from error
    except (SafetensorError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{file} cannot be read as safetensors: {reason}") from error
    if missing := [name for name in NAMES if name not in tensors]:
        raise NotFoundError(
            f"{file} holds {', '.join(sorted(tensors)) or 'no tensor'} and lacks {', '.join(missing)}; it needs q, k "
            f"and v, each (batch, heads, length, size)"
        )
    return [tensors[name] for name in NAMES]
