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
from regard_lab.seeing.canvas import FAINT, INK, KEY, QUERY, VALUE
from regard_lab.teaching import (
    ROUNDING, embedded, figure, holds, largest, normal, read_report, seeded, table, words_of,
)  # fmt: skip

NAMES = {8: "multi-head", 4: "grouped-query, GQA-4", 2: "grouped-query, GQA-2", 1: "multi-query"}
HELD = 2048  # words in a cache


def cache_of(kv_heads, batch=1):
    return rg.MultiHeadAttention(256, 8, kv_heads=kv_heads).new_cache(batch, "static", capacity=HELD)


sizes = {kv_heads: cache_of(kv_heads).nbytes for kv_heads in NAMES}

with figure("8 query heads share key/value heads", 8.0, 2.5,
            f"Above: the query heads; below: the keys and the values that they read. The cache of {HELD:,} words (dim "
            "256, float32) shrinks with the number of key/value heads.") as drawing:  # fmt: skip
    for axes, (kv_heads, name) in zip(drawing.subplots(1, 4), NAMES.items()):
        for head in range(8):
            shared = head // (8 // kv_heads)
            middle = (shared + 0.5) * 8 / kv_heads - 0.5  # below the heads of its group
            axes.plot([head, middle], [1.7, 0.9], color=FAINT, linewidth=0.9, zorder=1)
            axes.bar(head, 0.5, 0.7, 1.7, color=QUERY)
            axes.bar(middle, 0.4, 0.7, 0.5, color=KEY)
            axes.bar(middle, 0.4, 0.7, 0.0, color=VALUE)
        for letter, height, colour in (("q", 1.95, QUERY), ("k", 0.7, KEY), ("v", 0.2, VALUE)):
            axes.text(7.6, height, letter, color=colour, fontsize=10, fontweight="bold", va="center")
        axes.set_title(name, fontsize=9.5, color=INK)
        axes.set_xlabel(f"cache: {sizes[kv_heads] / 2**20:g} MiB", fontsize=9.5, color=INK)
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
# The queries still differ, so the heads still attend to different words. PaLM and Falcon 7B use multi-query attention,
# Llama 2 70B grouped-query attention. In `regard`, `kv_heads` is the number of groups:

# %%
for kv_heads in (8, 4, 2, 1):
    layer = rg.MultiHeadAttention(dim=256, heads=8, kv_heads=kv_heads, pattern="causal")
    cache = layer.new_cache(batch=1, kind="static", capacity=2048)
    with torch.no_grad():
        layer(torch.randn(1, 12, 256), cache=cache)
    print(kv_heads, cache.nbytes)

# %% [markdown]
# In multi-query attention, keys and values need no axis of heads. Here the letter h is missing in k and v:

# %%
q = torch.randn(1, 8, 12, 32, dtype=torch.float64)  # b h q d
k, v = torch.randn(2, 1, 12, 32, dtype=torch.float64)  # b k d: without the axis of heads
weights = (torch.einsum("bhqd,bkd->bhqk", q, k) / 32**0.5).softmax(-1)
output = torch.einsum("bhqk,bkd->bhqd", weights, v)
with_axis = rg.attention(q, k[:, None], v[:, None])  # b h k d, with h = 1
print(torch.allclose(output, with_axis))

