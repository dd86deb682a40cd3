"""The attention function that transformers' models call, and what is known of each call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from types import NoneType
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from regard.core.call import Call, is_transformed
from regard.core.plan import AttentionDetail
from regard.core.result import Want
from regard.core.tensors import Stored
from regard.errors import ShapeError, UnsupportedError
from regard.functional.api import attention, attention_detail
from regard.functional.compiled import compiler_beside
from regard.functional.kept import PLANS
from regard.functional.measured import profiling
from regard.functional.next_layers import NextLayers, first_layers, is_seen, next_layers
from regard.integrations.torch import pattern_and_bias
from regard.integrations.transformers.kept_cache import STORED
from regard.integrations.transformers.latents import EXPAND, Latents, form_of
from regard.integrations.transformers.masks import NO_WEIGHTS, PatternMask, refuse_collecting
from regard.integrations.transformers.packed import DOCUMENTS, DocumentsOfPass
from regard.integrations.transformers.reading import UnreadMaskWarning
from regard.integrations.transformers.sharing import running_forwards, shared_now
from regard.integrations.transformers.traced_masks import TracedMask
from regard.integrations.transformers.window_cache import mask_of_kept
from regard.mechanisms import Mechanism
from regard.patterns import Causal, Full, Pattern

__all__ = ["CHANGE", "ModuleCall", "Watcher", "attend", "regard_attention", "warned", "watchers"]

# Keywords of a call that would change its result, and which regard has no name for.
REFUSED = {
    "cache": "a paged cache of continuous batching",
    "head_mask": "heads that are scaled after the softmax",
    "block_indices": "blocks of keys that an indexer chose for each query",
    "sinks": "sinks under another name than s_aux",
}
UNUSUAL = {*REFUSED, DOCUMENTS}  # keywords that a call of most models does not have
CHANGE = "_regard_change"  # on a module: what `change_attention` set, whose `of` returns the call to be computed


class ModuleCall(NamedTuple):
    """A module's call of attention in regard's terms.

    pattern, q_start, bias, softcap, scale, dropout, sink, mechanism: as `attention` takes them. mask: what transformers
    gave, if it was no tensor of pairs. plans: those of a pattern that holds a tensor, which layers share. became: what
    became of the options that are no such keyword.
    """

    pattern: Pattern
    q_start: int | torch.Tensor
    bias: torch.Tensor | None = None
    softcap: float | None = None
    scale: float | None = None
    dropout: float = 0.0
    sink: torch.Tensor | None = None
    mechanism: Mechanism | None = None
    mask: PatternMask | None = None
    plans: dict[Any, Any] | None = None
    became: Mapping[str, str] = {}

    def options(self) -> dict[str, Any]:
        return {
            "pattern": self.pattern,
            "q_start": self.q_start,
            "bias": self.bias,
            "softcap": self.softcap,
            "scale": self.scale,
            "dropout": self.dropout,
            "sink": self.sink,
            "mechanism": self.mechanism,
        }


class Watcher(Protocol):
    """The interface of `explain`, `observe` and `intervene` while their block runs."""

    def wants(self, module: nn.Module) -> tuple[Want, ...] | None:
        """The statistics that it needs of this module's calls; None if the module is not watched."""

    def take(
        self, module: nn.Module, call: ModuleCall, detail: AttentionDetail, output: torch.Tensor
    ) -> torch.Tensor:
        """Called after a call was computed; returns the output that the model goes on with."""


watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
warned: set[type] = set()  # classes of modules whose mask was not recognised
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # q, k and v
# softcap, scale, dropout and sink
Options = tuple[float | None, float | None, float, torch.Tensor | None]


