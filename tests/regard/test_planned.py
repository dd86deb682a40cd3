"""Equal calls share a plan without being checked twice, and no two calls that differ are taken for equal."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import regard as rg
from regard.core.call import Call
from regard.functional.kept import PLANS
from regard.mechanisms import Softmax
from regard.patterns import Causal
from regard.testing import make_qkv

Q, K, V = make_qkv()


def planned(q: Any, k: Any, v: Any, **options: Any) -> rg.Plan:
    call = Call(q, k, v, **options)
    return (PLANS.find(call) or PLANS.plan(call))[0]


def test_a_call_seen_before_is_not_checked_again(monkeypatch: pytest.MonkeyPatch):
    plan = planned(Q, K, V, pattern="causal", scale=0.5)
    monkeypatch.setattr(Call, "problem", None)
    assert planned(*make_qkv(seed=1, layout="sliced"), pattern="causal", scale=0.5) is plan


def test_a_call_with_a_bias_seen_before_is_not_checked_again_and_another_bias_is(monkeypatch: pytest.MonkeyPatch):
    bias = torch.randn(2, 1, 1, K.shape[2])
    plan = planned(Q, K, V, bias=bias)
    assert planned(Q, K, V) is not plan
    assert planned(Q, K, V, bias=bias[:1]) is not plan
    assert planned(Q, K, V, bias=bias.clone().requires_grad_()) is not plan
    with pytest.raises(rg.ShapeError):
        planned(Q, K, V, bias=bias[..., :-1])
    with pytest.raises(rg.RegardError):
        planned(Q, K, V, bias=bias.bool())
    for name in ("weak", "strong"):  # the numbers are those of each call
        bias = bias * 10
        expected = rg.attention(Q.double(), K.double(), V.double(), bias=bias.double()).float()
        torch.testing.assert_close(plan.run(Q, K, V, bias=bias), expected, atol=1e-5, rtol=0, msg=name)
    with pytest.raises(rg.ArgumentError, match="bias"):
        plan.run(Q, K, V, bias=bias[:1])
    with pytest.raises(rg.ArgumentError, match="bias"):
        plan.run(Q, K, V)
    monkeypatch.setattr(Call, "problem", None)
    assert planned(Q, K, V, bias=bias) is plan


def test_two_ways_of_posing_a_problem_share_its_plan():
    ways: list[dict[str, Any]] = [{}, {"mechanism": Softmax()}, {"scale": 5**-0.5}, {"q_start": 4}]
    assert len({id(planned(Q, K, V, pattern=pattern, **way)) for way in ways for pattern in ("causal", Causal())}) == 1


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"scale": 1}, {"scale": True}),
        ({"softcap": 1}, {"softcap": True}),
        ({"dropout": 1}, {"dropout": True}),
        ({"q_start": 1}, {"q_start": True}),
        ({"q_start": 1}, {"q_start": 1.0}),
        ({}, {"pattern": ["causal"]}),
    ],
)
def test_what_equals_a_right_argument_but_is_none_is_refused_after_it(right, wrong):
    planned(Q, K, V, **right)
    with pytest.raises(rg.ArgumentError):
        planned(Q, K, V, **wrong)


@pytest.mark.parametrize(
    "other",
    [
        lambda: (Q.to_sparse(), K, V),
        lambda: (Q, K.double(), V),
        lambda: (Q, K, V.to("meta")),
        lambda: (Q.numpy(), K, V),
        lambda: (Q, K[:, :, :5], V),
    ],
)
def test_tensors_that_do_not_fit_are_refused_after_those_that_do(other):
    planned(Q, K, V)
    with pytest.raises(rg.ShapeError):
        planned(*other())


def test_a_call_that_needs_gradients_has_a_plan_of_its_own():
    leaf = Q.clone().requires_grad_()
    assert planned(leaf, K, V).problem.needs_grad
    assert not planned(Q, K, V).problem.needs_grad
    with torch.no_grad():
        assert planned(leaf, K, V) is planned(Q, K, V)


def test_the_number_of_calls_kept_is_bounded():
    for start in range(PLANS.calls.most + 20):
        planned(Q, K, V, q_start=start)
    assert len(PLANS.calls) == len(PLANS.problems) == PLANS.calls.most


def test_a_plan_looks_again_at_tensors_it_has_not_seen():
    plan = planned(Q, K, V)
    assert plan.run(Q, K, V).shape == (2, 6, 7, 13)
    with pytest.raises(rg.ArgumentError, match=r"this plan was made for other tensors, .* k torch\.float64"):
        plan.run(Q, K.double(), V)
    with pytest.raises(rg.ArgumentError, match="without a tensor as bias"):
        plan.run(Q, K, V, bias=torch.zeros(11))
