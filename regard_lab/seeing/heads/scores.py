"""What heads look at on random ids that repeat."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from regard.arguments import whole
from regard.errors import ArgumentError
from regard_lab.models import TextEncoder
from regard_lab.seeing.heads.replacing import Head, attention_layers
from regard_lab.seeing.lenses.contrast import Sides, Subject, is_word, special_of, tables, weights_of
from regard_lab.seeing.watching import in_eval_mode
from regard_lab.text import BEGIN, END

LENGTH, TEXTS = 25, 8  # ids of a block that occurs twice in a text, and texts


@torch.no_grad()
def head_scores(
    model: nn.Module, *, length: int = LENGTH, texts: int = TEXTS, seed: int = 0
) -> dict[str, dict[Head, float]]:
    """How much each head of self-attention looks at the word before, and at what followed the same word earlier.

    A text is `length` different ids, drawn at random, and then the same ids again, so that nothing but the repetition
    can be learned from it. "previous" is the mean of w[i, i - 1], and "induction" the mean of w[i, i - length + 1] over
    the second copy.

    A head that looks at all earlier ids alike has about 0.1 and 0.03. A high induction score is a sign of an induction
    head; whether the head also copies what it finds is measured by `ablate`.

    Args:
        model: as for `ablate`; self-attention of encoder and decoder for a translator.
        length: ids of a block.
        texts: how many texts are drawn.
        seed: decides which.

    Returns:
        The numbers, from 0 to 1, of each head, as "induction" and "previous".

    Raises:
        UnsupportedError: a model without heads, or without weights.

    Source: In-context Learning and Induction Heads, Olsson et al. 2022, the definition by repeated random tokens.

    >>> from regard_lab.models import LanguageModel
    >>> model = LanguageModel(LanguageModel.Config(vocab_size=300, dim=16, heads=2, layers=1))
    >>> scores = head_scores(model)
    >>> sorted(scores), 0 < scores["previous"][Head("self", 0, 1)] < 1
    (['induction', 'previous'], True)
    """
    length, texts = whole("length", length, 2), whole("texts", texts, 1)
    if not isinstance(model, Subject):
        attention_layers(model)  # refuses a model without heads
    known: Any = model
    vocab_size = min(map(len, tables(known).values()))
    words = is_word(torch.arange(vocab_size), special_of(model)).nonzero().flatten()
    if len(words) < length:
        raise ArgumentError(f"length is {length}, and the vocabulary has {len(words)} ids; give fewer")
    generator = torch.Generator().manual_seed(whole("seed", seed, 0))
    drawn = torch.stack([words[torch.randperm(len(words), generator=generator)[:length]] for _ in range(texts)])
    ids = drawn.repeat(1, 2).to(next(model.parameters()).device)
    with in_eval_mode(model):
        encoder, decoder, _ = weights_of(model, _sides(model, ids))
    ours, both = not isinstance(model, Subject), len(encoder) > 0 < len(decoder)
    stacks = [
        ("encoder" if both else "self", encoder, int(isinstance(model, TextEncoder))),
        ("decoder" if both else "self", decoder, int(ours)),  # after BEGIN
    ]
    scores: dict[str, dict[Head, float]] = {}
    for name, back, first in (("previous", 1, 1), ("induction", length - 1, length)):
        scores[name] = {
            Head(kind, layer, head): one
            for kind, weights, start in stacks
            if len(weights)
            for layer, row in enumerate(_mean_weight(weights, start + torch.arange(first, 2 * length), back).tolist())
            for head, one in enumerate(row)
        }
    return scores


def _sides(model: nn.Module, ids: torch.Tensor) -> Sides:
    """What a model reads as a text of these ids, (texts, length): with BEGIN and END as in training, if it is ours."""
    if isinstance(model, Subject):
        return dict.fromkeys(model.tables(), ids)
    begun, ended = F.pad(ids, (1, 0), value=BEGIN), F.pad(ids, (0, 1), value=END)
    return {"source": F.pad(begun, (0, 1), value=END) if isinstance(model, TextEncoder) else ended, "written": begun}


def _mean_weight(weights: torch.Tensor, rows: torch.Tensor, back: int) -> torch.Tensor:
    """The mean weight (layers, heads) of rows on the position so many before their own."""
    return weights[..., rows, rows - back].double().mean((1, 3))
