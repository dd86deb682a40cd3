"""Laws that hold for every expression of patterns: structure, text and algebra agree with the pairs themselves."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from law_examples import law
from pattern_expressions import anything, lengths, pairs, starts, texts

from regard.errors import ArgumentError
from regard.patterns import (
    Causal,
    CausalWindow,
    Explicit,
    Full,
    Grid,
    KeySpan,
    Pattern,
    SlidingWindow,
    parse,
)

many = law(300)


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
    keys = pattern.keys(q_start, q_start + q_len - 1, k_len)
    assert 0 <= keys.start <= keys.stop <= k_len
    assert not anyone[: keys.start].any()
    assert not anyone[keys.stop :].any()
    for low in range(k_len):
        for high in range(low, k_len + 1):
            if pattern.sees_all(q_start, q_start + q_len - 1, range(low, high)):
                assert truth[..., low:high].all()
    band = pattern.band()
    if band is not None:
        rows, columns = torch.arange(q_len)[:, None] + q_start, torch.arange(k_len)
        drawn = torch.ones(q_len, k_len, dtype=torch.bool)
        drawn &= columns >= rows - band.left if band.left is not None else drawn
        drawn &= columns <= rows + band.right if band.right is not None else drawn
        drawn &= columns >= band.start if band.start is not None else drawn
        drawn &= columns < band.stop if band.stop is not None else drawn
        assert torch.equal(drawn, truth[0])
        assert band.count(q_start, q_len, k_len) == int(drawn.sum())


@many
@given(anything, lengths, lengths, st.integers(-6, 14) | st.lists(st.integers(-6, 14), min_size=2, max_size=2))
def test_visible_keys_are_those_that_some_query_sees(pattern, q_len, k_len, q_start):
    start = torch.tensor(q_start) if isinstance(q_start, list) else q_start
    shown = pattern.visible_keys(Grid.whole(q_len, k_len, start))
    truth = pairs(pattern, q_len, k_len, start).any(-2)
    shown = torch.ones_like(truth) if shown is None else shown
    assert bool((shown == truth).all())


@many
@given(texts)
def test_text_reads_back_as_the_same_pattern(pattern):
    again = parse(str(pattern))
    assert again == pattern
    assert hash(again) == hash(pattern)
    assert str(again) == str(pattern)


@law(600)
@given(st.text(max_size=40) | st.text("caulsdingwok_epf ()&|~,-0123456789", max_size=60))
def test_garbage_is_refused_with_one_kind_of_error(text):
    try:
        pattern = parse(text)
    except ArgumentError:
        return
    assert parse(str(pattern)) == pattern


NO_PATTERNS = (
    "", "(" * 5000, "~" * 5000 + "causal", "&" * 20000, "causal causal", "key_span(1,)", "sliding_window(-1)",
    "causal_window(" + "9" * 30 + ")", "causal_window", None, 7,
)  # fmt: skip


@pytest.mark.parametrize("text", NO_PATTERNS)
def test_texts_that_are_no_pattern_are_refused(text):
    with pytest.raises(ArgumentError):
        parse(text)


def test_a_refusal_shows_the_place():
    with pytest.raises(ArgumentError, match=r"at character 8: there is no pattern 'causel'; did you mean 'causal'"):
        parse("full & causel")


@pytest.mark.parametrize(("size", "length", "start"), [(2**40, 10**9, 0), (7, 10**9, -(10**6))])
def test_counting_a_band_looks_at_no_pair(size, length, start):
    assert CausalWindow(size).count(length, length, q_start=start) > 0


class TestPatternsThatHoldTensors:
    def test_they_are_equal_only_to_themselves(self):
        mask, stops = torch.ones(2, 2, dtype=torch.bool), torch.tensor([1, 2])
        for make in (lambda: Explicit(mask), lambda: KeySpan(0, stops)):
            one, other = make(), make()
            assert one == one
            assert one != other
            assert len({one, other, one & Causal(), other & Causal()}) == 4

    def test_they_copy_what_they_are_given(self):
        mask, stops = torch.ones(2, 2, dtype=torch.bool), torch.tensor([1, 2])
        explicit, span = Explicit(mask), KeySpan(0, stops)
        mask.zero_()
        stops.zero_()
        assert explicit.count(2, 2) == 4
        assert span.count(1, 2) == 3


def test_patterns_are_immutable_and_usable_as_keys():
    found = {Causal(): 1, SlidingWindow(4): 2, Causal() & SlidingWindow(4): 3, KeySpan(0, 3): 4}
    assert found[SlidingWindow(4) & Causal()] == 3
    with pytest.raises(AttributeError):
        SlidingWindow(4).size = 5  # type: ignore[misc]


def test_a_drawing_shows_the_pairs_and_their_positions():
    lines = CausalWindow(2).draw(2, 4).splitlines()
    assert lines == [
        "causal_window(2): 4 of 8 pairs",
        "queries at positions 2 to 3",
        "    0 1 2 3",
        "  2 · ■ ■ ·",
        "  3 · · ■ ■",
    ]
    assert KeySpan(0, torch.tensor([1, 2])).draw(2).splitlines()[0].endswith("first batch row")
    with pytest.raises(ArgumentError, match="201 x 5"):
        Causal().draw(201, 5)


@pytest.mark.parametrize(
    ("encoding", "row"), [("ascii", "# # ."), ("cp1252", "# # ·"), ("utf-8", "■ ■ ·"), (None, "■ ■ ·")]
)
def test_a_drawing_can_be_printed_on_every_stream(monkeypatch, encoding, row):
    stream = io.StringIO() if encoding is None else io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", stream)
    drawn = Causal().draw(3)
    print(drawn, flush=True)
    assert drawn.splitlines()[3] == f"  1 {row}"
    assert Causal().draw(3, plain=True).splitlines()[3] == "  1 # # ."
    assert Causal().draw(3, plain=False).splitlines()[3] == "  1 ■ ■ ·"
