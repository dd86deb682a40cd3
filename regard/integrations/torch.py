"""PyTorch's attention computed by regard: its functions inside a `with` block, its layer as a drop-in, its programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from regard.integrations.rebinding import with_functions
from regard.layers.from_pytorch import (
    allowed_by,
    as_four_axes,
    check_inputs,
    check_masks,
    join_masks,
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


PatternChoice = Pattern | str | None | Callable[[ReplacedCall], Pattern | str | None]


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
    pattern: PatternChoice = None, *, want: Iterable[Want] | Want = (), backend: str = "auto"
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
    # PyTorch's fast path is off in any such mode.
    with _AttentionMode(seen, pattern, checked_wants(want), backend) as mode:
        yield seen
    if not mode.called:
        raise RegardError(
            "no call of F.scaled_dot_product_attention was seen in the block of replaced_attention; layers of regard "
            "are seen by rg.record_attention(model), models of transformers by observe(model) after attach(model), and "
            "compiled models and other threads not at all"
        )


class _AttentionMode(TorchFunctionMode):
    """Lets regard compute two functions of `F`; everything else stays PyTorch's."""

    def __init__(
        self, seen: ReplacedAttention, pattern: PatternChoice, want: Any, backend: str
    ) -> None:
        super().__init__()
        self.seen = seen
        self.pattern = pattern
        self.want = want
        self.backend = backend
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
            own_pattern: Pattern = Causal()
            bias = None
        else:
            mask = None if attn_mask is None else mask_of_four_axes(attn_mask, axes)
            own_pattern, bias = pattern_and_bias(mask, q.shape[2], k.shape[2])
        if start is None and own_pattern == Causal():
            start = 0  # PyTorch aligns the first query with the first key, regard the last ones
        call = ReplacedCall(self.seen.calls, q.shape[1], q.shape[2], k.shape[2], own_pattern)
        pattern: Any = self.pattern(call) if callable(self.pattern) else self.pattern
        detail = attention_detail(
            q,
            k,
            v,
            pattern=own_pattern & as_pattern(pattern),
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
        arguments = bound.arguments
        needs_weights = arguments["need_weights"]
        if arguments["attn_mask"] is not None:
            refuse_wrapper("attn_mask", arguments["attn_mask"])
        if needs_weights and arguments["training"] and arguments["dropout_p"] > 0:
            self.seen.left.append("the weights of a multi-head attention are wanted after dropout")
            return func(*bound.args, **bound.kwargs)

        details = []

        def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
            want = ("weights",) if needs_weights else ()
            output, detail = self.attend(*args, **kwargs, want=want)
            details.append(detail)
            return output

        arguments["need_weights"] = False
        # While a mode handles a function, PyTorch switches the mode off, so the mode does not see what it calls.
        calling = with_functions(inspect.unwrap(func), {"scaled_dot_product_attention": attend})
        output, _ = calling(*bound.args, **bound.kwargs)
        if not needs_weights:
            return output, None
        weights = details[0].weights  # (batch, heads, q_len, k_len)
        if arguments["average_attn_weights"]:
            weights = weights.mean(1)
        return output, weights if arguments["query"].dim() == 3 else weights[0]


def pattern_and_bias(
    mask: torch.Tensor | None, q_len: int, k_len: int
) -> tuple[Pattern, torch.Tensor | None]:
    """The pattern and the bias that a mask stands for; the pattern is Causal, KeyMask or Explicit where it is one.

    In a graph of torch.compile or torch.export numbers are not known: those of a mask stay a bias.
    """
    if mask is None:
        return Full(), None
    if mask.shape[2] not in (1, q_len) or mask.shape[3] not in (1, k_len):
        raise ShapeError(
            f"attn_mask has {tuple(mask.shape[2:])} as its last axes; {count_of(q_len, 'queries')} and "
            f"{count_of(k_len, 'keys')} need ({q_len}, {k_len})"
        )
    allowed = mask if mask.dtype == torch.bool else _allowed_pairs(mask)
    if allowed is None:
        return Full(), mask
    if _is_padding(allowed):
        return KeyMask(allowed[:, 0, 0].expand(-1, k_len)), None
    if not torch.compiler.is_compiling() and allowed.shape == (1, 1, q_len, k_len):
        pairs = allowed[0, 0]
        if torch.equal(pairs, torch.ones_like(pairs).tril()):
            return Causal(), None
    return Explicit(allowed.expand(-1, -1, q_len, k_len)), None


def _allowed_pairs(mask: torch.Tensor) -> torch.Tensor | None:
    """Where a mask of numbers adds 0, if it adds -inf everywhere else and needs no gradient; None otherwise."""
    if mask.requires_grad or torch.compiler.is_compiling():
        return None
    allowed = mask == 0
    return allowed if bool((allowed | (mask == -torch.inf)).all()) else None


def _is_padding(allowed: torch.Tensor) -> bool:
    """Whether all heads and queries of a batch row are allowed the same keys."""
    if all(allowed.shape[axis] == 1 or not allowed.stride(axis) for axis in (1, 2)):
        return True
    if torch.compiler.is_compiling() or allowed.shape[2] != 1:
        return False
    return torch.equal(allowed, allowed[:, :1].expand_as(allowed))


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
        # A layer with hooks is not skipped by the fast path.
        self.register_forward_pre_hook(_do_nothing)

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
        is_batched = query.dim() == 3
        q, k, v = self._project(query, key, value)  # (length, batch, heads · head_dim)
        k, v, added = self._with_added_keys(k, v)
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).permute(1, 2, 0, 3) for x in (q, k, v))
        mask = self._mask(key_padding_mask, attn_mask, is_batched, added)
        own_pattern, bias = pattern_and_bias(mask, q.shape[2], k.shape[2])
        options: dict[str, Any] = {
            "pattern": own_pattern & self.pattern,
            "bias": None if bias is None else bias.to(q.dtype),
            "dropout": self.dropout if self.training else 0.0,
            "q_start": 0 if own_pattern == Causal() else None,
        }

        weights = None
        recording = current_recording(self)
        if need_weights or recording is not None:
            want = () if recording is None else recording.want
            if need_weights:
                want = (*want, "weights")
            detail = attention_detail(q, k, v, want=want, **options)
            output = detail.output
            if need_weights:
                weights = detail.weights.mean(1) if average_attn_weights else detail.weights
            if recording is not None:
                recording.add(self, detail)
        else:
            output = attention(q, k, v, **options)
        output = self.out_proj(output.permute(2, 0, 1, 3).flatten(2))  # (length, batch, dim)
        if not is_batched:
            return output[:, 0], None if weights is None else weights[0]
        return output.transpose(0, 1) if self.batch_first else output, weights

    def _project(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> list[torch.Tensor]:
        """Queries, keys and values, (length, batch, heads · head_dim)."""
        inputs = (query, key, value)
        if query.dim() == 2:
            inputs = [x[:, None] for x in inputs]
        elif self.batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        matrices = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self._qkv_same_embed_dim:
            matrices = self.in_proj_weight.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            F.linear(x, matrix, bias)
            for x, matrix, bias in zip(inputs, matrices, biases, strict=True)
        ]

    def _with_added_keys(
        self, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Keys and values with those of add_bias_kv and add_zero_attn after them, and how many these are."""
        added = 0
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat((k, self.bias_k.expand(1, *k.shape[1:])))
            v = torch.cat((v, self.bias_v.expand(1, *v.shape[1:])))
            added += 1
        if self.add_zero_attn:
            k = F.pad(k, (0, 0, 0, 0, 0, 1))
            v = F.pad(v, (0, 0, 0, 0, 0, 1))
            added += 1
        return k, v, added

    def _mask(
        self,
        key_padding_mask: torch.Tensor | None,
        attn_mask: torch.Tensor | None,
        is_batched: bool,
        added: int,
    ) -> torch.Tensor | None:
        """Both masks as one of four axes, which allows the added keys."""
        unpadded = None
        if key_padding_mask is not None:
            unpadded = allowed_by("key_padding_mask", key_padding_mask, is_batched)[:, None, None]
        mask = None
        if attn_mask is not None:
            mask = allowed_by("attn_mask", attn_mask)
            if mask.dim() == 3:
                mask = mask.unflatten(0, (-1, self.num_heads))  # (batch, heads, q_len, k_len)
        mask = join_masks(mask, unpadded)
        if mask is None:
            return None
        mask = F.pad(mask, (0, added), value=mask.dtype == torch.bool)
        return mask[(None,) * (4 - mask.dim())]


def _do_nothing(layer: nn.Module, inputs: Any) -> None:
    """A hook that changes nothing."""
