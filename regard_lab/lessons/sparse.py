# %% [markdown]
# # Sparse patterns
#
# **Which pairs can attention leave out, and what do more layers recover?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import math

import torch

import regard as rg
from regard import patterns as p
from regard_lab.seeing.palette import FAINT, INK, LINES, PALE
from regard_lab.teaching import (
    ROUNDING,
    draw_bars,
    draw_cells,
    draw_curves,
    figure,
    holds,
    label_axes,
    largest,
    logarithmic,
    normal,
    table,
)

WINDOW = 8  # neighbours of each word, half of them on each side
RANDOM = 3  # random words of each word


def patterns_for(n):
    """The patterns for a text of n words, where n is a square number."""
    s = math.isqrt(n)
    window = p.SlidingWindow(WINDOW)
    global_word = p.GlobalTokens([0])
    random_words = p.RandomBlocks(RANDOM, block=1, seed=SEED)  # blocks of one word
    return {
        "full": p.Full(),
        "window": window,
        "global": global_word,
        "random": random_words,
        "window + random": window | random_words,
        "BigBird": window | global_word | random_words,
        # strided and fixed also allow later words; & keeps the earlier ones only
        "strided": p.Strided(s) & p.Causal(),
        "fixed": p.Fixed(s) & p.Causal(),
    }


def pairs_passed_on(mask):
    """What one layer passes on, as 0 and 1: the pairs of the mask, and from each word to itself.

    A layer adds its output to its input, so a word keeps what it has without looking at itself.
    """
    return (mask | torch.eye(len(mask), dtype=torch.bool)).float()


masks = {name: pattern.dense(64, 64) for name, pattern in patterns_for(64).items()}

# %% tags=["folded"]
TITLES = {
    "window": "window",
    "global": "a global word",
    "random": "random words",
    "BigBird": "all three: BigBird",
    "strided": "strided, s = 8",
    "fixed": "fixed, s = 8",
}
caption = (
    "Rows are the words that look, columns the words that they look at. Strong: kept in one "
    "layer. Pale: reached through two layers. Blank: not reached."
)
with figure("Which word looks at which", 7.6, 6.3, caption) as drawing:
    for axes, (name, title) in zip(drawing.subplots(2, 3).flat, TITLES.items()):
        mask = masks[name]
        in_one_layer = pairs_passed_on(mask)
        in_two_layers = in_one_layer @ in_one_layer > 0
        # the number of a colour: 0 blank, 1 kept, 2 reached through two layers only
        cells = (2 * in_two_layers.long()).where(~mask, 1)
        draw_cells(axes, cells, ("white", LINES[0], PALE), "equal")

        is_causal = not mask.triu(1).any()
        possible = 64 * 65 // 2 if is_causal else 64 * 64
        reached = f"two layers reach {int(in_two_layers.sum()):,} of {possible:,}"
        axes.set_title(title, fontsize=10.5, color=INK)
        axes.set_xlabel(f"{int(mask.sum()):,} pairs kept;\n{reached}", fontsize=9, color=INK)
        axes.spines[:].set_color(FAINT)

# %% [markdown]
# In full attention each of $n$ words looks at every word, itself too: $n^2$ pairs. That is too much for long texts. A
# **sparse pattern** keeps a few pairs for each word: word $i$ looks only at the words in its set $S_i$. With queries
# $q_i$, keys $k_j$ and values $v_j$ of $d$ numbers, its output is
#
# $$
# z_i = \sum_{j \in S_i} α_{i j} \, v_j, \qquad
# α_{i j} = \operatorname{softmax}_{j \in S_i}(q_i \cdot k_j / \sqrt{d})
# $$
#
# The softmax covers the words in $S_i$ only. All sets together have far fewer than $n^2$ words.
#
# In one layer a word receives information only from the words in its set. So the pattern decides how many layers it
# takes until a word depends on all others.
#
# - **BigBird** joins three patterns: a window (4 neighbours on each side), 3 random words for each word, and a global
#   word. The global word looks at all words, and all words look at it.
# - The **Sparse Transformer** is causal: a word looks at itself and at earlier words. Its strided pattern keeps the
#   last $s$ words and every $s$-th word before them. Its fixed pattern keeps the word's own block of $s$ words and the
#   last word of every block. With $s = \sqrt{n}$ both keep about $n \sqrt{n}$ pairs.

