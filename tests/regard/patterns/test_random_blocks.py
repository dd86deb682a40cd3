import pytest
import torch

from regard.patterns import RandomBlocks


def drawn(pattern: RandomBlocks, query: int, k_len: int) -> list[int]:
    """The blocks of keys that the query at this position sees."""
    seen = pattern.dense(1, k_len, q_start=query)[0]
    return sorted(set((seen.nonzero().flatten() // pattern.block).tolist()))


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
    assert {query: drawn(pattern, query, k_len) for query in blocks} == blocks


def test_rows_that_start_apart_draw_by_their_own_positions():
    pattern = RandomBlocks(2, block=4, seed=1)
    both = pattern.dense(6, 32, q_start=torch.tensor([0, 13]))
    assert torch.equal(both[0, 0], pattern.dense(6, 32, q_start=0))
    assert torch.equal(both[1, 0], pattern.dense(6, 32, q_start=13))


def test_segments_of_a_long_text_name_the_drawn_blocks_and_no_more():
    pattern = RandomBlocks(3, block=64, seed=0)
    found = pattern.segments(640_000, 640_063, 1_000_000)
    assert found.full == found.some
    assert sum(map(len, found.some)) == 3 * 64
    assert {one.start % 64 for one in found.some} == {0}


def test_it_answers_alike_whatever_the_number_of_blocks_it_could_be_asked_for():
    assert RandomBlocks(10**15, block=10**15, past=True).count(4, 4) == 16
    assert RandomBlocks(10**15).count(4, 200) == 800
    assert RandomBlocks(2, past=True).reach(3).ahead == 63
    assert RandomBlocks(2).reach().ahead is None
