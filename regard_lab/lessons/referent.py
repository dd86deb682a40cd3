# %% [markdown]
# # The animal and the street
#
# **Does a translator find what *it* refers to, and does its attention show this?**

# %% tags=["parameters"]
RUN = None
SEED = 0

# %% tags=["folded"]
import torch

from regard_lab.seeing.referents import HONESTY
from regard_lab.seeing.canvas import LINES
from regard_lab.teaching import (
    Estimate, draw_bars, draw_map, figure, holds, label_axes, read_report, scale_beside, table
)  # fmt: skip
from regard_lab.teaching.looking import measure_referent

report = read_report("referent")
measured = report.figures if RUN is None else measure_referent(RUN, SEED)
cross, articles = measured["cross"], measured["articles"]

with figure("Where the translator looks", 8, 6.4,
            "Above: one head of cross-attention while the pronoun is written. Middle: one head of the encoder, from "
            "“it”; grey words are outside its window. Below: what is "
            "counted over many sentences.") as drawing:  # fmt: skip
    maps, bars = drawing.subfigures(2, 1, height_ratios=(2.3, 1))
    panels = maps.subplots(2 * len(articles), 1)
    rows = [(one, one["pronoun"], False) for one in cross["examples"]] + [(one, "it", True) for one in articles]
    for axes, (one, label, windowed) in zip(panels, rows):
        weights = torch.tensor([one["weights"]])
        image = draw_map(axes, weights, [label], one["words"] if axes is panels[0] else (),
                         hidden=weights == 0 if windowed else None)  # fmt: skip
        adjective = len(one["words"]) - 3  # before the full stop and <end>
        marks = {one["referent"]: "referent", one["other"]: "other noun", adjective: one["words"][adjective]}
        for place, mark in marks.items():
            axes.text(place, 0.55, mark, ha="center", va="top", fontsize=8.5, clip_on=False,
                      fontweight="bold" if mark == "referent" else "normal")  # fmt: skip
    scale_beside(maps, image, panels, "attention weight")
    axes = bars.subplots()
    shares = {
        "cross-attention: the referent has the largest weight": cross["share"],
        "encoder: “it” looks most at its referent": measured["agreement"],
        "pronoun right": measured["right"],
        "right, referent replaced": measured["followed"],
        "right, other noun replaced": measured["kept"],
    }
    texts = [f"{share:.3f}" for share in shares.values()]
    texts[1] += f", at most {measured['in_reach']:.3f} in its window"
    draw_bars(axes, shares, texts, [LINES[4]] * 2 + [LINES[0]] * 3)
    label_axes(axes, "", "share of test sentences", "")
    axes.set_xlim(0, 1.15)

# %% [markdown]
# “The animal didn't cross the street because it was too tired.” What is *it*? English does not show it. German must:
# the pronoun is *es* for das Tier and *sie* for die Straße. So the translation shows whether the model knows, and its
# attention may show how.
#
# **While the pronoun is written**, one head of cross-attention looks at the noun that *it* means. The head was chosen
# on validation sentences, once for all sentences.

# %% tags=["folded"]
table("Cross-attention, head {}.{}, while the pronoun is written".format(*cross["head"]),
      ("sentence", "pronoun", "looks most at", "referent"),
      [(" ".join(one["words"][:-1]), one["pronoun"], one["words"][one["weights"].index(max(one["weights"]))],
        one["words"][one["referent"]]) for one in cross["examples"]])  # fmt: skip

# %% [markdown]
# **In the encoder** the result is different: in most sentences *it* does not look most at its noun. But in a layer of
# this encoder each word looks at only two words on each side (`sliding_window(4)`). In the figure the words outside of
# this window are grey. The noun is inside the window in fewer than half of the sentences; that share is the most that a
# head can reach. Words outside still have an effect, because their neighbours have read them in [the layer
# below](windows.md).


# %% tags=["folded"]
def most(one, count=3):
    places = sorted(set(range(len(one["words"]))) - {one["it"]}, key=lambda place: -one["weights"][place])[:count]
    return ", ".join(f"{one['words'][place]} {one['weights'][place]:.2f}" for place in places)


table("Encoder, head {}.{}: what “it” looks at most, except itself".format(*measured["head"]),
      ("sentence", "looks at", "referent"),
      [(one["source"], most(one), one["words"][one["referent"]]) for one in articles])  # fmt: skip

# %% [markdown]
# **A check of the translations** changes one word. If the noun that *it* means is replaced by one of another gender,
# the pronoun must change with it. If the other noun is replaced, it must not.

# %% tags=["folded"]
table("Translations", ("changed", "sentence", "translation", "right pronoun", "pronoun"),
      [(one["way"], one["source"], one["translation"], one["asked"], one["written"] or "none")
       for one in measured["varied"]])  # fmt: skip
