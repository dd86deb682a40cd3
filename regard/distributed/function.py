"""Attention over the pieces of several processes as one differentiable operation, and the statistics of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.backends.merging import Merging
from regard.core.hidden import prepared_sink
from regard.core.plan import AttentionDetail, Plan
from regard.core.result import TopKeys, TopKeysFound, Want, requested
from regard.distributed.group import Group
from regard.distributed.needs import Needs
from regard.distributed.pieces import (
    DistantKeys,
    Exchange,
    HeldKeys,
    Options,
    Part,
    add_back,
    keys_of,
    parts_of,
    share,
)
from regard.errors import UnsupportedError
from regard.functional import attention_detail, plan_attention
from regard.patterns import KeySpan
from regard.patterns.one_call import of_queries

OF_PIECES = ("entropy", "distance")
Pieces = dict[Part, "Computed"]
Kept = list[tuple[int, HeldKeys | None, Pieces]]


@dataclass
class Computed:
    """A computed piece with its graph: its inputs, and its output and log-sum-exp."""

    inputs: list[torch.Tensor]
    output: torch.Tensor
    log_sum_exp: torch.Tensor


@dataclass(frozen=True)
class SharedRun:
    """One call as one process runs it."""

    group: Group
    needs: Needs
    form: str
    options: Options

    def exchange(self, k: torch.Tensor, v: torch.Tensor) -> Exchange:
        return Exchange(self.group, self.needs, self.form, k, v)

    def parts(self, held: HeldKeys | None) -> Iterator[tuple[Part, slice]]:
        """The pieces of this process's queries over keys that it has, and where their queries stand among its own."""
        chunks = self.needs.q.chunks[self.group.rank]
        for part in parts_of(self.needs, self.group.rank, held):
            start = sum(map(len, chunks[: part.chunk])) + part.rows.start - chunks[part.chunk].start
            yield part, slice(start, start + len(part.rows))

    def call(
        self, part: Part, here: slice, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The tensors and the options of `attention` for a part.

        Args:
            part: which positions.
            here: where its queries stand among those of this process, by which a bias is cut.
            q: its queries (batch, heads, rows, head_dim).
            k: its keys (batch, kv_heads, keys, head_dim).
            v: its values.
        """
        options, bias = self.options, self.options.bias
        if isinstance(bias, torch.Tensor) and bias.dim() > 1 and bias.shape[-2] > 1:
            bias = bias[..., here, :]
        length = self.needs.k.length
        pattern = of_queries(options.pattern, part.rows, length) & KeySpan(
            part.keys.start, part.keys.stop
        )
        given = {
            "pattern": pattern,
            "bias": bias,
            "q_start": self.needs.q_start + part.rows.start,
            "parameters": options.parameters,
            "dropout_seed": options.dropout_seed,
        }
        distant = (DistantKeys(x, None, part.keys.start, length) for x in (k, v))
        return (q, *distant), {**given, **options.others}

    def compute(
        self, part: Part, here: slice, *tensors: torch.Tensor, want: Iterable[Want] = ()
    ) -> AttentionDetail:
        """Output, log-sum-exp and the statistics in `want` of a part, computed as by `attention`."""
        tensors, options = self.call(part, here, *tensors)
        return attention_detail(*tensors, want=("log_sum_exp", *want), **options)

    def logits_of_sinks(self, q: torch.Tensor) -> torch.Tensor:
        """The logit of the sink for each query, (batch, heads, q_len)."""
        assert self.options.sink is not None
        return prepared_sink(self.options.sink, q).expand(q.shape[:3])

    def plan(
        self, part: Part, here: slice, *tensors: torch.Tensor, want: Iterable[Want] = ()
    ) -> Plan:
        """The plan of what `compute` would compute; it raises the same refusals."""
        tensors, options = self.call(part, here, *tensors)
        return plan_attention(*tensors, want=("log_sum_exp", *want), **options)

    def piece(self, part: Part, here: slice, q: torch.Tensor, held: HeldKeys) -> Computed:
        """A piece computed with its graph, apart from that of the call."""
        cut = q[:, :, here], keys_of(part, held.k), keys_of(part, held.v)
        own = [x.detach().requires_grad_(x.is_floating_point()) for x in cut]
        with torch.enable_grad():
            detail = self.compute(part, here, *own)
        return Computed([*own, *self.options.shared()], detail.output, detail.log_sum_exp)


def attend(
    run: SharedRun, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of this process's queries over the keys of all, both differentiable."""
    shared = run.options.shared()
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in (q, k, v, *shared)):
        output, log_sum_exp = _forward(run, q, k, v, None)
        return output.to(q.dtype), log_sum_exp
    return _Attend.apply(run, q, k, v, *shared)


