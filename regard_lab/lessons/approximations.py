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
from regard_lab.seeing.canvas import FAINT
from regard_lab.teaching import (
    ROUNDING, draw_line, draw_map, figure, holds, label_axes, legend_below, scale_beside, table,
)  # fmt: skip
from regard_lab.teaching.approximating import (
    Text, estimated_weights, exponential_errors, means_of_neighbours, output_error, slope, words_in_topics,
)  # fmt: skip

FLAT, SHARP = 0.5, 4.0  # the factor of the cosines in the scores

few = words_in_topics(SHARP, SEED, topics=6, count=48)
maps = {
    "softmax: exact": (few.q @ few.k.mT).softmax(-1)[0, 0],
    "Performer, 256 features": estimated_weights(few, Performer(256, SEED)),
    "RFA, 256 features": estimated_weights(few, RandomFeature(256, seed=SEED, sigma=SHARP**-0.5)),
    "linear transformer": estimated_weights(few, LinearTransformer()),
    "LSH, 2 rounds": estimated_weights(few, LSH(8, 12, 2, SEED)),
    "Linformer, 12 mixtures": estimated_weights(few, *means_of_neighbours(12, 48)),
}

with figure("One matrix of weights, and how five mechanisms estimate it", 7.8, 5.2,
            "48 words in 6 topics, sorted by topic: rows are queries, columns "
            "keys. Each block is a topic.") as drawing:  # fmt: skip
    panels = drawing.subplots(2, 3)
    for axes, (name, weights) in zip(panels.flat, maps.items()):
        image = draw_map(axes, weights, limits=(0.0, float(maps["softmax: exact"].max())))
        axes.set_aspect("equal")
        axes.set_title(name, fontsize=10, fontweight="bold" if axes is panels[0, 0] else "normal")
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
FEATURES, ROUNDS, RANKS = (16, 64, 256, 1024), (1, 2, 4, 8), (4, 16, 64, 256)
N, TOPICS = 256, 16  # words, groups of similar words
flat, sharp = (words_in_topics(factor, SEED, TOPICS, N) for factor in (FLAT, SHARP))
loose = words_in_topics(SHARP, SEED, N, N)  # each word is a topic of its own
order = torch.randperm(N, generator=torch.Generator().manual_seed(SEED))
shuffled = Text(sharp.q[:, :, order], sharp.v[:, :, order])


def errors_of(call, *mechanisms):
    return [output_error(call, *(one if isinstance(one, tuple) else (one,)), seed=SEED) for one in mechanisms]


errors = {}
for end, call, factor in (("flat", flat, FLAT), ("sharp", sharp, SHARP)):
    errors["Performer", end] = errors_of(call, *map(Performer, FEATURES))
    errors["RFA", end] = errors_of(call, *(RandomFeature(m, sigma=factor**-0.5) for m in FEATURES))
    errors["linear transformer", end] = errors_of(call, LinearTransformer())
    errors["mean of all values", end] = errors_of(call, means_of_neighbours(1, N))
