"""The pattern view: the pairs that are drawn and counted are those of Python, in records and on the page."""

import pytest
import torch

from regard.errors import ArgumentError
from regard.patterns import (
    Causal,
    CausalWindow,
    Explicit,
    GlobalTokens,
    PerHead,
    SameDocument,
    SlidingWindow,
    parse,
)
from regard_lab.models import RecurrentTranslator
from regard_lab.seeing import show
from regard_lab.seeing.explorer.patterns import LENGTHS, map_pattern, patterns_used

from .browsing import Opened
from .making import SOURCE, TARGET, TOKENISER, translator

TEXTS = (
    "causal",
    "sliding_window(4)",
    "causal & strided(5)",
    "fixed(4, summary=1)",
    "causal_window(3) | global_tokens(0)",
)


@pytest.fixture
def _short(monkeypatch):
    """Other lengths that are counted and planned at once."""
    monkeypatch.setattr("regard_lab.seeing.explorer.patterns.LENGTHS", (32, 64))


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("rows", "columns", "start"), [(13, 13, None), (7, 9, 0)])
def test_the_pairs_are_those_of_the_dense_pattern(text, rows, columns, start):
    pattern = parse(text)
    pattern_map = map_pattern(pattern, rows, columns, q_start=start)
    dense = pattern.dense(rows, columns, q_start=start)
    assert torch.equal(pattern_map.panels[0].states == 2, dense)
    assert pattern_map.panels[0].pairs == pattern_map.growth[0].pairs == int(dense.sum())
    for point in pattern_map.growth[1:3]:
        assert point.pairs == pattern.count(point.length, point.length)
        assert 0 < point.computed <= 1


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("text", TEXTS)
def test_tiles_of_a_long_pattern_are_those_of_its_pairs(text):
    pattern = parse(text)
    length = 600
    pattern_map = map_pattern(pattern, length)
    tile = pattern_map.tile
    assert tile == 3
    dense = pattern.dense(length, length).reshape(200, tile, 200, tile)
    some = dense.any(3).any(1)
    whole = dense.all(3).all(1)
    assert torch.equal(pattern_map.panels[0].states, some.to(torch.uint8) + whole.to(torch.uint8))
    assert pattern_map.panels[0].pairs == int(dense.sum())


def test_heads_that_differ_are_panels_of_their_own():
    for length in (6, 700):
        pattern_map = map_pattern(PerHead([Causal(), SlidingWindow(2), Causal()]), length)
        counts = [Causal().count(length, length), SlidingWindow(2).count(length, length)]
        assert [(panel.heads, panel.pairs) for panel in pattern_map.panels] == [
            ((0, 2), counts[0]),
            ((1,), counts[1]),
        ]
        assert pattern_map.growth[0].of == 3 * length**2


def test_a_pattern_that_holds_a_tensor_is_counted_at_its_own_length_alone():
    for pattern in (
        SameDocument(torch.tensor([0, 0, 1])),
        Explicit(torch.eye(3, dtype=torch.bool)),
    ):
        pattern_map = map_pattern(pattern, 3)
        assert [point.length for point in pattern_map.growth] == [3]
    assert [point.length for point in map_pattern(Causal(), 8).growth] == [8, *LENGTHS]


def test_the_layers_of_each_model_are_named():
    source = TOKENISER.pieces(TOKENISER.encode(SOURCE))
    target = TOKENISER.pieces(TOKENISER.encode(TARGET))
    model = translator(encoder_pattern="sliding_window(4)", decoder_pattern="causal_window(3)")
    pattern_maps = {
        pattern_map.name: pattern_map for pattern_map in patterns_used(model, source, target)
    }
    assert list(pattern_maps) == [
        "Encoder self-attention, layers 0 to 2",
        "Decoder self-attention, layer 0",
        "Cross-attention, layer 0",
    ]
    encoder = pattern_maps["Encoder self-attention, layers 0 to 2"]
    assert encoder.rows == tuple(source)
    assert encoder.panels[0].pairs == SlidingWindow(4).count(len(source), len(source))
    decoder = pattern_maps["Decoder self-attention, layer 0"]
    assert torch.equal(
        decoder.panels[0].states == 2, CausalWindow(3).dense(len(target), len(target))
    )
    config = RecurrentTranslator.Config(
        vocab_size=TOKENISER.vocab_size,
        dim=8,
        hidden=8,
        attention="luong-dot",
        reach="local-m",
        window=2,
    )
    (local,) = patterns_used(RecurrentTranslator(config), source, target)
    assert torch.equal(
        local.panels[0].states == 2, SlidingWindow(4).dense(len(target), len(source), q_start=0)
    )


def test_a_pattern_that_cannot_be_shown_is_refused_with_a_sentence():
    for shown, options, says in (
        (Causal(), {"tokens": ["a"], "length": 3}, "not both"),
        (Causal(), {"keys": ["a"]}, "give the words of the queries too"),
        (Causal(), {"length": 200_000}, "at most 100,000"),
        (Causal(), {"length": 0}, "length"),
        (Causal(), {"tokens": []}, "no words"),
        (torch.eye(2), {"length": 3}, "length is for a Pattern"),
    ):
        with pytest.raises(ArgumentError, match=says):
            show(shown, **options)


def test_the_page_says_what_python_counts(browser, page_of):
    pattern = CausalWindow(3) | GlobalTokens([0])
    words = ["the", "</script><b>", "sat", "on", "it"]
    dense = pattern.dense(5, 5)
    with Opened(browser, page_of(show(pattern, words))) as opened:
        page = opened.page
        page.wait_for_selector("canvas.pattern")
        assert page.locator("nav button").all_inner_texts() == ["Pattern"]
        assert f"{int(dense.sum())} of 25 pairs" in page.locator(".summary").inner_text()
        page.locator("canvas.pattern").focus()
        for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
            opened.settle()
        said = page.locator("[role=status]").inner_text()
        assert "Query 3 “on” may look at key 1 “</script><b>”" in said
        assert f"{int(dense[3].sum())} of 5 keys: 0 to 3;" in said
        assert f"{int(dense[:, 1].sum())} of 5 queries" in said
        lines = page.locator("[data-growth] tbody tr").all_inner_texts()
        counts = [int(line.split("\t")[1].replace(",", "")) for line in lines]
        assert counts == [int(dense.sum()), *(pattern.count(n, n) for n in LENGTHS[:3])]
        shown = page.evaluate("""() => { const {place} = document.querySelector("canvas.pattern"), all = [];
          const pen = document.querySelector("canvas.pattern").getContext("2d");
          for (let row = 0; row < 5; row++) for (let column = 0; column < 5; column++) all.push([...pen.getImageData(
            place.left + (column + 0.5) * place.cell, place.top + (row + 0.5) * place.cell, 1, 1).data].join());
          return all; }""")
        colours = {
            bool(allowed): colour for allowed, colour in zip(dense.flatten(), shown, strict=True)
        }
        assert len(set(colours.values())) == 2
        assert shown == [colours[bool(allowed)] for allowed in dense.flatten()]
        # which only the test calls
        assert not [complaint for complaint in opened.complaints if "getImageData" not in complaint]
