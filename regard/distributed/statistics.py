"""Statistics of attention over several processes, from those of its pieces."""

from __future__ import annotations

from typing import Any

import torch

from regard.core.result import TopKeys, TopKeysFound, Want, requested
from regard.distributed.exchange import Exchange
from regard.distributed.function import Run
from regard.distributed.pieces import Held, Part, add_back, compute, keys_of, parts_of, share
from regard.errors import UnsupportedError

OF_PIECES = ("entropy", "distance")


def statistics(
    run: Run, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_sum_exp: torch.Tensor, wants: tuple[Want, ...]
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
    received = [x.new_zeros(len(x), q.shape[1], x.shape[2], size, dtype=rows.dtype) for x, size in ((k, 1), (k, 0))]
    home = Exchange(run.group, run.needs, run.form, received[0], received[1])
    for source, held in run.exchange(k, v).arrivals():
        own = source == run.group.rank
        total = received[0] if own or held is None else _received_by(rows, held)
        for part in parts_of(run.needs, run.group.rank, held):
            assert held is not None
            rows.add(part, held, total)
        if "received" in rest and not own:
            sent = None if held is None else (total, total[..., :0])
            home.send_home(source, sent, rows.dtype)
    home.collect((received[0], received[1]))
    found |= {name: rows.sums[name].clamp_min_(0) for name in OF_PIECES if name in rest}  # a share may be rounded up
    if "received" in rest:
        found["received"] = received[0][..., 0]
    if rows.count is not None:
        found["top_keys"] = rows.top
    return found


def refusing_gradients(found: dict[str, Any], output: torch.Tensor) -> dict[str, Any]:
    """The statistics, with a backward pass that raises an UnsupportedError, where the output requires a gradient.

    Without it, a loss with a statistic would silently be differentiated as if the statistic were a constant.
    """
    told = {}
    for name, one in found.items():
        if isinstance(one, TopKeysFound):
            told[name] = TopKeysFound(one.indices, _NoGradient.apply(name, one.weights, output))
        else:
            told[name] = _NoGradient.apply(name, one, output)
    return told


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


def _received_by(rows: _Rows, held: Held) -> torch.Tensor:
    batch, _, keys, _ = held.k.shape
    return held.k.new_zeros(batch, rows.q.shape[1], keys, 1, dtype=rows.dtype)


class _Rows:
    """The statistics of this process's queries, summed over the pieces."""

    def __init__(self, run: Run, q: torch.Tensor, log_sum_exp: torch.Tensor, wants: tuple[Want, ...]) -> None:
        self.run, self.q, self.log_sum_exp, self.wants = run, q, log_sum_exp, wants
        self.dtype = log_sum_exp.dtype
        self.sums = {name: torch.zeros_like(log_sum_exp) for name in OF_PIECES if name in wants}
        asked = requested(TopKeys, wants)
        self.count = None if asked is None else asked.count
        shape = *log_sum_exp.shape, self.count or 0
        self.top = TopKeysFound(torch.full(shape, -1, dtype=torch.int64, device=q.device), log_sum_exp.new_zeros(shape))

    def add(self, part: Part, held: Held, received: torch.Tensor) -> None:
        """Add a piece; what its keys received is added to `received`, (batch, heads, held, 1)."""
        run, place = self.run, self.run.place(part)
        here = slice(place.start, place.stop)
        q, k, v = self.q[:, :, here], keys_of(part, held.k), keys_of(part, held.v)
        asked = [one for one in self.wants if one in OF_PIECES or isinstance(one, TopKeys)]
        with torch.no_grad():
            detail = compute(run.options, run.needs, part, q, place, k, v, asked)
        of_piece = share(detail.log_sum_exp.to(self.dtype), self.log_sum_exp[:, :, here])
        if "entropy" in self.sums:
            self.sums["entropy"][:, :, here] += of_piece * detail.entropy - torch.xlogy(of_piece, of_piece)
        if "distance" in self.sums:
            self.sums["distance"][:, :, here] += of_piece * detail.distance
        if self.count is not None:
            self._add_top(here, detail.top_keys, of_piece)
        if "received" in self.wants:
            add_back(part, received, self._received(part, q, place, k, of_piece))

    def _add_top(self, here: slice, top: TopKeysFound, of_piece: torch.Tensor) -> None:
        indices = torch.cat([self.top.indices[:, :, here], top.indices], -1)
        weights = torch.cat([self.top.weights[:, :, here], top.weights.to(self.dtype) * of_piece[..., None]], -1)
        order = torch.where(indices < 0, -1, weights).sort(stable=True, dim=-1, descending=True).indices
        best = order[..., : self.count]
        self.top.indices[:, :, here] = indices.gather(-1, best)
        self.top.weights[:, :, here] = weights.gather(-1, best)

    def _received(
        self, part: Part, q: torch.Tensor, place: range, k: torch.Tensor, of_piece: torch.Tensor
    ) -> torch.Tensor:
        """Σ_i s_p(i) w_p(i, j): the gradient of Σ_i s_p(i) · output_i by values of size 1, of each query head."""
        wide = torch.promote_types(q.dtype, torch.float32)
        with torch.inference_mode(False), torch.enable_grad():
            options = self.run.options.without_dropout().mapped(_recorded)
            k = _recorded(k).repeat_interleave(q.shape[1] // k.shape[1], dim=1).to(wide)
            ones = k.new_zeros(*k.shape[:3], 1).requires_grad_()
            output = compute(options, self.run.needs, part, _recorded(q).to(wide), place, k, ones, ()).output
            (grad,) = torch.autograd.grad(output, ones, _recorded(of_piece)[..., None].to(output.dtype))
        return grad.to(self.dtype)


def _recorded(x: torch.Tensor) -> torch.Tensor:
    """A tensor that autograd may save: a copy of one that was made in inference mode."""
    return x.clone() if x.is_inference() else x
