"""What a lens returns, as JSON, as text with signed bars, and as a picture."""

import json

import pytest
from small_models import CONTRASTS, TOKENISER, assert_apart, small_model

from regard.errors import ArgumentError
from regard_lab.seeing import Relevance, draw_relevance
from regard_lab.seeing.canvas import new_figure
from regard_lab.seeing.lenses import explain_contrasts
from regard_lab.seeing.lenses.record import draw_words, signed_colour
from regard_lab.seeing.palette import DEPENDS, OPPOSES, SCALE


def relevance(**changed):
    fields = {
        "lens": "gradients",
        "word": "es",
        "others": ("er", "sie"),
        "place": 2,
        "log_odds": 3.0,
        "source_words": ("animal", "street", "<end>"),
        "source_scores": (4.0, -2.0, 0.0),
        "written_words": ("<begin>", "weil"),
        "written_scores": (0.0, 1.0),
        "passes": 43,
        "backward_passes": 40,
        "completeness": 0.25,
        "changes": {"source": 2.0, "written": 1.0},
        "note": "A note.",
    }
    return Relevance(**{**fields, **changed})


def test_bars_are_as_long_as_their_scores_and_on_the_side_of_their_sign():
    lines = relevance().text(60).splitlines()
    bars = {line.split()[0]: line for line in lines if "│" in line}
    assert bars["animal"].endswith("│" + "█" * 14)  # the largest score of both sides fills its half
    assert bars["street"].endswith(" " + "▒" * 7 + "│")
    assert bars["weil"].endswith("│" + "█" * 4)
    assert bars["<end>"].endswith(" │")
    assert len({line.index("│") for line in bars.values()}) == 1
    assert lines[0] == "es rather than er or sie: log odds 3.00, probability 0.953 among these"
    assert lines[-2:] == [
        "lens gradients, 43 passes and 40 back; completeness error 0.25",
        "A note.",
    ]
    assert max(map(len, relevance(log_odds=0.0).text(90).splitlines())) <= 90
    with pytest.raises(ArgumentError, match="at least 40"):
        relevance().text(39)


@pytest.mark.parametrize("width", [40, 47, 59, 60, 80])
def test_bars_fit_every_width_beside_the_longest_words(width):
    words = ("Donaudampfschifffahrtsgesellschaft", "a", "<end>")
    lines = relevance(source_words=words, source_scores=(-12.0, 6.0, 0.0)).text(width).splitlines()
    bars = [line for line in lines if "│" in line]
    assert max(map(len, bars)) <= width
    assert len({line.index("│") for line in bars}) == 1
    assert max(line.count("▒") for line in bars) == 2 * max(line.count("█") for line in bars) >= 8


def test_the_record_is_json_and_pairs_each_word_with_its_score():
    record = json.loads(json.dumps(relevance().to_dict()))
    assert record["source"][1] == {"word": "street", "score": -2.0}
    assert record["written"] == [{"word": "<begin>", "score": 0.0}, {"word": "weil", "score": 1.0}]
    assert record["probability"] == pytest.approx(0.9526, abs=1e-4)
    assert (record["of"], record["instead_of"], record["completeness"]) == (
        "es",
        ["er", "sie"],
        0.25,
    )
    assert relevance(written_scores=()).to_dict()["written"] == []


def test_control_characters_are_not_printed():
    text = relevance(word="e\x1bs", source_words=("a\x07", "\u202eb", "c")).text()
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize("lens", ["gradients", "attention"])
def test_words_and_their_scores_are_drawn_without_overlap(tmp_path, lens):
    options = {"steps": 3} if lens == "gradients" else {}
    (record,) = explain_contrasts(small_model(), TOKENISER, CONTRASTS[:1], lens, **options)
    draw_relevance(record, tmp_path / "why.png")
    assert (tmp_path / "why.png").read_bytes().startswith(b"\x89PNG")
    with new_figure() as figure:
        draw_words(figure, record)
        texts = [text.get_text() for text in figure.texts]
        assert_apart(figure)
    for word, score in zip(record.source_words, record.source_scores, strict=True):
        assert word in texts
        assert (f"{score:.2f}" if lens == "attention" else f"{score:+.2f}") in texts


def test_a_dependence_is_orange_what_speaks_against_a_word_grey_and_attention_blue():
    """As in the explorer: one palette for both."""
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    assert to_hex(signed_colour(1.0)) == DEPENDS[-1]
    assert to_hex(signed_colour(-1.0)) == OPPOSES[-1]
    record = relevance(lens="attention", source_scores=(0.0, 1.0, 0.0))
    assert record.are_shares
    assert not relevance().are_shares
    with new_figure() as figure:
        draw_words(figure, record)
        fills = {to_hex(box.get_facecolor()) for box in figure.findobj(Rectangle)}
    assert SCALE[-1] in fills
    assert DEPENDS[-1] not in fills
