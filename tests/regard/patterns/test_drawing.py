"""What a stack of layers learns from, and patterns drawn with characters."""

import io

import pytest
import torch

from regard.errors import ArgumentError
from regard.patterns import (
    Causal,
    CausalWindow,
    DilatedWindow,
    Full,
    KeySpan,
    PerHead,
    Prefix,
    SameBlock,
)
from regard.patterns.band import Reach
from regard.patterns.drawing import draw, learned


def learned_from(pattern, layers):
    """The positions of a text of 40 that its last one learns from."""
    return learned(pattern, 1, 40, layers)[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("pattern", "layers", "positions"),
    [
        (CausalWindow(4), 1, [36, 37, 38, 39]),
        (CausalWindow(4), 3, [*range(30, 40)]),
        (CausalWindow(4), 99, [*range(40)]),
        (DilatedWindow(2, 5), 2, [29, 34, 39]),
        (SameBlock(8), 9, [*range(32, 40)]),
    ],
)
def test_a_window_reaches_further_with_each_layer_until_the_text_ends(pattern, layers, positions):
    assert learned_from(pattern, layers) == positions


def test_a_layer_passes_on_the_position_itself():
    assert learned_from(Prefix(1), 2) == [0, 39]
    assert learned_from(~Full(), 5) == [39]


def test_the_heads_of_a_layer_feed_each_other():
    pattern = PerHead([CausalWindow(2), DilatedWindow(2, 3) & Causal()])
    assert learned_from(pattern, 2) == [33, 35, 36, 37, 38, 39]


def test_a_stack_without_layers_or_with_queries_before_the_text_is_refused():
    with pytest.raises(ArgumentError, match="0 layers"):
        learned(Full(), 1, 1, 0)
    with pytest.raises(ArgumentError, match="9 queries of a text of 4 positions"):
        learned(Full(), 9, 4, 2)
    with pytest.raises(ArgumentError, match="q_start is 3"):
        draw(Full(), 2, 4, q_start=3, layers=2)


def test_a_drawing_marks_what_comes_through_the_stack():
    assert draw(CausalWindow(2), 2, 5, layers=3).splitlines() == [
        "causal_window(2): 4 of 10 pairs, 8 through 3 layers",
        "■ allowed, □ only through 3 layers",
        "queries at positions 3 to 4",
        "    0 1 2 3 4",
        "  3 □ □ ■ ■ ·",
        "  4 · □ □ ■ ■",
    ]


def test_a_stack_never_reaches_less_than_a_querys_own_position():
    """Every layer passes on a query's own position, so a stack reaches it however many layers look away from it."""
    assert Reach(back=3, ahead=-2).stacked(2) == Reach(back=6, ahead=0)
    assert Reach(back=None, ahead=1).stacked(3) == Reach(back=None, ahead=3)


def test_a_drawing_shows_the_pairs_and_their_positions():
    assert CausalWindow(2).draw(2, 4).splitlines() == [
        "causal_window(2): 4 of 8 pairs",
        "queries at positions 2 to 3",
        "    0 1 2 3",
        "  2 · ■ ■ ·",
        "  3 · · ■ ■",
    ]


def test_a_drawing_of_rows_that_differ_shows_the_first_batch_row():
    head = KeySpan(0, torch.tensor([1, 2])).draw(2).splitlines()[0]
    assert head.endswith("first batch row")


def test_a_drawing_that_fits_no_terminal_is_refused():
    with pytest.raises(ArgumentError, match="201 x 5"):
        Causal().draw(201, 5)


@pytest.mark.parametrize(
    ("encoding", "row"),
    [("ascii", "# # ."), ("cp1252", "# # ·"), ("utf-8", "■ ■ ·"), (None, "■ ■ ·")],
)
def test_a_drawing_can_be_printed_on_every_stream(monkeypatch, encoding, row):
    in_memory = io.StringIO()  # has no encoding
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding) if encoding else in_memory
    monkeypatch.setattr("sys.stdout", stream)
    drawing = Causal().draw(3)
    print(drawing, flush=True)
    assert drawing.splitlines()[3] == f"  1 {row}"
    assert Causal().draw(3, plain=True).splitlines()[3] == "  1 # # ."
    assert Causal().draw(3, plain=False).splitlines()[3] == "  1 ■ ■ ·"
