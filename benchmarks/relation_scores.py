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
from benchmarks.library_text import Document
from regard_lab.seeing.maps import TextMaps, TextModel, look_text
from regard_lab.seeing.relations import (
    SPECIAL,
    Link,
    Looks,
    join,
    looks_of,
    random_labels,
    relations_in,
)
from regard_lab.seeing.watching import merge
from regard_lab.text import Tokeniser

FEWEST_LINKS, FEWEST_DOCUMENTS = 50, 10  # in the test texts; relations with fewer are not scored

SENTENCES = {
    "fox": "The quick brown fox jumps over the lazy dog.",
    "cat": "The cat sat on the mat.",
    "tired": "The animal didn't cross the street because it was too tired.",
    "congested": "The animal didn't cross the street because it was too congested.",
}
DRAWN = ("fox", "cat", "tired")  # those whose maps are kept


def texts_of(
    documents: Sequence[Document], tokeniser: Tokeniser, longest: int
) -> Iterator[tuple[int, str]]:
    """Neighbouring paragraphs of a document up to `longest` ids, with the document's number; longer ones are cut."""
    for number, document in enumerate(documents):
        packed: list[str] = []
        for paragraph in document.paragraphs:
            whole = paragraph.split()
            while len(tokeniser.encode(" ".join(whole))) > longest:
                whole = whole[: int(0.9 * len(whole))]
            if packed and len(tokeniser.encode(" ".join([*packed, *whole]))) > longest:
                yield number, " ".join(packed)
                packed = []
            packed += whole
        if packed:
            yield number, " ".join(packed)


class Gathered:
    """The looks at the links of every relation: of the trained model, before training, and of the two controls."""

    KINDS = ("trained", "untrained", "neighbours", "random")

    def __init__(
        self,
        models: tuple[TextModel, TextModel],
        tokeniser: Tokeniser,
        texts: Sequence[tuple[int, str]],
    ):
        self.generator = torch.Generator().manual_seed(0)
        self.parts: dict[tuple[str, str], list[Looks]] = {}
        self.ids = 0
        for group, text in texts:
            trained, untrained = (look_text(model, tokeniser, text) for model in models)
            self.ids += trained.piece_weights.shape[-1]
            links = relations_in(trained.words)
            for name in BACK if trained.causal else ALL:
                if name != PIECES:
                    self._add(name, links[name], trained.weights, untrained.weights, group, trained)
            pieces = piece_links(trained.spans)
            self._add(
                PIECES, pieces, trained.piece_weights, untrained.piece_weights, group, trained
            )

    def _add(
        self,
        name: str,
        links: list[Link],
        weights: torch.Tensor,
        before: torch.Tensor,
        group: int,
        maps: TextMaps,
    ) -> None:
        length = weights.shape[-1]
        special = (
            () if name == PIECES else [at for at, word in enumerate(maps.words) if word in SPECIAL]
        )
        near = from_neighbours(links, length, special)
        drawn = random_labels(links, length, maps.causal, self.generator)
        for kind, of_kind, taken in (
            ("trained", weights, links),
            ("untrained", before, links),
            ("neighbours", weights, near),
            ("random", weights, drawn),
        ):
            if taken:
                self.parts.setdefault((name, kind), []).append(
                    looks_of(of_kind, taken, group, causal=maps.causal)
                )

    def looks(self, name: str, kind: str) -> Looks:
        return join(self.parts.get((name, kind), []))

    def names(self) -> list[str]:
        """Relations with enough links and documents."""
        counted = {
            name: self.looks(name, "trained") for name, kind in self.parts if kind == "trained"
        }
        return [
            name
            for name in ALL
            if name in counted
            and len(counted[name]) >= FEWEST_LINKS
            and len(counted[name].groups.unique()) >= FEWEST_DOCUMENTS
        ]


def relation_figures(valid: Gathered, test: Gathered) -> dict[str, Any]:
    """Every relation with its head, its baselines and its controls, as JSON values."""
    return {name: _figures(name, valid, test) for name in test.names() if name in valid.names()}


