"""Softmax attention and its statistics in float64, as formulas over all pairs, differentiated by autograd twice."""

from dataclasses import dataclass
from typing import Any

import torch

from .cases import name_of
from .tensors import SoftmaxCall

Tensors = dict[str, torch.Tensor]


@dataclass
class Expected:
    """values: output and statistics; first: gradients of what learns; second: those of the first ones along
    `call.directions`. scores, weights, live: (batch, heads, q_len, k_len)."""

    values: Tensors
    first: Tensors
    second: Tensors
    scores: torch.Tensor
    weights: torch.Tensor
    live: torch.Tensor


def expect(call: SoftmaxCall, picked: torch.Tensor | None = None, second: bool = False) -> Expected:
    """What a case must give; `picked`: the keys that a backend chose as top_keys, for the gradient of their weights."""
    case = call.case
    leaves = _leaves(call)
    group = case.heads // case.kv_heads
    k = leaves["k"].repeat_interleave(group, 1)
    v = leaves["v"].repeat_interleave(group, 1)

    scores = call.scale * leaves["q"] @ k.mT
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    bias = call.spread(leaves.get("bias"))
    live = torch.from_numpy(call.mask.copy()) & (bias != -torch.inf)
    scores = scores + torch.where(bias == -torch.inf, 0, bias)

    # The sink is one more key, which has no value.
    sink = call.spread_sink(leaves.get("sink")).expand(scores.shape[:3])
    live_and_sink = torch.cat([live.expand(scores.shape), (sink > -torch.inf)[..., None]], -1)
    empty_sum = ~live_and_sink.any(-1)  # nothing to divide by
    masked = torch.cat([scores, sink[..., None]], -1).masked_fill(~live_and_sink, -torch.inf)
    finite = masked.masked_fill(empty_sum[..., None], 0).logsumexp(-1)
    weights = (masked[..., :-1] - finite[..., None]).exp()
    distance = torch.from_numpy(abs(call.at.j - call.at.i)).double()

    values: Tensors = {
        "output": (weights * call.factors()) @ v,
        "log_sum_exp": finite.masked_fill(empty_sum, -torch.inf),
        "entropy": finite * weights.sum(-1) - (weights * scores.masked_fill(~live, 0)).sum(-1),
        "received": weights.sum(2),
        "distance": (weights * distance).sum(-1),
        "weights": weights,
        "sink": (sink - finite).exp(),
    }
    for statistic in case.want:
        if name_of(statistic) == "weights_of":
            values["weights_of"] = call.chosen(weights, statistic)
    if picked is not None:
        values["top_keys"] = at_keys(weights, picked)

    first: Tensors = {}
    twice: Tensors = {}
    if case.learners:
        gradients = {}
        for name, x in call.cotangents.items():
            if name in values:
                gradients[name] = x.double().clone().requires_grad_()
        learning = {name: leaves[name] for name in case.learners}
        along = {name: call.directions[name].double() for name in learning} if second else None
        first, twice = differentiated(values, learning, gradients, along)
    return Expected(
        detached(values), detached(first), detached(twice), scores.detach(), weights.detach(), live
    )


def _leaves(call: SoftmaxCall) -> Tensors:
    """What learns, in float64; hidden keys and values are zeros."""
    leaves = {"q": call.given["q"].double()}
    for name in ("k", "v"):
        leaves[name] = call.given[name].double().masked_fill(call.hidden[..., None], 0)
    if "learned" in call.added:
        leaves["bias"] = call.added["learned"].double()
    if call.sink is not None:
        leaves["sink"] = call.sink
    return {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}


def at_keys(x: torch.Tensor, picked: torch.Tensor) -> torch.Tensor:
    """Numbers of pairs at the picked keys of each row; 0 at -1, which stands for no key."""
    k_len = x.shape[-1]
    padded = torch.cat([x, x.new_zeros(*x.shape[:3], 1)], -1)
    return padded.gather(-1, torch.where(picked < 0, k_len, picked))


def differentiated(
    values: Tensors,
    learning: Tensors,
    gradients: Tensors,
    along: Tensors | None,
    grad_output: torch.Tensor | None = None,
) -> tuple[Tensors, Tensors]:
    """The gradients of what learns, by those that come in, and theirs along the directions, if there are any.

    `grad_output` is the leaf of the gradient of the output; it has a second derivative if it needs one.
    """
    outputs = [values[name] for name in gradients]
    inputs = list(learning.values())
    first = _gradients(outputs, inputs, list(gradients.values()), again=along is not None)
    by_name = dict(zip(learning, first, strict=True))
    if along is None:
        return by_name, {}

    if grad_output is None:
        grad_output = gradients["output"]
    if grad_output.requires_grad:
        learning = {**learning, "grad_output": grad_output}
    directions = [along[name] for name in by_name]
    twice = _gradients(first, list(learning.values()), directions, again=False)
    return by_name, dict(zip(learning, twice, strict=True))


def named(first: Tensors, twice: Tensors) -> Tensors:
    """Gradients ("d q") and second ones ("dd q") by their names in a verdict."""
    gradients = {f"d {name}": x for name, x in first.items()}
    return gradients | {f"dd {name}": x for name, x in twice.items()}


def detached(tensors: Tensors) -> Tensors:
    return {name: x.detach().cpu() for name, x in tensors.items()}


def _gradients(
    outputs: list[Any], inputs: list[Any], gradients: list[Any], again: bool
) -> list[torch.Tensor]:
    """Gradients of the inputs; zeros where there is no way to one."""
    learned = [number for number, x in enumerate(outputs) if x.requires_grad]
    if not learned:
        return [torch.zeros_like(x) for x in inputs]
    results = torch.autograd.grad(
        [outputs[number] for number in learned],
        inputs,
        [gradients[number] for number in learned],
        allow_unused=True,
        create_graph=again,
    )
    pairs = zip(inputs, results, strict=True)
    return [torch.zeros_like(x) if gradient is None else gradient for x, gradient in pairs]
