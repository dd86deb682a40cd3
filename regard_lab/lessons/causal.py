# %% [markdown]
# # The causal mask
#
# **How does the mask work, and do masked words really have no effect?**

# %% tags=["parameters"]
TEXT = "Life is short, eat dessert first"
SEED = 0

# %% tags=["folded"]
import math

import torch

import regard as rg
from regard import patterns as p
from regard_lab.teaching import (
    ROUNDING, draw_map, embedded, figure, holds, largest, normal, scale_beside, table, words_of, write_numbers,
)  # fmt: skip

DIM, EXACT = 16, 1e-12
words = words_of(TEXT)
matrices = normal(SEED + 1, 3, DIM, DIM) / math.sqrt(DIM)
q, k, v = (embedded(words, DIM, SEED) @ matrices)[:, None, None]  # (batch, heads, words, head_dim) each

scores = q @ k.mT / math.sqrt(DIM)
weights = scores.softmax(-1)  # 1. over all words
masked = weights.tril()  # 2. later words set to 0
shared = masked / masked.sum(-1, keepdim=True)  # 3. each row divided by its sum

with figure("The causal mask in three steps", 7.8, 3.6,
            "Each row is a query word, each column a key word. Grey cells are masked. In step 2 the rows sum to less "
            "than 1; in step 3 they sum to 1 again.") as drawing:  # fmt: skip
    panels = drawing.subplots(1, 3)
    later = ~p.Causal().dense(len(words), len(words))
    steps = (
        ("1. softmax over all words", weights),
        ("2. later words set to 0", masked),
        ("3. divided by row sums", shared),
    )
    for axes, (title, values) in zip(panels, steps):
        rows, hidden = words if axes is panels[0] else (), None if values is weights else later
        image = draw_map(axes, values[0, 0], rows, words, hidden=hidden, cell=2.0 / len(words))
        axes.set_xlabel(title, fontsize=9.5)
        if len(words) <= 7:
            write_numbers(axes, values[0, 0].masked_fill(values[0, 0] == 0, torch.nan))
    scale_beside(drawing, image, panels, "attention weight")

# %% [markdown]
# A model that writes a text word by word must not look at later words. During training all words are there, so a mask
# hides the later ones. The figure masks in three steps. In the end the weight of word $j$ for word $i$ is
#
# $$
# α_{i j} = \frac{\exp(s_{i j})}{\sum_{l \le i} \exp(s_{i l})} \text{ for } j \le i, \text{ else } 0
# $$
#
# One step is enough: set the scores of later words to minus infinity before the softmax. Their exponentials are 0, so
# the softmax covers the other words only.

# %%
n = len(words)
later = torch.ones(n, n, dtype=torch.bool).triu(1)
at_once = scores.masked_fill(later, -torch.inf).softmax(-1)
print(torch.allclose(at_once, shared))

# %% [markdown]
# regard's pattern `causal` has this meaning. It does not compute the masked half at all.

# %%
detail = rg.attention_detail(q, k, v, pattern="causal", want=["weights"])
print(torch.allclose(detail.weights, shared))

# %% [markdown]
# Does a masked word have any effect? To test this, the keys, values and queries of the last third of the words are
# replaced. The outputs of the words before them must not move.

# %%
replaced = max(1, n * 2 // 3)  # the first replaced word


def moved(pattern):
    """How far the output of each word moves, (words,)."""
    changed = [one.clone() for one in (q, k, v)]
    for one in changed:
        one[..., replaced:, :] = normal(SEED + 2, n - replaced, DIM)
    before, after = rg.attention(q, k, v, pattern=pattern), rg.attention(*changed, pattern=pattern)
    return (after - before)[0, 0].norm(dim=-1)


with_mask, without = moved("causal"), moved(None)

# %% tags=["folded"]
rows = [
    (word, "yes" if place >= replaced else "", f"{with_mask[place]:.3f}", f"{without[place]:.3f}")
    for place, word in enumerate(words)
]
table("How far each output moves when later words are replaced", ("word", "replaced", "causal", "no mask"), rows)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
sums = masked[0, 0].sum(-1)
holds("If weights are masked after the softmax, every row but the last sums to less than 1 until it is normalised "
      "again.", bool((sums[:-1] < 1 - 1e-3).all()),
      f"the first row sums to {sums[0]:.2f}, the last, in which nothing is masked, to {sums[-1]:.2f}")  # fmt: skip
holds("The three steps give the same weights as minus infinity before the softmax.", largest(shared - at_once) < EXACT,
      ROUNDING)  # fmt: skip
holds("Both are the weights of regard's pattern “causal”.", largest(shared - detail.weights) < EXACT, ROUNDING)
holds("Replacing later words changes no earlier output.", largest(with_mask[:replaced]) < EXACT,
      f"the first {replaced} words, {ROUNDING}")  # fmt: skip
earlier = without[:replaced]
holds("Without the mask, replacing later words changes every earlier output.", float(earlier.min()) > 1e-3,
      f"they move by {earlier.min():.3f} to {earlier.max():.3f}")  # fmt: skip

# %% [markdown]
# Source: Vaswani et al. 2017, section 3.2.3.
