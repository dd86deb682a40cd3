"""A cache of transformers that keeps what a window with sinks may look at: the first keys and the last ones.

Rotary positions are in the keys, so dropped keys move nothing. Attention counts the keys that are left, and a pattern
of a window and first keys allows the same ones: no window reaches back over the place where keys were dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from regard.errors import UnsupportedError
from regard.integrations.transformers.caches import cache_with, check_batch
from regard.integrations.transformers.masks import PatternMask
from regard.layers.caches.entries import is_closed
from regard.patterns import Pattern
from regard.patterns.dropping import kept_keys, misplaced

__all__ = ["WindowLayer", "check_kept", "mask_of_kept", "window_cache"]

DROPPED = "_regard_dropped"  # on the keys of a call: which keys are left out, as a range
LEAST_SPARE = 16  # entries beyond the window that a room has space for


def check_kept(pattern: Pattern, first: int, last: int) -> None:
    """Raise unless a pattern allows the same pairs after keys were dropped behind the `first` keys and before the
    `last` ones, of which one is the first query's own."""
    needed = kept_keys(pattern)
    if needed is None or needed[0] > first or needed[1] > last:
        needs = "all keys"
        if needed is not None:
            needs = f"the first {needed[0]} keys and the last {needed[1]}"
        raise UnsupportedError(
            f"this call computes {pattern}, which may look at {needs}, and the cache kept the first {first} and the "
            f"last {last}; make the cache with new_cache(attention_mask=...) of change_attention, and give it the mask "
            f"of the prompt if rows are padded on the left"
        )
    part = misplaced(pattern, first, last)
    if part is not None:
        raise UnsupportedError(
            f"this call computes {part}, whose positions are not known where a cache drops keys; windows, prefixes "
            f"and left padding are. Use the model's own cache for it"
        )