def _figures(name: str, valid: Gathered, test: Gathered) -> dict[str, Any]:
    scored = score_relation(
        valid.looks(name, "trained"),
        test.looks(name, "trained"),
        (valid.looks(name, "untrained"), test.looks(name, "untrained")),
    )
    looks, drawn = test.looks(name, "trained"), test.looks(name, "random")
    over = drawn.of_head(valid.looks(name, "random").best_head()) - drawn.chance
    # Exact: labels are drawn one by one.
    error = float((drawn.chance * (1 - drawn.chance)).sum().sqrt()) / len(drawn)
    near = test.parts.get((name, "neighbours"))
    return {
        **score_figures(scored),
        "documents": len(looks.groups.unique()),
        "every_head": torch.round(looks.hits.double().mean(0), decimals=3).tolist(),
        "neighbours": round(float(join(near).of_head(scored.head).mean()), 4) if near else None,
        "random_labels": {"over_chance": round(float(over.mean()), 4), "error": round(error, 4)},
    }


def score_figures(scored: RelationScore) -> dict[str, Any]:
    """A score as JSON values."""
    return {
        "head": list(scored.head),
        "links": scored.links,
        **share_figures(scored.hits, "share"),
        "mass": round(scored.mass, 4),
        "offset": scored.offset,
        "baselines": {name: round(value, 4) for name, value in scored.baselines.items()},
        "margins": {name: share_figures(margin, "mean") for name, margin in scored.margins.items()},
        "beyond": scored.beyond,
    }


def share_figures(one: MeanShare, name: str) -> dict[str, float]:
    return {name: round(one.mean, 4), "error": round(one.error, 4)}


def sentence_figures(
    model: TextModel, tokeniser: Tokeniser, heads: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """The sentences of the articles: maps of the chosen heads, and the mean weight that each word receives."""
    figures = {}
    for name, sentence in SENTENCES.items():
        maps = look_text(model, tokeniser, sentence)
        drawn = heads if name in DRAWN else ()
        chosen = {f"{layer}.{head}": rounded(maps.weights[layer, head]) for layer, head in drawn}
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
    alike = torch.ones(ids, ids).tril() if maps.causal else torch.ones(ids, ids)
    uniform = merge(alike / alike.sum(1, keepdim=True), maps.spans, maps.spans)  # (words, words)
    others = 1 - torch.eye(len(maps.words))
    others = others.tril() if maps.causal else others
    relative = maps.weights.mean((0, 1)) / uniform.clamp(min=1e-9)
    return (relative * others).sum(0) / others.sum(0).clamp(min=1)


def it_figures(model: TextModel, tokeniser: Tokeniser) -> dict[str, Any]:
    """What *it* looks at if the sentence ends in *tired* or in *congested*, in every head."""
    tired, congested = (
        look_text(model, tokeniser, SENTENCES[name]) for name in ("tired", "congested")
    )
    rows = [
        maps.weights[:, :, maps.words.index("it")] for maps in (tired, congested)
    ]  # (layers, heads, words)
    animal = tired.words.index("animal")
    street = tired.words.index("street")
    prefers = [row[..., animal] > row[..., street] for row in rows]
    same = rows[0].shape == rows[1].shape
    return {
        "animal": [rounded(row[..., animal].mean(), 4) for row in rows],
        "street": [rounded(row[..., street].mean(), 4) for row in rows],
        "heads": prefers[0].numel(),
        "prefer_animal": [int(one.sum()) for one in prefers],
        "right_in_both": int((prefers[0] & ~prefers[1]).sum()),
        "wrong_in_both": int((~prefers[0] & prefers[1]).sum()),
        "largest_change": round(float((rows[0] - rows[1]).abs().max()), 6) if same else None,
    }


def spread(texts: Sequence[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    """At most that many texts, evenly over all."""
    return (
        [texts[len(texts) * place // most] for place in range(most)]
        if len(texts) > most
        else list(texts)
    )


def rounded(values: torch.Tensor, digits: int = 3) -> Any:
    return torch.round(values.double(), decimals=digits).tolist()
