# %% [markdown]
# # One vector for each word
#
# **What does latent attention keep of a word, and what does it compute from it?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import torch

import regard as rg
from regard_lab.seeing.canvas import FAINT, INK, KEY, QUERY, VALUE
from regard_lab.teaching import ROUNDING, figure, holds, largest, normal, seeded

DIM, HEADS, SIZE, HELD = 256, 8, 32, 2048  # HELD: words in a cache
LATENT, ROPE = 4 * SIZE, SIZE // 2  # the proportions of DeepSeek-V2
sizes = {"head_dim": SIZE, "latent_dim": LATENT, "rope_dim": ROPE, "pattern": "causal"}
latent = seeded(SEED, rg.LatentAttention, DIM, HEADS, **sizes)
NAMES = {8: "multi-head", 2: "grouped-query, GQA-2", 1: "multi-query"}
layers = {name: rg.MultiHeadAttention(DIM, HEADS, kv_heads=n) for n, name in NAMES.items()} | {"latent": latent}
caches = {name: layer.new_cache(1, "static", HELD, "float32").nbytes for name, layer in layers.items()}

with figure("What a layer keeps of a word", 8.0, 2.4,
            f"Numbers that {HEADS} heads of {SIZE} keep of each word, and the cache of {HELD:,} words (float32). "
            "Latent attention keeps a vector c, from which keys and values of all heads are computed, and a rotated "
            "key r for all.") as drawing:  # fmt: skip
    axes = drawing.subplots()
    for height, (name, count) in enumerate(reversed(caches.items())):
        parts = [(SIZE, *each) for each in ((KEY, "k"), (VALUE, "v")) for _ in range(count // HELD // SIZE // 8)]
        start = 0
        for width, colour, letter in [(LATENT, QUERY, "c"), (ROPE, KEY, "r")] if name == "latent" else parts:
            axes.barh(height, width, 0.6, start, color=colour, edgecolor="white")
            axes.text(start + width / 2, height, letter, color="white", ha="center", va="center", fontsize=9)
            start += width
        axes.text(start + 6, height, f"{start}: {count // 1024:,} KiB", color=INK, va="center", fontsize=9.5)
    axes.set_yticks(range(4), [*reversed(caches)], fontsize=9.5, color=INK)
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

model = LanguageModel(LanguageConfig(vocab_size=50, dim=64, heads=8, kv_heads=2, layers=2)).double().eval()
ids = torch.arange(4, 44).view(2, 20)
same, half = with_latents(model, latent_dim=16, rope_dim=16), with_latents(model, latent_dim=8, rope_dim=8)
with torch.no_grad():
    print(torch.allclose(same(ids), model(ids)), torch.allclose(half(ids), model(ids)))
print(model.start(ids).nbytes, same.start(ids).nbytes, half.start(ids).nbytes)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
x, step = normal(SEED, 1, 12, DIM), latent.plan(batch=1, q_len=1, held=HELD)
with torch.no_grad():
    forms = [latent(x, form=form) for form in ("absorbed", "expanded")]
    far, near = (largest(other(ids) - model(ids)) for other in (half, same))
kept = [one.start(ids).nbytes for one in (model, same, half)]
by_heads = {rg.LatentAttention(DIM, n, **sizes).new_cache(1, "static", HELD).nbytes for n in (1, 8, 64)}
holds("The cache of latents does not grow with the number of heads.",
      by_heads == {caches["latent"]}, f"{caches['latent']:,} bytes with 1, 8 and 64 heads")  # fmt: skip
holds("With the proportions of DeepSeek-V2 it is as large as that of 2.25 key/value heads.",
      caches["latent"] * 8 == caches["multi-head"] * 2.25, f"{caches['latent'] // HELD} bytes of a word")  # fmt: skip
holds("Absorbed and expanded give the same output.", largest(forms[0] - forms[1]) < 1e-12, ROUNDING)
holds("A step of decoding costs far less absorbed than expanded.",
      step.form == "absorbed" and step.absorbed.flops * 10 < step.expanded.flops,
      f"{step.absorbed.flops / 1e6:.1f} instead of {step.expanded.flops / 1e6:.1f} million operations")  # fmt: skip
holds("A grouped-query model is a latent one with as many numbers.",
      near < 1e-12 and kept[0] == kept[1], f"{kept[1]:,} bytes, {ROUNDING}")  # fmt: skip
holds("With half of them its outputs change.", far > 1e-3 and kept[0] == 2 * kept[2], f"by {far:.2g}")

# %% [markdown]
# Source: DeepSeek-V2, 2024 (section 2.1, table 1, appendix C); from grouped heads: TransMLA, Meng et al. 2025; MHA2MLA,
# Ji et al. 2025.