# %%
# 4 words on each side, word 0 for all, and for each word 3 blocks of one word
big_bird = p.SlidingWindow(8) | p.GlobalTokens([0]) | p.RandomBlocks(3, block=1, seed=0)
n = 64
d = 16
q, k, v = torch.randn(3, 1, 1, n, d, dtype=torch.float64)  # (batch, heads, length, head_dim) each
S = big_bird.dense(n, n)  # row i, column j: is j in the set of i?
scores = (q @ k.mT / d**0.5).masked_fill(~S, -torch.inf)
alpha = scores.softmax(-1)
z = alpha @ v
same = torch.allclose(rg.attention(q, k, v, pattern=big_bird), z)
print(same, int(S.sum()), "of", n**2, "pairs")

# %% [markdown]
# Not all layers need the same pattern. In GPT-3, layers without a window alternate with layers that have one. If a
# model is given several patterns, its layers use them in turn. A language model joins `causal` to each of them;
# `causal_window(8)` keeps the word itself and the 7 words before it.

# %%
from regard_lab.models import LanguageConfig, LanguageModel

config = LanguageConfig(
    vocab_size=100, dim=32, heads=4, layers=4, pattern=("causal", "causal_window(8)")
)
print([str(block.attention.pattern) for block in LanguageModel(config).blocks])

# %% [markdown]
# ## How many pairs, how many layers
#
# After two layers, word $i$ depends on word $j$ if it looks at some word $l$ that looks at $j$. Let $M_{i j}$ be 1 if
# $i$ looks at $j$ or is $j$, else 0. (A layer adds its output to its input, so a word also keeps what it has.) The
# product of $M$ with itself counts the words $l$:
#
# $$
# (M M)_{i j} = \sum_l M_{i l} M_{l j}
# $$
#
# Where it is not 0, $i$ reaches $j$ in two layers. Further products show who reaches whom in more layers.

# %% tags=["folded"]
COUNTED = (16, 64, 256, 1024)  # words, square numbers
LAYERED = (64, 144, 256)


def count_pairs(pattern, n):
    """Allowed pairs, counted from the structure of the pattern, without a mask of n · n.

    Random words are others for each length, so they have no such structure and are counted in a mask.
    """
    if pattern.by_length:
        return int(pattern.dense(n, n).sum())
    return pattern.count(n, n)


def count_layers(pattern, n):
    """Layers until each word depends on every other, or on every earlier one if causal.

    None if that is never so.
    """
    is_causal = pattern.reach().ahead == 0  # no word ahead is in any set
    wanted = p.Causal().dense(n, n) if is_causal else p.Full().dense(n, n)
    one_layer = pairs_passed_on(pattern.dense(n, n))
    reached = one_layer
    layers = 1
    while not (reached > 0)[wanted].all():
        further = (reached @ one_layer > 0).float()
        # if one layer more adds nothing, no number of layers does
        if torch.equal(further, reached):
            return None
        reached = further
        layers += 1
    return layers


pairs = {name: [] for name in masks}  # for each length of COUNTED
for n in COUNTED:
    for name, pattern in patterns_for(n).items():
        pairs[name].append(count_pairs(pattern, n))

layers = {name: [] for name in masks}  # for each length of LAYERED
undrawn = []  # words that no other word draws, for each length of LAYERED
for n in LAYERED:
    for name, pattern in patterns_for(n).items():
        layers[name].append(count_layers(pattern, n))
    # row i, column j: has i drawn j, another word?
    by_another_word = patterns_for(n)["random"].dense(n, n).fill_diagonal_(False)
    undrawn.append(int((~by_another_word.any(0)).sum()))

