# %% [markdown]
# # The encoder
#
# **What does each part of an encoder layer do to the vector of a word?**

# %% tags=["parameters"]
TEXT = "The quick brown fox jumps over the lazy dog"
SEED = 0

# %% tags=["folded"]
import math

import torch

from regard_lab.models import EncoderConfig, TextEncoder
from regard_lab.seeing.palette import FAINT, LINES
from regard_lab.teaching import (
    ROUNDING,
    draw_bars,
    draw_line,
    figure,
    holds,
    label_axes,
    largest,
    seeded,
    table,
    watch,
    words_of,
)

words = words_of(TEXT, least=3)
vocabulary = sorted(set(words))
ids = torch.tensor([[4 + vocabulary.index(word) for word in words]])  # ids below 4 are special

config = EncoderConfig(
    vocab_size=5 + len(vocabulary),
    dim=32,
    heads=4,
    layers=6,
    head="none",
    positions="sinusoidal",
    dropout=0.0,
)
model = seeded(SEED, TextEncoder, config).eval()  # random weights

# Run the model once, and watch what goes into and comes out of its parts.
modules = {"last norm": model.norm}
for number, block in enumerate(model.blocks):
    modules[f"attention {number}"] = block.attention
    modules[f"norm of attention {number}"] = block.attention_norm
    modules[f"feed-forward {number}"] = block.feed_forward
    modules[f"norm of feed-forward {number}"] = block.feed_forward_norm
watched = watch(modules, lambda: model(ids))

parts = [name for name in modules if "norm" not in name]
added = {name: watched[name].outputs[0][0] for name in parts}  # (words, dim) each
start = watched["norm of attention 0"].inputs[0][0]  # the embeddings
end = watched["last norm"].inputs[0][0]


def difference(x):
    """How different the vectors of the words are: 0 if all are the same."""
    return float((x - x.mean(0)).norm() / x.norm())


@torch.no_grad()
def differences_by_layer(residuals):
    """The same at the start and after each layer; without residuals each part replaces the vectors."""
    x = start
    differences = [difference(x)]
    for block in model.blocks:
        attended = block.attention(block.attention_norm(x[None]))[0]
        y = x + attended if residuals else attended
        computed = block.feed_forward(block.feed_forward_norm(y[None]))[0]
        x = y + computed if residuals else computed
        differences.append(difference(x))
    return differences


with_residuals = differences_by_layer(residuals=True)
without_residuals = differences_by_layer(residuals=False)

# %% tags=["folded"]
middle = (len(words) - 1) // 2
lengths = {"embedding": float(start[middle].norm())}
for name, x in added.items():
    lengths[name] = float(x[middle].norm())

caption = (
    "Left: without residual connections, all words have almost the same vector after two layers. "
    "Right: each part adds a short vector to a long one."
)
title = "Residual connections keep the vectors of words different"
with figure(title, 8.0, 3.8, caption) as drawing:
    left, right = drawing.subplots(1, 2, width_ratios=(1.0, 1.1))

    curves = {"with residual connections": with_residuals, "without": without_residuals}
    for number, (label, curve) in enumerate(curves.items()):
        draw_line(left, range(7), curve, number, label)
        left.text(2.2, curve[3] + 0.035, label, fontsize=9, color=LINES[number])
    label_axes(left, "How different the words' vectors are", "layers passed", "0: all the same")
    left.set_ylim(0, 1.2 * max(with_residuals))

    numbers = [f"{length:.2f}" for length in lengths.values()]
    draw_bars(right, lengths, numbers, [FAINT, *LINES[2:4] * 6])
    title = f"What is added to the vector of “{words[middle]}”"
    label_axes(right, title, "length of the vector", "")
    right.set_xlim(right=1.2 * max(lengths.values()))

# %% [markdown]
# An encoder reads a whole text and returns a vector for each word. Use it to classify or search texts, or as the first
# half of a translator. Each of its layers has two parts. In **self-attention** every word looks at all words. The
# **feed-forward network** computes each word alone:
#
# $$
# y = x + \operatorname{attention}(\operatorname{norm}(x)), \qquad
# x' = y + \text{feed-forward}(\operatorname{norm}(y))
# $$
#
# The **norm** brings the input of a part to the same length for every word. The **residual connection** is the plus
# sign: a part does not replace the vector of a word, it adds to it. This page computes the form with the norm first
# (pre-norm, Xiong et al. 2020), which most models have since. The paper of 2017 takes the norm after each sum,
# $y = \operatorname{norm}(x + \operatorname{attention}(x))$ (post-norm): the same weights then give other vectors, and
# [a training goes differently](norms.md). As code, a layer is two lines:

# %%
block = model.blocks[0]
x = torch.randn(1, 5, 32, dtype=torch.float64)  # five words
y = x + block.attention(block.attention_norm(x))
x_next = y + block.feed_forward(block.feed_forward_norm(y))
print(torch.allclose(x_next, block(x)))

