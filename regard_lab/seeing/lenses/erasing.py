"""Erasure: the fall of the log odds when one word at a time is replaced by the baseline.

And what a model does then: the probability of each word that it wrote or read before, and the translation of what is
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from regard.arguments import a_string
from regard.reprs import brief
from regard_lab.models import LanguageModel
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing.lenses.contrast import (
    SIDES,
    Contrast,
    ContrastBatch,
    Explained,
    baseline,
    by_batch,
    embedded,
    ids_at_once,
    run,
    tables,
    without_words,
    word_with,
)
from regard_lab.seeing.lenses.record import Found
from regard_lab.seeing.watching import Span, in_eval_mode
from regard_lab.text import BEGIN, END, PAD, Tokeniser

LIKELIEST = 3  # sub-words that are named beside a written word
NUMBERS_AT_ONCE = 2**24  # logits of one pass


class Erased(NamedTuple):
    """The ids of one side of a batch row that are replaced."""

    row: int
    side: str
    places: tuple[int, ...]


@torch.no_grad()
def erasure_relevances(
    model: Explained, contrasts: Sequence[Contrast], *, sides: Sequence[str] = SIDES
) -> list[Found]:
    """The log odds minus those without each word, one word at a time.

        r_w = f(x) - f(x with the embeddings of w replaced by the baseline)

    BEGIN and END are not replaced; their relevance is 0.

    Source: Visualizing and Understanding Convolutional Networks, Zeiler and Fergus 2014, section 4.2 (occlusion);
    Understanding Neural Networks through Representation Erasure, Li et al. 2016.
    """

    def relevances(chosen: list[Contrast], batch: ContrastBatch) -> Iterator[Found]:
        odds = run(model, batch).tolist()
        wanted = []
        for row, contrast in enumerate(chosen):
            for side in sides:
                wanted += [Erased(row, side, tuple(ids)) for _, ids in contrast.words_of(side)]
        after = iter(erased(model, batch, wanted).tolist())
        for before, contrast in zip(odds, chosen, strict=True):
            record: Found = {"passes": 1}
            for side in sides:
                falls = tuple(before - next(after) for _ in contrast.words_of(side))
                record[f"{side}_scores"] = falls
                record["passes"] += len(falls)
            yield record

    return by_batch(model, contrasts, relevances)


def erased(model: Explained, batch: ContrastBatch, wanted: Sequence[Erased]) -> torch.Tensor:
    """The log odds (len(wanted),) of batch rows, each without some words; BEGIN and END stay."""
    vectors = embedded(model, batch)
    without = without_words(model, batch)
    masks = {
        side: torch.zeros(len(wanted), ids.shape[1], dtype=torch.bool)
        for side, ids in batch.ids.items()
    }
    for number, words in enumerate(wanted):
        masks[words.side][number, list(words.places)] = True

    device = batch.of.device
    index = torch.tensor([words.row for words in wanted], device=device)
    at_once = max(1, ids_at_once(model) // sum(mask.shape[1] for mask in masks.values()))
    odds = []
    for part in torch.arange(len(wanted), device=device).split(at_once):
        rows = index[part]
        changed = {}
        for side, mask in masks.items():
            is_erased = mask.to(device)[part][..., None]
            changed[side] = torch.where(is_erased, without[side][rows], vectors[side][rows])
        odds.append(run(model, batch.rows(rows), changed))
    return torch.cat(odds)


@brief
@dataclass(frozen=True)
class Changed:
    """What a model does with a text of which a word was erased.

    Args:
        probabilities: at its place, after the words before it, the product over its sub-words. Of a translation: each
            word that was written before, and "<end>". Of a language model: each word that it read, from the second,
            and the sub-word that is most probable after the text as it is. Of masked words: at each masked place, the
            sub-word that is most probable there in the text as it is.
        likeliest: at each of these places the most probable sub-words, as words, with their probabilities.
        translation: the words of the translation of the changed source, by greedy search; none of a language model.
        similarities: of an encoder, for each word the cosine between its vector before and after.
    """

    probabilities: tuple[float, ...]
    likeliest: tuple[tuple[tuple[str, float], ...], ...]
    translation: tuple[str, ...] = ()
    similarities: tuple[float, ...] = ()


Spell = Callable[[Sequence[int], int], str]  # the ids before, and an id -> a word


@dataclass(frozen=True, eq=False)
class Speller:
    """The most probable sub-words at the places of one text, as words; each is spelled once.

    Args:
        spell: the ids before a place, and an id -> a word.
        spelled: words by the number of ids before, and their id.
    """

    spell: Spell
    spelled: dict[tuple[int, int], str] = field(default_factory=dict)

    def likeliest(
        self, log_probs: torch.Tensor, before: Sequence[int]
    ) -> tuple[tuple[str, float], ...]:
        """The most probable sub-words after the ids `before`, with their probabilities; log_probs: (vocab_size,)."""
        best = log_probs.topk(min(LIKELIEST, len(log_probs)))
        words = [self._word(before, identifier) for identifier in best.indices.tolist()]
        return tuple(zip(words, best.values.exp().tolist(), strict=True))

    def _word(self, before: Sequence[int], identifier: int) -> str:
        key = (len(before), identifier)
        if key not in self.spelled:
            self.spelled[key] = self.spell(before, identifier)
        return self.spelled[key]


@torch.no_grad()
def without_each(
    model: TranslationModel, tokeniser: Tokeniser, source: str, target_ids: Sequence[int], most: int
) -> dict[int | None, Changed]:
    """The translation of a source as it is (None), and without each of its first words, by their index."""
    ids = [*tokeniser.encode(source), END]
    target = [*target_ids, END]
    words = tokeniser.words(ids)
    places = [None, *range(min(most, len(words) - 1))]  # END stays
    table = tables(model)["source"]
    source_row = torch.tensor([ids], device=table.device)
    target_row = torch.tensor([[BEGIN, *target_ids]], device=table.device)
    mean = baseline(source_row, table)
    written = WrittenText(target, tokeniser.words(target), Speller(partial(word_with, tokeniser)))

    changes: list[Changed] = []
    with in_eval_mode(model):
        for part, is_erased in without(words, places, len(target) * len(table)):
            sources = source_row.expand(len(part), -1)
            targets = target_row.expand(len(part), -1)
            vectors = torch.where(is_erased.to(table.device)[..., None], mean, table[source_row])
            logits = model(sources, targets, source_vectors=vectors)
            log_probs = logits.float().log_softmax(-1).cpu()
            translations = greedily_written(model, sources, vectors)
            for row, translation in zip(log_probs, translations, strict=True):
                translated = tuple(word for word, _ in tokeniser.words(translation))
                changes.append(written.changed(row, translated))
    return dict(zip(places, changes, strict=True))


def text_without_each(
    model: LanguageModel, tokeniser: Tokeniser, text: str, most: int
) -> dict[int | None, Changed]:
    """The probability of each next word of a text as it is (None), and without each of its first words, by their index.

    Args:
        text: the text, which is read after "<begin>", the word 0.
    """
    ids = [BEGIN, *tokeniser.encode(a_string("text", text))]
    table = tables(model)["written"]
    row = torch.tensor([ids], device=table.device)
    mean = baseline(row, table)

    def logits(is_erased: torch.Tensor) -> torch.Tensor:
        rows = row.expand(len(is_erased), -1)
        vectors = torch.where(is_erased.to(table.device)[..., None], mean, table[rows])
        with in_eval_mode(model):
            return model(rows, vectors=vectors)

    spans = tokeniser.words(ids)
    places = [None, *range(1, min(len(spans), most + 1))]
    read = ReadText(ids, spans, logits, Speller(partial(word_with, tokeniser)))
    return dict(zip(places, next_words(read, places), strict=True))


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text that a causal model reads, with or without some of its ids.

    Args:
        ids: what is read.
        spans: its words, with the indices of their ids.
        logits: which ids are erased in each row, bool (rows, n) -> logits (rows, n, vocab_size).
        speller: spells the most probable sub-words.
    """

    ids: list[int]
    spans: Sequence[Span]
    logits: Callable[[torch.Tensor], torch.Tensor]
    speller: Speller

    def log_probs(self, is_erased: torch.Tensor) -> torch.Tensor:
        """Log-probabilities (rows, n, vocab_size) of the next ids, on the CPU."""
        return self.logits(is_erased).float().log_softmax(-1).cpu()

    def changed(self, unchanged: torch.Tensor, erased: torch.Tensor, place: int) -> Changed:
        """What is read next without the word at a place. Words up to it are predicted before it is read.

        Args:
            unchanged, erased: log-probabilities (n, vocab_size) of the text as it is, and without the word.
        """
        most_probable_after = int(unchanged[-1].argmax())
        ids = [*self.ids, most_probable_after]
        spans = [span for _, span in self.spans] + [range(len(self.ids), len(ids))]
        probabilities = []
        likeliest = []
        for word in range(1, len(spans)):
            span = spans[word]
            rows = erased if word > place else unchanged
            chosen = torch.stack([rows[at - 1, ids[at]].double() for at in span])
            probabilities.append(float(chosen.sum().exp()))
            before = self.ids[: span.start]
            likeliest.append(self.speller.likeliest(rows[span.start - 1], before))
        return Changed(tuple(probabilities), tuple(likeliest))


