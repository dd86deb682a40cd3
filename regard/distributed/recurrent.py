"""Causal attention with a state over processes: the sums, or the memory, of earlier keys go from process to process.

Process r receives the sums over all keys before its own, adds its keys, and sends the sums on; no key is sent. Each
key head is sent as its own message, so that a process computes one head while the next process computes the
previous one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from regard.backends.documents import unpadded_keys
from regard.core.problem import Problem
from regard.distributed.function import refuse_second_derivatives
from regard.distributed.group import Group
from regard.distributed.needs import Layout
from regard.errors import UnsupportedError
from regard.layers.caches.state import Summed, add
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Causal, Grid

NAMES = ("total", "log", "mass", "met")
DTYPES = {"met": torch.bool}  # the others have that of the sums


class Chain(NamedTuple):
    """One call as one process runs it."""

    group: Group
    layout: Layout
    problem: Problem
    names: tuple[str, ...]  # of the mechanism's parameters

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


def refuse_others(problem: Problem, layout: str, q_start: Any, backend: str) -> None:
    """Raise an UnsupportedError unless a call can be computed by sums that go from process to process."""
    if not problem.mechanism.has_state:
        raise UnsupportedError(
            f"form='state' is for mechanisms with a state (LinearTransformer, Performer, GatedDelta, ...); "
            f"{problem.mechanism} keeps keys, so use form='auto'"
        )
    parts = problem.pattern.factors
    if Causal() not in parts or any(part != Causal() and not part.query_free for part in parts):
        raise UnsupportedError(
            f"form='state' computes causal or causal & key_span, not {problem.pattern}"
        )
    moved = isinstance(q_start, torch.Tensor) or q_start not in (None, 0)
    if layout != "contiguous" or moved or problem.q_len != problem.k_len:
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
        constant = mechanism.constant_log_decay(v[:, :, :, :0].to(chain.dtype))
        if constant is not None:  # by the number of a head among all, which a piece does not know
            parameters = {**parameters, "log_decay": constant.expand(1, -1, v.shape[2])}
            chain = chain._replace(names=tuple(parameters))
    return _Chained.apply(chain, q, k, v, *(parameters[name] for name in chain.names))


class _Chained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.chain = chain
        learning = chain.problem.needs_grad  # needs_input_grad is true under no_grad too
        pieces = []
        outputs = []
        q = tensors[0]
        v = tensors[2]
        for piece in _pieces(chain, tensors, learning):
            outputs.append(piece.output.detach())
            pieces += [piece] if learning else []
        ctx.pieces = pieces
        ctx.save_for_backward(*tensors)
        output = torch.cat(outputs, dim=1) if outputs else q.new_zeros(*q.shape[:3], v.shape[3])
        return output.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        chain = ctx.chain
        found = []
        refuse_second_derivatives()
        tensors = ctx.saved_tensors
        pieces, ctx.pieces = ctx.pieces, None
        if pieces is None:  # after retain_graph=True: computed again, as in a ring
            pieces = list(_pieces(chain, tensors, True))
        sharing = chain.problem.heads // chain.heads
        for head in reversed(
            range(len(pieces))
        ):  # the last process begins with the last head, and so do all
            piece = pieces[head]
            own = grads[0][:, head * sharing : (head + 1) * sharing].to(chain.dtype)
            from_keys, from_sums = _pulled(piece, own, _received(chain, chain.after, own.device))
            _send(chain, chain.before, from_sums, own.device)
            found.append(from_keys)
        by_tensor = zip(*found[::-1], strict=True)
        return None, *(
            _joined(chain, parts, x) for parts, x in zip(by_tensor, tensors, strict=True)
        )


def _pieces(chain: Chain, tensors: Sequence[torch.Tensor], learning: bool) -> Iterator[HeadPiece]:
    """The key heads in their order; the sums of each are received before it, and sent on after it."""
    device = tensors[0].device
    for head in range(chain.heads):
        before = _received(chain, chain.before, device)
        piece = _computed(chain, [_cut(chain, x, head) for x in tensors], before, learning)
        _send(chain, chain.after, piece.after, device)
        yield piece


def _cut(chain: Chain, x: torch.Tensor, head: int) -> torch.Tensor:
    """The part of a tensor (batch, heads or 1, ...) that one key head needs."""
    each = x.shape[1] // chain.heads
    return x[:, head * each : (head + 1) * each] if each else x


def _joined(chain: Chain, parts: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The gradient of a whole tensor x from those of its heads; it is summed where heads share the tensor."""
    return (
        torch.stack(list(parts)).sum(0)
        if x.shape[1] < chain.heads
        else torch.cat(list(parts), dim=1)
    )


