"""Blocks of keys drawn at random for each block of queries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from itertools import chain

import torch

from regard.arguments import whole, yes_or_no
from regard.errors import ArgumentError, UnsupportedError
from regard.exporting import exporting
from regard.patterns.band import Reach
from regard.patterns.base import Pattern
from regard.patterns.grid import Grid, common_shape
from regard.patterns.ranges import Ranges, Segments, common, everything, union

TABLE = 256  # query blocks whose draws are cached together
NAMED = 1024  # query blocks whose draws are listed for one row block; with more, only their hull is given
MOST_BLOCKS = 2**31  # blocks of keys that `draw` chooses among
MOST_DRAWN = 1024  # blocks of keys drawn for one block of queries


@dataclass(frozen=True, init=False)
class RandomBlocks(Pattern):
    """Each block of queries may look at `count` distinct blocks of keys, drawn by a hash of (seed, query block).

    The draws are among the `ceil(k_len / block)` blocks of keys, or all of them where there are no more than `count`.

    Args:
        count: blocks of keys for each block of queries.
        block: positions in a block; 1 draws keys for each query separately.
        seed: different seeds give different draws.
        past: draw among the blocks up to the query's own, for any number of keys, so that a cached continuation
            draws the same; `& Causal()` masks the later keys of the own block.

    Source: BigBird, Zaheer et al. 2020, section 2.

    >>> pattern = RandomBlocks(2, block=4, seed=1)
    >>> pattern.dense(4, 32).sum(-1).tolist()
    [8, 8, 8, 8]
    """

    drawn: int  # the argument `count`, which is the name of a method of every pattern
    block: int
    seed: int
    past: bool

    def __init__(self, count: int, block: int = 64, seed: int = 0, past: bool = False) -> None:
        object.__setattr__(self, "drawn", whole("RandomBlocks' count", count, 1))
        object.__setattr__(self, "block", whole("RandomBlocks' block", block, 1))
        object.__setattr__(self, "seed", whole("RandomBlocks' seed", seed))
        object.__setattr__(self, "past", yes_or_no("RandomBlocks' past", past))

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """The truth for a call whose last key is the last of `k_pos`; `evaluate` uses the call's own length."""
        return self._allows(q_pos, k_pos, int(k_pos.max()) + 1 if k_pos.numel() else 0)

    def evaluate(self, grid: Grid) -> torch.Tensor:
        allowed = self._allows(grid.q_pos, grid.k_pos, grid.k_len)
        return allowed.expand(common_shape(allowed.shape, (len(grid.rows), len(grid.keys))))

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        blocks = self._blocks(k_len)
        if not self.past and self.drawn >= blocks:
            return Segments(everything(k_len), everything(k_len))
        if (last - first) // self.block >= NAMED:
            end = k_len
            if self.past:
                end = min(k_len, max(0, (last // self.block + 1) * self.block))
            return Segments((), everything(end))
        query_blocks = range(first // self.block, last // self.block + 1)
        keys = [self._keys_of(block, blocks, k_len) for block in query_blocks]
        full = reduce(common, keys) if keys else ()
        return Segments(full, union(chain.from_iterable(keys)))

    @property
    def by_length(self) -> bool:  # type: ignore[override]
        return not self.past

    def reach(self, layers: int = 1) -> Reach:
        return Reach(None, self.block - 1 if self.past else None)

    def _blocks(self, k_len: int) -> int:
        """The number of blocks of keys; an ArgumentError if it is more than can be drawn among."""
        blocks = -(-k_len // self.block)
        if blocks > MOST_BLOCKS:
            raise ArgumentError(
                f"{self} would draw among the {blocks} blocks of {k_len} keys; it draws among {MOST_BLOCKS} at most: "
                f"take larger blocks"
            )
        if blocks > self.drawn > MOST_DRAWN:
            raise ArgumentError(
                f"{self} would draw {self.drawn} of the {blocks} blocks of {k_len} keys for each block of queries; "
                f"it draws {MOST_DRAWN} at most: take fewer or larger blocks"
            )
        return blocks

    def _allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor, k_len: int) -> torch.Tensor:
        if exporting():
            raise UnsupportedError(
                f"{self} is drawn by a hash in whole numbers that other runtimes do not compute; export with "
                f"Explicit({self}.dense(q_len, k_len)), or with another pattern"
            )
        query_block = q_pos // self.block
        key_block = k_pos // self.block
        blocks = self._blocks(k_len)
        choices = _choices(query_block, None if self.past else blocks)
        allowed = (choices <= self.drawn) & (key_block < choices)
        if (choices > self.drawn).any():
            for drawn in _distinct(self.drawn, self.seed, query_block, choices):
                allowed = allowed | (drawn == key_block)
        return allowed

    def _keys_of(self, query_block: int, blocks: int, k_len: int) -> Ranges:
        """The keys of the queries of one block."""
        choices = query_block + 1 if self.past else blocks
        if choices <= self.drawn:
            return union([range(min(k_len, max(0, choices) * self.block))])
        part = query_block // TABLE
        table = _table(self.drawn, self.seed, part, None if self.past else blocks)
        starts = [block * self.block for block in table[query_block % TABLE]]
        return union(range(start, min(k_len, start + self.block)) for start in starts)

    def __str__(self) -> str:
        past = ", past=true" if self.past else ""
        return f"random_blocks({self.drawn}, block={self.block}, seed={self.seed}{past})"


@lru_cache(maxsize=512)
def _table(count: int, seed: int, part: int, blocks: int | None) -> list[list[int]]:
    """The draws of `TABLE` neighbouring query blocks; `blocks` to draw from, or None for those of the past."""
    query_blocks = torch.arange(part * TABLE, (part + 1) * TABLE, device="cpu")
    choices = _choices(query_blocks, blocks)
    return torch.stack(_distinct(count, seed, query_blocks, choices), dim=-1).tolist()


def _choices(query_blocks: torch.Tensor, blocks: int | None) -> torch.Tensor:
    """How many blocks of keys each block of queries draws among: so many, or None for its own and those before it."""
    if blocks is None:
        return query_blocks + 1
    return torch.full_like(query_blocks, blocks)


def _distinct(
    count: int, seed: int, query_blocks: torch.Tensor, choices: torch.Tensor
) -> list[torch.Tensor]:
    """`count` distinct numbers below `choices` for each query block; -1 where there are not more choices than that.

    Floyd's sampling (Bentley and Floyd 1987): the n-th draw is among one number more than the draw before, and where
    it repeats an earlier one the number that was added stands for it.
    """
    shape = (count, *query_blocks.shape)
    drawn = torch.empty(shape, dtype=torch.int64, device=query_blocks.device)
    enough = choices > count
    for step in range(count):
        added = choices - count + step  # above every earlier draw
        number = draw(seed, query_blocks, step, (added + 1).clamp(min=1))
        repeated = (drawn[:step] == number).any(0)
        drawn[step] = torch.where(enough, torch.where(repeated, added, number), -1)
    return list(drawn)


def draw(seed: int, place: torch.Tensor, step: int, choices: torch.Tensor) -> torch.Tensor:
    """A random number 0 .. choices - 1 for each place, all equally likely.

    Args:
        seed: 64 bits, with or without a sign.
        place: int64 of any shape.
        step: which draw at that place.
        choices: int64 that broadcasts with `place`, 1 to 2**31.
    """
    state = _scramble((place + 1) * -7046029254386353131 + signed(seed))
    state = _scramble(state + signed((step + 1) * -4417276706812531889))
    return (_shifted(state, 32) * choices) >> 32


def _scramble(state: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64 (Steele et al. 2014, Fast Splittable Pseudorandom Number Generators, figure 16)."""
    state = (state ^ _shifted(state, 30)) * -4658895280553007687
    state = (state ^ _shifted(state, 27)) * -7723592293110705685
    return state ^ _shifted(state, 31)


def _shifted(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifted to the right, with zeros from the left, as a number without a sign is."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def signed(number: int) -> int:
    """The number of 64 bits with a sign that has the same bits."""
    return (number + 2**63) % 2**64 - 2**63
