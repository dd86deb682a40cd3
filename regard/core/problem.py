"""The problem of a call, for which plans are made, the checks of its options, and of what its mechanism takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch.autograd import forward_ad
from torch.nn import Module

from regard.arguments import (
    a_tensor,
    count_of,
    has_sizes,
    kind_of,
    of_kind,
    plain,
    real,
    shown,
    whole,
)
from regard.bias import Bias, Forgetting
from regard.core.result import TopKeys, Want, WeightsOf
from regard.core.tensors import Outline, Stored, check_device, refuse_layout
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.mechanisms import Mechanism, Softmax
from regard.mechanisms import parse as parse_mechanism
from regard.mechanisms.base import OPTIONS, STATISTICS, Sizes
from regard.patterns import Full, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.counts import counted

AnswerT = TypeVar("AnswerT")
RELATIVE = ()  # the bias shape of a call whose bias depends on head and distance alone
PER_ROW = None  # the q_start of a call whose batch rows start at different positions
_SOFTMAX = Softmax()
MOST_PLANNED = 10**9  # positions of a call that is planned from its sizes alone
MOST_DIVIDED = 1 << 20  # queries of such a call whose pattern is no band
FARTHEST = 2**62  # positions beyond it could overflow int64
# Scores are in units of log 2 in the dtype in which they are computed, so 1.44 times a scale has to be finite there.
LARGEST_SCALE = 1e38
LARGEST_SCALES = {torch.float64: 1e307}
# Scores are divided by a softcap and multiplied by it; both are normal numbers of float32 within these bounds.
SMALLEST_SOFTCAP = 1e-30
LARGEST_SOFTCAP = 1e30


@dataclass(frozen=True)
class Problem:
    """Sizes, dtypes, pattern and options of a call, without the values of its tensors; equal problems share a plan.

    What all backends ask of a problem is computed once and kept, whether one backend assesses it or each.

    `q_start` is the position of the first query, or PER_ROW where a tensor holds one for each batch row;
    `bias` is the four-axis shape of a tensor added to the scores, or RELATIVE for one that depends on the distance;
    `bias_learns`: the bias needs a gradient. `sink` is the shape (batch or 1, heads or 1) of the logits of the sinks,
    `sink_learns`: they need a gradient. `storage` is the dtype in which a cache holds keys and values.
    `value_group`: value heads that share one query and one key head; `heads` and `kv_heads` are those of the output and
    of v. `precise`: weights are not rounded to bfloat16 or float16. `outlined`: there are no tensors and nothing is
    run. `forward_mode`: a tensor has a tangent (forward-mode automatic differentiation).
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
    sink: tuple[int, ...] | None = None
    sink_learns: bool = False
    value_group: int = 1
    precise: bool = False

    @cached_property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads if self.kv_heads else 1

    @property
    def sizes(self) -> Sizes:
        """The sizes on which the shapes of a mechanism's parameters depend."""
        return Sizes(self.batch, self.heads, self.kv_heads, self.k_len, self.head_dim)

    @cached_property
    def projected(self) -> Problem:
        """The problem as backends get it: queries and keys are projected already, if the score projects them."""
        mechanism = self.mechanism
        if not mechanism.is_softmax or mechanism == _SOFTMAX:
            return self
        head_dim = mechanism.projected_dim(self.head_dim)
        dtype = self.dtype
        storage = self.storage
        if mechanism.projects:  # in float32 at least; the output is rounded at the end
            dtype = storage = torch.promote_types(self.dtype, torch.float32)
        return replace(
            self,
            mechanism=mechanism.lowered(),
            head_dim=head_dim,
            key_dim=head_dim,
            dtype=dtype,
            storage=storage,
        )

    @cached_property
    def not_dot_product(self) -> str | None:
        """Why a backend for softmax over dot products does not compute this, or None."""
        if not self.mechanism.is_softmax:
            return f"it computes softmax attention, not {self.mechanism}"
        if not self.mechanism.is_dot_product:
            return f"it computes dot products, not {self.mechanism}"
        return None

    @cached_property
    def checks_hidden_after(self) -> bool:
        """Whether hidden keys are zeroed only if the output turns out not to be finite, as `core.hidden` explains."""
        learning = self.needs_grad or self.bias_learns or self.forward_mode
        return (
            self.device == "cpu"
            and self.mechanism == _SOFTMAX
            and not learning
            and set(self.want) <= {"log_sum_exp"}
        )

    @cached_property
    def empty(self) -> bool:
        return 0 in (self.batch, self.heads, self.q_len, self.k_len, self.v_dim)

    @cached_property
    def reachable_keys(self) -> range:
        """The range of keys outside which no query may look; no tensor is read."""
        if self.q_start is PER_ROW or self.q_len == 0:
            return range(self.k_len)
        last = self.q_start + self.q_len - 1
        return self.pattern.key_range(self.q_start, last, self.k_len)

    @cached_property
    def _answers(self) -> dict[Callable[[Problem], Any], Any]:
        return {}

    def once(self, question: Callable[[Problem], AnswerT]) -> AnswerT:
        """What a function says of this problem, which is asked once; the answer lives as long as the problem."""
        answers = self._answers
        if question not in answers:
            answers[question] = question(self)
        return answers[question]

    @cached_property
    def pairs(self) -> int:
        """Query-key pairs of all batch rows and heads, allowed or not."""
        return self.batch * self.heads * self.q_len * self.k_len

    @property
    def nbytes(self) -> int:
        of_queries = self.heads * self.q_len * (self.head_dim + self.v_dim)
        of_keys = self.kv_heads * self.k_len * (self.key_dim + self.v_dim)
        return self.batch * (of_queries + of_keys) * self.dtype.itemsize

    def wanted_sums(self, log_sum_exp: torch.Tensor | None) -> torch.Tensor | None:
        """The log-sum-exp for the result of a call: None where the call did not ask for it."""
        return log_sum_exp if "log_sum_exp" in self.want else None

    @cached_property
    def computed_bytes(self) -> int:
        """Bytes of a number in which scores are computed: of float64 if the call is float64, else of float32."""
        return 8 if self.dtype == torch.float64 else 4

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
        if count is None:
            return None
        units = self.batch if pattern.varies_by_head else self.batch * self.heads
        return count * units

    def __str__(self) -> str:
        heads = count_of(self.heads, "heads")
        if self.kv_heads != self.heads:
            heads += f" over {self.kv_heads}"
        dtype = str(self.dtype).removeprefix("torch.")
        text = (
            f"{self.mechanism} of {self.batch} x {heads}, {count_of(self.q_len, 'queries')} by "
            f"{count_of(self.k_len, 'keys')}, "
            f"head_dim {self.head_dim}, {dtype} on {self.device}, pattern {self.pattern}"
        )
        if self.sink is not None:
            text += ", with sinks"
        if self.needs_grad:
            text += ", with gradients"
        return text


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
    """A position, or one for each batch row, or a refusal."""
    q_start = plain("q_start", q_start)
    if isinstance(q_start, torch.Tensor):
        needs = f"int64 of shape (batch,) = ({batch},), or a number"
        return a_tensor("q_start", q_start, needs, [(batch,)], torch.int64)
    needs = f"a position: a whole number within ±{FARTHEST}, or an int64 tensor (batch,)"
    return whole("q_start", q_start, -FARTHEST, FARTHEST, needs)


