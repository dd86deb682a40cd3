"""Relations between words of English text that rules can label, without a parser and without a model.

Some are true by construction (the word before, the same word earlier, the bracket that is closed). Those of grammar are
patterns: an article, words without a function word, and something that ends the phrase, as in "the given list of"; the
last word is then called the noun. Most are right, not all: "the value returned by" has no noun *returned*, so words in
-ed, -ing and -ly are refused, and phrases that are not ended clearly are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from regard.arguments import a_string
from regard_lab.seeing.relations import Link
from regard_lab.seeing.watching import Span


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


ARTICLES = _set("the a an")
NO_NOUNS = ("ed", "ing", "ly", "given", "above", "below")  # endings and words
PREPOSITIONS = _set("of in on for to from with by as at into over under between through without after")
VERBS = _set("is are was were has have had can may must should will does returns raises takes contains")
CLOSING = PREPOSITIONS | VERBS | _set("that which and or if when unless but because where")
FUNCTION = (
    CLOSING
    | ARTICLES
    | _set(
        "this these those it its they their he his she her we you your i not be been being no any all each every some "
        "such so than then there do did how what who only also same other"
    )
)
IMPERATIVES = _set(
    "Return Create Set Get Make Call Read Write Raise Remove Add Parse Convert Find Open Close Send Print Check Test "
    "Compute Format Insert Delete Update Wait Load Save Start Stop Run Copy Compare Determine Register Split Replace "
    "Select Show Display Encode Decode Compile Execute Append Generate Process Handle Match Extract Search"
)
MOST_MODIFIERS = 3
SHORTEST_REPEATED = 4  # letters
SPECIAL = frozenset(["<begin>", "<end>"])
BRACKETS = {")": "(", "]": "[", "}": "{"}

_WORD = re.compile(r"[A-Za-z][A-Za-z'’]*")
_UNITS = re.compile(r"[A-Za-z0-9_'’]+|[^\w\s]+")


def split_words(text: str) -> list[str]:
    """Words and runs of punctuation.

    >>> split_words("Don't stop (now).")
    ["Don't", 'stop', '(', 'now', ').']
    """
    return _UNITS.findall(a_string("text", text))


def relations_in(words: Sequence[str]) -> dict[str, list[Link]]:
    """The links of every relation among the words of a text, those that look back first.

    >>> found = relations_in("Return the sorted list of ( new ) names .".split())
    >>> found["object to verb"], found["noun to modifier"], found["closing to opening bracket"]
    ([(3, frozenset({0}))], [(3, frozenset({2}))], [(7, frozenset({5}))])
    """
    found = {name: _one_each(label(words)) for name, label in _LABELS.items()}
    for back, forward in FORWARD.items():
        found[forward] = turned(found[back])
    return found


def piece_links(spans: Sequence[Span]) -> list[Link]:
    """Each sub-word after the first of its word, linked to the first; indices are those of ids.

    >>> piece_links([("cat", range(0, 1)), ("street", range(1, 4))])
    [(2, frozenset({1})), (3, frozenset({1}))]
    """
    return [(piece, frozenset({ids.start})) for _, ids in spans for piece in ids[1:]]


def turned(links: Sequence[Link]) -> list[Link]:
    """The same pairs with queries and keys exchanged.

    >>> turned([(3, frozenset({1, 2}))])
    [(1, frozenset({3})), (2, frozenset({3}))]
    """
    return _one_each((key, query) for query, keys in links for key in keys)


def _one_each(pairs: Iterator[tuple[int, int]]) -> list[Link]:
    keys: dict[int, set[int]] = {}
    for query, key in pairs:
        keys.setdefault(query, set()).add(key)
    return [(query, frozenset(keys[query])) for query in sorted(keys)]


def _is_word(word: str) -> bool:
    return word not in SPECIAL and _WORD.fullmatch(word) is not None


def _begins_sentence(words: Sequence[str], place: int) -> bool:
    """Whether a sentence begins here: after "<begin>", nothing, or a full stop before a capital letter."""
    if not _is_word(words[place]):
        return False
    before = words[place - 1] if place else "<begin>"
    return before == "<begin>" or (
        words[place][0].isupper() and not _is_word(before) and bool(set(before) & set(".!?"))
    )


def _phrases(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Article and noun of each phrase: an article, up to three words and a noun, and something that ends it."""
    for article, word in enumerate(words):
        if word.lower() not in ARTICLES:
            continue
        stop = article + 1
        while stop < len(words) and _is_word(words[stop]) and words[stop].lower() not in FUNCTION:
            stop += 1
        noun = stop - 1
        ended = stop == len(words) or not _is_word(words[stop]) or words[stop].lower() in CLOSING
        if ended and 1 <= noun - article <= MOST_MODIFIERS + 1 and not words[noun].endswith(NO_NOUNS):
            yield article, noun


