"""The problem of a call, for which plans are made, and the checks of its options."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.autograd import forward_ad
from torch.nn import Module

from regard.arguments import count_of, is_symbolic, is_whole, kind_of, plain, real, refuse_wrapper, shown
from regard.bias import Bias
from regard.core.result import Want
from regard.core.tensors import Outline, Stored, refuse_layout
from regard.errors import ArgumentError, ShapeError
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms import parse as parse_mechanism
from regard.mechanisms.base import Sizes
from regard.patterns import Pattern
from regard.patterns.counts import counted

RELATIVE = ()  # the bias shape of a call whose bias depends on head and distance alone
PER_ROW = None  # the q_start of a call whose batch rows start at different positions
_SOFTMAX = Softmax()
MOST_PLANNED = 10**9  # positions of a call that is planned from its sizes alone
MOST_DIVIDED = 1 << 20  # queries of such a call whose pattern is no band
FARTHEST = 2**62  # positions beyond it could overflow int64


@dataclass(frozen=True)
class Problem:
    """Sizes, dtypes, pattern and options of a call, without the values of its tensors; equal problems share a plan.

    `q_start` is the position of the first query, or PER_ROW where a tensor holds one for each batch row;
    `bias` is the four-axis shape of a tensor added to the scores, or RELATIVE for one that depends on the distance;
    `bias_learns`: the bias needs a gradient. `sink` is the shape (batch or 1, heads or 1) of the logits of the sinks,
    `sink_learns`: they need a gradient. `storage` is the dtype in which a cache holds keys and values.
    `outlined`: there are no tensors and nothing is run. `forward_mode`: a tensor has a
    tangent (forward-mode automatic differentiation).
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    k_len: int
    head_dim: int
    key_dim: int
    v_dim: int
    dtype: torch.dtype
    device: str
    pattern: Pattern
    mechanism: Mechanism
    q_start: int | None
    scale: float
    softcap: float | None
    bias: tuple[int, ...] | None
    bias_learns: bool
    dropout: float
    want: tuple[Want, ...]
    needs_grad: bool
    strict: bool
    storage: torch.dtype
    outlined: bool = False
    forward_mode: bool = False
    sink: tuple[int, int] | None = None
    sink_learns: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads if self.kv_heads else 1

    @property
    def sizes(self) -> Sizes:
        """The sizes on which the shapes of a mechanism's parameters depend."""
        return Sizes(self.batch, self.heads, self.kv_heads, self.k_len)

    @property
    def lowered(self) -> Problem:
        """The problem as backends get it: queries and keys are projected already, if the score projects them."""
        mechanism = self.mechanism
        if not mechanism.is_softmax or mechanism == _SOFTMAX:
            return self
        head_dim, dtype, storage = mechanism.projected_dim(self.head_dim), self.dtype, self.storage
        if mechanism.projects:  # in float32 at least; the output is rounded at the end
            dtype = storage = torch.promote_types(self.dtype, torch.float32)
        return replace(
            self, mechanism=mechanism.lowered(), head_dim=head_dim, key_dim=head_dim, dtype=dtype, storage=storage
        )

    @property
    def not_dot_product(self) -> str | None:
        """Why a backend for softmax over dot products does not compute this, or None."""
        if not self.mechanism.is_softmax:
            return f"it computes softmax attention, not {self.mechanism}"
        return None if self.mechanism.is_dot_product else f"it computes dot products, not {self.mechanism}"

    @property
    def checks_hidden_after(self) -> bool:
        """Whether hidden keys are zeroed only if the output turns out not to be finite, as `core.hidden` explains."""
        learning = self.needs_grad or self.bias_learns or self.forward_mode
        return (
            self.device == "cpu" and self.mechanism == _SOFTMAX and not learning and set(self.want) <= {"log_sum_exp"}
        )

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in (self.batch, self.heads, self.q_len, self.k_len, self.v_dim)

    @property
    def pairs(self) -> int:
        """Query-key pairs of all batch rows and heads, allowed or not."""
        return self.batch * self.heads * self.q_len * self.k_len

    @property
    def nbytes(self) -> int:
        """Bytes of q, k, v and the output."""
        of_queries = self.heads * self.q_len * (self.head_dim + self.v_dim)
        of_keys = self.kv_heads * self.k_len * (self.key_dim + self.v_dim)
        return self.batch * (of_queries + of_keys) * self.dtype.itemsize

    @property
    def kept_pairs(self) -> int | None:
        """Kept pairs of all batch rows and heads, like `counted`, if the heads are alike, else None."""
        return None if self.pattern.varies_by_head else self.counted

    @property
    def counted(self) -> int | None:
        """Kept pairs of all batch rows and heads if the structure of the pattern gives them, else None."""
        pattern = self.pattern
        if self.q_start is PER_ROW or not pattern.structured or pattern.varies_by_row:
            return None
        count = counted(pattern, self.q_len, self.k_len, self.q_start)
        return None if count is None else count * (self.batch if pattern.varies_by_head else self.batch * self.heads)

    def __str__(self) -> str:
        heads = f"{count_of(self.heads, 'heads')}" + (f" over {self.kv_heads}" if self.kv_heads != self.heads else "")
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"{self.mechanism} of {self.batch} x {heads}, {count_of(self.q_len, 'queries')} by "
            f"{count_of(self.k_len, 'keys')}, "
            f"head_dim {self.head_dim}, {dtype} on {self.device}, pattern {self.pattern}"
            f"{'' if self.sink is None else ', with sinks'}{', with gradients' if self.needs_grad else ''}"
        )


