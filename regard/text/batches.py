"""Batches of ids within a token budget, and the tensors of translation pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.arguments import each, of_kind, whole
from regard.errors import ArgumentError
from regard.text.pairs import Pair
from regard.text.tokenisers import Tokeniser
from regard.text.vocabularies import BEGIN, END, PAD

LENGTHS = "the number of tokens of each sentence, or of the two sides of each pair"


class TokenBatches:
    """The batches of every epoch, each within a budget of tokens, padding included.

    A batch of rows costs (number of rows) * (its longest sentence), the longer side of a pair counting. Sentences
    of similar length share a batch; which of them, and the order of the batches, is drawn anew each epoch. Every
    sentence comes exactly once an epoch over all ranks. At each step each of `world` ranks takes one batch of
    its own budget, and their lengths are neighbours; to come out even the fullest batches are halved, and only where
    there are single sentences left to share do some ranks get an empty batch in one step of the epoch.

    Args:
        lengths: tokens of each sentence, or of the two sides of each pair, as the model sees them (with the
            special ids that the caller adds).
        budget: the most tokens in one batch of one rank.
        seed: what the draws start from.
        world: the number of processes that train together.
        rank: which of them this is, from 0.

    Raises:
        ArgumentError: no sentences, a sentence longer than the budget (a batch above it would break the promise
            that memory rests on), or a rank outside the world.

    >>> batches = TokenBatches([3, 9, 4, 8, 3], budget=18, seed=0)
    >>> batches.steps_per_epoch
    2
    >>> sorted(batches.at(0) + batches.at(1))
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        lengths: Sequence[int] | Sequence[tuple[int, int]],
        budget: int,
        seed: int,
        world: int = 1,
        rank: int = 0,
    ) -> None:
        budget, world, rank = whole("budget", budget), whole("world", world), whole("rank", rank)
        seed = of_kind("seed", seed, int, "a whole number")
        if not 0 <= rank < world:
            raise ArgumentError(f"rank is {rank} in a world of {world}; ranks go from 0 to world - 1")
        costs = [_cost(length) for length in each("lengths", lengths, LENGTHS)]
        _check_costs(costs, budget)
        self.budget, self.seed, self.world, self.rank = budget, seed, world, rank
        self._bucket_of = _buckets(costs)
        self._cuts = _even_cuts(_cuts(costs, self._bucket_of, budget), world)
        self._drawn: tuple[int, torch.Tensor, torch.Tensor] | None = None  # the epoch asked for last, to save time

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps in every epoch, the same for all ranks."""
        return (len(self._cuts) - 1) // self.world

    def epoch_of(self, step: int) -> int:
        """The epoch, from 0, that a step falls in."""
        step = whole("step", step)
        if step < 0:
            raise ArgumentError(f"step is {step}; steps count from 0")
        return step // self.steps_per_epoch

    def at(self, step: int) -> list[int]:
        """The indices of the sentences in this rank's batch at a step, counted from 0 over all epochs."""
        order, steps = self._draw(self.epoch_of(step))
        batch = int(steps[step % self.steps_per_epoch]) * self.world + self.rank
        return order[self._cuts[batch] : self._cuts[batch + 1]].tolist()

    def _draw(self, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The order of the sentences, shuffled within each bucket of lengths, and the order of the steps."""
        if self._drawn is None or self._drawn[0] != epoch:
            digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            shuffled = torch.randperm(len(self._bucket_of), generator=generator)
            order = shuffled[torch.argsort(self._bucket_of[shuffled], stable=True)]
            self._drawn = (epoch, order, torch.randperm(self.steps_per_epoch, generator=generator))
        return self._drawn[1:]


def pad(rows: Sequence[Sequence[int]], side: str = "right", value: int = PAD) -> torch.Tensor:
    """Rows of ids as one tensor, the shorter ones filled up.

    Args:
        rows: ids of each sentence, of any lengths.
        side: "right" fills after the ids, "left" before them.
        value: what fills.

    Returns:
        LongTensor (batch, length of the longest row).

    >>> pad([[5, 6, 7], [8]], side="left")
    tensor([[5, 6, 7],
            [0, 0, 8]])
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"side is {side!r}; rows are filled on the 'left' or on the 'right'")
    value = whole("value", value)
    rows = [list(each("a row", row, "ids")) for row in each("rows", rows, "rows of ids, such as [[5, 6], [7]]")]
    for row in rows:
        if set(map(type, row)) != {int}:
            row[:] = [whole("an id of a row", number) for number in row]
    longest = max(map(len, rows), default=0)
    filled = [[value] * (longest - len(row)) for row in rows]
    both = [[*f, *row] if side == "left" else [*row, *f] for row, f in zip(rows, filled, strict=True)]
    return torch.tensor(both, dtype=torch.long).reshape(len(rows), longest)


