"""The pages "Which attention?" and "Other libraries", from committed reports; and the figures of the site."""

from __future__ import annotations

import json
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch

from benchmarks.complexity.fits import read_table
from benchmarks.complexity.results import CostTable
from benchmarks.complexity.rows import ROWS
from docs.making.rendering import table
from regard import patterns as p
from regard.arguments import count_of
from regard.mechanisms import Softmax
from regard.mechanisms.base import OPTIONS, STATISTICS, Mechanism
from regard.patterns.text import as_pattern
from regard_lab.bench import Results
from regard_lab.lessons import find_lesson
from regard_lab.seeing.palette import INK, LINES, UNSEEN
from regard_lab.teaching.board import Picture, collecting, figure
from regard_lab.teaching.figures import draw_cells, draw_line, logarithmic

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
BENCHES = {
    "attention_cpu": "patterns and decoding",
    "mechanisms_cpu": "mechanisms",
    "runtimes_cpu": "runtimes of models",
    "bench_zen4_cpu": "kernels and whole models",
}
# The processors of reports that do not record their family.
FAMILIES = {"attention_cpu": "Zen 5", "runtimes_cpu": "Zen 5", "mechanisms_cpu": "Intel Xeon"}
MODELS = "bench_zen4_cpu"  # the report that has whole models
EVEN = 0.97  # from here to its inverse, two times are called equal
SHOWN_LENGTH = 16_384  # in the table of choices
PATTERNS = """full; causal; sliding_window(4); causal_window(3); dilated_window(4, 2); global_tokens(0); strided(4);
    random_blocks(1, block=3); fixed(4, summary=1); prefix(3); key_span(2, 9); diagonals(2, 1); lattice(4);
    same_block(4); summary(4, 1); key_set(5..7); query_set(5..7); ~causal; causal & lattice(4); causal | prefix(3);
    neighbourhood((3, 4), 3)"""
