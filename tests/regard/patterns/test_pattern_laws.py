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
from regard.patterns import CausalWindow, Full, Grid, Pattern, RandomBlocks, parse
from regard.patterns.ranges import Ranges
from regard.patterns.visible import empty_rows, visible_keys

tiling = import_module("regard.patterns.tiles")
many = law(120)
several = law(60)
where = st.integers(-6, 14)
somebody = st.integers(1, 9)


def marked(ranges: Ranges, length: int) -> torch.Tensor:
    """The ranges as booleans, after a look at their form: sorted, apart, not empty, within 0 .. length."""
    marks = torch.zeros(length, dtype=torch.bool)
    end = -1
    for one in ranges:
        assert end < one.start < one.stop <= length
        marks[one.start : one.stop] = True
        end = one.stop
    return marks


def same(one: Pattern, other: Pattern, q_len: int = 9, k_len: int = 11) -> bool:
    return all(
        bool((pairs(one, q_len, k_len, q_start) == pairs(other, q_len, k_len, q_start)).all())
        for q_start in (-3, 0, 5)
    )


@many
@given(anything, lengths, lengths, starts)
def test_dense_and_count_are_the_pairs_that_allows_tells(pattern, q_len, k_len, q_start):
    truth = pairs(pattern, q_len, k_len, q_start)
    dense = pattern.dense(q_len, k_len, q_start=q_start)
    assert torch.equal(dense.expand(truth.shape), truth)
    assert pattern.count(q_len, k_len, q_start=q_start) == int(dense.sum())


@many
@given(anything, anything, lengths, lengths, starts)
def test_the_algebra_is_that_of_booleans(a, b, q_len, k_len, q_start):
    def dense(pattern: Pattern) -> torch.Tensor:
        return pairs(pattern, q_len, k_len, q_start)

    def same(one: torch.Tensor, other: torch.Tensor) -> bool:
        return bool((one == other).all())

    assert same(dense(a & b), dense(a) & dense(b))
    assert same(dense(a | b), dense(a) | dense(b))
    assert same(dense(~a), ~dense(a))
    assert same(dense(~(a & b)), dense(~a | ~b))
    assert same(dense(~(a | b)), dense(~a & ~b))
    assert a & b == b & a
    assert a | b == b | a
    assert hash(a & b) == hash(b & a)
    assert a & a == a == a | a == ~~a
    assert a & Full() == a
    assert a | Full() == Full()


@many
@given(anything, st.integers(1, 8), lengths, st.integers(-6, 14))
def test_structure_never_forgets_a_pair(pattern, q_len, k_len, q_start):
    truth = pairs(pattern, q_len, k_len, q_start).flatten(0, 1)
    anyone = truth.any(0).any(0)
    keys = pattern.key_range(q_start, q_start + q_len - 1, k_len)
    assert 0 <= keys.start <= keys.stop <= k_len
    assert not anyone[: keys.start].any()
    assert not anyone[keys.stop :].any()
    for low in range(k_len):
        for high in range(low, k_len + 1):
            if pattern.sees_all(q_start, q_start + q_len - 1, range(low, high)):
                assert truth[..., low:high].all()
    band = pattern.band()
    if band is not None:
        rows = torch.arange(q_len)[:, None] + q_start
        columns = torch.arange(k_len)
        drawn = torch.ones(q_len, k_len, dtype=torch.bool)
        drawn &= columns >= rows - band.left if band.left is not None else drawn
        drawn &= columns <= rows + band.right if band.right is not None else drawn
        drawn &= columns >= band.start if band.start is not None else drawn
        drawn &= columns < band.stop if band.stop is not None else drawn
        assert torch.equal(drawn, truth[0])
        assert band.count(q_start, q_len, k_len) == int(drawn.sum())


@many
@given(
    anything,
    lengths,
    lengths,
    st.integers(-6, 14) | st.lists(st.integers(-6, 14), min_size=2, max_size=2),
)
def test_visible_keys_are_those_that_some_query_sees(pattern, q_len, k_len, q_start):
    start = torch.tensor(q_start) if isinstance(q_start, list) else q_start
    shown = visible_keys(pattern, Grid.whole(q_len, k_len, start))
    truth = pairs(pattern, q_len, k_len, start).any(-2)
    shown = torch.ones_like(truth) if shown is None else shown
    assert bool((shown == truth).all())


@several
@given(anything, somebody, lengths, where)
def test_segments_are_sound(pattern, q_len, k_len, q_start):
    truth = pairs(pattern, q_len, k_len, q_start).flatten(0, 1)  # (anyone, q_len, k_len)
    found = pattern.segments(q_start, q_start + q_len - 1, k_len)
    full = marked(found.full, k_len)
    some = marked(found.some, k_len)
    assert not (full & ~truth.all(0).all(0)).any()
    assert not (truth.any(0).any(0) & ~some).any()


@pytest.mark.parametrize("negated", [False, True])
def test_a_draw_that_depends_on_the_number_of_keys_is_never_certain_without_it(negated):
    for seed in range(5):
        drawn = RandomBlocks(1, block=1, seed=seed)
        pattern = ~drawn if negated else drawn
        for key in range(6):
            seen = pattern.sees_all(0, 0, range(key, key + 1))
            assert not seen or all(
                pattern.dense(1, length, q_start=0)[0, key] for length in range(key + 1, 9)
            )


