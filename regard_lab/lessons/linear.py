# %% [markdown]
# # Linear attention
#
# **How can attention cost n instead of n²?**

# %% tags=["parameters"]
TEXT = "The animal did not cross the street because it was too tired."
SEED = 0

# %% tags=["folded"]
import math
from functools import partial
from itertools import pairwise

import torch

import regard as rg
from regard import patterns as p
from regard.layers.caches import RecurrentState
from regard.mechanisms import EluPlusOne, LinearTransformer
from regard_lab.seeing.canvas import INK, KEY, QUERY, VALUE
from regard_lab.teaching import (
    ROUNDING, draw_curves, embedded, figure, holds, largest, mark_column, milliseconds, normal, operations, table,
    words_of,
)  # fmt: skip

D = 64  # head_dim
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
ORDERS = {"left": "(Q' K'ᵀ) V", "right": "Q' (K'ᵀ V)"}


def multiplied(q, k, v, order, causal=False):
    """φ(Q) φ(K)ᵀ V in one of two orders, each row divided by its sum of weights."""
    q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # the column of ones gives the sum of weights
    if order == "left":
        weights = q @ k.mT  # (..., length, length)
        joined = (weights.where(p.Causal().dense(*weights.shape[-2:]), 0.0) if causal else weights) @ v
    else:
        joined = q @ (k.mT @ v)  # (..., dim, dim + 1) within the brackets
    return joined[..., :-1] / joined[..., -1:]


counted = {  # floating-point operations of the matrix products, as PyTorch counts them while they run
    order: [operations(partial(multiplied, *torch.zeros(3, 1, 1, length, D), order)) for length in LENGTHS]
    for order in ORDERS
}
N, SMALL, GREY = 3.0, 0.7, "#555555"  # how n and d are drawn


def draw_product(axes, row, title, *shapes):
    """Matrices side by side, each as (letter, height, width, colour)."""
    left = 0.0
    for letter, height, width, colour in shapes:
        axes.bar(left, height, width, row - height / 2, color=colour, align="edge")
        narrow = colour == GREY and width == SMALL
        place, ink = (left + width + 0.9, INK) if narrow else (left + width / 2, "white")
        axes.text(place, row, letter, ha="center", va="center", fontsize=9.5, color=ink)
        left += width + 0.3
    axes.text(0, row + 1.7, title, fontsize=9, color=INK)


with figure("The same product in two orders", 8.0, 3.9,
            "Left: what is computed first, n × n weights or one d × d matrix. Right: the operations; the curves meet "
            "where n is the size of a head.") as drawing:  # fmt: skip
    left, right = drawing.subplots(1, 2, width_ratios=(1.15, 1))
    query, key, value = ("Q'", N, SMALL, QUERY), ("K'ᵀ", SMALL, N, KEY), ("V", N, SMALL, VALUE)
    title = "(Q' K'ᵀ) V: first a weight for each pair of words"
    draw_product(left, 5.0, title, query, key, ("n × n", N, N, GREY))
    title = "Q' (K'ᵀ V): first one small matrix for the whole text"
    draw_product(left, 0.0, title, key, value, ("d × d", SMALL, SMALL, GREY))
    left.set(xlim=(-0.1, 8.2), ylim=(-1.6, 7.2), aspect="equal")
    left.set_axis_off()
    left.set_anchor("W")
    curves = {label: counted[order] for order, label in ORDERS.items()}
    draw_curves(right, LENGTHS, curves, ("Operations of one head", "words n", "operations"), log="xy", columns=2)
    right.set_xticks(LENGTHS[::2] + LENGTHS[-1:], [f"{n:,}" for n in LENGTHS[::2] + LENGTHS[-1:]])
    mark_column(right, D, f"n = d = {D}")

# %% [markdown]
# Softmax attention, $\operatorname{softmax}(Q K^\top) V$, cannot be computed in another order, because the softmax
# needs the score of every pair. **Linear attention** takes a product of features as the weight, $φ(q) \cdot φ(k)$:
#
# $$
# z_i = \frac{φ(q_i) \sum_j φ(k_j) \, v_j^\top}{φ(q_i) \sum_j φ(k_j)}
# \qquad \text{instead of} \qquad z_i = \frac{\sum_j \exp(q_i \cdot k_j) \, v_j}{\sum_j \exp(q_i \cdot k_j)}
# $$
#
# With $Q' = φ(Q)$ and $K' = φ(K)$, either product may come first: $(Q' K'^\top) V = Q' (K'^\top V)$. The left side
# needs $n \times n$ weights, the right side one matrix of $d \times d$ numbers for any length. So $4 n^2 d$ operations
# become $4 n d^2$, which is less for texts longer than $d$ words.