for end, call in (("words in topics", sharp), ("no topics", loose)):
    errors["LSH", end] = errors_of(call, *(LSH(32, N // 16, rounds) for rounds in ROUNDS))
for end, call in (("sorted by topic", sharp), ("shuffled", shuffled)):
    errors["Linformer", end] = errors_of(call, *(means_of_neighbours(rank, N) for rank in RANKS))
costs = {  # multiplications relative to 2 n² d of exact attention, times n: features, sums and scores
    "Performer": [2 * m for m in FEATURES], "RFA": [3 * m for m in FEATURES], "linear transformer": [16],
    "mean of all values": [0], "LSH": [rounds * (2 * 32 + 4) for rounds in ROUNDS], "Linformer": [2 * r for r in RANKS],
}  # fmt: skip
PARTS = (  # of the figure, which draws two names of each, and of the tables
    ("estimates of every weight", ("Performer", "RFA", "linear transformer", "mean of all values"), FEATURES,
     "features", ("flat", "sharp")),
    ("LSH, sharp weights", ("LSH",), ROUNDS, "rounds", ("words in topics", "no topics")),
    ("Linformer, sharp weights", ("Linformer",), RANKS, "mixtures", ("sorted by topic", "shuffled")),
)  # fmt: skip

with figure("The more is computed, the smaller the error", 8.0, 4.3,
            "Left: the dashed line falls like 1 / √features. LSH, Linformer: sharp weights; an error of 0 is drawn at "
            "0.001.") as drawing:  # fmt: skip
    panels = drawing.subplots(1, 3)
    for axes, (_, names, settings, unit, _) in zip(panels, PARTS):
        names = names[:2]
        for number, (name, end) in enumerate(one for one in errors if one[0] in names):
            label = f"{name}, {end}" if len(names) > 1 else end
            draw_line(axes, settings, [max(one, 0.001) for one in errors[name, end]], number, label)
        label_axes(axes, " and ".join(names), unit, "relative error" if axes is panels[0] else "")
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(settings, [f"{one:,}" for one in settings])
        axes.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
        axes.minorticks_off()
    start = 0.6 * errors["RFA", "flat"][0]
    panels[0].plot(FEATURES, [start * (16 / m) ** 0.5 for m in FEATURES], "--", color=FAINT, linewidth=1)
    panels[1].set_yticks([0.3, 1, 3])
    for axes in panels:
        legend_below(axes, columns=1)
for title, names, settings, unit, ends in PARTS:
    rows = [
        (f"{name}, {unit}: {settings[at]:,}" if len(costs[name]) > 1 else name,
         *(f"{errors[name, end][at]:.3f}" for end in ends), f"{cost / N:.2f}", f"{cost / 8192:.3f}")
        for name in names for at, cost in enumerate(costs[name])
    ]  # fmt: skip
    table(f"Relative error, and multiplications relative to exact attention: {title}",
          ("mechanism", *ends, "cost at n = 256", "cost at n = 8,192"), rows)  # fmt: skip

# %% [markdown]
# ## Claims


# %% tags=["claims"]
slopes = {name: slope(errors[name, "flat"], FEATURES) for name in ("Performer", "RFA")}
off = {
    name: exponential_errors(flat, one, seed=SEED, draws=64)  # of one draw, and of the mean of all draws
    for name, one in (("Performer", Performer(64)), ("RFA", RandomFeature(64, sigma=FLAT**-0.5)),
                      ("linear transformer", LinearTransformer()))
}  # fmt: skip
harder = [more / less for more, less in zip(errors["Performer", "sharp"], errors["Performer", "flat"])]
topics, alone = errors["LSH", "words in topics"], errors["LSH", "no topics"]
tidy, mixed, at = errors["Linformer", "sorted by topic"], errors["Linformer", "shuffled"], RANKS.index(TOPICS)
holds("The error of Performer and RFA falls like 1 / sqrt(features) for flat weights.",
      all(abs(one + 0.5) < 0.15 for one in slopes.values()),
      f"{', '.join(f'{name}: slope {one:.2f}' for name, one in slopes.items())} on logarithmic axes")  # fmt: skip
holds("Both estimate exp(q · k) without bias: the mean of many draws is closer than one draw.",
      all(off[name][1] < off[name][0] / 4 for name in slopes),
      ", ".join(f"{name}: one draw {off[name][0]:.3f}, 64 draws {off[name][1]:.3f}" for name in slopes))  # fmt: skip
holds("The linear transformer estimates another function: it has no parameter that brings it closer to exp(q · k).",
      off["linear transformer"][0] == off["linear transformer"][1] > 0.1,
      f"relative error {off['linear transformer'][1]:.3f} when multiplied by the best factor")  # fmt: skip
holds("Performer suits flat weights: with sharp weights its error is larger at every number of features.",
      min(harder) > 1, f"{min(harder):.1f} to {max(harder):.1f} times as large")  # fmt: skip
holds("LSH needs similar words: with topics its error is at most two thirds of that without topics, and more rounds "
      "reduce it.",
      all(one < other / 1.5 for one, other in zip(topics, alone)) and topics[-1] < topics[0],
      f"with 8 rounds {topics[-1]:.3f} and {alone[-1]:.3f}; with 1 round {topics[0]:.3f}")  # fmt: skip
holds("LSH computes a text that fits into one chunk exactly.", errors_of(sharp, LSH(N, 2, 1))[0] < 1e-12, ROUNDING)
holds("Linformer needs keys that its mixtures can represent: sorted words have less than half the error of the same "
      "words shuffled.",
      tidy[at] < mixed[at] / 2,
      f"{tidy[at]:.3f} and {mixed[at]:.3f} with {TOPICS} mixtures for {TOPICS} topics")  # fmt: skip
holds("With as many mixtures as words, each of one word, Linformer is exact.",
      max(tidy[-1], mixed[-1]) < 1e-12, ROUNDING)  # fmt: skip

# %% [markdown]
# Source: Choromanski et al. 2021; Peng et al. 2021; Kitaev et al. 2020; Wang et al. 2020; Katharopoulos et al. 2020.
