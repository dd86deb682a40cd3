"""Recurrent mechanisms by the kernels of flash-linear-attention, on a GPU: an engine of `regard.backends.recurrence`.

The kernels add up log decays and exponentiate differences of the sums; a log decay of -inf would give NaN there, so
log decays are raised to at least FORGOTTEN, whose exponential is below the smallest normal number of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from regard.backends import recurrence
from regard.backends.documents import ROWS_IN_ORDER
from regard.backends.limits import Limited, no_weights, not_empty, on_mechanism, where
from regard.backends.recurrence import RecurrenceInputs, Rule
from regard.backends.second_order import Tensors, first_order_only
from regard.core.backend import Cost, Offer, Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import HALF, map_tensors
from regard.mechanisms.recurrent import Recurrent

FORGOTTEN = -100.0
LEAST_SIZE = 16  # numbers of a vector of the kernels: head_dim and v_dim
LARGEST_SIZE = 256
CHUNK = 64  # positions between two memories that the kernels keep

Operation = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # on tensors (batch, n, heads, ...)

# By whether the mechanism corrects, and what its decays belong to.
NAMES: dict[tuple[bool, str | None], tuple[str, str]] = {
    (False, None): ("fla.ops.simple_gla", "chunk_simple_gla"),
    (False, "head"): ("fla.ops.simple_gla", "chunk_simple_gla"),
    (False, "channel"): ("fla.ops.gla", "chunk_gla"),
    (True, None): ("fla.ops.delta_rule", "chunk_delta_rule"),
    (True, "head"): ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule"),
    (True, "channel"): ("fla.ops.kda", "chunk_kda"),
}


@cache
def operation(corrects: bool, decays_by: str | None) -> Operation | str:
    """The package's function for a kind of mechanism, or the reason why there is none."""
    module, name = NAMES[corrects, decays_by]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "fla":
            return "flash-linear-attention is not installed; pip install flash-linear-attention"
        return f"flash-linear-attention needs the package {missing!r}, which is not installed"
    except Exception as error:  # its import looks for drivers and versions, and may raise anything
        return f"flash-linear-attention cannot be loaded: {type(error).__name__}: {error}"


