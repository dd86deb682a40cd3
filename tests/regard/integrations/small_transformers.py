"""Small models that several tests make; a test is skipped where transformers has no model of that kind."""

from typing import Any

import hugging_face_small as small
import pytest
import torch


def built(kind: str) -> Any:
    """A small model of a kind, in eval mode."""
    if kind not in small.types():
        pytest.skip(f"this version of transformers has no {kind}")
    return small.built(kind)


def with_memories(kind: str) -> Any:
    """A small hybrid model in eval mode, whose decays and steps differ between heads."""
    model = built(kind)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("A_log", "dt_bias", ".D")):
                mean = -3.0 if "A_log" in name else 0.0
                parameter.copy_(torch.randn(parameter.shape, generator=generator) + mean)
    return model
