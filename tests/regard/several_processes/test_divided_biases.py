"""Layers divided by heads with biases that learn: the present weights in every call, and gradients of all processes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from regard.bias import Bias
from regard.distributed import TensorParallel, tensor_parallel_plan
from regard.layers import MultiHeadAttention
from regard.patterns import CausalWindow, Full, KeySpan, Pattern, PerHead, Prefix
from several_processes.test_tensor_parallel import t5, whole


class Learned(nn.Module, Bias):
    """A bias with two parameters, in one row for all heads or a row for each."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        numbers = torch.Generator().manual_seed(8)
        self.steep = nn.Parameter(torch.rand(rows, 1, dtype=torch.float64, generator=numbers))
        self.wave = nn.Parameter(torch.rand(rows, 1, dtype=torch.float64, generator=numbers))

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return -self.steep * distances.abs().sqrt() + (self.wave * distances).sin()


class Loose(Bias):
    """A bias that learns and is no module."""

    learns = True

    def __init__(self) -> None:
        self.inner = Learned(8)
        self.parameters = self.inner.parameters

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return self.inner.by_distance(distances, heads)


BIASES: dict[str, Callable[[], Any]] = {
    "T5": t5, "shared by all heads": lambda: Learned(1), "a row for each head": lambda: Learned(8),
}  # fmt: skip


class Biased(nn.Module):
    """Two layers that learn a bias each."""

    def __init__(self, bias: str, pattern: Any = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(
            MultiHeadAttention(dim=24, head_dim=4, heads=8, kv_heads=2, pattern=pattern).double() for _ in range(2)
        )
        self.biases = nn.ModuleList(BIASES[bias]() for _ in range(2))
        with torch.no_grad():
            for one in self.biases[1].parameters():
                one.mul_(-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, bias in zip(self.layers, self.biases, strict=True):
            x = x + layer(x, bias=bias)
        return x


def steps_with_biases(module: nn.Module) -> list[list[Any]]:
    """The loss before each step, with and without gradients, and the gradients of the biases."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, foreach=False)
    x = torch.randn(2, 11, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    found = []
    for _ in range(3):
        optimiser.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        grads = [whole(one.grad).tolist() for one in module.biases.parameters()]
        with torch.no_grad():
            found.append([loss.item(), module(x).square().mean().item(), *grads])
        optimiser.step()
    return found


def divided_steps_with_biases(count: int, bias: str) -> list[list[Any]]:
    module = Biased(bias)
    return steps_with_biases(
        parallelize_module(module, init_device_mesh("cpu", (count,)), tensor_parallel_plan(module))
    )


@pytest.mark.parametrize("bias", BIASES)
def test_every_call_has_the_present_weights_of_its_own_bias(bias, pools):
    expected = steps_with_biases(Biased(bias))
    for found in pools(2).run(divided_steps_with_biases, 2, bias):
        for step, other in zip(found, expected, strict=True):
            for one, wanted in zip(step, other, strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(wanted), rtol=0, atol=1e-10)


# patterns by head with which the two processes look at different keys
REACHES: dict[str, list[Pattern]] = {
    "as many keys": [KeySpan(0, 7)] * 4 + [KeySpan(40, 47)] * 4,
    "more keys": [Prefix(7)] * 4 + [Full()] * 4,
    "no keys": [KeySpan(0, 0)] * 4 + [CausalWindow(5)] * 4,
}


def gradients_of_bias(count: int, bias: str, reach: str) -> list[Any]:
    """Gradients of a bias and of the input by one layer, divided where there are several processes."""
    torch.manual_seed(1)
    module = MultiHeadAttention(dim=24, head_dim=4, heads=8, pattern=PerHead(REACHES[reach])).double()
    if count > 1:
        module = parallelize_module(module, init_device_mesh("cpu", (count,)), TensorParallel())
    numbers = torch.Generator().manual_seed(9)
    x = torch.randn(2, 47, 24, dtype=torch.float64, generator=numbers, requires_grad=True)
    learned = Loose() if bias == "no module" else BIASES[bias]()
    for start in (0, torch.tensor([5, 2])):
        module(x, bias=learned, q_start=start).square().sum().backward()
    return [one.grad.tolist() for one in (x, *learned.parameters())]


@pytest.mark.parametrize(("bias", "reach"), [*zip(cycle([*BIASES, "no module"]), [*REACHES, *REACHES], strict=False)])
def test_the_gradients_of_a_bias_are_summed_where_processes_look_at_different_keys(bias, reach, pools):
    expected = gradients_of_bias(1, bias, reach)
    for found in pools(2).run(gradients_of_bias, 2, bias, reach):
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(torch.tensor(one), torch.tensor(wanted), rtol=0, atol=1e-10)
