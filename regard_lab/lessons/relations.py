"""Lesson: which relations between words the heads of trained models show, beside baselines that use no content."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from regard.arguments import count_of
from regard_lab.lessons.built_heads import CERTAIN, SURE, built_heads
from regard_lab.lessons.estimates import Estimate, every
from regard_lab.lessons.figures import INK, LINES, MARKS, begin, draw_map, legend_below, scale_beside
from regard_lab.lessons.relation_tables import head_of, is_beyond, most_received, tables_of
from regard_lab.lessons.report import read_report
from regard_lab.lessons.taught import LESSONS, Claim, Settings, Taught
from regard_lab.seeing.relations import ERRORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT = "relations"
NAMES = {"causal": "language model", "encoder": "encoder"}
BASELINES = ("fixed offset", "random choice", "untrained")

CODE = """\
import torch
from regard_lab.seeing import look_text
from regard_lab.seeing.english import relations_in
from regard_lab.seeing.relations import join, looks_of
from regard_lab.models import LanguageModel
from regard_lab.text import Tokeniser

text = "Return the names of the list. The list holds the names."
tokeniser = Tokeniser.train([text], vocab_size=300)
torch.manual_seed(0)
model = LanguageModel(LanguageModel.Config(vocab_size=tokeniser.vocab_size, dim=32, heads=4, layers=2))
maps = look_text(model, tokeniser, text)  # yours: a model and its tokeniser, trained
links = relations_in(maps.words)["same word earlier"]
looks = looks_of(maps.weights, links, causal=maps.causal)
print(looks.best_head(), looks.hits.double().mean(0), looks.chance.mean())"""


def teach(settings: Settings) -> Taught:
    """Read the shares of the trained models, and measure heads made by hand with the same function."""
    report = read_report(REPORT)
    models = {NAMES[kind]: model for kind, model in report.figures["models"].items()}
    numbers = {
        "source": report.source, "corpus": report.figures["corpus"], "models": models,
        "texts": report.figures["recipe"]["texts"],
        "built": built_heads(settings.seed),
    }  # fmt: skip
    return Taught(
        lesson=LESSONS["relations"],
        paragraphs=_paragraphs(numbers),
        tables=tables_of(numbers),
        claims=_claims(numbers),
        code=CODE,
        numbers=numbers,
        drawing=partial(_draw, numbers),
    )


def _paragraphs(numbers: dict[str, Any]) -> tuple[str, ...]:
    train, test = (numbers["corpus"][part] for part in ("train", "test"))
    models = numbers["models"]
    sizes = "; ".join(
        f"the {name} has {count_of(model['layers'], 'layers')} of "
        f"{count_of(model['heads'], 'heads')} and learned in {count_of(model['steps'], 'steps', ',')} "
        f"({model['cpu_seconds']:,} CPU seconds)"
        for name, model in models.items()
    )
    return (
        "Articles say that one head looks from a verb to its subject and another from adjectives to their noun. Here "
        "two small models were trained on natural text, and every head was measured: a language model, which looks at "
        "earlier words only, and an encoder of masked words, which looks at both sides.",
        f"The text is the documentation of the standard library of Python: {train['words']:,} words to learn from, and "
        f"other modules with {test['words']:,} words to test on, of which at most {numbers['texts']} texts are used; "
        f"{sizes}. {numbers['source']}",
        "The links are labelled by rules, without a parser: the same word earlier, the bracket that is closed, and in "
        "phrases such as 'the given list of' the article, the modifier and the noun. A few of the grammatical links "
        "are wrong. A head is right if the right word has the largest weight of all but the word itself.",
        "The head of each relation is chosen on validation texts and measured on test texts. The baselines use no "
        "content: the fixed offset that is right most often in the validation texts, a random choice, and the best "
        f"head of the same model before training. A head is beyond every baseline if it is better than each by more "
        f"than {ERRORS} standard errors, with documents as the independent units.",
        "The column weight is the mean weight on the right words. The column “from the neighbour” is how often the "
        "same head looks at the same key from the neighbouring word, which is not related to it. If this happens as "
        "often, the head looks at such keys from any word: at the nearest article, not at the article of this noun.",
        *(_summary(name, model) for name, model in models.items()),
        "Larger models that learn for longer show more, among them heads that find what followed the same word earlier "
        "(Olsson et al. 2022, In-context Learning and Induction Heads); these two do not.",
        "The sentences of the articles are drawn by heads that were chosen on validation texts, never on these "
        f"sentences. Their words are rare in documentation and mostly in several sub-words: {_sub_words(models)}.",
    )


def _sub_words(models: dict[str, Any]) -> str:
    """Such as `fox 2, lazy 4`."""
    shown = next(iter(models.values()))["sentences"]["fox"]
    return ", ".join(
        f"{word} {count}" for word, count in zip(shown["words"], shown["pieces"], strict=True) if count > 1
    )


def _summary(name: str, model: dict[str, Any]) -> str:
    """What some head of a model shows, and what no head shows."""
    parts = {
        shown: ", ".join(relation for relation, one in model["relations"].items() if is_beyond(one) == shown)
        for shown in (True, False)
    }
    return f"In the {name} some head shows, beyond every baseline: {parts[True]}. No head does for: {parts[False]}."


SHOWN = {  # relations that some head shows beyond every baseline
    "language model": ("object to verb", "noun to article", "closing to opening bracket"),
    "encoder": ("noun to article", "closing to opening bracket", "closing to opening quote"),
}
OWN = ("object to verb", "noun to article", "closing to opening bracket")  # of the language model: not from everywhere
MISSING = ("verb to subject", "noun to modifier")  # those of the articles, in both models
PLACES = ("previous word", "next word")  # of the encoder: no relation, but a distance
OFTEN = 0.9


def _claims(numbers: dict[str, Any]) -> tuple[Claim, ...]:
    models = numbers["models"]
    causal, encoder = models.values()
    return (
        *(_beyond_claim(name, relation, models[name]) for name, shown in SHOWN.items() for relation in shown),
        *(_own_claim(relation, causal["relations"][relation]) for relation in OWN),
        *(_missing_claim(relation, models) for relation in MISSING),
        *(_distance_claim(relation, encoder["relations"][relation]) for relation in PLACES),
        *(_random_claim(name, model) for name, model in models.items()),
        *_sentence_claims(models),
        *_built_claims(numbers["built"]["heads"]),
    )


def _beyond_claim(name: str, relation: str, model: dict[str, Any]) -> Claim:
    one = model["relations"][relation]
    best = max(one["baselines"], key=lambda baseline: one["baselines"][baseline])
    margin = one["margins"][best]
    return Claim(
        f"Some head of the {name} shows '{relation}' beyond every baseline, by more than {ERRORS} standard errors.",
        is_beyond(one),
        f"{one['share']:.3f}; the best baseline, {best}, {one['baselines'][best]:.3f}; difference {margin['mean']:.3f} "
        f"± {margin['error']:.3f}",
    )


def _own_claim(relation: str, one: dict[str, Any]) -> Claim:
    share, neighbours = (Estimate.share(one[key], one["links"]) for key in ("share", "neighbours"))
    return Claim(
        f"The head of the language model for '{relation}' looks at that key less than half as often from the "
        f"neighbouring word.",
        share.above(neighbours.times(2)),
        f"{share}, from the neighbour {neighbours}",
    )


def _missing_claim(relation: str, models: dict[str, Any]) -> Claim:
    found = {name: model["relations"][relation] for name, model in models.items()}
    return Claim(
        f"No head of these models shows '{relation}' better than a fixed offset does.",
        not any(is_beyond(one) for one in found.values()),
        "; ".join(
            f"{name} {one['share']:.3f}, fixed offset {one['baselines']['fixed offset']:.3f} ({one['offset']:+d})"
            for name, one in found.items()
        ),
    )


def _distance_claim(relation: str, one: dict[str, Any]) -> Claim:
    share = Estimate.share(one["share"], one["links"])
    return Claim(
        f"A head of the encoder nearly always looks at the {relation}, as a fixed offset does: that needs no content.",
        every(share.above(OFTEN), not is_beyond(one)),
        f"{share}, fixed offset {one['baselines']['fixed offset']:.3f}",
    )


def _sentence_claims(models: dict[str, Any]) -> tuple[Claim, Claim]:
    most = {name: most_received(model) for name, model in models.items()}
    change = models[NAMES["causal"]]["it"]["largest_change"]
    return (
        Claim(
            "In 'The cat sat on the mat.' *cat* and *mat* are not the words with the most weight in either model.",
            not any({"cat", "mat"} & set(words) for words in most.values()),
            "; ".join(f"{name}: most on {' and '.join(words)}" for name, words in most.items()),
        ),
        Claim(
            "In the language model the weights of *it* are the same whether the sentence ends in *tired* or in "
            "*congested*, because that word comes later.",
            change == 0,
            f"largest change {change:g}",
        ),
    )


def _built_claims(built: dict[str, Any]) -> tuple[Claim, Claim]:
    return (
        Claim(
            "The measure finds the relation of each head that is made by hand.",
            all(one["share"] > CERTAIN for one in built.values()),
            ", ".join(f"{one['relation']} {one['share']:.3f}" for one in built.values()),
        ),
        Claim(
            "With random labels the same heads find no more than chance.",
            all(abs(one["over_chance"]) < SURE * one["error"] for one in built.values()),
            ", ".join(f"{one['over_chance']:+.3f} ± {one['error']:.3f}" for one in built.values()),
        ),
    )


def _random_claim(name: str, model: dict[str, Any]) -> Claim:
    """All relations together, each weighted by its links."""
    drawn = [(one["links"], one["random_labels"]) for one in model["relations"].values()]
    links = sum(count for count, _ in drawn)
    over = sum(count * one["over_chance"] for count, one in drawn) / links
    error = sum((count * one["error"]) ** 2 for count, one in drawn) ** 0.5 / links
    return Claim(
        f"With random labels, heads of the {name} chosen in the same way find no more than chance.",
        abs(over) <= ERRORS * error,
        f"{over:+.4f} ± {error:.4f} over chance in {links:,} links",
    )


MAPS = (  # model, sentence, relation whose head is drawn
    ("language model", "fox", "verb to subject"),
    ("encoder", "cat", "noun to article"),
    ("language model", "tired", "noun to article"),
)


def _draw(numbers: dict[str, Any], figure: Figure) -> None:
    models = numbers["models"]
    begin(figure, "Relations between words: the best head of each, and baselines without content", 13.0, 10.2)
    parts: Any = figure.subfigures(2, 1, height_ratios=(6, 4.2))
    upper, lower = parts
    most = max(len(model["relations"]) for model in models.values())
    panels = upper.subplots(1, len(models), sharex=True)
    for axes, (name, model) in zip(panels, models.items(), strict=True):
        _draw_shares(axes, name, model, most)
    legend_below(panels[0], columns=2)
    panels = lower.subplots(1, len(MAPS))
    for axes, (name, sentence, relation) in zip(panels, MAPS, strict=True):
        image = _draw_sentence(axes, name, models[name], sentence, relation)
    scale_beside(lower, image, panels, "attention weight")


def _draw_shares(axes: Axes, name: str, model: dict[str, Any], rows: int) -> None:
    """A row for each relation: the chosen head with its error, and three baselines."""
    relations = model["relations"]
    places = range(len(relations))
    for number, baseline in enumerate(BASELINES, start=1):
        values = [one["baselines"][baseline] for one in relations.values()]
        size, inside = (110, "none") if baseline == "fixed offset" else (34, LINES[number])  # around an equal head
        axes.scatter(values, places, s=size, facecolors=inside, edgecolors=LINES[number], linewidths=1.8,
                     marker=MARKS[number], label=baseline, zorder=2)  # fmt: skip
    axes.errorbar(
        [one["share"] for one in relations.values()], places, xerr=[one["error"] for one in relations.values()],
        fmt=MARKS[0], color=LINES[0], markersize=8, label="the chosen head, ± standard error", zorder=3,
    )  # fmt: skip
    axes.set_yticks(places, list(relations), fontsize=9.5, color=INK)
    for label, one in zip(axes.get_yticklabels(), relations.values(), strict=True):
        label.set_fontweight("bold" if is_beyond(one) else "normal")
    axes.set_ylim(rows - 0.5, -0.7)
    axes.set_xlim(-0.03, 1.03)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{name}; bold: beyond every baseline", fontsize=11, color=INK)
    axes.set_xlabel("share of links in test texts", fontsize=9.5, color=INK)


def _draw_sentence(axes: Axes, name: str, model: dict[str, Any], sentence: str, relation: str) -> Any:
    shown, head = model["sentences"][sentence], head_of(model["relations"][relation])
    weights = torch.tensor(shown["maps"][head])
    unseen = torch.ones_like(weights, dtype=torch.bool).triu(1) if name == "language model" else None
    image = draw_map(axes, weights, shown["words"], shown["words"], hidden=unseen, cell=0.34)
    beyond = "beyond every baseline" if is_beyond(model["relations"][relation]) else "no better than a fixed offset"
    axes.set_xlabel(f"{name}, head {head}, chosen for\n'{relation}': {beyond}", fontsize=9.5, color=INK)
    return image
