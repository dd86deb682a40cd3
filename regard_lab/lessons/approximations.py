# %% [markdown]
# # Five approximations
#
# **What does each cheaper attention estimate, and how well?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import torch

import regard as rg
from regard.mechanisms import LSH, LinearTransformer, Performer, RandomFeature
from regard_lab.seeing.palette import FAINT
from regard_lab.teaching import (
    ROUNDING,
    draw_line,
    draw_map,
    figure,
    holds,
    label_axes,
    legend_below,
    scale_beside,
    table,
)
from regard_lab.teaching.approximating import (
    SharedKeysCall,
    estimated_weights,
    exponential_errors,
    means_of_neighbours,
    output_error,
    slope,
    words_in_topics,
)

FLAT = 0.5  # the factor of the cosines in the scores: the weights are nearly equal
SHARP = 4.0  # few weights are large

few = words_in_topics(SHARP, SEED, topics=6, count=48)
exact = (few.q @ few.k.mT).softmax(-1)[0, 0]  # (words, words)
linformer, mixtures = means_of_neighbours(12, 48)
maps = {
    "softmax: exact": exact,
    "Performer, 256 features": estimated_weights(few, Performer(256, SEED)),
    "RFA, 256 features": estimated_weights(few, RandomFeature(256, seed=SEED, sigma=SHARP**-0.5)),
    "linear transformer": estimated_weights(few, LinearTransformer()),
    "LSH, 2 rounds": estimated_weights(few, LSH(8, 12, 2, SEED)),
    "Linformer, 12 mixtures": estimated_weights(few, linformer, mixtures),
}

# %% tags=["folded"]
title = "One matrix of weights, and how five mechanisms estimate it"
caption = (
    "48 words in 6 topics, sorted by topic: rows are queries, columns keys. Each block is a topic."
)
with figure(title, 7.8, 5.2, caption) as drawing:
    panels = drawing.subplots(2, 3)
    for axes, (name, weights) in zip(panels.flat, maps.items()):
        image = draw_map(axes, weights, limits=(0.0, float(exact.max())))
        axes.set_aspect("equal")
        axes.set_title(name, fontsize=10, fontweight="bold" if weights is exact else "normal")
    scale_beside(drawing, image, panels, "weight")

# %% [markdown]
# Softmax attention of $n$ words computes $n^2$ weights. Each of five mechanisms avoids this, and each loses something
# different. The first three replace the exponential of a score by a product of features:
#
# $$
# \exp(q \cdot k) \approx φ(q) \cdot φ(k)
# $$
#
# - **Performer** and **random feature attention** (RFA) have random features. The more there are, the closer the
#   estimate comes to softmax.
# - The **linear transformer** has the features $\operatorname{elu}(x) + 1$. Their product is another function, and no
#   setting brings it closer to softmax.
# - **LSH attention** (Reformer) computes exact weights for the pairs that share a hash, and none for the others. It
#   suits attention in which few weights are large. It uses the same vectors as queries and keys, and is compared with
#   exact attention that does so too.
# - **Linformer** mixes $n$ keys and values into $r$ by a matrix. It suits keys that $r$ mixtures can represent.

# %%
q, k, v = torch.randn(3, 1, 1, 256, 16) * 0.5  # (batch, heads, length, head_dim) each
exact = rg.attention(q, k, v)
for features in (16, 64, 256, 1024):
    estimate = rg.attention(q, k, v, mechanism=Performer(features, seed=0))
    print(f"{features:5} features: relative error {(estimate - exact).norm() / exact.norm():.2f}")

# %% [markdown]
# The same lines measure what a mechanism or a pattern loses on your own tensors.
#
# ## Errors and costs
#
# Here 256 words belong to 16 topics; words of a topic have similar vectors. Scores are cosines times 0.5 (flat weights)
# or 4 (sharp weights). A trained Linformer learns its mixtures; here they are means of neighbouring words. Errors are
# divided by the size of the exact output, and are means over 8 seeds.

# %% tags=["folded"]
N = 256  # words
TOPICS = 16  # groups of similar words
FEATURES = (16, 64, 256, 1024)
ROUNDS = (1, 2, 4, 8)  # of LSH
RANKS = (4, 16, 64, 256)  # r, the mixtures of Linformer

flat = words_in_topics(FLAT, SEED, TOPICS, N)
sharp = words_in_topics(SHARP, SEED, TOPICS, N)
no_topics = words_in_topics(SHARP, SEED, N, N)  # each word is a topic of its own
order = torch.randperm(N, generator=torch.Generator().manual_seed(SEED))
shuffled = SharedKeysCall(sharp.q[:, :, order], sharp.v[:, :, order])


def errors_of(text, *mechanisms):
    """The relative error of each mechanism."""
    return [output_error(text, mechanism, seed=SEED) for mechanism in mechanisms]


