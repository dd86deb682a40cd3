"""Axes are named once, at the door; everything inside may trust their sizes."""

from dataclasses import dataclass

import torch

from regard.errors import ShapeError
from regard.stored import Stored

ATTENTION_AXES = {
    "q": "batch heads q_len head_dim",
    "k": "batch kv_heads k_len head_dim",
    "v": "batch kv_heads k_len v_dim",
}

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Outline:
    """What stands for a tensor in a call that is never made: its sizes, which may be those of no memory there is."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False

    def dim(self) -> int:
        """How many axes it has."""
        return len(self.shape)


def bind_axes(**named: tuple[torch.Tensor | Stored | Outline, str]) -> dict[str, int]:
    """Size of every named axis, where tensors that share a name must share its size.

    Args:
        named: for each tensor's name, the tensor and its axes as one string of words.

    Returns:
        The size of each axis by name.

    Raises:
        ShapeError: a tensor of another rank, or one axis with two sizes.

    >>> q, k = torch.zeros(2, 4, 7, 8), torch.zeros(2, 2, 11, 8)
    >>> bind_axes(q=(q, "batch heads q_len head_dim"), k=(k, "batch kv_heads k_len head_dim"))["k_len"]
    11
    """
    sizes: dict[str, int] = {}
    seen_in: dict[str, str] = {}
    for name, (tensor, axes) in named.items():
        words = axes.split()
        if tensor.dim() != len(words):
            raise ShapeError(
                f"{name} has {tensor.dim()} axes {tuple(tensor.shape)}; it needs {len(words)}: ({', '.join(words)})"
            )
        for axis, size in zip(words, tensor.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                first = seen_in[axis]
                raise ShapeError(
                    f"axis '{axis}' is {sizes[axis]} in {first} {tuple(named[first][0].shape)} "
                    f"but {size} in {name} {tuple(tensor.shape)}"
                )
            seen_in.setdefault(axis, name)
    return sizes


def bind_attention(
    q: torch.Tensor | Outline,
    k: torch.Tensor | Stored | Outline,
    v: torch.Tensor | Stored | Outline,
    own_key_dim: bool = False,
) -> dict[str, int]:
    """Sizes of one attention call, after everything about q, k and v that can be wrong was looked at.

    With `own_key_dim` the last axis of k is 'key_dim', which need not be 'head_dim'.

    Raises:
        ShapeError: ranks, sizes, dtypes, devices or head counts that do not fit.

    >>> bind_attention(torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 6))["v_dim"]
    6
    """
    tensors = {"q": q, "k": k, "v": v}
    for name, tensor in tensors.items():
        if isinstance(tensor, Outline) or (isinstance(tensor, Stored) and name != "q"):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ShapeError(f"{name} is a {type(tensor).__name__}; it needs to be a tensor")
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ShapeError(f"{name} has layout {tensor.layout}; only dense (strided) tensors are attended")
    axes = {**ATTENTION_AXES, "k": "batch kv_heads k_len key_dim"} if own_key_dim else ATTENTION_AXES
    sizes = bind_axes(**{name: (tensor, axes[name]) for name, tensor in tensors.items()})
    sizes.setdefault("key_dim", sizes["head_dim"])
    if q.dtype not in DTYPES:
        raise ShapeError(f"q has dtype {q.dtype}; attention takes {', '.join(map(str, DTYPES))}: convert it to one")
    for name in ("k", "v"):
        if tensors[name].dtype != q.dtype and not isinstance(tensors[name], Stored):
            raise ShapeError(f"q has dtype {q.dtype} but {name} {tensors[name].dtype}; convert one of them")
        if tensors[name].device != q.device:
            raise ShapeError(f"q is on {q.device} but {name} on {tensors[name].device}; move one of them")
    if k.dtype != v.dtype or isinstance(k, Stored) != isinstance(v, Stored):
        raise ShapeError(f"k is stored as {k.dtype} and v as {v.dtype}; a cache holds both alike")
    if 0 in (sizes["head_dim"], sizes["key_dim"]):
        raise ShapeError(f"head_dim is 0 in q {tuple(q.shape)} or k; a score needs at least one dimension")
    heads, kv_heads = sizes["heads"], sizes["kv_heads"]
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(
            f"heads is {heads} and kv_heads is {kv_heads}; each key/value head serves a whole group of "
            f"query heads, so heads must be a multiple of kv_heads"
        )
    return sizes
