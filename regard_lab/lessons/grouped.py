# %% [markdown]
# # Fewer key/value heads
#
# **What do shared key/value heads save, and what do they cost?**

# %% tags=["parameters"]
TEXT = "The animal did not cross the street because it was too tired."
SEED = 0

# %% tags=["folded"]
import copy

import torch

import regard as rg
from regard_lab.conversion.heads import resized
from regard_lab.seeing.palette import FAINT, INK, KEY, QUERY, VALUE
from regard_lab.teaching import (
    ROUNDING,
    embedded,
    figure,
    holds,
    largest,
    normal,
    read_report,
    seeded,
    table,
    words_of,
)

NAMES = {  # by number of key/value heads
    8: "multi-head",
    4: "grouped-query, GQA-4",
    2: "grouped-query, GQA-2",
    1: "multi-query",
}
FEWER = (4, 2, 1)
CAPACITY = 2048  # words in a cache


def cache_nbytes(kv_heads, batch=1):
    """Bytes of the cache of a layer with 8 query heads, for `batch` texts."""
    layer = rg.MultiHeadAttention(256, 8, kv_heads=kv_heads)
    return layer.new_cache(batch, "static", capacity=CAPACITY).nbytes


nbytes = {kv_heads: cache_nbytes(kv_heads) for kv_heads in NAMES}

# %% tags=["folded"]
caption = (
    "Above: the query heads; below: the keys and the values that they read. The cache of "
    f"{CAPACITY:,} words (dim 256, float32) shrinks with the number of key/value heads."
)
with figure("8 query heads share key/value heads", 8.0, 2.5, caption) as drawing:
    for axes, (kv_heads, name) in zip(drawing.subplots(1, 4), NAMES.items()):
        for head in range(8):
            group = head // (8 // kv_heads)
            middle = (group + 0.5) * 8 / kv_heads - 0.5  # below the heads of its group
            axes.plot([head, middle], [1.7, 0.9], color=FAINT, linewidth=0.9, zorder=1)
            axes.bar(head, 0.5, 0.7, 1.7, color=QUERY)
            axes.bar(middle, 0.4, 0.7, 0.5, color=KEY)
            axes.bar(middle, 0.4, 0.7, 0.0, color=VALUE)
        for letter, height, colour in (("q", 1.95, QUERY), ("k", 0.7, KEY), ("v", 0.2, VALUE)):
            axes.text(
                7.6, height, letter, color=colour, fontsize=10, fontweight="bold", va="center"
            )
        axes.set_title(name, fontsize=9.5, color=INK)
        axes.set_xlabel(f"cache: {nbytes[kv_heads] / 2**20:g} MiB", fontsize=9.5, color=INK)
        axes.set(xlim=(-0.6, 8.2), ylim=(-0.1, 2.7), xticks=[], yticks=[])
        axes.spines[:].set_visible(False)

# %% [markdown]
# A model that writes text keeps the keys and values of all earlier words for every head, and reads all of them in every
# step. Fewer key/value heads make this cache smaller: a step is faster, and more texts or longer ones fit into memory.
#
# In **grouped-query attention** (GQA) several query heads share one key/value head. GQA-$G$ has $G$ groups. With as
# many groups as heads it is multi-head attention; with one group it is **multi-query attention**. With $H$ query heads,
#
# $$
# \text{query head } h \text{ reads key/value head } \left\lfloor h \cdot \frac{G}{H} \right\rfloor
# $$
#
# The queries still differ, so the heads still attend to different words, and there are as many scores as before. Only
# the keys and values that are stored and read become fewer. The cache holds $2 \cdot n \cdot G \cdot d$ numbers for $n$
# words: a key and a value of $d$ numbers for each word and group.
#
# PaLM and Falcon 7B use multi-query attention, Llama 2 70B grouped-query attention. In `regard`, `heads` is $H$ and
# `kv_heads` is $G$; each head has $d = 256 / 8 = 32$ numbers, of 4 bytes each:

# %%
for kv_heads in (8, 4, 2, 1):
    layer = rg.MultiHeadAttention(dim=256, heads=8, kv_heads=kv_heads, pattern="causal")
    cache = layer.new_cache(batch=1, kind="static", capacity=2048)
    with torch.no_grad():
        layer(torch.randn(1, 12, 256), cache=cache)
    by_formula = 2 * 2048 * kv_heads * 32 * 4
    print(f"{kv_heads} key/value heads: {cache.nbytes} bytes, by the formula {by_formula}")

# %% [markdown]
# In multi-query attention, keys and values need no axis of heads. Here the letter h is missing in k and v:

# %%
q = torch.randn(1, 8, 12, 32, dtype=torch.float64)  # b h q d
k, v = torch.randn(2, 1, 12, 32, dtype=torch.float64)  # b k d each: without the axis of heads
weights = (torch.einsum("bhqd,bkd->bhqk", q, k) / 32**0.5).softmax(-1)
without_axis = torch.einsum("bhqk,bkd->bhqd", weights, v)
with_axis = rg.attention(q, k[:, None], v[:, None])  # b h k d, with h = 1
print(torch.allclose(without_axis, with_axis))

