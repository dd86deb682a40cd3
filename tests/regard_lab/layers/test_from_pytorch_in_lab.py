"""Layers of PyTorch become layers of regard, and arguments of PyTorch are answered with what to write."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard as rg
from regard_lab.models import (
    EncoderConfig,
    LanguageConfig,
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.models.recurrent import RecurrentConfig
from regard_lab.models.translation_transformer import TranslationConfig

X, CONTEXT = torch.randn(2, 5, 12, dtype=torch.float64), torch.randn(2, 7, 12, dtype=torch.float64)


def theirs(**options):
    torch.manual_seed(0)
    return nn.MultiheadAttention(12, 3, **{"batch_first": True, "dtype": torch.float64} | options).eval()


MASK = torch.ones(5, 5, dtype=torch.bool)
CALLS = [
    ({"attn_mask": MASK}, r"a boolean mask is pattern=Explicit\(mask\)"),
    ({"key_padding_mask": MASK[:2]}, r"pattern=KeySpan\(0, lengths\)"),
    ({"is_causal": True}, "pattern='causal'"),
    ({"need_weights": True}, "want='weights'"),
    ({"patern": "causal"}, "did you mean 'pattern'|there are"),
]


@pytest.mark.parametrize(
    "model",
    [
        TextEncoder(EncoderConfig(vocab_size=9, dim=8, heads=2, layers=1)),
        LanguageModel(LanguageConfig(vocab_size=9, dim=8, heads=2, layers=1)),
        TranslationTransformer(TranslationConfig(vocab_size=9, dim=8, heads=2, encoder_layers=1, decoder_layers=1)),
        RecurrentTranslator(RecurrentConfig(vocab_size=9, dim=8, hidden=8)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_model_called_with_a_mask_says_that_padding_needs_none(model):
    ids = torch.tensor([[5, 6, 0]])
    for name in ("attention_mask", "src_key_padding_mask"):
        with pytest.raises(rg.KeywordError, match=f"{type(model).__name__} has no argument '{name}'; .*PAD"):
            model(ids, **{name: torch.ones(1, 3)})
