"""Erasure: the fall of the log odds when one word at a time is replaced by the baseline.

And what a model does then: the probability of each word that it wrote or read before, and the translation of what is
left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from regard.arguments import a_string
from regard.reprs import brief
from regard_lab.models import LanguageModel
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing.lenses.contrast import (
    SIDES,
    Batch,
    Contrast,
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

    def relevances(chosen: list[Contrast], batch: Batch) -> Iterator[Found]:
        odds = run(model, batch).tolist()
        words = [{side: getattr(one, f"{side}_words") for side in sides} for one in chosen]
        wanted = [
            Erased(row, side, tuple(ids))
            for row, own in enumerate(words)
            for side in sides
            for _, ids in own[side]
        ]
        after = iter(erased(model, batch, wanted).tolist())
        for before, own in zip(odds, words, strict=True):
            falls = {
                f"{side}_scores": tuple(before - next(after) for _ in own[side]) for side in sides
            }
            yield falls | {"passes": 1 + sum(map(len, falls.values()))}

    return by_batch(model, contrasts, relevances)


def erased(model: Explained, batch: Batch, wanted: Sequence[Erased]) -> torch.Tensor:
    """The log odds (len(wanted),) of batch rows, each without some words; BEGIN and END stay."""
    vectors = embedded(model, batch)
    without = without_words(model, batch)
    masks = {
        side: torch.zeros(len(wanted), ids.shape[1], dtype=torch.bool)
        for side, ids in batch.ids.items()
    }
    for number, one in enumerate(wanted):
        masks[one.side][number, list(one.places)] = True
    index = torch.tensor([one.row for one in wanted], device=batch.of.device)
    at_once = max(1, ids_at_once(model) // sum(mask.shape[1] for mask in masks.values()))
    odds = []
    for part in torch.arange(len(wanted), device=index.device).split(at_once):
        rows = index[part]
        changed = {
            side: torch.where(
                mask.to(rows.device)[part][..., None], without[side][rows], vectors[side][rows]
            )
            for side, mask in masks.items()
        }
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


@torch.no_grad()
def without_each(
    model: TranslationModel, tokeniser: Tokeniser, source: str, target_ids: Sequence[int], most: int
) -> dict[int | None, Changed]:
    """The translation of a source as it is (None), and without each of its first words, by their index."""
    ids = [*tokeniser.encode(source), END]
    target = [*target_ids, END]
    words, written = tokeniser.words(ids), tokeniser.words(target)
    places = [None, *range(min(most, len(words) - 1))]  # END stays
    table = tables(model)["source"]
    one, read = (torch.tensor([row], device=table.device) for row in (ids, [BEGIN, *target_ids]))
    mean = baseline(one, table)
    spell = partial(word_with, tokeniser)
    named = {}
    found: list[Changed] = []
    with in_eval_mode(model):
        for part, erased in without(words, places, len(target) * len(table)):
            sources = one.expand(len(part), -1)
            vectors = torch.where(erased.to(table.device)[..., None], mean, table[one])
            logits = (
                model(sources, read.expand(len(part), -1), source_vectors=vectors)
                .float()
                .log_softmax(-1)
                .cpu()
            )
            for row, now in zip(logits, greedily_written(model, sources, vectors), strict=True):
                translation = tuple(word for word, _ in tokeniser.words(now))
                found.append(with_written(row, target, written, spell, translation, named))
    return dict(zip(places, found, strict=True))


def text_without_each(
    model: LanguageModel, tokeniser: Tokeniser, text: str, most: int
) -> dict[int | None, Changed]:
    """The probability of each next word of a text as it is (None), and without each of its first words, by their index.

    Args:
        text: the text, which is read after "<begin>", the word 0.
    """
    ids = [BEGIN, *tokeniser.encode(a_string("text", text))]
    table = tables(model)["written"]
    one = torch.tensor([ids], device=table.device)
    mean = baseline(one, table)

    def logits(erased: torch.Tensor) -> torch.Tensor:
        read = one.expand(len(erased), -1)
        with in_eval_mode(model):
            return model(
                read, vectors=torch.where(erased.to(table.device)[..., None], mean, table[read])
            )

    spans = tokeniser.words(ids)
    places = [None, *range(1, min(len(spans), most + 1))]
    found = next_words(ReadText(ids, spans, logits, partial(word_with, tokeniser)), places)
    return dict(zip(places, found, strict=True))


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text that a causal model reads, with or without some of its ids.

    Args:
        ids: what is read.
        spans: its words, with the indices of their ids.
        logits: which ids are erased in each row, bool (rows, n) -> logits (rows, n, vocab_size).
        spell: the ids before, and an id -> a word.
    """

    ids: list[int]
    spans: Sequence[Span]
    logits: Callable[[torch.Tensor], torch.Tensor]
    spell: Callable[[Sequence[int], int], str]


