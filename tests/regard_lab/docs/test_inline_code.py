"""Patterns, mechanisms, biases and positions that a line of a page builds can be built, and attention takes them."""

import ast

import pytest
import torch
from page_code import expressions
from test_code_blocks import PAGES, name

import regard as rg
from regard import bias, mechanisms, patterns, positions
from regard.mechanisms.linear import Relu

PUBLIC = {}
for room in (patterns, mechanisms, bias, positions):
    for public_name in room.__all__:
        PUBLIC[public_name] = getattr(room, public_name)
for family in (patterns.Pattern, mechanisms.FeatureMap):  # also those that only texts name
    for kind in family.registry.of_package("regard").values():
        PUBLIC[kind.__name__] = kind
BATCH = 2
HEADS = 3
LENGTH = 6
LIVE = torch.arange(LENGTH) < torch.tensor([6, 4])[:, None]  # (batch, length)
# What the names in a page stand for.
NAMES = {
    "w": 3,
    "d": 2,
    "o": 1,
    "s": 9,
    "c": 1,
    "n": 2,
    "r": 1,
    "block": 3,
    "seed": 0,
    "start": 0,
    "stop": 4,
    "back": 2,
    "ahead": 0,
    "rate": 1.0,
    "stride": 2,
    "size": 3,
    "length": LENGTH,
    "lengths": torch.tensor([6, 4]),
    "q_len": LENGTH,
    "I": [0],
    "ranges": (range(2),),
    "ids": torch.zeros(BATCH, LENGTH, dtype=torch.long),
    "live": LIVE,
    "slopes": torch.ones(HEADS),
    "heads": HEADS,
    "buckets": 4,
    "max_distance": 8,
    "query_dim": 4,
    "key_dim": 4,
    "hidden": 5,
    "window": 2,
    "shift": 1,
    "y": 0,
    "x": 1,
    "D": 2,
    "features": 8,
    "score": mechanisms.ScaledDot(),
    "feature_map": Relu(),
    "gated": False,
    "sigma": 1.0,
    "epsilon": 1e-3,
    "log_forget": -torch.rand(BATCH, HEADS, LENGTH),
    "factor": 4.0,
    "trained": 16,
    "shape": (2, 3),
    "height": 1,
    "width": 5,
    "h": 1,
    "blocks": torch.zeros(1, 1, 1, 1, dtype=torch.long),
    "query_block": 64,
    "keys": torch.zeros(1, 1, LENGTH, 1, dtype=torch.long),
    "parents": torch.arange(LENGTH) - 1,
    "shifts": 1,
    "function": lambda i, j: i >= j,
    "boolean": torch.ones(LENGTH, LENGTH, dtype=torch.bool),
    "rg": rg,
}
TRAINS = "TranslationTraining("  # minutes; the tests of training run it
FRAGMENTS = []
for page_of_docs in PAGES:
    for built_value in expressions(page_of_docs.read_text("utf-8")):
        if TRAINS not in built_value:
            FRAGMENTS.append((page_of_docs, built_value))


def value_of(text: str) -> object:
    """The value of an expression; `mask` is (batch, length) for keys or more axes, else (length, length)."""
    mask = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    if "mask[" in text or "KeyMask(" in text:
        mask = ~LIVE
    return eval(text, {**PUBLIC, **NAMES, "mask": mask})


def use(value: object) -> None:
    """Attend with a pattern, a mechanism or a bias."""
    q = torch.randn(BATCH, HEADS, LENGTH, 4)
    if isinstance(value, patterns.Pattern):
        assert rg.attention(q, q, q, pattern=value, q_start=0).shape == q.shape
    elif isinstance(value, bias.Bias):
        pattern = "causal" if isinstance(value, bias.Forgetting) else None
        if isinstance(value, bias.GridRelative):
            pattern = value.pattern
        assert rg.attention(q, q, q, bias=value, pattern=pattern).shape == q.shape
    elif isinstance(value, positions.Rotary | positions.Scaling):
        rotary = positions.Rotary(scaling=value) if isinstance(value, positions.Scaling) else value
        heads = torch.randn(BATCH, HEADS, LENGTH, 2 * sum(rotary.axes or (4,)))
        assert rotary.rotate(heads, torch.arange(LENGTH)).shape == heads.shape


def test_pages_build_values_in_their_text():
    assert len(FRAGMENTS) > 40


@pytest.mark.parametrize(
    ("page", "text"), FRAGMENTS, ids=[f"{name(page)}: {text}" for page, text in FRAGMENTS]
)
def test_what_a_line_builds_is_usable(page, text):
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    called = {function.id for function in calls if isinstance(function, ast.Name)}
    assert called <= {*PUBLIC, "range"}, f"{name(page)} calls {called - {*PUBLIC}}"
    use(value_of(text))


def test_a_mask_of_the_wrong_shape_is_seen():
    with pytest.raises(rg.ShapeError, match="key padding"):
        use(value_of("Explicit(~mask[:, None, None, :])"))
