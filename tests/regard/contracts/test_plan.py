"""The plan: frozen, printed, as JSON, cached by value, and exactly what the call does."""

import dataclasses
import itertools
import json
import re

import pytest
import torch
from asking import PLAIN

import regard as rg
from regard import patterns as p
from regard.backends import BACKENDS
from regard.backends.native.library import load
from regard.core import plan as plans
from regard.core.backend import Offer
from regard.core.call import make_problem
from regard.core.tensors import Outline
from regard.functional.kept import PLANS
from regard.testing import make_qkv

Q, K, V = make_qkv()


def test_running_the_plan_is_the_call():
    for pattern in (None, "causal", p.Explicit(torch.ones(7, 11).bool())):
        plan = rg.plan_attention(Q, K, V, pattern=pattern)
        assert torch.equal(plan.run(Q, K, V), rg.attention(Q, K, V, pattern=pattern))


def test_a_plan_says_the_backend_the_costs_and_every_reason():
    plan = rg.plan_attention(Q, K, V, pattern="causal", softcap=2.0, want="entropy")
    refusal = "fused refused: the fused operations have no softcap"
    for words in (plan.backend, refusal, "causal", "FLOP", "of pairs"):
        assert words in str(plan)
    record = json.loads(plan.to_json())
    assert record["backend"] == plan.backend
    assert {plan.backend, *record["others"]} == set(BACKENDS)
    assert record["others"]["fused"] == {"refused": "the fused operations have no softcap"}
    assert record["statistics"] == ["entropy"]
    assert record["pairs_kept"] == 2 * 6 * (5 + 6 + 7 + 8 + 9 + 10 + 11)
    assert record["share_of_pairs_computed"] == 1.0
    assert plan.detail(Q, K, V).entropy.shape == (2, 6, 7)


def test_a_more_expensive_backend_is_listed_with_its_cost():
    leaf = Q.detach().requires_grad_()
    plan = rg.plan_attention(leaf, K, V)
    assert plan.backend in ("native", "fused")
    other = json.loads(plan.to_json())["others"]["reference"]
    assert other["cost"]["flops"] > 0
    # the chosen backend is the one estimated to be the fastest
    assert other["times_the_estimated_time"] > 1
    assert re.search(r"reference, [0-9.e+]+x the estimated time: ", str(plan))


def test_a_plan_says_that_gradients_are_counted():
    plain = rg.plan_attention(Q, K, V, pattern="causal")
    learning = rg.plan_attention(Q.detach().requires_grad_(), K, V, pattern="causal")
    assert "with gradients" in str(learning)
    assert "with gradients" not in str(plain)
    assert learning.cost.flops > plain.cost.flops
    assert learning.cost.bytes > plain.cost.bytes


def test_half_precision_is_widened_where_gradients_of_parts_are_added():
    q, k, v = (x.bfloat16() for x in (Q, K, V))
    learning = q.clone().requires_grad_()
    bias = torch.zeros(6, 7, 11, dtype=torch.bfloat16, requires_grad=True)
    sink = torch.zeros(6)

    def widens(q: torch.Tensor = q, **options) -> bool:
        return json.loads(rg.plan_attention(q, k, v, **options).to_json())["widened_to_float32"]

    assert widens(learning, want="entropy")
    assert widens(bias=bias, want="entropy")
    assert widens(learning, sink=sink)
    assert widens(sink=sink.clone().requires_grad_())
    assert not widens(want="entropy", sink=sink)
    assert not widens(learning)
    assert not widens(learning, want="log_sum_exp")
    assert not widens(bias=bias)


def test_a_plan_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        rg.plan_attention(Q, K, V).backend = "reference"  # type: ignore[misc]


def test_equal_problems_share_one_plan_and_tensor_patterns_one_of_their_own():
    def planned(pattern):
        return rg.plan_attention(Q, K, V, pattern=pattern)

    assert planned("causal & key_span(0, 9)") is planned(p.Causal() & p.KeySpan(0, 9))
    before = len(PLANS.problems)
    span = p.KeySpan(torch.tensor([0, 1]))
    longer = p.KeySpan(torch.tensor([0, 2]))
    assert planned(span) is planned(span)
    assert planned(span) is not planned(longer)
    mask = p.Explicit(torch.ones(7, 11).bool())
    assert planned(mask) is not planned(mask)
    assert len(PLANS.problems) == before
    assert span != longer


def test_a_named_backend_never_becomes_another():
    for name in PLAIN:
        assert rg.attention_detail(Q, K, V, backend=name).plan.backend == name


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"q": Q[:, :, :5]}, "q_len 7.*q_len 5"),
        ({"k": K.double()}, "float64"),
        ({"bias": torch.zeros(11)}, "without a tensor as bias"),
        ({"q_start": torch.tensor([0, 1])}, "without a tensor as q_start"),
    ],
)
def test_a_plan_refuses_tensors_it_was_not_made_for(changed, words):
    plan = rg.plan_attention(Q, K, V)
    with pytest.raises(rg.ArgumentError, match=words):
        plan.run(**{"q": Q, "k": K, "v": V, **changed})


