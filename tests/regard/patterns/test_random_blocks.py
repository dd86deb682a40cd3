"""Random blocks: their draws are frozen, and a query's blocks are known without looking at pairs."""

import pytest
import torch

from regard.patterns import RandomBlocks


def drawn_blocks(pattern: RandomBlocks, query: int, k_len: int) -> list[int]:
    """The blocks of keys that the query at this position may look at."""
    (keys,) = pattern.dense(1, k_len, q_start=query)[0].nonzero(as_tuple=True)
    return (keys // pattern.block).unique().tolist()


# By the law in the conventions, in plain integers. A change here changes the meaning of every model that was trained
# with random blocks.
GOLDEN = [
    (
        RandomBlocks(3, block=64, seed=0),
        4096,
        {0: [17, 41, 55], 63: [17, 41, 55], 64: [24, 25, 34], 4095: [20, 49, 54]},
    ),
    (RandomBlocks(3, block=64, seed=0), 4096, {-1: [25, 40, 51]}),
    (
        RandomBlocks(2, block=16, seed=7, past=True),
        640,
        {0: [0], 16: [0, 1], 40: [0, 2], 639: [26, 30], -1: []},
    ),
    (RandomBlocks(4, block=1, seed=-5), 1000, {0: [162, 544, 607, 934], 999: [67, 159, 421, 500]}),
]


@pytest.mark.parametrize(("pattern", "k_len", "blocks"), GOLDEN)
def test_the_draws_are_frozen(pattern, k_len, blocks):
    assert {query: drawn_blocks(pattern, query, k_len) for query in blocks} == blocks


def test_rows_that_start_apart_draw_by_their_own_positions():
    pattern = RandomBlocks(2, block=4, seed=1)
    dense = pattern.dense(6, 32, q_start=torch.tensor([0, 13]))
    for row, start in enumerate((0, 13)):
        assert torch.equal(dense[row, 0], pattern.dense(6, 32, q_start=start))


def test_segments_of_a_long_text_name_the_drawn_blocks_and_no_more():
    pattern = RandomBlocks(3, block=64, seed=0)
    segments = pattern.segments(640_000, 640_063, 1_000_000)
    assert segments.full == segments.some
    assert sum(map(len, segments.some)) == 3 * 64
    assert all(keys.start % 64 == 0 for keys in segments.some)


def test_more_blocks_than_there_are_keep_every_pair():
    assert RandomBlocks(10**15, block=10**15, past=True).count(4, 4) == 16
    assert RandomBlocks(10**15).count(4, 200) == 800


def test_blocks_of_the_past_reach_ahead_to_the_end_of_a_block():
    assert RandomBlocks(2, past=True).reach(3).ahead == 63
    assert RandomBlocks(2).reach().ahead is None
