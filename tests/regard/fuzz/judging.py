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
from regard.core.plan import make_plan
from regard.core.problem import Problem
from regard.core.result import checked_wants

from .bounds import SLACK, errors
from .cases import Case
from .oracle import Answer, Tensors, answer, detached, differentiated, named
from .tensors import Made, moved


def limit_of(backend: str, problem: Problem) -> str | None:
    """The reason with which a backend must refuse a problem by its declared limits, or None if it must compute it."""
    reasons = (limit(problem.projected) for limit in BACKENDS[backend].limits)
    return next((reason for reason in reasons if reason is not None), None)


def takes_softmax(
    patterns: tuple[str, ...], learns: bool = False, device: str = "cpu"
) -> list[str]:
    """The backends that compute a small call of softmax with one of these patterns, by their declared limits."""
    one = torch.zeros(1, 1, 4, 2, requires_grad=learns)
    calls = [
        replace(make_problem(one, one, one, pattern=pattern), device=device) for pattern in patterns
    ]
    return [name for name in BACKENDS if any(limit_of(name, call) is None for call in calls)]


# for each backend of softmax one that it computes
EACH = (
    "causal",
    "strided(2)",
    "causal_window(3)",
)
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
    (decode, "FEWEST", 3),
    (decode, "SPLIT", 2),
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
class Verdict:
    """What became of a case on a backend: "right", "refused" or "off", and `share`, its largest error in bounds."""

    backend: str
    outcome: str
    reason: str = ""
    share: float = 0.0


def judge(case: Case, backends: tuple[str, ...] = NAMES, device: str = "cpu") -> list[Verdict]:
    """The verdict on every backend; what it is compared with is computed on the CPU."""
    with cut(case.blocks):
        made = Made(case, device)
        expected = _Expected(made)
        # others round what a cache keeps to the dtype of the queries
        if case.stored and made.dtype.itemsize == 2:
            backends = tuple(name for name in backends if name in ("decode", "native"))
        return [_verdict(made, expected, backend) for backend in backends]


def _verdict(made: Made, expected: _Expected, backend: str) -> Verdict:
    second = made.case.second and bool(made.case.learners) and (SECOND is None or backend in SECOND)
    try:
        found = _compute(made, backend, second, bad=bool(made.case.hidden))
    except rg.UnsupportedError as refusal:
        # the reference computes everything
        outcome = "refused" if _declared(made, backend, str(refusal)) else "off"
        return Verdict(backend, outcome, str(refusal))
    except Exception:
        return Verdict(backend, "off", "raised " + "".join(traceback.format_exc(limit=-4)))
    share = 0.0
    wrong = []
    for reason, one in expected.compare(found, second):
        share = max(share, one)
        wrong += [reason] if one > 1 else []
    if not wrong and made.case.hidden and made.case.seed % 3 == 0 and made.hidden.any():
        clean = _compute(made, backend, second, bad=False)
        wrong = [
            f"{name} changed with a hidden {made.case.hidden}"
            for name in found
            if not _same(found[name], clean[name], bits=backend == "native")
        ]
    return Verdict(backend, "off" if wrong else "right", "; ".join(wrong), share)


def _same(one: torch.Tensor, other: torch.Tensor, bits: bool) -> bool:
    """Whether two results are equal in every bit, or, without `bits`, up to rounding.

    PyTorch's products round by where their operands lie in memory, and hidden keys that are not finite are copied.
    """
    equal = (one == other) | (one.isnan() & other.isnan())
    if bits or not one.is_floating_point():
        return bool(equal.all())
    rounding = (
        16 * torch.finfo(one.dtype).eps * other[other.isfinite()].abs().amax()
        if other.isfinite().any()
        else 0
    )
    return bool((equal | ((one - other).abs() <= rounding)).all())


