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
from regard_lab.seeing.canvas import FAINT, INK, LINES
from regard_lab.teaching import (
    ROUNDING, draw_bars, draw_cells, draw_curves, figure, holds, label_axes, largest, logarithmic, normal, table,
)  # fmt: skip

WINDOW, RANDOM = 8, 3  # neighbours, and random words of each word


def patterns(n):
    """The patterns for a text of n words, where n is a square number."""
    near, hub, s = p.SlidingWindow(WINDOW), p.GlobalTokens([0]), math.isqrt(n)
    far = p.RandomBlocks(RANDOM, block=1, seed=SEED)
    return {
        "full": p.Full(), "window": near, "global": hub, "random": far, "window + random": near | far,
        "BigBird": near | hub | far, "strided": p.Strided(s) & p.Causal(), "fixed": p.Fixed(s) & p.Causal(),
    }  # fmt: skip


def passes_on(mask):
    """What one layer passes on: along the pairs of the pattern, and along the residual connection."""
    return (mask | torch.eye(len(mask), dtype=torch.bool)).float()


masks = {name: pattern.dense(64, 64) for name, pattern in patterns(64).items()}
SHOWN = {"window": "window", "global": "a global word", "random": "random words",
         "BigBird": "all three: BigBird", "strided": "strided, s = 8", "fixed": "fixed, s = 8"}  # fmt: skip

with figure("Which word looks at which", 7.6, 6.3,
            "Rows are the words that look, columns the words that they look at. Strong: kept in one layer. Pale: "
            "reached through two layers. Blank: not reached.") as drawing:  # fmt: skip
    for axes, (name, title) in zip(drawing.subplots(2, 3).flat, SHOWN.items()):
        mask, step = masks[name], passes_on(masks[name])
        two = step @ step > 0
        draw_cells(axes, (2 * two.long()).where(~mask, 1), ("#ffffff", LINES[0], "#cfe3f1"), "equal")
        possible = 64 * 65 // 2 if not mask.triu(1).any() else 64 * 64
        axes.set_title(title, fontsize=10.5, color=INK)
        kept = f"{int(mask.sum()):,} pairs kept;\ntwo layers reach {int(two.sum()):,} of {possible:,}"
        axes.set_xlabel(kept, fontsize=9, color=INK)
        axes.spines[:].set_color(FAINT)

# %% [markdown]
# In full attention each of $n$ words looks at every word, itself too: $n^2$ pairs. That is too much for long texts. A
# **sparse pattern** keeps a few pairs for each word, the set $S_i$ of word $i$:
#
# $$
# \operatorname{softmax}_{j \in S_i}(q_i \cdot k_j) \qquad \sum_i \lvert S_i \rvert \ll n^2
# $$
#
# In one layer a word receives information only from the words in its set. So the pattern decides how many layers it
# takes until a word depends on all others.
#
# - **BigBird** joins three patterns: a window (4 neighbours on each side), 3 random words for each word, and a global
#   word. The global word looks at all words, and all words look at it.
# - The **Sparse Transformer** is causal. Its strided pattern keeps the last $s$ words and every $s$-th word before
#   them. Its fixed pattern keeps the word's own block of $s$ words and the last word of every block. With
#   $s = \sqrt{n}$ both keep about $n \sqrt{n}$ pairs.

# %%
big_bird = p.SlidingWindow(8) | p.GlobalTokens([0]) | p.RandomBlocks(3, block=1, seed=0)
q, k, v = torch.randn(3, 1, 1, 64, 16, dtype=torch.float64)  # (batch, heads, length, head_dim) each
mask = big_bird.dense(64, 64)
by_mask = (q @ k.mT / 4).masked_fill(~mask, -torch.inf).softmax(-1) @ v
print(torch.allclose(rg.attention(q, k, v, pattern=big_bird), by_mask), int(mask.sum()), "of", 64**2, "pairs")

# %% [markdown]
# In GPT-3, layers without a window alternate with layers that have one. If a model is given several patterns, its
# layers use them in turn.

# %%
from regard_lab.models import LanguageConfig, LanguageModel

config = LanguageConfig(vocab_size=100, dim=32, heads=4, layers=4, pattern=("causal", "causal_window(8)"))
print([str(block.attention.pattern) for block in LanguageModel(config).blocks])

# %% [markdown]
# ## How many pairs, how many layers
#
# After two layers, a word depends on another if it looks at a third word that looks at the other. So the product of the
# mask with itself shows who reaches whom in two layers, and further products in more.

# %% tags=["folded"]
COUNTED, LAYERED, THESE = (16, 64, 256, 1024), (64, 144, 256), "64, 144 and 256 words"  # square numbers


def count(pattern, n):
    """Pairs, counted from the structure; in the mask if the pattern depends on the length, as random words do."""
    return int(pattern.dense(n, n).sum()) if pattern.by_length else pattern.count(n, n)


def layers_of(pattern, n):
    """Layers until each word depends on every other, or on every earlier one if causal; None if it never does."""
    wanted = (p.Causal() if pattern.reach().ahead == 0 else p.Full()).dense(n, n)
    step = passes_on(pattern.dense(n, n))
    reached, layers = step, 1
    while not (reached > 0)[wanted].all():
        further = (reached @ step > 0).float()
        if torch.equal(further, reached):
            return None
        reached, layers = further, layers + 1
    return layers


