# %% [markdown]
# # A sentence in one vector
#
# **Why does an encoder-decoder without attention fail on long sentences?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
from itertools import pairwise
from statistics import median

import torch

from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.seeing.palette import FAINT
from regard_lab.teaching import (
    Estimate,
    draw_line,
    every,
    figure,
    holds,
    label_axes,
    legend_below,
    read_report,
    seeded,
    table,
)

VOCABULARY = 24
DIM = 8  # the vector has as many numbers as each word
LENGTHS = (1, 2, 4, 8, 12)  # of sources of untrained models
UNTRAINED = {
    "none": "one vector",
    "bahdanau": "Bahdanau's attention",
    "transformer": "Transformer",
}
TRAINED = {
    "none": "one vector",
    "bahdanau": "Bahdanau's attention",
    "luong-general": "Luong's attention",
    "transformer": "Transformer",
}


def new_model(name):
    """An untrained translator in float64."""
    if name == "transformer":
        config = TranslationTransformer.Config(vocab_size=VOCABULARY, dim=DIM, heads=2, dropout=0.0)
        return seeded(SEED, TranslationTransformer, config).eval()
    config = RecurrentTranslator.Config(
        vocab_size=VOCABULARY, dim=DIM, hidden=DIM, attention=name, dropout=0.0
    )
    return seeded(SEED, RecurrentTranslator, config).eval()


def random_text(length, seed=SEED):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCABULARY, (1, length), generator=generator)


def count_directions(name, length):
    """The rank of the gradients of the target's logits with respect to the source's numbers."""
    source = random_text(length)
    target = random_text(length, SEED + 1)

    model = new_model(name)
    first_layer = model.encoder[0] if name == "transformer" else model.encoder
    entered = []  # the source's numbers, (1, length, DIM)
    first_layer.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    logits = model(source, target).flatten()

    every_logit = torch.eye(len(logits), dtype=logits.dtype)
    (gradients,) = torch.autograd.grad(logits, entered[0], every_logit, is_grads_batched=True)
    return int(torch.linalg.matrix_rank(gradients.flatten(1), rtol=1e-10))


directions = {}
for name in UNTRAINED:
    directions[name] = [count_directions(name, length) for length in LENGTHS]

report = read_report("length_story")
TESTED_LENGTHS = (4, 8, 12, 16)  # of the trained models, which were trained up to length 12
# Shares of texts without a mistake, by length: those of all seeds, sorted.
shares = {name: {} for name in TRAINED}
for name, by_length in shares.items():
    accuracies = [row["accuracy"] for row in report.figures["rows"] if row["model"] == name]
    for length in TESTED_LENGTHS:
        by_length[length] = sorted(accuracy[f"{length}"] for accuracy in accuracies)

# %% tags=["folded"]
caption = (
    "Left: however long the source is, only 8 directions of it reach the decoder through one "
    "vector. Right: a translator that is trained with one vector fails at lengths at which those "
    "with attention are still right."
)
title = "One vector of 8 numbers, and texts that get longer"
with figure(title, 7.9, 4.4, caption) as drawing:
    left, right = drawing.subplots(1, 2)

    numbers_of_source = [length * DIM for length in LENGTHS]
    left.plot(LENGTHS, numbers_of_source, "--", color=FAINT, label="numbers in the source")
    for number, (name, label) in enumerate(TRAINED.items()):
        if name in UNTRAINED:
            draw_line(left, LENGTHS, directions[name], number, label)
    left.set(ylim=(0, 101), xticks=LENGTHS)
    label_axes(left, "Untrained: what can reach the decoder", "words of the source", "directions")
    legend_below(left)

    for number, (name, label) in enumerate(TRAINED.items()):
        medians = [median(of_seeds) for of_seeds in shares[name].values()]
        draw_line(right, TESTED_LENGTHS, medians, number, label)
    right.axvspan(12, 16.6, color=FAINT, alpha=0.12, linewidth=0)
    right.text(15, 0.75, "longer than\nin training", fontsize=8.5, color=FAINT, ha="center")
    right.set(ylim=(-0.04, 1.06), xlim=(3.4, 16.6), xticks=TESTED_LENGTHS)
    title = "Trained: texts reversed without a mistake"
    label_axes(right, title, "symbols of the source", "share of 200 texts")
    legend_below(right)

