# %% [markdown]
# # One vector for each word
#
# **What does latent attention keep of a word, and what does it compute from it?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import torch

import regard as rg
from regard_lab.seeing.palette import FAINT, INK, KEY, QUERY, VALUE
from regard_lab.teaching import ROUNDING, figure, holds, largest, normal, seeded

DIM = 256
HEADS = 8
HEAD_DIM = 32
LATENT_DIM = 4 * HEAD_DIM  # with the next line the proportions of DeepSeek-V2
ROPE_DIM = HEAD_DIM // 2
CAPACITY = 2048  # words in a cache
sizes = {
    "head_dim": HEAD_DIM,
    "latent_dim": LATENT_DIM,
    "rope_dim": ROPE_DIM,
    "pattern": "causal",
}
latent_layer = seeded(SEED, rg.LatentAttention, DIM, HEADS, **sizes)
layers = {
    "multi-head": rg.MultiHeadAttention(DIM, HEADS, kv_heads=8),
    "grouped-query, GQA-2": rg.MultiHeadAttention(DIM, HEADS, kv_heads=2),
    "multi-query": rg.MultiHeadAttention(DIM, HEADS, kv_heads=1),
    "latent": latent_layer,
}


def cache_nbytes(layer):
    """Bytes of a cache of CAPACITY words in float32."""
    return layer.new_cache(1, "static", CAPACITY, "float32").nbytes


nbytes = {name: cache_nbytes(layer) for name, layer in layers.items()}

# %% tags=["folded"]
caption = (
    f"Numbers that {HEADS} heads of {HEAD_DIM} keep of each word, and the cache of {CAPACITY:,} "
    "words (float32). Latent attention keeps a vector c, from which keys and values of all heads "
    "are computed, and a rotated key r for all."
)
with figure("What a layer keeps of a word", 8.0, 2.4, caption) as drawing:
    axes = drawing.subplots()
    names = list(reversed(nbytes))  # the lowest bar first
    for height, name in enumerate(names):
        if name == "latent":
            parts = [("c", LATENT_DIM, QUERY), ("r", ROPE_DIM, KEY)]
        else:
            kv_heads = layers[name].kv_heads
            parts = [("k", HEAD_DIM, KEY)] * kv_heads + [("v", HEAD_DIM, VALUE)] * kv_heads

        start = 0
        for letter, width, colour in parts:
            middle = start + width / 2
            axes.barh(height, width, 0.6, start, color=colour, edgecolor="white")
            axes.text(middle, height, letter, color="white", ha="center", va="center", fontsize=9)
            start += width
        total = f"{start}: {nbytes[name] // 1024:,} KiB"
        axes.text(start + 6, height, total, color=INK, va="center", fontsize=9.5)
    axes.set_yticks(range(4), names, fontsize=9.5, color=INK)
    axes.set(xlim=(0, 640), xticks=[])
    axes.spines[:].set_visible(False)
    axes.tick_params(color=FAINT, length=0)

# %% [markdown]
# Grouped heads ([fewer key/value heads](grouped.md)) keep fewer keys and values. **Latent attention** keeps none. Of
# each word $x$ it keeps one vector, the latent $c$, and every head $h$ computes its key and its value from it:
#
# $$
# c = x W_c \qquad r = \text{rotated}(x W_r) \qquad k_h = [\,U_h c \,;\, r\,] \qquad v_h = W_h c
# $$
#
# Rotary positions turn keys. A rotation between $q_h$ and $U_h c$ would differ for every word, so it is in a key $r$ of
# its own, which all heads share.
#
# To compute keys and values of all heads from all latents in every step would cost more than the cache saves. But
#
# $$
# q_h \cdot (U_h c) = (U_h^\top q_h) \cdot c \qquad \sum_j w_j W_h c_j = W_h \sum_j w_j c_j
# $$
#
# so the query is projected to the latents instead, and the mean of latents to a value: the matrices are **absorbed**.
# This is attention with one key/value head, whose values are the first numbers of its keys. The cheaper form is taken:

# %%
layer = rg.LatentAttention(256, 8, latent_dim=128, rope_dim=16, head_dim=32, pattern="causal")
x = torch.randn(1, 12, 256)
print(torch.allclose(layer(x, form="absorbed"), layer(x, form="expanded"), atol=1e-5))
print(layer.plan(batch=1, q_len=1, held=2048))

