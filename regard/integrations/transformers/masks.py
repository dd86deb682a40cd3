"""The masks of transformers as patterns.

transformers composes a mask from functions of positions. `regard_mask` reads these functions back and returns a
`PatternMask`, a tensor that holds a pattern and stores no pairs. An unknown function gives the exact dense mask.

To the code of a model such a mask is the mask of eager attention, whose numbers are added to scores: 0 where a query
may look at a key, the most negative number elsewhere. So whatever a model computes with it gives eager's numbers.
Inside torch.compile it is a `TracedMask`; see `traced_masks`.
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
from regard.functional.next_layers import NextLayers
from regard.integrations.transformers.modules import LOOKUP
from regard.integrations.transformers.reading import (
    Function,
    UnknownMaskError,
    joined,
    padding_of,
    read_once,
)
from regard.integrations.transformers.sharing import SharedForward, shared_now
from regard.integrations.transformers.traced_masks import traced_mask
from regard.patterns import Explicit, Pattern, SameDocument
from regard.patterns.documents import document_ids
from regard.patterns.grid import four_axes
from regard.patterns.one_call import of_queries

__all__ = [
    "ATTRIBUTES",
    "NO_WEIGHTS",
    "PatternMask",
    "refuse_collecting",
    "regard_mask",
]

NO_WEIGHTS = (
    "the model was asked for output_attentions=True, and regard's attention stores no weights; leave it out and "
    "collect them with: with observe(model, 'weights') as observed: ..."
)
# The setting of models that halve a sequence between layers, as Informer does. A mask fits the first layer alone, so
# these models run only where eager attention gets none, because it would hide no pair.
SHORTENS = "distil"
# Types of models whose own code computed with a mask, as `attach` sees; graphs give it numbers.
COMPUTING: set[str] = set()
_collector: Any = getattr(output_capturing, "_active_collector", None)


class PatternMask(torch.Tensor):
    """A mask of numbers (batch, 1, q_len, k_len) that holds a pattern instead of pairs.

    Models pass it on like any other mask: 0 for allowed pairs, the most negative number for others. An operation that
    needs its pairs writes them out once, and `written` is then True. Cutting its rows and its last axis, and moving it
    to its own device and dtype, keep the pattern.
    """

    pattern: Pattern
    q_start: int  # of the pattern: 0 where it is Explicit, whose rows are those of the call
    reason: str | None  # why it could not be read, if the pattern is Explicit for this reason
    # Its shape, read without the time of an operation on a subclass of Tensor.
    sizes: tuple[int, ...]
    kind: torch.dtype  # of its numbers
    refused: str | None = None  # why the code of the model may not compute with it
    model: str | None = None  # the type of the model that made it
    _dense: Callable[[], torch.Tensor]
    _pairs: torch.Tensor | None
    # The position of the first query, counted from the first key, whatever the pattern is.
    begin: int
    # Unpadded keys, (batch, length), and the position of the call's first key.
    padding: tuple[torch.Tensor | None, int]
    dropped: range  # the keys that a cache left out, see `without`
    # What computes calls with this mask, which is looked up once instead of for each layer.
    plans: dict[Any, Any]
    # What computes the calls of later layers that have this scale and this softcap.
    following: tuple[NextLayers, Any, Any] | None = None
    # The mask within these documents.
    within: tuple[torch.Tensor, PatternMask] | None = None
    # The processes that share the sequence, where its queries are those of this process.
    shared: SharedForward | None = None

    @staticmethod
    def __new__(
        cls,
        pattern: Pattern,
        q_start: int,
        shape: tuple[int, ...],
        device: torch.device,
        dense: Callable[[], torch.Tensor],
        *,
        reason: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> PatternMask:  # the signature that documentation reports
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)

    def __init__(
        self,
        pattern: Pattern,
        q_start: int,
        shape: tuple[int, ...],
        device: torch.device,
        dense: Callable[[], torch.Tensor],
        *,
        reason: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.pattern = pattern
        self.q_start = q_start
        self.reason = reason
        self.sizes = shape
        self.kind = dtype
        self._dense = dense
        self._pairs = None
        self.begin = q_start
        self.padding = (None, 0)
        self.dropped = range(0)
        self.plans = {}

    @property
    def written(self) -> bool:
        """Whether the pairs were written out."""
        return self._pairs is not None

    @property
    def origins(self) -> tuple[int, ...]:
        """The first unpadded key of all batch rows, or of each; below 0 where a cache dropped keys before it."""
        unpadded, cut = self.padding
        if unpadded is None:
            return (-cut,)
        first = tuple((unpadded.int().argmax(-1) - cut).tolist())
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
        return torch.where(
            pairs, torch.zeros((), dtype=self.kind, device=pairs.device), torch.finfo(self.kind).min
        )

    def cut(self, keys: int, first: int = 0) -> PatternMask:
        """The mask of the first keys alone, without the first queries."""
        if keys >= self.sizes[-1] and not first:
            return self
        keys = min(keys, self.sizes[-1])

        def dense() -> torch.Tensor:
            return self.pairs()[..., first:, :keys]

        shape = (*self.sizes[:2], self.sizes[2] - first, keys)
        cut = self._like(shape, self.q_start + first, dense)
        cut.begin = self.begin + first
        cut.dropped = self.dropped
        if self.pattern.of_one_call:
            cut.pattern = of_queries(self.pattern, range(first, self.sizes[2]), keys)
            cut.q_start = self.q_start
        return cut

    def of_documents(self, ids: torch.Tensor) -> PatternMask:
        """The mask of the pairs within a document; ids: (batch, positions), by position. Layers share it.

        The pattern may say so already, where transformers found the documents itself.
        """
        if document_ids(self.pattern):
            return self
        if self.within is not None and self.within[0] is ids:
            return self.within[1]
        first = self.padding[1]
        of_keys = ids[:, first : first + self.sizes[3]]
        pattern = SameDocument(of_keys)

        def dense() -> torch.Tensor:
            q_pos = torch.arange(self.q_start, self.q_start + self.sizes[2], device=ids.device)
            k_pos = torch.arange(self.sizes[3], device=ids.device)
            return self.pairs() & four_axes(pattern.allows(q_pos[:, None], k_pos))

        within = self._like(self.sizes, self.q_start, dense)
        within.pattern = (self.pattern & pattern).canonical()
        within.begin = self.begin
        within.dropped = self.dropped
        within.shared = self.shared
        self.within = ids, within
        return within

    def without(self, dropped: range) -> PatternMask:
        """The mask after these keys were dropped; columns are renumbered, and the same pairs stay allowed."""

        def dense() -> torch.Tensor:
            pairs = self.pairs()
            return torch.cat((pairs[..., : dropped.start], pairs[..., dropped.stop :]), -1)

        shape = (*self.sizes[:-1], self.sizes[-1] - len(dropped))
        shortened = self._like(shape, self.q_start - len(dropped), dense)
        shortened.begin = self.begin - len(dropped)
        shortened.dropped = dropped
        return shortened

    def _like(
        self, shape: tuple[int, ...], q_start: int, dense: Callable[[], torch.Tensor]
    ) -> PatternMask:
        mask = PatternMask(
            self.pattern, q_start, shape, self.device, dense, reason=self.reason, dtype=self.kind
        )
        mask.padding = self.padding
        mask.refused = self.refused
        mask.model = self.model
        return mask

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in ATTRIBUTES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        mask = args[0] if args else None
        if isinstance(mask, PatternMask):
            result = _with_pattern(func, mask, args[1:], kwargs or {})
            if result is not None:
                return result
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
ATTRIBUTES = {
    getattr(torch.Tensor, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "ndim",
        "requires_grad",
        "is_leaf",
        "grad_fn",
        "layout",
        "is_nested",
        "is_cpu",
        "is_cuda",
        "is_meta",
        "is_sparse",
        "is_quantized",
        "is_mkldnn",
        "grad",
    )
} | {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.ndimension,
    torch.Tensor.numel,
    torch.Tensor.__len__,
    torch.Tensor.is_floating_point,
    torch.Tensor.element_size,
    torch.Tensor.get_device,
    torch.is_tensor,
    torch.is_floating_point,
    torch.numel,
    torch.Tensor.is_complex,
    torch.is_complex,
}
_SAME = {torch.Tensor.detach, torch.detach, torch.Tensor.contiguous, torch.Tensor.requires_grad_}
_WHOLE = slice(None)


def _with_pattern(
    func: Any, mask: PatternMask, args: tuple[Any, ...], options: dict[str, Any]
) -> PatternMask | None:
    """The mask that an operation gives, if it keeps the pattern; None if the pairs are needed."""
    if func in _SAME:
        return mask
    if func is torch.Tensor.to:
        return mask if _stays(mask, [*args, *options.values()]) else None
    if func is torch.Tensor.__getitem__:
        return _cut_by_index(mask, args[0])
    return None


def _stays(mask: PatternMask, arguments: list[Any]) -> bool:
    """Whether these arguments of `Tensor.to` name the device and the dtype that a mask has."""
    for argument in arguments:
        if isinstance(argument, torch.dtype):
            if argument != mask.kind:
                return False
        elif isinstance(argument, str | torch.device):
            device = torch.device(argument)
            if device.type != mask.device.type or device.index not in (None, mask.device.index):
                return False
        elif not isinstance(argument, bool | None):
            return False
    return True


def _cut_by_index(mask: PatternMask, index: Any) -> PatternMask | None:
    """The mask of the last queries and the first keys, if an index asks for these; None otherwise."""
    parts = index if isinstance(index, tuple) else (index,)
    if parts and parts[0] is ...:
        parts = (_WHOLE,) * (5 - len(parts)) + parts[1:]
    parts += (_WHOLE,) * (4 - len(parts))
    if not all(isinstance(part, slice) and part.step in (None, 1) for part in parts):
        return None
    batch, heads, rows, keys = parts
    if batch != _WHOLE or heads != _WHOLE:
        return None

    q_len, k_len = mask.sizes[2:]
    first_row, end_row, _ = rows.indices(q_len)
    first_key, end_key, _ = keys.indices(k_len)
    if first_row >= q_len or end_row != q_len or first_key != 0:
        return None
    return mask.cut(end_key, first_row)


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
        attention_mask: visible keys, (batch, length), or None.
        use_vmap: whether mask_function takes one pair at a time.
        device, dtype: where the mask would be, and the dtype of its numbers.

    Returns:
        A `PatternMask`; None for a model that halves its sequence, where the mask would hide no pair. Inside
        torch.compile a `TracedMask`, or the tensor or None that eager attention would get where the graph cannot know
        the mask.

    Raises:
        UnsupportedError: the model was asked for output_attentions=True.
    """
    arguments: dict[str, Any] = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "use_vmap": use_vmap,
        "device": device,
    }
    shared = shared_now()
    config = others.get("config")
    model_type = getattr(config, "model_type", None)
    if getattr(config, SHORTENS, False) and shared is None:
        # Eager attention gets causal masks in any case.
        if theirs.sdpa_mask(**arguments, **others | {"allow_is_causal_skip": False}) is None:
            return None
    if torch.compiler.is_compiling():
        if model_type in COMPUTING:
            return theirs.eager_mask(**arguments, **others, dtype=dtype)
        return traced_mask(arguments, others | {"dtype": dtype})
    refuse_collecting()

    shape = (batch_size, 1, q_length, kv_length)
    place = torch.device(device)
    start = int(q_offset) - kv_offset
    never_none = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}

    def dense() -> torch.Tensor:
        pairs: Any = theirs.sdpa_mask(**arguments, **others | never_none)
        return pairs.expand(shape)

    try:
        pattern = _read(mask_function, attention_mask, range(kv_offset, kv_offset + kv_length))
        mask = PatternMask(pattern, start, shape, place, dense, dtype=dtype)
    except UnknownMaskError as unknown:
        if shared is not None:
            shared.refuse(f"{unknown} is not known to regard, so it is not computed over processes")
        pairs = dense()
        mask = PatternMask(
            Explicit(pairs), 0, shape, place, lambda: pairs, reason=str(unknown), dtype=dtype
        )
        mask.pairs()
    mask.begin = start
    mask.padding = (attention_mask, kv_offset)
    mask.refused = _own_code(config)
    mask.model = model_type
    if shared is not None:
        shared.check_mask(mask.pattern, start, kv_length)
        mask.shared = shared
    return mask


def _read(mask_function: Function, unpadded: torch.Tensor | None, keys: range) -> Pattern:
    """The pattern of a mask function and of the padding beside it."""
    pattern = read_once(mask_function, keys)
    if unpadded is None:
        return pattern
    padding = padding_of({"padding_mask": unpadded}, keys)
    if pattern.by_value and padding.by_value:
        return joined(pattern, padding)
    return (pattern & padding).canonical()


def _own_code(config: Any) -> str | None:
    """Why a model may not compute with its mask: none of its modules calls registered attention. None if some do."""
    code = sys.modules.get(type(config).__module__.replace(".configuration_", ".modeling_"))
    if code is None or config is None or hasattr(code, LOOKUP) or ".modeling_" not in code.__name__:
        return None
    return (
        f"the code of a {config.model_type} model computes with this mask itself and never calls registered attention, "
        f"so regard would not be called; load it without attn_implementation='regard' and give it to attach(model), "
        f"which names what can be done"
    )


def refuse_collecting() -> None:
    """Raise if the running forward pass of a model collects the weights of its attention."""
    collected = None if _collector is None else _collector.get()
    if collected is not None and any(key.endswith("attentions") for key in collected):
        raise UnsupportedError(NO_WEIGHTS)
