"""What every pattern can do, and what is common to patterns made of others.

A new pattern defines `allows` and one of `form` and `segments`; all else follows from them. Questions that only some
callers ask are functions beside this class: `visible.py`, `dropping.py`, `one_call.py`, `tiles.py` and `counts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce
from math import lcm
from typing import Any, ClassVar

import torch

from regard.arguments import whole
from regard.errors import ArgumentError
from regard.patterns.arguments import check_sizes, start_of, starts_of
from regard.patterns.band import Band, Reach
from regard.patterns.grid import Grid, common_shape
from regard.patterns.ranges import Segments, covers, everything, hull
from regard.patterns.registry import Declared, Registry
from regard.patterns.row_keys import RowKeys

MOST_LEVELS = 64  # of patterns made of patterns
_UNKNOWN: Any = object()  # a form that was not asked for yet; None is one that there is not

# The position that counts as 0: one number, or one for each batch row.
Origins = tuple[int, ...] | torch.Tensor


@dataclass(frozen=True)
class Operations:
    """Functions of patterns that `Pattern` offers as methods, though they are written in terms of patterns.

    They stand in files that import this one, so this file cannot import them. `regard/patterns/__init__.py` imports all
    of these files and sets `Pattern.operations` once.
    """

    both: Callable[..., Pattern]
    either: Callable[..., Pattern]
    negate: Callable[[Pattern], Pattern]
    canonical: Callable[[Pattern], Pattern]
    from_band: Callable[[Band], Pattern]
    as_pattern: Callable[[Any], Pattern]
    tiles: Callable[..., Any]
    count: Callable[..., int]
    draw: Callable[..., str]


class Pattern(Declared, enrol=False):
    """Which query positions may look at which key positions; immutable, comparable, and combined with `& | ~`.

    To write one, derive a frozen dataclass and define `allows`, and one more method: `form` if the pattern is a band or
    can be written with other patterns, otherwise `segments`. All other methods are computed from these. Without the
    second method, `allows` is evaluated for every pair. The class registers itself, so that `parse` reads its text,
    such as `every(3)`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Every(Pattern):
    ...     stride: int
    ...     def allows(self, q_pos, k_pos):
    ...         return (q_pos - q_pos) + k_pos % self.stride == 0
    >>> str(Every(3)), Every(3).count(2, 9)
    ('every(3)', 6)
    """

    registry: ClassVar[Registry] = Registry("pattern", "'regard show --list'")
    operations: ClassVar[Operations]

    # Facts that a pattern declares about itself.
    query_free = False  # the same keys for every query
    compares_positions = True  # positions of queries and keys need a common origin
    by_value = True  # equal to every pattern written the same; False with a tensor or a function
    by_numbers = True  # what it allows follows from its numbers; False where a function is called
    by_length = False  # which keys are allowed depends on how many keys there are
    structured = True  # `segments` needs no evaluation of pairs
    of_one_call = False  # it is for the rows of one call
    takes_cache = True  # a text can be continued: which keys of earlier calls are allowed is known
    varies_by_head = False
    varies_by_row = False  # of the batch
    # The keys of batch rows, if they are all that it has beside a band. Every call asks for them.
    row_keys: RowKeys | None = None
    levels = 1  # of patterns made of patterns

    # What defines a pattern.

    def allows(self, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
        """Whether the query at `q_pos` may look at the key at `k_pos`; everything else must agree with it.

        Args:
            q_pos: positions, broadcastable with `k_pos`.
            k_pos: positions. A pattern that differs by batch row or head returns the four axes
                (batch or 1, heads or 1, q_len, k_len).

        Returns:
            Booleans of the broadcast shape; True = may look.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define which pairs it allows")

    def form(self) -> Band | Pattern | None:
        """An equal pattern in simpler terms: a Band, or patterns joined by & | ~; None if `segments` is defined."""
        return None

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """The keys, as ranges within 0 .. k_len, that the queries at positions first..last may look at.

        >>> from regard.patterns import CausalWindow
        >>> CausalWindow(4).segments(10, 11, k_len=99)
        Segments(full=(range(8, 11),), some=(range(7, 12),))
        """
        simpler = self._simpler
        if simpler is None:
            return Segments((), everything(k_len))
        return simpler.segments(first, last, k_len)

    def evaluate(self, grid: Grid) -> torch.Tensor:
        """`allows` on the rows and columns of a grid: (rows, keys) or (batch or 1, heads or 1, rows, keys)."""
        allowed = truth_of(self, grid.q_pos, grid.k_pos)
        shape = common_shape(allowed.shape, grid.shape)
        return allowed.expand(shape)

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        """Raise a ShapeError if tensors inside this pattern do not fit a call of these sizes."""

    # Simpler forms, and the parts of a pattern.

    def _find_form(self) -> Band | Pattern | None:
        """What `form` returns. It is kept, but not while torch.compile traces, which cannot rebuild it.

        The callers look for a kept one themselves, since a method for it would be more frames of a first call.
        """
        form = self.form()
        if not torch.compiler.is_compiling():
            object.__setattr__(self, "_form", form)
        return form

    @cached_property
    def _simpler(self) -> Band | Pattern | None:
        """What the methods below ask in place of this pattern; None where they ask its own `segments`."""
        if self.known_band is not None:
            return self.known_band
        form = self.__dict__.get("_form", _UNKNOWN)
        return self._find_form() if form is _UNKNOWN else form

    @cached_property
    def known_band(self) -> Band | None:
        """What `band` returns, found once: plans ask it for each row block."""
        return self.band()

    def band(self) -> Band | None:
        """This pattern as one band; None where it is not one."""
        form = self.__dict__.get("_form", _UNKNOWN)
        if form is _UNKNOWN:
            form = self._find_form()
        return form.band() if isinstance(form, Pattern) else form

    def structure(self) -> Pattern:
        """An equal pattern made of simpler ones; the pattern itself where there is none."""
        form = self.__dict__.get("_form", _UNKNOWN)
        if form is _UNKNOWN:
            form = self._find_form()
        return form if isinstance(form, Pattern) else self

    def canonical(self) -> Pattern:
        """An equal pattern that is the same for many ways of writing it.

        >>> from regard.patterns import Causal, CausalWindow
        >>> print((Causal() & CausalWindow(512)).canonical())
        causal_window(512)
        """
        canonical = self.__dict__.get("_canonical")
        if canonical is None:
            canonical = self.operations.canonical(self)
            object.__setattr__(self, "_canonical", canonical)
            object.__setattr__(canonical, "_canonical", canonical)
        return canonical

    def made_of(self) -> tuple[Pattern, ...]:
        """The patterns that it joins; none for a pattern that joins no others."""
        return ()

    def mapped(self, change: Callable[[Pattern], Pattern]) -> Pattern:
        """The same combination of changed parts."""
        return change(self)

    def walk(self) -> Iterator[Pattern]:
        """The pattern and, one after the other, all patterns that it is made of."""
        yield self
        for part in self.made_of():
            yield from part.walk()

    @property
    def factors(self) -> tuple[Pattern, ...]:
        """The patterns that it joins by `&`; the pattern itself if it joins none."""
        return (self,)

    @property
    def alternatives(self) -> tuple[Pattern, ...]:
        """The patterns that it joins by `|`; the pattern itself if it joins none."""
        return (self,)

    # Batch rows and heads.

    @property
    def heads(self) -> int | None:
        """The number of query heads that it is for; None for any."""
        return None

    @property
    def batch_rows(self) -> int:
        """How many batch rows differ; 1 where all are alike."""
        return 1

    def for_head(self, head: int) -> Pattern:
        """The pattern of one query head."""
        if not self.varies_by_head:
            return self
        return self.mapped(lambda part: part.for_head(head))

    def of_heads(self, heads: range, of: int) -> Pattern:
        """The pattern of some of the query heads of a call with `of` heads."""
        if not (self.made_of() and self.varies_by_head):
            return self
        return self.mapped(lambda part: part.of_heads(heads, of))

    def for_row(self, row: int) -> Pattern:
        """The pattern of one batch row."""
        if not self.varies_by_row:
            return self
        return self.mapped(lambda part: part.for_row(row))

    # Keys of neighbouring queries.

    def key_range(self, first: int, last: int, k_len: int) -> range:
        """A range that holds every key of the queries at positions first..last; it may hold more."""
        simpler = self._simpler
        if simpler is None:
            return hull(self.segments(first, last, k_len).some)
        return simpler.key_range(first, last, k_len)

    def sees_all(self, first: int, last: int, keys: range) -> bool:
        """Whether it is certain, without evaluating, that all these queries may look at all of `keys`."""
        simpler = self._simpler
        if simpler is not None:
            return simpler.sees_all(first, last, keys)
        if self.by_length:
            return False
        return covers(self.segments(first, last, max(0, keys.stop)).full, keys)

    def reach(self, layers: int = 1) -> Reach:
        """How far back and ahead a stack of layers with this pattern looks; positions in between may be out of reach.

        >>> from regard.patterns import CausalWindow
        >>> print(CausalWindow(512).reach(layers=4))
        2044 back, 0 ahead
        """
        layers = whole("layers", layers, 1)
        return Reach(None, None) if self._simpler is None else self._simpler.reach(layers)

    def divided_grid(self) -> Any:
        """The windows that it divides a grid into, whose first cell has position 0; None for other patterns.

        Returns:
            A `regard.patterns.image_windows.DividedGrid`.
        """
        return None

    # Shifts and lattices.

    @property
    def period(self) -> int | None:
        """A shift of query and key together that changes nothing at any position; None if there is none."""
        return None if self._simpler is None else self._simpler.period

    @property
    def key_period(self) -> int | None:
        """A shift of the key alone that changes nothing at any position; None if there is none."""
        return None if self._simpler is None else self._simpler.key_period

    def moved(self, origins: Origins) -> Pattern | None:
        """The pattern that allows the pair (i, j) where this one allows (i - origin, j - origin).

        Keys before the origin are not looked at by a prefix or by global tokens; those that a pattern allows by
        distance alone stay allowed, and are hidden by padding.

        Args:
            origins: one number, or one for each batch row. Those of a tensor are not read, as a traced graph needs it.

        Returns:
            The moved pattern, or None where it cannot be written: by batch row this is known for patterns of distances,
            prefixes, spans of keys, and what `& | ~` make of them.

        >>> from regard.patterns import CausalWindow, Prefix
        >>> print((CausalWindow(4) | Prefix(2)).moved((3,)))
        causal_window(4) | key_span(3, 5)
        >>> print((CausalWindow(4) | Prefix(2)).moved((0, 3)))
        causal_window(4) | key_span((0, 3), (2, 5))
        """
        period = self.period
        if period == 1:
            return self
        if not isinstance(origins, torch.Tensor):
            # A move by whole periods changes nothing.
            moves = [origin % period if period else origin for origin in origins]
            if not any(moves):
                return self
        return self._moved(origins)

    def _moved(self, origins: Origins) -> Pattern | None:
        """What `moved` returns where the origins change the pattern."""
        structure = self.structure()
        return None if structure is self else structure.moved(origins)

    def on_lattice(self, stride: int, residue: int) -> Pattern | None:
        """The pattern among the positions `residue + stride · n`, numbered by n; None where no pattern is known."""
        if self._simpler is None:
            return None
        inner = self._simpler.on_lattice(stride, residue)
        return self.operations.from_band(inner) if isinstance(inner, Band) else inner

    def lattice_ends(self) -> set[int] | None:
        """Positions at whose residues the pattern on a lattice changes; None where each residue has its own."""
        band = self.band()
        if band is None:
            return None
        return {end for end in (band.start, band.stop) if end is not None}

    # The pairs as a tensor, a number, tiles and a drawing.

    def dense(
        self, q_len: int, k_len: int, *, q_start: int | torch.Tensor | None = None
    ) -> torch.Tensor:
        """Every pair as booleans, True = may look.

        Args:
            q_len: number of queries.
            k_len: number of keys.
            q_start: position of the first query; by default the last query is aligned with the last key.

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
        return self.operations.count(self, *check_sizes(q_len, k_len), starts_of(q_start))

    def tiles(self, q_len: int, k_len: int, tile: int, *, q_start: int | None = None) -> Any:
        """Which tiles of `tile` x `tile` pairs are empty, partial or full, without a dense mask.

        Returns:
            A `regard.patterns.tiles.Tiles`.

        >>> from regard.patterns import Causal
        >>> Causal().tiles(4, 4, 2).states().tolist()  # 0 empty, 1 partial, 2 full
        [[1, 0], [2, 1]]
        """
        return self.operations.tiles(self, *check_sizes(q_len, k_len), tile, start_of(q_start))

    def draw(
        self,
        q_len: int = 16,
        k_len: int | None = None,
        *,
        q_start: int | None = None,
        plain: bool | None = None,
    ) -> str:
        """The pattern as text with one line for each query.

        Squares stand for pairs that are allowed, dots for the others. Where standard output cannot write squares, they
        are drawn as #, so that the text can be printed everywhere; `plain=True` always does so, `plain=False` never.

        >>> from regard.patterns import Causal
        >>> print(Causal().draw(2, plain=True))
        causal: 3 of 4 pairs
            0 1
          0 # .
          1 # #
        """
        sizes = check_sizes(q_len, q_len if k_len is None else k_len)
        return self.operations.draw(self, *sizes, q_start=start_of(q_start), plain=plain)

    # Operators.

    def __and__(self, other: Pattern | str) -> Pattern:
        return _joined(self.operations.both, self, other)

    def __rand__(self, other: str) -> Pattern:
        return _joined(self.operations.both, other, self)

    def __or__(self, other: Pattern | str) -> Pattern:
        return _joined(self.operations.either, self, other)

    def __ror__(self, other: str) -> Pattern:
        return _joined(self.operations.either, other, self)

    def __invert__(self) -> Pattern:
        return shallow(self.operations.negate(self))

    def __bool__(self) -> bool:
        raise ArgumentError(
            f"the pattern {self} is neither true nor false, which `and`, `or`, `not` and `if` ask for; join patterns "
            f"with & | ~, and ask `is None` whether there is one"
        )


def truth_of(pattern: Pattern, q_pos: torch.Tensor, k_pos: torch.Tensor) -> torch.Tensor:
    """What `allows` returns, which has to be booleans."""
    return checked_truth(f"{type(pattern).__name__}.allows", pattern.allows(q_pos, k_pos))


def checked_truth(name: str, allowed: Any) -> torch.Tensor:
    """What a function of positions returned, which has to be booleans; an additive mask, for one, is refused."""
    if not isinstance(allowed, torch.Tensor) or allowed.dtype != torch.bool:
        kind = allowed.dtype if isinstance(allowed, torch.Tensor) else type(allowed).__name__
        raise ArgumentError(f"{name} returned {kind}; it needs booleans, True = may look")
    return allowed


def _joined(join: Callable[..., Pattern], left: Pattern | str, right: Pattern | str) -> Pattern:
    """Both or either of two patterns, of which one may be given as its text."""
    if not (isinstance(left, Pattern | str) and isinstance(right, Pattern | str)):
        return NotImplemented
    as_pattern = Pattern.operations.as_pattern
    return shallow(join(as_pattern(left), as_pattern(right)))


def shallow(pattern: Pattern) -> Pattern:
    """The pattern; an ArgumentError if it has more levels of patterns than a text may have."""
    if pattern.levels > MOST_LEVELS:
        raise ArgumentError(
            f"a pattern of {pattern.levels} levels of patterns inside each other; {MOST_LEVELS} are the most, so join "
            f"more parts by one sign instead of nesting them"
        )
    return pattern


def _of_any(name: str) -> Any:
    return property(lambda self: any(getattr(part, name) for part in self.made_of()))


def _of_all(name: str) -> Any:
    return property(lambda self: all(getattr(part, name) for part in self.made_of()))


class Compound(Pattern, enrol=False):
    """A pattern made of other patterns."""

    def made_of(self) -> tuple[Pattern, ...]:
        raise NotImplementedError(f"{type(self).__name__} does not define what it is made of")

    query_free = _of_all("query_free")
    compares_positions = _of_any("compares_positions")
    by_value = _of_all("by_value")
    by_numbers = _of_all("by_numbers")
    by_length = _of_any("by_length")
    of_one_call = _of_any("of_one_call")
    takes_cache = _of_all("takes_cache")
    structured = _of_all("structured")
    varies_by_head = _of_any("varies_by_head")
    varies_by_row = _of_any("varies_by_row")

    @property
    def levels(self) -> int:  # type: ignore[override]
        levels = self.__dict__.get("_levels")
        if levels is None:
            levels = 1 + max(part.levels for part in self.made_of())
            object.__setattr__(self, "_levels", levels)
        return levels

    @property
    def heads(self) -> int | None:
        return next((part.heads for part in self.made_of() if part.heads), None)

    @property
    def batch_rows(self) -> int:
        return max(part.batch_rows for part in self.made_of())

    @property
    def period(self) -> int | None:
        return _common_period([part.period for part in self.made_of()])

    @property
    def key_period(self) -> int | None:
        return _common_period([part.key_period for part in self.made_of()])

    def _moved(self, origins: Origins) -> Pattern | None:
        parts = []
        for part in self.made_of():  # in a loop, which the compiler follows
            moved = part.moved(origins)
            if moved is None:
                return None
            parts.append(moved)
        following = iter(parts)  # `mapped` visits the parts in the order of `made_of`
        return self.mapped(lambda part: next(following))

    def lattice_ends(self) -> set[int] | None:
        ends: set[int] = set()
        for part in self.made_of():
            ends_of_part = part.lattice_ends()
            if ends_of_part is None:
                return None
            ends |= ends_of_part
        return ends

    def check(self, batch: int, heads: int, q_len: int, k_len: int) -> None:
        for part in self.made_of():
            part.check(batch, heads, q_len, k_len)


class AnyOf(Compound, enrol=False):
    """A pattern in which a query may look at a key if one part allows it: any part, or the one for its head."""

    def key_range(self, first: int, last: int, k_len: int) -> range:
        ranges = [part.key_range(first, last, k_len) for part in self.made_of()]
        ranges = [keys for keys in ranges if keys]
        if not ranges:
            return range(0)
        return range(min(keys.start for keys in ranges), max(keys.stop for keys in ranges))

    def reach(self, layers: int = 1) -> Reach:
        """The parts of one layer feed all of the next, so the farthest one decides."""
        farthest = reduce(Reach.farther, (part.reach() for part in self.made_of()))
        return farthest.stacked(whole("layers", layers, 1))


def _common_period(periods: list[int | None]) -> int | None:
    """The shortest period of them all; None if one has none."""
    if None in periods:
        return None
    return lcm(*filter(None, periods))
