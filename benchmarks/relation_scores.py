"""The evaluation of `benchmarks/relations.py`: relations on held-out texts, and the sentences of the articles."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from benchmarks.head_scores import (
    ALL,
    BACK,
    PIECES,
    MeanShare,
    RelationScore,
    from_neighbours,
    piece_links,
    score_relation,
)
from benchmarks.library_text import LibraryDocument
from regard_lab.seeing.looks import HeadLooks, Link, join, looks_of, random_labels
from regard_lab.seeing.maps import ReadingModel, TextMaps, look_text
from regard_lab.seeing.relations import SPECIAL, relations_in
from regard_lab.seeing.watching import merge
from regard_lab.text import Tokeniser

# In the test texts; relations with fewer are not scored.
FEWEST_LINKS = 50
FEWEST_DOCUMENTS = 10

SENTENCES = {
    "fox": "The quick brown fox jumps over the lazy dog.",
    "cat": "The cat sat on the mat.",
    "tired": "The animal didn't cross the street because it was too tired.",
    "congested": "The animal didn't cross the street because it was too congested.",
}
DRAWN = ("fox", "cat", "tired")  # those whose maps are kept


def texts_of(
    documents: Sequence[LibraryDocument], tokeniser: Tokeniser, longest: int
) -> Iterator[tuple[int, str]]:
    """Neighbouring paragraphs of a document up to `longest` ids, with the document's number; longer ones are cut."""
    for number, document in enumerate(documents):
        packed: list[str] = []
        for paragraph in document.paragraphs:
            words = paragraph.split()
            while len(tokeniser.encode(" ".join(words))) > longest:
                words = words[: int(0.9 * len(words))]
            if packed and len(tokeniser.encode(" ".join([*packed, *words]))) > longest:
                yield number, " ".join(packed)
                packed = []
            packed += words
        if packed:
            yield number, " ".join(packed)


class Gathered:
    """The looks at the links of every relation: of the trained model, before training, and of the two controls."""

    KINDS = ("trained", "untrained", "neighbours", "random")

    def __init__(
        self,
        models: tuple[ReadingModel, ReadingModel],
        tokeniser: Tokeniser,
        texts: Sequence[tuple[int, str]],
    ):
        trained_model, untrained_model = models
        self.generator = torch.Generator().manual_seed(0)
        self.parts: dict[tuple[str, str], list[HeadLooks]] = {}
        self.ids = 0
        for group, text in texts:
            trained = look_text(trained_model, tokeniser, text)
            untrained = look_text(untrained_model, tokeniser, text)
            self.ids += trained.piece_weights.shape[-1]
            links = relations_in(trained.words)
            links[PIECES] = piece_links(trained.spans)
            # random labels are drawn in this order
            names = [name for name in (BACK if trained.causal else ALL) if name != PIECES]
            for name in (*names, PIECES):
                self._add(name, links[name], group, trained, untrained)

    def _add(
        self, name: str, links: list[Link], group: int, trained: TextMaps, untrained: TextMaps
    ) -> None:
        special = []
        if name == PIECES:
            weights = trained.piece_weights
            untrained_weights = untrained.piece_weights
        else:
            weights = trained.weights
            untrained_weights = untrained.weights
            special = [place for place, word in enumerate(trained.words) if word in SPECIAL]
        length = weights.shape[-1]
        near = from_neighbours(links, length, special)
        drawn = random_labels(links, length, trained.causal, self.generator)

        self._look(name, "trained", weights, links, group, trained.causal)
        self._look(name, "untrained", untrained_weights, links, group, trained.causal)
        self._look(name, "neighbours", weights, near, group, trained.causal)
        self._look(name, "random", weights, drawn, group, trained.causal)

    def _look(
        self,
        name: str,
        kind: str,
        weights: torch.Tensor,
        links: list[Link],
        group: int,
        causal: bool,
    ) -> None:
        if links:
            looks = looks_of(weights, links, group, causal=causal)
            self.parts.setdefault((name, kind), []).append(looks)

    def looks(self, name: str, kind: str) -> HeadLooks:
        return join(self.parts.get((name, kind), []))

    def names(self) -> list[str]:
        """Relations with enough links and documents."""
        names = []
        for name in ALL:
            if (name, "trained") not in self.parts:
                continue
            looks = self.looks(name, "trained")
            documents = len(looks.groups.unique())
            if len(looks) >= FEWEST_LINKS and documents >= FEWEST_DOCUMENTS:
                names.append(name)
        return names


def relation_figures(valid: Gathered, test: Gathered) -> dict[str, Any]:
    """Every relation with its head, its baselines and its controls, as JSON values."""
    names_of_valid = valid.names()
    names = [name for name in test.names() if name in names_of_valid]
    return {name: _figures(name, valid, test) for name in names}


