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
from regard.layers.caches import RecurrentState
from regard.mechanisms import EluPlusOne, LinearTransformer
from regard_lab.seeing.palette import INK, KEY, QUERY, VALUE
from regard_lab.teaching import (
    ROUNDING,
    draw_curves,
    embedded,
    figure,
    holds,
    largest,
    mark_column,
    milliseconds,
    normal,
    operations,
    table,
    words_of,
)

D = 64  # head_dim
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def phi(x):
    """The features of queries or keys."""
    return torch.nn.functional.elu(x) + 1


def with_ones(v):
    """The values with a column of ones, in which sums of weights are computed."""
    return torch.cat([v, torch.ones_like(v[..., :1])], -1)


def divided(sums):
    """Each row divided by the sum of its weights, which is in the last column."""
    return sums[..., :-1] / sums[..., -1:]


def left_order(q, k, v, causal=False):
    """(Q' K'ᵀ) V, divided."""
    weights = phi(q) @ phi(k).mT  # (..., n, n)
    if causal:
        weights = weights.tril()
    return divided(weights @ with_ones(v))


def right_order(q, k, v):
    """Q' (K'ᵀ V), divided."""
    return divided(phi(q) @ (phi(k).mT @ with_ones(v)))  # within the brackets (..., D, D + 1)


LEFT = "(Q' K'ᵀ) V"
RIGHT = "Q' (K'ᵀ V)"
ORDERS = {LEFT: left_order, RIGHT: right_order}
# floating-point operations of the matrix products, as PyTorch counts them while they run
counted = {LEFT: [], RIGHT: []}
for n in LENGTHS:
    q, k, v = torch.zeros(3, 1, 1, n, D)  # (batch, heads, length, head_dim) each
    for order, attend in ORDERS.items():
        counted[order].append(operations(partial(attend, q, k, v)))

# %% tags=["folded"]
N = 3.0  # how long n and d are drawn
SMALL = 0.7
GREY = "#555555"


def draw_product(axes, row, title, *matrices):
    """Matrices side by side, each as (letter, height, width, colour)."""
    left = 0.0
    for letter, height, width, colour in matrices:
        axes.bar(left, height, width, row - height / 2, color=colour, align="edge")
        place = left + width / 2
        ink = "white"
        if letter == "d × d":  # too narrow for its letters
            place = left + width + 0.9
            ink = INK
        axes.text(place, row, letter, ha="center", va="center", fontsize=9.5, color=ink)
        left += width + 0.3
    axes.text(0, row + 1.7, title, fontsize=9, color=INK)


caption = (
    "Left: what is computed first, n × n weights or one d × d matrix. Right: the operations; the "
    "curves meet where n is the size of a head."
)
with figure("The same product in two orders", 8.0, 3.9, caption) as drawing:
    left, right = drawing.subplots(1, 2, width_ratios=(1.15, 1))
    query = ("Q'", N, SMALL, QUERY)
    key = ("K'ᵀ", SMALL, N, KEY)
    value = ("V", N, SMALL, VALUE)
    title = f"{LEFT}: first a weight for each pair of words"
    draw_product(left, 5.0, title, query, key, ("n × n", N, N, GREY))
    title = f"{RIGHT}: first one small matrix for the whole text"
    draw_product(left, 0.0, title, key, value, ("d × d", SMALL, SMALL, GREY))
    left.set(xlim=(-0.1, 8.2), ylim=(-1.6, 7.2), aspect="equal")
    left.set_axis_off()
    left.set_anchor("W")

    labels = ("Operations of one head", "words n", "operations")
    draw_curves(right, LENGTHS, counted, labels, log="xy", columns=2)
    ticks = (16, 64, 256, 1024, 2048)
    right.set_xticks(ticks, [f"{n:,}" for n in ticks])
    mark_column(right, D, f"n = d = {D}")

