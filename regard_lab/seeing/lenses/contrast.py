"""What a lens explains: a written word against others, and runs of a model that give the log odds between them.

Without named words, a written word is compared with those that the model found most probable there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from regard.arguments import a_list, a_string, of_kind, whole
from regard.errors import ArgumentError
from regard.reprs import brief
from regard_lab.models import (
    LanguageModel,
    RecurrentTranslator,
    TextEncoder,
    TranslationTransformer,
)
from regard_lab.seeing.watching import Span, all_weights, in_eval_mode, recorded, target_of
from regard_lab.text import BEGIN, END, PAD, Tokeniser
from regard_lab.text.batches import pad
from regard_lab.text.cleaning import normalise, tidy_target


@brief
@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A written word against others, at the place where the model chose it.

    Args:
        word, others: the written word and the words it is compared with.
        of, instead_of: their ids, the first sub-word of each.
        source: ids of the source, with END; empty for a language model.
        written: ids that the model had read when it chose: BEGIN and what was already written; without BEGIN for a
            language model, and empty for an encoder.
        source_words, written_words: the words that these ids form.
        place: index of the word among the written words, without BEGIN.
        at: for a masked word of an encoder, the index of its id in the source.
    """

    word: str
    others: tuple[str, ...]
    of: int
    instead_of: tuple[int, ...]
    source: tuple[int, ...]
    written: tuple[int, ...]
    source_words: tuple[Span, ...]
    written_words: tuple[Span, ...]
    place: int
    at: int | None = None

    @property
    def position(self) -> int:
        """The position whose logits chose the word."""
        return len(self.written) - 1 if self.at is None else self.at

    def words_of(self, side: str) -> tuple[Span, ...]:
        """The words of a side, "source" or "written"."""
        return self.source_words if side == "source" else self.written_words


def find_contrast(
    tokeniser: Tokeniser,
    source: str | None,
    target_ids: Sequence[int],
    of: str,
    instead_of: Sequence[str],
    place: int | None = None,
) -> Contrast:
    """Find the word `of` among the target ids, and the ids of the words it is compared with.

    Args:
        tokeniser: the tokeniser that the model was trained with.
        source: the text that was translated; None for a language model.
        target_ids: the target, without BEGIN and END.
        of: a word of the target, in upper or lower case.
        instead_of: words that are compared with it. Words are compared by their first sub-words.
        place: index of the word among the target's words, needed if it occurs more than once.

    Raises:
        ArgumentError: a word that was not written, that occurs several times, or that begins with the same sub-word as
            another one; no words to compare with.

    >>> tokeniser = Tokeniser.train(["das Tier, weil es er sie"] * 3, vocab_size=300)
    >>> contrast = find_contrast(tokeniser, "The animal.", tokeniser.encode("das Tier, weil es"), "es", ["er", "sie"])
    >>> [word for word, _ in contrast.written_words]
    ['<begin>', 'das', 'Tier', ',', 'weil']
    >>> contrast.place, contrast.instead_of == (tokeniser.encode("er")[0], tokeniser.encode("sie")[0])
    (4, True)
    """
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    place = find_place(tokeniser, source, target_ids, of, place)
    others = _compared(tokeniser, instead_of)
    ids = target_of(target_ids)
    word, span = tokeniser.words(ids)[place]
    if _begins_sentence(word, of):
        others = [other[:1].upper() + other[1:] for other in others]
    other_ids = _first_ids(tokeniser, ids, span.start, word, others)
    written = _Written(tokeniser, _source_ids(tokeniser, source), ids)
    return written.contrast(place, others, other_ids)


def _begins_sentence(written: str, of: str) -> bool:
    """Whether the written word is `of` with the upper-case letter of a sentence's first word."""
    if written == of or written.lower() != of.lower():
        return False
    return written[:1].isupper() and not of[:1].isupper()


def _source_ids(tokeniser: Tokeniser, source: str | None) -> list[int]:
    return [] if source is None else [*tokeniser.encode(a_string("source", source)), END]


