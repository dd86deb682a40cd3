"""Causal attention with a state over processes: the sums, or the memory, of earlier keys go from process to process.

Process r receives the sums over all keys before its own, adds its keys, and sends the sums on; no key is sent. Each
key head is sent as its own message, so that a process computes one head while the next process computes the
previous one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from regard.backends.documents import unpadded_keys
from regard.backends.kernelised import Text
from regard.core.problem import Problem
from regard.distributed.function import refuse_second_derivatives
from regard.distributed.group import Group
from regard.distributed.layout import Layout
from regard.errors import UnsupportedError
from regard.layers.caches.state import Summed, add
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Causal
from regard.patterns.grid import Grid

# The sums of a state, in the order in which they are sent.
SUMS = ("total", "log", "mass", "met")


class Chain(NamedTuple):
    """One call as one process runs it; `parameters` are the names of those of the mechanism."""

    group: Group
    layout: Layout
    problem: Problem
    parameters: tuple[str, ...]

    @property
    def heads(self) -> int:
        """Key heads, each of which is a piece with its own queries, values and parameters."""
        return self.problem.kv_heads // self.problem.value_group

    @property
    def before(self) -> int | None:
        """The process that holds the keys before this one's."""
        return self.group.rank - 1 if self.group.rank else None

    @property
    def after(self) -> int | None:
        """The process that holds the keys after this one's."""
        return self.group.rank + 1 if self.group.rank + 1 < self.group.count else None

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.problem.dtype, torch.float32)


class HeadPiece(NamedTuple):
    """One key head with its graph: its inputs, its output, and the sums before and after it by name."""

    inputs: list[torch.Tensor]
    output: torch.Tensor
    before: dict[str, torch.Tensor]
    after: dict[str, torch.Tensor]


def refuse_without_state(problem: Problem, layout: str, q_start: Any, backend: str) -> None:
    """Raise an UnsupportedError unless a call can be computed by sums that go from process to process."""
    if not problem.mechanism.has_state:
        raise UnsupportedError(
            f"form='state' is for mechanisms with a state (LinearTransformer, Performer, GatedDelta, ...); "
            f"{problem.mechanism} keeps keys, so use form='auto'"
        )
    factors = problem.pattern.factors
    others = [factor for factor in factors if factor != Causal()]
    if len(others) == len(factors) or not all(factor.query_free for factor in others):
        raise UnsupportedError(
            f"form='state' computes causal or causal & key_span, not {problem.pattern}"
        )
    starts_later = isinstance(q_start, torch.Tensor) or q_start not in (None, 0)
    if layout != "contiguous" or starts_later or problem.q_len != problem.k_len:
        raise UnsupportedError(
            "form='state' needs layout='contiguous', no q_start but 0, and a query for each key, since the sums grow "
            "with the positions"
        )
    if backend != "auto":
        raise UnsupportedError(
            f"backend {backend!r} computes from keys, and form='state' from sums; use backend='auto', or form='auto'"
        )


def attend_by_state(
    chain: Chain,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    parameters: Mapping[str, torch.Tensor],
) -> torch.Tensor:
    """The output of this process's queries over the keys up to each, (batch, heads, q_len, v_dim)."""
    mechanism = chain.problem.mechanism
    if isinstance(mechanism, Recurrent) and "log_decay" not in parameters:
        # It depends on the number of a head among all, which a piece of one head does not know.
        log_decay = mechanism.constant_log_decay(v[:, :, :, :0].to(chain.dtype))
        if log_decay is not None:
            parameters = {**parameters, "log_decay": log_decay.expand(1, -1, v.shape[2])}
            chain = chain._replace(parameters=tuple(parameters))
    tensors = (q, k, v, *(parameters[name] for name in chain.parameters))
    return _AttentionByState.apply(chain, *tensors)


class _AttentionByState(torch.autograd.Function):
    """The forward pass sends the sums of each head to the next process, the backward pass their gradients back."""

    @staticmethod
    def forward(ctx: Any, chain: Chain, *tensors: torch.Tensor) -> torch.Tensor:
        learning = chain.problem.needs_grad  # needs_input_grad is true under no_grad too
        pieces = []
        outputs = []
        for piece in _computed_pieces(chain, tensors, learning):
            outputs.append(piece.output.detach())
            if learning:
                pieces.append(piece)

        ctx.chain = chain
        ctx.pieces = pieces
        ctx.save_for_backward(*tensors)
        q = tensors[0]
        v = tensors[2]
        output = torch.cat(outputs, dim=1) if outputs else q.new_zeros(*q.shape[:3], v.shape[3])
        return output.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        refuse_second_derivatives()
        chain = ctx.chain
        tensors = ctx.saved_tensors
        # Pieces serve one backward pass; a second one, after retain_graph=True, computes them again.
        pieces = ctx.pieces
        ctx.pieces = None
        if pieces is None:
            pieces = list(_computed_pieces(chain, tensors, True))

        # The last process begins with the last head, and so do all.
        device = grads[0].device
        q_heads = chain.problem.heads // chain.heads
        by_head = []
        for head in reversed(range(len(pieces))):
            piece = pieces[head]
            grad_output = grads[0][:, head * q_heads : (head + 1) * q_heads].to(chain.dtype)
            grads_after = _receive(chain, chain.after, device)
            of_inputs, grads_before = _gradients_of_piece(piece, grad_output, grads_after)
            _send(chain, chain.before, grads_before, device)
            by_head.append(of_inputs)
        by_head.reverse()

        gradients = []
        for of_heads, x in zip(zip(*by_head, strict=True), tensors, strict=True):
            gradients.append(_whole_gradient(chain, of_heads, x))
        return None, *gradients


