"""Streaming equals the oracle whatever the sizes of its blocks, with every option, and never holds all scores."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from uncached import attend, cut, detail, plan

import regard as rg
from regard import patterns as p
from regard.backends.scores import blocking
from regard.bias import ALiBi, T5Relative
from regard.testing import Budget, answer, kept_weights, make_qkv

HEADS = ((6, 6), (6, 3), (6, 1))
SIZES = (8, 64, 4), (4, 1 << 17, 64), (256, 1 << 17, 64)  # rows of a strip, pairs of a part, alignment of tiles
PATTERNS = {  # the pattern, and its formula of positions i and j
    "full": lambda i, j: j >= 0,
    "causal": lambda i, j: j <= i,
    "causal_window(5)": lambda i, j: (j <= i) & (i - j < 5),
    "causal & (causal_window(3) | key_span(0, 4))": lambda i, j: (j <= i) & ((i - j < 3) | (j < 4)),
    "~causal": lambda i, j: j > i,
}
OPTIONS = {
    "plain": {},
    "scale below zero": {"scale": -0.7},
    "scale zero": {"scale": 0},
    "softcap": {"softcap": 1.3},
    "dropout": {"dropout": 0.3, "dropout_seed": -5},
    "q_start": {"q_start": 2},
    "q_start by row": {"q_start": torch.tensor([4, -3])},
    "bias of pairs": {"bias": ("b", "h", "q", "k")},
    "bias of heads": {"bias": ("1", "h", "1", "k")},
    "bias of batch rows": {"bias": ("b", "1", "q", "1")},
    "everything": {
        "scale": 0.9, "softcap": 3.0, "dropout": 0.25, "dropout_seed": 9, "q_start": torch.tensor([0, 9]),
        "bias": ("1", "h", "q", "k"),
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_memory_is_poisoned(monkeypatch):
    for home, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
        plain = getattr(home, name)
        poisoned = lambda *a, plain=plain, **b: plain(*a, **b).fill_(-(2**62))  # noqa: E731
        monkeypatch.setattr(home, name, poisoned)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("option", OPTIONS)
def test_values_and_gradients_equal_the_oracle(option, size, monkeypatch):
    cut(monkeypatch, *size)
    for number, (pattern, (heads, kv_heads)) in enumerate(itertools.product(PATTERNS, HEADS)):
        q_len, k_len = ((17, 29), (23, 13))[number % 2]
        options = dict(OPTIONS[option])
        axes = {"b": 2, "h": heads, "q": q_len, "k": k_len}
        if "bias" in options:
            options["bias"] = torch.randn([axes.get(axis, 1) for axis in options["bias"]]).bfloat16()
        sizes = {"heads": heads, "kv_heads": kv_heads, "q_len": q_len, "k_len": k_len, "seed": number}
        numbers = make_qkv(**sizes, dtype=torch.bfloat16)
        grad = torch.randn(2, heads, q_len, 13).bfloat16()
        expected = oracle(numbers, PATTERNS[pattern], grad, **options)
        dtypes = (torch.float64, (torch.float32, torch.bfloat16, torch.float16)[number % 3])
        for dtype in dtypes:
            check(numbers, pattern, options, grad, expected, dtype)


def oracle(numbers, formula, grad, *, q_start=None, bias=None, dropout=0.0, dropout_seed=0, scale=None, softcap=None):
    q, k, v = (x.double().numpy() for x in numbers)
    (batch, heads, q_len, dim), k_len = q.shape, k.shape[2]
    start = np.asarray(k_len - q_len if q_start is None else q_start).reshape(-1, 1, 1, 1)
    i, j = start + np.arange(q_len)[:, None], np.arange(k_len)
    factors = None
    if dropout:
        kept = kept_weights(dropout, dropout_seed, batch, heads, i.reshape(-1, q_len), j)
        factors = kept / (1 - dropout)
    return answer(
        q, k, v, formula(i, j), scale=dim**-0.5 if scale is None else scale, softcap=softcap, factors=factors,
        bias=None if bias is None else bias.double().numpy(), grad_output=grad.double().numpy(),
    )  # fmt: skip


def check(numbers, pattern, options, grad, expected, dtype):
    q, k, v = (x.to(dtype).requires_grad_() for x in numbers)
    options = dict(options)
    if "bias" in options:
        options["bias"] = options["bias"].to(dtype).requires_grad_()
    output = attend(q, k, v, pattern=pattern, backend="streamed", **options)
    output.backward(grad.to(dtype))
    budget = Budget.of(
        *(x.double() for x in numbers), dtype, scale=options.get("scale", q.shape[-1] ** -0.5),
        bias=options.get("bias"), grad_output=grad.double(), dropout=options.get("dropout", 0.0), answer=expected,
    )  # fmt: skip
    found = {"output": output, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    if "bias" in options:
        found["dbias"] = options["bias"].grad
    errors = {name: budget.share(name, x, getattr(expected, name)) for name, x in found.items()}
    assert output.dtype == dtype
    assert max(errors.values()) <= 1, (pattern, dtype, errors)


@pytest.mark.parametrize("pattern", [p.Causal(), p.Explicit(torch.rand(2, 4, 5, 7) > 0.4)])
def test_gradients_are_those_of_finite_differences(pattern, monkeypatch):
    cut(monkeypatch, 2, 8, 2)
    q, k, v = make_qkv(
        heads=4, kv_heads=2, q_len=5, k_len=7, head_dim=3, v_dim=2, dtype=torch.float64, requires_grad=True
    )
    bias = torch.randn(1, 4, 5, 7, dtype=torch.float64, requires_grad=True)

    def told(q, k, v, bias):
        found = detail(
            q, k, v, pattern=pattern, bias=bias, softcap=2.0, dropout=0.3, dropout_seed=1, backend="streamed"
        )
        seen = found.log_sum_exp.isfinite()
        return found.output, found.log_sum_exp[seen]

    assert torch.autograd.gradcheck(told, (q, k, v, bias), fast_mode=True)


@pytest.mark.parametrize("q_start", [None, 3, torch.tensor([4, -1])])
@pytest.mark.parametrize("bias", [T5Relative(6, buckets=8, max_distance=9).double(), ALiBi()])
@pytest.mark.parametrize("size", SIZES)
def test_a_bias_by_distance_equals_the_reference_with_gradients(bias, q_start, size, monkeypatch):
    cut(monkeypatch, *size)
    found = []
    for backend in ("reference", "streamed"):
        q, k, v = make_qkv(q_len=9, k_len=14, dtype=torch.float64, requires_grad=True)
        output = attend(q, k, v, pattern="sliding_window(9)", bias=bias, q_start=q_start, backend=backend)
        learned = [bias.weight] if isinstance(bias, T5Relative) else []
        found.append([output, *torch.autograd.grad(output.sin().sum(), [q, k, v, *learned])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


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


def test_dropping_everything_leaves_zeros_and_no_nan():
    q, k, v = make_qkv(requires_grad=True)
    output = attend(q, k, v, dropout=1, dropout_seed=0, backend="streamed")
    output.sum().backward()
    assert all((x == 0).all() for x in (output, q.grad, k.grad, v.grad))


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

    def test_a_query_that_is_not_finite_and_sees_a_key_shows_it(self):
        q, k, v = make_qkv()
        q[0, 0, 3] = torch.nan
        output = attend(q, k, v, pattern="causal", backend="streamed")
        assert output[0, 0, 3].isnan().all()
        assert output.isnan().sum() == v.shape[-1]


@pytest.mark.parametrize(("q_len", "k_len"), [(300, 613), (613, 300)])
def test_many_short_runs_of_keys_round_the_log_sum_exp_once(q_len, k_len):
    q, k, v = make_qkv(heads=2, kv_heads=1, q_len=q_len, k_len=k_len, dtype=torch.float64)
    found = detail(q, k, v, pattern="fixed(4, summary=1)", scale=0, backend="streamed")
    expected = answer(q, k, v, p.Fixed(4).dense(q_len, k_len).numpy(), scale=0)
    budget = Budget.of(q, k, v, torch.float64, scale=0)
    assert budget.share("log_sum_exp", found.log_sum_exp, expected.log_sum_exp) <= 1
    assert budget.share("output", found.output, expected.output) <= 1


def test_scores_far_apart_do_not_overflow():
    q, k, v = make_qkv(gain=1e4, dtype=torch.float64)
    expected = answer(q, k, v, True, scale=5**-0.5)
    for dtype in (torch.float32, torch.float64):
        found = attend(q.to(dtype), k.to(dtype), v.to(dtype), backend="streamed")
        assert Budget.of(q, k, v, dtype, scale=5**-0.5).share("output", found, expected.output) <= 1


def test_an_edited_tensor_is_noticed():
    q, k, v = make_qkv(requires_grad=True)
    copy = k * 1
    output = attend(q, copy, v, backend="streamed")
    copy.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


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
