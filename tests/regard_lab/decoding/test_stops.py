"""Text as it comes: whole characters, nothing of a stop, and the same however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError
from regard_lab.decoding import TextStream

LETTERS = st.text(st.sampled_from("abé🦊 "), max_size=12)
STOPS = st.lists(st.text(st.sampled_from("abé🦊"), min_size=1, max_size=4), max_size=3)


def pieces(raw, cuts):
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return [raw[a:b] for a, b in itertools.pairwise(edges)]


def up_to_the_first_stop(text, stops):
    """Letter by letter: the text before the stop that is complete first."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


@given(LETTERS, STOPS, st.lists(st.integers(0, 99), max_size=6))
def test_a_text_ends_before_the_stop_that_is_complete_first_however_it_is_cut(text, stops, cuts):
    stream = TextStream(stops)
    shown = "".join(stream.feed(piece) for piece in pieces(text.encode(), cuts)) + stream.close()
    assert (shown, stream.stopped) == up_to_the_first_stop(text, stops)


@given(LETTERS, STOPS)
def test_nothing_is_shown_that_must_be_taken_back_and_nothing_held_without_need(text, stops):
    stream, shown = TextStream(stops), ""
    whole, _ = up_to_the_first_stop(text, stops)
    for end, letter in enumerate(text, start=1):
        shown += stream.feed(letter.encode())
        assert whole.startswith(shown)
        if not stream.stopped:
            held = text[len(shown) : end]
            assert held == "" or any(stop.startswith(held) for stop in stops)


def test_half_a_character_waits_for_its_other_half_and_is_marked_if_it_never_comes():
    stream = TextStream()
    assert [stream.feed(bytes([byte])) for byte in "🦊".encode()] == ["", "", "", "🦊"]
    assert stream.feed(b"\xf0\x9f") == ""
    assert stream.close() == "\ufffd"


def test_what_may_be_a_stop_is_held_until_it_is_none():
    stream = TextStream(["###"])
    assert [stream.feed(part) for part in (b"a#", b"#", b"b")] == ["a", "", "##b"]
    assert not stream.stopped


def test_the_space_before_the_first_word_of_a_text_goes():
    stream = TextStream(begins=True)
    assert [stream.feed(b" a"), stream.feed(b" b")] == ["a", " b"]


@pytest.mark.parametrize("stops", ["end", [""], ["a", 3]])
def test_stops_that_cannot_be_are_refused(stops):
    with pytest.raises(ArgumentError, match="stops"):
        TextStream(stops)
