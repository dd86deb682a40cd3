"""Claims of the lessons of chapter "Writing text quickly" fail when what they are about is broken."""

import pytest
from teaching import changed_report, failing, starting

import regard_lab.teaching


@pytest.fixture(autouse=True)
def _untimed(monkeypatch):
    monkeypatch.setattr(regard_lab.teaching, "milliseconds", lambda calls: dict.fromkeys(calls, 1.0))


def test_generation():
    forgets = ('model.start(text, "static", capacity=text', 'model.start(text[:, -1:], "static", capacity=text')
    shared = ("heads=8, kv_heads=kv_heads", "heads=8, kv_heads=8")
    claims = "A step with a cache gives", "With a cache each word", "The cache keeps 2"
    assert starting(failing("generation", forgets, shared), *claims)


def test_grouped(monkeypatch):
    in_turn = ("rg.attention(q, k, v) - torch", "rg.attention(q, k[:, [0, 1] * 4], v[:, [0, 1] * 4]) - torch")
    other_head = ("weights, v)\n", "weights, v.flip(1))\n")
    drawn = ("layer.kv_heads, kv_heads, way)", "layer.kv_heads, kv_heads, 'random' if way == 'mean' else way)")
    claims = "Query head h reads", "Multi-query attention gives", "If the heads of a group", "If they differ"
    assert starting(failing("grouped", in_turn, other_head, drawn), *claims)
    rows = changed_report(monkeypatch, "generation")["rows"]
    rows[-1]["uptrained"], rows[0]["uptrained"] = 1.9, 3.8  # of one key/value head, and of four
    claims = "The cache shrinks", "In the same memory", "Fewer key/value heads cost", "Further training recovers"
    assert starting(failing("grouped", ("256, 8, kv_heads=kv_heads).new", "256, 8).new")), *claims)


def test_latent():
    by_head = ("DIM, n, **sizes)", "DIM, n, **{**sizes, 'latent_dim': n})")
    narrower = ("LATENT, ROPE = 4", "LATENT, ROPE = 3")
    other = ("latent(x, form=form) for", 'latent(x if form == "absorbed" else x.flip(1), form=form) for')
    prompt = ("q_len=1, held=HELD", "q_len=HELD")
    claims = "The cache of latents", "With the proportions", "Absorbed and expanded", "A step of decoding"
    assert starting(failing("latent", by_head, narrower, other, prompt), *claims)
    fewer = ("latent_dim=16, rope_dim=16)", "latent_dim=15, rope_dim=16)")
    assert starting(failing("latent", fewer), "A grouped-query model")
    as_many = ("latent_dim=8, rope_dim=8)", "latent_dim=16, rope_dim=16)")
    assert starting(failing("latent", as_many), "With half of them")
