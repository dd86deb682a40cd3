"""How often the heads of a model look from a word to a word that is right for it, beside baselines without content.

A link is a query with the keys that are right for it. A head scores a hit if one of them has a larger weight than every
other key that the query may look at, except the query itself. The share of hits is compared with baselines that use no
content: a fixed offset, a random choice, and random labels, with which every head must score what chance gives.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError

FAR = 64  # the longest distance that a fixed offset may have
ERRORS = 3  # standard errors by which a head must be better than a baseline

Link = tuple[int, frozenset[int]]  # the index of the query, and of the keys that are right for it


def words_away(offset: int) -> str:
    """A fixed offset in words.

    >>> words_away(-2), words_away(1)
    ('2 words back', '1 word ahead')
    """
    direction = "ahead" if offset > 0 else "back"
    return f"{count_of(abs(offset), 'words')} {direction}"


@dataclass(frozen=True, eq=False)
class HeadLooks:
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
        shares = self.offsets.double().mean(0).tolist()

        def rank(offset: int) -> tuple[float, int, int]:
            return (-shares[FAR + offset], abs(offset), offset)

        return min(range(-FAR, FAR + 1), key=rank)


def looks_of(
    weights: torch.Tensor, links: Sequence[Link], group: int = 0, *, causal: bool
) -> HeadLooks:
    """Look up what every head does at every link of one text.

    Args:
        weights: (layers, heads, length, length).
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
    right = torch.zeros(len(links), length, dtype=torch.bool)
    offsets = torch.zeros(len(links), 2 * FAR + 1, dtype=torch.bool)
    for row, (query, keys) in enumerate(links):
        stop = query if causal else length  # of the keys that the query may look at
        if not keys or query in keys or min(keys) < 0 or max(keys) >= stop:
            rule = "earlier" if causal else "other"
            raise ArgumentError(
                f"query {query} of {length} has the keys {sorted(keys)}; give {rule} keys of this text"
            )
        right[row, list(keys)] = True
        distances = [key - query for key in keys if abs(key - query) <= FAR]
        offsets[row, [FAR + distance for distance in distances]] = True

    queries = torch.tensor([query for query, _ in links], dtype=torch.long)
    is_query = torch.zeros_like(right)
    is_query[torch.arange(len(links)), queries] = True
    rows = weights[:, :, queries]  # (layers, heads, links, length)
    best_right = rows.masked_fill(is_query | ~right, -1.0).amax(-1)  # (layers, heads, links)
    best_wrong = rows.masked_fill(is_query | right, -1.0).amax(-1)
    mass = (rows.double() * right).sum(-1)
    choices = torch.full((len(links),), length - 1.0, dtype=torch.float64)
    if causal:
        choices = queries.double()
    return HeadLooks(
        hits=(best_right > best_wrong).permute(2, 0, 1),
        mass=mass.permute(2, 0, 1),
        chance=right.sum(1) / choices,
        offsets=offsets,
        groups=torch.full((len(links),), group),
    )


def join(looks: Iterable[HeadLooks]) -> HeadLooks:
    """The looks of several texts as one.

    Raises:
        DataError: there is no link in any of them.
    """
    parts = [of_text for of_text in looks if len(of_text)]
    if not parts:
        raise DataError("the texts have no such pair of words; give more texts")
    return HeadLooks(
        hits=torch.cat([part.hits for part in parts]),
        mass=torch.cat([part.mass for part in parts]),
        chance=torch.cat([part.chance for part in parts]),
        offsets=torch.cat([part.offsets for part in parts]),
        groups=torch.cat([part.groups for part in parts]),
    )


def random_labels(
    links: Sequence[Link], length: int, causal: bool, generator: torch.Generator
) -> list[Link]:
    """The same queries with one key each, drawn at random: no head can find these better than by chance.

    Args:
        causal: whether a query may only look at earlier keys.

    >>> random_labels([(1, frozenset({0}))], 2, True, torch.Generator().manual_seed(0))
    [(1, frozenset({0}))]
    """
    drawn = []
    for query, _ in links:
        choices = query if causal else length - 1
        key = int(torch.randint(choices, (), generator=generator))
        drawn.append((query, frozenset({key + (key >= query)})))
    return drawn
