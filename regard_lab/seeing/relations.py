"""How often the heads of a model look from a word to a related word, beside baselines that ignore the content.

A link is a query with the keys that are right for it. A head scores a hit if one of them has the largest weight of all
keys that the query may look at, except the query itself. The share of hits is compared with baselines that use no
content: a fixed offset, a random choice, and random labels, with which every head must score what chance gives.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from regard.errors import ArgumentError, DataError

FAR = 64  # the longest distance that a fixed offset may have
ERRORS = 3  # standard errors by which a head must be better than a baseline

Link = tuple[int, frozenset[int]]  # the index of the query, and of the keys that are right for it


@dataclass(frozen=True, eq=False)
class Looks:
    """What every head looks at from the query of each link; a row is a link.

    Args:
        hits: (links, layers, heads), True if a right key has a larger weight than every other key except the query's
            own; a tie does not count.
        mass: (links, layers, heads), the sum of the weights of the right keys.
        chance: (links,), the share of right keys among those that may be chosen.
        offsets: (links, 2 · FAR + 1), True in column FAR + d if the key at distance d is right.
        groups: (links,), the document that the link is from.
    """

    hits: torch.Tensor
    mass: torch.Tensor
    chance: torch.Tensor
    offsets: torch.Tensor
    groups: torch.Tensor

    def __len__(self) -> int:
        return len(self.groups)

    def of_head(self, head: tuple[int, int]) -> torch.Tensor:
        """The hits of one head, (links,) float64."""
        return self.hits[:, head[0], head[1]].double()

    def at_offset(self, offset: int) -> torch.Tensor:
        """The hits of a head that always looks at this distance, (links,) float64."""
        return self.offsets[:, FAR + offset].double()

    def best_head(self) -> tuple[int, int]:
        """Layer and head with the largest share of hits; of several, the first."""
        layer, head = divmod(int(self.hits.double().mean(0).flatten().argmax()), self.hits.shape[2])
        return layer, head

    def best_offset(self) -> int:
        """The distance that is right most often, negative for earlier keys; of several, the shortest."""
        shares = self.offsets.double().mean(0)
        return min(range(-FAR, FAR + 1), key=lambda offset: (-float(shares[FAR + offset]), abs(offset), offset))


def looks_of(weights: torch.Tensor, links: Sequence[Link], group: int = 0, *, causal: bool) -> Looks:
    """Look up what every head does at every link of one text.

    Args:
        weights: (layers, heads, length, length).
        links: the links of the text.
        group: number of the document that the text is from; texts of one document are not independent.
        causal: whether a query may only look at earlier keys; decides among how many keys chance chooses.

    Raises:
        ArgumentError: a right key that the query may not look at, or the query itself.

    >>> previous = torch.eye(3).roll(-1, 1)[None, None]
    >>> looks = looks_of(previous, [(1, frozenset({0})), (2, frozenset({0}))], causal=True)
    >>> looks.hits.flatten().tolist(), looks.chance.tolist(), looks.best_offset()
    ([True, False], [1.0, 0.5], -1)
    """
    length = weights.shape[-1]
    queries = torch.tensor([query for query, _ in links], dtype=torch.long)
    right = torch.zeros(len(links), length, dtype=torch.bool)
    offsets = torch.zeros(len(links), 2 * FAR + 1, dtype=torch.bool)
    for row, (query, keys) in enumerate(links):
        if not keys or query in keys or not 0 <= min(keys) <= max(keys) < (query if causal else length):
            rule = "earlier" if causal else "other"
            raise ArgumentError(f"query {query} of {length} has the keys {sorted(keys)}; give {rule} keys of this text")
        right[row, list(keys)] = True
        offsets[row, [FAR + key - query for key in keys if abs(key - query) <= FAR]] = True
    rows = weights[:, :, queries]  # (layers, heads, links, length)
    own = torch.zeros_like(right)
    own[torch.arange(len(links)), queries] = True
    best, rival = (rows.masked_fill(own | other, -1.0).amax(-1) for other in (~right, right))  # (layers, heads, links)
    hits = best > rival
    mass = (rows.double() * right).sum(-1)
    choices = queries.double() if causal else torch.full((len(links),), length - 1.0, dtype=torch.float64)
    return Looks(
        hits=hits.permute(2, 0, 1), mass=mass.permute(2, 0, 1), chance=right.sum(1) / choices, offsets=offsets,
        groups=torch.full((len(links),), group),
    )  # fmt: skip


def join(looks: Iterable[Looks]) -> Looks:
    """The looks of several texts as one.

    Raises:
        DataError: there is no link in any of them.
    """
    parts = [vars(one).values() for one in looks if len(one)]
    if not parts:
        raise DataError("the texts have no such pair of words; give more texts")
    return Looks(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Share:
    """A mean with its standard error, over links of documents."""

    mean: float
    error: float


def share(values: torch.Tensor, groups: torch.Tensor) -> Share:
    """The mean of a value of each link, and its standard error with documents as the independent units.

        error² = G / (G - 1) · sum over documents (sum over its links (value - mean))² / links²

    Args:
        values: (links,), such as hits, or the difference between the hits of two heads.
        groups: (links,), the document of each.

    Returns:
        The mean and the error; infinite for one document, from which no error can be estimated.

    Source: the cluster-robust error of a mean, Liang and Zeger 1986, for independent links of documents.

    >>> share(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1]))
    Share(mean=0.5, error=0.5)
    >>> share(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]))
    Share(mean=0.5, error=0.0)
    """
    values = values.double()
    mean = values.mean()
    _, place = groups.unique(return_inverse=True)
    documents = int(place.max()) + 1
    if documents == 1:
        return Share(float(mean), math.inf)
    sums = torch.zeros(documents, dtype=torch.float64).index_add(0, place, values - mean)
    return Share(float(mean), math.sqrt(documents / (documents - 1) * float((sums**2).sum())) / len(values))


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
    hits: Share
    mass: float
    offset: int
    baselines: dict[str, float]
    margins: dict[str, Share]

    @property
    def beyond(self) -> bool:
        """Whether the head is better than every baseline by more than `ERRORS` standard errors."""
        return all(margin.mean > ERRORS * margin.error for margin in self.margins.values())


def score_relation(valid: Looks, test: Looks, untrained: tuple[Looks, Looks]) -> RelationScore:
    """Choose a head by the validation texts and score it on the test texts.

    Args:
        valid, test: looks of the trained model at the links of one relation.
        untrained: those of the same model before training, at the same links.
    """
    head, offset = valid.best_head(), valid.best_offset()
    hits = test.of_head(head)
    others = {
        "fixed offset": test.at_offset(offset),
        "random choice": test.chance,
        "untrained": untrained[1].of_head(untrained[0].best_head()),
    }
    return RelationScore(
        head=head,
        links=len(test),
        hits=share(hits, test.groups),
        mass=float(test.mass[:, head[0], head[1]].mean()),
        offset=offset,
        baselines={name: float(values.mean()) for name, values in others.items()},
        margins={name: share(hits - values, test.groups) for name, values in others.items()},
    )


def random_labels(links: Sequence[Link], length: int, causal: bool, generator: torch.Generator) -> list[Link]:
    """The same queries with one key each, drawn at random: no head can find these better than by chance.

    Args:
        links: links of a text.
        length: number of its keys.
        causal: whether a query may only look at earlier keys.
        generator: of the draws.

    >>> random_labels([(1, frozenset({0}))], 2, True, torch.Generator().manual_seed(0))
    [(1, frozenset({0}))]
    """
    drawn = []
    for query, _ in links:
        choices = query if causal else length - 1
        key = int(torch.randint(choices, (), generator=generator))
        drawn.append((query, frozenset({key + (key >= query)})))
    return drawn


def from_neighbours(links: Sequence[Link], length: int, others: Collection[int] = ()) -> list[Link]:
    """The same keys for the neighbour of each query, on the side away from them, which is not related to them.

    A head that finds the key of a relation from there just as often looks at such keys from everywhere.

    Args:
        links: links of a text.
        length: number of its words.
        others: queries that are left out, such as "<begin>" and "<end>"; so are those that have links themselves.

    >>> from_neighbours([(3, frozenset({1})), (5, frozenset({4}))], 6)
    [(4, frozenset({1}))]
    """
    taken = {query for query, _ in links} | set(others)
    moved = []
    for query, keys in links:
        neighbour = query + 1 if max(keys) < query else query - 1
        if 0 <= neighbour < length and neighbour not in taken | keys:
            moved.append((neighbour, keys))
    return moved
