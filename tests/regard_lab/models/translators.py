"""Small translators of every kind, in float64."""

import copy
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st

from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.text.batches import pad

TRANSFORMER: dict[str, Any] = {
    "vocab_size": 41,
    "dim": 24,
    "heads": 4,
    "hidden_dim": 36,
    "encoder_layers": 2,
    "decoder_layers": 3,
}
RECURRENT: dict[str, Any] = {"vocab_size": 41, "dim": 10, "hidden": 14}
TRANSFORMERS: list[dict[str, Any]] = [
    {},
    {"norm": "post"},
    {"tied": False},
    {"positions": "learned", "max_length": 64},
    {"positions": "rotary"},
    {"encoder_kv_heads": 2, "decoder_kv_heads": 1, "cross_kv_heads": 2},
    {"encoder_pattern": "sliding_window(4)", "decoder_pattern": "causal_window(3)"},
    {"positions": "rotary", "cross_pattern": "sliding_window(6)"},
    {"decoder_pattern": "full | key_span(0, 2)", "cross_pattern": "causal | key_span(0, 3)"},
    {"encoder_mechanism": "performer(8)", "positions": "rotary"},
    {"encoder_mechanism": "lsh(4, 4)"},
    {"encoder_mechanism": "linformer(16, 4)"},
]
RECURRENTS: list[dict[str, Any]] = [
    {"attention": "bahdanau"},
    {
        "attention": "bahdanau",
        "cell": "lstm",
        "encoder_layers": 2,
        "decoder_layers": 3,
        "tied": False,
    },
    {"attention": "luong-dot"},
    {"attention": "luong-general", "cell": "lstm", "input_feeding": True, "decoder_layers": 2},
    {"attention": "luong-concat", "input_feeding": True, "tied": False},
    {"attention": "luong-dot", "reach": "local-m", "window": 2, "input_feeding": True},
    {"attention": "luong-general", "reach": "local-m", "window": 1},
    {"attention": "luong-general", "reach": "local-p", "window": 2},
    {"attention": "luong-concat", "reach": "local-p", "window": 3, "input_feeding": True},
    {"attention": "none"},
    {"attention": "none", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 2},
]
SOURCES = [[5, 6, 7, 8, 3], [9, 3], [11, 12, 13, 3]]
# Of the rows of SOURCES: rows leave, a beam of 5 grows and is mixed, and texts get unequal numbers of rows.
ORDERS = [[0, 2], [0] * 5 + [1] * 5, [4, 4, 0, 1, 3, 9, 8, 8, 5, 6], [0, 7, 7]]
texts = st.lists(st.integers(4, 40), min_size=1, max_size=9)


def translator(**changes: Any) -> Any:
    """A model that the caller may change: recurrent if an attention is named, otherwise a Transformer."""
    return copy.deepcopy(shared_translator(**changes))


def shared_translator(**changes: Any) -> Any:
    """The same model for all callers, which do not change it."""
    return _made(tuple(changes.items()))


def begin(model: Any, sources: list[list[int]] = SOURCES) -> Any:
    """The state of a translator that has read the sources."""
    return model.start(pad(sources))


@cache
def _made(settings: tuple[tuple[str, Any], ...]) -> Any:
    torch.manual_seed(0)
    changes = dict(settings)
    kind = TranslationTransformer
    sizes = TRANSFORMER
    size = 0.1
    if "attention" in changes:
        kind = RecurrentTranslator
        sizes = RECURRENT
        size = 0.3
    model = kind(kind.Config(**{**sizes, **changes})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from flat, so that a wrong path shows
            parameter.add_(size * torch.randn_like(parameter))
    return model
