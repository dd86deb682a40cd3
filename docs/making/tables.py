"""Marks the cells of tables, so that the style sheet keeps numbers on one line and gives sentences room."""

from __future__ import annotations

import html
import re

CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
NUMBER = re.compile(r"[-+−±≤<>]?\s*[\d.][\d,.]*(e[-+]?\d+)?\s*(x|×|%|s|ms|µs|KiB|MiB|GiB)?(\s\([^)]*\d[^)]*\))?")
LONG = 40  # characters from which a cell is a sentence


def with_kinds_of_cells(page: str) -> str:
    """The HTML of a page with the class "number" or "long" on cells of tables that are one or the other.

    >>> with_kinds_of_cells("<td>0.125</td><td>word</td>" + f"<td>{'long ' * 9}</td>")[:56]
    '<td class="number">0.125</td><td>word</td><td class="lon'
    """
    return CELL.sub(_marked, page)


def _marked(cell: re.Match[str]) -> str:
    text = html.unescape(TAG.sub("", cell[1])).strip()
    if NUMBER.fullmatch(text):
        return f'<td class="number">{cell[1]}</td>'
    return f'<td class="long">{cell[1]}</td>' if len(text) >= LONG else cell[0]
