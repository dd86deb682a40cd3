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
from regard_lab.decoding.lines import SharedWork
from regard_lab.decoding.loading import check_together, load_with_tokeniser, seen_words_of
from regard_lab.decoding.options import SearchOptions, with_options
from regard_lab.decoding.protecting import (
    PlaceholderCounts,
    SourcePlaceholders,
    protecting,
    repairing,
)
from regard_lab.decoding.scoring import ScoredText, ScoredWord, gains_of, words_of
from regard_lab.decoding.search import search_texts
from regard_lab.decoding.starting import Hypothesis
from regard_lab.models.kinds import TranslationModel, translation_model
from regard_lab.text import Pair, Scores, Tokeniser, score
from regard_lab.text.batches import EncodedPair, batches_in_order, encode_pairs
from regard_lab.text.cleaning import tidy_target
from regard_lab.text.placeholders import differences
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
    words: tuple[ScoredWord, ...] = ()


class Ends:
    """Counts translations that are empty, and those that reached the limit of their length without an end."""

    def __init__(self, translations: Iterable[Translation] = ()) -> None:
        self.count = 0
        self.empty = 0
        self.limits: list[int] = []  # ids of each translation without an end
        self.add(translations)

    def add(self, translations: Iterable[Translation]) -> None:
        """Count more translations; those of empty sources are left out."""
        for translation in translations:
            if not translation.source_ids:
                continue
            self.count += 1
            if not translation.text.strip():
                self.empty += 1
            if not translation.finished:
                self.limits.append(len(translation.ids))

    def remark(self) -> str | None:
        """A sentence about them; None if all translations have words and an end.

        >>> Ends([Translation("a b", "", (5, 6), (), 0.0, 0.0, True)] * 2).remark()
        '2 of 2 translations are empty'
        """
        parts = []
        of_all = f"of {count_of(self.count, 'translations', ',')}"
        if self.empty:
            verb = "is" if self.empty == 1 else "are"
            parts.append(f"{self.empty:,} {of_all} {verb} empty")
        if self.limits:
            least = min(self.limits)
            most = max(self.limits)
            limit = f"limit of {most:,} ids"
            if least != most:
                limit = f"limits of {least:,} to {most:,} ids"
            parts.append(f"{len(self.limits):,} {of_all} reached the {limit} without an end")
        return "; ".join(parts) or None


