"""A language model and its tokeniser: prompts in, texts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.arguments import whole
from regard.decoding.generate import generate
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.listening import Listener
from regard.decoding.loading import check_together, load_with_tokeniser
from regard.decoding.sampling import Sampling
from regard.decoding.stops import TextStream
from regard.errors import ArgumentError
from regard.kinds import a_list, shown
from regard.models import LanguageModel
from regard.text import BEGIN, Tokeniser, pad

OnText = Callable[[int, int, str], None]  # the number of a prompt, the number of its text, and more of that text


@dataclass(frozen=True)
class Generation:
    """A prompt and one text that continues it.

    `text` is what follows the prompt, up to a stop; `ids` are all that were written, those of the stop too. `ended`
    says by what: "end", the model's own; "stop", a text that was asked for; "length", the limit.
    """

    prompt: str
    text: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    log_probability: float
    score: float
    ended: str


class Generator:
    """Continues texts with a trained language model.

    Args:
        model: put into eval mode.
        tokeniser: the one it was trained with.

    Raises:
        ArgumentError: they were not trained together.
    """

    def __init__(self, model: LanguageModel, tokeniser: Tokeniser) -> None:
        if not all(hasattr(model, name) for name in ("config", "start", "step")):
            raise ArgumentError(f"model is {shown(model)}; it needs a LanguageModel")
        check_together(model.config.vocab_size, tokeniser)
        self.model, self.tokeniser = model.eval(), tokeniser

    @classmethod
    def load(cls, folder: str | Path) -> Generator:
        """The best model of a training run, or a saved model, with its tokeniser.

        Raises:
            CheckpointError: missing, damaged, or no language model.
        """
        saved, tokeniser = load_with_tokeniser(folder, LanguageModel.KIND)
        return cls(LanguageModel.from_saved(saved, str(folder)), tokeniser)

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
        batch_size: int = 32,
        first_row: int = 0,
        on_text: OnText | None = None,
    ) -> list[list[Generation]]:
        """`count` texts for each prompt, in the prompts' order.

        Args:
            prompts: texts; an empty one is continued from nothing.
            max_tokens, sampling, beam, count, normalisation, alpha: of `generate`.
            stop: texts that end a text, wherever they fall among its sub-words, and are no part of it.
            batch_size: the most prompts continued at once.
            first_row: the number of the first prompt in its draws, as `rows` of `generate`, so that prompts given
                one by one draw as they would together.
            on_text: told (number of the prompt, number of its text, more of that text) as soon as this is certain:
                whole characters, and nothing that may be the beginning of a stop. A beam is told at its end.

        Raises:
            ArgumentError: settings that cannot be, or more ids than the model has places for.
            UnsupportedError: prompts of unequal lengths for a pattern that counts from the beginning of a text.
        """
        prompts = a_list("prompts", prompts, str, "a list of texts")
        for name, number in (("batch_size", batch_size), ("max_tokens", max_tokens), ("beam", beam), ("count", count)):
            whole(name, number, None if name == "max_tokens" else 1)  # `generate` refuses 0 of them
        if on_text is not None and not callable(on_text):
            raise ArgumentError(f"on_text is {shown(on_text)}; it needs a function of two numbers and a text")
        if isinstance(first_row, bool) or not isinstance(first_row, int) or not 0 <= first_row < 2**32:
            raise ArgumentError(f"first_row is {first_row!r}; it is a whole number from 0 to 2**32 - 1")
        TextStream(stop)  # refuses what cannot stop a text, before any work
        encoded = [[BEGIN, *self.tokeniser.encode(prompt)] for prompt in prompts]
        self._check_room(max(map(len, encoded), default=0), max_tokens)
        options: dict[str, Any] = {"max_tokens": max_tokens, "sampling": sampling, "beam": beam, "count": count}
        options |= {"normalisation": normalisation, "alpha": alpha}
        device = next(self.model.parameters()).device
        found: list[list[Generation]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda number: len(encoded[number]))
        for rows in (order[at : at + batch_size] for at in range(0, len(order), batch_size)):
            begins = [not encoded[row][1:] and not self.tokeniser.verbatim for row in rows]
            listener = Listener(self._bytes_of, stop, begins, count, beam > 1)
            if on_text is not None:
                listener.tell = lambda row, number, more, rows=rows: on_text(rows[row], number, more)
            batch = pad([encoded[row] for row in rows]).to(device)
            texts = generate(self.model, batch, rows=[first_row + row for row in rows], over=listener, **options)
            for at, (row, hypotheses) in enumerate(zip(rows, texts, strict=True)):
                for one in hypotheses:
                    text, stopped = listener.read(at, one.ids)
                    found[row].append(_generation(prompts[row], encoded[row][1:], one, text, stopped))
            listener.close([[one.ids for one in hypotheses] for hypotheses in texts])
        return found

    def _bytes_of(self, identifier: int) -> bytes:
        return self.tokeniser.vocabulary.raw_pieces[identifier] or b""

    def _check_room(self, longest: int, max_tokens: int) -> None:
        config = self.model.config
        if config.positions == "learned" and longest + max_tokens - 1 > config.max_length:
            raise ArgumentError(
                f"a prompt of {longest} ids, BEGIN included, and {max_tokens} more were asked for; this model has "
                f"learned {config.max_length} positions, so ask for at most {max(0, config.max_length - longest + 1)}, "
                f"or shorten the prompt"
            )


def _generation(prompt: str, prompt_ids: list[int], found: Hypothesis, text: str, stopped: bool) -> Generation:
    ended = "stop" if stopped else "end" if found.finished else "length"
    return Generation(prompt, text, tuple(prompt_ids), found.ids, found.log_probability, found.score, ended)
