"""Lesson: which relations between words the heads of trained models show, beside baselines that use no content."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from regard.inspection.relations import ERRORS
from regard.studies.lessons.built_heads import CERTAIN, built_heads
from regard.studies.lessons.figures import INK, LINES, MARKS, begin, draw_map, scale_beside
from regard.studies.lessons.relation_tables import head_of, is_beyond, tables_of
from regard.studies.lessons.report import read_report
from regard.studies.lessons.taught import LESSONS, Claim, Settings, Taught

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT = "relations"
NAMES = {"causal": "language model", "encoder": "encoder"}
BASELINES = ("fixed offset", "random choice", "untrained")

CODE = """\
import torch
from regard.inspection import join, look_text, looks_of, relations_in
from regard.models import LanguageModel
from regard.text import Tokeniser

text = "Return the names of the list. The list holds the names."
tokeniser = Tokeniser.train([text], vocab_size=300)
torch.manual_seed(0)
model = LanguageModel(LanguageModel.Config(vocab_size=tokeniser.vocab_size, dim=32, heads=4, layers=2))
maps = look_text(model, tokeniser, text)  # yours: a model and its tokeniser, trained
links = relations_in(maps.words)["same word earlier"]
looks = looks_of(maps.weights, links, causal=maps.causal)
print(looks.best_head(), looks.hits.double().mean(0), looks.chance.mean())"""


def teach(settings: Settings) -> Taught:
    """Read the scores of the trained models, and score heads made by hand with the same function."""
    report = read_report(REPORT)
    models = {NAMES[kind]: model for kind, model in report.figures["models"].items()}
    numbers = {
        "source": report.source, "corpus": report.figures["corpus"], "models": models,
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
        f"the {name} {model['layers']} layers of {model['heads']} heads after {model['steps']:,} steps"
        for name, model in models.items()
    )
    return (
        "Articles say that one head looks from a verb to its subject and another from adjectives to their noun. Here "
        "two small models were trained on natural text, and every head was scored: a language model, which looks at "
        "earlier words only, and an encoder of masked words, which looks at both sides.",
        f"The text is the documentation of the standard library of Python: {train['words']:,} words to learn from, and "
        f"other modules with {test['words']:,} words to test on. The models have {sizes}. {numbers['source']}",
        "The links are labelled by rules, without a parser: the same word earlier, the bracket that is closed, and in "
        "phrases such as 'the given list of' the article, the modifier and the noun. A few of those of grammar are "
        "wrong. A head scores if the right word has the largest weight of all but the word itself.",
        "The head of each relation is chosen on validation texts and scored on test texts. The baselines use no "
        "content: the fixed offset that is right most often in the validation texts, a random choice, and the best "
        f"head of the same model before training. A head is beyond them if it beats each by more than {ERRORS} "
        "standard errors, with documents as the independent units.",
        "From the neighbour: how often the same head looks at the same key from the neighbouring word, which is not "
        "related to it. If this is as often, the head finds such keys from everywhere: the nearest article, not the "
        "article of this noun.",
    )


SHOWN = {  # relations that some head shows beyond every baseline
    "language model": ("same word earlier",),
    "encoder": ("noun to article",),
}
PLACES = {"language model": ("previous word",), "encoder": ("previous word", "next word")}  # no relation: a distance
OFTEN = 0.9


def _claims(numbers: dict[str, Any]) -> tuple[Claim, ...]:
    models, built = numbers["models"], numbers["built"]["heads"]
    return (
        *(_beyond_claim(name, relation, models[name]) for name, shown in SHOWN.items() for relation in shown),
        *(_distance_claim(name, relation, models[name]) for name, shown in PLACES.items() for relation in shown),
        *(_random_claim(name, model) for name, model in models.items()),
        Claim(
            "In the language model *it* has the same weights whether the sentence ends in *tired* or in *congested*, "
            "which comes later.",
            models["language model"]["it"]["largest_change"] == 0,
            f"largest change {models['language model']['it']['largest_change']:g}",
        ),
        Claim(
            "The score finds the relation of each head that is made by hand.",
            all(one["share"] > CERTAIN for one in built.values()),
            ", ".join(f"{one['relation']} {one['share']:.3f}" for one in built.values()),
        ),
        Claim(
            "With random labels the same heads find no more than chance.",
            all(abs(one["over_chance"]) < 5 * one["error"] for one in built.values()),
            ", ".join(f"{one['over_chance']:+.3f} ± {one['error']:.3f}" for one in built.values()),
        ),
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


def _distance_claim(name: str, relation: str, model: dict[str, Any]) -> Claim:
    one = model["relations"][relation]
    return Claim(
        f"A head of the {name} nearly always looks at the {relation}, as a fixed offset does: that needs no content.",
        one["share"] > OFTEN and not is_beyond(one),
        f"{one['share']:.3f}, fixed offset {one['baselines']['fixed offset']:.3f}",
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
    ("encoder", "fox", "noun to article"),
    ("encoder", "cat", "noun to article"),
    ("language model", "tired", "same word earlier"),
)


def _draw(numbers: dict[str, Any], figure: Figure) -> None:
    models = numbers["models"]
    begin(figure, "Relations between words that some head shows, and baselines without content", 13.0, 10.2)
    upper, lower = figure.subfigures(2, 1, height_ratios=(6, 4.2))
    most = max(len(model["relations"]) for model in models.values())
    panels = upper.subplots(1, len(models), sharex=True)
    for axes, (name, model) in zip(panels, models.items(), strict=True):
        _draw_scores(axes, name, model, most)
    panels[0].legend(loc="lower left", fontsize=9, frameon=False)
    panels = lower.subplots(1, len(MAPS))
    for axes, (name, sentence, relation) in zip(panels, MAPS, strict=True):
        image = _draw_sentence(axes, name, models[name], sentence, relation)
    scale_beside(lower, image, panels, "attention weight")


def _draw_scores(axes: Axes, name: str, model: dict[str, Any], rows: int) -> None:
    """A row for each relation: the chosen head with its error, and three baselines."""
    relations = model["relations"]
    places = range(len(relations))
    for number, baseline in enumerate(BASELINES, start=1):
        values = [one["baselines"][baseline] for one in relations.values()]
        axes.scatter(values, places, s=34, color=LINES[number], marker=MARKS[number], label=baseline, zorder=2)
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
    axes.set_xlabel(f"{name}, head {head}, chosen for\n'{relation}' on validation texts", fontsize=9.5, color=INK)
    return image
