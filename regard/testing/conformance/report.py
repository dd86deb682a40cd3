"""The answers of libraries as a table in Markdown, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from regard.testing.conformance.clause import STATUSES, Reply
from regard.testing.conformance.clauses import CLAUSES, GROUPS
from regard.testing.conformance.code import IMPORTS, asking_as_code, call_as_code
from regard.testing.conformance.implementations import IMPLEMENTATIONS
from regard.testing.conformance.running import Column

# How a cell shows a status.
SIGNS = {
    "agrees": "✓",
    "alternative": "alt",
    "differs": "≠",
    "not finite": "NaN",
    "accepted": "acc",
    "refused": "err",
    "crashed": "crash",
    "no word": "–",
}


def to_json(columns: Sequence[Column], system: str) -> dict[str, Any]:
    """Everything as JSON values: the clauses, and the answers of each library."""
    clauses = {
        name: {
            "group": clause.group,
            "sentence": clause.sentence,
            "call": call_as_code(name, clause.call),
            "tolerance": clause.tolerance,
            "reason": clause.reason,
            "alternatives": list(clause.alternatives),
        }
        for name, clause in CLAUSES.items()
    }
    libraries = {
        column.library: {
            "version": column.version,
            "call": IMPLEMENTATIONS[column.library].call,
            "answers": [reply.to_dict() for reply in column.replies.values()],
        }
        for column in columns
    }
    return {"system": system, "clauses": clauses, "libraries": libraries}


def from_json(stored: dict[str, Any]) -> list[Column]:
    """The columns of a report that `to_json` made; clauses that were added later are missing in it."""
    columns = []
    for library, record in stored["libraries"].items():
        replies = {answer["clause"]: Reply(**answer) for answer in record["answers"]}
        columns.append(Column(library, record["version"], replies))
    return columns


def summary_lines(columns: Sequence[Column]) -> list[str]:
    """How often each library gave each answer, as a table."""
    lines = [
        f"| library | version | {' | '.join(STATUSES)} |",
        f"|---|---|{'---:|' * len(STATUSES)}",
    ]
    for column in columns:
        counts = Counter(reply.status for reply in column.replies.values())
        numbers = " | ".join(str(counts[status]) for status in STATUSES)
        lines.append(f"| {column.library} | {column.version} | {numbers} |")
    return lines


def markdown_lines(columns: Sequence[Column], system: str) -> list[str]:
    """The whole report: the summary, what the signs mean, a table for each group, and what differs, cell by cell."""
    lines = [
        f"{len(CLAUSES)} clauses, asked of {len(columns)} implementations on {system}.",
        "",
        *summary_lines(columns),
        "",
        "How a library is asked for a clause:",
        "",
        "```python",
        how_to_ask().rstrip(),
        "```",
        "",
    ]
    return [*lines, *group_lines(columns)]


def group_lines(columns: Sequence[Column]) -> list[str]:
    """What the signs mean, and for each group a table, who answers in another way, and the calls as code."""
    signs = "; ".join(f"**{SIGNS[status]}** {words}" for status, words in STATUSES.items())
    lines = [f"In the tables: {signs}."]
    for group in GROUPS:
        names = [name for name, clause in CLAUSES.items() if clause.group == group]
        lines += ["", f"## {group.capitalize()}", ""]
        lines.append(f"| clause | {' | '.join(column.library for column in columns)} |")
        lines.append(f"|---|{'---|' * len(columns)}")
        for name in names:
            cells = [SIGNS[column.replies[name].status] for column in columns]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        lines.append("")
        for name in names:
            lines += _explanation(name, columns)
        lines += _calls(names)
    return lines


def _calls(names: Sequence[str]) -> list[str]:
    """The calls of clauses as one block of code, which is folded."""
    lines = [
        "",
        '<details markdown="1">',
        "<summary>These calls as code</summary>",
        "",
        "```python",
    ]
    for name in names:
        lines += [f"# {name}", f"call = {call_as_code(name, CLAUSES[name].call)}"]
    return [*lines, "```", "", "</details>"]


def how_to_ask() -> str:
    """A program that asks a library for one clause; the calls of other clauses take the place of its call."""
    name = "causal-fewer-queries"
    return asking_as_code(name, CLAUSES[name].call, "sdpa")


def cells(columns: Sequence[Column]) -> dict[str, Any]:
    """What a page shows of a cell: what the clause says and calls, and what the library answered."""
    return {
        "imports": IMPORTS,
        "signs": {SIGNS[status]: words for status, words in STATUSES.items()},
        "clauses": {
            name: {
                "sentence": clause.sentence,
                "call": call_as_code(name, clause.call),
                "tolerance": clause.tolerance,
            }
            for name, clause in CLAUSES.items()
        },
        "libraries": {
            column.library: {
                "version": column.version,
                "call": IMPLEMENTATIONS[column.library].call,
                "answers": {
                    name: _in_words(reply)
                    if reply.error is None or reply.status != "agrees"
                    else f"{reply.error:.1e}"
                    for name, reply in column.replies.items()
                },
            }
            for column in columns
        },
    }


def _explanation(name: str, columns: Sequence[Column]) -> list[str]:
    """The sentence of a clause, the largest error of those that agree, and who answers in another way."""
    replies = [column.replies[name] for column in columns]
    errors = [
        reply.error for reply in replies if reply.status == "agrees" and reply.error is not None
    ]
    within = ""
    if errors and max(errors) > 0:
        within = f" (✓ within {max(errors):.1g}; at most {CLAUSES[name].tolerance:.1g} is allowed)"
    lines = [f"- **{name}**: {CLAUSES[name].sentence}{within}."]
    by_answer: dict[str, list[str]] = {}
    for column in columns:
        reply = column.replies[name]
        if reply.status not in ("agrees", "no word"):
            in_markdown = _in_words(reply).replace("|", "\\|").replace("<", "&lt;")
            by_answer.setdefault(in_markdown, []).append(column.library)
    for answer, libraries in by_answer.items():
        lines.append(f"    - {', '.join(libraries)}: {answer}")
    return lines


def _in_words(reply: Reply) -> str:
    if reply.status == "differs" and reply.error is None:
        return "numbers where NaN is right, or another shape"
    if reply.status == "differs":
        return f"other numbers, the largest error {reply.error:.2g} of 1 + the largest right one"
    return f"{STATUSES[reply.status]}{': ' if reply.detail else ''}{reply.detail}"
