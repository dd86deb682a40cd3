"""Watching a translator while it works, and leaving it as it was."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from regard.errors import ArgumentError
from regard.layers.recording import Recording, record_attention
from regard.models.kinds import TranslationModel
from regard.text import Tokeniser


@contextmanager
def watched(model: TranslationModel, tokeniser: Tokeniser) -> Generator[Recording]:
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
    return torch.stack([layer_weights(recording, f"{stack}.{layer}.{attention}") for layer in range(depth)])


def layer_weights(recording: Recording, name: str) -> torch.Tensor:
    """The weights of one layer, (batch, heads, rows, keys), float32 on the CPU.

    A recurrent layer runs once for each word that it writes; its rows are joined in their order.
    """
    return torch.cat([detail.weights.float().cpu() for detail in recording[name]], 2)
