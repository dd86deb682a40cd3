"""The tables of the page about lenses, from the committed report."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from docs.making.measured import RESULTS
from regard_lab.seeing.lens_study import LensReport
from regard_lab.seeing.lens_study.study import lens_table, routes_table


@cache
def report() -> LensReport:
    """The committed report."""
    return LensReport.load(RESULTS / "lenses_cpu")


def summary() -> str:
    """What was measured."""
    return "\n\n".join(report().summary())


def routes() -> str:
    """The probability of the pronoun after each swap."""
    return "\n".join(routes_table(report().routes))


def table() -> str:
    """Every lens without its time, which belongs to one machine, and what the columns mean."""
    rows = {name: {**row, "milliseconds": 0.0} for name, row in report().rows.items()}
    lines = [line.rsplit("|", 2)[0] + "|" for line in lens_table(rows)]
    return "\n".join(lines) + f"\n\n{report().legend.partition(' ms: ')[0]}"


def verdict() -> str:
    """The default lens beside raw attention, in sentences."""
    rows = report().rows

    def shares(name: str) -> str:
        return f"{rows[name]['order']:.1%} and {rows[name]['cause']:.1%}"

    return (
        "Two shares of the verified sentences are measured: the referent has a larger relevance than the other noun, "
        "and the word with the largest relevance belongs to the cause (it is the referent or the adjective). Erasure "
        f"reaches {shares('erase')}; integrated gradients {shares('gradients')}; raw cross-attention while the pronoun "
        f"is written, in its best head, {shares('cross_head')}; raw attention of *it*, in its best encoder head, "
        f"{shares('it')}; random relevance {shares('random')}. As a reference, swapping a noun, with the German so far "
        f"unchanged, reaches {rows['swap']['order']:.1%} for the first share."
    )


PARTS: dict[str, Callable[[], str]] = {
    "lens-summary": summary,
    "lens-routes": routes,
    "lens-table": table,
    "lens-verdict": verdict,
}
