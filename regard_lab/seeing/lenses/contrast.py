"""What a lens explains: a written word against words that could stand in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.arguments import a_list, a_string, each, of_kind, whole
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.seeing.watching import Span
from regard_lab.text import BEGIN, END, PAD, Tokeniser, normalise, tidy_target


@brief
@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A written word against others, at the place where the model chose it.

    Args:
        word, others: the written word and the words it is compared with.
        of, instead_of: their ids, the first sub-word of each.
        source: ids of the source, with END; empty for a language model.
        written: ids that the model had read when it chose: BEGIN and what was already written; without BEGIN for a
            language model.
        source_words, written_words: the words that these ids form.
        place: index of the word among the written words, without BEGIN.
    """

    word: str
    others: tuple[str, ...]
    of: int
    instead_of: tuple[int, ...]
    source: tuple[int, ...]
    written: tuple[int, ...]
    source_words: tuple[Span, ...]
    written_words: tuple[Span, ...]
    place: int


def find_contrast(
    tokeniser: Tokeniser,
    source: str | None,
    target_ids: Sequence[int],
    of: str,
    instead_of: Sequence[str],
    place: int | None = None,
) -> Contrast:
    """Find the word `of` among the target ids, and the ids of the words it is compared with.

    Args:
        tokeniser: the tokeniser that the model was trained with.
        source: the text that was translated; None for a language model.
        target_ids: the target, without BEGIN and END.
        of: a word of the target, in upper or lower case.
        instead_of: words that are compared with it. Words are compared by their first sub-words.
        place: index of the word among the target's words, needed if it occurs more than once.

    Raises:
        ArgumentError: a word that was not written, that occurs several times, or that begins with the same sub-word as
            another one; no words to compare with.

    >>> tokeniser = Tokeniser.train(["das Tier, weil es er sie"] * 3, vocab_size=300)
    >>> contrast = find_contrast(tokeniser, "The animal.", tokeniser.encode("das Tier, weil es"), "es", ["er", "sie"])
    >>> [word for word, _ in contrast.written_words]
    ['<begin>', 'das', 'Tier', ',', 'weil']
    >>> contrast.place, contrast.instead_of == (tokeniser.encode("er")[0], tokeniser.encode("sie")[0])
    (4, True)
    """
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    at = find_place(tokeniser, source, target_ids, of, place)
    word, others, ids = of, _compared(tokeniser, instead_of), _checked_ids(target_ids)
    words = tokeniser.words(ids)
    written, first = words[at][0], words[at][1].start
    if written != word and written.lower() == word.lower() and written[:1].isupper() and not word[:1].isupper():
        others = [other[:1].upper() + other[1:] for other in others]  # the word begins a sentence
    alternatives = _first_ids(tokeniser, ids, first, written, others)
    begin = [] if source is None else [BEGIN]
    read = [*begin, *ids[:first]]
    source_ids = [] if source is None else [*tokeniser.encode(a_string("source", source)), END]
    return Contrast(
        word=written, others=tuple(others), of=ids[first], instead_of=alternatives, source=tuple(source_ids),
        written=tuple(read), source_words=tuple(tokeniser.words(source_ids)),
        written_words=tuple(tokeniser.words(read)), place=at,
    )  # fmt: skip


def find_place(
    tokeniser: Tokeniser, source: str | None, target_ids: Sequence[int], of: str, place: int | None = None
) -> int:
    """The index of a written word among the words of the target; arguments as for `find_contrast`.

    Raises:
        ArgumentError: a word that was not written, or several times, or before which nothing was read.
    """
    words = tokeniser.words(_checked_ids(target_ids))
    at = _find_place([text for text, _ in words], a_string("of", of), place)
    if source is None and not words[at][1].start:
        raise ArgumentError(f"{words[at][0]!r} is the first word, so a language model has read nothing before it")
    return at


def _compared(tokeniser: Tokeniser, instead_of: Sequence[str]) -> list[str]:
    if isinstance(instead_of, str):
        instead_of = [instead_of]
    others = a_list("instead_of", instead_of, str, "the words to compare with, such as ('er', 'sie')")
    if not others:
        raise ArgumentError(
            "instead_of has no words; a lens explains why one word was written instead of others, so give at least one"
        )
    for other in others:
        if len(normalise(other).split()) != 1:
            raise ArgumentError(f"instead_of has {other!r}; each entry must be one word")
    return [tokeniser.decode(tokeniser.encode_target(tidy_target(other))) for other in others]  # as it writes them


def _checked_ids(target_ids: Sequence[int]) -> list[int]:
    if isinstance(target_ids, str):
        raise ArgumentError(f"target_ids is the text {target_ids[:40]!r}; give its ids, tokeniser.encode_target(text)")
    ids = [whole("an id of target_ids", i, 0) for i in each("target_ids", target_ids, "ids, as encode returns them")]
    if special := sorted({PAD, BEGIN, END} & set(ids)):
        raise ArgumentError(f"target_ids contain the special ids {special}; give only those of the text")
    return ids


def _find_place(words: Sequence[str], word: str, place: int | None) -> int:
    """The index of a word; the same case counts before another one."""
    places = [at for at, text in enumerate(words) if text == word]
    asked = normalise(word).lower()  # with either apostrophe
    places = places or [at for at, text in enumerate(words) if normalise(text).lower() == asked]
    if not places:
        raise ArgumentError(f"the word {word!r} was not written; the written words are {' '.join(words) or 'none'}")
    if place is not None:
        if whole("place", place) not in places:
            raise ArgumentError(f"word {place} is not {word!r}; it is at {_listed(places)} of the written words")
        return place
    if len(places) > 1:
        raise ArgumentError(
            f"the word {word!r} was written {len(places)} times, at {_listed(places)} of the written words, counted "
            f"from 0; give one of them as place (--place in a command)"
        )
    return places[0]


def _listed(places: Sequence[int]) -> str:
    noun = "place" if len(places) == 1 else "places"
    return f"{noun} {', '.join(map(str, places))}"


def _first_ids(
    tokeniser: Tokeniser, ids: Sequence[int], first: int, word: str, others: Sequence[str]
) -> tuple[int, ...]:
    """The first id of each other word, written at the place of the word at index `first`."""
    before = tokeniser.decode(ids[:first])
    with_word = tokeniser.decode(ids[: first + 1])
    gap = " " if with_word[len(before) :].startswith(" ") else ""
    taken = {ids[first]: word}
    found = []
    for number, other in enumerate(others):
        if other == word:
            raise ArgumentError(f"{other!r} is the written word itself; compare it with other words")
        if other in others[:number]:
            raise ArgumentError(f"{other!r} is named twice; name it once")
        tail = tokeniser.encode_target(f"{before}{gap}{other}")
        text, span = tokeniser.words(tail)[-1]
        if text != other:
            raise ArgumentError(
                f"instead_of has {other!r}, which is not one word here: the tokeniser ends with {text!r}"
            )
        if (identifier := tail[span.start]) in taken:
            raise ArgumentError(
                f"{other!r} and {taken[identifier]!r} begin with the same sub-word, "
                f"{tokeniser.pieces([identifier])[0]!r}, and words are compared by their first sub-words; name another "
                f"word in place of {other!r}"
            )
        taken[identifier] = other
        found.append(identifier)
    return tuple(found)
