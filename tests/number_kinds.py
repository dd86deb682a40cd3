"""What a caller may give where a number is meant: makers of NumPy's scalars and of arrays and tensors without axes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

WHOLE: tuple[Callable[[int], Any], ...] = (
    np.int64,
    np.int8,
    np.array,
    torch.tensor,
    lambda n: torch.tensor(n).int(),
)
REAL: tuple[Callable[[float], Any], ...] = (np.float64, np.float32, np.array, torch.tensor)
