"""Lesson: the complexity table of the articles: formulas beside what is counted here and measured in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.patterns import Causal, Fixed, Full, GlobalTokens, Pattern, RandomBlocks, SlidingWindow, Strided
from regard_lab.bench.complexity.report import NEAR
from regard_lab.bench.complexity.rows import ROWS, root, slope
from regard_lab.lessons.figures import FAINT, INK, LINES, Axes, Figure, begin, draw_curves, label_axes, legend_below
from regard_lab.lessons.report import read_report
from regard_lab.lessons.stepping import count_steps
from regard_lab.lessons.taught import Claim, Lecture, Settings, Table, Verdict, every

LENGTHS, SHORT = (1024, 4096, 16384), (16, 64, 256)  # words where work is counted; counting each step of a GRU is slow
CROSSED = (256, 1024)  # words where paths are counted
CLOSE = 0.03  # the largest difference of a counted exponent from the promised one
PATTERNS: dict[str, Callable[[int], Pattern]] = {
    "softmax": lambda n: Full(),
    "causal": lambda n: Causal(),
    "window": lambda n: SlidingWindow(256),
    "global": lambda n: GlobalTokens(range(64)),
    "random": lambda n: RandomBlocks(3, block=64, seed=0),
    "strided": lambda n: Causal() & Strided(root(n)),
    "fixed": lambda n: Causal() & Fixed(root(n), summary=8),
}
LAYERS = ("gru", "conv-3")  # counted by torch while they run
MECHANISMS = ("linformer", "linear", "performer", "reformer")  # counted by regard's plans
SHOWN = ("softmax", "causal", *LAYERS, *list(PATTERNS)[2:], *MECHANISMS)
SHORT_NAMES = {"softmax": "self-attention", "causal": "causal self-attention"}
QUADRATIC, ROOTED = ("softmax", "causal"), ("strided", "fixed")
LINEAR = ("gru", "conv-3", "window", "global", "random", "linformer", "linear", "performer")

CODE = """\
import torch
import regard as rg
from regard import mechanisms as m
from regard import patterns as p

