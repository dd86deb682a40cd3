# %% [markdown]
# # One head or many
#
# **What can several narrow heads do that one wide head cannot?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import math

import torch

import regard as rg
from regard_lab.seeing.palette import KEY, QUERY
from regard_lab.teaching import (
    ROUNDING,
    Estimate,
    draw_curves,
    draw_reading,
    every,
    figure,
    holds,
    largest,
    normal,
    read_report,
    table,
)

WORDS = ("The", "cat", "sat", "on", "the", "mat")
CAT = 1  # positions of words
SAT = 2
MAT = 5
# what "sat" reads in each head of a layer with one head, and of a layer with two
READ_BY_HEADS = {1: [(CAT, MAT)], 2: [(CAT,), (MAT,)]}
CONTENT = 8  # numbers of a word that are its content; the first three are its colour
POSITION = 8  # numbers of a word that are its position
DIM = CONTENT + POSITION
# A query has this number for each word to be read. Its score is then larger than those of other
# words by at least 400 / sqrt(DIM) = 100, so they get a weight of 0.
SHARP = 400.0
EXACT = 1e-12  # results in float64 that differ by less are equal except for rounding

colours = torch.full((len(WORDS), 3), 0.85, dtype=torch.float64)  # grey
colours[CAT] = torch.tensor([0.90, 0.62, 0.0])  # orange
colours[MAT] = torch.tensor([0.0, 0.45, 0.70])  # blue
other_content = normal(SEED, len(WORDS), CONTENT - 3)
positions = torch.eye(len(WORDS), POSITION)
words = torch.cat([colours, other_content, positions], -1)[None]  # (1, words, DIM)


def reading_layer(heads):
    """A layer in which "sat" reads "cat" and "mat": with one head both, with two heads one each."""
    head_dim = DIM // heads
    # as torch.nn.Linear stores them: a row for each result, a column for each number of a word
    W_q = torch.zeros(heads, head_dim, DIM, dtype=torch.float64)
    W_k = torch.zeros(heads, head_dim, DIM, dtype=torch.float64)
    W_v = torch.zeros(heads, head_dim, DIM, dtype=torch.float64)
    for head, places in enumerate(READ_BY_HEADS[heads]):
        # the query of "sat" is the position of the word to be read
        W_q[head, places, CONTENT + SAT] = SHARP
        # a key is the position of its word, a value is the content of its word
        W_k[head, :POSITION, CONTENT:] = torch.eye(POSITION)
        W_v[head, :CONTENT, :CONTENT] = torch.eye(CONTENT)

    layer = rg.MultiHeadAttention(DIM, heads, projection_bias=False).double()
    layer.to_q.weight.data = W_q.flatten(0, 1)
    layer.to_k.weight.data = W_k.flatten(0, 1)
    layer.to_v.weight.data = W_v.flatten(0, 1)
    # W_o leaves the outputs of the heads as they are, side by side
    layer.to_output.weight.data = torch.eye(DIM, dtype=torch.float64)
    return layer


def read_by_sat(layer, words):
    """The weights of "sat", (heads, words), and its output, (DIM,)."""
    # a recording lists the calls of each part by its name; the layer itself has the name ""
    with rg.record_attention(layer) as recording, torch.no_grad():
        output = layer(words)
    return recording[""][0].weights[0, :, SAT], output[0, SAT]


one_head = reading_layer(1)
two_heads = reading_layer(2)
weights_of_one, mean = read_by_sat(one_head, words)
weights_of_two, side_by_side = read_by_sat(two_heads, words)

# A head of one number: 201 queries look at three keys, 51 times; scale=1.0: a score is q · k.
# Only weights are needed, so the keys are the values too.
queries = torch.linspace(-25, 25, 201, dtype=torch.float64)
keys_of_figure = torch.tensor([[-1.0, 0.1, 1.0]], dtype=torch.float64)
random_keys = normal(SEED, 50, 3).sort(-1).values  # the middle key is the second
q = queries.expand(51, 1, -1)[..., None]  # (51, 1, 201, 1)
k = torch.cat([keys_of_figure, random_keys])[:, None, :, None]  # (51, 1, 3, 1)
of_three = rg.attention_detail(q, k, k, scale=1.0, want=["weights"]).weights[:, 0]  # (51, 201, 3)

