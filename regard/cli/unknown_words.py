"""Remarks about texts with words that the training of a model did not have."""

from __future__ import annotations

from regard.text import SeenWords

MOST_NAMED = 12  # words in one remark
MOSTLY, LEAST_WORDS = 0.5, 4  # a text of so many words is unknown as a whole if more than this share of them is


class UnknownWords:
    """Words that the training of a model did not have, each named once.

    Args:
        seen: the words of its training; None if the model does not store them, and then there is nothing to remark.
        output: what the model makes of a text, such as "translation".
    """

    def __init__(self, seen: SeenWords | None, output: str) -> None:
        self._seen, self._output = seen, output
        self._named: set[str] = set()

    def remark(self, text: str) -> str | None:
        """A sentence about the words of a text that were not named before; None if there are none.

        >>> print(UnknownWords(SeenWords.of(["the bird sang"]), "translation").remark("the zebra sang"))
        not in the training of this model: zebra; the translation of such words is a guess
        """
        if self._seen is None:
            return None
        new = [word for word in self._seen.unknown(text) if word not in self._named]
        if not new:
            return None
        self._named.update(new)
        more = f" and {len(new) - MOST_NAMED} more" if len(new) > MOST_NAMED else ""
        names = f"not {self._where()}: {', '.join(new[:MOST_NAMED])}{more}"
        whole = self._whole(text)
        return f"{names}; {f'the {self._output} of such words is a guess' if whole is None else whole}"

    def remark_on_whole(self, text: str) -> str | None:
        """A sentence about a text of which most words are unknown; None for any other.

        >>> UnknownWords(SeenWords.of(["the bird sang"]), "label").remark_on_whole("zebras run over the hills")
        'not in the training of this model: zebras, run, over, hills; the label is a guess: 4 of 5 words are unknown'
        """
        return None if self._whole(text) is None else self.remark(text)

    def _where(self) -> str:
        assert self._seen is not None
        if self._seen.complete:
            return "in the training of this model"
        return f"among the {len(self._seen.words):,} most frequent words of its training"

    def _whole(self, text: str) -> str | None:
        if self._seen is None:
            return None
        unknown, words = self._seen.counts(text)
        if words < LEAST_WORDS or unknown <= MOSTLY * words:
            return None
        return f"the {self._output} is a guess: {unknown} of {words} words are unknown"
