"""Attention over the pieces of several processes as one differentiable operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from regard.backends.merging import Merging
from regard.core.hidden import prepared_sink
from regard.core.plan import AttentionDetail, Plan
from regard.core.result import Want
from regard.distributed.exchange import Exchange
from regard.distributed.group import Group
from regard.distributed.needs import Needs
from regard.distributed.pieces import (
    CallPiece,
    DistantKeys,
    HeldKeys,
    SharedOptions,
    add_to_held,
    keys_of,
    pieces_of,
    share,
)
from regard.errors import UnsupportedError
from regard.functional import attention_detail, plan_attention
from regard.patterns import KeySpan
from regard.patterns.one_call import of_queries


@dataclass
class ComputedPiece:
    """A piece with its graph: its inputs, and its output and log-sum-exp."""

    inputs: list[torch.Tensor]
    output: torch.Tensor
    log_sum_exp: torch.Tensor


@dataclass
class ComputedArrival:
    """What a gather keeps for its backward pass: keys that came from one process, and the pieces over them."""

    source: int
    held: HeldKeys | None
    pieces: dict[CallPiece, ComputedPiece]


@dataclass(frozen=True)
class SharedRun:
    """One call as one process runs it."""

    group: Group
    needs: Needs
    form: str
    options: SharedOptions

    def exchange(self, k: torch.Tensor, v: torch.Tensor) -> Exchange:
        return Exchange(self.group, self.needs, self.form, k, v)

    def pieces(self, held: HeldKeys | None) -> Iterator[tuple[CallPiece, slice]]:
        """The pieces of this process's queries over keys that it has, and where their queries stand among its own."""
        chunks = self.needs.q.chunks[self.group.rank]
        for piece in pieces_of(self.needs, self.group.rank, held):
            rows_in_earlier_chunks = sum(map(len, chunks[: piece.chunk]))
            start = rows_in_earlier_chunks + piece.rows.start - chunks[piece.chunk].start
            yield piece, slice(start, start + len(piece.rows))

    def call(
        self, piece: CallPiece, rows: slice, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The tensors and the options of `attention` for a piece.

        Args:
            piece: which positions.
            rows: where its queries stand among those of this process, by which a bias is cut.
            q: its queries (batch, heads, rows, head_dim).
            k: its keys (batch, kv_heads, keys, head_dim).
            v: its values.
        """
        bias = self.options.bias
        if isinstance(bias, torch.Tensor) and bias.dim() > 1 and bias.shape[-2] > 1:
            bias = bias[..., rows, :]
        length = self.needs.k.length
        pattern = of_queries(self.options.pattern, piece.rows, length)
        keys = KeySpan(piece.keys.start, piece.keys.stop)

        options = {
            "pattern": pattern & keys,
            "bias": bias,
            "q_start": self.needs.q_start + piece.rows.start,
            "parameters": self.options.parameters,
            "dropout_seed": self.options.dropout_seed,
            **self.options.others,
        }
        distant_k = DistantKeys(k, None, piece.keys.start, length)
        distant_v = DistantKeys(v, None, piece.keys.start, length)
        return (q, distant_k, distant_v), options

    def compute(
        self, piece: CallPiece, rows: slice, *tensors: torch.Tensor, want: Iterable[Want] = ()
    ) -> AttentionDetail:
        """Output, log-sum-exp and the statistics in `want` of a piece, computed as by `attention`."""
        tensors, options = self.call(piece, rows, *tensors)
        return attention_detail(*tensors, want=("log_sum_exp", *want), **options)

    def plan(
        self, piece: CallPiece, rows: slice, *tensors: torch.Tensor, want: Iterable[Want] = ()
    ) -> Plan:
        """The plan of what `compute` would compute; it raises the same refusals."""
        tensors, options = self.call(piece, rows, *tensors)
        return plan_attention(*tensors, want=("log_sum_exp", *want), **options)

    def compute_with_graph(
        self, piece: CallPiece, rows: slice, q: torch.Tensor, held: HeldKeys
    ) -> ComputedPiece:
        """A piece of these queries and keys with its graph, which is apart from that of the call."""
        cut = q[:, :, rows], keys_of(piece, held.k), keys_of(piece, held.v)
        leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in cut]
        with torch.enable_grad():
            detail = self.compute(piece, rows, *leaves)
        inputs = [*leaves, *self.options.learned_tensors()]
        return ComputedPiece(inputs, detail.output, detail.log_sum_exp)

    def sink_logits(self, q: torch.Tensor) -> torch.Tensor:
        """The logit of the sink for each query, (batch, heads, q_len)."""
        assert self.options.sink is not None
        return prepared_sink(self.options.sink, q).expand(q.shape[:3])


def attend(
    run: SharedRun, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of this process's queries over the keys of all, both differentiable."""
    learned = run.options.learned_tensors()
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *learned)):
        return _AttentionOverProcesses.apply(run, q, k, v, *learned)

    output, log_sum_exp = _compute_forward(run, q, k, v, None)
    return output.to(q.dtype), log_sum_exp


