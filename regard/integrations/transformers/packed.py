"""Packed texts in hybrid models: no layer mixes the documents of a batch row, neither by softmax, nor by a memory, nor
by a short convolution.

In transformers, softmax layers keep documents apart where positions start again, if there is neither a mask nor a
cache; the other layers know of no documents. Here the documents are read once, before the forward of a model, and
each layer gets them as one more of the keywords that models pass on to their layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.arguments import count_of, shown
from regard.errors import ShapeError, UnsupportedError

__all__ = ["CACHES", "DOCUMENTS", "DocumentsOfPass", "check_documents_were_read", "pass_documents"]

DOCUMENTS = "regard_documents"  # the keyword by which layers get them
CACHES = (
    "cache",
    "past_key_values",
    "cache_params",
)  # the keywords of caches in versions of transformers
OTHER = -1  # the document of cached keys that no new position may look at


class DocumentsOfPass(NamedTuple):
    """The documents of a forward pass of n new positions.

    ids: (batch, cached + n), the document of each key. begins: (batch, n), True where a new position begins one.
    readers: the layers with a memory or a convolution that got them so far.
    """

    ids: torch.Tensor
    begins: torch.Tensor
    readers: list[nn.Module]

    @classmethod
    def that_begin(cls, begins: torch.Tensor) -> DocumentsOfPass:
        """The documents of a call without a cache."""
        return cls(begins.to(torch.int64).cumsum(-1), begins, [])


def pass_documents(
    names: Sequence[str], unpacked: Sequence[str], part: nn.Module, args: Any, keywords: Any
) -> Any:
    """Before a forward of a model: its arguments with the documents, if it has several in a batch row.

    Args:
        names: those of the parameters of its forward.
        unpacked: names of layers that would mix documents.
        part, args, keywords: what PyTorch gives such a hook.

    Raises:
        UnsupportedError: layers that would mix documents, or `cu_seq_lens_q` beside a cache.
        ShapeError: `cu_seq_lens_q` that are not the ends of documents of one batch row.
    """
    if DOCUMENTS in keywords:
        return None
    values = {**dict(zip(names, args, strict=False)), **keywords}
    x = values.get("input_ids")
    if x is None:
        x = values.get("inputs_embeds")
    if not isinstance(x, torch.Tensor) or x.dim() < 2:
        return None
    added = {}
    ends = values.get("cu_seq_lens_q")
    if ends is not None:
        _check_ends(ends, x, values)
        documents = _between(ends, x.shape[1])
        if values.get("position_ids") is None and "position_ids" in names:
            added["position_ids"] = _positions_between(ends, documents)
    else:
        documents = _by_positions(values, x)
    if documents is None:
        return None
    if unpacked:
        raise UnsupportedError(
            f"{type(part).__name__} was given several documents in a batch row, and {unpacked[0]} would mix them; give "
            f"each document a batch row"
        )
    return args, {**keywords, **added, DOCUMENTS: documents}


def check_documents_were_read(part: nn.Module, args: Any, keywords: Any, output: Any) -> None:
    """After a forward of a model: raise an UnsupportedError if its layers did not get the documents."""
    documents = keywords.get(DOCUMENTS)
    if documents is not None and not documents.readers:
        raise UnsupportedError(
            f"{type(part).__name__} was given several documents in a batch row, and passes no keywords on to its "
            f"layers, which would mix them; give each document a batch row"
        )


def _check_ends(ends: Any, x: torch.Tensor, values: Mapping[str, Any]) -> None:
    if torch.compiler.is_compiling():
        return
    if _cached(values):
        raise UnsupportedError(
            f"cu_seq_lens_q beside a cache of {count_of(_cached(values), 'positions')} does not say which document "
            f"goes on; give position_ids, which begin again with each document"
        )
    if x.shape[0] != 1 or not isinstance(ends, torch.Tensor) or ends.dim() != 1 or not len(ends):
        raise ShapeError(
            f"cu_seq_lens_q is {shown(ends)} beside {count_of(x.shape[0], 'batch rows')}; it is for one batch row, "
            f"(documents + 1,): the first position of each document, and the end of the last"
        )
    listed = ends.tolist()
    if listed[0] or listed[-1] != x.shape[1] or listed != sorted(listed):
        raise ShapeError(
            f"cu_seq_lens_q goes from {listed[0]} to {listed[-1]}; it begins at 0, never falls, and ends at "
            f"{x.shape[1]}, the positions of the batch row"
        )


def _between(ends: torch.Tensor, length: int) -> DocumentsOfPass:
    """The documents of one batch row that have these ends."""
    positions = torch.arange(length, device=ends.device)
    ids = torch.bucketize(positions, ends.to(torch.int64), right=True)[None]
    return DocumentsOfPass(ids, _changes(ids), [])


def _changes(ids: torch.Tensor) -> torch.Tensor:
    """True where a position has another document than the one before, (batch, n), and at the first position."""
    return torch.nn.functional.pad(ids[:, 1:] != ids[:, :-1], (1, 0), value=True)


def _positions_between(ends: torch.Tensor, documents: DocumentsOfPass) -> torch.Tensor:
    positions = torch.arange(documents.ids.shape[1], device=ends.device)
    return positions - ends.to(torch.int64)[documents.ids - 1]


def _by_positions(values: Mapping[str, Any], x: torch.Tensor) -> DocumentsOfPass | None:
    """The documents that begin where positions do not go on; None if each batch row holds one."""
    positions = values.get("position_ids")
    if not isinstance(positions, torch.Tensor):
        return None
    if positions.dim() == 3 and len(positions) == 4:
        positions = positions[0]  # of the text; the others are those of images
    if positions.dim() == 1:
        positions = positions[None]
    batch, length = x.shape[:2]
    if positions.dim() != 2 or positions.shape[1] != length:
        return None
    positions = positions.expand(batch, length)
    mask = values.get("attention_mask")
    unpadded = None
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and mask.shape[1] >= length:
        unpadded = mask.to(device=positions.device, dtype=torch.bool)
    begins = _restarts(positions, None if unpadded is None else unpadded[:, -length:])
    if torch.compiler.is_compiling():
        # A graph cannot ask how much a cache holds, and has no documents beside one, as in transformers.
        return None if _has_cache(values) else DocumentsOfPass.that_begin(begins)
    if _has_cache(values):
        return _continued(positions, unpadded, begins, _cached(values))
    return DocumentsOfPass.that_begin(begins) if bool(begins.any()) else None


def _has_cache(values: Mapping[str, Any]) -> bool:
    return any(values.get(name) is not None for name in CACHES)


def _cached(values: Mapping[str, Any]) -> int:
    """The number of positions in the cache of a call."""
    for name in CACHES:
        cache = values.get(name)
        if cache is not None:
            return int(cache.get_seq_length())
    return 0


def _restarts(positions: torch.Tensor, unpadded: torch.Tensor | None) -> torch.Tensor:
    """True where a position does not follow the one before in the call, (batch, n).

    Padding has no position: the one before is the last that is not padding.
    """
    if unpadded is None:
        first = positions[:, :1] - 1
        return torch.diff(positions, prepend=first, dim=-1) != 1
    places = torch.arange(positions.shape[1], device=positions.device).expand_as(positions)
    last = torch.where(unpadded, places, -1).cummax(-1).values
    last = torch.nn.functional.pad(last[:, :-1], (1, 0), value=-1)
    before = positions.gather(-1, last.clamp_min(0))
    goes_back = positions <= before
    jumps = (last == places - 1) & (positions != before + 1)
    return unpadded & (last >= 0) & (goes_back | jumps)


def _continued(
    positions: torch.Tensor, unpadded: torch.Tensor | None, begins: torch.Tensor, cached: int
) -> DocumentsOfPass | None:
    """The documents of a call with a cache; the first position says how much of the first document is in the cache."""
    batch, length = positions.shape
    device = positions.device
    if unpadded is None:
        of_cache = torch.ones(batch, cached, dtype=torch.bool, device=device)
        first = torch.zeros(batch, 1, dtype=torch.int64, device=device)
    else:
        of_cache = unpadded[:, :-length]
        first = unpadded[:, -length:].to(torch.int64).argmax(-1, keepdim=True)
    length_so_far = positions.gather(-1, first)  # (batch, 1)
    known = of_cache.sum(-1, keepdim=True)
    if not bool(begins.any()) and not bool((length_so_far < known).any()):
        return None
    is_new = (length_so_far == 0) & (known > 0)
    begins = begins.scatter(-1, first, is_new | begins.gather(-1, first))
    # Counted from the last cached key back, the keys of the first document come first.
    count = of_cache[:, of_cache.shape[1] - cached :].flip(-1).to(torch.int64).cumsum(-1).flip(-1)
    ids_of_cache = torch.where(count <= length_so_far, 0, OTHER)
    ids = begins.to(torch.int64).cumsum(-1)
    return DocumentsOfPass(torch.cat((ids_of_cache, ids), -1), begins, [])
