"""A language model with its tokeniser: prompts in, texts out, streamed while they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.arguments import a_list, count_of, of_kind, one_of, shown, whole
from regard.errors import ArgumentError
from regard.reprs import Described, brief
from regard_lab.decoding.loading import check_together, load_with_tokeniser, seen_words_of
from regard_lab.decoding.options import SearchOptions, with_options
from regard_lab.decoding.sampling import Sampling
from regard_lab.decoding.scoring import ScoredText, gains_of, words_of
from regard_lab.decoding.search import search_texts
from regard_lab.decoding.speculating import Draft, Proposals, lookup, speculate_texts
from regard_lab.decoding.starting import Hypothesis
from regard_lab.decoding.streaming import Listener, OnText, TextStream
from regard_lab.models import LanguageModel
from regard_lab.text import BEGIN, Tokeniser
from regard_lab.text.batches import pad
from regard_lab.text.seen_words import SeenWords

MAX_TOKENS = 100  # new ids of a text, unless more are asked for
# The options of a generator by default. A beam ranks texts by their probability.
DEFAULT_OPTIONS = SearchOptions(normalisation="none", max_tokens=MAX_TOKENS)


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
        self.model = model.eval()
        self.tokeniser = tokeniser
        self.words = words

    @classmethod
    def load(cls, folder: str | Path) -> Generator:
        """Load the best model of a training run, or a saved model, with its tokeniser.

        Raises:
            CheckpointError: the folder is missing, damaged, or holds no language model.
        """
        saved, tokeniser = load_with_tokeniser(folder, LanguageModel.KIND)
        model = LanguageModel.from_saved(saved, str(folder))
        return cls(model, tokeniser, seen_words_of(saved, folder))

    def generate(
        self,
        prompts: Sequence[str],
        options: SearchOptions | None = None,
        *,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        batch_size: int = 32,
        first_row: int = 0,
        on_text: OnText | None = None,
        speculate: str | Generator | None = None,
        proposals: int = 5,
        branches: int = 1,
        **search: Any,
    ) -> list[list[Generation]]:
        """Write `count` texts for each prompt, in the order of the prompts.

        Args:
            prompts: texts; a prompt may be empty.
            options: how they are continued; by default by at most 100 ids, and a beam ranks texts by their probability.
            sampling: settings of sampling; None takes the most likely id.
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
            search: single options by name: those of `SearchOptions` (beam, count, normalisation, alpha, max_tokens,
                cache, cache_dtype) and of `Constraints` (min_length, no_repeat, repetition_penalty).

        Raises:
            ArgumentError: invalid settings, or more ids than the model has positions.
            UnsupportedError: speculation with a cache that cannot go back; branches with a model that compares places.
        """
        prompts = a_list("prompts", prompts, str, "a list of texts")
        batch_size = whole("batch_size", batch_size, 1)
        first_row = whole("first_row", first_row, 0, 2**32 - 1)
        if on_text is not None and not callable(on_text):
            raise ArgumentError(
                f"on_text is {shown(on_text)}; give a function of two numbers and a text"
            )
        if whole("branches", branches, 1) > 1 and speculate is None:
            raise ArgumentError(
                f"branches={branches} is for proposals; add speculate= (--speculate or --draft)"
            )
        TextStream(stop)  # refuses invalid stops before any work
        if options is None:
            options = DEFAULT_OPTIONS
        of_kind("options", options, SearchOptions, "a SearchOptions, or None")
        options = with_options(options, search)

        encoded = [[BEGIN, *self.tokeniser.encode(prompt)] for prompt in prompts]
        longest = max(map(len, encoded), default=0)
        self._check_room(longest, options.max_tokens)
        proposed = None
        if speculate is not None:
            _check_speculation(options)
            proposer = self._proposer(speculate, longest, options.max_tokens)
            proposed = Proposals(proposer, proposals, branches)

        device = next(self.model.parameters()).device
        generations: list[list[Generation]] = [[] for _ in prompts]
        by_length = sorted(range(len(prompts)), key=lambda number: len(encoded[number]))
        for first in range(0, len(by_length), batch_size):
            numbers = by_length[first : first + batch_size]  # of the prompts in this batch
            listener = self._listener([encoded[number] for number in numbers], stop, options)
            if on_text is not None:
                listener.on_text = _renumbered(on_text, numbers)
            batch = pad([encoded[number] for number in numbers]).to(device)
            rows = [first_row + number for number in numbers]
            if proposed is None:
                texts = search_texts(self.model, batch, options, sampling, rows=rows, over=listener)
            else:
                texts = speculate_texts(
                    self.model, batch, options, sampling, proposed, rows=rows, over=listener
                )
            for row, (number, hypotheses) in enumerate(zip(numbers, texts, strict=True)):
                prompt_ids = tuple(encoded[number][1:])
                for hypothesis in hypotheses:
                    text, stopped = listener.read(row, hypothesis.ids)
                    generation = _generation(prompts[number], prompt_ids, hypothesis, text, stopped)
                    generations[number].append(generation)
            listener.close(texts)
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
            gains: list[float] = []
            if ids:
                read = torch.tensor([[BEGIN, *ids[:-1]]], device=device)
                [gains] = gains_of(self.model(read), torch.tensor([ids], device=device))
            words = words_of(self.tokeniser, ids, gains)
            scored.append(ScoredText(None, text, tuple(ids), tuple(gains), words))
        return scored

    def _listener(
        self, prompts: list[list[int]], stop: Sequence[str], options: SearchOptions
    ) -> Listener:
        """What reads the texts that are written after prompts, given by their ids with BEGIN."""
        begins = [len(ids) == 1 and not self.tokeniser.verbatim for ids in prompts]
        return Listener(self._bytes_of, stop, begins, options.count, options.beam > 1)

    def _proposer(
        self, speculate: str | Generator, longest: int, max_tokens: int | None
    ) -> Callable[[Sequence[int], int, int], list[list[int]]]:
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

    def _check_room(self, longest: int, max_tokens: int | None) -> None:
        """Refuse prompts, the longest of so many ids, whose texts may need more positions than the model learned."""
        config = self.model.config
        if config.positions != "learned":
            return
        if max_tokens is None:
            max_tokens = 2 * longest + 16
        if longest + max_tokens - 1 > config.max_length:
            positions = count_of(config.max_length, "learned positions")
            most = max(0, config.max_length - longest + 1)
            raise ArgumentError(
                f"the prompt has {count_of(longest, 'ids')} with BEGIN and max_tokens is {max_tokens}; this model has "
                f"{positions}, so give at most {most}, or shorten the prompt"
            )


def _check_speculation(options: SearchOptions) -> None:
    if options.beam > 1 or options.normalisation != "none":
        raise ArgumentError(
            f"beam={options.beam}, normalisation={options.normalisation!r} and speculate= exclude each other: a beam "
            f"follows several texts at once"
        )
    if not options.constraints.are_none:
        raise ArgumentError(
            f"{options.constraints} and speculate= exclude each other: a proposal is verified by the model's own logits"
        )


def _renumbered(on_text: OnText, numbers: Sequence[int]) -> OnText:
    """The function of the caller, called with the number of the prompt in the place of its row in a batch."""

    def pass_on(row: int, number: int, more: str) -> None:
        on_text(numbers[row], number, more)

    return pass_on


def _generation(
    prompt: str, prompt_ids: tuple[int, ...], hypothesis: Hypothesis, text: str, stopped: bool
) -> Generation:
    ended = "end" if hypothesis.finished else "length"
    if stopped:
        ended = "stop"
    tokens_per_step = None
    if hypothesis.calls:
        tokens_per_step = len(hypothesis.gains) / hypothesis.calls
    return Generation(
        prompt=prompt,
        text=text,
        prompt_ids=prompt_ids,
        ids=hypothesis.ids,
        log_probability=hypothesis.log_probability,
        score=hypothesis.score,
        ended=ended,
        tokens_per_step=tokens_per_step,
    )