def _cost(length: int | Sequence[int]) -> int:
    sides = length if isinstance(length, Sequence) and not isinstance(length, str | bytes) else [length]
    return max((side if type(side) is int else whole("a length", side) for side in sides), default=0)


def _check_costs(costs: list[int], budget: int) -> None:
    if not costs:
        raise ArgumentError("there are no sentences to make batches of; lengths needs at least one")
    longest = max(range(len(costs)), key=costs.__getitem__)
    if costs[longest] > budget:
        over = sum(cost > budget for cost in costs)
        raise ArgumentError(
            f"sentence {longest} has {costs[longest]} tokens, more than the budget of {budget} for a whole batch "
            f"({over} of {len(costs)} sentences do); raise the budget or leave out longer sentences"
        )
    if min(costs) < 0:
        raise ArgumentError(f"sentence {costs.index(min(costs))} has a length of {min(costs)}; lengths count from 0")


def _buckets(costs: list[int]) -> torch.Tensor:
    """The bucket of each sentence: lengths within an eighth of each other share one."""
    edges = [1]
    while edges[-1] < max(costs):
        edges.append(edges[-1] + 1 + edges[-1] // 8)
    return torch.bucketize(torch.tensor(costs), torch.tensor(edges))


def _cuts(costs: list[int], bucket_of: torch.Tensor, budget: int) -> list[int]:
    """Where batches begin, and the last ends, in the order of buckets.

    Every sentence is charged for the longest of its bucket, so the cuts hold whatever the order within buckets.
    """
    buckets = bucket_of.tolist()
    charge = dict.fromkeys(buckets, 0)
    for bucket, cost in zip(buckets, costs, strict=True):
        charge[bucket] = max(charge[bucket], cost)
    cuts = [0]
    for place, bucket in enumerate(sorted(buckets)):
        if (place + 1 - cuts[-1]) * charge[bucket] > budget:  # charges only grow: this one is the batch's longest
            cuts.append(place)
    return [*cuts, len(costs)]


def _even_cuts(cuts: list[int], world: int) -> list[int]:
    """The cuts with the fullest batches halved until each step has one for every rank."""
    while (len(cuts) - 1) % world:
        fullest = max(range(len(cuts) - 1), key=lambda batch: cuts[batch + 1] - cuts[batch])
        # Halving a single sentence gives an empty batch: there is nothing left to share.
        cuts.insert(fullest + 1, (cuts[fullest] + cuts[fullest + 1] + 1) // 2)
    return cuts


EncodedPair = tuple[list[int], list[int]]


class TranslationBatch(NamedTuple):
    """source: (batch, source_length) that ends with END; target: (batch, target_length) that begins with BEGIN;
    next: (batch, target_length), what follows each target id. All padded on the right."""

    source: torch.Tensor
    target: torch.Tensor
    next: torch.Tensor


def encode_pairs(pairs: Sequence[Pair], tokeniser: Tokeniser) -> list[EncodedPair]:
    """Ids of source and target of each pair, without BEGIN and END."""
    return [(tokeniser.encode(pair.source), tokeniser.encode(pair.target)) for pair in pairs]


def make_sources(sources: Sequence[list[int]]) -> torch.Tensor:
    """Encoded sources as the encoder reads them, (batch, source_length): END closes each, PAD fills the right.

    >>> make_sources([[5, 6], [7]])
    tensor([[5, 6, 3],
            [7, 3, 0]])
    """
    return pad([[*source, END] for source in sources])


def make_batch(pairs: Sequence[EncodedPair]) -> TranslationBatch:
    """Encoded pairs as tensors: END closes each source, BEGIN opens each target.

    >>> make_batch([([5, 6], [7])]).target.tolist()
    [[2, 7]]
    """
    return TranslationBatch(
        make_sources([source for source, _ in pairs]),
        pad([[BEGIN, *target] for _, target in pairs]),
        pad([[*target, END] for _, target in pairs]),
    )


def batches_in_order(pairs: Sequence[EncodedPair], budget: int) -> list[tuple[list[int], TranslationBatch]]:
    """Every pair once, neighbours in length together, at most `budget` ids a batch on the longer side; with the
    indices of the pairs of each batch. A pair above the budget has a batch of its own."""
    longer = [max(map(len, pair)) + 1 for pair in pairs]
    groups: list[list[int]] = [[]]
    for index in sorted(range(len(pairs)), key=longer.__getitem__):
        if groups[-1] and (len(groups[-1]) + 1) * longer[index] > budget:
            groups.append([])
        groups[-1].append(index)
    return [(group, make_batch([pairs[index] for index in group])) for group in groups if group]
