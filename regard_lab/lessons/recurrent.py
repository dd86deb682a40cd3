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
from regard_lab.decoding import SpecialIds, greedy_search
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.models.recurrent import LongShortTermMemoryNetwork
from regard_lab.seeing.palette import LINES
from regard_lab.teaching import (
    ROUNDING,
    draw_curves,
    embedded,
    figure,
    holds,
    largest,
    read_report,
    seeded,
    table,
    words_of,
)
from regard_lab.teaching.chains import longest_chain, marked_steps
from regard_lab.teaching.stepping import DIM, RecurrentNetwork, count_steps, draw_steps

WORDS = words_of("The animal did not cross the street because it was too tired.")
LENGTHS = (4, 8, 16, 32, 64, 128)
NETWORKS = {
    "recurrent": "recurrent network",
    "convolution": "causal convolutions",
    "dilated": "dilated convolutions",
    "attention": "attention layer",
}

# for each network a list: one number for each length
steps = {}  # that wait for each other
paths = {}  # steps between the first word and the last output
gradients = {}  # of the last output with respect to the first word; 1 for the last word
for network in NETWORKS:
    counts = [count_steps(network, length, SEED) for length in LENGTHS]
    steps[network] = [count["steps"] for count in counts]
    paths[network] = [count["path"] for count in counts]
    gradients[network] = [count["gradient"] for count in counts]

# %% tags=["folded"]
caption = (
    "Above: boxes in one row are computed together; the line is the path of the first word. Below: "
    "steps for longer texts, and how much the last output depends on the first word, with random "
    "weights."
)
title = "Steps until the last word has read the first"
with figure(title, 7.9, 6.8, caption) as drawing:
    above, below = drawing.subfigures(2, 1, height_ratios=(1.2, 1))
    panels = above.subplots(1, 4)
    for number, (network, name) in enumerate(NETWORKS.items()):
        draw_steps(panels[number], network, name, WORDS, number, SEED)

    left, right = below.subplots(1, 2)
    curves = {name: steps[network] for network, name in NETWORKS.items()}
    draw_curves(left, LENGTHS, curves, ("Steps, one after the other", "words", ""), log="xy")
    left.set_yticks((1, 4, 16, 64), [1, 4, 16, 64])

    curves = {network: gradients[network] for network in ("recurrent", "attention")}
    labels = ("Gradient of the first word", "words", "last word = 1")
    draw_curves(right, LENGTHS, curves, labels, log="xy")
    right.lines[1].set(color=LINES[3], marker="D")  # as in the panel on the left
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
cell = nn.GRUCell(16, 16)
layer = rg.MultiHeadAttention(dim=16, heads=2, pattern="causal")
h = torch.zeros(1, 16)
with marked_steps([cell, layer]):
    for x_t in x.unbind(1):
        h = cell(x_t, h)  # needs the state after the word before
    z = layer(x)  # of all words at once
print(longest_chain(h), longest_chain(z))

# %% [markdown]
# A causal convolution of width 3 also computes all words in one step, but each from three words only: itself and the
# two before it. So it takes a stack of about $n / 2$ layers until the last word depends on the first. If each layer
# looks 3 times as far as the layer before (dilated), about $\log_3 n$ layers are enough.


# %% tags=["folded"]
def short(gradient):
    if gradient < 1e-6:
        return "below 0.000001"
    return f"{gradient:.6f}" if gradient < 0.1 else f"{gradient:.2f}"


rows = []
for row, length in enumerate(LENGTHS):
    counts = [steps[network][row] for network in NETWORKS]
    of_recurrent = short(gradients["recurrent"][row])
    of_attention = short(gradients["attention"][row])
    rows.append((length, *counts, of_recurrent, of_attention))
table(
    "Steps that wait for each other, and the gradient of the last output for the first word (last "
    "word = 1)",
    ("words", *NETWORKS.values(), "gradient: recurrent", "attention"),
    rows,
)

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
TARGET_LENGTHS = (4, 8, 16)
sizes = {"vocab_size": 24, "dim": 16, "dropout": 0.0}
transformer_config = TranslationTransformer.Config(heads=2, **sizes)
recurrent_config = RecurrentTranslator.Config(hidden=16, **sizes)
transformer = seeded(SEED, TranslationTransformer, transformer_config).eval()
recurrent = seeded(SEED, RecurrentTranslator, recurrent_config).eval()

