"""In tests uninitialised memory is filled with NaN, by every function that allocates it, so that reading it shows."""

from __future__ import annotations

import pytest
import torch

TAKEN = {
    "empty": lambda like: torch.empty(3, dtype=like.dtype),
    "empty_like": torch.empty_like,
    "new_empty": lambda like: like.new_empty(3),
    "empty_strided": lambda like: torch.empty_strided((3,), (1,), dtype=like.dtype),
    "resize_": lambda like: torch.zeros(0, dtype=like.dtype).resize_(3),
}


@pytest.mark.parametrize("name", TAKEN)
def test_fresh_memory_is_poisoned(name):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        assert TAKEN[name](torch.zeros(3, dtype=dtype)).isnan().all()
    assert (TAKEN[name](torch.zeros(3, dtype=torch.int64)) == torch.iinfo(torch.int64).max).all()
