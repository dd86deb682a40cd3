"""Tables and drawings of scored relations between words: what the lesson on them shows of each model."""

from collections.abc import Mapping
from typing import Any

from regard_lab.seeing.canvas import LINES, MARKS
from regard_lab.seeing.relations import ERRORS
from regard_lab.teaching.board import table
from regard_lab.teaching.figures import Figure, label_axes

Scores = Mapping[str, Mapping[str, Any]]  # of each relation, as benchmarks write them
BASELINES = ("fixed offset", "random choice", "untrained")


def head_of(one: Mapping[str, Any]) -> str:
    """Such as `5.11`: layer and head."""
    return "{}.{}".format(*one["head"])


def is_beyond(one: Mapping[str, Any]) -> bool:
    """Whether the head is better than every baseline by more than `ERRORS` standard errors."""
    return all(margin["mean"] > ERRORS * margin["error"] for margin in one["margins"].values())


def best_baseline(one: Mapping[str, Any]) -> str:
    """A head's share beside the best of its baselines, with the difference between both."""
    best = max(one["baselines"], key=lambda name: one["baselines"][name])
    margin = one["margins"][best]
    return (
        f"{one['share']:.3f}; the best baseline, {best}, {one['baselines'][best]:.3f}; difference {margin['mean']:.3f} "
        f"± {margin['error']:.3f}"
    )


def over_chance(scores: Scores) -> tuple[float, float, int]:
    """The hits of random labels over chance, their error, and the number of links, over all relations."""
    drawn = [(one["links"], one["random_labels"]) for one in scores.values()]
    links = sum(count for count, _ in drawn)
    over = sum(count * one["over_chance"] for count, one in drawn) / links
    return over, sum((count * one["error"]) ** 2 for count, one in drawn) ** 0.5 / links, links


def draw_scores(figure: Figure, relations: Mapping[str, Scores]) -> None:
    """Draw the head of each relation beside its baselines; a panel for each model, a row for each relation."""
    labels = list(dict.fromkeys(name for scores in relations.values() for name in scores))
    panels = figure.subplots(1, len(relations), sharey=True)
    for axes, (name, scores) in zip(panels, relations.items(), strict=True):
        rows = [labels.index(label) for label in scores]
        ones = scores.values()
        for number, baseline in enumerate(BASELINES, 1):
            size, inside = (
                (80, "none") if baseline == BASELINES[0] else (24, LINES[number])
            )  # around an equal head
            axes.scatter(
                [one["baselines"][baseline] for one in ones],
                rows,
                s=size,
                facecolors=inside,
                edgecolors=LINES[number],
                linewidths=1.5,
                marker=MARKS[number],
                label=baseline,
            )
        axes.errorbar(
            [one["share"] for one in ones],
            rows,
            xerr=[one["error"] for one in ones],
            fmt=MARKS[0],
            color=LINES[0],
            markersize=6,
            label="chosen head, ± standard error",
        )
        label_axes(axes, name, "share of links", "")
        axes.set(xlim=(-0.05, 1.05), ylim=(len(labels) - 0.5, -0.5))
        axes.set_yticks(range(len(labels)), labels)
        axes.grid(alpha=0.25)
    drawn = panels[0].get_legend_handles_labels()
    figure.legend(*drawn, loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)


def score_table(name: str, scores: Scores) -> None:
    """Show the head of each relation of a model beside its baselines."""
    rows = [
        (
            relation,
            f"{one['links']:,}",
            head_of(one),
            f"{one['share']:.3f} ± {one['error']:.3f}",
            f"{one['mass']:.3f}",
            f"{one['baselines']['fixed offset']:.3f} ({one['offset']:+d})",
            *(f"{one['baselines'][baseline]:.3f}" for baseline in BASELINES[1:]),
            "" if one["neighbours"] is None else f"{one['neighbours']:.3f}",
            "yes" if is_beyond(one) else "no",
        )
        for relation, one in scores.items()
    ]
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
    table(
        f"The best head of each relation in the {name} (layer.head, from 0), on texts on which it was not chosen",
        columns,
        rows,
    )


def received_table(sentences: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Show the mean weight that each word of an article's sentence receives in each model, and return it."""
    words = ("The", "cat", "sat", "on", "the", "mat")
    received = {
        name: dict(zip(words, one["cat"]["received"][1:], strict=False))
        for name, one in sentences.items()
    }
    rows = [(word, *(f"{one[word]:.2f}" for one in received.values())) for word in words]
    table(
        "“The cat sat on the mat.”: mean weight of each word over all heads (1: all words get the same)",
        ("word", *sentences),
        rows,
    )
    return received


def it_tables(small: Mapping[str, Mapping[str, Any]], it: Mapping[str, Any]) -> None:
    """Show where *it* looks in small models, and in the heads of the English model beside the baselines."""
    rows = [
        (
            name,
            ending,
            *(f"{one['it'][noun][at]:.3f}" for noun in ("animal", "street")),
            f"{one['it']['prefer_animal'][at]} of {one['it']['heads']}",
        )
        for name, one in small.items()
        for at, ending in enumerate(("tired", "congested"))
    ]
    columns = ("model", "ending", "on animal", "on street", "heads that prefer animal")
    table(
        "“The animal didn't cross the street because it was too …”: weights of “it”, mean over all heads",
        columns,
        rows,
    )
    head, other = ("{}.{}".format(*one["chosen"]) for one in (it, it["most_right"]))
    moved, moved_before, *without = (
        f"{it[name]:.2f}"
        for name in ("moved", "moved_untrained", "untrained", "offset", "previous")
    )
    far = f"{it['movement']:.3f} ± {it['error']:.3f}"
    table(
        f"“it” in the English model: {it['sentences']:,} sentences, {it['pairs']} pairs of nouns on which no head "
        "was chosen",
        ("quantity", "head", "trained", "before training", "fixed offset", "previous word"),
        [
            ("pairs whose balance moves to the right noun", head, moved, moved_before, 0, 0),
            ("how far it moves", head, far, f"{it['movement_untrained']:.4f}", 0, 0),
            (
                "the right noun gets more than the other",
                head,
                f"{it['referent_first']:.2f}",
                *without,
            ),
            (
                "the same, head chosen for it",
                other,
                f"{it['most_right']['referent_first']:.2f}",
                *without,
            ),
        ],
    )
