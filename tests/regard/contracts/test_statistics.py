"""Statistics over narrow caches, beside the output, and where not requested; the fuzzer checks their values."""

import pytest
import torch
from asking import ask, computing

import regard as rg
from regard.core.tensors import Stored
from regard.testing import make_qkv

NAMES = (
    "log_sum_exp",
    "entropy",
    "received",
    "distance",
    "sink",
    "weights",
    "chosen_weights",
    "top_keys",
)
WANT = (*NAMES[:6], rg.weights_of((0, 2, 3), (1, 0)), rg.top_keys(4))


@pytest.mark.parametrize("backend", ["auto", "decode"])
@pytest.mark.parametrize("sink", [None, -0.5])
def test_weights_over_an_int8_cache_sum_to_1_though_the_queries_are_narrow(backend, sink):
    drawn = torch.randn(2, 1, 2, 67, 16, generator=torch.Generator().manual_seed(0))
    scales = torch.full((1, 2, 67, 1), 0.0517)
    k, v = (Stored((40 * x.clamp(-3, 3)).round().to(torch.int8), scales) for x in drawn)
    q = 4 * torch.randn(1, 4, 3, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    detail = rg.attention_detail(q, k, v, want=("weights", "sink"), sink=sink, backend=backend)
    assert float((detail.weights.double().sum(-1) + detail.sink - 1).abs().max()) < 1e-4


def test_asking_changes_no_bit_of_the_output():
    q, k, v = make_qkv(q_len=300, k_len=290)
    for pattern in (None, "causal", "causal_window(20)", "sliding_window(8) | global_tokens(0)"):
        for backend in computing(q, k, v, pattern=pattern):
            plain = ask(backend, q, k, v, pattern=pattern).output
            assert torch.equal(ask(backend, q, k, v, pattern=pattern, want=WANT).output, plain)


@pytest.mark.parametrize("name", ["entropy", "received", "distance", "weights"])
def test_first_and_second_derivatives_of_a_statistic_are_those_of_its_formula(name):
    q, k, v = make_qkv(kv_heads=6, dtype=torch.float64, requires_grad=True)
    q_pos = 4 + torch.arange(7)[:, None]  # 11 keys
    k_pos = torch.arange(11)
    later = k_pos > q_pos
    scores = (q @ k.mT / 5**0.5).masked_fill(later, -torch.inf)
    weights = scores.softmax(-1)
    logs = scores.log_softmax(-1).masked_fill(later, 0)
    formulas = {
        "entropy": -(weights * logs).sum(-1),
        "received": weights.sum(-2),
        "distance": (weights * (q_pos - k_pos).abs()).sum(-1),
        "weights": weights,
    }

    def derivatives(statistic: torch.Tensor) -> list[torch.Tensor]:
        (first,) = torch.autograd.grad(statistic.sin().sum(), q, create_graph=True)
        return [first, *torch.autograd.grad(first.square().sum(), (q, k))]

    statistic = getattr(rg.attention_detail(q, k, v, pattern="causal", want=name), name)
    torch.testing.assert_close(statistic, formulas[name])
    torch.testing.assert_close(derivatives(statistic), derivatives(formulas[name]))


def test_what_was_not_asked_for_is_refused_and_not_none():
    x = torch.zeros(1, 1, 6, 4)
    for backend in computing(x, x, x, pattern="causal_window(2)"):
        detail = ask(backend, x, x, x, pattern="causal_window(2)", want="sink")
        for name in set(NAMES) - {"sink"}:
            statistic = "weights_of" if name == "chosen_weights" else name
            sentence = rf"{statistic} was not requested.*requested: sink"
            with pytest.raises(rg.RegardError, match=sentence):
                getattr(detail, name)
