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
from regard_lab.seeing.palette import FAINT, INK, LINES
from regard_lab.teaching import (
    Estimate,
    does_not_hold,
    every,
    figure,
    holds,
    label_axes,
    legend_below,
    read_report,
    table,
)

report = read_report("transfer")
recipe = report.figures["recipe"]
LABELS = recipe["labels"]  # how many there are in a training
trainings = []  # with each number of labels, one for each seed
for labels in LABELS:
    trainings += [record for record in report.figures["records"] if record["labels"] == labels]

# %% tags=["folded"]
caption = (
    "Each line joins two trainings with the same labels: from random weights (circle) and from the "
    "copied encoder (diamond). With 20 labels no model learns much, with 500 every model does; "
    "between them the lines are longest."
)
body = ["embedding", *(f"layer {layer}" for layer in range(recipe["layers"])), "norm"]
ARROW = {"arrowstyle": "-|>", "color": INK}


def draw_tower(axes, left, head, colour, title):
    """The parts of a model, one above the other, its head on top."""
    middle = left + 0.85
    for level, part in enumerate([*body, head]):
        shade = colour if part == head else LINES[0]
        axes.add_patch(
            Rectangle((left, level), 1.7, 0.86, facecolor=shade, alpha=0.35, edgecolor=INK)
        )
        axes.text(middle, level + 0.43, part, ha="center", va="center", fontsize=9, color=INK)
    axes.text(middle, -0.2, title, ha="center", va="top", fontsize=9, color=INK)


with figure("The encoder is copied, and only the head is new", 7.8, 4.6, caption) as drawing:
    towers, gains = drawing.subplots(1, 2, width_ratios=(1, 1.15))
    draw_tower(towers, 0, "which word?", LINES[2], "texts without labels")
    draw_tower(towers, 2.6, "which kind?", LINES[1], "a few labels")
    for level in range(len(body)):
        height = level + 0.43
        towers.annotate("", (2.55, height), (1.75, height), arrowprops=ARROW)
    towers.text(2.15, len(body) - 0.1, "copied", ha="center", va="bottom", fontsize=9, color=INK)
    towers.set(xlim=(-0.1, 4.4), ylim=(-0.6, len(body) + 1.1))
    towers.set_axis_off()

    rows = []
    for place, training in enumerate(trainings):
        row = place + 0.8 * LABELS.index(training["labels"])  # a gap between numbers of labels
        rows.append(row)
    from_random = [training["scratch"] for training in trainings]
    from_encoder = [training["transfer"] for training in trainings]
    gains.hlines(rows, from_random, from_encoder, FAINT, linewidth=1.5)
    gains.plot(from_random, rows, "o", color=LINES[1], markersize=6, label="random weights")
    gains.plot(from_encoder, rows, "D", color=LINES[0], markersize=6, label="copied encoder")

    most_frequent = max(training["commonest"] for training in trainings)
    gains.axvline(most_frequent, color=INK, linestyle="--", linewidth=1)
    gains.text(
        0.13,
        0.02,
        "the most frequent kind",
        rotation=90,
        transform=gains.get_xaxis_transform(),
        fontsize=9,
        color=FAINT,
    )
    title = "The same labels, two starting points"
    label_axes(gains, title, "share of test sentences that are right", "")
    names = [f"{training['labels']} labels, seed {training['seed']}" for training in trainings]
    gains.set_yticks(rows, names, fontsize=8.5)
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
config = TextEncoder.Config(vocab_size=2000, dim=64, layers=2)
encoder = TextEncoder(config)  # or TextEncoder.load("words")
with torch.no_grad():
    for parameter in encoder.parameters():  # in place of training: no number stays as it began
        parameter += 0.1 * torch.randn_like(parameter)
classifier = encoder.changed(head="classes", classes=11)

# %% tags=["folded"]
trained = encoder.state_dict()
copied = Counter()  # numbers, by the part of the model
new = Counter()
for name, tensor in classifier.state_dict().items():
    first, second, *_ = name.split(".")  # such as layers.1.attention.to_q.weight
    part = f"layer {second}" if second.isdigit() else first
    if name in trained and torch.equal(trained[name], tensor):
        copied[part] += tensor.numel()
    else:
        new[part] += tensor.numel()

