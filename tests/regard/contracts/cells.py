"""What a cell of the grid is made of besides its pattern and option: positions, heads, lengths, sizes and dtypes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BATCH = 2
HEADS = {"MHA": (6, 6), "GQA": (6, 3), "MQA": (6, 1)}
LENGTHS = ((7, 11), (11, 7), (9, 9), (1, 5))
DIMS = ((5, 13), (8, 8), (1, 3), (256, 7), (3, 256))  # head_dim, v_dim
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
READING = (  # without a gradient: the dtype of the call, and that of the cache
    (torch.float64, None),
    (torch.float32, None),
    (torch.bfloat16, None),
    (torch.float16, None),
    (torch.float64, torch.int8),
    (torch.float64, torch.bfloat16),
    (torch.float32, torch.int8),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
)


@dataclass(frozen=True)
class Places:
    """Index arrays that broadcast to (batch, heads, q_len, k_len): i and j are positions, row counts queries."""

    b: np.ndarray
    h: np.ndarray
    row: np.ndarray
    i: np.ndarray
    j: np.ndarray

    @classmethod
    def of(cls, batch: int, heads: int, q_len: int, k_len: int, q_start: Any = None) -> Places:
        b, h = np.arange(batch)[:, None, None, None], np.arange(heads)[None, :, None, None]
        row, j = np.arange(q_len)[None, None, :, None], np.arange(k_len)[None, None, None, :]
        start = k_len - q_len if q_start is None else np.asarray(q_start).reshape(-1, 1, 1, 1)
        return cls(b, h, row, row + start, j)

    @property
    def shape(self) -> tuple[int, ...]:
        return np.broadcast_shapes(self.b.shape, self.h.shape, self.row.shape, self.j.shape)
