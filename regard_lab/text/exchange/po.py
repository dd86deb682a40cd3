"""Catalogues of gettext (`.po`, `.pot`) to complete: messages without translation get one, and the flag fuzzy.

Source: the GNU gettext manual, section The Format of PO Files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.errors import ArgumentError, DataError
from regard_lab.text.exchange.document import (
    EMPTY,
    HAS_TRANSLATION,
    Document,
    Splice,
    WritingOptions,
    decoded,
    spliced,
)
from regard_lab.text.exchange.plural_formulas import plural_formula
from regard_lab.text.exchange.plural_messages import PluralPlan
from regard_lab.text.lines import BYTE_ORDER_MARK, refuse_packed
from regard_lab.text.memories import language_code
from regard_lab.text.plurals import NO_FORMULA, PluralForms

LINE = re.compile(
    r'\s*(?:(?P<keyword>msgctxt|msgid_plural|msgid|msgstr)(?:\[(?P<form>\d{1,3})\])?\s*)?"(?P<text>(?:[^"\\]|\\.)*)"\s*'
)
CHARSET = re.compile(r'charset=([^\s\\"]+)')
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
ESCAPED = re.compile(r"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)
TEMPLATE_CHARSET = "CHARSET"  # what a template has instead of an encoding
FUZZY = "fuzzy (a guess that nobody has confirmed; --again translates them)"


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

    @property
    def is_fuzzy(self) -> bool:
        """Whether its translation is a guess."""
        return "fuzzy" in self.flag_names


def po_messages(path: Path, text: str) -> list[PoMessage]:
    """The messages of a catalogue, without those that are obsolete.

    Raises:
        DataError: a line that is no PO.
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
            self._read_comment(stripped, line, place)
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

    def _read_comment(self, stripped: str, line: str, place: int) -> None:
        if self._message is not None and self._message.forms:
            self.end_message()
        if self._message is not None:
            return  # a comment inside of a message
        if stripped.startswith("#~"):
            self._forget_comments()
        elif stripped.startswith("#,"):
            self._flag_names += _flag_names(stripped)
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
        return DataError(f"{self._path}, line {number} {what}; msgfmt --check says more")


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


def escaped(text: str) -> str:
    r"""A text as it stands between the quotes of a catalogue.

    >>> print(escaped('a "b"\n'))
    a \"b\"\n
    """
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    for letter, character in ESCAPES.items():
        text = text.replace(character, f"\\{letter}")
    return text


def po_string(keyword: str, text: str, line_end: str) -> str:
    r"""A keyword with its string; a text of several lines has a line for each.

    >>> print(po_string("msgstr", "a\nb", "\n"))
    msgstr ""
    "a\n"
    "b"
    """
    lines = re.split(r"(?<=\n)(?=.)", text, flags=re.DOTALL)
    if len(lines) == 1:
        return f'{keyword} "{escaped(text)}"'
    quoted = [f'"{escaped(line)}"' for line in lines]
    return line_end.join([f'{keyword} ""', *quoted])


