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
from regard.layers.feed_forward import check_vectors


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
    weight = module.out_proj.weight
    given = {
        "query": (query, module.embed_dim),
        "key": (key, module.kdim),
        "value": (value, module.vdim),
    }
    for name, (x, size) in given.items():
        check_vectors(name, x, weight)
        if x.dim() not in (2, 3) or x.shape[-1] != size:
            raise ShapeError(
                f"{name} has shape {tuple(x.shape)}; this layer needs {axes.format(size)}, or (length, {size}) of one "
                f"text"
            )
        if x.dim() != query.dim():
            raise ShapeError(
                f"query has shape {tuple(query.shape)} and {name} {tuple(x.shape)}; all need a batch axis, or none"
            )
    length = 0 if query.dim() == 2 or not module.batch_first else 1
    if key.shape[length] != value.shape[length]:
        raise ShapeError(
            f"key {tuple(key.shape)} has length {key.shape[length]} and value {tuple(value.shape)} "
            f"{value.shape[length]}; each key needs its value"
        )
    for name, x in (("key", key), ("value", value)):
        if query.dim() == 3 and x.shape[1 - length] != query.shape[1 - length]:
            raise ShapeError(
                f"batch is {query.shape[1 - length]} in query {tuple(query.shape)} and {x.shape[1 - length]} in {name} "
                f"{tuple(x.shape)}; with batch_first={module.batch_first} the axes are {axes.format('dim')}"
            )


def check_masks(
    module: nn.MultiheadAttention,
    query: torch.Tensor,
    key: torch.Tensor,
    key_padding_mask: torch.Tensor | None,
    attn_mask: torch.Tensor | None,
) -> None:
    """Raise a ShapeError unless the masks of a module of PyTorch have the sizes of its inputs."""
    batched = query.dim() == 3
    length = int(query.dim() == 3 and module.batch_first)
    batch = query.shape[1 - length] if batched else 1
    q_len = query.shape[length]
    k_len = key.shape[length]
    padding = {"(batch, keys)": (batch, k_len)} if batched else {"(keys,)": (k_len,)}
    by_head = {"(batch · heads, queries, keys)": (batch * module.num_heads, q_len, k_len)}
    allowed = {"(queries, keys)": (q_len, k_len), **by_head}
    for name, mask, shapes in (
        ("key_padding_mask", key_padding_mask, padding),
        ("attn_mask", attn_mask, allowed),
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
    names = ("to_q", "to_k", "to_v")
    if module.in_proj_weight is not None:
        # PyTorch stores the three projections as one matrix (3 dim, dim)
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    named = {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    if module.in_proj_bias is not None:
        named |= {
            f"{name}.bias": offset
            for name, offset in zip(names, module.in_proj_bias.chunk(3), strict=True)
        }
    return named | {
        f"to_output.{name}": weight for name, weight in module.out_proj.state_dict().items()
    }


def allowed_by(name: str, mask: torch.Tensor, batched: bool = True) -> torch.Tensor:
    """A mask of that module, whose True means masked, as booleans whose True means allowed, or as numbers."""
    if not isinstance(mask, torch.Tensor) or not (
        mask.dtype == torch.bool or mask.is_floating_point()
    ):
        raise ArgumentError(
            f"{name} is {shown(mask)}; it needs booleans, with True for masked, or numbers to add"
        )
    mask = mask if batched else mask[None]
    return ~mask if mask.dtype == torch.bool else mask


def joined(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """Two masks of booleans or numbers as one."""
    if one is None or other is None:
        return other if one is None else one
    if one.dtype == other.dtype == torch.bool:
        return one & other
    one, other = (
        torch.zeros(x.shape, device=x.device).masked_fill(~x, -torch.inf)
        if x.dtype == torch.bool
        else x
        for x in (one, other)
    )
    return one + other


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
    tensors = [x if x.dim() > 2 else x[None] for x in named.values()]
    heads, *few = (x.shape[-3] for x in tensors)
    divides = all(count and heads % count == 0 for count in few)
    given = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
    if grouped and not divides:
        raise ShapeError(f"the heads of key and value do not divide those of query: {given}")
    try:
        lead = torch.broadcast_shapes(*(x.shape[:-3] for x in tensors))
        if not grouped:
            (heads,) = torch.broadcast_shapes((heads,), *((count,) for count in few))
    except RuntimeError:
        way = (
            "; give enable_gqa=True where a head of key and value serves a group of query heads"
            if divides
            else ""
        )
        raise ShapeError(f"the axes before the last two do not broadcast: {given}{way}") from None
    if few[0] != few[1]:  # attention takes as many heads of values as of keys
        if grouped:
            tensors[1:] = [x.repeat_interleave(heads // x.shape[-3], dim=-3) for x in tensors[1:]]
        few = [heads, heads]
    q, k, v = (
        x.expand(*lead, count, *x.shape[-2:]).reshape(math.prod(lead), count, *x.shape[-2:])
        for x, count in zip(tensors, (heads, *few), strict=True)
    )
    return q, k, v, (*lead, heads) if any(x.dim() > 2 for x in named.values()) else ()


def mask_of_four_axes(mask: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """(batch or 1, heads or 1, q_len or 1, k_len) of an attn_mask that broadcasts to (..., heads, q_len, k_len)."""
    if not isinstance(mask, torch.Tensor):
        raise ArgumentError(f"attn_mask is {shown(mask)}; it needs a tensor")
    refuse_wrapper("attn_mask", mask)
    missing = len(axes) + 2 - mask.dim()
    named = mask[(None,) * missing] if missing > 0 else mask
    if missing < 0 or any(
        given not in (1, size) for given, size in zip(named.shape, axes, strict=False)
    ):
        raise ShapeError(
            f"attn_mask {tuple(mask.shape)} does not broadcast to {(*axes, 'q_len', 'k_len')}"
        )
    lead = axes[:-1]
    if len(lead) > 1 and any(size > 1 for size in named.shape[: len(lead)]):
        return named.expand(*lead, *named.shape[-3:]).flatten(0, len(lead) - 1)
    return (
        named[(None,) * (4 - named.dim())] if named.dim() < 4 else named.flatten(0, named.dim() - 4)
    )


def start_of_causal(mask: torch.Tensor, q_len: int, k_len: int) -> int | None:
    """The position of the first query under a causal mask of `torch.nn.attention.bias`; None for other masks."""
    if type(mask).__name__ != "CausalBias":
        return None
    made: Any = mask  # its class is not imported, which takes seconds
    sizes = made.seq_len_q, made.seq_len_kv
    if made.variant.name == "UPPER_LEFT":
        return 0
    if sizes != (q_len, k_len):
        raise ShapeError(
            f"attn_mask is causal_lower_right{sizes}, and there are {count_of(q_len, 'queries')} and "
            f"{count_of(k_len, 'keys')}; give causal_lower_right({q_len}, {k_len})"
        )
    return k_len - q_len
