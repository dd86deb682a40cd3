"""A translation model with its tokeniser: sentences in, translations out, and their evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.arguments import a_list, a_string, count_of, of_kind, shown, whole
from regard.errors import ArgumentError
from regard.reprs import Described, brief
from regard_lab.decoding.constraints import Constraints
from regard_lab.decoding.lines import SharedWork
from regard_lab.decoding.loading import check_together, load_with_tokeniser, seen_words_of
from regard_lab.decoding.scoring import ScoredText, Word, gains_of, words_of
from regard_lab.decoding.search import Hypothesis, beam_search, greedy_search
from regard_lab.models.kinds import TranslationModel, translation_model
from regard_lab.text import Pair, Scores, Tokeniser, score
from regard_lab.text.batches import EncodedPair, batches_in_order, encode_pairs
from regard_lab.text.lines import tidy_target
from regard_lab.text.scores import score_each
from regard_lab.text.seen_words import SeenWords


@brief
@dataclass(frozen=True)
class Translation:
    """A translation: its text, the ids of both sides (the source with END), its log-probability and score.

    `unknown_words` are the words and symbols of the source that its training never had, each once; None if the
    translator does not store the words of its training. `words` are those of the text, with their log-probabilities.
    """

    source: str
    text: str
    source_ids: tuple[int, ...]
    ids: tuple[int, ...]
    log_probability: float
    score: float
    finished: bool
    unknown_words: tuple[str, ...] | None = None
    words: tuple[Word, ...] = ()


class Ends:
    """Counts translations that are empty, and those that reached the limit of their length without an end."""

    def __init__(self, translations: Iterable[Translation] = ()) -> None:
        self.count = self.empty = 0
        self.limits: list[int] = []  # ids of each translation without an end
        self.add(translations)

    def add(self, translations: Iterable[Translation]) -> None:
        """Count more translations; those of empty sources are left out."""
        for one in translations:
            if one.source_ids:
                self.count, self.empty = self.count + 1, self.empty + (not one.text.strip())
                self.limits += [] if one.finished else [len(one.ids)]

    def remark(self) -> str | None:
        """A sentence about them; None if all translations have words and an end.

        >>> Ends([Translation("a b", "", (5, 6), (), 0.0, 0.0, True)] * 2).remark()
        '2 of 2 translations are empty'
        """
        parts = []
        whole = f"of {count_of(self.count, 'translations', ',')}"
        if self.empty:
            parts.append(f"{self.empty:,} {whole} {'is' if self.empty == 1 else 'are'} empty")
        if self.limits:
            least = min(self.limits)
            most = max(self.limits)
            limit = (
                f"limit of {most:,} ids"
                if least == most
                else f"limits of {least:,} to {most:,} ids"
            )
            parts.append(f"{len(self.limits):,} {whole} reached the {limit} without an end")
        return "; ".join(parts) or None


class Translator(Described):
    """Translates lines of text with a trained model, recurrent or Transformer.

    Args:
        model: a translation model; it is put into eval mode.
        tokeniser: the tokeniser it was trained with.
        words: the words of its training sources, by which each translation names unknown words.

    Raises:
        ArgumentError: the vocabulary sizes differ.
    """

    def __init__(
        self, model: TranslationModel, tokeniser: Tokeniser, words: SeenWords | None = None
    ) -> None:
        of_kind(
            "model",
            model,
            TranslationModel,
            "a translation model, as load_translation_model gives it",
        )
        check_together(model.config.vocab_size, tokeniser)
        if words is not None:
            of_kind("words", words, SeenWords, "the SeenWords of the training sources, or None")
        self.model, self.tokeniser, self.words = model.eval(), tokeniser, words

    @classmethod
    def load(cls, folder: str | Path) -> Translator:
        """Load the best model of a training run, or a saved model, with its tokeniser.

        Raises:
            CheckpointError: the folder is missing, damaged, or holds no translation model.
        """
        saved, tokeniser = load_with_tokeniser(folder)
        return cls(translation_model(saved, str(folder)), tokeniser, seen_words_of(saved, folder))

    def translate(self, lines: Sequence[str], **search: Any) -> list[Translation]:
        """The best translation of each line, in order; that of an empty line is empty.

        Args:
            lines: sources.
            search: as for `n_best`.

        Raises:
            ArgumentError: invalid settings.
        """
        return [best[0] for best in self.n_best(lines, **search)]

    def n_best(
        self,
        lines: Sequence[str],
        *,
        count: int = 1,
        beam: int = 1,
        normalisation: str = "gnmt",
        alpha: float = 0.6,
        min_length: int = 0,
        max_length: int | None = None,
        no_repeat: int | None = None,
        repetition_penalty: float = 1.0,
        prefix: str = "",
        cache: str | None = None,
        cache_dtype: torch.dtype | str | None = None,
        batch_tokens: int = 2048,
        progress: Callable[[int], None] | None = None,
        share: SharedWork | None = None,
        kept: dict[int, list[Translation]] | None = None,
    ) -> list[list[Translation]]:
        """The `count` best translations of each line, in order, the best first; an empty line has an empty one.

        Args:
            lines: sources.
            count: translations of each line, at most `beam`; fewer where the search finds fewer.
            beam: 1 for greedy search, more for beam search.
            normalisation, alpha, max_length, cache, cache_dtype: as for `beam_search`.
            min_length, no_repeat, repetition_penalty: as for `Constraints`.
            prefix: words that each translation begins with.
            batch_tokens: the most source ids translated at once.
            progress: called with the number of lines done since the last call.
            share: the processes among which the batches are divided, each of which returns all translations; see
                `regard_lab.decoding.sharing`.
            kept: an empty dict that gets the translations of each line, by its index, as soon as they are there; after
                an interruption it has what was done.

        Raises:
            ArgumentError: invalid settings.
        """
        lines = a_list("lines", lines, str, "a list of strings, one for each source")
        beam = whole("beam", beam, 1)
        count = whole("count", count, 1)
        if count > beam:
            raise ArgumentError(
                f"count is {count} and beam is {beam}; a search keeps `beam` texts, so give beam {count}"
            )
        written = tuple(self.tokeniser.encode_target(tidy_target(a_string("prefix", prefix))))
        rules = Constraints(
            min_length=min_length, no_repeat=no_repeat, repetition_penalty=repetition_penalty
        )
        options: dict[str, Any] = {
            "max_length": max_length,
            "cache": cache,
            "cache_dtype": cache_dtype,
        }
        if beam > 1:
            options |= {
                "beam": beam,
                "count": count,
                "normalisation": normalisation,
                "alpha": alpha,
            }
        encoded = [(self.tokeniser.encode(line), [0]) for line in lines]
        own = {} if kept is None else of_kind("kept", kept, dict, "an empty dict, or None")
        for indices, (source, *_) in self._batches(encoded, batch_tokens, progress, share):
            constraints = replace(rules, prefixes=(written,) * len(source)) if written else rules
            if beam == 1:
                found = [
                    [one]
                    for one in greedy_search(self.model, source, constraints=constraints, **options)
                ]
            else:
                found = beam_search(self.model, source, constraints=constraints, **options)
            for index, best in zip(indices, found, strict=True):
                own[index] = self._translations(lines[index], encoded[index][0], best)
        found = dict(own.items() if share is None else share.gathered([*own.items()]))
        return [found[index] for index in range(len(lines))]

    def _batches(
        self,
        pairs: list[EncodedPair],
        tokens: int,
        progress: Callable[[int], None] | None,
        share: SharedWork | None,
    ) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
        """The batches of this process, with the indices of their pairs; progress is called for all batches."""
        whole("batch_tokens", tokens, 1)
        if progress is not None and not callable(progress):
            raise ArgumentError(
                f"progress is {shown(progress)}; give a function of the number of lines that are done"
            )
        of_kind("share", share, (SharedWork, type(None)), "what regard_lab.decoding.sharing gives")
        device = next(self.model.parameters()).device
        for number, (indices, batch) in enumerate(batches_in_order(pairs, tokens)):
            if share is None or number % share.count == share.rank:
                yield indices, [part.to(device) for part in batch]
            if progress is not None:
                progress(len(indices))

    def _translations(self, line: str, ids: list[int], best: list[Hypothesis]) -> list[Translation]:
        read = self.tokeniser.reads(line)
        unknown = None if self.words is None else self.words.unknown(read)
        if not ids:
            return [Translation(line, "", (), (), 0.0, 0.0, True, unknown)]
        return [
            Translation(
                line,
                self.tokeniser.decode(one.ids),
                tuple(ids),
                one.ids,
                one.log_probability,
                one.score,
                one.finished,
                unknown,
                words_of(self.tokeniser, one.ids, one.gains),
            )
            for one in best
        ]

    @torch.inference_mode()
    def score(
        self,
        pairs: Sequence[Pair],
        *,
        batch_tokens: int = 2048,
        progress: Callable[[int], None] | None = None,
        share: SharedWork | None = None,
    ) -> list[ScoredText]:
        """The log-probabilities of the targets, given their sources, END included; in order.

            log p(target | source) = Σ log p(id | source, the ids before it)

        Args:
            pairs: sources and targets.
            batch_tokens, progress, share: as for `n_best`.

        Raises:
            ArgumentError: something else than pairs.
        """
        pairs = a_list("pairs", pairs, Pair, "pairs, as read_pairs gives them")
        own: list[tuple[int, list[float]]] = []
        encoded = encode_pairs(pairs, self.tokeniser)
        for indices, (source, target, following) in self._batches(
            encoded, batch_tokens, progress, share
        ):
            own += zip(indices, gains_of(self.model(source, target), following), strict=True)
        scored = []
        for index, gains in sorted(own if share is None else share.gathered(own)):
            pair = pairs[index]
            ids = self.tokeniser.encode_target(pairs[index].target)
            words = words_of(self.tokeniser, ids, gains)
            scored.append(ScoredText(pair.source, pair.target, tuple(ids), tuple(gains), words))
        return scored


@brief
@dataclass(frozen=True)
class Evaluation:
    """Quality of translations, perplexity of the references, the settings of the search, and the references.

    Its JSON also counts translations that are `empty`, and those that are `unfinished`: at the limit of their length.
    """

    scores: Scores
    perplexity: float
    settings: dict[str, Any]
    translations: list[Translation]
    references: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The measures and settings, without the translations, as JSON values."""
        ends = Ends(self.translations)
        counts = {"empty": ends.empty, "unfinished": len(ends.limits)}
        return {
            **self.scores.to_dict(),
            "perplexity": self.perplexity,
            **counts,
            "settings": self.settings,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Each sentence with its reference, its translation and the scores of that, as JSON values."""
        return rows_of(self.translations, self.references)


def rows_of(translations: Sequence[Translation], references: Sequence[str]) -> list[dict[str, Any]]:
    """Translations beside their references, with the scores of each, as JSON values."""
    scores = score_each([one.text for one in translations], references)
    return [
        {
            "source": one.source,
            "reference": reference,
            "output": tidy_target(one.text),
            **score,
            "log_probability": one.log_probability,
            "finished": one.finished,
        }
        for one, reference, score in zip(translations, references, scores, strict=True)
    ]


def evaluate(
    translator: Translator,
    pairs: Sequence[Pair],
    *,
    beam: int = 1,
    normalisation: str = "gnmt",
    alpha: float = 0.6,
    progress: Callable[[int], None] | None = None,
    share: SharedWork | None = None,
    kept: dict[int, list[Translation]] | None = None,
) -> Evaluation:
    """Translate the sources, score them against the targets, and compute the perplexity of the targets.

    Args:
        translator: the model with its tokeniser.
        pairs: sources and targets.
        beam, normalisation, alpha, progress, share, kept: as for `Translator.n_best`.

    Raises:
        ArgumentError: no pairs, or invalid settings.
    """
    of_kind("translator", translator, Translator, "a Translator")
    pairs = a_list("pairs", pairs, Pair, "pairs, as read_pairs gives them")
    lines = [pair.source for pair in pairs]
    translations = translator.translate(
        lines,
        beam=beam,
        normalisation=normalisation,
        alpha=alpha,
        progress=progress,
        share=share,
        kept=kept,
    )
    references = tuple(pair.target for pair in pairs)
    scores = score([translation.text for translation in translations], references)
    settings: dict[str, Any] = {"beam": beam}
    if beam > 1:
        settings |= {"normalisation": normalisation} | (
            {"alpha": alpha} if normalisation == "gnmt" else {}
        )
    return Evaluation(
        scores, perplexity(translator, pairs, share=share), settings, translations, references
    )


def perplexity(
    translator: Translator,
    pairs: Sequence[Pair],
    batch_tokens: int = 2048,
    *,
    share: SharedWork | None = None,
) -> float:
    """Perplexity of the targets: exp of the mean cross entropy of their ids, including END.

    With `share`, batches are divided among processes, and each of them returns the perplexity of all.
    """
    of_kind("translator", translator, Translator, "a Translator")
    gains = [
        gain
        for one in translator.score(pairs, batch_tokens=batch_tokens, share=share)
        for gain in one.gains
    ]
    return math.exp(min(-math.fsum(gains) / len(gains), 700.0)) if gains else math.nan
