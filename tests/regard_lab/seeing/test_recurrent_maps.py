"""What recurrent translators looked at: a row for each word that was written, step by step or at once."""

import pytest
import torch
from small_translator import TOKENISER

from regard.errors import ArgumentError, UnsupportedError
from regard.layers import record_attention
from regard_lab.models import RecurrentTranslator
from regard_lab.seeing import draw_maps, it_weights, look, look_batch
from regard_lab.text.batches import make_batch
from regard_lab.text.pronouns import make_split

SENTENCES = [(one.source, TOKENISER.encode(one.target)) for one in make_split("valid", 5)]
CHOICES = [
    {"attention": "bahdanau"},
    {"attention": "luong-general"},
    {"attention": "luong-dot", "input_feeding": True},
    {"attention": "luong-concat", "reach": "local-m", "window": 2},
]


def translator(**choices):
    torch.manual_seed(0)
    return RecurrentTranslator(
        RecurrentTranslator.Config(vocab_size=TOKENISER.vocab_size, dim=16, hidden=14, dropout=0.0, **choices)
    ).eval()


@pytest.mark.parametrize("choices", CHOICES, ids=lambda choices: "-".join(map(str, choices.values())))
def test_a_row_is_what_the_step_that_writes_the_word_looked_at(choices):
    model, (source, ids) = translator(**choices), SENTENCES[0]
    maps = look(model, TOKENISER, source, ids)
    batch = make_batch([(TOKENISER.encode(source), ids)])
    state = model.start(batch.source)
    rows = []
    for identifier in batch.target[0]:
        with torch.no_grad(), record_attention(model) as recording:
            model.step(identifier[None], state)
        rows.append(recording["cell.attention"][0].weights[0, :, 0])
    torch.testing.assert_close(maps.cross[0], torch.stack(rows, 1), rtol=1e-4, atol=1e-6)
    assert len(maps.encoder) == len(maps.decoder) == 0
    with pytest.raises(ArgumentError, match="no encoder weights"):
        maps.matrix("encoder")


def test_sentences_of_a_batch_are_looked_at_as_if_alone():
    model = translator(attention="bahdanau")
    for (source, ids), maps in zip(SENTENCES, look_batch(model, TOKENISER, SENTENCES), strict=True):
        torch.testing.assert_close(maps.cross, look(model, TOKENISER, source, ids).cross, rtol=1e-4, atol=1e-6)


def test_the_cross_attention_alone_is_drawn(tmp_path):
    maps = look(translator(attention="luong-general"), TOKENISER, *SENTENCES[0]).merged()
    assert maps.cross.sum(-1).allclose(torch.ones(()))
    draw_maps(maps, tmp_path / "look.png", title="a recurrent translator")
    assert (tmp_path / "look.png").stat().st_size > 10_000


def test_what_is_not_there_is_refused_in_words():
    with pytest.raises(UnsupportedError, match="attention='none'"):
        look(translator(attention="none"), TOKENISER, *SENTENCES[0])
    with pytest.raises(UnsupportedError, match="measured in self-attention"):
        it_weights(translator(attention="bahdanau"), TOKENISER, make_split("valid", 2))
