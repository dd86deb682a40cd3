"""The command line: a thin door. Parse, call, show; whatever a command does, Python does with the same call.

Nothing heavy is imported before a command runs, so that `regard --help` answers at once.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with 0 (done), 1 (failed) or 2 (wrong usage)."""
    _limit_spinning()
    try:
        from regard.cli.app import app
    except ImportError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        print(
            f"regard: the command line needs {error.name}; install it with: pip install 'regard[train]'",
            file=sys.stderr,
        )
        sys.exit(1)
    sys.exit(_run(app))


def _limit_spinning() -> None:
    """Make waiting threads spin briefly and then sleep.

    On a shared machine, long spinning makes small training steps tens of times slower. Sleeping at once costs a third
    of the speed on an idle machine. OpenMP reads the setting when torch is loaded, so it is made before.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")


def _run(app: Callable[..., Any]) -> int:
    from contextlib import redirect_stderr

    from regard.cli.console import PrintableStream
    from regard.errors import ArgumentError, RegardError

    try:
        with redirect_stderr(PrintableStream(sys.stderr)):
            app(standalone_mode=True)
    except ArgumentError as error:
        return _say(error, 2)
    except RegardError as error:
        return _say(error, 1)
    except KeyboardInterrupt:
        return _say("interrupted", 1)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _say(f"{error.filename or 'the system'}: {error.strerror or error}", 1)
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:  # Typer has caught the Ctrl-C
            return _say("interrupted", 1)
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    return 0


def _say(reason: object, code: int) -> int:
    from regard.cli.console import say

    say(f"regard: {reason}")
    return code