# %% [markdown]
# Every grouped-query layer is a latent one with as many numbers: its keys are the rotated part, its values the latent.
# With fewer numbers something is lost: `regard convert latent` keeps those that a text needs, and measures the loss.

# %%
from regard_lab.conversion import with_latents
from regard_lab.models import LanguageConfig, LanguageModel

config = LanguageConfig(vocab_size=50, dim=64, heads=8, kv_heads=2, layers=2)
model = LanguageModel(config).double().eval()
ids = torch.arange(4, 44).view(2, 20)  # (batch, length)
same = with_latents(model, latent_dim=16, rope_dim=16)
half = with_latents(model, latent_dim=8, rope_dim=8)
with torch.no_grad():
    print(torch.allclose(same(ids), model(ids)), torch.allclose(half(ids), model(ids)))
print(model.start(ids).nbytes, same.start(ids).nbytes, half.start(ids).nbytes)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
HEAD_COUNTS = (1, 8, 64)
nbytes_by_heads = {cache_nbytes(rg.LatentAttention(DIM, heads, **sizes)) for heads in HEAD_COUNTS}
holds(
    "The cache of latents does not grow with the number of heads.",
    nbytes_by_heads == {nbytes["latent"]},
    f"{nbytes['latent']:,} bytes with 1, 8 and 64 heads",
)
holds(
    "With the proportions of DeepSeek-V2 it is as large as that of 2.25 key/value heads.",
    nbytes["latent"] * 8 == nbytes["multi-head"] * 2.25,
    f"{nbytes['latent'] // CAPACITY} bytes of a word",
)

x = normal(SEED, 1, 12, DIM)
with torch.no_grad():
    absorbed = latent_layer(x, form="absorbed")
    expanded = latent_layer(x, form="expanded")
holds(
    "Absorbed and expanded give the same output.",
    largest(absorbed - expanded) < 1e-12,
    ROUNDING,
)

step = latent_layer.plan(batch=1, q_len=1, held=CAPACITY)
millions_absorbed = step.absorbed.flops / 1e6
millions_expanded = step.expanded.flops / 1e6
holds(
    "A step of decoding costs far less absorbed than expanded.",
    step.form == "absorbed" and step.absorbed.flops * 10 < step.expanded.flops,
    f"{millions_absorbed:.1f} instead of {millions_expanded:.1f} million operations",
)

with torch.no_grad():
    expected = model(ids)
    distance_same = largest(same(ids) - expected)
    distance_half = largest(half(ids) - expected)
nbytes_grouped = model.start(ids).nbytes
nbytes_same = same.start(ids).nbytes
nbytes_half = half.start(ids).nbytes
holds(
    "A grouped-query model is a latent one with as many numbers.",
    distance_same < 1e-12 and nbytes_grouped == nbytes_same,
    f"{nbytes_same:,} bytes, {ROUNDING}",
)
holds(
    "With half of them its outputs change.",
    distance_half > 1e-3 and nbytes_grouped == 2 * nbytes_half,
    f"by {distance_half:.2g}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise


@exercise(
    "A multi-head layer keeps, for each word, a key and a value of 32 numbers in each of 8 heads. A "
    "latent layer keeps a latent of 128 numbers and a rotated key of 16. How many times as many numbers "
    "does the multi-head layer keep?",
    NUMBER,
    hint="$2 \\cdot 8 \\cdot 32$ against $128 + 16$.",
    answer="3.56",
)
def times_as_many_numbers(ratio):
    measured = nbytes["multi-head"] / nbytes["latent"]
    holds(
        "It keeps that many times as many.",
        abs(ratio - measured) < 0.01,
        f"{measured:.3f} by the bytes of both caches, you say {ratio:g}",
    )


@exercise(
    "The latent layer of the figure gets 16 heads instead of 8. How many numbers does it keep of a "
    "word?",
    NUMBER,
    hint="All heads compute their keys and values from the same latent.",
    answer="144",
)
def numbers_of_16_heads(count):
    layer_of_16 = rg.LatentAttention(DIM, 16, **sizes)
    counted = cache_nbytes(layer_of_16) // CAPACITY // 4  # 4 bytes a number
    holds("It keeps that many.", count == counted, f"{counted}, you say {count:g}")


# %% [markdown]
# Source: DeepSeek-V2, 2024 (section 2.1, table 1, appendix C); from grouped heads: TransMLA, Meng et al. 2025; MHA2MLA,
# Ji et al. 2025.
