"""Trees of drafts against each branch computed alone; the fuzzer compares their pairs with a formula."""

import pytest
import torch
from patterns.test_chosen import sizes_of

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError
from regard.patterns.one_call import of_queries


def test_some_queries_of_a_tree_are_its_rows():
    tree = p.Tree(torch.tensor([[-1, 0, 0, 1, 2], [-1, -1, 1, 1, 3]]))
    assert torch.equal(
        of_queries(tree, range(2, 4), 13).dense(2, 13, q_start=10), tree.dense(5, 13)[:, :, 2:4]
    )


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


def test_calls_of_other_sizes_are_refused():
    for tree, sizes, message in (
        (torch.tensor([-1, 0, 0, 1]), (5, 9), "4 nodes and the call has 5 queries"),
        (torch.full((3, 4), -1), (4, 9), "3 batch rows and the batch has 2"),
    ):
        with pytest.raises(ShapeError, match=message):
            rg.attention(*sizes_of(*sizes), pattern=p.Tree(tree))
