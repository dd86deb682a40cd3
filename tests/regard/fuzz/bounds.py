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

from .cases import name_of
from .oracle import Expected, Tensors
from .tensors import SoftmaxCall

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
        size = self.size @ other.size
        terms = self.size.shape[-1] + 1
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
    call: SoftmaxCall, expected: Expected, picked: torch.Tensor | None = None, second: bool = False
) -> Tensors:
    """Errors by name: output and statistics, "d q" and so on of gradients, "dd q" of second ones."""
    analysis = _Analysis(call, expected, picked)
    by_name = analysis.of_values()
    if expected.first:
        backward = _Backward(analysis)
        by_name |= backward.of_gradients()
        if second:
            by_name |= backward.of_second_gradients()
    return by_name


class _Analysis:
    """The forward pass: scores, slopes of the cap, and weights."""

    def __init__(self, call: SoftmaxCall, expected: Expected, picked: torch.Tensor | None) -> None:
        self.call = call
        self.expected = expected
        self.picked = picked
        case = call.case
        finfo = torch.finfo(torch.promote_types(call.dtype, torch.float32))
        self.u = finfo.eps / 2
        self.vanishing = finfo.tiny * 2.0**27  # weights that may be taken for 0
        on_gpu = call.dtype == torch.float16 and call.device == "cuda"
        rounds_weights = call.dtype == torch.bfloat16 or on_gpu
        self.half = torch.finfo(call.dtype).eps / 2 if rounds_weights else 0.0
        self.group = case.heads // case.kv_heads

        self.q = self.exact(call.given["q"].double())
        self.k = self.exact(self.repeated(call.given["k"].double(), call.hidden))
        self.v = self.exact(self.repeated(call.given["v"].double(), call.hidden))
        self.scale = self.exact(torch.tensor(call.scale, dtype=torch.float64))
        learned = call.added["learned"].double() if "learned" in call.added else None
        bias = call.spread(learned)
        self.masked_by_bias = torch.isinf(bias)
        self.bias = torch.where(self.masked_by_bias, 0, bias)
        lse = expected.values["log_sum_exp"][..., None]
        self.lse = torch.where(lse == -torch.inf, 0, lse)
        self.factors = self.exact(call.factors())
        self.offsets = self.exact(torch.from_numpy(call.at.j - call.at.i).double())
        self._weigh()
        self.sink = self._weight_of_sink()
        self.kept = self.w * self.factors
        self.surprise = torch.where(expected.live, (expected.scores - self.lse).abs(), 0)

    def exact(self, x: torch.Tensor) -> Number:
        return Number(x.abs(), torch.zeros_like(x), self.u)

    def repeated(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Keys or values for each query head, zeros in the place of hidden ones."""
        return x.masked_fill(hidden[..., None], 0).repeat_interleave(self.group, 1)

    def _weigh(self) -> None:
        expected = self.expected
        u = self.u
        bias = self.bias.abs()
        products = self.scale * (self.q @ self.k.mT)
        self.score_size = expected.scores.abs()
        ones = torch.ones_like(self.score_size)
        self.slope = Number(ones, 0 * ones, u)
        self.curve = Number(0 * ones, 0 * ones, u)
        capped = 0 * ones
        cap = self.call.case.softcap
        if cap is not None:
            capped = (self.score_size + bias).clamp_max(cap)
            t = ((expected.scores - self.bias) / cap).clamp(-1, 1)
            steep = 1 - t.square()
            bent = 2 * t.abs() * steep / cap
            self.slope = Number(steep, 8 * u + bent * products.error, u)
            self.curve = Number(bent, 2 / cap**2 * products.error + 8 * u / cap, u)
        rounding = 4 * u * capped + u * (bias + self.score_size) + self.half * bias
        error = self.slope.size * products.error + rounding
        self.score_error = torch.where(expected.live, error, 0)

        w = expected.weights
        self.mean_error = (w * self.score_error).sum(-1, keepdim=True)
        logits = 2 * self.score_size + 2 * self.lse.abs()
        relative = self.score_error + self._relative_error(logits)
        self.w = Number(w, w * relative + w.clamp_max(self.vanishing), u)

    def _relative_error(self, logits: torch.Tensor) -> torch.Tensor:
        """That of an exponential over the sum of all, besides the error of its own score."""
        rounding = self.u * (logits + self.call.case.k_len + 8)
        return self.mean_error + rounding + self.half

    def _weight_of_sink(self) -> Number:
        """What the sink weighs in each row, (batch, heads, q_len, 1)."""
        sink = self.call.spread_sink(self.call.sink)[..., None].expand(self.lse.shape)
        exists = sink > -torch.inf
        weight = torch.where(exists, sink - self.lse, -torch.inf).exp()
        logits = torch.where(exists, sink, 0).abs() + 2 * self.lse.abs()
        error = weight * self._relative_error(logits) + weight.clamp_max(self.vanishing)
        return Number(weight, error, self.u)

    def of_values(self) -> Tensors:
        """Errors of the output and of the statistics."""
        call = self.call
        w = self.w
        k_len = call.case.k_len
        lse = self.lse.abs()
        of_lse = self.mean_error + self.u * (2 * lse + k_len + 8)
        of_scores = self.score_error + self.mean_error + self.half
        terms = (k_len + 4) * (w.size * (self.score_size + self.surprise)).sum(-1)
        of_entropy = (w.error * (self.surprise + 1)).sum(-1) + (w.size * of_scores).sum(-1)
        values: Tensors = {
            "output": (self.kept @ self.v).error,
            "log_sum_exp": of_lse[..., 0] + self.half,
            "entropy": of_entropy + self.u * (2 * lse[..., 0] + terms),
            "received": w.sum(2).error[:, :, 0],
            "distance": (w * self.offsets).sum(-1).error[..., 0],
            "weights": w.error,
            "sink": self.sink.error[..., 0],
        }
        for statistic in call.case.want:
            if name_of(statistic) == "weights_of":
                values["weights_of"] = call.chosen(w.error, statistic)
        return values


class _Backward:
    """The gradients, and their gradients along `call.directions`."""

    def __init__(self, forward: _Analysis) -> None:
        self.forward = forward
        self.call = forward.call
        self.expected = forward.expected
        self.u = forward.u
        self.w = forward.w
        cotangents = self.call.cotangents
        self.incoming = {name: forward.exact(x.double()) for name, x in cotangents.items()}
        self.pull = self._pull()
        self.through = self.pull + self._mean(self.pull)
        # What a larger sink takes from every weight, and adds to the log-sum-exp.
        self.of_sink = self._mean(self.pull)
        if "log_sum_exp" in self.incoming:
            of_lse = self._column(self.incoming["log_sum_exp"])
            self.through = self.through + of_lse
            self.of_sink = self.of_sink + of_lse
        if "entropy" in self.incoming:
            of_entropy = self._column(self.incoming["entropy"])
            self.of_sink = self.of_sink + of_entropy * self.w.sum(-1)
        self.d_score = self.w * self.through
        self.d_product = self.d_score * forward.slope * forward.scale

    def _mean(self, x: Number) -> Number:
        return (self.w * x).sum(-1)

    def of_gradients(self) -> Tensors:
        forward = self.forward
        first = {
            "q": self.d_product @ forward.k,
            "k": self._grouped(self.d_product.mT @ forward.q),
            "v": self._grouped(forward.kept.mT @ self.incoming["output"]),
            "bias": self.d_score,
            "sink": forward.sink * self.of_sink,
        }
        pieces = 2 if len(self.incoming) > 1 else 1
        names = self.expected.first
        return {f"d {name}": self._error(name, first[name], pieces) for name in names}

    def _direction(self, name: str) -> torch.Tensor:
        """That of q, k or v, zeros for one that does not learn."""
        if name in self.expected.first:
            return self.call.directions[name].double()
        return torch.zeros_like(self.call.given[name]).double()

    def of_second_gradients(self) -> Tensors:
        forward = self.forward
        w = self.w
        learns = self.expected.first
        grad_output = self.incoming["output"]
        along_q = forward.exact(self._direction("q"))
        along_k = forward.exact(self._direction("k").repeat_interleave(forward.group, 1))
        along_v = forward.exact(self._direction("v").repeat_interleave(forward.group, 1))

        moved_product = forward.scale * (along_q @ forward.k.mT + forward.q @ along_k.mT)
        moved_score = moved_product * forward.slope
        if "bias" in learns:
            of_bias = self.call.spread(self.call.directions["bias"].double())
            moved_score = moved_score + forward.exact(
                torch.where(forward.masked_by_bias, 0, of_bias)
            )
        moved_lse = self._mean(moved_score)
        moved_logit = moved_lse  # of the sink, before its own direction is added
        if "sink" in learns:
            of_sink = self.call.spread_sink(self.call.directions["sink"].double())
            moved_sink = forward.exact(of_sink[..., None])
            moved_lse = moved_lse + forward.sink * moved_sink
            moved_logit = moved_lse + moved_sink

        moved_through = moved_score + moved_lse
        moved_w = w * moved_through
        moved_pull = forward.factors * (grad_output @ along_v.mT)
        if "entropy" in self.incoming:
            of_entropy = self._column(self.incoming["entropy"])
            moved_pull = moved_pull + of_entropy * moved_through
        moved_mean = self._mean(moved_pull)
        mean_of_moved = (moved_w * self.pull).sum(-1)
        moved_d = moved_w * self.through + w * (moved_pull + moved_mean + mean_of_moved)
        by_slope = moved_d * forward.slope + self.d_score * forward.curve * moved_product
        moved_d_product = by_slope * forward.scale
        moved_of_sink = moved_mean + mean_of_moved
        if "entropy" in self.incoming:
            moved_of_sink = moved_of_sink + of_entropy * moved_w.sum(-1)
        moved_weight = forward.sink * moved_logit
        moved_kept = moved_w * forward.factors

        of_queries = self._grouped(self.d_product.mT @ along_q)
        twice = {
            "q": moved_d_product @ forward.k + self.d_product @ along_k,
            "k": self._grouped(moved_d_product.mT @ forward.q) + of_queries,
            "v": self._grouped(moved_kept.mT @ grad_output),
            "bias": moved_d,
            "sink": moved_weight * self.of_sink + forward.sink * moved_of_sink,
            "grad_output": moved_kept @ forward.v + forward.kept @ along_v,
        }
        names = self.expected.second
        return {f"dd {name}": self._error(name, twice[name], pieces=4) for name in names}

    def _column(self, of_rows: Number) -> Number:
        return Number(of_rows.size[..., None], of_rows.error[..., None], self.u)

    def _pull(self) -> Number:
        """The gradient by the weights."""
        forward = self.forward
        incoming = self.incoming
        pull = forward.factors * (incoming["output"] @ forward.v.mT)
        if "weights" in incoming:
            pull = pull + incoming["weights"]
        if "received" in incoming:
            by_key = incoming["received"]
            pull = pull + Number(by_key.size[:, :, None], by_key.error[:, :, None], self.u)
        if "distance" in incoming:
            pull = pull + self._column(incoming["distance"]) * forward.offsets
        if "entropy" in incoming:
            # log w + entropy: the log-sum-exp and the entropy, at most as large, are each rounded once and added once;
            # the native kernel takes one sum over weighted keys from another, and each is rounded as the keys are.
            rounding = self.u * (2 * forward.score_size + 4 * forward.lse.abs() + 1)
            error = forward.score_error + forward.mean_error + forward.half + rounding
            surprise = Number(forward.surprise, error, self.u)
            pull = pull + self._column(incoming["entropy"]) * surprise
        for statistic in self.call.case.want:
            if name_of(statistic) == "weights_of" and "weights_of" in incoming:
                rows, heads = self.call.rows_and_heads(statistic)
                of_pairs = torch.zeros_like(pull.size + self.w.size)
                heads = range(self.call.case.heads) if heads is None else heads
                for place, head in enumerate(heads):
                    of_pairs[:, head, list(rows)] += incoming["weights_of"].size[:, place]
                pull = pull + forward.exact(of_pairs)
        if "top_keys" in incoming and forward.picked is not None:
            k_len = self.w.size.shape[3]
            padded = torch.zeros(*self.w.size.shape[:3], k_len + 1, dtype=torch.float64)
            keys = torch.where(forward.picked < 0, k_len, forward.picked)
            of_pairs = padded.scatter_add(-1, keys, incoming["top_keys"].size)[..., :-1]
            pull = pull + forward.exact(of_pairs)
        return pull

    def _grouped(self, by_head: Number) -> Number:
        """Summed over the query heads that share a key/value head."""
        groups = (self.call.case.kv_heads, self.forward.group)
        size = by_head.size.unflatten(1, groups).sum(2)
        error = by_head.error.unflatten(1, groups).sum(2)
        return Number(size, error + self.forward.group * self.u * size, self.u)

    def _error(self, name: str, gradient: Number, pieces: int) -> torch.Tensor:
        """The error of a gradient, a sum of `pieces`; that of a bias is summed over the pairs it was added to."""
        call = self.call
        if name == "sink":
            return self._error_of_sink(gradient, pieces)
        dtype = call.added["learned"].dtype if name == "bias" else call.dtype
        error = gradient.error
        if pieces > 1 and dtype.itemsize == 2:
            error = error + pieces * torch.finfo(dtype).eps / SLACK * gradient.size
        if name != "bias":
            return error

        learned = torch.zeros(call.added["learned"].shape, dtype=torch.float64).requires_grad_()
        spread = call.spread(learned).expand(error.shape)
        terms = max(1, error.numel() // max(1, learned.numel()))
        by_table = call.case.bias is not None and call.case.bias.kind == "t5"
        if (
            by_table
        ):  # summed by distance, then over the distances of a bucket in the table's own dtype
            terms = call.case.q_len + call.case.k_len
        u = torch.finfo(dtype).eps / 2 if by_table or dtype == torch.float32 else self.u
        of_pairs = error + terms * max(u, self.u) * gradient.size
        return _summed(spread, learned, torch.where(self.expected.live, of_pairs, 0))

    def _error_of_sink(self, gradient: Number, pieces: int) -> torch.Tensor:
        """The error of the gradient of the sinks, each the sum over the rows that have it."""
        call = self.call
        assert call.sink is not None
        learned = torch.zeros(call.sink.shape, dtype=torch.float64).requires_grad_()
        spread = call.spread_sink(learned)[..., None].expand(gradient.error.shape)
        terms = gradient.error.numel() // max(1, learned.numel())
        relative = terms * self.u
        if call.dtype.itemsize == 2:
            relative += pieces * torch.finfo(call.dtype).eps / SLACK
        return _summed(spread, learned, gradient.error + relative * gradient.size)


def _summed(spread: torch.Tensor, learned: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """Errors summed over the pairs to which each learned number was added."""
    if not spread.numel():
        return torch.zeros_like(learned)
    return torch.autograd.grad(spread, learned, errors)[0]
