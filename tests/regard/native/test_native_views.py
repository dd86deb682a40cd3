"""Tensors stored as (batch, length, heads, dim) are computed where they lie: no call copies or transposes them."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import regard as rg
from regard import patterns as p
from regard.backends.native.library import load

pytestmark = pytest.mark.skipif(isinstance(load(), str), reason="the native library is not built")


class Numbers(TorchDispatchMode):
    """Counts the numbers that operations copy, or all in memory that they make."""

    def __init__(self, made: bool = False) -> None:
        super().__init__()
        self.made, self.numbers = made, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        new = isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() not in given
        copies = func._schema.name in ("aten::clone", "aten::copy_", "aten::_to_copy", "aten::cat", "aten::repeat")
        self.numbers += found.numel() if (new if self.made else copies) else 0
        return found


def copied(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str) -> tuple[torch.Tensor, int]:
    plan = rg.plan_attention(q, k, v, pattern=p.Causal(), backend=backend)
    plan.run(q, k, v)  # the first run makes the schedule
    with Numbers() as copies:
        output = plan.run(q, k, v)
    return output, copies.numbers


def test_native_copies_nothing_and_returns_what_transposes_back_without_a_copy():
    with torch.no_grad():
        fused_rows = torch.randn(2, 33, 8 + 2 + 2, 16)  # one projection of queries, keys and values
        q, k, v = (x.transpose(1, 2) for x in fused_rows.split([8, 2, 2], dim=2))
        output, numbers = copied(q, k, v, "native")
    assert numbers == 0
    assert output.transpose(1, 2).is_contiguous()
    assert output.transpose(1, 2).flatten(2).data_ptr() == output.data_ptr()


def test_the_count_sees_a_copy():
    with torch.no_grad():
        x = torch.randn(2, 9, 2, 32)[..., ::2].transpose(1, 2)  # its last axis is not dense
        assert copied(x, x, x, "native")[1] >= x.numel()


@pytest.mark.parametrize("lengths", [(70, 70), (1, 64)], ids=str)
@pytest.mark.parametrize("pattern", [None, "causal", "causal_window(9)"])
def test_operands_by_length_and_head_are_not_copied(pattern, lengths):
    (q_len, k_len), dim = lengths, 16
    q, k, v = (torch.randn(2, n, heads, dim).transpose(1, 2) for n, heads in ((q_len, 8), (k_len, 4), (k_len, 4)))
    with torch.no_grad():
        plan = rg.plan_attention(q, k, v, pattern=pattern, backend="native")
        plan.run(q, k, v)
        with Numbers(made=True) as made:
            output = plan.run(q, k, v)
    assert output.numel() <= made.numbers < output.numel() + 64, "more than the output was made"
    assert output.transpose(1, 2).is_contiguous()
    assert torch.equal(output, plan.run(*(x.contiguous() for x in (q, k, v))))