def errors_of_linformer(text, *ranks):
    """The relative error of Linformer with each number of mixtures."""
    errors = []
    for r in ranks:
        mechanism, mixtures = means_of_neighbours(r, N)
        errors.append(output_error(text, mechanism, mixtures, seed=SEED))
    return errors


errors = {}  # by mechanism and text: one for each number of features, rounds or mixtures
for kind, text, factor in (("flat", flat, FLAT), ("sharp", sharp, SHARP)):
    performers = [Performer(m) for m in FEATURES]
    random_features = [RandomFeature(m, sigma=factor**-0.5) for m in FEATURES]
    errors["Performer", kind] = errors_of(text, *performers)
    errors["RFA", kind] = errors_of(text, *random_features)
    errors["linear transformer", kind] = errors_of(text, LinearTransformer())
    errors["mean of all values", kind] = errors_of_linformer(text, 1)
for kind, text in (("words in topics", sharp), ("no topics", no_topics)):
    errors["LSH", kind] = errors_of(text, *(LSH(32, N // 16, rounds) for rounds in ROUNDS))
for kind, text in (("sorted by topic", sharp), ("shuffled", shuffled)):
    errors["Linformer", kind] = errors_of_linformer(text, *RANKS)

# %% tags=["folded"]
caption = (
    "Left: the dashed line falls like 1 / √features. LSH, Linformer: sharp weights; an error of 0 "
    "is drawn at 0.001."
)


def draw_errors(axes, title, unit, settings, curves):
    """Draw errors by the number of features, rounds or mixtures."""
    for number, (label, values) in enumerate(curves.items()):
        draw_line(axes, settings, [max(error, 0.001) for error in values], number, label)
    label_axes(axes, title, unit, "")
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(settings, [f"{setting:,}" for setting in settings])
    axes.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axes.minorticks_off()


with figure("The more is computed, the smaller the error", 8.0, 4.3, caption) as drawing:
    panels = drawing.subplots(1, 3)
    features_axes, rounds_axes, ranks_axes = panels
    curves = {
        "Performer, flat": errors["Performer", "flat"],
        "RFA, flat": errors["RFA", "flat"],
        "Performer, sharp": errors["Performer", "sharp"],
        "RFA, sharp": errors["RFA", "sharp"],
    }
    draw_errors(features_axes, "Performer and RFA", "features", FEATURES, curves)
    features_axes.set_ylabel("relative error")
    start = 0.6 * errors["RFA", "flat"][0]
    falling = [start * (16 / m) ** 0.5 for m in FEATURES]
    features_axes.plot(FEATURES, falling, "--", color=FAINT, linewidth=1)

    curves = {kind: errors["LSH", kind] for kind in ("words in topics", "no topics")}
    draw_errors(rounds_axes, "LSH", "rounds", ROUNDS, curves)
    rounds_axes.set_yticks([0.3, 1, 3])

    curves = {kind: errors["Linformer", kind] for kind in ("sorted by topic", "shuffled")}
    draw_errors(ranks_axes, "Linformer", "mixtures", RANKS, curves)
    for axes in panels:
        legend_below(axes, columns=1)


# %% tags=["folded"]
def error_row(label, name, place, kinds, cost):
    """A row of a table.

    Args:
        label: of the row.
        name: of the mechanism.
        place: of the setting among those that were measured.
        kinds: of texts.
        cost: multiplications divided by 2 n d; those of exact attention give n.
    """
    shown_errors = [f"{errors[name, kind][place]:.3f}" for kind in kinds]
    return (label, *shown_errors, f"{cost / N:.2f}", f"{cost / 8192:.3f}")


def error_table(title, kinds, rows):
    table(
        f"Relative error, and multiplications relative to exact attention: {title}",
        ("mechanism", *kinds, "cost at n = 256", "cost at n = 8,192"),
        rows,
    )


kinds = ("flat", "sharp")
rows = []
for place, m in enumerate(FEATURES):  # features of queries and keys, and sums
    rows.append(error_row(f"Performer, features: {m:,}", "Performer", place, kinds, 2 * m))
for place, m in enumerate(FEATURES):
    rows.append(error_row(f"RFA, features: {m:,}", "RFA", place, kinds, 3 * m))
rows.append(error_row("linear transformer", "linear transformer", 0, kinds, 16))
rows.append(error_row("mean of all values", "mean of all values", 0, kinds, 0))
error_table("estimates of every weight", kinds, rows)

kinds = ("words in topics", "no topics")
rows = []
for place, rounds in enumerate(ROUNDS):  # scores of two chunks of 32 words, and hashes
    cost = rounds * (2 * 32 + 4)
    rows.append(error_row(f"LSH, rounds: {rounds}", "LSH", place, kinds, cost))
error_table("LSH, sharp weights", kinds, rows)

kinds = ("sorted by topic", "shuffled")
rows = []
for place, r in enumerate(RANKS):  # mixtures, and scores
    rows.append(error_row(f"Linformer, mixtures: {r}", "Linformer", place, kinds, 2 * r))
error_table("Linformer, sharp weights", kinds, rows)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
slopes = {name: slope(errors[name, "flat"], FEATURES) for name in ("Performer", "RFA")}
shown_slopes = ", ".join(f"{name}: slope {value:.2f}" for name, value in slopes.items())
holds(
    "The error of Performer and RFA falls like 1 / sqrt(features) for flat weights.",
    all(abs(value + 0.5) < 0.15 for value in slopes.values()),
    f"{shown_slopes} on logarithmic axes",
)

DRAWS = 64
MECHANISMS = {
    "Performer": Performer(64),
    "RFA": RandomFeature(64, sigma=FLAT**-0.5),
    "linear transformer": LinearTransformer(),
}
one_draw = {}  # errors of exp(q · k)
mean_of_draws = {}
for name, mechanism in MECHANISMS.items():
    of_one, of_mean = exponential_errors(flat, mechanism, seed=SEED, draws=DRAWS)
    one_draw[name] = of_one
    mean_of_draws[name] = of_mean
shown_errors = []
for name in ("Performer", "RFA"):
    shown_errors.append(
        f"{name}: one draw {one_draw[name]:.3f}, 64 draws {mean_of_draws[name]:.3f}"
    )
holds(
    "Both estimate exp(q · k) without bias: the mean of many draws is closer than one draw.",
    all(mean_of_draws[name] < one_draw[name] / 4 for name in ("Performer", "RFA")),
    ", ".join(shown_errors),
)
bias = mean_of_draws["linear transformer"]
holds(
    "The linear transformer estimates another function: it has no parameter that brings it closer "
    "to exp(q · k).",
    one_draw["linear transformer"] == bias and bias > 0.1,
    f"relative error {bias:.3f} when multiplied by the best factor",
)

flat_and_sharp = zip(errors["Performer", "flat"], errors["Performer", "sharp"])
times_as_large = [of_sharp / of_flat for of_flat, of_sharp in flat_and_sharp]
holds(
    "Performer suits flat weights: with sharp weights its error is larger at every number of "
    "features.",
    min(times_as_large) > 1,
    f"{min(times_as_large):.1f} to {max(times_as_large):.1f} times as large",
)

with_topics = errors["LSH", "words in topics"]
without_topics = errors["LSH", "no topics"]
smaller = all(error < more / 1.5 for error, more in zip(with_topics, without_topics))
holds(
    "LSH needs similar words: with topics its error is at most two thirds of that without topics, "
    "and more rounds reduce it.",
    smaller and with_topics[-1] < with_topics[0],
    f"with 8 rounds {with_topics[-1]:.3f} and {without_topics[-1]:.3f}; with 1 round "
    f"{with_topics[0]:.3f}",
)
in_one_chunk = LSH(N, 2, 1)
holds(
    "LSH computes a text that fits into one chunk exactly.",
    errors_of(sharp, in_one_chunk)[0] < 1e-12,
    ROUNDING,
)

of_sorted = errors["Linformer", "sorted by topic"]
of_shuffled = errors["Linformer", "shuffled"]
place = RANKS.index(TOPICS)
holds(
    "Linformer needs keys that its mixtures can represent: sorted words have less than half the "
    "error of the same words shuffled.",
    of_sorted[place] < of_shuffled[place] / 2,
    f"{of_sorted[place]:.3f} and {of_shuffled[place]:.3f} with {TOPICS} mixtures for {TOPICS} topics",
)
holds(
    "With as many mixtures as words, each of one word, Linformer is exact.",
    max(of_sorted[-1], of_shuffled[-1]) < 1e-12,
    ROUNDING,
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise, one_of


@exercise(
    "With 16 features a Performer has some error for flat weights. How many features does it need for "
    "a quarter of this error?",
    NUMBER,
    hint="The error falls as one over the square root of the number of features.",
    answer="256",
)
def features_for_a_quarter(count):
    features = min(max(1, round(count)), 4096)
    ratio = errors_of(flat, Performer(features))[0] / errors["Performer", "flat"][0]
    holds(
        "They have a quarter of the error, give or take a fifth.",
        0.2 < ratio < 0.3,
        f"{features:,} features have {ratio:.2f} of the error of 16",
    )


@exercise(
    "Which mechanism computes a text of 256 words exactly if all words are in one chunk?",
    one_of("performer", "linear transformer", "lsh"),
    hint="Two of them replace the exponential by a product of features.",
    answer="lsh",
)
def exact_in_one_chunk(name):
    mechanism = {
        "performer": Performer(256),
        "linear transformer": LinearTransformer(),
        "lsh": LSH(N, 2, 1),
    }[name]
    (error,) = errors_of(sharp, mechanism)
    holds("It is exact.", error < 1e-9, f"its relative error is {error:.2g}")


# %% [markdown]
# Source: Choromanski et al. 2021; Peng et al. 2021; Kitaev et al. 2020; Wang et al. 2020; Katharopoulos et al. 2020.
