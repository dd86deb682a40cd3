"""PyTorch's attention computed by regard: its functions inside a `with` block, its layer as a drop-in, its programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from regard.arguments import count_of, refuse_wrapper
from regard.core.plan import AttentionDetail
from regard.core.result import Want, checked_wants
from regard.errors import ArgumentError, RegardError, ShapeError, UnsupportedError
from regard.functional.api import attention, attention_detail
from regard.functional.compiled import whole_attention
from regard.layers.from_pytorch import (
    allowed_by,
    as_four_axes,
    check_inputs,
    check_masks,
    joined,
    mask_of_four_axes,
    start_of_causal,
)
from regard.layers.recording import RecordedLayer, current_recording
from regard.patterns import Causal, Explicit, Full, KeyMask, Pattern, as_pattern
from regard.reprs import brief

__all__ = [
    "MultiheadAttention",
    "ReplacedAttention",
    "ReplacedCall",
    "replaced_attention",
    "whole_attention",
]


@dataclass(frozen=True)
class ReplacedCall:
    """What is known of a call before it is computed.

    Args:
        number: calls before this one in the block; with one call for each layer, the number of the layer.
        heads, q_len, k_len: sizes of the call.
        pattern: what the call itself allows.
    """

    number: int
    heads: int
    q_len: int
    k_len: int
    pattern: Pattern


Chosen = Pattern | str | None | Callable[[ReplacedCall], Pattern | str | None]


@brief
@dataclass
class ReplacedAttention:
    """The calls that were computed in a block of `replaced_attention`.

    Args:
        calls: calls that regard computed.
        details: their statistics, in order, if some were wanted.
        left: for each call that PyTorch computed itself, the reason.
    """

    calls: int = 0
    details: list[AttentionDetail] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@contextmanager
def replaced_attention(
    pattern: Chosen = None, *, want: Iterable[Want] | Want = (), backend: str = "auto"
) -> Generator[ReplacedAttention]:
    """Compute `F.scaled_dot_product_attention` of this thread by regard inside the block.

    `nn.MultiheadAttention` and `nn.TransformerEncoder` are included, and so are models that call these functions. The
    numbers are those of PyTorch, also for the causal masks of `torch.nn.attention.bias`, except that a query with no
    key gets zeros, where PyTorch gives NaN. PyTorch's fast path for encoder layers is off in the block, since it calls
    neither function. Not inside `torch.compile`.

    Args:
        pattern: joined by & with what each call allows: a pattern, its text, or a function of the `ReplacedCall` that
            returns one, such as another pattern for each layer.
        want: statistics of each call, as `attention_detail` takes them.
        backend: as `attention` takes it.

    Returns:
        A context manager whose `as` target counts the calls and keeps their statistics.

    Raises:
        ArgumentError: an unknown pattern or statistic; a mask beside is_causal=True.
        RegardError: at the end of the block, if no call was seen.

    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.ones(1, 5, 8)
    >>> with replaced_attention("causal_window(2)", want="entropy") as seen:
    ...     output, weights = layer(x, x, x)
    >>> seen.calls, seen.details[0].entropy.shape, [round(weight, 3) for weight in weights[0, 4].tolist()]
    (1, torch.Size([1, 2, 5]), [0.0, 0.0, 0.0, 0.5, 0.5])
    """
    if not callable(pattern):
        as_pattern(pattern)
    seen = ReplacedAttention()
    with _Mode(
        seen, pattern, checked_wants(want), backend
    ) as mode:  # PyTorch's fast path is off in any such mode
        yield seen
    if not mode.called:
        raise RegardError(
            "no call of F.scaled_dot_product_attention was seen in the block of replaced_attention; layers of regard "
            "are seen by rg.record_attention(model), models of transformers by observe(model) after attach(model), and "
            "compiled models and other threads not at all"
        )


class _Mode(TorchFunctionMode):
    """Hands the two functions to regard; everything else stays PyTorch's."""

    def __init__(self, seen: ReplacedAttention, pattern: Chosen, want: Any, backend: str) -> None:
        super().__init__()
        self.seen, self.pattern, self.want, self.backend = seen, pattern, want, backend
        self.called = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            self.called = True
            return self.attend(*args, **kwargs)[0]
        if func is F.multi_head_attention_forward:
            self.called = True
            return self.multi_head(func, inspect.signature(func).bind(*args, **kwargs))
        return func(*args, **kwargs)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        want: Any = (),
    ) -> tuple[torch.Tensor, AttentionDetail]:
        """The function of `F`; `want` has further statistics of this call alone."""
        if is_causal and attn_mask is not None:
            raise ArgumentError(
                "attn_mask is given beside is_causal=True; PyTorch takes one of them, and so do we"
            )
        q, k, v, axes = as_four_axes(query, key, value, enable_gqa)
        start = None if attn_mask is None else start_of_causal(attn_mask, q.shape[2], k.shape[2])
        if is_causal or start is not None:
            own = Causal()
            bias = None
        else:
            mask = None if attn_mask is None else mask_of_four_axes(attn_mask, axes)
            own, bias = meaning(mask, q.shape[2], k.shape[2])
        if start is None and own == Causal():
            start = 0  # PyTorch aligns the first query with the first key
        call = ReplacedCall(self.seen.calls, q.shape[1], q.shape[2], k.shape[2], own)
        chosen: Any = self.pattern(call) if callable(self.pattern) else self.pattern
        detail = attention_detail(
            q,
            k,
            v,
            pattern=own & as_pattern(chosen),
            bias=bias,
            scale=scale,
            dropout=dropout_p,
            q_start=start,
            want=(*self.want, *want),
            backend=self.backend,
        )
        self.seen.calls += 1
        if self.want:
            self.seen.details.append(detail)
        return detail.output.reshape(*axes, *detail.output.shape[2:]), detail

    def multi_head(self, func: Any, bound: inspect.BoundArguments) -> Any:
        """The function of nn.MultiheadAttention, which calls the other one, if it is not asked for weights."""
        bound.apply_defaults()
        given = bound.arguments
        if given["attn_mask"] is not None:
            refuse_wrapper("attn_mask", given["attn_mask"])
        if given["need_weights"] and given["training"] and given["dropout_p"] > 0:
            self.seen.left.append("the weights of a multi-head attention are wanted after dropout")
            return func(*bound.args, **bound.kwargs)
        needs = given["need_weights"]
        details = []

        def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
            output, detail = self.attend(*args, **kwargs, want=("weights",) if needs else ())
            details.append(detail)
            return output

        given["need_weights"] = False
        output, _ = _finding(attend, inspect.unwrap(func))(*bound.args, **bound.kwargs)
        if not needs:
            return output, None
        weights = details[0].weights  # (batch, heads, q_len, k_len)
        weights = weights.mean(1) if given["average_attn_weights"] else weights
        return output, weights if given["query"].dim() == 3 else weights[0]


