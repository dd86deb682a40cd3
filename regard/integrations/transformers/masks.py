"""The masks of transformers as patterns.

transformers composes a mask from functions of positions. `regard_mask` reads these functions back and returns a
`PatternMask`, a tensor that holds a pattern and stores no pairs. An unknown function gives the exact dense mask.

To the code of a model such a mask is the mask of eager attention, whose numbers are added to scores: 0 where a query
may look at a key, the most negative number elsewhere. So whatever a model computes with it gives eager's numbers.

A graph of torch.compile cannot look into the closures of a mask function. Which function it is follows from its code
and from the other arguments of the call, in the cases that models use: causal, full, windows on one or both sides,
packed documents, each with padding. The documents are read from the function along one diagonal. Such a mask becomes a
`TracedMask`; every other one stays the dense tensor that eager attention gets, and an `UnreadMaskWarning` reports it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers import masking_utils as theirs
from transformers.utils import output_capturing

from regard.errors import UnsupportedError
from regard.integrations.transformers.modules import LOOKUP
from regard.integrations.transformers.reading import (
    Function,
    UnknownMaskError,
    joined,
    padding_of,
    read_once,
)
from regard.integrations.transformers.sharing import Shared, shared_now
from regard.patterns import Causal, CausalWindow, Explicit, Full, KeyMask, Pattern, SameDocument
from regard.patterns.bands import Diagonals
from regard.patterns.one_call import of_queries
from regard.reprs import Described

__all__ = [
    "NO_WEIGHTS",
    "PatternMask",
    "TracedMask",
    "UnreadMaskWarning",
    "refuse_collecting",
    "regard_mask",
]

NO_WEIGHTS = (
    "the model was asked for output_attentions=True, and regard's attention stores no weights; leave it out and "
    "collect them with: with observe(model, 'weights') as observed: ..."
)
# Types of models whose own code computed with a mask, as `attach` sees; graphs give it numbers.
COMPUTING: set[str] = set()
AND = getattr(theirs.and_masks(theirs.causal_mask_function), "__code__", None)
_collector: Any = getattr(output_capturing, "_active_collector", None)


class PatternMask(torch.Tensor):
    """A mask of numbers (batch, 1, q_len, k_len) that holds a pattern instead of pairs.

    Models hand it on like any other mask: 0 for allowed pairs, the most negative number for others. An operation that
    needs its pairs writes them out once, and `written` is then True. Cutting its rows and its last axis, and moving it
    to its own device and dtype, keep the pattern.
    """

    pattern: Pattern
    q_start: int
    reason: str | None  # why it could not be read, if the pattern is Explicit for this reason
    sizes: tuple[
        int, ...
    ]  # its shape, read without the time of an operation on a subclass of Tensor
    kind: torch.dtype  # of its numbers
    refused: str | None = None  # why the code of the model may not compute with it
    model: str | None = None  # the type of the model that made it
    _dense: Callable[[], torch.Tensor]
    _pairs: torch.Tensor | None
    begin: int  # the position of the first query, counted from the first key
    padding: tuple[
        torch.Tensor | None, int
    ]  # live keys, (batch, length), and the position of the call's first key
    dropped: range  # the keys that a cache left out, see `without`
    plans: dict[
        Any, Any
    ]  # what computes calls with this mask, which is looked up once instead of for each layer
    shared: Shared | None = (
        None  # the processes that share the sequence, where its queries are those of this process
    )

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
        self.pattern, self.q_start, self.reason, self.plans, self.kind = (
            pattern,
            q_start,
            reason,
            {},
            dtype,
        )
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
        return torch.where(
            pairs, torch.zeros((), dtype=self.kind, device=pairs.device), torch.finfo(self.kind).min
        )

    def cut(self, keys: int, first: int = 0) -> PatternMask:
        """The mask of the first keys alone, without the first queries."""
        if keys >= self.sizes[-1] and not first:
            return self
        keys = min(keys, self.sizes[-1])
        rows = self.sizes[2] - first
        cut = self._like(
            (*self.sizes[:2], rows, keys),
            self.q_start + first,
            lambda: self.pairs()[..., first:, :keys],
        )
        cut.begin, cut.dropped = self.begin + first, self.dropped
        if self.pattern.of_one_call:
            cut.pattern = of_queries(self.pattern, range(first, self.sizes[2]), keys)
            cut.q_start = self.q_start
        return cut

    def without(self, dropped: range) -> PatternMask:
        """The mask after these keys were dropped; columns are renumbered, and the same pairs stay allowed."""

        def dense() -> torch.Tensor:
            pairs = self.pairs()
            return torch.cat((pairs[..., : dropped.start], pairs[..., dropped.stop :]), -1)

        kept = self._like(
            (*self.sizes[:-1], self.sizes[-1] - len(dropped)), self.q_start - len(dropped), dense
        )
        kept.begin, kept.dropped = self.begin - len(dropped), dropped
        return kept

    def _like(
        self, shape: tuple[int, ...], q_start: int, dense: Callable[[], torch.Tensor]
    ) -> PatternMask:
        other = PatternMask(
            self.pattern, q_start, shape, self.device, dense, reason=self.reason, dtype=self.kind
        )
        other.padding, other.refused, other.model = self.padding, self.refused, self.model
        return other

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ATTRIBUTES:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        mask = args[0] if args else None
        if (
            isinstance(mask, PatternMask)
            and (kept := _kept(func, mask, args[1:], kwargs or {})) is not None
        ):
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


def _kept(
    func: Any, mask: PatternMask, args: tuple[Any, ...], options: dict[str, Any]
) -> PatternMask | None:
    """The mask that an operation gives, if it keeps the pattern; None if the pairs are needed."""
    if func in _SAME:
        return mask
    if func is torch.Tensor.to:
        given = [*args, *options.values()]
        devices = [torch.device(x) for x in given if isinstance(x, str | torch.device)]
        dtypes = [x for x in given if isinstance(x, torch.dtype)]
        strange = [
            x for x in given if not isinstance(x, str | torch.device | torch.dtype | bool | None)
        ]
        same = all(
            x.type == mask.device.type and x.index in (None, mask.device.index) for x in devices
        )
        return mask if same and not strange and all(x == mask.kind for x in dtypes) else None
    if func is torch.Tensor.__getitem__:
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        if index and index[0] is ...:
            index = (_WHOLE,) * (5 - len(index)) + index[1:]
        index += (_WHOLE,) * (4 - len(index))
        if all(isinstance(one, slice) and one.step in (None, 1) for one in index):
            rows, keys = (
                part.indices(size) for part, size in zip(index[2:], mask.sizes[2:], strict=True)
            )
            whole = (
                index[:2] == (_WHOLE, _WHOLE) and rows[1] == mask.sizes[2] > rows[0] and not keys[0]
            )
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
        attention_mask: visible keys, (batch, length), or None.
        use_vmap: whether mask_function takes one pair at a time.
        device, dtype: where the mask would be, and the dtype of its numbers.

    Returns:
        A `PatternMask`. Inside torch.compile a `TracedMask`, or the tensor or None that eager attention would get
        where the graph cannot know the mask.

    Raises:
        UnsupportedError: the model was asked for output_attentions=True.
    """
    given: dict[str, Any] = {
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
    if torch.compiler.is_compiling():
        if getattr(config, "model_type", None) in COMPUTING:
            return theirs.eager_mask(**given, **others, dtype=dtype)
        return _traced_mask(given, others | {"dtype": dtype})
    refuse_collecting()
    never_none = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}

    def dense() -> torch.Tensor:
        pairs: Any = theirs.sdpa_mask(**given, **others | never_none)
        return pairs.expand(shape)

    shape = (batch_size, 1, q_length, kv_length)
    keys = range(kv_offset, kv_offset + kv_length)
    place = torch.device(device)
    start = int(q_offset) - kv_offset
    try:
        pattern = read_once(mask_function, keys)
        if attention_mask is not None:
            live = padding_of({"padding_mask": attention_mask}, keys)
            pattern = (
                joined(pattern, live)
                if pattern.by_value and live.by_value
                else (pattern & live).canonical()
            )
        mask = PatternMask(pattern, start, shape, place, dense, dtype=dtype)
    except UnknownMaskError as unknown:
        if shared is not None:
            shared.refuse(f"{unknown} is not known to regard, so it is not computed over processes")
        pairs = dense()
        mask = PatternMask(
            Explicit(pairs), 0, shape, place, lambda: pairs, reason=str(unknown), dtype=dtype
        )
        mask.pairs()
    mask.begin, mask.padding = start, (attention_mask, kv_offset)
    mask.refused, mask.model = _own_code(config), getattr(config, "model_type", None)
    if shared is not None:
        shared.check_mask(mask.pattern, start, kv_length)
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
        f"which names what can be done"
    )


