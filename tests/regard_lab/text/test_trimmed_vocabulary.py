"""A trimmed vocabulary has no piece that its training text never uses, and still encodes every text."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenisers import LINES, texts

from regard.errors import CheckpointError
from regard_lab.text import Tokeniser, normalise
from regard_lab.text.vocabularies import BYTE_OF, SPECIALS

WHOLE = Tokeniser.train(LINES, vocab_size=420)
TRIMMED = Tokeniser.train(LINES, vocab_size=420, trim=True)


def test_only_pieces_that_no_training_line_uses_are_dropped():
    used = {piece for line in LINES for piece in WHOLE.pieces(WHOLE.encode(line))}
    learned = TRIMMED.vocabulary.pieces[len(SPECIALS) + len(BYTE_OF) :]
    assert 0 < len(learned) < len(WHOLE.vocabulary.pieces) - len(SPECIALS) - len(BYTE_OF)
    assert {TRIMMED.pieces([i])[0] for i in range(260, TRIMMED.vocab_size)} <= used
    for line in LINES:
        assert TRIMMED.pieces(TRIMMED.encode(line)) == WHOLE.pieces(WHOLE.encode(line))


@settings(deadline=None, max_examples=200)
@given(texts)
def test_every_text_comes_back_and_uses_kept_pieces_alone(text):
    ids = TRIMMED.encode(text)
    assert TRIMMED.decode(ids) == normalise(text)
    assert all(len(SPECIALS) <= i < TRIMMED.vocab_size for i in ids)


def test_a_dropped_piece_is_spelled_by_its_parts():
    tokeniser = Tokeniser.train(["streets"] * 3, vocab_size=300, trim=True)
    assert tokeniser.pieces(tokeniser.encode("streets")) == ["streets"]
    assert tokeniser.vocab_size == 261
    assert tokeniser.decode(tokeniser.encode("stree")) == "stree"
    assert len(tokeniser.encode("stree")) > len(Tokeniser.train(["streets"] * 3, vocab_size=300).encode("stree"))


def test_json_keeps_what_is_dropped():
    again = Tokeniser.from_json(TRIMMED.to_json())
    assert again == TRIMMED
    assert again != WHOLE
    assert again.encode(LINES[0]) == TRIMMED.encode(LINES[0])
    assert "dropped" not in json.loads(WHOLE.to_json())


@pytest.mark.parametrize("dropped", ["the", ["not a piece"], [7], {"a": 1}, ["a"], None])
def test_a_damaged_list_of_dropped_pieces_is_refused(dropped):
    content = json.loads(TRIMMED.to_json()) | {"dropped": dropped}
    with pytest.raises(CheckpointError, match="damaged"):
        Tokeniser.from_json(json.dumps(content))


@settings(deadline=None)
@given(st.text(max_size=30))
def test_verbatim_texts_come_back_too(text):
    tokeniser = Tokeniser.train(LINES, vocab_size=420, verbatim=True, trim=True)
    assert tokeniser.decode(tokeniser.encode(text)) == text.encode("utf-8", "replace").decode()
