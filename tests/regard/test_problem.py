"""A problem is a value: equal calls pose equal problems, and no tensor hides inside."""

from __future__ import annotations

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.core.call import make_problem
from regard.core.problem import PER_ROW
from regard.testing import make_qkv


def test_equal_calls_pose_equal_problems():
    one = make_problem(*make_qkv(seed=1), pattern="causal", bias=torch.zeros(7, 11))
    other = make_problem(*make_qkv(seed=2, layout="sliced"), pattern=p.Causal(), bias=torch.ones(7, 11))
    assert one == other
    assert hash(one) == hash(other)


def test_every_difference_makes_another_problem():
    q, k, v = make_qkv()
    ways = ({}, {"pattern": "causal"}, {"scale": 1.0}, {"softcap": 1.0}, {"dropout": 0.1}, {"q_start": 0},
            {"q_start": torch.tensor([0, 1])}, {"bias": torch.zeros(11)}, {"bias": torch.zeros(7, 1)},
            {"bias": torch.zeros(11, requires_grad=True)}, {"strict": True}, {"want": ("weights",)})  # fmt: skip
    problems = {make_problem(q, k, v, **way) for way in ways}
    problems |= {make_problem(*make_qkv(dtype=torch.float64)), make_problem(*make_qkv(requires_grad=True))}
    assert len(problems) == len(ways) + 2


def test_sizes_start_and_pairs_are_told():
    problem = make_problem(*make_qkv(), pattern="causal")
    assert (problem.group, problem.q_start, problem.pairs) == (2, 4, 2 * 6 * 7 * 11)
    assert problem.kept_pairs == 2 * 6 * (5 + 6 + 7 + 8 + 9 + 10 + 11)
    assert make_problem(*make_qkv(), q_start=torch.tensor([0, 1])).q_start is PER_ROW
    assert str(problem) == (
        "softmax(scaled_dot) of 2 x 6 heads over 3, 7 queries by 11 keys, head_dim 5, float32 on cpu, pattern causal"
    )


def test_what_needs_no_gradient_is_known():
    leaf = make_qkv(requires_grad=True)
    assert make_problem(*leaf).needs_grad
    with torch.no_grad():
        assert not make_problem(*leaf).needs_grad


def test_swapped_axes_are_suspected_where_swapping_would_fit():
    q, k, v = (torch.randn(2, 4, 6, 8) for _ in range(3))
    doubt = "are heads and length swapped"
    for sides in ((q.transpose(1, 2), k, v), (q, *(x.transpose(1, 2) for x in (k, v)))):
        with pytest.raises(rg.ShapeError, match=doubt):
            rg.attention(*sides)
    with pytest.raises(rg.ShapeError, match=r"must be a multiple of kv_heads$"):
        rg.attention(torch.randn(2, 6, 5, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8))


def test_pytorchs_is_causal_is_answered_with_both_alignments():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(TypeError, match="regard aligns the last query with the last key, and PyTorch the first ones"):
        rg.attention(q, q, q, is_causal=True)


def test_a_gate_is_asked_for_with_its_shape():
    """`new_parameters` makes no gates, so that the error does not name it."""
    q, k, v = make_qkv(batch=2, heads=4, kv_heads=2, q_len=5, k_len=5)
    gated = rg.mechanisms.RandomFeature(8, gated=True)
    with pytest.raises(rg.ArgumentError, match=r"compute 'gate' of shape \(2, 2, 5\) for each call, and give it"):
        rg.attention(q, k, v, pattern="causal", mechanism=gated)
    given = {"gate": torch.full((2, 2, 5), 0.5)}
    rg.attention(q, k, v, pattern="causal", mechanism=gated, parameters=given)
    with pytest.raises(rg.ArgumentError, match=r"make it with mechanism\.new_parameters"):
        rg.attention(q, k, v, mechanism=rg.mechanisms.Softmax(rg.mechanisms.General(5, 5)))