def regard_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The attention function that is registered with transformers' AttentionInterface.

    Args:
        module: the attention module that calls.
        query: (batch, heads, q_len, head_dim).
        key, value: (batch, kv_heads, k_len, dim), with the cache's entries; latents and rotary keys of a module that
            keeps them, see `latents`.
        attention_mask: a `PatternMask`, a tensor of pairs that broadcasts to (batch, heads, q_len, k_len), or None.
        scaling, dropout, softcap: as `attention`'s scale, dropout and softcap.
        is_causal: whether None as a mask means a causal one; by default nothing is masked, as in eager attention.
        position_bias: added to the scores (T5).
        s_aux: one score for each head in the softmax's denominator (sinks).
        indices: keys that an indexer chose for each query, (batch, q_len, count); -1 for none (DeepSeek-V3.2).
        others: what changes no result; what would change it is refused.

    Returns:
        (batch, q_len, heads, v_dim), and no weights: `observe` gives them.

    Raises:
        UnsupportedError: a keyword that would change the result and is not known here, or output_attentions=True.
    """
    if (
        type(attention_mask) is PatternMask
        and type(scaling) is float
        and s_aux is None
        and indices is None
        and not dropout
        and not (torch.is_grad_enabled() and query.requires_grad)
        and UNUSUAL.isdisjoint(others)
        and not others.get("output_attentions")
        and not torch.compiler.is_compiling()
        and not _is_special(module, key)
    ):
        output = _output_by_mask(attention_mask, query, key, value, position_bias, scaling, softcap)
        if output is not None:
            return output.transpose(1, 2).contiguous(), None

    # In one piece from here on: calls with gradients take this way in every layer, and each function costs them time.
    for name in REFUSED:
        if others.get(name) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} calls attention with {name}= ({REFUSED[name]}), which regard does not "
                f"compute; set attn_implementation='eager' for this model"
            )
    if others.get("output_attentions"):
        raise UnsupportedError(NO_WEIGHTS)

    stored = getattr(key, STORED, None)
    if stored is not None:
        if indices is not None or EXPAND in module.__dict__:
            raise UnsupportedError(
                f"{type(module).__name__} attends to latents or to keys that an indexer chose, whose entries "
                f"keep_entries does not know how to drop; use the cache as the model made it"
            )
        key, value = stored
    if indices is not None:
        attention_mask = _mask_of_indices(module, indices, query, key, attention_mask)
    if query.shape[0] != key.shape[0]:  # learned queries, given once for all batch rows
        query = query.expand(key.shape[0], *query.shape[1:])
    if key.shape[1] != value.shape[1] and EXPAND not in module.__dict__:
        # Several heads of values may share a head of keys, as in SDPA with enable_gqa.
        key = key.repeat_interleave(value.shape[1] // key.shape[1], dim=1)

    documents = others.get(DOCUMENTS)
    if documents is not None:
        attention_mask = _mask_within(documents, attention_mask, query, key, is_causal)

    shared = attention_mask.shared if type(attention_mask) is PatternMask else None
    over_processes = shared is not None or (running_forwards and shared_now() is not None)
    change = module.__dict__.get(CHANGE)
    if change is not None:
        attention_mask = mask_of_kept(key, attention_mask)
    latents: Latents | None = None
    if EXPAND in module.__dict__:
        why_expanded = None
        if over_processes:
            why_expanded = "processes share the sequence"
        elif change:
            why_expanded = "change_attention changed it"
        latents = form_of(module, query, key, value, scaling, why_expanded)
        query, key, value, scaling = latents.q, latents.k, latents.v, latents.scale

    tensors = (query, key, value)
    sink = None if s_aux is None else s_aux.flatten()
    options = (softcap, scaling, dropout, sink)
    output = None
    if over_processes:
        output = _attend_over_processes(module, tensors, attention_mask, position_bias, options)
    elif position_bias is None:
        output = _compute_by_kept_plan(module, tensors, attention_mask, options)
    if output is None:
        call = _call_of(module, tensors, attention_mask, is_causal, position_bias)
        call = call._replace(softcap=softcap, scale=scaling, dropout=dropout, sink=sink)
        if latents is not None:
            call = call._replace(became={**call.became, "latents": latents.form})
        if change is not None:
            call = change.of(module, call, attention_mask, query.shape[2], key.shape[2])
        output = attend(module, query, key, value, call)
    if latents is not None:
        output = latents.output(output)
    return output.transpose(1, 2).contiguous(), None


def _output_by_mask(
    mask: PatternMask,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor | None:
    """The output of a layer, computed as that of an earlier layer with its mask; None where it takes the usual way.

    Every layer passes here, so it calls as few functions as it can.
    """
    if mask.sizes[3] != k.shape[2] or mask.sizes[2] != q.shape[2]:
        return None  # an error, or a mask that serves any number of queries
    following = mask.following
    if following is not None:
        layers, known_scale, known_softcap = following
        if scale != known_scale or softcap != known_softcap:
            return None
        return layers.compute(q, k, v, bias)

    if mask.reason is not None or mask.shared is not None:
        return None
    if type(softcap) not in (float, NoneType):
        return None
    call = Call(
        q, k, v, bias, pattern=mask.pattern, softcap=softcap, scale=scale, q_start=mask.q_start
    )
    layers = first_layers(call)
    output = None if layers is None else layers.compute(q, k, v, bias)
    if output is not None and layers is not None:
        mask.following = layers, scale, softcap
    return output


def _is_special(module: nn.Module, key: Any) -> bool:
    """Whether a call needs more than its mask says: its module is changed or watched, or a cache dropped keys."""
    state = module.__dict__
    return (
        CHANGE in state
        or EXPAND in state
        or bool(watchers.get())
        or bool(running_forwards)
        or getattr(key, STORED, None) is not None
    )


def _following(
    module: nn.Module, call: ModuleCall, first: Call
) -> tuple[NextLayers, float, float | None] | None:
    """What computes the calls of later layers that share this layer's mask; None where this call was special."""
    if _is_special(module, first.k) or type(call.scale) is not float:
        return None
    if type(call.softcap) not in (float, NoneType):
        return None
    layers = next_layers(first)
    return None if layers is None else (layers, call.scale, call.softcap)


