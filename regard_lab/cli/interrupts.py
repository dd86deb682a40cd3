"""Ctrl-C ends the program at once, with one word, where nothing can be lost; elsewhere a command saves its work."""

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


@contextmanager
def quiet_interrupts() -> Generator[None]:
    """While modules are imported, or a command has nothing to save, Ctrl-C ends the program at once, with one word.

    An import that is interrupted otherwise leaves half of a module, and a traceback; and where Python itself calls a
    function, as when it frees an object, it prints a traceback and goes on. `heed_interrupts` ends this. Programs that
    ignore Ctrl-C, such as those in the background of a shell, go on ignoring it.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or not _is_main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _leave_interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def heed_interrupts() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, so that a command can save what it has done."""
    if signal.getsignal(signal.SIGINT) is _leave_interrupted and _is_main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _is_main_thread() -> bool:
    """Whether this is the thread that alone may set what a signal does."""
    return threading.current_thread() is threading.main_thread()


def leave(code: int) -> NoReturn:
    """End the program at once, although threads may be inside PyTorch.

    Python's own end stops such threads, and C++ aborts the process for that: "terminate called without an active
    exception".
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _leave_interrupted(number: int, frame: object) -> None:
    os.write(2, b"regard: interrupted\n")
    os._exit(INTERRUPTED)
