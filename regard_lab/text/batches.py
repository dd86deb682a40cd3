"""Batches of ids within a token budget, and the tensors of translation pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.arguments import count_of, each, of_kind, whole
from regard.errors import ArgumentError
from regard.reprs import Described
from regard_lab.text.cleaning import tidy_target
from regard_lab.text.pairs import Pair
from regard_lab.text.tokenisers import Tokeniser
from regard_lab.text.vocabularies import BEGIN, END, PAD

LENGTHS = "the number of tokens of each sentence, or of the two sides of each pair"


class EpochOrder(NamedTuple):
    """The order of the sentences of an epoch, shuffled within each bucket of lengths, and that of its steps."""

    epoch: int
    sentences: torch.Tensor  # (sentences,)
    steps: torch.Tensor  # (steps,)


class TokenBatches(Described):
    """Batches of sentences for training, each within a budget of tokens including padding.

    A batch costs (number of sentences) * (length of the longest one), where the longer side of a pair counts. Sentences
    of similar length share a batch; both are drawn again in each epoch, with their order. Over all ranks, each sentence
    occurs exactly once per epoch. At each step, each of `world` ranks takes one batch within the budget, of similar
    lengths. If the batches do not divide by `world`, the fullest ones are halved; only if these are single sentences do
    some ranks get an empty batch in one step of the epoch.

    Args:
        lengths: number of tokens of each sentence, or of both sides of each pair, including special ids.
        budget: the most tokens in one batch of one rank.
        seed: seed of the draws.
        world: number of processes that train together.
        rank: number of this process, from 0.

    Raises:
        ArgumentError: no sentences, a sentence longer than the budget, or a rank outside the world.

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
        budget = whole("budget", budget)
        world = whole("world", world)
        rank = whole("rank", rank)
        seed = of_kind("seed", seed, int, "an integer")
        if not 0 <= rank < world:
            raise ArgumentError(
                f"rank is {rank} in a world of {world}; ranks go from 0 to world - 1"
            )
        costs = [_cost(length) for length in each("lengths", lengths, LENGTHS)]
        _check_costs(costs, budget)

        self.budget = budget
        self.seed = seed
        self.world = world
        self.rank = rank
        self._bucket_of = _buckets(costs)
        self._cuts = _even_cuts(_cuts(costs, self._bucket_of, budget), world)
        self._drawn: EpochOrder | None = None  # the last epoch, so that it is drawn once

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in every epoch, the same for all ranks."""
        return (len(self._cuts) - 1) // self.world

    def at(self, step: int) -> list[int]:
        """The indices of the sentences in this rank's batch at a step, counted from 0 over all epochs."""
        step = whole("step", step, 0)
        epoch, step_of_epoch = divmod(step, self.steps_per_epoch)

        drawn = self._draw(epoch)
        batch = int(drawn.steps[step_of_epoch]) * self.world + self.rank
        return drawn.sentences[self._cuts[batch] : self._cuts[batch + 1]].tolist()

    def _draw(self, epoch: int) -> EpochOrder:
        if self._drawn is not None and self._drawn.epoch == epoch:
            return self._drawn

        digest = hashlib.sha256(f"{self.seed}/{epoch}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        shuffled = torch.randperm(len(self._bucket_of), generator=generator)
        sentences = shuffled[torch.argsort(self._bucket_of[shuffled], stable=True)]
        steps = torch.randperm(self.steps_per_epoch, generator=generator)
        drawn = EpochOrder(epoch, sentences, steps)
        self._drawn = drawn
        return drawn


def pad(rows: Sequence[Sequence[int]], side: str = "right", value: int = PAD) -> torch.Tensor:
    """Pad lists of ids to one tensor.

    Args:
        rows: ids of each sentence, of any lengths.
        side: "right" pads after the ids, "left" before them.
        value: the padding id.

    Returns:
        LongTensor (batch, length of the longest row).

    >>> pad([[5, 6, 7], [8]], side="left")
    tensor([[5, 6, 7],
            [0, 0, 8]])
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"side is {side!r}; give 'left' or 'right'")
    value = whole("value", value)
    checked = [_ids_of(row) for row in each("rows", rows, "rows of ids, such as [[5, 6], [7]]")]

    longest = max(map(len, checked), default=0)
    padded = []
    for ids in checked:
        padding = [value] * (longest - len(ids))
        padded.append(padding + ids if side == "left" else ids + padding)
    return torch.tensor(padded, dtype=torch.long).reshape(len(checked), longest)


def _ids_of(row: Sequence[int]) -> list[int]:
    ids = list(each("a row", row, "ids"))
    if set(map(type, ids)) == {int}:  # nearly always, and then nothing is left to check
        return ids
    return [whole("an id of a row", number) for number in ids]


def _cost(length: int | Sequence[int]) -> int:
    """The tokens that a sentence takes in a batch: its length, or that of the longer side of a pair."""
    is_pair = isinstance(length, Sequence) and not isinstance(length, str | bytes)
    sides = length if is_pair else [length]
    checked = [side if type(side) is int else whole("a length", side) for side in sides]
    return max(checked, default=0)


def _check_costs(costs: list[int], budget: int) -> None:
    if not costs:
        raise ArgumentError("lengths is empty; give the length of at least one sentence")
    longest = max(range(len(costs)), key=costs.__getitem__)
    if costs[longest] > budget:
        over = sum(cost > budget for cost in costs)
        raise ArgumentError(
            f"sentence {longest} has {count_of(costs[longest], 'tokens')}, more than the budget of {budget} for a "
            f"batch ({over} of {count_of(len(costs), 'sentences')} do); use a larger budget or leave out "
            f"longer sentences"
        )
    if min(costs) < 0:
        raise ArgumentError(
            f"sentence {costs.index(min(costs))} has a length of {min(costs)}; lengths count from 0"
        )


def _buckets(costs: list[int]) -> torch.Tensor:
    """The bucket of each sentence; lengths within an eighth of each other share a bucket."""
    edges = [1]
    while edges[-1] < max(costs):
        edges.append(edges[-1] + 1 + edges[-1] // 8)
    return torch.bucketize(torch.tensor(costs), torch.tensor(edges))


def _cuts(costs: list[int], bucket_of: torch.Tensor, budget: int) -> list[int]:
    """Indices at which batches begin, and the end of the last, for sentences in the order of buckets.

    Each sentence counts as the longest of its bucket, so the batches keep the budget in any order within a bucket.
    """
    buckets = bucket_of.tolist()
    longest = dict.fromkeys(buckets, 0)
    for bucket, cost in zip(buckets, costs, strict=True):
        longest[bucket] = max(longest[bucket], cost)

    cuts = [0]
    for place, bucket in enumerate(sorted(buckets)):
        # Buckets come in the order of lengths, so the last sentence has the longest of its batch.
        sentences = place + 1 - cuts[-1]
        if sentences * longest[bucket] > budget:
            cuts.append(place)
    return [*cuts, len(costs)]


def _even_cuts(cuts: list[int], world: int) -> list[int]:
    """The cuts with the fullest batches halved until their number is a multiple of `world`."""
    while (len(cuts) - 1) % world:
        fullest = max(range(len(cuts) - 1), key=lambda batch: cuts[batch + 1] - cuts[batch])
        # Halving a batch of one sentence gives an empty batch.
        middle = (cuts[fullest] + cuts[fullest + 1] + 1) // 2
        cuts.insert(fullest + 1, middle)
    return cuts


EncodedPair = tuple[list[int], list[int]]


class TranslationBatch(NamedTuple):
    """A batch of pairs, padded on the right.

    source: (batch, source_length), ending with END.
    target: (batch, target_length), beginning with BEGIN.
    next: (batch, target_length), the id after each target id.
    """

    source: torch.Tensor
    target: torch.Tensor
    next: torch.Tensor


def encode_pairs(pairs: Sequence[Pair], tokeniser: Tokeniser) -> list[EncodedPair]:
    """The ids of both sides of each pair, without BEGIN and END."""
    tokeniser = tokeniser.keeping_words()
    encoded = []
    for pair in pairs:
        source = tokeniser.encode(pair.source)
        target = tokeniser.encode_target(tidy_target(pair.target), pair.source)
        encoded.append((source, target))
    return encoded


def make_batch(pairs: Sequence[EncodedPair]) -> TranslationBatch:
    """Encoded pairs as a batch: sources end with END, targets begin with BEGIN.

    >>> make_batch([([5, 6], [7])]).target.tolist()
    [[2, 7]]
    """
    return TranslationBatch(
        source=pad([[*source, END] for source, _ in pairs]),
        target=pad([[BEGIN, *target] for _, target in pairs]),
        next=pad([[*target, END] for _, target in pairs]),
    )


def parts_of_rows(count: int, *columns: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """Neighbouring rows of tensors with as many rows each, in at most `count` parts of equal size, but for one row.

    Columns at the end of a part that are PAD in all of its rows are left out of ids (rows, length).

    >>> [ids.tolist() for (ids,) in parts_of_rows(2, torch.tensor([[5, 6, 7], [8, 9, 0], [4, 0, 0]]))]
    [[[5, 6, 7], [8, 9, 0]], [[4]]]
    """
    count = max(1, min(count, len(columns[0])))
    divided = [column.tensor_split(count) for column in columns]
    return [tuple(map(without_padding, part)) for part in zip(*divided, strict=True)]


def without_padding(ids: torch.Tensor) -> torch.Tensor:
    """Ids (rows, length) without the columns at their end that are PAD in all rows; other tensors as they are."""
    if ids.dim() != 2 or ids.dtype == torch.bool or not ids.numel():
        return ids
    is_used = (ids != PAD).any(0)
    length = int(is_used.nonzero().max()) + 1 if bool(is_used.any()) else 1
    return ids[:, :length]


def in_order(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices of texts, those of similar length together, within a budget of ids; a longer text is alone.

    >>> in_order([5, 2, 3], 6)
    [[1, 2], [0]]
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if groups and (len(groups[-1]) + 1) * lengths[index] <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def batches_in_order(
    pairs: Sequence[EncodedPair], budget: int
) -> list[tuple[list[int], TranslationBatch]]:
    """Batches of pairs of similar length for evaluation, each with the indices of its pairs.

    A batch has at most `budget` ids on the longer side; a longer pair gets a batch of its own.
    """
    lengths = [1 + max(len(source), len(target)) for source, target in pairs]
    batches = []
    for group in in_order(lengths, budget):
        batch = make_batch([pairs[index] for index in group])
        batches.append((group, batch))
    return batches
