"""Drawn calls of the recurrent mechanisms."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from mechanism_tensors import MechanismTensors
from torch.nn.functional import normalize

import regard as rg
from regard import mechanisms as m
from regard.mechanisms.base import Sizes

MEMBERS = [
    m.Retention(),
    m.Lightning(0.5),
    m.SSD(),
    m.GatedLinear(),
    m.DeltaRule(),
    m.GatedDelta(),
    m.KimiDelta(),
]


@dataclass
class DrawnRecurrence(MechanismTensors):
    """Tensors for one recurrence."""

    mechanism: m.Mechanism

    def to(self, dtype: torch.dtype) -> "DrawnRecurrence":
        """The same numbers in another dtype, without history."""

        def convert(x: torch.Tensor) -> torch.Tensor:
            return x.detach().to(dtype)

        parameters = {name: convert(x) for name, x in self.parameters.items()}
        q, k, v = convert(self.q), convert(self.k), convert(self.v)
        return DrawnRecurrence(q, k, v, parameters, self.mechanism)

    def with_keys(self, keys: slice) -> "DrawnRecurrence":
        """The same queries with some of the keys."""
        parameters = {name: x[:, :, keys] for name, x in self.parameters.items()}
        return replace(self, k=self.k[:, :, keys], v=self.v[:, :, keys], parameters=parameters)

    def output(self, pattern: Any = "causal", **options: Any) -> torch.Tensor:
        return rg.attention(
            self.q,
            self.k,
            self.v,
            pattern=pattern,
            mechanism=self.mechanism,
            parameters=self.parameters,
            **options,
        )

    def output_and_gradients(self, pattern: Any = "causal", **options: Any) -> list[torch.Tensor]:
        """The output, and the gradients of all tensors through the sum of its squares."""
        for x in self.tensors:
            x.requires_grad_()
        output = self.output(pattern, **options)
        return [output, *torch.autograd.grad(output.double().square().sum(), self.tensors)]


def draw_call(
    mechanism: m.Mechanism,
    length: int = 70,
    heads: tuple[int, int, int] = (2, 2, 4),
    dims: tuple[int, int] = (5, 3),
    dtype: torch.dtype = torch.float64,
    decays: float = 0.3,
) -> DrawnRecurrence:
    """A call with so many heads of q, k and v, and head_dim and v_dim; keys have length 1.

    decays: log decays are drawn between this number below 0 and 0.
    """
    q_heads, k_heads, v_heads = heads
    head_dim, v_dim = dims
    q = torch.randn(2, q_heads, length, head_dim, dtype=dtype)
    k = torch.randn(2, k_heads, length, head_dim, dtype=dtype)
    v = torch.randn(2, v_heads, length, v_dim, dtype=dtype)
    parameters = {}
    sizes = Sizes(2, max(heads), v_heads, length, head_dim)
    for name, shape in mechanism.parameter_shapes(sizes).items():
        parameters[name] = torch.rand(shape, dtype=dtype)
    if "log_decay" in parameters:
        parameters["log_decay"] *= -decays
    return DrawnRecurrence(q, normalize(k, dim=-1), v, parameters, mechanism)