generator = torch.Generator().manual_seed(SEED)
source = torch.randint(4, 24, (1, 8), generator=generator)
target = torch.randint(4, 24, (1, 16), generator=generator)

with torch.no_grad():
    state = transformer.start(source)
    one_by_one = [transformer.step(ids, state) for ids in target.unbind(1)]
    difference = largest(transformer(source, target) - torch.stack(one_by_one, 1))

attention_layers = [
    module for module in transformer.modules() if isinstance(module, rg.MultiHeadAttention)
]


def layers_in_training(length):
    """Attention layers that wait for each other while all words of a target are predicted."""
    with marked_steps(attention_layers):
        logits = transformer(source, target[:, :length])
    return longest_chain(logits)


def calls_while_writing(model, length):
    """Calls of `step` while a target is written."""
    with mock.patch.object(model, "step", wraps=model.step) as step:
        greedy_search(model, source, max_tokens=length, special=SpecialIds(end=None))
    return step.call_count


layers = [layers_in_training(length) for length in TARGET_LENGTHS]
transformer_calls = [calls_while_writing(transformer, length) for length in TARGET_LENGTHS]
recurrent_calls = [calls_while_writing(recurrent, length) for length in TARGET_LENGTHS]
columns = (
    "words",
    "Transformer in training: layers",
    "Transformer writing: calls",
    "recurrent translator: calls",
)
rows = list(zip(TARGET_LENGTHS, layers, transformer_calls, recurrent_calls))
table("Steps for a target of n words", columns, rows)

# %% [markdown]
# Why was attention not used before? Attention compares $n^2$ pairs, so it takes more operations than a recurrent
# network for long texts. It is faster on hardware that computes many products at once. A recurrent network uses only a
# part of such hardware. A single core shows this already, because its vector instructions compute several numbers at
# once. (The table leaves out the projections of attention.) The table is for one text at a time. With several texts in
# a batch, a step of the recurrent network is one product for all of them, so it uses more of the hardware, and
# attention is ahead by less: by a few times for tens of texts.

# %% tags=["folded"]
report = read_report("recurrent")


def speed(row):
    """Billions of operations per second."""
    return row["operations"] / row["median"] / 1e9


rows = []
ratios = []  # of the speeds
for gru, attention in zip(report.figures["gru"], report.figures["causal"]):
    row = (
        f"{gru['length']:,}",
        f"{1e3 * gru['median']:.2f}",
        f"{1e3 * attention['median']:.2f}",
        f"{speed(gru):.1f}",
        f"{speed(attention):.1f}",
    )
    rows.append(row)
    ratios.append(speed(attention) / speed(gru))
columns = (
    "words",
    "GRU: ms",
    "causal attention: ms",
    "GRU: billion operations per second",
    "attention",
)
table("Time on one core for one text, 64 numbers per word", columns, rows)
print(report.source)

# %% [markdown]
# The lesson *complexity* measures from which length $n^2$ costs more than it saves.
#
# ## Claims


# %% tags=["folded"]
def ends(counts):
    """Such as: 1 step for 4 words, 7 for 128."""
    steps = "step" if counts[0] == 1 else "steps"
    return f"{counts[0]} {steps} for 4 words, {counts[-1]} for {LENGTHS[-1]}"


