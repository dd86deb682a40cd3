# %% [markdown]
# # Stacked windows
#
# **How far does a stack of layers with narrow windows look?**

# %% tags=["parameters"]
TEXT = (
    "The animal that had walked all day along the dusty road did not cross the wide street because it was far too "
    "tired to hurry home"
)
SEED = 0

# %% tags=["folded"]
import torch

import regard as rg
from regard import patterns as p
from regard.patterns.drawing import learned
from regard_lab.teaching import draw_map, embedded, figure, holds, scale_beside, seeded, table, words_of

words = words_of(TEXT, least=3)
x = embedded(words, 16, SEED)
patterns = [p.CausalWindow(4), p.SlidingWindow(4), p.DilatedWindow(3, 3)]


def dependence(pattern, layers):
    """How strongly the output of each word depends on each word, (length, length)."""
    stack = [seeded(SEED + layer, rg.MultiHeadAttention, 16, 2, pattern=pattern) for layer in range(layers)]
    inputs = x.repeat(len(words), 1, 1).requires_grad_()  # a copy of the sentence for each word
    outputs = torch.nn.Sequential(*stack)(inputs)
    outputs.diagonal(dim1=0, dim2=1).sum().backward()  # of copy i only the output of word i
    return inputs.grad.norm(dim=-1)


depends = {pattern: [dependence(pattern, layers) for layers in range(1, 5)] for pattern in patterns}

with figure("What one word depends on through a stack of windows", 7.5, 6.2,
            "Each row is one layer more. The frame is what reach(layers) predicts; grey words have a gradient of "
            "exactly 0.") as drawing:  # fmt: skip
    panels = drawing.subplots(len(patterns), 1)
    for axes, pattern in zip(panels, patterns):
        word = len(words) - 1 if pattern.reach().ahead == 0 else len(words) // 2
        rows = torch.stack([strength[word] / strength[word].max() for strength in depends[pattern]])
        labels = ["1 layer", "2 layers", "3 layers", "4 layers"]
        image = draw_map(axes, rows, labels, words if axes is panels[0] else (), hidden=rows == 0)
        for row in range(4):
            reach = pattern.reach(row + 1)
            left, right = max(0, word - reach.back) - 0.5, min(len(words) - 1, word + reach.ahead) + 0.5
            axes.plot([left, right, right, left, left], [row - 0.5, row - 0.5, row + 0.5, row + 0.5, row - 0.5],
                      color="#D55E00", linewidth=1.6, clip_on=False)  # fmt: skip
        axes.set_xlabel(f"{pattern}: the {'last' if word == len(words) - 1 else 'middle'} word", fontsize=9)
    scale_beside(drawing, image, panels, "gradient, relative to the largest")

# %% [markdown]
# A layer in which each word looks at $w$ neighbours costs $n \cdot w$ instead of $n^2$. Words outside the window still
# have an effect, because the neighbours have looked at their own neighbours in the layer below. If one layer reaches
# $r$ words, a stack of $L$ layers reaches $L$ times as far:
#
# $$
# \lvert i - j \rvert \le r \qquad \text{reach of } L \text{ layers: } L \cdot r
# $$
#
# - `causal_window(w)` looks at the word itself and the $w - 1$ words before it: $r = w - 1$ back, 0 ahead.
# - `sliding_window(w)` looks at half of $w$ words on each side: $r = w / 2$, rounded down.
# - `dilated_window(w, d)` looks at as many words, but $d$ apart: it reaches $d$ times as far and skips words.
#
# `reach` computes this without attention:

# %%
print(p.CausalWindow(4).reach(3))
print(p.DilatedWindow(3, 3).reach(4))

# %% [markdown]
# A gradient measures it. In a stack with random weights the output of a word has a gradient of exactly 0 with respect
# to every word that it cannot depend on.

# %%
stack = torch.nn.Sequential(*[rg.MultiHeadAttention(16, 2, pattern="causal_window(4)") for _ in range(3)])
sentence = torch.randn(1, 24, 16, requires_grad=True)
stack(sentence)[0, -1].sum().backward()  # which words does the last word depend on?
print(sentence.grad[0].norm(dim=-1).nonzero().flatten().tolist())

# %% [markdown]
# ## Claims

# %% tags=["folded"]
away = torch.arange(len(words))[:, None] - torch.arange(len(words))
rows, same_reach, same_pairs = [], [], []
for pattern in patterns:
    for layers, strength in enumerate(depends[pattern], 1):
        seen, reach = strength > 0, pattern.reach(layers)
        predicted = [min(len(words) - 1, reach.back), min(len(words) - 1, reach.ahead)]
        measured = [max(0, int(away[seen].max())), max(0, int(-away[seen].min()))]
        rows.append((pattern, layers, *measured, f"{int(seen[len(words) // 2].sum())} of {len(words)}"))
        same_reach.append(predicted == measured)
        same_pairs.append(torch.equal(seen, learned(pattern, len(words), len(words), layers)))
table("How far words look", ("pattern", "layers", "words back", "words ahead", "the middle word depends on"), rows)

# %% tags=["claims"]
back = [row[2] for row in rows[:4]]  # of causal_window(4)
holds("reach(layers) is how far the gradient extends back and ahead, within the text.", all(same_reach),
      f"{sum(same_reach)} of {len(same_reach)} stacks")  # fmt: skip
holds("The patterns predict exactly which pairs of words depend on each other, skipped words included.",
      all(same_pairs), f"all {len(words)}² pairs of {sum(same_pairs)} of {len(same_pairs)} stacks")  # fmt: skip
holds("Each layer extends the reach by the same number of words.",
      back == [min(len(words) - 1, 3 * layers) for layers in (1, 2, 3, 4)],
      f"causal_window(4): {back} words back")  # fmt: skip

# %% [markdown]
# Source: Beltagy et al. 2020, section 3.1; Jiang et al. 2023 (Mistral 7B), section 2.
