"""The mask functions of transformers read back as patterns.

A function is recognised by its code, and its meaning is compared with that of our pattern. One that holds numbers only
is read once: while decoding, a model composes the same one for each token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache, reduce
from operator import and_, or_
from types import CellType, FunctionType
from typing import Any

import torch
from transformers import masking_utils as theirs

from regard.patterns import Causal, Full, KeyMask, KeySpan, Pattern, SameBlock, SameDocument
from regard.patterns.bands import Diagonals

__all__ = [
    "Function",
    "UnknownMaskError",
    "joined",
    "live_keys",
    "padding_of",
    "pattern_of",
    "read_once",
]

Function = Any  # of transformers: from batch row, head, query and key to True or False
KEPT = 256
_patterns: dict[Any, Pattern] = {}


class UnknownMaskError(Exception):
    """A mask function that cannot be read as a pattern."""


def read_once(function: Function, keys: range) -> Pattern:
    """The canonical pattern of a mask function, as `pattern_of`; functions of equal code and numbers share it."""
    name = _numbers_of(function)
    pattern = None if name is None else _patterns.get(name)
    if pattern is None:
        pattern = pattern_of(function, keys).canonical()
        if name is not None and len(_patterns) < KEPT:
            _patterns[name] = pattern
    return pattern


@lru_cache(KEPT)
def joined(pattern: Pattern, live: Pattern) -> Pattern:
    """Both patterns in the canonical form; both are values."""
    return (pattern & live).canonical()


def _numbers_of(function: Any) -> tuple[Any, ...] | None:
    """The code of a function and the numbers and functions that it holds; None if it holds a tensor."""
    held: list[Any] = [function.__code__]
    for cell in function.__closure__ or ():
        value = cell.cell_contents
        for one in value if isinstance(value, tuple) else (value,):
            name = (
                one
                if isinstance(one, int)
                else _numbers_of(one)
                if hasattr(one, "__code__")
                else None
            )
            if name is None:
                return None
            held.append(name)
    return tuple(held)


def pattern_of(function: Function, keys: range, within_documents: bool = False) -> Pattern:
    """The pattern of a mask function, with positions counted from the first of these keys.

    Raises:
        UnknownMaskError: a function, or a part of one, that is not known.
    """
    if (window := _own_window(function)) is not None:
        return window
    kind, held = _parts(function)
    if kind == "and":
        parts = held["mask_functions"]
        apart = within_documents or any(_kind_of(part) == "packed" for part in parts)
        return reduce(and_, [pattern_of(part, keys, apart) for part in parts])
    if kind == "or":
        return reduce(
            or_, [pattern_of(part, keys, within_documents) for part in held["mask_functions"]]
        )
    if kind == "offset":
        raise UnknownMaskError("positions that are moved by an offset of their own")
    if kind == "remap":
        return _remapped(held["mask_function"], held["position_ids"], keys, within_documents)
    return _READERS[kind](held, keys)


def _remapped(
    function: Function, position_ids: torch.Tensor, keys: range, within_documents: bool
) -> Pattern:
    """The pattern of a function of the positions within documents.

    Beside the mask that keeps documents apart, all positions that are compared ascend one by one, so distances are
    those of the packed row. Chunks are counted from the start of each document.
    """
    if not within_documents or keys.start:
        raise UnknownMaskError("positions that are not those of packed documents")
    kind, held = _parts(function)
    if kind in ("and", "or"):
        patterns = [_remapped(part, position_ids, keys, True) for part in held["mask_functions"]]
        return reduce(and_ if kind == "and" else or_, patterns)
    if kind in ("causal", "full", "back", "around"):
        return _READERS[kind](held, keys)
    if kind == "chunk":
        return SameDocument(
            (position_ids - held["left_padding"][:, None].to(position_ids.device))
            // held["chunk_size"]
        )
    raise UnknownMaskError(f"{_name(function)} within packed documents")


# The names that windows of a model's own code hold, and how far back and ahead they may reach for a size w.
HELD = {"is_causal", "sliding_window"}
REACHES: tuple[Callable[[int], tuple[int, int]], ...] = (
    lambda w: (w - 1, 0),
    lambda w: ((w + 1) // 2 - 1, w // 2),  # T5Gemma 2
    lambda w: (w - 1, w - 1),
    lambda w: (w, w),
    lambda w: (w // 2, w // 2),
)
_reaches: dict[Any, Callable[[int], tuple[int, int]] | None] = {}  # by code and direction


def _own_window(function: Function) -> Pattern | None:
    """The window of a mask function of a model's own code that holds a size and nothing else; None for others."""
    code = getattr(function, "__code__", None)
    if (
        code is None
        or "sliding_window" not in code.co_freevars
        or not HELD.issuperset(code.co_freevars)
    ):
        return None
    held = _held(function)
    size = held["sliding_window"]
    causal = held.get("is_causal")
    if (
        _kind_of(function) is not None
        or type(size) is not int
        or type(causal) not in (bool, type(None))
    ):
        return None
    name = code, causal
    if name not in _reaches:
        _reaches[name] = next(
            (reach for reach in REACHES if _reaches_so(function, causal, reach)), None
        )
    reach = _reaches[name]
    return None if reach is None else Diagonals(*reach(size))


def _reaches_so(function: Function, causal: Any, reach: Callable[[int], tuple[int, int]]) -> bool:
    """Whether a window reaches so for any size: it is made anew with small sizes and compared pair by pair."""
    code = function.__code__
    at = torch.arange(12)
    for size in range(1, 8):
        values = {"sliding_window": size, "is_causal": causal}
        cells = tuple(CellType(values[one]) for one in code.co_freevars)
        small = FunctionType(code, function.__globals__, code.co_name, function.__defaults__, cells)
        try:
            pairs = small(at[:1], at[:1], at[:, None], at[None])
        except (TypeError, ValueError, RuntimeError):
            return False
        if not isinstance(pairs, torch.Tensor) or not torch.equal(
            pairs, Diagonals(*reach(size)).dense(12, 12)
        ):
            return False
    return True


