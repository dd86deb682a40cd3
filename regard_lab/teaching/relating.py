"""Tables and drawings of scored relations between words: what the lesson on them shows of each model."""

from collections.abc import Mapping
from typing import Any

import torch

from regard_lab.seeing.looks import ERRORS
from regard_lab.seeing.palette import LINES, MARKS
from regard_lab.teaching.board import table
from regard_lab.teaching.figures import Axes, Figure, draw_map, label_axes

Relation = Mapping[str, Any]  # what a benchmark writes of the best head of a relation
ScoresByRelation = Mapping[str, Relation]  # by the labels of the relations
BASELINES = ("fixed offset", "random choice", "untrained")


def head_of(relation: Relation) -> str:
    """Such as `5.11`: layer and head."""
    layer, head = relation["head"]
    return f"{layer}.{head}"


def is_beyond(relation: Relation) -> bool:
    """Whether the head is better than every baseline by more than `ERRORS` standard errors."""
    margins = relation["margins"].values()
    return all(margin["mean"] > ERRORS * margin["error"] for margin in margins)


def best_baseline(relation: Relation) -> str:
    """A head's share beside the best of its baselines, with the difference between both."""
    baselines = relation["baselines"]
    best = max(baselines, key=baselines.get)
    margin = relation["margins"][best]
    return (
        f"{relation['share']:.3f}; the best baseline, {best}, {baselines[best]:.3f}; difference "
        f"{margin['mean']:.3f} ± {margin['error']:.3f}"
    )


def over_chance(scores: ScoresByRelation) -> tuple[float, float, int]:
    """The hits of random labels over chance, their error, and the number of links, over all relations."""
    links = sum(relation["links"] for relation in scores.values())
    hits = 0.0
    variance = 0.0
    for relation in scores.values():
        random_labels = relation["random_labels"]
        hits += relation["links"] * random_labels["over_chance"]
        variance += (relation["links"] * random_labels["error"]) ** 2
    return hits / links, variance**0.5 / links, links


def draw_scores(figure: Figure, relations: Mapping[str, ScoresByRelation]) -> None:
    """Draw the head of each relation beside its baselines; a panel for each model, a row for each relation."""
    labels: list[str] = []
    for scores in relations.values():
        labels += [label for label in scores if label not in labels]

    panels = figure.subplots(1, len(relations), sharey=True)
    for axes, (name, scores) in zip(panels, relations.items(), strict=True):
        rows = [labels.index(label) for label in scores]
        for number, baseline in enumerate(BASELINES, 1):
            _draw_baseline(axes, rows, scores, baseline, number)
        axes.errorbar(
            [relation["share"] for relation in scores.values()],
            rows,
            xerr=[relation["error"] for relation in scores.values()],
            fmt=MARKS[0],
            color=LINES[0],
            markersize=6,
            label="chosen head, ± standard error",
        )
        label_axes(axes, name, "share of links", "")
        axes.set(xlim=(-0.05, 1.05), ylim=(len(labels) - 0.5, -0.5))
        axes.set_yticks(range(len(labels)), labels)
        axes.grid(alpha=0.25)

    handles, names = panels[0].get_legend_handles_labels()
    place = "outside lower center"
    figure.legend(handles, names, loc=place, ncols=4, fontsize=8.5, frameon=False)


def _draw_baseline(
    axes: Axes, rows: list[int], scores: ScoresByRelation, baseline: str, number: int
) -> None:
    """Draw the shares of a baseline; `number` selects its colour and its mark."""
    # The fixed offset is an open square, so that a head with the same share is seen inside.
    is_open = baseline == "fixed offset"
    axes.scatter(
        [relation["baselines"][baseline] for relation in scores.values()],
        rows,
        s=80 if is_open else 24,
        facecolors="none" if is_open else LINES[number],
        edgecolors=LINES[number],
        linewidths=1.5,
        marker=MARKS[number],
        label=baseline,
    )


