"""One call of attention as an object: its tensors and options, bound once and checked once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from regard.arguments import PLAIN, plain, yes_or_no
from regard.bias import Bias
from regard.core.problem import (
    FARTHEST,
    PER_ROW,
    Problem,
    carries_tangent,
    check_combination,
    check_planned_sizes,
    checked_bias,
    checked_dropout,
    checked_mechanism,
    checked_parameters,
    checked_q_start,
    checked_scale,
    checked_sink,
    checked_softcap,
    learns,
    named_parameters,
)
from regard.core.result import Want
from regard.core.tensors import (
    BEFORE_AUTOGRAD,
    Outline,
    Stored,
    bind_attention,
    in_autocast,
    in_memory,
    is_casting,
)
from regard.errors import UnsupportedError
from regard.mechanisms import Mechanism, Softmax
from regard.patterns import Pattern, as_pattern
from regard.patterns.bands import without_numbers
from regard.patterns.one_call import placed

STEP = 16  # the most queries of a step of decoding
# What `Call.key` and the look-up of a key may raise.
LOOKUP_ERRORS = (AttributeError, TypeError, ValueError, RuntimeError)
_SOFTMAX = Softmax()
_NUMBERS = ("softcap", "scale", "dropout", "q_start", "sink")
_ANY_KEYS: Any = torch.empty(0, device="cpu")  # in the place of k and v in the key of a step


def is_transformed() -> bool:
    """Whether equal properties of tensors may need another plan: inside autocast, torch.func, dispatch modes, tracing
    and tangents."""
    return (
        torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._dispatch_tls_is_dispatch_key_included(BEFORE_AUTOGRAD)
        or forward_ad._current_level >= 0
    )


class Call(NamedTuple):
    """The tensors and options of one call, as `attention` takes them; `_replace` returns a changed call.

    Creating a call checks nothing: `problem` makes all checks. Calls with equal keys pass the same checks, so a call
    with the key of an earlier one need not be checked again.
    """

    q: torch.Tensor
    k: torch.Tensor | Stored
    v: torch.Tensor | Stored
    bias: torch.Tensor | Bias | None = None
    parameters: Mapping[str, torch.Tensor] | None = None
    dropout_seed: int | None = None
    sink: float | torch.Tensor | None = None
    pattern: Pattern | str | None = None
    mechanism: Mechanism | str | None = None
    softcap: float | None = None
    scale: float | None = None
    dropout: float = 0.0
    q_start: int | torch.Tensor | None = None
    want: tuple[Want, ...] = ()
    strict: bool = False
    backend: str = "auto"
    precise: bool = False

    def key(self) -> tuple[Hashable, ...] | None:
        """The key of this call's plan in the cache: type and value of every option, properties of every tensor.

        None if a kept plan cannot be used: where `is_transformed` is True equal properties may need another plan, as
        does a bias object without `plan_key`; and kernels read numbers in the memory of tensors, where those of some
        views are not.

        Raises:
            AttributeError, TypeError, ValueError or RuntimeError: an argument is no tensor, which `problem` names, or a
                tensor beside q, k and v whose memory is not its value.
        """
        if is_transformed():
            return None
        q, k, v, bias, parameters, _, sink, *options = self
        if (
            q.is_neg()
            or k.is_neg()
            or v.is_neg()
            or q._is_zerotensor()
            or k._is_zerotensor()
            or v._is_zerotensor()
        ):
            return None
        key = (
            *map(type, options),  # first: 1 == 1.0 == True, and a tensor must not be compared
            type(q),
            q.shape,
            q.dtype,
            q.device,
            q.layout,
            q.requires_grad,
            type(k),
            k.shape,
            k.dtype,
            k.device,
            k.layout,
            k.requires_grad,
            type(v),
            v.shape,
            v.dtype,
            v.device,
            v.layout,
            v.requires_grad,
            torch.is_grad_enabled(),
            *options,
        )
        if bias is not None:
            if isinstance(bias, Bias):
                traits = bias.plan_key
            else:
                traits = (bias.shape, *_traits(bias))
            if traits is None:
                return None
            key += ("bias", type(bias), traits)
        if sink is not None:
            traits = None
            if isinstance(sink, torch.Tensor):
                traits = (sink.shape, *_traits(sink))
            key += ("sink", type(sink), traits)
        if parameters:
            for name, x in sorted(parameters.items()):
                key += (name, type(x), x.shape, *_traits(x))
        return key

    def step_key(self) -> Hashable | None:
        """The key of calls that differ from this one in q_start, in the numbers of `KeySpan`s by batch row, and in
        k_len between two powers of two.

        None if the call is no step of decoding: more than 16 queries, or an option that needs a plan for each k_len.

        Raises:
            AttributeError, TypeError, ValueError or RuntimeError: as `key`.
        """
        q = self.q
        k = self.k
        v = self.v
        if not len(q.shape) == len(k.shape) == len(v.shape) == 4 or v.shape[:3] != k.shape[:3]:
            return None
        batch, kv_heads, k_len, head_dim = k.shape
        if not k_len or self.parameters or self.dropout or self.want or self.strict:
            return None
        if self._has_numbers_in_tensors():
            return None

        pattern: Any = "full"
        if isinstance(self.pattern, Pattern):
            pattern = without_numbers(self.pattern)
        elif self.pattern:
            pattern = self.pattern
        if pattern is None or q.shape[2] > STEP:
            return None

        kind_of_start = self._kind_of_start()
        if kind_of_start is None:
            return None

        bias = self.bias
        of_bias = None
        if bias is not None:
            if type(bias) is not torch.Tensor or not bias.dim() or bias.shape[-1] not in (1, k_len):
                return None
            of_bias = bias.shape[:-1], bias.shape[-1] == 1, _traits(bias)

        without_keys = self._replace(
            k=_ANY_KEYS,
            v=_ANY_KEYS,
            q_start=None,
            bias=None,
            pattern=pattern,  # ty: ignore[invalid-argument-type]
        )
        of_options = without_keys.key()
        if of_options is None:
            return None
        sizes = batch, kv_heads, int(k_len).bit_length(), head_dim, v.shape[3]
        of_keys = type(k), _traits(k), type(v), _traits(v)
        return "step", kind_of_start, *sizes, *of_keys, of_bias, *of_options

    def structure_key(self, structure: Hashable) -> Hashable | None:
        """The key of calls that differ from this one in k_len, in q_start and in the keys of batch rows only.

        structure: what their patterns have in common. None if no plan serves such calls: an option depends on k_len, or
        a warning may be due since the first queries stand before the first key.

        Raises:
            AttributeError, TypeError, ValueError or RuntimeError: as `key`.
        """
        q = self.q
        k = self.k
        v = self.v
        if not len(q.shape) == len(k.shape) == len(v.shape) == 4 or v.shape[:3] != k.shape[:3]:
            return None
        batch, kv_heads, k_len, head_dim = k.shape
        if not k_len or self.parameters or self.want or self.strict:
            return None
        if self.q_start is None and q.shape[2] > k_len:
            return None
        if self._has_numbers_in_tensors():
            return None
        kind_of_start = self._kind_of_start()
        if kind_of_start is None:
            return None

        without_keys = self._replace(
            k=_ANY_KEYS,
            v=_ANY_KEYS,
            q_start=None,
            pattern=structure,  # ty: ignore[invalid-argument-type]
        )
        of_options = without_keys.key()
        if of_options is None:
            return None
        k_len_of_bias = None if self.bias is None else k_len
        sizes = batch, kv_heads, head_dim, v.shape[3]
        of_keys = type(k), _traits(k), type(v), _traits(v)
        return "structure", kind_of_start, *sizes, *of_keys, k_len_of_bias, *of_options

    def _has_numbers_in_tensors(self) -> bool:
        """Whether an option is a tensor: a key would compare it by identity, but its number may change."""
        return (
            isinstance(self.scale, torch.Tensor)
            or isinstance(self.softcap, torch.Tensor)
            or isinstance(self.dropout, torch.Tensor)
        )

    def _kind_of_start(self) -> str | None:
        """Whether q_start is a number for all batch rows or one for each; None if it is neither and must be checked."""
        start = self.q_start
        if isinstance(start, torch.Tensor):
            if start.shape != (self.q.shape[0],) or start.dtype != torch.int64 or not start.is_cpu:
                return None
            return None if start.is_neg() or start._is_zerotensor() else "by row"
        if start is not None and (type(start) is not int or abs(start) > FARTHEST):
            return None
        return "for all"

    def in_numbers(self) -> Call:
        """The call with options that are NumPy scalars or 0-d tensors converted to Python numbers."""
        wrapped: dict[str, Any] = {}
        for name in _NUMBERS:
            number = getattr(self, name)
            if type(number) not in PLAIN:
                wrapped[name] = plain(name, number)
        return self._replace(**wrapped) if wrapped else self

    def cast(self) -> Call:
        """The call with its tensors in autocast's dtype, if autocast is on.

        float64 tensors and entries of a cache are not cast, nor is the bias of a float64 call.
        """
        if not isinstance(self.q, torch.Tensor):
            return self
        device = self.q.device.type
        if not is_casting(device):
            return self

        q = in_autocast(self.q, device)
        k = in_autocast(self.k, device)
        v = in_autocast(self.v, device)
        bias = self.bias if q.dtype == torch.float64 else in_autocast(self.bias, device)
        return self._replace(q=q, k=k, v=v, bias=bias)

    def in_memory(self) -> Call:
        """The call with the numbers of its tensors in their memory."""
        changed: dict[str, Any] = {}
        for name, x in zip(self._fields, self, strict=True):
            if isinstance(x, torch.Tensor):
                written = in_memory(name, x)
                if written is not x:
                    changed[name] = written
        if self.parameters is not None:
            parameters = named_parameters(self.parameters)
            for name, x in parameters.items():
                if isinstance(x, torch.Tensor):
                    parameters[name] = in_memory(f"parameter {name!r}", x)
            changed["parameters"] = parameters
        return self._replace(**changed) if changed else self

    def problem(self) -> Problem:
        """The problem of this call, after all checks of its arguments."""
        mechanism = checked_mechanism(self.mechanism)
        of_tensors = self.of_tensors(mechanism)
        heads = of_tensors["heads"]
        q_len = of_tensors["q_len"]
        k_len = of_tensors["k_len"]
        head_dim = of_tensors["head_dim"]

        pattern = as_pattern(self.pattern).canonical()
        pattern.check(of_tensors["batch"], heads, q_len, k_len)
        if isinstance(self.bias, Bias):
            self.bias.check_pattern(pattern)
        pattern = placed(pattern, of_tensors["q_start"], heads)
        mechanism.check_dims(head_dim, of_tensors["key_dim"])
        parameters = named_parameters(self.parameters)
        if isinstance(self.q, Outline):
            check_planned_sizes(pattern, q_len, k_len)
        if self.scale is None:
            scale = mechanism.default_scale(head_dim)
        else:
            scale = checked_scale(self.scale, of_tensors["dtype"])

        problem = Problem(
            **of_tensors,
            pattern=pattern,
            mechanism=mechanism,
            scale=scale,
            softcap=checked_softcap(self.softcap),
            dropout=checked_dropout(self.dropout),
            want=self.want,
            needs_grad=torch.is_grad_enabled() and _learn(*self[:3], *parameters.values()),
            strict=yes_or_no("strict", self.strict),
            precise=yes_or_no("precise", self.precise),
            outlined=isinstance(self.q, Outline),
            forward_mode=carries_tangent(*self[:4], self.sink, *parameters.values()),
        )
        self._check_mechanism(problem)
        if self.parameters is not None:  # a plan may be made without them, since it keeps no values
            checked_parameters(mechanism, problem.sizes, parameters, self.q)
        return problem

    def of_tensors(self, mechanism: Mechanism) -> dict[str, Any]:
        """The part of the problem that follows from the tensors of this call, after all checks of them."""
        q = self.q
        k = self.k
        sizes = bind_attention(q, k, self.v, mechanism.own_key_dim, mechanism.groups_values)
        start: int | torch.Tensor = sizes["k_len"] - sizes["q_len"]
        if self.q_start is not None:
            start = checked_q_start(self.q_start, sizes["batch"])
        bias = None
        if self.bias is not None:
            bias = checked_bias(self.bias, q, sizes)
        sink = None
        if self.sink is not None:
            sink = checked_sink(self.sink, q, sizes)
        return {
            **sizes,
            "dtype": q.dtype,
            "device": q.device.type,
            "storage": k.dtype,
            "q_start": PER_ROW if isinstance(start, torch.Tensor) else start,
            "bias": bias,
            "bias_learns": learns(self.bias),
            "sink": sink,
            "sink_learns": learns(self.sink),
        }

    def _check_mechanism(self, problem: Problem) -> None:
        """Raise an UnsupportedError unless the mechanism takes this pattern and the options that were given."""
        mechanism = problem.mechanism
        pattern = problem.pattern
        if mechanism == _SOFTMAX:
            return

        if problem.precise and not mechanism.is_softmax:
            raise UnsupportedError(
                f"precise=True is about the weights of softmax, and {mechanism} has none; leave it out"
            )
        options = {
            name for name in ("bias", "softcap", "scale", "sink") if getattr(self, name) is not None
        }
        if problem.dropout > 0:
            options.add("dropout")
        check_combination(mechanism, pattern, options, problem.want)
        reason = mechanism.reason_against(pattern, problem.sizes, problem.head_dim, problem.scale)
        if reason is not None:
            raise UnsupportedError(f"{mechanism}: {reason}")


def make_problem(q: Any, k: Any, v: Any, **options: Any) -> Problem:
    """The problem of a call with these tensors and options, checked as `Call.problem` checks it."""
    return Call(q, k, v, **options).problem()


def _learn(*tensors: Any) -> bool:
    """Whether one of these needs a gradient."""
    for x in tensors:
        if isinstance(x, torch.Tensor | Stored | Outline) and x.requires_grad:
            return True
    return False


def _traits(x: Any) -> tuple[Hashable, ...]:
    """What a plan depends on in a tensor, beside class and shape.

    Raises:
        ValueError: its memory is not its value.
    """
    if x.is_neg() or x._is_zerotensor():
        raise ValueError("no plan is kept for a tensor whose memory is not its value")
    return x.dtype, x.device, x.layout, x.requires_grad
