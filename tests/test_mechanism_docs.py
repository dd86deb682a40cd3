"""The table of docs/mechanisms.md says what the declarations say."""

from __future__ import annotations

from pathlib import Path

from regard import mechanisms as m
from regard.mechanisms.base import OPTIONS, STATISTICS, Mechanism

PAGE = Path(__file__).parent.parent / "docs" / "mechanisms.md"
SHOWN = (
    m.Softmax(),
    m.LinearTransformer(),
    m.Performer(),
    m.RandomFeature(64),
    m.Linformer(length=8, rank=2),
    m.LSH(),
)


def row(mechanism: Mechanism) -> str:
    patterns = (
        "every pattern" if mechanism.patterns is None else ", ".join(kind.__name__ for kind in mechanism.patterns)
    )
    options = ", ".join(one for one in OPTIONS if one in mechanism.takes) or "none"
    told = [one for one in STATISTICS if one in mechanism.tells]
    statistics = "all" if len(told) == len(STATISTICS) else ", ".join(told) or "none"
    state = "yes" if mechanism.has_state else "no"
    return f"| `{type(mechanism).__name__}` | {patterns} | {options} | {statistics} | {state} |"


def test_the_table_is_that_of_the_declarations():
    table = [
        "| mechanism | patterns | options | statistics | state |",
        "|---|---|---|---|---|",
        *map(row, SHOWN),
    ]
    assert "\n".join(table) in PAGE.read_text(encoding="utf-8"), "\n".join(["write this into the page:", *table])


def test_every_mechanism_is_shown():
    declared = {name for name in m.__all__ if isinstance(getattr(m, name), type)}
    kinds = {name for name in declared if issubclass(getattr(m, name), Mechanism)} - {"Mechanism", "Kernelised"}
    assert kinds == {type(one).__name__ for one in SHOWN}
