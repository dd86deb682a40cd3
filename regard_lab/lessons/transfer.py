# %% [markdown]
# # Transfer learning
#
# **Does training on texts without labels reduce the number of labels that are needed?**

# %% tags=["folded"]
from collections import Counter
from statistics import fmean, stdev

import torch
from matplotlib.patches import Rectangle

from regard_lab.models import TextEncoder
from regard_lab.seeing.canvas import FAINT, INK, LINES
from regard_lab.teaching import (
    Estimate, does_not_hold, every, figure, holds, label_axes, legend_below, read_report, table
)  # fmt: skip

report = read_report("transfer")
recipe, records = report.figures["recipe"], report.figures["records"]
groups = {labels: [one for one in records if one["labels"] == labels] for labels in recipe["labels"]}

with figure("The encoder is copied, and only the head is new", 7.8, 4.6,
            "Each arrow compares two trainings with the same labels: from random weights (circle) and from the copied "
            "encoder (diamond). With 20 labels no model learns much, with 500 every model does; between them the "
            "arrows are longest.") as drawing:  # fmt: skip
    towers, gains = drawing.subplots(1, 2, width_ratios=(1, 1.15))
    body = ["embedding", *(f"layer {layer}" for layer in range(recipe["layers"])), "norm"]
    for left, head, colour, title in (
        (0, "which word?", LINES[2], "texts without labels"),
        (2.6, "which kind?", LINES[1], "a few labels"),
    ):
        for level, part in enumerate([*body, head]):
            shade = colour if part == head else LINES[0]
            towers.add_patch(Rectangle((left, level), 1.7, 0.86, facecolor=shade, alpha=0.35, edgecolor=INK))
            towers.text(left + 0.85, level + 0.43, part, ha="center", va="center", fontsize=9, color=INK)
        towers.text(left + 0.85, -0.2, title, ha="center", va="top", fontsize=9, color=INK)
    for level in range(len(body)):
        towers.annotate("", (2.55, level + 0.43), (1.75, level + 0.43), arrowprops={"arrowstyle": "-|>", "color": INK})
    towers.text(2.15, len(body) - 0.1, "copied", ha="center", va="bottom", fontsize=9, color=INK)
    towers.set(xlim=(-0.1, 4.4), ylim=(-0.6, len(body) + 1.1))
    towers.set_axis_off()
    ordered = [one for group in groups.values() for one in group]
    rows = [place + 0.8 * list(groups).index(one["labels"]) for place, one in enumerate(ordered)]
    for row, one in zip(rows, ordered):
        gains.annotate("", (one["transfer"], row), (one["scratch"], row),
                       arrowprops={"arrowstyle": "-|>", "color": FAINT, "shrinkA": 4, "shrinkB": 3})  # fmt: skip
    for name, number, mark, text in (("scratch", 1, "o", "random weights"), ("transfer", 0, "D", "copied encoder")):
        gains.plot([one[name] for one in ordered], rows, mark, color=LINES[number], markersize=6, label=text)
    gains.axvline(max(one["commonest"] for one in records), color=INK, linestyle="--", linewidth=1)
    gains.text(0.13, 0.02, "the most frequent kind", rotation=90, transform=gains.get_xaxis_transform(), fontsize=9,
               color=FAINT)  # fmt: skip
    label_axes(gains, "The same labels, two starting points", "share of test sentences that are right", "")
    gains.set_yticks(rows, [f"{one['labels']} labels, seed {one['seed']}" for one in ordered], fontsize=8.5)
    gains.invert_yaxis()
    gains.set_xlim(0, 1.05)
    gains.grid(axis="x", alpha=0.25)
    legend_below(gains)

# %% [markdown]
# Labels are expensive, texts without labels are not. So an encoder is trained twice. First it learns to predict words
# that were hidden in texts without labels. Then its last part, the head, is replaced by a new one for the labels, and
# training goes on with the few labelled texts. What the encoder learned about the language stays. This is three
# commands:
#
# ```sh
# regard train masked-words --data texts.txt --out words              # texts without labels
# regard train classifier --data labels.tsv --from words --out kinds  # a line is: label TAB text
# regard classify kinds "The animal did not cross the street because it was too tired."
# ```
#
# `changed` makes the model with the new head. Every other tensor is the trained one:

# %%
encoder = TextEncoder(TextEncoder.Config(vocab_size=2000, dim=64, layers=2))  # or TextEncoder.load("words")
with torch.no_grad():
    for parameter in encoder.parameters():  # in place of training: no number stays as it began
        parameter += 0.1 * torch.randn_like(parameter)
classifier = encoder.changed(head="classes", classes=11)

# %% tags=["folded"]
trained, copied, new = encoder.state_dict(), Counter(), Counter()
for name, tensor in classifier.state_dict().items():
    place = name.split(".")  # such as layers.1.attention.to_q.weight
    part = f"layer {place[1]}" if place[1].isdigit() else place[0]
    (copied if name in trained and torch.equal(trained[name], tensor) else new)[part] += tensor.numel()