# %% [markdown]
# Nothing is masked, so the last word changes even the vector of the first one. Here the last word is replaced by
# another one:

# %%
edited = ids.clone()
edited[0, -1] = 4 + len(vocabulary)  # a word that the sentence does not have
moved = (model(edited) - model(ids))[0].norm(dim=-1).tolist()
for word, distance in zip(words, moved):
    print(f"{word:8} {distance:.3f}")

# %% [markdown]
# ## Claims
#
# The encoder of this page has 6 layers and random weights. Layers are counted from 0.

# %% tags=["folded"]
rows = []
for layer in range(7):
    rows.append((layer, f"{with_residuals[layer]:.3f}", f"{without_residuals[layer]:.3f}"))
title = "How different the words' vectors are (0: all the same)"
table(title, ("layers passed", "with residuals", "without"), rows)

# the lengths of the vectors that each part reads, relative to the square root of dim
read = torch.stack([watched[f"norm of {name}"].outputs[0][0] for name in parts])
deviation = largest(read.norm(dim=-1) / math.sqrt(32) - 1)
end_lengths = end.norm(dim=-1)

# what the first feed-forward network does to the other words if the vector of the last is replaced
x = watched["norm of feed-forward 0"].outputs[0]
replaced = x.clone()
replaced[:, -1] = -x[:, -1]
with torch.no_grad():
    moved_alone = (block.feed_forward(replaced) - block.feed_forward(x))[0].norm(dim=-1)  # (words,)

# %% tags=["claims"]
holds(
    "At the end, the vector of a word is its embedding plus what every part added.",
    largest(start + sum(added.values()) - end) < 1e-9,
    f"{len(added)} parts, {ROUNDING}",
)
holds(
    "The norms bring the input of every part to the same length.",
    deviation < 0.01,
    f"all √32 = {math.sqrt(32):.2f}, to within {max(deviation, 1e-3):.1%}; the vectors end with "
    f"lengths of {float(end_lengths.min()):.1f} to {float(end_lengths.max()):.1f}",
)
holds(
    "In self-attention every word looks at all words: replacing the last word moves every output.",
    min(moved) > 1e-3,
    f"the first word moves by {moved[0]:.3f}, the last by {moved[-1]:.3f}",
)
holds(
    "The feed-forward network computes each word alone: replacing one vector moves no other output.",
    largest(moved_alone[:-1]) < 1e-9 < float(moved_alone[-1]),
    f"the replaced one moves by {float(moved_alone[-1]):.2f}, the others do not move except for "
    "rounding",
)
holds(
    "With residual connections, the words stay different through all layers.",
    with_residuals[-1] > 0.5 * with_residuals[0],
    f"{with_residuals[0]:.2f} before the first layer, {with_residuals[-1]:.2f} after the last",
)
holds(
    "Without residual connections, all words end with almost the same vector.",
    without_residuals[-1] < 0.25 * with_residuals[-1],
    f"{without_residuals[0]:.2f} before the first layer, {without_residuals[-1]:.3f} after the last",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, WHOLE_NUMBERS, exercise

x = torch.randn(1, 5, 32, dtype=torch.float64)  # five words


@exercise(
    "Five words are counted from 0, and the vector of the last one is replaced. Which outputs of the "
    "feed-forward network move?",
    WHOLE_NUMBERS,
    hint="The feed-forward network computes each word alone.",
    answer="4",
)
def moved_by_feed_forward(positions):
    changed = x.clone()
    changed[:, 4] = -x[:, 4]
    with torch.no_grad():
        distances = (block.feed_forward(changed) - block.feed_forward(x))[0].norm(dim=-1)
    moved = (distances > 1e-9).nonzero().flatten().tolist()
    holds("These outputs move.", positions == moved, f"{moved}, you say {positions}")


@exercise(
    "The paper of 2017 takes the norm after each sum. Write its layer with the parts of `block`, for "
    "`x` (1, 5, 32).",
    CODE,
    hint="$y = \\operatorname{norm}(x + \\operatorname{attention}(x))$, and the same for the "
    "feed-forward network.",
    answer="y = block.attention_norm(x + block.attention(x))\n"
    "block.feed_forward_norm(y + block.feed_forward(y))",
)
def layer_of_the_paper(output):
    sum_of_attention = x + block.attention(x)
    y = block.attention_norm(sum_of_attention)
    sum_of_network = y + block.feed_forward(y)
    apart = largest(output - block.feed_forward_norm(sum_of_network))
    from_block = largest(output - block(x))
    holds(
        "This is the layer with the norm after each sum.",
        apart < 1e-9,
        f"at most {apart:.2g} apart; from the layer with the norm first {from_block:.2g}",
    )


# %% [markdown]
# Source: Attention Is All You Need, Vaswani et al. 2017, sections 3.1 (the layer, with the norm after each sum) and
# 3.3; On Layer Normalization in the Transformer Architecture, Xiong et al. 2020 (the norm first, as here); Attention is
# Not All You Need, Dong et al. 2021 (what happens without residual connections).