def mask_of_kept(key: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor | None:
    """The mask of the keys that a `WindowLayer` kept; the given one for keys of any other cache."""
    dropped: range | None = getattr(key, DROPPED, None)
    if dropped is None or not isinstance(mask, PatternMask):
        return mask
    if mask.sizes[3] != key.shape[2] + len(dropped):
        return mask
    shortened = mask.plans.get(dropped)
    if shortened is None:
        shortened = mask.plans[dropped] = mask.without(dropped)
    return shortened


def window_cache(
    model: PreTrainedModel,
    modules: Iterable[nn.Module],
    pattern: Pattern,
    attention_mask: torch.Tensor | None,
) -> DynamicCache:
    """A cache for a model in which these modules compute this pattern, counted from each row's first unpadded key."""
    if model.config.is_encoder_decoder:
        raise UnsupportedError(
            f"{type(model).__name__} has a cache for each of its two sequences; use its own cache"
        )
    needed = kept_keys(pattern)
    if needed is None:
        raise UnsupportedError(
            f"{pattern} may look at keys of any distance, so a cache may drop none; use the model's own cache, or a "
            f"window with sinks such as 'causal_window(1024) | prefix(4)'"
        )
    first, window = needed
    if attention_mask is not None:
        # so that each row keeps its own first keys
        first += int((attention_mask.cumsum(-1) == 0).sum(-1).max())

    changed = {getattr(module, "layer_idx", None) for module in modules}
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    cache = cache_with(model, changed, count, lambda: WindowLayer(first, window))
    if cache is None:
        raise UnsupportedError(
            f"no replaced layer of {type(model).__name__} keeps all keys in its own cache, so there is none to drop; "
            f"use the model's own cache"
        )
    return cache


class WindowLayer(DynamicLayer):
    """A layer of a cache that keeps the first keys and the last ones.

    Kept entries are neighbours in memory. A step of decoding copies the first keys one place on, over the key that
    leaves the window; all entries move only when the room, a quarter larger than the window, is used up. Where a caller
    has taken `keys` or `values`, or a copy of the layer, the next step moves the entries first, so these never change.

    Args:
        first: how many of the first keys are kept.
        window: how many keys a query may look at in its window, its own included.
    """

    is_croppable = False

    def __init__(self, first: int, window: int) -> None:
        self._entries: list[torch.Tensor | None] = [None, None]  # keys and values
        self._taken = False  # whether others may hold them, so that none is written over
        super().__init__()
        self.first = first
        self.window = window
        self.cumulative_length = 0
        self._rooms: list[torch.Tensor] = []
        # The entries as views of the rooms, which start at the slot `_begin`.
        self._views: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
        self._begin = 0

    @property
    def keys(self) -> torch.Tensor | None:
        """The keys that are kept, and of the last call also those that leave the window."""
        self._taken = True
        return self._entries[0]

    @keys.setter
    def keys(self, keys: torch.Tensor | None) -> None:
        self._entries = [keys, self._entries[1]]

    @property
    def values(self) -> torch.Tensor | None:
        """The values of `keys`."""
        self._taken = True
        return self._entries[1]

    @values.setter
    def values(self, values: torch.Tensor | None) -> None:
        self._entries = [self._entries[0], values]

    def __copy__(self) -> WindowLayer:
        self._taken = True
        copied = WindowLayer(self.first, self.window)
        copied.__dict__.update(self.__dict__)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        entries = [None if x is None else x.clone() for x in self._entries]
        return self.__dict__ | {"_entries": entries, "_rooms": [], "_views": (None, None)}

    def __repr__(self) -> str:
        return f"WindowLayer(first={self.first}, window={self.window}, length={self.cumulative_length})"

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Hold no entries, of the shapes of these."""
        super().lazy_initialization(key_states, value_states)
        self.keys = key_states[:, :, :0]
        self.values = value_states[:, :, :0]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Append entries, and return the kept ones with the new ones; the keys hold which are left out."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        check_batch(self._entries[0], key_states)
        added = key_states.shape[2]
        kept = min(self._held(), self._most_kept)
        gap = self.cumulative_length - kept
        if added == 1 and kept == self._most_kept and not key_states.requires_grad:
            keys, values = self._slide(key_states, value_states)
        else:
            old_keys, old_values = self._entries
            keys = torch.cat((self._trim(old_keys), key_states), 2)
            values = torch.cat((self._trim(old_values), value_states), 2)
            self._entries = [self._trim(keys), self._trim(values)]
        self.cumulative_length += added
        if gap:
            setattr(keys, DROPPED, range(self.first, self.first + gap))
        return keys, values

    @property
    def _most_kept(self) -> int:
        """The most entries that are kept between two calls."""
        return self.first + self.window - 1

    def _held(self) -> int:
        keys, _ = self._entries
        return 0 if keys is None else keys.shape[2]

    def _trim(self, entries: Any) -> torch.Tensor:
        """The entries to keep; the same tensor where all are."""
        held = entries.shape[2]
        if held <= self._most_kept:
            return entries
        last = held - (self.window - 1)
        return torch.cat((entries[:, :, : self.first], entries[:, :, last:]), 2)

    def _slide(
        self, new_key: torch.Tensor, new_value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The kept entries with one more, in place."""
        kept = self._most_kept
        excess = self._held() - kept  # 1 after the first step: the key that leaves the window
        if self._must_move():
            self._rooms = [self._new_room(self._trim(entries)) for entries in self._entries]
            self._begin = 0
            self._taken = False
        elif excess:
            for room in self._rooms:
                first = room[:, :, self._begin : self._begin + self.first].clone()
                room[:, :, self._begin + excess : self._begin + excess + self.first] = first
            self._begin += excess
        if self._begin + kept == self._rooms[0].shape[2]:
            for room in self._rooms:
                room[:, :, :kept] = room[:, :, self._begin :].clone()
            self._begin = 0

        end = self._begin + kept
        for room, new in zip(self._rooms, (new_key, new_value), strict=True):
            room[:, :, end : end + 1] = new
        keys, values = (room[:, :, self._begin : end + 1] for room in self._rooms)
        self._entries = [keys, values]
        self._views = (keys, values)
        return keys, values

    def _must_move(self) -> bool:
        """Whether the entries are not those of the rooms, or the rooms may not be written."""
        keys, values = self._entries
        if self._taken or self._views[0] is not keys or self._views[1] is not values:
            return True
        return is_closed(self._rooms[0])

    def _new_room(self, entries: torch.Tensor) -> torch.Tensor:
        """A room that begins with these entries."""
        batch, heads, held, dim = entries.shape
        size = held + max(LEAST_SPARE, self.window // 4)
        room = entries.new_empty(batch, heads, size, dim)
        room[:, :, :held] = entries
        return room

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The length of the whole text, and 0: masks are made for it, and cut to the kept keys."""
        return self.cumulative_length + query_length, 0

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last entries, where none was dropped yet."""
        if self._entries[0] is not None and self._held() < self.cumulative_length:
            raise UnsupportedError(
                f"this cache kept {self._held()} of {self.cumulative_length} entries, and cannot go back to keys "
                f"that it dropped; use the model's own cache for assisted decoding"
            )
        super().crop(tokens_to_remove)
        self.cumulative_length = self._held()
