"""Catalogues of gettext (`.po`, `.pot`) to complete: messages without translation get one, and the flag fuzzy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from regard.errors import ArgumentError, DataError
from regard_lab.text.exchange.document import (
    EMPTY,
    HAS_TRANSLATION,
    Document,
    Splice,
    WritingOptions,
    spliced,
)
from regard_lab.text.exchange.plural_formulas import plural_formula
from regard_lab.text.exchange.plural_messages import PluralPlan
from regard_lab.text.lines import refuse_packed
from regard_lab.text.memories import language_code
from regard_lab.text.plurals import NO_FORMULA, PluralForms
from regard_lab.text.po_files import (
    CHARSET,
    ESCAPES,
    TEMPLATE_CHARSET,
    PoMessage,
    decoded_catalogue,
    flag_names,
    po_messages,
)

FUZZY = "fuzzy (a guess that nobody has confirmed; --again translates them)"


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
        self._text, self._encoding = decoded_catalogue(path, content)
        self._line_end = "\r\n" if "\r\n" in self._text else "\n"
        messages = po_messages(path, self._text)
        self._header = next((message for message in messages if message.is_header), None)
        self._header_splices = self._completed_header(messages)

        self._planned: list[tuple[PoMessage, PluralPlan]] = []
        for message in messages:
            if message is self._header or message.is_obsolete:
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
        fields = "" if header is None else header.translation
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
            names = flag_names(self._text[start:stop].strip())
            others = [name for name in names if name != "fuzzy"]
            if len(others) < len(names):
                line = f"#, {', '.join(others)}{self._line_end}" if others else ""
                splices.append(Splice(start, stop, line))
        return splices
