"""Lesson: which relations between words the heads of trained models show, beside baselines that use no content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from regard.arguments import count_of
from regard.functional import attention_detail
from regard.patterns import Causal, Explicit
from regard_lab.lessons.figures import INK, LINES, MARKS, Axes, Figure, begin, draw_map, legend_below, scale_beside
from regard_lab.lessons.report import read_report
from regard_lab.lessons.taught import Claim, Estimate, Lecture, Settings, Table, every
from regard_lab.lessons.words import normal
from regard_lab.seeing.relations import ERRORS, Link, Looks, join, looks_of, random_labels, relations_in, split_words

TEXT = (
    "Return the old list of names. The list holds the names that the reader gave to the function, and the function "
    "keeps the names in the order of the reader. The order of the names holds for the copy of the list too, so the "
    "reader may sort the copy. Each name of the copy holds the same letters as the names of the old list."
)
BUILT = {  # a head made by hand, and the relation that it must show
    "looks one word back": "previous word",
    "key is the word itself": "same word earlier",
    "key is the word before": "after the same word",
}
SHARPNESS = 40.0  # the score of equal vectors of norm 1; those of different words are almost orthogonal
DIM = 256
DRAWS = 20  # times that labels are drawn at random
CERTAIN = 0.999
SURE = 5  # standard errors over chance that random labels do not reach


def built_heads(seed: int) -> dict[str, Any]:
    """Heads whose queries and keys are chosen by hand, measured like those of a model, with true and random labels."""
    words = split_words(TEXT)
    links = {relation: relations_in(words)[relation] for relation in BUILT.values()}
    weights = torch.stack([_weights(name, words, seed) for name in BUILT])[None]  # (1, heads, words, words)
    scored = {}
    for head, (name, relation) in enumerate(BUILT.items()):
        looks = looks_of(weights, links[relation], causal=True)
        drawn = _randomly_labelled(weights, links[relation], len(words), seed)
        over = drawn.of_head((0, head)) - drawn.chance
        scored[name] = {
            "relation": relation, "links": len(looks), "share": round(float(looks.of_head((0, head)).mean()), 4),
            "offset": looks.best_offset(), "by_offset": round(float(looks.at_offset(looks.best_offset()).mean()), 4),
            "chance": round(float(looks.chance.mean()), 4),
            "random_labels": round(float(drawn.of_head((0, head)).mean()), 4),
            "over_chance": round(float(over.mean()), 4),
            "error": round(float((drawn.chance * (1 - drawn.chance)).sum().sqrt()) / len(drawn), 4),
        }  # fmt: skip
    return {"words": len(words), "heads": scored}


def _randomly_labelled(weights: torch.Tensor, links: list[Link], length: int, seed: int) -> Looks:
    generator = torch.Generator().manual_seed(seed)
    return join(
        looks_of(weights, random_labels(links, length, True, generator), draw, causal=True) for draw in range(DRAWS)
    )


def _weights(name: str, words: list[str], seed: int) -> torch.Tensor:
    """The weights of a head made by hand, (words, words), computed by attention over earlier words.

    A word is a random vector of norm 1, equal for equal words. The keys of an induction head are the words before,
    which a head of an earlier layer can bring there.
    """
    length = len(words)
    lower = [word.lower() for word in words]
    vectors = torch.nn.functional.normalize(normal(seed, len(set(lower)), DIM), dim=-1)
    content = vectors[[sorted(set(lower)).index(word) for word in lower]]
    places = torch.eye(length, dtype=torch.float64)
    shifted = torch.arange(length).sub(1).clamp(min=0)
    q, k = {
        "looks one word back": (places[shifted], places),
        "key is the word itself": (content, content),
        "key is the word before": (content, content[shifted]),
    }[name]
    earlier = Causal() & ~Explicit(torch.eye(length, dtype=torch.bool))  # a word would find itself
    q, k = SHARPNESS * q[None, None], k[None, None]
    weights = attention_detail(q, k, k, pattern=earlier, scale=1.0, want="weights").weights[0, 0]
    return weights.round(decimals=6)  # equal keys have equal weights on every processor


def tables(numbers: dict[str, Any]) -> Iterator[Table]:
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
    yield from scores
    yield _pairs_table(models)
    yield _received_table(models)
    yield _it_table(models)
    yield _built_table(numbers["built"])


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


REPORT = "relations"
NAMES = {"causal": "language model", "encoder": "encoder"}
BASELINES = ("fixed offset", "random choice", "untrained")

CODE = """\
import torch
from regard_lab.seeing import look_text
from regard_lab.seeing.relations import relations_in
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


def teach(settings: Settings) -> Lecture:
    """Read the shares of the trained models, and measure heads made by hand with the same function."""
    report = read_report(REPORT)
    models = {NAMES[kind]: model for kind, model in report.figures["models"].items()}
    numbers = {
        "source": report.source, "corpus": report.figures["corpus"], "models": models,
        "texts": report.figures["recipe"]["texts"],
        "built": built_heads(settings.seed),
    }  # fmt: skip
    return numbers, _paragraphs(numbers)


def _paragraphs(numbers: dict[str, Any]) -> tuple[str, ...]:
    train, test = (numbers["corpus"][part] for part in ("train", "test"))
    models = numbers["models"]
    sizes = "; ".join(
        f"the {name} has {count_of(model['layers'], 'layers')} of {count_of(model['heads'], 'heads')} and learned in "
        f"{count_of(model['steps'], 'steps', ',')} ({model['cpu_seconds']:,} CPU seconds)"
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


def claims(numbers: dict[str, Any]) -> Iterator[Claim]:
    models = numbers["models"]
    causal, encoder = models.values()
    yield from (_beyond_claim(name, relation, models[name]) for name, shown in SHOWN.items() for relation in shown)
    yield from (_own_claim(relation, causal["relations"][relation]) for relation in OWN)
    yield from (_missing_claim(relation, models) for relation in MISSING)
    yield from (_distance_claim(relation, encoder["relations"][relation]) for relation in PLACES)
    yield from (_random_claim(name, model) for name, model in models.items())
    yield from _sentence_claims(models)
    yield from _built_claims(numbers["built"]["heads"])


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


def draw(numbers: dict[str, Any], figure: Figure) -> None:
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
