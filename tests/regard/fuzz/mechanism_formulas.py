"""The other mechanisms by the formulas of their papers, in float64, and how far rounding may lead from them.

How far rounding may lead is estimated here instead of followed: the formula is computed again with every number that
is rounded on the way, there and back, moved at random by as much as rounding may move it, and results may be off by
SLACK times the largest movement. The random directions of a mechanism are taken from it: they are numbers of the call
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from regard import mechanisms as m
from regard.mechanisms.draws import directions
from regard.mechanisms.linear import Relu

from .found import formulas
from .oracle import detached, differentiated, named

if TYPE_CHECKING:
    from .mechanisms import MechanismCall

Tensors = dict[str, torch.Tensor]
TRIALS = 3
Moved = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class KernelFormula:
    """A mechanism of features: how a case declares it, φ of vectors in float64, and the least weight there can be."""

    declare: Callable[[Any], Any]
    # a case, vectors, and what marks rounded numbers
    features: Callable[[Any, torch.Tensor, Moved], torch.Tensor]
    least: float = 0.0


def _elu(case: Any, x: torch.Tensor, moved: Moved) -> torch.Tensor:
    return moved(torch.where(x > 0, x + 1, x.clamp_max(0).exp()))


def _positive(case: Any, x: torch.Tensor, moved: Moved) -> torch.Tensor:
    like = torch.empty(0, dtype=torch.float64)
    omega = directions(case.seed % 5, case.features, case.head_dim, case.seed % 2 == 0, like)
    x = x * (case.head_dim**-0.5 if case.scale is None else case.scale) ** 0.5
    return moved(
        (moved(x @ omega.T) - moved(x.square().sum(-1, keepdim=True) / 2)).exp()
        / case.features**0.5
    )


def _waves(case: Any, x: torch.Tensor, moved: Moved) -> torch.Tensor:
    like = torch.empty(0, dtype=torch.float64)
    w = directions(case.seed % 5, 4 * case.features, case.head_dim, False, like) / SIGMA
    nothing = (x == 0).all(-1, keepdim=True)  # has no direction, and stays 0
    length = moved(moved(x.square()).sum(-1, keepdim=True).masked_fill(nothing, 1).sqrt())
    angles = moved(moved(x / length) @ w.T)
    return moved(torch.cat([angles.sin(), angles.cos()], -1) / (4 * case.features) ** 0.5)


def _random(case: Any, gated: bool) -> m.RandomFeature:
    return m.RandomFeature(4 * case.features, gated=gated, seed=case.seed % 5, sigma=SIGMA)


SIGMA = 1.5
KERNELS: dict[str, KernelFormula] = {
    "linear": KernelFormula(lambda case: m.LinearTransformer(), _elu),
    "relu": KernelFormula(
        lambda case: m.LinearTransformer(Relu(0.1)),
        lambda case, x, moved: moved(x.clamp_min(0) + 0.1),
    ),
    "performer": KernelFormula(
        lambda case: m.Performer(case.features, seed=case.seed % 5, orthogonal=case.seed % 2 == 0),
        _positive,
    ),
    "features": KernelFormula(
        lambda case: _random(case, gated=False), _waves, math.exp(-2 / SIGMA**2)
    ),
    "gated": KernelFormula(lambda case: _random(case, gated=True), _waves, math.exp(-2 / SIGMA**2)),
}
FOUND = {name: KernelFormula(**formula) for name, formula in formulas("mechanisms").items()}
KERNELS |= FOUND


RECURRENT: dict[str, Any] = {
    "retention": m.Retention(),
    "lightning": m.Lightning(0.5),
    "ssd": m.SSD(),
    "gated_linear": m.GatedLinear(),
    "delta_rule": m.DeltaRule(),
    "gated_delta": m.GatedDelta(),
    "kimi_delta": m.KimiDelta(),
}
CORRECTING = {"delta_rule", "gated_delta", "kimi_delta"}


def _constant_log_decay(kind: str, heads: int) -> torch.Tensor:
    """RetNet's decays, and half of lightning attention's slopes, (1, heads, 1)."""
    h = torch.arange(heads, dtype=torch.float64)
    if kind == "retention":
        log_decay = (1 - 2 ** (-5 - h)).log()
    else:
        log_decay = -0.5 * 2 ** (-8 / heads * (h + 1))
    return log_decay[None, :, None]


def formula(call: MechanismCall, leaves: Tensors, moved: Moved) -> torch.Tensor:
    """The output in float64; every number that is rounded goes through `moved`."""
    leaves = {name: moved(x) for name, x in leaves.items()}
    kind = call.case.kind
    if kind in RECURRENT:
        return _recurrent(call, leaves, moved)
    if kind == "lsh":
        return _lsh(call, leaves, moved)
    if kind == "linformer":
        return _linformer(call, leaves, moved)
    return _kernel(call, leaves, moved)


def _of_heads(call: MechanismCall, x: torch.Tensor) -> torch.Tensor:
    """Keys, values or gates, repeated for each query head."""
    return x.repeat_interleave(call.case.heads // x.shape[1], 1)


def _recurrent(call: MechanismCall, leaves: Tensors, moved: Moved) -> torch.Tensor:
    """Each row's own memory, into which the keys that it sees are written one after the other."""
    case = call.case
    q = _of_heads(call, leaves["q"])
    k = _of_heads(call, leaves["k"])
    v = _of_heads(call, leaves["v"])
    decay = None  # (batch or 1, heads, k_len or 1) or (..., k_len, head_dim)
    if "log_decay" in leaves or case.kind in ("retention", "lightning"):
        log_decay = leaves.get("log_decay", _constant_log_decay(case.kind, case.kv_heads))
        decay = moved(_of_heads(call, log_decay).exp())
    memory = v.new_zeros(case.batch, case.heads, case.q_len, case.head_dim, case.v_dim)
    for t in range(case.k_len):
        key = k[:, :, t, None, :, None]  # (batch, heads, 1, head_dim, 1)
        faded = memory
        if decay is not None:
            at_t = decay[:, :, min(t, decay.shape[2] - 1)]
            by_dim = at_t if at_t.dim() == 3 else at_t[..., None]
            faded = moved(by_dim[:, :, None, :, None] * memory)
        update = v[:, :, t, None, None]
        if case.kind in CORRECTING:
            update = moved(update - moved((key * faded).sum(-2, keepdim=True)))
        if "strength" in leaves:
            strength = _of_heads(call, leaves["strength"])[:, :, t, None, None, None]
            update = moved(strength * update)
        written = moved(faded + moved(key * update))
        memory = torch.where(call.mask[:, :, :, t, None, None], written, memory)
    return moved((memory * q[..., None]).sum(-2)) * call.scale


