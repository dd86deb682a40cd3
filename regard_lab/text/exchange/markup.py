"""XML whose parts keep their place in the text, so that translations are written into it and nothing else changes."""

from __future__ import annotations

import re
from bisect import bisect_right
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError, ParserCreate

from regard.errors import DataError
from regard_lab.text.lines import decoded, refuse_packed
from regard_lab.text.placeholders import CLOSING_CODES, CODES, LONE_CODES, OPENING_CODES

TOKEN = re.compile(
    r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<!DOCTYPE[^\[>]*(?:\[.*?\]\s*)?>"
    r"""|<(?P<closing>/?)(?P<name>[^\s/>]+)(?P<attributes>(?:[^"'<>]|"[^"]*"|'[^']*')*?)(?P<empty>/?)>"""
    r"|[^<]+",
    re.DOTALL,
)
ATTRIBUTE = re.compile(r"""([^\s=]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.DOTALL)
REFERENCE = re.compile(r"&(?:#(\d+)|#x([0-9A-Fa-f]+)|(lt|gt|amp|quot|apos));")
NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
DECLARED = re.compile(r"""<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
DEEPEST = 200  # elements inside of each other
XML_SPACE = " \t\r\n"


@dataclass(eq=False)
class Element:
    """An element: its name without prefix, and where it stands in the text."""

    tag: str  # as it is written, with a prefix
    name: str
    namespace: str
    attributes: dict[str, str]
    start: int  # of the start tag
    inner_start: int
    parent: Element | None
    line: int
    inner_stop: int = 0
    stop: int = 0
    children: list[Element] = field(default_factory=list)

    @property
    def is_empty_tag(self) -> bool:
        """Whether it is written as `<x/>`."""
        return self.inner_start == self.stop

    def of(self, name: str) -> list[Element]:
        """The children with this name in the namespace of the element."""
        return [
            child
            for child in self.children
            if child.name == name and child.namespace == self.namespace
        ]

    def all_of(self, name: str) -> Iterator[Element]:
        """The elements with this name inside of it, in their order."""
        stack = list(reversed(self.children))
        while stack:
            element = stack.pop()
            if element.name == name and element.namespace == self.namespace:
                yield element
            stack += reversed(element.children)

    def inherited(self, name: str) -> str | None:
        """The value of an attribute of the element or of the nearest one around it that has it."""
        element: Element | None = self
        while element is not None:
            if name in element.attributes:
                return element.attributes[name]
            element = element.parent
        return None


@dataclass(frozen=True)
class Markup:
    """The text of an XML file with its root element."""

    path: Path
    text: str
    encoding: str
    root: Element

    @classmethod
    def read(cls, path: Path, content: bytes) -> Markup:
        """The elements of a file.

        Entities may grow without limit or name other files, so all are refused.

        Raises:
            DataError: no XML, or in another encoding than it says; entities; elements too deep inside of each other.
        """
        refuse_packed(path, content[:4])
        encoding = _encoding_of(content)
        _check_well_formed(path, content)
        text = decoded(path, content, encoding, "its first line says")
        return cls(path, text, encoding, _tree(path, text))

    def inside(self, element: Element) -> str:
        """What stands between the tags of an element."""
        return self.text[element.inner_start : element.inner_stop]

    def space_before(self, element: Element) -> str:
        """The line ends, tabs and spaces directly before an element."""
        start = element.start
        while start and self.text[start - 1] in XML_SPACE:
            start -= 1
        return self.text[start : element.start]

    def texts_between(self, start: int, stop: int) -> Iterator[str]:
        """The pieces of text from one place to another, with no element in between; comments are left out."""
        for token in TOKEN.finditer(self.text, start, stop):
            text = token[0]
            if text.startswith("<![CDATA["):
                yield text[9:-3]
            elif not text.startswith("<"):
                yield unescaped(text)

    def encoded(self, text: str) -> bytes:
        """A text in the encoding of the file; a character that it lacks becomes a reference."""
        return text.encode(self.encoding, "xmlcharrefreplace")


def _encoding_of(content: bytes) -> str:
    """The encoding in which the file is decoded, and encoded again to the same bytes with its byte order mark."""
    if content.startswith((BOM_UTF16_LE, b"<\0")):
        return "utf-16-le"
    if content.startswith((BOM_UTF16_BE, b"\0<")):
        return "utf-16-be"
    if content.startswith(BOM_UTF8):
        return "utf-8"
    declared = DECLARED.match(content[:400].decode("latin1"))
    return declared[1].lower() if declared else "utf-8"


def _check_well_formed(path: Path, content: bytes) -> None:
    depth = 0

    def refuse_entity(name: str, *_: Any) -> None:
        raise DataError(
            f"{path} has the entity {name!r}; write its text instead, since no entity is expanded"
        )

    def begin(*_: Any) -> None:
        nonlocal depth
        depth += 1
        if depth > DEEPEST:
            raise DataError(f"{path} has more than {DEEPEST} elements inside of each other")

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser = ParserCreate()
    parser.EntityDeclHandler = refuse_entity
    parser.SkippedEntityHandler = refuse_entity
    parser.StartElementHandler = begin
    parser.EndElementHandler = end
    try:
        parser.Parse(content, True)
    except DataError:
        raise
    # LookupError and ValueError: an encoding that is not read.
    except (ExpatError, LookupError, ValueError) as error:
        raise DataError(
            f"{path} does not read as XML ({error}); copy or export it again in UTF-8"
        ) from None


def _tree(path: Path, text: str) -> Element:
    line_ends = [match.start() for match in re.finditer("\n", text)]
    root: Element | None = None
    open_element: Element | None = None
    namespaces: list[dict[str, str]] = [{}]
    for token in TOKEN.finditer(text):
        name = token["name"]
        if name is None or token[0].startswith(("<!", "<?")):
            continue
        if token["closing"]:
            if open_element is None:
                continue
            open_element.inner_stop = token.start()
            open_element.stop = token.end()
            open_element = open_element.parent
            namespaces.pop()
            continue

        attributes = attributes_of(token["attributes"])
        of_element = dict(namespaces[-1])
        for attribute, value in attributes.items():
            if attribute == "xmlns" or attribute.startswith("xmlns:"):
                of_element[attribute.partition(":")[2]] = value
        prefix, _, local = name.rpartition(":")
        element = Element(
            tag=name,
            name=local,
            namespace=of_element.get(prefix, ""),
            attributes=attributes,
            start=token.start(),
            inner_start=token.end(),
            parent=open_element,
            line=1 + bisect_right(line_ends, token.start()),
        )
        if open_element is None:
            root = root or element
        else:
            open_element.children.append(element)
        if token["empty"]:
            element.inner_stop = element.stop = token.end()
        else:
            open_element = element
            namespaces.append(of_element)
    if root is None:  # cannot be where an XML parser has read it
        raise DataError(f"{path} has no element")
    return root


def attributes_of(text: str) -> dict[str, str]:
    """The attributes of a start tag.

    >>> attributes_of(" id='1' note=\\"a &lt; b\\"")
    {'id': '1', 'note': 'a < b'}
    """
    values = {}
    for name, double, single in ATTRIBUTE.findall(text):
        values[name] = unescaped(double or single)
    return values


def unescaped(text: str) -> str:
    """Text of XML with its references replaced."""

    def character(match: re.Match[str]) -> str:
        decimal, hexadecimal, name = match.groups()
        if name:
            return NAMED[name]
        return chr(int(decimal) if decimal else int(hexadecimal, 16))

    return REFERENCE.sub(character, text)


def escaped(text: str) -> str:
    """Text as it is written between tags; characters that XML cannot have are left out."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff\ud800-\udfff]", "", text)


def quoted(value: str) -> str:
    """A value of an attribute with its quotes.

    >>> print(quoted('"a" & b'))
    "&quot;a&quot; &amp; b"
    """
    value = escaped(value).replace('"', "&quot;")
    return f'"{value}"'


def with_attributes(markup: Markup, element: Element, values: dict[str, str]) -> str:
    """The start tag of an element with other values of attributes, or more of them."""
    tag = markup.text[element.start : element.inner_start]
    for name, value in values.items():
        written = quoted(value)
        pattern = re.compile(rf"""(\s{re.escape(name)}\s*=\s*)("[^"]*"|'[^']*')""")
        if pattern.search(tag):
            tag = pattern.sub(lambda match, new=written: match[1] + new, tag, count=1)
        else:
            end = tag.rindex("/>") if tag.endswith("/>") else tag.rindex(">")
            tag = f"{tag[:end].rstrip()} {name}={written}{tag[end:]}"
    return tag


def opening_tag(tag: str) -> str:
    """The start tag of an element that gets content.

    >>> opening_tag('<x a="1" />'), opening_tag("<x>")
    ('<x a="1">', '<x>')
    """
    return f"{tag[:-2].rstrip()}>" if tag.endswith("/>") else tag


@dataclass(frozen=True)
class Coding:
    """Which elements of a format are inline codes.

    Args:
        paired: names of those that contain text to translate.
        halves: names of those that begin a pair, with the names of those that end it.
        matching: attributes of the first and of the second half whose values are equal in a pair, tried in order.
    """

    paired: frozenset[str]
    halves: dict[str, str]
    matching: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class CodedText:
    """The text of an element, with a character for each inline code, and what these stand for."""

    text: str
    codes: dict[str, str]

    def written(self, translation: str) -> str:
        """A translation as it is written between tags, with the codes in place."""
        parts = []
        run = ""
        for character in translation:
            if character in self.codes:
                parts += [escaped(run), self.codes[character]]
                run = ""
            else:
                run += character
        return "".join([*parts, escaped(run)])


def coded_text(markup: Markup, element: Element, coding: Coding) -> CodedText | None:
    """The text inside of an element; None if it has too many codes, or a character that is kept for codes."""
    builder = _Coder(markup, coding)
    builder.add(element)
    if builder.is_refused:
        return None
    return CodedText("".join(builder.parts), builder.codes)


class _Coder:
    """Collects the text of an element."""

    def __init__(self, markup: Markup, coding: Coding) -> None:
        self.parts: list[str] = []
        self.codes: dict[str, str] = {}
        self.is_refused = False
        self._markup = markup
        self._coding = coding
        self._pairs = 0
        self._lone = 0

    def add(self, element: Element) -> None:
        """The content of an element, up to its end."""
        partners = self._partners(element)
        place = element.inner_start
        for child in element.children:
            self._add_text(place, child.start)
            self._add_code(child, partners)
            place = child.stop
        self._add_text(place, element.inner_stop)

    def _add_text(self, start: int, stop: int) -> None:
        for text in self._markup.texts_between(start, stop):
            self.is_refused |= any(ord(character) in CODES for character in text)
            self.parts.append(text)

    def _add_code(self, child: Element, partners: dict[int, str]) -> None:
        text = self._markup.text
        is_translated = child.attributes.get("translate") != "no"
        if child.name in self._coding.paired and not child.is_empty_tag and is_translated:
            opening, closing = self._new_pair()
            self._append(opening, text[child.start : child.inner_start])
            self.add(child)
            self._append(closing, text[child.inner_stop : child.stop])
            return
        code = partners.get(id(child))
        if code is None:
            code = chr(min(LONE_CODES.start + self._lone, LONE_CODES.stop - 1))
            self.is_refused |= LONE_CODES.start + self._lone >= LONE_CODES.stop
            self._lone += 1
        self._append(code, text[child.start : child.stop])

    def _append(self, code: str, text: str) -> None:
        self.parts.append(code)
        self.codes[code] = text

    def _new_pair(self) -> tuple[str, str]:
        number = min(self._pairs, len(OPENING_CODES) - 1)
        self.is_refused |= self._pairs >= len(OPENING_CODES)
        self._pairs += 1
        return chr(OPENING_CODES[number]), chr(CLOSING_CODES[number])

    def _partners(self, element: Element) -> dict[int, str]:
        """The characters for halves of pairs, by the id of each half; both halves are children of the element."""
        codes: dict[int, str] = {}
        opened: dict[tuple[str, str], list[Element]] = {}
        for child in element.children:
            for begins, ends in self._coding.halves.items():
                for of_begin, of_end in self._coding.matching:
                    if child.name == begins and of_begin in child.attributes:
                        key = (begins, child.attributes[of_begin])
                        opened.setdefault(key, []).append(child)
                        break
                    key = (begins, child.attributes.get(of_end, ""))
                    if child.name == ends and opened.get(key):
                        first, last = self._new_pair()
                        codes[id(opened[key].pop())] = first
                        codes[id(child)] = last
                        break
        return codes