@dataclass(frozen=True, eq=False)
class _Written:
    """A target, whose words are explained.

    Args:
        source: ids of the source, with END; none for a language model.
        ids: what was written, without BEGIN and END.
    """

    tokeniser: Tokeniser
    source: list[int]
    ids: list[int]

    def read_before(self, first: int) -> list[int]:
        """The ids that the model had read when it chose the id at index `first`."""
        begin = [BEGIN] if self.source else []
        return [*begin, *self.ids[:first]]

    def contrast(self, place: int, others: Sequence[str], instead_of: tuple[int, ...]) -> Contrast:
        """The word at a place against others."""
        word, span = self.tokeniser.words(self.ids)[place]
        read = self.read_before(span.start)
        return Contrast(
            word=word,
            others=tuple(others),
            of=self.ids[span.start],
            instead_of=instead_of,
            source=tuple(self.source),
            written=tuple(read),
            source_words=tuple(self.tokeniser.words(self.source)),
            written_words=tuple(self.tokeniser.words(read)),
            place=place,
        )


def find_place(
    tokeniser: Tokeniser,
    source: str | None,
    target_ids: Sequence[int],
    of: str,
    place: int | None = None,
) -> int:
    """The index of a written word among the words of the target; arguments as for `find_contrast`."""
    words = tokeniser.words(target_of(target_ids))
    index = place_of([word for word, _ in words], a_string("of", of), place)
    word, ids = words[index]
    if source is None and not ids.start:
        raise ArgumentError(
            f"{word!r} is the first word, so a language model has read nothing before it"
        )
    return index


def _compared(tokeniser: Tokeniser, instead_of: Sequence[str]) -> list[str]:
    words = [instead_of] if isinstance(instead_of, str) else instead_of
    needed = "the words to compare with, such as ('er', 'sie')"
    others = a_list("instead_of", words, str, needed)
    if not others:
        raise ArgumentError(
            "instead_of has no words; a lens explains why one word was written instead of others, so give at least one"
        )
    for other in others:
        if len(normalise(other).split()) != 1:
            raise ArgumentError(f"instead_of has {other!r}; each entry must be one word")
    # As the model writes them.
    return [tokeniser.decode(tokeniser.encode_target(tidy_target(other))) for other in others]


def place_of(words: Sequence[str], word: str, place: int | None) -> int:
    """The index of a word; the same case counts before another one."""
    places = [index for index, text in enumerate(words) if text == word]
    if not places:
        asked = normalise(word).lower()  # with either apostrophe
        places = [index for index, text in enumerate(words) if normalise(text).lower() == asked]
    if not places:
        raise ArgumentError(
            f"the word {word!r} was not written; the written words are {' '.join(words) or 'none'}"
        )
    if place is not None and whole("place", place) not in places:
        raise ArgumentError(
            f"word {place} is not {word!r}; it is at {_listed(places)} of the written words"
        )
    if place is not None:
        return place
    if len(places) > 1:
        raise ArgumentError(
            f"the word {word!r} was written {len(places)} times, at {_listed(places)} of the written words, counted "
            f"from 0; give one of them as place (--place in a command)"
        )
    return places[0]


def _listed(places: Sequence[int]) -> str:
    noun = "place" if len(places) == 1 else "places"
    return f"{noun} {', '.join(map(str, places))}"


def _first_ids(
    tokeniser: Tokeniser, ids: Sequence[int], first: int, word: str, others: Sequence[str]
) -> tuple[int, ...]:
    """The first id of each other word, written at the place of the word at index `first`."""
    before = tokeniser.decode(ids[:first])
    with_word = tokeniser.decode(ids[: first + 1])
    gap = " " if with_word[len(before) :].startswith(" ") else ""

    word_of_id = {ids[first]: word}
    first_ids = []
    for number, other in enumerate(others):
        if other == word:
            raise ArgumentError(
                f"{other!r} is the written word itself; compare it with other words"
            )
        if other in others[:number]:
            raise ArgumentError(f"{other!r} is named twice; name it once")
        text_ids = tokeniser.encode_target(f"{before}{gap}{other}")
        last_word, span = tokeniser.words(text_ids)[-1]
        if last_word != other:
            raise ArgumentError(
                f"instead_of has {other!r}, which is not one word here: the tokeniser ends with {last_word!r}"
            )
        first_id = text_ids[span.start]
        if first_id in word_of_id:
            raise ArgumentError(
                f"{other!r} and {word_of_id[first_id]!r} begin with the same sub-word, "
                f"{tokeniser.pieces([first_id])[0]!r}, and words are compared by their first sub-words; name another "
                f"word in place of {other!r}"
            )
        word_of_id[first_id] = other
        first_ids.append(first_id)
    return tuple(first_ids)