# %% [markdown]
# A text has $n$ words. The rows of $Q$, $K$ and $V$ are their queries $q_i$, keys $k_j$ and values $v_j$, each of $d$
# numbers. Softmax attention, $\operatorname{softmax}(Q K^\top) V$, cannot be computed in another order, because the
# softmax needs the score of every pair. (The scale $1 / \sqrt{d}$ is left out here.) The output of word $i$ is the row
#
# $$
# z_i = \frac{\sum_j \exp(q_i k_j^\top) \, v_j}{\sum_j \exp(q_i k_j^\top)}
# $$
#
# **Linear attention** takes another weight, the product $φ(q_i) \, φ(k_j)^\top$. The features $φ(x)$ of a vector are as
# many numbers, all positive: here $φ(x) = \operatorname{elu}(x) + 1$, which is $x + 1$ for $x > 0$, else $\exp(x)$. Now
# $φ(q_i)$ can be taken out of the sums:
#
# $$
# z_i = \frac{\sum_j φ(q_i) \, φ(k_j)^\top \, v_j}{\sum_j φ(q_i) \, φ(k_j)^\top}
# = \frac{φ(q_i) \sum_j φ(k_j)^\top \, v_j}{φ(q_i) \sum_j φ(k_j)^\top}
# $$
#
# With $Q' = φ(Q)$ and $K' = φ(K)$ the numerators of all words are one product, in which either part may come first:
# $(Q' K'^\top) V = Q' (K'^\top V)$. The left side needs $n \times n$ weights, the right side one matrix of $d \times d$
# numbers for any length. A product of matrices of $a \times b$ and $b \times c$ numbers takes $2 a b c$ operations. So
# the two products on the left take $4 n^2 d$, those on the right $4 n d^2$, which is less for texts longer than $d$
# words.

# %%
# each (batch, heads, length, head_dim)
q, k, v = torch.randn(3, 1, 1, 1000, 64, dtype=torch.float64)
phi_q = EluPlusOne()(q)
phi_k = EluPlusOne()(k)
weights = phi_q @ phi_k.mT  # 1000 x 1000; LinearTransformer never computes this matrix
z = (weights @ v) / weights.sum(-1, keepdim=True)  # each row divided by the sum of its weights
print(torch.allclose(rg.attention(q, k, v, mechanism=LinearTransformer()), z))

# %% [markdown]
# In the causal form both sums over $j$ take only the word itself and the earlier words, so the next word adds one term
# to each. To continue a text, only these sums are kept, $d \times d$ and $d$ numbers, however long the text is:

# %%
state = RecurrentState(LinearTransformer(), 1, 1, 64)  # batch 1, 1 head, head_dim 64
for q, k, v in torch.randn(1000, 3, 1, 1, 1, 64):  # one word after another
    z = state.attend(q, k, v, pattern="causal")
print(state.nbytes)  # 64 x 64 and 64 numbers of 4 bytes

# %% [markdown]
# The result is not that of softmax attention, because $φ(q_i) \, φ(k_j)^\top$ is not $\exp(q_i k_j^\top)$. So this is
# another model, and it must be trained with this attention.
#
# ## Claims
#
# The counts below are slightly more than $4 n^2 d$ and $4 n d^2$: they are $2 n^2 (2 d + 1)$ and $4 n d (d + 1)$. One
# more column of ones in $V$ gives the sums by which the rows are divided.

# %% tags=["folded"]
TIMED = (64, 256, 1024)  # words

calls = {}
for n in TIMED:
    q, k, v = normal(SEED, 3, 1, 1, n, D).float()
    for order, attend in ORDERS.items():
        calls[order, n] = partial(attend, q, k, v)
times = milliseconds(calls)

rows = []
for n, left, right in zip(LENGTHS, counted[LEFT], counted[RIGHT]):
    rows.append((f"{n:,}", f"{left:,}", f"{right:,}", f"{left / right:.2f}"))
table(
    f"Operations of the matrix products, one head of {D}",
    ("words n", LEFT, RIGHT, "left / right"),
    rows,
)
rows = [(f"{n:,}", f"{times[LEFT, n]:.2f}", f"{times[RIGHT, n]:.2f}") for n in TIMED]
table(
    "CPU time on one thread, in milliseconds; measured here, yours will differ",
    ("words n", LEFT, RIGHT),
    rows,
)

