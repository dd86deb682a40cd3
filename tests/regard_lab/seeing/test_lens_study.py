"""The lens benchmark: what is known and verified, how lenses are scored, the report and its picture."""

import json
from dataclasses import replace

import pytest
import torch
from small_models import (
    TEST_SENTENCES,
    TOKENISER,
    GrammarTranslator,
    assert_apart,
    recurrent,
    small_model,
)

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError
from regard_lab.decoding import Translator
from regard_lab.seeing.canvas import new_figure
from regard_lab.seeing.lens_study import (
    LensReport,
    draw_pronoun,
    known_sentences,
    lens_agreement,
    measure_routes,
    study_lenses,
    view_pronoun,
)
from regard_lab.seeing.lens_study import known as known_file
from regard_lab.seeing.lens_study import study as study_file
from regard_lab.seeing.lens_study.figure import draw_view
from regard_lab.seeing.lens_study.known import SWAPS, swapped, written_before
from regard_lab.seeing.lens_study.study import agreement, deletion
from regard_lab.seeing.lenses.explaining import explain_contrasts, log_odds, relevance
from regard_lab.text import END
from regard_lab.text.pronouns import make_split, swap_adjective, swap_referent


@pytest.fixture(scope="module")
def translator():
    return GrammarTranslator(small_model(encoder_layers=1, decoder_layers=1), TOKENISER)


@pytest.fixture(scope="module")
def known(translator):
    return known_sentences(translator, TEST_SENTENCES)


def test_a_known_sentence_names_the_words_of_its_cause(known):
    assert len(known) == len(TEST_SENTENCES)
    for known_sentence in known:
        words = [word for word, _ in known_sentence.contrast.source_words]
        assert words[known_sentence.it].lower() == "it"
        assert (words[known_sentence.referent], words[known_sentence.other]) == (
            known_sentence.sentence.referent,
            known_sentence.sentence.other,
        )
        assert known_sentence.sentence.derivation.drawback.english.endswith(
            words[known_sentence.adjective]
        )
        assert (known_sentence.contrast.word, known_sentence.as_grammar) == (
            known_sentence.sentence.pronoun,
            True,
        )
        assert known_sentence.contrast.written[1:] == written_before(
            TOKENISER, known_sentence.sentence
        )


def test_a_wrong_pronoun_is_not_explained(translator, known, monkeypatch):
    wrong = {"es": "er", "er": "sie", "sie": "es"}
    translation = translator.translate([TEST_SENTENCES[0].source])[0]
    before, _, after = translation.text.rpartition(f" {TEST_SENTENCES[0].pronoun} ")
    text = f"{before} {wrong[TEST_SENTENCES[0].pronoun]} {after}"
    changed = replace(translation, text=text, ids=tuple(TOKENISER.encode(text)))
    monkeypatch.setattr(translator, "translate", lambda lines: [changed], raising=False)
    assert known_sentences(translator, TEST_SENTENCES[:1]) == []
    assert lens_agreement(translator, TEST_SENTENCES[:1]) is None


def test_a_swap_changes_one_text_and_keeps_the_question(known):
    known_sentence = known[0]
    versions = swapped(TOKENISER, known_sentence)
    base = versions["nothing"]
    swapped_sentence = swap_referent(known_sentence.sentence)
    assert versions["source"].source == (*TOKENISER.encode(swapped_sentence.source), END)
    assert versions["source"].written == base.written
    assert versions["written"].source == base.source
    assert versions["written"].written[1:] == written_before(TOKENISER, swapped_sentence)
    assert (versions["both"].source, versions["both"].written) == (
        versions["source"].source,
        versions["written"].written,
    )
    assert versions["adjective"].source == (
        *TOKENISER.encode(swap_adjective(known_sentence.sentence).source),
        END,
    )
    for version in versions.values():
        assert (version.of, version.instead_of, version.word) == (
            base.of,
            base.instead_of,
            base.word,
        )


def test_routes_are_mean_probabilities_after_each_swap(translator, known):
    measured = measure_routes(translator, known)
    for kind, first in ((measured.last, False), (measured.first, True)):
        versions = []
        for sentence in known:
            if sentence.link_first is first:
                versions.append(swapped(TOKENISER, sentence)["both"])
        if not versions:
            assert kind == {}
            continue
        odds = log_odds(translator.model, versions)
        assert kind["both"] == pytest.approx(float(torch.tensor(odds).sigmoid().mean()), abs=1e-6)
    assert sum(measured.counts) == len(known)
    with pytest.raises(DataError, match="none is translated as by the grammar"):
        measure_routes(translator, [replace(sentence, as_grammar=False) for sentence in known])


def test_agreement_counts_the_top_word_without_it_and_the_order_of_the_nouns(known):
    def scores(**chosen):
        lists = []
        for sentence in known:
            values = [0.0] * len(sentence.contrast.source_words)
            values[sentence.it] = 9.0
            for name, value in chosen.items():
                values[getattr(sentence, name)] = value
            lists.append(values)
        return lists

    assert agreement(known, scores(referent=2.0, other=1.0)) == (1.0, 1.0, 1.0)
    assert agreement(known, scores(referent=1.0, adjective=2.0)) == (0.0, 1.0, 1.0)
    # a tie does not count
    assert agreement(known, scores(referent=1.0, other=1.0, adjective=0.5)).order == 0.0
    assert agreement(known, scores(other=3.0, referent=1.0)) == (0.0, 0.0, 0.0)


