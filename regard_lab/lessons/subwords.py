# %% [markdown]
# # Pieces of words
#
# **Why may *Straße* be two pieces, and the longer *Straßenbahn* one?**

# %% tags=["parameters"]
SEED = 0

# %% tags=["folded"]
from collections import Counter
from itertools import pairwise

from regard_lab.seeing.palette import INK, LINES
from regard_lab.teaching import draw_line, figure, holds, label_axes, table
from regard_lab.text import Tokeniser
from regard_lab.text.pronouns import make_split

SIZES = (300, 600, 1200, 2000)  # of the vocabulary
SHOWN = ("Straße", "Straßenbahn", "nicht", "Tier", "Xylophon")

texts = []  # English and German
for sentence in make_split("train", 1500, SEED):
    texts += [sentence.source, sentence.target]
counts = Counter()  # of words, without punctuation
for text in texts:
    counts.update(text.replace(",", "").rstrip(".").split())

tokenisers = {size: Tokeniser.train(texts, size) for size in SIZES}


def pieces_of(word, size):
    """The pieces of a word with a vocabulary of this size."""
    tokeniser = tokenisers[size]
    return [piece for piece in tokeniser.pieces(tokeniser.encode(word)) if piece]


pieces_per_word = []  # on average over all words of the texts, for each size
for size in SIZES:
    pieces = sum(count * len(pieces_of(word, size)) for word, count in counts.items())
    pieces_per_word.append(pieces / counts.total())

# %% tags=["folded"]
caption = (
    "Left: with a larger vocabulary a word has fewer pieces. Right: the pieces of five words. "
    "*Xylophon* is in none of the texts from which the pieces were learned."
)
with figure("Words become pieces", 8, 3.0, caption) as drawing:
    left, right = drawing.subplots(1, 2, width_ratios=(1, 2))
    draw_line(left, SIZES, pieces_per_word, 0, "pieces")
    label_axes(left, "Pieces of a word", "vocabulary", "mean over the texts")
    left.set_ylim(bottom=0)

    right.set_title("Pieces, by the size of the vocabulary", fontsize=10, color=INK)
    right.set_axis_off()
    for row, word in enumerate(SHOWN):
        for column, size in enumerate(SIZES[1:]):
            pieces = "|".join(pieces_of(word, size))
            right.text(column / 3, -row, pieces, fontsize=9.5, color=INK, parse_math=False)
    for column, size in enumerate(SIZES[1:]):
        right.text(column / 3, 1, f"{size:,}", fontsize=9, color=LINES[0], fontweight="bold")
    right.set(xlim=(0, 1), ylim=(-len(SHOWN) + 0.5, 1.6))

# %% [markdown]
# A model reads ids of a finite vocabulary. If every word had an id, the vocabulary would be large, and a new word
# would have no id. If every letter had one, texts would become long. **Byte pair encoding** lies between the two. It
# begins with single bytes, and counts how often each pair of neighbours occurs in the texts. The most frequent pair
# $(a, b)$ becomes a piece $ab$ of its own, and the counting begins again:
#
# $$
# (a, b) = \operatorname{argmax}_{(x, y)} \, \text{count}(x, y)
# $$
#
# So frequent words become one piece early, and rare words stay in pieces that they share with others. Here are four
# merges for four words, computed by hand:

# %%
words = {"Straße": 5, "Straßenbahn": 10, "Tier": 12, "Tiere": 1}  # and how often they occur
split = {word: list(word) for word in words}
for _ in range(4):
    pairs = Counter()
    for word, pieces in split.items():
        for pair in pairwise(pieces):
            pairs[pair] += words[word]
    (a, b), count = pairs.most_common(1)[0]
    for pieces in split.values():
        for place in range(len(pieces) - 2, -1, -1):
            if pieces[place : place + 2] == [a, b]:
                pieces[place : place + 2] = [a + b]
print(split)

