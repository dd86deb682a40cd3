"""Spans of keys by batch row are data of a call: one plan serves every set of them, at the price of the first set."""

import math

import pytest
import torch
from measuring import frames

import regard as rg
from regard import patterns as p
from regard.backends.native.bands import RowBand, clamped
from regard.backends.native.library import load
from regard.backends.native.spans import KEPT_SETS
from regard.functional.kept import PLANS
from regard.patterns.band import Band
from regard.patterns.bands import Diagonals

from .calls import output_of_own_plan

pytestmark = [
    pytest.mark.skipif(isinstance(load(), str), reason="without the library every set is planned"),
    pytest.mark.usefixtures("fresh_plans"),
]
SHAPE = (5, 4, 13, 16)
LENGTHS = [[13, 11, 0, 7, 3], [1, 13, 13, 13, 5], [9, 9, 9, 9, 9], [2, 30, 13, -4, 6]]
STARTS = (None, 3, torch.tensor([0, 5, -2, 1, 9]))
JOINED = {
    "alone": lambda span: span,
    "causal": lambda span: p.Causal() & span,
    "a window": lambda span: span & p.SlidingWindow(6),
    "a band ahead": lambda span: Diagonals(-1, 4) & span,
    "a band of no pair": lambda span: Diagonals(-3, 1) & span,
    "other spans": lambda span: p.KeySpan(2, 11) & (p.Causal() & span) & p.KeySpan([0, 1, 2, 3, 4]),
    "more keys before": lambda span: p.CausalWindow(4) & span & p.KeySpan(1),
}
# Where one backend is best for every length, the first set of each kind of q_start alone is planned.
PLANNED_ONCE = ("alone", "causal", "a window")


@pytest.mark.parametrize("q_len", [1, 13, 200])
@pytest.mark.parametrize("kind", [list, torch.tensor], ids=["list", "tensor"])
@pytest.mark.parametrize("name", JOINED)
def test_every_set_of_spans_has_the_bits_of_its_own_plan_whenever_it_comes(
    name, kind, q_len, planned
):
    q = torch.randn(5, 4, q_len, 16)
    k, v = torch.randn(2, *SHAPE)
    patterns = [JOINED[name](p.KeySpan(0, kind(lengths))) for lengths in LENGTHS]
    for start in STARTS:
        for pattern in 3 * patterns:
            with torch.no_grad():
                found = rg.attention(q, k, v, pattern=pattern, q_start=start)
                expected = output_of_own_plan(q, k, v, pattern=pattern, q_start=start)
            assert torch.equal(found, expected), (pattern, start)
    assert name not in PLANNED_ONCE or len(planned) <= len(STARTS)


@pytest.mark.parametrize("kind", [list, torch.tensor], ids=["list", "tensor"])
def test_later_sets_pass_few_functions_more_than_the_first_one(kind):
    x = torch.randn(SHAPE)
    patterns = [p.Causal() & p.KeySpan(0, kind(lengths)) for lengths in LENGTHS]
    with torch.inference_mode():
        for pattern in 3 * patterns:
            rg.attention(x, x, x, pattern=pattern)
        counts = []
        for pattern in patterns:
            counts.append(len(frames(lambda: rg.attention(x, x, x, pattern=pattern))))  # noqa: B023
    assert max(counts) <= counts[0] + 10, counts  # those that look up its schedules


def test_a_set_that_comes_again_keeps_numbers_that_are_not_finite_to_their_queries():
    q, k, v = torch.randn(3, *SHAPE)
    bad = k.clone()
    bad[1, 2, 4] = math.nan
    bad[0, 1, 12] = math.inf
    patterns = [p.Causal() & p.KeySpan(0, torch.tensor(lengths)) for lengths in LENGTHS]
    for keys in (k, k, bad, k, bad):
        for pattern in patterns:
            with torch.no_grad():
                found = rg.attention(q, keys, v, pattern=pattern)
            expected = rg.attention(q, keys, v, pattern=pattern, backend="reference")
            torch.testing.assert_close(found, expected, equal_nan=True, atol=1e-5, rtol=1e-5)


def test_sets_of_another_batch_are_refused_after_right_ones():
    x = torch.randn(SHAPE)
    with torch.no_grad():
        for lengths in 2 * LENGTHS:
            rg.attention(x, x, x, pattern=p.KeySpan(0, lengths))
        with pytest.raises(rg.ShapeError, match="KeySpan's stop holds 4 numbers"):
            rg.attention(x, x, x, pattern=p.KeySpan(0, LENGTHS[0][:4]))


def test_few_sets_are_kept_however_many_come():
    x = torch.randn(2, 1, 5, 4)
    with torch.no_grad():
        for number in range(3 * KEPT_SETS):
            rg.attention(x, x, x, pattern=p.KeySpan(torch.tensor([number, 0])))
    (step,) = PLANS.steps.values()
    assert len(step.__self__._sets) == KEPT_SETS
    assert len(PLANS.repeated) == PLANS.repeated.most


@pytest.mark.parametrize("count", [1, 4])
def test_clamped_numbers_are_those_of_a_clamp(count):
    for first in range(-5, 9):
        for low in range(4):
            for high in range(low, 6):
                expected = torch.arange(first, first + count).clamp(low, high).tolist()
                assert clamped(first, count, low, high) == expected


@pytest.mark.parametrize("right", [None, -3, 0, 5])
@pytest.mark.parametrize("left", [None, -2, 0, 3])
def test_bounds_as_lists_are_those_as_tensors_and_those_of_the_pattern(left, right):
    k_len = 11
    keys = range(2, k_len)
    band = RowBand(Band(left, right), [(0, 30), (4, 9), (7, 3)])
    dense = Diagonals(left, right).dense(k_len, k_len)
    lo, hi = band.bounds([0], k_len, keys)
    for row in range(3):
        span = band.span(row, keys)
        assert (lo[row].tolist(), hi[row].tolist()) == band.listed_bounds(0, k_len, *span)
        for position in range(k_len):
            allowed = [key for key in range(*span) if dense[position, key]]
            assert [*range(lo[row, position], hi[row, position])] == allowed
