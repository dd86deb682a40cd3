import struct
from itertools import pairwise

import pytest
import torch
from matplotlib.colors import to_rgb
from small_models import TOKENISER, random_maps, small_model

from regard.errors import ArgumentError
from regard_lab.seeing import canvas, draw_maps, look
from regard_lab.seeing.picture import draw_heads

HOSTILE = [
    "$\\frac{$",
    "<script>",
    "猫😀\U0001fae0",
    "שלום",
    "",
    "a\nb\x07",
    "\u202eevil",
    "Donau" * 20,
    "a_b^c",
    "%s",
    "\\",
]


def words(count):
    return [f"word{place}" for place in range(count - 1)] + ["<end>"]


def size_of(path):
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])


@pytest.fixture
def drawn(monkeypatch):
    """The figures, instead of their files."""
    figures = []
    monkeypatch.setattr(canvas, "save", lambda figure, path: figures.append(figure))
    return figures


def test_a_sentence_becomes_a_png_of_sensible_size(tmp_path):
    maps = look(
        small_model(), TOKENISER, "The animal slept.", TOKENISER.encode("Das Tier schlief.")
    )
    draw_maps(maps, tmp_path / "maps.png", title="The animal slept.")
    width, height = size_of(tmp_path / "maps.png")
    assert 800 < width < 3000
    assert 600 < height < 3000
    assert [path.name for path in tmp_path.iterdir()] == ["maps.png"]


def test_the_same_maps_are_the_same_bytes_whatever_the_users_style(tmp_path):
    import matplotlib

    maps = random_maps(words(3), words(4))
    draw_maps(maps, tmp_path / "first.png", title="cat")
    with matplotlib.rc_context(
        {"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 30, "text.usetex": True}
    ):
        draw_maps(maps, tmp_path / "second.png", title="cat")
    draw_maps(maps, tmp_path / "third.png", title="cat", head=0)
    first, second, third = (
        tmp_path.joinpath(f"{name}.png").read_bytes() for name in ("first", "second", "third")
    )
    assert first == second != third


def test_hostile_words_and_titles_are_drawn_as_text(tmp_path):
    maps = random_maps(HOSTILE, HOSTILE)
    draw_maps(maps, tmp_path / "maps.png", title="$\\frac{$ \n 猫" + "x" * 3000)
    draw_heads(maps, tmp_path / "heads.png", "decoder")
    assert size_of(tmp_path / "maps.png")[0] < 9000
    assert size_of(tmp_path / "heads.png")[0] < 9000


@pytest.mark.parametrize(("source", "target"), [(1, 1), (13, 14), (40, 6), (4, 40)])
def test_no_text_meets_another_or_leaves_the_picture(drawn, source, target):
    draw_maps(
        random_maps(words(source), words(target), layers=1),
        "maps.png",
        title="A title of many words " * 9,
    )
    assert_texts_apart(drawn[0])


@pytest.mark.parametrize("length", [1, 20])
def test_no_text_of_the_grid_meets_another_or_leaves_it(drawn, length):
    draw_heads(random_maps(words(length), words(length), layers=2, heads=3), "heads.png")
    assert_texts_apart(drawn[0])


def assert_texts_apart(figure):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    FigureCanvasAgg(figure).draw()
    texts = [
        text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()
    ]
    straight = []
    for text in texts:
        box = text.get_window_extent()
        if text.get_rotation() in (0, 90):
            straight.append((box, text))
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= figure.bbox.width, text
        assert box.y1 <= figure.bbox.height, text
    assert len(straight) > 4
    for place, (box, text) in enumerate(straight):
        for next_box, neighbour in straight[place + 1 :]:
            assert not box.overlaps(next_box), (text, neighbour)
    for axes in figure.axes:
        slanted = [text for text in axes.xaxis.get_majorticklabels() if text.get_rotation() == 45]
        for text, neighbour in pairwise(slanted):  # parallel lines: their distance tells
            apart = (neighbour.get_window_extent().x0 - text.get_window_extent().x0) / 2**0.5
            assert apart > text.get_fontsize() / 72 * figure.dpi


def test_the_picture_shows_the_layer_and_head_that_were_asked_for(drawn):
    maps = random_maps(words(4), words(5), layers=2, heads=3)
    draw_maps(maps, "maps.png", layer=0, head=2)
    draw_maps(maps, "maps.png")
    for figure, expected in zip(drawn, (maps.cross[0, 2], maps.cross[1].mean(0)), strict=True):
        image = figure.axes[0].images[0]
        torch.testing.assert_close(torch.tensor(image.get_array().data), expected)
        assert image.get_clim() == (0, 1)
        assert image.get_cmap().name == "regard"
    assert "decoder layer 0, head 2" in [text.get_text() for text in drawn[0].texts]
    assert "decoder layer 1 (last), mean of 3 heads" in [text.get_text() for text in drawn[1].texts]


def test_every_head_has_its_place_in_the_grid(drawn):
    maps = random_maps(words(4), words(5), layers=2, heads=3)
    draw_heads(maps, "heads.png", "cross")
    images = [axes.images[0] for axes in drawn[0].axes if axes.images]
    weights = torch.stack([torch.tensor(image.get_array().data) for image in images])
    torch.testing.assert_close(weights.view(2, 3, 5, 4), maps.cross)


@pytest.mark.parametrize("draw", [draw_maps, draw_heads])
def test_places_no_picture_can_go_to_are_refused(tmp_path, draw):
    maps = random_maps(words(2), words(2))
    with pytest.raises(ArgumentError, match="nowhere, does not exist"):
        draw(maps, tmp_path / "nowhere" / "maps.png")
    with pytest.raises(ArgumentError, match=r"maps\.jpg; pictures are PNG, SVG or PDF"):
        draw(maps, tmp_path / "maps.jpg")
    assert not list(tmp_path.iterdir())


def test_a_text_is_refused_and_the_old_picture_stays(tmp_path):
    path = tmp_path / "maps.png"
    path.write_bytes(b"old")
    with pytest.raises(ArgumentError, match="121 words and a picture shows at most 120"):
        draw_maps(random_maps(words(121), words(2)), path)
    with pytest.raises(ArgumentError, match="head 7"):
        draw_maps(random_maps(words(2), words(2)), path, head=7)
    with pytest.raises(ArgumentError, match="kind is 'sideways'"):
        draw_heads(random_maps(words(2), words(2)), path, "sideways")
    assert path.read_bytes() == b"old"


def test_pairs_that_no_head_may_look_at_are_grey_and_small_weights_are_not():
    heads = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], [[1.0, 1e-9, 0.0], [0.0, 1.0, 0.0]]])
    assert canvas.not_allowed(heads).tolist() == [[False, False, True], [False, False, True]]


