# %% [markdown]
# # One sentence, step by step
#
# **How do words become queries, keys, values, weights and a context vector?**

# %% tags=["folded"]
import math
from dataclasses import replace

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

import regard as rg
from regard_lab.models import TranslationTransformer
from regard_lab.seeing.architecture import architecture_of
from regard_lab.seeing.canvas import colours
from regard_lab.seeing.palette import KEY, QUERY, SCALE, VALUE
from regard_lab.teaching import (
    ROUNDING,
    figure,
    holds,
    model_drawing,
    read_report,
    relating,
    scale_beside,
)

words = ["Life", "is", "short", "eat", "dessert", "first"]
ids = torch.tensor([sorted(words).index(word) for word in words])

torch.manual_seed(123)
x = torch.nn.Embedding(6, 16)(ids).detach()  # (words, 16)
torch.manual_seed(123)
W_q = torch.rand(24, 16)
W_k = torch.rand(24, 16)
W_v = torch.rand(28, 16)

q = x @ W_q.T  # (words, 24)
k = x @ W_k.T  # (words, 24)
v = x @ W_v.T  # (words, 28)
omega = k @ q[1]  # scores of the second word, "is", with every word, (words,)
alpha = (omega / math.sqrt(24)).softmax(-1)  # its weights, (words,)
z = alpha @ v  # its context vector, (28,)


# %% tags=["folded"]
def tinted(colour):
    return LinearSegmentedColormap.from_list("tint", ["white", colour])


def draw_numbers(axes, title, values, colour):
    """The vectors of all words as rows of cells, the stronger the larger a number is without its sign."""
    axes.imshow(values.abs().numpy(), cmap=tinted(colour), aspect="auto")
    axes.set_title(
        f"{title}: {values.shape[1]} numbers", color=colour, fontsize=10, fontweight="bold"
    )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#cccccc")


def draw_number_per_word(axes, title, numbers, title_colour, bar_colours):
    """A bar for each word, with its number."""
    axes.barh(range(6), numbers.tolist(), color=bar_colours)
    axes.set_title(title, fontsize=10, color=title_colour, fontweight="bold")
    for row, number in enumerate(numbers.tolist()):
        axes.text(max(number, 0), row, f" {number:.2f}", va="center", fontsize=9)

    lowest = min(0, float(numbers.min()))
    highest = 1.3 * float(numbers.max())
    axes.set_yticks(range(6), words, fontsize=9.5)
    axes.set(xticks=[], ylim=(5.6, -0.6), xlim=(lowest, highest))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


caption = (
    "Above: each word as numbers, then as a query, a key and a value. Below: the query of “is” is "
    "multiplied with every key, the scores become weights, and the weighted values are added up to "
    "the context vector. Cells show numbers without their signs: white is 0."
)
title = "“Life is short, eat dessert first”: the second word reads the sentence"
with figure(title, 8, 5.6, caption) as drawing:
    above, below = drawing.subfigures(2, 1, height_ratios=[1.25, 1])

    panels = above.subplots(1, 4, width_ratios=[16, 24, 24, 28])
    draw_numbers(panels[0], "x", x, "#444444")
    draw_numbers(panels[1], "query q", q, QUERY)
    draw_numbers(panels[2], "key k", k, KEY)
    draw_numbers(panels[3], "value v", v, VALUE)
    panels[0].set_yticks(range(6), words, fontsize=9.5)
    panels[0].tick_params(length=0)
    second_query = Rectangle((-0.5, 0.5), 24, 1, fill=False, edgecolor=QUERY, linewidth=2)
    panels[1].add_patch(second_query)

    left, middle, right = below.subplots(1, 3, width_ratios=[1, 1, 1.15])
    draw_number_per_word(left, "scores of “is”: q · k", omega, KEY, KEY)
    blues = [colours()(0.25 + 0.75 * float(weight) / 0.5) for weight in alpha]
    draw_number_per_word(middle, "weights: softmax, sum 1", alpha, SCALE[-1], blues)

    weighted_values = (alpha[:, None] * v).abs().numpy()  # (words, 28)
    their_sum = z[None].abs().numpy()  # (1, 28)
    violet = tinted(VALUE)
    right.imshow(weighted_values, cmap=violet, aspect="auto", extent=(0, 28, 6, 0))
    right.imshow(their_sum, cmap=violet, aspect="auto", extent=(0, 28, 7.6, 6.6))
    right.set_title("weight · v, and their sum", fontsize=10, color=VALUE, fontweight="bold")
    right.set(xticks=[], ylim=(7.6, 0), yticks=[7.1], yticklabels=["sum"])
    right.tick_params(length=0, labelsize=9.5)
    right.spines[:].set_visible(False)

