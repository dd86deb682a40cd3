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
    listed: torch.Tensor, q_len: int, k_len: int, block: int = 1, rows: int = 1
) -> np.ndarray:
    return listed_mask(listed.numpy(), Places(2, 4, q_len, k_len, (0,)), block, rows)


def sizes_of(
    q_len: int, k_len: int, heads: int = 4, kv_heads: int = 2, dims=(5, 3), dtype=torch.float64
):
    torch.manual_seed(3)
    shapes = (
        (2, heads, q_len, dims[0]),
        (2, kv_heads, k_len, dims[0]),
        (2, kv_heads, k_len, dims[1]),
    )
    return [torch.randn(*shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_is_the_formula(pattern: p.Pattern, mask: np.ndarray, q, k, v, **options) -> None:
    found = rg.attention(q, k, v, pattern=pattern, **options)
    grad = torch.randn_like(found)
    grads = torch.autograd.grad(found, (q, k, v), grad)
    scale = q.shape[-1] ** -0.5
    atol = 1e-12 if q.dtype == torch.float64 else 2e-5
    expected = answer(
        *(x.detach().double().numpy() for x in (q, k, v)),
        mask,
        scale=scale,
        grad_output=grad.numpy(),
    )
    for one, name in zip((found.detach(), *grads), ("output", "dq", "dk", "dv"), strict=True):
        np.testing.assert_allclose(one, getattr(expected, name), atol=atol, rtol=1e-5)


@pytest.mark.parametrize(("backend", "long"), [("auto", False), ("fused", False), ("auto", True)])
@pytest.mark.parametrize(
    ("block", "rows"), [(17, 23), (16, 400), (40, 100), (2, 5), (2**32 + 16, 1), (40, 2**32 + 1)]
)
@pytest.mark.parametrize("lists", [1, 2, 4])
def test_lists_for_all_heads_for_key_heads_and_for_each_head(backend, long, block, rows, lists):
    q_len, k_len = (419, 523) if long else (67, 71)
    q, k, v = (
        sizes_of(q_len, k_len, dims=(64, 32), dtype=torch.float32)
        if long
        else sizes_of(q_len, k_len)
    )
    blocks = torch.randint(
        -1, -(-k_len // block), (lists % 2 + 1, lists, -(-q_len // rows), 13 if long else 4)
    )
    blocks[:, :, :-1][:, :, :1] = -1  # empty rows
    blocks[:, :, -1, 1] = blocks[:, :, -1, 0]  # a block that is listed twice
    mask = mask_of(blocks, q_len, k_len, block, rows)
    pattern = p.ChosenBlocks(blocks, block, rows)
    assert_is_the_formula(pattern, mask, q, k, v, backend=backend)
    i = np.arange(q_len)[:, None] + k_len - q_len
    j = np.arange(k_len)
    window = (j <= i) & (j > i - 30) & (j >= 3)
    assert_is_the_formula(
        pattern & p.CausalWindow(30) & p.KeySpan(3), mask & window, q, k, v, backend=backend
    )


def test_pairs_are_counted_and_strict_allows_what_computes_few_others():
    blocks = torch.tensor([[3, 0, 3], [1, 2, -1], [3, 2, 1]]).view(1, 1, 3, 3)
    pattern = p.ChosenBlocks(blocks, 32, 32) & p.Causal()
    q = torch.randn(1, 2, 96, 8)
    k = torch.randn(1, 2, 100, 8)
    mask = mask_of(blocks, 96, 100, 32, 32)[0, 0] & (np.arange(100) <= np.arange(96)[:, None] + 4)
    plan = rg.plan_attention(q, k, k, pattern=pattern, strict=True)
    assert plan.problem.kept_pairs == 2 * mask.sum()
    assert mask.sum() <= plan.cost.pairs // 2 < 1.1 * mask.sum() + 2 * 32 * 32
    assert pattern.count(96, 96) == pattern.dense(96, 96).sum()
    # so few are kept that strict must count
    keys = p.ChosenKeys(torch.randint(-1, 100, (1, 1, 96, 40))) & p.Causal()
    plans = [rg.plan_attention(q, k, k, pattern=keys, strict=strict) for strict in (False, True)]
    assert plans[0].problem.kept_pairs <= plans[1].cost.pairs <= plans[0].cost.pairs


@pytest.mark.parametrize("band", [p.Full(), Diagonals(4, -1), p.Causal() & p.KeySpan(3, 20)])
def test_visible_keys_and_least_pairs_are_those_of_the_mask(band):
    pattern = placed(
        (p.ChosenBlocks(torch.randint(-1, 9, (1, 2, 5, 2)), 3, 4) & band).canonical(), 7, 4
    )
    for grid in (whole := Grid.whole(17, 27, 7)), whole.block(range(3, 14), range(5, 21)):
        assert torch.equal(visible_keys(pattern, grid), pattern.evaluate(grid).any(2))
    large = placed(
        (p.ChosenBlocks(torch.randint(-1, 3, (1, 2, 5, 2)), 16, 4) & band).canonical(), 7, 4
    )
    mask = large.dense(17, 40, q_start=7)
    assert 0 <= least_pairs(large, 7, 17, 40) <= mask.sum() / 4
    assert (
        band != p.Full()
        or least_pairs(large, 7, 17, 32) == large.dense(17, 32, q_start=7).sum() // 4
    )


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
def test_wrong_numbers_are_refused_also_inside_a_graph(blocks, error, message, compiled):
    q, k, v = (x.detach() for x in sizes_of(9, 10))
    call = lambda blocks: rg.attention(q, k, v, pattern=p.ChosenBlocks(blocks, 4, 8))  # noqa: E731
    call = torch.compile(call, backend="eager", fullgraph=True) if compiled else call
    assert call(blocks[:1, :1, :1].clamp(0, 2).expand(1, 1, 2, 1)).shape == (*q.shape[:3], 3)
    with pytest.raises(error, match=message):
        call(blocks)


def test_tensors_of_other_kinds_are_refused():
    for wrong in (torch.zeros(1, 1, 2, 1), [[0]], torch.zeros(2, 1, dtype=torch.int64)):
        with pytest.raises((ArgumentError, ShapeError), match="ChosenBlocks's blocks"):
            p.ChosenBlocks(wrong)
    with pytest.raises(ArgumentError, match="it holds a tensor"):
        p.parse("chosen_blocks(3)")
    layer = rg.MultiHeadAttention(dim=8, heads=2)
    with pytest.raises(UnsupportedError, match="rows of one call"):
        layer(
            torch.randn(1, 64, 8),
            cache=layer.new_cache(1),
            pattern=p.ChosenBlocks(torch.zeros(1, 1, 1, 1).long()),
        )


@pytest.mark.parametrize("backend", ["auto", "streamed"])
@pytest.mark.parametrize(
    ("lists", "k_len", "count"), [(1, 71, 13), (2, 71, 13), (4, 71, 13), (2, 1700, 3)]
)
def test_lists_of_keys_for_each_query(backend, lists, k_len, count):
    q, k, v = sizes_of(67, k_len)
    keys = torch.randint(-1, k_len, (2 - lists % 2, lists, 67, count))
    keys[:, :, 7], keys[:, :, 9, :2] = -1, 5  # no key, and a key twice
    mask = mask_of(keys, 67, k_len)
    assert_is_the_formula(p.ChosenKeys(keys), mask, q, k, v, backend=backend)
    causal = np.arange(k_len) <= np.arange(67)[:, None] + k_len - 67
    assert_is_the_formula(p.ChosenKeys(keys) & p.Causal(), mask & causal, q, k, v, backend=backend)
    found, again = (
        rg.attention(q, k, v, pattern=p.ChosenKeys(one)) for one in (keys, keys.flip(-1))
    )
    assert torch.equal(found, again)  # the order of a list does not matter


def test_lists_of_some_rows_and_heads_are_those_of_the_whole():
    keys = torch.randint(-1, 9, (2, 4, 6, 3))
    pattern = p.ChosenKeys(keys)
    dense = p.ChosenKeys(keys).dense(6, 9)
    assert torch.equal(of_queries(pattern, range(2, 5), 9).dense(3, 9), dense[:, :, 2:5])
    assert torch.equal(pattern.of_heads(range(1, 3), 4).dense(6, 9), dense[:, 1:3])
    blocks = p.ChosenBlocks(keys, block=2, query_block=3)
    some = of_queries(blocks, range(4, 11), 18).dense(7, 18)
    assert torch.equal(some, blocks.dense(18, 18)[:, :, 4:11])
    assert torch.equal(pattern.allows(torch.arange(6)[:, None], torch.arange(9)), dense)


def test_a_graph_serves_every_list():
    q, k, v = (x.detach() for x in sizes_of(9, 10))
    call = lambda keys: rg.attention(q, k, v, pattern=p.ChosenKeys(keys) & p.Causal())  # noqa: E731
    graph = torch.compile(call, backend="eager", fullgraph=True)
    for seed in range(3):
        keys = torch.randint(-1, 10, (1, 2, 9, 3), generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(graph(keys), call(keys))