def _compute(made: Made, backend: str, second: bool, bad: bool) -> Tensors:
    """Everything that a backend tells: values, gradients ("d q") and second ones ("dd q")."""
    case = made.case
    leaves, options = _arguments(made, bad)
    with torch.set_grad_enabled(bool(case.learners)):
        found = _called(case, backend, leaves, made.wants(), options)
    if not case.learners:
        return detached(found)
    come = {name: moved(x, made.device) for name, x in made.cotangents.items()}
    # Without a graph of its own the gradient that comes in is a constant: where fast paths may forget the second ones.
    come["output"] = come["output"].detach().requires_grad_(second and case.seed % 2 == 0)
    learning = {name: leaves[name] for name in case.learners}
    directions = (
        {name: x.to(made.device) for name, x in made.directions.items()} if second else None
    )
    return detached(found | named(*differentiated(found, learning, come, directions)))


def _arguments(made: Made, bad: bool) -> tuple[Tensors, dict[str, Any]]:
    """What a case is called with: the tensors that may learn, and the options."""
    case = made.case
    leaves = {name: made.tensor(name, bad) for name in ("q", "k", "v")}
    bias, leaf = made.bias()
    if leaf is not None:
        leaves["bias"] = leaf
    if "sink" in case.learners:
        leaves["sink"] = made.given_sink()
    return leaves, {
        "pattern": made.pattern(),
        "bias": bias,
        "softcap": case.softcap,
        "scale": case.scale,
        "dropout": case.dropout,
        "dropout_seed": case.dropout_seed,
        "q_start": made.q_start(),
        "sink": leaves.get("sink", made.given_sink()),
    }


def _declared(made: Made, backend: str, refusal: str) -> bool:
    """Whether a backend declares the limit by which it refuses a case."""
    if backend in ("auto", "reference"):
        return False
    leaves, options = _arguments(made, bad=False)
    del options["dropout_seed"]
    with torch.set_grad_enabled(bool(made.case.learners)):
        problem = make_problem(
            *(leaves[name] for name in "qkv"), want=checked_wants(made.wants()), **options
        )
    limit = limit_of(backend, problem)
    return limit is not None and limit in refusal


def _called(
    case: Case, backend: str, leaves: Tensors, wants: Any, options: dict[str, Any]
) -> Tensors:
    """The call as a user writes it; blocks of other sizes are planned anew, since plans are kept."""
    q, k, v = (leaves[name] for name in ("q", "k", "v"))
    if case.blocks == "shipped" and not wants:
        return {"output": rg.attention(q, k, v, backend=backend, **options)}
    if case.blocks == "shipped":
        detail = rg.attention_detail(q, k, v, backend=backend, want=wants, **options)
    else:
        seed = options.pop("dropout_seed")
        problem = make_problem(q, k, v, want=checked_wants(wants), **options)
        backends = BACKENDS if backend == "auto" else {backend: BACKENDS[backend]}
        start = options["q_start"] if isinstance(options["q_start"], torch.Tensor) else None
        plan = make_plan(problem, dict(backends), backend)
        detail = plan.detail(
            q, k, v, bias=options["bias"], q_start=start, dropout_seed=seed, sink=options["sink"]
        )
    found = {"output": detail.output}
    for one in case.want:
        if isinstance(one, str):
            found[one] = getattr(detail, one)
        elif one[0] == "weights_of":
            found["weights_of"] = detail.chosen_weights
        else:
            found |= {"top_keys": detail.top_keys.weights, "indices": detail.top_keys.indices}
    return found


