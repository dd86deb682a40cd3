"""The words that a written word is compared with if none are named: those that the model found most probable there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from regard_lab.seeing.lenses.contrast import Contrast, find_place
from regard_lab.seeing.lenses.passes import Explained, is_word
from regard_lab.seeing.watching import in_eval_mode
from regard_lab.text import BEGIN, END, Tokeniser

OTHERS = 3  # that a written word is compared with


def alternatives(
    model: Explained,
    tokeniser: Tokeniser,
    source: str | None,
    target_ids: Sequence[int],
    places: Collection[int] | None = None,
) -> dict[int, Contrast]:
    """For written words, by their index: each against the ids that the model found most probable beside it.

    Args:
        model: a translation model or a language model.
        tokeniser: the tokeniser that the model was trained with.
        source: the text that was translated; None for a language model.
        target_ids: what was written, without BEGIN and END.
        places: indices of the words; by default all. A word before which nothing was read is left out.
    """
    ids = list(target_ids)
    begin = [] if source is None else [BEGIN]
    source_ids = [] if source is None else [*tokeniser.encode(source), END]
    written = [*begin, *ids]
    device = model.embedding.weight.device
    with torch.no_grad(), in_eval_mode(model):
        read = torch.tensor([written], device=device)
        logits = model(read) if source is None else model(torch.tensor([source_ids], device=device), read)
    contrasts: dict[int, Contrast] = {}
    for place, (word, at) in enumerate(tokeniser.words(ids)):
        before = len(begin) + at.start
        if not before or (places is not None and place not in places):
            continue
        row = logits[0, before - 1].float().cpu()
        row[~is_word(torch.arange(len(row)))] = -torch.inf  # PAD, BEGIN and END
        row[ids[at.start]] = -torch.inf
        others = tuple(row.topk(min(OTHERS, len(row) - 1)).indices.tolist())
        read_ids = written[:before]
        contrasts[place] = Contrast(
            word=word, others=tuple(word_with(tokeniser, read_ids, other) for other in others), of=ids[at.start],
            instead_of=others, source=tuple(source_ids), written=tuple(read_ids),
            source_words=tuple(tokeniser.words(source_ids)), written_words=tuple(tokeniser.words(read_ids)),
            place=place,
        )  # fmt: skip
    return contrasts


def against_alternatives(
    model: Explained, tokeniser: Tokeniser, source: str | None, target_ids: Sequence[int], of: str, place: int | None
) -> Contrast:
    """The written word `of` against the words that the model found most probable beside it.

    Raises:
        ArgumentError: a word that was not written, or several times, or before which nothing was read.
    """
    place = find_place(tokeniser, source, target_ids, of, place)
    return alternatives(model, tokeniser, source, target_ids, (place,))[place]


def word_with(tokeniser: Tokeniser, read: Sequence[int], other: int) -> str:
    """The sub-word as it would continue the text: with "…" before it if it would continue a word."""
    piece = tokeniser.pieces([other])[0]
    text = tokeniser.decode([*read, other])[len(tokeniser.decode(list(read))) :]
    return (text.strip() or piece) if text.startswith(" ") or not read else piece
