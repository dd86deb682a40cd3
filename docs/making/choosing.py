"""What to choose: the table and the figure of "Which attention?", and what each mechanism may be combined with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.making.drawing import COLOURS, INK, MARKS, new_axes, save
from docs.making.figures import Figure
from docs.making.measured import cheaper_from, learned, times_faster
from regard.mechanisms import Softmax
from regard.mechanisms.base import OPTIONS, STATISTICS, Mechanism

AT = 16_384  # the length that the table shows
UNTRIED = "not studied: [measure it](#what-would-it-lose-on-your-data)"


@dataclass(frozen=True)
class Choice:
    """A row of the table.

    Args:
        means: what the reader needs.
        code: the pattern or mechanism to use.
        row: its name in the table of costs.
        loses: the measured loss of quality.
        label: in the figure; None omits it there.
    """

    means: str
    code: str
    row: str
    loses: str
    label: str | None = None


def choices() -> list[Choice]:
    """The rows of the table, with the results of the studies."""
    short, enough = (learned("duplication", f"window {size}", "accuracy") for size in (12, 13))
    grid, text = ({name: learned("grid-and-text", f"{name}, {kind}", "loss") for name in ("strided", "fixed", "window")}
                  for kind in ("grid", "text"))  # fmt: skip
    once, often = (learned("hashing", "chunk 4, 64 buckets", f"rounds_{count}") for count in (1, 8))
    exact, linear = (learned("recall", name, "accuracy_16") for name in ("softmax, dim 32", "linear, dim 64"))
    return [
        Choice(
            "near positions", "`SlidingWindow(256)`", "window",
            f"everything beyond the reach of the stacked layers: when a model copies from 24 positions back, "
            f"{short:.2f} are right with a reach of 22, and {enough:.2f} with a reach of 24", "window",
        ),
        Choice(
            "a few positions that look at all and are visible to all",
            "`GlobalTokens(range(64))`; add near keys with `\\| SlidingWindow(256)`, at their own cost", "global",
            UNTRIED,
        ),
        Choice(
            "near, global and random positions (BigBird)",
            "`SlidingWindow(192) \\| GlobalTokens(range(128)) \\| RandomBlocks(3, block=64)`", "big-bird", UNTRIED,
            "BigBird",
        ),
        Choice(
            "every `s`-th position: rows of a grid, a period", "`Causal() & Strided(s)`", "strided",
            f"loss on a grid {grid['strided']:.2f} nats, window {grid['window']:.2f}; on text {text['strided']:.2f}, "
            f"window {text['window']:.2f}", "strided, causal",
        ),
        Choice(
            "the last positions of earlier blocks", "`Causal() & Fixed(s, summary=8)`", "fixed",
            f"loss on text {text['fixed']:.2f} nats, window {text['window']:.2f}; on a grid {grid['fixed']:.2f}, "
            f"window {grid['window']:.2f}",
        ),
        Choice(
            "similar keys at any distance", "`LSH(chunk=64, buckets=…, rounds=2)`", "reformer",
            f"a model trained with exact attention copies {once:.2f} of the positions right with 1 round, {often:.2f} "
            f"with 8",
            "Reformer",
        ),
        Choice(
            "all positions of a text of known length, not causal", "`Linformer(length, rank=64)`", "linformer",
            UNTRIED,
        ),
        Choice(
            "a state of constant size, causal", "`LinearTransformer()`", "linear-causal",
            f"recall of 16 pairs {linear:.2f}; exact attention of half the width {exact:.2f}", "linear, causal",
        ),
        Choice(
            "a state of constant size that estimates softmax, causal", "`Performer(features=128)`", "performer",
            UNTRIED, "Performer, causal",
        ),
    ]  # fmt: skip


def decision_table() -> str:
    """One row for each choice: the need, the code, its cost and its loss of quality."""
    lines = [
        f"| you need | use | cheaper than exact from length | times as fast at {AT:,} | loss of quality |",
        "|---|---|---|---|---|",
    ]
    for choice in choices():
        faster = dict(times_faster(choice.row))[AT]
        start = cheaper_from(choice.row).removeprefix("cheaper from ").removesuffix(" on")  # the column says it
        lines.append(f"| {choice.means} | {choice.code} | {start} | {faster:.1f}× | {choice.loses} |")
    return "\n".join(lines)


def curves() -> dict[str, list[tuple[int, float]]]:
    """Times faster than exact attention by length, for the lines of the figure."""
    return {choice.label: times_faster(choice.row) for choice in choices() if choice.label}


def draw_curves(path: Path) -> None:
    """Draw how many times faster than exact attention each choice is, against the length; both axes logarithmic."""
    figure, axes = new_axes(8, 4.6)
    lines = curves()
    for (label, points), colour, mark in zip(lines.items(), COLOURS, MARKS, strict=False):
        axes.plot(*zip(*points, strict=True), color=colour, marker=mark, markersize=5, linewidth=1.8, label=label)
    axes.axhline(1, color=INK, linewidth=1)
    lengths = [length for length, _ in max(lines.values(), key=len)]
    below = {"xytext": (0, -4), "textcoords": "offset points", "ha": "right", "va": "top"}  # where no line is
    axes.annotate("exact attention", (lengths[-1], 1), **below, color=INK, fontsize=9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_yticks([0.1, 0.3, 1, 3, 10, 30], ["0.1×", "0.3×", "1×", "3×", "10×", "30×"])
    axes.minorticks_off()
    axes.set_xlabel("positions")
    axes.set_ylabel("times as fast as exact attention")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    save(figure, path)


def figures() -> list[Figure]:
    """The figure of the page."""
    return [Figure("figures/cheaper.png", curves(), draw_curves)]


def mechanism_table() -> str:
    """What each mechanism may be combined with, as its class declares it."""
    lines = ["| mechanism | patterns | options | statistics | state |", "|---|---|---|---|---|"]
    kinds: list[Any] = sorted(Mechanism.registry.of_package("regard").values(), key=lambda kind: kind is not Softmax)
    for kind in kinds:
        patterns = "every pattern" if kind.patterns is None else ", ".join(one.__name__ for one in kind.patterns)
        options = ", ".join(one for one in OPTIONS if one in kind.options) or "none"
        missing = [one for one in STATISTICS if one not in kind.statistics]
        listed = ", ".join(one for one in STATISTICS if one in kind.statistics) or "none"
        statistics = {(): "all", ("sink",): "all but sink"}.get(tuple(missing), listed)
        state = "yes" if kind.has_state else "no"
        lines.append(f"| `{kind.__name__}` | {patterns} | {options} | {statistics} | {state} |")
    return "\n".join(lines)


PARTS = {"decision-table": decision_table, "mechanism-table": mechanism_table}
