"""The masks of transformers as patterns.

transformers composes a mask from functions of positions. `regard_mask` reads these functions back and returns a
`PatternMask`, a tensor that holds a pattern and stores no pairs. An unknown function gives the exact dense mask.

To the code of a model such a mask is the mask of eager attention, whose numbers are added to scores: 0 where a query
may look at a key, the most negative number elsewhere. So whatever a model computes with it gives eager's numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers import masking_utils as theirs
from transformers.utils import output_capturing

from regard.errors import UnsupportedError
from regard.integrations.transformers.reading import (
    UnknownMaskError,
    joined,
    padding_of,
    pattern_of,
    read_once,
    traced_mask,
)
from regard.integrations.transformers.sharing import Shared, shared_now
from regard.patterns import Explicit, Pattern

__all__ = ["LOOKUP", "NO_WEIGHTS", "PatternMask", "refuse_collecting", "regard_mask"]

LOOKUP = "ALL_ATTENTION_FUNCTIONS"  # what a module reads that calls registered attention
NO_WEIGHTS = (
    "the model was asked for output_attentions=True, and regard's attention stores no weights; leave it out and "
    "collect them with: with observe(model, 'weights') as observed: ..."
)
COMPUTING: set[str] = (
    set()
)  # types of models whose own code computed with a mask, as `attach` sees; graphs give it numbers
_collector: Any = getattr(output_capturing, "_active_collector", None)
Function = Any  # of transformers: from batch row, head, query and key to True or False


class PatternMask(torch.Tensor):
    """A mask of numbers (batch, 1, q_len, k_len) that holds a pattern instead of pairs.

    Models hand it on like any other mask: 0 for allowed pairs, the most negative number for others. An operation that
    needs its pairs writes them out once, and `written` then says so. Cutting its rows and its last axis, and moving it
    to its own device and dtype, keep the pattern.
    """

    pattern: Pattern
    q_start: int
    reason: str | None  # why it could not be read, if the pattern is Explicit for this reason
    sizes: tuple[int, ...]  # its shape, read without the time of an operation on a subclass of Tensor
    kind: torch.dtype  # of its numbers
    refused: str | None = None  # why the code of the model may not compute with it
    model: str | None = None  # the type of the model that made it
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
        dtype: torch.dtype = torch.float32,
    ) -> PatternMask:
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(
        self,
        pattern: Pattern,
        q_start: int,
        shape: tuple[int, ...],
        device: torch.device,
        dense: Callable[[], torch.Tensor],
        reason: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.pattern, self.q_start, self.reason, self.plans, self.kind = pattern, q_start, reason, {}, dtype
        self.sizes, self._dense, self._pairs = shape, dense, None
        self.begin, self.padding, self.dropped = q_start, (None, 0), range(0)

    @property
    def written(self) -> bool:
        """Whether the pairs were written out."""
        return self._pairs is not None

    @property
    def origins(self) -> tuple[int, ...]:
        """The first live key of all batch rows, or of each; below 0 where a cache dropped keys before the first one."""
        live, cut = self.padding
        if live is None:
            return (-cut,)
        first = tuple((live.int().argmax(-1) - cut).tolist())
        return first[:1] if len(set(first)) == 1 else first

    def pairs(self) -> torch.Tensor:
        """The allowed pairs as an ordinary tensor of booleans; the same one in every call."""
        if self._pairs is None:
            self._pairs = self._dense()
        return self._pairs

    def numbers(self) -> torch.Tensor:
        """The mask as eager attention adds it.

        Raises:
            UnsupportedError: the model computes attention in its own code, so regard would never be called.
        """
        if self.refused is not None:
            raise UnsupportedError(self.refused)
        if self.model is not None:
            COMPUTING.add(self.model)
        pairs = self.pairs()
        return torch.where(pairs, torch.zeros((), dtype=self.kind, device=pairs.device), torch.finfo(self.kind).min)

    def cut(self, keys: int, first: int = 0) -> PatternMask:
        """The mask of the first keys alone, without the first queries."""
        if keys >= self.sizes[-1] and not first:
            return self
        keys, rows = min(keys, self.sizes[-1]), self.sizes[2] - first
        cut = self._like((*self.sizes[:2], rows, keys), self.q_start + first, lambda: self.pairs()[..., first:, :keys])
        cut.begin, cut.dropped = self.begin + first, self.dropped
        if self.pattern.of_one_call:
            cut.pattern = self.pattern.of_queries(range(first, self.sizes[2]), keys)
            cut.q_start = self.q_start
        return cut

    def without(self, dropped: range) -> PatternMask:
        """The mask after these keys were dropped; columns are renumbered, and the same pairs stay allowed."""

        def dense() -> torch.Tensor:
            pairs = self.pairs()
            return torch.cat((pairs[..., : dropped.start], pairs[..., dropped.stop :]), -1)

        kept = self._like((*self.sizes[:-1], self.sizes[-1] - len(dropped)), self.q_start - len(dropped), dense)
        kept.begin, kept.dropped = self.begin - len(dropped), dropped
        return kept

    def _like(self, shape: tuple[int, ...], q_start: int, dense: Callable[[], torch.Tensor]) -> PatternMask:
        other = PatternMask(self.pattern, q_start, shape, self.device, dense, self.reason, self.kind)
        other.padding, other.refused, other.model = self.padding, self.refused, self.model
        return other

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ATTRIBUTES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
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
        return self.numbers().__reduce_ex__(proto)

    def __deepcopy__(self, memo: dict[int, Any]) -> PatternMask:
        return self


def _written(values: Any) -> Any:
    return tree_map(lambda x: x.numbers() if isinstance(x, PatternMask) else x, values)


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
_SAME = {torch.Tensor.detach, torch.detach, torch.Tensor.contiguous, torch.Tensor.requires_grad_}
_WHOLE = slice(None)


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
        return mask if same and not strange and all(x == mask.kind for x in dtypes) else None
    if func is torch.Tensor.__getitem__:
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        if index and index[0] is ...:
            index = (_WHOLE,) * (5 - len(index)) + index[1:]
        index += (_WHOLE,) * (4 - len(index))
        if all(isinstance(one, slice) and one.step in (None, 1) for one in index):
            rows, keys = (part.indices(size) for part, size in zip(index[2:], mask.sizes[2:], strict=True))
            whole = index[:2] == (_WHOLE, _WHOLE) and rows[1] == mask.sizes[2] > rows[0] and not keys[0]
            return mask.cut(keys[1], rows[0]) if whole else None
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
    dtype: torch.dtype = torch.float32,
    **others: Any,
) -> torch.Tensor | None:
    """The mask function that is registered with transformers' AttentionMaskInterface.

    Args:
        batch_size, q_length, kv_length, q_offset, kv_offset: sizes, and positions of the first query and key.
        mask_function: what the model composed; see `transformers.masking_utils`.
        attention_mask: live keys, (batch, length), or None.
        use_vmap: whether mask_function takes one pair at a time.
        device, dtype: where the mask would be, and the dtype of its numbers.

    Returns:
        A `PatternMask`. Inside torch.compile a `TracedMask`, or the tensor or None that eager attention would get
        where the graph cannot know the mask.

    Raises:
        UnsupportedError: the model was asked for output_attentions=True.
    """
    given: dict[str, Any] = {
        "batch_size": batch_size, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset,
        "kv_offset": kv_offset, "mask_function": mask_function, "attention_mask": attention_mask,
        "use_vmap": use_vmap, "device": device,
    }  # fmt: skip
    shared, config = shared_now(), others.get("config")
    if torch.compiler.is_compiling():
        if getattr(config, "model_type", None) in COMPUTING:
            return theirs.eager_mask(**given, **others, dtype=dtype)
        return traced_mask(given, others | {"dtype": dtype})
    refuse_collecting()
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
        mask = PatternMask(Explicit(pairs), 0, shape, place, lambda: pairs, str(unknown), dtype)
        mask.pairs()
        mask.refused, mask.model = _own_code(config), getattr(config, "model_type", None)
        mask.begin, mask.padding = int(q_offset) - kv_offset, (attention_mask, kv_offset)
        return mask
    if attention_mask is not None:
        live = padding_of({"padding_mask": attention_mask}, range(kv_offset, kv_offset + kv_length))
        pattern = joined(pattern, live) if pattern.by_value and live.by_value else (pattern & live).canonical()
    mask = PatternMask(pattern, int(q_offset) - kv_offset, shape, place, dense, dtype=dtype)
    mask.padding, mask.refused = (attention_mask, kv_offset), _own_code(config)
    mask.model = getattr(config, "model_type", None)
    if shared is not None:
        shared.check_mask(pattern, mask.q_start, kv_length)
        mask.shared = shared
    return mask


def _own_code(config: Any) -> str | None:
    """Why a model may not compute with its mask: none of its modules calls registered attention. None if some do."""
    code = sys.modules.get(type(config).__module__.replace(".configuration_", ".modeling_"))
    if code is None or config is None or hasattr(code, LOOKUP) or ".modeling_" not in code.__name__:
        return None
    return (
        f"the code of a {config.model_type} model computes with this mask itself and never calls registered attention, "
        f"so regard would not be called; load it without attn_implementation='regard' and give it to attach(model), "
        f"which says what can be done"
    )


def refuse_collecting() -> None:
    """Raise if the running forward pass of a model collects the weights of its attention."""
    collected = None if _collector is None else _collector.get()
    if collected is not None and any(key.endswith("attentions") for key in collected):
        raise UnsupportedError(NO_WEIGHTS)