class PoDocument(Document):
    """A catalogue; see `Document`. Plural forms are those of its header, or of its language.

    Raises:
        DataError: no catalogue, or in another encoding than it says.
        ArgumentError: another language than that of the file.
    """

    def __init__(self, path: Path, content: bytes, options: WritingOptions) -> None:
        super().__init__(path)
        self._options = options
        refuse_packed(path, content[:4])
        self._text, self._encoding = _decoded(path, content)
        self._line_end = "\r\n" if "\r\n" in self._text else "\n"
        messages = po_messages(path, self._text)
        self._header = next(
            (one for one in messages if not one.source and one.context is None), None
        )
        self._header_splices = self._completed_header(messages)

        self._planned: list[tuple[PoMessage, PluralPlan]] = []
        for message in messages:
            if message is self._header:
                continue
            reason = self._reason_against(message)
            if reason is not None:
                self.left_out[reason] += 1
                continue
            plan = PluralPlan.of(message.source or "", message.plural, self._forms, self.texts)
            self._planned.append((message, plan))
            self.messages.append(plan.places)

    def _reason_against(self, message: PoMessage) -> str | None:
        """Why a message is not translated; None if it is."""
        if not (message.source or "").strip():
            return EMPTY
        has_translation = any(message.forms.values())
        if has_translation and not self._options.again:
            return FUZZY if message.is_fuzzy else HAS_TRANSLATION
        if message.plural is not None and self._forms is None:
            return NO_FORMULA
        return None

    def _completed_header(self, messages: Sequence[PoMessage]) -> list[Splice]:
        """What the header lacks: the language that was given, its plural forms, an encoding that has all letters."""
        header = self._header
        fields = "" if header is None else header.forms.get(0, "")
        named = re.search(r"^Language:[^\S\n]*(\S+)", fields, re.MULTILINE)
        wanted = self._options.language
        if named and wanted and language_code(named[1]) != language_code(wanted):
            raise ArgumentError(
                f"the header of {self.path} has the language {named[1]!r}, and --to is {wanted!r}; leave --to out, or "
                f"name another file"
            )
        language = named[1] if named else wanted
        self._forms = PluralForms.of_header(fields)
        has_formula = self._forms is not None and not self._forms.assumed
        formula = plural_formula(language) if language else None
        values: dict[str, str] = {}
        if wanted and not named:
            values["Language"] = wanted
        if not has_formula and formula is not None:
            values["Plural-Forms"] = formula
            self._forms = PluralForms.of_header(f"Plural-Forms: {formula}\n")
        elif not has_formula and any(message.plural is not None for message in messages):
            which = " that can be read, so no plural is translated"
            if self._forms is not None:
                which = ", so two forms are written, the first of one thing"
            self.remarks.append(f"the header has no Plural-Forms{which}; --to names the language")
        if header is None:
            return []
        splices = [self._header_splice(name, value) for name, value in values.items()]
        charset = CHARSET.search(self._text, header.translations_start, header.translations_stop)
        if charset is not None and charset[1] == TEMPLATE_CHARSET:
            splices.append(Splice(charset.start(1), charset.end(1), "UTF-8"))
        return splices

    def _header_splice(self, name: str, value: str) -> Splice:
        """The line of the header that has a field, or one more after the last."""
        assert self._header is not None
        written = f'"{escaped(f"{name}: {value}")}\\n"'
        for start, stop in self._header.translation_lines:
            line = self._text[start:stop]
            if re.match(rf'\s*(?:msgstr\s*)?"{name}:', line, re.IGNORECASE):
                quote = line.index('"')
                end = stop - (len(line) - len(line.rstrip("\r\n")))
                return Splice(start + quote, end, written)
        stop = self._header.translations_stop
        return Splice(stop, stop, self._line_end + written)

    def written(self, translations: Sequence[str | None]) -> bytes:
        splices = []
        for message, plan in self._planned:
            forms = plan.forms(translations)
            if forms is not None:
                splices += self._splices(message, forms)
        if splices:
            splices += self._header_splices
        text = spliced(self._text, splices)
        try:
            return text.encode(self._encoding)
        except UnicodeEncodeError as error:
            raise DataError(
                f"{self.path} is in {self._encoding}, which has no {text[error.start]!r} of the translations; convert "
                f"it by: msgconv -t UTF-8 {self.path}"
            ) from None

    def _splices(self, message: PoMessage, forms: Sequence[str]) -> list[Splice]:
        keywords = ["msgstr"]
        if message.plural is not None:
            keywords = [f"msgstr[{form}]" for form in range(len(forms))]
        strings = [
            po_string(keyword, form, self._line_end)
            for keyword, form in zip(keywords, forms, strict=True)
        ]
        written = Splice(
            message.translations_start, message.translations_stop, self._line_end.join(strings)
        )
        return [written, *self._flag_splices(message)]

    def _flag_splices(self, message: PoMessage) -> list[Splice]:
        """What sets the flag fuzzy, or removes it from a translation that is confirmed."""
        if self._options.confirmed == (not message.is_fuzzy):
            return []
        if not self._options.confirmed:
            if message.flags:
                start, _ = message.flags[0]
                comma = self._text.index(",", start) + 1
                return [Splice(comma, comma, " fuzzy,")]
            place = message.start if message.previous is None else message.previous
            return [Splice(place, place, f"#, fuzzy{self._line_end}")]

        splices = []
        for start, stop in message.flags:
            names = _flag_names(self._text[start:stop].strip())
            others = [name for name in names if name != "fuzzy"]
            if len(others) < len(names):
                line = f"#, {', '.join(others)}{self._line_end}" if others else ""
                splices.append(Splice(start, stop, line))
        return splices


def _flag_names(line: str) -> list[str]:
    """The flags of a line such as `#, fuzzy, c-format`."""
    return [name.strip() for name in line[2:].split(",") if name.strip()]


def _decoded(path: Path, content: bytes) -> tuple[str, str]:
    """The text of a catalogue with the encoding that its header names; UTF-8 where it names none."""
    match = re.search(rb'charset=([^\s\\"]+)', content)
    encoding = "utf-8"
    if match is not None and not content.startswith(BYTE_ORDER_MARK):
        named = match[1].decode("ascii", "replace")
        encoding = "utf-8" if named in (TEMPLATE_CHARSET, "ASCII", "US-ASCII") else named
    return decoded(path, content, encoding, "its header says"), encoding
