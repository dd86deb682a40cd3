"""Placeholders of texts: what a translation must have as it stands, such as {0}, %s, <b>, addresses and numbers."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from regard.arguments import a_string, count_of
from regard_lab.text.cleaning import UNSPACED

# The kinds in the order of their ids, each with the number of its ids: so many of one text can be protected.
RESERVED = {"variable": 16, "tag": 16, "number": 12, "address": 6, "symbol": 10}
KINDS = tuple(RESERVED)

# Stands in a text for a placeholder; Unicode keeps it free for such uses.
STAND_IN = "\ufdd0"
# Readers of files put these characters in the place of inline codes: those that open, that close, and others.
OPENING_CODES = range(0xF0000, 0xF4000)
CLOSING_CODES = range(0xF4000, 0xF8000)  # each closes the one that is 0x4000 before it
LONE_CODES = range(0xF8000, 0xFC000)
CODES = range(OPENING_CODES.start, LONE_CODES.stop)

# Tags of HTML that are not words of English. Any other name is a tag only if the text also closes it, or if it has
# attributes, since <option> may be a word to translate.
HTML_NAMES = (
    "a b blockquote br dd div dl dt em h1 h2 h3 h4 h5 h6 hr i kbd li ol p pre q s samp span strong sub sup tbody td "
    "tfoot th thead tr tt u ul wbr"
)
HTML = frozenset(HTML_NAMES.split())
EMPTY_HTML = frozenset(("br", "hr", "img", "input", "link", "meta", "param", "wbr"))  # never closed

PICTOGRAPH = "[©®™\u2190-\u21ff\u2300-\u27bf\u2900-\u297f\u2b00-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
SYMBOL = (
    r"[0-9#*]\ufe0f?\u20e3"
    r"|[\U0001f1e6-\U0001f1ff]{2}"
    rf"|{PICTOGRAPH}(?:[\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]|\u200d{PICTOGRAPH})*"
    rf"|&(?:[A-Za-z][A-Za-z0-9]{{1,31}}|\#\d{{1,7}}|\#[xX][0-9A-Fa-f]{{1,6}});"
    rf"|[\ue000-\uf8ff{STAND_IN}\U000fc000-\U0010ffff]"
)
CODE = r"[\U000f0000-\U000fbfff]"
ADDRESS = (
    r"\b(?:https?|ftps?|sftp|ssh|git|file)://[^\s<>\"'`{}|\\^]*[^\s<>\"'`{}|\\^.,;:!?)\]]"
    r"|\bmailto:[^\s<>\"']*[^\s<>\"'.,;:!?)\]]"
    r"|\bwww\.[^\s<>\"'`{}|\\^]*[^\s<>\"'`{}|\\^.,;:!?)\]]"
    r"|\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"
)
TAG = r"</?(?:[A-Za-z][\w:.-]*|\d+)(?:\s[^<>]*)?/?>"
# Conversions of printf, by name, by place or in order; %% writes a %. A digit before the % is a percentage.
CONVERSION = (
    r"%%"
    r"|%\{\w+\}|%<\w+>[-+0]*\d*(?:\.\d+)?[A-Za-z]"
    r"|%\([^()\s%]{1,60}\)[-+\#0]*\d*(?:\.\d+)?[A-Za-z]"
    r"|%[A-Z][A-Z0-9_]+%"
    r"|%(?P<place>\d+\$)?(?:[+\#0']|-(?=[\d*]))*(?P<width>\*(?:\d+\$)?|\d+)?(?:\.(?P<precision>\*(?:\d+\$)?|\d+)?)?"
    r"(?:hh|ll|[hlLqjzt]|I64|I32|Z(?=[dioux]))?(?P<letter>(?<!\d%)[A-Za-z]|(?<=\d%)[dsufx@](?![A-Za-z])|@)"
    r"|%L?\d{1,2}"
)
BRACES = (
    r"\{\{[^{}]{1,80}\}\}"
    r"|\$\{[^{}\s]{1,80}\}|\$\([A-Za-z_]\w*\)|\$[A-Za-z_]\w*"
    r"|\{\s*\w+\s*,\s*(?:number|date|time|spellout|ordinal|duration)[^{}]*\}"
    r"|\{(?P<field>[\w.\[\]-]*)(?:![rsa])?(?::[^{}]{0,40})?\}"
)
# Letters of printf that take an argument; those of dates take none.
TAKING = frozenset("diouxXeEfFgGaAcCsSpn@")
NUMBER = r"(?<![\w.,])\d+(?:[.,:]\d+)*(?!\w)"

PLACEHOLDER = re.compile(
    f"(?P<address>{ADDRESS})|(?P<tag>{CODE}|{TAG})|(?P<symbol>{SYMBOL})|(?P<conversion>{CONVERSION})"
    f"|(?P<braces>{BRACES})|(?P<number>{NUMBER})"
)
TAG_PARTS = re.compile(r"<(/?)([\w:.-]+)\s*([^<>]*?)(/?)>", re.DOTALL)
NOT_ASCII = re.compile(r"[^\x00-\x7f]")
NEVER_UNKNOWN = "CPZ"  # categories of characters that no word and no symbol begins with: controls, punctuation, spaces
WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Placeholder:
    """A placeholder of a text.

    `argument` is what it stands for: the name or the place of an argument and its type, else its text. Two of them are
    the same placeholder, in a source and its translation, if kind and argument are equal.
    """

    kind: str
    text: str
    start: int
    argument: str
    in_order: bool = False  # its place among those like it decides which argument it takes

    @property
    def stop(self) -> int:
        """Where the text goes on."""
        return self.start + len(self.text)

    @property
    def identity(self) -> tuple[str, str]:
        """What it has in common with the same placeholder of a translation."""
        return self.kind, self.argument


def find_placeholders(text: str, known: Collection[str] | None = None) -> list[Placeholder]:
    """The placeholders of a text, in order.

    Variables (printf, braces, `$NAME`), tags, numbers, addresses, and symbols: emoji, entities such as `&amp;`, and,
    where the `known` characters are given, words with a character that is not one of them.

    >>> [found.text for found in find_placeholders("%2$s <b>{0}</b> at www.example.org: 1,024 of ${ALL} 🎉, 100% sure")]
    ['%2$s', '<b>', '{0}', '</b>', 'www.example.org', '1,024', '${ALL}', '🎉', '100']
    >>> [found.text for found in find_placeholders("Żaba sat", known="Zabst")]
    ['Żaba']
    """
    found = []
    arguments = _Arguments()
    for match in PLACEHOLDER.finditer(a_string("text", text)):
        kind = str(match.lastgroup)  # the outer group, also where groups inside of it matched
        if kind == "tag" and not _is_tag(match[0], text):
            continue
        argument, in_order = arguments.of(match)
        if kind in ("conversion", "braces"):
            kind = "variable"
        found.append(Placeholder(kind, match[0], match.start(), argument, in_order))
    if known is None or text.isascii():
        return found
    return sorted([*found, *_unknown(text, known, found)], key=lambda one: one.start)


class _Arguments:
    """Counts the arguments that conversions and braces take in order."""

    def __init__(self) -> None:
        self._conversions = 0
        self._braces = 0

    def of(self, match: re.Match[str]) -> tuple[str, bool]:
        """What a match stands for, and whether its place decides it."""
        text = match[0]
        letter = match["letter"]
        if letter is not None and letter in TAKING:
            if match["place"]:
                return f"%{match['place']}{letter}", False
            self._conversions += 1
            self._conversions += "*" in (match["width"] or "")
            self._conversions += "*" in (match["precision"] or "")
            return f"%{self._conversions}${letter}", True
        field = match["field"]
        if field is None:
            return text, False
        if field:
            return f"{{{field}}}", False
        self._braces += 1
        return f"{{{self._braces - 1}}}", True


def _is_tag(text: str, whole: str) -> bool:
    """Whether angle brackets hold a tag, and not a word such as <file>."""
    parts = TAG_PARTS.fullmatch(text)
    if parts is None:  # the stand-in of a code
        return True
    closing, name, attributes, empty = parts.groups()
    if name.lower() in HTML or empty or "=" in attributes:
        return True
    if closing:
        return re.search(rf"<{re.escape(name)}[\s>]", whole) is not None
    return f"</{name}>" in whole


def _unknown(
    text: str, known: Collection[str], found: Sequence[Placeholder]
) -> Iterator[Placeholder]:
    """Words with a character that is not known, outside of what was found; in scripts without spaces, characters."""
    taken = [False] * len(text)
    for placeholder in found:
        taken[placeholder.start : placeholder.stop] = [True] * len(placeholder.text)
    stop = 0
    for match in NOT_ASCII.finditer(text):
        place = match.start()
        character = match[0]
        is_spelled = character in known or unicodedata.category(character)[0] in NEVER_UNKNOWN
        if place < stop or taken[place] or is_spelled:
            continue
        start = place
        stop = place + 1
        while stop < len(text) and not taken[stop] and _goes_on(character, text[stop], known):
            stop += 1
        if not UNSPACED.match(character) and WORD.match(character):
            while start and not taken[start - 1] and _is_spaced(text[start - 1]):
                start -= 1
        taken[start:stop] = [True] * (stop - start)
        yield Placeholder("symbol", text[start:stop], start, text[start:stop])


def _goes_on(first: str, following: str, known: Collection[str]) -> bool:
    """Whether a character belongs to the unknown one before it."""
    if WORD.match(first) and not UNSPACED.match(first):
        return _is_spaced(following)
    if following.isascii() or following in known:
        return False
    return unicodedata.category(following)[0] not in NEVER_UNKNOWN


def _is_spaced(character: str) -> bool:
    return WORD.match(character) is not None and not UNSPACED.match(character)


def align(sources: Sequence[Placeholder], targets: Sequence[Placeholder]) -> list[int | None]:
    """For each placeholder of a translation the place of the same one in the source; None where there is none.

    >>> source = find_placeholders("%s has %d files")
    >>> align(source, find_placeholders("%2$d Dateien in %1$s, {0}"))
    [1, 0, None]
    """
    places: dict[tuple[str, str], list[int]] = {}
    for place, placeholder in enumerate(sources):
        places.setdefault(placeholder.identity, []).append(place)
    aligned: list[int | None] = []
    for placeholder in targets:
        same = places.get(placeholder.identity)
        if same is None:
            aligned.append(None)
        else:
            # A translation may have it more often than the source: the last place is for all of those.
            aligned.append(same.pop(0) if len(same) > 1 else same[0])
    return aligned


def code_pairs(placeholders: Sequence[Placeholder]) -> dict[int, int]:
    """For each closing tag, by its place, the place of the tag that it closes, if both are there.

    >>> code_pairs(find_placeholders("<i>a <b>b</b></i><br>"))
    {2: 1, 3: 0}
    """
    opened: list[tuple[str, int]] = []
    pairs = {}
    for place, placeholder in enumerate(placeholders):
        if placeholder.kind != "tag":
            continue
        name, is_closing = _tag_name(placeholder.text)
        if name is None:
            continue
        if not is_closing:
            opened.append((name, place))
            continue
        for index in range(len(opened) - 1, -1, -1):
            if opened[index][0] == name:
                pairs[place] = opened.pop(index)[1]
                break
    return pairs


def _tag_name(text: str) -> tuple[str | None, bool]:
    """The name of a tag that is opened and closed, and whether this one closes it; None for a tag that stands alone."""
    code = ord(text[0])
    if code in OPENING_CODES:
        return text, False
    if code in CLOSING_CODES:
        return chr(code - CLOSING_CODES.start + OPENING_CODES.start), True
    parts = TAG_PARTS.fullmatch(text)
    if parts is None or parts[4] or parts[2].lower() in EMPTY_HTML:
        return None, False
    return parts[2], bool(parts[1])


def differences(source: str, translation: str) -> list[str]:
    """What is wrong with the placeholders of a translation, in words; nothing if it has each of its source once.

    >>> differences("%s of {0}", "{0} von %1$s")
    []
    >>> differences("<b>%s</b> of %d", "%d <b>von</b>")
    ["'%s' is missing", "'%d' is missing", "'%d' takes another argument than in the source"]
    """
    sources = find_placeholders(source)
    targets = find_placeholders(translation)
    found = Counter(placeholder.identity for placeholder in targets)
    wanted = Counter(placeholder.identity for placeholder in sources)
    wrong = []
    for placeholder in _distinct(sources):
        count = found[placeholder.identity]
        if count == wanted[placeholder.identity]:
            continue
        fault = "is missing"
        if count:
            times = count_of(count, "times")
            fault = f"stands {times} and not {count_of(wanted[placeholder.identity], 'times')}"
        wrong.append(f"{placeholder.text!r} {fault}")

    texts = {placeholder.text for placeholder in sources}
    for placeholder in _distinct(targets):
        if placeholder.kind not in ("variable", "tag") or placeholder.identity in wanted:
            continue
        fault = "is not in the source"
        if placeholder.text in texts:
            fault = "takes another argument than in the source"
        wrong.append(f"{placeholder.text!r} {fault}")
    if wrong:
        return wrong
    if _mixes(targets) and not _mixes(sources):
        return ["some arguments are numbered and others are not"]
    if not _is_nested(targets) and _is_nested(sources):
        return ["the tags are not nested"]
    return []


def _distinct(placeholders: Sequence[Placeholder]) -> list[Placeholder]:
    return list({placeholder.identity: placeholder for placeholder in placeholders}.values())


def _mixes(placeholders: Sequence[Placeholder]) -> bool:
    """Whether some arguments are numbered and others are not, which formatters refuse."""
    for mark in "%{":
        of_mark = [one for one in placeholders if one.argument.startswith(mark)]
        counted = any(one.in_order for one in of_mark)
        given = any(not one.in_order and re.match(r"%\d+\$|\{\d", one.text) for one in of_mark)
        if counted and given:
            return True
    return False


def _is_nested(placeholders: Sequence[Placeholder]) -> bool:
    """Whether each tag that is closed was opened before, and is closed after those inside of it."""
    opened: list[str] = []
    for placeholder in placeholders:
        if placeholder.kind != "tag":
            continue
        name, is_closing = _tag_name(placeholder.text)
        if name is None:
            continue
        if not is_closing:
            opened.append(name)
        elif not opened or opened.pop() != name:
            return False
    return not opened
