"""How well a head shows a relation: it is chosen on validation texts, and scored on test texts beside baselines.

The baselines use no content: a fixed offset, a random choice, and the same model before training. Two controls show
what a score is worth: random labels, which no head can find, and neighbours of the queries.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from regard_lab.seeing.looks import ERRORS, HeadLooks, Link
from regard_lab.seeing.relations import FORWARD, LABELS
from regard_lab.seeing.watching import Span

PIECES = "sub-word to first of its word"
BACK = (*LABELS, PIECES)  # what a causal model can show
ALL = (*BACK, *FORWARD.values())


@dataclass(frozen=True)
class MeanShare:
    """A mean with its standard error, over links of documents."""

    mean: float
    error: float


def share(values: torch.Tensor, groups: torch.Tensor) -> MeanShare:
    """The mean of a value of each link, and its standard error with documents as the independent units.

        error² = G / (G - 1) · sum over documents (sum over its links (value - mean))² / links²

    Args:
        values: (links,), such as hits, or the difference between the hits of two heads.
        groups: (links,), the document of each.

    Returns:
        The mean and the error; infinite for one document, from which no error can be estimated.

    Source: the cluster-robust error of a mean, Liang and Zeger 1986, for independent links of documents.

    >>> share(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1]))
    MeanShare(mean=0.5, error=0.5)
    >>> share(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]))
    MeanShare(mean=0.5, error=0.0)
    """
    values = values.double()
    mean = values.mean()
    _, document_of = groups.unique(return_inverse=True)  # (links,), counted from 0
    documents = int(document_of.max()) + 1
    if documents == 1:
        return MeanShare(float(mean), math.inf)

    sums = torch.zeros(documents, dtype=torch.float64).index_add(0, document_of, values - mean)
    variance = documents / (documents - 1) * float((sums**2).sum())
    return MeanShare(float(mean), math.sqrt(variance) / len(values))


@dataclass(frozen=True)
class RelationScore:
    """The head of one relation, chosen on validation texts, and its hits on test texts beside the baselines.

    Args:
        head: layer and head, numbers from 0.
        links: number of links in the test texts.
        hits: share of the links that the head hits.
        mass: mean weight on the right keys.
        offset: the distance that is right most often in the validation texts.
        baselines: the same share for "fixed offset", "random choice" and "untrained", the best head by validation of
            the same model before training.
        margins: the share of the head minus that of each baseline, link by link, with its own error.
    """

    head: tuple[int, int]
    links: int
    hits: MeanShare
    mass: float
    offset: int
    baselines: dict[str, float]
    margins: dict[str, MeanShare]

    @property
    def beyond(self) -> bool:
        """Whether the head is better than every baseline by more than `ERRORS` standard errors."""
        return all(margin.mean > ERRORS * margin.error for margin in self.margins.values())


def score_relation(
    valid: HeadLooks, test: HeadLooks, untrained: tuple[HeadLooks, HeadLooks]
) -> RelationScore:
    """Choose a head by the validation texts and score it on the test texts.

    Args:
        valid, test: looks of the trained model at the links of one relation.
        untrained: those of the same model before training, at the same links.
    """
    head = valid.best_head()
    offset = valid.best_offset()
    valid_untrained, test_untrained = untrained
    baseline_hits = {
        "fixed offset": test.at_offset(offset),
        "random choice": test.chance,
        "untrained": test_untrained.of_head(valid_untrained.best_head()),
    }

    hits = test.of_head(head)
    layer, head_of_layer = head
    return RelationScore(
        head=head,
        links=len(test),
        hits=share(hits, test.groups),
        mass=float(test.mass[:, layer, head_of_layer].mean()),
        offset=offset,
        baselines={name: float(values.mean()) for name, values in baseline_hits.items()},
        margins={name: share(hits - values, test.groups) for name, values in baseline_hits.items()},
    )


def from_neighbours(links: Sequence[Link], length: int, others: Collection[int] = ()) -> list[Link]:
    """The same keys for the neighbour of each query, on the side away from them, which is not related to them.

    A head that finds the key of a relation from there just as often looks at such keys from everywhere.

    Args:
        others: queries that are left out, such as "<begin>" and "<end>"; so are those that have links themselves.

    >>> from_neighbours([(3, frozenset({1})), (5, frozenset({4}))], 6)
    [(4, frozenset({1}))]
    """
    left_out = {query for query, _ in links} | set(others)
    moved = []
    for query, keys in links:
        neighbour = query + 1 if max(keys) < query else query - 1
        if 0 <= neighbour < length and neighbour not in left_out | keys:
            moved.append((neighbour, keys))
    return moved


def piece_links(spans: Sequence[Span]) -> list[Link]:
    """Each sub-word after the first of its word, linked to the first; indices are those of ids.

    >>> piece_links([("cat", range(0, 1)), ("street", range(1, 4))])
    [(2, frozenset({1})), (3, frozenset({1}))]
    """
    links = []
    for _, ids in spans:
        links += [(piece, frozenset({ids.start})) for piece in ids[1:]]
    return links
