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
    "UnreadMaskWarning",
    "joined",
    "unpadded_keys",
    "padding_of",
    "pattern_of",
    "read_once",
]

Function = Any  # of transformers: from batch row, head, query and key to True or False
MOST_KEPT = 256  # patterns
_patterns: dict[Any, Pattern] = {}


class UnknownMaskError(Exception):
    """A mask function that cannot be read as a pattern."""


class UnreadMaskWarning(UserWarning):
    """A mask was not recognised, so the exact dense mask is used."""


def read_once(function: Function, keys: range) -> Pattern:
    """The canonical pattern of a mask function, as `pattern_of`; functions of equal code and numbers share it."""
    key = _code_and_numbers(function)
    pattern = None if key is None else _patterns.get(key)
    if pattern is None:
        pattern = pattern_of(function, keys).canonical()
        if key is not None and len(_patterns) < MOST_KEPT:
            _patterns[key] = pattern
    return pattern


@lru_cache(MOST_KEPT)
def joined(pattern: Pattern, padding: Pattern) -> Pattern:
    """Both patterns in the canonical form; both are values."""
    return (pattern & padding).canonical()


def _code_and_numbers(function: Any) -> tuple[Any, ...] | None:
    """The code of a function and the numbers and functions that it holds; None if it holds a tensor."""
    numbers: list[Any] = [function.__code__]
    for cell in function.__closure__ or ():
        contents = cell.cell_contents
        for value in contents if isinstance(contents, tuple) else (contents,):
            number = value if isinstance(value, int) else None
            if hasattr(value, "__code__"):
                number = _code_and_numbers(value)
            if number is None:
                return None
            numbers.append(number)
    return tuple(numbers)


def pattern_of(function: Function, keys: range, within_documents: bool = False) -> Pattern:
    """The pattern of a mask function, with positions counted from the first of these keys.

    Raises:
        UnknownMaskError: a function, or a part of one, that is not known.
    """
    window = _own_window(function)
    if window is not None:
        return window
    kind, closure = _parts(function)
    if kind == "and":
        parts = closure["mask_functions"]
        within_documents |= any(_kind_of(part) == "packed" for part in parts)
        return reduce(and_, [pattern_of(part, keys, within_documents) for part in parts])
    if kind == "or":
        parts = closure["mask_functions"]
        return reduce(or_, [pattern_of(part, keys, within_documents) for part in parts])
    if kind == "offset":
        raise UnknownMaskError("positions that are moved by an offset of their own")
    if kind == "remap":
        if not within_documents or keys.start:
            raise UnknownMaskError("positions that are not those of packed documents")
        return _remapped(closure["mask_function"], closure["position_ids"], keys)
    return _READERS[kind](closure, keys)


