"""Raises an exception at a chosen line while a function runs, as Ctrl-C or missing memory would."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import regard

HERE = str(Path(regard.__file__).parent)
Line = tuple[str, int, int]  # file, line number, and how often the line was executed before


def lines_of(run: Callable[[], Any], prefix: str = HERE) -> list[Line]:
    """The lines that `run()` executes in files whose path begins with `prefix`, in order."""
    lines: list[Line] = []
    _traced(run, lines.append, prefix)
    return lines


def interrupted(
    run: Callable[[], Any], at: Line, exception: type[BaseException] = KeyboardInterrupt, prefix: str = HERE
) -> bool:
    """Call `run()` and raise `exception` before line `at` is executed; whether that exception left `run`."""
    raised = exception(f"injected at line {at[1]} of {at[0]}")

    def stop(line: Line) -> None:
        if line == at:
            raise raised

    try:
        _traced(run, stop, prefix)
    except exception as error:
        if error is not raised:
            raise
        return True
    return False


def at_each_line(run: Callable[[], Any], prefix: str = HERE, most: int | None = None) -> Iterator[Line]:
    """The lines of `run()`, or `most` of them at equal distances with the first and the last.

    >>> len(list(at_each_line(lambda: regard.patterns.Causal() & regard.patterns.Full(), most=3)))
    3
    """
    lines = lines_of(run, prefix)
    if most is None or len(lines) <= most:
        yield from lines
    else:
        yield from (lines[at * (len(lines) - 1) // (most - 1)] for at in range(most))


def _traced(run: Callable[[], Any], visit: Callable[[Line], None], prefix: str) -> None:
    """Call `run()`, and `visit` before each line in files whose path begins with `prefix`."""
    counts: Counter[tuple[str, int]] = Counter()

    def of_frame(frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(prefix) or frame.f_code.co_name == "__del__":  # an exception cannot leave a finaliser
            return None
        if event == "line":
            place = name, frame.f_lineno
            counts[place] += 1
            visit((*place, counts[place] - 1))
        return of_frame

    before = sys.gettrace()
    sys.settrace(of_frame)
    try:
        run()
    finally:
        sys.settrace(before)
