# %% [markdown]
# # Cost and length
#
# **What does each kind of layer cost when the text gets longer?**

# %% tags=["folded"]
import math

import torch

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard_lab.seeing.palette import FAINT, INK, LINES
from regard_lab.teaching import (
    draw_line,
    every,
    figure,
    holds,
    label_axes,
    legend_below,
    logarithmic,
    operations,
    read_report,
    table,
    undecided,
)
from regard_lab.teaching.approximating import slope
from regard_lab.teaching.stepping import count_steps

QUADRATIC = ("softmax", "causal")
ROOTED = ("strided", "fixed")
LAYERS = ("gru", "conv-3")
SPARSE = ("window", "global", "random")
MECHANISMS = ("linformer", "linear", "performer", "reformer")
LINEAR = (*LAYERS, *SPARSE, "linformer", "linear", "performer")
SHOWN = (*QUADRATIC, *LAYERS, *SPARSE, *ROOTED, *MECHANISMS)
DIM = 64  # numbers of a word
NEAR = 0.15  # exponents of measured times that differ by less are not told apart


def patterns_for(n):
    """The patterns for a text of n words, by their names."""
    root = math.isqrt(n)
    return {
        "softmax": p.Full(),
        "causal": p.Causal(),
        "window": p.SlidingWindow(256),
        "global": p.GlobalTokens(range(64)),
        "random": p.RandomBlocks(3, block=64, seed=0),
        "strided": p.Causal() & p.Strided(root),
        "fixed": p.Causal() & p.Fixed(root, summary=8),
    }


def mechanisms_for(n):
    """The mechanisms for a text of n words, by their names."""
    # two hashes, whose numbers of buckets are even and have a product of about n / 32
    buckets = 2 * round(math.sqrt(n / 32) / 2)
    more_buckets = 2 * round(n / 32 / buckets / 2)
    return {
        "linformer": m.Linformer(n, rank=64),
        "linear": m.LinearTransformer(),
        "performer": m.Performer(features=128),
        "reformer": m.LSH(chunk=64, buckets=(buckets, more_buckets), rounds=2),
    }


PATTERNS = tuple(patterns_for(1024))


def count_work(name, n):
    """Allowed pairs of a pattern; floating-point operations of another layer."""
    if name in PATTERNS:
        return patterns_for(n)[name].count(n, n)
    text = torch.zeros(1, n, DIM)
    if name == "gru":
        gru = torch.nn.GRU(DIM, DIM, batch_first=True)
        return operations(lambda: gru(text))
    if name == "conv-3":
        convolution = torch.nn.Conv1d(DIM, DIM, 3, padding=1)
        return operations(lambda: convolution(text.mT))
    pattern = p.Causal() if name == "performer" else p.Full()
    x = text[None]  # (batch, heads, length, head_dim)
    plan = rg.plan_attention(x, x, x, pattern=pattern, mechanism=mechanisms_for(n)[name])
    return int(plan.cost.flops)


def count_by_formula(growth, n):
    """The formula of a layer, such as "n·log n", for n words."""
    by_formula = {"n": n, "n·log n": n * math.log(n), "n·sqrt(n)": n**1.5, "n²": n**2}
    return by_formula[growth]


report = read_report("complexity")
titles = {}
lengths = {}  # words, three for each layer
work = {}  # at each length
exponents = {}  # by which this work grows
promised = {}  # by the formula
times = {}  # by which the measured time grows
for name in SHOWN:
    growth = report.figures[name]["growth"]
    titles[name] = report.figures[name]["title"]
    lengths[name] = (16, 64, 256) if name == "gru" else (1024, 4096, 16384)
    work[name] = [count_work(name, n) for n in lengths[name]]
    by_formula = [count_by_formula(growth, n) for n in lengths[name][1:]]
    exponents[name] = slope(work[name][1:], lengths[name][1:])
    promised[name] = slope(by_formula, lengths[name][1:])
    times[name] = report.figures[name]["exponent"]