def _lsh(call: MechanismCall, leaves: Tensors, moved: Moved) -> torch.Tensor:
    case = call.case
    x = leaves["k"]
    unit = moved(x / moved(x.square().sum(-1, keepdim=True).sqrt()))
    queries = x[:, :, case.k_len - case.q_len :]
    scores = moved(queries @ unit.mT) * call.scale
    return _softmax(scores, call.seen, moved) @ _of_heads(call, leaves["v"])


def _linformer(call: MechanismCall, leaves: Tensors, moved: Moved) -> torch.Tensor:
    case = call.case
    group = case.heads // case.kv_heads
    visible = call.mask[:, :, 0] if case.q_len else call.mask.any(2)
    visible = visible[:, ::group, :, None]

    def project(name: str, projection: str) -> torch.Tensor:
        matrix = leaves[projection][:, :, : case.k_len]
        return _of_heads(call, moved(matrix @ leaves[name].masked_fill(~visible, 0)))

    k = project("k", "key_projection")
    v = project("v", "value_projection")
    scores = moved(leaves["q"] @ k.mT) * call.scale
    return _softmax(scores, call.mask.any(-1, keepdim=True).expand(scores.shape), moved) @ v


def _kernel(call: MechanismCall, leaves: Tensors, moved: Moved) -> torch.Tensor:
    case = call.case
    mask = call.mask
    kernel = KERNELS[case.kind]
    of_q = kernel.features(case, leaves["q"], moved)
    of_k = kernel.features(case, leaves["k"], moved)
    products = moved(of_q @ _of_heads(call, of_k).mT)
    share = mask.double()
    if case.kind == "gated":
        gate = _of_heads(call, leaves["gate"])[:, :, None]
        # Keys that a query does not see forget nothing.
        forgets = torch.where(mask, gate.expand(mask.shape), 1)
        later = forgets.flip(-1).cumprod(-1).flip(-1)
        later = torch.cat([later[..., 1:], torch.ones_like(later[..., :1])], -1)
        share = moved(share * later * (1 - gate))
    total = moved((products * share).sum(-1, keepdim=True))
    if kernel.least:
        total = torch.maximum(total, kernel.least * share.sum(-1, keepdim=True))
    empty = ~mask.any(-1, keepdim=True)
    weights = (products * share / total.masked_fill(empty, 1)).masked_fill(empty, 0)
    return moved(weights) @ _of_heads(call, leaves["v"])


