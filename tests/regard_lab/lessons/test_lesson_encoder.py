"""The encoder's claims, each seen to fail when what it is about is broken."""

import math

import pytest
import torch
from teaching import failing, starting

from regard.layers import FeedForward, MultiHeadAttention
from regard_lab.lessons import encoder, find_lesson
from regard_lab.models import layers


def test_the_lengths_are_those_of_the_model_s_own_vectors():
    numbers = find_lesson("encoder").teach().numbers
    words = tuple(numbers["words"])
    model, ids = encoder.new_model(words, 0), encoder.encode(words)
    with torch.no_grad():
        x = model.embedding(ids)[0] * math.sqrt(encoder.DIM) + model.positions(torch.arange(len(words))).double()
        x = x[None]
        assert x[0].norm(dim=-1).tolist() == pytest.approx(numbers["start"], abs=1e-4)
        for block in model.blocks:
            x = block(x)
    assert x[0].norm(dim=-1).tolist() == pytest.approx(numbers["written"], abs=1e-4)
    mean = x[0].mean(0)
    spread = math.sqrt(sum(float((row - mean).square().sum()) for row in x[0]) / float(x.square().sum()))
    assert numbers["spread"]["with"][-1] == pytest.approx(spread, abs=1e-5)


def test_every_claim_holds_for_words_that_repeat():
    assert failing("encoder", seed=5, text="a a a") == []


def test_a_lost_residual_is_seen(monkeypatch):
    monkeypatch.setattr(layers, "residual", lambda x, part, norm, dropout, **options: part(norm(x)))
    assert starting(failing("encoder"), "A word's vector at the end")


def test_norms_that_do_nothing_are_seen(monkeypatch):
    monkeypatch.setattr("torch.nn.LayerNorm.forward", lambda self, x: x)
    assert starting(failing("encoder"), "The norms scale the input")


def test_an_encoder_that_does_not_look_ahead_is_seen(monkeypatch):
    real = MultiHeadAttention.forward
    monkeypatch.setattr(
        MultiHeadAttention, "forward", lambda self, x, pattern=None, **more: real(self, x, pattern="causal", **more)
    )
    assert starting(failing("encoder"), "In self-attention every word")


def test_a_feed_forward_that_mixes_words_is_seen(monkeypatch):
    real = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: real(self, x) + 0.01 * x.mean(1, keepdim=True))
    assert starting(failing("encoder"), "The feed-forward network computes")


def test_residuals_that_do_not_help_are_seen(monkeypatch):
    real = encoder._spread
    monkeypatch.setattr(encoder, "_spread", lambda model, x, residuals=True: real(model, x, residuals=False))
    assert starting(failing("encoder"), "With residual connections", "Without them")


def test_residuals_that_are_never_left_out_are_seen(monkeypatch):
    real = encoder._spread
    monkeypatch.setattr(encoder, "_spread", lambda model, x, residuals=True: real(model, x))
    assert starting(failing("encoder"), "Without them")