MADE = {  # patterns that no text describes
    "SameDocument(ids)": p.SameDocument(torch.arange(12) // 5),
    "KeyMask(mask)": p.KeyMask(torch.arange(12) % 5 > 0),
    "Explicit(mask)": p.Explicit(torch.eye(12).flip(0) > 0),
    "Where(function)": p.Where(lambda q, k: (q + k) % 3 == 0),
    "ChosenBlocks(blocks, 3)": p.ChosenBlocks(
        torch.tensor([[[[0, 1], [3, 1], [0, -1], [2, 3]]]]), 3, 3
    ),
    "ChosenKeys(keys)": p.ChosenKeys(torch.tensor([[[[i, 7 * i * i % 12] for i in range(12)]]])),
    "Tree(parents)": p.Tree(torch.tensor([-1, 0, 1, 0, 3, 3, 5, -1, 7, 8, 7, 10])),
    "PerHead([causal, ~causal])": p.PerHead([p.Causal(), ~p.Causal()]),
}


class Duel(NamedTuple):
    """One contest with one library: how many times faster regard was, in CPU time on 1 thread."""

    faster: float
    peer: str
    case: str
    label: str
    report: str
    family: str


class Choice(NamedTuple):
    """A row of the table of choices."""

    means: str  # what the reader needs
    code: str  # the pattern or mechanism to use
    row: str  # its name in the table of costs
    label: str | None = None  # in the figure; None omits it there
    loses: str | None = None  # the measured loss of quality; None if it was not studied


def contests() -> list[tuple[str, str, dict[str, Any]]]:
    """Every contest with the names of its report and its case."""
    every = []
    for report in BENCHES:
        for name, case in Results.load(RESULTS / report).cases.items():
            every += [(report, name, contest) for contest in case["contests"]]
    return every


@cache
def family_of(report: str) -> str:
    """The family of the processor of a report."""
    return Results.load(RESULTS / report).family or FAMILIES[report]


def families() -> list[str]:
    """The families of processors that were measured, in the order of the reports."""
    return list(dict.fromkeys(family_of(report) for report in BENCHES))


@cache
def duels() -> list[Duel]:
    """Every pair that was timed, from the slowest result of regard to the fastest."""
    every = []
    for report, case, contest in contests():
        contenders = contest["contenders"]
        ours = contenders[contest["ours"]]
        if "cpu" not in ours:
            continue
        for peer, result in contenders.items():
            # A result without errors computes no attention.
            if peer.startswith("regard") or "cpu" not in result or not result["errors"]:
                continue
            faster = result["cpu"]["median"] / ours["cpu"]["median"]
            if "attention" in contest:
                peer = f"{peer}, whole models"
            duel = Duel(faster, peer, case, contest["label"], report, family_of(report))
            every.append(duel)
    return sorted(every, key=lambda duel: duel.faster)


def by_peer() -> dict[str, list[Duel]]:
    """The duels of each library."""
    peers: dict[str, list[Duel]] = {}
    for duel in duels():
        peers.setdefault(duel.peer, []).append(duel)
    return peers


def peer_table() -> str:
    """One row for each library: how often regard was faster, and by how much on each family of processors."""
    rows = []
    for peer, of_peer in by_peer().items():
        slower = sum(duel.faster < EVEN for duel in of_peer)
        faster = sum(duel.faster > 1 / EVEN for duel in of_peer)
        equal = len(of_peer) - slower - faster
        ranges = []
        for name in families():
            of_family = [duel for duel in of_peer if duel.family == name]
            ranges.append(_range(of_family))
        rows.append((peer, faster, equal, slower, *ranges, _case_of(of_peer[0])))
    names = " | ".join(families())
    return table(f"measured beside | faster | equal | slower | {names} | least", rows)


def _range(of_family: list[Duel]) -> str:
    """The least and the most of duels that are sorted."""
    if not of_family:
        return "–"
    least = f"{of_family[0].faster:.2f}"
    most = f"{of_family[-1].faster:.2f}"
    return f"{least}×" if least == most else f"{least} to {most}×"


def processor_table() -> str:
    """What was measured on several families of processors: a row for each case and library, over the same contests."""
    by_contest: dict[tuple[str, str, str], dict[str, Duel]] = {}
    for duel in duels():
        of_contest = by_contest.setdefault((duel.case, duel.peer, duel.label), {})
        of_contest[duel.family] = duel
    common: dict[tuple[str, str], list[dict[str, Duel]]] = {}
    for (case, peer, _), of_contest in by_contest.items():
        if len(of_contest) > 1:
            common.setdefault((case, peer), []).append(of_contest)

    measured_families: set[str] = set()
    for duels_by_family in chain.from_iterable(common.values()):
        measured_families |= duels_by_family.keys()
    names = [name for name in families() if name in measured_families]

    rows = []
    for (case, peer), contests_of_case in sorted(common.items()):
        ranges = []
        for name in names:
            of_family = [contest[name] for contest in contests_of_case if name in contest]
            ranges.append(_range(sorted(of_family)))
        measured = f"{case}, {count_of(len(contests_of_case), 'contests')}"
        rows.append((measured, peer, *ranges))
    return table(f"measured | beside | {' | '.join(names)}", rows)


def _case_of(duel: Duel) -> str:
    return f"{duel.faster:.2f}× ({duel.case}, {duel.label})"


def losses() -> str:
    """Every contest in which another library was faster."""
    rows = []
    for duel in duels():
        if duel.faster < EVEN:
            by = f"{1 / duel.faster:.2f}×"
            report = f"[{BENCHES[duel.report]}](../benchmarks/results/{duel.report}/bench.md)"
            rows.append((duel.peer, by, f"{duel.case}: {duel.label}", duel.family, report))
    return table("faster than regard | by | at | processor | report", rows)


def missed_promises() -> str:
    """Promises that were made before the measurement and not kept: the measured figure with the promised one."""
    lines = []
    for report, name, contest in contests():
        for promise in contest["promises"]:
            if promise["kept"] is False:
                text = promise["text"].removesuffix(": missed")
                lines.append(f"- {name}, {contest['label']}, on {family_of(report)}: {text}")
    return "\n".join(lines)


def model_table() -> str:
    """Whole models of transformers: the share of their attention, and what regard and packed weights gain."""
    rows = []
    for contest in Results.load(RESULTS / MODELS).cases["models"]["contests"]:
        times = {}
        for name, record in contest["contenders"].items():
            if "cpu" in record:
                times[name] = record["cpu"]["low"]
        sdpa_seconds = times["sdpa"]
        gains = [
            f"{sdpa_seconds / times[name]:.2f}×" for name in ("regard", "regard, packed weights")
        ]
        runtime = f"{sdpa_seconds / times['OpenVINO']:.2f}×" if "OpenVINO" in times else "–"
        share = f"{contest['attention']:.0%}"
        milliseconds = f"{sdpa_seconds * 1e3:.1f} ms"
        row = (contest["label"], contest["work"], milliseconds, share, *gains, runtime)
        rows.append(row)
    columns = "model | what | with sdpa | its attention | regard | with packed weights | OpenVINO"
    return table(columns, rows)


def cheaper_from(row: str) -> str:
    """The length from which a row is cheaper than exact attention, as its report says."""
    return read_table(_costs())[row].crossover


def times_faster(row: str) -> dict[int, float]:
    """How many times faster than exact attention a row is, by length."""
    records = _costs().rows
    exact_times = {}
    for point in records[ROWS[row].exact]["times"]:
        exact_times[point["length"]] = point["median"]

    ratios = {}
    for point in records[row]["times"]:
        length = point["length"]
        if length in exact_times:
            ratios[length] = exact_times[length] / point["median"]
    return ratios


@cache
def _costs() -> CostTable:
    return CostTable.load(RESULTS / "complexity_cpu")


def learned(study: str, contender: str, number: str) -> float:
    """The mean over seeds of a number of one contender, in the studies of published behaviour."""
    text = (RESULTS / "behaviour_cpu" / "behaviour.json").read_text(encoding="utf-8")
    by_seed = json.loads(text)["records"][study][contender]
    return mean(record[number] for record in by_seed.values())


def choices() -> list[Choice]:
    """The rows of the table, with the results of the studies."""
    short = learned("duplication", "window 12", "accuracy")
    enough = learned("duplication", "window 13", "accuracy")
    exact = learned("recall", "softmax, dim 32", "accuracy_16")
    linear = learned("recall", "linear, dim 64", "accuracy_16")
    added = learned("overwriting", "linear", "accuracy")
    corrected = learned("overwriting", "delta rule: corrects", "accuracy")
    kept_apart = learned("overwriting", "softmax, rotary", "accuracy")
    return [
        Choice(
            "near positions",
            "`SlidingWindow(256)`",
            "window",
            "window",
            f"everything beyond the reach of the stacked layers: when a model copies from 24 positions back, "
            f"{short:.2f} are right with a reach of 22, and {enough:.2f} with a reach of 24",
        ),
        Choice(
            "a few positions that look at all and are visible to all",
            "`GlobalTokens(range(64))`; add near keys with `\\| SlidingWindow(256)`, at their own cost",
            "global",
        ),
        Choice(
            "near, global and random positions (BigBird)",
            "`SlidingWindow(192) \\| GlobalTokens(range(128)) \\| RandomBlocks(3, block=64)`",
            "big-bird",
            "BigBird",
        ),
        Choice(
            "every `s`-th position: rows of a grid, a period",
            "`Causal() & Strided(s)`",
            "strided",
            "strided, causal",
        ),
        Choice(
            "the last positions of earlier blocks",
            "`Causal() & Fixed(s, summary=8)`",
            "fixed",
        ),
        Choice(
            "similar keys at any distance",
            "`LSH(chunk=64, buckets=…, rounds=2)`",
            "reformer",
            "Reformer",
        ),
        Choice(
            "all positions of a text of known length, not causal",
            "`Linformer(length, rank=64)`",
            "linformer",
        ),
        Choice(
            "a state of constant size, causal",
            "`LinearTransformer()`",
            "linear-causal",
            "linear, causal",
            f"recall of 16 pairs {linear:.2f}; exact attention of half the width {exact:.2f}. The last of 4 values of "
            f"a key {added:.2f}; `DeltaRule()` of the same width {corrected:.2f}, exact attention {kept_apart:.2f}",
        ),
        Choice(
            "a state of constant size that estimates softmax, causal",
            "`Performer(features=128)`",
            "performer",
            "Performer, causal",
        ),
    ]


def decision_table() -> str:
    """One row for each choice: the need, the code and its cost; below, what was measured of the quality."""
    rows, lost = [], []
    for choice in choices():
        # The heading of the column says the rest.
        start = cheaper_from(choice.row).removeprefix("cheaper from ").removesuffix(" on")
        faster = f"{times_faster(choice.row)[SHOWN_LENGTH]:.1f}×"
        rows.append((choice.means, choice.code, start, faster))
        if choice.loses:
            lost.append(f"- {choice.code}: {choice.loses}.")
    costs = table(f"you need | use | cheaper from | at {SHOWN_LENGTH:,}", rows)
    return "\n".join([costs, "", "What was measured of the loss:", "", *lost])


def mechanism_table() -> str:
    """What each mechanism may be combined with, as its class declares it."""
    kinds: list[Any] = list(Mechanism.registry.of_package("regard").values())
    kinds.sort(key=lambda kind: kind is not Softmax)
    rows = []
    for kind in kinds:
        patterns = "every pattern"
        if kind.patterns is not None:
            patterns = ", ".join(pattern.__name__ for pattern in kind.patterns)
        options = ", ".join(option for option in OPTIONS if option in kind.options) or "none"
        state = "yes" if kind.has_state else "no"
        rows.append((f"`{kind.__name__}`", patterns, options, _statistics_of(kind), state))
    return table("mechanism | patterns | options | statistics | state", rows)


def _statistics_of(kind: Any) -> str:
    """The statistics of a mechanism in words."""
    missing = [name for name in STATISTICS if name not in kind.statistics]
    if not missing:
        return "all"
    if missing == ["sink"]:
        return "all but sink"
    return ", ".join(name for name in STATISTICS if name in kind.statistics) or "none"


def figures() -> dict[str, str]:
    """Figures as SVG, by their paths from docs/."""
    with collecting(lenient=False) as pictures:
        _draw_curves()
        _draw_duels()
        _draw_patterns()
    pictures.append(find_lesson("approximations").markdown()[1]["approximations-1.svg"])
    drawn = {}
    for name, picture in zip(("cheaper", "duels", "patterns", "mechanisms"), pictures, strict=True):
        if isinstance(picture, Picture):
            drawn[f"figures/{name}.svg"] = picture._repr_svg_()
    return drawn


def _draw_curves() -> None:
    """Draw how many times faster than exact attention each choice is, against the length; both axes logarithmic."""
    lines = {choice.label: times_faster(choice.row) for choice in choices() if choice.label}
    lengths = list(max(lines.values(), key=len))
    with figure("Times as fast as exact attention", 8, 4.6, "") as drawing:
        axes = drawing.subplots()
        for number, (label, points) in enumerate(lines.items()):
            draw_line(axes, list(points), list(points.values()), number, label)
        axes.axhline(1, color=INK, linewidth=1)
        end = (lengths[-1], 0.93)
        axes.annotate("exact attention", end, ha="right", va="top", color=INK, fontsize=9)
        axes.set(yscale="log", xlabel="positions", ylabel="times as fast")
        logarithmic(axes, lengths)  # the x axis
        ticks = [0.1, 0.3, 1, 3, 10, 30]
        axes.set_yticks(ticks, [f"{tick:g}×" for tick in ticks])
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)


