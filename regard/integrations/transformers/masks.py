"""The masks of transformers as patterns.

transformers composes a mask from functions of positions. `regard_mask` reads these functions back and returns a
`PatternMask`, a tensor that holds a pattern and stores no pairs. An unknown function gives the exact dense mask.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers import masking_utils as theirs

from regard.errors import UnsupportedError
from regard.integrations.transformers.known import joined, read_once
from regard.integrations.transformers.tracing import traced_mask
from regard.patterns import Causal, Diagonals, Explicit, Full, KeyMask, KeySpan, Pattern, SameBlock, SameDocument

__all__ = ["PatternMask", "regard_mask"]

Function = Any  # of transformers: from batch row, head, query and key to True or False


class UnknownMaskError(Exception):
    """A mask function that cannot be read as a pattern."""


class PatternMask(torch.Tensor):
    """A boolean mask (batch, 1, q_len, k_len) that holds a pattern instead of pairs.

    Models hand it on like any other mask. An operation that needs its pairs writes them out once, and `written` then
    says so. Cutting its last axis, and moving it to its own device and dtype, keep the pattern.
    """

    pattern: Pattern
    q_start: int
    reason: str | None  # why it could not be read, if the pattern is Explicit for this reason
    sizes: tuple[int, ...]  # its shape, read without the time of an operation on a subclass of Tensor
    _dense: Callable[[], torch.Tensor]
    _pairs: torch.Tensor | None
    begin: int  # the position of the first query, counted from the first key
    padding: tuple[torch.Tensor | None, int]  # live keys, (batch, length), and the position of the call's first key
    plans: dict[Any, Any]  # what computes calls with this mask, which is looked up once instead of for each layer

    @staticmethod
    def __new__(
        cls,
        pattern: Pattern,
        q_start: int,
        shape: tuple[int, ...],
        device: torch.device,
        dense: Callable[[], torch.Tensor],
        reason: str | None = None,
    ) -> PatternMask:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)

    def __init__(
        self,
        pattern: Pattern,
        q_start: int,
        shape: tuple[int, ...],
        device: torch.device,
        dense: Callable[[], torch.Tensor],
        reason: str | None = None,
    ) -> None:
        self.pattern, self.q_start, self.reason, self.plans = pattern, q_start, reason, {}
        self.sizes, self._dense, self._pairs = shape, dense, None
        self.begin, self.padding = q_start, (None, 0)

    @property
    def written(self) -> bool:
        """Whether the pairs were written out."""
        return self._pairs is not None

    @property
    def origins(self) -> int | tuple[int, ...]:
        """The first live key of all batch rows, or of each; below 0 where a cache dropped keys before the first one."""
        live, cut = self.padding
        if live is None:
            return -cut
        first = tuple((live.int().argmax(-1) - cut).tolist())
        return first[0] if len(set(first)) == 1 else first

    def pairs(self) -> torch.Tensor:
        """The mask as an ordinary tensor; the same one in every call."""
        if self._pairs is None:
            self._pairs = self._dense()
        return self._pairs

    def cut(self, keys: int) -> PatternMask:
        """The mask of the first keys alone."""
        if keys >= self.shape[-1]:
            return self
        shape = (*self.shape[:-1], keys)
        cut = PatternMask(self.pattern, self.q_start, shape, self.device, lambda: self.pairs()[..., :keys], self.reason)
        cut.begin, cut.padding = self.begin, self.padding
        if isinstance(self.pattern, Explicit):
            cut.pattern = Explicit(self.pattern.mask[..., :keys])
        return cut

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ATTRIBUTES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        if func in _SUMS:
            raise UnsupportedError(
                "the model's own code adds this mask to its scores, so it does not call registered attention and "
                "regard would not be asked; load it without attn_implementation='regard' and give it to attach(model)"
            )
        mask = args[0] if args else None
        if isinstance(mask, PatternMask) and (kept := _kept(func, mask, args[1:], kwargs or {})) is not None:
            return kept
        return func(*_written(args), **_written(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # ty: ignore[incompatible-method-override]
        return func(*_written(args), **_written(kwargs or {}))

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"PatternMask({self.pattern}, q_start={self.q_start}, {tuple(self.shape)})"

    def __reduce_ex__(self, proto: Any) -> Any:
        return self.pairs().__reduce_ex__(proto)

    def __deepcopy__(self, memo: dict[int, Any]) -> PatternMask:
        return self


def _written(values: Any) -> Any:
    return tree_map(lambda x: x.pairs() if isinstance(x, PatternMask) else x, values)


# What code reads from a mask without needing its pairs.
_ATTRIBUTES = {
    getattr(torch.Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "grad_fn", "layout", "is_nested",
                 "is_cpu", "is_cuda", "is_meta", "is_sparse", "is_quantized", "is_mkldnn", "grad")
} | {
    torch.Tensor.size, torch.Tensor.dim, torch.Tensor.ndimension, torch.Tensor.numel, torch.Tensor.__len__,
    torch.Tensor.is_floating_point, torch.Tensor.element_size, torch.Tensor.get_device, torch.is_tensor,
    torch.is_floating_point, torch.numel, torch.Tensor.is_complex, torch.is_complex,
}  # fmt: skip
_SAME = {
    torch.Tensor.detach, torch.detach, torch.Tensor.contiguous, torch.Tensor.bool, torch.Tensor.requires_grad_,
}  # fmt: skip
_SUMS = {
    torch.add, torch.Tensor.add, torch.Tensor.add_, torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.__iadd__,
}  # fmt: skip
_WHOLE = slice(None)
NEVER_CALL = ("longformer", "led")  # models that take a part of the mask instead of adding it


def _kept(func: Any, mask: PatternMask, args: tuple[Any, ...], options: dict[str, Any]) -> PatternMask | None:
    """The mask that an operation gives, if it keeps the pattern; None if the pairs are needed."""
    if func in _SAME:
        return mask
    if func is torch.Tensor.to:
        given = [*args, *options.values()]
        devices = [torch.device(x) for x in given if isinstance(x, str | torch.device)]
        dtypes = [x for x in given if isinstance(x, torch.dtype)]
        strange = [x for x in given if not isinstance(x, str | torch.device | torch.dtype | bool | None)]
        same = all(x.type == mask.device.type and x.index in (None, mask.device.index) for x in devices)
        return mask if same and not strange and all(x == torch.bool for x in dtypes) else None
    if func is torch.Tensor.__getitem__:
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        if len(index) > 1 and index[0] is ...:
            index = (_WHOLE,) * (mask.dim() - len(index) + 1) + index[1:]
        last = index[-1]
        whole = len(index) == mask.dim() and all(isinstance(one, slice) and one == _WHOLE for one in index[:-1])
        if whole and isinstance(last, slice) and last.start in (None, 0) and last.step in (None, 1):
            stop = mask.shape[-1] if last.stop is None else last.stop
            return mask.cut(stop) if isinstance(stop, int) and stop >= 0 else None
    return None


def regard_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Function = theirs.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **others: Any,
) -> torch.Tensor | None:
    """A mask as transformers' AttentionMaskInterface asks for it.

    Args:
        batch_size, q_length, kv_length, q_offset, kv_offset: sizes, and positions of the first query and key.
        mask_function: what the model composed; see `transformers.masking_utils`.
        attention_mask: live keys, (batch, length), or None.
        use_vmap: whether mask_function takes one pair at a time.
        device: where the mask would be.

    Returns:
        A `PatternMask`. Inside torch.compile a `TracedMask`, or the tensor or None that PyTorch's own attention would
        get where the graph cannot know the mask.
    """
    given: dict[str, Any] = {
        "batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
        "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask,
        "use_vmap": use_vmap, "device": device,
    }  # fmt: skip
    if (kind := getattr(others.get("config"), "model_type", None)) in NEVER_CALL:
        raise UnsupportedError(
            f"a {kind} model never calls registered attention, and would read this mask wrongly; load it without "
            f"attn_implementation='regard' and give it to attach(model), which says what can be done"
        )
    if torch.compiler.is_compiling():
        return traced_mask(given, others)
    never_none = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}

    def dense() -> torch.Tensor:
        pairs: Any = theirs.sdpa_mask(**given, **others | never_none)
        return pairs.expand(batch_size, 1, q_length, kv_length)

    shape, place = (batch_size, 1, q_length, kv_length), torch.device(device)
    try:
        keys = range(kv_offset, kv_offset + kv_length)
        pattern = read_once(mask_function, lambda: pattern_of(mask_function, keys))
    except UnknownMaskError as unknown:
        pairs = dense()
        mask = PatternMask(Explicit(pairs), 0, shape, place, lambda: pairs, str(unknown))
        mask.pairs()
        mask.begin, mask.padding = int(q_offset) - kv_offset, (attention_mask, kv_offset)
        return mask
    if attention_mask is not None:
        live = _padding({"padding_mask": attention_mask}, range(kv_offset, kv_offset + kv_length))
        pattern = joined(pattern, live) if pattern.by_value and live.by_value else (pattern & live).canonical()
    mask = PatternMask(pattern, int(q_offset) - kv_offset, shape, place, dense)
    mask.padding = (attention_mask, kv_offset)
    return mask


def pattern_of(function: Function, keys: range) -> Pattern:
    """The pattern of a mask function, with positions counted from the first of these keys.

    Raises:
        UnknownMaskError: a function, or a part of one, that is not known.
    """
    return _read(function, keys, within_documents=False)


def _read(function: Function, keys: range, within_documents: bool) -> Pattern:
    kind, held = _parts(function)
    if kind == "and":
        parts = held["mask_functions"]
        apart = within_documents or any(_parts(part)[0] == "packed" for part in parts)
        patterns = [_read(part, keys, apart) for part in parts]
        whole = patterns[0]
        for pattern in patterns[1:]:
            whole = whole & pattern
        return whole
    if kind == "or":
        patterns = [_read(part, keys, within_documents) for part in held["mask_functions"]]
        whole = patterns[0]
        for pattern in patterns[1:]:
            whole = whole | pattern
        return whole
    if kind == "offset":
        raise UnknownMaskError("positions that are moved by an offset of their own")
    if kind == "remap":
        return _remapped(held["mask_function"], held["position_ids"], keys, within_documents)
    return _READERS[kind](held, keys)


def _remapped(function: Function, position_ids: torch.Tensor, keys: range, within_documents: bool) -> Pattern:
    """The pattern of a function of the positions within documents.

    Beside the mask that keeps documents apart, all positions that are compared ascend one by one, so distances are
    those of the packed row. Chunks are counted from the start of each document.
    """
    if not within_documents or keys.start:
        raise UnknownMaskError("positions that are not those of packed documents")
    kind, held = _parts(function)
    if kind in ("and", "or"):
        patterns = [_remapped(part, position_ids, keys, True) for part in held["mask_functions"]]
        whole = patterns[0]
        for pattern in patterns[1:]:
            whole = whole & pattern if kind == "and" else whole | pattern
        return whole
    if kind in ("causal", "full", "back", "around"):
        return _READERS[kind](held, keys)
    if kind == "chunk":
        return SameDocument(
            (position_ids - held["left_padding"][:, None].to(position_ids.device)) // held["chunk_size"]
        )
    raise UnknownMaskError(f"{_name(function)} within packed documents")


def _parts(function: Function) -> tuple[str, dict[str, Any]]:
    """The kind of a mask function, and what it holds."""
    kind = _kinds().get(getattr(function, "__code__", None))
    if kind is None:
        raise UnknownMaskError(_name(function))
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return kind, dict(zip(names, (cell.cell_contents for cell in cells), strict=True))


def _name(function: Function) -> str:
    return f"the mask function {getattr(function, '__qualname__', repr(function))}"


def live_keys(live: torch.Tensor) -> Pattern:
    """The pattern of padding, (batch, keys) with True for a live key.

    >>> live_keys(torch.tensor([[True, True], [False, True]])).dense(1, 2).flatten().int().tolist()
    [1, 1, 0, 1]
    """
    count, length = live.sum(-1), live.shape[1]
    if bool((count == length).all()):
        return Full()
    start = live.int().argmax(-1)
    at = torch.arange(length, device=live.device)
    if not torch.equal(live, (at >= start[:, None]) & (at < (start + count)[:, None])):
        return KeyMask(live)
    starts, stops = start.tolist(), (start + count).tolist()  # values, so that plans are kept
    open_ended = all(stop == length for stop in stops)  # left padding: the same pattern for every length of a cache
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
    return SameBlock(held["chunk_size"], int(left[0]) if bool((left == left[0]).all()) else left.to(torch.int64))


def _padding(held: dict[str, Any], keys: range) -> Pattern:
    live: Any = theirs.prepare_padding_mask(held["padding_mask"], len(keys), keys.start)
    return live_keys(live[:, keys.start : keys.stop])


_READERS: dict[str, Callable[[dict[str, Any], range], Pattern]] = {
    "causal": lambda held, keys: Causal(),
    "full": lambda held, keys: Full(),
    "back": lambda held, keys: Diagonals(back=held["sliding_window"] - 1),
    "around": lambda held, keys: Diagonals(back=held["sliding_window"], ahead=held["sliding_window"]),
    "chunk": _chunks,
    "block": _blocks,
    "padding": _padding,
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
            if kind not in _READERS or _means(function, kind, ids.shape[1]):
                kinds[function.__code__] = kind
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return kinds


def _means(function: Function, kind: str, length: int) -> bool:
    """Whether a mask function and our pattern of this kind allow the same pairs."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    held = dict(zip(names, (cell.cell_contents for cell in cells), strict=True))
    rows = torch.arange(2)[:, None, None, None]
    at = torch.arange(length)
    pairs = function(rows, rows[:1] * 0, at[None, None, :, None], at[None, None, None, :])
    ours = _READERS[kind](held, range(length)).dense(length, length)
    shape = (2, 1, length, length)
    return torch.equal(pairs.expand(shape), ours.expand(shape))
