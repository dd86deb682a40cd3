"""A row with no key: zeros, zero gradient, log-sum-exp -inf, entropy 0; never NaN, never an average."""

import math

import pytest
import torch
from asking import LEARNING, PLAIN, ask, computing

import regard as rg
from regard import patterns as p
from regard.testing import make_qkv

EMPTY = {
    "ends align, more queries than keys": ({"q_len": 9, "k_len": 4}, "causal", {}, range(5)),
    "q_start below zero": ({"q_len": 4, "k_len": 6}, "causal", {"q_start": -3}, range(3)),
    "window beyond the last key": (
        {"q_len": 5, "k_len": 4},
        "causal_window(2)",
        {"q_start": 3},
        range(2, 5),
    ),
    "span of nothing": ({"q_len": 3, "k_len": 5}, "key_span(2, 2)", {}, range(3)),
    "contradiction": ({"q_len": 3, "k_len": 5}, "causal & ~causal", {}, range(3)),
    "blocks, some of them empty": (
        {"q_len": 600, "k_len": 40},
        "causal_window(8)",
        {"q_start": 0},
        range(47, 600),
    ),
    "blocks behind the last visible key": (
        {"q_len": 600, "k_len": 600},
        p.CausalWindow(2) & p.KeySpan(0, 8) & p.Where(lambda i, j: j >= 0),
        {},
        range(9, 600),
    ),
    "bias hides all": (
        {"q_len": 3, "k_len": 5},
        None,
        {"bias": torch.tensor([[0.0], [-math.inf], [0.0]])},
        range(1, 2),
    ),
    "rows apart that see nothing": (
        {"q_len": 6, "k_len": 2},
        "causal_window(5) & global_tokens(0, 7)",
        {"q_start": 3},
        range(2, 6),
    ),
    "a global token that is forbidden": (
        {"q_len": 1, "k_len": 5},
        "~global_tokens(4)",
        {},
        range(1),
    ),
    "explicit": (
        {"q_len": 3, "k_len": 2},
        p.Explicit(torch.tensor([[1, 1], [0, 0], [0, 1]]).bool()),
        {},
        range(1, 2),
    ),
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_the_query_of_an_empty_row_holds_reaches_no_gradient(name):
    sizes, pattern, options, rows = EMPTY[name]

    def gradients(filling: float, backend: str) -> list[torch.Tensor]:
        q, k, v = make_qkv(**sizes)
        q[:, :, rows.start : rows.stop] = filling
        q, k, v = (x.requires_grad_() for x in (q, k, v))
        output = ask(backend, q, k, v, pattern=pattern, **options).output
        output.sum().backward()
        return [output, q.grad, k.grad, v.grad]

    for backend in computing(*make_qkv(**sizes, requires_grad=True), pattern=pattern, **options):
        clean = gradients(0.0, backend)
        assert all(map(torch.equal, gradients(math.nan, backend), clean)), backend


@pytest.mark.parametrize("backend", [name for name in LEARNING if name in PLAIN])
def test_the_gradient_of_the_log_sum_exp_of_an_empty_row_is_zero_even_where_it_arrives_as_nan(
    backend,
):
    for pattern, sizes in (
        ("causal", {"q_len": 9, "k_len": 4}),
        ("causal_window(2)", {"q_len": 300, "k_len": 290}),
    ):
        q, k, v = make_qkv(**sizes, requires_grad=True)
        lse = rg.attention_detail(q, k, v, pattern=pattern, backend=backend).log_sum_exp
        lse.backward(torch.where(lse == -math.inf, math.nan, 1.0))
        for x in (q, k):
            assert x.grad.isfinite().all()
