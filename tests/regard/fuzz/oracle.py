"""Softmax attention and its statistics in float64, as formulas over all pairs, differentiated by autograd twice."""

from __future__ import annotations

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
    leaves = {name: x.masked_fill(made.hidden[..., None], 0) if name != "q" else x for name, x in leaves.items()}
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
    sink = made.spread_sink(leaves.get("sink")).expand(scores.shape[:3])  # one more key, which has no value
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
    }
    for one in case.want:
        if not isinstance(one, str) and one[0] == "weights_of":
            rows, heads = made.reduced(one)
            values["weights_of"] = weights[:, slice(None) if heads is None else list(heads)][:, :, list(rows)]
    if picked is not None:
        padded = torch.cat([weights, weights.new_zeros(*weights.shape[:3], 1)], -1)  # what is missing weighs nothing
        values["top_keys"] = padded.gather(-1, torch.where(picked < 0, case.k_len, picked))

    first, twice = {}, {}
    if case.learners:
        came = {name: x.double().clone().requires_grad_() for name, x in made.cotangents.items()}
        came = {name: x for name, x in came.items() if name in values}
        learning = {name: leaves[name] for name in case.learners}
        found = _gradients([values[name] for name in came], learning, list(came.values()), second)
        first = found
        if second:
            asked = learning | {"grad_output": came["output"]}
            along = [made.directions[name].double() for name in found]
            twice = _gradients(list(found.values()), asked, along, False)
    detached = {name: x.detach() for name, x in values.items()}
    return Answer(detached, _off(first), _off(twice), scores.detach(), weights.detach(), live)


def _gradients(outputs: list[torch.Tensor], inputs: Tensors, came: list[torch.Tensor], again: bool) -> Tensors:
    pairs = [(x, g) for x, g in zip(outputs, came, strict=True) if x.requires_grad]
    if not pairs:
        return {name: torch.zeros_like(x) for name, x in inputs.items()}
    found: Any = torch.autograd.grad(
        [x for x, _ in pairs], list(inputs.values()), [g for _, g in pairs], allow_unused=True, create_graph=again
    )
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(inputs.items(), found, strict=True)}


def _off(tensors: Tensors) -> Tensors:
    return {name: x.detach() for name, x in tensors.items()}