SIDES = ("source", "written")
SPECIAL = (PAD, BEGIN, END)  # ids of our tokenisers that stand for no part of a text
IDS_AT_ONCE = 12_000  # source and written ids in one run of the model


LayerName = tuple[str, int]  # the kind of attention, and the number of its layer
# A layer and what its heads return -> what they return instead.
ChangeHeads = Callable[[LayerName, torch.Tensor], torch.Tensor]
# A tensor for "source" and one for "written"; those that the model reads.
Sides = dict[str, torch.Tensor]


class Subject(nn.Module):
    """A model of another library, as lenses read it: texts of one batch have equal lengths, so there is no padding.

    Args:
        special: ids that stand for no part of a text, which no lens replaces.
    """

    special: tuple[int, ...]

    @abstractmethod
    def tables(self) -> Sides:
        """The embeddings of source and written ids, (vocab_size, dim) each."""

    @abstractmethod
    def forward(self, ids: Sides, vectors: Sides | None = None) -> torch.Tensor:
        """Logits of ids, (batch, length) each: (batch, length, vocab_size) of the last side, or (batch, classes).

        vectors: (batch, length, dim) that are read in the place of embeddings.
        """

    @abstractmethod
    def weights(self, ids: Sides) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Encoder, decoder and cross weights, (layers, batch, heads, rows, keys); some may have 0 layers."""

    @abstractmethod
    def changing(self, change: ChangeHeads) -> AbstractContextManager[None]:
        """As `regard_lab.seeing.heads.changing`."""

    @abstractmethod
    def asked(self, text: Any) -> list[Asked]:
        """What a loss is measured on."""

    @property
    @abstractmethod
    def ids_at_once(self) -> int:
        """The most ids in one run, so that its logits need no more than some hundred MiB."""


class Asked(NamedTuple):
    """What a loss is measured on.

    Args:
        ids: what the model reads, by side.
        at: positions of the logits; none of a classifier.
        right: the right ids there, or the right class.
    """

    ids: dict[str, list[int]]
    at: Sequence[int]
    right: Sequence[int]


Ours = TranslationTransformer | RecurrentTranslator | LanguageModel
Explained = Ours | Subject


@dataclass(frozen=True)
class ContrastBatch:
    """Contrasts as tensors.

    Args:
        ids: of both sides, (batch, length) each, padded on the right.
        of: (batch,) the id that was written.
        instead_of: (batch, others) the ids it is compared with, padded with -1.
        at: (batch,) the position whose logits chose it.
    """

    ids: Sides
    of: torch.Tensor
    instead_of: torch.Tensor
    at: torch.Tensor

    @classmethod
    def of_contrasts(cls, contrasts: Sequence[Contrast], device: torch.device) -> ContrastBatch:
        """The batch of some contrasts, all with a source or all without."""
        ids = {}
        for side in SIDES:
            if getattr(contrasts[0], side):
                ids[side] = pad([getattr(contrast, side) for contrast in contrasts]).to(device)
        return cls(
            ids=ids,
            of=torch.tensor([contrast.of for contrast in contrasts], device=device),
            instead_of=pad([contrast.instead_of for contrast in contrasts], value=-1).to(device),
            at=torch.tensor([contrast.position for contrast in contrasts], device=device),
        )

    def rows(self, index: torch.Tensor) -> ContrastBatch:
        """The batch whose row i is row `index[i]` of this one."""
        return ContrastBatch(
            rows_of(self.ids, index), self.of[index], self.instead_of[index], self.at[index]
        )

    def log_odds(self, logits: torch.Tensor) -> torch.Tensor:
        """`logit(of) - logsumexp(logits of instead_of)` where the word was chosen, in float32 or wider.

        logits: (batch, length, vocab_size), or (batch, classes) -> (batch,).
        """
        # The last side's logits where the word was chosen, (batch, vocab_size) or (batch, classes).
        last = logits
        if logits.dim() == 3:
            last = logits[torch.arange(len(logits), device=logits.device), self.at]
        last = last.to(torch.promote_types(last.dtype, torch.float32))

        others = last.gather(1, self.instead_of.clamp(min=0))
        others = others.masked_fill(self.instead_of < 0, -torch.inf)
        return last.gather(1, self.of[:, None])[:, 0] - others.logsumexp(1)


def rows_of(sides: Sides, index: torch.Tensor) -> Sides:
    """Both sides, with row `index[i]` in row i."""
    return {side: tensor[index] for side, tensor in sides.items()}


def tables(model: Explained) -> Sides:
    """The embeddings of source and written ids, (vocab_size, dim) each, without gradients."""
    if isinstance(model, Subject):
        return model.tables()
    source = model.embedding.weight.detach()
    target = getattr(model, "target_embedding", None)
    return {"source": source, "written": source if target is None else target.weight.detach()}


def embedded(model: Explained, batch: ContrastBatch) -> Sides:
    """The embeddings of a batch, (batch, length, dim) each."""
    of_side = tables(model)
    return {side: of_side[side][ids] for side, ids in batch.ids.items()}


def without_words(model: Explained, batch: ContrastBatch) -> Sides:
    """The same with every word replaced by the baseline of its side; BEGIN and END stay."""
    special = special_of(model)
    of_side = tables(model)
    vectors = {}
    for side, ids in batch.ids.items():
        table = of_side[side]
        member = is_word(ids, special)[..., None]
        vectors[side] = torch.where(member, baseline(ids, table, special), table[ids])
    return vectors


def special_of(model: object) -> tuple[int, ...]:
    """The ids of a model that stand for no part of a text."""
    return model.special if isinstance(model, Subject) else SPECIAL


def is_word(ids: torch.Tensor, special: tuple[int, ...] = SPECIAL) -> torch.Tensor:
    """The ids of words: not those of padding, BEGIN and END, which no lens replaces."""
    return torch.isin(ids, torch.tensor(special, device=ids.device, dtype=ids.dtype), invert=True)


def baseline(
    ids: torch.Tensor, table: torch.Tensor, special: tuple[int, ...] = SPECIAL
) -> torch.Tensor:
    """The vector that stands for no particular word, (batch, 1, dim): the mean of the embeddings of each text's words.

    A word that is replaced by it keeps its position and loses what distinguishes it from the others. With one id there
    is nothing to distinguish it from, so that text has the mean of the whole table.

    Args:
        ids: (batch, length).
        table: embeddings (vocab_size, dim).
        special: ids that are no words.
    """
    member = is_word(ids, special)[..., None]
    wide = torch.promote_types(table.dtype, torch.float32)
    count = member.sum(1, keepdim=True)
    mean = (table[ids].to(wide) * member).sum(1, keepdim=True) / count.clamp(min=1)
    return torch.where(count > 1, mean, table.to(wide).mean(0)).to(table.dtype)


def logits_of(model: nn.Module, ids: Sides, vectors: Sides | None = None) -> torch.Tensor:
    """The logits of one pass of the model, with other vectors in the place of embeddings if given."""
    if isinstance(model, Subject):
        return model(ids, vectors)
    if isinstance(model, TextEncoder):
        return model(ids["source"])
    if isinstance(model, LanguageModel):
        return model(ids["written"], vectors=None if vectors is None else vectors["written"])
    if vectors is None:
        return model(ids["source"], ids["written"])
    return model(
        ids["source"],
        ids["written"],
        source_vectors=vectors["source"],
        target_vectors=vectors["written"],
    )


@torch.no_grad()
def weights_of(model: nn.Module, ids: Sides) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Encoder, decoder and cross weights of one pass, (layers, batch, heads, rows, keys); some may have 0 layers."""
    if isinstance(model, Subject):
        return model.weights(ids)
    with recorded(model) as recording:
        logits_of(model, ids)
    return all_weights(recording, model)  # ty: ignore[invalid-argument-type]


