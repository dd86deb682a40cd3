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


def reached(pattern, layers, length=40):
    return learned(pattern, 1, length, layers)[0].nonzero().flatten().tolist()


def test_a_window_reaches_further_with_each_layer_until_the_text_ends():
    assert reached(CausalWindow(4), 1) == [36, 37, 38, 39]
    assert reached(CausalWindow(4), 3) == list(range(30, 40))
    assert reached(CausalWindow(4), 99) == list(range(40))
    assert reached(DilatedWindow(2, 5), 2) == [29, 34, 39]
    assert reached(SameBlock(8), 9) == list(range(32, 40))


def test_a_layer_hands_on_the_position_itself():
    assert reached(Prefix(1), 2) == [0, 39]
    assert reached(~Full(), 5) == [39]


def test_the_heads_of_a_layer_feed_each_other():
    pattern = PerHead([CausalWindow(2), DilatedWindow(2, 3) & Causal()])
    assert reached(pattern, 2) == [33, 35, 36, 37, 38, 39]


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
    """Every layer hands on a query's own position, so that a stack reaches it however many layers look away from it."""
    assert Reach(back=3, ahead=-2).stacked(2) == Reach(back=6, ahead=0)
    assert Reach(back=None, ahead=1).stacked(3) == Reach(back=None, ahead=3)


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
    ("encoding", "row"),
    [("ascii", "# # ."), ("cp1252", "# # ·"), ("utf-8", "■ ■ ·"), (None, "■ ■ ·")],
)
def test_a_drawing_can_be_printed_on_every_stream(monkeypatch, encoding, row):
    stream = (
        io.StringIO() if encoding is None else io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    )
    monkeypatch.setattr("sys.stdout", stream)
    drawn = Causal().draw(3)
    print(drawn, flush=True)
    assert drawn.splitlines()[3] == f"  1 {row}"
    assert Causal().draw(3, plain=True).splitlines()[3] == "  1 # # ."
    assert Causal().draw(3, plain=False).splitlines()[3] == "  1 ■ ■ ·"
