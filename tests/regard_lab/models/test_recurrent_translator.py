"""A recurrent translator is that of the papers, sees what its attention allows, and learns."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from recurrent_by_loops import SCORES, Cell, context, numbers
from translators import RECURRENT, RECURRENTS, translator

from regard.errors import ArgumentError
from regard.layers import record_attention
from regard_lab.models import RecurrentTranslator
from regard_lab.text import BEGIN, END, PAD
from regard_lab.text.batches import pad


def test_the_whole_model_is_the_papers():
    """Bahdanau et al. 2015, section 3 and appendix A.2, sentence by word by vector."""
    model = translator(attention="bahdanau")
    source, target = [5, 6, 7, 8, 3], [BEGIN, 9, 10]
    E = model.embedding.weight.detach().numpy()
    words, said = E[source] * np.sqrt(10), E[target] * np.sqrt(10)

    encoder, weights = Cell(model.cell.cell), numbers(model.encoder.layers)
    directions = []
    for reverse, order in (("", words), ("_reverse", words[::-1])):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        encoder.layers = [tuple(weights[f"{name}_l0{reverse}"] for name in names)]
        at, states = [(np.zeros(7), None)], []
        for x in order:
            at = encoder.step(x, at)
            states.append(at[0][0])
        directions.append(states)
    annotations = np.array([[*f, *b] for f, b in zip(directions[0], directions[1][::-1], strict=True)])

    first, out = numbers(model.to_first_state), numbers(model.readout)
    last = np.concatenate([directions[0][-1], directions[1][-1]])
    at, decoder = [(np.tanh(first["weight"] @ last + first["bias"]), None)], Cell(model.cell.cell)
    expected = []
    for y in said:
        c = context(SCORES["bahdanau"], numbers(model.cell.attention.learned), at[0][0], annotations)
        at = decoder.step(np.concatenate([y, c]), at)
        t = out["linear.weight"] @ np.concatenate([at[0][0], c, y]) + out["linear.bias"]
        expected.append(E @ t.reshape(-1, 2).max(1))
    found = model(torch.tensor([source]), torch.tensor([target]))
    np.testing.assert_allclose(found[0].detach(), expected, atol=1e-12)


def test_without_attention_the_source_is_seen_through_one_vector_alone():
    model = translator(attention="none")
    state = model.start(torch.tensor([[5, 6, 7, 8, 9, 3]]))
    assert state.memory.values.shape == (1, 1, 1, 14)
    assert state.nbytes == 2 * 14 * 8  # that vector and the decoder's own state, whatever the length
    with pytest.raises(ArgumentError, match="nothing to record"), record_attention(model):
        pass


def test_with_attention_a_change_of_any_word_changes_the_scores():
    for changes in RECURRENTS[:5]:
        model, target = translator(**changes), torch.tensor([[BEGIN]])
        source = torch.tensor([[5, 6, 7, 8, 3]])
        plain = model(source, target)
        for place in range(4):
            other = source.clone()
            other[0, place] = 30
            assert (model(other, target) - plain).abs().max() > 1e-6


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": "luong"}, "luong-general"),
        ({"cell": "rnn"}, "gru, lstm"),
        ({"hidden": 15}, "even"),
        ({"reach": "local-p"}, "only luong-dot"),
        ({"attention": "none", "input_feeding": True}, "only luong-dot"),
    ],
)
def test_a_config_that_cannot_be_is_refused_in_words(changes, words):
    with pytest.raises(ArgumentError, match=words):
        RecurrentTranslator.Config(**{**RECURRENT, **changes})


# A small task is learned: texts of 3 to 5 symbols, written backwards


def reversals(count, generator):
    texts = []
    for _ in range(count):
        length = int(torch.randint(3, 6, (), generator=generator))
        texts.append(torch.randint(4, 12, (length,), generator=generator).tolist())
    backwards = [text[::-1] for text in texts]
    following = pad([[*text, END] for text in backwards])
    return pad([[*text, END] for text in texts]), pad([[BEGIN, *text] for text in backwards]), following


def test_bahdanau_learns_to_write_texts_backwards():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = RecurrentTranslator(RecurrentTranslator.Config(vocab_size=12, dim=32, hidden=32, dropout=0.0))
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(150):
        source, target, following = reversals(32, generator)
        loss = F.cross_entropy(model(source, target).flatten(0, 1), following.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    source, target, following = reversals(200, torch.Generator().manual_seed(1))
    with torch.inference_mode():
        right = (model(source, target).argmax(-1) == following) | (following == PAD)
    assert float(right.all(1).float().mean()) >= 0.85