def checked_scale(scale: object, dtype: torch.dtype) -> float:
    largest = LARGEST_SCALES.get(dtype, LARGEST_SCALE)
    computed = "float64" if dtype == torch.float64 else "float32"
    needs = f"a finite number within ±{largest:g}, since scores are computed in {computed}"
    return real("scale", scale, -largest, largest, needs=needs)


def checked_softcap(softcap: float | None) -> float | None:
    needs = (
        f"a number above 0, from {SMALLEST_SOFTCAP:g} to {LARGEST_SOFTCAP:g}, since scores are capped to ±softcap "
        "(None for no cap)"
    )
    if softcap is None:
        return None
    return real("softcap", softcap, SMALLEST_SOFTCAP, LARGEST_SOFTCAP, needs=needs)


def checked_dropout(dropout: float) -> float:
    return real("dropout", dropout, 0, 1, needs="the share of weights that is dropped, 0 to 1")


def checked_seed(dropout_seed: int) -> int:
    return of_kind(
        "dropout_seed",
        plain("dropout_seed", dropout_seed),
        int,
        "a whole number, or None to draw one",
    )


def carries_tangent(*arguments: object) -> bool:
    """Whether one of these has, or may have, a tangent of forward-mode automatic differentiation.

    A tensor that a transform of torch.func made may hide one: in jvp(grad(f)) the tangent belongs to jvp, and the
    tensor to grad. So does a bias whose numbers are not known.
    """
    if forward_ad._current_level < 0:  # outside of every dual_level and jvp
        return False
    tensors: list[object] = []
    for argument in arguments:
        if isinstance(argument, Stored):
            tensors.append(argument.numbers)
        elif isinstance(argument, Module):
            tensors += argument.parameters()
        elif isinstance(argument, Bias) and not argument.by_value:
            return True
        else:
            tensors.append(argument)
    for x in tensors:
        if not isinstance(x, torch.Tensor):
            continue
        if torch._C._functorch.is_functorch_wrapped_tensor(x):
            return True
        if forward_ad.unpack_dual(x).tangent is not None:
            return True
    return False


