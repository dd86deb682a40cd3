"""The weights and settings of a `torch.nn.MultiheadAttention` for a layer of regard, and the inputs that it and
`F.scaled_dot_product_attention` take."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from regard.arguments import count_of, of_kind, refuse_wrapper, shown
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.layers.vectors import check_vectors


def settings_of(module: nn.MultiheadAttention) -> dict[str, Any]:
    """The arguments of `MultiHeadAttention` that describe a module of PyTorch."""
    of_kind("module", module, nn.MultiheadAttention, "a torch.nn.MultiheadAttention")
    if not module.batch_first:
        raise ArgumentError(
            "the module reads (length, batch, dim), and regard's layer reads (batch, length, dim); transpose its "
            "inputs in your model, then set module.batch_first = True and convert it"
        )
    if module.bias_k is not None or module.add_zero_attn:
        name = "add_zero_attn" if module.add_zero_attn else "add_bias_kv"
        raise UnsupportedError(
            f"the module adds a key of its own to each text ({name}=True), which regard's layer cannot"
        )
    if module.kdim != module.vdim:
        raise UnsupportedError(
            f"the module takes keys of size {module.kdim} and values of size {module.vdim} from two inputs; regard's "
            f"layer projects both from one context"
        )
    return {
        "dim": module.embed_dim,
        "heads": module.num_heads,
        "context_dim": module.kdim,
        "dropout": module.dropout,
        "projection_bias": module.in_proj_bias is not None,
    }


@contextmanager
def hinting_at_pytorch(state: Mapping[str, Any]) -> Generator[None]:
    """Inside the block, PyTorch's error about keys that do not fit also names the way to take its own layer over."""
    try:
        yield
    except RuntimeError as error:
        if not {"in_proj_weight", "q_proj_weight"} & state.keys():
            raise
        raise RuntimeError(
            f"{error}\n\tThese are the weights of a torch.nn.MultiheadAttention: make the layer by "
            f"MultiHeadAttention.from_torch(module), or use regard.integrations.torch.MultiheadAttention, which loads "
            f"them."
        ) from None


def check_inputs(
    module: nn.MultiheadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> None:
    """Raise a ShapeError unless these are the inputs of a module of PyTorch: widths, axes, batches and lengths."""
    axes = "(batch, length, {0})" if module.batch_first else "(length, batch, {0})"
    for name, x, size in (
        ("query", query, module.embed_dim),
        ("key", key, module.kdim),
        ("value", value, module.vdim),
    ):
        check_vectors(name, x, module.out_proj.weight)
        if x.dim() not in (2, 3) or x.shape[-1] != size:
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)}; this layer needs {axes.format(size)}, or (length, {size}) of one "
                f"text"
            )
        if x.dim() != query.dim():
            raise ShapeError(
                f"query has shape {tuple(query.shape)} and {name} {tuple(x.shape)}; all need a batch axis, or none"
            )
    length_axis = _length_axis(module, query)
    if key.shape[length_axis] != value.shape[length_axis]:
        raise ShapeError(
            f"key {tuple(key.shape)} has length {key.shape[length_axis]} and value {tuple(value.shape)} "
            f"{value.shape[length_axis]}; each key needs its value"
        )
    if query.dim() == 2:
        return
    batch_axis = 1 - length_axis
    batch = query.shape[batch_axis]
    for name, x in (("key", key), ("value", value)):
        if x.shape[batch_axis] != batch:
            raise ShapeError(
                f"batch is {batch} in query {tuple(query.shape)} and {x.shape[batch_axis]} in {name} "
                f"{tuple(x.shape)}; with batch_first={module.batch_first} the axes are {axes.format('dim')}"
            )


def _length_axis(module: nn.MultiheadAttention, query: torch.Tensor) -> int:
    return 1 if query.dim() == 3 and module.batch_first else 0


def check_masks(
    module: nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    key_padding_mask: torch.Tensor | None,
    attn_mask: torch.Tensor | None,
) -> None:
    """Raise a ShapeError unless the masks of a module of PyTorch have the sizes of its inputs."""
    is_batched = query.dim() == 3
    length_axis = _length_axis(module, query)
    batch = query.shape[1 - length_axis] if is_batched else 1
    q_len = query.shape[length_axis]
    k_len = key.shape[length_axis]
    shapes_of_padding = {"(batch, keys)": (batch, k_len)} if is_batched else {"(keys,)": (k_len,)}
    shapes_of_pairs = {
        "(queries, keys)": (q_len, k_len),
        "(batch · heads, queries, keys)": (batch * module.num_heads, q_len, k_len),
    }
    for name, mask, shapes in (
        ("key_padding_mask", key_padding_mask, shapes_of_padding),
        ("attn_mask", attn_mask, shapes_of_pairs),
    ):
        if mask is not None:
            refuse_wrapper(name, mask)
        if isinstance(mask, torch.Tensor) and tuple(mask.shape) not in shapes.values():
            needs = ", or ".join(f"{axes} = {shape}" for axes, shape in shapes.items())
            raise ShapeError(
                f"{name} has shape {tuple(mask.shape)}; query {tuple(query.shape)} and key {tuple(key.shape)} need "
                f"{needs}"
            )


def weights_of(module: nn.MultiheadAttention) -> dict[str, torch.Tensor]:
    """The parameters of the module by their names in `MultiHeadAttention`."""
    if module.in_proj_weight is not None:
        # PyTorch stores the three projections as one matrix (3 dim, dim).
        q_weight, k_weight, v_weight = module.in_proj_weight.chunk(3)
    else:
        q_weight, k_weight, v_weight = (
            module.q_proj_weight,
            module.k_proj_weight,
            module.v_proj_weight,
        )
    weights = {"to_q.weight": q_weight, "to_k.weight": k_weight, "to_v.weight": v_weight}
    if module.in_proj_bias is not None:
        q_bias, k_bias, v_bias = module.in_proj_bias.chunk(3)
        weights |= {"to_q.bias": q_bias, "to_k.bias": k_bias, "to_v.bias": v_bias}
    for name, weight in module.out_proj.state_dict().items():
        weights[f"to_output.{name}"] = weight
    return weights


