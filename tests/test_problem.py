"""A problem is a value: equal calls pose equal problems, and no tensor hides inside."""

from __future__ import annotations

import torch

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
