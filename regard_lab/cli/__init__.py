"""The command line. A command parses its options, calls one function of the library, and shows the result.

Nothing heavy is imported before a command runs, so that `regard --help` answers at once.
"""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from regard_lab.cli.interrupts import INTERRUPTED, quiet_interrupts

__all__ = ["main"]

DONE, FAILED, MISUSED = 0, 1, 2


def main() -> None:
    """Run the command line and exit with 0 (done), 1 (failed), 2 (wrong command) or 130 (interrupted).

    If the reader of the output goes away, as `head` does, the process ends by SIGPIPE like other programs (141 in
    shells).
    """
    _limit_spinning()
    with quiet_interrupts():
        try:
            from regard_lab.cli.app import app
        except ImportError as error:
            if error.name not in ("typer", "rich", "click"):
                raise
            from regard.packages import install_line

            needs = f"regard: the command line needs {error.name}; install it with: {install_line('train')}"
            print(needs, file=sys.stderr)
            sys.exit(FAILED)
        sys.exit(_run(app))


def _limit_spinning() -> None:
    """Make waiting threads spin briefly and then sleep.

    On a shared machine, long spinning makes small training steps tens of times slower. Sleeping at once costs a third
    of the speed on an idle machine. OpenMP reads the setting when torch is loaded, so it is made before.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _run(app: Callable[..., Any]) -> int:
    from contextlib import redirect_stderr, redirect_stdout

    from regard.errors import (
        ArgumentError,
        KeywordError,
        NotFoundError,
        OccupiedError,
        RegardError,
        UnsupportedError,
    )
    from regard_lab.cli.console import NamedStream, PrintableStream, StoppedError, say
    from regard_lab.text.terminal import write_plainly

    _replace_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        write_plainly(stream)
    try:
        with redirect_stderr(PrintableStream(sys.stderr)), redirect_stdout(NamedStream(sys.stdout)):
            app(standalone_mode=True)
    except (ArgumentError, KeywordError, NotFoundError, OccupiedError, UnsupportedError) as error:
        return _say(error, MISUSED)
    except StoppedError as error:
        if error.go_on is None:
            return _say(error, INTERRUPTED)
        _say(f"{error}; go on with:", INTERRUPTED)
        say(error.go_on)
        return INTERRUPTED
    except RegardError as error:
        return _say(error, FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _end_by_pipe()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return _say(_reason(error), MISUSED)
    except OSError as error:
        code = _say(_reason(error), FAILED)
        _drop_output()
        return code
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # Typer or Rich has caught it
            return _end_by_pipe()
        if leaving.code == INTERRUPTED:  # Typer has caught the Ctrl-C
            return _say("interrupted", INTERRUPTED)
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return DONE


def _replace_closed_streams() -> None:
    """Open a file in the place of each standard stream that is closed, so that no other file gets its number.

    Reading such an input, or writing such an output, fails; what is written to such a standard error is dropped.
    """
    for name, opened, used in (("stdin", os.O_WRONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, opened), used, encoding="utf-8"))


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


def _reason(error: OSError) -> str:
    return f"{error.filename or 'the system'}: {error.strerror or error}"


def _say(reason: object, code: int) -> int:
    from regard_lab.cli.console import say

    with suppress(OSError):  # the code still says it where standard error cannot be written
        say(f"regard: {reason}")
    return code