@dataclass(frozen=True)
class _Source:
    """A line with its ids and its placeholders."""

    line: str
    ids: list[int]
    placeholders: SourcePlaceholders


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
        needs = "a translation model, as load_translation_model gives it"
        of_kind("model", model, TranslationModel, needs)
        check_together(model.config.vocab_size, tokeniser)
        if words is not None:
            of_kind("words", words, SeenWords, "the SeenWords of the training sources, or None")
        self.model = model.eval()
        self.tokeniser = tokeniser
        self.words = words

    @classmethod
    def load(cls, folder: str | Path) -> Translator:
        """Load the best model of a training run, or a saved model, with its tokeniser.

        Raises:
            CheckpointError: the folder is missing, damaged, or holds no translation model.
        """
        saved, tokeniser = load_with_tokeniser(folder)
        return cls(translation_model(saved, str(folder)), tokeniser, seen_words_of(saved, folder))

    def translate(
        self, lines: Sequence[str], options: SearchOptions | None = None, **search: Any
    ) -> list[Translation]:
        """The best translation of each line, in order; that of an empty line is empty.

        Args:
            lines: sources.
            options, search: as for `n_best`.

        Raises:
            ArgumentError: invalid settings.
        """
        return [best[0] for best in self.n_best(lines, options, **search)]

    def n_best(
        self,
        lines: Sequence[str],
        options: SearchOptions | None = None,
        *,
        prefix: str = "",
        batch_tokens: int = 2048,
        progress: Callable[[int], None] | None = None,
        share: SharedWork | None = None,
        kept: dict[int, list[Translation]] | None = None,
        **search: Any,
    ) -> list[list[Translation]]:
        """The `count` best translations of each line, in order, the best first; an empty line has an empty one.

        Args:
            lines: sources.
            options: how they are searched for; by default by greedy search.
            prefix: words that each translation begins with.
            batch_tokens: the most source ids translated at once.
            progress: called with the number of lines done since the last call.
            share: the processes among which the batches are divided, each of which returns all translations; see
                `regard_lab.decoding.lines.sharing`.
            kept: an empty dict that gets the translations of each line, by its index, as soon as they are there; after
                an interruption it has what was done.
            search: single options by name: those of `SearchOptions` (beam, count, normalisation, alpha, max_tokens,
                cache, cache_dtype) and of `Constraints` (min_length, no_repeat, repetition_penalty).

        Raises:
            ArgumentError: invalid settings.
        """
        lines = a_list("lines", lines, str, "a list of strings, one for each source")
        if options is None:
            options = SearchOptions()
        of_kind("options", options, SearchOptions, "a SearchOptions, or None")
        options = with_options(options, search)
        if options.count > options.beam:
            raise ArgumentError(
                f"count is {options.count} and beam is {options.beam}; a search keeps `beam` texts, so give beam "
                f"{options.count}"
            )
        first_ids = tuple(self.tokeniser.encode_target(tidy_target(a_string("prefix", prefix))))
        sources = [self._source(line) for line in lines]
        encoded = [(source.ids, [0]) for source in sources]
        done = {} if kept is None else of_kind("kept", kept, dict, "an empty dict, or None")

        for indices, (source_ids, *_) in self._batches(encoded, batch_tokens, progress, share):
            of_batch = options
            if first_ids:
                prefixes = (first_ids,) * len(indices)
                constraints = replace(options.constraints, prefixes=prefixes)
                of_batch = replace(options, constraints=constraints)
            rows = [sources[index] for index in indices]
            placeholders = [source.placeholders for source in rows]
            of_batch = protecting(of_batch, self.tokeniser, placeholders)
            hypotheses = search_texts(self.model, source_ids, of_batch)
            translations = list(map(self._translations, rows, hypotheses))
            if self.tokeniser.protects:
                self._repair(translations, rows, source_ids, of_batch)
            done |= zip(indices, translations, strict=True)
        if share is not None:
            done = dict(share.gathered(list(done.items())))
        return [done[index] for index in range(len(lines))]

    def _repair(
        self,
        translations: list[list[Translation]],
        sources: Sequence[_Source],
        source_ids: torch.Tensor,
        options: SearchOptions,
    ) -> None:
        """Search again where the best translation does not have each placeholder of its source, for one that has."""
        faults = {}
        for row, source in enumerate(sources):
            count = _faults(source, translations[row][0])
            if count and source.ids:
                faults[row] = count
        lacking = list(faults)
        if not lacking:
            return
        limits = options.length_limits(source_ids)
        repair = repairing(options, lacking, [limits[row] for row in lacking])
        hypotheses = search_texts(self.model, source_ids[lacking], repair)
        for row, best in zip(lacking, hypotheses, strict=True):
            repaired = self._translations(sources[row], best)
            if _faults(sources[row], repaired[0]) < faults[row]:
                translations[row] = [*repaired, *translations[row]][: options.count]

    def _batches(
        self,
        pairs: list[EncodedPair],
        batch_tokens: int,
        progress: Callable[[int], None] | None,
        share: SharedWork | None,
    ) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
        """The batches of this process, with the indices of their pairs; progress is called for all batches."""
        whole("batch_tokens", batch_tokens, 1)
        if progress is not None and not callable(progress):
            raise ArgumentError(
                f"progress is {shown(progress)}; give a function of the number of lines that are done"
            )
        of_kind(
            "share", share, (SharedWork, type(None)), "what regard_lab.decoding.lines.sharing gives"
        )

        device = next(self.model.parameters()).device
        for number, (indices, batch) in enumerate(batches_in_order(pairs, batch_tokens)):
            if share is None or number % share.count == share.rank:
                yield indices, [part.to(device) for part in batch]
            if progress is not None:
                progress(len(indices))

    def _source(self, line: str) -> _Source:
        placeholders = SourcePlaceholders.of(self.tokeniser, line)
        return _Source(line, self.tokeniser.encode(line), placeholders)

    def _translations(self, source: _Source, best: list[Hypothesis]) -> list[Translation]:
        line = source.line
        ids = tuple(source.ids)
        originals = source.placeholders.originals
        reads = self.tokeniser.reads(line)
        unknown = None
        if self.words is not None:
            unknown = self.words.unknown(reads)
        if not ids:
            return [Translation(line, "", (), (), 0.0, 0.0, True, unknown)]
        if originals and not any(map(str.isalnum, reads)):  # no word is to translate
            text = self.tokeniser.decode(ids, originals)
            return [Translation(line, text, ids, ids, 0.0, 0.0, True, unknown)]
        return [
            Translation(
                source=line,
                text=self.tokeniser.decode(hypothesis.ids, originals),
                source_ids=ids,
                ids=hypothesis.ids,
                log_probability=hypothesis.log_probability,
                score=hypothesis.score,
                finished=hypothesis.finished,
                unknown_words=unknown,
                words=words_of(self.tokeniser, hypothesis.ids, hypothesis.gains),
            )
            for hypothesis in best
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
        encoded = encode_pairs(pairs, self.tokeniser)
        gains_by_index: list[tuple[int, list[float]]] = []
        for indices, (source, target, next_ids) in self._batches(
            encoded, batch_tokens, progress, share
        ):
            gains = gains_of(self.model(source, target), next_ids)
            gains_by_index += zip(indices, gains, strict=True)
        if share is not None:
            gains_by_index = share.gathered(gains_by_index)

        scored = []
        for index, gains in sorted(gains_by_index):
            pair = pairs[index]
            ids = self.tokeniser.encode_target(pair.target, pair.source)
            words = words_of(self.tokeniser, ids, gains)
            scored.append(ScoredText(pair.source, pair.target, tuple(ids), tuple(gains), words))
        return scored


def _faults(source: _Source, translation: Translation) -> int:
    """How many placeholders are wrong in a translation, or missing from its ids."""
    missing = set(source.placeholders.originals).difference(translation.ids)
    return len(missing) + len(differences(source.line, translation.text))


@brief
@dataclass(frozen=True)
class Evaluation:
    """Quality of translations, perplexity of the references, the settings of the search, and the references.

    Its JSON also counts translations that are `empty`, and those that are `unfinished`: at the limit of their length;
    and where sources have `placeholders`, the translations that have each of them once.
    """

    scores: Scores
    perplexity: float
    settings: dict[str, Any]
    translations: list[Translation]
    references: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The measures and settings, without the translations, as JSON values."""
        ends = Ends(self.translations)
        values = {
            **self.scores.to_dict(),
            "perplexity": self.perplexity,
            "empty": ends.empty,
            "unfinished": len(ends.limits),
        }
        placeholders = self.placeholders()
        if placeholders.texts:
            values["placeholders"] = {"texts": placeholders.texts, "kept": placeholders.kept}
        return values | {"settings": self.settings}

    def placeholders(self) -> PlaceholderCounts:
        """How many of the translations have each placeholder of their source once."""
        pairs = [(translation.source, translation.text) for translation in self.translations]
        return PlaceholderCounts(pairs)

    def rows(self) -> list[dict[str, Any]]:
        """Each sentence with its reference, its translation and the scores of that, as JSON values."""
        return rows_of(self.translations, self.references)


def rows_of(translations: Sequence[Translation], references: Sequence[str]) -> list[dict[str, Any]]:
    """Translations beside their references, with the scores of each, as JSON values."""
    scores = score_each([translation.text for translation in translations], references)
    rows = []
    for translation, reference, score_of_row in zip(translations, references, scores, strict=True):
        rows.append(
            {
                "source": translation.source,
                "reference": reference,
                "output": tidy_target(translation.text),
                **score_of_row,
                "log_probability": translation.log_probability,
                "finished": translation.finished,
            }
        )
    return rows


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
    sources = [pair.source for pair in pairs]
    references = tuple(pair.target for pair in pairs)

    translations = translator.translate(
        sources,
        options=SearchOptions(beam=beam, normalisation=normalisation, alpha=alpha),
        progress=progress,
        share=share,
        kept=kept,
    )
    scores = score([translation.text for translation in translations], references)
    settings: dict[str, Any] = {"beam": beam}
    if beam > 1:
        settings["normalisation"] = normalisation
        if normalisation == "gnmt":
            settings["alpha"] = alpha
    perplexity_of_references = perplexity(translator, pairs, share=share)
    return Evaluation(scores, perplexity_of_references, settings, translations, references)


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
    gains: list[float] = []
    for scored in translator.score(pairs, batch_tokens=batch_tokens, share=share):
        gains += scored.gains
    if not gains:
        return math.nan
    cross_entropy = -math.fsum(gains) / len(gains)
    return math.exp(min(cross_entropy, 700.0))  # e^700 is almost the largest float
