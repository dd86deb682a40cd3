"""Claims of the lessons of "Writing text quickly" and "Longer texts" fail when what they are about is broken."""

import pytest
import torch
from teaching import changed_report, failing, starting

import regard_lab.teaching.approximating
from regard.mechanisms import Linformer, Performer
from regard.patterns import Pattern
from regard.patterns.band import Reach


@pytest.fixture(autouse=True)
def _untimed(monkeypatch):
    monkeypatch.setattr(
        regard_lab.teaching, "milliseconds", lambda calls: dict.fromkeys(calls, 1.0)
    )


def test_generation():
    forgets = (
        'model.start(text, "static", capacity=text',
        'model.start(text[:, -1:], "static", capacity=text',
    )
    shared = ("heads=8, kv_heads=kv_heads", "heads=8, kv_heads=8")
    claims = "A step with a cache gives", "With a cache each word", "The cache keeps 2"
    assert starting(failing("generation", forgets, shared), *claims)


def test_grouped(monkeypatch):
    in_turn = (
        "rg.attention(q, k, v) - torch",
        "rg.attention(q, k[:, [0, 1] * 4], v[:, [0, 1] * 4]) - torch",
    )
    other_head = ("weights, v)\n", "weights, v.flip(1))\n")
    drawn = (
        "layer.kv_heads, kv_heads, way)",
        "layer.kv_heads, kv_heads, 'random' if way == 'mean' else way)",
    )
    claims = (
        "Query head h reads",
        "Multi-query attention gives",
        "If the heads of a group",
        "If they differ",
    )
    assert starting(failing("grouped", in_turn, other_head, drawn), *claims)
    rows = changed_report(monkeypatch, "generation")["rows"]
    rows[-1]["uptrained"], rows[0]["uptrained"] = 1.9, 3.8  # of one key/value head, and of four
    claims = (
        "The cache shrinks",
        "In the same memory",
        "Fewer key/value heads cost",
        "Further training recovers",
    )
    assert starting(failing("grouped", ("256, 8, kv_heads=kv_heads).new", "256, 8).new")), *claims)


def test_latent():
    by_head = ("DIM, n, **sizes)", "DIM, n, **{**sizes, 'latent_dim': n})")
    narrower = ("LATENT, ROPE = 4", "LATENT, ROPE = 3")
    other = (
        "latent(x, form=form) for",
        'latent(x if form == "absorbed" else x.flip(1), form=form) for',
    )
    prompt = ("q_len=1, held=HELD", "q_len=HELD")
    claims = (
        "The cache of latents",
        "With the proportions",
        "Absorbed and expanded",
        "A step of decoding",
    )
    assert starting(failing("latent", by_head, narrower, other, prompt), *claims)
    fewer = ("latent_dim=16, rope_dim=16)", "latent_dim=15, rope_dim=16)")
    assert starting(failing("latent", fewer), "A grouped-query model")
    as_many = ("latent_dim=8, rope_dim=8)", "latent_dim=16, rope_dim=16)")
    assert starting(failing("latent", as_many), "With half of them")


def test_windows(monkeypatch):
    wide = failing("windows", ("2, pattern=pattern)", "2, pattern=pattern | p.SlidingWindow(12))"))
    assert starting(wide, "reach(layers)", "The patterns predict", "Each layer extends")
    first = failing(
        "windows", ("for layer in range(layers)]\n    inputs", "for layer in range(1)]\n    inputs")
    )
    assert starting(first, "reach(layers)", "The patterns predict", "Each layer extends the reach")
    real = Pattern.reach
    monkeypatch.setattr(
        Pattern,
        "reach",
        lambda self, layers=1: Reach((real(self, layers).back or 1) - 1, real(self, layers).ahead),
    )
    assert starting(failing("windows"), "reach(layers) is how far")


def test_sparse():
    unused = ("rg.attention(q, k, v, pattern=pattern)", "rg.attention(q, k, v)")
    claims = "Sparse attention gives", "The counts are", "A window keeps", "4 times as many"
    assert starting(
        failing("sparse", unused, ("pattern.count(n, n)", "pattern.count(n, n) + 1")), *claims
    )
    dense = ("p.Strided(s) & p.Causal()", "p.Full()")
    narrow = ("SlidingWindow(WINDOW)", "SlidingWindow(WINDOW - 2)")
    claims = (
        "Strided and fixed keep",
        "4 times as many",
        "Two layers suffice",
        "A window keeps",
        "A window alone needs",
        "Random words alone never",
    )
    assert starting(
        failing("sparse", dense, narrow, ("RandomBlocks(RANDOM,", "RandomBlocks(15,")), *claims
    )
    missing = ("p.RandomBlocks(RANDOM, block=1, seed=SEED)", "p.SlidingWindow(1)")
    assert starting(failing("sparse", missing), "With 3 random words")


