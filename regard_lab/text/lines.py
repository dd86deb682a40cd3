"""Numbered lines of UTF-8 files, also packed as `.gz`."""

import gzip
import os
import shlex
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import IO, Any

from regard.arguments import a_path, absent, each, of_kind
from regard.errors import DataError, NotFoundError

BINARY_SNIFF_BYTES = 4096  # searched for a NUL
UNDECODABLE_SHARE = 0.2  # a larger share of invalid lines means another encoding
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Bytes that are read from a .gz, which may itself be a thousand times smaller.
MOST_UNPACKED_BYTES = 2**31
PACKED = {
    b"\x1f\x8b": "a gzip file; let its name end in .gz",
    b"PK\3\4": "a zip archive; unpack it by unzip",
}

PathLike = str | os.PathLike[str]


def check_there(path: PathLike) -> None:
    """Raise a NotFoundError if a file is missing, or a folder; nothing is opened, so that pipes stay whole."""
    if os.path.isdir(path):
        raise NotFoundError(f"{path} is a folder; name a file inside it")
    if not os.path.exists(path):
        raise NotFoundError(absent(path))


def is_packed(path: PathLike) -> bool:
    """Whether the name of a file says that gzip packed it."""
    return Path(path).suffix.lower() == ".gz"


def suffix_of(path: PathLike) -> str:
    """The suffix of a file in lower case; of a `.gz` that of the file inside.

    >>> suffix_of("pairs.TSV"), suffix_of("pairs.tsv.gz")
    ('.tsv', '.tsv')
    """
    return plain_path(path).suffix.lower()


def plain_path(path: PathLike) -> Path:
    """The path without the suffix `.gz`."""
    return Path(path).with_suffix("") if is_packed(path) else Path(path)


def unpacking(path: PathLike) -> str:
    """The beginning of a command line whose rest reads the plain file; nothing for one that is not packed."""
    return f"gunzip --keep {shlex.quote(str(path))} && " if is_packed(path) else ""


@contextmanager
def open_bytes(path: PathLike) -> Generator[BufferedReader]:
    """A file that is open for reading bytes inside the block; of a `.gz`, those that are packed in it."""
    path = a_path("path", path)
    with _opened(path) as file:
        try:
            yield BufferedReader(_Unpacked(path, file)) if is_packed(path) else file
        except OSError as error:
            if error.filename is not None:  # of another file
                raise
            raise DataError(
                f"{path} cannot be read ({error.strerror}); check the disk, or copy the file"
            ) from error


