"""Calls whose rows have scores that are all large, whose scores overflow, and whose results are rounded once.

The values are the unit vectors, so the output of a row is its weights W. From them and the tensors of a call follows
everything else in float64, whatever rounding did to the scores:

    dv = Wᵀ dout     dS = W (dout - rowsum(W dout))     dq = scale dS k     dk = scale dSᵀ q     dbias = dS

Scores are rounded when they are computed, by at most `unit` for a row; weights may be those of any scores within it.
The sums of weights, and of the gradients of all values, have no such leeway.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

import regard as rg
from regard.backends import BACKENDS
from regard.core.call import make_problem
from regard.core.plan import make_plan
from regard.core.result import checked_wants

from .cases import described
from .judging import NAMES, Verdict, cut, limit_of
from .meanings import FULL, LEAVES, Node, Places, build, drawn, mask_of, plain_leaf
from .oracle import Tensors

LOW, HIGH = "the lowest number", "the largest number"
OFFSETS: tuple[Any, ...] = (0.0, 0.0, 1e4, -1e4, 1e6, -1e6, 1e30, -1e30, LOW, HIGH)
NEAR_OFFSETS = OFFSETS[:6]
EQUAL = 1e20  # from this offset on all scores of a row are rounded to one number
GAINS = (1.0, 1.0, 1.0, 8.0, 300.0)
OVERFLOW = "overflow"
DTYPES = ("float64", "float32", "float32", "float32", "bfloat16", "float16")
OVERFLOWING = ("float32", "bfloat16")  # where float64 does not overflow as well
STATISTICS = ("log_sum_exp", "entropy", "received", "weights")


@dataclass(frozen=True)
class Case:
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
        return described(self, Case(0))


def draw_far(seed: int) -> Case:
    """The call that this number stands for."""
    r = random.Random(f"far {seed}")
    q_len = r.choice((1, 2, 3, 5, 7, 13, 19, 37))
    k_len = q_len if r.random() < 0.4 else r.choice((1, 2, 3, 5, 11, 17, 29, 67, 300))
    group = r.choice((1, 1, 2))
    kv_heads = r.choice((1, 1, 2))
    dtype = r.choice(DTYPES)
    gain = OVERFLOW if r.random() < 0.2 and dtype in OVERFLOWING else r.choice(GAINS)
    offsets = OFFSETS if gain in GAINS[:4] else NEAR_OFFSETS
    return Case(
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
        want=tuple(one for one in STATISTICS if r.random() < 0.5) if r.random() < 0.4 else (),
        blocks=r.choice(("shipped", "small")),
    )


def _pattern(r: random.Random, n: int) -> Node:
    turn = r.random()
    if turn < 0.35:
        return FULL
    names = list(LEAVES)
    return plain_leaf(r, "strided", n) if turn < 0.5 else drawn(r, n, names)


class Made:
    """The tensors of a case, and its scores in float64 before they are rounded."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.dtype = getattr(torch, case.dtype)
        self.wide = torch.promote_types(self.dtype, torch.float32)
        drawn = torch.Generator().manual_seed(case.seed % 2**63)
        at = Places(case.batch, case.heads, case.q_len, case.k_len, (case.k_len - case.q_len,))
        numbers = lambda *shape: torch.randn(shape, generator=drawn, dtype=torch.float64)  # noqa: E731
        q = numbers(case.batch, case.heads, case.q_len, case.head_dim)
        k = numbers(case.batch, case.kv_heads, case.k_len, case.head_dim)
        if case.gain == OVERFLOW:
            size = torch.finfo(self.wide).max ** 0.52
            turn = torch.rand(k.shape[:3], generator=drawn, dtype=torch.float64)[..., None]
            signs = torch.where(turn < case.above, 1.0, torch.where(turn < 0.7, -1.0, 0.0))
            q = size * (1 + q.abs())
            k = signs * size * (1 + k.abs())
        else:
            q, k = case.gain * q, case.gain * k
        self.q, self.k = q.to(self.dtype), k.to(self.dtype)
        rows = torch.arange(case.q_len) % len(case.offsets)
        ends = {LOW: torch.finfo(self.wide).min, HIGH: torch.finfo(self.wide).max}
        offsets = torch.tensor([ends.get(one, one) for one in case.offsets], dtype=torch.float64)[
            rows
        ]
        bias = offsets[:, None].expand(1, case.heads, case.q_len, case.k_len).clone()
        hidden = torch.rand(bias.shape, generator=drawn) < case.hides
        self.bias = bias.masked_fill(hidden, -torch.inf).to(self.wide)
        self.has_bias = case.hides > 0 or case.offsets != (0.0,)
        self.sink = numbers(case.heads).to(self.wide) if case.sink else None
        self.pattern = build(case.pattern, at)
        self.grad = numbers(case.batch, case.heads, case.q_len, case.k_len).to(self.dtype)
        self._weigh(torch.from_numpy(mask_of(case.pattern, at).copy()))

    def _weigh(self, allowed: torch.Tensor) -> None:
        case = self.case
        group = case.heads // case.kv_heads
        self.keys = self.k.double().repeat_interleave(group, 1)
        self.scale = case.head_dim**-0.5
        q = self.q.double()
        products = self.scale * (q @ self.keys.mT)
        self.sizes = self.scale * (q.abs() @ self.keys.abs().mT)
        most = torch.finfo(self.wide).max
        bias = self.bias.double() if self.has_bias else torch.zeros_like(self.bias.double())
        allowed = allowed.expand(products.shape) & (bias != -torch.inf)
        self.above = (allowed & (products > most)).any(-1)
        live = allowed & (products >= -most)
        self.live = live
        self.offset = torch.where(live, bias, 0.0).abs().amax(-1)
        eps = torch.finfo(self.wide).eps
        size = torch.where(live, self.sizes, 0.0).amax(-1)
        self.unit = eps * ((case.head_dim + 4) * size + 4 * self.offset)
        # Scores apart from the offset, which is one number in a row and cancels.
        spread = torch.where(self.offset[..., None] >= EQUAL, torch.zeros_like(products), products)
        self.unit = torch.where(self.offset >= EQUAL, eps * size, self.unit)
        masked = spread.masked_fill(~live, -torch.inf)
        self.empty = ~live.any(-1)
        signed = torch.where(live, bias, -torch.inf).amax(-1).masked_fill(self.empty, 0)
        columns = [masked]
        if self.sink is not None:
            sink = self.sink.double().view(1, -1, 1) - signed
            columns.append(sink.expand(masked.shape[:3])[..., None])
        scores = torch.cat(columns, -1).masked_fill(self.empty[..., None], 0)
        self.weights = scores.softmax(-1)[..., : case.k_len].masked_fill(~live, 0)
        self.log_sum_exp = signed + scores.logsumexp(-1)

    def arguments(self, learns: bool, dtype: torch.dtype) -> tuple[Tensors, dict[str, Any]]:
        leaves = {"q": self.q.to(dtype), "k": self.k.to(dtype)}
        units = torch.eye(self.case.k_len, dtype=dtype)
        leaves["v"] = units.expand(self.case.batch, self.case.kv_heads, -1, -1)
        options: dict[str, Any] = {"pattern": self.pattern}
        if self.has_bias:
            leaves["bias"] = self.bias
        if self.sink is not None:
            leaves["sink"] = self.sink
        leaves = {name: x.detach().clone() for name, x in leaves.items()}
        for name in ("q", "k", "v"):
            leaves[name].requires_grad_(learns)
        for name in ("bias", "sink"):
            if name in leaves:
                leaves[name].requires_grad_(learns and self.case.seed % 2 == 0)
                options[name] = leaves[name]
        return leaves, options


