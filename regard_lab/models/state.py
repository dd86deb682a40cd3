"""What a model keeps while it writes: the caches of its layers and the sources it reads."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol, TypeVar

import torch

from regard.arguments import a_list, count_of, each, of_kind, whole
from regard.errors import ArgumentError
from regard.layers import LatentAttention, MultiHeadAttention, ProjectedContext
from regard.layers.caches import Cache, RecurrentState, RingCache
from regard.patterns import KeySpan
from regard.reprs import Described, brief
from regard_lab.models.base import align
from regard_lab.models.layers import AttentionLayer
from regard_lab.text.vocabularies import PAD


class State(Protocol):
    """The state of texts that a model is writing, one per batch row. The caller owns it; each step advances it."""

    @property
    def length(self) -> int:
        """Number of ids read so far, of the longest text."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...

    def reorder(self, index: torch.Tensor) -> None:
        """Continue batch row i from batch row `index[i]`; index: integers (new batch,)."""
        ...


StateT = TypeVar("StateT", bound=State)


class Writer(Protocol[StateT]):
    """A model that writes texts id by id."""

    def start(self, texts: torch.Tensor, /) -> StateT:
        """The state for continuing or translating texts (batch, length), padded with PAD."""
        ...

    def step(self, ids: torch.Tensor, state: StateT, /) -> torch.Tensor:
        """Append `ids` (batch,) to the texts of the state, and return logits (batch, vocab_size) of the next ids."""
        ...


class LayerCaches(Described):
    """One cache for each attention layer of a model. If one cache refuses a change, none is changed.

    >>> layers = [MultiHeadAttention(dim=8, heads=2, pattern="causal") for _ in range(3)]
    >>> caches = LayerCaches(layer.new_cache(batch=1) for layer in layers)
    >>> with torch.no_grad():
    ...     outputs = [layer(torch.zeros(1, 5, 8), cache=cache) for layer, cache in zip(layers, caches.each)]
    >>> caches.length
    5
    """

    def __init__(self, caches: Iterable[Cache | RecurrentState]) -> None:
        self.each = list(each("caches", caches, "caches, one for each attention layer"))
        for cache in self.each:
            of_kind(
                "caches", cache, (Cache, RecurrentState), "caches, one for each attention layer"
            )

    @property
    def length(self) -> int:
        """Number of positions so far, the same in every layer."""
        return self.each[0].length

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.each)

    @property
    def goes_back(self) -> bool:
        """Whether `crop` can drop any of the last positions: it cannot from a sum or a ring."""
        return not any(isinstance(cache, RecurrentState | RingCache) for cache in self.each)

    def copy(self) -> LayerCaches:
        """Caches at the same position, to go on with instead: both share the memory of later entries."""
        return LayerCaches(copy.copy(cache) for cache in self.each)

    def reorder(self, index: torch.Tensor) -> None:
        """Replace batch row i by batch row `index[i]`; index: integers (new batch,)."""
        self._change(lambda cache: cache.reorder(index))

    def crop(self, length: int) -> None:
        """Keep the first `length` positions and drop the rest.

        Raises:
            ArgumentError, UnsupportedError: a layer's cache no longer holds these positions.
        """
        self._change(lambda cache: cache.crop(length))

    def _change(self, change: Callable[[Any], None]) -> None:
        moved = self.copy()
        for cache in moved.each:
            change(cache)
        self.each = moved.each


def frugal_kind(layer: MultiHeadAttention | LatentAttention) -> str:
    """The kind of cache that continues this layer exactly in the least memory.

    "state" if its mechanism has one, "ring" if its pattern has a limited reach, else "dynamic".

    >>> frugal_kind(MultiHeadAttention(dim=8, heads=2, pattern="causal_window(64)"))
    'ring'
    """
    kind = layer.default_cache_kind
    if kind == "dynamic" and layer.pattern.reach().back is not None:
        return "ring"
    return kind