@dataclass(frozen=True)
class Kernels:
    """The package's function for one kind of mechanism, and whether it corrects."""

    compute: Operation
    corrects: bool

    def forward(
        self, rule: Rule, inputs: RecurrenceInputs, learns: bool
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        if not learns:
            with torch.no_grad():
                output, memory = self._compute_by_package(rule, inputs)
            return output.detach(), memory.detach(), None

        leaves = RecurrenceInputs(*map_tensors(recurrence.new_leaf, inputs))
        with torch.enable_grad():
            outputs = self._compute_by_package(rule, leaves)
        output, memory = outputs
        return output.detach(), memory.detach(), (leaves, outputs)

    def backward(self, rule: Rule, inputs: RecurrenceInputs, saved: Any, grads: Tensors) -> Tensors:
        leaves, outputs = saved
        used = [place for place, grad in enumerate(grads) if grad is not None]

        gradients = torch.autograd.grad(
            [outputs[place] for place in used],
            [x for x in leaves if x is not None],
            [grads[place] for place in used],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        by_tensor = iter(gradients)
        return map_tensors(lambda _: next(by_tensor), leaves)

    def _compute_by_package(self, rule: Rule, inputs: RecurrenceInputs) -> recurrence.Outputs:
        """The outputs (batch, heads, n, v_dim) and the memory after the last position, by plain differentiable calls.

        Two of the functions share queries and keys among heads of v. Otherwise all tensors get as many heads.
        """
        q, k, v, log_decay, strength, memory = inputs
        heads = max(q.shape[1], v.shape[1])
        takes_fewer_keys = self.corrects and log_decay is not None
        if not (takes_fewer_keys and q.shape[1] == k.shape[1] <= v.shape[1]):
            q = _with_heads(q, heads)
            k = _with_heads(k, heads)

        options: dict[str, torch.Tensor] = {}
        if log_decay is not None:
            options["g"] = _with_heads(log_decay.clamp(min=FORGOTTEN), heads)
        if self.corrects:
            if strength is None:
                strength = v.new_ones(v.shape[:3])
            options["beta"] = _with_heads(strength, heads)
        elif strength is not None:
            v = (v * strength[..., None]).to(v.dtype)
        options |= {"q": q, "k": k, "v": _with_heads(v, heads)}
        options = {name: x.transpose(1, 2).contiguous() for name, x in options.items()}
        before = _with_heads(memory.float(), heads)

        output, after = self.compute(
            **options, scale=rule.scale, initial_state=before, output_final_state=True
        )

        # Heads of queries that share a head of v have the same memory.
        after = after[:, :: heads // v.shape[1]]
        return output.transpose(1, 2).to(v.dtype), after.to(memory.dtype)


def _with_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    if x.shape[1] == heads:
        return x
    return x.repeat_interleave(heads // x.shape[1], 1)


def _cannot_be_loaded(problem: Problem) -> str | None:
    """A limit: the package must be there."""
    mechanism = problem.mechanism
    if not isinstance(mechanism, Recurrent):
        return None
    compute = operation(mechanism.corrects, mechanism.decays_by)
    return compute if isinstance(compute, str) else None


@cache
def _backward_by_head() -> str | None:
    """Why the package's backward pass with a decay for each head is wrong here, as the package itself says; or None."""
    try:
        package = import_module("fla.ops.common.chunk_o")
        from_3_4 = package.TRITON_ABOVE_3_4_0
        is_mended = package.TRITON_ABOVE_3_7_1
        is_wrong = package.IS_NVIDIA_HOPPER and from_3_4 and not is_mended
    # Another version of the package, without this fault or with other names for it.
    except (ImportError, AttributeError):
        return None
    if not is_wrong or find_spec("tilelang") is not None:
        return None
    return (
        "on Hopper GPUs, with Triton 3.4 up to 3.7.0, the package has no right gradient for decays by head; install "
        "Triton 3.7.1 or later, or tilelang"
    )


def _is_wrong_here(problem: Problem) -> str | None:
    """A limit: gradients that the package refuses to compute."""
    mechanism = problem.mechanism
    if not isinstance(mechanism, Recurrent) or mechanism.decays_by != "head":
        return None
    return _backward_by_head() if problem.needs_grad else None


class FlashLinear(Limited):
    """Recurrent mechanisms in bfloat16 and float16 on cuda, where flash-linear-attention is installed.

    The first call of a mechanism, head size and dtype compiles its kernels and times variants of them, which takes
    seconds to minutes. Sums of log decays and memories are in float32; memories between chunks are rounded to q's
    dtype, as the package does. It has no second derivatives.

    Args:
        devices: the devices on which it computes.
    """

    name = "fla"

    def __init__(self, devices: tuple[str, ...] = ("cuda",)) -> None:
        elsewhere = where(
            lambda problem: problem.device not in devices,
            f"flash-linear-attention's kernels are for {' and '.join(devices)}, and the tensors are on "
            "{problem.device}",
        )
        self.limits = (on_mechanism(Recurrent, "recurrent memories"), elsewhere, *_LIMITS)

    def offer(self, problem: Problem) -> Offer:
        return Offer(_cost(problem), partial(self.run, problem))

    def run(self, problem: Problem, operands: Operands) -> Result:
        mechanism = problem.mechanism
        assert isinstance(mechanism, Recurrent)
        compute = operation(mechanism.corrects, mechanism.decays_by)
        assert not isinstance(compute, str)
        engine = Kernels(compute, mechanism.corrects)
        output = recurrence.attend(problem, operands, engine)
        return Result(first_order_only(self.name, output)[0] if problem.needs_grad else output)


def _fits_kernels(size: int) -> bool:
    return size % 2 == 0 and LEAST_SIZE <= size <= LARGEST_SIZE


_LIMITS = (
    _cannot_be_loaded,
    _is_wrong_here,
    where(
        lambda problem: problem.dtype not in HALF,
        "its kernels multiply in half precision, rounding float32 to 10 bits, and q is {problem.dtype}",
    ),
    where(
        lambda problem: not (_fits_kernels(problem.head_dim) and _fits_kernels(problem.v_dim)),
        f"its kernels take vectors of {LEAST_SIZE} to {LARGEST_SIZE} numbers, an even number of them, not head_dim "
        "{problem.head_dim} and v_dim {problem.v_dim}",
    ),
    not_empty,
    no_weights,
    *ROWS_IN_ORDER,
)


def _cost(problem: Problem) -> Cost:
    """The cost by the kernels: the operations of the chunk form in few launches, and a memory for each chunk."""
    plain = recurrence.cost(problem)
    passes = 3 if problem.needs_grad else 1
    heads = problem.batch * problem.heads
    rows = heads * max(problem.q_len, problem.k_len)
    memories = heads * problem.head_dim * problem.v_dim * (problem.k_len // CHUNK + 2)
    vectors = rows * (problem.head_dim + problem.v_dim)
    width = problem.dtype.itemsize
    return Cost(
        flops=plain.flops,
        bytes=width * (6 * vectors + 2 * memories) * passes,
        peak_bytes=width * (4 * vectors + memories) * passes,
        pairs=plain.pairs,
        calls=8 * passes,
    )
