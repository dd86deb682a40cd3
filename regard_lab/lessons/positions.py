# %% [markdown]
# # Word order
#
# **How does attention know the order of the words?**

# %% tags=["parameters"]
TEXT = "the dog bites the man"
SEED = 0

# %% tags=["folded"]
import math
from itertools import pairwise

import torch

import regard as rg
from regard.positions import Sinusoidal
from regard_lab.seeing.canvas import label_rows, label_texts
from regard_lab.seeing.palette import LINES
from regard_lab.teaching import (
    ROUNDING,
    draw_map,
    embedded,
    figure,
    holds,
    label_axes,
    largest,
    legend_below,
    scale_beside,
    seeded,
    table,
    words_of,
)

DIM = 64  # numbers of a word

words = words_of(TEXT)
n = len(words)
x = embedded(words, DIM, SEED)  # (1, words, DIM)
layer = seeded(SEED, rg.MultiHeadAttention, DIM, 4)
pe = Sinusoidal(DIM)  # PE of the formula below
added = pe(torch.arange(n)).double()  # what is added to each word, (words, DIM)


def relative_change(added):
    """How much the vector of each word changes, relative to its length, when the sentence is reversed."""
    forwards = layer(x + added)[0]
    backwards = layer(x.flip(1) + added)[0].flip(0)
    return ((forwards - backwards).norm(dim=-1) / forwards.norm(dim=-1)).tolist()


without_positions = relative_change(0 * added)
with_positions = relative_change(added)

# A pair turns by one angle for each word. PE(1) holds its sine and its cosine.
pe_1 = pe(torch.tensor([1]))[0].double()  # (DIM,)
angle = torch.atan2(pe_1[0::2], pe_1[1::2])  # (pairs,)
wavelengths = (2 * math.pi / angle).tolist()  # in words

# %% tags=["folded"]
DRAWN = 60  # positions
drawn = pe(torch.arange(DRAWN))  # (DRAWN, DIM)

caption = (
    "Left: each row is the vector that is added to the word at that position. Right: four of its "
    "columns, and what reversing the sentence changes."
)
with figure("Sinusoidal positions", 7.8, 6.4, caption) as drawing:
    grid = drawing.add_gridspec(2, 2, width_ratios=(1.15, 1), height_ratios=(1, 1))

    axes = drawing.add_subplot(grid[:, 0])
    image = draw_map(axes, drawn, limits=(-1.0, 1.0), signed=True)
    x_label = f"component of the vector, 0 to {DIM - 1}"
    label_axes(axes, "What is added to each word", x_label, "position")
    axes.set(xticks=range(0, DIM, 8), yticks=range(0, DRAWN, 10))
    scale_beside(drawing, image, axes, "value")

    axes = drawing.add_subplot(grid[0, 1])
    for colour, dash, pair in zip(LINES, ("-", "--", "-.", ":"), (0, 4, 8, 12)):
        label = f"pair {pair}: {wavelengths[pair]:,.0f} words"
        axes.plot(drawn[:, 2 * pair], dash, color=colour, linewidth=1.4, label=label)
    label_axes(axes, "The sines of four pairs", "position", "value")
    legend_below(axes)

    axes = drawing.add_subplot(grid[1, 1])
    rows = range(n)
    axes.barh(rows, with_positions, 0.6, color=LINES[1], label="with positions")
    dots = {"color": LINES[0], "markersize": 4, "clip_on": False}
    axes.plot(without_positions, rows, "o", label="without", **dots)
    label_axes(axes, "Sentence reversed", "relative change of a word's vector", "")
    label_rows(axes, label_texts(words), 8.5 if n <= 16 else 6)
    axes.set_ylim(n - 0.4, -0.6)
    legend_below(axes)

# %% [markdown]
# Attention compares every word with every word and sums over all of them. The order of the words is nowhere in its
# formula. So each word of a reversed sentence gets the same output as before; only the outputs stand in reverse order.

# %%
torch.manual_seed(0)
attend = rg.MultiHeadAttention(dim=64, heads=4)
sentence = torch.randn(1, 5, 64)  # five words
turned = attend(sentence.flip(1)).flip(1)  # in reverse order, and back
print(torch.allclose(turned, attend(sentence), atol=1e-5))

# %% [markdown]
# The Transformer adds to each word a vector of $d$ numbers, as many as the word has. This vector,
# $\text{PE}(\text{pos})$, depends only on the position $\text{pos}$ of the word: 0, 1, 2 and so on. Its components
# $2 c$ and $2 c + 1$ are pair $c$, the sine and the cosine of one angle, for $c$ from 0 to $d / 2 - 1$:
#
# $$
# \text{PE}_{2 c}(\text{pos}) = \sin(\text{pos} / 10000^{2 c / d}), \qquad
# \text{PE}_{2 c + 1}(\text{pos}) = \cos(\text{pos} / 10000^{2 c / d})
# $$

# %%
positions = Sinusoidal(64)(torch.arange(5))  # (5, 64)
turned = attend(sentence.flip(1) + positions).flip(1)
print(torch.allclose(turned, attend(sentence + positions), atol=1e-5))  # now the order matters

# %% [markdown]
# The same for the sentence of the figure. The change of a vector is given relative to its length:

# %% tags=["folded"]
# in a sentence with an odd number of words, the middle one stays where it is
middle = (n - 1) / 2
rows = []
for place, word in enumerate(words):
    name = f"{word} (stays in place)" if place == middle else word
    rows.append((name, f"{without_positions[place]:.3f}", f"{with_positions[place]:.3f}"))
title = "Relative change of each word's vector when the sentence is reversed"
table(title, ("word", "without", "with positions"), rows)

# %% [markdown]
# The first pair of components repeats after $2π$ words. Each further pair has a longer wave, towards
# $10000 \cdot 2π$ words:

# %% tags=["folded"]
pairs = sorted({0, 1, 2, *range(4, DIM // 2, 4), DIM // 2 - 1})
rows = [(c, f"{2 * c}, {2 * c + 1}", f"{wavelengths[c]:,.1f}") for c in pairs]
table(f"Length of the waves, {DIM} numbers per word", ("pair", "components", "words"), rows)

# %% [markdown]
# Why sines and cosines? The vector at position $\text{pos} + k$ is the vector at $\text{pos}$ with pair $c$ turned by
# the angle $k / 10000^{2 c / d}$, because $\sin(a + b) = \sin a \cos b + \cos a \sin b$, and likewise for the cosine:
#
# $$
# \text{PE}(\text{pos} + k) = M_k \, \text{PE}(\text{pos})
# $$
#
# The matrix $M_k$ does not depend on $\text{pos}$, and $k$ may be negative. So one linear map gives the vector that is
# $k$ words ahead or back, for every position. The authors expected that a layer can so learn to look at a word at a
# certain distance. The matrix for $k = 1$ and $d = 4$ has a block for each of its two pairs:


# %%
def shift_matrix(pe, k):
    """M_k (dim, dim): turns each pair by the angle whose sine and cosine stand in PE(k)."""
    pe_k = pe(torch.tensor([k]))[0].double()  # (dim,)
    sine = pe_k[0::2]
    cosine = pe_k[1::2]
    turns = torch.stack([cosine, sine, -sine, cosine], -1)  # (pairs, 4)
    return torch.block_diag(*turns.unflatten(-1, (2, 2)))


M_1 = shift_matrix(Sinusoidal(4), 1)
print((M_1 + 0).numpy().round(5))  # + 0 turns -0 into 0

# %% [markdown]
# ## Claims

# %% tags=["folded"]
factors = [longer / shorter for shorter, longer in pairwise(wavelengths)]
longest = 2 * math.pi * 10_000 ** ((DIM - 2) / DIM)  # by the formula

pos = torch.arange(1000)
shifts = (1, 5, 12)
errors = []
for k in shifts:
    M_k = shift_matrix(pe, k)
    errors.append(largest(pe(pos).double() @ M_k.mT - pe(pos + k).double()))

draw = torch.Generator().manual_seed(SEED)
orders = [torch.randperm(n, generator=draw) for _ in range(100)]
changes_by_order = [largest(layer(x[:, order]) - layer(x)[:, order]) for order in orders]

changes_of_moved_words = [change for place, change in enumerate(with_positions) if place != middle]

# %% tags=["claims"]
holds(
    "Wavelengths grow by a constant factor from pair to pair, from 2π towards 10000 · 2π.",
    abs(wavelengths[0] - 2 * math.pi) < 0.05
    and abs(wavelengths[-1] / longest - 1) < 1e-3
    and max(factors) - min(factors) < 0.02,
    f"from {wavelengths[0]:.1f} to {wavelengths[-1]:,.0f}; the last pair of {DIM} numbers has "
    f"10000^({DIM - 2}/{DIM}) · 2π",
)
holds(
    "PE(pos + k) equals M_k PE(pos) to 1e-6.",
    max(errors) < 1e-6,
    f"k = {', '.join(map(str, shifts))}, at {len(pos):,} positions each",
)
holds(
    "Without positions, reversing the sentence does not change the vector of any word.",
    max(without_positions) < 1e-12,
    ROUNDING,
)
holds(
    "So it is for any order of the words: attention alone is equivariant.",
    max(changes_by_order) < 1e-12,
    f"{len(orders)} orders drawn at random, {ROUNDING}",
)
holds(
    "With positions, the vector of every moved word changes.",
    min(changes_of_moved_words) > 0.01,
    f"smallest change of a word that moves {min(changes_of_moved_words):.3f}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise


@exercise(
    "With 64 numbers for each word, pair 0 repeats after $2π$ words. After how many words does pair "
    "16 repeat?",
    NUMBER,
    hint="The wave of pair c is $10000^{2 c / d}$ times as long as that of pair 0.",
    answer="628",
)
def wave_of_pair_16(length):
    holds(
        "The wave is that long, within a hundredth.",
        abs(length / wavelengths[16] - 1) < 0.01,
        f"{wavelengths[16]:.1f} words, you say {length:g}",
    )


@exercise(
    "Which matrix $M$ gives $\\text{PE}(\\text{pos} + 3) = M \\, \\text{PE}(\\text{pos})$ for every "
    "position? You may use `pe` and `shift_matrix`.",
    CODE,
    hint="`shift_matrix(pe, k)` is $M_k$.",
    answer="shift_matrix(pe, 3)",
)
def three_words_ahead(M):
    error = largest(pe(pos).double() @ M.mT - pe(pos + 3).double())
    holds("It does.", error < 1e-6, f"the largest error at {len(pos):,} positions is {error:.2g}")


# %% [markdown]
# Source: Vaswani et al. 2017, section 3.5.