# %% tags=["folded"]
BYTES = 64 * 2**20
batches = {kv_heads: BYTES // sizes[kv_heads] for kv_heads in NAMES}
table(f"Texts of {HELD:,} words in one layer (dim 256, float32)",
      ("kv_heads", "name", "cache of a text", "texts in 64 MiB"),
      [(n, NAMES[n], f"{sizes[n] // 1024:,} KiB", batches[n]) for n in NAMES])  # fmt: skip

# %% [markdown]
# ## What sharing costs
#
# A trained model is **converted**: the key and value projections of each group are replaced by their mean, and training
# goes on for some steps. Here the heads are random and independent, which is the worst case. The mean is still closer
# to the original than the first head of each group or new random heads.

# %% tags=["folded"]
x = embedded(words_of(TEXT), 256, SEED)
whole = seeded(SEED, rg.MultiHeadAttention, 256, 8, pattern="causal")
WAYS = {"mean": "the mean of the heads", "first": "the first of the heads", "new": "new random weights"}


def converted(layer, kv_heads, way):
    """The layer with another number of key/value heads; `way` "mean" repeats heads where there are to be more."""
    made = seeded(SEED + 1, rg.MultiHeadAttention, 256, 8, kv_heads=kv_heads, pattern="causal")
    made.to_q, made.to_output = copy.deepcopy(layer.to_q), copy.deepcopy(layer.to_output)
    for name in ("to_k", "to_v") if way != "new" else ():
        for old, new in zip(getattr(layer, name).parameters(), getattr(made, name).parameters()):
            new.data = resized(old.detach(), layer.kv_heads, kv_heads, way)
    return made


with torch.no_grad():
    expected = whole(x)
    outputs = {(way, n): converted(whole, n, way)(x) for way in WAYS for n in NAMES}
    errors = {what: float((one - expected).norm() / expected.norm()) for what, one in outputs.items()}
table(f"Relative distance from the output with 8 key/value heads, on {x.shape[1]} words", ("kv_heads", *WAYS.values()),
      [(n, *(f"{errors[way, n]:.3f}" for way in WAYS)) for n in NAMES])  # fmt: skip

# %% [markdown]
# Trained models show how much quality is lost. Character models with 8 key/value heads were converted by the mean and
# trained further. The learning rate of this training rises to its peak again, so even the original model becomes
# slightly worse. The loss of quality is measured against the original before these steps.

# %% tags=["folded"]
report = read_report("generation")
rows, original = report.figures["rows"], report.figures["heads"]
further = report.figures["uptrain_steps"] / report.figures["steps"]
bits = {n: [row for row in rows if row["kv_heads"] == n] for n in (4, 2, 1)}


def told(rows, name):
    """The mean over seeds, and their range."""
    each = [row[name] for row in rows]
    return f"{sum(each) / len(each):.3f} ({min(each):.3f} to {max(each):.3f})"


table(f"Bits for each of {report.figures['held_out']:,} held-out characters (lower is better), {len(bits[1])} seeds",
      ("key/value heads", "converted", f"after {further:.0%} more steps"),
      [(f"{original} (original)", told(rows, "before"), told(rows, "control"))]
      + [(n, told(one, "converted"), told(one, "uptrained")) for n, one in bits.items()])  # fmt: skip
print(report.source)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
q, k, v = normal(SEED, 1, 8, 7, 16), normal(SEED + 1, 1, 2, 7, 16), normal(SEED + 2, 1, 2, 7, 16)
apart = [rg.attention(q[:, [h]], k[:, [h // 4]], v[:, [h // 4]]) for h in range(8)]
alike = converted(converted(whole, 2, "first"), 8, "mean")  # the 4 heads of a group are equal
before, pooled, trained, control = (
    torch.tensor([[row[name] for row in one] for one in bits.values()])
    for name in ("before", "converted", "uptrained", "control")
)  # (kv_heads, seeds)
recovered = (pooled - trained) / (pooled - before)
by_means = (pooled - trained).sum(1) / (pooled - before).sum(1)
holds("The cache shrinks in proportion to kv_heads.", all(sizes[n] * 8 == sizes[8] * n for n in NAMES),
      f"{sizes[8]:,} bytes with 8, {sizes[1]:,} with 1")  # fmt: skip
holds("In the same memory, a model with fewer key/value heads holds a larger batch.",
      all(cache_of(n, batch=8 // n).nbytes == sizes[8] and batches[n] == batches[8] * 8 // n for n in NAMES),
      "64 MiB hold "
      f"{', '.join(f'{batch} texts with {n}' for n, batch in batches.items())} key/value heads")  # fmt: skip
holds("Query head h reads key/value head h // (heads // kv_heads).",
      largest(rg.attention(q, k, v) - torch.cat(apart, 1)) < 1e-12, f"8 query heads on 2, {ROUNDING}")  # fmt: skip
holds("Multi-query attention gives the same output without an axis of heads in k and v.",
      largest(output - with_axis) < 1e-12, f"einsum with and without the axis, {ROUNDING}")  # fmt: skip
holds("If the heads of a group are equal, their mean does not change the output.",
      largest(converted(alike, 2, "mean")(x) - alike(x)) < 1e-12, ROUNDING)  # fmt: skip
holds("If they differ, their mean is closer to the original than the first head of the group or new heads.",
      all(errors["mean", n] < min(errors["first", n], errors["new", n]) for n in (4, 2, 1)),
      f"with 2 key/value heads {', '.join(f'{errors[way, 2]:.2f}' for way in WAYS)}")  # fmt: skip
holds("Fewer key/value heads cost quality: the fewer they are, the more bits a character needs after further training.",
      bool((trained.diff(dim=0) > 0).all() and (trained > control).all()),
      f"report: {', '.join(f'{one:.3f} with {n}' for n, one in zip(bits, trained.mean(1)))} key/value heads, "
      f"{control.mean():.3f} with {original}")  # fmt: skip
holds("Further training recovers most of what the conversion lost, in every seed.", bool((recovered > 0.5).all()),
      f"report: at least {recovered.min():.0%} of the lost bits in one seed; by the means "
      f"{', '.join(f'{share:.0%} with {n}' for n, share in zip(bits, by_means))} key/value heads")  # fmt: skip

# %% [markdown]
# Source: Shazeer 2019; Ainslie et al. 2023 (names, section 2.2; conversion, section 2.1 and figure 4); Chowdhery
# et al. 2022 (PaLM, section 2); Touvron et al. 2023 (Llama 2, section 2.2).