def check_pieces(
    run: SharedRun, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, want: Iterable[Any]
) -> None:
    """Raise the UnsupportedError or ArgumentError of the first piece of this process that cannot be computed."""
    tensors = (q, k, v, *run.options.learned_tensors())
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    of_pieces = [name for name in want if name not in ("log_sum_exp", "sink", "received")]

    def without_memory(x: torch.Tensor, piece: CallPiece) -> torch.Tensor:
        shape = (*x.shape[:2], len(piece.keys), x.shape[3])
        return x.new_empty(()).expand(shape).requires_grad_(learning)

    rank = run.group.rank
    for source in range(run.needs.processes):
        positions = run.needs.held(rank) if source == rank else run.needs.between(rank, source)
        held = HeldKeys(source, positions, k[:, :, :0], v[:, :, :0])
        for piece, rows in run.pieces(held):
            queries = q[:, :, rows].detach().requires_grad_(learning)
            keys = without_memory(k, piece)
            values = without_memory(v, piece)
            run.plan(piece, rows, queries, keys, values)
            with torch.no_grad():
                run.plan(piece, rows, queries.detach(), keys, values, want=of_pieces)


def _compute_forward(
    run: SharedRun,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    arrivals: list[ComputedArrival] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, in float32 at least, and log-sum-exp; with a list, pieces are appended to it with their graphs."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    merging = Merging(
        q.new_zeros(*q.shape[:3], v.shape[3], dtype=dtype),
        q.new_full(q.shape[:3], -math.inf, dtype=dtype),
    )
    for source, held in run.exchange(k, v).arrivals():
        with_graphs: dict[CallPiece, ComputedPiece] = {}
        for piece, rows in run.pieces(held):
            assert held is not None
            computed: ComputedPiece | AttentionDetail
            if arrivals is None:
                keys = keys_of(piece, held.k)
                values = keys_of(piece, held.v)
                with torch.no_grad():
                    computed = run.compute(piece, rows, q[:, :, rows], keys, values)
            else:
                computed = run.compute_with_graph(piece, rows, q, held)
                with_graphs[piece] = computed
            output = computed.output.detach().to(dtype)
            log_sum_exp = computed.log_sum_exp.detach().to(dtype)
            merging.add((slice(None), slice(None), rows), output, log_sum_exp)
        if arrivals is not None:
            arrivals.append(ComputedArrival(source, held, with_graphs))
    output, log_sum_exp = merging.merged()
    if run.options.sink is None:
        return output, log_sum_exp

    # The sink takes part as a key without a value: a piece whose output is 0.
    with torch.no_grad():
        logits = run.sink_logits(q).to(log_sum_exp.dtype)
        total = torch.logaddexp(log_sum_exp, logits)
        return output.mul_(share(log_sum_exp, total)[..., None]), total


