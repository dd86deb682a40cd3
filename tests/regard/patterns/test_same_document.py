"""Documents in one sequence: runs of keys of the same document, ids by batch row, and what is refused."""

import pytest
import torch

from regard.errors import ArgumentError, ShapeError
from regard.patterns import Causal, Full, SameDocument
from regard.patterns.held import settled
from regard.patterns.ranges import Segments

IDS_BY_ROW = torch.tensor([[0, 0, 1, 1, 1], [2, 3, 3, 3, 2]])


@pytest.mark.parametrize(
    ("first", "last", "k_len", "segments"),
    [
        (0, 1, 5, Segments((range(2), range(3, 4)), (range(2), range(3, 4)))),
        (2, 3, 5, Segments((), (range(5),))),
        (4, 4, 4, Segments((range(2, 3),), (range(2, 3),))),
        (4, 5, 5, Segments((), (range(2, 3), range(4, 5)))),
        (5, 9, 5, Segments((), ())),
    ],
)
def test_a_document_may_return(first, last, k_len, segments):
    pattern = SameDocument(torch.tensor([5, 5, 2, 5, 2]))
    assert pattern.segments(first, last, k_len) == segments


def test_a_row_asked_for_twice_is_the_same_pattern():
    pattern = SameDocument(IDS_BY_ROW)
    assert pattern.for_row(1) == pattern.for_row(1) != pattern.for_row(0)
    assert pattern.on_lattice(2, 1) == pattern.on_lattice(2, 1)


def test_a_single_row_is_for_every_row():
    pattern = SameDocument(IDS_BY_ROW[:1])
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
    pattern = Causal() & SameDocument(torch.zeros(2, 5, dtype=torch.int64))
    pattern.check(2, 1, 5, 5)
    with pytest.raises(ShapeError, match="2 rows but the batch has 3"):
        pattern.check(3, 1, 5, 5)


@pytest.mark.parametrize(
    ("ids", "queries", "k_len", "is_full"),
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
def test_a_call_is_full_only_where_all_its_queries_and_keys_are_of_one_document(
    ids, queries, k_len, is_full
):
    assert (settled(SameDocument(torch.tensor(ids)), queries, k_len) == Full()) is is_full
