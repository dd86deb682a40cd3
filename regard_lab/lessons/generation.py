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
from regard_lab.seeing.palette import LINES, PALE
from regard_lab.teaching import (
    ROUNDING,
    draw_cells,
    figure,
    holds,
    label_axes,
    largest,
    milliseconds,
    normal,
    seeded,
    table,
    watch,
    words_of,
)

WRITTEN = 12  # words that are written after the text
NAMES = {  # by number of key/value heads
    8: "multi-head",
    4: "grouped-query",
    2: "grouped-query",
    1: "multi-query",
}
FIRST_ID = 8  # of a word; smaller ids are special

words = words_of(TEXT)
n = len(words)
vocabulary = sorted(set(words))
prompt = torch.tensor([[FIRST_ID + vocabulary.index(word) for word in words]])  # ids (batch, words)


def append_best(text, logits):
    """The text with the word of the largest logit."""
    return torch.cat([text, logits.argmax(-1, keepdim=True)], 1)


def write_without_cache(model, text):
    """The text with WRITTEN more words, and their logits: each step reads the whole text."""
    logits = []
    for _ in range(WRITTEN):
        logits.append(model(text)[:, -1])
        text = append_best(text, logits[-1])
    return text, torch.cat(logits)


def write_with_cache(model, text):
    """The same: each step reads the last word and the cache."""
    state = model.start(text, "static", capacity=text.shape[1] + WRITTEN)
    logits = [state.next_scores]
    for _ in range(WRITTEN - 1):
        text = append_best(text, logits[-1])
        logits.append(model.step(text[:, -1], state))
    return append_best(text, logits[-1]), torch.cat(logits)


def count_projections(write, model):
    """How many words the first layer projects to keys and values in each step."""
    layer = model.blocks[0].attention
    watched = watch({"keys": layer.to_k, "values": layer.to_v}, partial(write, model, prompt))
    keys = [x.shape[1] for x in watched["keys"].inputs]
    values = [x.shape[1] for x in watched["values"].inputs]
    assert keys == values
    return keys


WAYS = {"without": write_without_cache, "with": write_with_cache}
# by the way of writing and the number of key/value heads
texts = {}  # ids (1, n + WRITTEN)
logits = {}  # (WRITTEN, vocabulary)
projected = {}  # words in each step
for kv_heads in NAMES:
    config = LanguageConfig(
        vocab_size=len(vocabulary) + 24, dim=64, heads=8, kv_heads=kv_heads, layers=2
    )
    model = seeded(SEED, LanguageModel, config).eval()  # random weights
    for way, write in WAYS.items():
        with torch.no_grad():
            texts[way, kv_heads], logits[way, kv_heads] = write(model, prompt)
        projected[way, kv_heads] = count_projections(write, model)

# %% tags=["folded"]
caption = (
    "Each row is a step, each column a word. Strong: the key and the value of this word are "
    "computed in this step. Pale: they are read from the cache."
)
with figure("Writing a text word by word", 8.0, 3.3, caption) as drawing:
    last = n + WRITTEN - 1  # words that the last step reads
    for axes, way in zip(drawing.subplots(1, 2), WAYS):
        counts = projected[way, 8]
        cells = torch.zeros(WRITTEN, last)
        for step, count in enumerate(counts):
            cells[step, : n + step] = 1
            cells[step, n + step - count : n + step] = 2
        draw_cells(axes, cells, ("white", PALE, LINES[0]), "auto")
        title = f"{way} a cache: {sum(counts)} words projected"
        label_axes(axes, title, "words of the text", "steps")
        axes.set_yticks([0, WRITTEN - 1], ["1", f"{WRITTEN}"])
        axes.set_xticks([0, n - 1, last - 1], ["1", f"{n}", f"{last}"])
        axes.set_xticks([x - 0.5 for x in range(last)], minor=True)
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
config = LanguageConfig(vocab_size=50, dim=64, heads=8, kv_heads=2, layers=2)
model = LanguageModel(config).double().eval()
text = torch.tensor([[7, 8, 9]])  # ids (batch, length)
with torch.no_grad():
    # reads the text once, and keeps its keys and values
    state = model.start(text, "static", capacity=64)
    scores = state.next_scores  # logits of the next word, (batch, vocabulary)
    for _ in range(5):
        chosen = scores.argmax(-1)
        text = torch.cat([text, chosen[:, None]], 1)
        scores = model.step(chosen, state)  # projects one word
    print(torch.allclose(scores, model(text)[:, -1]))

# %% [markdown]
# ## What the cache costs
#
# For each word the cache keeps a key and a value in every layer and key/value head, $2 \cdot \text{layers} \cdot
# \text{heads} \cdot \text{size of a head}$ numbers, and every step reads all of them. With 8 query heads,
# **grouped-query attention** with 2 key/value heads keeps a quarter of this, **multi-query attention** (1 key/value
# head) an eighth.

# %% tags=["folded"]
CAPACITIES = (64, 128, 256)  # words


def cache_nbytes(kv_heads, capacity):
    """Bytes of the keys and values of a model."""
    config = LanguageConfig(vocab_size=16, dim=64, heads=8, kv_heads=kv_heads, layers=2)
    with torch.no_grad():
        return LanguageModel(config).start(torch.tensor([[9]]), "static", capacity=capacity).nbytes