# %% tags=["claims"]
words = words_of(TEXT)
x = embedded(words, D, SEED)[None]  # (batch, heads, words, D)
W_q, W_k, W_v = normal(SEED + 1, 3, D, D) / math.sqrt(D)
q = x @ W_q
k = x @ W_k
v = x @ W_v
z_left = left_order(q, k, v)
z_right = right_order(q, k, v)
z_regard = rg.attention(q, k, v, mechanism=LinearTransformer())
holds(
    "Both orders give the same result on the sentence.",
    largest(z_left - z_right) < 1e-12,
    ROUNDING,
)
holds(
    "regard's LinearTransformer() gives the same result too.",
    largest(z_right - z_regard) < 1e-12,
    ROUNDING,
)

left = counted[LEFT]
right = counted[RIGHT]
holds(
    "Twice as many words cost 4 times the operations in the left order, and 2 times in the right "
    "order.",
    all(twice == 4 * once for once, twice in pairwise(left))
    and all(twice == 2 * once for once, twice in pairwise(right)),
    f"{left[0]:,} and {right[0]:,} for 16 words, {left[-1]:,} and {right[-1]:,} for 2,048",
)

left_at_d = left[LENGTHS.index(D)]
right_at_d = right[LENGTHS.index(D)]
holds(
    "Both orders cost the same, within 1%, if the length is head_dim.",
    abs(left_at_d / right_at_d - 1) < 0.01,
    f"{left_at_d:,} and {right_at_d:,} operations for {D} words",
)

state = RecurrentState(LinearTransformer(), 1, 1, D, dtype=torch.float64)
z_words = []
for i in range(len(words)):
    q_i = q[:, :, i : i + 1]  # (batch, heads, 1, D) each
    k_i = k[:, :, i : i + 1]
    v_i = v[:, :, i : i + 1]
    z_words.append(state.attend(q_i, k_i, v_i, pattern="causal"))
z_causal = left_order(q, k, v, causal=True)
holds(
    "Decoding word by word from sums gives the same causal result.",
    largest(torch.cat(z_words, 2) - z_causal) < 1e-12,
    ROUNDING,
)

nbytes_sentence = state.nbytes
# the text goes on to 1,000 words
further = torch.ones(1, 1, 1000 - len(words), D, dtype=torch.float64)
state.attend(further, further, further, pattern="causal")
nbytes_1000_words = state.nbytes
holds(
    "These sums do not grow with the text.",
    nbytes_sentence == nbytes_1000_words,
    f"{nbytes_sentence:,} bytes in float64 after {len(words)} words and after 1,000",
)

z_softmax = rg.attention(q, k, v)
difference = float((z_regard - z_softmax).norm() / z_softmax.norm())
holds(
    "The result differs from softmax attention.",
    difference > 0.05,
    f"relative difference of the outputs {difference:.3f}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise


@exercise(
    "A head has 64 numbers. At which length do both orders take the same number of operations, within "
    "one percent?",
    NUMBER,
    hint="$4 n^2 d$ operations against $4 n d^2$.",
    answer="64",
)
def length_of_equal_cost(n):
    left = 2 * n * n * (2 * D + 1)
    right = 4 * n * D * (D + 1)
    holds(
        "Both orders cost the same.",
        n > 0 and abs(left - right) < 0.01 * right,
        f"{left:,.0f} and {right:,.0f} operations for {n:g} words",
    )


@exercise(
    "Compute linear attention without a mask for `q`, `k` and `v` (1, 1, n, 64), with `phi` but "
    "without an n × n matrix.",
    CODE,
    hint="First the sums over all words, of keys with their values and of keys alone.",
    answer="keys_and_values = phi(k).mT @ v\n"
    "keys = phi(k).sum(2)[..., None]\n"
    "(phi(q) @ keys_and_values) / (phi(q) @ keys)",
)
def linear_attention(z):
    expected = left_order(q, k, v)
    apart = largest(z - expected)
    holds("It is what the left order gives.", apart < 1e-9, f"at most {apart:.2g} apart")


# %% [markdown]
# Source: Katharopoulos et al. 2020, equations 4 to 7.
