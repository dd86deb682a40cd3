import math

import pytest
import torch
from teaching import failing, starting

from regard.mechanisms import LSH, LinearTransformer, Linformer, Performer
from regard_lab.lessons import approximations


@pytest.fixture(autouse=True)
def _few_words(monkeypatch):
    monkeypatch.setattr(approximations, "WORDS", 128)
    monkeypatch.setattr(approximations, "RANKS", (4, 16, 128))


def test_an_exponential_of_features_is_their_dot_product():
    call = approximations.words(0.5, 0, 4, 8)
    q, k = (torch.nn.functional.elu(x[0, 0]) + 1 for x in (call.q, call.k))
    estimates = approximations._exponentials(LinearTransformer(), call)[0, 0]
    expected = [[float(sum(a * b for a, b in zip(row, key, strict=True))) for key in k] for row in q]
    torch.testing.assert_close(estimates, torch.tensor(expected, dtype=torch.float64))


def test_an_error_is_that_of_the_written_formula():
    call = approximations.words(4.0, 1, 4, 16)
    mixed = approximations.pooled(4, 16)
    x, v = call.q[0, 0], call.v[0, 0]
    exact = (x @ x.mT).softmax(-1) @ v
    groups = [rows.mean(0) for rows in x.split(4)], [rows.mean(0) for rows in v.split(4)]
    estimate = (x @ torch.stack(groups[0]).mT).softmax(-1) @ torch.stack(groups[1])
    expected = float((estimate - exact).norm() / exact.norm())
    assert math.isclose(approximations.error(call, *mixed, seed=0), expected, rel_tol=1e-9)


def test_a_slope_is_the_exponent():
    assert math.isclose(approximations.slope([3.0, 1.5, 0.75], (1, 4, 16)), -0.5)


def test_every_claim_holds():
    assert failing("approximations") == []


def test_features_that_are_not_used_are_seen(monkeypatch):
    monkeypatch.setattr(approximations, "Performer", lambda features, seed=0: Performer(16, seed))
    assert starting(failing("approximations"), "The error of Performer and RFA")


def test_draws_that_are_all_the_same_are_seen(monkeypatch):
    monkeypatch.setattr(Performer, "redrawn", lambda self, seed: self)
    assert starting(failing("approximations"), "Both estimate")


def test_a_linear_transformer_with_random_features_is_seen(monkeypatch):
    monkeypatch.setattr(approximations, "LinearTransformer", lambda: Performer(64))
    assert starting(failing("approximations"), "The linear transformer estimates another")


def test_a_hash_that_loses_nothing_is_seen(monkeypatch):
    monkeypatch.setattr(approximations, "hashed", lambda rounds: LSH(128, 2, 1))
    assert starting(failing("approximations"), "LSH needs similar words")


def test_a_chunk_that_is_too_small_is_seen(monkeypatch):
    monkeypatch.setattr(approximations, "LSH", lambda chunk, *others: LSH(chunk // 2, *others))
    assert starting(failing("approximations"), "A text that fits into one chunk")


def test_weights_that_are_not_sharp_are_seen(monkeypatch):
    monkeypatch.setattr(approximations, "SHARP", approximations.FLAT)
    assert starting(failing("approximations"), "Performer suits flat weights")


def test_mixtures_that_mix_anything_are_seen(monkeypatch):
    def drawn(rank, count):
        mechanism = Linformer(count, rank, "keys_and_values")
        generator = torch.Generator().manual_seed(0)
        return mechanism, {"projection": torch.randn(1, rank, count, generator=generator, dtype=torch.float64)}

    monkeypatch.setattr(approximations, "pooled", drawn)
    assert starting(failing("approximations"), "Linformer needs keys", "With as many mixtures")
