"""Keys that a tensor lists, one by one or in blocks, against a mask made number by number."""

import numpy as np
import pytest
import torch
from fuzz.meanings import Places, listed_mask

import regard as rg
from regard import patterns as p
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.patterns.bands import Diagonals
from regard.patterns.counts import least_pairs
from regard.patterns.grid import Grid
from regard.patterns.one_call import of_queries, placed
from regard.patterns.visible import visible_keys
from regard.testing.oracle import answer


def mask_of(
    lists: torch.Tensor, q_len: int, k_len: int, block: int = 1, query_block: int = 1
) -> np.ndarray:
    """The pairs that lists allow, for 2 batch rows and 4 heads."""
    return listed_mask(lists.numpy(), Places(2, 4, q_len, k_len, (0,)), block, query_block)


def causal_mask(
    q_len: int, k_len: int, window: int | None = None, first_key: int = 0
) -> np.ndarray:
    """Where a key is not after its query, and may be among its last `window` keys and not before `first_key`."""
    i = np.arange(q_len)[:, None] + k_len - q_len
    j = np.arange(k_len)
    mask = (j <= i) & (j >= first_key)
    return mask if window is None else mask & (j > i - window)


def draw_leaves(
    q_len: int, k_len: int, head_dim: int = 5, v_dim: int = 3, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    torch.manual_seed(3)
    shapes = (2, 4, q_len, head_dim), (2, 2, k_len, head_dim), (2, 2, k_len, v_dim)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_is_the_formula(
    pattern: p.Pattern, mask: np.ndarray, leaves: list[torch.Tensor], backend: str
) -> None:
    output = rg.attention(*leaves, pattern=pattern, backend=backend)
    grad_output = torch.randn_like(output)
    dq, dk, dv = torch.autograd.grad(output, leaves, grad_output)
    wide = [x.detach().double().numpy() for x in leaves]
    scale = wide[0].shape[-1] ** -0.5
    expected = answer(*wide, mask, scale=scale, grad_output=grad_output.numpy())
    atol = 1e-12 if output.dtype == torch.float64 else 2e-5
    for name, x in {"output": output.detach(), "dq": dq, "dk": dk, "dv": dv}.items():
        np.testing.assert_allclose(x, getattr(expected, name), atol=atol, rtol=1e-5, err_msg=name)


def draw_blocks(lists: int, q_len: int, k_len: int, block: int, query_block: int, count: int):
    """Lists with an empty one, and a block that stands twice in another."""
    shape = (lists % 2 + 1, lists, -(-q_len // query_block), count)
    blocks = torch.randint(-1, -(-k_len // block), shape)
    if shape[2] > 1:
        blocks[:, :, 0] = -1
    blocks[:, :, -1, 1] = blocks[:, :, -1, 0]
    return blocks


SIZES_OF_BLOCKS = ((17, 23), (16, 400), (40, 100), (2, 5), (2**32 + 16, 1), (40, 2**32 + 1))


# Every pair of sizes and number of lists, with the backends in turn: so every pair with a backend occurs as well.
@pytest.mark.each_value
@pytest.mark.parametrize(("block", "query_block"), SIZES_OF_BLOCKS)
@pytest.mark.parametrize("lists", [1, 2, 4])
def test_lists_for_all_heads_for_key_heads_and_for_each_head(block, query_block, lists):
    turn = SIZES_OF_BLOCKS.index((block, query_block)) + lists.bit_length()
    backend, long = (("auto", False), ("fused", False), ("auto", True))[turn % 3]
    q_len, k_len = (419, 523) if long else (67, 71)
    if long:
        leaves = draw_leaves(q_len, k_len, head_dim=64, v_dim=32, dtype=torch.float32)
    else:
        leaves = draw_leaves(q_len, k_len)
    blocks = draw_blocks(lists, q_len, k_len, block, query_block, count=13 if long else 4)
    mask = mask_of(blocks, q_len, k_len, block, query_block)
    pattern = p.ChosenBlocks(blocks, block, query_block)
    assert_is_the_formula(pattern, mask, leaves, backend)
    in_window = pattern & p.CausalWindow(30) & p.KeySpan(3)
    window = causal_mask(q_len, k_len, window=30, first_key=3)
    assert_is_the_formula(in_window, mask & window, leaves, backend)


def test_pairs_of_blocks_are_counted_and_few_others_are_computed():
    blocks = torch.tensor([[3, 0, 3], [1, 2, -1], [3, 2, 1]]).view(1, 1, 3, 3)
    pattern = p.ChosenBlocks(blocks, 32, 32) & p.Causal()
    q = torch.randn(1, 2, 96, 8)
    k = torch.randn(1, 2, 100, 8)
    kept = (mask_of(blocks, 96, 100, 32, 32)[0, 0] & causal_mask(96, 100)).sum()
    plan = rg.plan_attention(q, k, k, pattern=pattern, strict=True)
    assert plan.problem.kept_pairs == 2 * kept
    assert kept <= plan.cost.pairs // 2 < 1.1 * kept + 2 * 32 * 32
    assert pattern.count(96, 96) == pattern.dense(96, 96).sum()


def test_strict_counts_the_pairs_of_lists_that_a_plan_estimates():
    q = torch.randn(1, 2, 96, 8)
    k = torch.randn(1, 2, 100, 8)
    pattern = p.ChosenKeys(torch.randint(-1, 100, (1, 1, 96, 40))) & p.Causal()
    plan = rg.plan_attention(q, k, k, pattern=pattern)
    strict_plan = rg.plan_attention(q, k, k, pattern=pattern, strict=True)
    assert plan.problem.kept_pairs <= strict_plan.cost.pairs <= plan.cost.pairs


def placed_blocks(block_count: int, block: int, band: p.Pattern) -> p.Pattern:
    """Drawn blocks within a band, whose first query has position 7."""
    blocks = torch.randint(-1, block_count, (1, 2, 5, 2))
    return placed((p.ChosenBlocks(blocks, block, 4) & band).canonical(), 7, 4)


@pytest.mark.parametrize("band", [p.Full(), Diagonals(4, -1), p.Causal() & p.KeySpan(3, 20)])
def test_visible_keys_and_least_pairs_are_those_of_the_mask(band):
    pattern = placed_blocks(9, 3, band)
    whole = Grid.whole(17, 27, 7)
    for grid in (whole, whole.block(range(3, 14), range(5, 21))):
        assert torch.equal(visible_keys(pattern, grid), pattern.evaluate(grid).any(2))
    pattern = placed_blocks(3, 16, band)
    kept = pattern.dense(17, 40, q_start=7).sum()
    assert 0 <= least_pairs(pattern, 7, 17, 40) <= kept / 4
    if band == p.Full():
        kept = pattern.dense(17, 32, q_start=7).sum()
        assert least_pairs(pattern, 7, 17, 32) == kept // 4


@pytest.mark.parametrize(
    ("blocks", "error", "message"),
    [
        (
            torch.full((1, 1, 2, 1), 3),
            ArgumentError,
            "holds 3, and the call has 3 blocks of 4 keys",
        ),
        (torch.full((1, 1, 2, 1), -2), ArgumentError, "holds -2"),
        (
            torch.zeros(1, 1, 3, 1, dtype=torch.int64),
            ShapeError,
            "3 rows and the call has 9 queries in 2 blocks of 8",
        ),
        (torch.zeros(1, 3, 2, 1, dtype=torch.int64), ShapeError, "3 lists for 4 query heads"),
        (
            torch.zeros(3, 1, 2, 1, dtype=torch.int64),
            ShapeError,
            "3 batch rows and the batch has 2",
        ),
    ],
)
@pytest.mark.parametrize("compiled", [False, True])
def test_wrong_lists_are_refused_also_inside_a_graph(blocks, error, message, compiled):
    q, k, v = (x.detach() for x in draw_leaves(9, 10))

    def call(blocks: torch.Tensor) -> torch.Tensor:
        return rg.attention(q, k, v, pattern=p.ChosenBlocks(blocks, 4, 8))

    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, backend="eager", fullgraph=True)
    right = torch.zeros(1, 1, 2, 1, dtype=torch.int64)
    assert call(right).shape == (2, 4, 9, 3)
    with pytest.raises(error, match=message):
        call(blocks)


def test_what_is_no_tensor_of_lists_is_refused():
    for wrong in (torch.zeros(1, 1, 2, 1), [[0]], torch.zeros(2, 1, dtype=torch.int64)):
        with pytest.raises((ArgumentError, ShapeError), match="ChosenBlocks's blocks"):
            p.ChosenBlocks(wrong)
    with pytest.raises(ArgumentError, match="it holds a tensor"):
        p.parse("chosen_blocks(3)")


def test_lists_are_refused_beside_a_cache():
    layer = rg.MultiHeadAttention(dim=8, heads=2)
    pattern = p.ChosenBlocks(torch.zeros(1, 1, 1, 1, dtype=torch.int64))
    with pytest.raises(UnsupportedError, match="rows of one call"):
        layer(torch.randn(1, 64, 8), cache=layer.new_cache(1), pattern=pattern)


@pytest.mark.parametrize("backend", ["auto", "streamed"])
@pytest.mark.parametrize(
    ("lists", "k_len", "count"), [(1, 71, 13), (2, 71, 13), (4, 71, 13), (2, 1700, 3)]
)
def test_lists_of_keys_for_each_query(backend, lists, k_len, count):
    leaves = draw_leaves(67, k_len)
    keys = torch.randint(-1, k_len, (2 - lists % 2, lists, 67, count))
    keys[:, :, 7] = -1  # no key
    keys[:, :, 9, :2] = 5  # a key twice
    pattern = p.ChosenKeys(keys)
    mask = mask_of(keys, 67, k_len)
    assert_is_the_formula(pattern, mask, leaves, backend)
    assert_is_the_formula(pattern & p.Causal(), mask & causal_mask(67, k_len), leaves, backend)
    reversed_lists = rg.attention(*leaves, pattern=p.ChosenKeys(keys.flip(-1)))
    assert torch.equal(rg.attention(*leaves, pattern=pattern), reversed_lists)


def test_lists_of_some_rows_and_heads_are_those_of_the_whole():
    keys = torch.randint(-1, 9, (2, 4, 6, 3))
    pattern = p.ChosenKeys(keys)
    dense = pattern.dense(6, 9)
    assert torch.equal(of_queries(pattern, range(2, 5), 9).dense(3, 9), dense[:, :, 2:5])
    assert torch.equal(pattern.of_heads(range(1, 3), 4).dense(6, 9), dense[:, 1:3])
    assert torch.equal(pattern.allows(torch.arange(6)[:, None], torch.arange(9)), dense)
    blocks = p.ChosenBlocks(keys, block=2, query_block=3)
    some_rows = of_queries(blocks, range(4, 11), 18).dense(7, 18)
    assert torch.equal(some_rows, blocks.dense(18, 18)[:, :, 4:11])


def test_a_graph_serves_every_list():
    q, k, v = (x.detach() for x in draw_leaves(9, 10))

    def call(keys: torch.Tensor) -> torch.Tensor:
        return rg.attention(q, k, v, pattern=p.ChosenKeys(keys) & p.Causal())

    torch._dynamo.reset()
    graph = torch.compile(call, backend="eager", fullgraph=True)
    for _ in range(3):
        keys = torch.randint(-1, 10, (1, 2, 9, 3))
        torch.testing.assert_close(graph(keys), call(keys))