def check_pieces(
    run: SharedRun, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, want: Iterable[Any]
) -> None:
    """Raise the UnsupportedError or ArgumentError of the first piece of this process that cannot be computed."""
    learning = torch.is_grad_enabled() and any(
        x.requires_grad for x in (q, k, v, *run.options.shared())
    )
    asked = [one for one in want if one not in ("log_sum_exp", "sink", "received")]
    for source, chunks in enumerate(run.needs.k.chunks):
        positions = run.needs.between(run.group.rank, source)
        if source == run.group.rank:
            positions = tuple((chunk,) if chunk else () for chunk in chunks)
        for part, here in run.parts(HeldKeys(source, positions, k[:, :, :0], v[:, :, :0])):
            own = q[:, :, here].detach().requires_grad_(learning)
            like = [  # tensors that take no memory
                x.new_empty(())
                .expand(*x.shape[:2], len(part.keys), x.shape[3])
                .requires_grad_(learning)
                for x in (k, v)
            ]
            run.plan(part, here, own, *like)
            with torch.no_grad():
                run.plan(part, here, own.detach(), *like, want=asked)


def _forward(
    run: SharedRun, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: Kept | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, in float32 at least, and log-sum-exp; pieces are appended to `kept` with their graphs."""
    wide = torch.promote_types(q.dtype, torch.float32)
    merging = Merging(
        q.new_zeros(*q.shape[:3], v.shape[3], dtype=wide),
        q.new_full(q.shape[:3], -math.inf, dtype=wide),
    )
    for source, held in run.exchange(k, v).arrivals():
        pieces: Pieces = {}
        for part, here in run.parts(held):
            assert held is not None
            if kept is not None:
                found: Computed | AttentionDetail = run.piece(part, here, q, held)
                pieces[part] = found
            else:
                with torch.no_grad():
                    found = run.compute(
                        part, here, q[:, :, here], keys_of(part, held.k), keys_of(part, held.v)
                    )
            lines = slice(None), slice(None), here
            merging.add(lines, found.output.detach().to(wide), found.log_sum_exp.detach().to(wide))
        if kept is not None:
            kept.append((source, held, pieces))
    output, log_sum_exp = merging.merged()
    if run.options.sink is None:
        return output, log_sum_exp
    with torch.no_grad():  # the sink takes part as a key without a value: a piece whose output is 0
        total = torch.logaddexp(log_sum_exp, run.logits_of_sinks(q).to(log_sum_exp.dtype))
        return output.mul_(share(log_sum_exp, total)[..., None]), total


def refuse_second_derivatives() -> None:
    """Raise an UnsupportedError in a backward pass that would itself be differentiated."""
    if torch.is_grad_enabled():
        raise UnsupportedError(
            "attention over several processes has no second derivatives, which create_graph=True needs; compute "
            "them on one process with regard.attention"
        )


class _Attend(torch.autograd.Function):
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
        *shared: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.kept = (
            [] if run.form == "gather" else None
        )  # a ring computes its pieces again, and keeps none
        output, log_sum_exp = _forward(run, q, k, v, ctx.kept)
        ctx.save_for_backward(q, k, v, output, log_sum_exp, *shared)
        ctx.run = run
        ctx.set_materialize_grads(False)
        return output.to(q.dtype), log_sum_exp

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        refuse_second_derivatives()
        q, k, v, output, log_sum_exp, *shared = ctx.saved_tensors
        kept, ctx.kept = ctx.kept, None
        grad = torch.zeros_like(output) if grads[0] is None else grads[0].to(output.dtype)
        every = _Gradients(ctx.run, q, k, v, output, log_sum_exp, grad, grads[1], shared)
        return None, *every.through(kept)


class _Gradients:
    """The gradients of one call, added piece by piece."""

    def __init__(
        self, run: SharedRun, q, k, v, output, log_sum_exp, grad, grad_lse, shared
    ) -> None:
        self.run, self.q, self.k, self.v = run, q, k, v
        self.output, self.log_sum_exp, self.grad = output, log_sum_exp, grad
        self.shared = shared
        self.dq: torch.Tensor | None = None
        self.slope = (
            -_by_row(grad, output) if grad_lse is None else grad_lse - _by_row(grad, output)
        )
        self.of_shared = [
            torch.zeros_like(one, dtype=torch.promote_types(one.dtype, output.dtype))
            for one in shared
        ]

    def through(self, kept: Kept | None) -> list[torch.Tensor]:
        """The gradients of q, k, v and the shared tensors, after those of keys were exchanged."""
        exchange = self.run.exchange(self.k, self.v)
        totals = self._zeros(self.k, self.v)
        arrivals = (
            ((*arrival, {}) for arrival in exchange.arrivals()) if kept is None else iter(kept)
        )
        for source, held, pieces in arrivals:
            if source == exchange.rank:
                self._add(exchange.own, pieces, totals)
                continue
            grads = None
            if held is not None:
                grads = self._zeros(held.k, held.v)
                self._add(held, pieces, grads)
            exchange.send_home(source, grads, self.output.dtype)
        exchange.collect(totals)
        if self.run.options.sink is not None:
            self._of_sink()
        dk, dv = (total.to(x.dtype) for total, x in zip(totals, (self.k, self.v), strict=True))
        of_shared = (
            grad.to(one.dtype) for grad, one in zip(self.of_shared, self.shared, strict=True)
        )
        dq = torch.zeros_like(self.q) if self.dq is None else self.dq.to(self.q.dtype)
        return [dq, dk, dv, *of_shared]

    def _zeros(self, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        dk, dv = (torch.zeros_like(x, dtype=self.output.dtype) for x in (k, v))
        return dk, dv

    def _add(
        self, held: HeldKeys, pieces: Pieces, totals: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        for part, here in self.run.parts(held):
            piece = pieces.pop(part) if part in pieces else self.run.piece(part, here, self.q, held)
            dq, dk, dv, *shared = self._of_piece(piece, here)
            if dq is not None:
                self._add_to_queries(here, dq)
            del piece, dq
            for total, grad in zip(totals, (dk, dv), strict=True):
                if grad is not None:
                    add_back(part, total, grad)
            for total, grad in zip(self.of_shared, shared, strict=True):
                if grad is not None:
                    total += grad

    def _add_to_queries(self, here: slice, grad: torch.Tensor) -> None:
        if self.dq is None and grad.shape == self.q.shape and grad.dtype == self.output.dtype:
            self.dq = grad
            return
        if self.dq is None:
            self.dq = torch.zeros_like(self.q, dtype=self.output.dtype)
        self.dq[:, :, here] += grad

    def _of_piece(self, piece: Computed, here: slice) -> tuple[torch.Tensor | None, ...]:
        output, log_sum_exp = (
            piece.output.detach(),
            piece.log_sum_exp.detach().to(self.output.dtype),
        )
        of_piece = share(log_sum_exp, self.log_sum_exp[:, :, here])
        grad = self.grad[:, :, here]
        of_lse = _by_row(grad, output.to(grad.dtype)) + self.slope[:, :, here]
        given = (
            (grad * of_piece[..., None]).to(output.dtype),
            (of_lse * of_piece).to(piece.log_sum_exp.dtype),
        )
        with_graph = [
            (x, g)
            for x, g in zip((piece.output, piece.log_sum_exp), given, strict=True)
            if x.requires_grad
        ]
        if not with_graph:
            return (None,) * len(piece.inputs)
        outputs, grads = zip(*with_graph, strict=True)
        return torch.autograd.grad(outputs, piece.inputs, grads, allow_unused=True)

    def _of_sink(self) -> None:
        """The gradient of the sinks: the piece whose output is 0 and whose log-sum-exp is the logit."""
        sink = self.run.options.sink
        place = next((at for at, one in enumerate(self.shared) if one is sink), None)
        if place is None:
            return
        with torch.enable_grad():
            logits = self.run.logits_of_sinks(self.q)
        of_piece = share(logits.detach().to(self.output.dtype), self.log_sum_exp)
        given = (self.slope * of_piece).to(logits.dtype)
        self.of_shared[place] += torch.autograd.grad(logits, self.shared[place], given)[0]


def _by_row(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Dot products of the vectors of each row, (batch, heads, q_len), without a product of all numbers in memory."""
    return torch.einsum("bhqd,bhqd->bhq", one, other)


def statistics(
    run: SharedRun,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_sum_exp: torch.Tensor,
    wants: tuple[Want, ...],
) -> dict[str, Any]:
    """The requested statistics by name, but for the log-sum-exp, without gradients.

    A weight of the call is that of its piece times the piece's share s_p of the row. So with entropies H_p and
    distances d_p

        entropy = Σ s_p (H_p - log s_p),   distance = Σ s_p d_p,   received_j = Σ_i s_p(i) w_p(i, j)
    """
    found: dict[str, Any] = {}
    if "sink" in wants:
        found["sink"] = torch.zeros_like(log_sum_exp)
        if run.options.sink is not None:
            found["sink"] = share(run.logits_of_sinks(q).to(log_sum_exp.dtype), log_sum_exp)
    rest = tuple(one for one in wants if one not in ("log_sum_exp", "sink"))
    if not rest:
        return found
    rows = _Rows(run, q, log_sum_exp, rest)
    received = [
        x.new_zeros(len(x), q.shape[1], x.shape[2], size, dtype=rows.dtype)
        for x, size in ((k, 1), (k, 0))
    ]
    home = Exchange(run.group, run.needs, run.form, received[0], received[1])
    for source, held in run.exchange(k, v).arrivals():
        own = source == run.group.rank
        total = received[0]
        if held is not None and not own:
            total = held.k.new_zeros(len(held.k), q.shape[1], held.k.shape[2], 1, dtype=rows.dtype)
        for part, here in run.parts(held):
            assert held is not None
            rows.add(part, here, held, total)
        if "received" in rest and not own:
            sent = None if held is None else (total, total[..., :0])
            home.send_home(source, sent, rows.dtype)
    home.collect((received[0], received[1]))
    found |= {
        name: rows.sums[name].clamp_min_(0) for name in OF_PIECES if name in rest
    }  # a share may be rounded up
    if "received" in rest:
        found["received"] = received[0][..., 0]
    if rows.count is not None:
        found["top_keys"] = rows.top
    return found


def refusing_gradients(found: dict[str, Any], output: torch.Tensor) -> dict[str, Any]:
    """The statistics, with a backward pass that raises an UnsupportedError, where the output requires a gradient.

    Without it, a loss with a statistic would silently be differentiated as if the statistic were a constant.
    """
    refusing = {}
    for name, one in found.items():
        x = _NoGradient.apply(name, one.weights if isinstance(one, TopKeysFound) else one, output)
        refusing[name] = TopKeysFound(one.indices, x) if isinstance(one, TopKeysFound) else x
    return refusing


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, found: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        ctx.name = name
        return found.view_as(found)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise UnsupportedError(
            f"the gradient of {ctx.name} is not computed over several processes; detach() it, or compute it on one "
            f"process with regard.attention_detail"
        )


class _Rows:
    """The statistics of this process's queries, summed over the pieces."""

    def __init__(
        self, run: SharedRun, q: torch.Tensor, log_sum_exp: torch.Tensor, wants: tuple[Want, ...]
    ) -> None:
        self.run, self.q, self.log_sum_exp, self.wants = run, q, log_sum_exp, wants
        self.dtype = log_sum_exp.dtype
        self.sums = {name: torch.zeros_like(log_sum_exp) for name in OF_PIECES if name in wants}
        asked = requested(TopKeys, wants)
        self.count = None if asked is None else asked.count
        shape = *log_sum_exp.shape, self.count or 0
        self.top = TopKeysFound(
            torch.full(shape, -1, dtype=torch.int64, device=q.device), log_sum_exp.new_zeros(shape)
        )

    def add(self, part: Part, here: slice, held: HeldKeys, received: torch.Tensor) -> None:
        """Add a piece; what its keys received is added to `received`, (batch, heads, held, 1)."""
        q = self.q[:, :, here]
        k = keys_of(part, held.k)
        v = keys_of(part, held.v)
        asked = [one for one in self.wants if one in OF_PIECES or isinstance(one, TopKeys)]
        with torch.no_grad():
            detail = self.run.compute(part, here, q, k, v, want=asked)
        of_piece = share(detail.log_sum_exp.to(self.dtype), self.log_sum_exp[:, :, here])
        if "entropy" in self.sums:
            self.sums["entropy"][:, :, here] += of_piece * detail.entropy - torch.xlogy(
                of_piece, of_piece
            )
        if "distance" in self.sums:
            self.sums["distance"][:, :, here] += of_piece * detail.distance
        if self.count is not None:
            self._add_top(here, detail.top_keys, of_piece)
        if "received" in self.wants:
            add_back(part, received, self._received(part, here, q, k, of_piece))

    def _add_top(self, here: slice, top: TopKeysFound, of_piece: torch.Tensor) -> None:
        indices = torch.cat([self.top.indices[:, :, here], top.indices], -1)
        weights = torch.cat(
            [self.top.weights[:, :, here], top.weights.to(self.dtype) * of_piece[..., None]], -1
        )
        order = (
            torch.where(indices < 0, -1, weights).sort(stable=True, dim=-1, descending=True).indices
        )
        best = order[..., : self.count]
        self.top.indices[:, :, here] = indices.gather(-1, best)
        self.top.weights[:, :, here] = weights.gather(-1, best)

    def _received(
        self, part: Part, here: slice, q: torch.Tensor, k: torch.Tensor, of_piece: torch.Tensor
    ) -> torch.Tensor:
        """Σ_i s_p(i) w_p(i, j): the gradient of Σ_i s_p(i) · output_i by values of size 1, of each query head."""
        wide = torch.promote_types(q.dtype, torch.float32)

        def saved(x: torch.Tensor) -> torch.Tensor:
            """A tensor that autograd may save: a copy of one that was made in inference mode."""
            return x.clone() if x.is_inference() else x

        with torch.inference_mode(False), torch.enable_grad():
            k = saved(k).repeat_interleave(q.shape[1] // k.shape[1], dim=1).to(wide)
            ones = k.new_zeros(*k.shape[:3], 1).requires_grad_()
            run = replace(self.run, options=self.run.options.without_dropout(saved))
            output = run.compute(part, here, saved(q).to(wide), k, ones).output
            (grad,) = torch.autograd.grad(output, ones, saved(of_piece)[..., None].to(output.dtype))
        return grad.to(self.dtype)
