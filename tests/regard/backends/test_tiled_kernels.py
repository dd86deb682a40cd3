"""Strided and dilated patterns on the native kernel: formulas in float64, the same without the library, the plan."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import regard as rg
from regard.backends.native.library import load
from regard.backends.tiled import kernels
from regard.backends.tiled.kernels import Kernels
from regard.testing import Budget, answer, make_qkv

pytestmark = [
    pytest.mark.usefixtures("fresh_plans"),
    pytest.mark.skipif(isinstance(load(), str), reason="the native library is not built here"),
]
HEADS = ((1, 1), (6, 3), (6, 1))
SIZES = ((127, 127), (31, 131), (131, 31))  # with more queries than keys, the first ones have no key before them
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PATTERNS = {
    "strided(7)": lambda i, j: (abs(i - j) < 7) | ((i - j) % 7 == 0),
    "causal & strided(11)": lambda i, j: (j <= i) & ((i - j < 11) | ((i - j) % 11 == 0)),
    "strided(5, local=false)": lambda i, j: (i - j) % 5 == 0,
    "dilated_window(10, 3)": lambda i, j: ((i - j) % 3 == 0) & (abs(i - j) <= 15),
    "causal & (strided(13) | global_tokens(2, 40))": lambda i, j: (
        (j <= i) & ((i - j < 13) | ((i - j) % 13 == 0) | np.isin(i, (2, 40)) | np.isin(j, (2, 40)))
    ),
    "strided(7) & key_span(20, 25)": lambda i, j: ((abs(i - j) < 7) | ((i - j) % 7 == 0)) & (j >= 20) & (j < 25),
    "causal & strided(7) & key_span(20, 25)": lambda i, j: (
        (j <= i) & ((i - j < 7) | ((i - j) % 7 == 0)) & (j >= 20) & (j < 25)
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def computed(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many parts of calls the kernel computed, forward and backward."""
    counted: Counter[str] = Counter()
    for name in ("forward", "backward"):
        own = getattr(Kernels, name)
        monkeypatch.setattr(Kernels, name, lambda *given, n=name, own=own: counted.update([n]) or own(*given))
    return counted


def allowed(pattern: str, q_len: int, k_len: int) -> np.ndarray:
    """The pairs that a pattern allows, by its formula."""
    return PATTERNS[pattern](np.arange(q_len)[:, None] + k_len - q_len, np.arange(k_len)[None])


