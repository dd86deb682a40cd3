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
from regard_lab.seeing.canvas import FAINT, LINES
from regard_lab.teaching import (
    ROUNDING, draw_bars, draw_line, figure, holds, label_axes, largest, seeded, table, watch, words_of,
)  # fmt: skip

words = words_of(TEXT, least=3)
vocabulary = sorted(set(words))
ids = torch.tensor([[4 + vocabulary.index(word) for word in words]])  # ids below 4 are special
config = EncoderConfig(
    vocab_size=5 + len(vocabulary), dim=32, heads=4, layers=6, head="none", positions="sinusoidal", dropout=0.0
)
model = seeded(SEED, TextEncoder, config).eval()  # random weights

modules = {"last norm": model.norm}
for layer, block in enumerate(model.blocks):
    for part in ("attention", "feed_forward"):
        modules[f"{part} {layer}"] = block.get_submodule(part)
        modules[f"norm of {part} {layer}"] = block.get_submodule(f"{part}_norm")
parts = [name for name in modules if "norm" not in name]
seen = watch(modules, lambda: model(ids))
start, end = seen["norm of attention 0"].inputs[0][0], seen["last norm"].inputs[0][0]
added = {name.replace("_", "-"): seen[name].outputs[0][0] for name in parts}


def difference(x):
    """How different the vectors of the words are: 0 if all are the same."""
    return float((x - x.mean(0)).norm() / x.norm())


@torch.no_grad()
def differences(residuals):
    """The same after each layer; without residuals each part replaces the vectors instead of adding to them."""
    x, found = start, [difference(start)]
    for block in model.blocks:
        for norm, part in ((block.attention_norm, block.attention), (block.feed_forward_norm, block.feed_forward)):
            more = part(norm(x[None]))[0]
            x = x + more if residuals else more
        found.append(difference(x))
    return found


kept, lost = differences(residuals=True), differences(residuals=False)
middle = (len(words) - 1) // 2

with figure("Residual connections keep the vectors of words different", 8.0, 3.8,
            "Left: without residual connections, all words have almost the same vector after two layers. Right: each "
            "part adds a short vector to a long one.") as drawing:  # fmt: skip
    left, right = drawing.subplots(1, 2, width_ratios=(1.0, 1.1))
    for number, (curve, label) in enumerate(((kept, "with residual connections"), (lost, "without"))):
        draw_line(left, range(7), curve, number, label)
        left.text(2.2, curve[3] + 0.035, label, fontsize=9, color=LINES[number])
    label_axes(left, "How different the words' vectors are", "layers passed", "0: all the same")
    left.set_ylim(0, 1.2 * max(kept))
    lengths = {"embedding": start, **added}
    lengths = {name: float(x[middle].norm()) for name, x in lengths.items()}
    draw_bars(right, lengths, [f"{length:.2f}" for length in lengths.values()], [FAINT, *LINES[2:4] * 6])
    label_axes(right, f"What is added to the vector of “{words[middle]}”", "length of the vector", "")
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
# $y = \operatorname{norm}(x + \operatorname{attention}(x))$ (post-norm): the same weights then give other vectors. As
# code, a layer is two lines:

# %%
block = model.blocks[0]
x = torch.randn(1, 5, 32, dtype=torch.float64)  # five words
y = x + block.attention(block.attention_norm(x))
print(torch.allclose(y + block.feed_forward(block.feed_forward_norm(y)), block(x)))

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

# %% tags=["claims"]
table("How different the words' vectors are (0: all the same)", ("layers passed", "with residuals", "without"),
      [(layer, f"{one:.3f}", f"{other:.3f}") for layer, (one, other) in enumerate(zip(kept, lost))])  # fmt: skip
read = torch.stack([seen[f"norm of {name}"].outputs[0][0].norm(dim=-1) for name in parts])
off = largest(read / math.sqrt(32) - 1)
x = seen["norm of feed_forward 0"].outputs[0]
changed = x.clone()
changed[:, -1] = -x[:, -1]
with torch.no_grad():
    alone = (block.feed_forward(changed) - block.feed_forward(x))[0].norm(dim=-1)

holds("At the end, the vector of a word is its embedding plus what every part added.",
      largest(start + sum(added.values()) - end) < 1e-9, f"{len(added)} parts, {ROUNDING}")  # fmt: skip
holds("The norms bring the input of every part to the same length.", off < 0.01,
      f"all √32 = {math.sqrt(32):.2f}, to within {max(off, 1e-3):.1%}; the vectors end with lengths of "
      f"{float(end.norm(dim=-1).min()):.1f} to {float(end.norm(dim=-1).max()):.1f}")  # fmt: skip
holds("In self-attention every word looks at all words: replacing the last word moves every output.", min(moved) > 1e-3,
      f"the first word moves by {moved[0]:.3f}, the last by {moved[-1]:.3f}")  # fmt: skip
holds("The feed-forward network computes each word alone: replacing one vector moves no other output.",
      largest(alone[:-1]) < 1e-9 < float(alone[-1]),
      f"the replaced one moves by {float(alone[-1]):.2f}, the others do not move except for rounding")  # fmt: skip
holds("With residual connections, the words stay different through all layers.", kept[-1] > 0.5 * kept[0],
      f"{kept[0]:.2f} before the first layer, {kept[-1]:.2f} after the last")  # fmt: skip
holds("Without residual connections, all words end with almost the same vector.", lost[-1] < 0.25 * kept[-1],
      f"{lost[0]:.2f} before the first layer, {lost[-1]:.3f} after the last")  # fmt: skip

# %% [markdown]
# Source: Attention Is All You Need, Vaswani et al. 2017, sections 3.1 (the layer, with the norm after each sum) and
# 3.3; On Layer Normalization in the Transformer Architecture, Xiong et al. 2020 (the norm first, as here); Attention is
# Not All You Need, Dong et al. 2021 (what happens without residual connections).
