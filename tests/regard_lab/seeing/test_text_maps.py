"""The weights of language models and encoders on one text."""

import pytest
import torch

from regard.errors import ArgumentError
from regard.layers.recording import record_attention
from regard_lab.models import LanguageConfig, LanguageModel
from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.seeing.maps import look_text
from regard_lab.seeing.watching import merge
from regard_lab.text import BEGIN, END, Tokeniser

TEXT = "The cat sat on the mat because it was tired."
TOKENISER = Tokeniser.train([TEXT], vocab_size=280)  # few pieces, so that words have several
SIZES = {"vocab_size": TOKENISER.vocab_size, "dim": 16, "layers": 2, "heads": 2}


def model_of(kind):
    torch.manual_seed(0)
    return LanguageModel(LanguageConfig(**SIZES)) if kind == "causal" else TextEncoder(EncoderConfig(**SIZES))


@pytest.mark.parametrize("kind", ["causal", "encoder"])
def test_the_maps_are_the_weights_of_the_model(kind):
    model = model_of(kind)
    maps = look_text(model, TOKENISER, TEXT)
    ids = [BEGIN, *TOKENISER.encode(TEXT), *([END] if kind == "encoder" else [])]
    with torch.no_grad(), record_attention(model.eval()) as recording:
        model(torch.tensor([ids]))
    second = recording["blocks.1.attention"][0].weights[0]
    torch.testing.assert_close(maps.piece_weights[1], second)
    torch.testing.assert_close(maps.weights[1], merge(second, maps.spans, maps.spans))
    assert maps.words[:3] == ("<begin>", "The", "cat")
    assert (maps.words[-1], maps.causal) == (("<end>", False) if kind == "encoder" else (".", True))
    assert len(ids) > len(maps.words)
    torch.testing.assert_close(maps.weights.sum(-1), torch.ones(2, 2, len(maps.words)))
    ahead = maps.weights.triu(1).any()
    assert bool(ahead) == (kind == "encoder")


def test_the_model_keeps_its_mode():
    model = model_of("causal").train()
    model.norm.eval()
    look_text(model, TOKENISER, TEXT)
    assert model.training
    assert not model.norm.training


def test_another_model_or_tokeniser_is_refused():
    with pytest.raises(ArgumentError, match="`look` takes a translator"):
        look_text(torch.nn.Linear(2, 2), TOKENISER, TEXT)
    other = Tokeniser.train([TEXT], vocab_size=262)
    with pytest.raises(ArgumentError, match=r"has 2[678]. ids and the tokeniser 262"):
        look_text(model_of("causal"), other, TEXT)