def checked_mechanism(mechanism: Mechanism | str | None) -> Mechanism:
    """The mechanism of an argument `mechanism=`: one of `regard.mechanisms`, its text, or None for softmax."""
    if mechanism is None:
        return _SOFTMAX
    if isinstance(mechanism, str):
        return parse_mechanism(mechanism)
    if not isinstance(mechanism, Mechanism):
        raise ArgumentError(
            f"mechanism is {shown(mechanism)}; give one of regard.mechanisms, its text such as 'performer(64)', or "
            f"None for softmax"
        )
    return mechanism


def check_planned_sizes(pattern: Pattern, q_len: int, k_len: int) -> None:
    """Refuse sizes without tensors for which a plan would take longer than a short while.

    Raises:
        ArgumentError: more than 10^9 positions, or more queries than a pattern that is no band is divided into blocks.
    """
    if max(q_len, k_len) > MOST_PLANNED:
        raise ArgumentError(
            f"{count_of(q_len, 'queries')} and {count_of(k_len, 'keys')} are too many to plan; a plan from sizes alone "
            f"is for at most {MOST_PLANNED} positions: plan a shorter call, and multiply its cost"
        )
    if q_len > MOST_DIVIDED and pattern.band() is None:
        raise ArgumentError(
            f"{count_of(q_len, 'queries')} are too many to plan with {pattern}, which is no band and is divided block "
            f"by block; plan at most {MOST_DIVIDED} queries, and multiply the cost"
        )


def checked_q_start(q_start: int | torch.Tensor, batch: int) -> int | torch.Tensor:
    """A position, or one for each batch row, or a refusal.

    Raises:
        ShapeError: a tensor of another dtype or shape.
        ArgumentError: no whole number, or one so far out that positions would not fit int64.
    """
    q_start = plain("q_start", q_start)
    if isinstance(q_start, torch.Tensor):
        if q_start.is_nested or q_start.dtype != torch.int64 or tuple(q_start.shape) != (batch,):
            raise ShapeError(f"q_start is {shown(q_start)}; it needs int64 of shape (batch,) = ({batch},), or a number")
        refuse_wrapper("q_start", q_start)
        return q_start
    if is_symbolic(q_start):
        return q_start
    if not is_whole(q_start) or abs(q_start) > FARTHEST:
        raise ArgumentError(
            f"q_start is {shown(q_start)}; it is a position: a whole number within ±{FARTHEST}, or an int64 tensor "
            f"(batch,)"
        )
    return q_start


def planned_q_start(q_start: int | torch.Tensor | None, sizes: dict[str, int]) -> int | None:
    if q_start is None:
        return sizes["k_len"] - sizes["q_len"]
    start = checked_q_start(q_start, sizes["batch"])
    return PER_ROW if isinstance(start, torch.Tensor) else start


def checked_softcap(softcap: float | None) -> float | None:
    if softcap is None:
        return None
    if (found := real("softcap", softcap)) <= 0:
        raise ArgumentError(f"softcap is {softcap}; scores are capped to ±softcap, so it is above 0 (None for no cap)")
    return found


def checked_dropout(dropout: float) -> float:
    if not 0 <= (found := real("dropout", dropout)) <= 1:
        raise ArgumentError(f"dropout is {dropout}; it is the share of weights dropped, 0 to 1")
    return found


def checked_seed(dropout_seed: int) -> int:
    """A whole number, or a refusal.

    Raises:
        ArgumentError: anything else.
    """
    found = plain("dropout_seed", dropout_seed)
    if not is_whole(found):
        raise ArgumentError(f"dropout_seed is {shown(found)}; it needs a whole number, or None to draw one")
    return found


def carries_tangent(*given: object) -> bool:
    """Whether one of these has, or may have, a tangent of forward-mode automatic differentiation.

    A tensor that a transform of torch.func made may hide one: in jvp(grad(f)) the tangent belongs to jvp, and the
    tensor to grad. So does a bias whose numbers are not known.
    """
    if forward_ad._current_level < 0:  # outside of every dual_level and jvp
        return False
    tensors: list[object] = []
    for one in given:
        tensors += [one.numbers] if isinstance(one, Stored) else one.parameters() if isinstance(one, Module) else [one]
        if isinstance(one, Bias) and not isinstance(one, Module) and not one.by_value:
            return True
    return any(isinstance(x, torch.Tensor) and _may_have_tangent(x) for x in tensors)


