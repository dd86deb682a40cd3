"""What torch.autocast does to the tensors of a call: the same as to those of PyTorch's own attention."""

from __future__ import annotations

from typing import Any

import torch

from regard.bias import Bias
from regard.shapes import DTYPES
from regard.stored import Stored

_DEVICES = frozenset(filter(torch.amp.is_autocast_available, ("cpu", "cuda", "xpu", "mps", "hpu", "xla", "mtia")))
Cast = tuple[Any, Any, Any, Any]


def is_casting(device: str) -> bool:
    """Does autocast change dtypes on this kind of device here?"""
    return device in _DEVICES and torch.is_autocast_enabled(device)


def cast(q: torch.Tensor, k: torch.Tensor | Stored, v: torch.Tensor | Stored, bias: torch.Tensor | Bias | None) -> Cast:
    """q, k, v and a bias tensor in autocast's dtype where it is on; float64 stays, and so does what a cache stores.

    A float64 call stays as it is altogether: its bias is not rounded either.
    """
    if not isinstance(q, torch.Tensor) or not is_casting(device := q.device.type):
        return q, k, v, bias
    dtype = torch.get_autocast_dtype(device)
    q, k, v = (_lowered(x, device, dtype) for x in (q, k, v))
    return q, k, v, bias if q.dtype == torch.float64 else _lowered(bias, device, dtype)


def _lowered(x: Any, device: str, dtype: torch.dtype) -> Any:
    if not isinstance(x, torch.Tensor) or x.dtype == torch.float64 or x.dtype not in DTYPES or x.device.type != device:
        return x
    return x if x.dtype == dtype else x.to(dtype)
