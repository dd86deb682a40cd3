# %% [markdown]
# # Cost and length
#
# **What does each kind of layer cost when the text gets longer?**

# %% tags=["folded"]
from itertools import pairwise

import torch

import regard as rg
from regard import patterns as p
from regard_lab.bench.complexity.report import NEAR
from regard_lab.bench.complexity.rows import ROWS, root, slope
from regard_lab.seeing.canvas import FAINT, INK, LINES
from regard_lab.teaching import (
    draw_line, every, figure, holds, label_axes, legend_below, logarithmic, operations, read_report, table, undecided,
)  # fmt: skip
from regard_lab.teaching.stepping import count_steps

PATTERNS = {
    "softmax": lambda n: p.Full(),
    "causal": lambda n: p.Causal(),
    "window": lambda n: p.SlidingWindow(256),
    "global": lambda n: p.GlobalTokens(range(64)),
    "random": lambda n: p.RandomBlocks(3, block=64, seed=0),
    "strided": lambda n: p.Causal() & p.Strided(root(n)),
    "fixed": lambda n: p.Causal() & p.Fixed(root(n), summary=8),
}
LAYERS, MECHANISMS = ("gru", "conv-3"), ("linformer", "linear", "performer", "reformer")
QUADRATIC, ROOTED = ("softmax", "causal"), ("strided", "fixed")
LINEAR = (*LAYERS, "window", "global", "random", "linformer", "linear", "performer")
SHOWN = (*QUADRATIC, *LINEAR[:5], *ROOTED, *MECHANISMS)


def counted(name, n):
    """Allowed pairs of a pattern, floating-point operations of another layer."""
    if name in PATTERNS:
        return PATTERNS[name](n).count(n, n)
    call = ROWS[name].prepare(n)
    return operations(call.run) if name in LAYERS else int(call.operations)  # of regard's plan


lengths = {name: (16, 64, 256) if name == "gru" else (1024, 4096, 16384) for name in SHOWN}
work = {name: [counted(name, n) for n in lengths[name]] for name in SHOWN}
exponents = {name: slope(lengths[name][1:], work[name][1:]) for name in SHOWN}
promised = {name: ROWS[name].growth.exponent(lengths[name][1:]) for name in SHOWN}
titles = {name: ROWS[name].title for name in SHOWN}
report = read_report("complexity")
times = {name: report.figures[name]["exponent"] for name in SHOWN}

with figure("What a longer text costs", 7.6, 7.0,
            "Above: 16 times the words have 256 times the pairs in self-attention, but only 16 times in a window. "
            "Below: what the formula of each layer promises, what is counted, and "
            "how the measured time grows.") as drawing:  # fmt: skip
    grown, fitted = drawing.subplots(2, 1, height_ratios=(1, 1.5))
    ends = {"softmax": "self-attention", "strided": "strided", "window": "window, global tokens"}
    for number, (name, text) in enumerate(ends.items()):
        draw_line(grown, lengths[name], [count / work[name][0] for count in work[name]], number, name)
        grown.text(18500, work[name][-1] / work[name][0], text, fontsize=9, color=LINES[number], va="center")
    label_axes(grown, "Pairs of query and key", "words n", "compared with 1,024 words")
    grown.set_yscale("log")
    grown.set_yticks((1, 4, 16, 64, 256), ["1", "× 4", "× 16", "× 64", "× 256"])
    logarithmic(grown, lengths["softmax"])
    grown.set_xlim(900, 50000)
    order = sorted(SHOWN, key=lambda name: (promised[name], SHOWN.index(name)))
    rows, marks = range(len(order)), (("formula", "|", INK), ("counted", "o", LINES[0]), ("CPU time", "D", LINES[1]))
    for (text, mark, colour), values in zip(marks, (promised, exponents, times)):
        fitted.plot([values[name] for name in order], rows, mark, color=colour, label=text, markeredgewidth=2,
                    markersize=15 if mark == "|" else 5)  # fmt: skip
    fitted.hlines(rows, [exponents[name] for name in order], [times[name] for name in order], FAINT, linewidth=1)
    fitted.grid(axis="x", alpha=0.3)
    label_axes(fitted, "Exponents: formula, counted, measured", "cost grows as", "")
    fitted.set_yticks(rows, [titles[name] for name in order], fontsize=8.5)
    fitted.set_xticks((1, 1.5, 2), ["n", "n·sqrt(n)", "n²"], fontsize=9)
    legend_below(fitted, columns=3)

# %% [markdown]
# Three numbers decide what a layer costs for a text of $n$ words: how many operations it takes, how many of them must
# come one after the other, and after how many layers each word depends on every other word. The Transformer paper gives
# formulas for layers with $d$ numbers per word:
#
# $$
# \text{attention: } O(n^2 d) \qquad \text{recurrent: } O(n d^2) \qquad \text{convolution: } O(k n d^2)
# $$
#
# regard plans a call before it runs, and a pattern counts the pairs that it allows. So costs can be compared without
# computing anything:

# %%
for n in (1024, 4096):
    x = torch.zeros(1, 1, n, 64)  # (batch, heads, length, head_dim)
    full, linear = rg.plan_attention(x, x, x), rg.plan_attention(x, x, x, mechanism="linear")
    print(f"{n:,} words: {full.cost.flops:,} operations in self-attention, {linear.cost.flops:,} in linear attention")
    print(f"             {n * n:,} pairs, {p.SlidingWindow(256).count(n, n):,} of them in a window")

