"""The types that q, k and v may have: dense tensors, vectors as a cache stores them, and outlines for planning.

Their axes are named and checked here, so that all other code can rely on the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch.autograd import forward_ad

from regard.arguments import count_of, in_memory, kind_of, refuse_wrapper, shown, whole
from regard.errors import ArgumentError, ShapeError, UnsupportedError

ATTENTION_AXES = {
    "q": "batch heads q_len head_dim",
    "k": "batch kv_heads k_len head_dim",
    "v": "batch kv_heads k_len v_dim",
}
HEADS_FIRST = "bhnd"  # the layout of these axes
LENGTH_FIRST = "bnhd"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HALF = DTYPES[:2]
CAST_DTYPES = DTYPES[:3]  # what autocast casts
# included while a tracer records before autograd
BEFORE_AUTOGRAD: Any = torch._C.DispatchKey.PreDispatch
_RECORDING: Any = torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FUNCTIONAL
_DEVICES = frozenset(
    filter(torch.amp.is_autocast_available, ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "mtia"))
)


@dataclass(frozen=True)
class Stored:
    """Vectors of positions `first` and on, (batch, kv_heads, held, dim); a number is `numbers · scales`.

    Attention takes it as k or v. Its `shape` includes the positions before `first`, whose vectors are no longer stored;
    a pattern that reaches one of them is refused.

    Args:
        numbers: (batch, kv_heads, held, dim), floating-point or int8.
        scales: (batch, kv_heads, held, 1), what int8 numbers are multiplied with; None for floating-point ones.
        first: the number of positions whose vectors are no longer stored.
        lead: the number of held vectors that come before these positions; the others come after them.
        places: int64 (batch or 1, kv_heads or 1, n), the positions of the first n held vectors, where `first` positions
            between them were dropped; the other vectors follow one another.

    >>> Stored(torch.zeros(2, 3, 5, 8, dtype=torch.bfloat16), first=4).shape
    torch.Size([2, 3, 9, 8])
    """

    numbers: torch.Tensor
    scales: torch.Tensor | None = None
    first: int = 0
    lead: int = field(default=0, kw_only=True)
    places: torch.Tensor | None = field(default=None, kw_only=True)
    layout: ClassVar[torch.layout] = torch.strided
    # Both return False, as `bool()` does, since `in_memory` wrote its tensors. The key of a call asks them, and a
    # function of C adds no frame of Python to a warm call.
    is_neg = _is_zerotensor = staticmethod(bool)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", _dense_tensor("numbers", self.numbers))
        if self.scales is not None:
            object.__setattr__(self, "scales", _dense_tensor("scales", self.scales))
        first = whole("the position of the first vector stored", self.first, 0)
        object.__setattr__(self, "first", first)
        needs_scales = self.numbers.dtype == torch.int8
        if self.numbers.dim() != 4 or needs_scales != (self.scales is not None):
            raise ShapeError(
                f"stored numbers are {self.numbers.dtype} {tuple(self.numbers.shape)}; they need (batch, kv_heads, "
                f"held, dim), and scales if they are int8"
            )

    @property
    def shape(self) -> torch.Size:
        """(batch, kv_heads, positions, dim), including those no longer stored."""
        batch, kv_heads, held, dim = self.numbers.shape
        return torch.Size((batch, kv_heads, self.first + held, dim))

    @property
    def dtype(self) -> torch.dtype:
        return self.numbers.dtype

    @property
    def device(self) -> torch.device:
        return self.numbers.device

    @property
    def requires_grad(self) -> bool:
        return self.numbers.requires_grad

    def dim(self) -> int:
        return self.numbers.dim()

    @property
    def has_gap(self) -> bool:
        """Whether positions behind a held vector were dropped."""
        return bool(self.first) and (self.lead > 0 or self.places is not None)

    @property
    def positions(self) -> torch.Tensor:
        """The positions of the held vectors, int64 (batch or 1, kv_heads or 1, held)."""
        return positions_of(self.numbers.shape[2], self.first, self.lead, self.places, self.device)

    def cut(self, keys: range) -> Stored:
        """The vectors at the positions `keys`, counted from 0."""
        if keys and self.has_gap:
            raise ArgumentError(
                "positions between these keys were dropped, and only attention takes such keys"
            )
        if keys and keys.start < self.first:
            raise ArgumentError(
                f"keys from position {keys.start} on are needed, and this cache holds those from {self.first} on; "
                f"use a pattern that reaches back less, or a larger cache"
            )
        part = slice(0, 0)
        if keys:
            part = slice(keys.start - self.first, keys.stop - self.first)
        scales = None if self.scales is None else self.scales[:, :, part]
        return Stored(self.numbers[:, :, part], scales)

    def hidden(self, hidden: torch.Tensor) -> Stored:
        """Zeros at the keys where `hidden`, (batch or 1, kv_heads or 1, held, 1), is True."""
        scales = None if self.scales is None else self.scales.masked_fill(hidden, 0)
        return Stored(self.numbers.masked_fill(hidden, 0), scales, self.first)

    def widened(self, dtype: torch.dtype) -> torch.Tensor:
        """The vectors held, as a tensor of `dtype`."""
        vectors = self.numbers.to(dtype)
        return vectors if self.scales is None else vectors * self.scales.to(dtype)


def _dense_tensor(name: str, x: Any) -> torch.Tensor:
    """The numbers or scales of stored vectors, in their memory."""
    what = f"the tensor of stored {name}"
    if not isinstance(x, torch.Tensor) or x.is_nested or x.layout != torch.strided:
        raise ShapeError(f"{what} is {shown(x)}; it needs to be a dense tensor")
    refuse_wrapper(what, x)
    return in_memory(what, x)


class Place(NamedTuple):
    """The q_start of a call in a graph whose k and v are all slots of a cache; those behind the queries are free.

    first: the position of the first query, (1,).
    """

    first: torch.Tensor


def positions_of(
    held: int, dropped: int, lead: int, places: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """The positions of held vectors, int64 (batch or 1, kv_heads or 1, held), as `Stored` describes them.

    >>> positions_of(4, 5, 1, None, torch.device("cpu")).tolist()
    [[[0, 6, 7, 8]]]
    """
    numbers = torch.arange(held, device=device)[None, None]
    if places is None:
        return numbers + dropped * (numbers >= lead)
    rest = numbers[..., places.shape[2] :] + dropped
    return torch.cat([places, rest.expand(*places.shape[:2], -1)], -1)


@dataclass(frozen=True)
class Outline:
    """The sizes of a tensor, for calls that are only planned; they may be larger than any memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False

    def dim(self) -> int:
        return len(self.shape)


