"""Patterns that hold a tensor are equal only to themselves and their copies, in whatever process they were made."""

import copy
import os
import pickle
from collections.abc import Callable
from itertools import combinations

import pytest
import torch
from packing_workers import ROW_LENGTH, PackedBatch, packed_batches

import regard as rg
from regard import patterns as p
from regard.layers import MultiHeadAttention

# from Python 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

MASK = torch.tensor([[True, False], [False, True]])
HOLDING_TENSORS: dict[str, Callable[[], p.Pattern]] = {
    "documents": lambda: p.SameDocument(torch.tensor([[0, 1], [0, 0]])),
    "stops": lambda: p.KeySpan(0, torch.tensor([1, 2])),
    "starts": lambda: p.KeySpan(torch.tensor([1, 0])),
    "keys": lambda: p.KeyMask(MASK),
    "pairs": lambda: p.Explicit(MASK),
}
each_pattern = pytest.mark.parametrize("make", HOLDING_TENSORS.values(), ids=HOLDING_TENSORS)


@pytest.fixture(scope="module")
def batches() -> list[PackedBatch]:
    return packed_batches("fork")


@pytest.mark.parametrize("name", ["documents", "unpadded", "mask"])
def test_patterns_made_in_two_workers_are_never_equal_nor_dropped_as_repeated(batches, name):
    patterns = [getattr(batch, name) for batch in batches]
    assert len(set(patterns)) == len(patterns)
    for a, b in combinations(patterns, 2):
        assert a != b
        dense_a = a.dense(ROW_LENGTH, ROW_LENGTH)
        dense_b = b.dense(ROW_LENGTH, ROW_LENGTH)
        both = (a & b).canonical().dense(ROW_LENGTH, ROW_LENGTH)
        either = (a | b).canonical().dense(ROW_LENGTH, ROW_LENGTH)
        assert torch.equal(both, dense_a & dense_b)
        assert torch.equal(either, dense_a | dense_b)


def packed_loss(layer: MultiHeadAttention, batch: PackedBatch) -> torch.Tensor:
    output = layer(batch.x, pattern=batch.documents & batch.unpadded)
    return output[batch.is_word].square().sum()


def loss_one_by_one(layer: MultiHeadAttention, batch: PackedBatch) -> torch.Tensor:
    loss = torch.zeros((), dtype=torch.float64)
    for x, (first, second) in zip(batch.x, batch.lengths, strict=True):
        for document in (x[None, :first], x[None, first : first + second]):
            loss = loss + layer(document).square().sum()
    return loss


def test_documents_packed_in_a_collate_function_train_as_one_at_a_time(batches):
    layer = MultiHeadAttention(6, heads=2, pattern="causal").double()
    weights = [*layer.parameters()]

    def loss_and_gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        return [loss, *torch.autograd.grad(loss, weights)]

    for batch in batches:
        found = loss_and_gradients(packed_loss(layer, batch))
        expected = loss_and_gradients(loss_one_by_one(layer, batch))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def serials() -> set[int]:
    return {make().serial for make in HOLDING_TENSORS.values()}


def test_a_forked_process_makes_other_patterns_than_its_parent():
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, pickle.dumps(serials()))
        os._exit(0)
    of_parent = serials()
    os.waitpid(child, 0)
    of_child = pickle.loads(os.read(reading, 1 << 16))
    os.close(reading)
    os.close(writing)
    assert len(of_child) == len(of_parent) == len(HOLDING_TENSORS)
    assert not of_parent & of_child


def pickled(pattern: p.Pattern) -> p.Pattern:
    return pickle.loads(pickle.dumps(pattern))


@each_pattern
@pytest.mark.parametrize("make_copy", [pickled, copy.copy, copy.deepcopy])
def test_a_copy_holds_the_same_numbers_and_so_is_equal(make, make_copy):
    pattern = make()
    again = make_copy(pattern)
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert torch.equal(again.dense(2, 2), pattern.dense(2, 2))
    assert str((again & pattern).canonical()) == str(pattern)


@each_pattern
def test_the_same_numbers_given_twice_make_two_patterns(make):
    pattern, other = make(), make()
    assert pattern == pattern != other
    assert not pattern.by_value
    assert len({pattern, other, pattern & p.Causal(), other & p.Causal()}) == 4


def test_patterns_copy_what_they_are_given():
    mask = torch.ones(2, 2, dtype=torch.bool)
    numbers = torch.tensor([1, 2])
    patterns = [
        p.Explicit(mask),
        p.KeySpan(0, numbers),
        p.SameDocument(numbers),
        p.KeyMask(mask),
    ]
    dense = [pattern.dense(2, 2) for pattern in patterns]
    mask.zero_()
    numbers.zero_()
    for pattern, before in zip(patterns, dense, strict=True):
        assert torch.equal(pattern.dense(2, 2), before)


def test_spans_by_row_as_lists_are_values():
    span = p.KeySpan([0, 3], [5, 9])
    assert span == p.KeySpan((0, 3), (5, 9)) != p.KeySpan([0, 3], [5, 8])
    assert hash(span) == hash(p.KeySpan((0, 3), (5, 9)))
    assert span.by_value
    assert str(span) == "key_span((0, 3), (5, 9))"
    assert p.parse(str(p.Causal() & span)) == (p.Causal() & span)
    assert copy.deepcopy(span) == pickled(span) == span

    by_tensor = p.KeySpan(torch.tensor([0, 3]), torch.tensor([5, 9]))
    assert by_tensor != span
    assert torch.equal(span.dense(3, 9), by_tensor.dense(3, 9))


@pytest.mark.parametrize("starts", [[], [0.5, 1], ["0"], [True, False]])
def test_a_list_of_spans_holds_a_whole_number_for_each_row(starts):
    with pytest.raises(rg.ArgumentError, match="KeySpan's start"):
        p.KeySpan(starts)
