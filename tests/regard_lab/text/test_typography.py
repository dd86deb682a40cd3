"""Translators write the typography of their targets, and all measures agree on which texts are equal."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard_lab.decoding import Translator, evaluate
from regard_lab.seeing.lenses import find_contrast
from regard_lab.text import Pair, Tokeniser, read_pairs, score
from regard_lab.text.cleaning import drop_invisible, normalise, tidy_target
from regard_lab.text.translation_data import TranslationData
from regard_lab.training.recipes import TranslationTraining
from regard_lab.training.recipes.evaluation import evaluate_run

FRENCH = [
    Pair(source, target.replace("_", "\u202f").replace("~", "\u00a0"))
    for source, target in (
        ("It's summer.", "C’est l’été."),
        ("Who is there?", "Qui est là_?"),
        ("He said: stop!", "Il a dit~: stop_!"),
        ("She isn't here.", "Elle n’est pas ici."),
        ('"Yes", she said.', "«_Oui_», dit-elle."),
        ("I don't like water.", "Je n’aime pas l’eau."),
        ("The tree is tall.", "L’arbre est grand."),
        ("Today it rains.", "Aujourd’hui il pleut."),
        ("What is it?", "Qu’est-ce que c’est_?"),
        ("The school is closed.", "L’école est fermée."),
        ("I'm hungry!", "J’ai faim_!"),
        ("Do you hear the bird?", "Tu entends l’oiseau_?"),
        ("He has no friend.", "Il n’a pas d’ami."),
        ("A cat; a dog.", "Un chat_; un chien."),
        ("It costs 10 euros.", "Ça coûte 10~€."),
        ("She loves history.", "Elle aime l’histoire."),
        ("Until tomorrow!", "Jusqu’à demain_!"),
        ("He has arrived.", "Il s’est arrêté."),
        ("The hour of the man.", "L’heure de l’homme."),
        ('"No!"', "«_Non_!_»"),
    )
]
SIDES = [pair.source for pair in FRENCH] * 2, [pair.target for pair in FRENCH] * 2
TRAINED = {
    kind: Tokeniser.train(SIDES[0], 600, kind, targets=SIDES[1])
    for kind in ("bpe", "character", "byte")
}
OLD = Tokeniser.train([*SIDES[0], *SIDES[1]], 600)  # as versions that normalised targets learned it

unusual = st.sampled_from(
    ["’", "‘", "ʼ", "'", "\u00a0", "\u202f", "\u2009", "\u3000", " ", "\n", "«", "…", "e\u0301"]
)
typeset = st.lists(
    st.one_of(unusual, st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
).map("".join)


@pytest.mark.parametrize("kind", TRAINED)
@settings(deadline=None, max_examples=100)
@given(typeset)
def test_every_target_comes_back_as_it_is(kind, text):
    tokeniser = Tokeniser.from_json(TRAINED[kind].to_json())
    assert tokeniser.decode(tokeniser.encode_target(text)) == drop_invisible(text, False)
    assert tokeniser.decode(tokeniser.encode(text)) == normalise(drop_invisible(text))
    assert tidy_target(tidy_target(text)) == tidy_target(text)


def test_both_apostrophes_of_a_source_are_read_alike_and_so_are_those_of_earlier_targets():
    for tokeniser in TRAINED.values():
        assert tokeniser.encode("It’s summer.") == tokeniser.encode("It's summer.")
        assert tokeniser.encode_target("L’été") != tokeniser.encode_target("L'été")
    assert "typographic" not in json.loads(OLD.to_json())
    assert OLD.encode_target("L’été\u202f?") == OLD.encode("L'été ?")


def test_a_word_keeps_its_apostrophe_and_a_mark_its_no_break_space():
    ids = TRAINED["bpe"].encode_target("«\u202fQu’est-ce\u202f?\u202f»")
    words = TRAINED["bpe"].words(ids)
    assert [word for word, _ in words] == ["«", "Qu’est", "-", "ce", "?", "»"]
    assert list(itertools.chain.from_iterable(span for _, span in words)) == list(range(len(ids)))
    assert TRAINED["bpe"].pieces(TRAINED["bpe"].encode_target("dit\u202f!"))[-1] == "!"


def test_a_written_word_is_found_by_either_apostrophe():
    tokeniser = TRAINED["bpe"]
    ids = tokeniser.encode_target("Il aime l’été.")
    for word in ("l’été", "l'été"):
        contrast = find_contrast(tokeniser, "He loves summer.", ids, word, ["Aujourd’hui"])
        assert (contrast.word, contrast.others) == ("l’été", ("Aujourd’hui",))


# --- measures


@pytest.mark.parametrize("mark", ["’", "‘", "ʼ"])
def test_bleu_chrf_and_exact_match_agree_on_which_texts_are_equal(mark):
    straight = ["C'est l'été, n'est-ce pas ?", "Il n'a pas d'ami à l'école."]
    typeset_texts = [text.replace("'", mark).replace(" ?", "\u202f?") for text in straight]
    for result in (
        score(straight, typeset_texts),
        score(typeset_texts, straight),
        score(typeset_texts, typeset_texts),
    ):
        assert (result.bleu, result.chrf, result.exact_match) == (100, 100, 1)
        assert "|apostrophes:straight" in result.bleu_signature
        assert "|apostrophes:straight" in result.chrf_signature
    assert "apostrophes" not in score(straight, straight).bleu_signature
    wrong = score([text.replace("'", " ") for text in straight], typeset_texts)
    assert max(wrong.bleu, wrong.chrf) < 100
    assert wrong.exact_match == 0


# --- a translator


@pytest.fixture(scope="module")
def memorised(tmp_path_factory):
    """A run that has learned the French pairs by heart, and their file."""
    folder = tmp_path_factory.mktemp("french")
    table = folder / "french.tsv"
    table.write_text(
        "".join(f"{pair.source}\t{pair.target}\n" for pair in FRENCH), encoding="utf-8"
    )
    read = read_pairs(table)
    assert read.pairs == FRENCH
    config = TranslationTraining.Config(
        data=[str(table)],
        dim=48,
        heads=4,
        layers=1,
        dropout=0.0,
        steps=90,
        warmup_steps=12,
        learning_rate=0.005,
        vocab_size=600,
        batch_tokens=400,
        validate_every=90,
        label_smoothing=0.0,
    )
    data = TranslationData("french", FRENCH, FRENCH[:2], [], ())
    TranslationTraining(config, data=data).train(folder / "run", cpu=True)
    return folder / "run", table


def test_pairs_with_typography_that_are_learned_by_heart_are_written_as_they_are(memorised):
    run, table = memorised
    scores = evaluate_run(run, [table]).evaluation
    assert [translation.text for translation in scores.translations] == [
        pair.target for pair in FRENCH
    ]
    assert (scores.scores.exact_match, scores.scores.bleu, scores.scores.chrf) == (1, 100, 100)
    assert scores.perplexity < 1.1


def test_either_apostrophe_of_a_source_is_translated_alike_and_normalised_targets_are_evaluated_alike(
    memorised,
):
    new = Translator.load(memorised[0])
    straight, typographic = new.translate(["She isn't here.", "She isn’t here."])
    assert straight.text == typographic.text == "Elle n’est pas ici."

    class Old(Translator):
        def translate(self, lines, **search):
            translations = super().translate(lines, **search)
            return [
                type(translation)(**{**vars(translation), "text": normalise(translation.text)})
                for translation in translations
            ]

    old = Old(new.model, new.tokeniser)
    scores = evaluate(old, FRENCH).scores
    assert (scores.exact_match, scores.bleu, scores.chrf) == (1, 100, 100)
