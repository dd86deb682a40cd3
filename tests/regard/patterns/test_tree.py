"""Trees of drafts against each branch computed alone; the fuzzer compares their pairs with a formula."""

import pytest
import torch
from patterns.test_chosen import sizes_of

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError, UnsupportedError


def ancestors(parents: list[int], node: int) -> list[int]:
    """The branch of a node, from its root on."""
    return [*ancestors(parents, parents[node]), node] if node >= 0 else []


@pytest.mark.parametrize("kind", ["dynamic", "static", "paged"])
def test_a_tree_after_a_cache_is_each_of_its_branches_alone(kind):
    torch.manual_seed(1)
    layer = rg.MultiHeadAttention(24, 4, kv_heads=2, pattern="causal", positions="rotary").double()
    text, drafts = torch.randn(2, 11, 24).double(), torch.randn(2, 6, 24).double()
    parents = [-1, 0, 0, 2, -1, 2]
    tree = p.Tree(torch.tensor(parents))
    assert tree.depths.tolist() == [0, 1, 1, 2, 0, 2]
    cache = layer.new_cache(2, kind, None if kind == "dynamic" else 40)
    with torch.no_grad():
        layer(text, cache=cache)
        found = layer(drafts, pattern=tree, positions=cache.length + tree.depths, cache=cache)
        for node in range(6):
            branch = ancestors(parents, node)
            alone = layer(torch.cat((text, drafts[:, branch]), 1))[:, -1]
            torch.testing.assert_close(found[:, node], alone, rtol=0, atol=1e-12)
    cache.crop(11)  # the best branch goes on
    again = layer(drafts[:, :2], cache=cache)
    torch.testing.assert_close(again, layer(torch.cat((text, drafts[:, :2]), 1))[:, -2:], rtol=0, atol=1e-12)
    with pytest.raises(UnsupportedError, match="holds a mask for the rows of one call"):
        layer(drafts, pattern=tree & p.Explicit(torch.ones(6, 6, dtype=torch.bool)), cache=cache)
    assert cache.length == 13


def test_some_queries_of_a_tree_are_its_rows():
    tree = p.Tree(torch.tensor([[-1, 0, 0, 1, 2], [-1, -1, 1, 1, 3]]))
    assert torch.equal(tree.of_queries(range(2, 4), 13).dense(2, 13, q_start=10), tree.dense(5, 13)[:, :, 2:4])


@pytest.mark.parametrize(
    ("parents", "error", "message"),
    [
        (torch.tensor([-1, 2, 0]), ArgumentError, "node 1 has parent 2; a parent comes before its child"),
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
