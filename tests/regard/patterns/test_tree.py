"""Trees of drafts: what is refused, and some of the queries; the fuzzer compares their pairs with a formula."""

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError
from regard.patterns.one_call import of_queries
from regard.testing import make_qkv


def test_some_queries_of_a_tree_are_its_rows():
    tree = p.Tree(torch.tensor([[-1, 0, 0, 1, 2], [-1, -1, 1, 1, 3]]))
    some_queries = of_queries(tree, range(2, 4), 13).dense(2, 13, q_start=10)
    assert torch.equal(some_queries, tree.dense(5, 13)[:, :, 2:4])


@pytest.mark.parametrize(
    ("parents", "error", "message"),
    [
        (
            torch.tensor([-1, 2, 0]),
            ArgumentError,
            "node 1 has parent 2; a parent comes before its child",
        ),
        (torch.tensor([0]), ArgumentError, "node 0 has parent 0"),
        (torch.tensor([-1, -2]), ArgumentError, "node 1 has parent -2"),
        (torch.tensor([-1.0]), ArgumentError, "needs whole numbers"),
        (torch.full((1, 1, 1), -1), ShapeError, r"\(n,\) or \(batch, n\)"),
    ],
)
def test_wrong_parents_are_refused(parents, error, message):
    with pytest.raises(error, match=message):
        p.Tree(parents)


@pytest.mark.parametrize(
    ("parents", "q_len", "message"),
    [
        (torch.tensor([-1, 0, 0, 1]), 5, "4 nodes and the call has 5 queries"),
        (torch.full((3, 4), -1), 4, "3 batch rows and the batch has 2"),
    ],
)
def test_calls_of_other_sizes_are_refused(parents, q_len, message):
    qkv = make_qkv(batch=2, q_len=q_len, k_len=9)
    with pytest.raises(ShapeError, match=message):
        rg.attention(*qkv, pattern=p.Tree(parents))
