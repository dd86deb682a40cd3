# %% [markdown]
# # Attention instead of recurrence
#
# **Why did attention replace recurrent networks?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
from unittest import mock

import torch
from torch import nn

import regard as rg
from regard_lab.decoding import greedy_search
from regard_lab.decoding.search import SpecialIds
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.seeing.canvas import LINES
from regard_lab.teaching import (
    ROUNDING, draw_curves, embedded, figure, holds, largest, read_report, seeded, table, words_of
)  # fmt: skip
from regard_lab.teaching.stepping import DIM, Recurrent, count_steps, draw_steps, longest_chain, marked_steps

WORDS = words_of("The animal did not cross the street because it was too tired.")
LENGTHS = (4, 8, 16, 32, 64, 128)
NAMES = {
    "recurrent": "recurrent network", "convolution": "causal convolutions",
    "dilated": "dilated convolutions", "attention": "attention layer",
}  # fmt: skip
counts = {name: [count_steps(name, length, SEED) for length in LENGTHS] for name in NAMES}
steps = {name: [one["steps"] for one in counts[name]] for name in NAMES}
gradients = {name: [one["gradient"] for one in counts[name]] for name in ("recurrent", "attention")}

with figure("Steps until the last word has read the first", 7.9, 6.8,
            "Above: boxes in one row are computed together; the line is the path of the first word. Below: steps for "
            "longer texts, and how much the last output depends on the first "
            "word, with random weights.") as drawing:  # fmt: skip
    above, below = drawing.subfigures(2, 1, height_ratios=(1.2, 1))
    for number, (name, axes) in enumerate(zip(NAMES, above.subplots(1, 4))):
        draw_steps(axes, name, NAMES[name], WORDS, number, SEED)
    left, right = below.subplots(1, 2)
    draw_curves(left, LENGTHS, {NAMES[name]: steps[name] for name in NAMES},
                ("Steps, one after the other", "words", ""), log="xy")  # fmt: skip
    left.set_yticks((1, 4, 16, 64), [1, 4, 16, 64])
    draw_curves(right, LENGTHS, gradients, ("Gradient of the first word", "words", "last word = 1"), log="xy")
    right.lines[1].set(color=LINES[3], marker="D")
    right.get_legend().remove()

# %% [markdown]
# A recurrent network keeps one state and updates it word by word. The state after word $t$ needs the state after word
# $t - 1$. A text of $n$ words takes $n$ steps, however many processors there are. An attention layer computes the
# outputs of all words from the inputs of all words: one step, for any length.
#
# $$
# h_t = f(h_{t-1}, x_t) \qquad \text{against} \qquad z_i = \sum_j α_{i j} \, v_j
# $$
#
# `marked_steps` marks each call of a cell or layer. `longest_chain` counts the calls that had to wait for each other.
# It reads the record that PyTorch keeps for gradients.

# %%
x = torch.randn(1, 50, 16)  # (batch, words, dim)
cell, state = nn.GRUCell(16, 16), torch.zeros(1, 16)
layer = rg.MultiHeadAttention(dim=16, heads=2, pattern="causal")
with marked_steps([cell, layer]):
    for word in x.unbind(1):
        state = cell(word, state)  # needs the state after the word before
    at_once = layer(x)
print(longest_chain(state), longest_chain(at_once))

# %% [markdown]
# A causal convolution of width 3 also computes all words in one step, but each from three words only: itself and the
# two before it. So it takes a stack of about $n / 2$ layers until the last word depends on the first. If each layer
# looks 3 times as far as the layer before (dilated), about $\log_3 n$ layers are enough.

# %% tags=["folded"]
share = lambda value: "below 0.000001" if value < 1e-6 else f"{value:.6f}" if value < 0.1 else f"{value:.2f}"
table("Steps that wait for each other, and the gradient of the last output for the first word (last word = 1)",
      ("words", *NAMES.values(), "gradient: recurrent", "attention"),
      list(zip(LENGTHS, *steps.values(), *(map(share, shares) for shares in gradients.values()))))  # fmt: skip

# %% [markdown]
# In the recurrent network the influence of the first word passes through every cell and shrinks in each. In the
# attention layer it takes one step from any distance, so it shrinks far less. It also depends on the random vectors of
# the words: where it is above 1, the output depends more on the first word than on the last.
#
# This is why a Transformer is trained faster. In training the target is known, so one call predicts every next word.
# With two layers in encoder and decoder, five attention layers of such a call wait for each other: two of the encoder,
# then the cross-attention of the first decoder layer, then both attentions of the second. (The first self-attention of
# the decoder does not need the encoder.) Writing is different: each word is an input of the next step, so every model
# writes one word per step.

# %% tags=["folded"]
WRITTEN = (4, 8, 16)  # words of the target
sizes = {"vocab_size": 24, "dim": 16, "dropout": 0.0}
transformer = seeded(SEED, TranslationTransformer, TranslationTransformer.Config(heads=2, **sizes)).eval()
recurrent = seeded(SEED, RecurrentTranslator, RecurrentTranslator.Config(hidden=16, **sizes)).eval()
generator = torch.Generator().manual_seed(SEED)
source, target = (torch.randint(4, 24, (1, length), generator=generator) for length in (8, WRITTEN[-1]))
with torch.no_grad():
    began = transformer.start(source)
    one_by_one = torch.stack([transformer.step(ids, began) for ids in target.unbind(1)], 1)
    difference = largest(transformer(source, target) - one_by_one)


