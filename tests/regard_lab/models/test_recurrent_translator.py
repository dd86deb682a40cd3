"""What a recurrent translator promises: padding, batches and steps change nothing; a saved one is the same."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recurrent_by_loops import SCORES, Cell, context, numbers

from regard.errors import ArgumentError, CheckpointError, ShapeError
from regard.layers import record_attention
from regard_lab.decoding import beam_search, greedy_search
from regard_lab.models import RecurrentTranslator, load_translation_model, save_model
from regard_lab.text import BEGIN, PAD
from regard_lab.text.batches import pad

TINY = {"vocab_size": 41, "dim": 10, "hidden": 14}
KINDS = [
    {"attention": "bahdanau"},
    {"attention": "bahdanau", "cell": "lstm", "encoder_layers": 2, "decoder_layers": 3, "tied": False},
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


def make(**changes):
    return copy.deepcopy(_made(tuple(changes.items())))


@cache
def _made(changes):
    torch.manual_seed(0)
    model = RecurrentTranslator(RecurrentTranslator.Config(**{**TINY, **dict(changes)})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from flat, so that a wrong path shows
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


texts = st.lists(st.integers(4, 40), min_size=1, max_size=9)


@pytest.mark.parametrize("changes", KINDS, ids=str)
@settings(max_examples=8, deadline=None)
@given(rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), side=st.sampled_from(["left", "right"]))
def test_a_padded_batch_equals_each_sentence_alone(changes, rows, side):
    model = make(**changes)
    source = pad([[*source, 3] for source, _ in rows], side)
    target = pad([[BEGIN, *target] for _, target in rows], side)
    together = model(source, target)
    for row, (alone_source, alone_target) in enumerate(rows):
        alone = model(torch.tensor([[*alone_source, 3]]), torch.tensor([[BEGIN, *alone_target]]))
        torch.testing.assert_close(together[row][target[row] != PAD], alone[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("changes", KINDS, ids=str)
@settings(max_examples=5, deadline=None)
@given(rows=st.lists(texts, min_size=1, max_size=3), target=texts, side=st.sampled_from(["left", "right"]))
def test_step_by_step_equals_all_at_once(changes, rows, target, side):
    model = make(**changes)
    source = pad([[*row, 3] for row in rows], side)
    ids = torch.tensor([[BEGIN, *target]] * len(rows))
    whole = model(source, ids)
    state = model.start(source)
    for place in range(ids.shape[1]):
        assert state.length == place
        torch.testing.assert_close(model.step(ids[:, place], state), whole[:, place], atol=1e-12, rtol=0)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_a_reordered_state_goes_on_from_the_chosen_rows(changes):
    model = make(**changes)
    source = pad([[5, 6, 3], [7, 3], [8, 9, 10, 3]])
    ids = torch.tensor([[BEGIN, 11, 12], [BEGIN, 13, 14], [BEGIN, 15, 16]])
    index = torch.tensor([2, 0, 2, 1])
    state = model.start(source)
    model.step(ids[:, 0], state)
    model.step(ids[:, 1], state)
    before = state.nbytes
    state.reorder(index)
    assert state.nbytes == before // 3 * 4
    found = model.step(ids[index, 2], state)
    torch.testing.assert_close(found, model(source[index], ids[index])[:, 2], atol=1e-12, rtol=0)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_every_parameter_learns(changes):
    model = make(**changes)
    model(torch.tensor([[5, 6, 7, 3], [8, 9, 3, 0]]), torch.tensor([[BEGIN, 8, 9]] * 2)).logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_the_whole_model_is_the_papers():
    """Bahdanau et al. 2015, section 3 and appendix A.2, sentence by word by vector."""
    model = make()
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
    model = make(attention="none")
    state = model.start(torch.tensor([[5, 6, 7, 8, 9, 3]]))
    assert state.memory.values.shape == (1, 1, 1, 14)
    assert state.nbytes == 2 * 14 * 8  # that vector and the decoder's own state, whatever the length
    with pytest.raises(ArgumentError, match="nothing to record"), record_attention(model):
        pass


def test_with_attention_a_change_of_any_word_changes_the_scores():
    for changes in KINDS[:5]:
        model, target = make(**changes), torch.tensor([[BEGIN]])
        source = torch.tensor([[5, 6, 7, 8, 3]])
        plain = model(source, target)
        for place in range(4):
            other = source.clone()
            other[0, place] = 30
            assert (model(other, target) - plain).abs().max() > 1e-6


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_searches_write_what_the_model_scores(changes):
    model = make(**changes)
    source = pad([[5, 6, 7, 3], [8, 3], [9, 10, 11, 12, 13, 3]])
    greedy = greedy_search(model, source, max_length=9)
    for row, best in enumerate(beam_search(model, source, 3, max_length=9)):
        alone = beam_search(model, source[row : row + 1], 3, max_length=9)[0][0]
        assert best[0].ids == alone.ids
        assert greedy_search(model, source[row : row + 1], max_length=9)[0].ids == greedy[row].ids
        scores = model(source[row : row + 1], torch.tensor([[BEGIN, *greedy[row].ids[:-1]]]))[0]
        scores[:, :3] = -torch.inf
        assert tuple(scores.argmax(-1).tolist()) == greedy[row].ids


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_a_saved_model_is_the_same(tmp_path, changes):
    model = make(**changes).float()
    model.save(tmp_path / "model")
    loaded = RecurrentTranslator.load(tmp_path / "model")
    source, target = torch.tensor([[5, 6, 3]]), torch.tensor([[BEGIN, 7]])
    assert loaded.config == model.config
    assert torch.equal(loaded(source, target), model(source, target))
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert type(load_translation_model(tmp_path / "model")) is RecurrentTranslator


def test_weights_of_another_config_are_refused(tmp_path):
    model = make()
    config = model.config.to_dict()
    for wrong in ({**config, "dim": 48}, {**config, "colour": 1}, {"dim": 10}, {**config, "vocab_size": 10**12}):
        save_model(tmp_path / "model", wrong, model.state_dict(), RecurrentTranslator.KIND)
        with pytest.raises(CheckpointError, match="config"):
            RecurrentTranslator.load(tmp_path / "model")


def test_a_model_of_no_translator_is_refused_with_those_there_are(tmp_path):
    save_model(tmp_path / "model", {}, {}, "poet")
    with pytest.raises(CheckpointError, match=r"'poet', which does not translate; .*recurrent-translator$"):
        load_translation_model(tmp_path / "model")
    save_model(tmp_path / "writer", {}, {}, "language-model")
    with pytest.raises(CheckpointError, match=r"does not translate; .*; it is read by regard generate$"):
        load_translation_model(tmp_path / "writer")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": "luong"}, "luong-general"),
        ({"cell": "rnn"}, "gru, lstm"),
        ({"hidden": 15}, "even"),
        ({"window": 0}, "at least 1"),
        ({"dropout": 2}, "share"),
        ({"tied": 1}, "true or false"),
        ({"reach": "local-p"}, "only luong-dot"),
        ({"attention": "none", "input_feeding": True}, "only luong-dot"),
    ],
)
def test_a_config_that_cannot_be_is_refused_in_words(changes, words):
    with pytest.raises(ArgumentError, match=words):
        RecurrentTranslator.Config(**{**TINY, **changes})


def test_ids_outside_the_vocabulary_are_refused():
    model = make()
    with pytest.raises(ArgumentError, match="from 5 to 41; this vocabulary goes from 0 to 40"):
        model(torch.tensor([[5, 41]]), torch.tensor([[BEGIN]]))
    with pytest.raises(ArgumentError, match="vocabulary"):
        model.step(torch.tensor([41]), model.start(torch.tensor([[5, 3]])))
    with pytest.raises(ShapeError):
        model(torch.tensor([5, 3]), torch.tensor([[BEGIN]]))


def test_a_row_of_nothing_but_padding_gives_numbers_and_disturbs_nobody():
    model = make()
    source, target = torch.tensor([[5, 6, 3], [0, 0, 0]]), torch.tensor([[BEGIN, 7], [BEGIN, 7]])
    found = model(source, target)
    assert bool(found.isfinite().all())
    torch.testing.assert_close(found[0], model(source[:1], target[:1])[0], atol=1e-12, rtol=0)