def meaning(
    mask: torch.Tensor | None, q_len: int, k_len: int
) -> tuple[Pattern, torch.Tensor | None]:
    """The pattern and the bias that a mask stands for; the pattern is Causal, KeyMask or Explicit where it is one.

    In a graph of torch.compile or torch.export numbers are not known: those of a mask stay a bias.
    """
    if mask is None:
        return Full(), None
    if any(
        given not in (1, size) for given, size in zip(mask.shape[2:], (q_len, k_len), strict=True)
    ):
        raise ShapeError(
            f"attn_mask has {tuple(mask.shape[2:])} as its last axes; {count_of(q_len, 'queries')} and "
            f"{count_of(k_len, 'keys')} need ({q_len}, {k_len})"
        )
    live = mask if mask.dtype == torch.bool else _live(mask)
    if live is None:
        return Full(), mask
    known = not torch.compiler.is_compiling()
    # for all heads and queries
    alike = all(live.shape[axis] == 1 or not live.stride(axis) for axis in (1, 2))
    if alike or (known and live.shape[2] == 1 and torch.equal(live, live[:, :1].expand_as(live))):
        return KeyMask(live[:, 0, 0].expand(-1, k_len)), None
    if (
        known
        and live.shape == (1, 1, q_len, k_len)
        and torch.equal(live[0, 0], torch.ones_like(live[0, 0]).tril())
    ):
        return Causal(), None
    return Explicit(live.expand(-1, -1, q_len, k_len)), None


def _live(mask: torch.Tensor) -> torch.Tensor | None:
    """Where a mask of numbers adds 0, if it adds -inf everywhere else and needs no gradient; None otherwise."""
    if mask.requires_grad or torch.compiler.is_compiling():
        return None
    live = mask == 0
    return live if bool((live | (mask == -torch.inf)).all()) else None


