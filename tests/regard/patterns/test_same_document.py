import pytest
import torch

from regard.errors import ArgumentError, ShapeError
from regard.patterns import Causal, Full, SameDocument
from regard.patterns.held import settled


def test_a_document_may_return():
    pattern = SameDocument(torch.tensor([5, 5, 2, 5, 2]))
    assert pattern.segments(0, 1, 5).full == (range(2), range(3, 4))
    assert pattern.segments(2, 3, 5) == type(pattern.segments(2, 3, 5))((), (range(5),))
    assert pattern.segments(4, 4, 4).full == (range(2, 3),)
    assert pattern.segments(4, 5, 5).full == ()
    assert pattern.segments(5, 9, 5).some == ()


class TestRowsWithTheirOwnDocuments:
    ids = torch.tensor([[0, 0, 1, 1, 1], [2, 3, 3, 3, 2]])

    def test_a_row_asked_for_twice_is_the_same_pattern(self):
        pattern = SameDocument(self.ids)
        assert pattern.for_row(1) == pattern.for_row(1) != pattern.for_row(0)
        assert pattern.on_lattice(2, 1) == pattern.on_lattice(2, 1)

    def test_a_single_row_is_for_every_row(self):
        pattern = SameDocument(self.ids[:1])
        pattern.check(7, 4, 5, 5)
        assert not pattern.varies_by_row
        assert tuple(pattern.dense(5, 5).shape) == (5, 5)


@pytest.mark.parametrize("ids", [[0, 1], torch.tensor([0.0]), torch.tensor([True])])
def test_ids_that_are_no_numbers_are_refused(ids):
    with pytest.raises(ArgumentError, match="whole numbers"):
        SameDocument(ids)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (1, 1, 3)])
def test_ids_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match="needs \\(length,\\) or \\(batch, length\\)"):
        SameDocument(torch.zeros(shape, dtype=torch.int64))


def test_a_call_that_the_ids_do_not_cover_is_refused():
    with pytest.raises(ShapeError, match="5 positions and the call has 6 keys"):
        SameDocument(torch.zeros(5, dtype=torch.int64)).check(1, 1, 6, 6)
    with pytest.raises(ShapeError, match="2 rows but the batch has 3"):
        (Causal() & SameDocument(torch.zeros(2, 5, dtype=torch.int64))).check(3, 1, 5, 5)
    (Causal() & SameDocument(torch.zeros(2, 5, dtype=torch.int64))).check(2, 1, 5, 5)


@pytest.mark.parametrize(
    ("ids", "queries", "k_len", "one"),
    [
        ([0, 0, 1], range(2), 2, True),
        ([0, 0, 1], range(3), 3, False),
        ([0, 0, 1], range(2), 3, False),
        ([1, 0, 0], range(1, 3), 3, False),
        ([[0, 0, 0], [2, 2, 2]], range(3), 3, True),
        ([[0, 0, 0], [2, 2, 1]], range(3), 3, False),
        ([0, 0, 0], range(2, 4), 3, False),
        ([0, 0, 0], range(-1, 2), 3, False),
    ],
)
def test_one_document_is_found_only_where_all_queries_and_keys_are_of_one(ids, queries, k_len, one):
    assert (settled(SameDocument(torch.tensor(ids)), queries, k_len) == Full()) is one
