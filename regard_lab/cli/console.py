"""Output of the commands: results on standard output, remarks on standard error, progress with Rich on a terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import wrap
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from regard.errors import ArgumentError, CheckpointError, RegardError
from regard_lab.text.terminal import (
    has,
    one_line,
    plain,
    plain_json,
    printable,
    printable_json,
    printable_lines,
)
from regard_lab.text.writing import duration

if TYPE_CHECKING:
    from rich.console import Console


class StoppedError(RegardError):
    """A command that was interrupted after it had kept what was done."""

    def __init__(self, sentence: str, go_on: str | None = None) -> None:
        super().__init__(sentence)
        self.go_on = go_on


@contextmanager
def keeping(what: Callable[[], str | None], go_on: Sequence[str | Path] = ()) -> Generator[None]:
    """Inside the block, Ctrl-C ends the command with a sentence about what is kept; with one word where nothing is."""
    try:
        yield
    except KeyboardInterrupt:
        sentence = what()
        if sentence is None:
            raise
        command = shlex.join(map(str, go_on)) or None
        raise StoppedError(f"interrupted; {sentence}", command) from None


def out(line: str) -> None:
    """Write one line of a result to standard output; control characters are shown as escapes."""
    _write(printable(line))


def out_lines(text: str) -> None:
    """Write a result of several lines; control characters are shown as escapes."""
    _write(printable_lines(text))


def out_text(text: str, indent: str = "") -> None:
    """Write sentences, broken into lines that fit the terminal."""
    width = out_width()
    lines = [text]
    if width is not None:
        lines = wrap(text, max(width - len(indent), LEAST_TEXT)) or [""]
    for line in lines:
        out(indent + line)


def out_json(values: Any) -> None:
    """Write a result as JSON, of values or of its text; control characters are written as JSON escapes."""
    text = values if isinstance(values, str) else json.dumps(values, ensure_ascii=False)
    _write(plain_json(printable_json(text), out_encoding()))


def out_result(
    as_json: bool, values: Callable[[], Any], text: Callable[[], str | Iterable[str]]
) -> None:
    """Write a result as JSON or as text; only the requested form is computed."""
    if as_json:
        out_json(values())
        return
    lines = text()
    if isinstance(lines, str):
        out_lines(lines)
        return
    for line in lines:
        out(line)


def out_data(line: str) -> None:
    """Write a line that programs read: unchanged into a pipe or file, as `out` does on a terminal."""
    remark_escapes(line)
    _write(printable(line) if sys.stdout.isatty() else one_line(line))


LEAST_TEXT = 20  # characters of a line of text, however narrow the terminal is
QUIET = 8.0  # seconds of silence before a line is written
MANY = 50  # the smallest total that is counted
_SPOKEN = [0.0]  # when the command wrote last
_COUNTED: list[Event] = []  # the innermost of what is counted is last; it alone writes


def spoken() -> None:
    """State that the command shows now that it is at work."""
    _SPOKEN[0] = monotonic()


def _write(text: str) -> None:
    spoken()
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


_REMARKED: set[str] = set()  # encodings


def remark_escapes(text: str) -> None:
    """Note once that standard output cannot hold all characters of a text, and that escapes are written for them."""
    encoding = out_encoding()
    if encoding not in _REMARKED and not has(encoding, text):
        _REMARKED.add(encoding)
        note(
            f"standard output is written in {encoding}, which lacks some characters of the text; they are written as "
            f"escapes such as \\xfc (PYTHONIOENCODING=utf-8 writes all)"
        )


def writable(text: str) -> str:
    """Lines of a text as standard output can show them, for drawing programs that measure their width."""
    return plain(printable_lines(text), out_encoding())


def out_encoding() -> str:
    """The encoding of standard output."""
    return getattr(sys.stdout, "encoding", None) or "utf-8"


def out_width() -> int | None:
    """How many characters fit a line of standard output: of the terminal or as in COLUMNS; None for no limit."""
    if not sys.stdout.isatty() and "COLUMNS" not in os.environ:
        return None
    return max(shutil.get_terminal_size().columns, 1)


def out_console(width: int) -> Console:
    """A Rich console on standard output, which shows words as they stand; `width` characters wide where none is known.

    Pass it text from `writable`.
    """
    from rich.console import Console

    return Console(
        file=sys.stdout, width=out_width() or width, markup=False, emoji=False, highlight=False
    )


def note(remark: str | None) -> None:
    """Write one remark to standard error; nothing where there is none."""
    if remark is not None:
        spoken()
        sys.stderr.write(_with_short_words(printable(remark)) + "\n")
        sys.stderr.flush()


def _with_short_words(text: str) -> str:
    """The text with words of 300 characters and more cut: an error quotes what was typed, however long it is."""
    return re.sub(r"\S{300,}", lambda word: f"{word[0][:80]}...", text)


class _Wrapped:
    """A stream with another way to write."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def flush(self) -> None:
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class PrintableStream(_Wrapped):
    """Standard error with control characters shown as escapes, for messages that Typer writes."""

    def write(self, text: str, /) -> int:
        self.stream.write(_with_short_words(printable_lines(text)))
        return len(text)


