# %% [markdown]
# # The animal and the street
#
# **Does a translator find what *it* refers to, and does its attention show this?**

# %% tags=["parameters"]
RUN = None
SEED = 0

# %% tags=["folded"]
import torch

from regard_lab.seeing.looks import words_away
from regard_lab.seeing.palette import FAINT, LINES
from regard_lab.teaching import (
    Estimate,
    draw_bars,
    draw_map,
    every,
    figure,
    holds,
    label_axes,
    read_report,
    scale_beside,
    table,
    undecided,
)
from regard_lab.teaching.looking import measure_referent

report = read_report("referent")
measured = report.figures if RUN is None else measure_referent(RUN, SEED)
cross_attention = measured["cross"]
articles = measured["articles"]  # what the encoder's head shows of sentences known from articles
by_offset = measured["by_offset"]  # how often the word at a fixed offset from "it" is the referent
rule = f"the word {words_away(measured['offset'])}"

# %% tags=["folded"]


def draw_weights(axes, label, sentence, columns=(), hidden=None):
    """One row of weights for the words of a sentence, and marks below its nouns and its adjective."""
    words = sentence["words"]
    image = draw_map(axes, torch.tensor([sentence["weights"]]), [label], columns, hidden=hidden)

    adjective = len(words) - 3  # its place, before the full stop and <end>
    style = {"ha": "center", "va": "top", "fontsize": 8.5, "clip_on": False}
    axes.text(sentence["referent"], 0.55, "referent", fontweight="bold", **style)
    axes.text(sentence["other"], 0.55, "other noun", **style)
    axes.text(adjective, 0.55, words[adjective], **style)
    return image


caption = (
    "The referent is the noun that is meant. Above: where the decoder looks while it writes the pronoun. "
    "Middle: where “it” looks in the encoder; grey words are outside its window. Below: what is "
    "counted over many sentences."
)
with figure("Where the translator looks", 8, 6.9, caption) as drawing:
    maps, bars = drawing.subfigures(2, 1, height_ratios=(2.3, 1))

    panels = maps.subplots(2 * len(articles), 1)
    examples = cross_attention["examples"]
    for axes, sentence in zip(panels, examples):
        columns = sentence["words"] if axes is panels[0] else ()
        draw_weights(axes, sentence["pronoun"], sentence, columns)
    panels[0].set_title("one head of cross-attention, while the pronoun is written", fontsize=9)
    for axes, sentence in zip(panels[len(examples) :], articles):
        outside_window = torch.tensor([sentence["weights"]]) == 0
        image = draw_weights(axes, "it", sentence, hidden=outside_window)
    panels[len(examples)].set_title("one head of the encoder, at “it”", fontsize=9)
    scale_beside(maps, image, panels, "attention weight")

    axes = bars.subplots()
    shares = {
        "cross-attention: the referent has the largest weight": cross_attention["share"],
        "encoder: “it” looks most at its referent": measured["agreement"],
        f"a rule: always {rule}": by_offset,
        "pronoun right": measured["right"],
        "right, referent replaced": measured["followed"],
        "right, other noun replaced": measured["kept"],
    }
    texts = [f"{share:.3f}" for share in shares.values()]
    texts[1] += f", at most {measured['in_reach']:.3f} in its window"
    draw_bars(axes, shares, texts, [LINES[4]] * 2 + [FAINT] + [LINES[0]] * 3)
    label_axes(axes, "", "share of test sentences", "")
    axes.set_xlim(0, 1.15)

# %% [markdown]
# “The animal didn't cross the street because it was too tired.” What does *it* mean? The noun that it means is called
# its **referent**. English has one pronoun for both nouns. In German the pronoun has the gender of its referent: *es*
# for das Tier (the animal), *sie* for die Straße (the street), *er* for a noun with der. So the translation shows which
# noun the model chose, and its attention may show how.
#
# **The translations first.** The first sentence is translated as it is. Then one of its nouns is replaced by a noun of
# another gender. If this noun is the referent, the pronoun must change too; if it is the other noun, the pronoun must
# stay the same. The same is done with two more sentences, whose adjective fits the street.

# %% tags=["folded"]
rows = []
for version in measured["varied"]:
    sentences = (version["source"], version["translation"])
    rows.append((version["way"], *sentences, version["asked"], version["written"] or "none"))
table("Translations", ("changed", "sentence", "translation", "right pronoun", "pronoun"), rows)

# %% [markdown]
# **While the pronoun is written**, one head of cross-attention looks most at the referent in most sentences. The head
# was chosen on validation sentences, once for all sentences. *Head 1.2* is head 2 of layer 1, both counted from 0.

# %% tags=["folded"]
rows = []
for sentence in cross_attention["examples"]:
    words = sentence["words"]
    weights = sentence["weights"]
    looks_at = words[weights.index(max(weights))]
    text = " ".join(words[:-2]) + words[-2]  # the mark follows the last word, and <end> is left out
    rows.append((text, sentence["pronoun"], looks_at, words[sentence["referent"]]))
