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
from regard_lab.seeing.canvas import LINES
from regard_lab.teaching import ROUNDING, draw_map, figure, holds, largest, scale_beside, seeded, table, watch
from regard_lab.text.vocabularies import BEGIN, END

SOURCE = ["The", "animal", "did", "not", "cross", "the", "street"]
TARGET = ["Das", "Tier", "ging", "nicht", "über", "die", "Straße"]
vocabulary = sorted({*SOURCE, *TARGET})
OTHER = END + 1 + len(vocabulary)  # a word of neither sentence
numbers = {word: END + 1 + place for place, word in enumerate(vocabulary)}
source = torch.tensor([[*(numbers[word] for word in SOURCE), END]])
written = torch.tensor([[BEGIN, *(numbers[word] for word in TARGET[:-1])]])

config = TranslationConfig(
    vocab_size=OTHER + 1, dim=32, heads=4, encoder_layers=2, decoder_layers=2, positions="learned", dropout=0.0
)
model = seeded(SEED, TranslationTransformer, config).eval()  # random weights
cross = model.decoder[0].cross_attention
parts = {
    "the encoder": model.encoder[0], "keys of its output": cross.to_k, "values of its output": cross.to_v,
    "the decoder": model.decoder[0].self_attention, "queries of cross-attention": cross.to_q,
    "encoded": model.encoder_norm,
}  # fmt: skip


def run(source, written):
    """One pass: the encoder's vectors (source, dim), the logits (written, vocabulary), and what each part did."""
    kept = []
    seen = watch(parts, lambda: kept.append(model(source, written)[0]))
    return seen["encoded"].outputs[0][0], kept[0], seen


def replaced(ids, place):
    ids = ids.clone()
    ids[0, place] = OTHER
    return ids


encoded, logits, seen = run(source, written)
runs = [run(replaced(source, place), written) for place in range(source.shape[1])]
runs += [run(source, replaced(written, place)) for place in range(written.shape[1])]
encoder = torch.stack([(one[0] - encoded).norm(dim=-1) for one in runs], 1)  # (source words, replaced words)
decoder = torch.stack([(one[1] - logits).norm(dim=-1) for one in runs], 1)  # (written words, replaced words)

read = [*SOURCE, "<end>"]
wrote = ["<begin>", *TARGET[:-1]]
with figure("What depends on what in a translator", 7.6, 6.8,
            "Each column is a word that is replaced, each row an output. Strong: the output moves far; grey: it does "
            "not move. Left of the line are source words, right of it written words.") as drawing:  # fmt: skip
    panels = drawing.subplots(2, 1, height_ratios=(len(read), len(wrote)))
    for axes, moved, rows, title in (
        (panels[0], encoder, read, "encoder: vector of each word"),
        (panels[1], decoder, [f"after “{word}”" for word in wrote], "decoder: logits of the next word"),
    ):
        columns = [*read, *wrote] if axes is panels[0] else ()
        image = draw_map(axes, moved / largest(moved), rows, columns, hidden=moved < 1e-9)
        axes.axvline(len(read) - 0.5, color=LINES[1], linewidth=2)
        axes.set_ylabel(title, fontsize=9)
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
with torch.no_grad():
    state = small.start(torch.tensor([[5, 6, 7, 3]]))  # the encoder, and keys and values of its output: once
    for word in (2, 8, 9):
        logits_of_next = small.step(torch.tensor([word]), state)  # the queries of one word
print([tuple(context.keys.shape) for context in state.contexts])  # (batch, heads, source words, head_dim) in each layer

# %% [markdown]
# Here the translator of the figure gets the German sentence word by word, as if it had written it, and the calls of
# each part are counted:

# %% tags=["folded"]
one_by_one = []


def write():
    state = model.start(source)
    one_by_one.extend(model.step(written[:, place], state) for place in range(written.shape[1]))


counts = {name: one.calls for name, one in watch(parts, write).items() if name != "encoded"}
table(f"How often the first layer computes while {len(wrote)} words are written", ("part", "times"), counts.items())

# %% [markdown]
# Replacing one word shows where queries, keys and values come from:

# %% tags=["folded"]
names = ("queries of cross-attention", "keys of its output", "values of its output")
origins = {
    what: [largest(run(*edited)[2][name].outputs[0] - seen[name].outputs[0]) for name in names]
    for what, edited in (("source", (replaced(source, 0), written)), ("written", (source, replaced(written, 1))))
}
table("How far parts of the first cross-attention move", ("replaced", "queries", "keys", "values"),
      [(f"a {what} word", *(f"{distance:.3f}" for distance in moved)) for what, moved in origins.items()])  # fmt: skip

# %% [markdown]
# ## Claims

# %% tags=["claims"]
own = decoder[:, len(read) :]  # which written word changes the logits after which
earlier = own.tril()[torch.ones_like(own).tril().bool()]
holds(
    "Queries of cross-attention come from the decoder, keys and values from the encoder.",
    origins["source"][0] == 0 < min(origins["source"][1:]) and max(origins["written"][1:]) == 0 < origins["written"][0],
    "a source word moves keys and values only, a written word queries only (first layer)",
)
holds("The encoder, and the keys and values of its output, are computed once for all written words.",
      list(counts.values()) == [1, 1, 1, len(wrote), len(wrote)],
      f"once each, and {len(wrote)} times the decoder with its queries")  # fmt: skip
holds("The logits of words written one by one are the same as those of one pass.",
      largest(torch.cat(one_by_one) - logits) < 1e-9, ROUNDING)  # fmt: skip
holds("Every vector of the encoder depends on every source word and on no written word.",
      float(encoder[:, : len(read)].min()) > 1e-6 and largest(encoder[:, len(read) :]) == 0,
      f"source words move it by {float(encoder[:, : len(read)].min()):.3f} or more, "
      "written words by exactly 0")  # fmt: skip
holds("Replacing a source word changes the logits at every written position.",
      float(decoder[:, : len(read)].min()) > 1e-6,
      f"by {float(decoder[:, : len(read)].min()):.3f} or more")  # fmt: skip
holds("Replacing a written word changes the logits after it, and none before it.",
      float(earlier.min()) > 1e-6 and largest(own.triu(1)) < 1e-9,
      f"those after it by {float(earlier.min()):.3f} or more, those before it not "
      "at all except for rounding")  # fmt: skip

# %% [markdown]
# Source: Attention Is All You Need, Vaswani et al. 2017, section 3.2.3.
