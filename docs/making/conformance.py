"""The tables of the page about conformance, from the stored answers of libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from docs.making.studies import stored
from regard.testing.conformance.report import (
    cells,
    from_json,
    group_lines,
    how_to_ask,
    summary_lines,
)
from regard.testing.conformance.running import Column

ANSWERS = "conformance_cpu.json"


def summary() -> str:
    """How often each library gave each answer."""
    answers = stored(ANSWERS)
    columns = from_json(answers)
    count = len(answers["clauses"])
    asked = f"{count} clauses, asked of {len(columns)} implementations on {answers['system']}."
    return "\n".join([asked, "", *summary_lines(columns)])


def groups() -> str:
    """A table for each group of clauses, and who answers in another way."""
    return "\n".join(group_lines(from_json(stored(ANSWERS))))


def asking() -> str:
    """A program that asks a library for one clause."""
    return f"```python\n{how_to_ask()}```"


def answers() -> str:
    """All cells as JSON inside the page, for the script that filters the tables; it loads nothing."""
    return script_of_cells(from_json(stored(ANSWERS)))


def script_of_cells(columns: Sequence[Column]) -> str:
    """The cells as a script of JSON; the script of the page reads it."""
    text = json.dumps(cells(columns), ensure_ascii=False)
    escaped = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="conformance-answers">{escaped}</script>'


PARTS: dict[str, Callable[[], str]] = {
    "conformance-summary": summary,
    "conformance-asking": asking,
    "conformance-groups": groups,
    "conformance-answers": answers,
}