def refuse_second_derivatives() -> None:
    """Raise an UnsupportedError in a backward pass that would itself be differentiated."""
    if torch.is_grad_enabled():
        raise UnsupportedError(
            "attention over several processes has no second derivatives, which create_graph=True needs; compute "
            "them on one process with regard.attention"
        )


@dataclass(frozen=True)
class ForwardResults:
    """What the backward pass needs of the forward pass.

    learned: tensors besides q, k and v that need a gradient.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    output: torch.Tensor
    log_sum_exp: torch.Tensor
    learned: list[torch.Tensor]


class _AttentionOverProcesses(torch.autograd.Function):
    """The backward pass goes through the pieces again: each gets its share of the gradients of output and log-sum-exp.

    With g the gradient of the output, and s_p = exp(lse_p - log_sum_exp):
        d output_p = s_p · g,    d lse_p = s_p · (g · (output_p - output) + d log_sum_exp)
    """

    @staticmethod
    def forward(
        ctx: Any,
        run: SharedRun,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *learned: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # A ring keeps no pieces: its backward pass computes them again.
        arrivals: list[ComputedArrival] | None = [] if run.form == "gather" else None
        output, log_sum_exp = _compute_forward(run, q, k, v, arrivals)

        ctx.run = run
        ctx.arrivals = arrivals
        ctx.save_for_backward(q, k, v, output, log_sum_exp, *learned)
        ctx.set_materialize_grads(False)
        return output.to(q.dtype), log_sum_exp

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        refuse_second_derivatives()
        q, k, v, output, log_sum_exp, *learned = ctx.saved_tensors
        forward = ForwardResults(q, k, v, output, log_sum_exp, learned)
        # Pieces serve one backward pass; a second one computes them again.
        arrivals = ctx.arrivals
        ctx.arrivals = None

        grad_output, grad_log_sum_exp = grads
        if grad_output is None:
            grad_output = torch.zeros_like(output)
        gradients = _Gradients(ctx.run, forward, grad_output.to(output.dtype), grad_log_sum_exp)
        return None, *gradients.compute(arrivals)


class _Gradients:
    """The gradients of one call, added piece by piece.

    slope: for each query what the gradient of every piece's log-sum-exp has in common, d log_sum_exp - g · output.
    """

    def __init__(
        self,
        run: SharedRun,
        forward: ForwardResults,
        grad_output: torch.Tensor,
        grad_log_sum_exp: torch.Tensor | None,
    ) -> None:
        self.run = run
        self.forward = forward
        self.dtype = forward.output.dtype
        self.grad_output = grad_output
        products = _dot_products(grad_output, forward.output)
        self.slope = -products if grad_log_sum_exp is None else grad_log_sum_exp - products
        self.dq: torch.Tensor | None = None
        self.of_learned = [
            torch.zeros_like(x, dtype=torch.promote_types(x.dtype, self.dtype))
            for x in forward.learned
        ]

    def compute(self, computed: list[ComputedArrival] | None) -> list[torch.Tensor]:
        """The gradients of q, k, v and the learned tensors, after those of keys were exchanged.

        computed: what a forward pass kept; without it the keys are fetched, and their pieces computed, again.
        """
        q, k, v = self.forward.q, self.forward.k, self.forward.v
        exchange = self.run.exchange(k, v)
        totals = self._zeros(k, v)
        for arrival in self._arrivals(exchange, computed):
            if arrival.source == exchange.rank:
                self._add_arrival(exchange.own, arrival.pieces, totals)
                continue
            grads = None
            if arrival.held is not None:
                grads = self._zeros(arrival.held.k, arrival.held.v)
                self._add_arrival(arrival.held, arrival.pieces, grads)
            exchange.send_home(arrival.source, grads, self.dtype)
        exchange.collect(totals)
        if self.run.options.sink is not None:
            self._add_sink()

        dq = torch.zeros_like(q) if self.dq is None else self.dq.to(q.dtype)
        dk = totals[0].to(k.dtype)
        dv = totals[1].to(v.dtype)
        of_learned = zip(self.of_learned, self.forward.learned, strict=True)
        return [dq, dk, dv, *(grad.to(x.dtype) for grad, x in of_learned)]

    @staticmethod
    def _arrivals(
        exchange: Exchange, computed: list[ComputedArrival] | None
    ) -> Iterator[ComputedArrival]:
        if computed is not None:
            yield from computed
            return
        for source, held in exchange.arrivals():
            yield ComputedArrival(source, held, {})

    def _zeros(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros_like(k, dtype=self.dtype), torch.zeros_like(v, dtype=self.dtype)

    def _add_arrival(
        self,
        held: HeldKeys,
        computed: dict[CallPiece, ComputedPiece],
        totals: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Add the gradients of the pieces over some keys; those of keys and values to `totals`."""
        for piece, rows in self.run.pieces(held):
            if piece in computed:
                with_graph = computed.pop(piece)
            else:
                with_graph = self.run.compute_with_graph(piece, rows, self.forward.q, held)
            dq, dk, dv, *of_learned = self._gradients_of_piece(with_graph, rows)
            if dq is not None:
                self._add_to_queries(rows, dq)
            # The next piece is computed with the memory of this one.
            del with_graph, dq
            for total, grad in zip(totals, (dk, dv), strict=True):
                if grad is not None:
                    add_to_held(piece, total, grad)
            for total, grad in zip(self.of_learned, of_learned, strict=True):
                if grad is not None:
                    total += grad

    def _add_to_queries(self, rows: slice, grad: torch.Tensor) -> None:
        if self.dq is not None:
            self.dq[:, :, rows] += grad
            return
        if grad.shape == self.forward.q.shape and grad.dtype == self.dtype:
            self.dq = grad  # of all queries: no copy
            return
        self.dq = torch.zeros_like(self.forward.q, dtype=self.dtype)
        self.dq[:, :, rows] += grad

    def _gradients_of_piece(
        self, piece: ComputedPiece, rows: slice
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradient of each input of a piece."""
        output = piece.output.detach()
        log_sum_exp = piece.log_sum_exp.detach().to(self.dtype)
        share_of_piece = share(log_sum_exp, self.forward.log_sum_exp[:, :, rows])
        grad_output = self.grad_output[:, :, rows]
        slope = _dot_products(grad_output, output.to(grad_output.dtype)) + self.slope[:, :, rows]

        outputs = []
        grads = []
        if piece.output.requires_grad:
            outputs.append(piece.output)
            grads.append((grad_output * share_of_piece[..., None]).to(output.dtype))
        if piece.log_sum_exp.requires_grad:
            outputs.append(piece.log_sum_exp)
            grads.append((slope * share_of_piece).to(piece.log_sum_exp.dtype))
        if not outputs:
            return (None,) * len(piece.inputs)
        return torch.autograd.grad(outputs, piece.inputs, grads, allow_unused=True)

    def _add_sink(self) -> None:
        """The gradient of the sinks: the piece whose output is 0 and whose log-sum-exp is the logit."""
        sink = self.run.options.sink
        places = [place for place, x in enumerate(self.forward.learned) if x is sink]
        if not places:  # a sink that does not learn
            return

        with torch.enable_grad():
            logits = self.run.sink_logits(self.forward.q)
        share_of_sink = share(logits.detach().to(self.dtype), self.forward.log_sum_exp)
        grad_logits = (self.slope * share_of_sink).to(logits.dtype)
        place = places[0]
        (grad,) = torch.autograd.grad(logits, self.forward.learned[place], grad_logits)
        self.of_learned[place] += grad


def _dot_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Dot products of the vectors of each row, (batch, heads, q_len), without a product of all numbers in memory."""
    return torch.einsum("bhqd,bhqd->bhq", x, y)