# %% [markdown]
# In one layer of self-attention each word depends on every word. With a window, distant words need a stack of layers.
# In a recurrent network the first word reaches the last only through a step for each word between them:

# %% tags=["folded"]
CROSSED = (256, 1024)


def path(name, n):
    """How many layers, or steps of a recurrent network, the last word needs to depend on every word."""
    if name == "gru":
        return count_steps("recurrent", n, seed=0)["path"]
    allowed = (p.SlidingWindow(2) if name == "conv-3" else PATTERNS[name](n)).dense(n, n)
    reached, newly, layers = torch.zeros(n, dtype=torch.bool), torch.arange(n) == n - 1, 0
    while not (reached := reached | newly).all():
        newly, layers = allowed[newly].any(0) & ~reached, layers + 1
    return layers


paths = {name: [path(name, n) for n in CROSSED] for name in (*PATTERNS, *LAYERS)}
table("Formulas, and the layers or steps that are needed until the last word depends on every word",
      ("layer", "operations", "sequential steps", "longest path", *(f"counted, n = {n:,}" for n in CROSSED), "source"),
      [(titles[name], ROWS[name].cost, ROWS[name].sequential, ROWS[name].path, *paths.get(name, ("–", "–")),
        ROWS[name].source) for name in SHOWN])  # fmt: skip

# %% [markdown]
# The convolution is centred: each layer carries a signal one word to either side, so $n$ words take $n - 1$ layers. The
# causal convolutions of the lesson *recurrent* look two words back in each layer and need half as many.
#
# With exponent 2, 4 times as many words cost 16 times as much; with 1.5, 8 times; with 1, 4 times. The Sparse
# Transformer and the Reformer are often listed as $O(n)$. Their papers state $n \sqrt{n}$ and $n \log n$.

# %% tags=["folded"]
table(
    "Counted",
    ("layer", "counted", "n", "n words", "4 n words", "16 n words", "exponent", "promised"),
    [(titles[name], "pairs" if name in PATTERNS else "operations", f"{lengths[name][0]:,}",
      *(f"{one:,}" for one in work[name]), f"{exponents[name]:.2f}", f"{promised[name]:.2f}") for name in SHOWN],
)  # fmt: skip

# %% [markdown]
# Time is measured, on one thread. It also depends on the instructions and the memory of the processor.

# %% tags=["folded"]
since = {name: report.figures[name]["cheaper_from"] for name in SHOWN}
table("Exponents of CPU time, and the length from which a layer is faster than self-attention",
      ("layer", "time n^", "promised", "faster from n"),
      [(titles[name], f"{times[name]:.2f}", f"{report.figures[name]['promised']:.2f}",
        since[name].removeprefix("cheaper from ").removesuffix(" on") or "–") for name in SHOWN])  # fmt: skip
print(report.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
groups = [[times[name] for name in names] for names in (QUADRATIC, ROOTED, LINEAR)]
gaps = [min(higher) - max(lower) for higher, lower in pairwise(groups)]


def near(names, exponent):
    values = [exponents[name] for name in names]
    return all(abs(one - exponent) < 0.03 for one in values), f"exponents {min(values):.2f} to {max(values):.2f}"


holds("Twice as many words have 4 times as many pairs in self-attention, also with a causal mask.", *near(QUADRATIC, 2))
holds("The pairs of strided and fixed attention grow as n·sqrt(n), not as n.", *near(ROOTED, 1.5))
holds("The work of recurrent networks, convolutions, windows, global tokens, random blocks, Linformer and the linear "
      "mechanisms grows as n.", *near(LINEAR, 1))  # fmt: skip
short = ("softmax", "causal", "global", "strided", "fixed")
holds("Self-attention, global tokens, strided and fixed attention connect all words in 1 or 2 layers at any length.",
      all(paths[name] in ([1, 1], [2, 2]) for name in short),
      ", ".join(f"{name} {paths[name][1]}" for name in short))  # fmt: skip
holds(
    "For windows and convolutions the number of layers grows with the length, and a recurrent network passes every "
    "word.",
    all(paths[name][1] >= 3.9 * paths[name][0] for name in ("window", "conv-3")) and paths["gru"] == list(CROSSED),
    ", ".join(f"{titles[name]}: {paths[name][0]} and {paths[name][1]}" for name in ("window", "conv-3", "gru")),
)
undecided(  # unless all gaps are larger than what the report can tell apart
    f"Measured times give the same order: the exponents of quadratic layers are above those of strided and fixed, and "
    f"these above those of linear layers, by more than {NEAR}.",
    every(*(None if abs(gap) <= NEAR else gap > 0 for gap in gaps)),
    f"{', '.join(f'{name} {times[name]:.2f}' for name in (*QUADRATIC, *ROOTED))}, linear layers "
    f"{min(groups[-1]):.2f} to {max(groups[-1]):.2f}",
)
holds("On one CPU thread a recurrent layer is slower than self-attention for short texts and faster for long ones.",
      since["gru"].replace(",", "").isdecimal(), f"faster from n: {since['gru']}")  # fmt: skip

# %% [markdown]
# Source: Vaswani et al. 2017, table 1; Child et al. 2019, section 4; Kitaev et al. 2020, table 1; Wang et al. 2020,
# table 1.
