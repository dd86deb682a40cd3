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
from regard_lab.seeing.canvas import FAINT
from regard_lab.teaching import (
    Estimate, draw_line, every, figure, holds, label_axes, legend_below, read_report, seeded, table
)  # fmt: skip

VOCABULARY, DIM, LENGTHS = 24, 8, (1, 2, 4, 8, 12)  # the vector has as many numbers as each word
MODELS = {
    "none": "one vector", "bahdanau": "Bahdanau's attention", "luong-general": "Luong's attention",
    "transformer": "Transformer",
}  # fmt: skip
UNTRAINED = ("none", "bahdanau", "transformer")


def new_model(name):
    """An untrained translator in float64."""
    if name == "transformer":
        config = TranslationTransformer.Config(vocab_size=VOCABULARY, dim=DIM, heads=2, dropout=0.0)
        return seeded(SEED, TranslationTransformer, config).eval()
    config = RecurrentTranslator.Config(vocab_size=VOCABULARY, dim=DIM, hidden=DIM, attention=name, dropout=0.0)
    return seeded(SEED, RecurrentTranslator, config).eval()


def random_text(length, seed=SEED):
    return torch.randint(4, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(seed))


def directions(name, length):
    """The rank of the gradients of the target's logits with respect to the source's numbers."""
    model, entered = new_model(name), []
    first = model.encoder[0] if name == "transformer" else model.encoder
    first.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    logits = model(random_text(length), random_text(length, SEED + 1)).flatten()
    every_one = torch.eye(len(logits), dtype=logits.dtype)
    gradients = torch.autograd.grad(logits, entered[0], every_one, is_grads_batched=True)[0].flatten(1)
    return int(torch.linalg.matrix_rank(gradients, rtol=1e-10))


reaching = {name: [directions(name, length) for length in LENGTHS] for name in UNTRAINED}
report = read_report("length_story")
tested = tuple(map(int, report.figures["rows"][0]["accuracy"]))  # lengths
shares = {  # of texts without a mistake, by length, of all seeds in order
    name: [sorted(row["accuracy"][f"{length}"] for row in report.figures["rows"] if row["model"] == name)
           for length in tested]
    for name in MODELS
}  # fmt: skip

with figure("One vector of 8 numbers, and texts that get longer", 7.9, 4.4,
            "Left: however long the source is, only 8 directions of it reach the decoder through one vector. Right: a "
            "translator that is trained with one vector fails at lengths at which those with attention are still "
            "right.") as drawing:  # fmt: skip
    left, right = drawing.subplots(1, 2)
    left.plot(LENGTHS, [length * DIM for length in LENGTHS], "--", color=FAINT, label="numbers in the source")
    for number, (name, label) in enumerate(MODELS.items()):
        if name in UNTRAINED:
            draw_line(left, LENGTHS, reaching[name], number, label)
        draw_line(right, tested, list(map(median, shares[name])), number, label)
    left.set(ylim=(0, 101), xticks=LENGTHS)
    label_axes(left, "Untrained: what can reach the decoder", "words of the source", "directions")
    right.axvspan(12, 16.6, color=FAINT, alpha=0.12, linewidth=0)
    right.text(15, 0.75, "longer than\nin training", fontsize=8.5, color=FAINT, ha="center")
    right.set(ylim=(-0.04, 1.06), xlim=(3.4, 16.6), xticks=tested)
    label_axes(right, "Trained: texts reversed without a mistake", "symbols of the source", "share of 200 texts")
    for axes in (left, right):
        legend_below(axes)

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
titles = [MODELS[name] for name in UNTRAINED]
rows = [(length, length * DIM, *counts) for length, *counts in zip(LENGTHS, *reaching.values())]
table("Directions that can change the logits", ("words", "numbers in the source", *titles), rows)


@torch.no_grad()
def read_bytes(name, length):
    """What the decoder reads of a source, in float32."""
    state = new_model(name).float().start(random_text(length))
    return state.sources.nbytes if name == "transformer" else state.memory.nbytes


held = {name: [read_bytes(name, length) for length in LENGTHS] for name in UNTRAINED}
rows = [(length, *(f"{count:,}" for count in counts)) for length, *counts in zip(LENGTHS, *held.values())]
table("Bytes of the source that the decoder reads", ("words", *titles), rows)

# %% [markdown]
# A number takes 4 bytes (float32). Bahdanau's encoder reads in two directions and keeps 16 numbers for each word. The
# Transformer keeps a key and a value in each of its layers.
#
# Trained models show what this costs. They learned to reverse texts of 3 to 12 symbols. No model does well on texts
# longer than those: attention removes the limit of the vector, but models must still be trained on such lengths.

# %% tags=["folded"]
spread = lambda values: f"{median(values):.3f} ({values[0]:.3f} to {values[-1]:.3f})"
rows = [(MODELS[name], *map(spread, by_length)) for name, by_length in shares.items()]
columns = ("model", *(f"{length} symbols" for length in tested))
table("Texts reversed without a mistake, median over seeds (lowest to highest)", columns, rows)
print(report.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
vector, attending = reaching["none"], [name for name in UNTRAINED if name != "none"]
holds("Through one vector of 8 numbers, at most 8 directions of a source reach the decoder.", max(vector) <= DIM,
      f"{vector[-1]} of {LENGTHS[-1] * DIM} for {LENGTHS[-1]} words")  # fmt: skip
holds("With attention, every further word adds directions that reach the decoder.",
      all(one < two for name in attending for one, two in pairwise(reaching[name]))
      and all(reaching[name][-1] > 2 * DIM for name in attending),
      f"{' and '.join(str(reaching[name][-1]) for name in attending)} of "
      f"{LENGTHS[-1] * DIM} for {LENGTHS[-1]} words")  # fmt: skip
holds("Without attention the decoder reads as many bytes of a long source as of a short one.",
      len(set(held["none"])) == 1, f"{held['none'][0]} bytes")  # fmt: skip
holds("With attention the bytes grow in proportion to the length.",
      all(held[name] == [held[name][0] * length for length in LENGTHS] for name in attending),
      " and ".join(f"{held[name][0]:,} to {held[name][-1]:,}" for name in attending) + " bytes")  # fmt: skip


def share(name, place, rank):
    """The share of the lowest (0) or the highest (-1) seed at a length."""
    return Estimate.share(shares[name][place][rank], report.figures["recipe"]["tests"])


by_value = {"key": lambda one: one.value}
lowest = min((share(name, 0, 0) for name in MODELS), **by_value)
least = min((share(name, 2, 0) for name in MODELS if name != "none"), **by_value)
most, farthest = share("none", 2, -1), max((share(name, 3, -1) for name in MODELS), **by_value)
holds("Trained models with and without attention reverse short texts.", lowest.above(0.9),
      f"at least {lowest} of 200 texts at length {tested[0]}")  # fmt: skip
holds("At the longest training length only the models with attention still reverse texts, with every seed.",
      every(least.above(0.9), most.below(0.2)),
      f"at least {least} with attention and at most {most} with one vector at length {tested[2]}")  # fmt: skip
holds("Beyond the training lengths all models fail on more than half of the texts, the Transformer too.",
      farthest.below(0.5),
      f"at most {farthest} at length {tested[3]}; the Transformer {shares['transformer'][3][-1]:.3f}")  # fmt: skip

# %% [markdown]
# Source: Cho et al. 2014, section 2.2; Bahdanau et al. 2015, section 5.1 and figure 2.
