"""Raises an exception at a chosen line while a function runs, as Ctrl-C or missing memory would."""

import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import regard

HERE = str(Path(regard.__file__).parent)
Line = tuple[str, int, int]  # file, line number, and how often the line was executed before


def lines_of(run: Callable[[], Any], most: int | None = None) -> list[Line]:
    """The lines of regard that `run()` executes, or `most` of them at equal distances with the first and the last.

    >>> len(lines_of(lambda: regard.patterns.Causal() & regard.patterns.Full(), most=3))
    3
    """
    lines: list[Line] = []
    _visit_lines(run, lines.append, HERE)
    if most is None or len(lines) <= most:
        return lines
    return [lines[part * (len(lines) - 1) // (most - 1)] for part in range(most)]


def interrupted(
    run: Callable[[], Any], at: Line, exception: type[BaseException] = KeyboardInterrupt
) -> bool:
    """Call `run()` and raise `exception` before line `at` is executed; whether that exception left `run`."""
    file, number, visits_before = at
    raised = exception(f"injected at line {number} of {file}")
    visits = count()

    def of_frame(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and frame.f_lineno == number and next(visits) == visits_before:
            raise raised
        return of_frame

    def of_call(frame: FrameType, event: str, _: Any) -> Any:
        # The lines of other functions are not looked at: they are most of what `run` executes.
        if frame.f_code.co_firstlineno <= number and _is_of(frame, file):
            return of_frame
        return None

    try:
        _with_trace(run, of_call)
    except exception as error:
        if error is not raised:
            raise
        return True
    return False


def instructions_of(run: Callable[[], Any], prefix: str = HERE) -> int:
    """How many instructions of Python `run()` executes in files whose path begins with `prefix`."""
    numbers: list[int] = []
    _visit_instructions(run, numbers.append, prefix)
    return len(numbers)


def disturbed(run: Callable[[], Any], at: int, act: Callable[[], Any], prefix: str = HERE) -> Any:
    """What `run()` returns if `act()` is called before its instruction number `at`, as by a signal; `act` may raise."""
    results: list[Any] = []

    def act_once(number: int) -> None:
        if number == at:
            sys.settrace(None)
            act()

    _visit_instructions(lambda: results.append(run()), act_once, prefix)
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


def _visit_instructions(run: Callable[[], Any], visit: Callable[[int], None], prefix: str) -> None:
    """Call `run()`, and `visit` with its number before each instruction in files whose path begins with `prefix`."""
    numbers = count()

    def of_frame(frame: FrameType, event: str, _: Any) -> Any:
        if not _is_of(frame, prefix):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        if event == "opcode":
            visit(next(numbers))
        return of_frame

    _with_trace(run, of_frame)


def _visit_lines(run: Callable[[], Any], visit: Callable[[Line], None], prefix: str) -> None:
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