def test_a_plan_refuses_another_bias_than_it_was_made_for():
    plan = rg.plan_attention(Q, K, V, bias=torch.zeros(7, 11))
    with pytest.raises(rg.ArgumentError, match="hand it to run"):
        plan.run(Q, K, V)
    with pytest.raises(rg.ArgumentError, match=r"\(1, 1, 7, 11\).*\(1, 1, 1, 11\)"):
        plan.run(Q, K, V, bias=torch.zeros(11))
    # Fused would drop its gradient without a word.
    with pytest.raises(rg.ArgumentError, match="bias_learns True"):
        plan.run(Q, K, V, bias=torch.zeros(7, 11, requires_grad=True))
    plan = rg.plan_attention(Q, K, V, q_start=torch.tensor([0, 1]))
    with pytest.raises(rg.ArgumentError, match="int64"):
        plan.run(Q, K, V, q_start=torch.tensor([0]))


def test_a_plan_is_made_without_learned_tensors_and_run_with_them():
    mechanism = rg.mechanisms.Linformer(K.shape[2], 3)
    plan = rg.plan_attention(Q, K, V, mechanism=mechanism)
    assert plan.backend == "linformer"
    with pytest.raises(rg.RegardError, match=r"needs .*key_projection"):
        plan.run(Q, K, V)
    with pytest.raises(rg.RegardError, match=r"needs .*key_projection"):
        rg.attention(Q, K, V, mechanism=mechanism)


def test_a_statistic_is_requested_by_its_text_too():
    by_text = rg.attention_detail(Q, K, V, want="top_keys(3)").top_keys
    assert torch.equal(
        by_text.indices, rg.attention_detail(Q, K, V, want=rg.top_keys(3)).top_keys.indices
    )
    chosen = rg.attention_detail(Q, K, V, want="weights_of(rows=[0, 2], heads=[1])").chosen_weights
    assert chosen.shape[1:3] == (1, 2)


@pytest.mark.parametrize(
    ("want", "listed"), [((), "the output alone"), (("entropy", "received"), "entropy, received")]
)
def test_reading_what_was_not_requested_names_what_was(want, listed):
    detail = rg.attention_detail(Q, K, V, want=want)
    sentence = rf"log_sum_exp was not requested; .*requested: {listed}\)"
    with pytest.raises(rg.RegardError, match=sentence):
        _ = detail.log_sum_exp


@pytest.mark.parametrize("but", [None, "native"])
@pytest.mark.parametrize(
    ("pattern", "q_len", "k_len", "dim"),
    [
        ("full", 1, 2000, 128),
        ("causal", 700, 700, 64),
        ("causal_window(64)", 1000, 1000, 16),
        ("dilated_window(32, 16)", 1, 64, 16),
        ("strided(8, local=false)", 1, 64, 128),
        ("causal & strided(16)", 900, 900, 64),
        ("sliding_window(8) | global_tokens(0)", 700, 700, 64),
        ("causal", 2000, 2, 64),
    ],
)
def test_no_backend_that_was_not_assessed_would_have_been_cheaper(pattern, q_len, k_len, dim, but):
    backends = {name: backend for name, backend in BACKENDS.items() if name != but}
    for device, kv_heads, learning in itertools.product(("cpu", "cuda"), (1, 8), (False, True)):
        kind = (torch.float32, torch.device(device), learning)
        q = Outline((2, 8, q_len, dim), *kind)
        k = Outline((2, kv_heads, k_len, dim), *kind)
        problem = make_problem(q, k, k, pattern=pattern)
        verdicts = [backend.assess(problem) for backend in backends.values()]
        offers = [verdict for verdict in verdicts if isinstance(verdict, Offer)]
        least = min(offer.cost.work_on(device) for offer in offers)
        assert plans.make_plan(problem, backends).cost.work_on(device) == least


@pytest.mark.parametrize("q_len", [63, 64])
def test_many_lists_of_keys_assess_no_other_backend_before_the_plan_is_printed(q_len, monkeypatch):
    assessed: list[str] = []
    verdict_of = plans._verdict

    def noting(name, *arguments):
        assessed.append(name)
        return verdict_of(name, *arguments)

    monkeypatch.setattr(plans, "_verdict", noting)
    lists = p.ChosenKeys(torch.zeros(1, 1, q_len, 3).long())
    plan = plans.make_plan(make_problem(*make_qkv(q_len=q_len), pattern=lists), BACKENDS)
    all_at_once = q_len == 63 or isinstance(load(), str)
    assert assessed == (list(BACKENDS) if all_at_once else ["native"])
    assert "reference" in str(plan)
    assert assessed == list(BACKENDS)
