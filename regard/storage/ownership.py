"""Whether a folder may be written into: it is empty, or what it holds was written by the same command before."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from regard.errors import CheckpointError, RegardError

Reader = Callable[[Path], object]
"""Reads one file; raises a RegardError where its content is not what the command writes."""


def check_ours(folder: Path, marks: Mapping[str, Reader], what: str, *, aside: tuple[str, ...] = ()) -> None:
    """Refuse a folder with files of which none proves that it is ours; names alone prove nothing.

    Args:
        folder: which; one that is missing or empty is free.
        marks: files by name, each with what reads it; the folder is ours where one of them can be read.
        what: such a folder holds, in words.
        aside: names of files that a command makes before its first mark.

    Raises:
        CheckpointError: it holds something else.

    >>> check_ours(Path("nowhere"), {}, "run")
    """
    if not folder.is_dir():
        return
    unfinished = re.compile(rf"\.({'|'.join(map(re.escape, marks))})\.writing-[0-9a-f]{{8}}") if marks else None
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}; choose another folder") from error
    found = [name for name in names if name not in aside and not (unfinished and unfinished.fullmatch(name))]
    if not found:
        return
    reasons = []
    for name, read in marks.items():
        if name in found:
            try:
                read(folder / name)
                return
            except RegardError as error:
                reasons.append(str(error))
    told = ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise CheckpointError(
        f"{folder} holds {told} and no {what} of regard{why}, so nothing is written there; choose a new or an empty "
        f"folder"
    )
