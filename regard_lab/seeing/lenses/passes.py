"""Runs of the model on contrasts: ids or vectors in, log odds of the written word out, many rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from regard_lab.models import LanguageModel, RecurrentTranslator, TranslationTransformer
from regard_lab.seeing.lenses.contrast import Contrast
from regard_lab.text import BEGIN, END, PAD, pad

Explained = TranslationTransformer | RecurrentTranslator | LanguageModel
SIDES = ("source", "written")
IDS_AT_ONCE = 12_000  # source and written ids in one run of the model


@dataclass(frozen=True)
class Batch:
    """Contrasts as tensors.

    Args:
        source: ids (batch, source_length), padded on the right; None for a language model.
        written: ids (batch, written_length), padded on the right.
        of: (batch,) the id that was written.
        instead_of: (batch, others) the ids it is compared with, padded with -1.
    """

    source: torch.Tensor | None
    written: torch.Tensor
    of: torch.Tensor
    instead_of: torch.Tensor

    @classmethod
    def of_contrasts(cls, contrasts: Sequence[Contrast], device: torch.device) -> Batch:
        """The batch of some contrasts, all with a source or all without."""
        has_source = bool(contrasts[0].source)
        source = pad([contrast.source for contrast in contrasts]).to(device) if has_source else None
        return cls(
            source,
            pad([contrast.written for contrast in contrasts]).to(device),
            torch.tensor([contrast.of for contrast in contrasts], device=device),
            pad([contrast.instead_of for contrast in contrasts], value=-1).to(device),
        )

    def rows(self, index: torch.Tensor) -> Batch:
        """The batch whose row i is row `index[i]` of this one."""
        source = None if self.source is None else self.source[index]
        return Batch(source, self.written[index], self.of[index], self.instead_of[index])

    def side(self, name: str) -> torch.Tensor | None:
        """The ids of "source" or "written"."""
        return self.source if name == "source" else self.written

    def log_odds(self, logits: torch.Tensor) -> torch.Tensor:
        """`logit(of) - logsumexp(logits of instead_of)` at the end of each row, in float32 or wider.

        logits: (batch, written_length, vocab_size) -> (batch,).
        """
        rows = torch.arange(len(logits), device=logits.device)
        last = logits[rows, (self.written != PAD).sum(1) - 1]  # (batch, vocab_size)
        last = last.to(torch.promote_types(last.dtype, torch.float32))
        others = last.gather(1, self.instead_of.clamp(min=0)).masked_fill(self.instead_of < 0, -torch.inf)
        return last.gather(1, self.of[:, None])[:, 0] - others.logsumexp(1)


@dataclass(frozen=True)
class Vectors:
    """Embeddings of source and written ids, (batch, length, dim) each; no source for a language model."""

    source: torch.Tensor | None
    written: torch.Tensor

    @classmethod
    def of_batch(cls, model: Explained, batch: Batch) -> Vectors:
        """The rows of the model's embedding tables."""
        source, written = tables(model)
        return cls(None if batch.source is None else source[batch.source], written[batch.written])

    @classmethod
    def without_words(cls, model: Explained, batch: Batch) -> Vectors:
        """The same with every word replaced by the baseline of its side; BEGIN and END stay."""
        own = cls.of_batch(model, batch)
        for side, table in zip(SIDES, tables(model), strict=True):
            ids = batch.side(side)
            if ids is not None:
                replaced = torch.where(is_word(ids)[..., None], baseline(ids, table), own.side(side))
                own = own.with_side(side, replaced)
        return own

    def rows(self, index: torch.Tensor) -> Vectors:
        """The vectors whose row i is row `index[i]` of these."""
        return Vectors(None if self.source is None else self.source[index], self.written[index])

    def side(self, name: str) -> torch.Tensor:
        """The vectors of "source" or "written"."""
        side = self.source if name == "source" else self.written
        assert side is not None
        return side

    def with_side(self, name: str, vectors: torch.Tensor) -> Vectors:
        """A copy with other vectors on one side."""
        return replace(self, source=vectors) if name == "source" else replace(self, written=vectors)


def tables(model: Explained) -> tuple[torch.Tensor, torch.Tensor]:
    """The embeddings of source and target ids, (vocab_size, dim) each, without gradients."""
    own = model.embedding.weight.detach()
    target = getattr(model, "target_embedding", None)
    return own, own if target is None else target.weight.detach()


def is_word(ids: torch.Tensor) -> torch.Tensor:
    """The ids of words: not those of padding, BEGIN and END, which no lens replaces."""
    return (ids != PAD) & (ids != BEGIN) & (ids != END)


def baseline(ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The vector that stands for no particular word, (batch, 1, dim): the mean of the embeddings of each text's words.

    A word that is replaced by it keeps its position and loses what distinguishes it from the others. With one id there
    is nothing to distinguish it from, so that text has the mean of the whole table.

    Args:
        ids: (batch, length).
        table: embeddings (vocab_size, dim).
    """
    member = is_word(ids)[..., None]
    wide = torch.promote_types(table.dtype, torch.float32)
    count = member.sum(1, keepdim=True)
    mean = (table[ids].to(wide) * member).sum(1, keepdim=True) / count.clamp(min=1)
    return torch.where(count > 1, mean, table.to(wide).mean(0)).to(table.dtype)


def run(model: Explained, batch: Batch, vectors: Vectors | None = None) -> torch.Tensor:
    """The log odds (batch,) of one pass of the model."""
    if isinstance(model, LanguageModel):
        logits = model(batch.written, vectors=None if vectors is None else vectors.written)
    elif vectors is None:
        logits = model(batch.source, batch.written)
    else:
        logits = model(batch.source, batch.written, source_vectors=vectors.source, target_vectors=vectors.written)
    return batch.log_odds(logits)


def run_erased(
    model: Explained, batch: Batch, index: torch.Tensor, source: torch.Tensor | None, written: torch.Tensor
) -> torch.Tensor:
    """The log odds of batch rows in which some ids are replaced by the baseline.

    Args:
        model: the model.
        batch: the contrasts.
        index: (rows,) the batch row that each row changes.
        source, written: bool (rows, length), True for an id that is replaced; None without a source.

    Returns:
        (rows,), as one pass for each row.
    """
    vectors, without = Vectors.of_batch(model, batch), Vectors.without_words(model, batch)
    masks = {"written": written} | ({} if source is None else {"source": source})
    parts = []
    length = sum(mask.shape[1] for mask in masks.values())
    for part in torch.arange(len(index), device=index.device).split(max(1, IDS_AT_ONCE // length)):
        rows = index[part]
        changed = vectors.rows(rows)
        for side, mask in masks.items():
            replaced = torch.where(mask[part][..., None], without.side(side)[rows], changed.side(side))
            changed = changed.with_side(side, replaced)
        parts.append(run(model, batch.rows(rows), changed))
    return torch.cat(parts)


def in_batches(contrasts: Sequence[Contrast], copies: int = 1) -> Iterator[list[int]]:
    """Indices of contrasts of similar length; `copies` rows of each fit into one run of the model."""
    lengths = [len(contrast.source) + len(contrast.written) for contrast in contrasts]
    group: list[int] = []
    for index in sorted(range(len(contrasts)), key=lambda index: (len(contrasts[index].source), lengths[index])):
        if group and (len(group) + 1) * copies * lengths[index] > IDS_AT_ONCE:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
