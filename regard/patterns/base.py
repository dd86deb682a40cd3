"""What every pattern can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from regard.errors import ArgumentError
from regard.patterns.arguments import check_sizes, start_of, starts_of, whole
from regard.patterns.band import Band
from regard.patterns.grid import Grid
from regard.patterns.ranges import Ranges, Segments, union
from regard.patterns.reach import Reach
from regard.patterns.seen import four_axes, marked, visible_in_band

if TYPE_CHECKING:
    from regard.patterns.tiles import Tiles

CHUNK = 1 << 22  # pairs evaluated at once where a pattern must be asked pair by pair
MOST_ASKED = 1 << 44  # pairs counted one by one
MOST_LOOKS = 1 << 22  # blocks of rows looked at for one count


class Pattern:
    """Which query positions may look at which key positions; immutable, comparable, and combined with `& | ~`."""

    query_free = False  # the same keys for every query
    compares_positions = True  # needs queries and keys to be counted from one origin
    by_value = True  # equal to every pattern written the same; False where a tensor or a function is held
    structured = True  # `segments` tells what is seen without asking pair by pair
    by_length = False  # what is seen depends on how many keys there are
    varies_by_head = False
    varies_by_row = False  # of the batch
    levels = 1  # of patterns made of patterns

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """The truth: may the query at `q_pos` see the key at `k_pos`?

        Args:
            q_pos: positions, broadcastable with `k_pos`.
            k_pos: positions. A pattern that differs by batch row or head answers with the four axes
                (batch or 1, heads or 1, q_len, k_len).

        Returns:
            Booleans of the broadcast shape; True = may look.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say which pairs it allows")

    def evaluate(self, grid: Grid) -> torch.Tensor:
        """`allows` on the rows and columns of a grid: (rows, keys) or (batch or 1, heads or 1, rows, keys)."""
        allowed = self.allows(grid.q_pos, grid.k_pos)
        shape = torch.broadcast_shapes(allowed.shape, (len(grid.rows), len(grid.keys)))
        return allowed.expand(shape)

    def band(self) -> Band | None:
        """This pattern as one band, where it is one; None where it is not."""
        return None

    def structure(self) -> Pattern:
        """An equal pattern made of simpler ones; itself where it is simple."""
        return self

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """What the queries at positions first..last see, as ranges of keys within 0 .. k_len.

        >>> from regard.patterns import CausalWindow
        >>> CausalWindow(4).segments(10, 11, k_len=99)
        Segments(full=(range(8, 11),), some=(range(7, 12),))
        """
        band = self.band()
        if band is not None:
            return band.segments(first, last, k_len)
        simpler = self.structure()
        if simpler is not self:
            return simpler.segments(first, last, k_len)
        return Segments((), union([self.keys(first, last, k_len)]))

    @property
    def period(self) -> int | None:
        """A shift of query and key together that changes nothing, wherever they stand; None if there is none."""
        band = self.band()
        if band is not None:
            return 1 if band.start is None and band.stop is None else None
        simpler = self.structure()
        return None if simpler is self else simpler.period

    @property
    def key_period(self) -> int | None:
        """A shift of the key alone that changes nothing, wherever it stands; None if there is none."""
        band = self.band()
        if band is not None:
            return 1 if band == Band() else None
        simpler = self.structure()
        return None if simpler is self else simpler.key_period

    @property
    def batch_rows(self) -> int:
        """Batch rows that are told apart; 1 where all are alike."""
        return 1

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        """The pattern among the positions `residue + stride · n`, counted by n; None where no pattern says it."""
        band = self.band()
        if band is not None:
            return band.on_lattice(stride, residue).as_pattern()
        simpler = self.structure()
        return None if simpler is self else simpler.on_lattice(stride, residue)

    def mapped(self, change: Callable[[Pattern], Pattern]) -> Pattern:
        """The same combination of other parts."""
        return change(self)

    def for_head(self, head: int) -> Pattern:
        """What this query head sees."""
        return self.mapped(lambda part: part.for_head(head)) if self.varies_by_head else self

    def for_row(self, row: int) -> Pattern:
        """What this batch row sees."""
        return self.mapped(lambda part: part.for_row(row)) if self.varies_by_row else self

    def canonical(self) -> Pattern:
        """An equal pattern that is the same for many ways of writing it.

        >>> from regard.patterns import Causal, CausalWindow
        >>> print((Causal() & CausalWindow(512)).canonical())
        causal_window(512)
        """
        found = self.__dict__.get("_canonical")
        if found is None:
            from regard.patterns.canonical import canonical

            found = canonical(self)
            object.__setattr__(self, "_canonical", found)
            object.__setattr__(found, "_canonical", found)
        return found

    def reach(self, layers: int = 1) -> Reach:
        """How far a stack of layers with this pattern looks; the positions between may hold gaps.

        >>> from regard.patterns import CausalWindow
        >>> print(CausalWindow(512).reach(layers=4))
        2044 back, 0 ahead
        """
        layers = whole("layers", layers, 1)
        band = self.band()
        if band is not None:
            return Reach(band.left, band.right).stacked(layers)
        simpler = self.structure()
        return Reach(None, None) if simpler is self else simpler.reach(layers)

    def tiles(self, q_len: int, k_len: int, tile: int, *, q_start: int | None = None) -> Tiles:
        """Which tiles of `tile` x `tile` pairs are empty, partial or full, without a dense mask.

        >>> from regard.patterns import Causal
        >>> Causal().tiles(4, 4, 2).states().tolist()  # 0 empty, 1 partial, 2 full
        [[1, 0], [2, 1]]
        """
        from regard.patterns.tiles import tiles

        return tiles(self, *check_sizes(q_len, k_len), tile, start_of(q_start))

    def empty_rows(self, q_len: int, k_len: int, *, q_start: int | None = None) -> Ranges:
        """The rows of queries that see no key.

        >>> from regard.patterns import Causal
        >>> Causal().empty_rows(4, 2)
        (range(0, 2),)
        """
        from regard.patterns.tiles import empty_rows

        return empty_rows(self, *check_sizes(q_len, k_len), start_of(q_start))

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        """Raise a ShapeError if tensors inside this pattern do not fit a call of these sizes."""

    def keys(self, first: int, last: int, k_len: int) -> range:
        """A range that holds every key seen by the queries at positions first..last; it may hold more."""
        band = self.band()
        if band is not None:
            return band.keys(first, last, k_len)
        simpler = self.structure()
        return range(k_len) if simpler is self else simpler.keys(first, last, k_len)

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        """Is it certain, without evaluating, that these queries see all of `keys`?"""
        band = self.band()
        if band is not None:
            return band.sees_all(first, last, keys)
        simpler = self.structure()
        return simpler is not self and simpler.sees_all(first, last, keys)

    def visible_keys(self, grid: Grid) -> torch.Tensor | None:
        """Keys that some query of the grid may see: None for all, else booleans (batch or 1, heads or 1, keys)."""
        band = self.band()
        if band is not None and not grid.per_batch:
            return visible_in_band(band, grid)
        if self.query_free and len(grid.rows):
            return four_axes(self.evaluate(grid.block(grid.rows[:1], grid.keys)))[:, :, 0]
        return self._visible_by_asking(grid)

    def _visible_by_asking(self, grid: Grid) -> torch.Tensor | None:
        if self.structured and self.varies_by_row and not grid.per_batch:
            from regard.patterns.part import side_by_side

            return side_by_side([self.for_row(row).visible_keys(grid) for row in range(self.batch_rows)], grid, dim=0)
        if self.structured and not (self.varies_by_head or grid.per_batch):
            from regard.patterns.tiles import seen_keys

            return marked(seen_keys(self, grid), grid)
        seen = torch.zeros(1, 1, len(grid.keys), dtype=torch.bool, device=grid.device)
        for block in row_blocks(grid):
            seen = seen | four_axes(self.evaluate(block)).any(-2)  # (batch or 1, heads or 1, keys)
        return seen

    def dense(self, q_len: int, k_len: int, *, q_start: int | torch.Tensor | None = None) -> torch.Tensor:
        """Every pair as booleans, True = may look.

        Args:
            q_len: number of queries.
            k_len: number of keys.
            q_start: position of the first query; by default the last query meets the last key.

        Returns:
            (q_len, k_len), or (batch or 1, heads or 1, q_len, k_len) where batch rows or heads differ.

        >>> from regard.patterns import Causal
        >>> Causal().dense(2, 3).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
        """
        grid = Grid.whole(*check_sizes(q_len, k_len), starts_of(q_start))
        return self.evaluate(grid).clone()

    def count(self, q_len: int, k_len: int, *, q_start: int | torch.Tensor | None = None) -> int:
        """Allowed pairs; summed over the batch rows or heads where the pattern itself differs by them.

        >>> from regard.patterns import SlidingWindow
        >>> SlidingWindow(4).count(5, 5)
        19
        """
        grid = Grid.whole(*check_sizes(q_len, k_len), starts_of(q_start))
        alike = not (self.varies_by_head or self.varies_by_row or grid.per_batch)
        band = self.band()
        if alike and band is not None:
            assert isinstance(grid.q_start, int)
            return band.count(grid.q_start, q_len, k_len)
        if alike and self.structured:
            return self._counted(grid)
        if grid.q_len * grid.k_len > MOST_ASKED:
            raise ArgumentError(f"{self} tells nothing but pair by pair, and {q_len} x {k_len} pairs are too many")
        return sum(int(self.evaluate(block).sum()) for block in row_blocks(grid))

    def _counted(self, grid: Grid) -> int:
        from regard.patterns.counts import counted

        assert isinstance(grid.q_start, int)
        found = counted(self, grid.q_len, grid.k_len, grid.q_start, MOST_LOOKS)
        if not found.exact:
            raise ArgumentError(
                f"{self} has no closed count, and {grid.q_len} x {grid.k_len} pairs need more than {MOST_LOOKS} looks; "
                f"count fewer queries at a time, or let `regard plan` estimate them"
            )
        return found.pairs

    def draw(self, q_len: int = 16, k_len: int | None = None, *, q_start: int | None = None) -> str:
        """The pattern as text, one line a query; see `regard.patterns.drawing`."""
        from regard.patterns.drawing import draw

        sizes = check_sizes(q_len, q_len if k_len is None else k_len)
        return draw(self, *sizes, q_start=start_of(q_start))

    def __and__(self, other: Pattern | str) -> Pattern:
        return _joined("both", self, other)

    def __rand__(self, other: str) -> Pattern:
        return _joined("both", other, self)

    def __or__(self, other: Pattern | str) -> Pattern:
        return _joined("either", self, other)

    def __ror__(self, other: str) -> Pattern:
        return _joined("either", other, self)

    def __bool__(self) -> bool:
        raise ArgumentError(
            f"the pattern {self} is neither true nor false, which `and`, `or`, `not` and `if` ask for; join patterns "
            f"with & | ~, and ask `is None` whether there is one"
        )

    def __invert__(self) -> Pattern:
        from regard.patterns.algebra import negate
        from regard.patterns.compound import shallow

        return shallow(negate(self))


def _joined(join: str, one: Pattern | str, other: Pattern | str) -> Pattern:
    """Both or either of two patterns, of which one may be given as its text."""
    from regard.patterns import algebra, text
    from regard.patterns.compound import shallow

    if not (isinstance(one, Pattern | str) and isinstance(other, Pattern | str)):
        return NotImplemented
    return shallow(getattr(algebra, join)(text.as_pattern(one), text.as_pattern(other)))


def row_blocks(grid: Grid) -> list[Grid]:
    """The grid cut into blocks of rows, each small enough to be evaluated at once."""
    step = max(1, CHUNK // max(1, len(grid.keys)))
    rows = grid.rows
    return [grid.block(rows[at : at + step], grid.keys) for at in range(0, len(rows), step)]