parts = ["embedding", "layer 0", "layer 1", "norm", "head"]
table("Numbers of the classifier before its training", ("part", "copied", "new"),
      [(part, f"{copied[part]:,}", f"{new[part]:,}") for part in parts])  # fmt: skip

# %% [markdown]
# The labels of the measurement say which of 11 kinds of thing *it* refers to, as in “The animal did not cross the
# street because it was too tired.” The pairs of nouns in the test sentences occur in no training sentence. Both
# models have the same sizes, labels and steps, and each has the learning rate that was best for it on validation
# sentences. One starts from random weights, the other from an encoder that learned to predict masked words.

# %% tags=["folded"]
table(f"Share of {recipe['test']:,} test sentences that are right",
      ("labels", "seed", "from random weights", f"from {recipe['sentences']:,} sentences without labels", "margin",
       "most frequent kind"),
      [(one["labels"], one["seed"], f"{one['scratch']:.3f}", f"{one['transfer']:.3f}",
        f"{one['transfer'] - one['scratch']:+.3f}", f"{one['commonest']:.3f}") for one in ordered])  # fmt: skip
print(report.source)

# %% [markdown]
# Both learning problems use the same corpus, so this is an easy case of transfer. The gain is largest with 100 labels,
# and there it differs much from seed to seed. With 20 labels it is not certain, and with 500 little is left to gain.
#
# **A model of English from elsewhere** is the usual case. all-MiniLM-L6-v2 has 22 million parameters and was trained on
# far more text, but on none of these sentences. Here its weights stay as they are, and a linear layer reads its vector
# of *it* and the mean of all its vectors. It has the same labels and test sentences. With 20 labels it is the best
# on average; from 300 labels on our encoder is better, because it has read such sentences:

# %% tags=["folded"]
english = read_report("english")
tried = english.figures["transfer"]["records"]
ways = [(tried, "english"), (records, "transfer"), (records, "scratch")]


def shares(some, way, labels):
    return [one[way] for one in some if one["labels"] == labels]


table(
    "Share of test sentences that are right, each for three seeds",
    ("labels", "English model, linear layer", "our encoder of masked words", "from random weights"),
    [(labels, *(" ".join(f"{share:.3f}" for share in shares(*way, labels)) for way in ways)) for labels in groups],
)  # fmt: skip
print(english.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
margins = {labels: [one["transfer"] - one["scratch"] for one in group] for labels, group in groups.items()}
wrong, wrong_scratch = (
    Estimate.share(1 - fmean(one[name] for one in groups[300]), recipe["test"] * len(groups[300]))
    for name in ("transfer", "scratch")
)


def spread(values):
    return f"{fmean(values):+.3f} ± {stdev(values):.3f} over {len(values)} seeds"


holds("The classifier takes over every tensor of the encoder, and only its head is new.",
      sum(copied.values()) > 0 and set(new) == {"head"} and not copied["head"],
      f"{sum(copied.values()):,} numbers copied, {sum(new.values()):,} new")  # fmt: skip
for labels in (300, 500):
    holds(f"With {labels} labels the encoder of masked words is better with every seed, by more than two standard "
          "deviations.",
          min(margins[labels]) > 0 and fmean(margins[labels]) > 2 * stdev(margins[labels]),
          spread(margins[labels]))  # fmt: skip
holds("With 300 labels it makes less than half as many mistakes as the model from random weights.",
      wrong.below(wrong_scratch.times(0.5)), f"{wrong} and {wrong_scratch} of the sentences are wrong")  # fmt: skip
holds("With 100 labels it is better with every seed, but the seeds differ too much to say by how much.",
      min(margins[100]) > 0 and fmean(margins[100]) <= 2 * stdev(margins[100]), spread(margins[100]))  # fmt: skip
does_not_hold("With 20 labels it is better with every seed.", min(margins[20]) > 0, spread(margins[20]))
enough = [one for one in records if one["labels"] >= 100]
least = [Estimate.share(min(one["scratch"], one["transfer"]), recipe["test"]) for one in enough]
commonest = [Estimate.share(one["commonest"], recipe["test"]) for one in enough]
holds("From 100 labels on, all models are right more than three times as often as always answering the most frequent "
      "kind.",
      every(*(share.above(other.times(3)) for share, other in zip(least, commonest))),
      f"at least {min(one.value for one in least):.3f}; the most frequent kind "
      f"{max(one.value for one in commonest):.3f}")  # fmt: skip


def beside_english(labels):
    """Our encoder and the English model: whether ours is better with every seed, and the figures."""
    own, other = ([Estimate.share(one, recipe["test"]) for one in shares(*way, labels)] for way in ways[1::-1])
    figures = (
        f"{min(one.value for one in own):.3f} or more; the English model {max(one.value for one in other):.3f} or less"
    )
    return every(*(one.above(another) for one, another in zip(own, other))), figures


for labels in (300, 500):
    holds(f"With {labels} labels our encoder, which has read such sentences, is better than a linear layer on the "
          "English model, with every seed.", *beside_english(labels))  # fmt: skip
does_not_hold("With 20 labels our encoder is better than the English model with every seed.", *beside_english(20))

# %% [markdown]
# Source: Devlin et al. 2019 (BERT), sections 3.1 and 3.2.
