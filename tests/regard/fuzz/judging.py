"""A case on every backend: what was refused, what was computed, what is off."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

import regard as rg
from regard.backends import BACKENDS, composed, decode, dropout
from regard.backends.scores import blocking
from regard.core.call import make_problem
from regard.core.plan import AttentionDetail, make_plan
from regard.core.problem import Problem
from regard.core.result import checked_wants

from .bounds import SLACK, errors
from .cases import SoftmaxCase, name_of
from .oracle import Expected, Tensors, at_keys, detached, differentiated, expect, named
from .tensors import SoftmaxCall, moved

Options = dict[str, Any]


def limit_of(backend: str, problem: Problem) -> str | None:
    """The reason with which a backend must refuse a problem by its declared limits, or None if it must compute it."""
    for limit in BACKENDS[backend].limits:
        reason = limit(problem.projected)
        if reason is not None:
            return reason
    return None


def takes_softmax(
    patterns: tuple[str, ...], learns: bool = False, device: str = "cpu"
) -> list[str]:
    """The backends that compute a small call of softmax with one of these patterns, by their declared limits."""
    x = torch.zeros(1, 1, 4, 2, requires_grad=learns)
    backends = set()
    for pattern in patterns:
        problem = replace(make_problem(x, x, x, pattern=pattern), device=device)
        backends |= {name for name in BACKENDS if limit_of(name, problem) is None}
    return [name for name in BACKENDS if name in backends]


EACH = ("causal", "strided(2)", "causal_window(3)")  # every backend of softmax computes one of them
NAMES = ("auto", *takes_softmax(EACH))
# Blocks of a few rows and keys, so that short texts pass the borders of blocks as long ones do.
SMALL: tuple[tuple[Any, str, Any], ...] = (
    (composed, "ROWS", {3: (1.0, 1.0)}),
    (composed, "MASK_LIMIT", 64),
    (blocking, "ROWS", 6),
    (blocking, "PAIRS", 96),
    (blocking, "ALIGNED", 4),
    (dropout, "_CHUNK", 24),
    (decode, "WORKSPACE", 16),
    (decode, "LEAST_KEYS_OF_CHUNK", 3),
    (decode, "LEAST_KEYS_OF_THREAD", 2),
    (decode, "PART_ROWS", 1),
)
# The backends that are asked for second derivatives; None for all of them.
SECOND: tuple[str, ...] | None = None


@contextmanager
def cut(blocks: str) -> Iterator[None]:
    """Sizes of blocks as a case has them, put back afterwards."""
    sizes = SMALL if blocks == "small" else ()
    before = [(module, name, getattr(module, name)) for module, name, _ in sizes]
    try:
        for module, name, size in sizes:
            setattr(module, name, size)
        yield
    finally:
        for module, name, size in before:
            setattr(module, name, size)


@dataclass(frozen=True)
class CaseVerdict:
    """What became of a case on a backend: "right", "refused" or "off", and `share`, its largest error in bounds."""

    backend: str
    outcome: str
    reason: str = ""
    share: float = 0.0


def raised(backend: str) -> CaseVerdict:
    """The verdict while an exception is handled."""
    return CaseVerdict(backend, "off", "raised " + traceback.format_exc(limit=-4))


def declares(backend: str, refusal: str, leaves: Tensors, want: Any, options: Options) -> bool:
    """Whether a backend declares the limit by which it refuses a call; the reference computes everything."""
    if backend in ("auto", "reference"):
        return False
    limit = limit_of(backend, _problem_of(leaves, want, options))
    return limit is not None and limit in refusal


def _problem_of(leaves: Tensors, want: Any, options: Options) -> Problem:
    options = {name: value for name, value in options.items() if name != "dropout_seed"}
    q, k, v = leaves["q"], leaves["k"], leaves["v"]
    return make_problem(q, k, v, want=checked_wants(want), **options)


def planned(backend: str, leaves: Tensors, want: Any, options: Options) -> AttentionDetail:
    """The result of `attention_detail`, planned in each call, so that sizes of blocks may change between two."""
    backends = dict(BACKENDS) if backend == "auto" else {backend: BACKENDS[backend]}
    plan = make_plan(_problem_of(leaves, want, options), backends, backend)
    tensors = {name: options.get(name) for name in ("bias", "sink", "parameters", "dropout_seed")}
    start = options.get("q_start")
    tensors["q_start"] = start if isinstance(start, torch.Tensor) else None
    return plan.detail(leaves["q"], leaves["k"], leaves["v"], **tensors)


def detail_of(
    blocks: str, backend: str, leaves: Tensors, want: Any, options: Options
) -> AttentionDetail:
    """The call as a user writes it; plans with blocks of another size are not kept."""
    if blocks != "shipped":
        return planned(backend, leaves, want, options)
    q, k, v = leaves["q"], leaves["k"], leaves["v"]
    return rg.attention_detail(q, k, v, backend=backend, want=want, **options)


def judge(
    case: SoftmaxCase, backends: tuple[str, ...] = NAMES, device: str = "cpu"
) -> list[CaseVerdict]:
    """The verdict on every backend; what it is compared with is computed on the CPU."""
    with cut(case.blocks):
        call = SoftmaxCall(case, device)
        expected = _Expected(call)
        # The other backends round what a cache keeps to the dtype of the queries.
        if case.stored and call.dtype.itemsize == 2:
            backends = tuple(name for name in backends if name in ("decode", "native"))
        return [_verdict(call, expected, backend) for backend in backends]


def _verdict(call: SoftmaxCall, expected: _Expected, backend: str) -> CaseVerdict:
    case = call.case
    second = case.second and bool(case.learners) and (SECOND is None or backend in SECOND)
    try:
        results = _compute(call, backend, second, bad=bool(case.hidden))
    except rg.UnsupportedError as refusal:
        leaves, options = _arguments(call, bad=False)
        with torch.set_grad_enabled(bool(case.learners)):
            declared = declares(backend, str(refusal), leaves, call.wants(), options)
        return CaseVerdict(backend, "refused" if declared else "off", str(refusal))
    except Exception:
        return raised(backend)

    share = 0.0
    wrong = []
    for reason, share_of_result in expected.compare(results, second):
        share = max(share, share_of_result)
        if share_of_result > 1:
            wrong.append(reason)
    if not wrong and case.hidden and case.seed % 3 == 0 and call.hidden.any():
        clean = _compute(call, backend, second, bad=False)
        for name, x in results.items():
            if not _same(x, clean[name], bits=backend == "native"):
                wrong.append(f"{name} changed with a hidden {case.hidden}")
    return CaseVerdict(backend, "off" if wrong else "right", "; ".join(wrong), share)


def _same(x: torch.Tensor, y: torch.Tensor, bits: bool) -> bool:
    """Whether two results are equal in every bit, or, without `bits`, up to rounding.

    PyTorch's products round by where their operands lie in memory, and hidden keys that are not finite are copied.
    """
    equal = (x == y) | (x.isnan() & y.isnan())
    if bits or not x.is_floating_point():
        return bool(equal.all())
    finite = y[y.isfinite()]
    rounding = 16 * torch.finfo(x.dtype).eps * finite.abs().amax() if len(finite) else 0
    return bool((equal | ((x - y).abs() <= rounding)).all())


def _compute(call: SoftmaxCall, backend: str, second: bool, bad: bool) -> Tensors:
    """Everything that a backend returns: values, gradients ("d q") and second ones ("dd q")."""
    case = call.case
    leaves, options = _arguments(call, bad)
    with torch.set_grad_enabled(bool(case.learners)):
        results = _values(call, backend, leaves, options)
    if not case.learners:
        return detached(results)

    gradients = {name: moved(x, call.device) for name, x in call.cotangents.items()}
    # Without a graph of its own the gradient that comes in is a constant: where fast paths may forget the second ones.
    constant = not second or case.seed % 2
    gradients["output"] = gradients["output"].detach().requires_grad_(not constant)
    learning = {name: leaves[name] for name in case.learners}
    directions = None
    if second:
        directions = {name: x.to(call.device) for name, x in call.directions.items()}
    first, twice = differentiated(results, learning, gradients, directions)
    return detached(results | named(first, twice))


def _arguments(call: SoftmaxCall, bad: bool) -> tuple[Tensors, Options]:
    """What a case is called with: the tensors that may learn, and the options."""
    case = call.case
    leaves = {name: call.tensor(name, bad) for name in ("q", "k", "v")}
    bias, leaf = call.bias()
    if leaf is not None:
        leaves["bias"] = leaf
    sink = call.given_sink()
    if "sink" in case.learners:
        leaves["sink"] = sink
    return leaves, {
        "pattern": call.pattern(),
        "bias": bias,
        "softcap": case.softcap,
        "scale": case.scale,
        "dropout": case.dropout,
        "dropout_seed": case.dropout_seed,
        "q_start": call.q_start(),
        "sink": sink,
    }


def _values(call: SoftmaxCall, backend: str, leaves: Tensors, options: Options) -> Tensors:
    """The output and the statistics."""
    case = call.case
    want = call.wants()
    if case.blocks == "shipped" and not want:
        q, k, v = leaves["q"], leaves["k"], leaves["v"]
        return {"output": rg.attention(q, k, v, backend=backend, **options)}
    detail = detail_of(case.blocks, backend, leaves, want, options)
    values = {"output": detail.output}
    for statistic in case.want:
        name = name_of(statistic)
        if name == "weights_of":
            values["weights_of"] = detail.chosen_weights
        elif name == "top_keys":
            values["top_keys"] = detail.top_keys.weights
            values["indices"] = detail.top_keys.indices
        else:
            values[name] = getattr(detail, name)
    return values


@dataclass
class _Known:
    """The oracle's results and their bounds, for the top keys that a backend chose."""

    picked: torch.Tensor | None
    second: bool
    expected: Expected
    bounds: Tensors

    def serves(self, picked: torch.Tensor | None, second: bool) -> bool:
        if second and not self.second:
            return False
        if picked is None or self.picked is None:
            return picked is self.picked
        return picked.equal(self.picked)