# %% tags=["folded"]
caption = (
    "Left: the pairs of full attention grow faster than those of all others. Right: how many "
    "layers connect all words."
)
with figure("Pairs and layers", 8.0, 3.6, caption) as drawing:
    left, right = drawing.subplots(1, 2)
    curves = {name: pairs[name] for name in ("full", "strided", "fixed", "BigBird", "window")}
    draw_curves(left, COUNTED, curves, ("Pairs kept", "words n", "pairs"), log="xy", columns=3)
    bars = {}
    for name in ("window", "window + random", "BigBird", "global", "strided", "fixed"):
        if layers[name][-1] is not None:
            bars[name] = layers[name][-1]
    draw_bars(right, bars, [str(count) for count in bars.values()])
    label_axes(right, "Layers to reach all of 256 words", "layers", "")
    logarithmic(right, [1, 4, 16, 64])
    right.set_xlim(1, 200)

# %% tags=["folded"]
rows = []
for name, counts in pairs.items():
    rows.append((name, *(f"{count:,}" for count in counts), f"{counts[-1] / 1024**2:.2%}"))
table(
    "Pairs kept",
    ("pattern", *(f"n = {n:,}" for n in COUNTED), "share of n² at 1,024"),
    rows,
)
rows = []
for name, counts in layers.items():
    rows.append((name, *("never" if count is None else count for count in counts)))
table(
    "Layers until each word depends on all others (on all earlier ones if causal)",
    ("words n", *LAYERED),
    rows,
)

# %% [markdown]
# Where do these numbers come from? Each layer extends what a window of $w$ neighbours reaches by $w / 2$ words on each
# side. Random words are shortcuts to windows that are far away. A global word looks at all words in the first layer,
# and all words look at it in the second. In the strided pattern a word looks at every $s$-th earlier word, and any
# given earlier word is among the last $s$ of one of these. In the fixed pattern a word looks at the last word of every
# earlier block, which looks at its whole block.
#
# Random words alone never connect all words: if no other word has drawn a word, no other word depends on it, however
# many layers there are. With 3 draws for each word this happens to about one word in twenty ($e^{-3}$).
#
# ## Claims

# %% tags=["claims"]
LENGTHS = "64, 144 and 256 words"
w = WINDOW
# how many times as many pairs 4 times as many words have
growth = {name: counts[-1] / counts[-2] for name, counts in pairs.items()}  # from 256 to 1,024


def listed(counts):
    return ", ".join(str(count) for count in counts)


def grow_by(factor, *names):
    """Do the pairs of these patterns grow by this factor, within 3 %?"""
    return all(abs(growth[name] / factor - 1) < 0.03 for name in names)


# 1 + 2 + ... + w / 2 beyond each end
beyond_both_ends = w // 2 * (w // 2 + 1)
holds(
    "A window keeps n · (w + 1) pairs, less those beyond both ends: the count is linear in n.",
    pairs["window"] == [n * (w + 1) - beyond_both_ends for n in COUNTED] and grow_by(4, "window"),
    f"{pairs['window'][-1]:,} of 1024² pairs",
)

strided = max(count / n**1.5 for count, n in zip(pairs["strided"], COUNTED))
fixed = max(count / n**1.5 for count, n in zip(pairs["fixed"], COUNTED))
holds(
    "Strided and fixed keep at most 2 · n · √n pairs if s = √n.",
    max(strided, fixed) <= 2,
    f"at most {strided:.2f} and {fixed:.2f} times n · √n",
)