nbytes = {}
rows = []
for kv_heads, name in NAMES.items():
    nbytes[kv_heads] = [cache_nbytes(kv_heads, capacity) for capacity in CAPACITIES]
    for_each_word = nbytes[kv_heads][-1] // CAPACITIES[-1]
    rows.append((kv_heads, name, f"{for_each_word:,}", *(f"{size:,}" for size in nbytes[kv_heads])))
table(
    "Bytes of keys and values: 2 layers, dim 64, 8 query heads, float32",
    ("key/value heads", "name", "for each word", *(f"{count} words" for count in CAPACITIES)),
    rows,
)

# %% [markdown]
# Reading the cache takes less time than computing the text again, the more so the longer the text is. Most of the time
# of a step goes into reading memory, so a smaller cache makes it faster:

# %% tags=["folded"]
LENGTHS = (64, 512, 4096)


def one_step(layer, x):
    """A function that appends the last word to a cache of all others, and removes it again."""
    before = x.shape[1] - 1
    cache = layer.new_cache(1, "static", capacity=x.shape[1])
    with torch.no_grad():
        layer(x[:, :before], cache=cache)

    def append_and_remove():
        layer(x[:, before:], cache=cache)
        cache.crop(before)

    return append_and_remove


WHOLE_TEXT = "the whole text again"
calls = {}
for kv_heads in NAMES:
    layer = seeded(SEED, rg.MultiHeadAttention, 256, 8, kv_heads=kv_heads, pattern="causal").float()
    for length in LENGTHS:
        x = normal(SEED, 1, length, 256).float()
        if kv_heads == 8:
            calls[WHOLE_TEXT, length] = partial(layer, x)
        calls[f"a cache, kv_heads={kv_heads}", length] = one_step(layer, x)
times = milliseconds(calls)

rows = []
for way in (WHOLE_TEXT, *(f"a cache, kv_heads={kv_heads}" for kv_heads in NAMES)):
    rows.append((way, *(f"{times[way, length]:.2f}" for length in LENGTHS)))
table(
    "CPU time of one layer (dim 256, 8 heads) for the next word, in milliseconds; measured here, "
    "yours will differ",
    ("computed from", *(f"after {length:,} words" for length in LENGTHS)),
    rows,
)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
same_words = True
furthest = 0.0  # how far logits are apart
for kv_heads in NAMES:
    same_words = same_words and torch.equal(texts["with", kv_heads], texts["without", kv_heads])
    apart = largest(logits["with", kv_heads] - logits["without", kv_heads])
    furthest = max(furthest, apart)
holds(
    "A step with a cache gives the same logits as reading the whole text, so both write the same "
    "words.",
    furthest < 1e-10 and same_words,
    f"{WRITTEN} words with {', '.join(map(str, NAMES))} key/value heads, {ROUNDING}",
)

cached = projected["with", 8]
without = projected["without", 8]
holds(
    "With a cache each word is projected once; without a cache, every step projects the whole "
    "text.",
    cached == [n] + [1] * (WRITTEN - 1) and without == [n + step for step in range(WRITTEN)],
    f"{sum(cached)} and {sum(without)} words projected to keys",
)

layers = 2
head_dim = 64 // 8
word_nbytes = {}
predicted = {}
for kv_heads in NAMES:
    word_nbytes[kv_heads] = 2 * layers * kv_heads * head_dim * 4  # 4 bytes a number
    predicted[kv_heads] = [capacity * word_nbytes[kv_heads] for capacity in CAPACITIES]
holds(
    "The cache keeps 2 · layers · kv_heads · head_dim numbers for each word.",
    nbytes == predicted,
    ", ".join(f"{heads} key/value heads: {count:,} bytes" for heads, count in word_nbytes.items()),
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise


@exercise(
    "A text of 5 words is read, and 12 words are written with a cache. How many words are projected "
    "to keys in all?",
    NUMBER,
    hint="The last word is written, but the model never reads it.",
    answer="16",
)
def projected_words(count):
    five = torch.full((1, 5), FIRST_ID)
    layer = {"keys": model.blocks[0].attention.to_k}
    watched = watch(layer, partial(write_with_cache, model, five))
    counted = sum(x.shape[1] for x in watched["keys"].inputs)
    holds("That many are projected.", count == counted, f"{counted}, you say {count:g}")


@exercise(
    "A model has 32 layers of 8 key/value heads with 128 numbers each, and a number takes 2 bytes. "
    "How many bytes does its cache keep for each word?",
    NUMBER,
    hint="A key and a value in every layer and key/value head.",
    answer="131072",
)
def bytes_of_a_word(count):
    layer = rg.MultiHeadAttention(dim=1024, heads=8)
    counted = 32 * layer.new_cache(1, "static", 64, "float16").nbytes // 64
    holds("It keeps that many.", count == counted, f"{counted:,}, you say {count:,.0f}")


# %% [markdown]
# What shared key/value heads cost in quality is the subject of the lesson *grouped*. Source: Shazeer 2019, section 2.
