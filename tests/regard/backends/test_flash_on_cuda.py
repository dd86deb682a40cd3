"""What the operations for cuda are given, without cuda: a stand-in takes their place and computes the same on the CPU.

tests/regard/contracts/test_cuda.py compares the operations themselves where there is a device.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from regard.backends import flash
from regard.backends.flash import BackwardInputs, FusedCall
from regard.testing import make_qkv

BY_CPU = torch._scaled_dot_product_flash_attention_for_cpu


@pytest.mark.parametrize("q_len", [1, 31, 32, 33, 97])
def test_the_backward_pass_pads_the_log_sum_exp_to_a_multiple_of_32_with_infinity(
    monkeypatch, q_len
):
    q, k, v = make_qkv(q_len=q_len, k_len=7, head_dim=4, v_dim=4)
    call = FusedCall(None, False, 0.5)
    output, log_sum_exp = flash.forward(q, k, v, call)
    saved = BackwardInputs(q, k, v, output, log_sum_exp, torch.randn_like(output), None)
    expected = flash.backward(saved, call)

    padded = []

    def backward_on_cuda(grad, q, k, v, mask, output, log_sum_exp, *others, **options):
        padded.append(log_sum_exp)
        cut = log_sum_exp[..., :q_len].contiguous()
        return *flash._backward_cpu(BackwardInputs(q, k, v, output, cut, grad, None), call), None

    operations = SimpleNamespace(
        _scaled_dot_product_efficient_attention_backward=backward_on_cuda,
        _scaled_dot_product_flash_attention_for_cpu_backward=(
            flash._aten._scaled_dot_product_flash_attention_for_cpu_backward
        ),
    )
    monkeypatch.setattr(flash, "_aten", operations)
    torch.testing.assert_close(flash._backward_cuda(saved, call), expected)
    (sums,) = padded
    assert sums.shape[-1] == -(-q_len // 32) * 32
    assert torch.equal(sums[..., :q_len], log_sum_exp)
    assert (sums[..., q_len:] == math.inf).all()


def repeated(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values, once for each of the query heads that read them."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


@pytest.fixture
def operations(monkeypatch):
    """The operations called: FlashAttention ("flash") or the other one, and the heads of the keys it was given."""
    calls = []

    def flash_attention(q, k, v, dropout, causal, *, scale):
        """As the real one, it gives rows with NaN a log-sum-exp of inf."""
        calls.append(("flash", k.shape[1]))
        k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
        output, log_sum_exp = BY_CPU(q, k, v, dropout, causal, scale=scale)
        is_broken = ~q.isfinite().all(-1)
        return output, log_sum_exp.masked_fill(is_broken, math.inf), None, None

    def efficient_attention(q, k, v, mask, sums, dropout, causal, *, scale):
        calls.append(("other", k.shape[1]))
        return *BY_CPU(q, k, v, 0.0, causal, scale=scale), None, None

    monkeypatch.setattr(torch, "_scaled_dot_product_flash_attention", flash_attention)
    monkeypatch.setattr(torch, "_scaled_dot_product_efficient_attention", efficient_attention)
    return calls


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
    operations, dtype, masked, chosen
):
    q, k, v = make_qkv(heads=4, kv_heads=2, head_dim=8, v_dim=8, dtype=dtype)
    mask = q.new_zeros(1, 1, 7, 11) if masked else None
    flash._forward_cuda(q, k, v, FusedCall(mask, False, 0.5))
    assert operations == [chosen]


def test_a_row_with_nan_has_a_log_sum_exp_of_nan(operations):
    q, k, v = make_qkv(heads=4, kv_heads=2, head_dim=8, v_dim=8, dtype=torch.bfloat16)
    q[0, 1, 3] = math.nan
    _, log_sum_exp = flash._forward_cuda(q, k, v, FusedCall(None, False, 0.5))
    assert log_sum_exp.isnan().sum() == 1
    assert log_sum_exp[0, 1, 3].isnan()
    assert operations


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
    operations, monkeypatch, dtype, heads
):
    """With keys repeated where that kernel would otherwise write out all scores."""
    q, k, v = make_qkv(heads=4, kv_heads=2, head_dim=8, v_dim=8, dtype=dtype)
    compute = torch.nn.functional.scaled_dot_product_attention
    calls = []

    def scaled_dot_product_attention(q, k, v, **options):
        calls.append((k.shape[1], options["enable_gqa"]))
        return compute(q, k, v, **options)

    monkeypatch.setattr(flash.F, "scaled_dot_product_attention", scaled_dot_product_attention)
    output, _ = flash._forward_cuda(q, k, v, FusedCall(None, False, 0.5, sums=False))
    assert calls == [(heads, heads < 4)]
    assert not operations
    torch.testing.assert_close(output, compute(q, k, v, scale=0.5, enable_gqa=True))


@pytest.mark.parametrize("scale", [0.5, -0.5, 0.0])
def test_kernels_that_pytorch_chooses_have_first_and_second_derivatives(scale):
    qkv = make_qkv(q_len=9, k_len=9, head_dim=6, v_dim=4, dtype=torch.float64)
    leaves = [x.requires_grad_() for x in qkv]
    call = FusedCall(None, True, scale, sums=False)

    def formula(q, k, v, call):
        k, v = repeated(k, q.shape[1]), repeated(v, q.shape[1])
        hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)
        return (scale * q @ k.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ v

    def results(function):
        output = function(*leaves, call)
        firsts = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        seconds = torch.autograd.grad(sum(x.square().sum() for x in firsts), leaves)
        # Without a graph of its own the backward pass takes another way.
        plain = torch.autograd.grad(function(*leaves, call).square().sum(), leaves)
        return [output, *firsts, *seconds, *plain]

    found = results(flash._ByTorch.apply)
    torch.testing.assert_close(found, results(formula), rtol=1e-9, atol=1e-9)
