"""What Ctrl-C does: while modules are imported it ends the program with one word, later a command may save its work."""

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager

INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


@contextmanager
def quiet_interrupts() -> Generator[None]:
    """While modules are imported, Ctrl-C ends the program at once, with one word; `heed_interrupts` ends that.

    An import that is interrupted elsewhere leaves half of a module, and a traceback. Programs that ignore Ctrl-C, such
    as those in the background of a shell, go on ignoring it.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if main_thread else None
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def heed_interrupts() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, so that a command can save what it has done."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    os.write(2, b"regard: interrupted\n")
    os._exit(INTERRUPTED)
