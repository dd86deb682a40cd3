"""A language model with its tokeniser: prompts in, texts out, streamed while they are written."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.arguments import a_list, count_of, of_kind, one_of, shown, whole
from regard.errors import ArgumentError
from regard.reprs import Described, brief
from regard_lab.decoding.loading import check_together, load_with_tokeniser, seen_words_of
from regard_lab.decoding.sampling import Sampling
from regard_lab.decoding.scoring import ScoredText, gains_of, words_of
from regard_lab.decoding.search import Hypothesis, generate
from regard_lab.decoding.speculating import Draft, Proposer, lookup, speculated
from regard_lab.models import LanguageModel
from regard_lab.text import BEGIN, Tokeniser
from regard_lab.text.batches import pad
from regard_lab.text.seen_words import SeenWords


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
        if "" in (stops := a_list("stops", stops, str, "a list of texts")):
            raise ArgumentError(
                f"stops are {shown(stops)}; give a list of texts of one character or more"
            )
        self.stopped = False
        self._stops = tuple(stops)
        self._begins = begins
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, raw: bytes) -> str:
        """The text that is certain after these bytes."""
        return self._take(self._decoder.decode(of_kind("raw", raw, bytes, "bytes of text")))

    def close(self) -> str:
        """End the stream, and return the text that was held back."""
        text = self._take(self._decoder.decode(b"", final=True))
        text, self._held = text + self._held, ""
        return text

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
    """The length of the longest end of a text that is the beginning of a stop."""
    return next(
        (
            size
            for size in range(min(len(stop) - 1, len(text)), 0, -1)
            if text.endswith(stop[:size])
        ),
        0,
    )


class Listener:
    """Reads the ids of texts while they are written, passes on new text, and detects stops.

    `begins` says for each prompt whether it is empty, so that its text begins with a word. With `whole` each text is
    decoded from its beginning every time, as a beam needs, whose hypotheses change places.
    """

    def __init__(
        self,
        bytes_of: Callable[[int], bytes],
        stop: Sequence[str],
        begins: Sequence[bool],
        count: int,
        whole: bool,
    ) -> None:
        self.bytes_of, self.stop, self.begins, self.count, self.whole = (
            bytes_of,
            stop,
            begins,
            count,
            whole,
        )
        self.streams = [TextStream(stop, first) for first in begins for _ in range(count)]
        self.on_text: Callable[[int, int, str], None] | None = (
            None  # number of the prompt, of its text, new text
        )

    def __call__(self, text: int, ids: Sequence[int]) -> bool:
        """Whether the text is over after the last of these ids."""
        if self.whole:
            return bool(self.stop) and self.read(text, ids)[1]
        stream = self.streams[text]
        self._pass_on(*divmod(text, self.count), stream.feed(self.bytes_of(ids[-1])))
        return stream.stopped

    def read(self, prompt: int, ids: Sequence[int]) -> tuple[str, bool]:
        """The text of these ids after a prompt, and whether a stop ended it."""
        stream = TextStream(self.stop, self.begins[prompt])
        text = (
            "".join(stream.feed(self.bytes_of(identifier)) for identifier in ids) + stream.close()
        )
        return text, stream.stopped

    def close(self, ids_of_texts: Sequence[Sequence[Sequence[int]]]) -> None:
        """Pass on the text that was held back, or the whole text for a beam, given the ids of each prompt's texts."""
        for prompt, texts in enumerate(ids_of_texts):
            for number, ids in enumerate(texts):
                stream = self.streams[prompt * self.count + number]
                self._pass_on(
                    prompt, number, self.read(prompt, ids)[0] if self.whole else stream.close()
                )

    def _pass_on(self, prompt: int, number: int, more: str) -> None:
        if more and self.on_text is not None:
            self.on_text(prompt, number, more)


OnText = Callable[
    [int, int, str], None
]  # number of the prompt, number of its text, new part of that text


