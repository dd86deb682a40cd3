"""What the explorer is given: models, recorded maps and arrays of every shape and dtype, and the pictures of them."""

import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard as rg
from regard.errors import ArgumentError, RegardError, ShapeError
from regard_lab.seeing import draw_attention, look, look_text, relevance, show
from regard_lab.seeing import explorer as explorer_package
from regard_lab.seeing.canvas import colours
from regard_lab.seeing.explorer import explore_text
from regard_lab.seeing.explorer.figures import to_exploration
from regard_lab.seeing.explorer.page import Packed, header_of
from regard_lab.seeing.explorer.sources import explore_maps, explore_weights
from regard_lab.text import BEGIN, END, PAD

from .making import (
    SOURCE,
    TARGET,
    TOKENISER,
    language_model,
    plain_translation,
    translation,
    translator,
    weights,
)


def test_a_translation_has_every_kind_of_attention_and_each_written_word_by_every_lens():
    exploration = translation()
    shapes = {
        attention.name: tuple(attention.weights.shape) for attention in exploration.attentions
    }
    source, target = (len(exploration.texts[name]) for name in ("source", "target"))
    assert shapes == {
        "Cross-attention": (1, 2, target, source),
        "Encoder self-attention": (3, 2, source, source),
        "Decoder self-attention": (1, 2, target, target),
    }
    words = exploration.texts[exploration.written]
    assert [words[place] for place in exploration.explained] == list(words[:-1])  # all but "<end>"
    for place, lenses in exploration.explained.items():
        assert [lens.lens for lens in lenses] == ["erase", "gradients", "attention", "rollout"]
        assert {lens.word for lens in lenses} == {words[place]}
        assert all(len(lens.written_words) == place + 1 for lens in lenses)


def test_the_asked_word_is_shown_first_with_the_numbers_of_relevance():
    exploration = translation()
    assert exploration.texts["target"][exploration.chosen] == "es"
    expected = relevance(
        translator(), TOKENISER, SOURCE, TOKENISER.encode(TARGET), "es", ("er", "sie")
    )
    shown = exploration.explained[exploration.chosen][0]
    assert shown.others == expected.others
    assert shown.source_scores == pytest.approx(expected.source_scores, abs=1e-4)
    assert shown.written_scores == pytest.approx(expected.written_scores, abs=1e-4)


def test_other_words_are_compared_with_the_most_probable_alternatives():
    ids = TOKENISER.encode(TARGET)
    exploration = plain_translation()
    with torch.no_grad():
        total = translator()(
            torch.tensor([[*TOKENISER.encode(SOURCE), END]]), torch.tensor([[BEGIN]])
        )[0, 0]
    logits = total.clone()
    logits[[PAD, BEGIN, END, ids[0]]] = -torch.inf
    expected = logits.topk(3).indices
    lens = exploration.explained[0][0]
    assert len(lens.others) == 3
    assert lens.log_odds == pytest.approx(
        float(total[ids[0]] - total[expected].logsumexp(0)), abs=1e-4
    )


def test_a_language_model_explains_each_word_but_the_first():
    exploration = explore_text(language_model(), TOKENISER, SOURCE)
    words = exploration.texts["text"]
    assert words[0] == "<begin>"
    assert [words[place] for place in exploration.explained] == list(words[2:])
    assert {lenses[0].word for lenses in exploration.explained.values()} == set(words[2:])
    assert exploration.attentions[0].unwritten


def test_recorded_maps_are_shown_between_words():
    maps = look(translator(), TOKENISER, SOURCE, TOKENISER.encode(TARGET))
    exploration = explore_maps(maps)
    assert torch.equal(exploration.attentions[0].weights, maps.merged().cross)
    text = look_text(language_model(), TOKENISER, SOURCE)
    assert torch.equal(explore_maps(text).attentions[0].weights, text.weights)


