"""The tables of the lesson `relations`: shares by relation, the articles' sentences, and heads made by hand."""

from __future__ import annotations

from typing import Any

from regard_lab.lessons.taught import Table
from regard_lab.seeing.relations import ERRORS


def tables_of(numbers: dict[str, Any]) -> tuple[Table, ...]:
    models = numbers["models"]
    columns = (
        "relation", "links", "head", "share", "weight", "fixed offset", "random choice", "untrained",
        "from the neighbour", "beyond every baseline",
    )  # fmt: skip
    scores = [
        Table(
            f"The head of each relation in the {name}, layer.head from 0; shares of the links in test texts",
            columns,
            tuple(_score_row(relation, one) for relation, one in model["relations"].items()),
        )
        for name, model in models.items()
    ]
    return (*scores, _pairs_table(models), _received_table(models), _it_table(models), _built_table(numbers["built"]))


def _score_row(relation: str, one: dict[str, Any]) -> tuple[str, ...]:
    baselines = one["baselines"]
    near = one["neighbours"]
    return (
        relation, f"{one['links']:,}", head_of(one), f"{one['share']:.3f} ± {one['error']:.3f}", f"{one['mass']:.3f}",
        f"{baselines['fixed offset']:.3f} ({one['offset']:+d})", f"{baselines['random choice']:.3f}",
        f"{baselines['untrained']:.3f}", "" if near is None else f"{near:.3f}", "yes" if is_beyond(one) else "no",
    )  # fmt: skip


def head_of(one: dict[str, Any]) -> str:
    return "{}.{}".format(*one["head"])


def is_beyond(one: dict[str, Any]) -> bool:
    return all(margin["mean"] > ERRORS * margin["error"] for margin in one["margins"].values())


PAIRS = (  # of the articles' sentences: sentence, word that looks, word that it belongs to, relation
    ("fox", "quick", "fox", "modifier to noun"),
    ("fox", "brown", "fox", "modifier to noun"),
    ("fox", "lazy", "dog", "modifier to noun"),
    ("fox", "fox", "quick", "noun to modifier"),
    ("fox", "fox", "brown", "noun to modifier"),
    ("fox", "dog", "lazy", "noun to modifier"),
    ("fox", "jumps", "fox", "verb to subject"),
    ("fox", "fox", "The", "noun to article"),
    ("fox", "dog", "the", "noun to article"),
    ("cat", "cat", "The", "noun to article"),
    ("cat", "mat", "the", "noun to article"),
    ("cat", "sat", "cat", "verb to subject"),
    ("tired", "street", "the", "noun to article"),
    ("tired", "cross", "animal", "verb to subject"),
)


def _pairs_table(models: dict[str, Any]) -> Table:
    rows = [
        (
            sentence,
            f"{word} → {other}",
            relation,
            *(_weight_of(model, sentence, word, other, relation) for model in models.values()),
        )
        for sentence, word, other, relation in PAIRS
    ]
    return Table(
        "The sentences of the articles, by the heads chosen on validation texts: weight, and its rank among the others",
        ("sentence", "pair", "head of", *models),
        tuple(row for row in rows if any(row[3:])),
    )


def _weight_of(model: dict[str, Any], sentence: str, word: str, other: str, relation: str) -> str:
    """Such as `0.41, 2nd of 8`; empty if the model has no head for the relation."""
    if relation not in model["relations"]:
        return ""
    shown = model["sentences"][sentence]
    query, key = shown["words"].index(word), shown["words"].index(other)
    row = shown["maps"][head_of(model["relations"][relation])][query]
    length = query if is_causal(shown["maps"]) else len(row)
    rivals = [row[place] for place in range(length) if place not in (query, key)]
    return f"{row[key]:.2f}, {1 + sum(weight > row[key] for weight in rivals)} of {len(rivals) + 1}"


def is_causal(maps: dict[str, list[list[float]]]) -> bool:
    """Whether no query of any map has weight on a later key."""
    return not any(weight for rows in maps.values() for place, row in enumerate(rows) for weight in row[place + 1 :])


def most_received(model: dict[str, Any], sentence: str = "cat") -> tuple[str, str]:
    """The two words that receive the most weight from others, over all heads."""
    shown = model["sentences"][sentence]
    pairs = zip(shown["received"], shown["words"], strict=True)
    ranked = sorted(((value, word) for value, word in pairs if word.isalpha()), reverse=True)
    return ranked[0][1], ranked[1][1]


def _received_table(models: dict[str, Any]) -> Table:
    shown = {name: model["sentences"]["cat"] for name, model in models.items()}
    words = [word for word in next(iter(shown.values()))["words"] if word not in ("<begin>", "<end>")]
    rows = [
        (word, *(f"{one['received'][one['words'].index(word)]:.2f}" for one in shown.values()))
        for word in words[:-1]  # in a language model no word looks at the last one
    ]
    return Table(
        "'The cat sat on the mat.': mean weight from other words over all heads, as a multiple of uniform",
        ("word", *models),
        tuple(rows),
    )


def _it_table(models: dict[str, Any]) -> Table:
    rows = []
    for name, model in models.items():
        it = model["it"]
        for place, ending in enumerate(("tired", "congested")):
            rows.append(
                (
                    name, ending, f"{it['animal'][place]:.3f}", f"{it['street'][place]:.3f}",
                    f"{it['prefer_animal'][place]} of {it['heads']}",
                )
            )  # fmt: skip
    return Table(
        "'The animal didn't cross the street because it was too ...': the weights of *it*, mean over all heads",
        ("model", "ending", "on animal", "on street", "heads that prefer animal"),
        tuple(rows),
    )


def _built_table(built: dict[str, Any]) -> Table:
    rows = [
        (
            name, one["relation"], str(one["links"]), f"{one['share']:.3f}",
            f"{one['by_offset']:.3f} ({one['offset']:+d})", f"{one['chance']:.3f}", f"{one['over_chance']:+.3f}",
        )
        for name, one in built["heads"].items()
    ]  # fmt: skip
    return Table(
        f"Heads made by hand on {built['words']} words, measured by the same function",
        ("head", "relation", "links", "share", "fixed offset", "random choice", "random labels, over chance"),
        tuple(rows),
    )
