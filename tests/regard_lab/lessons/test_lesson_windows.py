import pytest
import torch
from teaching import failing, starting

from regard.layers import MultiHeadAttention
from regard.patterns import Pattern, SlidingWindow, parse
from regard.patterns.band import Reach
from regard_lab.lessons import windows
from regard_lab.lessons.words import embedded, normal, seeded


@pytest.mark.parametrize("text", windows.PATTERNS)
def test_the_gradient_finds_what_editing_a_word_moves(text):
    pattern, layers = parse(text), 2
    x = embedded([f"word{place}" for place in range(17)], windows.DIM, 0)
    stack = torch.nn.Sequential(
        *(seeded(layer, MultiHeadAttention, windows.DIM, 2, pattern=pattern) for layer in range(layers))
    )
    moved = torch.zeros(17, 17, dtype=torch.bool)
    for place in range(17):
        edited = x.clone()
        edited[:, place] = normal(5, windows.DIM)
        moved[:, place] = (stack(edited) - stack(x))[0].abs().amax(-1) > 1e-13
    assert torch.equal(windows.receptive(pattern, x, layers, seed=0) > 0, moved)


def test_a_reach_that_is_one_short_is_seen(monkeypatch):
    real = Pattern.reach

    def short(self, layers=1):
        found = real(self, layers)
        return Reach(found.back and found.back - 1, found.ahead)

    monkeypatch.setattr(Pattern, "reach", short)
    assert starting(failing("windows"), "reach(layers) is how far")


def test_layers_that_look_farther_are_seen(monkeypatch):
    class Wide(MultiHeadAttention):
        def __init__(self, dim, heads, pattern):
            super().__init__(dim, heads, pattern=pattern | SlidingWindow(12))

    monkeypatch.setattr(windows, "MultiHeadAttention", Wide)
    assert starting(failing("windows"), "reach(layers)", "The patterns predict")


def test_a_stack_whose_first_layer_alone_looks_is_seen(monkeypatch):
    def first(layer, *module, **options):
        return seeded(layer, *module, **options) if layer == 0 else torch.nn.Identity()

    monkeypatch.setattr(windows, "seeded", first)
    assert starting(failing("windows"), "reach(layers)", "The patterns predict", "Each layer extends the reach")
