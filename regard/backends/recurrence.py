"""Recurrent mechanisms chunk by chunk: a memory between chunks, a triangular system inside each.

With S the memory before a chunk and e_ij the decay from key j to position i, the product of a_t over j < t <= i:

    x_i = v_i - (e_i0 S)ᵀ k_i - Σ_{j<i} (k_i e_ij · k_j) u_j,   u_i = b_i x_i       without the delta rule x_i = v_i
    o_i = (e_i0 S)ᵀ q_i + Σ_{j<=i} (q_i e_ij · k_j) u_j,        S' = e_n0 S + Σ_j (e_nj k_j) u_jᵀ

Each e_ij is the exponential of a sum of log decays over exactly the keys between j and i. Nothing is subtracted and
nothing divided by a product of decays, so log decays may be -inf, and their gradients need no terms that cancel.

Sources: Gated Linear Attention, Yang et al. 2024, section 4; Parallelizing the Delta Rule, Yang et al. 2024, section 3.

Letters: u units (batch row and value head), c chunks, r rows of queries that share a key, and of keys, n positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import functional

from regard.backends.documents import (
    at_ends,
    leading_rows,
    pack_documents,
    padded_to_all_keys,
    put_back,
    texts_between,
    unpadded_keys,
)
from regard.backends.second_order import Piece, Tensors, gradients
from regard.core.backend import Cost, Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import map_tensors
from regard.exporting import exporting
from regard.mechanisms.recurrent import Recurrent
from regard.patterns.documents import document_ids

CHUNK = 32  # positions of a triangular system
BLOCK = 256  # positions whose pairs are in memory at once
# On a GPU: at most how many times as long chunks and blocks are, and how many pairs at once.
MOST_TIMES = 8
MOST_PAIRS = 1 << 26


def longer_on(device: str, heads: int) -> int:
    """How many times as long chunks and blocks are as on the CPU.

    On a GPU, starting an operation takes longer than computing a short chunk.

    Args:
        device: "cpu" or another device.
        heads: query heads of all batch rows; the pairs of a block are in memory for each.
    """
    if device == "cpu":
        return 1
    for times in (MOST_TIMES, 4, 2):
        if heads * times**2 * CHUNK * BLOCK <= MOST_PAIRS:
            return times
    return 1


class Rule(NamedTuple):
    """What a recurrence computes beside its tensors.

    unit: 0, or what is added to the squared lengths of queries and keys, which are then brought to length 1.
    """

    corrects: bool
    scale: float
    unit: float = 0.0


class RecurrenceInputs(NamedTuple):
    """The tensors of a recurrence over n positions; the heads of v are a multiple of those of k.

    q: (batch, heads, n, head_dim), more or fewer heads than v, or as many. k: (batch, ·, n, head_dim).
    v: (batch, kv_heads, n, v_dim). log_decay: (batch, kv_heads, n) or (..., head_dim), None for 0.
    strength: (batch, kv_heads, n), None for 1. memory: (batch, kv_heads, head_dim, v_dim), before the first position.
    The kernel takes q, k and v in half precision too, beside others in float32.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    log_decay: torch.Tensor | None
    strength: torch.Tensor | None
    memory: torch.Tensor

    def part(self, positions: slice, memory: torch.Tensor) -> RecurrenceInputs:
        """Some of the positions, with the memory before them."""
        return self.mapped(lambda x: x[:, :, positions], memory)

    def mapped(
        self, change: Callable[[torch.Tensor], torch.Tensor], memory: torch.Tensor
    ) -> RecurrenceInputs:
        """The same change of all that has positions, with another memory before them."""
        return RecurrenceInputs(*map_tensors(change, self[:5]), memory)


# Outputs (batch, heads, n, v_dim), and the memory after the last position.
Outputs = tuple[torch.Tensor, torch.Tensor]


class ScanEngine(Protocol):
    """What computes a recurrence: outputs with what the backward pass needs, and the gradients of what was given."""

    def forward(
        self, rule: Rule, inputs: RecurrenceInputs, learns: bool
    ) -> tuple[torch.Tensor, torch.Tensor, Any]: ...

    def backward(
        self, rule: Rule, inputs: RecurrenceInputs, saved: Any, grads: Tensors
    ) -> Tensors: ...


