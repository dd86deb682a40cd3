# %% [markdown]
# # Why scores are scaled
#
# **Why are scores divided by the square root of the size of a head?**

# %% tags=["parameters"]
TEXT = "The animal did not cross the street because it was too tired."
SEED = 0

# %% tags=["folded"]
import math
from itertools import pairwise

import torch

import regard as rg
from regard_lab.seeing.canvas import FAINT
from regard_lab.teaching import (
    draw_curves, draw_map, embedded, figure, holds, normal, scale_beside, table, words_of
)  # fmt: skip

DIM, HEADS = 64, 48  # numbers of a word; heads whose results are averaged
SIZES = tuple(2**power for power in range(1, 9))  # of a head
KINDS = {"unscaled": 1.0, "scaled": None}  # the scale of each call; None is regard's default, 1 / sqrt(head_dim)

words = words_of(TEXT)
x = embedded(words, DIM, SEED)


def measured(head_dim, scale):
    """Spread of the scores, entropy, mean absolute gradient of a score, and the weights of the last word in a head."""
    projections = normal(SEED + 1, 3, HEADS, DIM, head_dim) / math.sqrt(DIM)
    q, k, v = (x[:, None] @ projections[:, None]).unbind(0)  # (1, heads, words, head_dim), of variance 1
    added = torch.zeros(1, HEADS, len(words), len(words), dtype=x.dtype, requires_grad=True)  # to the scores
    detail = rg.attention_detail(q, k, v, scale=scale, bias=added, want=["entropy", "weights"])
    arriving = normal(SEED + 2, *detail.output.shape) / math.sqrt(head_dim)  # a gradient from the layers above
    (gradient,) = torch.autograd.grad((detail.output * arriving).sum(), added)
    spread = (q @ k.mT).std() * (scale or head_dim**-0.5)
    numbers = [one.detach().mean().item() for one in (spread, detail.entropy, gradient.abs())]
    return *numbers, detail.weights[0, 0, -1].detach()


spread, entropy, gradient, weights = (
    dict(zip(KINDS, column))
    for column in zip(*(zip(*(measured(size, scale) for size in SIZES)) for scale in KINDS.values()))
)
most = math.log(len(words))  # entropy of equal weights

with figure("Weights and gradients with and without division", 7.8, 5.8,
            "Above, each row holds the weights that the last word gives to every word in one head of that size. "
            "Without division the rows of large heads have one strong cell. "
            "Below, means over 48 heads.") as drawing:  # fmt: skip
    (first, second), (left, right) = panels = drawing.subplots(2, 2)
    for axes, kind in ((first, "unscaled"), (second, "scaled")):
        rows = [f"head_dim {size}" for size in SIZES] if axes is first else ()
        image = draw_map(axes, torch.stack(weights[kind]), rows, words, cell=3.0 / len(words))
        axes.set_xlabel({"unscaled": "scores q · k", "scaled": "scores q · k / sqrt(head_dim)"}[kind], fontsize=9)
    scale_beside(drawing, image, panels[0], "attention weight")
    draw_curves(left, SIZES, entropy, ("Entropy of the weights", "head_dim", "nats"), log="x")
    draw_curves(right, SIZES, gradient, ("Gradient that reaches a score", "head_dim", "mean size"), log="x")
    left.axhline(most, color=FAINT, linestyle="--", linewidth=1)
    left.text(SIZES[-1], 1.02 * most, f"equal weights for {len(words)} words", fontsize=8.5, color=FAINT, ha="right")
    left.set_ylim(0, 1.15 * most)
    right.set_ylim(bottom=0)

# %% [markdown]
# A score is a dot product: a sum of $d$ products, where $d$ is the size of a head (`head_dim`). If the numbers of
# queries and keys are independent and have mean 0 and variance 1, each product has variance 1 and their sum has
# variance $d$:
#
# $$
# \operatorname{Var}(q \cdot k) = d \qquad \operatorname{Var}(q \cdot k / \sqrt{d}) = 1
# $$
#
# So the size of scores grows with $\sqrt{d}$. Softmax turns large scores into one weight near 1 and many near 0. It
# then hardly reacts to a change of the scores, so little gradient reaches them, and training is slow. Scores divided
# by $\sqrt{d}$ have variance 1 for every $d$.
#
# The **entropy** says how evenly weights are spread. It is 0 if one word has all the weight, and $\ln n$ for equal
# weights of $n$ words. Its unit is the nat.

# %%
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 64, 12, 512).unbind(0)  # (batch, heads, words, head_dim)
for scale in (1.0, None):  # None is the default, 1 / sqrt(head_dim)
    entropies = rg.attention_detail(q, k, v, scale=scale, want=["entropy"]).entropy
    print(f"scale {scale}: mean entropy {entropies.mean():.1f} nats")

# %% [markdown]
# Here each word of the sentence is a random vector. 48 heads of each size project it to queries, keys and values, and
# attend twice: without division and with it.

# %% tags=["folded"]
columns = ("head_dim", "spread of scores", "scaled", "entropy", "scaled", "gradient", "scaled")
measures = [measure[kind] for measure in (spread, entropy, gradient) for kind in KINDS]
table("By size of a head", columns, [(size, *(f"{one:.3f}" for one in row)) for size, *row in zip(SIZES, *measures)])

# %% [markdown]
# ## Claims

# %% tags=["claims"]
ratios = [one / math.sqrt(size) for one, size in zip(spread["unscaled"], SIZES)]
falling, fading = entropy["unscaled"], gradient["unscaled"]
holds("Unscaled scores spread with the square root of head_dim.", all(0.9 < ratio < 1.1 for ratio in ratios),
      f"spread / sqrt(head_dim) is {min(ratios):.2f} to {max(ratios):.2f}")  # fmt: skip
holds("The entropy of unscaled weights falls with every doubling of head_dim.",
      all(later < earlier for earlier, later in pairwise(falling)),
      f"from {falling[0]:.2f} to {falling[-1]:.2f} nats")  # fmt: skip
holds("The gradient that reaches unscaled scores falls to less than half of its largest value.",
      fading[-1] < max(fading) / 2, f"from {max(fading):.3f} to {fading[-1]:.3f}")  # fmt: skip
for name, measure in (("entropy", entropy["scaled"]), ("gradient", gradient["scaled"])):
    holds(f"With scaling, the {name} is about the same for every head_dim.",
          max(measure) - min(measure) < 0.2 * max(measure), f"{min(measure):.3f} to {max(measure):.3f}")  # fmt: skip

# %% [markdown]
# Source: Vaswani et al. 2017, section 3.2.1, footnote 4.