# %% tags=["folded"]
caption = (
    "Above: 16 times the words have 256 times the pairs in self-attention, but only 16 times in a "
    "window. Below: what the formula of each layer promises, what is counted, and how the measured "
    "time grows."
)
with figure("What a longer text costs", 7.6, 7.0, caption) as drawing:
    above, below = drawing.subplots(2, 1, height_ratios=(1, 1.5))
    ends = {
        "softmax": "self-attention",
        "strided": "strided",
        "window": "window, global tokens",
    }
    for number, (name, text) in enumerate(ends.items()):
        growth = [pairs / work[name][0] for pairs in work[name]]
        draw_line(above, lengths[name], growth, number, name)
        above.text(18500, growth[-1], text, fontsize=9, color=LINES[number], va="center")
    label_axes(above, "Pairs of query and key", "words n", "compared with 1,024 words")
    above.set_yscale("log")
    above.set_yticks((1, 4, 16, 64, 256), ["1", "× 4", "× 16", "× 64", "× 256"])
    logarithmic(above, lengths["softmax"])
    above.set_xlim(900, 50000)

    names = sorted(SHOWN, key=promised.get)
    rows = range(len(names))
    from_formulas = [promised[name] for name in names]
    counted = [exponents[name] for name in names]
    measured = [times[name] for name in names]
    below.plot(
        from_formulas, rows, "|", color=INK, label="formula", markeredgewidth=2, markersize=15
    )
    below.plot(counted, rows, "o", color=LINES[0], label="counted", markeredgewidth=2, markersize=5)
    below.plot(
        measured, rows, "D", color=LINES[1], label="CPU time", markeredgewidth=2, markersize=5
    )
    below.hlines(rows, counted, measured, FAINT, linewidth=1)
    below.grid(axis="x", alpha=0.3)
    label_axes(below, "Exponents: formula, counted, measured", "cost grows as", "")
    below.set_yticks(rows, [titles[name] for name in names], fontsize=8.5)
    below.set_xticks((1, 1.5, 2), ["n", "n·sqrt(n)", "n²"], fontsize=9)
    legend_below(below, columns=3)

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
    full = rg.plan_attention(x, x, x).cost.flops
    linear = rg.plan_attention(x, x, x, mechanism="linear").cost.flops
    in_window = p.SlidingWindow(256).count(n, n)
    print(f"{n:,} words: {full:,} operations in self-attention, {linear:,} in linear attention")
    print(f"             {n * n:,} pairs, {in_window:,} of them in a window")

# %% [markdown]
# In one layer of self-attention each word depends on every word. With a window, distant words need a stack of layers.
# In a recurrent network the first word reaches the last only through a step for each word between them:

# %% tags=["folded"]
CROSSED = (256, 1024)  # words


def count_layers(name, n):
    """How many layers, or steps of a recurrent network, the last word needs to depend on all words."""
    if name == "gru":
        return count_steps("recurrent", n, seed=0)["path"]
    pattern = p.SlidingWindow(2) if name == "conv-3" else patterns_for(n)[name]
    allowed = pattern.dense(n, n)
    reached = torch.arange(n) == n - 1  # by the last word
    newly_reached = reached
    layers = 0
    while not reached.all():
        newly_reached = allowed[newly_reached].any(0) & ~reached
        reached = reached | newly_reached
        layers += 1
    return layers


paths = {}
for name in (*PATTERNS, *LAYERS):
    paths[name] = [count_layers(name, n) for n in CROSSED]

rows = []
for name in SHOWN:
    layer = report.figures[name]
    formulas = (layer["cost"], layer["sequential"], layer["path"])
    counted = paths.get(name, ("–", "–"))
    rows.append((titles[name], *formulas, *counted, layer["source"]))
table(
    "Formulas, and the layers or steps that are needed until the last word depends on every word",
    (
        "layer",
        "operations",
        "sequential steps",
        "longest path",
        *(f"counted, n = {n:,}" for n in CROSSED),
        "source",
    ),
    rows,
)

# %% [markdown]
# The convolution is centred: each layer carries a signal one word to either side, so $n$ words take $n - 1$ layers. The
# causal convolutions of the lesson *recurrent* look two words back in each layer and need half as many.
#
# With exponent 2, 4 times as many words cost 16 times as much; with 1.5, 8 times; with 1, 4 times. The Sparse
# Transformer and the Reformer are often listed as $O(n)$. Their papers state $n \sqrt{n}$ and $n \log n$.

# %% tags=["folded"]
rows = []
for name in SHOWN:
    unit = "pairs" if name in PATTERNS else "operations"
    counted = [f"{count:,}" for count in work[name]]
    grown = (f"{exponents[name]:.2f}", f"{promised[name]:.2f}")
    rows.append((titles[name], unit, f"{lengths[name][0]:,}", *counted, *grown))
table(
    "Counted",
    ("layer", "counted", "n", "n words", "4 n words", "16 n words", "exponent", "promised"),
    rows,
)

# %% [markdown]
# Time is measured, on one thread. It also depends on the instructions and the memory of the processor.

