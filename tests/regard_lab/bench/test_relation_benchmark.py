"""Collecting, packing and scoring in `benchmarks/relations.py`, on texts of our own."""

import pytest
import torch

from benchmarks import relation_scores, relations
from benchmarks.library_text import LibraryDocument, prose
from benchmarks.relation_scores import Gathered, it_figures, received, relation_figures, texts_of
from regard_lab.seeing.maps import TextMaps
from regard_lab.text import Tokeniser

TEXTS = tuple(
    f"Return the {word} list of names. The list holds the {word} names."
    for word in ("old", "new", "long")
)
QUICK = relations.RelationsRecipe(vocab_size=400, dim=32)
TOKENISER = Tokeniser.train(TEXTS, vocab_size=300)


def test_prose_is_kept_and_examples_tables_and_signatures_are_not():
    text = """Return the list of all names that were given.

    >>> names(1)
    The list of all names that were given is here.

    ======  =====
    name    the list of names that are in a table.

    f(a, b=None, *args, **kwargs) -> [int, (str, 3)].

    Use f(a, b) -> [1, 2, 3] and g(c) -> {4: 5, 6: 7} with names here, see h[8] + i[9].

    Few words.

    The :class:`Path` of a *file* that ``open``
    takes is kept.
    """
    assert list(prose(text)) == [
        "Return the list of all names that were given.",
        "The Path of a file that open takes is kept.",
    ]


def test_texts_are_whole_paragraphs_of_one_document_up_to_a_length():
    documents = [LibraryDocument("a", TEXTS), LibraryDocument("b", (" ".join(TEXTS * 9),))]
    packed = list(texts_of(documents, TOKENISER, longest=50))
    assert [number for number, _ in packed][-1] == 1
    assert all(len(TOKENISER.encode(text)) <= 50 for _, text in packed)
    assert " ".join(text for number, text in packed if number == 0) == " ".join(TEXTS)
    assert sum(number == 1 for number, _ in packed) == 1  # a longer paragraph is cut


@pytest.mark.parametrize("kind", relations.KINDS)
def test_models_are_scored_from_text_to_figures(monkeypatch, kind):
    monkeypatch.setattr(relation_scores, "FEWEST_LINKS", 2)
    monkeypatch.setattr(relation_scores, "FEWEST_DOCUMENTS", 2)
    model, untrained = (relations.new_model(kind, QUICK, TOKENISER.vocab_size) for _ in range(2))
    gathered = Gathered((model, untrained), TOKENISER, list(enumerate(TEXTS)))
    figures = relation_figures(gathered, gathered)
    assert figures["noun to article"]["links"] == 6
    assert ("article to noun" in figures) == (kind == "encoder")
    for figure in figures.values():
        assert figure["baselines"]["untrained"] == figure["share"]  # the same weights
        assert not figure["beyond"]
    it = it_figures(model, TOKENISER)
    assert it["heads"] == QUICK.layers * QUICK.heads
    assert (it["largest_change"] == 0) == (kind == "causal")  # what decides comes after *it*


@pytest.mark.parametrize("causal", [True, False])
def test_uniform_weights_give_every_word_its_own_share_whatever_its_sub_words(causal):
    spans = (("a", range(1)), ("bc", range(1, 4)), ("d", range(4, 5)))
    alike = torch.ones(5, 5).tril() if causal else torch.ones(5, 5)
    pieces = (alike / alike.sum(1, keepdim=True))[None, None]
    maps = TextMaps(
        ("a", "bc", "d"), relation_scores.merge(pieces, spans, spans), spans, pieces, causal
    )
    expected = [1.0, 1.0, 0.0] if causal else [1.0, 1.0, 1.0]
    torch.testing.assert_close(received(maps), torch.tensor(expected))