def test_arrays_of_every_shape_and_dtype_are_shown_in_float32():
    attention_weights = weights(2, 3, 4, 6)
    for array, expected in (
        (attention_weights[0, 0], attention_weights[:1, :1]),
        (attention_weights[0], attention_weights[:1]),
        (attention_weights, attention_weights),
        (attention_weights.numpy(), attention_weights),
        ([layer[None] for layer in attention_weights], attention_weights),
        (tuple(attention_weights), attention_weights),
        ([[0.5, 0.5], [1.0, 0.0]], torch.tensor([[[[0.5, 0.5], [1.0, 0.0]]]])),
        (attention_weights.bfloat16(), attention_weights.bfloat16().float()),
    ):
        shown = explore_weights(array).attentions[0].weights
        assert (shown.dtype, torch.equal(shown, expected)) == (torch.float32, True)


@pytest.mark.parametrize(
    ("attention_weights", "tokens", "error", "says"),
    [
        (torch.ones(3), None, ShapeError, r"weights are \(3,\)"),
        (torch.ones(0, 3), None, ShapeError, "nothing to show"),
        (torch.ones(2, 2) / 2, ["a"], ShapeError, "tokens has 1 word, and the weights have 2"),
        (torch.ones(2, 2) * 3, None, ArgumentError, "from 3 to 3; they must be from 0 to 1"),
        (
            torch.tensor([[1.0, 0.1], [0.1, 1.0]]),
            None,
            ArgumentError,
            r"sum to 1\.1 to 1\.1.*weights\.sum\(-1",
        ),
        (weights(1, 1, 3, 5).mT, None, ArgumentError, r"keys come before queries.*swapaxes"),
        (torch.full((2, 2), torch.nan), None, ArgumentError, "must be from 0 to 1"),
        (torch.ones(2, 2, dtype=torch.int64), None, ArgumentError, "floating-point"),
        ([torch.ones(2, 2, 2), torch.ones(3, 2, 2)], None, ShapeError, "all of one shape"),
        ("weights", None, ArgumentError, "it needs a tensor"),
        (torch.ones(2, 2) / 2, "ab", ArgumentError, "a list of words"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_a_sentence(attention_weights, tokens, error, says):
    with pytest.raises(error, match=says):
        show(attention_weights, tokens)


def test_the_details_of_each_layer_are_shown_and_a_batch_is_refused_with_the_way_out():
    q = torch.randn(2, 3, 4, 8)
    alone = [rg.attention_detail(q[:1], q[:1], q[:1], want="weights") for _ in range(2)]
    stacked = to_exploration(alone).attentions[0].weights
    assert torch.equal(stacked, torch.stack([detail.weights[0] for detail in alone]))
    with pytest.raises(ShapeError, match=r"\[d\.weights\[0\] for d in details\]"):
        show([rg.attention_detail(q, q, q, want="weights")], list("abcd"))
    with pytest.raises(RegardError, match="weights"):
        show([rg.attention_detail(q, q, q)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_that_sum_to_less_than_one_are_labelled(dtype):
    """A sink takes some weight; a query without keys has none. Rounding is no reason for a label."""
    normal = torch.rand(2, 3, 40, 200).softmax(-1)
    assert (
        header_of(explore_weights(normal.to(dtype).float()), Packed())["attentions"][0]["sums"]
        == ""
    )
    normal[:, :, 7] = 0
    normal[:, :, 8] *= 0.625
    said = header_of(explore_weights(normal.to(dtype)), Packed())["attentions"][0]["sums"]
    assert said.startswith("Rows sum to 0.00 to 1.00, not all to 1: a sink")


def opened(file):
    with Image.open(file) as image:
        return np.array(image.convert("RGBA"))


def in_svg(path):
    """The pictures inside an SVG, the largest first."""
    pictures = re.findall(r'xlink:href="data:image/png;base64,([^"]+)"', path.read_text("utf-8"))
    images = [opened(BytesIO(b64decode(picture))) for picture in pictures]
    return sorted(images, key=lambda image: -image.shape[0] * image.shape[1])


def cells(image, rows, columns):
    """The colour in the middle of each cell of a map that fills an image."""
    height, width = image.shape[:2]
    down = ((np.arange(rows) + 0.5) * height / rows).astype(int)
    across = ((np.arange(columns) + 0.5) * width / columns).astype(int)
    return image[down][:, across]


def test_the_colours_of_an_svg_are_those_of_the_table(tmp_path):
    count = 20
    attention_weights = weights(
        1, 2, count, seed=3
    )  # the second head has no zeros, so no pair is grey
    attention_weights[0, 0, 0] = torch.eye(count)[0]  # both ends of the scale
    draw_attention(attention_weights, tmp_path / "one.svg", head=0)
    shown = cells(in_svg(tmp_path / "one.svg")[0], count, count)
    expected = colours()(attention_weights[0, 0].numpy(), bytes=True)
    # matplotlib stores pictures upside down
    assert "scale(1 -1)" in (tmp_path / "one.svg").read_text("utf-8")
    assert (shown[::-1] == expected).all()


def test_the_same_picture_has_the_same_bytes(tmp_path):
    for name in ("one.svg", "two.svg"):
        draw_attention(weights(1, 2, 4), tmp_path / name, list("abcd"), title="A title")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert not re.search(r'(?:href|src)="(?!data:|#)', (tmp_path / "one.svg").read_text("utf-8"))


def test_what_show_takes_is_drawn(tmp_path):
    for subject in (look_text(language_model(), TOKENISER, SOURCE), weights(1, 3, 4)[0].numpy()):
        draw_attention(subject, tmp_path / "one.png")
        assert opened(tmp_path / "one.png").shape[1] > 300


@pytest.mark.parametrize("mechanism", ["linear", "performer(64, seed=0)"])
def test_a_mechanism_without_a_softmax_shows_its_implicit_weights(tmp_path, mechanism):
    maps = look(
        translator(encoder_mechanism=mechanism), TOKENISER, SOURCE, TOKENISER.encode(TARGET)
    )
    assert torch.allclose(maps.encoder.sum(-1), torch.ones(()), atol=1e-3)
    assert maps.encoder.min() >= 0
    draw_attention(maps, tmp_path / "one.png", attention="Encoder self-attention")


@pytest.mark.parametrize(
    ("subject", "options", "error", "says"),
    [
        (
            weights(1, 2, 3),
            {"head": 2},
            ArgumentError,
            "head 2 does not exist; Attention has heads 0 to 1",
        ),
        (
            weights(1, 2, 3),
            {"layer": 1},
            ArgumentError,
            "layer 1 does not exist; Attention has layers 0 to 0",
        ),
        (weights(1, 2, 3), {"attention": "Cross"}, ArgumentError, "there is no attention 'Cross'"),
        (weights(1, 2, 3), {"tokens": ["a"]}, ShapeError, "tokens has 1 word, "),
        (weights(1, 1, 121), {}, ArgumentError, "121 words and a picture shows at most 120"),
        (translation, {"tokens": ["a"]}, ArgumentError, "has its own words"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(tmp_path, subject, options, error, says):
    with pytest.raises(error, match=says):
        draw_attention(subject() if callable(subject) else subject, tmp_path / "one.png", **options)
    assert not list(tmp_path.iterdir())


WRITTEN_BY_HAND = Path(explorer_package.__file__).parent / "source"


def test_comments_and_styles_of_the_page_end_within_100_columns():
    """Templates are text that a reader sees, and no formatter may break it."""
    paths = [
        *WRITTEN_BY_HAND.glob("*.*js"),
        *WRITTEN_BY_HAND.glob("engine/*.js"),
        *WRITTEN_BY_HAND.glob("*.css"),
    ]
    long_lines = []
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if path.suffix != ".css" and not line.lstrip().startswith(("//", "/*", "* ")):
                continue
            if len(line) > 100:
                long_lines.append(f"{path.name}:{number}")
    assert len(paths) > 20
    assert not long_lines