# %% [markdown]
# The first encoder-decoders read a sentence into one vector $c$. The decoder writes the translation from this vector
# alone:
#
# $$
# s_t = f(s_{t-1}, y_{t-1}, c) \qquad c = h_n \text{ for every } t
# $$
#
# This vector has the same size for every sentence, so it cannot hold all words of a long one. With attention the
# decoder keeps the states of all words. At each word that it writes, it computes new weights for them.

# %%
for attention in ("none", "bahdanau"):
    config = RecurrentTranslator.Config(vocab_size=100, dim=64, hidden=64, attention=attention)
    model = RecurrentTranslator(config)
    for words in (5, 50):
        memory = model.start(torch.randint(4, 100, (1, words))).memory  # what the decoder reads
        print(f"{attention}, {words} words: {tuple(memory.values.shape)}")

# %% [markdown]
# How much can reach the decoder? A source of $n$ words enters as $8 n$ numbers. A direction is a change of these
# numbers. The table counts the independent directions that can change what the decoder writes. (This is the rank of the
# matrix of gradients.) Through a vector of 8 numbers at most 8 pass, whatever the weights are.
#
# With attention nearly all pass. The last norm of the Transformer's encoder fixes mean and variance of each word, which
# leaves 6 of 8 directions per word. Bahdanau's attention sometimes misses one direction, whose effect is below
# $10^{-10}$ of the strongest and is therefore not counted.

# %% tags=["folded"]
rows = []
for row, length in enumerate(LENGTHS):
    rows.append((length, length * DIM, *(counts[row] for counts in directions.values())))
columns = ("words", "numbers in the source", *UNTRAINED.values())
table("Directions that can change the logits", columns, rows)


@torch.no_grad()
def bytes_read(name, length):
    """What the decoder reads of a source, in float32."""
    state = new_model(name).float().start(random_text(length))
    return state.sources.nbytes if name == "transformer" else state.memory.nbytes


nbytes = {}
for name in UNTRAINED:
    nbytes[name] = [bytes_read(name, length) for length in LENGTHS]

rows = []
for row, length in enumerate(LENGTHS):
    rows.append((length, *(f"{counts[row]:,}" for counts in nbytes.values())))
table("Bytes of the source that the decoder reads", ("words", *UNTRAINED.values()), rows)

# %% [markdown]
# A number takes 4 bytes (float32). Bahdanau's encoder reads in two directions and keeps 16 numbers for each word. The
# Transformer keeps a key and a value in each of its layers.
#
# Trained models show what this costs. They learned to reverse texts of 3 to 12 symbols. No model does well on texts
# longer than those: attention removes the limit of the vector, but models must still be trained on such lengths.


# %% tags=["folded"]
def spread(of_seeds):
    return f"{median(of_seeds):.3f} ({of_seeds[0]:.3f} to {of_seeds[-1]:.3f})"


rows = []
for name, label in TRAINED.items():
    rows.append((label, *(spread(of_seeds) for of_seeds in shares[name].values())))
columns = ("model", *(f"{length} symbols" for length in TESTED_LENGTHS))
table("Texts reversed without a mistake, median over seeds (lowest to highest)", columns, rows)
print(report.source)

# %% [markdown]
# ## Claims


# %% tags=["folded"]
def estimates(length, models):
    """The share of texts without a mistake of each model and seed, by value."""
    tests = report.figures["recipe"]["tests"]
    values = []
    for name in models:
        values += shares[name][length]
    return [Estimate.share(value, tests) for value in sorted(values)]


