"""Patterns that hold a tensor are equal only to themselves and their copies, in whatever process they were made."""

import copy
import os
import pickle
from itertools import combinations

import pytest
import torch
from packing_workers import ROOM, Packed, packed_batches

import regard as rg
from regard import patterns as p
from regard.layers import MultiHeadAttention

# from Python 3.12
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")


@pytest.fixture(scope="module")
def batches() -> list[Packed]:
    return packed_batches("fork")


def made_of_a_tensor() -> list[p.Pattern]:
    return [
        p.SameDocument(torch.tensor([[0, 1], [0, 0]])),
        p.KeySpan(0, torch.tensor([1, 2])),
        p.KeySpan(torch.tensor([1, 0])),
        p.Explicit(torch.tensor([[True, False], [False, True]])),
    ]


def test_patterns_made_in_two_workers_are_never_equal_nor_dropped_as_repeated(batches):
    for name in ("documents", "words", "mask"):
        found = [getattr(batch, name) for batch in batches]
        assert len(set(found)) == len(found)
        for one, other in combinations(found, 2):
            assert one != other
            dense = one.dense(ROOM, ROOM), other.dense(ROOM, ROOM)
            assert torch.equal((one & other).canonical().dense(ROOM, ROOM), dense[0] & dense[1])
            assert torch.equal((one | other).canonical().dense(ROOM, ROOM), dense[0] | dense[1])


def test_documents_packed_in_a_collate_function_train_as_one_at_a_time(batches):
    torch.manual_seed(0)
    layer = MultiHeadAttention(6, heads=2, pattern="causal").double()
    for batch in batches:
        found = []
        for run in (_packed_loss, _loss_one_by_one):
            layer.zero_grad()
            loss = run(layer, batch)
            loss.backward()
            found.append([loss.detach(), *(weight.grad.clone() for weight in layer.parameters())])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def _packed_loss(layer: MultiHeadAttention, batch: Packed) -> torch.Tensor:
    output = layer(batch.x, pattern=batch.documents & batch.words)
    live = torch.arange(ROOM) < torch.tensor([sum(row) for row in batch.lengths])[:, None]
    return output[live].square().sum()


def _loss_one_by_one(layer: MultiHeadAttention, batch: Packed) -> torch.Tensor:
    losses = []
    for x, (first, second) in zip(batch.x, batch.lengths, strict=True):
        losses += [
            layer(x[None, start:stop]).square().sum()
            for start, stop in ((0, first), (first, first + second))
        ]
    return torch.stack(losses).sum()


def test_a_forked_process_makes_other_patterns_than_its_parent():
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.write(writing, pickle.dumps([pattern.serial for pattern in made_of_a_tensor()]))
        os._exit(0)
    own = [pattern.serial for pattern in made_of_a_tensor()]
    os.waitpid(child, 0)
    assert not set(own) & set(pickle.loads(os.read(reading, 1 << 16)))
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    "copied", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy]
)
def test_a_copy_holds_the_same_numbers_and_so_is_equal(copied):
    for pattern in made_of_a_tensor():
        again = copied(pattern)
        assert again == pattern
        assert hash(again) == hash(pattern)
        assert torch.equal(again.dense(2, 2), pattern.dense(2, 2))
        assert str((again & pattern).canonical()) == str(pattern)
    for one, other in zip(made_of_a_tensor(), made_of_a_tensor(), strict=True):
        assert one != other  # the same numbers, given twice


def test_they_copy_what_they_are_given_and_are_equal_only_to_themselves():
    mask = torch.ones(2, 2, dtype=torch.bool)
    numbers = torch.tensor([1, 2])
    makers = (
        lambda: p.Explicit(mask),
        lambda: p.KeySpan(0, numbers),
        lambda: p.SameDocument(numbers),
        lambda: p.KeyMask(mask),
    )
    made = [(make(), make()) for make in makers]
    dense = [one.dense(2, 2) for one, _ in made]
    mask.zero_()
    numbers.zero_()
    for (one, other), before in zip(made, dense, strict=True):
        assert torch.equal(one.dense(2, 2), before)
        assert one == one != other
        assert not one.by_value
        assert len({one, other, one & p.Causal(), other & p.Causal()}) == 4


def test_spans_by_row_as_lists_are_values():
    one = p.KeySpan([0, 3], [5, 9])
    other = p.KeySpan((0, 3), (5, 9))
    assert one == other
    assert hash(one) == hash(other)
    assert one.by_value
    assert one != p.KeySpan([0, 3], [5, 8])
    assert str(one) == "key_span((0, 3), (5, 9))"
    assert p.parse(str(p.Causal() & one)) == (p.Causal() & one)
    by_tensor = p.KeySpan(torch.tensor([0, 3]), torch.tensor([5, 9]))
    assert by_tensor not in (one, p.KeySpan(torch.tensor([0, 3]), torch.tensor([5, 9])))
    assert torch.equal(one.dense(3, 9), by_tensor.dense(3, 9))
    assert copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize("given", [[], [0.5, 1], ["0"], [True, False]])
def test_a_list_of_spans_holds_a_whole_number_for_each_row(given):
    with pytest.raises(rg.ArgumentError, match="KeySpan's start"):
        p.KeySpan(given)
