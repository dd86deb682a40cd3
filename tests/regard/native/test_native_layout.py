"""Tensors stored as (batch, length, heads, dim) are read where they lie: no call copies or transposes them."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard as rg
from regard.backends.native.library import load

pytestmark = pytest.mark.skipif(isinstance(load(), str), reason="about the native library")


class Made(TorchDispatchMode):
    """Counts the numbers in tensors that operations make."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() not in given:
            self.numbers += found.numel()
        return found


@pytest.mark.parametrize("lengths", [(70, 70), (1, 64)], ids=str)
@pytest.mark.parametrize("pattern", [None, "causal", "causal_window(9)"])
def test_operands_by_length_and_head_are_not_copied(pattern, lengths):
    (q_len, k_len), dim = lengths, 16
    q, k, v = (torch.randn(2, n, heads, dim).transpose(1, 2) for n, heads in ((q_len, 8), (k_len, 4), (k_len, 4)))
    with torch.no_grad():
        plan = rg.plan_attention(q, k, v, pattern=pattern, backend="native")
        plan.run(q, k, v)
        with Made() as made:
            output = plan.run(q, k, v)
    assert output.numel() <= made.numbers < output.numel() + 64, "more than the output was made"
    assert output.transpose(1, 2).is_contiguous()
    assert torch.equal(output, plan.run(*(x.contiguous() for x in (q, k, v))))