def allowed_by(name: str, mask: torch.Tensor, batched: bool = True) -> torch.Tensor:
    """A mask of that module, whose True means masked, as booleans whose True means allowed, or as numbers."""
    is_mask = isinstance(mask, torch.Tensor)
    if not is_mask or not (mask.dtype == torch.bool or mask.is_floating_point()):
        raise ArgumentError(
            f"{name} is {shown(mask)}; it needs booleans, with True for masked, or numbers to add"
        )
    if not batched:
        mask = mask[None]
    return ~mask if mask.dtype == torch.bool else mask


def join_masks(first: torch.Tensor | None, second: torch.Tensor | None) -> torch.Tensor | None:
    """Two masks of `allowed_by` as one."""
    if first is None:
        return second
    if second is None:
        return first
    if first.dtype == second.dtype == torch.bool:
        return first & second
    return _as_numbers(first) + _as_numbers(second)


def _as_numbers(mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)


def as_four_axes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[int, ...]]:
    """q, k and v of `F.scaled_dot_product_attention`, (..., heads, length, dim), with four axes each.

    Args:
        query, key, value: (..., heads, length, dim) or (length, dim); the axes before the last two broadcast.
        grouped: whether a head of key or value may serve several heads of query (enable_gqa=True).

    Returns:
        q, k and v, and the axes (..., heads) of the output.
    """
    named = {"query": query, "key": key, "value": value}
    for name, x in named.items():
        if not isinstance(x, torch.Tensor) or x.dim() < 2:
            raise ShapeError(f"{name} is {shown(x)}; it needs a tensor (..., length, dim)")
        refuse_wrapper(name, x)
    shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
    has_heads = any(x.dim() > 2 for x in named.values())
    q, k, v = (x if x.dim() > 2 else x[None] for x in named.values())
    heads = q.shape[-3]
    k_heads = k.shape[-3]
    v_heads = v.shape[-3]

    divides = all(count and heads % count == 0 for count in (k_heads, v_heads))
    if grouped and not divides:
        raise ShapeError(f"the heads of key and value do not divide those of query: {shapes}")
    try:
        lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
        if not grouped:
            (heads,) = torch.broadcast_shapes((heads,), (k_heads,), (v_heads,))
    except RuntimeError:
        way_out = ""
        if divides:
            way_out = (
                "; give enable_gqa=True where a head of key and value serves a group of query heads"
            )
        raise ShapeError(
            f"the axes before the last two do not broadcast: {shapes}{way_out}"
        ) from None
    if k_heads != v_heads:  # attention takes as many heads of values as of keys
        if grouped:
            k = k.repeat_interleave(heads // k_heads, dim=-3)
            v = v.repeat_interleave(heads // v_heads, dim=-3)
        k_heads = v_heads = heads
    q = _with_one_batch_axis(q, lead, heads)
    k = _with_one_batch_axis(k, lead, k_heads)
    v = _with_one_batch_axis(v, lead, v_heads)
    return q, k, v, (*lead, heads) if has_heads else ()


def _with_one_batch_axis(x: torch.Tensor, lead: tuple[int, ...], heads: int) -> torch.Tensor:
    """x of axes that broadcast to (*lead, heads, length, dim) as (batch, heads, length, dim)."""
    whole = x.expand(*lead, heads, *x.shape[-2:])
    return whole.reshape(math.prod(lead), heads, *x.shape[-2:])


def mask_of_four_axes(mask: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """(batch or 1, heads or 1, q_len or 1, k_len) of an attn_mask that broadcasts to (..., heads, q_len, k_len)."""
    if not isinstance(mask, torch.Tensor):
        raise ArgumentError(f"attn_mask is {shown(mask)}; it needs a tensor")
    refuse_wrapper("attn_mask", mask)
    missing = len(axes) + 2 - mask.dim()
    whole = mask[(None,) * missing] if missing > 0 else mask
    sizes = zip(whole.shape, axes, strict=False)
    if missing < 0 or any(size not in (1, full_size) for size, full_size in sizes):
        raise ShapeError(
            f"attn_mask {tuple(mask.shape)} does not broadcast to {(*axes, 'q_len', 'k_len')}"
        )
    lead = axes[:-1]
    if len(lead) > 1 and any(size > 1 for size in whole.shape[: len(lead)]):
        return whole.expand(*lead, *whole.shape[-3:]).flatten(0, len(lead) - 1)
    if whole.dim() < 4:
        return whole[(None,) * (4 - whole.dim())]
    return whole.flatten(0, whole.dim() - 4)


def start_of_causal(mask: torch.Tensor, q_len: int, k_len: int) -> int | None:
    """The position of the first query under a causal mask of `torch.nn.attention.bias`; None for other masks."""
    if type(mask).__name__ != "CausalBias":
        return None
    causal: Any = mask  # its class is not imported, which takes seconds
    if causal.variant.name == "UPPER_LEFT":
        return 0
    sizes = (causal.seq_len_q, causal.seq_len_kv)
    if sizes != (q_len, k_len):
        raise ShapeError(
            f"attn_mask is causal_lower_right{sizes}, and there are {count_of(q_len, 'queries')} and "
            f"{count_of(k_len, 'keys')}; give causal_lower_right({q_len}, {k_len})"
        )
    return k_len - q_len
