"""A cache of transformers that keeps chosen entries: a model goes on as if the other keys were hidden."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from regard.arguments import count_of, of_kind, shown
from regard.errors import ArgumentError, UnsupportedError
from regard.layers.caches import GrowingCache

__all__ = ["STORED", "KeptLayer", "keep_entries"]

STORED = "_regard_stored"  # on the keys that a layer returns: keys and values with the positions that they have


class _KeptEntries(GrowingCache):
    """Entries of which a caller may hold tensors, so that none is written over."""

    _overwrites = False


class KeptLayer(DynamicLayer):
    """A layer of a cache whose entries a `GrowingCache` of regard holds, with the positions of the text.

    As in a layer of transformers, a copy is independent, and tensors that a caller has taken never change.
    """

    held: GrowingCache

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        keys, values = layer.keys, layer.values
        assert keys is not None
        assert values is not None
        self.lazy_initialization(keys, values)
        self.held.append(keys, values)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Hold no entries, of the shapes of these."""
        super().lazy_initialization(key_states, value_states)
        batch, heads, _, dim = key_states.shape
        self.held = _KeptEntries(
            batch,
            heads,
            dim,
            value_states.shape[3],
            key_states.dtype,
            key_states.device,
            shared=True,
        )

    def __copy__(self) -> KeptLayer:
        copied = object.__new__(KeptLayer)
        copied.__dict__.update(self.__dict__)
        copied.held = copy.copy(self.held)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"keys": None, "values": None}  # `held` has them

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.is_initialized:
            self._shown()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Append entries, and return all that are held; the keys hold their positions too."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.held.append(key_states, value_states)
        return self._shown()

    def _shown(self) -> tuple[torch.Tensor, torch.Tensor]:
        stored = self.held.keys, self.held.values
        keys, values = (x if isinstance(x, torch.Tensor) else x.numbers for x in stored)
        if not isinstance(stored[0], torch.Tensor):
            setattr(keys, STORED, stored)
        self.keys, self.values = keys, values
        return keys, values

    def keeping(self, indices: torch.Tensor) -> KeptLayer:
        """A layer with the entries at these positions alone."""
        kept = copy.copy(self)
        kept.held.keep(indices)
        kept._shown()
        return kept

    def get_seq_length(self) -> int:
        """The length of the text, of which some entries were dropped."""
        return self.held.length if self.is_initialized else 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; their number may be given below 0."""
        if tokens_to_remove and self.is_initialized:
            self.held.crop(max(0, self.held.length - abs(tokens_to_remove)))
            self._shown()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Replace the batch rows by others."""
        if self.is_initialized:
            self.held.reorder(beam_idx)
            self._shown()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each batch row."""
        if self.is_initialized:
            self.held.reorder(torch.arange(self.held.batch).repeat_interleave(repeats))
            self._shown()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some batch rows, by their numbers or as booleans."""
        if self.is_initialized:
            self.held.reorder(torch.arange(self.held.batch)[indices.cpu()])
            self._shown()


def keep_entries(
    cache: DynamicCache, indices: torch.Tensor | Sequence[torch.Tensor | None]
) -> None:
    """Keep some entries of each layer of a cache; an attached model goes on as if the other keys were hidden.

    Positions stay those of the text, also in masks and in later statistics of `observe`. `heavy_hitters`,
    `observed_keys` and `first_and_last` of `regard.layers.caches` choose entries.

    Args:
        cache: a DynamicCache, such as that of `model(..., use_cache=True)`.
        indices: positions as `Cache.keep` takes them, for all layers or one for each; None leaves a layer as it is.

    Raises:
        ArgumentError, ShapeError: another number of layers, or positions that are not held.
        UnsupportedError: a layer that is no plain one: windows, latents, quantised entries.

    After an error the cache is unchanged.

    >>> import transformers
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    >>> from regard.integrations.transformers import attach
    >>> model = attach(transformers.GPT2LMHeadModel(config)).eval()
    >>> output = model(torch.tensor([[1, 2, 3, 4, 5]]), use_cache=True)
    >>> keyword = "cache" if "cache" in output else "past_key_values"  # before transformers 5.24
    >>> cache = output[keyword]
    >>> keep_entries(cache, torch.tensor([0, 3, 4]))
    >>> output = model(torch.tensor([[6]]), **{keyword: cache})
    >>> cache.get_seq_length(), cache.layers[0].keys.shape
    (6, torch.Size([1, 2, 4, 4]))
    """
    layers = of_kind("cache", cache, DynamicCache, "a DynamicCache of transformers").layers
    each = [indices] * len(layers) if isinstance(indices, torch.Tensor) else indices
    if not isinstance(each, Sequence) or len(each) != len(layers):
        raise ArgumentError(
            f"indices are {shown(indices)}; give positions as a tensor for all {count_of(len(layers), 'layers')}, or a "
            f"list with one for each"
        )
    kept = []
    for number, (layer, chosen) in enumerate(zip(layers, each, strict=True)):
        if chosen is not None and type(layer) not in (DynamicLayer, KeptLayer):
            raise UnsupportedError(
                f"layer {number} of this cache is {type(layer).__name__}, and only a DynamicLayer drops entries; give "
                f"None for this layer"
            )
        if chosen is not None and not layer.get_seq_length():
            raise ArgumentError(
                f"layer {number} of this cache holds no entries yet; run the model on a prompt first"
            )
        own = layer if isinstance(layer, KeptLayer) or chosen is None else KeptLayer(layer)
        kept.append(own if chosen is None else own.keeping(chosen))
    cache.layers = kept
