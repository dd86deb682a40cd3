"""Laws for fixed calls: no option affects another call, batch rows are independent, gradients match values."""

from __future__ import annotations

import pytest
import torch
from asking import PLAIN, ask, computing
from small_blocks import cut

import regard as rg
from regard import patterns as p
from regard.testing import Budget, make_qkv


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    cut(monkeypatch)


@pytest.mark.parametrize("options", [
    {}, {"softcap": 2.0}, {"dropout": 0.3, "dropout_seed": 1}, {"bias": torch.ones(8)}, {"scale": 2.0},
    {"scale": -2.0}, {"scale": 0}, {"softcap": 2.0, "dropout": 0.3, "dropout_seed": 1, "bias": torch.ones(4, 1, 8)},
])  # fmt: skip
@pytest.mark.parametrize("detail", [False, True])
def test_no_option_lets_the_future_leak(options, detail):
    q, k, v = (x.requires_grad_() for x in make_qkv(heads=4, kv_heads=2, q_len=8, k_len=8))
    if detail:
        output = rg.attention_detail(q, k, v, pattern="causal", want=["weights", "entropy"], **options).output
    else:
        output = rg.attention(q, k, v, pattern="causal", **options)
    gradients = torch.autograd.grad(output[:, :, :5].sum(), (k, v))
    assert all((gradient[:, :, 5:] == 0).all() for gradient in gradients)


LOCAL = "causal & (causal_window(3) | global_tokens(0))"


@pytest.mark.parametrize("backend", PLAIN)
def test_one_text_in_a_batch_is_the_same_as_alone_within_the_budget(backend):
    """Not in every bit: a product of other sizes may add up in another order. Each of the two has its own budget."""
    q, k, v = make_qkv(batch=5)
    together = ask(backend, q, k, v, pattern=LOCAL).output
    for row in range(5):
        one = [x[row : row + 1] for x in (q, k, v)]
        alone = ask(backend, *one, pattern=LOCAL).output
        bound = 2 * Budget.of(*one, q.dtype, scale=q.shape[-1] ** -0.5).bound("output", alone.numpy())
        assert (together[row] - alone[0]).abs().max() <= bound


@pytest.mark.parametrize("backend", PLAIN)
def test_what_stands_beside_a_text_in_a_batch_changes_no_bit(backend):
    mine, others = make_qkv(batch=5, seed=1), make_qkv(batch=5, seed=2)
    before = ask(backend, *mine, pattern=LOCAL).output
    for row in range(5):
        alike = torch.arange(5)[:, None, None, None] == row
        joined = [torch.where(alike, x, other) for x, other in zip(mine, others, strict=True)]
        assert torch.equal(ask(backend, *joined, pattern=LOCAL).output[row], before[row])


CHECKED = [
    None, "causal", "causal_window(2)", "causal & strided(2)", "global_tokens(1) | sliding_window(2)",
    "random_blocks(1, block=2, seed=3)", p.SameDocument(torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])),
    p.PerHead([p.CausalWindow(2), p.Fixed(2)]), p.Explicit(torch.eye(3, 4) == 0),
]  # fmt: skip


@pytest.mark.parametrize("pattern", CHECKED, ids=str)
@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("along_a_direction", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_gradients_pass_gradcheck(kv_heads, pattern, along_a_direction):
    """Along a random direction, which depends on every derivative; the slow form compares them one by one."""
    sizes = {"batch": 2, "heads": 2, "kv_heads": kv_heads, "q_len": 3, "k_len": 4, "head_dim": 2, "v_dim": 3}
    q, k, v = make_qkv(**sizes, dtype=torch.float64, requires_grad=True)
    for backend in computing(q, k, v, pattern=pattern):

        def told(q, k, v, backend=backend):
            detail = ask(backend, q, k, v, pattern=pattern, want="log_sum_exp")
            return detail.output, detail.log_sum_exp.exp()

        assert torch.autograd.gradcheck(told, (q, k, v), fast_mode=along_a_direction), backend