def check_tensor(name: str, tensor: torch.Tensor | Stored) -> None:
    """Raise a ShapeError unless it is a dense tensor, or k or v as a cache stores them."""
    if isinstance(tensor, Stored) and name != "q":
        return
    if not isinstance(tensor, torch.Tensor):
        raise ShapeError(f"{name} is {kind_of(tensor)}; it needs to be a tensor")
    refuse_layout(name, tensor)


def refuse_layout(name: str, tensor: torch.Tensor) -> None:
    """Raise a ShapeError unless a tensor is dense and holds its numbers: other kinds are refused by name."""
    if tensor.is_nested:
        raise ShapeError(
            f"{name} is a nested tensor of layout {tensor.layout}; {_way_of_nested(name, tensor.layout)}"
        )
    if tensor.layout != torch.strided:
        raise ShapeError(
            f"{name} has layout {tensor.layout}; attention takes dense tensors: give {name}.to_dense()"
        )
    if tensor.is_quantized:
        raise ShapeError(
            f"{name} is quantised ({tensor.dtype}); attention takes floating-point tensors: dequantise it"
        )
    refuse_wrapper(name, tensor)


def _way_of_nested(name: str, layout: torch.layout) -> str:
    if name not in ATTENTION_AXES:
        return f"attention takes {name} as a dense tensor: give {name}.to_padded_tensor(...)"
    if layout == torch.jagged:
        return (
            "attention itself takes q, k and v so, all three, but a plan and a detail do not: pack the "
            "documents into one row and give pattern=SameDocument(ids)"
        )
    return (
        "attention takes nested q, k and v of layout torch.jagged and shape (batch, heads, ragged length, size): make "
        "them with layout=torch.jagged, or pad them and give the lengths as pattern=KeySpan(0, lengths)"
    )