def refuse_collecting() -> None:
    """Raise if the running forward pass of a model collects the weights of its attention."""
    collected = None if _collector is None else _collector.get()
    if collected is not None and any(key.endswith("attentions") for key in collected):
        raise UnsupportedError(NO_WEIGHTS)


class UnreadMaskWarning(UserWarning):
    """A mask was not recognised, so the exact dense mask is used."""


class TracedMask(Described):
    """A mask (batch, 1, q_len, k_len) in a graph that is being traced; it holds a pattern and no pairs.

    first_key: the position of the first key, which is above 0 where a cache dropped keys.
    """

    ndim = 4

    def __init__(
        self,
        pattern: Pattern,
        q_start: Any,
        shape: tuple[int, ...],
        device: Any,
        first_key: Any,
        dtype: torch.dtype,
    ) -> None:
        self.pattern, self.q_start, self.shape, self.device = pattern, q_start, shape, device
        self.first_key, self.dtype = first_key, dtype
        self.joined: list[tuple[Any, Pattern]] = []  # with each `Substitute`: layers share the mask

    def dim(self) -> int:
        return 4

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def to(self, *given: Any, **options: Any) -> TracedMask:
        """The mask itself, which has its device and dtype."""
        return self

    def __getitem__(self, index: Any) -> TracedMask:
        """The mask of the first keys; other parts of it are not known."""
        parts = index if isinstance(index, tuple) else (index,)
        last = parts[-1]
        whole = all(one is ... or one == slice(None) for one in parts[:-1])
        if (
            not whole
            or not isinstance(last, slice)
            or last.start not in (None, 0)
            or last.step not in (None, 1)
        ):
            raise UnsupportedError(
                "a mask is cut to its first keys in a compiled model, and in no other way"
            )
        keys = self.shape[-1] if last.stop is None else min(last.stop, self.shape[-1])
        shape = (*self.shape[:-1], keys)
        return TracedMask(
            self.pattern, self.q_start, shape, self.device, self.first_key, self.dtype
        )