# %% tags=["folded"]
MEMORY = 64 * 2**20  # bytes
texts_in_memory = {kv_heads: MEMORY // nbytes[kv_heads] for kv_heads in NAMES}
rows = []
for kv_heads, name in NAMES.items():
    rows.append((kv_heads, name, f"{nbytes[kv_heads] // 1024:,} KiB", texts_in_memory[kv_heads]))
table(
    f"Texts of {CAPACITY:,} words in one layer (dim 256, float32)",
    ("kv_heads", "name", "cache of a text", "texts in 64 MiB"),
    rows,
)

# %% [markdown]
# ## What sharing costs
#
# A trained model is **converted**: the key and value projections of each group are replaced by their mean, and training
# goes on for some steps. Here the heads are random and independent, which is the worst case. The mean is still closer
# to the original than the first head of each group or new random heads. (The distance is the length of the difference
# of the two outputs, divided by the length of the original output.)

# %% tags=["folded"]
x = embedded(words_of(TEXT), 256, SEED)  # (1, words, 256)
original = seeded(SEED, rg.MultiHeadAttention, 256, 8, pattern="causal")
WAYS = {
    "mean": "the mean of the heads",
    "first": "the first of the heads",
    "new": "new random weights",
}


def converted(layer, kv_heads, way):
    """The layer with another number of key/value heads.

    With more key/value heads than before, "mean" repeats each.
    """
    new = seeded(SEED + 1, rg.MultiHeadAttention, 256, 8, kv_heads=kv_heads, pattern="causal")
    new.to_q = copy.deepcopy(layer.to_q)
    new.to_output = copy.deepcopy(layer.to_output)
    if way == "new":
        return new

    for before, after in ((layer.to_k, new.to_k), (layer.to_v, new.to_v)):
        for old_parameter, parameter in zip(before.parameters(), after.parameters()):
            parameter.data = resized(old_parameter.detach(), layer.kv_heads, kv_heads, way)
    return new


errors = {}  # relative, by way and number of key/value heads
with torch.no_grad():
    expected = original(x)
    for way in WAYS:
        for kv_heads in NAMES:
            output = converted(original, kv_heads, way)(x)
            errors[way, kv_heads] = float((output - expected).norm() / expected.norm())

rows = []
for kv_heads in NAMES:
    rows.append((kv_heads, *(f"{errors[way, kv_heads]:.3f}" for way in WAYS)))
table(
    f"Relative distance from the output with 8 key/value heads, on {x.shape[1]} words",
    ("kv_heads", *WAYS.values()),
    rows,
)

# %% [markdown]
# Trained models show how much quality is lost. Character models with 8 key/value heads were converted by the mean and
# trained further. Their quality is the number of bits that a model needs to say which character comes next: with one
# bit less it gives this character twice the probability.
#
# The learning rate of this training rises to its peak again, so even the original model becomes slightly worse: in its
# row the first number is from before these steps, the second from after them. The loss of quality is measured against
# the first.

# %% tags=["folded"]
report = read_report("generation")
original_heads = report.figures["heads"]
more_steps = report.figures["uptrain_steps"] / report.figures["steps"]


def bits_of(name, kv_heads):
    """Bits for each character, one number for each seed."""
    return [row[name] for row in report.figures["rows"] if row["kv_heads"] == kv_heads]


def mean_and_range(bits):
    return f"{sum(bits) / len(bits):.3f} ({min(bits):.3f} to {max(bits):.3f})"


every_row = report.figures["rows"]
rows = [
    (
        f"{original_heads} (original)",
        mean_and_range([row["before"] for row in every_row]),
        mean_and_range([row["control"] for row in every_row]),
    )
]
for kv_heads in FEWER:
    converted_bits = bits_of("converted", kv_heads)
    trained_bits = bits_of("uptrained", kv_heads)
    rows.append((kv_heads, mean_and_range(converted_bits), mean_and_range(trained_bits)))
table(
    f"Bits for each of {report.figures['held_out']:,} held-out characters (lower is better), "
    f"{len(trained_bits)} seeds",
    ("key/value heads", "converted", f"after {more_steps:.0%} more steps"),
    rows,
)
print(report.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
holds(
    "The cache shrinks in proportion to kv_heads: it holds 2 · words · kv_heads · head_dim numbers.",
    all(nbytes[kv_heads] == 2 * CAPACITY * kv_heads * 32 * 4 for kv_heads in NAMES),
    f"{nbytes[8]:,} bytes with 8, {nbytes[1]:,} with 1",
)

as_large = all(cache_nbytes(kv_heads, batch=8 // kv_heads) == nbytes[8] for kv_heads in NAMES)
as_many = all(texts_in_memory[heads] == texts_in_memory[8] * 8 // heads for heads in NAMES)
batches = ", ".join(f"{texts} texts with {heads}" for heads, texts in texts_in_memory.items())
holds(
    "In the same memory, a model with fewer key/value heads holds a larger batch.",
    as_large and as_many,
    f"64 MiB hold {batches} key/value heads",
)

H = 8
G = 2
q = normal(SEED, 1, H, 7, 16)  # (batch, heads, words, head_dim)
k = normal(SEED + 1, 1, G, 7, 16)
v = normal(SEED + 2, 1, G, 7, 16)
by_head = []
for h in range(H):
    kv_head = h // (H // G)
    by_head.append(rg.attention(q[:, [h]], k[:, [kv_head]], v[:, [kv_head]]))
holds(
    "Query head h reads key/value head h // (heads // kv_heads).",
    largest(rg.attention(q, k, v) - torch.cat(by_head, 1)) < 1e-12,
    f"8 query heads on 2, {ROUNDING}",
)
holds(
    "Multi-query attention gives the same output without an axis of heads in k and v.",
    largest(without_axis - with_axis) < 1e-12,
    f"einsum with and without the axis, {ROUNDING}",
)

equal_heads = converted(converted(original, 2, "first"), 8, "mean")  # 2 groups of 4 equal heads
holds(
    "If the heads of a group are equal, their mean does not change the output.",
    largest(converted(equal_heads, 2, "mean")(x) - equal_heads(x)) < 1e-12,
    ROUNDING,
)
holds(
    "If they differ, their mean is closer to the original than the first head of the group or new "
    "heads.",
    all(
        errors["mean", heads] < min(errors["first", heads], errors["new", heads]) for heads in FEWER
    ),
    f"with 2 key/value heads {', '.join(f'{errors[way, 2]:.2f}' for way in WAYS)}",
)

before = torch.tensor([bits_of("before", kv_heads) for kv_heads in FEWER])  # (3, seeds) each
pooled = torch.tensor([bits_of("converted", kv_heads) for kv_heads in FEWER])
trained = torch.tensor([bits_of("uptrained", kv_heads) for kv_heads in FEWER])
control = torch.tensor([bits_of("control", kv_heads) for kv_heads in FEWER])
means = [f"{bits:.3f} with {heads}" for heads, bits in zip(FEWER, trained.mean(1))]
holds(
    "Fewer key/value heads cost quality: the fewer they are, the more bits a character needs after "
    "further training.",
    bool((trained.diff(dim=0) > 0).all() and (trained > control).all()),
    f"report: {', '.join(means)} key/value heads, {control.mean():.3f} with {original_heads}",
)

recovered = (pooled - trained) / (pooled - before)
recovered_by_means = (pooled - trained).sum(1) / (pooled - before).sum(1)
by_means = [f"{share:.0%} with {heads}" for heads, share in zip(FEWER, recovered_by_means)]
holds(
    "Further training recovers most of what the conversion lost, in every seed.",
    bool((recovered > 0.5).all()),
    f"report: at least {recovered.min():.0%} of the lost bits in one seed; by the means "
    f"{', '.join(by_means)} key/value heads",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, WHOLE_NUMBERS, exercise

projections = normal(SEED + 3, 8, 32, 256)  # of eight key heads, (heads, head_dim, dim)


@exercise(
    "There are 8 query heads and 2 key/value heads, counted from 0. Which query heads read key/value "
    "head 1?",
    WHOLE_NUMBERS,
    hint="Query head h reads key/value head h // 4.",
    answer="4 5 6 7",
)
def readers_of_head_1(heads):
    changed = v.clone()
    changed[:, 1] += 1
    moved = (rg.attention(q, k, changed) != rg.attention(q, k, v)).flatten(2).any(-1)
    measured = moved[0].nonzero().flatten().tolist()
    holds("These heads read it.", heads == measured, f"{measured}, you say {heads}")


@exercise(
    "`projections` (8, 32, 256) are those of eight key heads. Convert them to 2 key/value heads: "
    "each is the mean of its group.",
    CODE,
    hint="Neighbouring heads form a group, so an axis of 8 becomes two axes of 2 and 4.",
    answer="projections.view(2, 4, 32, 256).mean(1)",
)
def means_of_groups(pooled):
    expected = resized(projections.flatten(0, 1), 8, 2, "mean").view(2, 32, 256)
    holds(
        "These are the means that `regard convert kv-heads` takes.",
        pooled.shape == expected.shape and largest(pooled - expected) < 1e-12,
        f"shape {[*expected.shape]}, yours {[*pooled.shape]}",
    )


# %% [markdown]
# Source: Shazeer 2019; Ainslie et al. 2023 (names, section 2.2; conversion, section 2.1 and figure 4); Chowdhery
# et al. 2022 (PaLM, section 2); Touvron et al. 2023 (Llama 2, section 2.2).
