"""What devices lack: the GPU of a Mac has no float64."""

from __future__ import annotations

import torch

# By type of device. Tensors of float64 cannot even be made there.
WITHOUT_FLOAT64 = {"mps"}


def has_float64(device: torch.device) -> bool:
    """Whether a device computes in float64."""
    return device.type not in WITHOUT_FLOAT64


def device_of_float64(device: torch.device) -> torch.device:
    """Where numbers for a device are computed in float64: there, or on the CPU if it has none."""
    return device if has_float64(device) else torch.device("cpu")


def in_float64(x: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, on the CPU if its device has none; a gradient passes through."""
    return x.to(device_of_float64(x.device), torch.float64)


def widest_dtype(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device without it."""
    return torch.float64 if has_float64(device) else torch.float32
