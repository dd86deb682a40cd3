"""Causal attention of feature mechanisms over processes: the sums over earlier keys go from process to process.

Process r receives the sums over all keys before its own, adds its keys, and sends the sums on; no key is sent. Each
key/value head is sent as its own message, so that a process computes one head while the next process computes the
previous one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from regard.backends.linear.sight import visible_keys
from regard.core.problem import Problem
from regard.distributed.function import refuse_second_derivatives
from regard.distributed.group import Group
from regard.distributed.layout import Layout
from regard.errors import UnsupportedError
from regard.layers.caches.state import Positions, Summed, add
from regard.mechanisms.features import Kernelised
from regard.patterns import Causal, Grid

NAMES = ("total", "log", "least", "met")
DTYPES = {"least": torch.float64, "met": torch.bool}  # the others have that of the sums


class Chain(NamedTuple):
    """One call as one process runs it."""

    group: Group
    layout: Layout
    problem: Problem
    names: tuple[str, ...]  # of the mechanism's parameters

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
        """The dtype of the sums."""
        return torch.promote_types(self.problem.dtype, torch.float32)


class Piece(NamedTuple):
    """One key/value head with its graph: what it was computed from, the output, and the sums before and after."""

    inputs: list[torch.Tensor]
    output: torch.Tensor
    before: Summed | None
    after: Summed | None


def refuse_others(problem: Problem, layout: str, q_start: Any, backend: str) -> None:
    """Raise an UnsupportedError unless a call can be computed by sums that go from process to process."""
    if not isinstance(problem.mechanism, Kernelised):
        raise UnsupportedError(
            f"form='state' is for mechanisms of features (LinearTransformer, Performer, RandomFeature); "
            f"{problem.mechanism} keeps keys, so use form='auto'"
        )
    parts = problem.pattern.factors
    if Causal() not in parts or any(part != Causal() and not part.query_free for part in parts):
        raise UnsupportedError(f"form='state' computes causal or causal & key_span, not {problem.pattern}")
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
    chain: Chain, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, parameters: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The output of this process's queries over the keys up to each, (batch, heads, q_len, v_dim)."""
    return _Chained.apply(chain, q, k, v, *(parameters[name] for name in chain.names))