def _traced_mask(given: dict[str, Any], others: dict[str, Any]) -> Any:
    """A `TracedMask`, or the dense tensor of numbers that eager attention would get; `others` are not always given."""
    pattern = _traced_pattern(given, others)
    if pattern is None:
        _warn_of_dense()
        return theirs.eager_mask(**given, **others)
    keys = given["kv_length"]
    offset = given["kv_offset"]
    if given["attention_mask"] is not None:
        live: Any = theirs.prepare_padding_mask(given["attention_mask"], keys, offset)
        pattern = pattern & KeyMask(live[:, offset : offset + keys].to(torch.bool))
    shape = (given["batch_size"], 1, given["q_length"], keys)
    start = given["q_offset"] - offset
    if isinstance(start, torch.Tensor):
        start = start.to(torch.int64).reshape(1).expand(shape[0])
    return TracedMask(
        pattern, start, shape, given["device"], offset, others.get("dtype", torch.float32)
    )


def _traced_pattern(given: dict[str, Any], others: dict[str, Any]) -> Pattern | None:
    """The pattern of a mask function without padding, or None where it is not certain."""
    function = given["mask_function"]
    if function is theirs.causal_mask_function:
        return Causal()
    if function is theirs.bidirectional_mask_function:
        return Full()
    if given["use_vmap"] or AND is None or function.__code__ is not AND:
        return None
    config = others.get("config")
    size = others.get("local_size")
    window = getattr(config, "sliding_window", None)
    if size is not None and (
        size != window or getattr(config, "attention_chunk_size", None) is not None
    ):
        return None
    if "allow_is_bidirectional_skip" in others:
        return None if size is None else Diagonals(size, size)
    local = Causal() if size is None else CausalWindow(size)
    start = given["q_offset"]
    square = given["q_length"] == given["kv_length"]
    if (
        given["attention_mask"] is None
        and not isinstance(start, torch.Tensor)
        and start == 0
        and square
    ):
        return local & SameDocument(
            _traced_documents(function, given)
        )  # with positions that may be packed
    return None if size is None else local


def _traced_documents(function: Function, given: dict[str, Any]) -> torch.Tensor:
    """The document of each position, (batch, length): a new one begins where a query may not look at the key before."""
    batch = given["batch_size"]
    length = given["q_length"]
    device = given["device"]
    rows = torch.arange(batch, device=device)[:, None]
    at = torch.arange(1, length, device=device)
    begins = ~function(rows, 0, at[None], at[None] - 1).expand(batch, length - 1)
    return torch.nn.functional.pad(begins.to(torch.int64).cumsum(-1), (1, 0))


def _warn_of_dense() -> None:
    warnings.warn(
        "torch.compile cannot see which mask a model uses here, so the exact dense mask is used, which stores every "
        "pair; outside of torch.compile explain(model, inputs) shows it",
        UnreadMaskWarning,
        stacklevel=2,
    )


_warn_of_dense._dynamo_marked_constant = True  # ty: ignore[missing-attribute]
