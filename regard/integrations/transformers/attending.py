"""The attention function that transformers' models call, and what is known of each call."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from regard.core.call import Call, is_transformed
from regard.core.plan import AttentionDetail
from regard.core.result import Want
from regard.errors import ShapeError, UnsupportedError
from regard.functional.api import attention, attention_detail
from regard.functional.compiled import compiler_beside
from regard.functional.kept import computing
from regard.integrations.torch import meaning
from regard.integrations.transformers.masks import PatternMask
from regard.integrations.transformers.sharing import forwards, shared_now
from regard.integrations.transformers.tracing import TracedMask, UnreadMaskWarning
from regard.mechanisms import Mechanism
from regard.patterns import Causal, Full, Pattern

__all__ = ["CHANGE", "UnreadMaskWarning", "attended", "attention_modules", "regard_attention"]

# Keywords of a call that would change its result, and which regard has no name for.
REFUSED = {
    "cache": "a paged cache of continuous batching",
    "head_mask": "heads that are scaled after the softmax",
    "indices": "keys that an indexer chose for each query",
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
class _Warned:
    kinds: set[type] = field(default_factory=set)


# How the projections of queries, or of all three together, are called.
PROJECTION = re.compile(
    r"(q|query|q_lin|q_proj|wq|in_proj|qkv|qkv_proj|Wqkv|c_attn|query_key_value|q_a_proj|query_proj|to_q|att_proj_qkv)"
)

watchers: ContextVar[tuple[Watcher, ...]] = ContextVar("watchers", default=())
_warned = _Warned()


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
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The attention function that is registered with transformers' AttentionInterface.

    Args:
        module: the attention module that calls.
        query: (batch, heads, q_len, head_dim).
        key, value: (batch, kv_heads, k_len, dim), with the cache's entries.
        attention_mask: a `PatternMask`, a tensor of pairs that broadcasts to (batch, heads, q_len, k_len), or None.
        scaling, dropout, softcap: as `attention`'s scale, dropout and softcap.
        is_causal: what None as a mask means; the module's own attribute by default.
        position_bias: added to the scores (T5).
        s_aux: one score for each head in the softmax's denominator (sinks).
        others: what changes no result; what would change it is refused.

    Returns:
        (batch, q_len, heads, v_dim), and no weights: `observe` gives them.

    Raises:
        UnsupportedError: a keyword that would change the result and is not known here, or output_attentions=True.
    """
    if not UNCOMPUTED.isdisjoint(others):
        _refuse_uncomputed(module, others)
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
        raise UnsupportedError(
            f"{type(module).__name__} was asked for output_attentions=True, and regard's attention stores no weights; "
            f"leave it out and collect them with: with observe(model, 'weights') as observed: ..."
        )


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
        return Asked(mask.pattern, mask.q_start, bias)
    if isinstance(mask, PatternMask):
        if mask.sizes[2:] != (q_len, k_len):
            raise ShapeError(
                f"{type(module).__name__} was given a mask for {mask.sizes[2]} queries and {mask.sizes[3]} keys beside "
                f"{q_len} queries and {k_len} keys; the mask was made for another layer or cache"
            )
        if mask.reason is not None:
            _warn(module, mask.reason)
        return Asked(mask.pattern, mask.q_start, bias, mask=mask, plans=mask.plans)
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal and q_len > 1:  # the first query meets the first key, as in PyTorch's own function
            return Asked(Causal(), 0, bias, said={"no mask": "causal"})
        return Asked(Full(), k_len - q_len, bias)
    mask = mask[..., :k_len]
    if torch.compiler.is_compiling():
        return Asked(Full(), k_len - q_len, _summed(bias, _as_bias(mask, query.dtype)))
    pattern, added = meaning(mask, q_len, k_len)
    start = 0 if pattern == Causal() else k_len - q_len
    said = {
        f"a mask {(*mask.shape,)} of {str(mask.dtype).removeprefix('torch.')}": "bias" if added is mask else "pattern"
    }
    return Asked(pattern, start, _summed(bias, None if added is None else added.to(query.dtype)), said=said)


def _as_bias(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask as numbers that are added: inside torch.compile a pattern cannot hold a tensor."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -torch.inf)


def _summed(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    return one if other is None else other if one is None else one + other


def _warn(module: nn.Module, reason: str) -> None:
    """Say once for each class of modules that its mask was not recognised."""
    if type(module) in _warned.kinds:
        return
    _warned.kinds.add(type(module))
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
        if compute is None and (compute := computing(asked.call(q, k, v))) is not None:
            plans[look] = compute
    return output


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention, by name: those with projections of queries or keys of their own."""
    found = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        children = [child for child, _ in module.named_children()]
        projects = any(PROJECTION.fullmatch(child) for child in children)
        if projects and re.search(r"Attention|Attn", kind) and not isinstance(module, PreTrainedModel):
            found[name] = module
    return found
