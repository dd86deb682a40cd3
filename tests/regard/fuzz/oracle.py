"""Softmax attention and its statistics in float64, as formulas over all pairs, differentiated by autograd twice."""

from dataclasses import dataclass
from typing import Any

import torch

from .tensors import Made

Tensors = dict[str, torch.Tensor]


@dataclass
class Answer:
    """values: output and statistics; first: gradients of what learns; second: those of the first ones along
    `made.directions`. scores, weights, live: (batch, heads, q_len, k_len)."""

    values: Tensors
    first: Tensors
    second: Tensors
    scores: torch.Tensor
    weights: torch.Tensor
    live: torch.Tensor


def answer(made: Made, picked: torch.Tensor | None = None, second: bool = False) -> Answer:
    """What a case must give; `picked`: the keys that a backend chose as top_keys, for the gradient of their weights."""
    case = made.case
    leaves = {name: made.given[name].double() for name in ("q", "k", "v")}
    leaves = {
        name: x.masked_fill(made.hidden[..., None], 0) if name != "q" else x
        for name, x in leaves.items()
    }
    if "learned" in made.added:
        leaves["bias"] = made.added["learned"].double()
    if made.sink is not None:
        leaves["sink"] = made.sink
    leaves = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
    group = case.heads // case.kv_heads
    k, v = (leaves[name].repeat_interleave(group, 1) for name in ("k", "v"))

    scores = made.scale * leaves["q"] @ k.mT
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    bias = made.spread(leaves.get("bias"))
    live = torch.from_numpy(made.mask.copy()) & (bias != -torch.inf)
    scores = scores + torch.where(bias == -torch.inf, 0, bias)
    # one more key, which has no value
    sink = made.spread_sink(leaves.get("sink")).expand(scores.shape[:3])
    every = torch.cat([live.expand(scores.shape), (sink > -torch.inf)[..., None]], -1)
    empty_sum = ~every.any(-1)  # nothing to divide by
    masked = torch.cat([scores, sink[..., None]], -1).masked_fill(~every, -torch.inf)
    finite = masked.masked_fill(empty_sum[..., None], 0).logsumexp(-1)
    weights = (masked[..., :-1] - finite[..., None]).exp()
    far = torch.from_numpy(abs(made.at.j - made.at.i)).double()

    values: Tensors = {
        "output": (weights * made.factors()) @ v,
        "log_sum_exp": finite.masked_fill(empty_sum, -torch.inf),
        "entropy": finite * weights.sum(-1) - (weights * scores.masked_fill(~live, 0)).sum(-1),
        "received": weights.sum(2),
        "distance": (weights * far).sum(-1),
        "weights": weights,
        "sink": (sink - finite).exp(),
    }
    for one in case.want:
        if not isinstance(one, str) and one[0] == "weights_of":
            rows, heads = made.reduced(one)
            values["weights_of"] = weights[:, slice(None) if heads is None else list(heads)][
                :, :, list(rows)
            ]
    if picked is not None:
        # what is missing weighs nothing
        padded = torch.cat([weights, weights.new_zeros(*weights.shape[:3], 1)], -1)
        values["top_keys"] = padded.gather(-1, torch.where(picked < 0, case.k_len, picked))

    first: Tensors = {}
    twice: Tensors = {}
    if case.learners:
        came = {
            name: x.double().clone().requires_grad_()
            for name, x in made.cotangents.items()
            if name in values
        }
        learning = {name: leaves[name] for name in case.learners}
        along = {name: made.directions[name].double() for name in learning}
        first, twice = differentiated(values, learning, came, along if second else None)
    return Answer(
        detached(values), detached(first), detached(twice), scores.detach(), weights.detach(), live
    )


def differentiated(
    values: Tensors,
    learning: Tensors,
    came: Tensors,
    along: Tensors | None,
    incoming: torch.Tensor | None = None,
) -> tuple[Tensors, Tensors]:
    """The gradients of what learns, by those that come in, and theirs along the directions, if there are any.

    `incoming` is the leaf of the gradient of the output; it has a second derivative if it needs one.
    """
    first = _gradients(
        [values[name] for name in came],
        list(learning.values()),
        list(came.values()),
        along is not None,
    )
    twice: Tensors = {}
    if along is not None:
        incoming = came["output"] if incoming is None else incoming
        asked = {**learning, "grad_output": incoming} if incoming.requires_grad else learning
        found = _gradients(first, list(asked.values()), [along[name] for name in learning], False)
        twice = dict(zip(asked, found, strict=True))
    return dict(zip(learning, first, strict=True)), twice


def named(first: Tensors, twice: Tensors) -> Tensors:
    """Gradients ("d q") and second ones ("dd q") by their names in a verdict."""
    return {f"d {name}": x for name, x in first.items()} | {
        f"dd {name}": x for name, x in twice.items()
    }


def detached(tensors: Tensors) -> Tensors:
    return {name: x.detach().cpu() for name, x in tensors.items()}


def _gradients(
    outputs: list[Any], inputs: list[Any], came: list[Any], again: bool
) -> list[torch.Tensor]:
    """Gradients of the inputs; zeros where there is no way to one."""
    pairs = [(x, g) for x, g in zip(outputs, came, strict=True) if x.requires_grad]
    if not pairs:
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(
        [x for x, _ in pairs], inputs, [g for _, g in pairs], allow_unused=True, create_graph=again
    )
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