class Sources:
    """The projected sources of each decoder layer, where neighbouring batch rows may share one source.

    The hypotheses of a beam translate the same source, so its keys and values are stored once, and the hypotheses are
    its queries, unless the pattern depends on the position of the query: then `shared` is False.
    """

    def __init__(
        self, contexts: list[ProjectedContext], live: KeySpan | None, shared: bool
    ) -> None:
        self.contexts = contexts
        self.mask = None
        self.shared = shared
        self.readers = 1  # number of neighbouring batch rows that read each text
        if live is None:
            return

        keys = contexts[0].keys
        places = torch.arange(contexts[0].length, device=keys.device)
        # A KeySpan allows (texts, 1, queries, keys), here for one query: padding is hidden from all alike.
        hidden = ~live.allows(places[:1, None], places[None])[:, 0, 0]  # (texts, source_length)
        # The mask alone would let a NaN at padding through, as 0 times NaN.
        self.contexts = [context.without(hidden) for context in contexts]
        scores = torch.zeros_like(hidden, dtype=keys.dtype).masked_fill(hidden, -math.inf)
        self.mask = scores[:, None, None]  # (texts, 1, 1, source_length)

    @property
    def rows(self) -> int:
        """Number of batch rows."""
        return self.readers * len(self.contexts[0].keys)

    @property
    def nbytes(self) -> int:
        return sum(context.nbytes for context in self.contexts)

    def reorder(self, index: torch.Tensor) -> None:
        """Let batch row i read the source of batch row `index[i]`; index: integers (new batch,)."""
        stored = [row // self.readers for row in index.tolist()]  # a text for each batch row
        runs = [(text, len(list(rows))) for text, rows in groupby(stored)]
        lengths = {length for _, length in runs}
        if self.shared and len(lengths) == 1:  # each text once, for a run of batch rows
            self.readers = lengths.pop()
            stored = [text for text, _ in runs]
        else:
            self.readers = 1

        keys = self.contexts[0].keys
        same_order = list(range(len(keys)))
        if stored == same_order:
            return
        texts = torch.tensor(stored, dtype=torch.int64, device=keys.device)
        self.contexts = [context.reorder(texts) for context in self.contexts]
        if self.mask is not None:
            self.mask = self.mask[texts]


# Texts that a language model continues, and how prompts of unequal lengths are batched


def end_together(prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Align prompts at their ends: ids (batch, longest) padded on the left, and the start (batch,) of each batch row.

    The start is None if all begin at 0.

    >>> end_together(torch.tensor([[5, 6, 7, 0], [0, 8, 9, 0]]))
    (tensor([[5, 6, 7],
            [0, 8, 9]]), tensor([0, 1]))
    """
    aligned = align(prompts)
    ids = aligned.ids
    if aligned.span is None:
        lengths = torch.tensor([ids.shape[1]] * len(ids), device="cpu")
    else:
        lengths = aligned.span.stop
    assert isinstance(lengths, torch.Tensor)
    empty = (lengths == 0).nonzero().flatten().tolist()
    if empty:
        raise ArgumentError(
            f"prompt {empty[0]} of {len(ids)} has no ids; a prompt needs one or more, such as BEGIN"
        )
    if aligned.span is None:
        return ids, None

    longest = int(lengths.max())
    starts = longest - lengths
    if not bool(starts.any()):
        return ids[:, :longest], None

    places = torch.arange(longest, device=ids.device) - starts[:, None]  # (batch, longest)
    moved = ids.gather(1, places.clamp(min=0))
    return moved.masked_fill(places < 0, PAD), starts


def may_begin_at(starts: torch.Tensor, layer: AttentionLayer) -> bool:
    """Whether this layer gives texts that begin at these positions (batch,) the outputs of texts that begin at 0."""
    if layer.chooser is not None:  # blocks are counted from position 0
        return False
    # Rotary keeps the dot products of shifted texts, but not the features or hashes of other mechanisms.
    if layer.positions is not None and not layer.mechanism.declared.is_softmax:
        return False
    # A shift by a multiple of the period changes no allowed pair; None: the pattern counts from position 0.
    period = layer.pattern.canonical().period
    return period is not None and not bool((starts % period).any())


def by_start(starts: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
    """The batch rows (texts,) that begin at each position, with that position; the longest texts come first.

    >>> by_start(torch.tensor([2, 0, 2]))
    [(tensor([1]), 0), (tensor([0, 2]), 2)]
    """
    groups = []
    for place in sorted(set(starts.tolist())):
        rows = (starts == place).nonzero().flatten()
        groups.append((rows, place))
    return groups


@dataclass(frozen=True)
class TextGroup:
    """Texts that a model continues together; in its caches they all end at the same position.

    Args:
        caches: one for each layer.
        starts: the position (texts,) at which each begins; None if all begin at 0.
        rows: their batch rows (texts,); None for all.
    """

    caches: LayerCaches
    starts: torch.Tensor | None = None
    rows: torch.Tensor | None = None

    @cached_property
    def live(self) -> KeySpan | None:
        """The pattern of keys without padding, or None."""
        return None if self.starts is None else KeySpan(self.starts)

    @property
    def shortest(self) -> int:
        """Number of ids of the shortest text."""
        longest = self.caches.length
        if self.starts is None:
            return longest
        return longest - int(self.starts.max())

    def of(self, ids: torch.Tensor) -> torch.Tensor:
        """The ids of these texts among those of the batch, (batch, ...)."""
        return ids if self.rows is None else ids[self.rows]

    def places(self, further: torch.Tensor) -> torch.Tensor:
        """Positions in their texts of new ids: the next id is 0 `further`, the one after it 1; `further` is (added,).

        They are (added,), or (texts, added) if the texts begin at different positions.
        """
        places = self.caches.length + further
        if self.starts is None:
            return places
        return (places - self.starts[:, None]).clamp(min=0)

    def reordered(self, index: torch.Tensor) -> TextGroup:
        """The new batch rows that continue one of these texts."""
        rows = None
        if self.rows is not None:
            # numbers of the new batch rows that continue these texts, and of the texts in this group
            rows, index = (index[:, None] == self.rows).nonzero().unbind(1)
        caches = self.caches.copy()
        caches.reorder(index)
        starts = None if self.starts is None else self.starts[index]
        return TextGroup(caches, starts, rows)

    def cropped(self, length: int) -> TextGroup:
        """These texts with `length` positions; with 0, the starts are reset."""
        caches = self.caches.copy()
        caches.crop(length)
        starts = self.starts if length else None
        return replace(self, caches=caches, starts=starts)

    @staticmethod
    def joined(parts: list[torch.Tensor], groups: list[TextGroup]) -> torch.Tensor:
        """The results of all groups in the order of the batch rows."""
        rows = [texts.rows for texts in groups if texts.rows is not None]
        if not rows:
            return parts[0]
        return torch.cat(parts)[torch.cat(rows).argsort()]


NOT_ASKED = "not asked"  # the program of a state before its first step


@brief
@dataclass
class LanguageState:
    """The state of texts that a language model continues.

    Args:
        groups: texts that are continued together; several groups if texts of unequal lengths cannot share one.
        next_scores: (batch, vocab_size), scores of the first new ids; None after the first step.
    """

    groups: list[TextGroup]
    next_scores: torch.Tensor | None = None
    # The program of a small model's steps, or None. The first step makes it; each copy of a state
    # makes its own.
    program: Any = field(default=NOT_ASKED, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "program": NOT_ASKED}

    @property
    def length(self) -> int:
        """Number of ids so far, of the longest text."""
        return max(texts.caches.length for texts in self.groups)

    @property
    def goes_back(self) -> bool:
        """Whether `crop` can drop any of the last ids: not from a recurrent state or a ring; keep a copy there."""
        return all(texts.caches.goes_back for texts in self.groups)

    @property
    def nbytes(self) -> int:
        """Bytes held by the caches."""
        return sum(texts.caches.nbytes for texts in self.groups)

    def reorder(self, index: torch.Tensor) -> None:
        """Continue batch row i from batch row `index[i]`; index: integers (new batch,)."""
        groups = [texts.reordered(index) for texts in self.groups]
        rows = [texts.rows for texts in groups if texts.rows is not None]
        if rows and sum(map(len, rows)) < len(index):
            raise ArgumentError(
                f"reorder to rows {index.tolist()}: the state has no such batch rows"
            )
        with_rows = [texts for texts in groups if texts.rows is None or len(texts.rows)]
        groups = with_rows or groups[:1]
        scores = None if self.next_scores is None else self.next_scores[index]
        # in one statement, which an exception cannot divide
        self.groups, self.next_scores = groups, scores

    def crop(self, length: int) -> None:
        """Crop the longest text to `length` ids and every other text by the same number; 0 drops everything.

        Raises:
            ArgumentError, UnsupportedError: a text with too few ids, or a cache that dropped these positions.
        """
        length = whole("length", length, 0)
        lost = self.length - length
        shortest = min(texts.shortest for texts in self.groups)
        if length and not 0 <= lost <= shortest:
            raise ArgumentError(
                f"crop({length}): the longest text has {count_of(self.length, 'ids')} and the shortest {shortest}, and "
                f"each loses as many; give {self.length - shortest} to {self.length}, or 0"
            )

        groups = []
        for texts in self.groups:
            kept = texts.caches.length - lost if length else 0
            groups.append(texts.cropped(kept))
        scores = None if lost else self.next_scores
        # in one statement, as in `reorder`
        self.groups, self.next_scores = groups, scores

    def accept(self, path: Sequence[int], nodes: int) -> None:
        """Of the last `nodes` ids, those of a `Tree`, keep those of one branch: the text goes on as with these alone.

        Args:
            path: the rows of the branch in the tree, beginning at its root.
        """
        branch = torch.tensor(a_list("path", path, int, "the rows of a branch"), dtype=torch.int64)
        nodes = whole("nodes", nodes, 0, self.length)
        groups = [replace(texts, caches=texts.caches.copy()) for texts in self.groups]
        for caches in (texts.caches for texts in groups):
            root = caches.length - nodes  # position of the tree's first id
            caches._change(lambda cache, root=root: cache.keep(root + branch, after=root))
        self.groups = groups