def _previous(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    for place in range(1, len(words)):
        if words[place] not in SPECIAL and words[place - 1] not in SPECIAL:
            yield place, place - 1


def _repeated(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Pairs of a word and each of its earlier occurrences."""
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        if _is_word(word) and len(word) >= SHORTEST_REPEATED:
            earlier = places.setdefault(word.lower(), [])
            yield from ((place, one) for one in earlier)
            earlier.append(place)


def _after_repeated(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    for place, earlier in _repeated(words):
        if earlier + 1 < place:
            yield place, earlier + 1


def _brackets(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    opened: list[tuple[str, int]] = []
    for place, word in enumerate(words):
        for letter in "" if word in SPECIAL else word:
            if letter in BRACKETS.values():
                opened.append((letter, place))
            elif letter in BRACKETS and opened and opened[-1][0] == BRACKETS[letter]:
                _, start = opened.pop()
                if start != place:
                    yield place, start


def _quotes(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Double quotes in turn open and close."""
    start: int | None = None
    for place, word in enumerate(words):
        for _ in range(word.count('"')):
            if start is None:
                start = place
            else:
                if start != place:
                    yield place, start
                start = None


def _noun_to_article(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    for article, noun in _phrases(words):
        yield noun, article


def _noun_to_modifier(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    for article, noun in _phrases(words):
        yield from ((noun, modifier) for modifier in range(article + 1, noun))


def _object_to_verb(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """ "Return the sorted list": the noun and the verb that begins the sentence."""
    for article, noun in _phrases(words):
        if article and words[article - 1] in IMPERATIVES and _begins_sentence(words, article - 1):
            yield noun, article - 1


def _verb_to_subject(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """ "The name of the file is": the verb and the first noun, whatever prepositions join to it."""
    phrases = dict(_phrases(words))
    for article, subject in phrases.items():
        if article and words[article - 1].lower() in PREPOSITIONS | VERBS:
            continue
        end = subject
        while end + 2 < len(words) and words[end + 1].lower() in PREPOSITIONS and end + 2 in phrases:
            end = phrases[end + 2]
        if end + 1 < len(words) and words[end + 1] in VERBS:
            yield end + 1, subject


def _to_punctuation(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    last: int | None = None
    for place, word in enumerate(words):
        if word not in SPECIAL and set(word) & set(".,;:"):
            last = place
        elif last is not None and _is_word(word):
            yield place, last


def _to_sentence_start(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    start: int | None = None
    for place, word in enumerate(words):
        if _begins_sentence(words, place):
            start = place
        elif start is not None and _is_word(word):
            yield place, start


_LABELS: dict[str, Callable[[Sequence[str]], Iterator[tuple[int, int]]]] = {
    "previous word": _previous,
    "same word earlier": _repeated,
    "after the same word": _after_repeated,
    "last punctuation": _to_punctuation,
    "start of the sentence": _to_sentence_start,
    "closing to opening bracket": _brackets,
    "closing to opening quote": _quotes,
    "noun to article": _noun_to_article,
    "noun to modifier": _noun_to_modifier,
    "object to verb": _object_to_verb,
    "verb to subject": _verb_to_subject,
}
PIECES = "sub-word to first of its word"
FORWARD = {  # the same pairs, looked at from the other word
    "previous word": "next word",
    "same word earlier": "same word later",
    "closing to opening bracket": "opening to closing bracket",
    "closing to opening quote": "opening to closing quote",
    "noun to article": "article to noun",
    "noun to modifier": "modifier to noun",
    "object to verb": "verb to object",
    "verb to subject": "subject to verb",
}
BACK = (*_LABELS, PIECES)  # what a causal model can show
ALL = (*BACK, *FORWARD.values())