def run(model: Explained, batch: ContrastBatch, vectors: Sides | None = None) -> torch.Tensor:
    """The log odds (batch,) of one pass of the model, with other vectors in the place of embeddings if given."""
    return batch.log_odds(logits_of(model, batch.ids, vectors))


def ids_at_once(model: object) -> int:
    """The most source and written ids in one run of a model."""
    return model.ids_at_once if isinstance(model, Subject) else IDS_AT_ONCE


Result = TypeVar("Result")


def by_batch(
    model: Explained,
    contrasts: Sequence[Contrast],
    compute: Callable[[list[Contrast], ContrastBatch], Iterable[Result]],
    copies: int = 1,
) -> list[Result]:
    """A result for each contrast, computed in batches of similar length.

    Args:
        compute: some contrasts, and the batch of them -> a result for each.
        copies: how many rows of each contrast fit into one run of the model.
    """
    sizes = [(len(contrast.source), len(contrast.written)) for contrast in contrasts]
    groups: list[list[int]] = []
    for index in sorted(range(len(contrasts)), key=sizes.__getitem__):
        fits = False
        if groups:
            group = groups[-1]
            fits = (len(group) + 1) * copies * sum(sizes[index]) <= ids_at_once(model)
            if isinstance(model, Subject):  # it reads no padding
                fits = fits and sizes[group[0]] == sizes[index]
        if not fits:
            groups.append([])
        groups[-1].append(index)

    device = next(model.parameters()).device
    results: dict[int, Result] = {}
    for group in groups:
        chosen = [contrasts[index] for index in group]
        batch = ContrastBatch.of_contrasts(chosen, device)
        results.update(zip(group, compute(chosen, batch), strict=True))
    return [results[index] for index in range(len(contrasts))]