class MultiheadAttention(RecordedLayer, nn.MultiheadAttention):
    """`nn.MultiheadAttention` computed by regard: the same parameters, state_dict, arguments and results.

    Weights are those before dropout, and are computed only for need_weights=True; `record_attention` records them.
    A query with no key gets zeros, where PyTorch gives NaN. Inside nn.TransformerEncoderLayer PyTorch's fast path for
    evaluation, which would not call this layer, is off.

    Args:
        pattern: joined by & with what each call allows; PyTorch's own layer has none.
        positional, keywords: as `nn.MultiheadAttention` takes them.

    >>> theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> ours = MultiheadAttention(8, 2, batch_first=True, pattern="causal_window(2)")
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.ones(1, 5, 8)
    >>> ours(x, x, x)[1][0, 4].tolist()
    [0.0, 0.0, 0.0, 0.5, 0.5]
    """

    def __init__(
        self, *positional: Any, pattern: Pattern | str | None = None, **keywords: Any
    ) -> None:
        super().__init__(*positional, **keywords)
        self.pattern = as_pattern(pattern)
        # a layer with hooks is not skipped by the fast path
        self.register_forward_pre_hook(_calls_forward)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Output and weights, as `nn.MultiheadAttention` gives them.

        Raises:
            ArgumentError: is_causal=True without attn_mask, as PyTorch refuses it; a mask of whole numbers.
            ShapeError: inputs or masks whose sizes do not fit this layer or each other.
        """
        if getattr(query, "is_nested", False):
            raise UnsupportedError(
                "nn.TransformerEncoder made a nested tensor of a padded batch, which this layer does not take; set "
                "encoder.use_nested_tensor = False, or make the encoder with enable_nested_tensor=False"
            )
        if is_causal and attn_mask is None:
            raise ArgumentError(
                "is_causal=True is given without attn_mask; give the causal mask, or pattern='causal'"
            )
        check_inputs(self, query, key, value)
        check_masks(self, query, key, key_padding_mask, attn_mask)
        batched = query.dim() == 3
        # unbatched: (length, dim)
        given = [x if batched else x[:, None] for x in (query, key, value)]
        if batched and self.batch_first:
            given = [x.transpose(0, 1) for x in given]
        q, k, v = self._projected(*given)  # (length, batch, heads · head_dim)
        live = (
            None
            if key_padding_mask is None
            else allowed_by("key_padding_mask", key_padding_mask, batched)
        )
        mask = None if attn_mask is None else allowed_by("attn_mask", attn_mask)
        if mask is not None and mask.dim() == 3:
            mask = mask.unflatten(0, (-1, self.num_heads))  # (batch, heads, q_len, k_len)
        k, v, added = self._with_added_keys(k, v)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3) for x in (q, k, v))
        mask = joined(mask, None if live is None else live[:, None, None])
        if mask is not None:
            mask = F.pad(mask, (0, added), value=mask.dtype == torch.bool)
            mask = mask[(None,) * (4 - mask.dim())]
        own, bias = meaning(mask, q.shape[2], k.shape[2])
        options: dict[str, Any] = {
            "pattern": own & self.pattern,
            "bias": None if bias is None else bias.to(q.dtype),
            "dropout": self.dropout if self.training else 0.0,
            "q_start": 0 if own == Causal() else None,
        }
        weights = None
        recording = current_recording(self)
        if need_weights or recording is not None:
            want = () if recording is None else recording.want
            detail = attention_detail(
                q, k, v, want=(*want, "weights") if need_weights else want, **options
            )
            output = detail.output
            if need_weights:
                weights = detail.weights.mean(1) if average_attn_weights else detail.weights
            if recording is not None:
                recording.add(self, detail)
        else:
            output = attention(q, k, v, **options)
        output = self.out_proj(output.permute(2, 0, 1, 3).flatten(2))
        if not batched:
            return output[:, 0], None if weights is None else weights[0]
        return output.transpose(0, 1) if self.batch_first else output, weights

    def _projected(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        matrices = (
            self.in_proj_weight.chunk(3)
            if self._qkv_same_embed_dim
            else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (
            F.linear(*one) for one in zip((query, key, value), matrices, biases, strict=True)
        )
        return q, k, v

    def _with_added_keys(
        self, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Keys and values with those of add_bias_kv and add_zero_attn after them, and how many these are."""
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat((x, one.expand(1, *x.shape[1:])))
                for x, one in ((k, self.bias_k), (v, self.bias_v))
            )
            added += 1
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k, v))
            added += 1
        return k, v, added


def _calls_forward(layer: nn.Module, inputs: Any) -> None:
    """A hook that changes nothing."""


def _finding(attend: Callable[..., torch.Tensor], function: Any) -> Callable[..., Any]:
    """A copy of a function of `F` that finds `attend` by the name scaled_dot_product_attention.

    While a mode handles a function, PyTorch switches the mode off, so the mode does not see what the function calls.
    The name in PyTorch's module stays as it is: other threads use it, and an interruption could not undo a change.
    """
    names = {**function.__globals__, "scaled_dot_product_attention": attend}
    copy = FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
