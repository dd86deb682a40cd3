"""Synthetic texts with known answers."""

from __future__ import annotations

import torch

from benchmarks.behaviour.training import UNSCORED, Batch, Draw


def duplication(symbols: int, length: int, rows: int) -> Draw:
    """`0 w 0 w` with random words w of symbols from 1; only the second w is scored.

    Source: Reformer, Kitaev et al. 2020, section 5.
    """

    def draw(generator: torch.Generator) -> Batch:
        word = torch.randint(1, symbols + 1, (rows, length), generator=generator)
        zero = torch.zeros(rows, 1, dtype=torch.long)
        text = torch.cat([zero, word, zero, word], 1)  # (batch, 2 * length + 2)
        targets = text[:, 1:].clone()
        targets[:, : length + 1] = UNSCORED
        return text[:, :-1], targets

    return draw


def recall(vocabulary: int, length: int, rows: int, pairs: int) -> Draw:
    """Different keys, each followed by its value; later each key again, at a random position.

    Keys are the first half of the vocabulary, values the second, and 0 fills the rest. What is scored is the value,
    where the key returns.

    Source: Zoology, Arora et al. 2023, section 3 (multi-query associative recall).
    """

    def draw(generator: torch.Generator) -> Batch:
        half = vocabulary // 2
        keys = torch.rand(rows, half - 1, generator=generator).argsort(1)[:, :pairs] + 1
        values = torch.randint(half, vocabulary, (rows, pairs), generator=generator)
        places = torch.rand(rows, length - 2 * pairs, generator=generator).argsort(1)[:, :pairs] + 2 * pairs
        tokens = torch.zeros(rows, length, dtype=torch.long)
        tokens[:, : 2 * pairs] = torch.stack([keys, values], -1).flatten(1)  # key value key value ...
        targets = torch.full_like(tokens, UNSCORED)
        return tokens.scatter(1, places, keys), targets.scatter(1, places, values)

    return draw


def grid(side: int, colours: int, noise: float, rows: int) -> Draw:
    """Pictures read row by row: each cell has the colour of the one above, except a share of random cells.

    Position t is scored by the cell after it, so that the cell above stands side - 1 positions before the guess.
    """

    def draw(generator: torch.Generator) -> Batch:
        cells = torch.randint(colours, (rows, side + 1, side), generator=generator)
        anew = torch.rand(cells.shape, generator=generator) < noise
        for row in range(1, side + 1):
            cells[:, row] = torch.where(anew[:, row], cells[:, row], cells[:, row - 1])
        text = cells.flatten(1)[:, : side * side + 1]
        return text[:, :-1], text[:, 1:]

    return draw


def runs_of(text: torch.Tensor, length: int, rows: int) -> Draw:
    """Sections from random positions of a text, scored by the next symbol."""

    def draw(generator: torch.Generator) -> Batch:
        starts = torch.randint(len(text) - length, (rows, 1), generator=generator)
        letters = text[starts + torch.arange(length + 1)]  # (batch, length + 1)
        return letters[:, :-1], letters[:, 1:]

    return draw
