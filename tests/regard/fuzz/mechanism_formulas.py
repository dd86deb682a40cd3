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
    from .mechanisms import Made

Tensors = dict[str, torch.Tensor]
TRIALS = 3
Moved = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Kernel:
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
KERNELS: dict[str, Kernel] = {
    "linear": Kernel(lambda case: m.LinearTransformer(), _elu),
    "relu": Kernel(
        lambda case: m.LinearTransformer(Relu(0.1)),
        lambda case, x, moved: moved(x.clamp_min(0) + 0.1),
    ),
    "performer": Kernel(
        lambda case: m.Performer(case.features, seed=case.seed % 5, orthogonal=case.seed % 2 == 0),
        _positive,
    ),
    "features": Kernel(lambda case: _random(case, gated=False), _waves, math.exp(-2 / SIGMA**2)),
    "gated": Kernel(lambda case: _random(case, gated=True), _waves, math.exp(-2 / SIGMA**2)),
}
FOUND = {name: Kernel(**formula) for name, formula in formulas("mechanisms").items()}
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
    found = (1 - 2 ** (-5 - h)).log() if kind == "retention" else -0.5 * 2 ** (-8 / heads * (h + 1))
    return found[None, :, None]


def _recurred(made: Made, leaves: Tensors, moved: Moved) -> torch.Tensor:
    """Each row's own memory, into which the keys that it sees are written one after the other."""
    case, mask = made.case, made.mask
    each = lambda x: x.repeat_interleave(case.heads // x.shape[1], 1)  # noqa: E731
    q, k, v = (each(leaves[name]) for name in ("q", "k", "v"))
    decay = leaves.get("log_decay", _constant_log_decay(case.kind, case.kv_heads))
    decay = (
        moved(each(decay).exp())
        if "log_decay" in leaves or case.kind in ("retention", "lightning")
        else None
    )
    memory = v.new_zeros(case.batch, case.heads, case.q_len, case.head_dim, case.v_dim)
    for t in range(case.k_len):
        key = k[:, :, t, None, :, None]  # (batch, heads, 1, head_dim, 1)
        faded = memory
        if decay is not None:
            now = decay[:, :, min(t, decay.shape[2] - 1)]
            faded = moved(
                (now[:, :, None, :, None] if now.dim() == 3 else now[:, :, None, None, None])
                * memory
            )
        update = v[:, :, t, None, None]
        if case.kind in CORRECTING:
            update = moved(update - moved((key * faded).sum(-2, keepdim=True)))
        if "strength" in leaves:
            update = moved(each(leaves["strength"])[:, :, t, None, None, None] * update)
        memory = torch.where(
            mask[:, :, :, t, None, None], moved(faded + moved(key * update)), memory
        )
    return moved((memory * q[..., None]).sum(-2)) * made.scale


def formula(made: Made, leaves: Tensors, moved: Moved) -> torch.Tensor:
    """The output in float64; every number that is rounded goes through `moved`."""
    case = made.case
    group = case.heads // case.kv_heads
    each = lambda x: x.repeat_interleave(group, 1)  # noqa: E731
    leaves = {name: moved(x) for name, x in leaves.items()}
    if case.kind in RECURRENT:
        return _recurred(made, leaves, moved)
    v = each(leaves["v"])
    mask = made.mask
    if case.kind == "lsh":
        x = leaves["k"]
        unit = moved(x / moved(x.square().sum(-1, keepdim=True).sqrt()))
        return (
            _softmax(
                moved(x[:, :, case.k_len - case.q_len :] @ unit.mT) * made.scale, made.seen, moved
            )
            @ v
        )
    if case.kind == "linformer":
        live = mask[:, ::group, 0, :, None] if case.q_len else mask.any(2)[:, ::group, :, None]
        E, F = (leaves[name][:, :, : case.k_len] for name in ("key_projection", "value_projection"))
        k, v = (
            moved(one @ leaves[name].masked_fill(~live, 0)) for one, name in ((E, "k"), (F, "v"))
        )
        scores = moved(leaves["q"] @ each(k).mT) * made.scale
        return _softmax(scores, mask.any(-1, keepdim=True).expand(scores.shape), moved) @ each(v)
    kernel = KERNELS[case.kind]
    of_q, of_k = (kernel.features(case, leaves[name], moved) for name in ("q", "k"))
    alike = moved(of_q @ each(of_k).mT)
    share = mask.double()
    if case.kind == "gated":
        # keys that a query does not see forget nothing
        gate = each(leaves["gate"])[:, :, None].expand(mask.shape)
        forgets = torch.where(mask, gate, 1)
        later = forgets.flip(-1).cumprod(-1).flip(-1)
        later = torch.cat([later[..., 1:], torch.ones_like(later[..., :1])], -1)
        share = moved(share * later * (1 - each(leaves["gate"])[:, :, None]))
    total = moved((alike * share).sum(-1, keepdim=True))
    if kernel.least:
        total = torch.maximum(total, kernel.least * share.sum(-1, keepdim=True))
    blind = ~mask.any(-1, keepdim=True)
    return moved((alike * share / total.masked_fill(blind, 1)).masked_fill(blind, 0)) @ v


def _softmax(scores: torch.Tensor, seen: torch.Tensor, moved: Moved) -> torch.Tensor:
    blind = ~seen.any(-1, keepdim=True)
    scores = moved(scores)
    return moved(
        scores.masked_fill(~seen, -torch.inf)
        .masked_fill(blind, 0)
        .softmax(-1)
        .masked_fill(blind, 0)
    )


def _told(made: Made, second: bool, moved: Moved) -> Tensors:
    leaves = {name: x.requires_grad_(name in made.learners) for name, x in made.clean().items()}
    output = formula(made, leaves, moved)
    come = made.grad_output.double().clone().requires_grad_()
    found = {"output": output}
    if made.learners:
        learning = {name: leaves[name] for name in made.learners}
        along = {name: made.directions[name].double() for name in learning} if second else None
        found |= named(*differentiated(found, learning, {"output": moved(come)}, along, come))
    return detached(found)


def expected(made: Made, second: bool) -> tuple[Tensors, Tensors]:
    """What a backend should answer, by name, and how far from it rounding may lead."""
    case = made.case
    u = torch.finfo(torch.promote_types(made.dtype, torch.float32)).eps / 2
    # machines that multiply bfloat16 round the weights to it, once: SLACK times this
    if made.dtype == torch.bfloat16:
        u = torch.finfo(torch.bfloat16).eps / 8
    terms = 4 * case.features + case.head_dim + case.k_len + case.q_len + 8
    exact = _told(made, second, lambda x: x)
    known = {name: torch.zeros_like(x) for name, x in exact.items()}
    step = max(u * terms, 1e-13) if made.dtype != torch.bfloat16 else u
    for trial in range(TRIALS):
        drawn = torch.Generator().manual_seed(trial)

        def near_one(x: torch.Tensor, drawn: torch.Generator = drawn) -> torch.Tensor:
            return 1 + step * (2 * torch.rand(x.shape, generator=drawn, dtype=torch.float64) - 1)

        def moved(x: torch.Tensor, near_one: Moved = near_one) -> torch.Tensor:
            found = x * near_one(x)
            if found.requires_grad:  # what comes back through this number is rounded as well
                found.register_hook(lambda gradient: gradient * near_one(gradient))
            return found

        for name, x in _told(made, second, moved).items():
            known[name] = torch.maximum(known[name], (x - exact[name]).abs())
    errors = {
        name: torch.full_like(x, float(x.max()) if x.numel() else 0) for name, x in known.items()
    }
    # differences that cancel exactly in the formula, such as those of a single weight of 1, leave a rounding behind
    tensors = [
        made.grad_output,
        *(x for name, x in made.clean().items() if name in ("q", "k", "v")),
    ]
    left = 8 * u * math.prod(max(1.0, float(x.abs().max())) for x in tensors if x.numel())
    errors = {name: x if name == "output" else x + left for name, x in errors.items()}
    # sums of rounded gradients
    half = torch.finfo(made.dtype).eps if made.dtype.itemsize == 2 else 0.0
    for name, x in exact.items():
        if name != "output" and x.numel():
            errors[name] = errors[name] + half * x.abs().max()
    return exact, errors
