"""Claims of the lessons of chapter "Longer texts" fail when what they are about is broken."""

from teaching import failing, starting

from regard.patterns import Pattern
from regard.patterns.band import Reach


def test_windows(monkeypatch):
    wide = failing("windows", ("2, pattern=pattern)", "2, pattern=pattern | p.SlidingWindow(12))"))
    assert starting(wide, "reach(layers)", "The patterns predict", "Each layer extends")
    first = failing("windows", ("for layer in range(layers)]\n    inputs", "for layer in range(1)]\n    inputs"))
    assert starting(first, "reach(layers)", "The patterns predict", "Each layer extends the reach")
    real = Pattern.reach
    monkeypatch.setattr(
        Pattern, "reach", lambda self, layers=1: Reach((real(self, layers).back or 1) - 1, real(self, layers).ahead)
    )
    assert starting(failing("windows"), "reach(layers) is how far")


def test_sparse():
    unused = ("rg.attention(q, k, v, pattern=pattern)", "rg.attention(q, k, v)")
    claims = "Sparse attention gives", "The counts are", "A window keeps", "4 times as many"
    assert starting(failing("sparse", unused, ("pattern.count(n, n)", "pattern.count(n, n) + 1")), *claims)
    dense, narrow = ("p.Strided(s) & p.Causal()", "p.Full()"), ("SlidingWindow(WINDOW)", "SlidingWindow(WINDOW - 2)")
    claims = ("Strided and fixed keep", "4 times as many", "Two layers suffice", "A window keeps", "A window alone needs",
              "Random words alone never")  # fmt: skip
    assert starting(failing("sparse", dense, narrow, ("RandomBlocks(RANDOM,", "RandomBlocks(15,")), *claims)
    missing = ("p.RandomBlocks(RANDOM, block=1, seed=SEED)", "p.SlidingWindow(1)")
    assert starting(failing("sparse", missing), "With 3 random words")
