"""Text while it is written: whole characters of an incomplete text, up to the first stop."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence

from regard.arguments import a_list, of_kind, shown
from regard.errors import ArgumentError
from regard.reprs import Described
from regard_lab.decoding.starting import Hypothesis

# Called with the number of the prompt, the number of its text, and a new part of that text.
OnText = Callable[[int, int, str], None]


class TextStream(Described):
    """Decodes bytes to text as they arrive, up to the first stop text.

    It returns whole characters only, and holds text back while it may be the beginning of a stop. Of several stops, the
    one that is complete first counts, so the result does not depend on how the bytes are split.

    Args:
        stops: texts that end the stream.
        begins: whether to remove the space that the tokeniser puts before the first word.

    Raises:
        ArgumentError: an empty stop.

    >>> stream = TextStream(stops=["END"])
    >>> [stream.feed(part) for part in (b"caf\\xc3", b"\\xa9 E", b"NE", b"ND, and more")]
    ['caf', 'é ', 'EN', '']
    >>> stream.stopped
    True
    """

    def __init__(self, stops: Sequence[str] = (), begins: bool = False) -> None:
        stops = a_list("stops", stops, str, "a list of texts")
        if "" in stops:
            raise ArgumentError(
                f"stops are {shown(stops)}; give a list of texts of one character or more"
            )
        self.stopped = False
        self._stops = tuple(stops)
        self._begins = begins
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held_back = ""

    def feed(self, raw: bytes) -> str:
        """The text that is certain after these bytes."""
        return self._append(self._decoder.decode(of_kind("raw", raw, bytes, "bytes of text")))

    def close(self) -> str:
        """End the stream, and return the text that was held back."""
        text = self._append(self._decoder.decode(b"", final=True)) + self._held_back
        self._held_back = ""
        return text

    def _append(self, new_text: str) -> str:
        """The text that is certain now."""
        if self.stopped:
            return ""
        if self._begins and new_text:
            new_text = new_text.removeprefix(" ")
            self._begins = False

        text = self._held_back + new_text
        first_stop = self._first_stop(text)
        if first_stop is not None:
            self.stopped = True
            self._held_back = ""
            return text[:first_stop]
        waiting = max((_overlap(text, stop) for stop in self._stops), default=0)
        certain = len(text) - waiting
        self._held_back = text[certain:]
        return text[:certain]

    def _first_stop(self, text: str) -> int | None:
        """Where the stop begins that is complete first; of those that are complete at once, the longest."""
        first: tuple[int, int] | None = None  # its end and its beginning
        for stop in self._stops:
            begin = text.find(stop)
            if begin >= 0 and (first is None or (begin + len(stop), begin) < first):
                first = (begin + len(stop), begin)
        return None if first is None else first[1]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that is the beginning of a stop."""
    longest = min(len(stop) - 1, len(text))
    for size in range(longest, 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0


class Listener:
    """Reads the ids of texts while they are written, passes on new text, and detects stops.

    Args:
        bytes_of: the bytes of an id.
        stop: texts that end a text.
        begins: for each prompt, whether it is empty, so that its text begins with a word.
        count: texts of each prompt.
        whole: whether each text is decoded from its beginning every time, as a beam needs, whose hypotheses change
            places.
    """

    def __init__(
        self,
        bytes_of: Callable[[int], bytes],
        stop: Sequence[str],
        begins: Sequence[bool],
        count: int,
        whole: bool,
    ) -> None:
        self.bytes_of = bytes_of
        self.stop = stop
        self.begins = begins
        self.count = count
        self.whole = whole
        self.on_text: OnText | None = None
        self._streams = [[TextStream(stop, begin) for _ in range(count)] for begin in begins]

    def __call__(self, text: int, ids: Sequence[int]) -> bool:
        """Whether the text is over after the last of these ids."""
        if self.whole:
            return bool(self.stop) and self.read(text, ids)[1]
        prompt, number = divmod(text, self.count)
        stream = self._streams[prompt][number]
        self._pass_on(prompt, number, stream.feed(self.bytes_of(ids[-1])))
        return stream.stopped

    def read(self, prompt: int, ids: Sequence[int]) -> tuple[str, bool]:
        """The text of these ids after a prompt, and whether a stop ended it."""
        stream = TextStream(self.stop, self.begins[prompt])
        parts = [stream.feed(self.bytes_of(identifier)) for identifier in ids]
        return "".join([*parts, stream.close()]), stream.stopped

    def close(self, texts: Sequence[Sequence[Hypothesis]]) -> None:
        """Pass on the text that was held back, or the whole text for a beam, of each prompt's hypotheses."""
        for prompt, hypotheses in enumerate(texts):
            for number, hypothesis in enumerate(hypotheses):
                if self.whole:
                    rest, _ = self.read(prompt, hypothesis.ids)
                else:
                    rest = self._streams[prompt][number].close()
                self._pass_on(prompt, number, rest)

    def _pass_on(self, prompt: int, number: int, more: str) -> None:
        if more and self.on_text is not None:
            self.on_text(prompt, number, more)