def _softmax(scores: torch.Tensor, seen: torch.Tensor, moved: Moved) -> torch.Tensor:
    empty = ~seen.any(-1, keepdim=True)
    masked = moved(scores).masked_fill(~seen, -torch.inf).masked_fill(empty, 0)
    return moved(masked.softmax(-1).masked_fill(empty, 0))


def _results(call: MechanismCall, second: bool, moved: Moved) -> Tensors:
    leaves = {name: x.requires_grad_(name in call.learners) for name, x in call.clean().items()}
    results = {"output": formula(call, leaves, moved)}
    grad_output = call.grad_output.double().clone().requires_grad_()
    if call.learners:
        learning = {name: leaves[name] for name in call.learners}
        along = {name: call.directions[name].double() for name in learning} if second else None
        incoming = {"output": moved(grad_output)}
        first, twice = differentiated(results, learning, incoming, along, grad_output)
        results |= named(first, twice)
    return detached(results)


def _rounding(step: float, trial: int) -> Moved:
    """A function that moves numbers, and the gradients that come back through them, by up to `step` at random."""
    drawn = torch.Generator().manual_seed(trial)

    def move(x: torch.Tensor) -> torch.Tensor:
        turn = 2 * torch.rand(x.shape, generator=drawn, dtype=torch.float64) - 1
        return x * (1 + step * turn)

    def moved(x: torch.Tensor) -> torch.Tensor:
        rounded = move(x)
        if rounded.requires_grad:
            rounded.register_hook(move)
        return rounded

    return moved


def expected(call: MechanismCall, second: bool) -> tuple[Tensors, Tensors]:
    """What a backend should return, by name, and how far from it rounding may lead."""
    case = call.case
    terms = 4 * case.features + case.head_dim + case.k_len + case.q_len + 8
    u = torch.finfo(torch.promote_types(call.dtype, torch.float32)).eps / 2
    step = max(u * terms, 1e-13)
    if call.dtype == torch.bfloat16:
        # Machines that multiply bfloat16 round the weights to it, once: SLACK times this.
        u = torch.finfo(torch.bfloat16).eps / 8
        step = u
    exact = _results(call, second, lambda x: x)
    largest = dict.fromkeys(exact, 0.0)
    for trial in range(TRIALS):
        for name, x in _results(call, second, _rounding(step, trial)).items():
            if x.numel():
                largest[name] = max(largest[name], float((x - exact[name]).abs().max()))

    # Differences that cancel exactly in the formula, such as those of a single weight of 1, leave a rounding behind.
    clean = call.clean()
    tensors = [call.grad_output, *(clean[name] for name in ("q", "k", "v") if name in clean)]
    left = 8 * u * math.prod(max(1.0, float(x.abs().max())) for x in tensors if x.numel())
    half = torch.finfo(call.dtype).eps if call.dtype.itemsize == 2 else 0.0  # of sums of gradients
    errors = {}
    for name, x in exact.items():
        errors[name] = torch.full_like(x, largest[name])
        if name != "output" and x.numel():
            errors[name] += left + half * x.abs().max()
    return exact, errors