def score_table(name: str, scores: ScoresByRelation) -> None:
    """Show the head of each relation of a model beside its baselines."""
    columns = (
        "relation",
        "links",
        "head",
        "share",
        "weight",
        *BASELINES,
        "from the neighbour",
        "beyond every baseline",
    )
    rows = []
    for label, relation in scores.items():
        baselines = relation["baselines"]
        neighbours = relation["neighbours"]
        row = (
            label,
            f"{relation['links']:,}",
            head_of(relation),
            f"{relation['share']:.3f} ± {relation['error']:.3f}",
            f"{relation['mass']:.3f}",
            f"{baselines['fixed offset']:.3f} ({relation['offset']:+d})",
            f"{baselines['random choice']:.3f}",
            f"{baselines['untrained']:.3f}",
            "" if neighbours is None else f"{neighbours:.3f}",
            "yes" if is_beyond(relation) else "no",
        )
        rows.append(row)
    title = (
        f"The best head of each relation in the {name} (layer.head, from 0), on texts on which it "
        "was not chosen"
    )
    table(title, columns, rows)


def received_table(sentences: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Show the mean weight that each word of an article's sentence receives in each model, and return it."""
    words = ("The", "cat", "sat", "on", "the", "mat")
    received = {}
    for name, of_model in sentences.items():
        after_begin = of_model["cat"]["received"][1:]
        received[name] = dict(zip(words, after_begin, strict=False))

    rows = []
    for word in words:
        weights = [f"{of_model[word]:.2f}" for of_model in received.values()]
        rows.append((word, *weights))
    title = "“The cat sat on the mat.”: mean weight of each word over all heads (1: all words get the same)"
    table(title, ("word", *sentences), rows)
    return received


def draw_english_it(axes: Axes, it: Mapping[str, Any]) -> Any:
    """Draw where *it* looks in a model of English: a row for the sentence with "tired", and one for that with "wide".

    Args:
        it: what the report on the model says of *it*.
    """
    endings = it["example"]["weights"]  # by the last word of the sentence
    *beginning, _, full_stop, end = it["example"]["words"]
    return draw_map(
        axes,
        torch.tensor(list(endings.values())),
        [f"it … {ending}" for ending in endings],
        [*beginning, " / ".join(endings), full_stop, end],
    )


def small_it_table(models: Mapping[str, Mapping[str, Any]]) -> None:
    """Show where *it* looks in small models, for both endings of the sentence."""
    rows = []
    for name, model in models.items():
        it = model["it"]
        for number, ending in enumerate(("tired", "congested")):
            on_animal = f"{it['animal'][number]:.3f}"
            on_street = f"{it['street'][number]:.3f}"
            preferring = f"{it['prefer_animal'][number]} of {it['heads']}"
            rows.append((name, ending, on_animal, on_street, preferring))
    table(
        "“The animal didn't cross the street because it was too …”: weights of “it”, mean over all heads",
        ("model", "ending", "on animal", "on street", "heads that prefer animal"),
        rows,
    )


def english_it_table(it: Mapping[str, Any]) -> None:
    """Show where *it* looks in the heads of the English model, beside the baselines."""
    layer, head = it["chosen"]
    most_right = it["most_right"]
    most_right_layer, most_right_head = most_right["chosen"]
    baselines = [f"{it[name]:.2f}" for name in ("untrained", "offset", "previous")]
    rows = [
        (
            "pairs whose balance moves to the right noun",
            f"{layer}.{head}",
            f"{it['moved']:.2f}",
            f"{it['moved_untrained']:.2f}",
            0,
            0,
        ),
        (
            "how far it moves",
            f"{layer}.{head}",
            f"{it['movement']:.3f} ± {it['error']:.3f}",
            f"{it['movement_untrained']:.4f}",
            0,
            0,
        ),
        (
            "the right noun gets more than the other",
            f"{layer}.{head}",
            f"{it['referent_first']:.2f}",
            *baselines,
        ),
        (
            "the same, head chosen for it",
            f"{most_right_layer}.{most_right_head}",
            f"{most_right['referent_first']:.2f}",
            *baselines,
        ),
    ]
    title = (
        f"“it” in the English model: {it['sentences']:,} sentences, {it['pairs']} pairs of "
        "nouns on which no head was chosen"
    )
    columns = (
        "quantity",
        "head",
        "trained",
        "before training",
        "fixed offset",
        "previous word",
    )
    table(title, columns, rows)
