"""The check of the vectors that a layer is called with."""

from __future__ import annotations

import torch

from regard.arguments import shown
from regard.core.tensors import is_casting, refuse_layout
from regard.errors import ShapeError
from regard.layers.projection import is_plain_tensor


def check_vectors(name: str, vectors: torch.Tensor, weight: object) -> None:
    """Raise a ShapeError unless the vectors are dense, floating-point, and of the weight's device and dtype."""
    if not isinstance(vectors, torch.Tensor) or not vectors.dtype.is_floating_point:
        raise ShapeError(
            f"{name} is {shown(vectors)}; this layer needs a tensor of floating-point numbers"
        )
    refuse_layout(name, vectors)
    if not is_plain_tensor(weight):  # sharded or quantised: it converts its inputs
        return
    assert isinstance(weight, torch.Tensor)
    if vectors.device != weight.device:
        raise ShapeError(
            f"{name} is on {vectors.device} and this layer on {weight.device}; move one of them"
        )
    if vectors.dtype != weight.dtype and not is_casting(vectors.device.type):
        raise ShapeError(
            f"{name} has dtype {vectors.dtype} and this layer {weight.dtype}; convert one of them"
        )