PARTS = ("embedding", "layer 0", "layer 1", "norm", "head")
table(
    "Numbers of the classifier before its training",
    ("part", "copied", "new"),
    [(part, f"{copied[part]:,}", f"{new[part]:,}") for part in PARTS],
)

# %% [markdown]
# The labels of the measurement say which of 11 kinds of thing *it* refers to, as in “The animal did not cross the
# street because it was too tired.” The pairs of nouns in the test sentences occur in no training sentence. Both
# models have the same sizes, labels and steps, and each has the learning rate that was best for it on validation
# sentences. One starts from random weights, the other from an encoder that learned to predict masked words.

# %% tags=["folded"]
rows = []
for training in trainings:
    scratch = training["scratch"]
    transfer = training["transfer"]
    shares = (f"{scratch:.3f}", f"{transfer:.3f}", f"{transfer - scratch:+.3f}")
    baselines = (f"{training['commonest']:.3f}", f"{training['last_word']:.3f}")
    rows.append((training["labels"], training["seed"], *shares, *baselines))
table(
    f"Share of {recipe['test']:,} test sentences that are right",
    (
        "labels",
        "seed",
        "from random weights",
        f"from {recipe['sentences']:,} sentences without labels",
        "margin",
        "most frequent kind",
        "last word",
    ),
    rows,
)
print(report.source)

# %% [markdown]
# The last two columns need no network. *Most frequent kind* always gives the same answer. *Last word* is a table: for
# the last word of a sentence, such as *tired*, it has the kind that this word most often stands for in the same labels.
# With 100 labels the model from random weights is no better than this table. From 300 labels on both models are better,
# so they use more of the sentence.
#
# Both learning problems use the same corpus, so this is an easy case of transfer. The gain is largest with 100 labels,
# and there it differs much from seed to seed. With 20 labels it is not certain, and with 500 little is left to gain.
#
# **A model of English from elsewhere** is the usual case. all-MiniLM-L6-v2 has 22 million parameters and was trained on
# far more text, but on none of these sentences. Here its weights stay as they are, and a linear layer reads its vector
# of *it* and the mean of all its vectors. It has the same labels and test sentences. With 20 labels it is the best
# on average; from 300 labels on our encoder is better, because it has read such sentences:

# %% tags=["folded"]
english_report = read_report("english")
english_trainings = english_report.figures["transfer"]["records"]


def shares_of(trainings, model, labels):
    """The shares of right sentences of a model with so many labels, one for each seed."""
    return [training[model] for training in trainings if training["labels"] == labels]


def listed(shares):
    return " ".join(f"{share:.3f}" for share in shares)


rows = []
for labels in LABELS:
    english = listed(shares_of(english_trainings, "english", labels))
    transfer = listed(shares_of(trainings, "transfer", labels))
    scratch = listed(shares_of(trainings, "scratch", labels))
    rows.append((labels, english, transfer, scratch))
table(
    "Share of test sentences that are right, each for three seeds",
    ("labels", "English model, linear layer", "our encoder of masked words", "from random weights"),
    rows,
)
print(english_report.source)

# %% [markdown]
# ## Claims


# %% tags=["claims"]
def margins(labels):
    """How much more often the encoder of masked words is right, one number for each seed."""
    transfer = shares_of(trainings, "transfer", labels)
    scratch = shares_of(trainings, "scratch", labels)
    return [after - before for after, before in zip(transfer, scratch)]


def mean_and_deviation(values):
    return f"{fmean(values):+.3f} ± {stdev(values):.3f} over {len(values)} seeds"


def share_of_test(value):
    """A share of the test sentences, and its standard error."""
    return Estimate.share(value, recipe["test"])


holds(
    "The classifier takes over every tensor of the encoder, and only its head is new.",
    copied.total() > 0 and set(new) == {"head"} and copied["head"] == 0,
    f"{copied.total():,} numbers copied, {new.total():,} new",
)
for labels in (300, 500):
    gained = margins(labels)
    holds(
        f"With {labels} labels the encoder of masked words is better with every seed, by more than "
        "two standard deviations.",
        min(gained) > 0 and fmean(gained) > 2 * stdev(gained),
        mean_and_deviation(gained),
    )