def scan(engine: ScanEngine, rule: Rule, inputs: RecurrenceInputs) -> Outputs:
    """The outputs of a recurrence over all positions, differentiable twice."""
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    if rule.unit and (learns or engine is PLAIN):
        dtype = inputs.memory.dtype
        q = _at_unit_length(inputs.q.to(dtype), rule.unit)
        k = _at_unit_length(inputs.k.to(dtype), rule.unit)
        rule = rule._replace(unit=0.0)
        inputs = inputs._replace(q=q, k=k)
    if learns:
        return _Scan.apply(engine, rule, *inputs)
    output, memory, _ = engine.forward(rule, inputs, False)
    return output, memory


def scan_texts(
    engine: ScanEngine, rule: Rule, inputs: RecurrenceInputs, begins: torch.Tensor
) -> Outputs:
    """The same for several texts in each batch row, which begin without a memory.

    Args:
        engine, rule, inputs: as for `scan`; a row whose first position begins no text goes on with its memory.
        begins: (batch, n), True where a text begins.

    Returns:
        The outputs, and the memory after the last position of each row: that of its last text.
    """
    if not inputs.v.shape[2]:
        return scan(engine, rule, inputs)
    if torch.compiler.is_compiling():
        return scan(engine, rule, with_beginnings(inputs, begins))
    texts = texts_between(begins)
    outputs = []
    memories = []
    for group in texts:
        memory = inputs.memory.index_select(0, group.rows)
        if not group.continues:
            memory = torch.zeros_like(memory)
        part = inputs.mapped(group.pack.take, memory)
        met = torch.full((1, 1, 1), group.continues, device=begins.device)
        part = without_unseen(part, group.pack.real[:, None], met)
        output, memory = scan(engine, rule, part)
        outputs.append(output)
        memories.append(memory)
    packs = [group.pack for group in texts]
    output = put_back(packs, outputs, begins.shape[0])
    return output, at_ends(texts, memories, inputs.memory)


def with_beginnings(inputs: RecurrenceInputs, begins: torch.Tensor) -> RecurrenceInputs:
    """The same in one text, where nothing is left of the memory at each beginning: its log decay is -inf.

    This is for graphs, which do not know how many texts there are. A NaN in the memory stays one there.
    """
    log_decay = inputs.log_decay
    if log_decay is None:
        log_decay = torch.zeros_like(inputs.v[..., 0], dtype=inputs.memory.dtype)
    begins = _beside(log_decay, begins[:, None])
    return inputs._replace(log_decay=log_decay.masked_fill(begins, -torch.inf))


def _beside(log_decay: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """What is known of positions, (batch or 1, 1, n), with an axis for channels where log decays have one."""
    return positions if log_decay.dim() == 3 else positions[..., None]


def _at_unit_length(x: torch.Tensor, added: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + added)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, engine: ScanEngine, rule: Rule, *tensors: Any) -> Any:
        output, memory, ctx.saved = engine.forward(rule, RecurrenceInputs(*tensors), True)
        ctx.engine, ctx.rule = engine, rule
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return output, memory

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        inputs = RecurrenceInputs(*ctx.saved_tensors)
        first = partial(ctx.engine.backward, ctx.rule, inputs, ctx.saved)
        whole = Piece(partial(_scan_plainly, ctx.rule), (...,) * len(inputs), (..., ...))
        pieces = [whole] if inputs.v.shape[2] else []
        return None, None, *gradients(first, lambda: pieces, inputs, grads)


def _longer(rule: Rule, inputs: RecurrenceInputs) -> int:
    """How many times as long chunks and blocks are: more without corrections and decays by channel, which cost more."""
    if rule.corrects or (inputs.log_decay is not None and inputs.log_decay.dim() == 4):
        return 1
    heads = inputs.v.shape[0] * max(inputs.q.shape[1], inputs.v.shape[1])
    return 2 * longer_on(inputs.v.device.type, heads)


def _blocks(rule: Rule, inputs: RecurrenceInputs) -> Iterator[slice]:
    length = inputs.v.shape[2]
    size = BLOCK * _longer(rule, inputs)
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


def _scan_plainly(rule: Rule, *tensors: Any) -> Outputs:
    """The recurrence by plain differentiable operations; autograd's memory for it grows linearly with the length."""
    dtype = tensors[-1].dtype
    inputs = RecurrenceInputs(*map_tensors(lambda x: x.to(dtype), tensors))
    outputs = []
    memory = inputs.memory
    for positions in _blocks(rule, inputs):
        output, memory = block(rule, inputs.part(positions, memory))
        outputs.append(output)
    return torch.cat(outputs, 2).to(tensors[2].dtype), memory