def _draw_duels() -> None:
    """Draw a row for each library and a dot for each contest; to the right of 1 regard was faster."""
    peers = by_peer()
    title = "Speed of regard relative to each library"
    with figure(title, 8, 0.42 * len(peers) + 1.4, "") as drawing:
        axes = drawing.subplots()
        for row, of_peer in enumerate(reversed(peers.values())):
            faster = [duel.faster for duel in of_peer if duel.faster >= 1]
            slower = [duel.faster for duel in of_peer if duel.faster < 1]
            style = {"alpha": 0.7, "markeredgewidth": 0}
            axes.plot(faster, [row] * len(faster), "o", color=LINES[0], **style)
            axes.plot(slower, [row] * len(slower), "D", color=LINES[1], **style)
        axes.axvline(1, color=INK, linewidth=1)
        label = "times as fast as the library (CPU time, 1 thread); diamonds: slower"
        axes.set(xscale="log", xlabel=label)
        ticks = [0.3, 0.5, 1, 2, 5, 10, 20, 50, 100]
        axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks])
        axes.minorticks_off()
        axes.set_yticks(range(len(peers)), list(reversed(peers)))


def _draw_patterns() -> None:
    """Draw each pattern over 12 positions: a row for each query, a column for each key, a colour for each head."""
    texts = [text.strip() for text in PATTERNS.split(";")]
    patterns = {text: as_pattern(text) for text in texts} | MADE
    rows = -(-len(patterns) // 5)
    title = "Which query (row) may look at which key (column)"
    with figure(title, 8, 1.9 * rows, "") as drawing:
        places = list(drawing.subplots(rows, 5).flat)
        for axes in places[len(patterns) :]:
            axes.set_axis_off()
        for axes, (name, pattern) in zip(places, patterns.items(), strict=False):
            allowed = pattern.dense(12, 12).reshape(-1, 12, 12)  # (heads, queries, keys)
            numbers = torch.arange(1, len(allowed) + 1)[:, None, None]  # of heads
            cells = (allowed * numbers).sum(0)
            draw_cells(axes, cells, (UNSEEN, LINES[0], LINES[1]), "equal")
            axes.set_title(name, fontsize=8.5, color=INK)


PARTS = {
    "decision-table": decision_table,
    "mechanism-table": mechanism_table,
    "peer-table": peer_table,
    "losses": losses,
    "missed-promises": missed_promises,
    "processor-table": processor_table,
    "model-table": model_table,
}
