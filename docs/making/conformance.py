"""The tables of the page about conformance, from the stored answers of libraries."""

from __future__ import annotations

from collections.abc import Callable

from docs.making.studies import stored
from regard.testing.conformance.report import from_json, group_lines, summary_lines

ANSWERS = "conformance_cpu.json"


def summary() -> str:
    """How often each library gave each answer."""
    found = stored(ANSWERS)
    columns = from_json(found)
    count = len(found["clauses"])
    asked = f"{count} clauses, asked of {len(columns)} implementations on {found['system']}."
    return "\n".join([asked, "", *summary_lines(columns)])


def groups() -> str:
    """A table for each group of clauses, and who answers in another way."""
    return "\n".join(group_lines(from_json(stored(ANSWERS))))


PARTS: dict[str, Callable[[], str]] = {
    "conformance-summary": summary,
    "conformance-groups": groups,
}
