"""regard itself, through each backend: the one adapter that imports it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import regard
from regard import patterns
from regard.testing.conformance.adapters.tensors import WORDS, Tensors, Torch
from regard.testing.conformance.call import NeutralCall

STATISTICS = ("log_sum_exp", "weights")


def ask_regard(backend: str) -> Torch:
    """regard with one backend, or with the one that it chooses itself ("auto")."""

    def attend(call: NeutralCall, tensors: Tensors) -> torch.Tensor | dict[str, torch.Tensor]:
        pattern: Any = patterns.Full()
        if call.causal:
            pattern = pattern & patterns.Causal()
        if call.window is not None:
            back, ahead = call.window
            pattern = pattern & _band(back, ahead)
        if call.key_lengths is not None:
            pattern = pattern & patterns.KeySpan(0, torch.tensor(call.key_lengths))
        mask = tensors["mask"]
        if mask is not None:
            of_keys = mask.dim() == 4 and mask.shape[1:3] == (1, 1)
            pattern = pattern & (
                patterns.KeyMask(mask[:, 0, 0]) if of_keys else patterns.Explicit(mask)
            )
        options: dict[str, Any] = {
            "pattern": pattern,
            "bias": tensors["bias"],
            "sink": tensors["sink"],
            "scale": call.scale,
            "softcap": call.softcap,
            "backend": backend,
        }
        if call.first_positions is not None:
            options["q_start"] = torch.tensor(call.first_positions)
        if call.dropout:
            options |= {"dropout": call.dropout, "dropout_seed": call.seed}
        qkv: Any = (tensors["q"], tensors["k"], tensors["v"])
        statistics = [name for name in call.wants if name in STATISTICS]
        if not statistics:
            return regard.attention(*qkv, **options)
        detail = regard.attention_detail(*qkv, want=statistics, **options)
        return {"output": detail.output} | {name: getattr(detail, name) for name in statistics}

    words = (*WORDS, "window", "key_lengths", "first_positions", "softcap", "sink", "dropout")
    return Torch(attend, (*words, *STATISTICS, "mask_dtype"))


def _band(back: int | None, ahead: int | None) -> Any:
    """The pattern of a window."""
    if back is not None and back < 0:
        return patterns.SlidingWindow(back)
    return patterns.Where(_InBand(back, ahead))


@dataclass(frozen=True)
class _InBand:
    back: int | None
    ahead: int | None

    def __call__(self, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        inside = j == j
        if self.back is not None:
            inside = inside & (j >= i - self.back)
        if self.ahead is not None:
            inside = inside & (j <= i + self.ahead)
        return inside