class Plain:
    """Plain operations of PyTorch. The backward pass computes each block again and differentiates it by autograd."""

    def forward(
        self, rule: Rule, inputs: RecurrenceInputs, learns: bool
    ) -> tuple[torch.Tensor, torch.Tensor, Any]:
        memories = []  # before each block
        memory = inputs.memory
        heads = max(inputs.q.shape[1], inputs.v.shape[1])
        output = inputs.v.new_empty(inputs.v.shape[0], heads, *inputs.v.shape[2:])
        with torch.no_grad():
            for positions in _blocks(rule, inputs):
                if learns:
                    memories.append(memory)
                output[:, :, positions], memory = block(rule, inputs.part(positions, memory))
        return output, memory, memories

    def backward(self, rule: Rule, inputs: RecurrenceInputs, saved: Any, grads: Tensors) -> Tensors:
        grad_output, grad_memory = grads
        results = map_tensors(torch.empty_like, inputs[:5])
        if grad_memory is None:
            grad_memory = torch.zeros_like(inputs.memory)
        for positions, memory in reversed([*zip(_blocks(rule, inputs), saved, strict=True)]):
            tensors = inputs.part(positions, memory)
            leaves = RecurrenceInputs(*map_tensors(new_leaf, tensors))
            with torch.enable_grad():
                output, memory_after = block(rule, leaves)
            if grad_output is None:
                outputs = [memory_after]
                grads_of_outputs = [grad_memory]
            else:
                outputs = [output, memory_after]
                grads_of_outputs = [grad_output[:, :, positions], grad_memory]
            learning = [x for x in leaves if x is not None]
            *by_position, grad_memory = torch.autograd.grad(
                outputs, learning, grads_of_outputs, allow_unused=True, materialize_grads=True
            )
            written = [x for x in results if x is not None]
            for result, gradient in zip(written, by_position, strict=True):
                result[:, :, positions] = gradient
        return *results, grad_memory


def new_leaf(x: torch.Tensor) -> torch.Tensor:
    """The same numbers without their graph, as a tensor that gets a gradient."""
    return x.detach().requires_grad_()


PLAIN = Plain()


