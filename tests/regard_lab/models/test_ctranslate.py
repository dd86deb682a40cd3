"""A model of CTranslate2 has the weights of ours: it writes the same texts, with the same log-probabilities."""

import numpy as np
import pytest
import torch

from regard.errors import UnsupportedError
from regard_lab.decoding import greedy_search
from regard_lab.models import TranslationTransformer
from regard_lab.models.ctranslate import ctranslate2_spec, most_positions, reason_against
from regard_lab.text.vocabularies import END, SPECIALS

VOCABULARY = 97
PIECES = [*SPECIALS, *(f"w{number}" for number in range(4, VOCABULARY))]
HELD = {
    "sinusoidal": {},
    "learned": {"positions": "learned", "max_length": 41},
    "rotary": {"positions": "rotary"},
    "norms after each part": {"norm": "post"},
    "matrices of their own": {"tied": False},
    "swiglu": {"activation": "swiglu"},
    "geglu": {"activation": "geglu"},
    "gelu": {"activation": "gelu"},
    "gelu-tanh": {"activation": "gelu-tanh"},
    "silu": {"activation": "silu"},
    "one key/value head": {"encoder_kv_heads": 1, "decoder_kv_heads": 1, "cross_kv_heads": 1},
    "key/value heads that differ": {
        "positions": "rotary",
        "encoder_kv_heads": 6,
        "decoder_kv_heads": 3,
        "cross_kv_heads": 2,
    },
}


def make(**settings):
    torch.manual_seed(5)
    config = TranslationTransformer.Config(
        vocab_size=VOCABULARY,
        dim=36,
        heads=6,
        hidden_dim=51,
        encoder_layers=2,
        decoder_layers=3,
        **settings,
    )
    model = TranslationTransformer(config).eval()
    for parameter in model.parameters():  # biases and norms begin as zeros and ones
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("name", HELD)
def test_ctranslate2_writes_the_texts_of_the_model(name, tmp_path):
    library = pytest.importorskip("ctranslate2", reason="needs pip install 'regard[ctranslate2]'")
    model = make(**HELD[name])
    ctranslate2_spec(model, PIECES).save(str(tmp_path))
    translator = library.Translator(str(tmp_path), intra_threads=1)
    lengths = (1, 2, 3, 5, 7, 11, 13)
    sources = torch.zeros(len(lengths), 14, dtype=torch.int64)
    for row, length in enumerate(lengths):
        sources[row, :length] = torch.randint(4, VOCABULARY, (length,))
        sources[row, length] = END
    ours = greedy_search(model, sources, 17)
    named = [[PIECES[i] for i in row if i] for row in sources.tolist()]
    theirs = translator.translate_batch(named, beam_size=1, max_decoding_length=17)
    texts = [[PIECES[i] for i in hypothesis.ids] for hypothesis in ours]
    assert [result.hypotheses[0] for result in theirs] == texts
    for hypothesis, result in zip(ours, translator.score_batch(named, texts), strict=True):
        log_probs = result.log_probs[: len(hypothesis.gains)]
        np.testing.assert_allclose(log_probs, hypothesis.gains, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"encoder_pattern": "sliding_window(4)"}, "--attention) is sliding_window(4)"),
        ({"decoder_pattern": "causal_window(3)"}, "--decoder-attention) is causal_window(3)"),
        ({"cross_pattern": "sliding_window(9)"}, "--cross-attention) is sliding_window(9)"),
        ({"encoder_mechanism": "linear"}, "--mechanism) is linear"),
    ],
)
def test_the_setting_that_is_in_the_way_is_named(settings, words):
    model = make(**settings)
    assert words in reason_against(model.config)
    with pytest.raises(UnsupportedError, match="CTranslate2 cannot hold this model"):
        ctranslate2_spec(model, PIECES)


def test_pieces_with_one_name_are_refused():
    with pytest.raises(UnsupportedError, match="two pieces of the vocabulary have the same name"):
        ctranslate2_spec(make(), [*PIECES[:-1], PIECES[4]])


def test_only_tables_of_positions_limit_a_text():
    limits = [most_positions(make(**HELD[name]).config) for name in ("learned", "rotary")]
    assert limits == [41, None]