rounded_up = [length // 2 for length in LENGTHS]  # (n - 1) / 2, rounded up
enough = [3**count >= length for count, length in zip(steps["dilated"], LENGTHS)]
too_few = [3 ** (count - 1) < length for count, length in zip(steps["dilated"], LENGTHS)]

by_cell = RecurrentNetwork(SEED)
gru = nn.GRU(DIM, DIM, batch_first=True).double()
for name, weight in by_cell.cell.state_dict().items():
    gru.get_parameter(f"{name}_l0").data.copy_(weight)
x = embedded(WORDS, DIM, SEED)
states = torch.stack(by_cell(x.unbind(1)), 1)

lstmn = seeded(SEED, LongShortTermMemoryNetwork, DIM, DIM).double()
with marked_steps([lstmn.gates]):
    read, tapes = lstmn(x)
lstmn_steps = longest_chain(read)

recurrent_gradient = gradients["recurrent"][-1]
attention_gradient = gradients["attention"][-1]

# %% tags=["claims"]
holds(
    "A recurrent network takes one step for each word, one after the other.",
    steps["recurrent"] == list(LENGTHS),
    ends(steps["recurrent"]),
)
holds(
    "Causal convolutions of width 3 connect n words after (n - 1) / 2 layers, rounded up.",
    steps["convolution"] == rounded_up,
    ends(steps["convolution"]),
)
holds(
    "Dilated convolutions connect n words after L layers, where L is the least number with 3^L ≥ n.",
    all(enough) and all(too_few),
    ends(steps["dilated"]),
)
holds(
    "An attention layer takes one step for any length.",
    set(steps["attention"]) == {1},
    ends(steps["attention"]),
)
holds(
    "There is no shortcut: the first word reaches the last output only through all of these steps.",
    paths == steps,
    f"in each of {len(NETWORKS) * len(LENGTHS)} networks: four kinds, {len(LENGTHS)} lengths",
)
holds(
    "torch's GRU computes the same, word by word.",
    largest(gru(x)[0] - states) < 1e-10,
    ROUNDING,
)
holds(
    "An LSTM that attends to all of its earlier states (LSTMN) still reads one word in each step.",
    lstmn_steps == tapes.length == x.shape[1],
    f"{lstmn_steps} steps for {x.shape[1]} words, with {tapes.length} states in its memory",
)
holds(
    "A Transformer predicts all words of a known target in one call, with the same results as word "
    "by word.",
    difference < 1e-10,
    f"{TARGET_LENGTHS[-1]} words, {ROUNDING}",
)
holds(
    "The steps of this call do not grow with the length.",
    len(set(layers)) == 1,
    f"{layers[0]} attention layers for {TARGET_LENGTHS[0]} words, {layers[-1]} for "
    f"{TARGET_LENGTHS[-1]}",
)
holds(
    "Generation takes one call for each word, in a Transformer and in a recurrent network.",
    transformer_calls == recurrent_calls == list(TARGET_LENGTHS),
    f"{TARGET_LENGTHS[-1]} words, {transformer_calls[-1]} and {recurrent_calls[-1]} calls",
)
holds(
    "With random weights the gradient of the first word nearly vanishes in the recurrent network, "
    "but not in the attention layer.",
    recurrent_gradient < 1e-6 and attention_gradient > 1e-3,
    f"{short(recurrent_gradient)} and {short(attention_gradient)} of that of the last word, "
    f"{LENGTHS[-1]} words",
)
holds(
    "On one core, for one text at a time, attention computes at least ten times as many operations "
    "per second as a recurrent network.",
    min(ratios) > 10,
    f"{min(ratios):.0f} to {max(ratios):.0f} times, in the report",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise


@exercise(
    "How many layers of causal convolutions of width 3 connect 64 words?",
    NUMBER,
    hint="Each layer looks two words further back, and the first word is 63 words away.",
    answer="32",
)
def layers_of_convolutions(layers):
    counted = steps["convolution"][LENGTHS.index(64)]
    holds("That many layers connect them.", layers == counted, f"{counted}, you say {layers:g}")


@exercise(
    "Each layer of dilated convolutions looks 3 times as far as the one before. How many layers "
    "connect 64 words?",
    NUMBER,
    hint="With L layers, a word depends on $3^L$ words.",
    answer="4",
)
def layers_of_dilated_convolutions(layers):
    counted = steps["dilated"][LENGTHS.index(64)]
    holds("That many layers connect them.", layers == counted, f"{counted}, you say {layers:g}")


# %% [markdown]
# Source: Vaswani et al. 2017, section 4 and table 1; Cheng et al. 2016 (LSTMN).
