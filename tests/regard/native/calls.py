"""What tests of the kernel share: instruction sets, numbers of threads, and calls that are planned by themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import regard as rg

# Instruction sets by their numbers in `rg_use_instructions`.
BEST = 0
AVX2 = 2
AVX512 = 3  # without BF16


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads inside, and one behind it."""
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


def output_of_own_plan(*qkv: Any, **options: Any) -> torch.Tensor:
    """The output of a call with statistics, which is never a step of a kept plan."""
    return rg.attention_detail(*qkv, want="log_sum_exp", backend="native", **options).output


def outputs_and_gradients(output: torch.Tensor, leaves: list[torch.Tensor]) -> torch.Tensor:
    """An output, and the gradients of half the sum of its squares, in one row of numbers whose bits are compared."""
    gradients = torch.autograd.grad(output, leaves, output.detach())
    return torch.cat([x.detach().flatten() for x in (output, *gradients)])