# %%
q, k, v = torch.randn(3, 1, 1, 1000, 64, dtype=torch.float64)  # (batch, heads, length, head_dim) each
phi_q, phi_k = EluPlusOne()(q), EluPlusOne()(k)
weights = phi_q @ phi_k.mT  # 1000 x 1000; LinearTransformer never computes this matrix
pairs = (weights @ v) / weights.sum(-1, keepdim=True)
print(torch.allclose(rg.attention(q, k, v, mechanism=LinearTransformer()), pairs))

# %% [markdown]
# In the causal form, $K'^\top V$ and the divisor are sums over the word itself and the earlier words. To continue a
# text, only these sums are kept, however long the text is:

# %%
state = RecurrentState(LinearTransformer(), 1, 1, 64)  # batch 1, 1 head, head_dim 64
for word in torch.randn(1000, 3, 1, 1, 1, 64):  # q, k and v of one word after another
    state.attend(*word, pattern="causal")
print(state.nbytes)

# %% [markdown]
# The result is not that of softmax attention. $φ(x) = \operatorname{elu}(x) + 1$ is not the exponential, so this is
# another model, and it must be trained with this attention.
#
# ## Claims
#
# The counts below are slightly more than $4 n^2 d$ and $4 n d^2$: they are $2 n^2 (2 d + 1)$ and $4 n d (d + 1)$. One
# more column gives the sums by which the rows are divided.

# %% tags=["folded"]
TIMED, calls = (64, 256, 1024), {}
for length in TIMED:
    operands = normal(SEED, 3, 1, 1, length, D).float()
    calls |= {(order, length): partial(multiplied, *operands, order) for order in ORDERS}
times = milliseconds(calls)
table(
    f"Operations of the matrix products, one head of {D}", ("words n", *ORDERS.values(), "left / right"),
    [(f"{n:,}", f"{one:,}", f"{two:,}", f"{one / two:.2f}") for n, one, two in zip(LENGTHS, *counted.values())],
)  # fmt: skip
table("CPU time on one thread, in milliseconds; measured here, yours will differ", ("words n", *ORDERS.values()),
      [(f"{n:,}", *(f"{times[order, n]:.2f}" for order in ORDERS)) for n in TIMED])  # fmt: skip

# %% tags=["claims"]
words = words_of(TEXT)
q, k, v = (embedded(words, D, SEED)[None] @ matrix for matrix in normal(SEED + 1, 3, D, D) / math.sqrt(D))
by_pairs, by_sums = multiplied(q, k, v, "left"), multiplied(q, k, v, "right")
ours, softmax = rg.attention(q, k, v, mechanism=LinearTransformer()), rg.attention(q, k, v)
state = RecurrentState(LinearTransformer(), 1, 1, D, dtype=torch.float64)
steps = zip(*(x.split(1, dim=2) for x in (q, k, v)))
continued = torch.cat([state.attend(*one, pattern="causal") for one in steps], 2)
few = state.nbytes
state.attend(*torch.ones(3, 1, 1, 1000 - len(words), D, dtype=torch.float64), pattern="causal")
many, off = state.nbytes, float((ours - softmax).norm() / softmax.norm())
left, right = counted.values()
at = LENGTHS.index(D)
holds("Both orders give the same result on the sentence.", largest(by_pairs - by_sums) < 1e-12, ROUNDING)
holds("regard's LinearTransformer() gives the same result too.", largest(by_sums - ours) < 1e-12, ROUNDING)
holds("Twice as many words cost 4 times the operations in the left order, and 2 times in the right order.",
      all(y == 4 * x for x, y in pairwise(left)) and all(y == 2 * x for x, y in pairwise(right)),
      f"{left[0]:,} and {right[0]:,} for 16 words, {left[-1]:,} and {right[-1]:,} for 2,048")  # fmt: skip
holds("Both orders cost the same, within 1%, if the length is head_dim.", abs(left[at] / right[at] - 1) < 0.01,
      f"{left[at]:,} and {right[at]:,} operations for {D} words")  # fmt: skip
holds("Decoding word by word from sums gives the same causal result.",
      largest(continued - multiplied(q, k, v, "left", causal=True)) < 1e-12, ROUNDING)  # fmt: skip
holds("These sums do not grow with the text.", few == many,
      f"{few:,} bytes in float64 after {len(words)} words and after 1,000")  # fmt: skip
holds("The result differs from softmax attention.", off > 0.05, f"relative difference of the outputs {off:.3f}")

# %% [markdown]
# Source: Katharopoulos et al. 2020, equations 4 to 7.