@brief
@dataclass(frozen=True)
class Generation:
    """A prompt and one continuation.

    `text` is the continuation up to a stop; `ids` includes the ids of the stop. `ended` is "end" (the model wrote END),
    "stop" (a stop text) or "length" (the limit). `tokens_per_step` counts the ids, END included, for each call of the
    model where they were speculated; else it is None.
    """

    prompt: str
    text: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    log_probability: float
    score: float
    ended: str
    tokens_per_step: float | None = None


class Generator(Described):
    """Continues prompts with a trained language model.

    Args:
        model: a language model; it is put into eval mode.
        tokeniser: the tokeniser it was trained with.
        words: the words of its training text, where they are stored.

    Raises:
        ArgumentError: the vocabulary sizes differ.
    """

    def __init__(
        self, model: LanguageModel, tokeniser: Tokeniser, words: SeenWords | None = None
    ) -> None:
        if not all(hasattr(model, name) for name in ("config", "start", "step")):
            raise ArgumentError(f"model is {shown(model)}; give a LanguageModel")
        check_together(model.config.vocab_size, tokeniser)
        self.model, self.tokeniser, self.words = model.eval(), tokeniser, words

    @classmethod
    def load(cls, folder: str | Path) -> Generator:
        """Load the best model of a training run, or a saved model, with its tokeniser.

        Raises:
            CheckpointError: the folder is missing, damaged, or holds no language model.
        """
        saved, tokeniser = load_with_tokeniser(folder, LanguageModel.KIND)
        return cls(
            LanguageModel.from_saved(saved, str(folder)), tokeniser, seen_words_of(saved, folder)
        )

    def generate(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int = 100,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        beam: int = 1,
        count: int = 1,
        normalisation: str = "none",
        alpha: float = 0.6,
        cache: str | None = None,
        cache_dtype: torch.dtype | str | None = None,
        batch_size: int = 32,
        first_row: int = 0,
        on_text: OnText | None = None,
        speculate: str | Generator | None = None,
        proposals: int = 5,
        branches: int = 1,
    ) -> list[list[Generation]]:
        """Write `count` texts for each prompt, in the order of the prompts.

        Args:
            prompts: texts; a prompt may be empty.
            max_tokens, sampling, beam, count, normalisation, alpha, cache, cache_dtype: as for
                `regard_lab.decoding.generate`.
            stop: texts that end a continuation; they are not part of it, and need not align with sub-words.
            batch_size: the most prompts continued at once.
            first_row: number of the first prompt in its draws, so that prompts given one by one are sampled as they
                would be together.
            on_text: called with (number of the prompt, number of its text, new part of that text) as soon as it is
                certain: whole characters, and no beginning of a stop. For a beam it is called once, at the end.
            speculate: what proposes ids, of which one call verifies several: "lookup" in the text so far, or a smaller
                generator with the same tokeniser. The texts are the same; prompts are continued one by one.
            proposals: the most ids of a continuation that are proposed at once.
            branches: how many continuations are proposed and verified together, as a tree: several matches in the text,
                or what follows the draft's most likely ids.

        Raises:
            ArgumentError: invalid settings, or more ids than the model has positions.
            UnsupportedError: speculation with a cache that cannot go back; branches with a model that compares places.
        """
        prompts = a_list("prompts", prompts, str, "a list of texts")
        for name, number in (
            ("batch_size", batch_size),
            ("max_tokens", max_tokens),
            ("beam", beam),
            ("count", count),
        ):
            whole(name, number, None if name == "max_tokens" else 1)  # `generate` refuses 0 of them
        if on_text is not None and not callable(on_text):
            raise ArgumentError(
                f"on_text is {shown(on_text)}; give a function of two numbers and a text"
            )
        first_row = whole("first_row", first_row, 0, 2**32 - 1)
        if whole("branches", branches, 1) > 1 and speculate is None:
            raise ArgumentError(
                f"branches={branches} is for proposals; add speculate= (--speculate or --draft)"
            )
        TextStream(stop)  # refuses invalid stops before any work
        encoded = [[BEGIN, *self.tokeniser.encode(prompt)] for prompt in prompts]
        self._check_room(max(map(len, encoded), default=0), max_tokens)
        options: dict[str, Any] = {"max_tokens": max_tokens, "sampling": sampling, "count": count}
        options |= {"cache": cache, "cache_dtype": cache_dtype}
        write: Callable[..., list[list[Hypothesis]]]
        if speculate is None:
            write = partial(generate, beam=beam, normalisation=normalisation, alpha=alpha)
        else:
            if beam > 1 or normalisation != "none":
                raise ArgumentError(
                    f"beam={beam}, normalisation={normalisation!r} and speculate= exclude each other: a beam follows "
                    f"several texts at once"
                )
            proposer = self._proposer(speculate, max(map(len, encoded), default=0), max_tokens)
            write = partial(speculated, proposer=proposer, proposals=proposals, branches=branches)
        device = next(self.model.parameters()).device
        generations: list[list[Generation]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda number: len(encoded[number]))
        for rows in (order[at : at + batch_size] for at in range(0, len(order), batch_size)):
            begins = [not encoded[row][1:] and not self.tokeniser.verbatim for row in rows]
            listener = Listener(self._bytes_of, stop, begins, count, beam > 1)
            if on_text is not None:
                listener.on_text = lambda row, number, more, rows=rows: on_text(
                    rows[row], number, more
                )
            batch = pad([encoded[row] for row in rows]).to(device)
            texts = write(
                self.model, batch, rows=[first_row + row for row in rows], over=listener, **options
            )
            for at, (row, hypotheses) in enumerate(zip(rows, texts, strict=True)):
                for one in hypotheses:
                    text, stopped = listener.read(at, one.ids)
                    ended = "stop" if stopped else "end" if one.finished else "length"
                    read = tuple(encoded[row][1:])
                    numbers = (one.log_probability, one.score)
                    per_step = len(one.gains) / one.calls if one.calls else None
                    generations[row].append(
                        Generation(prompts[row], text, read, one.ids, *numbers, ended, per_step)
                    )
            listener.close([[one.ids for one in hypotheses] for hypotheses in texts])
        return generations

    @torch.inference_mode()
    def score(self, texts: Sequence[str]) -> list[ScoredText]:
        """The log-probabilities of texts, each read from its beginning; whether a text ends is not scored.

            log p(text) = Σ log p(id | BEGIN, the ids before it)

        Raises:
            ArgumentError: something else than texts, or more ids than the model has positions.
        """
        device = next(self.model.parameters()).device
        scored = []
        for text in a_list("texts", texts, str, "a list of texts"):
            ids = self.tokeniser.encode(text)
            self._check_room(len(ids), 1)
            read = torch.tensor([[BEGIN, *ids[:-1]]], device=device)
            [gains] = (
                gains_of(self.model(read), torch.tensor([ids], device=device)) if ids else [[]]
            )
            scored.append(
                ScoredText(
                    None, text, tuple(ids), tuple(gains), words_of(self.tokeniser, ids, gains)
                )
            )
        return scored

    def _proposer(self, speculate: str | Generator, longest: int, max_tokens: int) -> Proposer:
        if not isinstance(speculate, Generator):
            one_of("speculate", speculate, ("lookup",))
            return lookup
        if speculate.tokeniser != self.tokeniser:
            raise ArgumentError(
                f"the draft model has another tokeniser ({speculate.tokeniser.vocab_size} ids, and this model has "
                f"{self.tokeniser.vocab_size}), so its ids stand for other texts; train both on the same data with the "
                f"same --vocab-size"
            )
        speculate._check_room(longest, max_tokens)
        return Draft(speculate.model)

    def _bytes_of(self, identifier: int) -> bytes:
        return self.tokeniser.vocabulary.raw_pieces[identifier] or b""

    def _check_room(self, longest: int, max_tokens: int) -> None:
        config = self.model.config
        if config.positions == "learned" and longest + max_tokens - 1 > config.max_length:
            there = count_of(config.max_length, "learned positions")
            most = max(0, config.max_length - longest + 1)
            raise ArgumentError(
                f"the prompt has {count_of(longest, 'ids')} with BEGIN and max_tokens is {max_tokens}; this model has "
                f"{there}, so give at most {most}, or shorten the prompt"
            )
