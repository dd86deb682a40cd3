"""Statistics equal those of the oracle's weights for every backend, and have gradients."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from asking import ask, computing
from cell_patterns import PATTERNS
from cells import Places
from small_blocks import cut

import regard as rg
from regard.bias import ALiBi
from regard.core.result import weights_of
from regard.testing import Answer, Budget, answer, make_qkv

COUNT, ROWS, HEADS = 4, (0, 2, 3), (1, 0)
NAMES = ("log_sum_exp", "entropy", "received", "distance", "weights", "top_keys", "chosen_weights")
WANT = (*NAMES[:5], rg.top_keys(COUNT), weights_of(ROWS, HEADS))
EACH = dict(zip(NAMES, WANT, strict=True))
CUTS = {"as shipped": pytest.MonkeyPatch.undo, "small": cut}


def check(detail, want, expected: Answer, at: Places, budget: Budget) -> None:
    """Every statistic in `want` against the oracle's weights."""
    w = expected.weights
    entropy = -np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0).sum(-1)
    told = {
        "entropy": entropy, "received": w.sum(2), "distance": (w * np.abs(at.i - at.j)).sum(-1), "weights": w,
        "chosen_weights": w[:, HEADS][:, :, ROWS],
    }  # fmt: skip
    for name in told.keys() & want:
        np.testing.assert_allclose(getattr(detail, name).numpy(), told[name], rtol=1e-10, atol=1e-11, err_msg=name)
    if "log_sum_exp" in want:
        assert budget.share("log_sum_exp", detail.log_sum_exp, expected.log_sum_exp) <= 1
    if "top_keys" in want:
        indices, found = detail.top_keys.indices.numpy(), detail.top_keys.weights.numpy()
        ranked = np.zeros((*w.shape[:3], COUNT))
        ranked[..., : w.shape[3]] = -np.sort(-w, axis=-1)[..., :COUNT]
        np.testing.assert_allclose(found, ranked, rtol=1e-11, atol=1e-13)
        looked_up = np.where(indices < 0, 0, np.take_along_axis(w, np.maximum(indices, 0), -1))
        np.testing.assert_allclose(looked_up, ranked, rtol=1e-11, atol=1e-13)
        assert ((indices >= 0).sum(-1) == np.minimum(COUNT, (w > 0).sum(-1))).all()
        ordered = np.sort(indices, -1)
        assert not ((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)).any(), "a key is named twice"


@pytest.mark.parametrize("name", PATTERNS)
def test_statistics_equal_the_oracle_in_blocks_of_any_size(name, monkeypatch):
    """All at once, with keys and queries that do and do not fill their blocks, and one by one."""
    sizes = [((7, 11), (6, 3), "small"), ((11, 7), (2, 2), "small"), ((67, 70), (2, 1), "as shipped")]
    for number, ((q_len, k_len), (heads, kv_heads), cut_up) in enumerate(sizes[: 2 + (len(name) % 3 == 0)]):
        CUTS[cut_up](monkeypatch)
        at, bias = Places.of(2, heads, q_len, k_len), ALiBi() if heads == 2 and number == 1 else None
        q, k, v = make_qkv(q_len=q_len, k_len=k_len, heads=heads, kv_heads=kv_heads, dtype=torch.float64)
        options = {"pattern": PATTERNS[name].build(at), "bias": bias}
        added = None if bias is None else -np.array([2.0**-4, 2.0**-8])[at.h] * np.abs(at.i - at.j)
        tensors = [x.numpy() for x in (q, k, v)]
        expected = answer(*tensors, PATTERNS[name].formula(at), scale=5**-0.5, bias=added)
        budget = Budget.of(
            q, k, v, torch.float64, scale=5**-0.5, bias=None if added is None else torch.from_numpy(added)
        )
        for backend in computing(q, k, v, **options):
            detail = ask(backend, q, k, v, want=WANT, **options)
            check(detail, set(NAMES), expected, at, budget)
            assert budget.share("output", detail.output, expected.output) <= 1
            if number:
                continue
            one = NAMES[len(name) % len(NAMES)]
            check(ask(backend, q, k, v, want=EACH[one], **options), {one}, expected, at, budget)


SMALL = ["full", "causal_window(3)", "causal & strided(2)", "global_tokens(2)"]  # fmt: skip


@pytest.mark.parametrize("pattern", SMALL)
@pytest.mark.parametrize("along_a_direction", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_statistic_sends_its_gradient(pattern, along_a_direction, monkeypatch):
    """Along a random direction, which depends on every derivative; the slow form compares them one by one."""
    cut(monkeypatch)
    sizes = {"batch": 1, "heads": 2, "kv_heads": 1, "q_len": 4, "k_len": 5, "head_dim": 2, "v_dim": 1}
    q, k, v = make_qkv(**sizes, dtype=torch.float64)
    leaves = q.requires_grad_(), k.requires_grad_()
    for backend in computing(q, k, v, pattern=pattern):

        def told(q, k, backend=backend):
            detail = ask(backend, q, k, v, pattern=pattern, want=WANT)
            found = SimpleNamespace(**{name: getattr(detail, name) for name in NAMES})
            curved = (found.received, found.weights, found.chosen_weights, found.distance)
            sums = found.log_sum_exp.masked_fill(found.log_sum_exp == -torch.inf, 0)
            return sums, found.entropy, *(x.sin() for x in curved), found.top_keys.weights

        assert torch.autograd.gradcheck(told, leaves, fast_mode=along_a_direction), backend


def test_asking_changes_no_bit_of_the_output():
    q, k, v = make_qkv(q_len=300, k_len=290)
    for pattern in (None, "causal", "causal_window(20)", "sliding_window(8) | global_tokens(0)"):
        for backend in computing(q, k, v, pattern=pattern):
            plain = ask(backend, q, k, v, pattern=pattern).output
            assert torch.equal(ask(backend, q, k, v, pattern=pattern, want=WANT).output, plain)


def test_top_keys_are_padded_with_no_key_and_no_weight():
    x = torch.zeros(1, 1, 2, 4)
    for backend in computing(x, x, x, pattern="causal"):
        top = ask(backend, x, x, x, pattern="causal", want=rg.top_keys(5)).top_keys
        assert top.indices.shape == top.weights.shape == (1, 1, 2, 5)
        assert top.indices[0, 0, 0].tolist() == [0, -1, -1, -1, -1]
        assert top.weights[0, 0, 1].tolist() == [0.5, 0.5, 0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_asked_for_is_refused_and_not_none(name):
    x = torch.zeros(1, 1, 6, 4)
    other = "entropy" if name == "weights" else "weights"
    for backend in computing(x, x, x, pattern="causal_window(2)"):
        detail = ask(backend, x, x, x, pattern="causal_window(2)", want=other)
        asked = "weights_of" if name == "chosen_weights" else name
        if name != other:
            with pytest.raises(rg.RegardError, match=rf"{asked} was not requested.*requested: {other}"):
                getattr(detail, name)
