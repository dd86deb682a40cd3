"""Everything that is generated: whole pages, marked parts of pages, and figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from docs.making import (
    choosing,
    comparing,
    explorations,
    forecasting,
    keeping,
    lensing,
    pretrained,
    reliability,
    start,
)  # fmt: skip
from docs.making.figures import DOCS, Figure
from docs.making.freshness import alike, settled
from docs.making.reference import reference_pages
from docs.making.reports import report_pages

PARTS: dict[str, Callable[[], str]] = {
    **choosing.PARTS, **comparing.PARTS, **explorations.PARTS, **forecasting.PARTS, **keeping.PARTS,
    **lensing.PARTS, **pretrained.PARTS, **reliability.PARTS, **start.PARTS
}  # fmt: skip
MARKED = re.compile(r"(<!-- made: (\S+) -->\n)(?:(?!<!-- ).*\n)*?(<!-- end -->)")


def made_pages() -> dict[str, str]:
    """The current text of every generated page, by its name in docs/."""
    whole = {**reference_pages(), **report_pages()}
    written = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    partly = {name: filled(text) for name, text in written.items() if name not in whole and MARKED.search(text)}
    return {**whole, **partly}


def filled(text: str) -> str:
    """A page with its marked parts regenerated: the text between `<!-- made: NAME -->` and `<!-- end -->`."""
    return MARKED.sub(lambda match: f"{match[1]}\n{PARTS[match[2]]()}\n\n{match[3]}", text)


def made_figures() -> list[Figure]:
    """Every figure that is drawn from numbers."""
    return [*choosing.figures(), *comparing.figures()]


def is_fresh(name: str, text: str) -> bool:
    """Whether the file has the given text."""
    path = DOCS / name
    old = path.read_text(encoding="utf-8") if path.exists() else None
    return old is not None and alike(old, text)


def write_page(path: Path, text: str) -> None:
    """Write a page; last digits that did not have to change stay as they were."""
    if path.exists():
        text = settled(text, path.read_text(encoding="utf-8"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
