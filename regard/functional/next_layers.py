"""Calls of the later layers of a model, which differ from that of the first only in the numbers of their tensors.

The layers of a model share the mask of a forward pass. What computes the call of the first layer is looked up once for
all of them, and the compiled library computes as many of the calls as it can. This matters because a line of Python
between the products of a model takes ten times as long as in a loop: it is no longer in the processor's cache. A call
takes the usual way where gradients, a transform, a mode, a profiler or a compiler needs to see it.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from regard.backends.native.steps import Steps
from regard.core.backend import Operands
from regard.core.call import Call, is_transformed
from regard.core.hidden import looks_sound
from regard.core.plan import Plan
from regard.functional.compiled import compiler_beside
from regard.functional.kept import PLANS, lengths_with
from regard.functional.measured import profiling
from regard.functional.repeated import PLACE_OF_BIAS, REPEATED, UNKNOWN, options_of
from regard.patterns import Pattern

__all__ = ["NextLayers", "first_layers", "is_seen", "next_layers"]

REPEATING = "native"  # the backend whose calls the compiled library repeats


class NextLayers(Protocol):
    """Computes calls with the pattern and the options of an earlier one."""

    def compute(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The output, (batch, heads, q_len, v_dim); None for a call that has to take the usual way.

        bias: a plain tensor, or None.
        """


def first_layers(call: Call) -> NextLayers | None:
    """What computed calls like this one under an earlier mask of the same pattern; None if there were none."""
    pattern: Any = call.pattern
    if not pattern.by_value or pattern.row_keys is not None:
        return None
    if call.bias is None:
        return _Repeated(call)
    if not type(call.q) is type(call.k) is type(call.v) is torch.Tensor or is_seen():
        return None
    if not _is_plain(call):
        return None
    k_len = call.k.shape[2]
    name = _name_of_steps(call)
    known = PLANS.steps_of_layers
    steps = known.get(name)
    if steps is not None:
        return _Steps(call, steps, lengths_with(k_len))
    steps = known.get((*name, k_len))
    return None if steps is None else _Steps(call, steps, range(k_len, k_len + 1))


def next_layers(call: Call) -> NextLayers | None:
    """What computes the calls of later layers, after this call was computed; None if they take the usual way.

    call: of plain tensors, without gradients, parameters, dropout and sinks.
    """
    if is_seen() or not _is_plain(call):
        return None
    kept = PLANS.kept(call)
    if kept is None:
        return None
    plan = kept.plan
    if kept.pattern is None:
        if call.bias is None and (plan is None or plan.backend == REPEATING):
            return _Repeated(call)
        steps = kept.step.run if kept.step is not None else plan and plan.steps
        if isinstance(steps, Steps):
            k_len = call.k.shape[2]
            name = _name_of_steps(call)
            keys = lengths_with(k_len)
            if plan is not None:  # for other k_len another backend may be cheaper
                name += (k_len,)
                keys = range(k_len, k_len + 1)
            PLANS.steps_of_layers.keep(name, steps)
            return _Steps(call, steps, keys)
    operands = None if plan is None else plan.operands_of_layers(call, kept.grid)
    if plan is None or operands is None:
        return None
    return _Planned(call, plan, operands._replace(pattern=kept.pattern))


def is_seen() -> bool:
    """Whether a mode, a transform, a profiler or a compiler watches this thread's operations or changes them."""
    return (
        torch._C._is_torch_function_mode_enabled()
        or is_transformed()
        or profiling()
        or compiler_beside() is not None
    )


def _is_plain(call: Call) -> bool:
    """Whether a call has plain tensors, and no option that each call must read again."""
    bias = call.bias
    if not type(call.q) is type(call.k) is type(call.v) is torch.Tensor:
        return False
    if bias is not None and (type(bias) is not torch.Tensor or bias.dim() != 4):
        return False
    if call.parameters or call.dropout or call.sink is not None or call.mechanism is not None:
        return False
    return type(call.q_start) is int and isinstance(call.pattern, Pattern)


