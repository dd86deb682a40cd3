"""The tables of the page about lenses, from the committed report."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from docs.making.measured import RESULTS
from regard.studies.lenses import LensReport
from regard.studies.lenses.report import lens_table, routes_table


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
    default, own, cross = rows["gradients"], rows["it"], rows["cross_head"]
    cheaper = rows["erase"]
    return (
        f"Integrated gradients put the referent above the other noun in {default['order']:.1%} of the sentences, and a "
        f"word of the cause (the referent or the adjective) on top in {default['cause']:.1%}. Erasure has "
        f"{cheaper['order']:.1%} and {cheaper['cause']:.1%}, without gradients; the attention of *it*, in its best "
        f"encoder head, {own['order']:.1%} and {own['cause']:.1%}; cross-attention while the pronoun is written, in "
        f"its best head, {cross['order']:.1%} and {cross['cause']:.1%}; random scores "
        f"{rows['random']['order']:.1%} and {rows['random']['cause']:.1%}; the swap of a noun itself, with the "
        f"German so far kept, {rows['swap']['order']:.1%}."
    )


PARTS: dict[str, Callable[[], str]] = {
    "lens-summary": summary,
    "lens-routes": routes,
    "lens-table": table,
    "lens-verdict": verdict,
}