WITH_ATTENTION = ("bahdanau", "luong-general", "transformer")
lowest_at_4 = estimates(4, TRAINED)[0]
lowest_with_attention_at_12 = estimates(12, WITH_ATTENTION)[0]
highest_without_at_12 = estimates(12, ["none"])[-1]
highest_at_16 = estimates(16, TRAINED)[-1]
transformer_at_16 = shares["transformer"][16][-1]

longest = LENGTHS[-1]
through_vector = directions["none"]
by_bahdanau = directions["bahdanau"]
by_transformer = directions["transformer"]


def grow(counts):
    return all(fewer < more for fewer, more in pairwise(counts))


bahdanau_bytes = nbytes["bahdanau"]
transformer_bytes = nbytes["transformer"]

# %% tags=["claims"]
holds(
    "Through one vector of 8 numbers, at most 8 directions of a source reach the decoder.",
    max(through_vector) <= DIM,
    f"{through_vector[-1]} of {longest * DIM} for {longest} words",
)
holds(
    "With attention, every further word adds directions that reach the decoder.",
    grow(by_bahdanau)
    and grow(by_transformer)
    and min(by_bahdanau[-1], by_transformer[-1]) > 2 * DIM,
    f"{by_bahdanau[-1]} and {by_transformer[-1]} of {longest * DIM} for {longest} words",
)
holds(
    "Without attention the decoder reads as many bytes of a long source as of a short one.",
    len(set(nbytes["none"])) == 1,
    f"{nbytes['none'][0]} bytes",
)
holds(
    "With attention the bytes grow in proportion to the length.",
    bahdanau_bytes == [bahdanau_bytes[0] * length for length in LENGTHS]
    and transformer_bytes == [transformer_bytes[0] * length for length in LENGTHS],
    f"{bahdanau_bytes[0]:,} to {bahdanau_bytes[-1]:,} and {transformer_bytes[0]:,} to "
    f"{transformer_bytes[-1]:,} bytes",
)
holds(
    "Trained models with and without attention reverse short texts.",
    lowest_at_4.above(0.9),
    f"at least {lowest_at_4} of 200 texts at length 4",
)
holds(
    "At the longest training length only the models with attention still reverse texts, with every "
    "seed.",
    every(lowest_with_attention_at_12.above(0.9), highest_without_at_12.below(0.2)),
    f"at least {lowest_with_attention_at_12} with attention and at most {highest_without_at_12} "
    "with one vector at length 12",
)
holds(
    "Beyond the training lengths all models fail on more than half of the texts, the Transformer "
    "too.",
    highest_at_16.below(0.5),
    f"at most {highest_at_16} at length 16; the Transformer {transformer_at_16:.3f}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise, one_of


@exercise(
    "A source of 12 words enters as 8 numbers for each word. How many independent changes of the "
    "source can reach a decoder that reads one vector of 8 numbers?",
    NUMBER,
    hint="What reaches the decoder passes through the vector.",
    answer="8",
)
def directions_through_a_vector(count):
    counted = directions["none"][LENGTHS.index(12)]
    holds("That many directions pass.", count == counted, f"{counted}, you say {count:g}")


@exercise(
    "Which decoder reads as many bytes of a long source as of a short one?",
    one_of("one vector", "attention"),
    hint="One of them keeps a state for each word of the source.",
    answer="one vector",
)
def reads_as_many_bytes(decoder):
    counts = nbytes[{"one vector": "none", "attention": "bahdanau"}[decoder]]
    holds(
        "This decoder reads as many bytes for every length.",
        len(set(counts)) == 1,
        f"{counts[0]:,} bytes of {LENGTHS[0]} word, {counts[-1]:,} of {LENGTHS[-1]}",
    )


# %% [markdown]
# Source: Cho et al. 2014, section 2.2; Bahdanau et al. 2015, section 5.1 and figure 2.