def errors(
    pattern: str, dtype: torch.dtype, heads: tuple[int, int], lengths: tuple[int, int], backend: str = "tiled",
    **options: Any,
) -> dict[str, float]:  # fmt: skip
    """The largest error of each result and gradient, in units of its bound."""
    names = {"heads": heads[0], "kv_heads": heads[1], "q_len": lengths[0], "k_len": lengths[1]}
    qkv = make_qkv(**names, dtype=dtype)
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv)
    leaves = {"dq": q, "dk": k, "dv": v}
    if (sink := options.get("sink")) is not None:
        options["sink"] = leaves["dsink"] = sink.detach().clone().requires_grad_()
    detail = rg.attention_detail(q, k, v, pattern=pattern, backend=backend, want=["log_sum_exp"], **options)
    grad = torch.randn(detail.output.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    detail.output.backward(grad)
    numbers = [x.double() for x in qkv]
    scale = options.get("scale", 5**-0.5)
    expected = answer(
        *(x.numpy() for x in numbers), allowed(pattern, *lengths), scale=scale, grad_output=grad.double().numpy(),
        softcap=options.get("softcap"), sink=None if sink is None else sink.detach().double().numpy(),
    )  # fmt: skip
    budget = Budget.of(*numbers, dtype, scale=scale, sink=sink, grad_output=grad.double(), answer=expected)
    found = {"output": detail.output, "log_sum_exp": detail.log_sum_exp} | {name: x.grad for name, x in leaves.items()}
    assert detail.output.dtype == dtype
    return {name: budget.share(name, x, getattr(expected, name)) for name, x in found.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lengths", SIZES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_values_and_gradients_equal_the_formula(pattern, heads, lengths, dtype, computed):
    shares = errors(pattern, dtype, heads, lengths)
    assert max(shares.values()) <= 1, shares
    assert computed["forward"] > 0
    assert computed["backward"] > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_sinks_and_another_scale_equal_the_formula(pattern, dtype, computed):
    wide = torch.promote_types(dtype, torch.float32)
    sink = torch.tensor([0.5, -1.0, 2.0, -torch.inf, 0.0, 1.5], dtype=wide)
    shares = errors(pattern, dtype, (6, 3), (131, 31), sink=sink, scale=-0.37)
    assert max(shares.values()) <= 1, shares
    assert computed["backward"] > 0


@pytest.mark.parametrize("pattern", ["strided(7) & key_span(20, 25)", "causal & strided(7) & key_span(20, 25)"])
def test_rows_without_a_key_are_zeros_with_zero_gradients(pattern, computed):
    """Whole residues are empty; under a causal pattern also the first rows of the others."""
    empty = torch.from_numpy(~allowed(pattern, 127, 127).any(1))
    q, k, v = make_qkv(q_len=127, k_len=127, requires_grad=True)
    detail = rg.attention_detail(q, k, v, pattern=pattern, backend="tiled", want=["log_sum_exp"])
    detail.output.sum().backward()
    assert 0 < empty.sum() < 127
    assert (detail.output[:, :, empty] == 0).all()
    assert (detail.log_sum_exp[:, :, empty] == -torch.inf).all()
    assert (q.grad[:, :, empty] == 0).all()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert computed["backward"] > 0


@pytest.mark.parametrize("lengths", SIZES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_without_the_library_results_are_equal(pattern, lengths, computed, monkeypatch, fresh_plans):
    def results() -> list[torch.Tensor]:
        q, k, v = make_qkv(q_len=lengths[0], k_len=lengths[1], dtype=torch.float64, requires_grad=True)
        plan = rg.plan_attention(q, k, v, pattern=pattern, backend="tiled", want=["log_sum_exp"])
        detail = plan.detail(q, k, v)
        loss = detail.output.square().sum() + detail.log_sum_exp.exp().sum()
        return [detail.output, detail.log_sum_exp, *torch.autograd.grad(loss, (q, k, v))]

    with_library = results()
    assert computed["forward"] > 0
    fresh_plans()
    monkeypatch.setattr(kernels, "load", lambda: "there is none")
    computed.clear()
    without = results()
    assert not computed
    for one, other in zip(with_library, without, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_softcap_is_computed_by_the_native_backend(dtype, computed):
    shares = errors("strided(7)", dtype, (6, 3), (127, 127), backend="auto", softcap=2.5)
    assert max(shares.values()) <= 1, shares
    assert not computed


@pytest.mark.parametrize(
    ("backend", "pattern", "q_len", "options", "why"),
    [
        ("tiled", "strided(64)", 4096, {}, "native, "),
        ("tiled", "causal & strided(64)", 4096, {}, "native, "),
        ("native", "strided(64)", 4096, {"softcap": 30.0}, "tiled refused: the fused operations have no softcap"),
        ("native", "causal & strided(64)", 512, {}, "tiled, "),
        ("native", "strided(64)", 1, {}, "tiled, "),
    ],
)
def test_the_plan_names_the_backend_of_a_strided_pattern(backend, pattern, q_len, options, why):
    q, k = (torch.empty(1, 1, 1, 64).expand(1, 8, length, 64) for length in (q_len, min(4096, max(q_len, 512))))
    plan = rg.plan_attention(q, k, k, pattern=pattern, **options)
    assert (plan.backend, why in str(plan)) == (backend, True), plan


def test_a_program_has_a_kernel_for_each_number_of_rows_and_heads():
    q, k, v = make_qkv(batch=3, heads=6, kv_heads=3, q_len=31, k_len=31)
    plan = rg.plan_attention(q, k, v, pattern="causal & strided(7)", backend="tiled")
    calls = plan._offer.run.__self__
    sizes = [(3, 6, 3), (1, 6, 3), (3, 3, 3), (3, 6, 1)]
    made = [
        calls.kernels._of(calls.shares[0].ahead, q[:rows, :heads], k[:rows, :groups]) for rows, heads, groups in sizes
    ]
    assert [(one.problem.batch, one.problem.heads, one.problem.kv_heads) for one in made] == sizes
    assert calls.kernels._of(calls.shares[0].ahead, q, k) is made[0]
