"""The words of a text by a tokenizer of transformers: which ids each has, and the ids of another one.

Of a tokenizer only `decode` and the call with a text are used, so that all kinds are read alike.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from regard.arguments import a_string, shown
from regard.errors import ArgumentError
from regard_lab.seeing.lenses.erasing import LONGEST_WORD
from regard_lab.seeing.watching import Span

CONTEXT = 8  # ids before one, which decide how it is written
MOST_BYTES = 4  # of a character in UTF-8, each of which may be an id


def ids_of_word(tokenizer: Any, before: Sequence[int], old: Sequence[int], word: str) -> list[int]:
    """The ids of another word in the place of one: as the tokenizer splits the text up to it, or else the word alone.

    Args:
        tokenizer: the model's own.
        before: the ids before the word.
        old: its ids.
        word: the other word.

    Raises:
        ArgumentError: not one word, one that is too long, or one that the tokenizer cannot read as a word.
    """
    before = _after_special(tokenizer, before)
    start = _decoded(tokenizer, before)
    told = _decoded(tokenizer, [*before, *old])[len(start) :]
    if len(word.split()) != 1:
        raise ArgumentError(f"{shown(word)} is not one word; give one word in the place of {told.strip()!r}")
    if len(word) > LONGEST_WORD:
        raise ArgumentError(f"the word has {len(word):,} characters; give one of at most {LONGEST_WORD}")
    put = f" {word.strip()}" if told.startswith(" ") else word.strip()
    ids = tokenizer(f"{start}{put}", add_special_tokens=False)["input_ids"]
    ids = ids[len(before) :] if ids[: len(before)] == before else tokenizer(put, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ArgumentError(
            f"the tokenizer has no ids for {shown(word)}; give another in the place of {told.strip()!r}"
        )
    if found := {*ids} & signs(tokenizer):
        sign = tokenizer.convert_ids_to_tokens(min(found))
        raise ArgumentError(f"{shown(word)} is read as {sign}, a sign of the tokenizer; give a word")
    return ids


def signs(tokenizer: Any) -> set[int]:
    """The ids that stand for no part of a text, such as its beginning, or a masked word; an unknown word is a word."""
    names = ("bos", "eos", "sep", "cls", "pad", "mask")
    own = {getattr(tokenizer, f"{name}_token_id", None) for name in names}
    unknown = {getattr(tokenizer, "unk_token_id", None)} - own
    return {*tokenizer.all_special_ids} - unknown


def spans_of(tokenizer: Any, ids: list[int]) -> list[Span]:
    """Words with the indices of their ids; pieces belong to one word if letters meet where they touch.

    Only `decode` is used, so that tokenizers of every kind are read alike.
    """
    special = {*tokenizer.all_special_ids}
    spans: list[tuple[int, int]] = []  # first index, index after the last
    for place, number in enumerate(ids):
        run = _after_special(tokenizer, ids[max(0, place - CONTEXT) : place])
        before, after = _decoded(tokenizer, run), _completed(tokenizer, run, ids[place : place + MOST_BYTES])
        if run and number not in special and _belongs(before, after):
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
    words = []
    for start, stop in spans:
        word = _decoded(tokenizer, ids[start:stop]).strip() or str(tokenizer.convert_ids_to_tokens(ids[start]))
        words.append((word, range(start, stop)))
    return words


def _after_special(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """The ids after the last special one."""
    special = {*tokenizer.all_special_ids}
    return [*ids][max((at + 1 for at, one in enumerate(ids) if one in special), default=0) :]


def continued(tokenizer: Any, before: Sequence[int], number: int) -> str:
    """A sub-word as it would continue some ids: with "…" before it if it would continue their last word."""
    run = _after_special(tokenizer, before[-CONTEXT:])
    start, text = _decoded(tokenizer, run), _decoded(tokenizer, [*run, number])
    word = text[len(start) :].strip() if text.startswith(start) else _decoded(tokenizer, [number]).strip()
    word = word or str(tokenizer.convert_ids_to_tokens(number))
    return f"…{word}" if run and number not in tokenizer.all_special_ids and _belongs(start, text) else word


def _decoded(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _completed(tokenizer: Any, run: list[int], following: list[int]) -> str:
    """The text of some ids and the next one, with those after it that complete its last character."""
    text = _decoded(tokenizer, [*run, *following[:1]])
    for count in range(2, len(following) + 1):
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            break
        text = _decoded(tokenizer, [*run, *following[:count]])
    return text


def _belongs(before: str, after: str) -> bool:
    """Whether what follows `before` in `after` continues its last word."""
    if not after.startswith(before):
        return True  # the ids before are a part of a character
    added = after[len(before) :]
    if not before or not added:  # pieces that are a space at the beginning, or that write nothing
        return True
    if before.endswith(("\N{REPLACEMENT CHARACTER}", " ")):
        return True  # a space that is a piece of its own belongs to the word after it
    if added[0] in "'’" and added[1:2].isalpha():
        added = added[1:]
    return _joins(before[-1]) and _joins(added[0])


def _joins(letter: str) -> bool:
    """Letters, digits and marks of scripts that write spaces between words."""
    return unicodedata.category(letter)[0] in "LNM" and unicodedata.east_asian_width(letter) not in "WF"


def in_unicode(name: str, text: str) -> str:
    """The text, if it is a string that tokenizers can read: they refuse halves of pairs of UTF-16."""
    try:
        a_string(name, text).encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(
            f"{name} has U+{ord(text[error.start]):04X}, half of a character of UTF-16, at index {error.start}; leave "
            f"it out"
        ) from None
    return text