class _Expected:
    """The oracle's results and their bounds; another pair where a backend picked other top keys."""

    def __init__(self, call: SoftmaxCall) -> None:
        self.call = call
        self._known: list[_Known] = []

    def of(self, picked: torch.Tensor | None, second: bool) -> _Known:
        for known in self._known:
            if known.serves(picked, second):
                return known
        expected = expect(self.call, picked, second)
        bounds = errors(self.call, expected, picked, second)
        self._known.append(_Known(picked, second, expected, bounds))
        return self._known[-1]

    def compare(self, results: Tensors, second: bool) -> Iterator[tuple[str, float]]:
        """Each result with its largest error, in bounds."""
        picked = results.pop("indices", None)
        if picked is not None:
            reason = self._reason_against(picked, results["top_keys"])
            if reason:
                yield reason, torch.inf
                return
        known = self.of(picked, second)
        expected = known.expected.values | named(known.expected.first, known.expected.second)
        bounds = dict(known.bounds)
        if picked is not None:
            bounds["top_keys"] = at_keys(bounds["weights"], picked)
        for name, x in results.items():
            yield share_of(name, x, expected[name], bounds[name], self._dtype(name))

    def _dtype(self, name: str) -> torch.dtype:
        call = self.call
        kind = name.split()[-1]
        if name != "sink" and kind in ("output", "q", "k", "v", "sink", "grad_output"):
            return call.dtype
        if kind == "bias":
            return call.added["learned"].dtype
        return torch.promote_types(call.dtype, torch.float32)

    def _reason_against(self, picked: torch.Tensor, weights: torch.Tensor) -> str:
        """Top keys are distinct allowed keys, as many as there are, whose weights are the largest up to rounding."""
        known = self.of(None, False)
        live = known.expected.live
        count = picked.shape[-1]
        chosen = picked >= 0
        allowed = live.sum(-1, keepdim=True).clamp_max(count)
        if not torch.equal(chosen.sum(-1, keepdim=True), allowed):
            return "top_keys: another number of keys than are allowed"
        if not bool(at_keys(live.double(), picked).where(chosen, torch.ones(())).all()):
            return "top_keys: a key that is hidden"
        ordered = picked.sort(-1).values
        if bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any()):
            return "top_keys: a key twice"

        largest = known.expected.weights.sort(-1, descending=True).values[..., :count]
        of_picked = at_keys(known.expected.weights, picked)[..., : largest.shape[-1]]
        of_picked = of_picked.sort(-1, descending=True).values
        error = 2 * SLACK * known.bounds["weights"].amax(-1, keepdim=True) if largest.numel() else 0
        if bool((largest - of_picked > error + 1e-30).any()):
            return "top_keys: a key with a larger weight was passed over"
        if bool((weights[..., 1:].double() - weights[..., :-1].double() > error + 1e-30).any()):
            return "top_keys: weights do not fall"
        return ""