def _mask_of_indices(
    module: nn.Module,
    indices: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """The mask of the pairs that both the mask and an indexer allow, as numbers that are added."""
    if CHANGE in module.__dict__ or shared_now() is not None or isinstance(mask, TracedMask):
        raise UnsupportedError(
            f"{type(module).__name__} attends to keys that an indexer chose for each query, which is computed in one "
            f"process, uncompiled and without change_attention; or set attn_implementation='eager' for this model"
        )
    batch = k.shape[0]
    q_len = q.shape[2]
    k_len = k.shape[2]
    # The index -1 becomes a column behind the keys, which is cut off afterwards.
    columns = torch.where(indices < 0, k_len, indices.long()).expand(batch, q_len, -1)
    chosen = torch.zeros(batch, 1, q_len, k_len + 1, dtype=torch.bool, device=k.device)
    chosen.scatter_(-1, columns[:, None], True)
    added = torch.zeros(chosen.shape, dtype=q.dtype, device=k.device)
    added = added.masked_fill(~chosen, -torch.inf)[..., :k_len]
    return added if mask is None else added + mask[..., :k_len].to(q.dtype)


def _mask_within(
    documents: DocumentsOfPass,
    mask: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    is_causal: bool | None,
) -> Any:
    """The mask of the pairs that both the mask of a call and its documents allow."""
    ids = documents.ids
    if isinstance(mask, PatternMask | TracedMask):
        return mask.of_documents(ids)
    q_len = q.shape[2]
    k_len = k.shape[2]
    of_keys = ids[:, ids.shape[1] - k_len :]
    same = of_keys[:, None, k_len - q_len :, None] == of_keys[:, None, None]
    if mask is None:
        return same.tril(k_len - q_len) if is_causal else same
    if mask.dtype == torch.bool:
        return mask[..., :k_len] & same
    return mask[..., :k_len].masked_fill(~same, torch.finfo(mask.dtype).min)


def _attend_over_processes(
    module: nn.Module,
    tensors: Tensors,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    options: Options,
) -> torch.Tensor:
    """The output of a call of a model whose sequence is divided among processes; see `sharing`."""
    if not isinstance(mask, PatternMask) or mask.shared is None:
        running = shared_now()
        assert running is not None
        running.refuse_call(
            module, "calls attention without the mask that was made for the whole sequence"
        )
    shared = mask.shared
    if position_bias is not None:
        shared.refuse_call(module, "adds a bias by positions to its scores")
    if CHANGE in module.__dict__:
        shared.refuse_call(module, "has attention that change_attention changed")
    if watchers.get():
        shared.refuse_call(module, "is watched by explain or observe")
    softcap, scale, dropout, sink = options
    return shared.attention(
        module, *tensors, mask.pattern, softcap=softcap, scale=scale, dropout=dropout, sink=sink
    )


def _compute_by_kept_plan(
    module: nn.Module, tensors: Tensors, mask: torch.Tensor | None, options: Options
) -> torch.Tensor | None:
    """The output by what an earlier layer with this mask kept for calls of these sizes; None if none was like it."""
    q, k, v = tensors
    if type(mask) is not PatternMask or type(q) is not torch.Tensor or isinstance(k, Stored):
        return None
    if torch.compiler.is_dynamo_compiling() or CHANGE in module.__dict__ or watchers.get():
        return None
    plans = mask.plans
    if not plans:
        return None
    softcap, scale, dropout, sink = options
    compute = plans.get(_key(q, k, v, None, sink, softcap, scale, dropout))
    if compute is None or profiling() or compiler_beside() is not None or is_transformed():
        return None
    call = Call(
        q,
        k,
        v,
        sink=sink,
        pattern=mask.pattern,
        softcap=softcap,
        scale=scale,
        dropout=dropout,
        q_start=mask.q_start,
    )
    return compute(call)


def _key(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    *numbers: float | None,
) -> tuple[Any, ...]:
    """What decides beside a pattern how a call is computed."""
    key = q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, numbers
    key += q.is_neg(), k.is_neg(), v.is_neg()
    if bias is not None or sink is not None:
        key += _key_of_optional(bias), _key_of_optional(sink)
    if torch.is_grad_enabled():
        learns = bias is not None and bias.requires_grad, sink is not None and sink.requires_grad
        key += (q.requires_grad, k.requires_grad, v.requires_grad, *learns)
    return key


def _key_of_optional(x: torch.Tensor | None) -> tuple[Any, ...] | None:
    return None if x is None else (x.shape, x.dtype, x.is_neg())


def _call_of(
    module: nn.Module,
    tensors: Tensors,
    mask: torch.Tensor | None,
    is_causal: bool | None,
    bias: torch.Tensor | None,
) -> ModuleCall:
    """Pattern, positions and bias of a call."""
    q, k, _ = tensors
    q_len = q.shape[2]
    k_len = k.shape[2]
    if bias is not None:
        bias = bias[..., :k_len]
    if isinstance(mask, TracedMask):
        if isinstance(k_len, int) and isinstance(mask.shape[-1], int) and mask.shape[-1] != k_len:
            raise ShapeError(_other_length(module, mask.shape[2:], q_len, k_len))
        return ModuleCall(mask.pattern, mask.q_start, bias)
    if isinstance(mask, PatternMask):
        # One row of keys for all queries, or a mask that hides nothing, serves any number of queries.
        serves_all = mask.sizes[2] == 1 and not mask.pattern.compares_positions
        fits = mask.sizes[2] == q_len or mask.pattern == Full() or serves_all
        if mask.sizes[3] != k_len or not fits:
            raise ShapeError(_other_length(module, mask.sizes[2:], q_len, k_len))
        if mask.reason is not None:
            _warn(module, mask.reason)
        return ModuleCall(mask.pattern, mask.q_start, bias, mask=mask, plans=mask.plans)
    if mask is None:
        if not torch.compiler.is_compiling():
            refuse_collecting()
        # the first query meets the first key, as in PyTorch's own function
        if is_causal and q_len > 1:
            return ModuleCall(Causal(), 0, bias, became={"no mask": "causal"})
        return ModuleCall(Full(), k_len - q_len, bias)
    return _call_of_pairs(mask[..., :k_len], bias, q_len, q.dtype)


def _call_of_pairs(
    mask: torch.Tensor, bias: torch.Tensor | None, q_len: int, dtype: torch.dtype
) -> ModuleCall:
    """Pattern, positions and bias of a call with a mask of pairs, (..., q_len, k_len)."""
    k_len = mask.shape[-1]
    is_compiling = torch.compiler.is_compiling()
    if mask.is_floating_point() and (is_compiling or not mask.requires_grad):
        # how transformers writes masked pairs
        mask = mask.masked_fill(mask < torch.finfo(mask.dtype).min / 2, -torch.inf)
    if is_compiling:  # where a pattern cannot hold a tensor
        if mask.dtype == torch.bool:
            zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
            mask = zeros.masked_fill(~mask, -torch.inf)
        added = mask.to(dtype) if mask.is_floating_point() else mask
        return ModuleCall(Full(), k_len - q_len, _sum(bias, added))
    pattern, added = pattern_and_bias(mask, q_len, k_len)
    start = 0 if pattern == Causal() else k_len - q_len
    if added is not None:
        bias = _sum(bias, added.to(dtype))
    name = f"a mask {(*mask.shape,)} of {str(mask.dtype).removeprefix('torch.')}"
    became = {name: "bias" if added is mask else "pattern"}
    return ModuleCall(pattern, start, bias, became=became)


def _other_length(module: nn.Module, sizes: Any, q_len: int, k_len: int) -> str:
    return (
        f"{type(module).__name__} was given a mask for {sizes[0]} queries and {sizes[1]} keys beside {q_len} queries "
        f"and {k_len} keys; the mask was made for another layer or cache"
    )


def _sum(bias: torch.Tensor | None, added: torch.Tensor) -> torch.Tensor:
    return added if bias is None else bias + added


def _warn(module: nn.Module, reason: str) -> None:
    """Report once for each class of modules that its mask was not recognised."""
    if type(module) in warned:
        return
    warned.add(type(module))
    warnings.warn(
        f"{type(module).__name__}: {reason} is not known to regard, so the exact dense mask is used, which stores "
        f"every pair; explain(model, inputs) shows where",
        UnreadMaskWarning,
        stacklevel=3,
    )


def attend(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: ModuleCall
) -> torch.Tensor:
    """The output of a module's call, (batch, heads, q_len, v_dim); watchers of the module get its statistics.

    Layers that share a mask look up once what computes their calls.
    """
    if not torch.compiler.is_compiling() and watchers.get():
        output = _attend_watched(module, q, k, v, call)
        if output is not None:
            return output
    options = call.options()
    plans = call.plans
    if plans is None or isinstance(k, Stored) or is_seen():
        return attention(q, k, v, **options)

    mask = call.mask
    learns = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    if mask is not None and not learns:
        output = attention(q, k, v, **options)
        if mask.following is None:
            mask.following = _following(module, call, Call(q, k, v, **options))
        return output
    key = _key(q, k, v, call.bias, call.sink, call.softcap, call.scale, call.dropout)
    compute = plans.get(key)
    if compute is not None:
        output = compute(Call(q, k, v, **options))
        return attention(q, k, v, **options) if output is None else output
    output = attention(q, k, v, **options)
    compute = PLANS.computing(Call(q, k, v, **options))
    if compute is not None:
        plans[key] = compute
    return output


def _attend_watched(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: ModuleCall
) -> torch.Tensor | None:
    """The output of a call, which watchers of the module may have changed; None if nothing watches the module."""
    wants: list[Want] = []
    watching = []
    for watcher in watchers.get():
        want = watcher.wants(module)
        if want is not None:
            wants += want
            watching.append(watcher)
    if not watching:
        return None
    detail = attention_detail(q, k, v, want=tuple(dict.fromkeys(wants)), **call.options())
    output = detail.output
    for watcher in watching:
        output = watcher.take(module, call, detail, output)
    return output