transfer = shares_of(trainings, "transfer", 300)
scratch = shares_of(trainings, "scratch", 300)
tested = recipe["test"] * len(transfer)  # sentences
wrong_transfer = Estimate.share(1 - fmean(transfer), tested)
wrong_scratch = Estimate.share(1 - fmean(scratch), tested)
holds(
    "With 300 labels it makes less than half as many mistakes as the model from random weights.",
    wrong_transfer.below(wrong_scratch.times(0.5)),
    f"{wrong_transfer} and {wrong_scratch} of the sentences are wrong",
)

gained = margins(100)
holds(
    "With 100 labels it is better with every seed, but the seeds differ too much to say by how "
    "much.",
    min(gained) > 0 and fmean(gained) <= 2 * stdev(gained),
    mean_and_deviation(gained),
)
gained = margins(20)
does_not_hold(
    "With 20 labels it is better with every seed.",
    min(gained) > 0,
    mean_and_deviation(gained),
)

verdicts = []
least = []  # of the two models of each training
most_frequent = []
for training in trainings:
    if training["labels"] < 100:
        continue
    worse = min(training["scratch"], training["transfer"])
    least.append(worse)
    most_frequent.append(training["commonest"])
    three_times = share_of_test(training["commonest"]).times(3)
    verdicts.append(share_of_test(worse).above(three_times))
holds(
    "From 100 labels on, all models are right more than three times as often as always answering "
    "the most frequent kind.",
    every(*verdicts),
    f"at least {min(least):.3f}; the most frequent kind {max(most_frequent):.3f}",
)


def is_better_with_every_seed(shares, others):
    """Whether every share of the test sentences is above the other of the same seed."""
    verdicts = []
    for share, other in zip(shares, others):
        verdicts.append(share_of_test(share).above(share_of_test(other)))
    return every(*verdicts)


def compare_with_table(check, sentence, model, labels):
    """Check that a model is better than the table of last words with every seed."""
    by_model = shares_of(trainings, model, labels)
    by_table = shares_of(trainings, "last_word", labels)
    check(
        sentence,
        is_better_with_every_seed(by_model, by_table),
        f"{listed(by_model)}; the last word {listed(by_table)}",
    )


for model, name in (("scratch", "model from random weights"), ("transfer", "copied encoder")):
    sentence = f"With 300 labels the {name} is better than a table of last words, with every seed."
    compare_with_table(holds, sentence, model, 300)
sentence = "With 100 labels the model from random weights is better than a table of last words."
compare_with_table(does_not_hold, sentence, "scratch", 100)


def compare_with_english(check, sentence, labels):
    """Check that our encoder is better than the English model with every seed."""
    ours = shares_of(trainings, "transfer", labels)
    english = shares_of(english_trainings, "english", labels)
    check(
        sentence,
        is_better_with_every_seed(ours, english),
        f"{min(ours):.3f} or more; the English model {max(english):.3f} or less",
    )


for labels in (300, 500):
    sentence = (
        f"With {labels} labels our encoder, which has read such sentences, is better than a linear "
        "layer on the English model, with every seed."
    )
    compare_with_english(holds, sentence, labels)
sentence = "With 20 labels our encoder is better than the English model with every seed."
compare_with_english(does_not_hold, sentence, 20)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise


@exercise(
    "The encoder has a vocabulary of 2,000 ids and 64 numbers for each. How many numbers of its "
    "embedding does the classifier take over?",
    NUMBER,
    hint="A row of 64 numbers for each id.",
    answer="128000",
)
def copied_numbers(count):
    counted = copied["embedding"]
    holds("It takes over that many.", count == counted, f"{counted:,}, you say {count:,.0f}")


@exercise(
    "What is the smallest number of labels with which the model from random weights is better than the "
    "table of last words, for every seed?",
    NUMBER,
    hint="Compare two columns of the table, for 20, 100, 300 and 500 labels.",
    answer="300",
)
def labels_beyond_the_table(labels):
    better = []
    for number in LABELS:
        by_model = shares_of(trainings, "scratch", number)
        by_table = shares_of(trainings, "last_word", number)
        if all(share > of_table for share, of_table in zip(by_model, by_table)):
            better.append(number)
    holds("It is this number.", labels == min(better), f"{min(better)}, you say {labels:g}")


# %% [markdown]
# Source: Devlin et al. 2019 (BERT), sections 3.1 and 3.2.