layer, head = cross_attention["head"]
table(
    f"Cross-attention, head {layer}.{head}, while the pronoun is written",
    ("sentence", "pronoun", "looks most at", "referent"),
    rows,
)

# %% [markdown]
# **In the encoder** the result is different: in most sentences *it* does not look most at its referent. But in a layer
# of this encoder each word looks at only two words on each side (`sliding_window(4)`). In the figure the words outside
# of this window are grey. The referent is inside the window in fewer than half of the sentences; no head can look at it
# more often than that. Words outside still have an effect, because their neighbours have read them in [the layer
# below](windows.md).
#
# **A rule without grammar does as well.** In the three sentences of the table below the head looks most at the word two
# places back, whichever noun is the referent. Always taking this word is right more often than the head: in every
# sentence whose referent is inside of the window, because there it stands two words back. The rule knows neither the
# nouns nor the adjective. So the weights of this head are no evidence that the encoder finds the referent; they show a
# head that looks two words back. [What each head does](heads.md) finds the same for other relations. The head of
# cross-attention is right far more often than the rule.


# %% tags=["folded"]
def three_largest(sentence):
    """The three words that “it” looks at most, except itself, with their weights."""
    words = sentence["words"]
    weights = sentence["weights"]
    places = [place for place in range(len(words)) if place != sentence["it"]]
    places.sort(key=lambda place: -weights[place])
    return ", ".join(f"{words[place]} {weights[place]:.2f}" for place in places[:3])


rows = []
for sentence in articles:
    referent = sentence["words"][sentence["referent"]]
    rows.append((sentence["source"], three_largest(sentence), referent))
layer, head = measured["head"]
title = f"Encoder, head {layer}.{head}: what “it” looks at most, except itself"
table(title, ("sentence", "looks at", "referent"), rows)

# %% [markdown]
# The next table counts over many test sentences. “At most” is a bound on the share beside it: a head cannot look at a
# referent outside of its window, and a pronoun must be right before a replacement to be right before and after it. If
# the referent is outside of the window, its weight is 0, and so never larger than that of the other noun; the share of
# the third row can therefore be below one half.

# %% tags=["folded"]
chance = f"random choice {measured['chance']:.3f}"
at_most_in_reach = f"at most {measured['in_reach']:.3f}"
at_most_right = f"at most {measured['right']:.3f}"
always_the_rule = f"always {rule} {by_offset:.3f}"
rows = [
    ("cross-attention looks most at the referent", cross_attention["share"], always_the_rule),
    (
        "“it” looks most at its referent",
        measured["agreement"],
        f"{always_the_rule}, {chance}, {at_most_in_reach}",
    ),
    (
        "“it” looks more at its referent than at the other",
        measured["preference"],
        f"random choice 0.500, {at_most_in_reach}",
    ),
    ("the pronoun is right", measured["right"], ""),
    ("right before and after the referent is replaced", measured["followed"], at_most_right),
    ("right, and unchanged when the other noun is replaced", measured["kept"], at_most_right),
]
table(
    "Counted over test sentences",
    ("quantity", "share", "compared with"),
    [(quantity, f"{share:.3f}", compared_with) for quantity, share, compared_with in rows],
)
print(report.source if RUN is None else f"measured on {RUN}")

# %% [markdown]
# **Attention alone is not an explanation**: a model may look at a word without using it, or use a word that an earlier
# layer has mixed into its neighbours. Replacing a noun shows what the translation uses.
#
# **A model of real English**, which was never trained to translate, can be measured too: the small BERT
# all-MiniLM-L6-v2. It writes no pronoun, so only its weights can be compared. The balance of *it* is its weight on the
# noun that can be tired minus its weight on the noun that can be wide. It should be larger for “tired” than for “wide”;
# the difference is how far the balance moves. One head was chosen on sentences with other nouns.
#
# The table has two baselines: a head of the same model before training, and the fixed offset that is right most often.
# The balance of a fixed offset cannot move. Before training the balance already moves to the right noun for most pairs,
# but by almost nothing, so how far it moves says more.

# %% tags=["folded"]
english = read_report("english").figures["it"]

layer, head = english["chosen"]
rows = [
    (
        f"pairs of nouns whose balance moves to the right one, of {english['pairs']}",
        f"{english['moved']:.2f}",
        f"{english['moved_untrained']:.2f}",
        "0.00",
    ),
    (
        "how far it moves",
        f"{english['movement']:.4f}",
        f"{english['movement_untrained']:.4f}",
        "0.0000",
    ),
    (
        f"the right noun gets more than the other, of {english['sentences']:,} sentences",
        f"{english['referent_first']:.3f}",
        f"{english['untrained']:.3f}",
        f"{english['offset']:.3f}",
    ),
]
title = f"Head {layer}.{head} of the English model"
table(title, ("quantity", "head", "before training", "fixed offset"), rows)

