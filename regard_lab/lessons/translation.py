# %% [markdown]
# # Encoder and decoder
#
# **What does the decoder take from the encoder, and when?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
import torch

from regard_lab.models import TranslationTransformer
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.seeing.palette import LINES
from regard_lab.teaching import (
    ROUNDING,
    draw_map,
    figure,
    holds,
    largest,
    scale_beside,
    seeded,
    table,
    watch,
)
from regard_lab.text.vocabularies import BEGIN, END

SOURCE = ["The", "animal", "did", "not", "cross", "the", "street"]
TARGET = ["Das", "Tier", "ging", "nicht", "über", "die", "Straße"]

vocabulary = sorted({*SOURCE, *TARGET})
id_of = {word: END + 1 + place for place, word in enumerate(vocabulary)}
id_of_another_word = END + 1 + len(vocabulary)
source = torch.tensor([[*(id_of[word] for word in SOURCE), END]])
written = torch.tensor([[BEGIN, *(id_of[word] for word in TARGET[:-1])]])
source_len = source.shape[1]
written_len = written.shape[1]

config = TranslationConfig(
    vocab_size=id_of_another_word + 1,
    dim=32,
    heads=4,
    encoder_layers=2,
    decoder_layers=2,
    positions="learned",
    dropout=0.0,
)
model = seeded(SEED, TranslationTransformer, config).eval()  # random weights
cross_attention = model.decoder[0].cross_attention
parts = {  # of the first layers
    "the encoder": model.encoder[0],
    "keys of its output": cross_attention.to_k,
    "values of its output": cross_attention.to_v,
    "the decoder": model.decoder[0].self_attention,
    "queries of cross-attention": cross_attention.to_q,
}


def run(source, written):
    """What each part returns in one pass, (words, numbers), and "encoded" and "logits"."""
    modules = {**parts, "encoded": model.encoder_norm, "logits": model}
    watched = watch(modules, lambda: model(source, written))
    return {name: calls.outputs[0][0] for name, calls in watched.items()}


def with_another_word(ids, place):
    changed = ids.clone()
    changed[0, place] = id_of_another_word
    return changed


unchanged = run(source, written)
source_runs = [run(with_another_word(source, place), written) for place in range(source_len)]
written_runs = [run(source, with_another_word(written, place)) for place in range(written_len)]


def distances(name, runs):
    """How far each output of a part moves in each run, (outputs, runs)."""
    moved = [run[name] - unchanged[name] for run in runs]
    return torch.stack(moved, 1).norm(dim=-1)


encoder_by_source = distances("encoded", source_runs)
encoder_by_written = distances("encoded", written_runs)
decoder_by_source = distances("logits", source_runs)
decoder_by_written = distances("logits", written_runs)

# %% tags=["folded"]
read_labels = [*SOURCE, "<end>"]
written_labels = ["<begin>", *TARGET[:-1]]

caption = (
    "Each column is a word that is replaced, each row an output. Strong: the output moves far; "
    "grey: it does not move. Left of the line are source words, right of it written words."
)
with figure("What depends on what in a translator", 7.6, 6.8, caption) as drawing:
    panels = drawing.subplots(2, 1, height_ratios=(source_len, written_len))
    of_encoder, of_decoder = panels

    moved = torch.cat([encoder_by_source, encoder_by_written], 1)
    columns = [*read_labels, *written_labels]
    draw_map(of_encoder, moved / largest(moved), read_labels, columns, hidden=moved < 1e-9)
    of_encoder.set_ylabel("encoder: vector of each word", fontsize=9)

    moved = torch.cat([decoder_by_source, decoder_by_written], 1)
    rows = [f"after “{word}”" for word in written_labels]
    image = draw_map(of_decoder, moved / largest(moved), rows, hidden=moved < 1e-9)
    of_decoder.set_ylabel("decoder: logits of the next word", fontsize=9)

    for axes in panels:
        axes.axvline(source_len - 0.5, color=LINES[1], linewidth=2)
    scale_beside(drawing, image, panels, "how far the output moves, relative to the largest")

# %% [markdown]
# A translator has two stacks of layers.
#
# - The **encoder** reads the source sentence. Every word looks at all words.
# - The **decoder** writes the translation. Every written word looks at itself and at earlier written words. Then, in
#   **cross-attention**, it looks at the encoder's output: queries come from the decoder, keys and values from the
#   encoder.
#
# $$
# p(y \mid x) = \prod_t p(y_t \mid y_1, \ldots, y_{t-1}, \, \operatorname{encoder}(x))
# $$
#
# The encoder's output does not depend on what is written. So the encoder runs once for each sentence. The keys and
# values of its output are computed once in each layer and used for all written words:

