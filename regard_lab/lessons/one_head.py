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
from regard_lab.seeing.canvas import KEY, QUERY
from regard_lab.teaching import (
    ROUNDING, Estimate, draw_curves, draw_reading, every, figure, holds, largest, normal, read_report, table
)  # fmt: skip

WORDS = ("The", "cat", "sat", "on", "the", "mat")
SAT, READ = 2, (1, 5)  # "sat" reads "cat" and "mat"
DIM, CONTENT = 16, 8  # a word is 8 numbers of content, 3 of them its colour, and its position as 8 numbers
SHARP, EXACT = 400.0, 1e-12  # a difference of scores that leaves other words a weight of 0

colours = torch.full((len(WORDS), 3), 0.85, dtype=torch.float64)  # grey
colours[list(READ)] = torch.tensor([[0.90, 0.62, 0.0], [0.0, 0.45, 0.70]]).double()  # orange, blue
words = torch.cat([colours, normal(SEED, len(WORDS), CONTENT - 3), torch.eye(len(WORDS), DIM - CONTENT)], -1)[None]


def reading_layer(heads):
    """A layer in which "sat" reads "cat" and "mat": with one head both, with two heads one each."""
    layer = rg.MultiHeadAttention(DIM, heads, projection_bias=False).double()
    q, k, v = (torch.zeros(heads, DIM // heads, DIM, dtype=torch.float64) for _ in range(3))
    for head in range(heads):
        for place in READ if heads == 1 else READ[head : head + 1]:
            q[head, place, CONTENT + SAT] = SHARP  # the query of "sat" is the position of the word to be read
        k[head, : DIM - CONTENT, CONTENT:] = torch.eye(DIM - CONTENT)  # a key is the position of its word
        v[head, :CONTENT, :CONTENT] = torch.eye(CONTENT)  # a value is the content of its word
    for projection, weight in ((layer.to_q, q), (layer.to_k, k), (layer.to_v, v)):
        projection.weight.data = weight.flatten(0, 1)
    layer.to_output.weight.data = torch.eye(DIM, dtype=torch.float64)
    return layer


def read_by_sat(layer, words):  # -> the weights of "sat" (heads, words), and its output
    with rg.record_attention(layer) as recording, torch.no_grad():
        output = layer(words)
    return recording[""][0].weights[0, :, SAT], output[0, SAT]


one, two = reading_layer(1), reading_layer(2)
(single, mean), (double, both) = read_by_sat(one, words), read_by_sat(two, words)

queries = torch.linspace(-25, 25, 201, dtype=torch.float64)  # of a head of one number, for 51 times three keys
keys = torch.cat([torch.tensor([[-1.0, 0.1, 1.0]], dtype=torch.float64), normal(SEED, 50, 3).sort(-1).values])
q, k = queries.expand(51, 1, -1)[..., None], keys[:, None, :, None]
of_three = rg.attention_detail(q, k, k, scale=1.0, want=["weights"]).weights[:, 0]  # (51, queries, 3)

turns = torch.arange(6, dtype=torch.float64) * math.tau / 6
circle = torch.stack([turns.cos(), turns.sin()], -1)[None, None]  # six keys of two numbers
of_six = rg.attention_detail(25 * circle, circle, circle, scale=1.0, want=["weights"]).weights[0, 0].diagonal()

with figure("One head mixes two words, two heads keep them apart", 7.8, 6.2,
            "Above: one head returns a mixture of orange and blue, two heads return both. Below: a head of one number "
            "never chooses the middle key, a head of two numbers can choose each key.") as drawing:  # fmt: skip
    (first, second), (narrow, round_) = drawing.subplots(2, 2)
    draw_reading(first, "One head of 16", WORDS, colours, SAT, single, mean[None, :3])
    draw_reading(second, "Two heads of 8, as many parameters", WORDS, colours, SAT, double, both.view(2, -1)[:, :3])
    near = slice(80, 121, 4)  # queries from -5 to 5
    curves = dict(zip(("lowest key", "middle key", "highest key"), of_three[0, near].T.tolist()))
    draw_curves(narrow, queries[near].tolist(), curves, ("A head of one number", "query", "weight"), columns=3)
    x, y = circle[0, 0].T.tolist()
    round_.quiver([0] * 6, [0] * 6, x, y, color=QUERY, angles="xy", scale_units="xy", scale=1.4, width=0.008)
    round_.plot(x, y, "o", color=KEY, markersize=7)
    for across, up, weight in zip(x, y, of_six.tolist()):
        round_.text(1.35 * across, 1.25 * up, f"{weight:.2f}", ha="center", va="center", fontsize=9)
    round_.text(0, -1.7, "queries (arrows), keys (dots), weight of each", ha="center", fontsize=9)
    round_.set_title("A head of two numbers", fontsize=10)
    round_.set(xlim=(-2.2, 2.2), ylim=(-1.75, 1.45), aspect="equal")
    round_.set_axis_off()

# %% [markdown]
# A layer of $d$ numbers has $H$ heads of $d / H$ numbers. All heads together cost as much as one head of $d$ numbers,
# in parameters and in the operations of matrix products. Their outputs stand side by side:
#
# $$
# \operatorname{concat}(z_1, \ldots, z_H) \, W_o
# \qquad z_h = \operatorname{softmax}\left(\frac{q_h k_h^\top}{\sqrt{d / H}}\right) v_h
# $$
#
# One article says that a single head sees one position. It sees all positions, but returns one weighted mean of their
# values, and the words in this mean cannot be separated again. Exchange two of them, and nothing changes:

# %%
q = torch.tensor([[[[1.0, 1.0]]]])  # (batch, heads, words, head_dim): one head reads two words
k = 50 * torch.eye(2)[None, None]
v = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
print(rg.attention(q, k, v).flatten(), rg.attention(q, k, v.flip(2)).flatten())

# %% [markdown]
# Two heads return both words, side by side:

# %%
q, k, v = torch.eye(2)[None, :, None], k.expand(1, 2, 2, 2), v.expand(1, 2, 2, 2)
print(rg.attention(q, k, v).flatten().round(decimals=2))

# %% [markdown]
# The weights of the figure are constructed. A query is the position of the word to be read, a key is the position of
# its word, a value is the content of its word. A head with random weights also returns one mixture of the words. How
# many independent numbers of 8 words, each of 4 numbers, can reach one output? The table counts them, as the rank of
# the gradients.


# %% tags=["folded"]
def facts(heads, length=8, size=4):
    """The rank of the map from the contents of all words to one output."""
    q, k = (normal(SEED + at, 1, heads, length, DIM // heads) for at in (1, 2))
    to_v = normal(SEED + 3, heads, size, DIM // heads)

    output = lambda contents: rg.attention(q, k, (contents @ to_v)[None])[0, :, 0].flatten()  # of the first word
    gradients = torch.autograd.functional.jacobian(output, normal(SEED + 4, length, size)).flatten(1)
    return int(torch.linalg.matrix_rank(gradients, rtol=1e-10))


passed = {heads: facts(heads) for heads in (1, 2, 4)}
columns = ("heads", "numbers of a head", "facts")
table("Separate facts about 8 words", columns, [(heads, DIM // heads, passed[heads]) for heads in passed])

# %% [markdown]
# Heads can be too narrow. A head of one number scores keys along one line, so the key in the middle can never get the
# largest weight.
#
# A trained translator with eight heads makes fewer mistakes than one with a single head and as many parameters. It
# takes more CPU time, because each head has its own $n \times n$ matrix of weights, whose softmax is no matrix product.

# %% tags=["folded"]
report = read_report("one_head")
eight, lone = report.figures["heads"]
columns = ("model", "parameters", "translated without a mistake", "CPU seconds of training")
rows = [
    (row["name"], f"{row['parameters']:,}", f"{row['exact_match']:.3f}", f"{row['cpu_seconds']:.0f}")
    for row in (lone, eight)
]
table("Trained translators, one seed", columns, rows)
print(report.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
parameters = [sum(weight.numel() for weight in layer.parameters()) for layer in (one, two)]
inputs = [torch.zeros(1, heads, 64, DIM // heads) for heads in (1, 2, 4)]
operations = [rg.plan_attention(x, x, x).cost.flops for x in inputs]
holds("The number of heads changes neither the parameters of a layer nor the operations of its matrix products.",
      len(set(parameters)) == 1 == len(set(operations)),
      f"{parameters[0]:,} parameters with 1 and 2 heads; {operations[0]:,.0f} operations "
      "for 64 words with 1, 2 and 4")  # fmt: skip
cat, mat = (words[0, place, :CONTENT] for place in READ)
given = single[0, list(READ)].tolist()
holds("One head can attend to two words at once.", max(abs(weight - 0.5) for weight in given) < 1e-3,
      f"“cat” {given[0]:.2f} and “mat” {given[1]:.2f}")  # fmt: skip
exchanged = words.clone()
exchanged[0, list(READ), :CONTENT] = words[0, list(READ)[::-1], :CONTENT]
(_, mean_after), (_, both_after) = read_by_sat(one, exchanged), read_by_sat(two, exchanged)
holds("One head returns the mean of the two words, so exchanging them does not change its output.",
      largest(mean[:CONTENT] - (cat + mat) / 2) < EXACT and largest(mean_after - mean) < EXACT, ROUNDING)  # fmt: skip
apart, change = largest(both - torch.cat([cat, mat])), largest(both_after - both)
holds("Two heads of half the size return both words, so exchanging them changes the output.",
      apart < EXACT and change > 0.1,
      f"both contents {ROUNDING}; the exchange moves the output by {change:.2f}")  # fmt: skip
holds("With random weights too, each head passes one mixture of the words, so more heads pass more facts.",
      all(count == 4 * heads for heads, count in passed.items()),
      f"{', '.join(map(str, passed.values()))} facts with {', '.join(map(str, passed))} heads")  # fmt: skip
won = int((of_three[..., 1] > torch.maximum(of_three[..., 0], of_three[..., 2]) + EXACT).sum())
holds("A head of one number never gives the middle of three keys the largest weight.", won == 0,
      f"{won} of {of_three[..., 1].numel():,} queries")  # fmt: skip
holds("A head of two numbers can choose each of six keys.", float(of_six.min()) > 0.99,
      f"weights of at least {of_six.min():.4f}")  # fmt: skip
right = [Estimate.share(row["exact_match"], 600) for row in (eight, lone)]  # of the test sentences
holds("The trained translator with eight heads makes fewer mistakes than the one with one head.",
      every(right[0].above(right[1]), eight["parameters"] == lone["parameters"]),
      f"{right[0]} and {right[1]} of 600 sentences are right, in the report")  # fmt: skip

# %% [markdown]
# Source: Vaswani et al. 2017, section 3.2.2; Bhojanapalli et al. 2020, section 3 (heads that are too narrow).
