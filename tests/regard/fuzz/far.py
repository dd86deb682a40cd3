"""Calls whose rows have scores that are all large, whose scores overflow, and whose results are rounded once.

The values are the unit vectors, so the output of a row is its weights W. From them and the tensors of a call follows
everything else in float64, whatever rounding did to the scores:

    dv = Wᵀ dout     dS = W (dout - rowsum(W dout))     dq = scale dS k     dk = scale dSᵀ q     dbias = dS

Scores are rounded when they are computed, by at most `unit` for a row; weights may be those of any scores within it.
The sums of weights, and of the gradients of all values, have no such leeway.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import regard as rg

from .cases import described, halved, with_default
from .judging import NAMES, CaseVerdict, Options, cut, declares, detail_of, raised
from .meanings import FULL, LEAVES, Node, Places, build, drawn, mask_of, plain_leaf
from .oracle import Tensors, detached, named
from .tensors import DrawnNumbers

LOW = "the lowest number"
HIGH = "the largest number"
OFFSETS: tuple[Any, ...] = (0.0, 0.0, 1e4, -1e4, 1e6, -1e6, 1e30, -1e30, LOW, HIGH)
NEAR_OFFSETS = OFFSETS[:6]
EQUAL = 1e20  # from this offset on all scores of a row are rounded to one number
GAINS = (1.0, 1.0, 1.0, 8.0, 300.0)
OVERFLOW = "overflow"
DTYPES = ("float64", "float32", "float32", "float32", "bfloat16", "float16")
OVERFLOWING = ("float32", "bfloat16")  # where float64 does not overflow as well
STATISTICS = ("log_sum_exp", "entropy", "received", "weights")


@dataclass(frozen=True)
class FarCase:
    """`offsets`: of the rows in turn, by a bias. `gain`: of q and k, or OVERFLOW: scores of 0, -inf and inf."""

    seed: int
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    q_len: int = 3
    k_len: int = 4
    head_dim: int = 4
    dtype: str = "float32"
    pattern: Node = FULL
    offsets: tuple[Any, ...] = (0.0,)
    hides: float = 0.0
    gain: Any = 1.0
    above: float = 0.0  # share of keys whose scores overflow to inf
    sink: bool = False
    precise: bool = False
    learns: bool = False
    want: tuple[str, ...] = ()
    blocks: str = "shipped"

    def __str__(self) -> str:
        return described(self, FarCase(0))


def draw_far(seed: int) -> FarCase:
    """The call that this number stands for."""
    r = random.Random(f"far {seed}")
    q_len = r.choice((1, 2, 3, 5, 7, 13, 19, 37))
    k_len = q_len if r.random() < 0.4 else r.choice((1, 2, 3, 5, 11, 17, 29, 67, 300))
    group = r.choice((1, 1, 2))
    kv_heads = r.choice((1, 1, 2))
    dtype = r.choice(DTYPES)
    gain = OVERFLOW if r.random() < 0.2 and dtype in OVERFLOWING else r.choice(GAINS)
    offsets = OFFSETS if gain in GAINS[:4] else NEAR_OFFSETS
    return FarCase(
        seed,
        batch=r.choice((1, 2)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=q_len,
        k_len=k_len,
        head_dim=r.choice((1, 3, 8, 16)),
        dtype=dtype,
        pattern=_pattern(r, max(q_len, k_len)),
        offsets=tuple(r.choice(offsets) for _ in range(5)) if r.random() < 0.75 else (0.0,),
        hides=r.choice((0.0, 0.0, 0.3)),
        gain=gain,
        above=r.choice((0.0, 0.0, 0.2)) if gain == OVERFLOW else 0.0,
        sink=r.random() < 0.25,
        precise=dtype in ("bfloat16", "float16") and r.random() < 0.5,
        learns=r.random() < 0.6,
        want=_want(r),
        blocks=r.choice(("shipped", "small")),
    )


def _want(r: random.Random) -> tuple[str, ...]:
    if r.random() >= 0.4:
        return ()
    return tuple(name for name in STATISTICS if r.random() < 0.5)


def _pattern(r: random.Random, n: int) -> Node:
    turn = r.random()
    if turn < 0.35:
        return FULL
    return plain_leaf(r, "strided", n) if turn < 0.5 else drawn(r, n, list(LEAVES))


class FarCall(DrawnNumbers):
    """The tensors of a case, and its scores in float64 before they are rounded."""

    def __init__(self, case: FarCase) -> None:
        self.case = case
        self.dtype = getattr(torch, case.dtype)
        self.wide = torch.promote_types(self.dtype, torch.float32)
        self.seed(case.seed)
        at = Places(case.batch, case.heads, case.q_len, case.k_len, (case.k_len - case.q_len,))
        q, k = self._queries_and_keys()
        self.q = q.to(self.dtype)
        self.k = k.to(self.dtype)
        self.bias = self._drawn_bias()
        self.has_bias = case.hides > 0 or case.offsets != (0.0,)
        self.sink = self.numbers(case.heads).to(self.wide) if case.sink else None
        self.pattern = build(case.pattern, at)
        self.grad = self.numbers(*at.shape).to(self.dtype)
        self._weigh(torch.from_numpy(mask_of(case.pattern, at).copy()))

    def _queries_and_keys(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Products of keys that overflow are -inf, 0 or, for the share `above`, inf."""
        case = self.case
        q = self.numbers(case.batch, case.heads, case.q_len, case.head_dim)
        k = self.numbers(case.batch, case.kv_heads, case.k_len, case.head_dim)
        if case.gain != OVERFLOW:
            return case.gain * q, case.gain * k
        size = torch.finfo(self.wide).max ** 0.52
        turn = torch.rand(k.shape[:3], generator=self._drawn, dtype=torch.float64)[..., None]
        signs = torch.where(turn < case.above, 1.0, torch.where(turn < 0.7, -1.0, 0.0))
        return size * (1 + q.abs()), signs * size * (1 + k.abs())

    def _drawn_bias(self) -> torch.Tensor:
        """The offset of each row, and -inf for the share of pairs that it hides, (1, heads, q_len, k_len)."""
        case = self.case
        ends = {LOW: torch.finfo(self.wide).min, HIGH: torch.finfo(self.wide).max}
        offsets = [ends.get(offset, offset) for offset in case.offsets]
        rows = torch.arange(case.q_len) % len(offsets)
        of_rows = torch.tensor(offsets, dtype=torch.float64)[rows]
        bias = of_rows[:, None].expand(1, case.heads, case.q_len, case.k_len).clone()
        hidden = torch.rand(bias.shape, generator=self._drawn) < case.hides
        return bias.masked_fill(hidden, -torch.inf).to(self.wide)

    def _weigh(self, allowed: torch.Tensor) -> None:
        case = self.case
        self.keys = self.k.double().repeat_interleave(case.heads // case.kv_heads, 1)
        self.scale = case.head_dim**-0.5
        q = self.q.double()
        products = self.scale * (q @ self.keys.mT)
        self.sizes = self.scale * (q.abs() @ self.keys.abs().mT)
        bias = self.bias.double() if self.has_bias else torch.zeros_like(self.bias.double())
        most = torch.finfo(self.wide).max
        allowed = allowed.expand(products.shape) & (bias != -torch.inf)
        self.above = (allowed & (products > most)).any(-1)
        self.live = allowed & (products >= -most)
        self.empty = ~self.live.any(-1)

        eps = torch.finfo(self.wide).eps
        size = torch.where(self.live, self.sizes, 0.0).amax(-1)
        self.offset = torch.where(self.live, bias, 0.0).abs().amax(-1)
        are_equal = self.offset >= EQUAL
        unit = eps * ((case.head_dim + 4) * size + 4 * self.offset)
        self.unit = torch.where(are_equal, eps * size, unit)

        # Scores apart from the offset, which is one number in a row and cancels.
        spread = torch.where(are_equal[..., None], torch.zeros_like(products), products)
        scores = spread.masked_fill(~self.live, -torch.inf)
        signed = torch.where(self.live, bias, -torch.inf).amax(-1).masked_fill(self.empty, 0)
        if self.sink is not None:
            sink = self.sink.double().view(1, -1, 1) - signed
            of_rows = sink.expand(scores.shape[:3])[..., None]
            scores = torch.cat([scores, of_rows], -1)
        scores = scores.masked_fill(self.empty[..., None], 0)
        self.weights = scores.softmax(-1)[..., : case.k_len].masked_fill(~self.live, 0)
        self.log_sum_exp = signed + scores.logsumexp(-1)

    def arguments(self, dtype: torch.dtype) -> tuple[Tensors, Options]:
        """What a case is called with: the tensors that may learn, and the options."""
        case = self.case
        units = torch.eye(case.k_len, dtype=dtype)
        leaves = {
            "q": self.q.to(dtype),
            "k": self.k.to(dtype),
            "v": units.expand(case.batch, case.kv_heads, -1, -1),
        }
        if self.has_bias:
            leaves["bias"] = self.bias
        if self.sink is not None:
            leaves["sink"] = self.sink
        for name, x in leaves.items():
            learns = case.learns and (name in ("q", "k", "v") or case.seed % 2 == 0)
            leaves[name] = x.detach().clone().requires_grad_(learns)
        options = {name: leaves[name] for name in ("bias", "sink") if name in leaves}
        return leaves, {"pattern": self.pattern, **options}

    def by_key(self, x: torch.Tensor) -> torch.Tensor:
        """Summed over the query heads that share a key/value head."""
        return x.unflatten(1, (self.case.kv_heads, -1)).sum(2)


def compute_far(call: FarCall, backend: str, dtype: torch.dtype, precise: bool) -> Tensors:
    """The output, statistics, and gradients ("d q") of a case on a backend."""
    case = call.case
    leaves, options = call.arguments(dtype)
    options["precise"] = precise
    with torch.set_grad_enabled(case.learns):
        detail = detail_of(case.blocks, backend, leaves, case.want, options)
    results = {"output": detail.output} | {name: getattr(detail, name) for name in case.want}
    if case.learns:
        learning = {name: x for name, x in leaves.items() if x.requires_grad}
        grad_output = call.grad.to(detail.output.dtype)
        gradients = torch.autograd.grad(detail.output, list(learning.values()), grad_output)
        results |= named(dict(zip(learning, gradients, strict=True)), {})
    return detached(results)


def judge_far(case: FarCase, backends: tuple[str, ...] = NAMES) -> list[CaseVerdict]:
    """The verdict on every backend."""
    with cut(case.blocks):
        call = FarCall(case)
        return [_verdict(call, backend) for backend in backends]


def _verdict(call: FarCall, backend: str) -> CaseVerdict:
    case = call.case
    try:
        results = compute_far(call, backend, call.dtype, case.precise)
        shares = _FarComparison(call, results).shares()
        if case.precise and backend != "auto":  # which may choose another one in float32
            shares |= _shares_of_rounding(call, backend, results)
    except rg.UnsupportedError as refusal:
        return CaseVerdict(backend, _outcome_of(call, backend, str(refusal)), str(refusal))
    except Exception:
        return raised(backend)
    worst = max(shares, key=shares.__getitem__)
    reason = f"{worst} is {shares[worst]:.3g} times its bound"
    return CaseVerdict(backend, "off" if shares[worst] > 1 else "right", reason, shares[worst])


def _outcome_of(call: FarCall, backend: str, refusal: str) -> str:
    """ "refused" if a backend declares the limit by which it refuses a case, else "off"."""
    case = call.case
    if case.precise and "precise=True" in refusal:
        return "off" if backend in ("auto", "reference", "native") else "refused"
    leaves, options = call.arguments(call.dtype)
    with torch.set_grad_enabled(case.learns):
        return "refused" if declares(backend, refusal, leaves, case.want, options) else "off"


def _shares_of_rounding(call: FarCall, backend: str, results: Tensors) -> dict[str, float]:
    """Whether each result is that of the same numbers as float32 tensors, rounded once."""
    shares = {}
    in_float32 = compute_far(call, backend, torch.float32, False)
    for name, x in results.items():
        once = in_float32[name].to(x.dtype)
        equal = (x == once) | (x.isnan() & once.isnan())
        shares[f"{name} of float32, rounded once"] = 0.0 if equal.all() else torch.inf
    return shares


class _FarComparison:
    """The claims about the results of a case."""

    def __init__(self, call: FarCall, results: Tensors) -> None:
        self.call = call
        self.results = {name: x.double() for name, x in results.items()}
        self.weights = self.results["output"]
        eps = torch.finfo(call.wide).eps
        # A factor of all weights of a row stays below that of a log-sum-exp of 1024.
        self.tight = 1250 * eps + 4 * call.case.k_len * eps
        if call.dtype != call.wide:  # half types round weights and results
            self.tight += 6 * torch.finfo(call.dtype).eps
        leeway = (2 * call.unit).clamp_max(80).expm1()[..., None]  # of a weight, relative
        self.room = self.tight + leeway

    def shares(self) -> dict[str, float]:
        """Each claim with its largest error, in bounds."""
        call = self.call
        weights = self.weights
        shares = {}
        if call.above.any():
            is_nan = weights[call.above].isnan().all()
            shares["NaN of a row with an infinite score"] = 0.0 if is_nan else 9e9
            if call.case.gain == OVERFLOW:
                return shares  # a NaN reaches the gradients of the keys, and of rows beside it
        error = (weights - call.weights).abs()
        bound = call.weights * self.room + 1e-30 + self.tight
        shares["weights"] = _most(error / bound)
        shares["masked weights"] = _most(weights.masked_fill(call.live, 0).abs() * 1e30)
        if call.sink is None:
            error = (weights.sum(-1) - (~call.empty).double()).abs()
            shares["sums of weights"] = _most(error / self.tight)
        shares |= self._statistics()
        if call.case.learns:
            shares |= self._gradients()
        return shares

    def _statistics(self) -> dict[str, float]:
        call = self.call
        weights = self.weights
        tight = self.tight
        shares = {}
        if "weights" in self.results:
            statistic = self.results["weights"]
            bound = weights * self.room + tight
            shares["returned weights"] = _most((statistic - weights).abs() / bound)
            error = (statistic.sum(-1) - weights.sum(-1)).abs()
            shares["sums of returned weights"] = _most(error / tight)
        if "received" in self.results:
            rows = weights.sum((-1, -2))
            error = (self.results["received"].sum(-1) - rows).abs()
            shares["sums of received"] = _most(error / (tight * (rows + 1)))
        if "entropy" in self.results:
            expected = -torch.special.xlogy(weights, weights).sum(-1)
            bound = (2 * tight + 2 * self.room[..., 0]) * (1 + expected)
            shares["entropy"] = _most((self.results["entropy"] - expected).abs() / bound)
        if "log_sum_exp" in self.results:
            statistic = self.results["log_sum_exp"]
            of_empty = torch.full_like(statistic, -torch.inf)
            if call.sink is not None:
                of_empty = call.sink.double().view(1, -1, 1).expand(statistic.shape)
            expected = torch.where(call.empty, of_empty, call.log_sum_exp)
            size = torch.where(call.live, call.sizes, 0.0).amax(-1) + call.offset
            bound = call.unit + 4e-6 * size + tight * (1 + expected.abs().nan_to_num(posinf=0))
            error = torch.where(statistic == expected, 0.0, (statistic - expected).abs() / bound)
            shares["log_sum_exp"] = _most(error)
        return shares

    def _gradients(self) -> dict[str, float]:
        call = self.call
        results = self.results
        weights = self.weights
        tight = self.tight
        by_key = call.by_key
        k_len = call.case.k_len
        grad = call.grad.double().masked_fill(call.empty[..., None], 0)
        size_of_grad = grad.abs()
        total = weights.sum(-1)[..., None]
        finfo = torch.finfo(call.dtype)
        least = 8 * finfo.tiny * finfo.eps  # float16 rounds small weights to it
        room = weights * self.room + least
        shares = {}

        sums = by_key((total * grad).sum(2, keepdim=True))
        size = by_key((total * size_of_grad).sum(2, keepdim=True))
        error = (results["d v"].sum(2, keepdim=True) - sums).abs()
        shares["sums of d v"] = _most(error / (tight * size + 1e-30))
        bound = by_key(room.mT @ size_of_grad) + tight * size + 1e-30
        shares["d v"] = _most((results["d v"] - by_key(weights.mT @ grad)).abs() / bound)

        mean = (weights * grad).sum(-1, keepdim=True)
        slope = weights * (grad - mean)
        mean_size = (weights * size_of_grad).sum(-1, keepdim=True)
        spread = weights * (size_of_grad + mean_size)
        error = 3 * spread * self.room + tight * spread.amax(-1, keepdim=True)
        largest_grad = size_of_grad.amax(-1, keepdim=True)
        error = error + least * (largest_grad + mean.abs()) * k_len
        dq = call.scale * slope @ call.keys
        bound = call.scale * error @ call.keys.abs() + 1e-30
        shares["d q"] = _most((results["d q"] - dq).abs() / bound)
        q = call.q.double()
        dk = by_key(call.scale * slope.mT @ q)
        bound = by_key(call.scale * error.mT @ q.abs()) + 1e-30
        shares["d k"] = _most((results["d k"] - dk).abs() / bound)

        if "d bias" in results:
            bound = tight * spread.sum(0) + error.sum(0) + 1e-30
            shares["d bias"] = _most((results["d bias"] - slope.sum(0)).abs() / bound)
            if call.sink is None:
                rows = results["d bias"].sum(-1).abs()
                bound = tight * spread.sum((0, -1)) + 1e-30
                shares["sums of d bias"] = _most(rows / bound)
        return shares


def _most(x: torch.Tensor) -> float:
    """The largest number, infinite if one is NaN."""
    return float(x.nan_to_num(torch.inf, torch.inf).amax()) if x.numel() else 0.0


def simpler_far(case: FarCase) -> Iterator[FarCase]:
    """Cases with one thing less."""
    names = "want sink hides pattern blocks precise learns dtype gain"
    yield from with_default(case, FarCase(case.seed), names)
    if len(case.offsets) > 1:
        for offset in case.offsets:
            yield replace(case, offsets=(offset,))
    if case.heads > 1:
        yield replace(case, heads=1, kv_heads=1)
    yield from halved(case, "batch q_len k_len head_dim")
