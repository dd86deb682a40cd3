"""Batches divide every epoch among steps and ranks, keep the budget, and depend on the step alone."""

from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard_lab.text import PAD, TokenBatches
from regard_lab.text.batches import pad

lengths = st.lists(st.integers(0, 40), min_size=1, max_size=120)
pair_lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)
worlds = st.integers(1, 5)
MIXED = [1 + (i * 37) % 50 for i in range(500)]


def epoch_of_batches(lengths, budget, seed, world, epoch=0):
    """batch[step][rank] of one epoch, each rank asking for itself."""
    ranks = [TokenBatches(lengths, budget, seed, world, rank) for rank in range(world)]
    steps = ranks[0].steps_per_epoch
    batches = []
    for step in range(epoch * steps, (epoch + 1) * steps):
        batches.append([rank.at(step) for rank in ranks])
    for rank in ranks:
        assert rank.steps_per_epoch == steps
    return batches


def cost_of_longest(lengths, batch):
    """The tokens of the longest sentence of a batch; of a pair the longer side counts."""
    costs = []
    for sentence in batch:
        length = lengths[sentence]
        costs.append(max(length) if isinstance(length, tuple) else length)
    return max(costs)


@settings(deadline=None)
@given(
    st.one_of(lengths, pair_lengths),
    st.integers(40, 200),
    st.integers(0, 2**70),
    worlds,
    st.integers(0, 3),
)
def test_an_epoch_holds_every_sentence_once_and_every_batch_the_budget(
    lengths, budget, seed, world, epoch
):
    steps = epoch_of_batches(lengths, budget, seed, world, epoch)
    batches = list(chain.from_iterable(steps))
    assert sorted(chain.from_iterable(batches)) == list(range(len(lengths)))
    for batch in filter(None, batches):
        assert cost_of_longest(lengths, batch) * len(batch) <= budget


@settings(deadline=None)
@given(lengths, worlds)
def test_only_one_step_shares_out_empty_batches_and_only_among_single_sentences(lengths, world):
    steps = epoch_of_batches(lengths, 60, 0, world)
    lacking = [step for step in steps if not all(step)]
    assert len(lacking) <= 1
    if lacking:
        batches = chain.from_iterable(steps)
        assert max(map(len, batches)) == 1
        assert any(lacking[0])


@settings(deadline=None, max_examples=8)
@given(st.permutations(range(60)), st.integers(0, 5))
def test_a_batch_is_a_function_of_its_step_alone(asked, seed):
    fresh = [TokenBatches(MIXED, 300, seed, 2, 1).at(step) for step in range(60)]
    used = TokenBatches(MIXED, 300, seed, 2, 1)
    for step in asked:
        assert used.at(step) == fresh[step]


def test_the_draw_is_the_one_of_every_other_machine():
    batches = TokenBatches([3, 9, 4, 8, 3, 5, 5], 10, seed=1)
    drawn = [sorted(batches.at(step)) for step in range(batches.steps_per_epoch)]
    assert drawn == [[0, 4], [1], [5], [2, 6], [3]]


def test_epochs_and_seeds_differ_and_batches_do_not_come_in_the_order_of_length():
    first = epoch_of_batches(MIXED, 300, 0, 1, epoch=0)
    assert first != epoch_of_batches(MIXED, 300, 0, 1, epoch=1)
    assert first != epoch_of_batches(MIXED, 300, 1, 1, epoch=0)
    longest = [cost_of_longest(MIXED, batch) for [batch] in first]
    assert longest not in (sorted(longest), sorted(longest, reverse=True))


def test_little_is_padding_and_ranks_of_a_step_have_neighbouring_lengths():
    many = MIXED * 4
    steps = epoch_of_batches(many, 1000, 0, 1)
    with_padding = 0
    for [batch] in steps:
        with_padding += cost_of_longest(many, batch) * len(batch)
    assert sum(many) / with_padding > 0.9
    assert len(steps) <= 1.15 * sum(many) / 1000 + 1
    for step in epoch_of_batches(many, 500, 0, 4):
        longest = [cost_of_longest(many, batch) for batch in step]
        assert max(longest) <= 1.5 * min(longest) + 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 10, 0), "lengths is empty"),
        (([1, -2], 10, 0), "sentence 1 has a length of -2"),
        (([1], 10, 0, 2, 2), "rank is 2 in a world of 2"),
        (([1], 10, 0, 0, 0), "rank is 0 in a world of 0"),
        (([1], 10, 0, 2, -1), "rank is -1"),
        (
            ([(3, 4), (5, 90), (70, 2)], 64, 0),
            r"sentence 1 has 90 tokens, more than the budget of 64 .*\(2 of 3",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        TokenBatches(*arguments)


# --- padding


def test_pad_fills_on_the_side_asked_for():
    rows = [[5, 6, 7], [], [8]]
    assert pad(rows).tolist() == [[5, 6, 7], [PAD] * 3, [8, PAD, PAD]]
    assert pad(rows, side="left", value=9).tolist() == [[5, 6, 7], [9, 9, 9], [9, 9, 8]]
    assert pad(rows).dtype == torch.long
