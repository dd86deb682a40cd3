"""The oracle of a converted Llama-like folder: the same layers with the new heads repeated."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from regard.conversion.heads import resized
from regard.conversion.llama_layout import LlamaFolder
from regard.conversion.measures import TOLERANCE
from regard.errors import CheckpointError, RegardError
from regard.functional import attention

PLACES = 5  # positions on which each layer is compared


def checked_difference(source: LlamaFolder, written: LlamaFolder, method: str) -> float:
    """The largest difference, over all layers, between attention with the new heads, as the disk holds them, and with
    as many key/value heads as query heads: the source's own, pooled and repeated.

    What turns or normalises a head does so to all alike; it is the same on both sides, and left out.

    Raises:
        CheckpointError: numbers that are not finite.
        RegardError: it is too large.
    """
    before, after, heads = source.sizes.kv_heads, written.sizes.kv_heads, source.sizes.heads
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, PLACES, source.sizes.dim, generator=generator, dtype=torch.float64)

    def pooled_and_repeated(tensor: torch.Tensor) -> torch.Tensor:
        return resized(resized(tensor, before, after, method), after, heads)

    worst = 0.0
    for layer in written.attention_names():
        keys_and_values = [f"{layer}.{part}" for part in ("k_proj", "v_proj")]
        q = projected(x, source, f"{layer}.q_proj", heads)
        grouped = [projected(x, written, name, after) for name in keys_and_values]
        repeated = [projected(x, source, name, heads, pooled_and_repeated) for name in keys_and_values]
        said, expected = (attention(q, *kv, pattern="causal") for kv in (grouped, repeated))
        found = float((said - expected).abs().max() / expected.abs().max().clamp(min=1))
        if found != found:
            raise CheckpointError(f"{layer} of {source.folder} holds numbers that are not finite: nothing was written")
        worst = max(worst, found)
    if not worst <= TOLERANCE:
        raise RegardError(
            f"a converted layer and the one with its heads repeated differ by {worst:.1e} (at most {TOLERANCE:.0e}); "
            f"nothing was written. This is a fault of regard: please report it with the model's config"
        )
    return worst


def projected(
    x: torch.Tensor,
    folder: LlamaFolder,
    name: str,
    heads: int,
    changed: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> torch.Tensor:
    """x (1, PLACES, dim) through the projection of a layer, which is changed first: (1, heads, PLACES, head_dim)."""
    parts = [folder.read(f"{name}.{part}") for part in ("weight", "bias")]
    weight, bias = (None if part is None else changed(part).double() for part in parts)
    assert weight is not None
    return F.linear(x, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)