def test_deletion_is_the_mean_fall_without_the_words_of_the_largest_scores(
    translator, known, monkeypatch
):
    model = translator.model.double()
    sentence = known[0]
    # <end>, the full stop, the adjective ...
    scores = [float(place) for place in range(len(sentence.contrast.source_words))]
    monkeypatch.setattr(study_file, "DELETED", 2)
    fall = deletion(translator, [sentence], [scores])
    before = torch.tensor(log_odds(model, [sentence.contrast])).sigmoid()
    erased = explain_contrasts(model, TOKENISER, [sentence.contrast], "erase", sides=("source",))[
        0
    ].source_scores
    # without <end>, which stays, and without it and the full stop
    after = torch.tensor([0.0, erased[-2]])
    expected = (
        before - torch.sigmoid(torch.tensor(log_odds(model, [sentence.contrast])) - after)
    ).mean()
    assert fall == pytest.approx(float(expected), abs=1e-6)
    assert abs(fall) > 1e-6
    model.float()


def test_lens_agreement_is_the_share_with_the_referent_above_the_other_noun(translator, known):
    contrasts = [sentence.contrast for sentence in known]
    records = explain_contrasts(translator.model, TOKENISER, contrasts, steps=20)
    above = 0
    for sentence, record in zip(known, records, strict=True):
        above += record.source_scores[sentence.referent] > record.source_scores[sentence.other]
    assert 0 < above < len(known)
    assert lens_agreement(translator, TEST_SENTENCES) == above / len(known)


@pytest.fixture
def _all_verified(monkeypatch):
    monkeypatch.setattr(known_file, "_is_verified", lambda share: bool(share))
    monkeypatch.setattr(study_file, "CHOOSING", 6)


@pytest.mark.usefixtures("_all_verified")
def test_a_report_has_every_lens_and_is_written(translator, tmp_path):
    told = []
    report = study_lenses(translator, sentences=8, out=tmp_path, name="demo", tell=told.append)
    assert list(report.rows) == [
        "random",
        "it",
        "cross",
        "cross_head",
        "rollout",
        "erase",
        "gradients",
        "swap",
    ]
    assert "erasure (default) ..." in told
    assert LensReport.load(tmp_path).to_dict() == json.loads(json.dumps(report.to_dict()))
    known = known_sentences(translator, make_split("test", 8, 0))
    expected = agreement(known, study_file._noun_swap(translator, 0, known).relevances)
    for name, share in zip(("top", "order", "cause"), expected, strict=True):
        assert report.rows["swap"][name] == round(share, 3)
    assert (report.rows["random"]["passes"], report.rows["swap"]["passes"]) == (0.0, 3.0)
    page = (tmp_path / "lenses.md").read_text("utf-8")
    row = report.rows["erase"]
    cells = [f"{row[name]:.3f}" for name in ("top", "order", "cause", "deletion")]
    assert f"| erasure (default) | {' | '.join(cells)} | {row['passes']:.0f} |" in page
    with pytest.raises(DataError, match="is not a report of lenses"):
        LensReport.load(tmp_path / "nothing")


@pytest.mark.usefixtures("_all_verified")
@pytest.mark.parametrize(
    ("attention", "missing"),
    [("bahdanau", {"it", "rollout"}), ("none", {"it", "rollout", "cross"})],
)
def test_recurrent_translators_have_the_lenses_that_apply_to_them(attention, missing):
    report = study_lenses(GrammarTranslator(recurrent(attention=attention), TOKENISER), sentences=4)
    assert not missing & report.rows.keys()
    assert {"random", "erase", "gradients", "swap"} <= report.rows.keys()
    assert ("cross" in report.rows) == (attention == "bahdanau")


def test_a_translator_that_understands_nothing_is_refused(translator):
    untrained = Translator(translator.model, TOKENISER)
    with pytest.raises(ArgumentError, match="a cause that swaps verify"):
        study_lenses(untrained, sentences=3)


def test_the_view_holds_the_lens_and_the_attention_of_one_head(translator):
    sentence = TEST_SENTENCES[0]
    (translation,) = translator.translate([sentence.source])
    view = view_pronoun(translator, sentence, translation, (0, 1))
    known = known_sentences(translator, [sentence])[0]
    options = {
        "of": sentence.pronoun,
        "instead_of": known.contrast.others,
        "place": known.contrast.place,
    }
    for lens, record, more in (
        ("erase", view.lens, {}),
        ("attention", view.attention, {"head": (0, 1)}),
    ):
        expected = relevance(
            translator.model,
            TOKENISER,
            sentence.source,
            translation.ids,
            **options,
            lens=lens,
            **more,
        )
        assert record.source_scores == pytest.approx(expected.source_scores, abs=1e-5)
    best = max(zip(view.lens.source_scores, view.lens.source_words, strict=True))
    assert view.line(1) == f"{view.line(1).partition(':')[0]}: {best[1]} ({best[0]:+.1f})"
    # it writes noise
    assert (
        view_pronoun(Translator(translator.model, TOKENISER), sentence, translation, (0, 1)) is None
    )


def test_words_and_routes_are_drawn_without_overlap(translator, tmp_path):
    translations = translator.translate([TEST_SENTENCES[0].source])
    view = view_pronoun(translator, TEST_SENTENCES[0], translations[0], (0, 0))
    routes = measure_routes(translator, known_sentences(translator, TEST_SENTENCES))
    draw_pronoun(view, tmp_path / "used.png", routes)
    assert (tmp_path / "used.png").read_bytes().startswith(b"\x89PNG")
    with new_figure() as figure:
        draw_view(figure, view, routes)
        assert_apart(figure)
        texts = [text.get_text() for text in figure.texts]
    for name, share in routes.last.items():
        assert SWAPS[name] in texts
        assert f"{share:.2f}" in texts
    assert "one chosen head of cross-attention" in "".join(texts)
    assert "layer 0, head 0" in "".join(texts)
    assert f"mean over {count_of(routes.counts[0], 'test sentences')}" in "".join(texts)