# A head of two numbers: six keys on a circle, and for each a query in its direction, 25 times as
# long, so that the softmax gives almost all weight to the largest score.
angles = torch.arange(6, dtype=torch.float64) * math.tau / 6
circle = torch.stack([angles.cos(), angles.sin()], -1)[None, None]  # (1, 1, 6, 2)
detail = rg.attention_detail(25 * circle, circle, circle, scale=1.0, want=["weights"])
of_six = detail.weights[0, 0].diagonal()  # of each query for its own key, (6,)

# %% tags=["folded"]
caption = (
    "Above: one head returns a mixture of orange and blue, two heads return both. Below: a head of "
    "one number never chooses the middle key, a head of two numbers can choose each key."
)
title = "One head mixes two words, two heads keep them apart"
with figure(title, 7.8, 6.2, caption) as drawing:
    (upper_left, upper_right), (lower_left, lower_right) = drawing.subplots(2, 2)

    mixed = mean[None, :3]
    draw_reading(upper_left, "One head of 16", WORDS, colours, SAT, weights_of_one, mixed)
    apart = side_by_side.view(2, -1)[:, :3]
    of_two = "Two heads of 8, as many parameters"
    draw_reading(upper_right, of_two, WORDS, colours, SAT, weights_of_two, apart)

    near = slice(80, 121, 4)  # queries from -5 to 5
    lowest, middle, highest = of_three[0, near].T.tolist()
    curves = {"lowest key": lowest, "middle key": middle, "highest key": highest}
    labels = ("A head of one number", "query", "weight")
    draw_curves(lower_left, queries[near].tolist(), curves, labels, columns=3)

    x, y = circle[0, 0].T.tolist()
    arrows = {"angles": "xy", "scale_units": "xy", "scale": 1.4, "width": 0.008}
    lower_right.quiver([0] * 6, [0] * 6, x, y, color=QUERY, **arrows)
    lower_right.plot(x, y, "o", color=KEY, markersize=7)
    centred = {"ha": "center", "fontsize": 9}
    for right, up, weight in zip(x, y, of_six.tolist()):
        lower_right.text(1.35 * right, 1.25 * up, f"{weight:.2f}", va="center", **centred)
    lower_right.text(0, -1.7, "queries (arrows), keys (dots), weight of each", **centred)
    lower_right.set_title("A head of two numbers", fontsize=10)
    lower_right.set(xlim=(-2.2, 2.2), ylim=(-1.75, 1.45), aspect="equal")
    lower_right.set_axis_off()

# %% [markdown]
# In a layer each word is a vector of $d$ numbers. From this vector each of the $H$ heads makes a query, a key and a
# value of $d / H$ numbers. Those of all words are the rows of $q_h$, $k_h$ and $v_h$ for head $h$. The outputs $z_h$ of
# the heads stand side by side, and one more matrix, $W_o$, turns them into the output of the layer:
#
# $$
# \operatorname{concat}(z_1, \ldots, z_H) \, W_o
# \qquad z_h = \operatorname{softmax}\left(\frac{q_h k_h^\top}{\sqrt{d / H}}\right) v_h
# $$
#
# All heads together cost as much as one head of $d$ numbers, in parameters and in the operations of matrix products:
# there are $H$ times as many matrices, each with $d / H$ columns instead of $d$.
#
# One article says that a single head sees one position. It sees all positions, but returns one weighted mean of their
# values, and the words in this mean cannot be separated again. Exchange the values of two words that have equal
# weights, and nothing changes:

# %%
# each (batch, heads, words, head_dim)
q = torch.tensor([[[[1.0, 1.0]]]])  # one head, whose query fits both words equally
k = 50 * torch.eye(2)[None, None]  # the keys of two words; two heads will need their length, 50
v = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])  # their values
exchanged = v.flip(2)  # axis 2 holds the words
print(rg.attention(q, k, v).flatten(), rg.attention(q, k, exchanged).flatten())

# %% [markdown]
# Two heads return both words, side by side: first the value of the first word, then that of the second. (Each is as
# large as the one head was. In the figure and the claims each has half the size.)