# %% tags=["folded"]
rows = []
for name in SHOWN:
    # such as "1,140", or "cheaper from 256 on" if it is faster at every length
    faster_from = report.figures[name]["cheaper_from"]
    faster_from = faster_from.removeprefix("cheaper from ").removesuffix(" on")
    measured = (f"{times[name]:.2f}", f"{report.figures[name]['promised']:.2f}")
    rows.append((titles[name], *measured, faster_from or "–"))
table(
    "Exponents of CPU time, and the length from which a layer is faster than self-attention",
    ("layer", "time n^", "promised", "faster from n"),
    rows,
)
print(report.source)

# %% [markdown]
# ## Claims


# %% tags=["claims"]
def all_near(names, exponent):
    """Does the work of these layers grow as n to this power?"""
    return all(abs(exponents[name] - exponent) < 0.03 for name in names)


def exponents_of(names):
    values = [exponents[name] for name in names]
    return f"exponents {min(values):.2f} to {max(values):.2f}"


holds(
    "Twice as many words have 4 times as many pairs in self-attention, also with a causal mask.",
    all_near(QUADRATIC, 2),
    exponents_of(QUADRATIC),
)
holds(
    "The pairs of strided and fixed attention grow as n·sqrt(n), not as n.",
    all_near(ROOTED, 1.5),
    exponents_of(ROOTED),
)
holds(
    "The work of recurrent networks, convolutions, windows, global tokens, random blocks, "
    "Linformer and the linear mechanisms grows as n.",
    all_near(LINEAR, 1),
    exponents_of(LINEAR),
)

SHORT = ("softmax", "causal", "global", "strided", "fixed")
holds(
    "Self-attention, global tokens, strided and fixed attention connect all words in 1 or 2 layers "
    "at any length.",
    all(paths[name] in ([1, 1], [2, 2]) for name in SHORT),
    ", ".join(f"{name} {paths[name][1]}" for name in SHORT),
)
LONG = ("window", "conv-3", "gru")
grows = all(paths[name][1] >= 3.9 * paths[name][0] for name in ("window", "conv-3"))
holds(
    "For windows and convolutions the number of layers grows with the length, and a recurrent "
    "network passes every word.",
    grows and paths["gru"] == list(CROSSED),
    ", ".join(f"{titles[name]}: {paths[name][0]} and {paths[name][1]}" for name in LONG),
)

quadratic = [times[name] for name in QUADRATIC]
rooted = [times[name] for name in ROOTED]
linear = [times[name] for name in LINEAR]


def is_above(higher, lower):
    """Is the gap between two groups above 0? None if it is smaller than the report can tell apart."""
    gap = min(higher) - max(lower)
    if abs(gap) <= NEAR:
        return None
    return gap > 0


shown_times = ", ".join(f"{name} {times[name]:.2f}" for name in (*QUADRATIC, *ROOTED))
undecided(
    "Measured times give the same order: the exponents of quadratic layers are above those of "
    f"strided and fixed, and these above those of linear layers, by more than {NEAR}.",
    every(is_above(quadratic, rooted), is_above(rooted, linear)),
    f"{shown_times}, linear layers {min(linear):.2f} to {max(linear):.2f}",
)
gru_faster_from = report.figures["gru"]["cheaper_from"]
holds(
    "On one CPU thread a recurrent layer is slower than self-attention for short texts and faster "
    "for long ones.",
    gru_faster_from.replace(",", "").isdecimal(),  # neither at every length nor at none
    f"faster from n: {gru_faster_from}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise


@exercise(
    "A text gets 4 times as long. By which factor does the number of pairs of the strided pattern grow, "
    "with $s = \\sqrt{n}$?",
    NUMBER,
    hint="Its pairs grow as $n \\sqrt{n}$.",
    answer="8",
)
def growth_of_strided(times):
    measured = count_work("strided", 4096) / count_work("strided", 1024)
    holds(
        "It grows by this factor, within 5 %.",
        abs(times / measured - 1) < 0.05,
        f"{measured:.2f}, you say {times:g}",
    )


@exercise(
    "How many layers of `sliding_window(256)` does it take until the last of 1,024 words depends on "
    "all of them?",
    NUMBER,
    hint="Each layer reaches 128 words back, and the first word is 1,023 words away.",
    answer="8",
)
def layers_of_windows(count):
    counted = count_layers("window", 1024)
    holds("It takes that many.", count == counted, f"{counted}, you say {count:g}")


# %% [markdown]
# Source: Vaswani et al. 2017, table 1; Child et al. 2019, section 4; Kitaev et al. 2020, table 1; Wang et al. 2020,
# table 1.
