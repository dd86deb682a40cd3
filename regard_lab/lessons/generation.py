# %% [markdown]
# # Generating with a cache
#
# **What does a cache store and save while a text is written?**

# %% tags=["parameters"]
TEXT = "the animal did not cross the street"
SEED = 0

# %% tags=["folded"]
from functools import partial

import torch

import regard as rg
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.seeing.canvas import LINES
from regard_lab.teaching import (
    ROUNDING, draw_cells, figure, holds, label_axes, largest, milliseconds, normal, seeded, table, watch, words_of,
)  # fmt: skip

words = words_of(TEXT)
vocabulary = sorted(set(words))
prompt = torch.tensor([[8 + vocabulary.index(word) for word in words]])
WRITTEN = 12  # words that are written after the text
KINDS = {8: "multi-head", 4: "grouped-query", 2: "grouped-query", 1: "multi-query"}  # by number of key/value heads


def with_cache(model, text):
    """The text with WRITTEN more words, and the logits by which they were chosen."""
    state = model.start(text, "static", capacity=text.shape[1] + WRITTEN)
    logits = [state.next_scores]
    for _ in range(WRITTEN - 1):
        text = torch.cat([text, logits[-1].argmax(-1, keepdim=True)], 1)
        logits.append(model.step(text[:, -1], state))
    return torch.cat([text, logits[-1].argmax(-1, keepdim=True)], 1), torch.cat(logits)


def without_cache(model, text):
    """The same by reading the whole text for each word."""
    logits = []
    for _ in range(WRITTEN):
        logits.append(model(text)[:, -1])
        text = torch.cat([text, logits[-1].argmax(-1, keepdim=True)], 1)
    return text, torch.cat(logits)


def projected(model, write):
    """What `write` returns, and how many words the first layer projected to keys and values in each step."""
    attention, kept = model.blocks[0].attention, []
    seen = watch({"keys": attention.to_k, "values": attention.to_v}, lambda: kept.append(write(model, prompt)))
    keys, values = ([x.shape[1] for x in one.inputs] for one in seen.values())
    assert keys == values
    return *kept[0], keys


found = {}
for heads in KINDS:
    config = LanguageConfig(vocab_size=len(vocabulary) + 24, dim=64, heads=8, kv_heads=heads, layers=2)
    model = seeded(SEED, LanguageModel, config).eval()  # random weights
    found[heads] = projected(model, without_cache), projected(model, with_cache)
counts = {"without a cache": found[8][0][2], "with a cache": found[8][1][2]}

start = len(words)
with figure("Writing a text word by word", 8.0, 3.3,
            "Each row is a step, each column a word. Strong: the key and the value of this word are computed in this "
            "step. Pale: they are read from the cache.") as drawing:  # fmt: skip
    for axes, (way, steps) in zip(drawing.subplots(1, 2), counts.items()):
        cells = torch.zeros(WRITTEN, start + WRITTEN - 1)
        for step, count in enumerate(steps):
            cells[step, : start + step] = 1
            cells[step, start + step - count : start + step] = 2
        draw_cells(axes, cells, ("#ffffff", "#cfe3f1", LINES[0]), "auto")
        label_axes(axes, f"{way}: {sum(steps)} words projected", "words of the text", "steps")
        axes.set_yticks([0, WRITTEN - 1], ["1", f"{WRITTEN}"])
        axes.set_xticks([0, start - 1, start + WRITTEN - 2], ["1", f"{start}", f"{start + WRITTEN - 1}"])
        axes.set_xticks([x - 0.5 for x in range(cells.shape[1])], minor=True)
        axes.set_yticks([y - 0.5 for y in range(WRITTEN)], minor=True)
        axes.grid(which="minor", color="white", linewidth=1)
        axes.tick_params(which="minor", length=0)

# %% [markdown]
# A language model writes one word after another. Each new word attends to all earlier words. The keys and values of
# earlier words never change, because no word looks at a later word. A **cache** keeps them:
#
# $$
# K_t = [K_{t-1};\, k_t] \qquad V_t = [V_{t-1};\, v_t]
# $$
#
# Each step then projects one word instead of the whole text, and gives the same logits:

# %%
model = LanguageModel(LanguageConfig(vocab_size=50, dim=64, heads=8, kv_heads=2, layers=2)).double().eval()
text = torch.tensor([[7, 8, 9]])  # ids (batch, length)
with torch.no_grad():
    state = model.start(text, "static", capacity=64)  # reads the text once, and keeps its keys and values
    logits = state.next_scores
    for _ in range(5):
        chosen = logits.argmax(-1)
        text = torch.cat([text, chosen[:, None]], 1)
        logits = model.step(chosen, state)  # projects one word
    print(torch.allclose(logits, model(text)[:, -1]))

# %% [markdown]
# ## What the cache costs
#
# For each word the cache keeps a key and a value in every layer and key/value head, $2 \cdot \text{layers} \cdot
# \text{heads} \cdot \text{size of a head}$ numbers, and every step reads all of them. With 8 query heads,
# **grouped-query attention** with 2 key/value heads keeps a quarter of this, **multi-query attention** (1 key/value
# head) an eighth.

# %% tags=["folded"]
HELD = (64, 128, 256)  # words


def nbytes(kv_heads, count):
    model = LanguageModel(LanguageConfig(vocab_size=16, dim=64, heads=8, kv_heads=kv_heads, layers=2))
    with torch.no_grad():
        return model.start(torch.tensor([[9]]), "static", capacity=count).nbytes


sizes = {heads: [nbytes(heads, count) for count in HELD] for heads in KINDS}
table(
    "Bytes of keys and values: 2 layers, dim 64, 8 query heads, float32",
    ("key/value heads", "name", "for each word", *(f"{count} words" for count in HELD)),
    [(n, KINDS[n], f"{held[-1] // HELD[-1]:,}", *(f"{size:,}" for size in held)) for n, held in sizes.items()],
)

# %% [markdown]
# Reading the cache takes less time than computing the text again, the more so the longer the text is. Most of the time
# of a step goes into reading memory, so a smaller cache makes it faster:

# %% tags=["folded"]
LENGTHS, calls = (64, 512, 4096), {}


def step(layer, x):
    """A function that appends the last word to a cache of all others, and removes it again."""
    cache, before = layer.new_cache(1, "static", capacity=x.shape[1]), x.shape[1] - 1
    with torch.no_grad():
        layer(x[:, :before], cache=cache)
    return lambda: (layer(x[:, before:], cache=cache), cache.crop(before))


for n in KINDS:
    layer = seeded(SEED, rg.MultiHeadAttention, 256, 8, kv_heads=n, pattern="causal").float()
    for length in LENGTHS:
        x = normal(SEED, 1, length, 256).float()
        if n == 8:
            calls["the whole text again", length] = partial(layer, x)
        calls[f"a cache, kv_heads={n}", length] = step(layer, x)
times = milliseconds(calls)
table(
    "CPU time of one layer (dim 256, 8 heads) for the next word, in milliseconds; measured here, yours will differ",
    ("computed from", *(f"after {length:,} words" for length in LENGTHS)),
    [(way, *(f"{times[way, length]:.2f}" for length in LENGTHS)) for way in dict.fromkeys(way for way, _ in calls)],
)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
without, cached = counts.values()
each = {heads: 2 * 2 * heads * (64 // 8) * 4 for heads in KINDS}  # bytes of a word: 2 layers, head_dim 8, float32
holds("A step with a cache gives the same logits as reading the whole text, so both write the same words.",
      all(largest(one[1] - other[1]) < 1e-10 and torch.equal(one[0], other[0]) for one, other in found.values()),
      f"{WRITTEN} words with {', '.join(map(str, KINDS))} key/value heads, {ROUNDING}")  # fmt: skip
holds("With a cache each word is projected once; without a cache, every step projects the whole text.",
      cached == [start] + [1] * (WRITTEN - 1) and without == [start + step for step in range(WRITTEN)],
      f"{sum(cached)} and {sum(without)} words projected to keys")  # fmt: skip
holds("The cache keeps 2 · layers · kv_heads · head_dim numbers for each word.",
      all(size == count * each[heads] for heads in KINDS for size, count in zip(sizes[heads], HELD)),
      ", ".join(f"{heads} key/value heads: {count:,} bytes" for heads, count in each.items()))  # fmt: skip
# %% [markdown]
# What shared key/value heads cost in quality is the subject of the lesson *grouped*. Source: Shazeer 2019, section 2.
