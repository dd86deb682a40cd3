"""The messages of a catalogue of gettext (`.po`, `.pot`), and where their parts stand in the file.

Source: the GNU gettext manual, section The Format of PO Files.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import DataError
from regard_lab.text.lines import BYTE_ORDER_MARK, decoded, plain_path, unpacking

LINE = re.compile(
    r'\s*(?:(?P<keyword>msgctxt|msgid_plural|msgid|msgstr)(?:\[(?P<form>\d{1,9})\])?\s*)?"(?P<text>(?:[^"\\]|\\.)*)"\s*'
)
OBSOLETE = re.compile(r"#~\s*msgid\s")
CHARSET = re.compile(r'charset=([^\s\\"]+)')
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
ESCAPED = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
TEMPLATE_CHARSET = "CHARSET"  # what a template has instead of an encoding


@dataclass
class PoMessage:
    """A message of a catalogue, and where its parts stand in the text."""

    line: int
    start: int  # of its first keyword
    context: str | None = None
    source: str | None = None
    plural: str | None = None
    forms: dict[int, str] = field(default_factory=dict)
    translations_start: int = 0
    translations_stop: int = 0
    translation_lines: list[tuple[int, int]] = field(default_factory=list)
    flags: list[tuple[int, int]] = field(default_factory=list)  # lines of flags, with their ends
    flag_names: tuple[str, ...] = ()
    previous: int | None = None  # where its first comment with an earlier source stands
    is_obsolete: bool = False

    @property
    def is_header(self) -> bool:
        """Whether its source is empty, so that its translation is the header of the file."""
        return not self.source and self.context is None and not self.is_obsolete

    @property
    def translation(self) -> str:
        """Its translation; of a message with plural forms, the first."""
        return self.forms.get(0, "")

    @property
    def is_fuzzy(self) -> bool:
        """Whether its translation is a guess."""
        return "fuzzy" in self.flag_names


def po_messages(path: Path, text: str) -> list[PoMessage]:
    """The messages of a catalogue; an obsolete one has only its line and place.

    Raises:
        DataError: a line that is not of the format, or a message that is not whole.
    """
    messages: list[PoMessage] = []
    scanner = _Scanner(path, messages)
    place = 0
    for number, line in enumerate(re.split(r"(?<=\n)", text), start=1):
        if line:
            scanner.read(number, line, place)
        place += len(line)
    scanner.end_message()
    return messages


class _Scanner:
    """Reads the lines of a catalogue, one by one."""

    def __init__(self, path: Path, messages: list[PoMessage]) -> None:
        self._path = path
        self._messages = messages
        self._message: PoMessage | None = None
        self._part = ""  # the keyword whose strings come
        self._form = 0
        self._flags: list[tuple[int, int]] = []
        self._flag_names: list[str] = []
        self._previous: int | None = None

    def read(self, number: int, line: str, place: int) -> None:
        """The next line, which begins at a place of the text."""
        stripped = line.strip(" \t\r\n\f\v\ufeff")
        if not stripped:
            return
        if stripped.startswith("#"):
            self._read_comment(number, stripped, line, place)
            return
        match = LINE.fullmatch(line.lstrip("\ufeff"))
        if match is None:
            raise self._fault(number, "does not read as a .po")
        if match["keyword"]:
            self._begin_part(match, number, place + len(line) - len(line.lstrip(" \t\ufeff")))
        self._add_string(match, number, line, place)

    def end_message(self) -> None:
        """Keep the message that was read, if there is one.

        Raises:
            DataError: it is not whole.
        """
        message = self._message
        if message is not None and message.source is not None and message.forms:
            self._messages.append(message)
        elif message is not None:
            raise self._fault(message.line, "begins a message that has no msgid or no msgstr")
        self._message = None
        self._part = ""

    def _read_comment(self, number: int, stripped: str, line: str, place: int) -> None:
        if self._message is not None and self._message.forms:
            self.end_message()
        if self._message is not None:
            return  # a comment inside of a message
        if stripped.startswith("#~"):
            self._forget_comments()
            if OBSOLETE.match(stripped):
                self._messages.append(PoMessage(number, place, is_obsolete=True))
        elif stripped.startswith("#,"):
            self._flag_names += flag_names(stripped)
            self._flags.append((place, place + len(line)))
        elif stripped.startswith("#|") and self._previous is None:
            self._previous = place

    def _forget_comments(self) -> None:
        self._flags = []
        self._flag_names = []
        self._previous = None

    def _begin_part(self, match: re.Match[str], number: int, place: int) -> None:
        part = match["keyword"]
        if part in ("msgctxt", "msgid") and self._message is not None and self._message.forms:
            self.end_message()
        if self._message is None:
            self._message = PoMessage(number, place)
            self._message.flags = self._flags
            self._message.flag_names = tuple(self._flag_names)
            self._message.previous = self._previous
            self._forget_comments()
        message = self._message
        self._part = part
        self._form = int(match["form"] or 0)
        repeated = {
            "msgctxt": message.context is not None or message.source is not None,
            "msgid": message.source is not None,
            "msgid_plural": message.plural is not None or message.source is None,
            "msgstr": self._form in message.forms or message.source is None,
        }
        if repeated[part]:
            raise self._fault(number, f"has a {part} where none can stand")
        if part == "msgctxt":
            message.context = ""
        elif part == "msgid":
            message.source = ""
        elif part == "msgid_plural":
            message.plural = ""
        else:
            if not message.forms:
                message.translations_start = place
            message.forms[self._form] = ""

    def _add_string(self, match: re.Match[str], number: int, line: str, place: int) -> None:
        message = self._message
        if message is None:
            raise self._fault(number, "has a string without a keyword")
        text = unescaped(match["text"])
        if self._part == "msgctxt":
            message.context = (message.context or "") + text
        elif self._part == "msgid":
            message.source = (message.source or "") + text
        elif self._part == "msgid_plural":
            message.plural = (message.plural or "") + text
        else:
            message.forms[self._form] += text
            message.translation_lines.append((place, place + len(line)))
            message.translations_stop = place + len(line.rstrip("\r\n"))

    def _fault(self, number: int, what: str) -> DataError:
        return DataError(
            f"{self._path}, line {number} {what}; msgfmt says more: {compiling(self._path)}"
        )


def unescaped(text: str) -> str:
    r"""The text of a string of a catalogue.

    >>> unescaped(r'a \"b\"\n\x41\101')
    'a "b"\nAA'
    """

    def character(match: re.Match[str]) -> str:
        octal, hexadecimal, letter = match.groups()
        if octal:
            return chr(int(octal, 8))
        if hexadecimal:
            return chr(int(hexadecimal, 16))
        return ESCAPES.get(letter, letter)

    return ESCAPED.sub(character, text)


def flag_names(line: str) -> list[str]:
    """The flags of a line such as `#, fuzzy, c-format`."""
    return [name.strip() for name in line[2:].split(",") if name.strip()]


def decoded_catalogue(path: Path, content: bytes) -> tuple[str, str]:
    """The text of a catalogue with the encoding that its header names; UTF-8 where it names none."""
    match = re.search(rb'charset=([^\s\\"]+)', content)
    encoding = "utf-8"
    if match is not None and not content.startswith(BYTE_ORDER_MARK):
        named = match[1].decode("ascii", "replace")
        encoding = "utf-8" if named in (TEMPLATE_CHARSET, "ASCII", "US-ASCII") else named
    return decoded(path, content, encoding, "its header says"), encoding


def compiling(path: Path) -> str:
    """The command line that compiles a `.po`.

    >>> compiling(Path("de.po"))
    'msgfmt de.po -o de.mo'
    """
    plain = plain_path(path)
    return unpacking(path) + shlex.join(["msgfmt", str(plain), "-o", str(plain.with_suffix(".mo"))])
