"""The LSTMN against its equations, and against itself in pieces."""

import numpy as np
import pytest
import torch
from recurrent_by_loops import numbers, sigmoid, softmax

from regard.errors import ShapeError
from regard.layers import record_attention
from regard_lab.models.recurrent import LongShortTermMemoryNetwork


@pytest.fixture
def network():
    torch.manual_seed(0)
    return LongShortTermMemoryNetwork(dim=5, hidden=7).double()


def test_it_is_the_equations_of_the_paper(network):
    xs = torch.randn(2, 11, 5, dtype=torch.float64)
    outputs, tapes = network(xs)
    weights, score = numbers(network.gates), numbers(network.attention.learned)
    W_x, W_summary = score["query_weight"][0][:, :5], score["query_weight"][0][:, 5:]
    W_h, v = score["key_weight"][0], score["energy"][0]
    for row, text in enumerate(xs.numpy()):
        hs, cs, summary = [], [], np.zeros(7)
        for x in text:
            past = np.zeros(7)
            if hs:
                s = softmax(np.array([v @ np.tanh(W_h @ h + W_x @ x + W_summary @ summary) for h in hs]))
                summary, past = s @ np.array(hs), s @ np.array(cs)
            i, f, o, new = np.split(weights["weight"] @ np.concatenate([summary, x]) + weights["bias"], 4)
            cs.append(sigmoid(f) * past + sigmoid(i) * np.tanh(new))
            hs.append(sigmoid(o) * np.tanh(cs[-1]))
        np.testing.assert_allclose(outputs[row].detach(), hs, atol=1e-12)
        np.testing.assert_allclose(tapes.hidden[row].detach(), hs, atol=1e-12)
        np.testing.assert_allclose(tapes.memories[row].detach(), cs, atol=1e-12)
        np.testing.assert_allclose(tapes.summary[row].detach(), summary, atol=1e-12)


def test_a_text_in_pieces_equals_the_whole(network):
    x = torch.randn(3, 7, 5, dtype=torch.float64)
    whole, end = network(x)
    tapes, pieces = None, []
    for piece in x.split([1, 4, 2], 1):
        found, tapes = network(piece, tapes)
        pieces.append(found)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-12, rtol=0)
    assert tapes.length == end.length == 7
    assert tapes.nbytes == 8 * 3 * (7 * (7 + 2 * 7) + 7)  # keys, both tapes, and the summary


def test_reordered_tapes_go_on_from_the_chosen_rows(network):
    x, index = torch.randn(3, 6, 5, dtype=torch.float64), torch.tensor([2, 0, 2, 1])
    _, tapes = network(x[:, :4])
    found, _ = network(x[index, 4:], tapes.reorder(index))
    torch.testing.assert_close(found, network(x[index])[0][:, 4:], atol=1e-12, rtol=0)


def test_no_step_sees_what_comes_later_and_each_learns_from_what_came_before(network):
    x = torch.randn(1, 6, 5, dtype=torch.float64, requires_grad=True)
    network(x)[0][0, 3].sum().backward()
    reached = x.grad[0].abs().amax(-1) > 0
    assert reached.tolist() == [True] * 4 + [False] * 2
    assert all(parameter.grad.abs().max() > 0 for parameter in network.parameters())


def test_a_recording_hears_how_it_attends_to_its_past(network):
    with record_attention(network) as recording:
        network(torch.randn(1, 5, 5, dtype=torch.float64))
    assert [detail.weights.shape[-1] for detail in recording["attention"]] == [0, 1, 2, 3, 4]
    for detail in recording["attention"][1:]:
        torch.testing.assert_close(detail.weights.sum(-1), torch.ones(1, 1, 1).double())


def test_vectors_of_another_size_are_refused_and_a_text_without_words_is_none(network):
    with pytest.raises(ShapeError, match=r"\(2, 3, 4\); give \(batch, length, 5\)"):
        network(torch.zeros(2, 3, 4))
    outputs, tapes = network(torch.zeros(2, 0, 5).double())
    assert outputs.shape == (2, 0, 7)
    assert tapes.length == 0