def is_recorded() -> bool:
    """Whether make_fx or AOTAutograd records operations; they do not see what compiled kernels do.

    Forward-mode derivatives, as in torch.func.linearize, use PyTorch's operations alone, so these are seen.
    """
    if forward_ad._current_level >= 0:
        return False
    if torch._C._dispatch_tls_local_include_set().has(BEFORE_AUTOGRAD):
        return True
    return torch._C._len_torch_dispatch_stack() > 0 and any(
        map(torch._C._get_dispatch_mode, _RECORDING)
    )


def refuse_tracing() -> None:
    """Raise an UnsupportedError while torch.jit.trace or make_fx records."""
    if torch._C._is_tracing():
        raise UnsupportedError(
            "attention makes a plan for the sizes of a call and does not support torch.jit.trace, which keeps those of "
            "one example; use torch.export or torch.compile"
        )
    if is_recorded():
        raise UnsupportedError(
            "make_fx records PyTorch's operations and not what the backends of a plan compute; call attention there, "
            "which it records as one operation"
        )


def bind_attention(
    q: torch.Tensor | Outline,
    k: torch.Tensor | Stored | Outline,
    v: torch.Tensor | Stored | Outline,
    own_key_dim: bool = False,
    groups_values: bool = False,
    layout: str = HEADS_FIRST,
) -> dict[str, int]:
    """The sizes of one attention call by the names of their axes, after all checks of q, k and v.

    With `own_key_dim` the last axis of k is 'key_dim', which need not be 'head_dim'. With `groups_values` v may have
    more heads than q and k; then 'heads' and 'kv_heads' are its heads, of which 'value_group' share one of q and k.
    `layout` has a letter for each axis, b, h, n (length) and d; packed tensors have no b.

    >>> bind_attention(torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 6))["v_dim"]
    6
    """
    tensors = {"q": q, "k": k, "v": v}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Outline):
            check_tensor(name, tensor)
    axes = dict(ATTENTION_AXES)
    if own_key_dim:
        axes["k"] = "batch kv_heads k_len key_dim"
    if groups_values:
        axes["v"] = "batch value_heads k_len v_dim"
    if layout != HEADS_FIRST:
        for name, words in axes.items():
            if not isinstance(tensors[name], Stored):
                by_letter = dict(zip(HEADS_FIRST, words.split(), strict=True))
                axes[name] = " ".join([by_letter[letter] for letter in layout])
    sizes = _sizes(tensors, axes, layout)
    sizes.setdefault("key_dim", sizes["head_dim"])

    if q.dtype not in DTYPES:
        raise ShapeError(
            f"q has dtype {q.dtype}; attention takes {', '.join(map(str, DTYPES))}: convert it to one"
        )
    for name in ("k", "v"):
        if tensors[name].dtype != q.dtype and not isinstance(tensors[name], Stored):
            raise ShapeError(
                f"q has dtype {q.dtype} but {name} {tensors[name].dtype}; convert one of them"
            )
        check_device(name, tensors[name], q)
    if k.dtype != v.dtype or isinstance(k, Stored) != isinstance(v, Stored):
        raise ShapeError(
            f"k is stored as {k.dtype} and v as {v.dtype}; a cache stores both in one dtype"
        )
    if 0 in (sizes["head_dim"], sizes["key_dim"]):
        raise ShapeError(
            f"head_dim is 0 in q {tuple(q.shape)} or k; a score needs at least one dimension"
        )

    heads = sizes["heads"]
    kv_heads = sizes["kv_heads"]
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(
            f"heads is {heads} and kv_heads is {kv_heads}; each key/value head serves a whole group of "
            f"query heads, so heads must be a multiple of kv_heads{_hint_at_axes(sizes, layout)}"
        )
    value_heads = sizes.pop("value_heads", kv_heads)
    if value_heads != kv_heads:
        if heads != kv_heads or value_heads % kv_heads:
            raise ShapeError(
                f"q has {heads}, k {kv_heads} and v {value_heads} heads; v has as many as k, or a multiple of them "
                f"where q and k have equally many"
            )
        sizes |= {
            "heads": value_heads,
            "kv_heads": value_heads,
            "value_group": value_heads // kv_heads,
        }
    return sizes