ceiling = f"at most {measured['right']:.3f}"
table(
    "Counted over test sentences", ("quantity", "share", "compared with"),
    [
        ("cross-attention looks most at the referent", f"{cross['share']:.3f}", ""),
        ("“it” looks most at its noun", f"{measured['agreement']:.3f}",
         f"random choice {measured['chance']:.3f}, at most {measured['in_reach']:.3f}"),
        ("“it” looks more at its noun than at the other", f"{measured['preference']:.3f}", "random choice 0.500"),
        ("the pronoun is right", f"{measured['right']:.3f}", ""),
        ("right before and after the referent is replaced", f"{measured['followed']:.3f}", ceiling),
        ("right, and unchanged when the other noun is replaced", f"{measured['kept']:.3f}", ceiling),
    ],
)  # fmt: skip
print(HONESTY)
print(report.source if RUN is None else f"measured on {RUN}")

# %% [markdown]
# **A model of real English**, which was never trained to translate, can be measured too: the small BERT
# all-MiniLM-L6-v2. The balance of *it* is its weight on one noun minus that on the other. It should move to the animal
# for “tired” and to the street for “wide”. One head was chosen on sentences with other nouns.

# %% tags=["folded"]
english = read_report("english").figures["it"]
table(
    "Head {}.{} of the English model".format(*english["chosen"]),
    ("quantity", "head", "before training", "fixed offset"),
    [
        (f"pairs of nouns whose balance moves to the right one, of {english['pairs']}", f"{english['moved']:.2f}",
         f"{english['moved_untrained']:.2f}", "0.00"),
        ("how far it moves", f"{english['movement']:.4f}", f"{english['movement_untrained']:.4f}", "0.0000"),
        (f"the right noun gets more than the other, of {english['sentences']:,} sentences",
         f"{english['referent_first']:.3f}", f"{english['untrained']:.3f}", f"{english['offset']:.3f}"),
    ],
)  # fmt: skip

# %% [markdown]
# [Heads and relations](relations.md) has more of this model. To look at your own translator:
#
# ```python
# from regard_lab.decoding import Translator
# from regard_lab.seeing import choose_head, it_weights, swap_check
# from regard_lab.text.pronouns import ARTICLE_SENTENCES, make_split
#
# translator = Translator.load("runs/demo")
# head = choose_head(translator.model, translator.tokeniser, make_split("valid", 50))
# seen = it_weights(translator.model, translator.tokeniser, ARTICLE_SENTENCES[:1])[0]
# print(head, dict(zip(seen.words, seen.weights[head.layer, head.head].tolist())))
# print(swap_check(lambda lines: [one.text for one in translator.translate(lines)], make_split("test", 10)))
# ```
#
# ## Claims

# %% tags=["claims"]
plain = [one for one in measured["varied"] if one["way"] == "unchanged"]
right = sum(one["asked"] == one["written"] for one in plain)
swapped = {name: Estimate.share(measured[name], measured["swaps"]) for name in ("right", "followed", "kept")}
agreement = Estimate.share(measured["agreement"], measured["sentences"])
written = Estimate.share(cross["share"], cross["count"])
holds("While the pronoun is written, one head of cross-attention looks most at the referent in more than half of "
      "cases.",
      written.above(0.5), f"{written} of {cross['count']}, head {cross['head'][0]}.{cross['head'][1]}")  # fmt: skip
holds("The sentences known from articles get the right pronoun.", right == len(plain), f"{right} of {len(plain)}")
holds("The pronoun follows its referent in at least nine of ten sentences.", swapped["followed"].above(0.9),
      f"{swapped['followed']} of {measured['swaps']}")  # fmt: skip
holds("The pronoun stays the same when the other noun is replaced, in at least nine of ten sentences.",
      swapped["kept"].above(0.9), f"{swapped['kept']} of {measured['swaps']}")  # fmt: skip
holds("In the chosen head, “it” looks most at its referent more than twice as often as by random choice.",
      agreement.above(2 * measured["chance"]),
      f"{agreement} of {measured['sentences']}, by chance {measured['chance']:.3f}, at most "
      f"{measured['in_reach']:.3f}")  # fmt: skip
holds("The translation uses the right referent more often than these weights show it.",
      swapped["right"].above(agreement),
      f"right pronoun {swapped['right']}, “it” looks most at its referent {agreement}")  # fmt: skip
holds("In a model of English the balance of “it” moves to the right noun for at least 95 % of the pairs of nouns, and "
      "a hundred times as far as before training.",
      english["moved"] >= 0.95 and english["movement"] > 100 * abs(english["movement_untrained"]),
      f"{english['moved']:.0%} of {english['pairs']}, by {english['movement']:.3f}, before training by "
      f"{english['movement_untrained']:.4f}")  # fmt: skip