# %% [markdown]
# The letters of *Straß* meet in both *Straße* and *Straßenbahn*, so they are joined first. What is joined next depends
# on all words of the texts. The pieces of the table below come from 3,000 sentences. There *e* and *n* are joined
# early, because many words end in *en*. So in *Straßenbahn* the *e* belongs to *en*, and *Straß* and *e* meet in
# *Straße* alone. The vocabulary is full before this rare pair is joined. *Straßenbahn*, which is more frequent here,
# becomes one piece.
#
# In the table `␣` is the space before a word where it is a piece of its own, and `\xc3` and `\x9f` are the two bytes of
# *ß* before they are joined.

# %% tags=["folded"]
rows = []
for word in SHOWN:
    pieces = ["\N{NO-BREAK SPACE}".join(pieces_of(word, size)) for size in SIZES]
    rows.append((word, f"{counts[word]:,}", *pieces))
sizes = [f"{size:,}" for size in SIZES]
table("Pieces by the size of the vocabulary", ("word", "count", *sizes), rows)

# %% [markdown]
# A tokeniser of your own: `Tokeniser.train(lines, vocab_size=2000)` of `regard_lab.text`.
#
# ## Claims

# %% tags=["folded"]
by_frequency = [word for word, _ in counts.most_common()]


def whole(words, size):
    """The share of words that are one piece."""
    return sum(len(pieces_of(word, size)) == 1 for word in words) / len(words)


frequent = whole(by_frequency[:50], 600)
rare = whole(by_frequency[-50:], 600)
unchanged = 0  # texts that are read back as they were
read_back = [*texts[:200], "Xylophon 7"]
for text in read_back:
    tokeniser = tokenisers[600]
    unchanged += tokeniser.decode(tokeniser.encode(text)) == text

# %% tags=["claims"]
holds(
    "The pieces of a text give the text back, also if it has words that the tokeniser has never seen.",
    unchanged == len(read_back) and counts["Xylophon"] == 0,
    f"{unchanged} of {len(read_back)} texts",
)
holds(
    "With every larger vocabulary a word has fewer pieces.",
    all(fewer < more for more, fewer in pairwise(pieces_per_word)),
    ", ".join(f"{size:,}: {mean:.2f}" for size, mean in zip(SIZES, pieces_per_word)),
)
holds(
    "Frequent words are one piece sooner than rare ones.",
    frequent > 0.8 and rare < 0.2,
    f"with 600 ids {frequent:.0%} of the 50 most frequent words, {rare:.0%} of the 50 rarest",
)
street = {size: pieces_of("Straße", size) for size in (1200, 2000)}
tram = {size: pieces_of("Straßenbahn", size) for size in (1200, 2000)}
holds(
    "Straße and Straßenbahn share pieces, until the more frequent of the two words is one piece.",
    street[1200][:2] == tram[1200][:2] and (len(street[2000]), len(tram[2000])) == (2, 1),
    f"{'|'.join(street[1200])} and {'|'.join(tram[1200])} with 1,200 ids; {'|'.join(street[2000])} "
    f"and {'|'.join(tram[2000])} with 2,000",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise, one_of


@exercise(
    "Which of these words is one piece with a vocabulary of 600 ids?",
    one_of("nicht", "straße", "xylophon"),
    hint="Which of them occurs most often?",
    answer="nicht",
)
def one_piece(word):
    spelled = word if word == "nicht" else word.capitalize()
    pieces = pieces_of(spelled, 600)
    holds("It is one piece.", len(pieces) == 1, "|".join(pieces))


@exercise(
    "The words are *aab* (3 times) and *ab* (2 times). How often does the pair *a, b* occur?",
    NUMBER,
    hint="Once in each word, and a word counts as often as it occurs.",
    answer="5",
)
def count_of_a_pair(count):
    pairs = Counter()
    for word, times in {"aab": 3, "ab": 2}.items():
        for pair in pairwise(word):
            pairs[pair] += times
    counted = pairs["a", "b"]
    holds("It occurs that often.", count == counted, f"{counted}, you say {count:g}")


# %% [markdown]
# Source: Sennrich et al. 2016, section 3.2.
