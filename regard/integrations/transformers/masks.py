"""The masks of transformers as patterns.

transformers composes a mask from functions of positions. `regard_mask` reads these functions back and returns a
`PatternMask`, a tensor that holds a pattern and stores no pairs. An unknown function gives the exact dense mask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers import masking_utils as theirs

from regard.errors import UnsupportedError
from regard.integrations.transformers.reading import UnknownMaskError, joined, padding_of, pattern_of, read_once
from regard.integrations.transformers.sharing import Shared, shared_now
from regard.integrations.transformers.tracing import traced_mask
from regard.patterns import Explicit, Pattern

__all__ = ["PatternMask", "regard_mask"]

Function = Any  # of transformers: from batch row, head, query and key to True or False


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
    dropped: range  # the keys that a cache left out, see `without`
    plans: dict[Any, Any]  # what computes calls with this mask, which is looked up once instead of for each layer
    shared: Shared | None = None  # the processes that share the sequence, where its queries are those of this process

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
        self.begin, self.padding, self.dropped = q_start, (None, 0), range(0)

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

    def without(self, dropped: range) -> PatternMask:
        """The mask after these keys were dropped; columns are renumbered, and the same pairs stay allowed."""

        def dense() -> torch.Tensor:
            pairs = self.pairs()
            return torch.cat((pairs[..., : dropped.start], pairs[..., dropped.stop :]), -1)

        shape = (*self.sizes[:-1], self.sizes[-1] - len(dropped))
        kept = PatternMask(self.pattern, self.q_start - len(dropped), shape, self.device, dense, self.reason)
        kept.begin, kept.padding, kept.dropped = self.begin - len(dropped), self.padding, dropped
        return kept

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
    """The mask function that is registered with transformers' AttentionMaskInterface.

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
    shared = shared_now()
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
        if shared is not None:
            shared.refuse(UnsupportedError(f"{unknown} is not known to regard, so it is not computed over processes"))
        pairs = dense()
        mask = PatternMask(Explicit(pairs), 0, shape, place, lambda: pairs, str(unknown))
        mask.pairs()
        mask.begin, mask.padding = int(q_offset) - kv_offset, (attention_mask, kv_offset)
        return mask
    if attention_mask is not None:
        live = padding_of({"padding_mask": attention_mask}, range(kv_offset, kv_offset + kv_length))
        pattern = joined(pattern, live) if pattern.by_value and live.by_value else (pattern & live).canonical()
    mask = PatternMask(pattern, int(q_offset) - kv_offset, shape, place, dense)
    mask.padding = (attention_mask, kv_offset)
    if shared is not None:
        shared.check_mask(pattern, mask.q_start, kv_length)
        mask.shared = shared
    return mask
