"""A recurrent translator is that of the papers, sees what its attention allows, and learns."""

import numpy as np
import pytest
import torch
from recurrent_by_loops import SCORES, CellsByLoops, context, numbers
from translators import RECURRENTS, translator

from regard.errors import ArgumentError
from regard.layers import record_attention
from regard_lab.text import BEGIN


def test_the_whole_model_is_the_papers():
    """Bahdanau et al. 2015, section 3 and appendix A.2, sentence by word by vector."""
    model = translator(attention="bahdanau")
    source = [5, 6, 7, 8, 3]
    target = [BEGIN, 9, 10]
    E = model.embedding.weight.detach().numpy()
    words = E[source] * np.sqrt(10)
    said = E[target] * np.sqrt(10)

    encoder, weights = CellsByLoops(model.cell.cell), numbers(model.encoder.layers)
    directions = []
    for reverse, order in (("", words), ("_reverse", words[::-1])):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        encoder.layers = [tuple(weights[f"{name}_l0{reverse}"] for name in names)]
        hidden = [(np.zeros(7), None)]
        states = []
        for x in order:
            hidden = encoder.step(x, hidden)
            states.append(hidden[0][0])
        directions.append(states)
    annotations = np.array(
        [[*f, *b] for f, b in zip(directions[0], directions[1][::-1], strict=True)]
    )

    first = numbers(model.to_first_state)
    out = numbers(model.readout)
    last = np.concatenate([directions[0][-1], directions[1][-1]])
    hidden = [(np.tanh(first["weight"] @ last + first["bias"]), None)]
    decoder = CellsByLoops(model.cell.cell)
    expected = []
    for y in said:
        c = context(
            SCORES["bahdanau"], numbers(model.cell.attention.learned), hidden[0][0], annotations
        )
        hidden = decoder.step(np.concatenate([y, c]), hidden)
        t = out["linear.weight"] @ np.concatenate([hidden[0][0], c, y]) + out["linear.bias"]
        expected.append(E @ t.reshape(-1, 2).max(1))
    scores = model(torch.tensor([source]), torch.tensor([target]))
    np.testing.assert_allclose(scores[0].detach(), expected, atol=1e-12)


def test_without_attention_the_source_is_seen_through_one_vector_alone():
    model = translator(attention="none")
    state = model.start(torch.tensor([[5, 6, 7, 8, 9, 3]]))
    assert state.memory.values.shape == (1, 1, 1, 14)
    # that vector and the decoder's own state, whatever the length
    assert state.nbytes == 2 * 14 * 8
    with pytest.raises(ArgumentError, match="nothing to record"), record_attention(model):
        pass


def test_with_attention_a_change_of_any_word_changes_the_scores():
    for changes in RECURRENTS[:5]:
        model = translator(**changes)
        target = torch.tensor([[BEGIN]])
        source = torch.tensor([[5, 6, 7, 8, 3]])
        plain = model(source, target)
        for place in range(4):
            changed = source.clone()
            changed[0, place] = 30
            assert (model(changed, target) - plain).abs().max() > 1e-6