for n in (1024, 4096):
    x = torch.zeros(1, 1, n, 64)  # (batch, heads, length, head_dim)
    full, window = rg.plan_attention(x, x, x), rg.plan_attention(x, x, x, pattern="sliding_window(256)")
    linear = rg.plan_attention(x, x, x, mechanism=m.LinearTransformer())
    print(n, full.cost.flops, window.cost.flops, linear.cost.flops, p.SlidingWindow(256).count(n, n))"""


def teach(settings: Settings) -> Lecture:
    """Count work and paths at growing lengths, and read the measured exponents of time."""
    report = read_report("complexity")
    lengths = {name: SHORT if name == "gru" else LENGTHS for name in SHOWN}
    work = {name: [counted(name, length) for length in lengths[name]] for name in SHOWN}
    numbers = {
        "lengths": {name: list(lengths[name]) for name in SHOWN}, "work": work,
        "exponents": {name: round(slope(lengths[name][-2:], counts[-2:]), 3) for name, counts in work.items()},
        "promised": {name: round(ROWS[name].growth.exponent(lengths[name][-2:]), 3) for name in SHOWN},
        "crossed": list(CROSSED),
        "paths": {name: [path(name, length, settings.seed) for length in CROSSED] for name in (*PATTERNS, *LAYERS)},
        "times": {name: report.figures[name] for name in SHOWN}, "source": report.source,
    }  # fmt: skip
    return numbers, (
        "Three questions decide what a layer costs for a text of n words: how many operations it takes, how many "
        "of them must wait for each other, and how many layers information passes from one word to any other. The "
        "table of the Transformer paper answers them by formulas for layers with d numbers per word; later papers "
        "added rows.",
        "Here they are counted: the allowed pairs of a pattern, the operations that torch counts while a recurrent "
        "network or a convolution runs, and those of regard's plans for the other mechanisms. An exponent of 2 "
        "means that 4 times as many words cost 16 times as much, 1.5 means 8 times, and 1 means 4 times.",
        "The Sparse Transformer and the Reformer are often listed as O(n). Their papers state n·sqrt(n) and n·log n. "
        "A window is linear in n, but long distances need a stack of layers. The convolution here is centred: each "
        "layer carries a signal one word to either side, so n words take n - 1 layers. The causal convolutions of the "
        "lesson recurrent look two words back in each layer, and take half as many.",
        f"Time is not counted but measured on one processor, so it also depends on its instructions and memory. "
        f"{report.source} Source: Vaswani et al. 2017, table 1; Child et al. 2019, section 4; Kitaev et al. 2020, "
        f"table 1; Wang et al. 2020, table 1.",
    )


def counted(name: str, length: int) -> int:
    """The work of a layer: allowed pairs of a pattern, operations otherwise."""
    if name in PATTERNS:
        return PATTERNS[name](length).count(length, length)
    call = ROWS[name].prepare(length)
    if name in MECHANISMS:
        return int(call.operations)
    with FlopCounterMode(display=False) as counter:
        call.run()
    return counter.get_total_flops()


def path(name: str, length: int, seed: int) -> int:
    """How many layers, or steps of a recurrent network, the last word needs to depend on every word."""
    if name == "gru":
        return count_steps("recurrent", length, seed)["path"]
    allowed = (SlidingWindow(2) if name == "conv-3" else PATTERNS[name](length)).dense(length, length)
    reached = torch.zeros(length, dtype=torch.bool)
    newly, layers = torch.arange(length) == length - 1, 0
    while not (reached := reached | newly).all():
        newly = allowed[newly].any(0) & ~reached
        layers += 1
    return layers


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    work, exponents, paths, times = (numbers[name] for name in ("work", "exponents", "paths", "times"))
    first, last = CROSSED
    yield Table(
        "Formulas",
        ("layer", "operations", "sequential steps", "longest path", "source"),
        tuple((row.title, row.cost, row.sequential, row.path, row.source) for row in (ROWS[name] for name in SHOWN)),
    )
    yield Table(
        "Counted",
        ("layer", "counted", "n", "n words", "4 n words", "16 n words", "exponent", "promised"),
        tuple(
            (
                ROWS[name].title,
                "pairs" if name in PATTERNS else "operations",
                f"{numbers['lengths'][name][0]:,}",
                *(f"{one:,}" for one in work[name]),
                f"{exponents[name]:.2f}",
                f"{numbers['promised'][name]:.2f}",
            )
            for name in SHOWN
        ),
    )
    yield Table(
        "Layers, or steps, until the last word depends on every word",
        ("layer", "formula", f"n = {first:,}", f"n = {last:,}"),
        tuple((ROWS[name].title, ROWS[name].path, *map(str, paths[name])) for name in paths),
    )
    yield Table(
        "Exponent of CPU time in the report",
        ("layer", "time n^", "promised", "faster than self-attention from n"),
        tuple(
            (ROWS[name].title, _exponent(times[name]), _exponent(times[name], "promised"), _faster_from(times[name]))
            for name in SHOWN
        ),
        measured=True,
    )


def _exponent(times: dict[str, Any], which: str = "exponent") -> str:
    """The fitted or the promised exponent; a dash if too few lengths were measured for a fit."""
    return "–" if times[which] is None else f"{times[which]:.2f}"


def _faster_from(times: dict[str, Any]) -> str:
    """The length, or the words of the report if there is none.

    >>> _faster_from({"cheaper_from": "cheaper from 256 on"}), _faster_from({"cheaper_from": "not up to 16,384"})
    ('256', 'not up to 16,384')
    """
    return times["cheaper_from"].removeprefix("cheaper from ").removesuffix(" on")


def _range(exponents: Sequence[float | None]) -> str:
    known = [one for one in exponents if one is not None]
    return f"{min(known):.2f} to {max(known):.2f}" if known else "–"


def lies_above(higher: Sequence[float | None], lower: Sequence[float | None]) -> Verdict:
    """Whether all exponents of one group lie above those of another; None if by no more than the report tells apart.

    >>> lies_above([2.0, 1.9], [1.5]), lies_above([1.5, 1.1], [1.0]), lies_above([1.5], [1.8]), lies_above([None], [1])
    (True, None, False, None)
    """
    if None in higher or None in lower:
        return None
    gap = min(one for one in higher if one is not None) - max(one for one in lower if one is not None)
    return None if abs(gap) <= NEAR else gap > 0


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    exponents, paths, times = numbers["exponents"], numbers["paths"], numbers["times"]

    def near(names: tuple[str, ...], promised: float) -> bool:
        return all(abs(exponents[name] - promised) < CLOSE for name in names)

    def figures(names: tuple[str, ...]) -> str:
        return f"exponents {min(exponents[name] for name in names):.2f} to {max(exponents[name] for name in names):.2f}"

    crosses = times["gru"]["cheaper_from"].replace(",", "").isdecimal()
    groups = [tuple(times[name]["exponent"] for name in names) for names in (QUADRATIC, ROOTED, LINEAR)]
    yield Claim(
        "Twice as many words have 4 times as many pairs in self-attention, also with a causal mask.",
        near(QUADRATIC, 2.0),
        figures(QUADRATIC),
    )
    yield Claim(
        "The pairs of strided and fixed attention grow as n·sqrt(n), not as n.",
        near(ROOTED, 1.5),
        figures(ROOTED),
    )
    yield Claim(
        "The work of recurrent networks, convolutions, windows, global tokens, random blocks, Linformer and the "
        "linear mechanisms grows as n.",
        near(LINEAR, 1.0),
        figures(LINEAR),
    )
    yield Claim(
        "Self-attention, global tokens, strided and fixed attention connect all words in 1 or 2 layers at any length.",
        all(
            len(set(paths[name])) == 1 and paths[name][0] <= 2
            for name in ("softmax", "causal", "global", "strided", "fixed")
        ),
        f"self-attention {paths['softmax'][-1]}, global tokens {paths['global'][-1]}, strided "
        f"{paths['strided'][-1]}, fixed {paths['fixed'][-1]}",
    )
    yield Claim(
        "For windows and convolutions the number of layers grows with the length, and a recurrent network passes "
        "every word.",
        all(paths[name][1] >= 3.9 * paths[name][0] for name in ("window", "conv-3")) and paths["gru"] == list(CROSSED),
        f"window {paths['window'][0]} and {paths['window'][1]}, centred convolution {paths['conv-3'][0]} and "
        f"{paths['conv-3'][1]}, recurrent {paths['gru'][0]} and {paths['gru'][1]}",
    )
    yield Claim(
        f"Measured times give the same order: exponents of quadratic layers are above those of strided and fixed, "
        f"and these above those of linear layers, by more than {NEAR}.",
        every(*(lies_above(higher, lower) for higher, lower in pairwise(groups))),
        ", ".join(f"{SHORT_NAMES.get(name, name)} {_exponent(times[name])}" for name in (*QUADRATIC, *ROOTED))
        + f", linear ones {_range(groups[-1])}",
    )
    yield Claim(
        "On one CPU thread a recurrent layer is slower than self-attention for short texts and faster for long ones.",
        crosses,
        f"faster from {times['gru']['cheaper_from']} words on" if crosses else times["gru"]["cheaper_from"],
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    begin(figure, "What a longer text costs", 12.4, 5.6)
    grown, fitted = figure.subplots(1, 2, width_ratios=(1, 1.35))
    work = {ROWS[name].title: numbers["work"][name] for name in ("softmax", "strided", "window", "global")}
    growth = {title: [count / counts[0] for count in counts] for title, counts in work.items()}
    labels = "Counted: pairs of query and key", "words n", f"compared with {LENGTHS[0]:,} words"
    draw_curves(grown, LENGTHS, growth, labels, log="xy")
    grown.set_yticks((1, 4, 16, 64, 256), ["1", "×4", "×16", "×64", "×256"])
    _draw_exponents(fitted, numbers)


def _draw_exponents(axes: Axes, numbers: dict[str, Any]) -> None:
    """For each layer the promised, the counted and the measured exponent on one line."""
    names = sorted(SHOWN, key=lambda name: (numbers["promised"][name], SHOWN.index(name)))
    for row, name in enumerate(names):
        times = numbers["times"][name]["exponent"]
        axes.plot(numbers["promised"][name], row, marker="|", markersize=17, markeredgewidth=2.2, color=INK, zorder=2)
        axes.plot(numbers["exponents"][name], row, marker="o", markersize=7, color=LINES[0], zorder=3)
        if times is not None:
            axes.plot([numbers["exponents"][name], times], [row, row], color=FAINT, linewidth=1.0, zorder=1)
            axes.plot(times, row, marker="D", markersize=5.5, color=LINES[1], zorder=4)
    for mark, colour, label in (("|", INK, "formula"), ("o", LINES[0], "counted here"), ("D", LINES[1], "CPU time")):
        axes.plot([], [], marker=mark, color=colour, linestyle="", label=label, markeredgewidth=1.5)
    axes.set_yticks(range(len(names)), [ROWS[name].title for name in names], fontsize=8)
    axes.set_xticks((1, 1.5, 2), ["n", "n·sqrt(n)", "n²"])
    axes.set_xlim(0.75, 2.15)
    axes.grid(axis="x", alpha=0.3)
    label_axes(axes, "Exponents: formula, counted, measured", "cost grows as", "")
    axes.tick_params(axis="x", labelsize=9)
    legend_below(axes, columns=3)