# %% [markdown]
# Each word is a vector of numbers, its embedding $x$. Three matrices make three vectors of it. The **query** of a word
# is compared with the **keys** of all words. The **values** are added up, each multiplied by its weight.
#
# $$
# q_i = W_q \, x_i \qquad k_j = W_k \, x_j \qquad v_j = W_v \, x_j
# $$

# %%
words = ["Life", "is", "short", "eat", "dessert", "first"]
ids = torch.tensor([sorted(words).index(word) for word in words])  # places in the vocabulary
print(ids.tolist())

torch.manual_seed(123)
x = torch.nn.Embedding(6, 16)(ids).detach()  # (6 words, 16 numbers)
torch.manual_seed(123)
W_q = torch.rand(24, 16)
W_k = torch.rand(24, 16)
W_v = torch.rand(28, 16)

q = x @ W_q.T  # (6, 24)
k = x @ W_k.T  # (6, 24)
v = x @ W_v.T  # (6, 28)
print(q.shape, k.shape, v.shape)

# %% [markdown]
# The second word, *is*, compares its query with every key. The score is a dot product: it is large if both vectors
# point in the same direction.
#
# $$
# ω_{2 j} = q_2 \cdot k_j
# $$

# %%
omega = k @ q[1]
print(omega)

# %% [markdown]
# The scores are divided by $\sqrt{d}$, here $\sqrt{24}$ ([why](scale.md)), and the softmax turns them into weights:
# none is negative, and their sum is 1. The weight of *dessert* for *is* is about one half.
#
# $$
# α_{2 j} = \frac{\exp(ω_{2 j} / \sqrt{d})}{\sum_l \exp(ω_{2 l} / \sqrt{d})}
# $$

# %%
alpha = (omega / math.sqrt(24)).softmax(-1)
print(alpha)

# %% [markdown]
# The context vector of *is* is the sum of all values, each multiplied by its weight.
#
# $$
# z_2 = \sum_j α_{2 j} \, v_j
# $$

# %%
z = alpha @ v
print(z.shape, z[:2])

# %% [markdown]
# Nothing is trained here, so the weights mean nothing yet. Training changes the three matrices until the weights are
# useful. After a training on real English text, the query of *it* fits the key of *animal*:

# %% tags=["folded"]
it = read_report("english").figures["it"]
layer, number = it["chosen"]
caption = (
    f"The weights of “it” in one head (layer {layer}, head {number}, counted from 0) of all-MiniLM-L6-v2. “animal” has "
    "the largest weight of all words if the sentence ends in “tired”, and much less if it ends in “wide”. [CLS] and "
    "[SEP] mark the ends of the text."
)
with figure(
    "“The animal didn't cross the street because it was too …”", 8, 2.1, caption
) as drawing:
    axes = drawing.subplots()
    image = relating.draw_english_it(axes, it)
    scale_beside(drawing, image, [axes], "weight")

# %% [markdown]
# [Heads and relations](relations.md) measures this on many sentences. [The animal and the street](referent.md) shows a
# translator that resolves *it*.
#
# For all six words at once, the scores are one product of matrices, and the context vectors are another. One call
# computes them:

# %%
contexts = rg.attention(q[None, None], k[None, None], v[None, None])[0, 0]
print(contexts.shape, contexts[1, :2])

# %% [markdown]
# ## Where attention stands in a Transformer
#
# The first Transformer translates. Its encoder reads a sentence, its decoder writes the translation. In both, queries,
# keys and values come from the same words. In the cross-attention of the decoder only the queries are its own. A sum ⊕
# adds what a part returns to what it has read.