def test_choosing():
    fewest = ("weights.topk(count).indices", "weights.topk(count, largest=False).indices")
    claims = "Of all choices of so", "Attention to chosen keys", "A matching key is"
    pushed = ("needle[:, :, 8:16] = -asked / 2", "needle[:, :, 8:16] = asked / 2")
    assert starting(failing("choosing", fewest, pushed), *claims)
    every = (
        "chosen = rg.attention(q, *learning, pattern=p.Causal() & few)",
        "chosen = 3 * rg.attention(q, *learning)",
    )
    untaught = ("optimiser.step()", "optimiser.zero_grad()")
    claims = (
        "The output moves",
        "Attention to chosen keys",
        "A key that no query chose",
        "An indexer learns",
    )
    halved = ("min(one / every for", "min(one / every / 2 for")
    assert starting(failing("choosing", every, untaught, halved), *claims, "Trained with a quarter")
    assert starting(
        failing("choosing", ("min(one / every for", "max(1.0 for")), "So do MoBA and NSA"
    )


def test_linear():
    twice = ("joined = q @ (k.mT @ v)", "joined = (q @ (k.mT @ v) + q @ (k.mT @ v)) / 2 + 0.001")
    softmax = (
        "rg.attention(q, k, v, mechanism=LinearTransformer()), rg",
        "rg.attention(q, k, v), rg",
    )
    claims = (
        "Both orders give",
        "regard's LinearTransformer",
        "Both orders cost",
        "The result differs",
    )
    assert starting(failing("linear", twice, softmax), *claims)
    no_saving = ("joined = q @ (k.mT @ v)", "joined = q @ k.mT @ v")
    forgets = (
        "[state.attend(*one,",
        "[RecurrentState(LinearTransformer(), 1, 1, D, dtype=q.dtype).attend(*one,",
    )
    grows = ("few = state.nbytes", "few = state.nbytes + len(words)")
    claims = "Twice as many words", "Decoding word by word", "These sums"
    assert starting(failing("linear", no_saving, forgets, grows), *claims)


def test_overwriting():
    nothing = (
        '"adds": (1.0, False), "forgets": (DECAY, False)',
        '"adds": (0.9, False), "forgets": (1.0, False)',
    )
    uncorrected = (
        "known = memory.T @ k if corrects else 0",
        "known = memory.T @ k / 2 if corrects else 0",
    )
    claims = (
        "A memory that only adds",
        "Forgetting prefers",
        "Forgetting also weakens",
        "Correcting returns",
        "Correcting is a step",
        "regard computes",
    )
    assert starting(failing("overwriting", nothing, uncorrected), *claims)
    weaker = ("memory + strength *", "memory + strength**2 *")
    similar = ("if count <= D else keys", "if count <= 4 else keys")
    kept = ("torch.tensor([3]), -torch.inf)", "torch.tensor([3]), -1.0)")
    claims = "With a strength of 0.5", "8 keys at right angles", "A decay of 0"
    assert starting(failing("overwriting", weaker, similar, kept), *claims)


def test_approximations(monkeypatch):
    unused = ("*map(Performer, FEATURES)", "*(Performer(16) for _ in FEATURES)")
    another = (
        '("linear transformer", LinearTransformer())',
        '("linear transformer", Performer(64))',
    )
    small = ("LSH(N, 2, 1)", "LSH(N // 2, 2, 1)")
    lossless = ("LSH(32, N // 16, rounds)", "LSH(N, 2, 1)")
    claims = (
        "The error of Performer and RFA",
        "The linear transformer estimates",
        "LSH needs",
        "LSH computes a text",
    )
    assert starting(failing("approximations", unused, another, small, lossless), *claims)

    def mixing_anything(rank, count):
        mixed = torch.randn(
            1, rank, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        return Linformer(count, rank, "keys_and_values"), {"projection": mixed}

    monkeypatch.setattr(regard_lab.teaching.approximating, "means_of_neighbours", mixing_anything)
    monkeypatch.setattr(Performer, "redrawn", lambda self, seed: self)
    claims = (
        "Both estimate",
        "Performer suits flat weights",
        "Linformer needs keys",
        "With as many mixtures",
    )
    assert starting(
        failing("approximations", ('("sharp", sharp, SHARP)', '("sharp", flat, SHARP)')), *claims
    )


def test_complexity(monkeypatch):
    patterns = failing(
        "complexity",
        ('"causal": lambda n: p.Causal()', '"causal": lambda n: p.CausalWindow(64)'),
        ("p.Strided(root(n))", "p.Strided(16)"),
        ('"window": lambda n: p.SlidingWindow(256)', '"window": lambda n: p.Full()'),
    )
    assert starting(
        patterns,
        "Twice as many words",
        "The pairs of strided",
        "The work of recurrent",
        "Self-attention, global",
        "For windows and convolutions",
    )
    steps = ("""["path"]""", """["path"] - 1""")  # a recurrent network that skips a word
    figures = changed_report(monkeypatch, "complexity")
    for row in figures.values():
        row["exponent"] = row["promised"]
    figures["gru"]["cheaper_from"] = "not up to 16,384"
    assert starting(
        failing("complexity", steps), "For windows", "Measured times give", "On one CPU thread"
    )
