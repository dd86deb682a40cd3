"""Statistics with sinks and without equal those of the oracle's weights for every backend, and have gradients."""

import numpy as np
import pytest
import torch
from asking import ask, computing, cut

import regard as rg
from regard import patterns as p
from regard.core.tensors import Stored
from regard.testing import answer, make_qkv

COUNT, ROWS, HEADS = 4, (0, 2, 3), (1, 0)
SINK = torch.tensor([0.3, -1.2, 2.5, -torch.inf, 0.0, -0.4], dtype=torch.float64)
NAMES = ("log_sum_exp", "entropy", "received", "distance", "sink", "weights", "chosen_weights", "top_keys")
WANT = (*NAMES[:6], rg.weights_of(ROWS, HEADS), rg.top_keys(COUNT))
EACH = dict(zip(NAMES, WANT, strict=True))
PATTERNS = (
    "full", "causal_window(3)", "causal & strided(2)", "global_tokens(2)", "causal & ~causal", "key_span(2, 5)",
    "per_head(causal, full, sliding_window(3), causal, ~causal, fixed(4))",
)  # fmt: skip
SMALL = PATTERNS[:4]


def expected_of(q, k, v, pattern, sink) -> dict[str, np.ndarray]:
    """Every statistic by its formula of the oracle's weights, which sum to 1 minus the weight of the sink."""
    q_len, k_len = q.shape[2], k.shape[2]
    allowed = p.parse(pattern).dense(q_len, k_len).numpy()
    given = None if sink is None else sink.numpy()
    found = answer(*(x.numpy() for x in (q, k, v)), allowed, scale=q.shape[3] ** -0.5, sink=given)
    w, far = found.weights, np.abs(np.arange(k_len) - np.arange(k_len - q_len, k_len)[:, None])
    ranked = np.zeros((*w.shape[:3], COUNT))
    ranked[..., :k_len] = -np.sort(-w, axis=-1)[..., :COUNT]
    return {
        "output": found.output, "log_sum_exp": found.log_sum_exp, "received": w.sum(2), "weights": w,
        "distance": (w * far).sum(-1), "sink": np.zeros(w.shape[:3]) if sink is None else found.sink,
        "chosen_weights": w[:, HEADS][:, :, ROWS], "top_keys": ranked,
        "entropy": -np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0).sum(-1),
    }  # fmt: skip


def check(detail, names, expected) -> None:
    for name in ("output", *names):
        found = detail.top_keys.weights if name == "top_keys" else getattr(detail, name)
        np.testing.assert_allclose(found.numpy(), expected[name], rtol=1e-10, atol=1e-11, err_msg=name)
    if "top_keys" in names:
        w, indices = expected["weights"], detail.top_keys.indices.numpy()
        named = np.where(indices < 0, 0, np.take_along_axis(w, np.maximum(indices, 0), -1))
        np.testing.assert_allclose(named, expected["top_keys"], rtol=1e-10, atol=1e-11)
        assert indices.min() >= -1
        assert ((indices >= 0).sum(-1) == np.minimum(COUNT, (w > 0).sum(-1))).all()
        ordered = np.sort(indices, -1)
        assert not ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(), "a key is named twice"


@pytest.mark.parametrize("sink", [None, torch.stack([SINK, SINK.flip(0)])], ids=["plain", "sinks"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_statistics_equal_the_oracle_together_and_alone(pattern, sink, monkeypatch):
    for number, (q_len, k_len) in enumerate([(7, 11), (11, 7), (67, 70)]):
        monkeypatch.undo() if number == 2 else cut(monkeypatch)
        q, k, v = make_qkv(q_len=q_len, k_len=k_len, dtype=torch.float64)
        expected, options = expected_of(q, k, v, pattern, sink), {"pattern": pattern, "sink": sink}
        for backend in computing(q, k, v, **options):
            check(ask(backend, q, k, v, want=WANT, **options), NAMES, expected)
            one = NAMES[(len(pattern) + number) % len(NAMES)]
            if one != "top_keys":
                check(ask(backend, q, k, v, want=EACH[one], **options), (one,), expected)


@pytest.mark.parametrize("pattern", SMALL)
def test_every_statistic_sends_its_gradient_to_queries_keys_and_sinks(pattern, monkeypatch):
    """Along a random direction, which depends on every derivative."""
    cut(monkeypatch)
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 4, "k_len": 5, "head_dim": 2, "v_dim": 1}
    q, k, v = make_qkv(**sizes, dtype=torch.float64)
    sink = torch.tensor([0.2, -0.7], dtype=torch.float64, requires_grad=True)
    leaves = q.requires_grad_(), k.requires_grad_(), sink
    for backend in computing(q, k, v, pattern=pattern, sink=sink):

        def statistics(q, k, sink, backend=backend):
            detail = ask(backend, q, k, v, pattern=pattern, sink=sink, want=(*WANT[:-1], rg.top_keys(2)))
            found = [detail.output, *(getattr(detail, name) for name in NAMES[:-1]), detail.top_keys.weights]
            return tuple(x.sin() for x in found)

        assert torch.autograd.gradcheck(statistics, leaves, fast_mode=True), backend


@pytest.mark.parametrize("backend", ["auto", "decode"])
@pytest.mark.parametrize("sink", [None, -0.5])
def test_weights_over_an_int8_cache_sum_to_1_though_the_queries_are_narrow(backend, sink):
    drawn = torch.randn(2, 1, 2, 67, 16, generator=torch.Generator().manual_seed(0)).clamp(-3, 3) * 40
    k, v = (Stored(x.round().to(torch.int8), torch.full((1, 2, 67, 1), 0.0517)) for x in drawn)
    q = 4 * torch.randn(1, 4, 3, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    found = rg.attention_detail(q, k, v, want=("weights", "sink"), sink=sink, backend=backend)
    assert float((found.weights.double().sum(-1) + found.sink - 1).abs().max()) < 1e-4


def test_asking_changes_no_bit_of_the_output():
    q, k, v = make_qkv(q_len=300, k_len=290)
    for pattern in (None, "causal", "causal_window(20)", "sliding_window(8) | global_tokens(0)"):
        for backend in computing(q, k, v, pattern=pattern):
            plain = ask(backend, q, k, v, pattern=pattern).output
            assert torch.equal(ask(backend, q, k, v, pattern=pattern, want=WANT).output, plain)


def test_what_was_not_asked_for_is_refused_and_not_none():
    x = torch.zeros(1, 1, 6, 4)
    for backend in computing(x, x, x, pattern="causal_window(2)"):
        detail = ask(backend, x, x, x, pattern="causal_window(2)", want="sink")
        for name in set(NAMES) - {"sink"}:
            asked = "weights_of" if name == "chosen_weights" else name
            with pytest.raises(rg.RegardError, match=rf"{asked} was not requested.*requested: sink"):
                getattr(detail, name)
