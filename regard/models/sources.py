"""The texts that are translated, as the layers of a decoder read them while they write."""

from __future__ import annotations

import math
from itertools import groupby

import torch

from regard.layers import ProjectedContext
from regard.patterns import KeySpan


class Sources:
    """One context a layer, and in each one text for all the neighbouring rows that read it.

    The hypotheses of a beam translate the same text: its keys and values are held once, and the hypotheses look at
    them as queries side by side.

    Args:
        contexts: of each layer, (texts, ...).
        live: what of the texts is no padding; None for all.
        shared: may rows share a text? Not where a pattern asks at which place a query stands.
    """

    def __init__(self, contexts: list[ProjectedContext], live: KeySpan | None, shared: bool) -> None:
        self.contexts, self.mask, self.shared = contexts, None, shared
        self.readers = 1  # neighbouring rows that read each text
        if live is not None:
            hidden = ~live.allows(*_places(contexts[0]))[:, 0, 0]  # (texts, source_length)
            self.contexts = [context.without(hidden) for context in contexts]
            scores = torch.zeros_like(hidden, dtype=contexts[0].keys.dtype).masked_fill(hidden, -math.inf)
            self.mask = scores[:, None, None]  # (texts, 1, 1, source_length)

    @property
    def rows(self) -> int:
        """Of the batch."""
        return self.readers * len(self.contexts[0].keys)

    @property
    def nbytes(self) -> int:
        return sum(context.nbytes for context in self.contexts)

    def reorder(self, index: torch.Tensor) -> None:
        """Row i reads what row `index[i]` read; index: integers (new batch,)."""
        read = [row // self.readers for row in index.tolist()]  # the text of each row
        runs = [(text, len(list(rows))) for text, rows in groupby(read)]
        lengths = {length for _, length in runs}
        if self.shared and len(lengths) == 1:
            (self.readers,), read = lengths, [text for text, _ in runs]
        else:
            self.readers = 1
        if read == list(range(len(self.contexts[0].keys))):
            return  # the same texts in the same order
        texts = torch.tensor(read, dtype=torch.int64, device=self.contexts[0].keys.device)
        self.contexts = [context.reorder(texts) for context in self.contexts]
        self.mask = None if self.mask is None else self.mask[texts]


def _places(context: ProjectedContext) -> tuple[torch.Tensor, torch.Tensor]:
    """A query, and every key of a context, by their positions."""
    places = torch.arange(context.length, device=context.keys.device)
    return places[:1, None], places[None]  # (1, 1), (1, source_length)
