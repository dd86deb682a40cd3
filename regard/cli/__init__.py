"""The command line: a thin door. Parse, call, show; whatever a command does, Python does with the same call.

Nothing heavy is imported before a command runs, so that `regard --help` answers at once.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

__all__ = ["main"]

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130  # 130 is what a shell reports for a program that Ctrl-C ended


def main() -> None:
    """Run the command line and exit with 0 (done), 1 (failed), 2 (wrong usage) or 130 (interrupted)."""
    _limit_spinning()
    with quiet_interrupts():
        try:
            from regard.cli.app import app
        except ImportError as error:
            if error.name not in ("typer", "rich", "click"):
                raise
            print(
                f"regard: the command line needs {error.name}; install it with: pip install 'regard[train]'",
                file=sys.stderr,
            )
            sys.exit(FAILED)
        sys.exit(_run(app))


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


def _limit_spinning() -> None:
    """Make waiting threads spin briefly and then sleep.

    On a shared machine, long spinning makes small training steps tens of times slower. Sleeping at once costs a third
    of the speed on an idle machine. OpenMP reads the setting when torch is loaded, so it is made before.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _run(app: Callable[..., Any]) -> int:
    from contextlib import redirect_stderr

    from regard.cli.console import PrintableStream, StoppedError
    from regard.errors import ArgumentError, KeywordError, NotFoundError, RegardError
    from regard.text.plain import write_plainly

    for stream in (sys.stdout, sys.stderr):
        write_plainly(stream)
    try:
        with redirect_stderr(PrintableStream(sys.stderr)):
            app(standalone_mode=True)
    except (ArgumentError, KeywordError, NotFoundError) as error:
        return _say(error, MISUSED)
    except StoppedError as error:
        return _say(error, INTERRUPTED)
    except RegardError as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return _say(_reason(error), MISUSED)
    except OSError as error:
        return _say(_reason(error), FAILED)
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:  # Typer has caught the Ctrl-C
            return _say("interrupted", INTERRUPTED)
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return DONE


def _reason(error: OSError) -> str:
    return f"{error.filename or 'the system'}: {error.strerror or error}"


def _say(reason: object, code: int) -> int:
    from regard.cli.console import say

    say(f"regard: {reason}")
    return code
