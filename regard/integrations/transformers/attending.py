"""The attention function that transformers' models call, and what is known of each call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from regard.core.call import Call, is_transformed
from regard.core.plan import AttentionDetail
from regard.core.result import Want
from regard.errors import ShapeError, UnsupportedError
from regard.functional.api import attention, attention_detail
from regard.functional.compiled import compiler_beside
from regard.functional.kept import PLANS
from regard.integrations.torch import meaning
from regard.integrations.transformers.masks import NO_WEIGHTS, PatternMask, refuse_collecting
from regard.integrations.transformers.reading import TracedMask, UnreadMaskWarning
from regard.integrations.transformers.sharing import forwards, shared_now
from regard.mechanisms import Mechanism
from regard.patterns import Causal, Full, Pattern

__all__ = ["CHANGE", "UnreadMaskWarning", "attended", "regard_attention"]

# Keywords of a call that would change its result, and which regard has no name for.
REFUSED = {
    "cache": "a paged cache of continuous batching",
    "head_mask": "heads that are scaled after the softmax",
    "block_indices": "blocks of keys that an indexer chose for each query",
    "sinks": "sinks under another name than s_aux",
}
UNCOMPUTED = {*REFUSED, "output_attentions"}


class Asked(NamedTuple):
    """A call of attention in regard's terms.

    pattern, q_start, bias, softcap, scale, dropout, sink, mechanism: as `attention` takes them. mask: what transformers
    gave, if it was no tensor of pairs. plans: those of a pattern that holds a tensor, which layers share. said: what
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
    said: Mapping[str, str] = {}

    def options(self) -> dict[str, Any]:
        """The keywords of `attention`."""
        return {
            "pattern": self.pattern, "q_start": self.q_start, "bias": self.bias, "softcap": self.softcap,
            "scale": self.scale, "dropout": self.dropout, "sink": self.sink, "mechanism": self.mechanism,
        }  # fmt: skip

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Call:
        """The call of `attention` with these tensors."""
        return Call(
            q, k, v, self.bias, sink=self.sink, pattern=self.pattern, softcap=self.softcap, scale=self.scale,
            dropout=self.dropout, q_start=self.q_start, mechanism=self.mechanism,
        )  # fmt: skip


class Watcher(Protocol):
    """The interface of `explain` and `observe` while their block runs."""

    def wants(self, module: nn.Module) -> tuple[Want, ...] | None:
        """The statistics that it needs of this module's calls; None if the module is not watched."""

    def take(self, module: nn.Module, asked: Asked, detail: AttentionDetail) -> None:
        """Called after a call was computed."""