class NamedStream(_Wrapped):
    """Standard output, whose errors state that it is what could not be written, as on a full disk."""

    def write(self, text: str, /) -> int:
        with _naming_output():
            return self.stream.write(text)

    def flush(self) -> None:
        with _naming_output():
            self.stream.flush()


@contextmanager
def _naming_output() -> Generator[None]:
    try:
        yield
    except OSError as error:
        # A broken pipe stays one.
        raise OSError(error.errno, error.strerror, "standard output") from error


def has_terminal() -> bool:
    """Is standard error a terminal?"""
    return sys.stderr.isatty()


def terminal() -> Console:
    """A Rich console on standard error; pass it text from `printable`."""
    from rich.console import Console

    return Console(file=getattr(sys.stderr, "stream", sys.stderr), highlight=False)


@contextmanager
def counting(
    what: str, total: int | None = None, model: Any = None, *, quiet: float | None = None
) -> Generator[Callable[[int], None]]:
    """A context that counts what is done: call the function that it gives with each new number, or give a module,
    whose passes are counted.

    On a terminal it shows a bar where it knows what to count; elsewhere it states the total, and writes a line whenever
    the command was silent for `quiet` seconds, QUIET by default.
    """
    is_long = model is not None or (total is not None and total >= MANY)
    counted = _bar(what, total) if has_terminal() and is_long else _beats(what, total, quiet)
    with counted as advance:
        if model is None:
            yield advance
            return
        hook = model.register_forward_hook(lambda *_: advance(1))
        try:
            yield advance
        finally:
            hook.remove()


@contextmanager
def _bar(what: str, total: int | None) -> Generator[Callable[[int], None]]:
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn()]
    if total is None:
        columns += [TextColumn("{task.completed:,.0f} passes of the model"), TimeElapsedColumn()]
    else:
        columns += [TextColumn("{task.completed:,.0f} of {task.total:,.0f}"), TimeRemainingColumn()]
    with Progress(*columns, console=terminal(), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def advance(done: int) -> None:
            spoken()
            bar.advance(task, done)

        yield advance


@contextmanager
def _beats(
    what: str, total: int | None, quiet: float | None = None
) -> Generator[Callable[[int], None]]:
    quiet = QUIET if quiet is None else quiet
    began = monotonic()
    ended = Event()
    count = 0
    spoken()

    def advance(done: int) -> None:
        nonlocal count
        count += done

    def progress() -> str:
        if total is not None:
            return f" {count:,} of {total:,}"
        return f" {count:,}" if count else ""

    def beat() -> None:
        while not ended.wait(max(0.1, _SPOKEN[0] + quiet - monotonic())):
            if monotonic() - _SPOKEN[0] >= quiet and _COUNTED[-1] is ended:
                note(f"  {what}{progress()}, {duration(monotonic() - began)}")

    if total is not None and total >= MANY:
        note(f"{what} {total:,}")
    thread = Thread(target=beat, daemon=True)
    _COUNTED.append(ended)
    thread.start()
    try:
        yield advance
    finally:
        ended.set()
        thread.join()
        _COUNTED.pop()


ENDINGS = {  # of a kind of file: what it is, and how its name ends
    "picture": ("PNG, SVG or PDF", ".png, .svg or .pdf"),
    "page": ("HTML", ".html or .htm"),
    "file": ("ONNX", ".onnx"),
}


def check_name(path: Path, what: str = "picture") -> None:
    """Raise before any work if a file of this kind cannot be written there."""
    kind, endings = ENDINGS[what]
    if path.suffix.lower() not in re.findall(r"\.\w+", endings):
        raise ArgumentError(f"the {what} {path} is {kind}; give it a name that ends in {endings}")
    check_place(path, what)


def check_place(path: Path, what: str) -> None:
    """Raise unless a file of this name can be made; nothing is left there."""
    if path.is_dir() or not path.parent.is_dir():
        raise ArgumentError(
            f"the {what} {path} cannot be written: its folder does not exist, or it is a folder"
        )
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise CheckpointError(
            f"the {what} {path} cannot be written: no file can be made in {path.parent} ({error.strerror}); choose "
            f"another folder"
        ) from error
