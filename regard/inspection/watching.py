"""Watching a translator while it works, and leaving it as it was."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from regard.errors import ArgumentError
from regard.layers.recording import Recording, record_attention
from regard.models import TranslationTransformer
from regard.text import Tokeniser


@contextmanager
def watched(model: TranslationTransformer, tokeniser: Tokeniser) -> Generator[Recording]:
    """While the block runs, the model drops nothing, makes no gradients and tells the weights of every layer.

    Afterwards each of its modules is in the mode, training or eval, that it was in before.

    Raises:
        ArgumentError: a tokeniser of another size than the model's vocabulary.
    """
    if model.config.vocab_size != tokeniser.vocab_size:
        raise ArgumentError(
            f"the model has {model.config.vocab_size} ids and the tokeniser {tokeniser.vocab_size}; look with the "
            f"tokeniser it was trained with"
        )
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), record_attention(model, "weights") as recording:
            yield recording
    finally:
        for module, mode in modes:
            module.training = mode


def recorded_weights(recording: Recording, stack: str, attention: str, depth: int) -> torch.Tensor:
    """The weights of every layer of a stack, (layers, batch, heads, rows, keys), float32 on the CPU."""
    layers = [recording[f"{stack}.{layer}.{attention}"][-1].weights for layer in range(depth)]
    return torch.stack([weights.float().cpu() for weights in layers])
