"""What the operations for cuda are given, without cuda: a stand-in takes their place and computes the same on the CPU.

tests/regard/contracts/test_cuda.py compares the operations themselves where there is a device.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from regard.backends import flash
from regard.backends.flash import FusedCall, Saved
from regard.testing import make_qkv


@pytest.mark.parametrize("q_len", [1, 31, 32, 33, 97])
def test_the_backward_pass_pads_the_log_sum_exp_to_a_multiple_of_32_with_infinity(
    monkeypatch, q_len
):
    q, k, v = make_qkv(q_len=q_len, k_len=7, head_dim=4, v_dim=4)
    call = FusedCall(None, False, 0.5)
    seen = []

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


def flash_attention(q, k, v, dropout, causal, *, scale):
    """Stands in for FlashAttention, which gives rows with NaN a log-sum-exp of inf."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    output, log_sum_exp = torch._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, dropout, causal, scale=scale
    )
    broken = ~q.isfinite().all(-1)
    return output, log_sum_exp.masked_fill(broken, math.inf), None, None


@pytest.fixture
def given(monkeypatch):
    """The heads of the keys that each operation was given, by its name."""
    seen = []

    def other(q, k, v, mask, sums, dropout, causal, *, scale):
        seen.append(("other", k.shape[1]))
        return (
            *torch._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale),
            None,
            None,
        )

    def first(q, k, *others, **options):
        seen.append(("flash", k.shape[1]))
        return flash_attention(q, k, *others, **options)

    monkeypatch.setattr(torch, "_scaled_dot_product_flash_attention", first)
    monkeypatch.setattr(torch, "_scaled_dot_product_efficient_attention", other)
    return seen


@pytest.mark.parametrize(
    ("dtype", "masked", "chosen"),
    [
        (torch.bfloat16, False, ("flash", 2)),
        (torch.float16, False, ("flash", 2)),
        (torch.float32, False, ("other", 4)),
        (torch.bfloat16, True, ("other", 4)),
    ],
)
def test_flash_attention_computes_half_precision_without_a_mask_and_repeats_no_keys(
    given, dtype, masked, chosen
):
    q, k, v = make_qkv(heads=4, kv_heads=2, head_dim=8, v_dim=8, dtype=dtype)
    flash._forward_cuda(
        q, k, v, FusedCall(q.new_zeros(1, 1, 7, 11) if masked else None, False, 0.5)
    )
    assert given == [chosen]


def test_a_row_with_nan_has_a_log_sum_exp_of_nan(given):
    q, k, v = make_qkv(heads=4, kv_heads=2, head_dim=8, v_dim=8, dtype=torch.bfloat16)
    q[0, 1, 3] = math.nan
    _, log_sum_exp = flash._forward_cuda(q, k, v, FusedCall(None, False, 0.5))
    assert log_sum_exp.isnan().sum() == 1
    assert log_sum_exp[0, 1, 3].isnan()
    assert given


@pytest.mark.parametrize(
    ("dtype", "size", "device", "has"),
    [
        (torch.float16, 256, "cuda", True),
        (torch.float16, 257, "cuda", False),
        (torch.float32, 64, "cuda", False),
        (torch.bfloat16, 64, "cpu", False),
    ],
)
def test_what_flash_attention_takes(dtype, size, device, has):
    assert flash.has_flash_attention(dtype, size, device) == has


@pytest.mark.parametrize(("dtype", "heads"), [(torch.bfloat16, 2), (torch.float32, 4)])
def test_an_output_alone_is_left_to_the_kernel_that_pytorch_chooses(
    given, monkeypatch, dtype, heads
):
    """With keys repeated where that kernel would otherwise write out all scores."""
    q, k, v = make_qkv(heads=4, kv_heads=2, head_dim=8, v_dim=8, dtype=dtype)
    real = torch.nn.functional.scaled_dot_product_attention
    seen = []

    def chosen(q, k, v, **options):
        seen.append((k.shape[1], options["enable_gqa"]))
        return real(q, k, v, **options)

    monkeypatch.setattr(flash.F, "scaled_dot_product_attention", chosen)
    output, _ = flash._forward_cuda(q, k, v, FusedCall(None, False, 0.5, sums=False))
    assert seen == [(heads, heads < 4)]
    assert not given
    torch.testing.assert_close(output, real(q, k, v, scale=0.5, enable_gqa=True))


@pytest.mark.parametrize("scale", [0.5, -0.5, 0.0])
def test_kernels_that_pytorch_chooses_have_first_and_second_derivatives(scale):
    leaves = [
        x.requires_grad_()
        for x in make_qkv(q_len=9, k_len=9, head_dim=6, v_dim=4, dtype=torch.float64)
    ]
    call = FusedCall(None, True, scale, sums=False)
    answers = []

    def formula(q, k, v, call):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
        return (scale * q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    for function in (flash._ByTorch.apply, formula):
        output = function(*leaves, call)
        firsts = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        seconds = torch.autograd.grad(sum(x.square().sum() for x in firsts), leaves)
        plain = torch.autograd.grad(function(*leaves, call).square().sum(), leaves)
        answers.append([output, *firsts, *seconds, *plain])
    for one, other in zip(*answers, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