def compute_far(made: Made, backend: str, dtype: torch.dtype, precise: bool) -> Tensors:
    """The output, statistics, and gradients ("d q") of a case on a backend."""
    case = made.case
    leaves, options = made.arguments(case.learns, dtype)
    q, k, v = (leaves[name] for name in ("q", "k", "v"))
    with torch.set_grad_enabled(case.learns):
        if case.blocks == "shipped":
            detail = rg.attention_detail(
                q, k, v, backend=backend, want=case.want, precise=precise, **options
            )
        else:
            problem = make_problem(
                q, k, v, want=checked_wants(case.want), precise=precise, **options
            )
            backends = BACKENDS if backend == "auto" else {backend: BACKENDS[backend]}
            plan = make_plan(problem, dict(backends), backend)
            detail = plan.detail(q, k, v, bias=options.get("bias"), sink=options.get("sink"))
    found = {"output": detail.output} | {name: getattr(detail, name) for name in case.want}
    if case.learns:
        learning = {name: x for name, x in leaves.items() if x.requires_grad}
        sent = torch.autograd.grad(
            detail.output, list(learning.values()), made.grad.to(detail.output.dtype)
        )
        found |= {f"d {name}": x for name, x in zip(learning, sent, strict=True)}
    return {name: x.detach() for name, x in found.items()}


