"""Many lines divided among processes, written to one file in order; a command that was killed goes on where it was."""

import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from regard.arguments import count_of, shown
from regard.distributed.group import Group
from regard.errors import ArgumentError, DataError, OccupiedError
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed, render_sealed

BLOCK = 64  # lines that are computed and written together


@dataclass(frozen=True)
class SharedWork:
    """The processes that torchrun started, as one of them sees them."""

    rank: int
    count: int

    def gathered(self, own: list[Any]) -> list[Any]:
        """What all processes have, in one list, on each of them."""
        gathered = []
        for part in Group.of(dist.group.WORLD).gather_lists(own):
            gathered += part
        return gathered


@contextmanager
def sharing() -> Generator[SharedWork | None]:
    """The processes that torchrun started, for functions with `share=` in a `with` block; None if there is only one.

    >>> with sharing() as share:
    ...     print(share)
    None
    """
    processes, rank = share_of_work().values()
    if processes == 1:
        yield None
        return
    began = not dist.is_initialized()
    if began:
        try:
            dist.init_process_group("gloo")
        # A variable is missing; or a port is in use, or no process responds.
        except (ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise ArgumentError(
                f"the environment variable WORLD_SIZE is {processes}, and the processes cannot be joined ({reason}); "
                f"start them by torchrun, which finds a free MASTER_PORT, or unset WORLD_SIZE"
            ) from error
    try:
        yield SharedWork(rank, processes)
    finally:
        if began:
            dist.destroy_process_group()


def share_lines(
    lines: Sequence[str],
    out: str | Path,
    compute: Callable[[Sequence[str], int], Sequence[str]],
    *,
    settings: str,
    rank: int | None = None,
    processes: int | None = None,
) -> bool:
    """Compute a line of output for each line of input, and write all to one file in order.

    Lines are divided in blocks of 64. Process r computes the blocks r, r + processes, ..., and writes each to its own
    file in the folder `OUT.parts`, atomically. The process that finishes the last block joins them. After a kill the
    same call computes only what is missing, also with another number of processes. No process waits for another.

    Args:
        lines: all of them, the same on every process.
        out: the file to write. `OUT.record` beside it records which lines and settings it belongs to.
        compute: takes some lines and the index of the first, and returns as many lines of output without line ends.
        settings: everything besides the lines that the output depends on, as text.
        rank: of this process; by default that of torchrun, or 0.
        processes: how many there are; by default as many as torchrun started, or 1.

    Returns:
        Whether the file is complete: False if other processes are still computing.

    Raises:
        OccupiedError: the file is there and belongs to other lines or settings.
        DataError: `compute` returned another number of lines, or a line with a line end.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = Path(folder) / "out.txt"
    ...     double = lambda some, first: [one + one for one in some]
    ...     first = share_lines(["a", "b"] * 40, out, double, settings="double", rank=0, processes=2)
    ...     second = share_lines(["a", "b"] * 40, out, double, settings="double", rank=1, processes=2)
    ...     first, second, out.read_text().split()[:3]
    (False, True, ['aa', 'bb', 'aa'])
    """
    work = share_of_work()
    rank = work["rank"] if rank is None else rank
    processes = work["world"] if processes is None else processes
    if not 0 <= rank < processes:
        raise ArgumentError(
            f"process {rank} of {processes}; the processes are numbered from 0 to {processes - 1}"
        )
    out = Path(out)
    parts, complete = _claimed(out, _digest(lines, settings))
    if complete:
        return True
    blocks = range(-(-len(lines) // BLOCK))
    for block in blocks[rank::processes]:
        path = _part(parts, block)
        if path.exists():
            continue
        if out.exists():  # the same command, started twice, completed it
            break
        first = block * BLOCK
        of_block = lines[first : first + BLOCK]
        results = compute(of_block, first)
        if len(results) != len(of_block) or any(map(_has_line_end, results)):
            raise DataError(
                f"{count_of(len(of_block), 'lines')} from line {first + 1} on gave {count_of(len(results), 'lines')} "
                f"of output, or a line with a line end inside; each line gives one"
            )
        try:
            parts.mkdir(parents=True, exist_ok=True)
            replace_file(path, "".join(f"{result}\n" for result in results).encode())
        except FileNotFoundError:
            if not out.exists():  # if it does, another process completed it and removed the folder
                raise
    return _join(out, parts, len(blocks))


def _has_line_end(line: str) -> bool:
    return "\n" in line or "\r" in line


def share_of_work() -> dict[str, int]:
    """How many processes work together and which this is, as the launcher's environment has it.

    >>> share_of_work()
    {'world': 1, 'rank': 0}
    """
    values = {"WORLD_SIZE": os.environ.get("WORLD_SIZE", "1"), "RANK": os.environ.get("RANK", "0")}
    for name, value in values.items():
        least = 1 if name == "WORLD_SIZE" else 0
        if not value.isdecimal() or int(value) < least:
            raise ArgumentError(
                f"the environment variable {name} is {shown(value)}; torchrun sets it to a whole number"
            )
    return {"world": int(values["WORLD_SIZE"]), "rank": int(values["RANK"])}


def _digest(lines: Sequence[str], settings: str) -> str:
    digest = hashlib.sha256(f"{settings}\n{len(lines)}\n{BLOCK}\n".encode())
    for line in lines:
        digest.update(f"{len(line)} {line}\n".encode())
    return digest.hexdigest()


def _claimed(out: Path, digest: str) -> tuple[Path, bool]:
    """The folder of the parts, and whether the file is complete already, if their record is that of this work."""
    record = Path(f"{out}.record")
    parts = Path(f"{out}.parts")
    claimed = record.exists()
    if not claimed and (out.exists() or parts.exists()):
        # Another process of this command may have written it before them, since it was read.
        claimed = record.exists()
        if not claimed:
            raise OccupiedError(
                f"{out} is there already, without a record of what it belongs to; name another file"
            )
    if claimed:
        if read_sealed(record).get("digest") != digest:
            raise OccupiedError(
                f"{out} belongs to other lines, another model or other options; name another file, or remove {record}, "
                f"{parts} and {out} to begin anew"
            )
        if out.exists():
            shutil.rmtree(parts, ignore_errors=True)
        return parts, out.exists()
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_file(record, render_sealed({"digest": digest}))
    return parts, False


def _part(parts: Path, block: int) -> Path:
    return parts / f"{block:08d}.txt"


def _join(out: Path, parts: Path, blocks: int) -> bool:
    """Join the parts to the file if all are there. Two processes may do so at once, and write the same."""
    # Another process may have joined them, and removed the folder before this one wrote to it.
    if out.exists():
        shutil.rmtree(parts, ignore_errors=True)
        return True
    if not all(_part(parts, block).exists() for block in range(blocks)):
        return out.exists()
    try:
        content = b"".join(_part(parts, block).read_bytes() for block in range(blocks))
    except FileNotFoundError:  # the other process joined them and removed them
        return out.exists()
    replace_file(out, content)
    shutil.rmtree(parts, ignore_errors=True)
    return True
