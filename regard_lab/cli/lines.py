"""The options --input and --out, by which lines of a file are divided among the processes that torchrun started."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

from regard.arguments import count_of
from regard.errors import ArgumentError, NotFoundError
from regard_lab.cli.console import say
from regard_lab.decoding import share_lines
from regard_lab.text import read_lines

INPUT = typer.Option(
    "--input", metavar="FILE", help="Read lines from a file, with --out; torchrun divides them among processes."
)
OUT = typer.Option(
    "--out",
    metavar="FILE",
    help="Write the lines to a file, in order; if the command is killed, the same command goes on.",
)


def wants_file(source: Path | None, out: Path | None, arguments: Sequence[str], **excluded: Any) -> bool:
    """Whether lines go from file to file; an ArgumentError for options that do not fit together."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if source is None and out is None:
        if processes != "1":
            raise ArgumentError(
                f"torchrun started {processes} processes, which would all read the same standard input; give "
                f"--input FILE and --out FILE"
            )
        return False
    if source is None or out is None:
        raise ArgumentError("--input FILE and --out FILE go together; give both or none")
    if arguments:
        raise ArgumentError(
            f"give sentences by --input {source} or as arguments, not both; {count_of(len(arguments), 'arguments')} "
            f"came too"
        )
    if given := [name for name, value in excluded.items() if value]:
        raise ArgumentError(f"--{given[0]} needs one sentence as an argument; leave it out, or --input and --out")
    return True


def write_lines(
    run: Path, source: Path, out: Path, compute: Callable[[Sequence[str], int], Sequence[str]], options: dict[str, Any]
) -> None:
    """Read the lines of a file, compute this process's share, and say what was done."""
    if not source.is_file():
        raise NotFoundError(f"--input {source} is not a file")
    lines = list(read_lines(source))
    settings = f"{_model_of(Path(run))} {sorted(options.items(), key=str)}"
    if share_lines(lines, out, compute, settings=settings):
        say(f"{out} is complete: {count_of(len(lines), 'lines', ',')}")


def _model_of(run: Path) -> str:
    """The run and the sizes and times of its files, by which a changed model is recognised."""
    files = sorted(one for one in run.rglob("*") if one.is_file()) if run.is_dir() else []
    return f"{run.resolve()} {[(str(one.relative_to(run)), *_mark(one)) for one in files]}"


def _mark(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
