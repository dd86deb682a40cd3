"""Walks of every kind, small, and what they were given."""

from functools import cache
from typing import Any

import torch

from regard_lab.text import Tokeniser
from regard_lab.walkthrough import Walk, walk
from regard_lab.walkthrough.steps import LANGUAGE

SENTENCE = "Life is short, eat dessert first"
CONTEXT = "Dessert first, dinner later!"
HOSTILE = (
    "<script>alert(1)</script>",
    "\"'&",
    "שלום",
    "👩‍💻",
    "a\nb",
    "\u202eevil",
    "\x1b[2J",
    "猫",
    "\udc80",
    "",
)

CASES: dict[str, dict[str, Any]] = {
    "self": {"dim": 15, "heads": 3},
    "one head": {"dim": 7, "heads": 1, "word": "dessert"},
    "causal": {"dim": 14, "heads": 2, "causal": True, "head": 1},
    "cross": {"dim": 15, "heads": 3, "context": CONTEXT, "word": 7},
    "grouped": {"dim": 30, "heads": 6, "kv_heads": 2, "causal": True, "head": 4},
    "one key head": {"dim": 20, "heads": 4, "kv_heads": 1},
    "waves": {"dim": 10, "heads": 2, "positions": "sinusoidal"},
    "waves across": {"dim": 10, "heads": 2, "positions": "sinusoidal", "context": CONTEXT},
    "rotary": {"dim": 20, "heads": 2, "positions": "rotary", "causal": True},
    "rotary grouped": {"dim": 24, "heads": 4, "kv_heads": 2, "positions": "rotary", "head": 3},
}
VARIANTS = {
    "": {},
    " grouped": {"kv_heads": 3, "causal": True},
    " across": {"context": CONTEXT, "kv_heads": 2},
    " alone": {"heads": 1, "head": 0, "dim": 5},
}
for score in ("dot", "general", "concat", "additive"):
    settings = {"dim": 30, "heads": 6, "score": score, "head": 3, "seed": 3}
    for name, options in VARIANTS.items():
        CASES[score + name] = {**settings, **options}
WIDE = {"query_dim": 5, "key_dim": 5, "value_dim": 7}  # another size than dim / heads
CASES |= {
    "wide": {
        "dim": 6,
        "heads": 2,
        **WIDE,
        "words": "letters",
        "draw": "uniform",
        "weights_seed": 4,
    },
    "wide, unequal": {
        "dim": 6,
        "heads": 2,
        "score": "general",
        "query_dim": 5,
        "key_dim": 3,
        "value_dim": 7,
    },
    "wide, grouped across": {
        "dim": 9,
        "heads": 4,
        "kv_heads": 2,
        **WIDE,
        "context": CONTEXT,
        "head": 2,
    },
}
VIEWED = list(CASES)[::3]  # of every kind some, for tests of what all walks have in common


TOKENISER = Tokeniser.train(
    [
        "the animal did not cross the street because it was too tired",
        "das Tier ging nicht über die Straße",
    ]
    * 3,
    330,
)
SIZES = {"vocab_size": TOKENISER.vocab_size, "dim": 12}
TEXT = "the animal was tired"
SOURCE = "das Tier ging"


@cache
def case(name: str) -> Walk:
    return walk(SENTENCE, **CASES[name])


def given(walkthrough: Walk) -> dict[str, Any]:
    return {parameter.name: parameter.value for parameter in walkthrough.given}


def saved(model, folder):
    model.save(folder, {"tokeniser.json": TOKENISER.to_json()})
    return folder


def check_lines(walkthrough: Walk) -> None:
    """The lines of a walk, typed one after the other, give every step."""
    typed = {**LANGUAGE, **given(walkthrough)}
    for step in walkthrough.steps:
        assert step.line.startswith(f"{step.name} = ")
        exec(step.line, typed)
        value = typed[step.name]
        if isinstance(step.value, torch.Tensor):
            torch.testing.assert_close(value, step.value, rtol=0, atol=1e-9)
            assert tuple(value.shape) == tuple(len(axis) for axis in step.axes), step.name
        else:
            assert tuple(value) == step.value
            assert len(value) == len(step.axes[0])