class _Expected:
    """The oracle's answers and their bounds; another pair where a backend picked other top keys."""

    def __init__(self, made: Made) -> None:
        self.made = made
        self._known: list[tuple[Any, bool, Answer, Tensors]] = []

    def of(self, picked: torch.Tensor | None, second: bool) -> tuple[Answer, Tensors]:
        for other, twice, found, bounds in self._known:
            if twice >= second and (
                picked is None if other is None else picked is not None and picked.equal(other)
            ):
                return found, bounds
        found = answer(self.made, picked, second)
        bounds = errors(self.made, found, picked, second)
        self._known.append((picked, second, found, bounds))
        return found, bounds

    def compare(self, found: Tensors, second: bool) -> Iterator[tuple[str, float]]:
        """Each result with its largest error, in bounds."""
        picked = found.pop("indices", None)
        if picked is not None:
            reason = self._reason_against(picked, found["top_keys"])
            if reason:
                yield reason, torch.inf
                return
        known, bounds = self.of(picked, second)
        expected = known.values | named(known.first, known.second)
        if picked is not None:
            bounds = bounds | {"top_keys": self._at(bounds["weights"], picked)}
        for name, x in found.items():
            yield share_of(name, x, expected[name], bounds[name], self._dtype(name))

    def _dtype(self, name: str) -> torch.dtype:
        made = self.made
        kind = name.split()[-1]
        if name != "sink" and kind in ("output", "q", "k", "v", "sink", "grad_output"):
            return made.dtype
        if kind == "bias":
            return made.added["learned"].dtype
        return torch.promote_types(made.dtype, torch.float32)

    def _at(self, x: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
        padded = torch.cat([x, x.new_zeros(*x.shape[:3], 1)], -1)
        return padded.gather(-1, torch.where(picked < 0, x.shape[-1], picked))

    def _reason_against(self, picked: torch.Tensor, weights: torch.Tensor) -> str:
        """Top keys are distinct allowed keys, as many as there are, whose weights are the largest up to rounding."""
        known, bounds = self.of(None, False)
        count = picked.shape[-1]
        live = known.live
        there = live.sum(-1, keepdim=True).clamp_max(count)
        if not torch.equal((picked >= 0).sum(-1, keepdim=True), there):
            return "top_keys: another number of keys than are allowed"
        if not bool(self._at(live.double(), picked).where(picked >= 0, torch.ones(())).all()):
            return "top_keys: a key that is hidden"
        ordered = picked.sort(-1).values
        if bool(((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any()):
            return "top_keys: a key twice"
        largest = known.weights.sort(-1, descending=True).values[..., :count]
        mine = (
            self._at(known.weights, picked)[..., : largest.shape[-1]]
            .sort(-1, descending=True)
            .values
        )
        room = 2 * SLACK * bounds["weights"].amax(-1, keepdim=True) if largest.numel() else 0
        if bool((largest - mine > room + 1e-30).any()):
            return "top_keys: a key with a larger weight was passed over"
        if bool((weights[..., 1:].double() - weights[..., :-1].double() > room + 1e-30).any()):
            return "top_keys: weights do not fall"
        return ""


def share_of(
    name: str, x: torch.Tensor, expected: torch.Tensor, error: torch.Tensor, dtype: torch.dtype
) -> Any:
    """The largest error over its bound; infinite for another shape, dtype or a number that is not finite."""
    if x.shape != expected.shape or x.dtype != dtype:
        return (
            f"{name} is {tuple(x.shape)} {x.dtype} instead of {tuple(expected.shape)} {dtype}",
            torch.inf,
        )
    kind = torch.finfo(dtype)
    wide = torch.finfo(torch.promote_types(dtype, torch.float32))
    bound = SLACK * error + kind.eps * torch.where(expected.isinf(), 0, expected).abs()
    bound = bound + kind.tiny * kind.eps + 1e8 * wide.tiny
    got = x.double()
    # of float16: infinity is right there
    beyond = ~expected.isinf() & (expected.abs() + bound >= kind.max)
    gap = torch.where((got == expected) | beyond, 0, (got - expected).abs() / bound).nan_to_num(
        torch.inf, torch.inf
    )
    if not gap.numel():
        return name, 0.0
    worst = int(gap.argmax())
    share = float(gap.flatten()[worst])
    place = torch.unravel_index(torch.tensor(worst), gap.shape)
    said = f"{name}[{', '.join(str(int(at)) for at in place)}] is {got.flatten()[worst]:.9g} instead of "
    return f"{said}{expected.flatten()[worst]:.9g}, {share:.3g} times its bound", share
