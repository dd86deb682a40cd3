"""Lesson: what the pronoun *it* looks at, and how its translation changes when a noun is replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from regard_lab.decoding import Translator
from regard_lab.lessons.figures import INK, LINES, Figure, begin, draw_bars, draw_map, label_axes, scale_beside
from regard_lab.lessons.taught import Claim, Estimate, Lecture, Settings, Table
from regard_lab.lessons.words import load_transformer, rounded
from regard_lab.seeing import HONESTY, choose_head, it_weights, referent_agreement, swap_check
from regard_lab.text import tidy_target
from regard_lab.text.pronouns import (
    ARTICLE_SENTENCES,
    PronounSentence,
    make_split,
    pronoun_of,
    swap_other,
    swap_referent,
)
from regard_lab.training.recipes.evaluation import rate

CHOOSING, MEASURED, SWAPPED = 200, 200, 200  # validation sentences, test sentences, and those whose nouns are swapped
NAMED = 3  # words that *it* looks at most

CODE = """\
from regard_lab.decoding import Translator
from regard_lab.seeing import choose_head, it_weights, swap_check
from regard_lab.text.pronouns import ARTICLE_SENTENCES, make_split

translator = Translator.load("runs/demo")
head = choose_head(translator.model, translator.tokeniser, make_split("valid", 50))
seen = it_weights(translator.model, translator.tokeniser, ARTICLE_SENTENCES[:1])[0]
print(head, dict(zip(seen.words, seen.weights[head.layer, head.head].tolist())))
print(swap_check(lambda lines: [one.text for one in translator.translate(lines)], make_split("test", 10)))"""


def teach(settings: Settings) -> Lecture:
    """Translate, inspect and vary the sentences known from articles; then count over many sentences."""
    translator, model = load_transformer(settings.run, "referent")
    tokeniser = translator.tokeniser
    articles = [sentence for sentence in ARTICLE_SENTENCES if "’" not in sentence.source]
    head = choose_head(model, tokeniser, make_split("valid", CHOOSING, settings.seed))
    test = make_split("test", MEASURED, settings.seed)
    agreement = referent_agreement(model, tokeniser, test, head)
    swaps = swap_check(partial(_translated, translator), test[:SWAPPED], settings.seed)
    looks = it_weights(model, tokeniser, articles)
    numbers = {
        "head": [head.layer, head.head],
        "articles": [
            {
                "source": one.source, "words": list(look.words), "it": look.it, "referent": look.referent,
                "other": look.other, "weights": rounded(look.weights[head.layer, head.head], 3),
            }
            for one, look in zip(articles, looks, strict=True)
        ],
        "swapped": _varied(translator, articles, settings.seed),
        "agreement": round(agreement.agreement, 3), "chance": round(agreement.chance, 3),
        "preference": round(agreement.preference, 3), "sentences": agreement.count,
        "right": round(swaps.right, 3), "followed": round(swaps.followed, 3), "kept": round(swaps.kept, 3),
        "swaps": swaps.count,
    }  # fmt: skip
    return numbers, _paragraphs(numbers)


def _paragraphs(numbers: dict[str, Any]) -> tuple[str, ...]:
    layer, head = numbers["head"]
    return (
        "“The animal didn't cross the street because it was too tired.” What is *it*? English does not show it; in "
        "German the pronoun must be *es* for das Tier or *sie* for die Straße. The translation therefore shows whether "
        "the model has resolved the pronoun, and its attention may show how.",
        f"One head of the encoder, layer {layer}, head {head} (both counted from 0), was chosen on {CHOOSING} "
        "validation sentences as the one whose *it* looks at its noun most often. This head is used for every "
        "sentence below.",
        "The decisive check changes one word: if the noun that *it* refers to (the referent) is replaced by one of "
        "another gender, the pronoun must change with it; if the other noun is replaced, the pronoun must not change.",
        HONESTY,
    )


def _translated(translator: Translator, lines: list[str]) -> list[str]:
    return [tidy_target(translation.text) for translation in translator.translate(lines)]


def _varied(translator: Translator, sentences: Sequence[PronounSentence], seed: int) -> list[dict[str, Any]]:
    """Translations of each sentence, unchanged, with another referent, and with the other noun replaced."""
    ways = {"unchanged": lambda one: one, "referent replaced": lambda one: swap_referent(one, seed),
            "other noun replaced": lambda one: swap_other(one, seed)}  # fmt: skip
    versions = [(way, change(sentence)) for sentence in sentences for way, change in ways.items()]
    outputs = _translated(translator, [version.source for _, version in versions])
    return [
        {"way": way, "source": one.source, "translation": text, "asked": one.pronoun, "written": pronoun_of(text)}
        for (way, one), text in zip(versions, outputs, strict=True)
    ]


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
    looked = tuple((one["source"], _most(one), one["words"][one["referent"]]) for one in numbers["articles"])
    swapped = tuple(
        (one["way"], one["source"], one["translation"], one["asked"], one["written"] or "none")
        for one in numbers["swapped"]
    )
    counted = (
        ("*it* looks most at its noun", rate(numbers["agreement"]), f"random choice {rate(numbers['chance'])}"),
        ("*it* looks more at its noun than at the other", rate(numbers["preference"]), "random choice 0.500"),
        ("the pronoun is right", rate(numbers["right"]), ""),
        ("right before and after the referent is replaced", rate(numbers["followed"]),
         f"at most {rate(numbers['right'])}"),
        ("right, and unchanged when the other noun is replaced", rate(numbers["kept"]),
         f"at most {rate(numbers['right'])}"),
    )  # fmt: skip
    yield Table("What *it* looks at most, except itself", ("sentence", "looks at", "referent"), looked)
    yield Table("Translations", ("", "sentence", "translation", "right pronoun", "pronoun"), swapped)
    yield Table("Counted over test sentences", ("quantity", "share", ""), counted)


def _most(one: dict[str, Any]) -> str:
    """The words that *it* looked at most, with their weights."""
    places = sorted((place for place in range(len(one["words"])) if place != one["it"]),
                    key=lambda place: -one["weights"][place])  # fmt: skip
    return ", ".join(f"{one['words'][place]} {one['weights'][place]:.2f}" for place in places[:NAMED])


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    plain = [one for one in numbers["swapped"] if one["way"] == "unchanged"]
    right = sum(one["asked"] == one["written"] for one in plain)
    swapped = {name: Estimate.share(numbers[name], numbers["swaps"]) for name in ("right", "followed", "kept")}
    agreement = Estimate.share(numbers["agreement"], numbers["sentences"])
    yield Claim(
        "The sentences known from articles get the right pronoun.",
        right == len(plain),
        f"{right} of {len(plain)}",
    )
    yield Claim(
        "The pronoun follows its referent in at least nine of ten sentences.",
        swapped["followed"].above(0.9),
        f"{swapped['followed']} of {numbers['swaps']}",
    )
    yield Claim(
        "It stays the same when the other noun is replaced, in at least nine of ten.",
        swapped["kept"].above(0.9),
        f"{swapped['kept']} of {numbers['swaps']}",
    )
    yield Claim(
        "In the chosen head, *it* looks most at its referent more than twice as often as by random choice.",
        agreement.above(2 * numbers["chance"]),
        f"{agreement} of {numbers['sentences']}, by chance {numbers['chance']:.3f}",
    )
    yield Claim(
        "The translation uses the right referent more often than these weights show it.",
        swapped["right"].above(agreement),
        f"right pronoun {swapped['right']}, *it* looks most at its referent {agreement}",
    )


def draw(numbers: dict[str, Any], figure: Figure) -> None:
    articles = numbers["articles"]
    begin(figure, "What “it” looks at, and what the translation does", 12.0, 1.4 + 1.25 * len(articles) + 1.0)
    grid = figure.add_gridspec(len(articles), 2, width_ratios=(2.2, 1))
    rows = []
    for number, one in enumerate(articles):
        axes = figure.add_subplot(grid[number, 0])
        image = draw_map(axes, torch.tensor([one["weights"]]), ["it"], one["words"])
        for place, mark in ((one["it"], "it"), (one["referent"], "referent"), (one["other"], "other noun")):
            axes.text(place, 0.62, mark, ha="center", va="top", fontsize=8, clip_on=False,
                      fontweight="bold" if place == one["referent"] else "normal")  # fmt: skip
        rows.append(axes)
    scale_beside(figure, image, rows, "attention weight")
    axes = figure.add_subplot(grid[:, 1])
    shares = {
        "“it” looks most\nat its referent": numbers["agreement"],
        "pronoun right": numbers["right"],
        "right, referent\nreplaced": numbers["followed"],
        "right, other noun\nreplaced": numbers["kept"],
    }
    draw_bars(axes, shares, list(map(rate, shares.values())), [LINES[4], LINES[0], LINES[0], LINES[0]])
    axes.plot([numbers["chance"]] * 2, [-0.4, 0.4], color=INK, linestyle="--", linewidth=1.2)
    label_axes(axes, "Counted over test sentences", "share (dashed: random choice)", "")
    axes.set_xlim(0, 1.15)