class _Chained(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: Chain, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.chain, ctx.shapes = chain, [x.shape for x in tensors]
        learning = chain.problem.needs_grad  # needs_input_grad is true under no_grad too
        pieces, outputs = [], []
        q, v = tensors[0], tensors[2]
        for piece in _pieces(chain, tensors, learning):
            outputs.append(piece.output.detach())
            pieces += [piece] if learning else []
        ctx.pieces = pieces
        ctx.save_for_backward(*tensors)
        output = torch.cat(outputs, dim=1) if outputs else q.new_zeros(*q.shape[:3], v.shape[3])
        return output.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        chain, found = ctx.chain, []
        refuse_second_derivatives()
        tensors = ctx.saved_tensors
        pieces, ctx.pieces = ctx.pieces, None
        if pieces is None:  # after retain_graph=True: computed again, as in a ring
            pieces = list(_pieces(chain, tensors, True))
        sharing = chain.problem.heads // chain.problem.kv_heads
        for head in reversed(range(len(pieces))):  # the last process begins with the last head, and so do all
            piece = pieces[head]
            own = grads[0][:, head * sharing : (head + 1) * sharing].to(chain.dtype)
            later = _received_grads(chain, piece.after)
            from_keys, from_sums = _pulled(piece, own, later)
            _send_grads(chain, piece.before, from_sums)
            found.append(from_keys)
        by_tensor = zip(*found[::-1], strict=True)
        return None, *(_joined(chain, parts, shape) for parts, shape in zip(by_tensor, ctx.shapes, strict=True))


def _pieces(chain: Chain, tensors: Sequence[torch.Tensor], learning: bool) -> Iterator[Piece]:
    """The key/value heads in their order; the sums of each are received before it, and sent on after it."""
    device = tensors[0].device
    for head in range(chain.problem.kv_heads):
        before = _received(chain, device)
        piece = _computed(chain, [_cut(chain, x, head, at == 0) for at, x in enumerate(tensors)], before, learning)
        _send(chain, piece.after, device)
        yield piece


def _cut(chain: Chain, x: torch.Tensor, head: int, of_queries: bool) -> torch.Tensor:
    """The part of a tensor (batch, heads or kv_heads or 1, ...) that one key/value head needs."""
    each = chain.problem.heads // chain.problem.kv_heads if of_queries else 1
    return x[:, head * each : (head + 1) * each] if x.shape[1] > 1 or chain.problem.kv_heads == 1 else x


def _joined(chain: Chain, parts: Sequence[torch.Tensor], shape: torch.Size) -> torch.Tensor:
    """The gradient of a whole tensor from those of its heads; it is summed where heads share the tensor."""
    if shape[1] == 1 and chain.problem.kv_heads > 1:
        return torch.stack(list(parts)).sum(0)
    return torch.cat(list(parts), dim=1)


def _computed(chain: Chain, tensors: list[torch.Tensor], before: Summed | None, learning: bool) -> Piece:
    problem, mechanism = chain.problem, chain.problem.mechanism
    assert isinstance(mechanism, Kernelised)
    start, added = chain.layout.chunks[chain.group.rank][0].start, problem.q_len
    inputs = [x.detach().to(chain.dtype).requires_grad_(learning) for x in tensors]
    if before is not None:
        before = before.mapped(lambda x: x.requires_grad_(learning and x.is_floating_point()))
    if not added:
        return Piece(inputs, inputs[0].new_zeros(*inputs[0].shape[:3], problem.v_dim), before, before)
    grid = Grid(added, start + added, start, range(added), range(start, start + added), inputs[0].device)
    live = visible_keys(problem.pattern, grid)
    parameters = dict(zip(chain.names, inputs[3:], strict=True))
    with torch.set_grad_enabled(learning), torch.autocast(inputs[0].device.type, enabled=False):
        output, after = add(mechanism, before, Positions(*inputs[:3], live), problem.scale, parameters)
    return Piece(inputs, output, before, after)


def _pulled(
    piece: Piece, grad: torch.Tensor, later: dict[str, torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """The gradients of a piece's tensors, and of the sums before it."""
    before = _floating(piece.before)
    if piece.after is piece.before:  # no position: the sums were passed on
        return [torch.zeros_like(x) for x in piece.inputs], later
    outputs, given = [piece.output], [grad]
    for name, x in _floating(piece.after).items():
        if x.requires_grad and name in later:
            outputs.append(x)
            given.append(later[name])
    inputs = [*piece.inputs, *before.values()]
    pulled = torch.autograd.grad(outputs, inputs, given, allow_unused=True)
    pulled = [torch.zeros_like(x) if one is None else one for one, x in zip(pulled, inputs, strict=True)]
    return pulled[: len(piece.inputs)], dict(zip(before, pulled[len(piece.inputs) :], strict=True))


# Messages: sizes first, since a receiver does not know which sums there are; then all bytes of the sums


def _floating(summed: Summed | None) -> dict[str, torch.Tensor]:
    return {} if summed is None else {name: x for name, x in summed.tensors.items() if x.is_floating_point()}


def _send(chain: Chain, summed: Summed | None, device: torch.device) -> None:
    if chain.after is None:
        return
    tensors = {} if summed is None else summed.tensors
    header = [len(tensors[name].shape) and tensors[name].shape[2] if name in tensors else 0 for name in NAMES]
    _exchange(chain, chain.after, torch.tensor(header, dtype=torch.int64, device=device))
    if tensors:
        _exchange(chain, chain.after, _bytes(tensors.values()))


def _received(chain: Chain, device: torch.device) -> Summed | None:
    if chain.before is None:
        return None
    header = torch.empty(len(NAMES), dtype=torch.int64, device=device)
    _exchange(chain, None, header)
    there = {name: size for name, size in zip(NAMES, header.tolist(), strict=True) if size}
    if not there:
        return None
    batch, v_dim = chain.problem.batch, chain.problem.v_dim
    shapes = {
        name: (batch, 1, size, v_dim + 1) if name == "total" else (batch, 1, size) for name, size in there.items()
    }
    kinds = {name: DTYPES.get(name, chain.dtype) for name in shapes}
    return Summed(**_from_bytes(chain, chain.before, shapes, kinds, device))


def _send_grads(chain: Chain, before: Summed | None, grads: dict[str, torch.Tensor]) -> None:
    if chain.before is not None and before is not None:
        _exchange(chain, chain.before, _bytes(grads[name] for name in _floating(before)))


def _received_grads(chain: Chain, after: Summed | None) -> dict[str, torch.Tensor]:
    if chain.after is None:
        return {name: torch.zeros_like(x) for name, x in _floating(after).items()}
    shapes = {name: tuple(x.shape) for name, x in _floating(after).items()}
    kinds = {name: x.dtype for name, x in _floating(after).items()}
    if not shapes:
        return {}
    return _from_bytes(chain, chain.after, shapes, kinds, next(iter(_floating(after).values())).device)


def _bytes(tensors: Any) -> torch.Tensor:
    return torch.cat([x.detach().contiguous().reshape(-1).view(torch.uint8) for x in tensors])


def _from_bytes(
    chain: Chain, peer: int, shapes: Mapping[str, tuple[int, ...]], kinds: Mapping[str, torch.dtype],
    device: torch.device,
) -> dict[str, torch.Tensor]:  # fmt: skip
    sizes = [torch.Size(shape).numel() * kinds[name].itemsize for name, shape in shapes.items()]
    row = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    chain.group.start({}, {peer: row}).wait()
    parts = row.split(sizes)
    return {
        name: part.clone().view(kinds[name]).view(shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def _exchange(chain: Chain, to: int | None, tensor: torch.Tensor) -> None:
    """Send a tensor, or with `to` None receive into it from the process before."""
    if to is None:
        assert chain.before is not None
        chain.group.start({}, {chain.before: tensor}).wait()
    else:
        chain.group.start({to: tensor}, {}).wait()
