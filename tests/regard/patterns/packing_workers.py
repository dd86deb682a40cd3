"""What a DataLoader's workers do: documents packed into rows, their patterns made where the batch is made."""

from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset

from regard import patterns as p

# documents of each row of a batch
LENGTHS = [
    [(3, 5), (4, 2)],
    [(6, 1), (2, 4)],
    [(1, 1), (5, 3)],
    [(2, 2), (7, 1)],
]
ROOM = 8
DIM = 6


@dataclass
class Packed:
    """x (rows, ROOM, DIM), the lengths of the documents, and who may look at whom."""

    x: torch.Tensor
    lengths: list[tuple[int, int]]
    documents: p.SameDocument
    words: p.KeySpan
    mask: p.Explicit


class Batches(Dataset):
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, number: int) -> int:
        return number


def pack(numbers: list[int]) -> Packed:
    """One batch: two documents in each row, padding behind them, each batch with its own lengths."""
    (number,) = numbers
    lengths = LENGTHS[number]
    ids = torch.tensor([[0] * first + [1] * (ROOM - first) for first, _ in lengths])
    words = torch.tensor([sum(row) for row in lengths])
    x = torch.randn(
        len(lengths),
        ROOM,
        DIM,
        generator=torch.Generator().manual_seed(number),
        dtype=torch.float64,
    )
    live = (torch.arange(ROOM) < words[:, None])[:, None, None, :]
    mask = (ids[:, None, :, None] == ids[:, None, None, :]) & live  # (rows, 1, ROOM, ROOM)
    return Packed(x, lengths, p.SameDocument(ids), p.KeySpan(0, words), p.Explicit(mask))


def packed_batches(context: str) -> list[Packed]:
    """All batches, by two workers that were started so."""
    loader = DataLoader(
        Batches(), batch_size=1, num_workers=2, collate_fn=pack, multiprocessing_context=context
    )
    return list(loader)