def judge_far(case: Case, backends: tuple[str, ...] = NAMES) -> list[Verdict]:
    """The verdict on every backend."""
    with cut(case.blocks):
        made = Made(case)
        return [_verdict(made, backend) for backend in backends]


def _verdict(made: Made, backend: str) -> Verdict:
    case = made.case
    try:
        found = compute_far(made, backend, made.dtype, case.precise)
        shares = dict(_shares(made, found))
        if case.precise and backend != "auto":  # which may choose another one in float32
            wide = compute_far(made, backend, torch.float32, False)
            for name, x in found.items():
                once = wide[name].to(x.dtype)
                equal = (x == once) | (x.isnan() & once.isnan())
                shares[f"{name} of float32, rounded once"] = 0.0 if equal.all() else torch.inf
    except rg.UnsupportedError as refusal:
        return Verdict(backend, _refused(made, backend, str(refusal)), str(refusal))
    except Exception:
        return Verdict(backend, "off", "raised " + "".join(traceback.format_exc(limit=-4)))
    worst = max(shares, key=shares.__getitem__)
    said = f"{worst} is {shares[worst]:.3g} times its bound"
    return Verdict(backend, "off" if shares[worst] > 1 else "right", said, shares[worst])


def _refused(made: Made, backend: str, refusal: str) -> str:
    """ "refused" if a backend declares the limit by which it refuses a case, else "off"."""
    if made.case.precise and refusal.count("precise=True"):
        return "off" if backend in ("auto", "reference", "native") else "refused"
    if backend in ("auto", "reference"):
        return "off"
    leaves, options = made.arguments(made.case.learns, made.dtype)
    with torch.set_grad_enabled(made.case.learns):
        qkv = (leaves[name] for name in ("q", "k", "v"))
        problem = make_problem(*qkv, want=checked_wants(made.case.want), **options)
    limit = limit_of(backend, problem)
    return "refused" if limit is not None and limit in refusal else "off"


