"""How far rounding may lead from the oracle: the formulas again, of magnitudes and their first-order errors.

Each number x of the computation is followed by a majorant `size` of |x| and a bound `error` of what rounding did to
it, with the rules of rounding analysis (Higham 2002, chapter 3), u the unit roundoff of the dtype computed in:

    x + y   e_x + e_y + u (|x| + |y|)          x · y   e_x |y| + |x| e_y + u |x| |y|
    Σ of n  Σ e + n u Σ |x|                    exp(s - lse)   w (e_s + Σ w e_s + u (|s| + |lse| + n))

Signs that cancel are not counted on, so any order of the same operations stays below. Half types compute in float32;
in bfloat16, and in float16 on a GPU, weights and bias are rounded to that dtype once more. A result may be off by SLACK
times its error (a backward pass has the forward's results rounded in it, blocks are rescaled, and the oracle rounds as
well), and by the rounding of the result itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .oracle import Answer, Tensors
from .tensors import Made

SLACK = 4


@dataclass
class Number:
    """|x| and its error; `u` is that of the arithmetic."""

    size: torch.Tensor
    error: torch.Tensor
    u: float

    def __add__(self, other: Number) -> Number:
        size = self.size + other.size
        return Number(size, self.error + other.error + self.u * size, self.u)

    def __mul__(self, other: Number) -> Number:
        size = self.size * other.size
        error = self.error * other.size + self.size * other.error + self.u * size
        return Number(size, error, self.u)

    def __matmul__(self, other: Number) -> Number:
        size, terms = self.size @ other.size, self.size.shape[-1] + 1
        error = self.error @ other.size + self.size @ other.error + terms * self.u * size
        return Number(size, error, self.u)

    def sum(self, *axes: int) -> Number:
        terms = 1
        for axis in axes:
            terms *= self.size.shape[axis]
        size = self.size.sum(axes, keepdim=True)
        return Number(size, self.error.sum(axes, keepdim=True) + terms * self.u * size, self.u)

    @property
    def mT(self) -> Number:  # noqa: N802 - as torch names it
        return Number(self.size.mT, self.error.mT, self.u)


def errors(
    made: Made, answer: Answer, picked: torch.Tensor | None = None, second: bool = False
) -> Tensors:
    """Errors by name: output and statistics, "d q" and so on of gradients, "dd q" of second ones."""
    return _Analysis(made, answer, picked).told(second)


class _Analysis:
    def __init__(self, made: Made, answer: Answer, picked: torch.Tensor | None) -> None:
        self.made, self.answer, self.picked = made, answer, picked
        case = made.case
        self.u = torch.finfo(torch.promote_types(made.dtype, torch.float32)).eps / 2
        rounds_weights = made.dtype == torch.bfloat16 or (
            made.dtype == torch.float16 and made.device == "cuda"
        )
        self.half = torch.finfo(made.dtype).eps / 2 if rounds_weights else 0.0
        self.group = case.heads // case.kv_heads
        clean = {name: made.given[name].double() for name in ("q", "k", "v")}
        self.q, self.k, self.v = (self._exact(clean[name]) for name in ("q", "k", "v"))
        for one in (self.k, self.v):
            one.size = one.size.masked_fill(made.hidden[..., None], 0).repeat_interleave(
                self.group, 1
            )
            one.error = torch.zeros_like(one.size)
        self.scale = self._exact(torch.tensor(made.scale, dtype=torch.float64))
        self._weigh()

    def _exact(self, x: torch.Tensor) -> Number:
        return Number(x.abs(), torch.zeros_like(x), self.u)

    def _weigh(self) -> None:
        """Scores, slopes of the cap, and weights."""
        made, answer, u = self.made, self.answer, self.u
        bias = made.spread(made.added["learned"].double() if "learned" in made.added else None)
        bias = torch.where(bias == -torch.inf, 0, bias).abs()
        x = self.scale * (self.q @ self.k.mT)
        whole = answer.scores.abs()
        ones = torch.ones_like(whole)
        self.slope, self.curve = Number(ones, 0 * ones, u), Number(0 * ones, 0 * ones, u)
        capped = 0 * whole
        if (cap := made.case.softcap) is not None:
            capped = (whole + bias).clamp_max(cap)
            t = (
                (answer.scores - torch.where(torch.isinf(self._signed()), 0, self._signed())) / cap
            ).clamp(-1, 1)
            steep = 1 - t.square()
            self.slope = Number(steep, 8 * u + 2 * t.abs() * steep / cap * x.error, u)
            self.curve = Number(2 * t.abs() * steep / cap, 2 / cap**2 * x.error + 8 * u / cap, u)
        score_error = (
            self.slope.size * x.error + 4 * u * capped + u * (bias + whole) + self.half * bias
        )
        score_error = torch.where(answer.live, score_error, 0)
        lse = answer.values["log_sum_exp"][..., None]
        lse = torch.where(lse == -torch.inf, 0, lse).abs()
        w = answer.weights
        self.mean_error = (w * score_error).sum(-1, keepdim=True)
        relative = (
            score_error
            + self.mean_error
            + u * (2 * whole + 2 * lse + made.case.k_len + 8)
            + self.half
        )
        # may be taken for 0
        vanishing = torch.finfo(torch.promote_types(made.dtype, torch.float32)).tiny * 2.0**27
        self.w = Number(w, w * relative + w.clamp_max(vanishing), u)
        self.score_error, self.lse, self.whole = score_error, lse, whole
        self.sink = self._weight_of_sink()

    def _weight_of_sink(self) -> Number:
        """What the sink weighs in each row, (batch, heads, q_len, 1)."""
        made = self.made
        lse = self._signed_lse()
        sink = made.spread_sink(made.sink)[..., None].expand(lse.shape)
        there = sink > -torch.inf
        weight = torch.where(there, sink - lse, -torch.inf).exp()
        logits = torch.where(there, sink, 0).abs() + 2 * self.lse
        relative = self.mean_error + self.u * (logits + made.case.k_len + 8) + self.half
        vanishing = torch.finfo(torch.promote_types(made.dtype, torch.float32)).tiny * 2.0**27
        return Number(weight, weight * relative + weight.clamp_max(vanishing), self.u)

    def _signed(self) -> torch.Tensor:
        return self.made.spread(
            self.made.added["learned"].double() if "learned" in self.made.added else None
        )

    def told(self, second: bool) -> Tensors:
        made, answer, u, w = self.made, self.answer, self.u, self.w
        factors = self._exact(made.factors())
        far = self._exact(torch.from_numpy(made.at.j - made.at.i).double())
        kept = w * factors
        surprise = torch.where(answer.live, (answer.scores - self._signed_lse()).abs(), 0)
        told: Tensors = {
            "output": (kept @ self.v).error,
            "log_sum_exp": (self.mean_error + u * (2 * self.lse + made.case.k_len + 8))[..., 0]
            + self.half,
            "entropy": (w.error * (surprise + 1)).sum(-1)
            + (w.size * (self.score_error + self.mean_error + self.half)).sum(-1)
            + u
            * (
                2 * self.lse[..., 0]
                + (made.case.k_len + 4) * (w.size * (self.whole + surprise)).sum(-1)
            ),
            "received": w.sum(2).error[:, :, 0],
            "distance": (w * far).sum(-1).error[..., 0],
            "weights": w.error,
            "sink": self.sink.error[..., 0],
        }
        for one in made.case.want:
            if not isinstance(one, str) and one[0] == "weights_of":
                rows, heads = made.reduced(one)
                told["weights_of"] = w.error[:, slice(None) if heads is None else list(heads)][
                    :, :, list(rows)
                ]
        if not answer.first:
            return told

        come = {name: self._exact(x.double()) for name, x in made.cotangents.items()}
        pull = self._pull(come, factors, far, surprise)
        through = pull + (w * pull).sum(-1)
        if "log_sum_exp" in come:
            through = through + self._column(come["log_sum_exp"])
        d_score = w * through
        # what a larger sink takes from every weight, and adds to the log-sum-exp
        inner = (w * pull).sum(-1)
        if "log_sum_exp" in come:
            inner = inner + self._column(come["log_sum_exp"])
        if "entropy" in come:
            inner = inner + self._column(come["entropy"]) * w.sum(-1)
        d_dot = d_score * self.slope * self.scale
        go = come["output"]
        first = {
            "q": d_dot @ self.k,
            "k": self._grouped(d_dot.mT @ self.q),
            "v": self._grouped(kept.mT @ go),
            "bias": d_score,
            "sink": self.sink * inner,
        }
        told |= {
            f"d {name}": self._of(name, first[name], pieces=1 + (len(come) > 1))
            for name in answer.first
        }
        if not second:
            return told

        along = {
            name: self._exact(
                made.directions[name].double()
                if name in answer.first
                else torch.zeros_like(made.given[name]).double()
            )
            for name in ("q", "k", "v")
        }
        a_k, a_v = (
            Number(
                along[name].size.repeat_interleave(self.group, 1),
                torch.zeros_like(self.k.size if name == "k" else self.v.size),
                u,
            )
            for name in ("k", "v")
        )
        moved = self.scale * (along["q"] @ self.k.mT + self.q @ a_k.mT)
        moved_score = moved * self.slope
        if "bias" in answer.first:
            moved_score = moved_score + self._exact(
                torch.where(
                    torch.isinf(self._signed()), 0, made.spread(made.directions["bias"].double())
                )
            )
        moved_lse = (w * moved_score).sum(-1)
        if "sink" in answer.first:
            moved_sink = self._exact(made.spread_sink(made.directions["sink"].double())[..., None])
            moved_lse = moved_lse + self.sink * moved_sink
        moved_through = moved_score + moved_lse
        moved_w = w * moved_through
        moved_pull = factors * (go @ a_v.mT)
        if "entropy" in come:
            moved_pull = moved_pull + self._column(come["entropy"]) * moved_through
        moved_d = moved_w * through + w * (
            moved_pull + (w * moved_pull).sum(-1) + (moved_w * pull).sum(-1)
        )
        moved_dot = (moved_d * self.slope + d_score * self.curve * moved) * self.scale
        moved_inner = (w * moved_pull).sum(-1) + (moved_w * pull).sum(-1)
        if "entropy" in come:
            moved_inner = moved_inner + self._column(come["entropy"]) * moved_w.sum(-1)
        moved_weight = self.sink * (
            moved_lse if "sink" not in answer.first else moved_lse + moved_sink
        )
        moved_kept = moved_w * factors
        twice = {
            "q": moved_dot @ self.k + d_dot @ a_k,
            "k": self._grouped(moved_dot.mT @ self.q) + self._grouped(d_dot.mT @ along["q"]),
            "v": self._grouped(moved_kept.mT @ go),
            "bias": moved_d,
            "sink": moved_weight * inner + self.sink * moved_inner,
            "grad_output": moved_kept @ self.v + kept @ a_v,
        }
        return told | {
            f"dd {name}": self._of(name, twice[name], pieces=4) for name in answer.second
        }

    def _signed_lse(self) -> torch.Tensor:
        lse = self.answer.values["log_sum_exp"][..., None]
        return torch.where(lse == -torch.inf, 0, lse)

    def _column(self, of_rows: Number) -> Number:
        return Number(of_rows.size[..., None], of_rows.error[..., None], self.u)

    def _pull(
        self, come: dict[str, Number], factors: Number, far: Number, surprise: torch.Tensor
    ) -> Number:
        """The gradient by the weights."""
        pull = factors * (come["output"] @ self.v.mT)
        if "weights" in come:
            pull = pull + come["weights"]
        if "received" in come:
            by_key = come["received"]
            pull = pull + Number(by_key.size[:, :, None], by_key.error[:, :, None], self.u)
        if "distance" in come:
            pull = pull + self._column(come["distance"]) * far
        if "entropy" in come:
            # log w + entropy: the log-sum-exp and the entropy, at most as large, are each rounded once and added once;
            # the native kernel takes one sum over weighted keys from another, and each is rounded as the keys are
            uneven = (
                self.score_error
                + self.mean_error
                + self.half
                + self.u * (2 * self.whole + 4 * self.lse + 1)
            )
            pull = pull + self._column(come["entropy"]) * Number(surprise, uneven, self.u)
        if "weights_of" in come:
            want = next(
                one
                for one in self.made.case.want
                if not isinstance(one, str) and one[0] == "weights_of"
            )
            rows, heads = self.made.reduced(want)
            placed = torch.zeros_like(pull.size + self.w.size)
            heads = range(self.made.case.heads) if heads is None else heads
            for at, head in enumerate(heads):
                placed[:, head, list(rows)] += come["weights_of"].size[:, at]
            pull = pull + self._exact(placed)
        if "top_keys" in come and self.picked is not None:
            placed = torch.zeros(
                *self.w.size.shape[:3], self.w.size.shape[3] + 1, dtype=torch.float64
            )
            at = torch.where(self.picked < 0, self.w.size.shape[3], self.picked)
            pull = pull + self._exact(placed.scatter_add(-1, at, come["top_keys"].size)[..., :-1])
        return pull

    def _grouped(self, by_head: Number) -> Number:
        """Summed over the query heads that share a key/value head."""
        kv_heads = self.made.case.kv_heads
        size, error = (
            x.unflatten(1, (kv_heads, self.group)).sum(2) for x in (by_head.size, by_head.error)
        )
        return Number(size, error + self.group * self.u * size, self.u)

    def _of(self, name: str, found: Number, pieces: int) -> torch.Tensor:
        """The error of a gradient, a sum of `pieces`; that of a bias is summed over the pairs it was added to."""
        made = self.made
        kind = made.added["learned"].dtype if name == "bias" else made.dtype
        if name == "sink":
            return self._of_sink(found, pieces)
        rounding = (
            pieces * torch.finfo(kind).eps / SLACK if pieces > 1 and kind.itemsize == 2 else 0.0
        )
        found = Number(found.size, found.error + rounding * found.size, self.u)
        if name != "bias":
            return found.error
        learned = torch.zeros(made.added["learned"].shape, dtype=torch.float64).requires_grad_()
        spread = made.spread(learned).expand(found.error.shape)
        terms = max(1, found.error.numel() // max(1, learned.numel()))
        by_table = made.case.bias is not None and made.case.bias.kind == "t5"
        # summed by distance, then over the distances of a bucket in the table's own dtype
        if by_table:
            terms = made.case.q_len + made.case.k_len
        u = torch.finfo(kind).eps / 2 if by_table or kind == torch.float32 else self.u
        whole = torch.where(self.answer.live, found.error + terms * max(u, self.u) * found.size, 0)
        if not spread.numel():
            return torch.zeros_like(learned)
        return torch.autograd.grad(spread, learned, whole)[0]

    def _of_sink(self, found: Number, pieces: int) -> torch.Tensor:
        """The error of the gradient of the sinks, each the sum over the rows that have it."""
        assert self.made.sink is not None
        learned = torch.zeros(self.made.sink.shape, dtype=torch.float64).requires_grad_()
        spread = self.made.spread_sink(learned)[..., None].expand(found.error.shape)
        terms = found.error.numel() // max(1, learned.numel())
        rounding = (
            pieces * torch.finfo(self.made.dtype).eps / SLACK
            if self.made.dtype.itemsize == 2
            else 0.0
        )
        whole = found.error + (terms * self.u + rounding) * found.size
        return (
            torch.autograd.grad(spread, learned, whole)[0]
            if spread.numel()
            else torch.zeros_like(learned)
        )
