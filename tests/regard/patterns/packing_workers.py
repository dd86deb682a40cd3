"""What a DataLoader's workers do: documents packed into batch rows, with patterns made where the batch is made."""

from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset

from regard import patterns as p

# Of each batch, the lengths of the two documents in each row.
LENGTHS = [
    [(3, 5), (4, 2)],
    [(6, 1), (2, 4)],
    [(1, 1), (5, 3)],
    [(2, 2), (7, 1)],
]
ROW_LENGTH = 8
DIM = 6


@dataclass
class PackedBatch:
    """Two documents in each row, padding behind them, and the patterns that keep them apart."""

    x: torch.Tensor  # (rows, ROW_LENGTH, DIM)
    lengths: list[tuple[int, int]]
    documents: p.SameDocument
    unpadded: p.KeySpan
    mask: p.Explicit  # both in one

    @property
    def is_word(self) -> torch.Tensor:
        """Which positions are no padding, (rows, ROW_LENGTH)."""
        return torch.arange(ROW_LENGTH) < torch.tensor([sum(row) for row in self.lengths])[:, None]


class Numbers(Dataset):
    """The numbers of the batches."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, number: int) -> int:
        return number


def pack(numbers: list[int]) -> PackedBatch:
    (number,) = numbers
    lengths = LENGTHS[number]
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(len(lengths), ROW_LENGTH, DIM, generator=generator, dtype=torch.float64)
    ids = torch.tensor([[0] * first + [1] * (ROW_LENGTH - first) for first, _ in lengths])
    words = torch.tensor([sum(row) for row in lengths])
    is_word = (torch.arange(ROW_LENGTH) < words[:, None])[:, None, None, :]
    mask = (ids[:, None, :, None] == ids[:, None, None, :]) & is_word
    return PackedBatch(x, lengths, p.SameDocument(ids), p.KeySpan(0, words), p.Explicit(mask))


def packed_batches(context: str) -> list[PackedBatch]:
    """All batches, by two workers that were started in this way."""
    loader = DataLoader(
        Numbers(), batch_size=1, num_workers=2, collate_fn=pack, multiprocessing_context=context
    )
    return list(loader)