def block(rule: Rule, inputs: RecurrenceInputs) -> Outputs:
    """The recurrence over the positions of one block."""
    heads, length = inputs.v.shape[1:3]
    size = min(CHUNK * _longer(rule, inputs), 1 << (length - 1).bit_length())

    def cut(x: torch.Tensor, shared: int = 1) -> torch.Tensor:
        """(batch, heads, length, ...) -> (u, c, n, ...)"""
        x = x if shared == 1 else x.repeat_interleave(shared, 1)
        x = functional.pad(x, (0, 0) * (x.dim() - 3) + (0, -length % size))
        return x.flatten(0, 1).unflatten(1, (-1, size))

    group = max(1, inputs.q.shape[1] // heads)
    q = cut(inputs.q * rule.scale, max(1, heads // inputs.q.shape[1]))
    q = q.unflatten(0, (-1, group)).transpose(1, 2)  # (u, c, group, n, head_dim)
    k = cut(inputs.k, heads // inputs.k.shape[1])
    v = cut(inputs.v)
    strength = inputs.strength
    if strength is not None:
        strength = cut(strength)[..., None]  # (u, c, n, 1)
    rows = q  # (u, c, r, n, head_dim)
    if rule.corrects:
        rows = torch.cat((q, k[:, :, None]), 2)
    memory_decay = None
    read = rows
    added = k
    if inputs.log_decay is None:
        pairs = _products(rows, k).tril()
    else:
        log_decay = cut(inputs.log_decay)
        if log_decay.dim() == 3:
            log_decay = log_decay[..., None]
        pairs_of = _pairs if log_decay.shape[-1] == 1 else _pairs_by_channel
        pairs = pairs_of(rows, k, log_decay).tril()
        decay = log_decay.cumsum(-2).exp()  # e_i0, (u, c, n, 1 or head_dim)
        memory_decay = decay[:, :, -1, :, None]
        read = rows * decay[:, :, None]
        added = k * _sum_of_later(log_decay).exp()
    read = read.flatten(2, 3)
    first = inputs.memory.flatten(0, 1)
    weights = pairs[:, :, :group].flatten(2, 3)
    if rule.corrects:
        solved = _inverse(pairs[:, :, -1].tril(-1), strength)
        output, memory = _correct_chunks(
            read, weights, solved, added, memory_decay, v, strength, first
        )
    else:
        update = v
        if strength is not None:
            update = v * strength
        # Before each chunk, and after the last.
        memories = _sum_chunks(added.mT @ update, memory_decay, first)
        output = torch.stack(memories[:-1], 1)
        memory = memories[-1]
        output = read @ output + weights @ update
    output = output.unflatten(2, (group, size)).transpose(1, 2)
    output = output.flatten(2, 3)[:, :, :length]  # (u, group, length, v_dim)
    output = output.reshape(inputs.v.shape[0], heads * group, *output.shape[2:])
    return output, memory.view(inputs.memory.shape)


def _sum_chunks(
    added: torch.Tensor, memory_decay: torch.Tensor | None, memory: torch.Tensor
) -> list[torch.Tensor]:
    """The memory (u, head_dim, v_dim) before each chunk and after the last, given what each adds, (u, c, ...)."""
    memories = [memory]
    for chunk in range(added.shape[1]):
        memory = memories[-1]
        if memory_decay is not None:
            memory = memory_decay[:, chunk] * memory
        memories.append(memory + added[:, chunk])
    return memories


def _correct_chunks(
    read: torch.Tensor,
    weights: torch.Tensor,
    solved: torch.Tensor,
    added: torch.Tensor,
    memory_decay: torch.Tensor | None,
    v: torch.Tensor,
    strength: torch.Tensor | None,
    memory: torch.Tensor,
) -> Outputs:
    """Outputs (u, c, r n, v_dim) of a delta rule and the memory after: each chunk corrects what the one before left."""
    size = v.shape[2]
    outputs = []
    for chunk in range(v.shape[1]):
        from_memory = torch.bmm(read[:, chunk], memory)
        update = torch.bmm(solved[:, chunk], v[:, chunk] - from_memory[:, -size:])
        if strength is not None:
            update = update * strength[:, chunk]
        outputs.append(torch.baddbmm(from_memory[:, :-size], weights[:, chunk], update))
        if memory_decay is not None:
            memory = memory_decay[:, chunk] * memory
        memory = torch.baddbmm(memory, added[:, chunk].mT, update)
    return torch.stack(outputs, 1), memory


def _sum_of_later(log_decay: torch.Tensor) -> torch.Tensor:
    """The sum over the positions after each, along the axis before the last."""
    return functional.pad(log_decay[..., 1:, :], (0, 0, 0, 1)).flip(-2).cumsum(-2).flip(-2)


def _products(rows: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """row_i · k_j, (u, c, r, n, n)."""
    return (rows.flatten(2, 3) @ k.mT).unflatten(2, (-1, k.shape[-2]))


def _pairs(rows: torch.Tensor, k: torch.Tensor, log_decay: torch.Tensor) -> torch.Tensor:
    """row_i e_ij · k_j, (u, c, r, n, n), of which the part up to the diagonal is valid; log_decay (u, c, n, 1)."""
    size = k.shape[-2]
    log_decay = log_decay.expand(*log_decay.shape[:-1], size)
    decay = log_decay.tril(-1).cumsum(-2).exp().tril()  # e_ij
    return _products(rows, k) * decay[:, :, None]


def _pairs_by_channel(rows: torch.Tensor, k: torch.Tensor, log_decay: torch.Tensor) -> torch.Tensor:
    """The same with log_decay (u, c, n, head_dim), which is inside the dot products.

    Pairs across the middle m of a block have e_ij = e_im e_mj, two factors for as many matrix products; those within
    its halves follow in the same way. n is a power of 2.
    """
    # of each position with itself: (u, c, r, blocks, 1, 1)
    pairs = (rows * k[:, :, None]).sum(-1)[..., None, None]
    half = 1
    while half < k.shape[-2]:
        second_rows = rows.unflatten(-2, (-1, 2, half))[..., 1, :, :]
        first_keys = k.unflatten(-2, (-1, 2, half))[..., 0, :, :]
        log_decays = log_decay.unflatten(-2, (-1, 2, half))
        to_rows = log_decays[..., 1, :, :].cumsum(-2).exp()
        from_keys = _sum_of_later(log_decays[..., 0, :, :]).exp()
        across = (second_rows * to_rows[:, :, None]) @ (first_keys * from_keys)[:, :, None].mT
        first, second = pairs.unflatten(3, (-1, 2)).unbind(4)  # (u, c, r, blocks, half, half)
        pairs = _lower_triangle(first, across, second)
        half *= 2
    return pairs[:, :, :, 0]


def _lower_triangle(
    first: torch.Tensor, across: torch.Tensor, second: torch.Tensor
) -> torch.Tensor:
    """The matrix [[first, 0], [across, second]]."""
    above = torch.cat((first, torch.zeros_like(first)), -1)
    return torch.cat((above, torch.cat((across, second), -1)), -2)


def _inverse(pairs: torch.Tensor, strength: torch.Tensor | None) -> torch.Tensor:
    """(I + pairs diag(strength))⁻¹ of pairs below the diagonal, (u, c, n, n)."""
    system = pairs
    if strength is not None:
        system = pairs * strength.mT
    if exporting():  # other runtimes solve no systems
        return _inverse_by_halves(system)
    eye = torch.eye(pairs.shape[-1], dtype=pairs.dtype, device=pairs.device)
    return torch.linalg.solve_triangular(system, eye, upper=False, unitriangular=True)


def _inverse_by_halves(system: torch.Tensor) -> torch.Tensor:
    """The same by products: the inverse of [[A, 0], [C, B]] is [[A⁻¹, 0], [-B⁻¹ C A⁻¹, B⁻¹]]; n is a power of 2."""
    inverse = torch.ones_like(system[..., :1])[..., None]  # (u, c, blocks, 1, 1)
    half = 1
    while half < system.shape[-1]:
        size = 2 * half
        first, second = inverse.unflatten(2, (-1, 2)).unbind(3)
        blocks = system.unflatten(-1, (-1, size)).unflatten(2, (-1, size))
        on_diagonal = blocks.diagonal(dim1=2, dim2=4).movedim(-1, 2)  # (u, c, blocks, size, size)
        across = -second @ on_diagonal[..., half:, :half] @ first
        inverse = _lower_triangle(first, across, second)
        half = size
    return inverse[:, :, 0]


# --- a call ---


def run(problem: Problem, engine: ScanEngine, operands: Operands) -> Result:
    """The output of a call, computed in float32 at least."""
    if engine is PLAIN:
        wide = torch.promote_types(problem.dtype, torch.float32)
        operands = operands._replace(
            q=operands.q.to(wide), k=operands.k.to(wide), v=operands.v.to(wide)
        )
    return Result(attend(problem, operands, engine).to(problem.dtype))


def attend(problem: Problem, operands: Operands, engine: ScanEngine) -> torch.Tensor:
    """The output of a call: as one recurrence over all keys, or one for each document."""
    mechanism = problem.mechanism
    grid = operands.grid
    assert isinstance(mechanism, Recurrent)
    rule = Rule(mechanism.corrects, problem.scale)
    gates = mechanism.gates(operands.parameters, operands.k, operands.v)
    tensors = (operands.q, operands.k, operands.v, *gates)
    visible = unpadded_keys(problem.pattern, grid)  # (batch or 1, 1, keys)
    if not document_ids(problem.pattern):
        return _whole(problem, engine, rule, tensors, visible, grid.keys)
    ids = document_ids(problem.pattern)
    packs = pack_documents(ids, problem.batch, problem.k_len, operands.q.device)
    if visible is None:
        visible = torch.ones(1, 1, len(grid.keys), dtype=torch.bool, device=operands.q.device)
    visible = padded_to_all_keys(visible, problem, operands).expand(problem.batch, 1, problem.k_len)
    by_key = map_tensors(lambda x: padded_to_all_keys(x, problem, operands), tensors[1:])
    tensors = (operands.q, *by_key)
    outputs = []
    for pack in packs:
        inputs = inputs_of(*map_tensors(pack.take, tensors))
        inputs = without_unseen(inputs, pack.take(visible) & pack.real[:, None])
        output, _ = scan(engine, rule, inputs)
        outputs.append(output)
    return put_back(packs, outputs, problem.batch)


def inputs_of(
    q: Any, k: Any, v: Any, log_decay: Any, strength: Any, memory: torch.Tensor | None = None
) -> RecurrenceInputs:
    if memory is None:
        wide = torch.promote_types(v.dtype, torch.float32)
        memory = v.new_zeros(*v.shape[:2], k.shape[3], v.shape[3], dtype=wide)
    return RecurrenceInputs(q, k, v, log_decay, strength, memory)


def without_unseen(
    inputs: RecurrenceInputs, visible: torch.Tensor, met: torch.Tensor | None = None
) -> RecurrenceInputs:
    """The same where hidden keys neither decay nor write, and rows without any key read nothing, NaN included.

    visible: (batch or 1, 1, n). met: (batch or 1, 1, 1), whether a key came before these.
    """
    hidden = ~visible
    seen = visible.cumsum(-1) > 0
    if met is not None:
        seen = seen | met
    log_decay = inputs.log_decay
    if log_decay is not None:
        log_decay = log_decay.masked_fill(_beside(log_decay, hidden), 0)
    strength = inputs.strength
    if strength is not None:
        strength = strength.masked_fill(hidden, 0)
    return RecurrenceInputs(
        inputs.q.masked_fill(~seen[..., None], 0),
        inputs.k.masked_fill(hidden[..., None], 0),
        inputs.v.masked_fill(hidden[..., None], 0),
        log_decay,
        strength,
        inputs.memory,
    )


def _whole(
    problem: Problem,
    engine: ScanEngine,
    rule: Rule,
    tensors: Any,
    visible: torch.Tensor | None,
    keys: range,
) -> torch.Tensor:
    """One recurrence: rows before the first key are zeros, and rows after the last read the memory that it left."""
    q, *by_key = tensors
    leading, before = leading_rows(problem, keys)
    before = min(before, len(keys))
    both = min(problem.q_len - leading, len(keys) - before)  # rows with a key at their own position
    at_keys = functional.pad(q[:, :, leading : leading + both], (0, 0, before, 0))
    inputs = inputs_of(at_keys, *map_tensors(lambda x: x[:, :, : before + both], by_key))
    after = q[:, :, leading + both :]
    if visible is not None:
        visible = visible[..., : before + both]
        inputs = without_unseen(inputs, visible)
        after = after.masked_fill(~visible.any(-1)[..., None, None], 0)
    output, memory = scan(engine, rule, inputs)
    output = output[:, :, before:]
    if both == problem.q_len:
        return output
    before_keys = output.new_zeros(*output.shape[:2], leading, output.shape[3])
    return torch.cat((before_keys, output, _read(rule, after, memory)), 2)


def _read(rule: Rule, q: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The outputs of queries (batch, heads, n, head_dim) after the last key."""
    heads = max(q.shape[1], memory.shape[1])
    q = q.repeat_interleave(heads // q.shape[1], 1)
    memory = memory.repeat_interleave(heads // memory.shape[1], 1)
    return (rule.scale * q.to(memory.dtype) @ memory).to(q.dtype)


def cost(problem: Problem) -> Cost:
    """The cost of the chunk form."""
    mechanism = problem.mechanism
    assert isinstance(mechanism, Recurrent)
    keys = len(problem.reachable_keys)
    dims = problem.head_dim + problem.v_dim
    units = problem.batch * problem.kv_heads * keys
    rows = problem.batch * problem.heads * keys
    pairs = CHUNK * (rows + units)
    flops = 2 * pairs * dims + 2 * (rows + 2 * units) * problem.head_dim * problem.v_dim
    width = problem.computed_bytes
    again = 4 if problem.needs_grad else 1
    by_channel = 3 if mechanism.decays_by == "channel" else 1
    memories = problem.batch * problem.kv_heads * problem.head_dim * problem.v_dim
    return Cost(
        flops=flops * again * by_channel,
        bytes=width * 6 * (rows + 2 * units) * dims * again * by_channel,
        peak_bytes=width
        * (
            8 * min(keys, BLOCK) / max(1, keys) * (rows + units) * (dims + CHUNK)
            + memories * (keys // BLOCK + 2)
        ),
        pairs=min(pairs, problem.pairs),
        calls=again * (8 * (keys // CHUNK + 1) + 30 * (keys // BLOCK + 1)),
    )