def learns(argument: torch.Tensor | Bias | float | None) -> bool:
    """Whether a bias or a sink needs a gradient from this call."""
    if argument is None or not torch.is_grad_enabled():
        return False
    if isinstance(argument, Bias):
        return argument.learns
    return isinstance(argument, torch.Tensor) and argument.requires_grad


def checked_sink(
    sink: float | torch.Tensor, q: torch.Tensor | Outline, sizes: dict[str, int]
) -> tuple[int, ...]:
    """The shape (batch or 1, heads or 1) of a sink, which is a number, (heads,), or (batch or 1, heads or 1)."""
    if not isinstance(sink, torch.Tensor):
        real("sink", sink)
        return 1, 1
    batch = sizes["batch"]
    heads = sizes["heads"]
    refuse_layout("sink", sink)
    needs = (
        f"one logit for each query head: floating-point (heads,) = ({heads},), or (batch, heads) = ({batch}, {heads}) "
        f"with 1 for an axis whose logits are equal"
    )
    a_tensor("sink", sink, needs, [(), ((1, heads),), ((1, batch), (1, heads))])
    check_device("sink", sink, q)
    return (1,) * (2 - sink.dim()) + tuple(sink.shape)


def checked_bias(
    bias: torch.Tensor | Bias, q: torch.Tensor | Outline, sizes: dict[str, int]
) -> tuple[int, ...]:
    """The shape of a bias tensor with four axes, or RELATIVE for a bias by distance."""
    if isinstance(bias, Forgetting):
        raise UnsupportedError(
            "Forgetting is for regard.attention and layers on one process, not for this call"
        )
    if isinstance(bias, Bias):
        bias.check(sizes["heads"])
        return RELATIVE
    pairs = tuple(sizes[axis] for axis in ("batch", "heads", "q_len", "k_len"))
    if not isinstance(bias, torch.Tensor):
        what = shown(bias) if isinstance(bias, str) else kind_of(bias)
        raise ArgumentError(
            f"bias is {what}; it needs a floating-point tensor or one of regard.bias, such as regard.bias.ALiBi()"
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
    check_device("bias", bias, q)
    shape = (1,) * (4 - bias.dim()) + tuple(bias.shape)
    if not has_sizes(shape, [(1, size) for size in pairs]):
        raise ShapeError(
            f"bias {tuple(bias.shape)} does not broadcast to (batch, heads, q_len, k_len) = {pairs}"
            f"{_way_of_rows(tuple(bias.shape), pairs)}"
        )
    return shape


def _way_of_rows(shape: tuple[int, ...], pairs: tuple[int, ...]) -> str:
    """What to write instead of a bias of three axes whose first is the batch."""
    batch, _, q_len, k_len = pairs
    if len(shape) != 3 or not has_sizes(shape, [(batch,), (1, q_len), (1, k_len)]):
        return ""
    return (
        "; the first of three axes is the heads: give bias[:, None] for one bias for each batch row"
    )


def _way_of_mask(shape: tuple[int, ...], sizes: dict[str, int]) -> str:
    """What to write instead of a boolean mask as the bias."""
    of_pairs = "give pattern=Explicit(mask), True = may look"
    of_padding = (
        "specify which keys are padding by pattern=KeySpan(start, stop) with int64 tensors (batch,)"
    )
    batch = sizes["batch"]
    k_len = sizes["k_len"]
    if shape not in ((batch, k_len), (batch, 1, 1, k_len)):
        return of_pairs
    if shape == (sizes["q_len"], k_len):  # there are as many queries as batch rows
        return f"{of_pairs}, or if it marks padding {of_padding}"
    return of_padding


def check_combination(
    mechanism: Mechanism, pattern: Pattern, options: Collection[str], want: Collection[Want]
) -> None:
    """Raise an UnsupportedError unless the mechanism takes this pattern and these options and has these statistics."""
    if mechanism.patterns is not None:
        for part in pattern.factors:
            if part not in (Full(), NOTHING) and not isinstance(part, mechanism.patterns):
                raise _refusal_of_pattern(mechanism, part)
    for option in OPTIONS:
        if option in options and option not in mechanism.options:
            raise UnsupportedError(
                f"{mechanism} has no {option}, since its paper defines none; leave {option} out, or use softmax"
            )
    for wanted in want:
        name = {TopKeys: "top_keys", WeightsOf: "weights_of"}.get(type(wanted), str(wanted))
        if name not in mechanism.statistics:
            available = [name for name in STATISTICS if name in mechanism.statistics]
            listed = ", ".join(available) or "nothing but its output"
            raise UnsupportedError(f"{mechanism} does not compute {name}; it computes {listed}")


def _refusal_of_pattern(mechanism: Mechanism, part: Pattern) -> UnsupportedError:
    """The refusal of a part of a pattern that the mechanism does not take."""
    names = ", ".join(kind.__name__ for kind in (Full, *(mechanism.patterns or ())))
    because = f" ({mechanism.patterns_because})" if mechanism.patterns_because else ""
    return UnsupportedError(
        f"{mechanism} takes {names} and combinations of them by &, not {part}{because}; use softmax for it"
    )


def named_parameters(parameters: Mapping[str, torch.Tensor] | None) -> dict[str, torch.Tensor]:
    """The argument parameters= as a dict; anything but a mapping is refused."""
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping | torch.nn.ParameterDict):
        raise ArgumentError(
            f"parameters is {shown(parameters)}; it needs a dict of the mechanism's learned tensors by name, as "
            f"mechanism.new_parameters(...) makes them"
        )
    return dict(parameters.items())