@several
@given(alike, lengths, lengths, where, st.integers(1, 5), st.sampled_from([1, 16, tiling.AT_ONCE]))
@example(
    parse("strided(3)"), 2, 1, 2, 2, tiling.AT_ONCE
)  # the last tile has one key, which no rule is certain of
def test_tiles_are_those_of_the_dense_form(pattern, q_len, k_len, q_start, tile, look):
    truth = pairs(pattern, q_len, k_len, q_start)[0, 0]
    with mock.patch.object(tiling, "AT_ONCE", look):  # pairs that are looked at together
        states = pattern.tiles(q_len, k_len, tile, q_start=q_start).states()
    rows = -(-q_len // tile)
    columns = -(-k_len // tile)
    assert tuple(states.shape) == (rows, columns)
    for row in range(rows):
        for column in range(columns):
            block = truth[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
            assert states[row, column] == (2 if block.all() else int(block.any()))


@several
@given(alike, lengths, lengths, where)
def test_empty_rows_see_no_key(pattern, q_len, k_len, q_start):
    truth = pairs(pattern, q_len, k_len, q_start)[0, 0]
    assert torch.equal(
        marked(empty_rows(pattern, q_len, k_len, q_start=q_start), q_len), ~truth.any(-1)
    )


@several
@given(anything)
def test_canonical_forms_mean_the_same_and_stay(pattern):
    found = pattern.canonical()
    assert same(found, pattern)
    assert found.canonical() == found


@several
@given(alike, alike, alike)
def test_canonical_forms_forget_order_and_grouping(a, b, c):
    for one, other in (((a & b) & c, c & (b & a)), ((a | b) | c, c | (b | a)), (~(a & b), ~b | ~a)):
        assert one.canonical() == other.canonical()
        assert str(one.canonical()) == str(other.canonical())


def test_canonical_forms_drop_what_is_implied_and_cut_what_is_cut():
    for text, fewest in (
        ("causal & causal_window(512)", "causal_window(512)"),
        ("sliding_window(8) & ~(~causal)", "causal_window(5)"),
        ("strided(4) | (strided(4) & global_tokens(0))", "strided(4)"),
        ("strided(4) & (strided(4) | global_tokens(0))", "strided(4)"),
        ("sliding_window(8) | sliding_window(4)", "sliding_window(8)"),
        ("causal & ~causal", "~full"),
        ("dilated_window(7, 1)", "sliding_window(6)"),
        ("prefix(3) & key_span(1)", "key_span(1, 3)"),
        ("lattice(1) | strided(5)", "full"),
    ):
        assert str(parse(text).canonical()) == fewest


@several
@given(anything)
def test_structure_means_the_same(pattern):
    assert same(pattern.structure(), pattern)


@several
@given(anything, st.integers(1, 4), where)
def test_shifting_by_the_period_changes_nothing(pattern, q_len, q_start):
    period = pattern.period
    assume(period is not None)
    rows = torch.arange(q_len)[:, None] + q_start
    keys = torch.arange(9)
    assert bool((pattern.allows(rows, keys) == pattern.allows(rows + period, keys + period)).all())


@several
@given(local)
def test_patterns_of_distances_and_blocks_have_a_period(pattern):
    assert pattern.period is not None


@several
@given(alike, st.integers(1, 5), st.data())
def test_on_a_lattice_it_is_the_pattern_of_every_so_manieth_position(pattern, stride, data):
    residue = data.draw(st.integers(0, stride - 1))
    found = pattern.on_lattice(stride, residue)
    assume(found is not None)
    rows = torch.arange(-2, 5)[:, None]
    keys = torch.arange(6)
    there = pattern.allows(rows * stride + residue, keys * stride + residue)
    assert bool((found.allows(rows, keys) == there).all())


@several
@given(anything, lengths, lengths, where)
def test_one_head_and_one_row_see_what_is_theirs(pattern, q_len, k_len, q_start):
    truth = pairs(pattern, q_len, k_len, q_start).expand(ROWS, HEADS, q_len, k_len)
    for row in range(ROWS):
        for head in range(HEADS):
            alone = pattern.for_row(row).for_head(head)
            assert not alone.varies_by_row
            assert not alone.varies_by_head
            assert torch.equal(pairs(alone, q_len, k_len, q_start)[0, 0], truth[row, head])


@several
@given(anything, st.integers(1, 3))
def test_a_stack_learns_from_nothing_beyond_its_reach(pattern, layers):
    positions = 14
    seen = pairs(pattern, positions, positions, 0).flatten(0, 1).any(0) | torch.eye(
        positions, dtype=torch.bool
    )
    learns = torch.eye(positions, dtype=torch.bool)
    for _ in range(layers):
        learns = (seen.float() @ learns.float()) > 0
    reach = pattern.reach(layers)
    ahead = torch.arange(positions) - torch.arange(positions)[:, None]
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
