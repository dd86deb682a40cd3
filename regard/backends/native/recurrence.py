"""Recurrent mechanisms by the kernel: an engine of `regard.backends.recurrence`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from regard.backends.native.filling import PRODUCTS_PER_THREAD, address_of, dense, describe
from regard.backends.native.library import CHUNK, CRecurrence, CRecurrenceGradients, Library, load
from regard.backends.recurrence import PLAIN, RecurrenceInputs, Rule, ScanEngine
from regard.backends.second_order import Tensors
from regard.core import costs
from regard.core.backend import Cost
from regard.core.problem import Problem
from regard.core.shaped import has_no_values
from regard.mechanisms.features import Kernelised
from regard.mechanisms.recurrent import Recurrent


@dataclass(frozen=True)
class RecurrenceKernel:
    """The compiled recurrence; it reads and writes tensors of any strides whose last axis is dense."""

    library: Library

    def forward(
        self, rule: Rule, inputs: RecurrenceInputs, learns: bool
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        q = inputs.q
        v = inputs.v
        memory = inputs.memory.contiguous()
        batch, kv_heads, length, v_dim = v.shape
        output = v.new_empty(batch, length, max(q.shape[1], kv_heads), v_dim).transpose(1, 2)
        after = torch.empty_like(memory)
        memories = None  # before each chunk
        solved = None
        if not output.numel() or not q.shape[3]:
            return output, memory.clone(), None
        if learns:
            memories = memory.new_empty(batch, kv_heads, -(-length // CHUNK), *memory.shape[2:])
            solved = memory.new_empty(v.shape) if rule.corrects else None
        saved = memories, solved
        call, borrowed = self._call(rule, inputs._replace(memory=memory), output, saved)
        call.after = after.data_ptr()
        self.library.recur(call)
        del borrowed
        return output, after, (memory, memories, solved)

    def backward(self, rule: Rule, inputs: RecurrenceInputs, saved: Any, grads: Tensors) -> Tensors:
        if saved is None:
            return [*(None if x is None else torch.zeros_like(x) for x in inputs[:5]), grads[1]]
        memory, *saved_by_chunk = saved
        heads = max(inputs.q.shape[1], inputs.v.shape[1])
        # The call describes an output, which is not written.
        output = inputs.v.new_empty(inputs.v.shape[0], heads, *inputs.v.shape[2:])
        call, borrowed = self._call(rule, inputs._replace(memory=memory), output, saved_by_chunk)
        gradients = [None if x is None else memory.new_empty(x.shape) for x in inputs[:5]]
        of_memory = torch.empty_like(memory)
        grad, grad_after = (None if x is None else x.to(memory.dtype).contiguous() for x in grads)
        if grad is None and gradients[0] is not None:
            gradients[0].zero_()  # the kernel reads no query then
        struct = CRecurrenceGradients(dafter=address_of(grad_after), dbefore=of_memory.data_ptr())
        names = "dout", "dq", "dk", "dv", "dlog_decay", "dstrength"
        for name, x in zip(names, (grad, *gradients), strict=True):
            if x is not None:
                describe(getattr(struct, name), _with_last_axis(x))
        self.library.recur_back(call, struct)
        del borrowed
        for number, x in enumerate(inputs[:5]):
            gradient = gradients[number]
            if x is not None and gradient is not None:
                gradients[number] = gradient.to(x.dtype)
        return [*gradients, of_memory]

    def _call(
        self, rule: Rule, inputs: RecurrenceInputs, output: torch.Tensor, saved: Any
    ) -> tuple[CRecurrence, list[Any]]:
        """The struct of a call, and the tensors that must live until it is computed."""
        borrowed = [None if x is None else dense(_with_last_axis(x)) for x in inputs[:5]]
        tensors = (*borrowed, output)
        layout = rule, *(None if x is None else (x.shape, x.stride(), x.dtype) for x in tensors)
        known = _LAYOUTS.get(layout)
        if known is not None:
            call = CRecurrence.from_buffer_copy(known)
        else:
            call = _describe_call(rule, inputs, tensors)
            if inputs.v.shape[2] == 1:  # steps of decoding, which are alike
                if len(_LAYOUTS) >= MOST_LAYOUTS:
                    _LAYOUTS.clear()
                _LAYOUTS[layout] = CRecurrence.from_buffer_copy(call)
        structs = call.q, call.k, call.v, call.log_decay, call.strength, call.out
        for tensor_struct, x in zip(structs, tensors, strict=True):
            if x is not None:
                tensor_struct.data = x.data_ptr()
        work = math.prod(output.shape[:3]) * math.prod(inputs.memory.shape[2:])
        call.threads = min(torch.get_num_threads(), max(1, work // PRODUCTS_PER_THREAD))
        call.before = call.after = inputs.memory.data_ptr()
        memories, solved = saved
        call.kept = address_of(memories)
        call.solved = address_of(solved)
        return call, [*borrowed, inputs.memory]


MOST_LAYOUTS = 64
# Structs by the layout of their tensors; each call copies one.
_LAYOUTS: dict[Any, CRecurrence] = {}


def _describe_call(rule: Rule, inputs: RecurrenceInputs, tensors: Any) -> CRecurrence:
    """The struct of a call, but for addresses and threads."""
    batch, heads, length, head_dim = inputs.q.shape
    _, kv_heads, _, v_dim = inputs.v.shape
    decays = 0 if inputs.log_decay is None else inputs.log_decay.dim() - 2
    sizes = batch, heads, inputs.k.shape[1], kv_heads, length, head_dim, v_dim
    call = CRecurrence(*sizes, 1, rule.corrects, decays, rule.scale, rule.unit)
    for name, x in zip(("q", "k", "v", "log_decay", "strength", "out"), tensors, strict=True):
        if x is not None:
            describe(getattr(call, name), x)
    return call


def _with_last_axis(x: torch.Tensor) -> torch.Tensor:
    """Decays and strengths, of which a head may have one a position, as (batch, heads, length, 1)."""
    return x if x.dim() == 4 else x[..., None]


def engine_on(x: torch.Tensor) -> ScanEngine:
    """The kernel for tensors of the CPU where its library is, else plain operations."""
    library = load() if x.is_cpu and not has_no_values(x) else ""
    return PLAIN if isinstance(library, str) else RecurrenceKernel(library)


def memory_shape(problem: Problem) -> tuple[int, int]:
    """The memory of a head, as the kernel holds it."""
    mechanism = problem.mechanism
    assert isinstance(mechanism, Kernelised | Recurrent)
    return mechanism.state_shape(problem.head_dim, problem.v_dim)


def cost_of(problem: Problem, plain: Cost) -> Cost:
    """The cost by the kernel: the operations of the chunk form, whose parts stay in the processor's cache."""
    width = problem.computed_bytes
    features = memory_shape(problem)
    rows = problem.batch * (problem.heads + 2 * problem.kv_heads) * problem.k_len * sum(features)
    memories = problem.batch * problem.kv_heads * math.prod(features) * (problem.k_len // CHUNK + 2)
    peak = width * (memories if problem.needs_grad else 0) + 2.0 * (1 << 20)
    return Cost(
        plain.flops,
        width * rows * (4 if problem.needs_grad else 1),
        peak,
        plain.pairs,
        2,
        pace=costs.KERNEL_RECURRENCE_PACE,
    )