def _hint_at_axes(sizes: dict[str, int], layout: str) -> str:
    """The words to say if the numbers of heads would fit had heads and length not been swapped."""
    heads = sizes["heads"]
    kv_heads = sizes["kv_heads"]
    q_len = sizes["q_len"]
    k_len = sizes["k_len"]
    # Heads of q and of k, if those of q, of k and v, or of all three were swapped with the length.
    for swapped_heads, swapped_kv_heads in ((q_len, kv_heads), (heads, k_len), (q_len, k_len)):
        if swapped_kv_heads and swapped_heads % swapped_kv_heads == 0:
            if layout == HEADS_FIRST:
                return (
                    " (axes are batch, heads, length, head_dim; are heads and length swapped? layout='bnhd' takes "
                    "(batch, length, heads, head_dim))"
                )
            return (
                " (axes are batch, length, heads, head_dim; are heads and length swapped? layout='bhnd' takes (batch, "
                "heads, length, head_dim))"
            )
    return ""


def _sizes(tensors: dict[str, Any], axes: dict[str, str], layout: str) -> dict[str, int]:
    """The size of every named axis; axes with the same name must have the same size."""
    sizes: dict[str, int] = {}
    seen_in: dict[str, str] = {}
    for name, tensor in tensors.items():
        words = axes[name].split()
        shape = tuple(tensor.shape)
        if len(shape) != len(words):
            raise ShapeError(
                f"{name} has {count_of(len(shape), 'axes')} {shape}; it needs {len(words)}: ({', '.join(words)})"
                f"{_way_of_missing_axes(name, len(shape), layout)}"
            )
        for axis, size in zip(words, shape, strict=True):
            first = seen_in.setdefault(axis, name)
            if sizes.setdefault(axis, size) != size:
                raise ShapeError(
                    f"axis '{axis}' is {sizes[axis]} in {first} {tuple(tensors[first].shape)} "
                    f"but {size} in {name} {shape}"
                )
    return sizes


def _way_of_missing_axes(name: str, axes: int, layout: str) -> str:
    """The words to say if a tensor has no axis for the batch row, for the head, or for both."""
    if layout == HEADS_FIRST:
        one_head = "[:, None]"
        one_of_both = "[None, None]"
    elif layout == LENGTH_FIRST:
        one_head = "[:, :, None]"
        one_of_both = "[None, :, None]"
    else:  # packed
        return ""
    if axes == 3:
        return f"; for one batch row give {name}[None], for one head {name}{one_head}"
    if axes == 2:
        return f"; for one batch row and one head give {name}{one_of_both}"
    return ""


def check_device(name: str, tensor: Any, q: torch.Tensor | Outline) -> None:
    """Raise a ShapeError unless a tensor of a call is where its queries are."""
    if tensor.device != q.device:
        raise ShapeError(f"q is on {q.device} but {name} on {tensor.device}; move one of them")


def map_tensors(
    change: Callable[[torch.Tensor], Any], tensors: Iterable[torch.Tensor | None]
) -> list[Any]:
    """`change` of each tensor; None stays None."""
    return [None if x is None else change(x) for x in tensors]


def is_casting(device: str) -> bool:
    return device in _DEVICES and torch.is_autocast_enabled(device)


def in_autocast(x: Any, device: str) -> Any:
    """A dense tensor of this kind of device in autocast's dtype, as PyTorch's own attention casts it.

    float64 tensors, tensors of other devices and everything else stay as they are.
    """
    if not isinstance(x, torch.Tensor) or x.device.type != device:
        return x
    if x.dtype not in CAST_DTYPES:
        return x
    return x.to(torch.get_autocast_dtype(device))