def test_every_number_can_be_read_on_its_colour(drawn):
    def linear(part):
        return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4

    def luminance(colour):
        red, green, blue = map(linear, to_rgb(colour))
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    maps = random_maps(words(4), words(4), layers=1, heads=1)
    maps.cross[0, 0] = torch.linspace(0.08, 1, 16).view(4, 4)
    draw_maps(maps, "maps.png")
    image = drawn[0].axes[0].images[0]
    numbers = [text for text in drawn[0].axes[0].texts if text.get_text().startswith((".", "1"))]
    assert len(numbers) > 10
    for text in numbers:
        column, row = map(int, text.get_position())
        paper = image.cmap(float(image.get_array()[row, column]))
        light, dark = sorted((luminance(paper), luminance(text.get_color())), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_letters_that_the_own_font_lacks_come_from_an_installed_one(tmp_path):
    letter = "\N{MATHEMATICAL SCRIPT CAPITAL A}"
    fonts = canvas._fonts_of(f"a{letter}")
    assert canvas.drawable(letter) == letter
    assert fonts[0] == canvas.FONT != fonts[1]
    for kind in ("pdf", "svg", "png"):
        first = tmp_path / f"first.{kind}"
        second = tmp_path / f"second.{kind}"
        for path in (first, second):
            draw_maps(random_maps([letter, "b"], ["c", letter]), path)
        assert first.read_bytes() == second.read_bytes()
    assert (tmp_path / "first.pdf").read_bytes().startswith(b"%PDF")


def test_letters_that_no_font_has_are_named_and_drawn_as_code_points(monkeypatch):
    monkeypatch.setattr(canvas, "_font_of", lambda letter: None if letter == "猫" else canvas.FONT)
    with pytest.warns(
        canvas.MissingFontWarning, match="no installed font has 猫, .* install a font"
    ):
        assert canvas.drawable("a猫") == "a[U+732B]"