def _shares(made: Made, found: Tensors) -> Iterator[tuple[str, float]]:
    """Each claim with its largest error, in bounds."""
    case = made.case
    weights = found["output"].double()
    # A factor of all weights of a row stays below that of a log-sum-exp of 1024; half types round weights and results.
    tight = 1250 * torch.finfo(made.wide).eps + 4 * case.k_len * torch.finfo(made.wide).eps
    tight += 0 if made.dtype == made.wide else 6 * torch.finfo(made.dtype).eps
    if made.above.any():
        yield (
            "NaN of a row with an infinite score",
            0.0 if weights[made.above].isnan().all() else 9e9,
        )
    if case.gain == OVERFLOW and made.above.any():
        return  # a NaN reaches the gradients of the keys, and of rows beside it
    leeway = (2 * made.unit).clamp_max(80).expm1()[..., None]  # of a weight, relative
    room = tight + leeway
    yield "weights", _most((weights - made.weights).abs() / (made.weights * room + 1e-30 + tight))
    yield "masked weights", _most(weights.masked_fill(made.live, 0).abs() * 1e30)
    total = weights.sum(-1)
    if made.sink is None:
        yield "sums of weights", _most((total - (~made.empty).double()).abs() / tight)
    yield from _statistics(made, found, weights, room, tight)
    if not case.learns:
        return
    grad = made.grad.double().masked_fill(made.empty[..., None], 0)
    group = case.heads // case.kv_heads
    by_key = lambda x: x.unflatten(1, (case.kv_heads, group)).sum(2)  # noqa: E731
    sums = by_key((total[..., None] * grad).sum(2, keepdim=True))
    size = by_key((total[..., None] * grad.abs()).sum(2, keepdim=True))
    yield (
        "sums of d v",
        _most((found["d v"].double().sum(2, keepdim=True) - sums).abs() / (tight * size + 1e-30)),
    )
    # float16 rounds small weights to it
    least = 8 * torch.finfo(made.dtype).tiny * torch.finfo(made.dtype).eps
    keep = weights * room + least
    error, dv = by_key(keep.mT @ grad.abs()), by_key(weights.mT @ grad)
    yield "d v", _most((found["d v"].double() - dv).abs() / (error + tight * size + 1e-30))
    mean = (weights * grad).sum(-1, keepdim=True)
    slope = weights * (grad - mean)
    spread = weights * (grad.abs() + (weights * grad.abs()).sum(-1, keepdim=True))
    error = 3 * spread * room + tight * spread.amax(-1, keepdim=True)
    error = error + least * (grad.abs().amax(-1, keepdim=True) + mean.abs()) * case.k_len
    dq = made.scale * slope @ made.keys
    of_q = made.scale * error @ made.keys.abs()
    dk = by_key(made.scale * slope.mT @ made.q.double())
    of_k = by_key(made.scale * error.mT @ made.q.double().abs())
    yield "d q", _most((found["d q"].double() - dq).abs() / (of_q + 1e-30))
    yield "d k", _most((found["d k"].double() - dk).abs() / (of_k + 1e-30))
    if "d bias" in found:
        size = tight * spread.sum(0) + error.sum(0)
        yield "d bias", _most((found["d bias"].double() - slope.sum(0)).abs() / (size + 1e-30))
        if made.sink is None:
            rows = found["d bias"].double().sum(-1)
            yield "sums of d bias", _most(rows.abs() / (tight * spread.sum((0, -1)) + 1e-30))


def _statistics(
    made: Made, found: Tensors, weights: torch.Tensor, room: torch.Tensor, tight: float
) -> Iterator[tuple[str, float]]:
    if "weights" in found:
        own = found["weights"].double()
        yield "told weights", _most((own - weights).abs() / (weights * room + tight))
        yield "sums of told weights", _most((own.sum(-1) - weights.sum(-1)).abs() / tight)
    if "received" in found:
        own, rows = found["received"].double().sum(-1), weights.sum((-1, -2))
        yield "sums of received", _most((own - rows).abs() / (tight * (rows + 1)))
    if "entropy" in found:
        own = found["entropy"].double()
        expected = -torch.special.xlogy(weights, weights).sum(-1)
        allowed = (2 * tight + 2 * room[..., 0]) * (1 + expected)
        yield "entropy", _most((own - expected).abs() / allowed)
    if "log_sum_exp" in found:
        own = found["log_sum_exp"].double()
        of_empty = torch.full_like(own, -torch.inf)
        if made.sink is not None:
            of_empty = made.sink.double().view(1, -1, 1).expand(own.shape)
        expected = torch.where(made.empty, of_empty, made.log_sum_exp)
        size = torch.where(made.live, made.sizes, 0.0).amax(-1) + made.offset
        bound = made.unit + 4e-6 * size + tight * (1 + expected.abs().nan_to_num(posinf=0))
        gap = torch.where(own == expected, 0.0, (own - expected).abs() / bound)
        yield "log_sum_exp", _most(gap)


def _most(x: torch.Tensor) -> float:
    """The largest number, infinite if one is NaN."""
    return float(x.nan_to_num(torch.inf, torch.inf).amax()) if x.numel() else 0.0


def simpler_far(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    plain = Case(case.seed)
    for name in (
        "want",
        "sink",
        "hides",
        "pattern",
        "blocks",
        "precise",
        "learns",
        "dtype",
        "gain",
    ):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    for offset in case.offsets if len(case.offsets) > 1 else ():
        yield replace(case, offsets=(offset,))
    if case.heads > 1:
        yield replace(case, heads=1, kv_heads=1)
    for name in ("batch", "q_len", "k_len", "head_dim"):
        if getattr(case, name) > 1:
            yield replace(case, **{name: getattr(case, name) // 2})
