"""The statistics of attention over the pieces of several processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from regard.core.result import TopKeys, TopKeysFound, Want, requested
from regard.distributed.exchange import Exchange
from regard.distributed.function import SharedRun
from regard.distributed.pieces import CallPiece, HeldKeys, add_to_held, keys_of, share
from regard.errors import UnsupportedError

STATISTICS_OF_PIECES = ("entropy", "distance")


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
    requested_statistics: dict[str, Any] = {}
    if "sink" in wants:
        requested_statistics["sink"] = torch.zeros_like(log_sum_exp)
        if run.options.sink is not None:
            logits = run.sink_logits(q).to(log_sum_exp.dtype)
            requested_statistics["sink"] = share(logits, log_sum_exp)
    over_pieces = tuple(want for want in wants if want not in ("log_sum_exp", "sink"))
    if not over_pieces:
        return requested_statistics

    rows = _StatisticsOfRows(run, q, log_sum_exp, over_pieces)
    received = _sum_over_pieces(rows, k, v)
    for name, total in rows.sums.items():
        requested_statistics[name] = total.clamp_min_(0)  # a share may be rounded up
    if "received" in over_pieces:
        requested_statistics["received"] = received
    if rows.top_count is not None:
        requested_statistics["top_keys"] = rows.top_keys
    return requested_statistics


def _sum_over_pieces(rows: _StatisticsOfRows, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Add all pieces to `rows`; what this process's keys received of all queries, (batch, heads, k_len)."""
    run = rows.run
    batch, heads = len(k), rows.q.shape[1]

    # What keys received goes home as the gradients of keys do: as "keys" of size 1 and "values" of size 0.
    received = k.new_zeros(batch, heads, k.shape[2], 1, dtype=rows.dtype)
    nothing = k.new_zeros(batch, heads, k.shape[2], 0, dtype=rows.dtype)
    home = Exchange(run.group, run.needs, run.form, received, nothing)
    for source, held in run.exchange(k, v).arrivals():
        is_own = source == run.group.rank
        total = received
        if held is not None and not is_own:
            total = held.k.new_zeros(batch, heads, held.k.shape[2], 1, dtype=rows.dtype)
        for piece, queries in run.pieces(held):
            assert held is not None
            rows.add(piece, queries, held, total)
        if "received" in rows.wants and not is_own:
            home.send_home(source, None if held is None else (total, total[..., :0]), rows.dtype)
    home.collect((received, nothing))
    return received[..., 0]


def refusing_gradients(detail: dict[str, Any], output: torch.Tensor) -> dict[str, Any]:
    """The statistics, with a backward pass that raises an UnsupportedError, where the output requires a gradient.

    Without it, a loss with a statistic would silently be differentiated as if the statistic were a constant.
    """
    refusing: dict[str, Any] = {}
    for name, statistic in detail.items():
        if isinstance(statistic, TopKeysFound):
            weights = _NoGradient.apply(name, statistic.weights, output)
            refusing[name] = TopKeysFound(statistic.indices, weights)
        else:
            refusing[name] = _NoGradient.apply(name, statistic, output)
    return refusing


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, statistic: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        ctx.name = name
        return statistic.view_as(statistic)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise UnsupportedError(
            f"the gradient of {ctx.name} is not computed over several processes; detach() it, or compute it on one "
            f"process with regard.attention_detail"
        )


class _StatisticsOfRows:
    """The statistics of this process's queries, summed over the pieces."""

    def __init__(
        self, run: SharedRun, q: torch.Tensor, log_sum_exp: torch.Tensor, wants: tuple[Want, ...]
    ) -> None:
        self.run = run
        self.q = q
        self.log_sum_exp = log_sum_exp
        self.wants = wants
        self.dtype = log_sum_exp.dtype
        self.sums = {
            name: torch.zeros_like(log_sum_exp) for name in STATISTICS_OF_PIECES if name in wants
        }
        top_keys = requested(TopKeys, wants)
        self.top_count = None if top_keys is None else top_keys.count
        shape = *log_sum_exp.shape, self.top_count or 0
        no_key = torch.full(shape, -1, dtype=torch.int64, device=q.device)
        self.top_keys = TopKeysFound(no_key, log_sum_exp.new_zeros(shape))

    def add(self, piece: CallPiece, rows: slice, held: HeldKeys, received: torch.Tensor) -> None:
        """Add a piece; what its keys received is added to `received`, (batch, heads, held, 1)."""
        q = self.q[:, :, rows]
        k = keys_of(piece, held.k)
        v = keys_of(piece, held.v)
        of_pieces = [
            want for want in self.wants if want in STATISTICS_OF_PIECES or isinstance(want, TopKeys)
        ]
        with torch.no_grad():
            detail = self.run.compute(piece, rows, q, k, v, want=of_pieces)

        log_sum_exp = detail.log_sum_exp.to(self.dtype)
        shares = share(log_sum_exp, self.log_sum_exp[:, :, rows])
        if "entropy" in self.sums:
            entropy = shares * detail.entropy - torch.xlogy(shares, shares)
            self.sums["entropy"][:, :, rows] += entropy
        if "distance" in self.sums:
            self.sums["distance"][:, :, rows] += shares * detail.distance
        if self.top_count is not None:
            self._add_top_keys(rows, detail.top_keys, shares)
        if "received" in self.wants:
            add_to_held(piece, received, self._weights_received(piece, rows, q, k, shares))

    def _add_top_keys(self, rows: slice, top: TopKeysFound, shares: torch.Tensor) -> None:
        """Keep the keys of the greatest weights among those kept so far and those of a piece."""
        weights_of_piece = top.weights.to(self.dtype) * shares[..., None]
        indices = torch.cat([self.top_keys.indices[:, :, rows], top.indices], -1)
        weights = torch.cat([self.top_keys.weights[:, :, rows], weights_of_piece], -1)

        ranked = torch.where(indices < 0, -1, weights)  # index -1 stands for no key
        order = ranked.sort(stable=True, dim=-1, descending=True).indices
        best = order[..., : self.top_count]
        self.top_keys.indices[:, :, rows] = indices.gather(-1, best)
        self.top_keys.weights[:, :, rows] = weights.gather(-1, best)

    def _weights_received(
        self, piece: CallPiece, rows: slice, q: torch.Tensor, k: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """Σ_i s_p(i) w_p(i, j): the gradient of Σ_i s_p(i) · output_i by values of size 1, of each query head."""
        dtype = torch.promote_types(q.dtype, torch.float32)

        def savable(x: torch.Tensor) -> torch.Tensor:
            """A tensor that autograd may save: a copy of one that was made in inference mode."""
            return x.clone() if x.is_inference() else x

        with torch.inference_mode(False), torch.enable_grad():
            q_heads_of_a_key = q.shape[1] // k.shape[1]
            k = savable(k).repeat_interleave(q_heads_of_a_key, dim=1).to(dtype)
            values = k.new_zeros(*k.shape[:3], 1).requires_grad_()
            run = replace(self.run, options=self.run.options.without_dropout(savable))
            output = run.compute(piece, rows, savable(q).to(dtype), k, values).output
            grad_output = savable(shares)[..., None].to(output.dtype)
            (grad,) = torch.autograd.grad(output, values, grad_output)
        return grad.to(self.dtype)
