"""Raises an exception at a chosen line while a function runs, as Ctrl-C or missing memory would."""

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
    run: Callable[[], Any], at: Line, exception: type[BaseException] = KeyboardInterrupt
) -> bool:
    """Call `run()` and raise `exception` before line `at` is executed; whether that exception left `run`."""
    raised = exception(f"injected at line {at[1]} of {at[0]}")

    def stop(line: Line) -> None:
        if line == at:
            raise raised

    try:
        _traced(run, stop, at[0])
    except exception as error:
        if error is not raised:
            raise
        return True
    return False


def at_each_line(
    run: Callable[[], Any], prefix: str = HERE, most: int | None = None
) -> Iterator[Line]:
    """The lines of `run()`, or `most` of them at equal distances with the first and the last.

    >>> len(list(at_each_line(lambda: regard.patterns.Causal() & regard.patterns.Full(), most=3)))
    3
    """
    lines = lines_of(run, prefix)
    if most is None or len(lines) <= most:
        yield from lines
    else:
        yield from (lines[at * (len(lines) - 1) // (most - 1)] for at in range(most))


def instructions_of(run: Callable[[], Any], prefix: str = HERE) -> int:
    """How many instructions of Python `run()` executes in files whose path begins with `prefix`."""
    return _counted(run, -1, lambda: None, prefix)


def disturbed(run: Callable[[], Any], at: int, act: Callable[[], Any], prefix: str = HERE) -> Any:
    """What `run()` returns if `act()` is called before its instruction number `at`, as by a signal; `act` may raise."""
    results: list[Any] = []
    _counted(lambda: results.append(run()), at, act, prefix)
    return results[0]


def _is_of(frame: FrameType, prefix: str) -> bool:
    """Whether a frame is of these files, and of no finaliser: Python prints and drops what one raises."""
    return frame.f_code.co_filename.startswith(prefix) and frame.f_code.co_name != "__del__"


def _with_trace(run: Callable[[], Any], trace: Any) -> None:
    """Call `run()` under a trace function, and restore the one before."""
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)


def _counted(run: Callable[[], Any], at: int, act: Callable[[], Any], prefix: str) -> int:
    """Call `run()`, and `act` before instruction number `at`; how many instructions were executed until then."""
    count = 0

    def of_frame(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not _is_of(frame, prefix):
            return None
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode":
            count += 1
            if count - 1 == at:
                sys.settrace(None)
                act()
        return of_frame

    _with_trace(run, of_frame)
    return count


def _traced(run: Callable[[], Any], visit: Callable[[Line], None], prefix: str) -> None:
    """Call `run()`, and `visit` before each line in files whose path begins with `prefix`."""
    counts: Counter[tuple[str, int]] = Counter()

    def of_frame(frame: FrameType, event: str, _: Any) -> Any:
        if not _is_of(frame, prefix):
            return None
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            counts[place] += 1
            visit((*place, counts[place] - 1))
        return of_frame

    _with_trace(run, of_frame)