class Change(Protocol):
    """What `replace_attention` sets on a module, under the name CHANGE."""

    def mask_of(self, key: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor | None:
        """The mask of the keys that a cache of the replacement kept; the given one for other caches."""

    def of(self, module: nn.Module, asked: Asked, given: torch.Tensor | None, q_len: int, k_len: int) -> Asked:
        """The call that is computed instead; `given` is the mask that transformers gave."""


CHANGE = "_regard_change"


@dataclass
class Warned:
    kinds: set[type] = field(default_factory=set)


watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
warned = Warned()


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
        key, value: (batch, kv_heads, k_len, dim), with the cache's entries.
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
    if not UNCOMPUTED.isdisjoint(others):
        _refuse_uncomputed(module, others)
    if indices is not None:
        attention_mask = _of_indices(module, indices, query, key, attention_mask)
    if query.shape[0] != key.shape[0]:  # learned queries, given once for all batch rows
        query = query.expand(key.shape[0], *query.shape[1:])
    sink = None if s_aux is None else s_aux.flatten()
    options = softcap, scaling, dropout, sink
    shared = attention_mask.shared if type(attention_mask) is PatternMask else None
    if shared is not None or (forwards and shared_now() is not None):
        output = _over_processes(module, query, key, value, attention_mask, position_bias, options)
        return output.transpose(1, 2).contiguous(), None
    output = _computed_again(module, query, key, value, attention_mask, position_bias, options)
    if output is None:
        change: Change | None = module.__dict__.get(CHANGE)
        if change is not None:
            attention_mask = change.mask_of(key, attention_mask)
        asked = _asked(module, query, key, attention_mask, is_causal, position_bias)
        asked = asked._replace(softcap=softcap, scale=scaling, dropout=dropout, sink=sink)
        if change is not None:
            asked = change.of(module, asked, attention_mask, query.shape[2], key.shape[2])
        output = attended(module, query, key, value, asked)
    return output.transpose(1, 2).contiguous(), None


def _refuse_uncomputed(module: nn.Module, others: Mapping[str, Any]) -> None:
    for name in REFUSED:
        if others.get(name) is not None:
            raise UnsupportedError(
                f"{type(module).__name__} calls attention with {name}= ({REFUSED[name]}), which regard does not "
                f"compute; set attn_implementation='eager' for this model"
            )
    if others.get("output_attentions"):
        raise UnsupportedError(NO_WEIGHTS)


def _of_indices(
    module: nn.Module, indices: torch.Tensor, q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """The mask of the pairs that both the mask and an indexer allow, as numbers that are added."""
    if CHANGE in module.__dict__ or shared_now() is not None or isinstance(mask, TracedMask):
        raise UnsupportedError(
            f"{type(module).__name__} attends to keys that an indexer chose for each query, which is computed in one "
            f"process, uncompiled and without replace_attention; or set attn_implementation='eager' for this model"
        )
    batch, q_len, k_len = k.shape[0], q.shape[2], k.shape[2]
    chosen = torch.zeros(batch, 1, q_len, k_len + 1, dtype=torch.bool, device=k.device)
    chosen.scatter_(-1, torch.where(indices < 0, k_len, indices.long()).expand(batch, q_len, -1)[:, None], True)
    added = torch.zeros(chosen.shape, dtype=q.dtype, device=k.device).masked_fill(~chosen, -torch.inf)[..., :k_len]
    return added if mask is None else added + mask[..., :k_len].to(q.dtype)


def _over_processes(
    module: nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    options: tuple[float | None, float | None, float, torch.Tensor | None],
) -> torch.Tensor:
    """The output of a call of a model whose sequence is divided among processes; see `sharing`."""
    shared = mask.shared if isinstance(mask, PatternMask) else None
    if shared is None:
        at = shared_now()
        assert at is not None
        at.refuse_call(module, "calls attention without the mask that was made for the whole sequence")
    assert isinstance(mask, PatternMask)
    if position_bias is not None:
        shared.refuse_call(module, "adds a bias by positions to its scores")
    if CHANGE in module.__dict__:
        shared.refuse_call(module, "has attention that replace_attention changed")
    if watchers.get():
        shared.refuse_call(module, "is watched by explain or observe")
    softcap, scale, dropout, sink = options
    return shared.attention(module, q, k, v, mask.pattern, softcap=softcap, scale=scale, dropout=dropout, sink=sink)


def _computed_again(
    module: nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    position_bias: torch.Tensor | None,
    options: tuple[float | None, float | None, float, torch.Tensor | None],
) -> torch.Tensor | None:
    """The output of a call like one that was computed with this mask before, as an earlier layer had it; else None."""
    if type(mask) is not PatternMask or type(q) is not torch.Tensor or position_bias is not None:
        return None
    if torch.compiler.is_dynamo_compiling():
        return None
    if CHANGE in module.__dict__ or watchers.get() or not (known := mask.plans):
        return None
    softcap, scale, dropout, sink = options
    compute = known.get(_look(q, k, v, None, sink, softcap, scale, dropout))
    if compute is None or compiler_beside() is not None or is_transformed():
        return None
    return compute(Call(q, k, v, None, None, None, sink, mask.pattern, None, softcap, scale, dropout, mask.q_start))


def _look(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    sink: torch.Tensor | None,
    *numbers: float | None,
) -> tuple[Any, ...]:
    """What decides beside a pattern how a call is computed."""
    look = q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, numbers
    look += q.is_neg(), k.is_neg(), v.is_neg()
    if bias is not None or sink is not None:
        look += tuple(None if one is None else (one.shape, one.dtype, one.is_neg()) for one in (bias, sink))
    if torch.is_grad_enabled():
        learns = bias is not None and bias.requires_grad, sink is not None and sink.requires_grad
        look += (q.requires_grad, k.requires_grad, v.requires_grad, *learns)
    return look


def _asked(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool | None,
    position_bias: torch.Tensor | None,
) -> Asked:
    """Pattern, positions and bias of a call."""
    q_len, k_len = query.shape[2], key.shape[2]
    bias = None if position_bias is None else position_bias[..., :k_len]
    if isinstance(mask, TracedMask):
        if isinstance(k_len, int) and isinstance(mask.shape[-1], int) and mask.shape[-1] != k_len:
            raise ShapeError(_other_length(module, mask.shape[2:], q_len, k_len))
        return Asked(mask.pattern, mask.q_start, bias)
    if isinstance(mask, PatternMask):
        if mask.sizes[3] != k_len or (mask.sizes[2] != q_len and not _for_any_queries(mask)):
            raise ShapeError(_other_length(module, mask.sizes[2:], q_len, k_len))
        if mask.reason is not None:
            _warn(module, mask.reason)
        return Asked(mask.pattern, mask.q_start, bias, mask=mask, plans=mask.plans)
    if mask is None:
        if not torch.compiler.is_compiling():
            refuse_collecting()
        if is_causal and q_len > 1:  # the first query meets the first key, as in PyTorch's own function
            return Asked(Causal(), 0, bias, said={"no mask": "causal"})
        return Asked(Full(), k_len - q_len, bias)
    mask = mask[..., :k_len]
    if torch.compiler.is_compiling():
        return Asked(Full(), k_len - q_len, _summed(bias, _as_bias(mask, query.dtype)))
    if mask.is_floating_point() and not mask.requires_grad:  # transformers writes masked pairs as the least number
        mask = mask.masked_fill(mask < torch.finfo(mask.dtype).min / 2, -torch.inf)
    pattern, added = meaning(mask, q_len, k_len)
    start = 0 if pattern == Causal() else k_len - q_len
    said = {
        f"a mask {(*mask.shape,)} of {str(mask.dtype).removeprefix('torch.')}": "bias" if added is mask else "pattern"
    }
    return Asked(pattern, start, _summed(bias, None if added is None else added.to(query.dtype)), said=said)


def _for_any_queries(mask: PatternMask) -> bool:
    """Whether a mask is one row of keys for all queries, or hides nothing."""
    return mask.pattern == Full() or (mask.sizes[2] == 1 and not mask.pattern.compares_positions)


def _other_length(module: nn.Module, sizes: Any, q_len: int, k_len: int) -> str:
    return (
        f"{type(module).__name__} was given a mask for {sizes[0]} queries and {sizes[1]} keys beside {q_len} queries "
        f"and {k_len} keys; the mask was made for another layer or cache"
    )


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask as numbers that are added: inside torch.compile a pattern cannot hold a tensor."""
    if mask.dtype != torch.bool:
        return mask.masked_fill(mask < torch.finfo(mask.dtype).min / 2, -torch.inf).to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def _summed(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return one if other is None else other if one is None else one + other


def _warn(module: nn.Module, reason: str) -> None:
    """Say once for each class of modules that its mask was not recognised."""
    if type(module) in warned.kinds:
        return
    warned.kinds.add(type(module))
    warnings.warn(
        f"{type(module).__name__}: {reason} is not known to regard, so the exact dense mask is used, which stores "
        f"every pair; explain(model, inputs) shows where",
        UnreadMaskWarning,
        stacklevel=3,
    )


def attended(module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: Asked) -> torch.Tensor:
    """The output of a module's call, (batch, heads, q_len, v_dim); watchers of the module get its statistics."""
    if not torch.compiler.is_compiling() and (watching := watchers.get()):
        wants = [(one, want) for one in watching if (want := one.wants(module)) is not None]
        if wants:
            want = tuple(dict.fromkeys(each for _, wanted in wants for each in wanted))
            return _watched(module, q, k, v, asked, [one for one, _ in wants], want)
    return _looked_up_once(q, k, v, asked)


def _watched(
    module: nn.Module,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    asked: Asked,
    watching: list[Watcher],
    want: tuple[Want, ...],
) -> torch.Tensor:
    detail = attention_detail(q, k, v, want=want, **asked.options())
    for one in watching:
        one.take(module, asked, detail)
    return detail.output


def _looked_up_once(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, asked: Asked) -> torch.Tensor:
    """The output of a call with a mask; layers that share the mask look up once what computes their calls."""
    plans = asked.plans
    if plans is None or compiler_beside() is not None or is_transformed():
        return attention(q, k, v, **asked.options())
    look = _look(q, k, v, asked.bias, asked.sink, asked.softcap, asked.scale, asked.dropout)
    compute = plans.get(look)
    output = compute(asked.call(q, k, v)) if compute is not None else None
    if output is None:
        output = attention(q, k, v, **asked.options())
        if compute is None and (compute := PLANS.computing(asked.call(q, k, v))) is not None:
            plans[look] = compute
    return output