pairs = {name: [count(patterns(n)[name], n) for n in COUNTED] for name in masks}
layers = {name: [layers_of(patterns(n)[name], n) for n in LAYERED] for name in masks}
drawn = {n: patterns(n)["random"].dense(n, n).fill_diagonal_(False).any(0) for n in LAYERED}  # by another word
undrawn = [int((~one).sum()) for one in drawn.values()]
with figure("Pairs and layers", 8.0, 3.6,
            "Left: the pairs of full attention grow faster than those of all others. Right: how many layers connect "
            "all words.") as drawing:  # fmt: skip
    left, right = drawing.subplots(1, 2)
    curves = {name: pairs[name] for name in ("full", "strided", "fixed", "BigBird", "window")}
    draw_curves(left, COUNTED, curves, ("Pairs kept", "words n", "pairs"), log="xy", columns=3)
    names = ("window", "window + random", "BigBird", "global", "strided", "fixed")
    bars = {name: layers[name][-1] for name in names if layers[name][-1]}
    draw_bars(right, bars, list(map(str, bars.values())))
    label_axes(right, "Layers to reach all of 256 words", "layers", "")
    logarithmic(right, [1, 4, 16, 64])
    right.set_xlim(1, 200)

table(
    "Pairs kept", ("pattern", *(f"n = {n:,}" for n in COUNTED), "share of n² at 1,024"),
    [(name, *(f"{one:,}" for one in counts), f"{counts[-1] / 1024**2:.2%}") for name, counts in pairs.items()],
)  # fmt: skip
table("Layers until each word depends on all others (on all earlier ones if causal)", ("words n", *LAYERED),
      [(name, *("never" if one is None else one for one in counts)) for name, counts in layers.items()])  # fmt: skip

# %% [markdown]
# Random words alone never connect all words: if no other word has drawn a word, nothing depends on it, however many
# layers there are.
#
# ## Claims

# %% tags=["claims"]
listed = lambda counts: ", ".join(map(str, counts))
growth = {name: counts[-1] / counts[-2] for name, counts in pairs.items()}  # from 256 to 1,024 words
roots = [max(pairs[name][at] / n**1.5 for at, n in enumerate(COUNTED)) for name in ("strided", "fixed")]
mixed, side = layers["window + random"], WINDOW // 2
q, k, v = normal(SEED + 1, 3, 1, 1, 64, 16)
same, elsewhere = 0, 0
for name, pattern in patterns(64).items():
    by_mask = (q @ k.mT / 4).masked_fill(~masks[name], -torch.inf).softmax(-1) @ v
    same += largest(rg.attention(q, k, v, pattern=pattern) - by_mask) < 1e-12
    weights = rg.attention_detail(q, k, v, pattern=pattern, want=["weights"]).weights[0, 0]
    elsewhere += int(((weights > 0) != masks[name]).sum())
alike = sum(int(masks[name].sum()) == pairs[name][1] for name in masks)
holds("A window keeps n · (w + 1) pairs, less those beyond both ends: the count is linear in n.",
      pairs["window"] == [n * (WINDOW + 1) - side * (side + 1) for n in COUNTED] and growth["window"] < 4.12,
      f"{pairs['window'][-1]:,} of 1024² pairs")  # fmt: skip
holds("Strided and fixed keep at most 2 · n · √n pairs if s = √n.", max(roots) <= 2,
      f"at most {roots[0]:.2f} and {roots[1]:.2f} times n · √n")  # fmt: skip
holds("4 times as many words cost 4 times the pairs in a window and in BigBird, 8 times in strided and fixed, and 16 "
      "times in full attention.",
      all(abs(growth[name] / 4 - 1) < 0.03 for name in ("window", "BigBird"))
      and all(abs(growth[name] / 8 - 1) < 0.03 for name in ("strided", "fixed")) and growth["full"] == 16,
      f"{', '.join(f'{name} {growth[name]:.2f}' for name in curves)} times from 256 to 1,024 words")  # fmt: skip
holds("A window alone needs (n - 1) / (w / 2) layers, rounded up, until each word depends on every other.",
      layers["window"] == [math.ceil((n - 1) / side) for n in LAYERED],
      f"{listed(layers['window'])} layers for {THESE}")  # fmt: skip
holds("With 3 random words for each word, a window needs at most 8 layers; alone it needs more than 32 for 256 words.",
      all(few and few <= 8 for few in mixed) and layers["window"][-1] > 32,
      f"{listed(mixed)} layers for {THESE}")  # fmt: skip
holds("Random words alone never connect all words, because some words are not drawn by any other word.",
      layers["random"] == [None] * 3 and min(undrawn) > 0,
      f"{listed(undrawn)} words not drawn, of {THESE}")  # fmt: skip
holds("Two layers suffice with a global word, and for strided and fixed with s = √n.",
      all(layers[name] == [2] * 3 for name in ("global", "BigBird", "strided", "fixed")), f"for {THESE}")  # fmt: skip
holds("Sparse attention gives the same output as dense attention with the mask.", same == len(masks) and not elsewhere,
      f"{same} of {len(masks)} patterns {ROUNDING}; weights outside the mask: {elsewhere} pairs")  # fmt: skip
holds("The counts are the numbers of pairs in the masks.", alike == len(masks),
      f"{alike} of {len(masks)} patterns with 64 words")  # fmt: skip

# %% [markdown]
# Source: Zaheer et al. 2020, section 2; Child et al. 2019, section 4; Brown et al. 2020, section 2.1 (GPT-3).