def _may_have_tangent(x: torch.Tensor) -> bool:
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return True
    return forward_ad.unpack_dual(x).tangent is not None


def learns(given: torch.Tensor | Bias | float | None) -> bool:
    """Whether a bias or a sink needs a gradient from this call."""
    if given is None or not torch.is_grad_enabled():
        return False
    return given.learns if isinstance(given, Bias) else isinstance(given, torch.Tensor) and given.requires_grad


def checked_sink(sink: float | torch.Tensor, q: torch.Tensor | Outline, sizes: dict[str, int]) -> tuple[int, int]:
    """The shape (batch or 1, heads or 1) of a sink, which is a number, (heads,), or (batch or 1, heads or 1).

    Raises:
        ShapeError: a tensor of another shape, dtype or device.
        ArgumentError: no number and no tensor.
    """
    if not isinstance(sink, torch.Tensor):
        real("sink", sink)
        return 1, 1
    batch, heads = sizes["batch"], sizes["heads"]
    refuse_layout("sink", sink)
    shape = (1,) * (2 - sink.dim()) + tuple(sink.shape)
    if not sink.dtype.is_floating_point or len(shape) != 2 or shape[0] not in (1, batch) or shape[1] not in (1, heads):
        raise ShapeError(
            f"sink is {shown(sink)}; it is one logit for each query head: floating-point (heads,) = ({heads},), or "
            f"(batch, heads) = ({batch}, {heads}) with 1 for an axis whose logits are equal"
        )
    if sink.device != q.device:
        raise ShapeError(f"q is on {q.device} but sink on {sink.device}; move one of them")
    return shape


def check_planned_sink(planned: Problem, sink: float | torch.Tensor, q: torch.Tensor) -> None:
    """Raise an ArgumentError unless a sink is like the one of the problem that a plan was made for."""
    shape = checked_sink(sink, q, {"batch": planned.batch, "heads": planned.heads})
    if shape != planned.sink or (learns(sink) and not planned.sink_learns):
        learning = {True: "that learn", False: "that do not learn"}
        raise ArgumentError(
            f"this plan was made for sinks {planned.sink} {learning[planned.sink_learns]} and was given {shape} "
            f"{learning[learns(sink)]}; make a plan for them"
        )


def checked_bias(bias: torch.Tensor | Bias, q: torch.Tensor | Outline, sizes: dict[str, int]) -> tuple[int, ...]:
    if isinstance(bias, Bias):
        bias.check(sizes["heads"])
        return RELATIVE
    whole = tuple(sizes[axis] for axis in ("batch", "heads", "q_len", "k_len"))
    if not isinstance(bias, torch.Tensor):
        given = shown(bias) if isinstance(bias, str) else kind_of(bias)
        raise ArgumentError(
            f"bias is {given}; it needs a floating-point tensor or one of regard.bias, such as regard.bias.ALiBi()"
        )
    refuse_layout("bias", bias)
    if bias.dtype == torch.bool:
        raise ShapeError(
            f"bias is a mask {tuple(bias.shape)} of torch.bool, and a bias is floating-point numbers added to scores; "
            f"{_way_of_mask(tuple(bias.shape), sizes)}"
        )
    if not bias.dtype.is_floating_point:
        raise ShapeError(
            f"bias has dtype {bias.dtype}; it is added to scores, so it needs a floating-point dtype (a mask goes into "
            f"pattern=Explicit(mask.bool()), True = may look)"
        )
    if bias.device != q.device:
        raise ShapeError(f"q is on {q.device} but bias on {bias.device}; move one of them")
    shape = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    if len(shape) != 4 or any(given not in (1, size) for given, size in zip(shape, whole, strict=True)):
        raise ShapeError(f"bias {tuple(bias.shape)} does not broadcast to (batch, heads, q_len, k_len) = {whole}")
    return shape


def _way_of_mask(shape: tuple[int, ...], sizes: dict[str, int]) -> str:
    """What to write instead of a boolean mask as the bias."""
    padding = shape in ((sizes["batch"], sizes["k_len"]), (sizes["batch"], 1, 1, sizes["k_len"]))
    square = shape == (sizes["q_len"], sizes["k_len"]) and sizes["batch"] == sizes["q_len"]
    mask = "give pattern=Explicit(mask), True = may look"
    if not padding:
        return mask
    span = "specify which keys are padding by pattern=KeySpan(start, stop) with int64 tensors (batch,)"
    return f"{mask}, or if it marks padding {span}" if square else span