def _figures(name: str, valid: Gathered, test: Gathered) -> dict[str, Any]:
    looks = test.looks(name, "trained")
    untrained = (valid.looks(name, "untrained"), test.looks(name, "untrained"))
    score = score_relation(valid.looks(name, "trained"), looks, untrained)
    neighbours = None
    if (name, "neighbours") in test.parts:
        hits = test.looks(name, "neighbours").of_head(score.head)
        neighbours = round(float(hits.mean()), 4)

    drawn = test.looks(name, "random")
    over_chance = drawn.of_head(valid.looks(name, "random").best_head()) - drawn.chance
    # Exact: labels are drawn one by one.
    error = float((drawn.chance * (1 - drawn.chance)).sum().sqrt()) / len(drawn)
    random_figures = {"over_chance": round(float(over_chance.mean()), 4), "error": round(error, 4)}
    return {
        **score_figures(score),
        "documents": len(looks.groups.unique()),
        "every_head": torch.round(looks.hits.double().mean(0), decimals=3).tolist(),
        "neighbours": neighbours,
        "random_labels": random_figures,
    }


def score_figures(score: RelationScore) -> dict[str, Any]:
    """A score as JSON values."""
    return {
        "head": list(score.head),
        "links": score.links,
        **share_figures(score.hits, "share"),
        "mass": round(score.mass, 4),
        "offset": score.offset,
        "baselines": {name: round(value, 4) for name, value in score.baselines.items()},
        "margins": {name: share_figures(margin, "mean") for name, margin in score.margins.items()},
        "beyond": score.beyond,
    }


def share_figures(share: MeanShare, name: str) -> dict[str, float]:
    return {name: round(share.mean, 4), "error": round(share.error, 4)}


def sentence_figures(
    model: ReadingModel, tokeniser: Tokeniser, heads: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """The sentences of the articles: maps of the chosen heads, and the mean weight that each word receives."""
    figures = {}
    for name, sentence in SENTENCES.items():
        maps = look_text(model, tokeniser, sentence)
        chosen = {}
        if name in DRAWN:
            for layer, head in heads:
                chosen[f"{layer}.{head}"] = rounded(maps.weights[layer, head])
        figures[name] = {
            "words": list(maps.words),
            "pieces": [len(ids) for _, ids in maps.spans],
            "maps": chosen,
            "received": rounded(received(maps)),
        }
    return {"sentences": figures, "it": it_figures(model, tokeniser)}


def received(maps: TextMaps) -> torch.Tensor:
    """The mean weight on each word from the others that may look at it, over all heads, as a multiple of uniform.

    1 is what a word receives if each query gives all its ids the same weight; a word of several sub-words has several
    ids, so its weight alone would be larger. The result has shape (words,); 0 if no other word may look at it.
    """
    ids = maps.piece_weights.shape[-1]
    visible = torch.ones(ids, ids)
    others = 1 - torch.eye(len(maps.words))
    if maps.causal:
        visible = visible.tril()
        others = others.tril()
    uniform_of_ids = visible / visible.sum(1, keepdim=True)
    uniform = merge(uniform_of_ids, maps.spans, maps.spans)  # (words, words)
    relative = maps.weights.mean((0, 1)) / uniform.clamp(min=1e-9)
    return (relative * others).sum(0) / others.sum(0).clamp(min=1)


def it_figures(model: ReadingModel, tokeniser: Tokeniser) -> dict[str, Any]:
    """What *it* looks at if the sentence ends in *tired* or in *congested*, in every head."""
    maps = look_text(model, tokeniser, SENTENCES["tired"])
    maps_of_congested = look_text(model, tokeniser, SENTENCES["congested"])
    tired = maps.weights[:, :, maps.words.index("it")]  # (layers, heads, words)
    congested = maps_of_congested.weights[:, :, maps_of_congested.words.index("it")]
    animal = maps.words.index("animal")
    street = maps.words.index("street")

    prefers_if_tired = tired[..., animal] > tired[..., street]
    prefers_if_congested = congested[..., animal] > congested[..., street]
    largest_change = None
    if tired.shape == congested.shape:
        largest_change = round(float((tired - congested).abs().max()), 6)
    return {
        "animal": [rounded(row[..., animal].mean(), 4) for row in (tired, congested)],
        "street": [rounded(row[..., street].mean(), 4) for row in (tired, congested)],
        "heads": prefers_if_tired.numel(),
        "prefer_animal": [int(prefers_if_tired.sum()), int(prefers_if_congested.sum())],
        "right_in_both": int((prefers_if_tired & ~prefers_if_congested).sum()),
        "wrong_in_both": int((~prefers_if_tired & prefers_if_congested).sum()),
        "largest_change": largest_change,
    }


def spread(texts: Sequence[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    """At most that many texts, evenly over all."""
    if len(texts) <= most:
        return list(texts)
    return [texts[len(texts) * place // most] for place in range(most)]


def rounded(values: torch.Tensor, digits: int = 3) -> Any:
    return torch.round(values.double(), decimals=digits).tolist()
