"""Text as it comes, byte by byte: shown as soon as it is certain, up to what stops it."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

from regard.errors import ArgumentError
from regard.kinds import a_list, of_kind, shown


class TextStream:
    """Bytes in, text out: never half a character, nothing of a stop, and nothing after it.

    Text is held back while it may be the beginning of a stop. Where several are met, the one that is complete first
    counts, so that it does not matter how the bytes are cut.

    Args:
        stops: texts that end the stream.
        begins: does a text begin here, whose first word has the tokeniser's space before it?

    Raises:
        ArgumentError: an empty stop.

    >>> stream = TextStream(stops=["END"])
    >>> [stream.feed(part) for part in (b"caf\\xc3", b"\\xa9 E", b"NE", b"ND, and more")]
    ['caf', 'é ', 'EN', '']
    >>> stream.stopped
    True
    """

    def __init__(self, stops: Sequence[str] = (), begins: bool = False) -> None:
        if "" in (stops := a_list("stops", stops, str, "a list of texts")):
            raise ArgumentError(f"stops are {shown(stops)}; give a list of texts of one character or more")
        self.stopped = False
        self._stops = tuple(stops)
        self._begins = begins
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, raw: bytes) -> str:
        """What may be shown now that these bytes have come."""
        return self._take(self._decoder.decode(of_kind("raw", raw, bytes, "the bytes of a piece of text")))

    def close(self) -> str:
        """What was held back and is certain now that nothing follows."""
        shown = self._take(self._decoder.decode(b"", final=True))
        shown, self._held = shown + self._held, ""
        return shown

    def _take(self, text: str) -> str:
        if self.stopped:
            return ""
        if self._begins and text:
            text, self._begins = text.removeprefix(" "), False
        text = self._held + text
        complete = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if complete:
            self.stopped, self._held = True, ""
            return text[: min(complete)[1]]
        waiting = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - waiting :]
        return text[: len(text) - waiting]


def _overlap(text: str, stop: str) -> int:
    """How many of the last characters of a text may be the beginning of a stop."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