def _remapped(function: Function, position_ids: torch.Tensor, keys: range) -> Pattern:
    """The pattern of a function of the positions within documents.

    Beside the mask that keeps documents apart, all positions that are compared ascend one by one, so distances are
    those of the packed row. Chunks are counted from the start of each document.
    """
    kind, closure = _parts(function)
    if kind in ("and", "or"):
        parts = [_remapped(part, position_ids, keys) for part in closure["mask_functions"]]
        return reduce(and_ if kind == "and" else or_, parts)
    if kind in ("causal", "full", "back", "around"):
        return _READERS[kind](closure, keys)
    if kind == "chunk":
        padding = closure["left_padding"][:, None].to(position_ids.device)
        return SameDocument((position_ids - padding) // closure["chunk_size"])
    raise UnknownMaskError(f"{_name(function)} within packed documents")


# The names that windows of a model's own code hold, and how far back and ahead they may reach for a size w.
WINDOW_NAMES = {"is_causal", "sliding_window"}
Reach = Callable[[int], tuple[int, int]]
REACHES: tuple[Reach, ...] = (
    lambda w: (w - 1, 0),
    lambda w: ((w + 1) // 2 - 1, w // 2),  # T5Gemma 2
    lambda w: (w - 1, w - 1),
    lambda w: (w, w),
    lambda w: (w // 2, w // 2),
)
LENGTH = 12  # positions on which windows are compared, of sizes 1 to 7
_reaches: dict[Any, Reach | None] = {}  # by code and direction


def _own_window(function: Function) -> Pattern | None:
    """The window of a mask function of a model's own code that holds a size and nothing else; None for others."""
    code = getattr(function, "__code__", None)
    names = () if code is None else code.co_freevars
    if "sliding_window" not in names or not WINDOW_NAMES.issuperset(names):
        return None
    closure = _closure_of(function)
    size = closure["sliding_window"]
    is_causal = closure.get("is_causal")
    if type(size) is not int or type(is_causal) not in (bool, type(None)):
        return None
    if _kind_of(function) is not None:
        return None

    key = code, is_causal
    if key not in _reaches:
        _reaches[key] = _reach_of(function, is_causal)
    reach = _reaches[key]
    return None if reach is None else Diagonals(*reach(size))


def _reach_of(function: Function, is_causal: bool | None) -> Reach | None:
    """How far a window reaches for any size: it is compared with each known reach, pair by pair, for small sizes."""
    for reach in REACHES:
        if all(_reaches_so(function, size, is_causal, reach(size)) for size in range(1, 8)):
            return reach
    return None


def _reaches_so(
    function: Function, size: int, is_causal: bool | None, reach: tuple[int, int]
) -> bool:
    """Whether a window reaches so far back and ahead when it is made again with this size."""
    code = function.__code__
    values = {"sliding_window": size, "is_causal": is_causal}
    cells = tuple(CellType(values[name]) for name in code.co_freevars)
    window = FunctionType(code, function.__globals__, code.co_name, function.__defaults__, cells)
    positions = torch.arange(LENGTH)
    first = positions[:1]
    try:
        pairs = window(first, first, positions[:, None], positions[None])
    except (TypeError, ValueError, RuntimeError):
        return False
    if not isinstance(pairs, torch.Tensor):
        return False
    return torch.equal(pairs, Diagonals(*reach).dense(LENGTH, LENGTH))


def _kind_of(function: Function) -> str | None:
    return _kinds().get(getattr(function, "__code__", None))


def _parts(function: Function) -> tuple[str, dict[str, Any]]:
    """The kind of a mask function, and what it holds."""
    kind = _kind_of(function)
    if kind is None:
        raise UnknownMaskError(_name(function))
    return kind, _closure_of(function)


def _closure_of(function: Function) -> dict[str, Any]:
    """What a function holds in its closure, by name."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    return dict(zip(function.__code__.co_freevars, values, strict=True))


def _name(function: Function) -> str:
    return f"the mask function {getattr(function, '__qualname__', repr(function))}"


def unpadded_keys(unpadded: torch.Tensor) -> Pattern:
    """The pattern of padding, (batch, keys) with True for an unpadded key.

    >>> unpadded_keys(torch.tensor([[True, True], [False, True]])).dense(1, 2).flatten().int().tolist()
    [1, 1, 0, 1]
    """
    counts = unpadded.sum(-1)
    length = unpadded.shape[1]
    if bool((counts == length).all()):
        return Full()
    starts = unpadded.int().argmax(-1)
    stops = starts + counts
    keys = torch.arange(length, device=unpadded.device)
    if not torch.equal(unpadded, (keys >= starts[:, None]) & (keys < stops[:, None])):
        return KeyMask(unpadded)
    return _span(starts.tolist(), stops.tolist(), length)


def _span(starts: list[int], stops: list[int], length: int) -> Pattern:
    """The span of allowed keys of each row, as numbers: patterns with equal numbers are equal and share a plan."""
    start: int | list[int] = starts
    stop: int | list[int] = stops
    if len({*zip(starts, stops, strict=True)}) == 1:
        start = starts[0]
        stop = stops[0]
    if all(end == length for end in stops):
        return KeySpan(start, None)  # padded on the left: equal for every length of a cache
    return KeySpan(start, stop)


def _documents(ids: torch.Tensor, keys: range) -> Pattern:
    if ids.shape[1] < keys.stop:
        raise UnknownMaskError(f"documents of {ids.shape[1]} positions beside {keys.stop} keys")
    return SameDocument(ids[:, keys.start : keys.stop].to(torch.int64))


def _blocks(closure: dict[str, Any], keys: range) -> Pattern:
    ids = closure["block_sequence_ids"]
    return _documents(ids, keys) & KeyMask(ids[:, keys.start : keys.stop] >= 0)


def _chunks(closure: dict[str, Any], keys: range) -> Pattern:
    padding = closure["left_padding"] - keys.start
    is_alike = bool((padding == padding[0]).all())
    offset = int(padding[0]) if is_alike else padding.to(torch.int64)
    return SameBlock(closure["chunk_size"], offset)


def _around(closure: dict[str, Any], keys: range) -> Pattern:
    size = closure["sliding_window"]
    return Diagonals(back=size, ahead=size)


def padding_of(closure: dict[str, Any], keys: range) -> Pattern:
    """The visible keys of a padding mask."""
    unpadded: Any = theirs.prepare_padding_mask(closure["padding_mask"], len(keys), keys.start)
    return unpadded_keys(unpadded[:, keys.start : keys.stop])


_READERS: dict[str, Callable[[dict[str, Any], range], Pattern]] = {
    "causal": lambda closure, keys: Causal(),
    "full": lambda closure, keys: Full(),
    "back": lambda closure, keys: Diagonals(back=closure["sliding_window"] - 1),
    "around": _around,
    "chunk": _chunks,
    "block": _blocks,
    "padding": padding_of,
    "packed": lambda closure, keys: _documents(closure["packed_sequence_mask"], keys),
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
    head = torch.zeros_like(rows[:1])
    positions = torch.arange(length)
    pairs = function(rows, head, positions[None, None, :, None], positions[None, None, None])
    ours = _READERS[kind](_closure_of(function), range(length)).dense(length, length)
    shape = (2, 1, length, length)
    return torch.equal(pairs.expand(shape), ours.expand(shape))
