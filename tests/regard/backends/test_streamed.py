"""Streaming equals the oracle whatever the sizes of its blocks, with every option, and never holds all scores."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from uncached import attend, detail, plan

import regard as rg
from regard import patterns as p
from regard.backends.scores import blocking
from regard.bias import T5Relative
from regard.testing import Budget, answer, make_qkv


def test_one_number_a_distance_shared_by_all_heads_gets_their_gradients_together():
    class Shared(rg.bias.Bias):
        learns = True
        weight = torch.randn(40, dtype=torch.float64, requires_grad=True)

        def by_distance(self, distances, heads):
            return self.weight[distances % 40][None]

    found = []
    for backend in ("reference", "streamed"):
        q, k, v = make_qkv(dtype=torch.float64)
        output = attend(q, k, v, bias=Shared(), backend=backend)
        found.append(torch.autograd.grad(output.sin().sum(), Shared.weight)[0])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


class TestRowsWithoutAKey:
    @pytest.mark.parametrize("spoilt", [torch.nan, torch.inf])
    @pytest.mark.parametrize("hides", ["pattern", "bias"])
    def test_they_are_zeros_whatever_their_query_and_gradient_hold(self, hides, spoilt):
        q, k, v = make_qkv(q_len=5, k_len=3, dtype=torch.float64)
        q[:, :, :2] = spoilt
        q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
        bias = torch.zeros(5, 3, dtype=torch.float64)
        bias[:2] = -torch.inf
        options = {"pattern": "causal"} if hides == "pattern" else {"bias": bias}
        found = detail(q, k, v, backend="streamed", want=("log_sum_exp", "entropy", "received"), **options)
        grad = torch.ones_like(found.output)
        grad[:, :, :2] = spoilt
        found.output.backward(grad, retain_graph=True)
        assert (found.output[:, :, :2] == 0).all()
        assert (found.log_sum_exp[:, :, :2] == -torch.inf).all()
        assert (found.entropy[:, :, :2] == 0).all()
        assert found.received.isfinite().all()
        assert (q.grad[:, :, :2] == 0).all()
        assert k.grad.isfinite().all()
        assert v.grad.isfinite().all()


@pytest.mark.parametrize(("q_len", "k_len"), [(300, 613), (613, 300)])
def test_many_short_runs_of_keys_round_the_log_sum_exp_once(q_len, k_len):
    q, k, v = make_qkv(heads=2, kv_heads=1, q_len=q_len, k_len=k_len, dtype=torch.float64)
    found = detail(q, k, v, pattern="fixed(4, summary=1)", scale=0, backend="streamed")
    expected = answer(q, k, v, p.Fixed(4).dense(q_len, k_len).numpy(), scale=0)
    budget = Budget.of(q, k, v, torch.float64, scale=0)
    assert budget.share("log_sum_exp", found.log_sum_exp, expected.log_sum_exp) <= 1
    assert budget.share("output", found.output, expected.output) <= 1


class Largest(TorchDispatchMode):
    """The largest tensor that any operation hands back, in numbers really held."""

    held = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for x in tree_iter(found):
            if isinstance(x, torch.Tensor):
                self.held = max(self.held, x.untyped_storage().nbytes() // x.element_size())
        return found


def held(length, **options):
    q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
    with Largest() as seen:
        found = detail(
            q, k, v, pattern="causal", dropout=0.1, softcap=9.0, backend="streamed", want=("entropy", "received"),
            **options,
        )  # fmt: skip
        (found.output.sum() + found.entropy.sum()).backward()
    return seen.held


def test_no_tensor_is_larger_than_a_block_or_the_inputs():
    limit = max(blocking.PAIRS + 1024, 2 * 2048 * 8)
    assert held(2048) <= limit
    assert held(2048, bias=T5Relative(2)) <= 2 * limit  # the padded copy of one block's gradient
    assert limit * 2 < 2 * 2048 * 2048 / 8


def test_the_gradient_of_a_bias_is_the_only_tensor_of_its_size():
    length = 1024
    bias = torch.zeros(2, length, length, requires_grad=True)
    q, k, v = (torch.randn(1, 2, length, 8) for _ in range(3))
    large = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and found.untyped_storage().nbytes() >= 8 * length**2:
                large.append(found.untyped_storage().data_ptr())
            return found

    with Made():
        attend(q, k, v, bias=bias, backend="streamed").sum().backward()
    assert len(set(large) - {bias.untyped_storage().data_ptr()}) == 1


class TestPlans:
    def test_it_is_chosen_for_what_only_the_reference_did(self):
        q, k, v = (torch.randn(1, 8, 2048, 64) for _ in range(3))
        bias = torch.zeros(2048, 2048, requires_grad=True)
        for options in ({"softcap": 5.0}, {"dropout": 0.1}, {"bias": bias}, {"bias": T5Relative(8)}):
            assert plan(q, k, v, **options).backend == "streamed"
        assert plan(q, k, v).backend == "fused"

    def test_strict_refuses_what_computes_too_many_pairs(self):
        q, k, v = (torch.randn(1, 1, 2048, 4) for _ in range(3))
        pairs = plan(q, k, v, pattern="causal", backend="streamed", strict=True).cost.pairs
        assert pairs < 1.3 * 2048 * 2049 / 2
        with pytest.raises(rg.UnsupportedError, match="strict=True, and it computes"):
            plan(q, k, v, pattern="causal_window(3)", backend="streamed", strict=True)