# %%
# (1, 2, 1, 2): the query of each head fits one word; with keys of length 50 the other gets weight 0
q = torch.eye(2)[None, :, None]
k = k.expand(1, 2, 2, 2)  # both heads have the same keys and values
v = v.expand(1, 2, 2, 2)
print(rg.attention(q, k, v).flatten().round(decimals=2))

# %% [markdown]
# The two layers in the upper half of the figure are not trained, their matrices are chosen. A query is the position of
# the word to be read, a key is the position of its word, a value is the content of its word.
#
# A head with random queries and keys also returns one mixture of the words. How many separate facts about the words can
# reach one output? Take 8 words with 4 numbers of content each, and leave queries and keys as they are, so that the
# weights are constant. If the 32 numbers change, the output changes in as many independent ways as the rank of its
# Jacobian matrix (the derivatives of each number of the output by each of the 32). The table counts them: one head
# passes one mean of the contents, which is 4 numbers. Four heads pass 16 numbers, as many as the output has.


# %% tags=["folded"]
def facts(heads, length=8, size=4):
    """The rank of the map from the contents of all words to one output.

    Args:
        heads: of the layer of DIM numbers.
        length: words.
        size: numbers of content of a word.
    """
    head_dim = DIM // heads
    q = normal(SEED + 1, 1, heads, length, head_dim)
    k = normal(SEED + 2, 1, heads, length, head_dim)
    W_v = normal(SEED + 3, heads, size, head_dim)
    contents = normal(SEED + 4, length, size)

    def output_of_first_word(contents):
        """The outputs of all heads, side by side, (DIM,)."""
        v = (contents @ W_v)[None]  # (1, heads, length, head_dim)
        return rg.attention(q, k, v)[0, :, 0].flatten()

    jacobian = torch.autograd.functional.jacobian(output_of_first_word, contents)
    jacobian = jacobian.flatten(1)  # (DIM, length * size)
    return int(torch.linalg.matrix_rank(jacobian, rtol=1e-10))  # smaller is rounding


