"""The picture of what a pronoun depends on: both views of the sentence and the routes, without overlap."""

import pytest
from grammar_translator import SENTENCES, TOKENISER, grammar_translator

from regard.arguments import count_of
from regard_lab.decoding import Translator
from regard_lab.seeing.canvas import new_figure
from regard_lab.seeing.lens_study import draw_pronoun, known_sentences, measure_routes, view_pronoun
from regard_lab.seeing.lens_study.figure import draw_view
from regard_lab.seeing.lens_study.known import SWAPS
from regard_lab.seeing.lenses import relevance


@pytest.fixture(scope="module")
def translator():
    return grammar_translator()


def test_the_view_holds_the_lens_and_the_attention_of_one_head(translator):
    sentence = SENTENCES[0]
    (translation,) = translator.translate([sentence.source])
    view = view_pronoun(translator, sentence, translation, (0, 1))
    known = known_sentences(translator, [sentence])[0]
    options = {"of": sentence.pronoun, "instead_of": known.contrast.others, "place": known.contrast.place}
    for lens, record, more in (("erase", view.lens, {}), ("attention", view.attention, {"head": (0, 1)})):
        expected = relevance(
            translator.model, TOKENISER, sentence.source, translation.ids, **options, lens=lens, **more
        )
        assert record.source_scores == pytest.approx(expected.source_scores, abs=1e-5)
    best = max(zip(view.lens.source_scores, view.lens.source_words, strict=True))
    assert view.line(1) == f"{view.line(1).partition(':')[0]}: {best[1]} ({best[0]:+.1f})"
    assert (
        view_pronoun(Translator(translator.model, TOKENISER), sentence, translation, (0, 1)) is None
    )  # it writes noise


def test_words_and_routes_are_drawn_without_overlap(translator, tmp_path):
    translations = translator.translate([one.source for one in SENTENCES[:1]])
    view = view_pronoun(translator, SENTENCES[0], translations[0], (0, 0))
    routes = measure_routes(translator, known_sentences(translator, SENTENCES))
    draw_pronoun(view, tmp_path / "used.png", routes)
    assert (tmp_path / "used.png").read_bytes().startswith(b"\x89PNG")
    with new_figure() as figure:
        draw_view(figure, view, routes)
        figure.canvas.draw()
        texts = [text.get_text() for text in figure.texts]
        boxes = [text.get_window_extent() for text in figure.texts]
        width, height = figure.bbox.size
    for name, share in routes.last.items():
        assert SWAPS[name] in texts
        assert f"{share:.2f}" in texts
    assert "one chosen head of cross-attention" in "".join(texts)
    assert "layer 0, head 0" in "".join(texts)
    assert f"mean over {count_of(routes.counts[0], 'test sentences')}" in "".join(texts)
    for at, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
        for other in boxes[at + 1 :]:
            across = min(box.x1, other.x1) - max(box.x0, other.x0)
            down = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert across <= 1 or down <= 1
