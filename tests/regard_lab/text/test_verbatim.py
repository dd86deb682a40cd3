"""Running text through a verbatim tokeniser: every character comes back, line ends and all spaces too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import ArgumentError, CheckpointError
from regard_lab.text import Tokeniser

TEXT = "A bird  sang.\n\n\tIt was   happy,\nand so \u00e9\u00e8 was the bird.\n" * 3
KINDS = ("bpe", "character", "byte")
TOKENISERS = {kind: Tokeniser.train([TEXT], 320, kind, verbatim=True) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back_as_it_stands(kind, text):
    tokeniser = TOKENISERS[kind]
    assert tokeniser.decode(tokeniser.encode(text)) == text
    assert tokeniser.decode(tokeniser.encode(text + TEXT)) == text + TEXT


def test_a_file_of_windows_keeps_its_ends():
    for tokeniser in TOKENISERS.values():
        assert tokeniser.decode(tokeniser.encode("a\r\n\r\n b\u2028c")) == "a\r\n\r\n b\u2028c"


@pytest.mark.parametrize("kind", KINDS)
def test_lines_encoded_apart_are_the_text_encoded_at_once(kind):
    tokeniser = TOKENISERS[kind]
    apart = [i for line in TEXT.splitlines(keepends=True) for i in tokeniser.encode(line)]
    assert apart == tokeniser.encode(TEXT)


def test_bytes_are_the_bytes_of_the_text_in_order():
    tokeniser = TOKENISERS["byte"]
    assert tokeniser.vocab_size == 260
    ids = tokeniser.encode(TEXT)
    assert len(ids) == len(TEXT.encode())
    assert len(set(zip(ids, TEXT.encode(), strict=True))) == len(set(ids)) == len(set(TEXT.encode()))


def test_sub_words_and_characters_need_fewer_ids_than_bytes():
    lengths = {kind: len(tokeniser.encode(TEXT)) for kind, tokeniser in TOKENISERS.items()}
    assert lengths["character"] == len(TEXT)
    assert lengths["bpe"] < lengths["character"] < lengths["byte"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_survives_its_file_and_differs_from_a_tokeniser_of_sentences(kind):
    tokeniser = TOKENISERS[kind]
    again = Tokeniser.from_json(tokeniser.to_json())
    assert again == tokeniser
    assert again.verbatim
    assert again != Tokeniser.train(TEXT.splitlines(), 320, kind)
    sentences = Tokeniser.train(TEXT.splitlines(), 320, kind)
    assert '"verbatim"' not in sentences.to_json()
    assert not Tokeniser.from_json(sentences.to_json()).verbatim


def test_what_no_tokeniser_wrote_is_refused():
    text = TOKENISERS["bpe"].to_json()
    with pytest.raises(CheckpointError, match="its keys are not"):
        Tokeniser.from_json(text.replace('"verbatim":true', '"verbatim":1'))
    with pytest.raises(CheckpointError, match="its kind is 'byte' and it has merges"):
        Tokeniser.from_json(text.replace('"bpe"', '"byte"'))
    with pytest.raises(ArgumentError, match="kind is 'word'"):
        Tokeniser.train([TEXT], 320, "word", verbatim=True)
