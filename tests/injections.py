"""Raises an exception at a chosen line of regard while a function runs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import regard

PACKAGE = str(Path(regard.__file__).parent)
Line = tuple[str, int, int]  # a file, a line of it, and how often that line was executed before


def lines_of(run: Callable[[], Any]) -> list[Line]:
    """The lines of regard that a function executes, in their order."""
    lines: list[Line] = []
    counts: Counter[tuple[str, int]] = Counter()

    def each(frame: Any, event: str, _: Any) -> Any:
        if event == "line":
            name = frame.f_code.co_filename, frame.f_lineno
            lines.append((*name, counts[name]))
            counts[name] += 1
        return each

    def of_package(frame: Any, *_: Any) -> Any:  # Python prints and drops what a finaliser raises
        code = frame.f_code
        return each if code.co_filename.startswith(PACKAGE) and code.co_name != "__del__" else None

    _traced(run, of_package)
    return lines


def interrupted(run: Callable[[], Any], at: Line, exception: type[BaseException] = KeyboardInterrupt) -> bool:
    """Run a function with an exception raised before a line of `lines_of`; whether the line was reached."""
    file, line, occurrence = at
    left = occurrence + 1

    def each(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line" and frame.f_lineno == line:
            left -= 1
            if not left:
                sys.settrace(None)
                raise exception
        return each

    try:
        _traced(run, lambda frame, *_: each if left > 0 and frame.f_code.co_filename == file else None)
    except exception:
        if left > 0:
            raise
    return left <= 0


def _traced(run: Callable[[], Any], trace: Any) -> None:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
