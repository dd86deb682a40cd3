"""Texts read while they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regard.decoding.stops import TextStream


class Listener:
    """Reads the ids of texts as they come, tells what is certain of each text, and says when a stop has ended it.

    Args:
        bytes_of: what an id stands for.
        stop: texts that end a text.
        begins: for each prompt, whether it is empty, so that the text begins there.
        count: texts for each prompt.
        whole: read each text from its beginning, as the hypotheses of a beam must be, which take turns.
    """

    def __init__(
        self, bytes_of: Callable[[int], bytes], stop: Sequence[str], begins: Sequence[bool], count: int, whole: bool
    ) -> None:
        self.bytes_of, self.stop, self.begins, self.count, self.whole = bytes_of, stop, begins, count, whole
        self.streams = [TextStream(stop, first) for first in begins for _ in range(count)]
        self.tell: Callable[[int, int, str], None] | None = None  # number of the prompt, of its text, more of it

    def __call__(self, text: int, ids: Sequence[int]) -> bool:
        """Is the text, with the last of these ids, over?"""
        if self.whole:
            return bool(self.stop) and self.read(text, ids)[1]
        stream = self.streams[text]
        self._tell(*divmod(text, self.count), stream.feed(self.bytes_of(ids[-1])))
        return stream.stopped

    def read(self, prompt: int, ids: Sequence[int]) -> tuple[str, bool]:
        """The text of all these ids after a prompt, and whether a stop ended it."""
        stream = TextStream(self.stop, self.begins[prompt])
        shown = "".join(stream.feed(self.bytes_of(identifier)) for identifier in ids) + stream.close()
        return shown, stream.stopped

    def close(self, found: Sequence[Sequence[Sequence[int]]]) -> None:
        """Tell what was held back; of a beam, everything: the ids of each prompt's texts."""
        for prompt, texts in enumerate(found):
            for number, ids in enumerate(texts):
                stream = self.streams[prompt * self.count + number]
                self._tell(prompt, number, self.read(prompt, ids)[0] if self.whole else stream.close())

    def _tell(self, prompt: int, number: int, more: str) -> None:
        if more and self.tell is not None:
            self.tell(prompt, number, more)
