# %% [markdown]
# # Stacked windows
#
# **How far does a stack of layers with narrow windows look?**

# %% tags=["parameters"]
TEXT = (
    "The animal that had walked all day along the dusty road did not cross the wide street because "
    "it was far too tired to hurry home"
)
SEED = 0

# %% tags=["folded"]
import torch

import regard as rg
from regard import patterns as p
from regard.patterns.drawing import learned
from regard_lab.seeing.palette import LINES
from regard_lab.teaching import (
    draw_map,
    embedded,
    figure,
    holds,
    scale_beside,
    seeded,
    table,
    words_of,
)

DIM = 16
LAYERS = (1, 2, 3, 4)
PATTERNS = (p.CausalWindow(4), p.SlidingWindow(4), p.DilatedWindow(3, 3))

words = words_of(TEXT, least=3)
n = len(words)
x = embedded(words, DIM, SEED)  # (1, n, DIM)


def dependence(pattern, layers):
    """How strongly the output of each word depends on each word, (n, n)."""
    stack = torch.nn.Sequential()
    for layer in range(layers):
        stack.append(seeded(SEED + layer, rg.MultiHeadAttention, DIM, 2, pattern=pattern))

    copies = x.repeat(n, 1, 1).requires_grad_()  # the sentence once for each word, (n, n, DIM)
    outputs = stack(copies)
    outputs.diagonal(dim1=0, dim2=1).sum().backward()  # of copy i only the output of word i
    return copies.grad.norm(dim=-1)


depends = {}  # by pattern and number of layers
for pattern in PATTERNS:
    for layers in LAYERS:
        depends[pattern, layers] = dependence(pattern, layers)

# %% tags=["folded"]
caption = (
    "Each row is one layer more. The frame is what reach(layers) predicts; grey words have a "
    "gradient of exactly 0."
)
with figure("What one word depends on through a stack of windows", 7.5, 6.2, caption) as drawing:
    panels = drawing.subplots(len(PATTERNS), 1)
    for axes, pattern in zip(panels, PATTERNS):
        looks_ahead = pattern.reach().ahead > 0
        i = n // 2 if looks_ahead else n - 1  # the word whose dependence is drawn
        strengths = [depends[pattern, layers][i] for layers in LAYERS]
        rows = torch.stack([strength / strength.max() for strength in strengths])
        labels = ["1 layer", "2 layers", "3 layers", "4 layers"]
        columns = words if axes is panels[0] else ()
        image = draw_map(axes, rows, labels, columns, hidden=rows == 0)
        for row, layers in enumerate(LAYERS):
            reach = pattern.reach(layers)
            left = max(0, i - reach.back) - 0.5
            right = min(n - 1, i + reach.ahead) + 0.5
            top = row - 0.5
            bottom = row + 0.5
            axes.plot(
                [left, right, right, left, left],
                [top, top, bottom, bottom, top],
                color=LINES[1],
                linewidth=1.6,
                clip_on=False,
            )
        axes.set_xlabel(f"{pattern}: the {'last' if i == n - 1 else 'middle'} word", fontsize=9)
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
stack = torch.nn.Sequential(
    rg.MultiHeadAttention(16, 2, pattern="causal_window(4)"),
    rg.MultiHeadAttention(16, 2, pattern="causal_window(4)"),
    rg.MultiHeadAttention(16, 2, pattern="causal_window(4)"),
)
sentence = torch.randn(1, 24, 16, requires_grad=True)  # (batch, words, dim)
stack(sentence)[0, -1].sum().backward()  # which words does the last word depend on?
print(sentence.grad[0].norm(dim=-1).nonzero().flatten().tolist())

# %% [markdown]
# ## Claims

# %% tags=["folded"]
i = torch.arange(n)[:, None]
j = torch.arange(n)
rows = []
same_reach = []
same_pairs = []
for pattern in PATTERNS:
    for layers in LAYERS:
        seen = depends[pattern, layers] > 0  # does word i depend on word j?
        words_back = int((i - j)[seen].max())  # the farthest
        words_ahead = int((j - i)[seen].max())
        measured = [max(0, words_back), max(0, words_ahead)]
        reach = pattern.reach(layers)
        predicted = [min(n - 1, reach.back), min(n - 1, reach.ahead)]
        same_reach.append(predicted == measured)
        same_pairs.append(torch.equal(seen, learned(pattern, n, n, layers)))
        middle = int(seen[n // 2].sum())
        rows.append((pattern, layers, *measured, f"{middle} of {n}"))
table(
    "How far words look",
    ("pattern", "layers", "words back", "words ahead", "the middle word depends on"),
    rows,
)

# %% tags=["claims"]
holds(
    "reach(layers) is how far the gradient extends back and ahead, within the text.",
    all(same_reach),
    f"{sum(same_reach)} of {len(same_reach)} stacks",
)
holds(
    "The patterns predict exactly which pairs of words depend on each other, skipped words "
    "included.",
    all(same_pairs),
    f"all {n}² pairs of {sum(same_pairs)} of {len(same_pairs)} stacks",
)
back = [row[2] for row in rows[:4]]  # of causal_window(4)
holds(
    "Each layer extends the reach by the same number of words.",
    back == [min(n - 1, 3 * layers) for layers in LAYERS],
    f"causal_window(4): {back} words back",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, WHOLE_NUMBERS, exercise


@exercise(
    "How many layers of `causal_window(4)` does it take until the last of 22 words depends on the "
    "first?",
    NUMBER,
    hint="One layer reaches 3 words back, and the first word is 21 words away.",
    answer="7",
)
def layers_for_22_words(count):
    layers = 1
    while p.CausalWindow(4).reach(layers).back < 21:
        layers += 1
    holds("It takes that many.", count == layers, f"{layers}, you say {count:g}")


@exercise(
    "Which words does word 9 of 24 look at in one layer of `dilated_window(3, 3)`? Words are counted "
    "from 0.",
    WHOLE_NUMBERS,
    hint="Three words, 3 apart, and the middle one is word 9.",
    answer="6 9 12",
)
def words_of_a_dilated_window(places):
    seen = p.DilatedWindow(3, 3).dense(24, 24)[9].nonzero().flatten().tolist()
    holds("It looks at these.", places == seen, f"{seen}, you say {places}")


# %% [markdown]
# Source: Beltagy et al. 2020, section 3.1; Jiang et al. 2023 (Mistral 7B), section 2.
