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
from regard_lab.seeing.palette import FAINT
from regard_lab.teaching import (
    draw_curves,
    draw_map,
    embedded,
    figure,
    holds,
    normal,
    scale_beside,
    table,
    words_of,
)

DIM = 64  # numbers of a word
HEADS = 48  # heads whose results are averaged
SIZES = (2, 4, 8, 16, 32, 64, 128, 256)  # of a head
KINDS = {"unscaled": 1.0, "scaled": None}  # None is regard's default, 1 / sqrt(head_dim)

words = words_of(TEXT)
x = embedded(words, DIM, SEED)  # (1, words, DIM)

# for each kind a list: one number, or the weights of the last word, for each size of a head
spread = {"unscaled": [], "scaled": []}
entropy = {"unscaled": [], "scaled": []}
gradient = {"unscaled": [], "scaled": []}
last_word = {"unscaled": [], "scaled": []}

for kind, scale in KINDS.items():
    for head_dim in SIZES:
        # the numbers of queries and keys have variance 1
        W_q, W_k, W_v = normal(SEED + 1, 3, HEADS, DIM, head_dim) / math.sqrt(DIM)
        q = x[:, None] @ W_q  # (1, HEADS, words, head_dim)
        k = x[:, None] @ W_k
        v = x[:, None] @ W_v

        # a bias of zeros is added to the scores, so its gradient is that of the scores
        bias = torch.zeros(1, HEADS, len(words), len(words), dtype=x.dtype, requires_grad=True)
        detail = rg.attention_detail(q, k, v, scale=scale, bias=bias, want=["entropy", "weights"])
        from_above = normal(SEED + 2, *detail.output.shape) / math.sqrt(head_dim)
        loss = (detail.output * from_above).sum()
        (of_scores,) = torch.autograd.grad(loss, bias)

        factor = scale or head_dim**-0.5
        spread[kind].append(((q @ k.mT).std() * factor).item())
        entropy[kind].append(detail.entropy.detach().mean().item())
        gradient[kind].append(of_scores.abs().mean().item())
        last_word[kind].append(detail.weights[0, 0, -1].detach())  # in the first head, (words,)

# %% tags=["folded"]
caption = (
    "Above, each row holds the weights that the last word gives to every word in one head of that "
    "size. Without division the rows of large heads have one strong cell. Below, means over 48 heads."
)
with figure("Weights and gradients with and without division", 7.8, 5.8, caption) as drawing:
    panels = drawing.subplots(2, 2)
    (first, second), (left, right) = panels

    cell = 3.0 / len(words)
    sizes = [f"head_dim {size}" for size in SIZES]
    draw_map(first, torch.stack(last_word["unscaled"]), sizes, words, cell=cell)
    image = draw_map(second, torch.stack(last_word["scaled"]), (), words, cell=cell)
    first.set_xlabel("scores q · k", fontsize=9)
    second.set_xlabel("scores q · k / sqrt(head_dim)", fontsize=9)
    scale_beside(drawing, image, panels[0], "attention weight")

    entropy_labels = ("Entropy of the weights", "head_dim", "nats")
    draw_curves(left, SIZES, entropy, entropy_labels, log="x")
    of_equal_weights = math.log(len(words))
    note = f"equal weights for {len(words)} words"
    left.axhline(of_equal_weights, color=FAINT, linestyle="--", linewidth=1)
    left.text(SIZES[-1], 1.02 * of_equal_weights, note, fontsize=8.5, color=FAINT, ha="right")
    left.set_ylim(0, 1.15 * of_equal_weights)

    gradient_labels = ("Gradient that reaches a score", "head_dim", "mean size")
    draw_curves(right, SIZES, gradient, gradient_labels, log="x")
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
rows = []
for row, head_dim in enumerate(SIZES):
    numbers = [
        spread["unscaled"][row],
        spread["scaled"][row],
        entropy["unscaled"][row],
        entropy["scaled"][row],
        gradient["unscaled"][row],
        gradient["scaled"][row],
    ]
    rows.append((head_dim, *(f"{number:.3f}" for number in numbers)))
table("By size of a head", columns, rows)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
ratios = [std / math.sqrt(head_dim) for std, head_dim in zip(spread["unscaled"], SIZES)]
holds(
    "Unscaled scores spread with the square root of head_dim.",
    all(0.9 < ratio < 1.1 for ratio in ratios),
    f"spread / sqrt(head_dim) is {min(ratios):.2f} to {max(ratios):.2f}",
)
falling = entropy["unscaled"]
holds(
    "The entropy of unscaled weights falls with every doubling of head_dim.",
    all(later < earlier for earlier, later in pairwise(falling)),
    f"from {falling[0]:.2f} to {falling[-1]:.2f} nats",
)
fading = gradient["unscaled"]
holds(
    "The gradient that reaches unscaled scores falls to less than half of its largest value.",
    fading[-1] < max(fading) / 2,
    f"from {max(fading):.3f} to {fading[-1]:.3f}",
)
for name, measured in (("entropy", entropy["scaled"]), ("gradient", gradient["scaled"])):
    holds(
        f"With scaling, the {name} is about the same for every head_dim.",
        max(measured) - min(measured) < 0.2 * max(measured),
        f"{min(measured):.3f} to {max(measured):.3f}",
    )

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise


@exercise(
    "Queries and keys of 1,024 numbers are independent, with mean 0 and variance 1. How large is "
    "the spread (the standard deviation) of their unscaled scores?",
    NUMBER,
    hint="A score is the sum of 1,024 products, each of variance 1.",
    answer="32",
)
def spread_of_1024(spread):
    q, k = normal(SEED + 3, 2, 2000, 1024)
    measured = float((q * k).sum(-1).std())
    holds(
        "The scores spread by that much, within a tenth.",
        abs(spread / measured - 1) < 0.1,
        f"measured {measured:.1f} on 2,000 pairs, you say {spread:g}",
    )


@exercise(
    "What is the entropy of equal weights of 12 words, in nats?",
    NUMBER,
    hint="It is the natural logarithm of the number of words.",
    answer="2.485",
)
def entropy_of_equal_weights(nats):
    equal = torch.zeros(1, 1, 12, 4)  # (batch, heads, words, head_dim)
    measured = float(rg.attention_detail(equal, equal, equal, want=["entropy"]).entropy[0, 0, 0])
    holds("It is that large.", abs(nats - measured) < 0.01, f"{measured:.3f}, you say {nats:g}")


@exercise(
    "Change `q` so that `rg.attention(q, k, v, scale=1.0)` returns what `rg.attention(q, k, v)` "
    "returns for the old `q`.",
    CODE,
    hint="The default of `scale` is `1 / sqrt(head_dim)`.",
    answer="q / math.sqrt(q.shape[-1])",
)
def scaled_queries(changed):
    difference = rg.attention(changed, k, v, scale=1.0) - rg.attention(q, k, v)
    apart = float(difference.abs().max())
    holds("Both calls give the same outputs.", apart < 1e-4, f"at most {apart:.2g} apart")


# %% [markdown]
# Source: Vaswani et al. 2017, section 3.2.1, footnote 4.
