"""The tables and the figure of the page that compares regard with other libraries."""

from __future__ import annotations

from pathlib import Path

from docs.making.drawing import COLOURS, INK, new_axes, save
from docs.making.figures import Figure
from docs.making.measured import BENCHES, Duel, duels, missed

EVEN = 0.97  # from here to its inverse, two times are called equal

Peers = dict[str, list[Duel]]


def by_peer() -> Peers:
    """The duels of each library, sorted from the slowest result of regard to the fastest."""
    peers: Peers = {}
    for duel in sorted(duels(), key=lambda duel: duel.faster):
        peers.setdefault(duel.peer, []).append(duel)
    return peers


def peer_table() -> str:
    """One row for each library: how often regard was faster, and by how much."""
    lines = ["| measured beside | faster | equal | slower | least | most |", "|---|---|---|---|---|---|"]
    for peer, rows in by_peer().items():
        slower = sum(row.faster < EVEN for row in rows)
        faster = sum(row.faster > 1 / EVEN for row in rows)
        equal = len(rows) - slower - faster
        least, most = (f"{row.faster:.2f}× ({row.case}, {row.label})" for row in (rows[0], rows[-1]))
        lines.append(f"| {peer} | {faster} | {equal} | {slower} | {least} | {most} |")
    return "\n".join(lines)


def losses() -> str:
    """Every contest in which another library was faster."""
    lines = ["| faster than regard | by | at | report |", "|---|---|---|---|"]
    for row in sorted(duels(), key=lambda duel: duel.faster):
        if row.faster < EVEN:
            report = f"[{BENCHES[row.report]}](../benchmarks/results/{row.report}/bench.md)"
            lines.append(f"| {row.peer} | {1 / row.faster:.2f}× | {row.case}: {row.label} | {report} |")
    return "\n".join(lines)


def missed_promises() -> str:
    """Promises that were made before the measurement and not kept."""
    return "\n".join(f"- {place}: {text}" for _, place, text in missed())


def draw_duels(path: Path) -> None:
    """Draw a row for each library and a dot for each contest; to the right of 1 regard was faster."""
    rows = by_peer()
    figure, axes = new_axes(8, 0.42 * len(rows) + 1)
    for place, (peer, results) in enumerate(reversed(rows.items())):
        won, lost = ([one.faster for one in results if (one.faster < 1) is slower] for slower in (False, True))
        axes.plot(won, [place] * len(won), "o", color=COLOURS[0], markersize=7, alpha=0.6, markeredgewidth=0)
        axes.plot(lost, [place] * len(lost), "D", color=COLOURS[1], markersize=6, alpha=0.8, markeredgewidth=0)
        axes.annotate(peer, (0, place), (-8, 0), ("axes fraction", "data"), "offset points", ha="right", va="center")
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log")
    ticks = [0.3, 0.5, 1, 2, 5, 10, 20, 50, 100]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [""] * len(rows))
    axes.set_xlabel("speed of regard relative to the library (CPU time, 1 thread); diamonds: slower")
    save(figure, path)


def figures() -> list[Figure]:
    """The figure of the page."""
    return [Figure("figures/duels.png", [[row.peer, row.faster] for row in duels()], draw_duels)]


PARTS = {"peer-table": peer_table, "losses": losses, "missed-promises": missed_promises}