def checked_parameters(
    mechanism: Mechanism,
    sizes: Sizes,
    parameters: Mapping[str, torch.Tensor] | None,
    q: torch.Tensor | Outline,
) -> dict[str, torch.Tensor]:
    """The tensors that the mechanism needs, by name, after a check of names, shapes and devices."""
    shapes = mechanism.parameter_shapes(sizes)
    tensors = named_parameters(parameters)
    required = shapes.keys() - mechanism.optional
    if not required <= tensors.keys() <= shapes.keys():
        raise _refusal_of_names(mechanism, shapes, tensors)
    for name, shape in shapes.items():
        if name not in tensors:
            continue
        argument = f"parameter {name!r}"
        needs = f"floating-point numbers of shape {shape} for {mechanism}, or 1 as its first axis"
        tensor = a_tensor(argument, tensors[name], needs, [((1, shape[0]), *shape[1:])])
        check_device(argument, tensor, q)
    return tensors


def _refusal_of_names(
    mechanism: Mechanism, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, torch.Tensor]
) -> ArgumentError:
    """The refusal of parameters that the mechanism does not have, or without some that it needs."""
    names = shown(sorted(tensors, key=str))
    if not shapes:
        return ArgumentError(
            f"{mechanism} learns nothing and was given the parameters {names}; leave them out"
        )
    them = "it" if len(shapes) == 1 else "them"
    computed = []
    for name in sorted(mechanism.computed & shapes.keys()):
        computed.append(f"{name!r} of shape {shapes[name]}")
    way = f"make {them} with mechanism.new_parameters(...)"
    if computed:
        way = f"compute {', '.join(computed)} for each call"
    return ArgumentError(
        f"{mechanism} was given the parameters {names} and needs {sorted(shapes)}; {way}, and give {them} as "
        f"parameters="
    )
