"""What every translator promises: padding, batches and steps change nothing; a saved one is the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from translators import RECURRENTS, TRANSFORMERS, shared_translator, texts, translator

from regard.errors import ArgumentError, ShapeError
from regard_lab.decoding import beam_search, greedy_search
from regard_lab.text import BEGIN, PAD
from regard_lab.text.batches import pad

EACH = pytest.mark.parametrize("changes", [*TRANSFORMERS, *RECURRENTS], ids=str)
KINDS = [{}, {"attention": "bahdanau"}]
CLOSE = {"atol": 1e-11, "rtol": 0}


@EACH
@settings(max_examples=4, deadline=None)
@given(
    rows=st.lists(st.tuples(texts, texts), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
)
@torch.no_grad()
def test_a_padded_batch_equals_each_sentence_alone(changes, rows, side):
    model = shared_translator(**changes)
    source = pad([[*source, 3] for source, _ in rows], side)
    target = pad([[BEGIN, *target] for _, target in rows], side)
    together = model(source, target)
    for row, (alone_source, alone_target) in enumerate(rows):
        alone = model(torch.tensor([[*alone_source, 3]]), torch.tensor([[BEGIN, *alone_target]]))
        torch.testing.assert_close(together[row][target[row] != PAD], alone[0], **CLOSE)


@EACH
@settings(max_examples=3, deadline=None)
@given(
    rows=st.lists(texts, min_size=1, max_size=3),
    target=texts,
    side=st.sampled_from(["left", "right"]),
)
@torch.no_grad()
def test_step_by_step_equals_all_at_once(changes, rows, target, side):
    model = shared_translator(**changes)
    source = pad([[*row, 3] for row in rows], side)
    ids = torch.tensor([[BEGIN, *target]] * len(rows))
    whole = model(source, ids)
    state = model.start(source)
    for place in range(ids.shape[1]):
        assert state.length == place
        torch.testing.assert_close(model.step(ids[:, place], state), whole[:, place], **CLOSE)


@EACH
@torch.no_grad()
def test_a_reordered_state_goes_on_from_the_chosen_rows(changes):
    model = shared_translator(**changes)
    source = pad([[5, 6, 3], [7, 3], [8, 9, 10, 3]])
    ids = torch.tensor([[BEGIN, 11, 12], [BEGIN, 13, 14], [BEGIN, 15, 16]])
    index = torch.tensor([2, 0, 2, 1])
    state = model.start(source)
    model.step(ids[:, 0], state)
    model.step(ids[:, 1], state)
    before = state.nbytes
    state.reorder(index)
    assert state.nbytes == before // 3 * 4
    logits = model.step(ids[index, 2], state)
    torch.testing.assert_close(logits, model(source[index], ids[index])[:, 2], **CLOSE)


@EACH
def test_every_parameter_learns(changes):
    model = translator(**changes)
    model(torch.tensor([[5, 6, 7, 3], [8, 9, 3, 0]]), torch.tensor([[BEGIN, 8, 9]] * 2)).logsumexp(
        -1
    ).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # the same number added to all scores of a query changes no softmax
        if not name.endswith("to_k.bias"):
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("changes", RECURRENTS, ids=str)
@torch.no_grad()
def test_searches_write_what_the_model_scores(changes):
    model = shared_translator(**changes)
    source = pad([[5, 6, 7, 3], [8, 3], [9, 10, 11, 12, 13, 3]])
    greedy = greedy_search(model, source, max_tokens=9)
    for row, best in enumerate(beam_search(model, source, 3, max_tokens=9)):
        alone = beam_search(model, source[row : row + 1], 3, max_tokens=9)[0][0]
        assert best[0].ids == alone.ids
        assert greedy_search(model, source[row : row + 1], max_tokens=9)[0].ids == greedy[row].ids
        scores = model(source[row : row + 1], torch.tensor([[BEGIN, *greedy[row].ids[:-1]]]))[0]
        scores[:, :3] = -torch.inf
        assert tuple(scores.argmax(-1).tolist()) == greedy[row].ids


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_wrong_ids_are_refused_with_their_numbers(changes):
    model = translator(**changes)
    good = torch.tensor([[5, 6]])
    with pytest.raises(ArgumentError, match="from 5 to 41; this vocabulary goes from 0 to 40"):
        model(torch.tensor([[5, 41]]), good)
    with pytest.raises(ArgumentError, match="vocabulary"):
        model.step(torch.tensor([41]), model.start(torch.tensor([[5, 3]])))
    for wrong in (good.float(), torch.tensor([5, 3])):
        with pytest.raises(ShapeError, match="int64"):
            model(wrong, good)


@pytest.mark.parametrize("changes", KINDS, ids=str)
def test_a_row_of_nothing_but_padding_gives_numbers_and_disturbs_no_other(changes):
    model = translator(**changes)
    source = torch.tensor([[5, 6, 3], [0, 0, 0]])
    target = torch.tensor([[BEGIN, 7], [BEGIN, 7]])
    logits = model(source, target)
    assert bool(logits.isfinite().all())
    torch.testing.assert_close(logits[0], model(source[:1], target[:1])[0], **CLOSE)