def _computed(
    chain: Chain, tensors: list[torch.Tensor], before: dict[str, torch.Tensor], learning: bool
) -> HeadPiece:
    problem, mechanism = chain.problem, chain.problem.mechanism
    start = chain.layout.chunks[chain.group.rank][0].start
    added = problem.q_len
    inputs = [x.detach().to(chain.dtype).requires_grad_(learning) for x in tensors]
    for x in _floating(before).values():
        x.requires_grad_(learning)
    if not added:
        none = inputs[0].new_zeros(problem.batch, problem.heads // chain.heads, 0, problem.v_dim)
        return HeadPiece(inputs, none, before, before)
    grid = Grid(
        added, start + added, start, range(added), range(start, start + added), inputs[0].device
    )
    live = unpadded_keys(problem.pattern, grid)
    parameters = dict(zip(chain.names, inputs[3:], strict=True))
    with torch.set_grad_enabled(learning), torch.autocast(inputs[0].device.type, enabled=False):
        sums = Summed(**before) if before else None
        output, after = add(mechanism, sums, *inputs[:3], live, problem.scale, parameters)
    return HeadPiece(inputs, output, before, after.tensors)


def _pulled(
    piece: HeadPiece, grad: torch.Tensor, later: dict[str, torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The gradients of a piece's tensors, and of the sums before it."""
    before = _floating(piece.before)
    if piece.after is piece.before:  # no position: the sums were passed on
        return [torch.zeros_like(x) for x in piece.inputs], later
    outputs = [piece.output]
    given = [grad]
    for name, x in _floating(piece.after).items():
        if x.requires_grad and name in later:
            outputs.append(x)
            given.append(later[name])
    inputs = [*piece.inputs, *before.values()]
    pulled = torch.autograd.grad(outputs, inputs, given, allow_unused=True)
    pulled = [
        torch.zeros_like(x) if one is None else one for one, x in zip(pulled, inputs, strict=True)
    ]
    return pulled[: len(piece.inputs)], dict(zip(before, pulled[len(piece.inputs) :], strict=True))


def _floating(sums: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: x for name, x in sums.items() if x.is_floating_point()}


# A message: the size of axis 2 of each tensor, 0 for an absent one, since a receiver does not know which sums there
# are; then all bytes


def _send(
    chain: Chain, peer: int | None, tensors: Mapping[str, torch.Tensor], device: torch.device
) -> None:
    """Send sums or their gradients, in the order of NAMES; nothing to None."""
    if peer is None:
        return
    sizes = [tensors[name].shape[2] if name in tensors else 0 for name in NAMES]
    chain.group.start({peer: torch.tensor(sizes, dtype=torch.int64, device=device)}, {}).wait()
    if tensors:
        row = torch.cat(
            [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in tensors.values()]
        )
        chain.group.start({peer: row}, {}).wait()


def _received(chain: Chain, peer: int | None, device: torch.device) -> dict[str, torch.Tensor]:
    """What a process sent by `_send`; nothing from None."""
    if peer is None:
        return {}
    header = torch.empty(len(NAMES), dtype=torch.int64, device=device)
    chain.group.start({}, {peer: header}).wait()
    sizes = {name: size for name, size in zip(NAMES, header.tolist(), strict=True) if size}
    if not sizes:
        return {}
    problem = chain.problem
    columns = problem.mechanism.state_shape(problem.head_dim, problem.v_dim)[1]
    shapes = [
        (problem.batch, problem.value_group, size, columns)
        if name == "total"
        else (problem.batch, 1, size)
        for name, size in sizes.items()
    ]
    kinds = [DTYPES.get(name, chain.dtype) for name in sizes]
    lengths = [math.prod(shape) * kind.itemsize for shape, kind in zip(shapes, kinds, strict=True)]
    row = torch.empty(sum(lengths), dtype=torch.uint8, device=device)
    chain.group.start({}, {peer: row}).wait()
    parts = zip(sizes, row.split(lengths), kinds, shapes, strict=True)
    return {name: part.clone().view(kind).view(shape) for name, part, kind, shape in parts}
