"""Static pictures: PNG and SVG have the colours of the page, and a name for each word."""

import re
from base64 import b64decode
from io import BytesIO

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from PIL import Image

import regard_lab.seeing.explorer.figures as figures
from regard.errors import ArgumentError, ShapeError
from regard_lab.seeing import draw_attention, look, look_text
from regard_lab.seeing.canvas import COLOURS
from regard_lab.seeing.explorer import stream_head

from .making import SOURCE, TARGET, TOKENISER, language_model, translation, translator, weights


def opened(file):
    with Image.open(file) as image:
        return np.array(image.convert("RGBA"))


def in_svg(path):
    """The pictures inside an SVG, the largest first."""
    found = re.findall(r'xlink:href="data:image/png;base64,([^"]+)"', path.read_text("utf-8"))
    images = [opened(BytesIO(b64decode(one))) for one in found]
    return sorted(images, key=lambda one: -one.shape[0] * one.shape[1])


def cells(image, rows, columns):
    """The colour in the middle of each cell of a map that fills an image."""
    height, width = image.shape[:2]
    down = ((np.arange(rows) + 0.5) * height / rows).astype(int)
    across = ((np.arange(columns) + 0.5) * width / columns).astype(int)
    return image[down][:, across]


def test_the_colours_of_an_svg_are_those_of_the_table(tmp_path):
    count = 20
    given = weights(1, 2, count, seed=3)  # the second head has no zeros, so no pair is grey
    given[0, 0, 0] = torch.eye(count)[0]  # both ends of the scale
    draw_attention(given, tmp_path / "one.svg", head=0)
    shown = cells(in_svg(tmp_path / "one.svg")[0], count, count)
    expected = colormaps[COLOURS](given[0, 0].numpy(), bytes=True)
    assert "scale(1 -1)" in (tmp_path / "one.svg").read_text("utf-8")  # matplotlib stores pictures upside down
    assert (shown[::-1] == expected).all()


def test_the_colours_of_a_png_are_those_of_the_table(tmp_path):
    given = weights(1, 1, 9, seed=3)
    draw_attention(given, tmp_path / "one.png", head=0)
    shown = {tuple(one) for one in opened(tmp_path / "one.png").reshape(-1, 4)}
    expected = colormaps[COLOURS](given[0, 0].numpy(), bytes=True).reshape(-1, 4)
    assert {tuple(one) for one in expected} <= shown


def test_the_same_picture_has_the_same_bytes(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_attention(weights(1, 2, 4), tmp_path / name, list("abcd"), title="A title")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert not re.search(r'(?:href|src)="(?!data:|#)', (tmp_path / "one.svg").read_text("utf-8"))


def test_sixty_words_are_large_enough_to_read(tmp_path):
    draw_attention(weights(1, 1, 60, causal=True), tmp_path / "sixty.svg", [f"word{at}" for at in range(60)])
    heights = re.findall(r'<image[^>]* height="([\d.]+)"', (tmp_path / "sixty.svg").read_text("utf-8"))
    assert max(map(float, heights)) >= 60 * 11.8  # points of a row, for letters of 6.5


def test_what_show_takes_is_drawn(tmp_path):
    for number, one in enumerate(
        (
            translation(), look(translator(), TOKENISER, SOURCE, TOKENISER.encode(TARGET)),
            look_text(language_model(), TOKENISER, SOURCE), weights(2, 3, 4, 6).bfloat16(), weights(1, 3, 4)[0].numpy(),
        )
    ):  # fmt: skip
        draw_attention(one, tmp_path / f"{number}.png")
        assert opened(tmp_path / f"{number}.png").shape[1] > 300


def test_a_picture_says_what_its_rows_sum_to(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(figures.Page, "draw", lambda page, figure, title: said.append(page.note.splitlines()[0]))
    draw_attention(weights(1, 2, 3), tmp_path / "one.png")
    draw_attention(weights(1, 2, 3) / 2, tmp_path / "half.png")
    assert said[0] == "The weights of each row sum to 1 after a softmax."
    assert said[1].startswith("Rows sum to 0.50 to 0.50, not all to 1: a sink or keys that are not shown")


@pytest.mark.parametrize("mechanism", ["linear", "performer(64, seed=0)"])
def test_a_mechanism_without_a_softmax_shows_its_implicit_weights(tmp_path, mechanism):
    found = look(translator(encoder_mechanism=mechanism), TOKENISER, SOURCE, TOKENISER.encode(TARGET))
    assert torch.allclose(found.encoder.sum(-1), torch.ones(()), atol=1e-3)
    assert found.encoder.min() >= 0
    draw_attention(found, tmp_path / "one.png", attention="Encoder self-attention")


@pytest.mark.parametrize(
    ("given", "options", "error", "says"),
    [
        (weights(1, 2, 3), {"head": 2}, ArgumentError, "head 2 does not exist; Attention has heads 0 to 1"),
        (weights(1, 2, 3), {"layer": 1}, ArgumentError, "layer 1 does not exist; Attention has layers 0 to 0"),
        (weights(1, 2, 3), {"attention": "Cross"}, ArgumentError, "there is no attention 'Cross'"),
        (weights(1, 2, 3), {"tokens": ["a"]}, ShapeError, "tokens has 1 word, "),
        (weights(1, 1, 121), {}, ArgumentError, "121 words and a picture shows at most 120"),
        (stream_head(torch.eye(4), torch.eye(4)), {}, ArgumentError, "keeps no weights of all pairs"),
        (translation(), {"tokens": ["a"]}, ArgumentError, "has its own words"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(tmp_path, given, options, error, says):
    with pytest.raises(error, match=says):
        draw_attention(given, tmp_path / "one.png", **options)
    assert not list(tmp_path.iterdir())