OTHERS = 3  # that a written word is compared with


def alternatives(
    model: Ours,
    tokeniser: Tokeniser,
    source: str | None,
    target_ids: Sequence[int],
    places: Collection[int] | None = None,
) -> dict[int, Contrast]:
    """For written words, by their index: each against the ids that the model found most probable beside it.

    Args:
        source: the text that was translated; None for a language model.
        target_ids: what was written, without BEGIN and END.
        places: indices of the words; by default all. A word before which nothing was read is left out.
    """
    written = _Written(tokeniser, _source_ids(tokeniser, source), list(target_ids))
    read = {"written": written.read_before(len(written.ids))}
    if source is not None:
        read["source"] = written.source
    with torch.no_grad(), in_eval_mode(model):
        device = model.embedding.weight.device
        sides = {side: torch.tensor([ids], device=device) for side, ids in read.items()}
        logits = logits_of(model, sides)[0]

    contrasts: dict[int, Contrast] = {}
    for place, (_, span) in enumerate(tokeniser.words(written.ids)):
        before = written.read_before(span.start)
        if before and (places is None or place in places):
            instead_of = most_probable(model, logits[len(before) - 1], written.ids[span.start])
            others = [word_with(tokeniser, before, other) for other in instead_of]
            contrasts[place] = written.contrast(place, others, instead_of)
    return contrasts


def most_probable(model: object, logits: torch.Tensor, written: int) -> tuple[int, ...]:
    """The ids of words that a model finds most probable beside the written one; logits: (vocab_size,)."""
    row = logits.float().cpu()
    others = is_word(torch.arange(len(row)), special_of(model))
    others[written] = False
    row = row.masked_fill(~others, -torch.inf)
    return tuple(row.topk(min(OTHERS, len(row) - 1)).indices.tolist())


def against_alternatives(
    model: Ours,
    tokeniser: Tokeniser,
    source: str | None,
    target_ids: Sequence[int],
    of: str,
    place: int | None,
) -> Contrast:
    """The written word `of` against the words that the model found most probable beside it."""
    place = find_place(tokeniser, source, target_ids, of, place)
    return alternatives(model, tokeniser, source, target_ids, (place,))[place]


def word_with(tokeniser: Tokeniser, read: Sequence[int], other: int) -> str:
    """The sub-word as it would continue the text: with "…" before it if it would continue a word."""
    piece = tokeniser.pieces([other])[0]
    before = tokeniser.decode(list(read))
    text = tokeniser.decode([*read, other])[len(before) :]
    if read and not text.startswith(" "):
        return piece
    return text.strip() or piece
