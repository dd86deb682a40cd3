"""Laws that hold for every expression of patterns: structure, text and algebra agree with the pairs themselves."""

from importlib import import_module
from unittest import mock

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from law_examples import law
from pattern_strategies import HEADS, ROWS, alike, anything, lengths, local, pairs, starts, texts

from regard.errors import ArgumentError
from regard.patterns import CausalWindow, Full, Pattern, RandomBlocks, parse
from regard.patterns.band import Band
from regard.patterns.counts import counted
from regard.patterns.grid import Grid
from regard.patterns.position_sets import KeySet
from regard.patterns.ranges import Ranges
from regard.patterns.visible import empty_rows, visible_keys

tiling = import_module("regard.patterns.tiles")
many = law(120)
several = law(60)
positions = st.integers(-6, 14)
positive_lengths = st.integers(1, 9)


def marked(ranges: Ranges, length: int) -> torch.Tensor:
    """The ranges as booleans, after a look at their form: sorted, apart, not empty, within 0 .. length."""
    marks = torch.zeros(length, dtype=torch.bool)
    end = -1
    for keys in ranges:
        assert end < keys.start < keys.stop <= length
        marks[keys.start : keys.stop] = True
        end = keys.stop
    return marks


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether pairs are equal, where patterns that are alike for rows or heads have one of each."""
    return bool((a == b).all())


def mean_the_same(a: Pattern, b: Pattern) -> bool:
    return all(is_same(pairs(a, 9, 11, start), pairs(b, 9, 11, start)) for start in (-3, 0, 5))


@many
@given(anything, lengths, lengths, starts)
def test_dense_and_count_are_the_pairs_that_allows_returns(pattern, q_len, k_len, q_start):
    allowed = pairs(pattern, q_len, k_len, q_start)
    dense = pattern.dense(q_len, k_len, q_start=q_start)
    assert torch.equal(dense.expand(allowed.shape), allowed)
    assert pattern.count(q_len, k_len, q_start=q_start) == int(dense.sum())


@many
@given(anything, anything, lengths, lengths, starts)
def test_the_algebra_is_that_of_booleans(a, b, q_len, k_len, q_start):
    def dense(pattern: Pattern) -> torch.Tensor:
        return pairs(pattern, q_len, k_len, q_start)

    assert is_same(dense(a & b), dense(a) & dense(b))
    assert is_same(dense(a | b), dense(a) | dense(b))
    assert is_same(dense(~a), ~dense(a))
    assert is_same(dense(~(a & b)), dense(~a | ~b))
    assert is_same(dense(~(a | b)), dense(~a & ~b))
    assert a & b == b & a
    assert a | b == b | a
    assert hash(a & b) == hash(b & a)
    assert a & a == a == a | a == ~~a
    assert a & Full() == a
    assert a | Full() == Full()


def pairs_of_band(band: Band, q_len: int, k_len: int, q_start: int) -> torch.Tensor:
    i = torch.arange(q_len)[:, None] + q_start
    j = torch.arange(k_len)
    allowed = torch.ones(q_len, k_len, dtype=torch.bool)
    if band.left is not None:
        allowed &= j >= i - band.left
    if band.right is not None:
        allowed &= j <= i + band.right
    if band.start is not None:
        allowed &= j >= band.start
    if band.stop is not None:
        allowed &= j < band.stop
    return allowed


@many
@given(anything, st.integers(1, 8), lengths, positions)
def test_structure_never_forgets_a_pair(pattern, q_len, k_len, q_start):
    """The range of keys, the keys that all queries see, and the band where there is one."""
    allowed = pairs(pattern, q_len, k_len, q_start).flatten(0, 1)
    last = q_start + q_len - 1

    visible = allowed.flatten(0, 1).any(0)
    keys = pattern.key_range(q_start, last, k_len)
    assert 0 <= keys.start <= keys.stop <= k_len
    assert not visible[: keys.start].any()
    assert not visible[keys.stop :].any()

    for low in range(k_len):
        for high in range(low, k_len + 1):
            if pattern.sees_all(q_start, last, range(low, high)):
                assert allowed[..., low:high].all()

    band = pattern.band()
    if band is not None:
        assert torch.equal(pairs_of_band(band, q_len, k_len, q_start), allowed[0])
        assert band.count(q_start, q_len, k_len) == int(allowed[0].sum())


two_positions = st.lists(positions, min_size=ROWS, max_size=ROWS).map(torch.tensor)


@many
@given(anything, lengths, lengths, positions | two_positions)
def test_visible_keys_are_those_that_some_query_sees(pattern, q_len, k_len, q_start):
    expected = pairs(pattern, q_len, k_len, q_start).any(-2)
    visible = visible_keys(pattern, Grid.whole(q_len, k_len, q_start))
    assert expected.all() if visible is None else is_same(visible, expected)


def certain_keys(pattern: Pattern, allowed: torch.Tensor, first: int, queries: int) -> torch.Tensor:
    """The keys that segments call certain, after a check of both sets against the allowed pairs (queries, keys)."""
    k_len = allowed.shape[-1]
    segments = pattern.segments(first, first + queries - 1, k_len)
    full = marked(segments.full, k_len)
    some = marked(segments.some, k_len)
    assert not (full & ~allowed.all(0)).any(), (first, queries, k_len)
    assert not (allowed.any(0) & ~some).any(), (first, queries, k_len)
    return full


@several
@given(anything, positive_lengths, lengths, positions)
def test_segments_are_sound(pattern, q_len, k_len, q_start):
    allowed = pairs(pattern, q_len, k_len, q_start).flatten(0, 2)
    certain_keys(pattern, allowed, q_start, q_len)


@pytest.mark.parametrize("negated", [False, True])
def test_a_draw_that_depends_on_the_number_of_keys_is_never_certain_without_it(negated):
    for seed in range(5):
        blocks = RandomBlocks(1, block=1, seed=seed)
        pattern = ~blocks if negated else blocks
        for key in range(6):
            if pattern.sees_all(0, 0, range(key, key + 1)):
                for length in range(key + 1, 9):
                    assert pattern.dense(1, length, q_start=0)[0, key]


NONE, SOME, ALL = 0, 1, 2  # of the pairs of a tile


def state_of(tile: torch.Tensor) -> int:
    if tile.all():
        return ALL
    return SOME if tile.any() else NONE


# The last tile of the example has one key, which no rule is certain of.
@several
@given(
    alike,
    lengths,
    lengths,
    positions,
    st.integers(1, 5),
    st.sampled_from([1, 16, tiling.AT_ONCE]),
)
@example(parse("strided(3)"), 2, 1, 2, 2, tiling.AT_ONCE)
def test_tiles_are_those_of_the_dense_form(pattern, q_len, k_len, q_start, size, pairs_at_once):
    allowed = pairs(pattern, q_len, k_len, q_start)[0, 0]
    with mock.patch.object(tiling, "AT_ONCE", pairs_at_once):
        states = pattern.tiles(q_len, k_len, size, q_start=q_start).states()
    rows = -(-q_len // size)
    columns = -(-k_len // size)
    assert tuple(states.shape) == (rows, columns)
    for row in range(rows):
        for column in range(columns):
            tile = allowed[row * size : (row + 1) * size, column * size : (column + 1) * size]
            assert states[row, column] == state_of(tile)


@several
@given(alike, lengths, lengths, positions)
def test_empty_rows_see_no_key(pattern, q_len, k_len, q_start):
    allowed = pairs(pattern, q_len, k_len, q_start)[0, 0]
    empty = marked(empty_rows(pattern, q_len, k_len, q_start=q_start), q_len)
    assert torch.equal(empty, ~allowed.any(-1))


@several
@given(anything)
def test_canonical_forms_mean_the_same_and_stay(pattern):
    canonical = pattern.canonical()
    assert mean_the_same(canonical, pattern)
    assert canonical.canonical() == canonical


@several
@given(alike, alike, alike)
def test_canonical_forms_forget_order_and_grouping(a, b, c):
    for first, second in (
        ((a & b) & c, c & (b & a)),
        ((a | b) | c, c | (b | a)),
        (~(a & b), ~b | ~a),
    ):
        assert first.canonical() == second.canonical()
        assert str(first.canonical()) == str(second.canonical())


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("causal & causal_window(512)", "causal_window(512)"),
        ("sliding_window(8) & ~(~causal)", "causal_window(5)"),
        ("strided(4) | (strided(4) & global_tokens(0))", "strided(4)"),
        ("strided(4) & (strided(4) | global_tokens(0))", "strided(4)"),
        ("sliding_window(8) | sliding_window(4)", "sliding_window(8)"),
        ("causal & ~causal", "~full"),
        ("dilated_window(7, 1)", "sliding_window(6)"),
        ("prefix(3) & key_span(1)", "key_span(1, 3)"),
        ("lattice(1) | strided(5)", "full"),
    ],
)
def test_canonical_forms_drop_what_is_implied_and_cut_what_is_cut(text, shortest):
    assert str(parse(text).canonical()) == shortest


@several
@given(anything)
def test_structure_means_the_same(pattern):
    assert mean_the_same(pattern.structure(), pattern)


@several
@given(anything, st.integers(1, 4), positions)
def test_shifting_by_the_period_changes_nothing(pattern, q_len, q_start):
    period = pattern.period
    assume(period is not None)
    i = torch.arange(q_len)[:, None] + q_start
    j = torch.arange(9)
    assert is_same(pattern.allows(i, j), pattern.allows(i + period, j + period))


@several
@given(local)
def test_patterns_of_distances_and_blocks_have_a_period(pattern):
    assert pattern.period is not None


@several
@given(alike, st.integers(1, 5), st.data())
def test_on_a_lattice_it_is_the_pattern_of_every_nth_position(pattern, stride, data):
    residue = data.draw(st.integers(0, stride - 1))
    at_residue = pattern.on_lattice(stride, residue)
    assume(at_residue is not None)
    i = torch.arange(-2, 5)[:, None]
    j = torch.arange(6)
    expected = pattern.allows(i * stride + residue, j * stride + residue)
    assert is_same(at_residue.allows(i, j), expected)


@several
@given(anything, lengths, lengths, positions)
def test_one_head_and_one_row_see_what_is_theirs(pattern, q_len, k_len, q_start):
    allowed = pairs(pattern, q_len, k_len, q_start).expand(ROWS, HEADS, q_len, k_len)
    for row in range(ROWS):
        for head in range(HEADS):
            alone = pattern.for_row(row).for_head(head)
            assert not alone.varies_by_row
            assert not alone.varies_by_head
            assert torch.equal(pairs(alone, q_len, k_len, q_start)[0, 0], allowed[row, head])


@several
@given(anything, st.integers(1, 3))
def test_a_stack_learns_from_nothing_beyond_its_reach(pattern, layers):
    length = 14
    itself = torch.eye(length, dtype=torch.bool)
    one_layer = pairs(pattern, length, length, 0).flatten(0, 1).any(0) | itself
    learns = torch.linalg.matrix_power(one_layer.double(), layers) > 0
    reach = pattern.reach(layers)
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    assert reach.back is None or not learns[ahead < -reach.back].any()
    assert reach.ahead is None or not learns[ahead > reach.ahead].any()


@many
@given(texts)
def test_text_reads_back_as_the_same_pattern(pattern):
    again = parse(str(pattern))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert str(again) == str(pattern)


@law(200)
@given(st.text(max_size=40) | st.text("caulsdingwok_epf ()&|~,-0123456789", max_size=60))
def test_garbage_is_refused_with_one_kind_of_error(text):
    try:
        pattern = parse(text)
    except ArgumentError:
        return
    assert parse(str(pattern)) == pattern


@pytest.mark.parametrize(("size", "length", "start"), [(2**40, 10**9, 0), (7, 10**9, -(10**6))])
def test_counting_a_band_looks_at_no_pair(size, length, start):
    assert CausalWindow(size).count(length, length, q_start=start) > 0


def test_a_count_spends_a_look_for_each_row_block_and_for_each_four_runs_in_it():
    """Four row blocks of 21 runs, all of them certain: five looks each."""
    every_second = KeySet(tuple(range(key, key + 1) for key in range(0, 42, 2)))
    assert counted(every_second, 193, 193, 0, looks=20) == 193 * 21
    assert counted(every_second, 193, 193, 0, looks=19) is None
