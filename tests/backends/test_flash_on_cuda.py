"""What the operations for cuda are given, without cuda: a stand-in takes their place and computes the same on the CPU.

tests/contracts/test_cuda.py compares the operations themselves where there is a device.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from regard.backends import flash
from regard.backends.flash import Call, Saved
from regard.testing import make_qkv


@pytest.mark.parametrize("q_len", [1, 31, 32, 33, 97])
def test_the_backward_pass_pads_the_log_sum_exp_to_a_multiple_of_32_with_infinity(monkeypatch, q_len):
    q, k, v = make_qkv(q_len=q_len, k_len=7, head_dim=4, v_dim=4)
    call, seen = Call(None, False, 0.5), []

    def backward(grad, q, k, v, mask, output, log_sum_exp, *others, **options):
        seen.append(log_sum_exp)
        saved = Saved(q, k, v, output, log_sum_exp[..., :q_len].contiguous(), grad, None)
        return *flash._backward_cpu(saved, call), None

    standing_in = SimpleNamespace(
        _scaled_dot_product_efficient_attention_backward=backward,
        _scaled_dot_product_flash_attention_for_cpu_backward=(
            flash._aten._scaled_dot_product_flash_attention_for_cpu_backward
        ),
    )
    output, log_sum_exp = flash.forward(q, k, v, call)
    saved = Saved(q, k, v, output, log_sum_exp, torch.randn_like(output), None)
    expected = flash.backward(saved, call)
    monkeypatch.setattr(flash, "_aten", standing_in)
    found = flash._backward_cuda(saved, call)
    (given,) = seen
    assert given.shape[-1] == -(-q_len // 32) * 32
    assert torch.equal(given[..., :q_len], log_sum_exp)
    assert (given[..., q_len:] == math.inf).all()
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