# %% [markdown]
# [Heads and relations](relations.md) has more of this model. To look at your own translator, such as `regard demo`
# trains:
#
# ```python
# from regard_lab.decoding import Translator
# from regard_lab.seeing.referents import choose_head, it_weights, swap_check
# from regard_lab.text.pronouns import ARTICLE_SENTENCES, make_split
#
# translator = Translator.load("runs/demo")
# model = translator.model
# tokeniser = translator.tokeniser
#
# head = choose_head(model, tokeniser, make_split("valid", 50))
# (weights,) = it_weights(model, tokeniser, ARTICLE_SENTENCES[:1])
# of_the_head = weights.weights[head.layer, head.head]
# for word, weight in zip(weights.words, of_the_head):
#     print(f"{word} {weight:.2f}", end="  ")
#
# def translate(lines):
#     return [translation.text for translation in translator.translate(lines)]
#
# print(swap_check(translate, make_split("test", 10)))
# ```
#
# ## Claims

# %% tags=["folded"]
unchanged = [version for version in measured["varied"] if version["way"] == "unchanged"]
right_pronouns = sum(version["asked"] == version["written"] for version in unchanged)

# shares with their standard errors, which are above 0 for a share of 1 too, because sentences are a sample
right = Estimate.share(measured["right"], measured["swaps"])
followed = Estimate.share(measured["followed"], measured["swaps"])
kept = Estimate.share(measured["kept"], measured["swaps"])
agreement = Estimate.share(measured["agreement"], measured["sentences"])
while_written = Estimate.share(cross_attention["share"], cross_attention["count"])
always_by_rule = Estimate.share(by_offset, measured["sentences"])
layer, head = cross_attention["head"]

# %% tags=["claims"]
holds(
    "While the pronoun is written, one head of cross-attention looks most at the referent in more "
    "than half of cases, and more often than a fixed offset from “it” finds it.",
    every(while_written.above(0.5), while_written.above(always_by_rule)),
    f"{while_written} of {cross_attention['count']}, head {layer}.{head}; {rule} {always_by_rule}",
)
holds(
    "The sentences known from articles get the right pronoun.",
    right_pronouns == len(unchanged),
    f"{right_pronouns} of {len(unchanged)}",
)
holds(
    "The pronoun follows its referent in at least nine of ten sentences.",
    followed.above(0.9),
    f"{followed} of {measured['swaps']}",
)
holds(
    "The pronoun stays the same when the other noun is replaced, in at least nine of ten sentences.",
    kept.above(0.9),
    f"{kept} of {measured['swaps']}",
)
holds(
    "In the chosen head, “it” looks most at its referent more than twice as often as by random "
    "choice.",
    agreement.above(2 * measured["chance"]),
    f"{agreement} of {measured['sentences']}, by chance {measured['chance']:.3f}, at most "
    f"{measured['in_reach']:.3f}",
)
undecided(
    "It does so more often than the fixed offset that is right most often.",
    agreement.above(always_by_rule),
    f"{agreement}, always {rule} {always_by_rule}",
)
holds(
    "The translation uses the right referent more often than these weights show it.",
    right.above(agreement),
    f"right pronoun {right}, “it” looks most at its referent {agreement}",
)
holds(
    "In a model of English the balance of “it” moves to the right noun for at least 95 % of the "
    "pairs of nouns, and a hundred times as far as before training.",
    english["moved"] >= 0.95 and english["movement"] > 100 * abs(english["movement_untrained"]),
    f"{english['moved']:.0%} of {english['pairs']}, by {english['movement']:.3f}, before training "
    f"by {english['movement_untrained']:.4f}",
)

# %% [markdown]
# ## Exercises

# %% tags=["exercises"]
from regard_lab.teaching import NUMBER, exercise, one_of
from regard_lab.text.pronouns import NOUN_BY_ENGLISH
from regard_lab.text.pronouns.sentences import PRONOUN_OF_GENDER


@exercise(
    "In how many of the three sentences of the table is the word two places before *it* the referent?",
    NUMBER,
    hint="This word is *street* in all three. In which of them does *it* mean the street?",
    answer="2",
)
def right_by_the_rule(count):
    rule_is_right = []
    for sentence in articles:
        rule_is_right.append(sentence["it"] - 2 == sentence["referent"])
    counted = sum(rule_is_right)
    holds("In that many.", count == counted, f"{counted} of {len(articles)}, you say {count:g}")


@exercise(
    "In “The animal didn't cross the street because it was too tired.” *dog* (der Hund) takes the "
    "place of *animal* (das Tier). Which pronoun does a right translation use?",
    one_of("er", "es", "sie"),
    hint="The pronoun has the gender of its referent, and der is masculine.",
    answer="er",
)
def pronoun_of_the_dog(pronoun):
    right_pronoun = PRONOUN_OF_GENDER[NOUN_BY_ENGLISH["dog"].gender]
    holds("It uses this pronoun.", pronoun == right_pronoun, f"{right_pronoun}, you say {pronoun}")
