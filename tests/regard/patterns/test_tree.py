"""Trees of drafts against a mask made ancestor by ancestor, and against each branch computed alone."""

import numpy as np
import pytest
import torch
from patterns.test_chosen import assert_is_the_formula, sizes_of

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError, UnsupportedError


def ancestors(parents: list[int], node: int) -> list[int]:
    """The branch of a node, from its root on."""
    return [*ancestors(parents, parents[node]), node] if node >= 0 else []


def mask_of(trees: torch.Tensor, k_len: int) -> np.ndarray:
    batch, nodes = trees.shape
    before = k_len - nodes
    mask = np.zeros((batch, 1, nodes, k_len), dtype=bool)
    mask[..., :before] = True
    for row, parents in enumerate(trees.tolist()):
        for node in range(nodes):
            mask[row, 0, node, [before + one for one in ancestors(parents, node)]] = True
    return mask


def drawn(batch: int, nodes: int) -> torch.Tensor:
    torch.manual_seed(5)
    return torch.stack([(torch.rand(batch) * (node + 1)).long() - 1 for node in range(nodes)], 1)


@pytest.mark.parametrize("backend", ["native", "fused", "reference"])
@pytest.mark.parametrize(("nodes", "k_len"), [(1, 1), (7, 7), (23, 71)])
def test_nodes_look_at_the_text_their_ancestors_and_themselves(nodes, k_len, backend):
    qkv = sizes_of(nodes, k_len)
    trees = drawn(2, nodes)
    mask = mask_of(trees, k_len)
    assert_is_the_formula(p.Tree(trees), mask, *qkv, backend=backend)
    assert_is_the_formula(p.Tree(trees[1]), mask[1:], *qkv, backend=backend)
    i, j = np.arange(nodes)[:, None] + k_len - nodes, np.arange(k_len)
    assert_is_the_formula(p.Tree(trees) & p.CausalWindow(9), mask & (i - j < 9), *qkv, backend=backend)
    assert_is_the_formula(~p.Tree(trees) | p.Prefix(2), ~mask | (j < 2), *qkv, backend=backend)


def test_a_tree_begins_at_the_first_query_also_where_batch_rows_start_apart():
    qkv = sizes_of(5, 13)
    trees = drawn(2, 5)
    starts = torch.tensor([3, 8])
    mask = np.zeros((2, 1, 5, 13), dtype=bool)
    for row, start in enumerate(starts):
        mask[row, ..., : start + 5] = mask_of(trees, int(start) + 5)[row]
    assert_is_the_formula(p.Tree(trees), mask, *qkv, q_start=starts)
    part = p.Tree(trees).of_queries(range(2, 4), 13)
    assert torch.equal(part.dense(2, 13, q_start=10), p.Tree(trees).dense(5, 13)[:, :, 2:4])


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


def test_one_tree_serves_calls_of_any_number_of_keys():
    tree = p.Tree(torch.tensor([-1, 0, 0]))
    for k_len in (5, 6, 9):
        assert_is_the_formula(tree, mask_of(tree.parents[None], k_len), *sizes_of(3, k_len))


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
        (drawn(1, 4)[0], (5, 9), "4 nodes and the call has 5 queries"),
        (drawn(3, 4), (4, 9), "3 batch rows and the batch has 2"),
    ):
        with pytest.raises(ShapeError, match=message):
            rg.attention(*sizes_of(*sizes), pattern=p.Tree(tree))