facts_by_heads = {1: facts(1), 2: facts(2), 4: facts(4)}
rows = [(heads, DIM // heads, count) for heads, count in facts_by_heads.items()]
table("Separate facts about 8 words", ("heads", "numbers of a head", "facts"), rows)

# %% [markdown]
# Heads can be too narrow. In a head of one number the score is the product $q k$ of two numbers. The largest score then
# belongs to the largest key if $q > 0$, and to the smallest if $q < 0$; if $q = 0$, all scores are equal. The key in
# the middle can never get the largest weight.
#
# Is this seen in a trained model? A translator (the [next chapter](encoder.md) shows its parts) with eight heads makes
# fewer mistakes than one with a single head and as many parameters. It takes more CPU time although its matrix products
# cost the same: for $n$ words each head has its own $n \times n$ matrix of weights, and the softmax of eight such
# matrices costs more than that of one.

# %% tags=["folded"]
report = read_report("one_head")
trained_eight, trained_one = report.figures["heads"]

columns = ("model", "parameters", "translated without a mistake", "CPU seconds of training")
rows = []
for trained in (trained_one, trained_eight):
    parameters = f"{trained['parameters']:,}"
    without_mistake = f"{trained['exact_match']:.3f}"
    rows.append((trained["name"], parameters, without_mistake, f"{trained['cpu_seconds']:.0f}"))
table("Trained translators, one seed", columns, rows)
print(report.source)

# %% [markdown]
# ## Claims

# %% tags=["folded"]
parameters_of_one = sum(weight.numel() for weight in one_head.parameters())
parameters_of_two = sum(weight.numel() for weight in two_heads.parameters())
# scores are one matrix product, the mean of values another: 2 · 64 · 64 · DIM operations each
operations = []
for heads in (1, 2, 4):
    x = torch.zeros(1, heads, 64, DIM // heads)
    operations.append(rg.plan_attention(x, x, x).cost.flops)

weight_of_cat = float(weights_of_one[0, CAT])
weight_of_mat = float(weights_of_one[0, MAT])
cat = words[0, CAT, :CONTENT]
mat = words[0, MAT, :CONTENT]

exchanged_words = words.clone()
exchanged_words[0, CAT, :CONTENT] = mat
exchanged_words[0, MAT, :CONTENT] = cat
_, mean_of_exchanged = read_by_sat(one_head, exchanged_words)
_, side_by_side_of_exchanged = read_by_sat(two_heads, exchanged_words)
moved = largest(side_by_side_of_exchanged - side_by_side)

largest_beside_middle = torch.maximum(of_three[..., 0], of_three[..., 2])
middle_wins = of_three[..., 1] > largest_beside_middle + EXACT  # (51, 201)

TESTED = 600  # sentences, in the report
# shares with their standard errors; if they are too near each other, the claim is undecided
right_by_eight = Estimate.share(trained_eight["exact_match"], TESTED)
right_by_one = Estimate.share(trained_one["exact_match"], TESTED)

# %% tags=["claims"]
holds(
    "The number of heads changes neither the parameters of a layer nor the operations of its "
    "matrix products.",
    parameters_of_one == parameters_of_two and len(set(operations)) == 1,
    f"{parameters_of_one:,} parameters with 1 and 2 heads; {operations[0]:,.0f} operations for 64 "
    "words with 1, 2 and 4",
)
holds(
    "One head can attend to two words at once.",
    abs(weight_of_cat - 0.5) < 1e-3 and abs(weight_of_mat - 0.5) < 1e-3,
    f"“cat” {weight_of_cat:.2f} and “mat” {weight_of_mat:.2f}",
)
holds(
    "One head returns the mean of the two words, so exchanging them does not change its output.",
    largest(mean[:CONTENT] - (cat + mat) / 2) < EXACT and largest(mean_of_exchanged - mean) < EXACT,
    ROUNDING,
)
holds(
    "Two heads of half the size return both words, so exchanging them changes the output.",
    largest(side_by_side - torch.cat([cat, mat])) < EXACT and moved > 0.1,
    f"both contents {ROUNDING}; the exchange moves the output by {moved:.2f}",
)
holds(
    "With random weights too, each head passes one mixture of the words, so more heads pass more "
    "facts.",
    facts_by_heads == {1: 4, 2: 8, 4: 16},
    f"{', '.join(map(str, facts_by_heads.values()))} facts with "
    f"{', '.join(map(str, facts_by_heads))} heads",
)
holds(
    "A head of one number never gives the middle of three keys the largest weight.",
    not middle_wins.any(),
    f"{int(middle_wins.sum())} of {middle_wins.numel():,} queries",
)
holds(
    "A head of two numbers can choose each of six keys.",
    float(of_six.min()) > 0.99,
    f"weights of at least {of_six.min():.4f}",
)
holds(
    "The trained translator with eight heads makes fewer mistakes than the one with one head.",
    every(
        right_by_eight.above(right_by_one),
        trained_eight["parameters"] == trained_one["parameters"],
    ),
    f"{right_by_eight} and {right_by_one} of {TESTED} sentences are right, in the report",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise


@exercise(
    "A head gives three words the weights 0.5, 0.25 and 0.25. Their values are 8, 4 and 0. What does "
    "it return?",
    NUMBER,
    hint="Multiply each value by its weight, and add.",
    answer="5",
)
def mean_of_three(number):
    scores = torch.tensor([0.5, 0.25, 0.25]).log()  # the softmax of logarithms of weights
    one = torch.ones(1, 1, 1, 1)
    v = torch.tensor([8.0, 4.0, 0.0])[None, None, :, None]
    z = float(rg.attention(one, scores[None, None, :, None], v, scale=1.0))
    holds("It returns this number.", abs(number - z) < 1e-3, f"{z:.3f}, you say {number:g}")


@exercise(
    "A layer of 8 heads reads 8 words of 4 numbers each. Its output has 16 numbers. How many separate "
    "facts about the words can the output hold?",
    NUMBER,
    hint="Each number of the output can hold one fact, however many heads there are.",
    answer="16",
)
def facts_of_eight_heads(count):
    counted = facts(8)
    holds("It can hold that many.", count == counted, f"{counted}, you say {count:g}")


# %% [markdown]
# Source: Vaswani et al. 2017, section 3.2.2; Bhojanapalli et al. 2020, section 3 (heads that are too narrow).
