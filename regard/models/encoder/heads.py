"""What is made of an encoder's vectors: words or classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from regard.models.block import new_norm


class WordsHead(nn.Module):
    """The word at a place: `norm(gelu(x W + b)) E' + c`, E the embeddings or a matrix of its own.

    Source: BERT, Devlin et al. 2019, section 3.1, task 1; its form is that of the authors' program.
    """

    def __init__(self, dim: int, vocab_size: int, norm: str, epsilon: float, tied: bool) -> None:
        super().__init__()
        self.dense = nn.Linear(dim, dim)
        self.norm = new_norm(norm, dim, epsilon)
        self.weight = None if tied else nn.Parameter(torch.empty(vocab_size, dim))
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """(..., dim) -> (..., vocab_size)."""
        weight = embeddings if self.weight is None else self.weight
        return F.linear(self.norm(F.gelu(self.dense(x))), weight, self.bias)


class ClassesHead(nn.Module):
    """The class of a text: `tanh(pool(x) W + b) U + c`.

    Args:
        dim: of the vectors.
        classes: how many there are.
        pooling: "mean" over the places of a text, or its "first".
        dropout: share of the pooled vector dropped in training.

    Source: BERT, Devlin et al. 2019, sections 3 and 4.1 (the first place; its pooler is that of the authors' program).
    """

    def __init__(self, dim: int, classes: int, pooling: str, dropout: float) -> None:
        super().__init__()
        self.pooling = pooling
        self.dense = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.to_classes = nn.Linear(dim, classes)

    def forward(self, x: torch.Tensor, living: torch.Tensor) -> torch.Tensor:
        """Vectors (batch, length, dim) and which places are no padding (batch, length) -> (batch, classes)."""
        if self.pooling == "first":
            pooled = x[:, 0]  # (batch, dim)
        else:
            seen = x.masked_fill(~living[:, :, None], 0.0)
            pooled = seen.sum(1) / living.sum(1, keepdim=True).clamp(min=1)
        return self.to_classes(self.dropout(torch.tanh(self.dense(pooled))))