by_name = ", ".join(f"{name} {growth[name]:.2f}" for name in curves)
holds(
    "4 times as many words cost 4 times the pairs in a window and in BigBird, 8 times in strided "
    "and fixed, and 16 times in full attention.",
    grow_by(4, "window", "BigBird") and grow_by(8, "strided", "fixed") and growth["full"] == 16,
    f"{by_name} times from 256 to 1,024 words",
)
holds(
    "A window alone needs (n - 1) / (w / 2) layers, rounded up, until each word depends on every "
    "other.",
    layers["window"] == [math.ceil((n - 1) / (w / 2)) for n in LAYERED],
    f"{listed(layers['window'])} layers for {LENGTHS}",
)

with_random = layers["window + random"]
holds(
    "With 3 random words for each word, a window needs at most 8 layers; alone it needs more than "
    "32 for 256 words.",
    all(count is not None and count <= 8 for count in with_random) and layers["window"][-1] > 32,
    f"{listed(with_random)} layers for {LENGTHS}",
)
holds(
    "Random words alone never connect all words, because some words are not drawn by any other "
    "word.",
    layers["random"] == [None, None, None] and min(undrawn) > 0,
    f"{listed(undrawn)} words not drawn, of {LENGTHS}",
)
holds(
    "Two layers suffice with a global word, and for strided and fixed with s = √n.",
    all(layers[name] == [2, 2, 2] for name in ("global", "BigBird", "strided", "fixed")),
    f"for {LENGTHS}",
)

q, k, v = normal(SEED + 1, 3, 1, 1, 64, 16)  # (batch, heads, length, head_dim) each
same_outputs = 0  # patterns
outside = 0  # pairs with a weight outside the mask, or with weight 0 inside
same_counts = 0  # patterns
for name, pattern in patterns_for(64).items():
    mask = masks[name]
    scores = (q @ k.mT / 16**0.5).masked_fill(~mask, -torch.inf)
    z = scores.softmax(-1) @ v
    if largest(rg.attention(q, k, v, pattern=pattern) - z) < 1e-12:
        same_outputs += 1
    weights = rg.attention_detail(q, k, v, pattern=pattern, want=["weights"]).weights[0, 0]
    outside += int(((weights > 0) != mask).sum())
    if int(mask.sum()) == pairs[name][COUNTED.index(64)]:
        same_counts += 1
holds(
    "Sparse attention gives the same output as dense attention with the mask.",
    same_outputs == len(masks) and outside == 0,
    f"{same_outputs} of {len(masks)} patterns {ROUNDING}; weights outside the mask: {outside} pairs",
)
holds(
    "The counts are the numbers of pairs in the masks.",
    same_counts == len(masks),
    f"{same_counts} of {len(masks)} patterns with 64 words",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise


@exercise(
    "How many pairs does `sliding_window(8)` keep among 1,000 words?",
    NUMBER,
    hint="9 for each word, minus those that would lie beyond the ends: 1 + 2 + 3 + 4 at each end.",
    answer="8980",
)
def pairs_of_a_window(count):
    counted = p.SlidingWindow(8).count(1000, 1000)
    holds("It keeps that many.", count == counted, f"{counted:,}, you say {count:,.0f}")


@exercise(
    "Write the mask of the causal strided pattern with s = 4 for 16 words, booleans (16, 16): a word "
    "looks at the last 4 words, itself included, and at every fourth word before them.",
    CODE,
    hint="Let i be a column of positions and j a row of them. Three conditions on i and j are joined.",
    answer="i = torch.arange(16)[:, None]\n"
    "j = torch.arange(16)\n"
    "(j <= i) & ((i - j < 4) | ((i - j) % 4 == 0))",
)
def strided_mask(mask):
    expected = (p.Strided(4) & p.Causal()).dense(16, 16)
    wrong = int((mask != expected).sum())
    holds("It is the pattern of the lesson.", wrong == 0, f"{wrong} of 256 pairs are wrong")


# %% [markdown]
# Source: Zaheer et al. 2020, section 2; Child et al. 2019, section 4; Brown et al. 2020, section 2.1 (GPT-3).
