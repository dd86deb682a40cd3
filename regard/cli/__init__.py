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
    """Run the command line and leave with 0 (done), 1 (failed) or 2 (asked for something that does not exist)."""
    _wait_politely()
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


def _wait_politely() -> None:
    """Let threads that wait spin briefly and then sleep. On a machine that others use, threads that spin for long
    make small steps tens of times slower; sleeping at once costs a third of the speed on a quiet one. The setting is
    read when torch is loaded, so it is made before."""
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
    except BrokenPipeError:  # whoever read our output has gone: nothing is left to say
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
