"""The command line. A command parses its options, calls one function of the library, and prints the result.

Nothing heavy is imported before a command runs, so that `regard --help` is instant.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from regard_lab.cli.interrupts import INTERRUPTED, quiet_interrupts

__all__ = ["main"]

DONE = 0
FAILED = 1
MISUSED = 2


def main() -> None:
    """Run the command line and exit with 0 (done), 1 (failed), 2 (wrong command) or 130 (interrupted).

    If the reader of the output goes away, as `head` does, the process ends by SIGPIPE like other programs (141 in
    shells).
    """
    # Threads that wait spin briefly and then sleep: on a busy machine, long spinning makes small training steps tens of
    # times slower; sleeping at once costs a third of the speed on an idle one. OpenMP reads it when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    with quiet_interrupts():
        try:
            from regard_lab.cli.app import app
        except ImportError as error:
            if error.name not in ("typer", "rich", "click"):
                raise
            from regard.packages import install_line

            needs = f"regard: the command line needs {error.name}; install it with: {install_line('lab')}"
            print(needs, file=sys.stderr)
            sys.exit(FAILED)
        sys.exit(_run(app))


def _run(app: Callable[..., Any]) -> int:
    """Run a command; return its exit code, with a sentence for every mistake and failure."""
    import warnings
    from contextlib import redirect_stderr, redirect_stdout

    from regard import errors
    from regard_lab.cli.console import NamedStream, PrintableStream, StoppedError, note
    from regard_lab.text.terminal import write_plainly

    misuse = (
        errors.ArgumentError,
        errors.KeywordError,
        errors.NotFoundError,
        errors.OccupiedError,
        errors.UnsupportedError,
    )
    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        write_plainly(stream)
    try:
        with (
            redirect_stderr(PrintableStream(sys.stderr)),
            redirect_stdout(NamedStream(sys.stdout)),
            warnings.catch_warnings(),
        ):
            warnings.showwarning = lambda message, *_, **__: note(str(message))  # ty: ignore[invalid-assignment]
            app(standalone_mode=True)
    except misuse as error:
        return _ended(error, MISUSED)
    except StoppedError as error:
        if error.go_on is None:
            return _ended(error, INTERRUPTED)
        _ended(f"{error}; go on with:", INTERRUPTED)
        note(error.go_on)
        return INTERRUPTED
    except errors.RegardError as error:
        return _ended(error, FAILED)
    except KeyboardInterrupt:
        return _ended("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _end_by_pipe()
    except OSError as error:
        reason = f"{error.filename or 'the system'}: {error.strerror or error}"
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            return _ended(reason, MISUSED)
        code = _ended(reason, FAILED)
        _drop_output()
        return code
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # Typer or Rich has caught it
            return _end_by_pipe()
        if leaving.code == INTERRUPTED:  # Typer has caught the Ctrl-C
            return _ended("interrupted", INTERRUPTED)
        if isinstance(leaving.code, int):
            return leaving.code
        return DONE if leaving.code is None else FAILED
    return DONE


def _ended(reason: object, code: int) -> int:
    from regard_lab.cli.console import note

    with suppress(OSError):  # where standard error cannot be written, the code remains
        note(f"regard: {reason}")
    return code


def _replace_closed_streams() -> None:
    """Open a file in the place of each standard stream that is closed, so that no other file gets its number.

    Reading such an input, or writing such an output, fails; what is written to such a standard error is dropped.
    """
    # Each with the access that the file has, and that of the stream, which may be another.
    replacements = {
        "stdin": (os.O_WRONLY, "r"),
        "stdout": (os.O_RDONLY, "w"),
        "stderr": (os.O_WRONLY, "w"),
    }
    for name, (access, mode) in replacements.items():
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, access)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _end_by_pipe() -> int:
    """End as a program that writes into a closed pipe does: quietly, and by SIGPIPE where there is one."""
    _drop_output()
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    return 128 + 13


def _drop_output() -> None:
    """Drop what is left of the output, which Python would try to write again when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