def _kind_of(function: Function) -> str | None:
    return _kinds().get(getattr(function, "__code__", None))


def _parts(function: Function) -> tuple[str, dict[str, Any]]:
    """The kind of a mask function, and what it holds."""
    if (kind := _kind_of(function)) is None:
        raise UnknownMaskError(_name(function))
    return kind, _held(function)


def _held(function: Function) -> dict[str, Any]:
    """What a function holds in its closure, by name."""
    cells = function.__closure__ or ()
    return dict(
        zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True)
    )


def _name(function: Function) -> str:
    return f"the mask function {getattr(function, '__qualname__', repr(function))}"


def live_keys(live: torch.Tensor) -> Pattern:
    """The pattern of padding, (batch, keys) with True for a live key.

    >>> live_keys(torch.tensor([[True, True], [False, True]])).dense(1, 2).flatten().int().tolist()
    [1, 1, 0, 1]
    """
    count = live.sum(-1)
    length = live.shape[1]
    if bool((count == length).all()):
        return Full()
    start = live.int().argmax(-1)
    at = torch.arange(length, device=live.device)
    if not torch.equal(live, (at >= start[:, None]) & (at < (start + count)[:, None])):
        return KeyMask(live)
    starts, stops = start.tolist(), (start + count).tolist()  # values, so that plans are kept
    # left padding: the same pattern for every length of a cache
    open_ended = all(stop == length for stop in stops)
    same = len({*zip(starts, stops, strict=True)}) == 1
    stop = None if open_ended else stops[0] if same else stops
    return KeySpan(starts[0] if same else starts, stop)


def _documents(ids: torch.Tensor, keys: range) -> Pattern:
    if ids.shape[1] < keys.stop:
        raise UnknownMaskError(f"documents of {ids.shape[1]} positions beside {keys.stop} keys")
    return SameDocument(ids[:, keys.start : keys.stop].to(torch.int64))


def _blocks(held: dict[str, Any], keys: range) -> Pattern:
    ids = held["block_sequence_ids"]
    return _documents(ids, keys) & KeyMask(ids[:, keys.start : keys.stop] >= 0)


def _chunks(held: dict[str, Any], keys: range) -> Pattern:
    left = held["left_padding"] - keys.start
    return SameBlock(
        held["chunk_size"], int(left[0]) if bool((left == left[0]).all()) else left.to(torch.int64)
    )


def padding_of(held: dict[str, Any], keys: range) -> Pattern:
    """The visible keys of a padding mask."""
    live: Any = theirs.prepare_padding_mask(held["padding_mask"], len(keys), keys.start)
    return live_keys(live[:, keys.start : keys.stop])


_READERS: dict[str, Callable[[dict[str, Any], range], Pattern]] = {
    "causal": lambda held, keys: Causal(),
    "full": lambda held, keys: Full(),
    "back": lambda held, keys: Diagonals(back=held["sliding_window"] - 1),
    "around": lambda held, keys: Diagonals(
        back=held["sliding_window"], ahead=held["sliding_window"]
    ),
    "chunk": _chunks,
    "block": _blocks,
    "padding": padding_of,
    "packed": lambda held, keys: _documents(held["packed_sequence_mask"], keys),
}


@cache
def _kinds() -> dict[Any, str]:
    """The kind of each closure of transformers by its code.

    A closure is made and its meaning is compared with that of our pattern; one that differs in the installed version
    of transformers stays unknown, and so do those that a version does not have.
    """
    anything = theirs.causal_mask_function
    ids = torch.tensor([[0, 0, 1, 1, 1, 2], [3, 3, 3, -1, 4, 4]])
    makers: dict[str, Callable[[], Function]] = {
        "and": lambda: theirs.and_masks(anything),
        "or": lambda: theirs.or_masks(anything),
        "offset": lambda: theirs.add_offsets_to_mask_function(anything, 0, 0),
        "remap": lambda: theirs.remap_positions_for_packed_sequence(anything, ids),
        "causal": lambda: theirs.causal_mask_function,
        "full": lambda: theirs.bidirectional_mask_function,
        "back": lambda: theirs.sliding_window_overlay(3),
        "around": lambda: theirs.sliding_window_bidirectional_overlay(2),
        "chunk": lambda: theirs.chunked_overlay(2, torch.tensor([0, 1])),
        "block": lambda: theirs.blockwise_overlay(ids),
        "padding": lambda: theirs.padding_mask_function(ids > 0),
        "packed": lambda: theirs.packed_sequence_mask_function(ids),
    }
    kinds: dict[Any, str] = {}
    for kind, make in makers.items():
        try:
            function = make()
            if kind not in _READERS or _is_meant(function, kind, ids.shape[1]):
                kinds[function.__code__] = kind
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return kinds


def _is_meant(function: Function, kind: str, length: int) -> bool:
    """Whether a mask function and our pattern of this kind allow the same pairs."""
    rows = torch.arange(2)[:, None, None, None]
    at = torch.arange(length)
    pairs = function(rows, rows[:1] * 0, at[None, None, :, None], at[None, None, None, :])
    ours = _READERS[kind](_held(function), range(length)).dense(length, length)
    shape = (2, 1, length, length)
    return torch.equal(pairs.expand(shape), ours.expand(shape))