@torch.no_grad()
def next_words(read: ReadText, places: Sequence[int | None]) -> list[Changed]:
    """The probability of each next word without each of some words, by their index; None for the text as it is."""

    def log_probabilities(erased: torch.Tensor) -> torch.Tensor:
        return read.logits(erased).float().log_softmax(-1).cpu()

    own = log_probabilities(torch.zeros(1, len(read.ids), dtype=torch.bool))[0]
    top = int(own[-1].argmax())
    named: dict[tuple[int, int], str] = {}

    def changed(others: torch.Tensor, place: int) -> Changed:
        """Words up to the changed one are predicted before it is read."""
        probabilities = []
        likeliest = []
        for at, (_, span) in enumerate(
            [*read.spans[1:], ("", range(len(read.ids), len(read.ids) + 1))], 1
        ):
            rows = others if at > place else own
            chances = [rows[i - 1, ([*read.ids, top])[i]].double() for i in span]
            probabilities.append(float(torch.stack(chances).sum().exp()))
            likeliest.append(
                named_likeliest(rows[span.start - 1], read.ids[: span.start], read.spell, named)
            )
        return Changed(tuple(probabilities), tuple(likeliest))

    found: list[Changed] = []
    for part, erased in without(read.spans, places, own.numel()):
        rows = log_probabilities(erased)
        found += [
            changed(one, 0 if place is None else place)
            for one, place in zip(rows, part, strict=True)
        ]
    return found


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
        erased = torch.zeros(len(part), spans[-1][1].stop, dtype=torch.bool)
        for row, place in enumerate(part):
            if place is not None:
                erased[row, list(spans[place][1])] = True
        yield part, erased


def named_likeliest(
    logits: torch.Tensor,
    before: Sequence[int],
    spell: Callable[[Sequence[int], int], str],
    named: dict[tuple[int, int], str],
) -> tuple[tuple[str, float], ...]:
    """The most probable sub-words after some ids, as words, with their probabilities.

    Args:
        logits: log-probabilities (vocab_size,).
        before: the ids before the place.
        spell: the ids before, and an id -> a word.
        named: words by the number of ids before and their id, so that each is spelled once.
    """
    best = logits.topk(min(LIKELIEST, len(logits)))
    words = []
    for one in best.indices.tolist():
        if (len(before), one) not in named:
            named[len(before), one] = spell(before, one)
        words.append(named[len(before), one])
    return tuple(zip(words, best.values.exp().tolist(), strict=True))


def with_written(
    logits: torch.Tensor,
    ids: Sequence[int],
    spans: Sequence[Span],
    spell: Callable[[Sequence[int], int], str],
    translation: tuple[str, ...],
    named: dict[tuple[int, int], str],
) -> Changed:
    """The probability of each word that was written, and what is most probable at its place.

    Args:
        logits: log-probabilities of written ids, (ids, vocab_size).
        ids, spans: what was written, and its words.
        spell, named: as for `named_likeliest`.
        translation: the words that are written now.
    """
    chosen = logits.gather(1, torch.tensor([ids]).mT)[:, 0].double()
    probabilities = tuple(float(chosen[list(span)].sum().exp()) for _, span in spans)
    likeliest = tuple(
        named_likeliest(logits[span.start], ids[: span.start], spell, named) for _, span in spans
    )
    return Changed(probabilities, likeliest, translation)


def greedily_written(
    model: Any, source: torch.Tensor, vectors: torch.Tensor | None = None
) -> list[list[int]]:
    """The translation of each row by greedy search, with other vectors for the source; at most twice its ids and 16.

    Rows stay in their places until all have ended.
    """
    state = model.start(source, vectors=vectors)
    ids = torch.full((len(source),), BEGIN, device=source.device)
    written: list[list[int]] = [[] for _ in source]
    open_rows = set(range(len(source)))
    for _ in range(2 * source.shape[1] + 16):
        logits = model.step(ids, state)
        logits[:, [PAD, BEGIN]] = -torch.inf
        ids = logits.argmax(-1)
        for row, one in enumerate(ids.tolist()):
            if one == END:
                open_rows.discard(row)
            elif row in open_rows:
                written[row].append(one)
        if not open_rows:
            break
    return written