# %%
small = TranslationTransformer(TranslationConfig(vocab_size=20, dim=32, heads=4)).eval()
x = torch.tensor([[5, 6, 7, 3]])  # ids of the source, (batch, source words)
with torch.no_grad():
    state = small.start(x)  # the encoder, and keys and values of its output: once
    for y in (2, 8, 9):
        logits_of_next = small.step(torch.tensor([y]), state)  # the queries of one word
shapes = [tuple(context.keys.shape) for context in state.contexts]  # of each layer
print(shapes)  # (batch, heads, source words, head_dim)

# %% [markdown]
# Here the translator of the figure gets the German sentence word by word, as if it had written it, and the calls of
# each part are counted:

# %% tags=["folded"]
one_by_one = []  # the logits after each written word


def write():
    state = model.start(source)
    for place in range(written_len):
        one_by_one.append(model.step(written[:, place], state))


calls = {name: watched.calls for name, watched in watch(parts, write).items()}
title = f"How often the first layer computes while {written_len} words are written"
table(title, ("part", "times"), calls.items())

# %% [markdown]
# Replacing one word shows where queries, keys and values come from:


# %% tags=["folded"]
def moved_parts(run):
    """How far the queries, the keys and the values of the first cross-attention move in a run."""
    names = ("queries of cross-attention", "keys of its output", "values of its output")
    return [largest(run[name] - unchanged[name]) for name in names]


by_source_word = moved_parts(source_runs[0])
by_written_word = moved_parts(written_runs[1])
rows = [
    ("a source word", *(f"{distance:.3f}" for distance in by_source_word)),
    ("a written word", *(f"{distance:.3f}" for distance in by_written_word)),
]
title = "How far parts of the first cross-attention move"
table(title, ("replaced", "queries", "keys", "values"), rows)

# %% [markdown]
# ## Claims

# %% tags=["claims"]
queries_by_source, *keys_values_by_source = by_source_word
queries_by_written, *keys_values_by_written = by_written_word
holds(
    "Queries of cross-attention come from the decoder, keys and values from the encoder.",
    queries_by_source == 0 < min(keys_values_by_source)
    and max(keys_values_by_written) == 0 < queries_by_written,
    "a source word moves keys and values only, a written word queries only (first layer)",
)
holds(
    "The encoder, and the keys and values of its output, are computed once for all written words.",
    list(calls.values()) == [1, 1, 1, written_len, written_len],
    f"once each, and {written_len} times the decoder with its queries",
)
holds(
    "The logits of words written one by one are the same as those of one pass.",
    largest(torch.cat(one_by_one) - unchanged["logits"]) < 1e-9,
    ROUNDING,
)
holds(
    "Every vector of the encoder depends on every source word and on no written word.",
    float(encoder_by_source.min()) > 1e-6 and largest(encoder_by_written) == 0,
    f"source words move it by {float(encoder_by_source.min()):.3f} or more, written words by "
    "exactly 0",
)
holds(
    "Replacing a source word changes the logits at every written position.",
    float(decoder_by_source.min()) > 1e-6,
    f"by {float(decoder_by_source.min()):.3f} or more",
)
# row i, column j: logits after the word i, if the word j is replaced
on_or_after = torch.ones(written_len, written_len, dtype=torch.bool).tril()
moved_after = float(decoder_by_written[on_or_after].min())
moved_before = largest(decoder_by_written[~on_or_after])
holds(
    "Replacing a written word changes the logits after it, and none before it.",
    moved_after > 1e-6 and moved_before < 1e-9,
    f"those after it by {moved_after:.3f} or more, those before it not at all except for rounding",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import WHOLE_NUMBERS, exercise, one_of


@exercise(
    "A translation of 10 words is written. How often does the encoder run, and how often the first "
    "layer of the decoder? Type two numbers.",
    WHOLE_NUMBERS,
    hint="The encoder's output does not depend on what is written.",
    answer="1 10",
)
def runs_of_both_stacks(counts):
    def write_ten_words():
        state = model.start(source)
        for _ in range(10):
            model.step(torch.tensor([BEGIN]), state)

    stacks = {"encoder": model.encoder[0], "decoder": model.decoder[0].self_attention}
    measured = [watched.calls for watched in watch(stacks, write_ten_words).values()]
    holds("They run that often.", counts == measured, f"{measured}, you say {counts}")


@exercise(
    "A source word is replaced. What moves in the first cross-attention: its queries, or its keys "
    "and values?",
    one_of("queries", "keys and values"),
    hint="Which of them come from the encoder?",
    answer="keys and values",
)
def moved_by_a_source_word(part):
    distance = {"queries": by_source_word[0], "keys and values": min(by_source_word[1:])}
    holds("They move.", distance[part] > 0, f"{part} by {distance[part]:.3f}")


# %% [markdown]
# Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.3.
