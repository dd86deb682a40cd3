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
