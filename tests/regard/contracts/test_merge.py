"""Attention over pieces, merged by log-sum-exp, is attention over the whole: values and gradients."""

import itertools
import math

import pytest
import torch
from asking import LEARNING, PLAIN

import regard as rg
from regard import patterns as p
from regard.backends.merging import Merging, merge
from regard.testing import make_qkv


def pieces_of(q, k, v, cuts, backend, pattern=None):
    pieces = []
    for start, stop in itertools.pairwise(cuts):
        piece = p.KeySpan(start, stop) if pattern is None else p.KeySpan(start, stop) & pattern
        detail = rg.attention_detail(q, k, v, pattern=piece, backend=backend)
        pieces.append((detail.output, detail.log_sum_exp))
    return pieces


PATTERNS = [None, p.Causal(), p.CausalWindow(3), p.Where(lambda i, j: (i + j) % 3 == 0)]
CUTS = [(0, 11), (0, 4, 11), (0, 0, 1, 1, 6, 11), (0, 3, 5, 8, 9, 11)]
CASES = [*zip(CUTS, PATTERNS, strict=True), *zip(CUTS[1:] + CUTS[:1], PATTERNS, strict=True)]


@pytest.mark.parametrize("backend", [name for name in LEARNING if name in PLAIN])
@pytest.mark.parametrize(("cuts", "pattern"), CASES, ids=str)
def test_merged_pieces_equal_the_whole_in_values_and_gradients(cuts, pattern, backend):
    q, k, v = make_qkv(q_len=13, dtype=torch.float64, requires_grad=True)

    def with_gradients(output, lse):
        loss = output.sin().sum() + lse.masked_fill(lse == -math.inf, 0).cos().sum()
        return [output, lse, *torch.autograd.grad(loss, (q, k, v))]

    merged = with_gradients(*rg.merge_attention(pieces_of(q, k, v, cuts, backend, pattern)))
    detail = rg.attention_detail(q, k, v, pattern=pattern, backend="reference")
    whole = with_gradients(detail.output, detail.log_sum_exp)
    torch.testing.assert_close(merged, whole, rtol=1e-11, atol=1e-12)


def test_rows_that_no_piece_has_a_key_for_stay_empty_with_zero_gradient():
    q, k, v = make_qkv(q_len=13, requires_grad=True)
    output, lse = rg.merge_attention(pieces_of(q, k, v, (0, 5, 11), "fused", p.Causal()))
    assert (lse[:, :, :2] == -math.inf).all()
    assert (output[:, :, :2] == 0).all()
    (output.sum() + lse.exp().sum()).backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert (q.grad[:, :, :2] == 0).all()


def test_gradients_of_a_merge_pass_gradcheck():
    outputs = torch.randn(3, 1, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    sums = torch.randn(3, 1, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda o, s: rg.merge_attention(list(zip(o, s, strict=True))), (outputs, sums)
    )


def test_pieces_of_half_precision_are_merged_in_float32():
    q, k, v = make_qkv(dtype=torch.bfloat16)
    output, lse = rg.merge_attention(pieces_of(q, k, v, (0, 4, 11), "fused"))
    assert (output.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


def test_huge_log_sum_exps_do_not_overflow():
    output = torch.ones(1, 1, 1, 1)
    lse = torch.full((1, 1, 1), 1e4)
    output, lse = rg.merge_attention([(output, lse), (3 * output, lse)])
    assert output.item() == 2
    assert lse.item() == pytest.approx(1e4 + math.log(2))


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("gap", [0.0, -math.inf, math.inf])
def test_a_thousand_pieces_merged_one_by_one_are_rounded_as_few_are(dtype, equal, gap):
    """Some rows are empty in many of them, one in all, and each piece covers only some of the rows."""
    count = 1024
    rows = 37
    eps = torch.finfo(dtype).eps
    sums = torch.full((count, 1, 2, rows), 0.1) if equal else 7 + torch.randn(count, 1, 2, rows)
    sums[0] += 2
    sums[::3, ..., 5:9] = -math.inf
    sums[:, ..., 30] = -math.inf
    sums[500, ..., 3] += gap
    sums = sums.to(dtype)
    outputs = torch.randn(count, 1, 2, rows, 3, dtype=dtype)
    empty_sums = torch.full((1, 2, rows), -math.inf, dtype=dtype)
    merging = Merging(torch.zeros(1, 2, rows, 3, dtype=dtype), empty_sums)
    for piece_output, piece_sums in zip(outputs, sums, strict=True):
        for part in (slice(0, 20), slice(20, rows)):
            place = (slice(None), slice(None), part)
            merging.add(place, piece_output[place], piece_sums[place])
    output, log_sum_exp = merging.merged()
    expected, expected_lse = merge(list(zip(outputs.double(), sums.double(), strict=True)))
    assert torch.equal(log_sum_exp.isinf(), expected_lse.isinf())
    finite = expected_lse.isfinite()
    error = (log_sum_exp - expected_lse)[finite].abs()
    assert (error <= 2 * eps * (1 + expected_lse[finite].abs())).all()
    assert (output[:, :, 30] == 0).all()
    assert ((output - expected)[finite].abs() <= 40 * eps).all()