@torch.no_grad()
def next_words(read: ReadText, places: Sequence[int | None]) -> list[Changed]:
    """The probability of each next word without each of some words, by their index; None for the text as it is."""
    nothing = torch.zeros(1, len(read.ids), dtype=torch.bool)
    unchanged = read.log_probs(nothing)[0]
    changes: list[Changed] = []
    for part, is_erased in without(read.spans, places, unchanged.numel()):
        for log_probs, place in zip(read.log_probs(is_erased), part, strict=True):
            changes.append(read.changed(unchanged, log_probs, 0 if place is None else place))
    return changes


def without(
    spans: Sequence[Span], places: Sequence[int | None], numbers: int
) -> Iterator[tuple[list[int | None], torch.Tensor]]:
    """Words to erase, as many as one pass of the model computes, and which ids each erases, bool (words, ids).

    Args:
        places: indices of words; None for the text as it is.
        numbers: how many numbers the model computes for one text.
    """
    at_once = max(1, NUMBERS_AT_ONCE // numbers)
    for first in range(0, len(places), at_once):
        part = [*places[first : first + at_once]]
        is_erased = torch.zeros(len(part), spans[-1][1].stop, dtype=torch.bool)
        for row, place in enumerate(part):
            if place is not None:
                is_erased[row, list(spans[place][1])] = True
        yield part, is_erased


@dataclass(frozen=True, eq=False)
class WrittenText:
    """A text that a model wrote.

    Args:
        ids: what was written.
        spans: its words, with the indices of their ids.
        speller: spells the most probable sub-words.
    """

    ids: Sequence[int]
    spans: Sequence[Span]
    speller: Speller

    def changed(self, log_probs: torch.Tensor, translation: tuple[str, ...]) -> Changed:
        """The probability of each word that was written, and what is most probable at its place.

        Args:
            log_probs: log-probabilities of written ids, (ids, vocab_size).
            translation: the words that are written now.
        """
        chosen = log_probs.gather(1, torch.tensor([self.ids]).mT)[:, 0].double()
        probabilities = []
        likeliest = []
        for _, span in self.spans:
            probabilities.append(float(chosen[list(span)].sum().exp()))
            before = self.ids[: span.start]
            likeliest.append(self.speller.likeliest(log_probs[span.start], before))
        return Changed(tuple(probabilities), tuple(likeliest), translation)


def greedily_written(
    model: Any, source: torch.Tensor, vectors: torch.Tensor | None = None
) -> list[list[int]]:
    """The translation of each row by greedy search, with other vectors for the source; at most twice its ids and 16.

    Rows stay in their places until all have ended.
    """
    state = model.start(source, vectors=vectors)
    last_ids = torch.full((len(source),), BEGIN, device=source.device)
    written: list[list[int]] = [[] for _ in source]
    open_rows = set(range(len(source)))
    for _ in range(2 * source.shape[1] + 16):
        logits = model.step(last_ids, state)
        logits[:, [PAD, BEGIN]] = -torch.inf
        last_ids = logits.argmax(-1)
        for row, identifier in enumerate(last_ids.tolist()):
            if identifier == END:
                open_rows.discard(row)
            elif row in open_rows:
                written[row].append(identifier)
        if not open_rows:
            break
    return written