def trained(length):  # -> attention layers that wait for each other while all words of a target are predicted
    with marked_steps(unit for unit in transformer.modules() if isinstance(unit, rg.MultiHeadAttention)):
        return longest_chain(transformer(source, target[:, :length]))


def written(model, length):  # -> calls of `step` while a target is written
    with mock.patch.object(model, "step", wraps=model.step) as step:
        greedy_search(model, source, max_length=length, special=SpecialIds(end=None))
    return step.call_count


layers = [trained(length) for length in WRITTEN]
calls = [[written(model, length) for length in WRITTEN] for model in (transformer, recurrent)]
columns = ("words", "Transformer in training: layers", "Transformer writing: calls", "recurrent translator: calls")
table("Steps for a target of n words", columns, list(zip(WRITTEN, layers, *calls)))

# %% [markdown]
# Why was attention not used before? Attention compares $n^2$ pairs, so it takes more operations than a recurrent
# network for long texts. It is faster on hardware that computes many products at once. A recurrent network uses only a
# part of such hardware. A single core shows this already, because its vector instructions compute several numbers at
# once. (The table leaves out the projections of attention.) The table is for one text at a time. With several texts in
# a batch, a step of the recurrent network is one product for all of them, so it uses more of the hardware, and
# attention is ahead by less: by a few times for tens of texts.

# %% tags=["folded"]
report = read_report("recurrent")
speeds = {name: [row["operations"] / row["median"] / 1e9 for row in rows] for name, rows in report.figures.items()}
rows = [
    (f"{gru['length']:,}", *(f"{1e3 * row['median']:.2f}" for row in (gru, causal)), *(f"{one:.1f}" for one in speed))
    for gru, causal, *speed in zip(*report.figures.values(), *speeds.values())
]
columns = ("words", "GRU: ms", "causal attention: ms", "GRU: billion operations per second", "attention")
table("Time on one core for one text, 64 numbers per word", columns, rows)
print(report.source)

# %% [markdown]
# The lesson *complexity* measures from which length $n^2$ costs more than it saves.
#
# ## Claims

# %% tags=["claims"]
ends = {
    name: f"{one[0]} step{'s' * (one[0] > 1)} for 4 words, {one[-1]} for {LENGTHS[-1]}" for name, one in steps.items()
}
holds("A recurrent network takes one step for each word, one after the other.", steps["recurrent"] == list(LENGTHS),
      ends["recurrent"])  # fmt: skip
holds("Causal convolutions of width 3 connect n words after (n - 1) / 2 layers, rounded up.",
      steps["convolution"] == [-(-(length - 1) // 2) for length in LENGTHS], ends["convolution"])  # fmt: skip
holds("Dilated convolutions connect n words after L layers, where L is the least number with 3^L ≥ n.",
      all(3 ** (layers - 1) < n <= 3**layers for n, layers in zip(LENGTHS, steps["dilated"])),
      ends["dilated"])  # fmt: skip
holds("An attention layer takes one step for any length.", set(steps["attention"]) == {1}, ends["attention"])
holds("There is no shortcut: the first word reaches the last output only through all of these steps.",
      all(one["path"] == one["steps"] for name in NAMES for one in counts[name]),
      f"in each of {len(NAMES) * len(LENGTHS)} networks: four kinds, {len(LENGTHS)} lengths")  # fmt: skip
by_cell, whole, words = Recurrent(SEED), nn.GRU(DIM, DIM, batch_first=True).double(), embedded(WORDS, DIM, SEED)
whole.load_state_dict({f"{name}_l0": weight for name, weight in by_cell.cell.state_dict().items()})
same = largest(whole(words)[0] - torch.stack(by_cell(words.unbind(1)), 1)) < 1e-10
holds("torch's GRU computes the same, word by word.", same, ROUNDING)
holds("A Transformer predicts all words of a known target in one call, with the same results as word by word.",
      difference < 1e-10, f"{WRITTEN[-1]} words, {ROUNDING}")  # fmt: skip
holds("The steps of this call do not grow with the length.", len(set(layers)) == 1,
      f"{layers[0]} attention layers for {WRITTEN[0]} words, {layers[-1]} for {WRITTEN[-1]}")  # fmt: skip
holds("Generation takes one call for each word, in a Transformer and in a recurrent network.",
      all(one == list(WRITTEN) for one in calls),
      f"{WRITTEN[-1]} words, {calls[0][-1]} and {calls[1][-1]} calls")  # fmt: skip
left, kept = gradients["recurrent"][-1], gradients["attention"][-1]
holds("With random weights the gradient of the first word nearly vanishes in the recurrent network, but not in the "
      "attention layer.",
      left < 1e-6 and kept > 1e-3,
      f"{share(left)} and {share(kept)} of that of the last word, {LENGTHS[-1]} words")  # fmt: skip
faster = [many / one for one, many in zip(speeds["gru"], speeds["causal"])]
holds("On one core, for one text at a time, attention computes at least ten times as many operations per second as a "
      "recurrent network.",
      min(faster) > 10, f"{min(faster):.0f} to {max(faster):.0f} times, in the report")  # fmt: skip

# %% [markdown]
# Source: Vaswani et al. 2017, section 4 and table 1.