def _name_of_steps(call: Call) -> tuple[Any, ...]:
    """The key of the steps of layers with a bias: the same for every k_len between two powers of two."""
    q = call.q
    k: Any = call.k
    v: Any = call.v
    bias: Any = call.bias
    batch, kv_heads, k_len, head_dim = k.shape
    sizes = batch, kv_heads, k_len.bit_length(), head_dim, v.shape[3]
    kind_of_bias = None
    if bias is not None:
        kind_of_bias = bias.shape[:3], bias.shape[3] == 1, bias.dtype
    dtypes = q.dtype, k.dtype, v.dtype
    return call.pattern, q.shape, sizes, dtypes, kind_of_bias, call.scale, call.softcap


class _Repeated:
    """Calls that the compiled library repeats; it makes all checks itself."""

    def __init__(self, call: Call) -> None:
        self._options = options_of(call)

    def compute(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        if bias is not None or REPEATED.repeat is None:
            return None
        output = REPEATED.repeat(q, k, v, *self._options)
        return None if output is UNKNOWN else output


class _Equal:
    """Calls whose tensors have the sizes and dtypes of an earlier one, on the CPU."""

    def __init__(self, call: Call) -> None:
        self._kind = _kind_of(call.q, call.k, call.v)
        self._kind_of_bias = None
        if isinstance(call.bias, torch.Tensor):
            self._kind_of_bias = call.bias.shape, call.bias.dtype

    def _fits(self, q: Any, k: Any, v: Any, bias: torch.Tensor | None) -> bool:
        """Whether the usual way would compute this call as the earlier one."""
        # This comes first, since a mode would see the questions below.
        if not type(q) is type(k) is type(v) is torch.Tensor or is_seen():
            return False
        if _kind_of(q, k, v) != self._kind or q.is_neg() or k.is_neg() or v.is_neg():
            return False
        if q._is_zerotensor() or k._is_zerotensor() or v._is_zerotensor():
            return False
        learns = torch.is_grad_enabled()
        if learns and (q.requires_grad or k.requires_grad or v.requires_grad):
            return False
        if bias is None:
            return self._kind_of_bias is None
        if type(bias) is not torch.Tensor or (bias.shape, bias.dtype) != self._kind_of_bias:
            return False
        if bias.is_neg() or bias._is_zerotensor() or (learns and bias.requires_grad):
            return False
        return bias.is_cpu


def _kind_of(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    return (
        q.shape,
        k.shape,
        v.shape,
        q.dtype,
        k.dtype,
        v.dtype,
        q.is_cpu,
        k.is_cpu,
        v.is_cpu,
    )


class _Steps(_Equal):
    """Calls of few queries while a cache grows, by the compiled library where it knows them.

    keys: the numbers of keys for which the steps were chosen.
    """

    def __init__(self, call: Call, steps: Steps, keys: range) -> None:
        super().__init__(call)
        self._call = call._replace(q=None, k=None, v=None, bias=None)  # ty: ignore[invalid-argument-type]
        options = options_of(call)
        self._before_bias = options[:PLACE_OF_BIAS]
        self._after_bias = options[PLACE_OF_BIAS + 1 :]
        self._steps = steps
        self._keys = keys
        self._q_start: Any = call.q_start

    def compute(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        output = None
        if REPEATED.repeat is not None:
            output = REPEATED.repeat(q, k, v, *self._before_bias, bias, *self._after_bias)
        if output is not None and output is not UNKNOWN:
            return output
        if not self._fits(q, k, v, bias):
            return None
        if output is UNKNOWN:
            call = self._call._replace(q=q, k=k, v=v, bias=bias)
            REPEATED.keep_growing(call, self._steps.growing, self._keys)
        return self._steps.repeat(q, k, v, bias, self._q_start)


class _Planned(_Equal):
    """Calls that a kept plan computes, with the positions and the padding of the first call."""

    def __init__(self, call: Call, plan: Plan, operands: Operands) -> None:
        super().__init__(call)
        self._run = plan.run_operands
        # The operands after q, k, v and bias, which belong to the first layer.
        self._others = operands[4:]

    def compute(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor | None:
        if not self._fits(q, k, v, bias):
            return None
        result = self._run(Operands(q, k, v, bias, *self._others))
        return result.output if looks_sound(result) else None