class _Unpacked(RawIOBase):
    """The unpacked bytes of a gzip file; a damaged one, and more than MOST_UNPACKED, are refused."""

    def __init__(self, path: Path, packed: BufferedReader) -> None:
        self._path = path
        self._file = gzip.GzipFile(fileobj=packed)
        self._count = 0  # of the bytes that were read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            count = self._file.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            way = "copy it again, or give it unpacked"
            raise DataError(f"{self._path} is damaged, or no gzip file ({error}); {way}") from None
        self._count += count
        if self._count > MOST_UNPACKED_BYTES:
            command = unpacking(self._path).removesuffix(" && ")
            raise DataError(
                f"{self._path} unpacks to more than {MOST_UNPACKED_BYTES:,} bytes, the most that is read from a .gz; "
                f"if that is right, unpack it by: {command}"
            )
        return count


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise NotFoundError(absent(path)) from None
    except IsADirectoryError:
        raise NotFoundError(f"{path} is a folder; name a file inside it") from None
    except NotADirectoryError:
        raise NotFoundError(
            f"{path} does not exist; what stands there as its folder is a file"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or error
        raise DataError(
            f"{str(path)!r} cannot be opened ({reason}); check its name and permissions"
        ) from None


def numbered_lines(path: PathLike) -> Iterator[tuple[int, str | None]]:
    r"""The lines of a text file with their numbers, from 1; None for a line that is not valid UTF-8.

    Lines end with "\n" or "\r\n" only, not at U+2028, U+0085 or form feeds. A byte order mark is dropped.
    """
    count = 0
    damaged = 0
    first_damaged = 0
    with open_bytes(path) as file:
        _refuse_binary(path, file.peek(BINARY_SNIFF_BYTES)[:BINARY_SNIFF_BYTES])
        for count, raw in enumerate(file, start=1):
            if count == 1 and b"\r" in raw.rstrip(b"\r\n") and not raw.endswith(b"\n"):
                raise DataError(
                    f"{path} line 1 is the whole file, since its lines end with a carriage return alone; convert it "
                    f"with {_conversion(path, None)}"
                )
            text = decode(raw, count)
            if text is None:
                damaged += 1
                first_damaged = first_damaged or count
            yield count, text
    if damaged > 1 and damaged > UNDECODABLE_SHARE * count:
        raise DataError(
            f"{path}: {damaged} of {count} lines are not valid UTF-8, the first is line {first_damaged}; at most "
            f"{UNDECODABLE_SHARE:.0%} may be damaged, so this looks like another encoding: convert it with "
            f"{_conversion(path, 'latin1')} (or its real encoding)"
        )


def read_lines(source: PathLike | IO[str] | IO[bytes]) -> Iterator[str]:
    r"""The lines of a file or stream, unchanged and in order; empty lines are empty strings.

    Lines are returned as they arrive, so a pipe can be processed line by line.

    Args:
        source: a path, or an open stream such as `sys.stdin`.

    Raises:
        DataError: the file cannot be opened, or a line is not valid UTF-8 (skipping it would shift the rest).

    >>> import io
    >>> list(read_lines(io.StringIO("A bird sang.\n\nIt was happy.")))
    ['A bird sang.', '', 'It was happy.']
    """
    if isinstance(source, str | os.PathLike):
        with open_bytes(source) as file:
            yield from _valid_lines(file, str(source))
    else:
        # The bytes of a text stream, since its encoding may differ.
        stream = getattr(source, "buffer", source)
        yield from _valid_lines(stream, str(getattr(source, "name", "the input")))


def decode(raw: bytes, number: int) -> str | None:
    """A raw line as text without its end, and in line 1 without a byte order mark; None if it is not UTF-8."""
    if number == 1:
        raw = raw.removeprefix(BYTE_ORDER_MARK)
    try:
        return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError:
        return None


def _valid_lines(stream: IO[str] | IO[bytes], name: str) -> Iterator[str]:
    lines = each("source", stream, "a path, or a stream of lines")
    for number, raw in enumerate(lines, start=1):
        of_kind("source", raw, (str, bytes), "lines of text")
        data = raw.encode("utf-8", "surrogatepass") if isinstance(raw, str) else raw
        text = decode(data, number)
        if text is None or "\0" in text:
            fault = "is not valid UTF-8" if text is None else "contains a NUL character"
            raise DataError(f"{name}, line {number} {fault}; give UTF-8 text, one sentence a line")
        yield text


def _conversion(path: PathLike, encoding: str | None) -> str:
    """The command that writes the file in UTF-8 beside it; without an encoding, with ordinary line ends.

    >>> _conversion("my pairs.tsv", "latin1")
    "`iconv -f latin1 -t utf-8 'my pairs.tsv' > 'my pairs.utf8.tsv'`"
    >>> _conversion("pairs.tsv.gz", "latin1")
    '`gunzip --keep pairs.tsv.gz && iconv -f latin1 -t utf-8 pairs.tsv > pairs.utf8.tsv`'
    """
    plain = plain_path(path)
    kind = "utf8" if encoding else "lines"
    old = shlex.quote(str(plain))
    new = shlex.quote(str(plain.with_suffix(f".{kind}{plain.suffix}")))
    command = f"tr '\\r' '\\n' < {old} > {new}"
    if encoding:
        command = f"iconv -f {encoding} -t utf-8 {old} > {new}"
    return f"`{unpacking(path)}{command}`"


def _refuse_binary(path: PathLike, head: bytes) -> None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(
            f"{path}, line 1 starts as UTF-16; convert it with {_conversion(path, 'utf-16')}"
        )
    refuse_packed(path, head)
    if b"\0" in head:
        line = head.count(b"\n", 0, head.index(b"\0")) + 1
        raise DataError(
            f"{path}, line {line} contains a NUL byte, so this is a binary file; give UTF-8 text"
        )


def refuse_packed(path: PathLike, head: bytes) -> None:
    """Raise a DataError if a file whose name does not say so begins as a packed one."""
    for mark, kind_and_way_out in PACKED.items():
        if head.startswith(mark):
            raise DataError(f"{path} is {kind_and_way_out}")


def decoded(path: Path, content: bytes, encoding: str, what_says: str) -> str:
    """The text of a file that is written back in the same encoding, byte for byte.

    Raises:
        DataError: the file is not in this encoding, or Python does not know it.
    """
    try:
        text = content.decode(encoding)
        is_same = text.encode(encoding) == content
    except (UnicodeError, LookupError):
        is_same = False
        text = ""
    if not is_same:
        raise DataError(
            f"{path} is not in {encoding}, as {what_says}; convert it to UTF-8, and let it say so"
        )
    return text