def _computed_pieces(
    chain: Chain, tensors: Sequence[torch.Tensor], learning: bool
) -> Iterator[HeadPiece]:
    """The key heads in their order; the sums of each are received before it, and sent on after it."""
    device = tensors[0].device
    for head in range(chain.heads):
        before = _receive(chain, chain.before, device)
        inputs = [_cut_to_head(chain, x, head) for x in tensors]
        piece = _compute_piece(chain, inputs, before, learning)
        _send(chain, chain.after, piece.after, device)
        yield piece


def _cut_to_head(chain: Chain, x: torch.Tensor, head: int) -> torch.Tensor:
    """The part of a tensor (batch, heads or 1, ...) that one key head needs."""
    size = x.shape[1] // chain.heads
    if not size:  # one for all heads
        return x
    return x[:, head * size : (head + 1) * size]


def _whole_gradient(
    chain: Chain, of_heads: Sequence[torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """The gradient of a whole tensor x from those of its heads; it is summed where heads share the tensor."""
    if x.shape[1] < chain.heads:
        return torch.stack(list(of_heads)).sum(0)
    return torch.cat(list(of_heads), dim=1)


def _compute_piece(
    chain: Chain, tensors: list[torch.Tensor], before: dict[str, torch.Tensor], learning: bool
) -> HeadPiece:
    problem = chain.problem
    length = problem.q_len
    inputs = [x.detach().to(chain.dtype).requires_grad_(learning) for x in tensors]
    for x in _floating(before).values():
        x.requires_grad_(learning)
    if not length:
        q_heads = problem.heads // chain.heads
        output = inputs[0].new_zeros(problem.batch, q_heads, 0, problem.v_dim)
        return HeadPiece(inputs, output, before, before)

    device = inputs[0].device
    start = chain.layout.chunks[chain.group.rank][0].start
    stop = start + length
    grid = Grid(length, stop, start, range(length), range(start, stop), device)
    visible = unpadded_keys(problem.pattern, grid)
    parameters = dict(zip(chain.parameters, inputs[3:], strict=True))
    with torch.set_grad_enabled(learning), torch.autocast(device.type, enabled=False):
        sums = Summed(**before) if before else None
        q, k, v = inputs[:3]
        text = Text(q, k, v, parameters, visible)
        output, after = add(problem.mechanism, sums, text, problem.scale)
    return HeadPiece(inputs, output, before, after.tensors)


def _gradients_of_piece(
    piece: HeadPiece, grad_output: torch.Tensor, grads_after: dict[str, torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The gradients of a piece's tensors, and of the sums before it."""
    if piece.after is piece.before:  # no position: the sums were passed on
        return [torch.zeros_like(x) for x in piece.inputs], grads_after

    outputs = [piece.output]
    grads = [grad_output]
    for name, x in _floating(piece.after).items():
        if x.requires_grad and name in grads_after:
            outputs.append(x)
            grads.append(grads_after[name])

    before = _floating(piece.before)
    inputs = [*piece.inputs, *before.values()]
    gradients = []
    unused_are_none = torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
    for x, grad in zip(inputs, unused_are_none, strict=True):
        gradients.append(torch.zeros_like(x) if grad is None else grad)
    of_inputs = gradients[: len(piece.inputs)]
    of_sums = gradients[len(piece.inputs) :]
    return of_inputs, dict(zip(before, of_sums, strict=True))


def _floating(sums: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x for name, x in sums.items() if x.is_floating_point()}


# Sums travel as two messages, since a receiver does not know which of them there are: first the size of axis 2 of each
# tensor, 0 for an absent one; then the bytes of all of them.


def _send(
    chain: Chain, peer: int | None, tensors: Mapping[str, torch.Tensor], device: torch.device
) -> None:
    """Send sums or their gradients, in the order of SUMS; nothing to None."""
    if peer is None:
        return

    sizes = [tensors[name].shape[2] if name in tensors else 0 for name in SUMS]
    header = torch.tensor(sizes, dtype=torch.int64, device=device)
    chain.group.start({peer: header}, {}).wait()
    if tensors:
        as_bytes = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in tensors.values()]
        chain.group.start({peer: torch.cat(as_bytes)}, {}).wait()


def _receive(chain: Chain, peer: int | None, device: torch.device) -> dict[str, torch.Tensor]:
    """What a process sent by `_send`; nothing from None."""
    if peer is None:
        return {}

    header = torch.empty(len(SUMS), dtype=torch.int64, device=device)
    chain.group.start({}, {peer: header}).wait()
    announced = [
        AnnouncedSum(chain, name, size)
        for name, size in zip(SUMS, header.tolist(), strict=True)
        if size
    ]
    if not announced:
        return {}

    lengths = [announcement.nbytes for announcement in announced]
    row = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    chain.group.start({}, {peer: row}).wait()
    sums = {}
    for announcement, as_bytes in zip(announced, row.split(lengths), strict=True):
        # A clone begins at an address that every dtype allows.
        sums[announcement.name] = as_bytes.clone().view(announcement.dtype).view(announcement.shape)
    return sums


@dataclass(frozen=True)
class AnnouncedSum:
    """A sum of one key head that another process announced, with `size` numbers along axis 2."""

    chain: Chain
    name: str
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        problem = self.chain.problem
        if self.name != "total":
            return problem.batch, 1, self.size
        _, columns = problem.mechanism.state_shape(problem.head_dim, problem.v_dim)
        return problem.batch, problem.value_group, self.size, columns

    @property
    def dtype(self) -> torch.dtype:
        return torch.bool if self.name == "met" else self.chain.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize
