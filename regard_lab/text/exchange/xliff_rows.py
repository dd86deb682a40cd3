"""Pairs of XLIFF: the sources of its units with their translations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regard_lab.text.exchange.markup import Element, Markup
from regard_lab.text.exchange.xliff import OPEN_STATES, units_of, version_of
from regard_lab.text.lines import open_bytes
from regard_lab.text.memories import DEFAULT_OPTIONS, MemoryCounts, MemoryOptions, Segment
from regard_lab.text.plurals import UNTRANSLATED
from regard_lab.text.tables import LineFault, TextRow

OPEN = "with a translation that is still to be made, by its state"


def xliff_rows(
    path: Path, counts: MemoryCounts, options: MemoryOptions = DEFAULT_OPTIONS
) -> Iterator[TextRow | LineFault]:
    """The units of XLIFF 1.2, or the segments of XLIFF 2, with their translations; `counts` gets the codes left out.

    Raises:
        DataError: no XLIFF, or a damaged file.
    """
    with open_bytes(path) as file:
        markup = Markup.read(path, file.read())
    is_version_1 = version_of(markup).startswith("1.")
    file_name = str(path)
    for unit in units_of(markup.root, is_version_1):
        target = unit.target
        line = unit.element.line
        if target is None or not markup.inside(target).strip():
            yield LineFault(UNTRANSLATED, file_name, line)
            continue
        holder = target if is_version_1 else unit.element
        if holder.attributes.get("state") in OPEN_STATES:
            yield LineFault(OPEN, file_name, line)
            continue
        segments = (_segment(markup, unit.source, options), _segment(markup, target, options))
        counts.add(segments, 0)
        yield TextRow(line, (file_name, file_name), (segments[0].text, segments[1].text))


def _segment(markup: Markup, element: Element, options: MemoryOptions) -> Segment:
    """The text of an element, whose codes are left out or kept."""
    segment = Segment(options.keep_placeholders, options.keep_tags)
    _add(markup, element, segment)
    return segment


def _add(markup: Markup, element: Element, segment: Segment) -> None:
    place = element.inner_start
    for child in [*element.children, None]:
        stop = element.inner_stop if child is None else child.start
        for text in markup.texts_between(place, stop):
            segment.add(text)
        if child is not None:
            segment.begin(child.name, child.attributes)
            _add(markup, child, segment)
            segment.end(child.name)
            place = child.stop