def share_of(
    name: str, x: torch.Tensor, expected: torch.Tensor, error: torch.Tensor, dtype: torch.dtype
) -> Any:
    """The largest error over its bound; infinite for another shape, dtype or a number that is not finite."""
    if x.shape != expected.shape or x.dtype != dtype:
        wanted = f"{tuple(expected.shape)} {dtype}"
        return f"{name} is {tuple(x.shape)} {x.dtype} instead of {wanted}", torch.inf
    kind = torch.finfo(dtype)
    wide = torch.finfo(torch.promote_types(dtype, torch.float32))
    bound = SLACK * error + kind.eps * torch.where(expected.isinf(), 0, expected).abs()
    bound = bound + kind.tiny * kind.eps + 1e8 * wide.tiny
    result = x.double()
    # Of float16: infinity is right where a number is beyond its range.
    beyond = ~expected.isinf() & (expected.abs() + bound >= kind.max)
    error_in_bounds = (result - expected).abs() / bound
    gap = torch.where((result == expected) | beyond, 0, error_in_bounds)
    gap = gap.nan_to_num(torch.inf, torch.inf)
    if not gap.numel():
        return name, 0.0
    worst = int(gap.argmax())
    share = float(gap.flatten()[worst])
    index = [int(axis) for axis in torch.unravel_index(torch.tensor(worst), gap.shape)]
    values = f"{result.flatten()[worst]:.9g} instead of {expected.flatten()[worst]:.9g}"
    return f"{name}{index} is {values}, {share:.3g} times its bound", share
