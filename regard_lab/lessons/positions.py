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
from regard_lab.seeing.canvas import LINES, label_rows, label_texts
from regard_lab.teaching import (
    ROUNDING, draw_map, embedded, figure, holds, label_axes, largest, legend_below, scale_beside, seeded, table,
    words_of,
)  # fmt: skip

DIM, DRAWN = 64, 60  # numbers of a word; positions in the figure
words = words_of(TEXT)
x = embedded(words, DIM, SEED)
layer = seeded(SEED, rg.MultiHeadAttention, DIM, 4)
waves = Sinusoidal(DIM)
places = waves(torch.arange(len(words))).double()  # what is added to the words


def changed(added):
    """How much the vector of each word changes, relative to its length, when the sentence is reversed."""
    forwards, backwards = layer(x + added), layer(x.flip(1) + added).flip(1)
    return ((forwards - backwards)[0].norm(dim=-1) / forwards[0].norm(dim=-1)).tolist()


without, beside = changed(0 * places), changed(places)
steps = waves(torch.tensor([1])).double()[0].unflatten(0, (-1, 2))  # (pairs, sine and cosine) at position 1
lengths = (2 * math.pi / torch.atan2(steps[:, 0], steps[:, 1])).tolist()  # of the waves, in words

with figure("Sinusoidal positions", 7.8, 6.4,
            "Left: each row is the vector that is added to the word at that position. Right: four of its columns, and "
            "what reversing the sentence changes.") as drawing:  # fmt: skip
    grid = drawing.add_gridspec(2, 2, width_ratios=(1.15, 1), height_ratios=(1, 1))
    axes = drawing.add_subplot(grid[:, 0])
    image = draw_map(axes, waves(torch.arange(DRAWN)), limits=(-1.0, 1.0))
    label_axes(axes, "What is added to each word", f"component of the vector, 0 to {DIM - 1}", "position")
    axes.set(xticks=range(0, DIM, 8), yticks=range(0, DRAWN, 10))
    scale_beside(drawing, image, axes, "value")
    axes = drawing.add_subplot(grid[0, 1])
    for colour, dash, pair in zip(LINES, ("-", "--", "-.", ":"), (0, 4, 8, 12)):
        axes.plot(waves(torch.arange(DRAWN))[:, 2 * pair], dash, color=colour, linewidth=1.4,
                  label=f"pair {pair}: {lengths[pair]:,.0f} words")  # fmt: skip
    label_axes(axes, "The sines of four pairs", "position", "value")
    legend_below(axes)
    axes = drawing.add_subplot(grid[1, 1])
    axes.barh(range(len(words)), beside, 0.6, color=LINES[1], label="with positions")
    axes.plot(without, range(len(words)), "o", color=LINES[0], markersize=4, clip_on=False, label="without")
    label_axes(axes, "Sentence reversed", "relative change of a word's vector", "")
    label_rows(axes, label_texts(words), 8.5 if len(words) <= 16 else 6)
    axes.set_ylim(len(words) - 0.4, -0.6)
    legend_below(axes)

# %% [markdown]
# Attention compares every word with every word and sums over all of them. The order of the words is nowhere in its
# formula. So a reversed sentence gives each word the same output as before.

# %%
torch.manual_seed(0)
attend = rg.MultiHeadAttention(dim=64, heads=4)
sentence = torch.randn(1, 5, 64)  # five words
turned = attend(sentence.flip(1)).flip(1)  # in reverse order, and back
print(torch.allclose(turned, attend(sentence), atol=1e-5))

# %% [markdown]
# The Transformer adds to each word a vector that depends only on the position of the word. Components $2 c$ and
# $2 c + 1$ are a pair: the sine and the cosine of one angle.
#
# $$
# \text{PE}_{2 c}(\text{pos}) = \sin(\text{pos} / 10000^{2 c / d}), \qquad
# \text{PE}_{2 c + 1}(\text{pos}) = \cos(\text{pos} / 10000^{2 c / d})
# $$
#
# The first pair repeats after $2π$ words. Each further pair has a longer wave, towards $10000 \cdot 2π$ words.

# %%
added = Sinusoidal(64)(torch.arange(5))  # (5, 64)
turned = attend(sentence.flip(1) + added).flip(1)
print(torch.allclose(turned, attend(sentence + added), atol=1e-5))  # now the order matters

# %% tags=["folded"]
pairs = sorted({0, 1, 2, *range(4, DIM // 2, 4), DIM // 2 - 1})
rows = [(pair, f"{2 * pair}, {2 * pair + 1}", f"{lengths[pair]:,.1f}") for pair in pairs]
table(f"Length of the waves, {DIM} numbers per word", ("pair", "components", "words"), rows)

# %% [markdown]
# The vector at position $\text{pos} + k$ is the vector at $\text{pos}$ with each pair turned by a fixed angle:
#
# $$
# \text{PE}(\text{pos} + k) = M_k \, \text{PE}(\text{pos})
# $$
#
# The matrix $M_k$ does not depend on $\text{pos}$, and $k$ may be negative. So one linear map gives the vector that is
# $k$ words ahead or back, for every position.


# %%
def shift_matrix(waves, k):
    """M_k (dim, dim): turns each pair by the angle whose sine and cosine stand in PE(k)."""
    sine, cosine = waves(torch.tensor([k])).double()[0].unflatten(0, (-1, 2)).unbind(-1)
    turns = torch.stack([cosine, sine, -sine, cosine], -1).unflatten(-1, (2, 2))
    return torch.block_diag(*turns)


print((shift_matrix(Sinusoidal(4), 1) + 0).numpy().round(5))

# %% tags=["folded"]
middle = [2 * place == len(words) - 1 for place in range(len(words))]  # the word that stays where it is
rows = [
    (f"{word} (stays in place)" if stays else word, f"{before:.3f}", f"{after:.3f}")
    for word, stays, before, after in zip(words, middle, without, beside)
]
table("Relative change of each word's vector when the sentence is reversed", ("word", "without", "with positions"),
      rows)  # fmt: skip

# %% [markdown]
# ## Claims

# %% tags=["claims"]
ratios = [later / earlier for earlier, later in pairwise(lengths)]
last = 2 * math.pi * 10_000 ** ((DIM - 2) / DIM)
holds("Wavelengths grow by a constant factor from pair to pair, from 2π towards 10000 · 2π.",
      abs(lengths[0] - 2 * math.pi) < 0.05 and abs(lengths[-1] / last - 1) < 1e-3 and max(ratios) - min(ratios) < 0.02,
      f"from {lengths[0]:.1f} to {lengths[-1]:,.0f}; the last pair of {DIM} numbers has "
      f"10000^({DIM - 2}/{DIM}) · 2π")  # fmt: skip
shifts, far = (1, 5, 12), torch.arange(1000)
errors = [largest(waves(far).double() @ shift_matrix(waves, k).mT - waves(far + k).double()) for k in shifts]
holds("PE(pos + k) equals M_k PE(pos) to 1e-6.", max(errors) < 1e-6,
      f"k = {', '.join(map(str, shifts))}, at {len(far):,} positions each")  # fmt: skip
holds("Without positions, reversing the sentence does not change the vector of any word.",
      max(without) < 1e-12, ROUNDING)  # fmt: skip
smallest = min(change for change, stays in zip(beside, middle) if not stays)
holds("With positions, the vector of every moved word changes.", smallest > 0.01,
      f"smallest change of a word that moves {smallest:.3f}")  # fmt: skip

# %% [markdown]
# Source: Vaswani et al. 2017, section 3.5.