# %% tags=["folded"]
base = TranslationTransformer.Config(
    vocab_size=37_000,
    dim=512,
    heads=8,
    encoder_layers=6,
    decoder_layers=6,
    norm="post",
)
caption = (
    "The base model of Vaswani et al. 2017. A norm follows each sum; most later models have it "
    "before each part. The name of a box leads to its lesson, and the name below it to its class."
)
model_drawing(replace(architecture_of(base), title="The Transformer of 2017"), caption)

# %% [markdown]
# `regard show FOLDER` draws a model of yours, trained by regard or of Hugging Face, in the same way.
#
# ## Claims
#
# Articles print numbers of this example. They are the numbers above.

# %% tags=["folded"]
printed_scores = torch.tensor([8.5808, -7.6597, 3.2558, 1.0395, 11.1466, -0.4800])
printed_weights = torch.tensor([0.2912, 0.0106, 0.0982, 0.0625, 0.4917, 0.0458])
printed_context = torch.tensor([-1.5993, 0.0156])  # its first two numbers

word_by_word = [(k @ query / math.sqrt(24)).softmax(-1) @ v for query in q]

# five words of 64 numbers, as rows and as columns
vectors = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Q, K, V = vectors.mT  # (64, words) each: words are columns, as some articles write them
by_columns = V @ ((K.T @ Q) / math.sqrt(64)).softmax(0)
q_rows, k_rows, v_rows = vectors[:, None, None]  # (batch, heads, words, 64) each
by_rows = rg.attention(q_rows, k_rows, v_rows)[0, 0]


def distance(numbers, expected):
    return float((numbers - expected).abs().max())


def listed(numbers):
    return ", ".join(f"{number:.4f}" for number in numbers.tolist())


# %% tags=["claims"]
holds(
    "The ids of the words are those that articles print.",
    ids.tolist() == [0, 4, 5, 2, 1, 3],
    f"{ids.tolist()}",
)
holds(
    "The scores of the second word are those that articles print.",
    distance(omega, printed_scores) < 1e-4,
    listed(omega),
)
holds(
    "The weights of the second word are those that articles print.",
    distance(alpha, printed_weights) < 1e-4,
    listed(alpha),
)
holds(
    "The context vector of the second word is the one that articles print.",
    distance(z[:2], printed_context) < 1e-4,
    f"{len(z)} numbers, the first {listed(z[:2])}",
)
holds(
    "One call of rg.attention gives the context vectors of all six words.",
    distance(contexts, torch.stack(word_by_word)) < 1e-5,
    f"6 of 6 words, {ROUNDING}",
)
holds(
    "With words as columns, the formula V softmax(KᵀQ / sqrt(d)) is the same.",
    distance(by_columns.T, by_rows) < 1e-12,
    f"5 words of 64 numbers, {ROUNDING}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise


@exercise(
    "`W_q` and `W_k` have 24 rows, `W_v` has 28. How many numbers does the context vector have?",
    NUMBER,
    hint="The context vector is a sum of values.",
    answer="28",
)
def numbers_of_a_context(count):
    holds("It has that many numbers.", count == len(z), f"z has {len(z)}, you say {count:g}")


@exercise(
    "Compute the weights of the first word, *Life*, from `q` and `k`: six numbers.",
    CODE,
    hint="The lesson does it for the second word, whose query is `q[1]`.",
    answer="(k @ q[0] / math.sqrt(24)).softmax(-1)",
)
def weights_of_life(weights):
    detail = rg.attention_detail(q[None, None], k[None, None], v[None, None], want=["weights"])
    expected = detail.weights[0, 0, 0]
    holds(
        "These are the weights of “Life”.",
        weights.shape == expected.shape and distance(weights, expected) < 1e-5,
        f"{listed(expected)}; yours: {listed(weights)}",
    )


# %% [markdown]
# `regard walkthrough "your sentence"` prints every step with its numbers for any sentence;
# [the guide](../walkthrough.md) lists its options. Source: Vaswani et al. 2017, section 3.2.1.
