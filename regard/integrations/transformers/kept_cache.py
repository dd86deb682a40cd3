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

    entries: GrowingCache

    def __init__(self, layer: DynamicLayer) -> None:
        super().__init__()
        assert layer.keys is not None
        assert layer.values is not None
        self.lazy_initialization(layer.keys, layer.values)
        self.entries.append(layer.keys, layer.values)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Hold no entries, of the shapes of these."""
        super().lazy_initialization(key_states, value_states)
        batch, heads, _, head_dim = key_states.shape
        v_dim = value_states.shape[3]
        dtype = key_states.dtype
        device = key_states.device
        self.entries = _KeptEntries(batch, heads, head_dim, v_dim, dtype, device, shared=True)

    def __copy__(self) -> KeptLayer:
        copied = object.__new__(KeptLayer)
        copied.__dict__.update(self.__dict__)
        copied.entries = copy.copy(self.entries)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"keys": None, "values": None}  # `entries` has them

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.is_initialized:
            self._publish()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Append entries, and return all that are held; the keys hold their positions too."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.entries.append(key_states, value_states)
        return self._publish()

    def _publish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Set and return `keys` and `values`; the keys carry positions where some entries were dropped."""
        stored_keys = self.entries.keys
        stored_values = self.entries.values
        keys = stored_keys if isinstance(stored_keys, torch.Tensor) else stored_keys.numbers
        values = stored_values if isinstance(stored_values, torch.Tensor) else stored_values.numbers
        if stored_keys is not keys:
            setattr(keys, STORED, (stored_keys, stored_values))
        self.keys = keys
        self.values = values
        return keys, values

    def with_entries(self, positions: torch.Tensor) -> KeptLayer:
        """A layer with the entries at these positions alone."""
        layer = copy.copy(self)
        layer.entries.keep(positions)
        layer._publish()
        return layer

    def get_seq_length(self) -> int:
        """The length of the text, of which some entries were dropped."""
        return self.entries.length if self.is_initialized else 0

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last tokens; their number may be given below 0."""
        if tokens_to_remove and self.is_initialized:
            self.entries.crop(max(0, self.entries.length - abs(tokens_to_remove)))
            self._publish()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Replace the batch rows by others."""
        if self.is_initialized:
            self.entries.reorder(beam_idx)
            self._publish()

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each batch row."""
        if self.is_initialized:
            self.entries.reorder(torch.arange(self.entries.batch).repeat_interleave(repeats))
            self._publish()

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some batch rows, by their numbers or as booleans."""
        if self.is_initialized:
            self.entries.reorder(torch.arange(self.entries.batch)[indices.cpu()])
            self._publish()


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
    by_layer = [indices] * len(layers) if isinstance(indices, torch.Tensor) else indices
    if not isinstance(by_layer, Sequence) or len(by_layer) != len(layers):
        raise ArgumentError(
            f"indices are {shown(indices)}; give positions as a tensor for all {count_of(len(layers), 'layers')}, or a "
            f"list with one for each"
        )
    cache.layers = [
        _kept_layer(number, layer, positions)
        for number, (layer, positions) in enumerate(zip(layers, by_layer, strict=True))
    ]


def _kept_layer(number: int, layer: Any, positions: torch.Tensor | None) -> Any:
    """The layer with the entries at these positions; the given one is unchanged."""
    if positions is None:
        return layer
    if type(layer) not in (DynamicLayer, KeptLayer):
        raise UnsupportedError(
            f"layer {number} of this cache is {type(layer).__name__}, and only a DynamicLayer drops entries; give "
            f"None for this layer"
        )
    if not layer.get_seq_length():
        raise ArgumentError(
            f"layer {number} of this cache holds no entries yet; run the model on a prompt first"
        )
    if type(layer) is DynamicLayer:
        layer = KeptLayer(layer)
    return layer.with_entries(positions)
