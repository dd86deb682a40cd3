"""`regard` in this process, and in a fork of it: a process with pipes and signals that does not import torch again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard_lab.cli import main

STREAMS = (0, 1, 2)
# what Python does with signs that a stream cannot hold
ERRORS = (
    "surrogateescape",
    "strict",
    "backslashreplace",
)
LINES = ["the animal sleeps", "a street", "the old animal"]
SMALL = (
    "--dim",
    16,
    "--heads",
    2,
    "--layers",
    1,
    "--vocab-size",
    300,
    "--batch-tokens",
    256,
    "--cpu",
)


@dataclass
class CommandResult:
    """The exit code of a command and what it wrote."""

    returncode: int
    stdout: bytes
    stderr: bytes

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def err(self) -> str:
        return self.stderr.decode()

    @property
    def last(self) -> str:
        """The last line of standard error."""
        return self.err.strip().splitlines()[-1]


class Stream(io.TextIOWrapper):
    """A stream of bytes that may claim to be a terminal."""

    def __init__(
        self, content: bytes = b"", terminal: bool = False, encoding: str = "utf-8"
    ) -> None:
        super().__init__(io.BytesIO(content), encoding=encoding)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def regard(
    *words: object, stdin: bytes = b"", terminal: bool = False, encoding: str = "utf-8"
) -> CommandResult:
    """A command in this process, with streams of its own."""
    streams = Stream(stdin), *(Stream(terminal=terminal, encoding=encoding) for _ in range(2))
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    sys.modules[
        "__main__"
    ].__package__ = None  # else a command of `python -m pytest` is named after pytest
    sys.argv = ["regard", *map(str, words)]
    sys.stdin, sys.stdout, sys.stderr = streams
    code = None
    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
    for stream in streams[1:]:
        stream.flush()
    assert isinstance(code, int)
    return CommandResult(code, *(stream.buffer.getvalue() for stream in streams[1:]))


def succeeded(*words: object, stdin: bytes = b"") -> CommandResult:
    """A command that has to succeed."""
    answer = regard(*words, stdin=stdin)
    assert answer.returncode == 0, answer.err
    return answer


def printed(*words: object, stdin: bytes = b"") -> Any:
    """The values that a command prints as JSON; a list of them, if each line has its own."""
    text = succeeded(*words, "--json", stdin=stdin).out
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def refusal(*words: object, code: int = 2) -> str:
    """The error of a command that must be refused, as one line."""
    answer = regard(*words)
    assert (answer.returncode, answer.stdout) == (code, b""), answer.err
    return " ".join(answer.err.split())


def cpu_seconds(process: int) -> float:
    """The CPU time that a process has used; infinity once it has ended."""
    try:
        user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return float("inf")
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Forked:
    """What `subprocess.Popen(["regard", ...])` offers, with a pipe for each stream that is not given.

    Args:
        words: of the command line, after `regard`.
        streams: file descriptors by the number of a stream; None: it is closed.
        prepare: called in the fork before the command.
        environment: variables that are set in the fork; of those that Python reads when it starts, PYTHONIOENCODING.
    """

    def __init__(
        self,
        *words: object,
        streams: Mapping[int, int | None] | None = None,
        prepare: Callable[[], None] | None = None,
        **environment: str,
    ) -> None:
        pipes = [os.pipe() for _ in STREAMS]
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            descriptors = {stream: pipe[stream > 0] for stream, pipe in enumerate(pipes)} | {
                **(streams or {})
            }
            self._be_regard([str(word) for word in words], descriptors, prepare, environment)
        for stream, (reading, writing) in zip(STREAMS, pipes, strict=True):
            os.close(reading if stream == 0 else writing)
        self.stdin = os.fdopen(pipes[0][1], "wb")
        self.stdout, self.stderr = (os.fdopen(pipes[stream][0], "rb") for stream in (1, 2))

    def _be_regard(
        self,
        words: list[str],
        streams: dict[int, int | None],
        prepare: Callable[[], None] | None,
        environment: dict,
    ) -> None:
        """Does not return. Ends as Python ends a program: streams are flushed, and SystemExit is the exit code."""
        code: object = 70
        try:
            opened: list[Any] = []
            encoding = environment.get("PYTHONIOENCODING", "utf-8")
            for stream, descriptor in sorted(streams.items()):
                if descriptor is None:
                    os.close(stream)
                    opened.append(None)
                    continue
                os.dup2(descriptor, stream)
                how = {"encoding": encoding, "errors": ERRORS[stream], "closefd": False}
                opened.append(open(stream, "w" if stream else "r", **how))  # noqa: SIM115
            os.closerange(3, 4096)  # among them the other ends of the pipes
            sys.stdin, sys.stdout, sys.stderr = opened
            # a job in the background has none
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.environ |= environment
            sys.argv = ["regard", *words]
            if prepare is not None:
                prepare()
            main()
            code = 0
        except SystemExit as leaving:
            code = leaving.code
        except BaseException:
            traceback.print_exc()
        finally:
            code = code if isinstance(code, int) else int(code is not None)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.flush()
            try:
                if sys.stdout is not None:
                    sys.stdout.flush()
            except (OSError, ValueError):
                code = 120  # as Python does, with "Exception ignored"
            os._exit(code)

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or `None` while it runs."""
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait_for(self, words: bytes) -> None:
        """Read standard error up to a line with these words."""
        while words not in self.stderr.readline():
            assert self.poll() is None

    def communicate(self, content: bytes = b"", timeout: float = 120) -> tuple[bytes, bytes]:
        """Write `given`, read both streams to their ends, and wait for the process; it is killed at the timeout."""
        written: dict[str, bytes] = {"stdout": b"", "stderr": b""}

        def read(name: str) -> None:
            written[name] = getattr(self, name).read()

        reading = [
            threading.Thread(target=read, args=(name,))
            for name in written
            if not getattr(self, name).closed
        ]
        for thread in reading:
            thread.start()
        with contextlib.suppress(BrokenPipeError):  # it has left without reading everything
            self.stdin.write(content)
            self.stdin.close()
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        for thread in reading:
            thread.join()
        for stream in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        return written["stdout"], written["stderr"]

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *error: object) -> None:
        """A process that still runs is killed."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.communicate()
