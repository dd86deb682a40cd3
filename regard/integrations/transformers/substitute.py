"""The pattern and the mechanism that `change_attention` gives to the calls of a module.

A pattern is joined with a model's own mask, and counted from the first unpadded key of each row. Inside torch.compile
that key is known when the graph runs. Prefixes and spans of keys are moved by a tensor there. What other patterns and
packed texts need is checked by the operation `regard::checked`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.errors import UnsupportedError
from regard.integrations.transformers.attending import ModuleCall
from regard.integrations.transformers.masks import PatternMask
from regard.integrations.transformers.traced_masks import TracedMask
from regard.integrations.transformers.window_cache import check_kept
from regard.mechanisms import Mechanism
from regard.patterns import Causal, Full, KeyMask, Pattern, SameDocument
from regard.patterns.documents import document_ids
from regard.reprs import Described

__all__ = ["Substitute"]

MOST_KEPT = 64  # joined patterns of one substitute
torch.library.define("regard::checked", "(Tensor x, Tensor holds, str sentence) -> Tensor")
_operation: Any = torch.ops.regard


class Substitute(Described):
    """A pattern and a mechanism for the calls of a module; the modules of one change share it.

    Args:
        pattern: positions are counted from the first unpadded key of each batch row.
        mechanism: None for the module's own softmax.
    """

    def __init__(self, pattern: Pattern, mechanism: Mechanism | None) -> None:
        self.pattern = pattern
        self.mechanism = mechanism
        self._kept: dict[tuple[Pattern, tuple[int, ...]], Pattern] = {}
        # Computed here, since torch.compile does not trace it; patterns keep their period once it was computed.
        self.causal = (Causal() & pattern).canonical()
        self.text = str(pattern)
        self.by_distance = pattern.period == 1

    def of(
        self,
        module: nn.Module,
        call: ModuleCall,
        mask: torch.Tensor | None,
        q_len: int,
        k_len: int,
    ) -> ModuleCall:
        """The call that is computed instead: pairs that both its own pattern and this one allow.

        mask: what transformers gave. Refused where the positions that the pattern needs are not known.
        """
        if self.mechanism is not None:
            scale = call.scale if "scale" in self.mechanism.options else None  # that of the softmax
            call = call._replace(mechanism=self.mechanism, scale=scale)
        name = f"{type(module).__name__} computes {self.text}"
        if isinstance(mask, PatternMask):
            pattern, plans = self._beside(mask, name)
            return call._replace(pattern=pattern, q_start=mask.begin, plans=plans)
        if self.pattern == Full():
            return call
        if isinstance(mask, TracedMask):
            return call._replace(pattern=self._beside_traced(mask, name))

        if q_len != k_len and (mask is not None or not self.by_distance):
            raise UnsupportedError(
                _unknown(name, f"{q_len} queries beside {k_len} keys of a cache")
            )
        if mask is not None and not self.by_distance:
            call = _check_first_keys(call, mask, name)
        if call.pattern == Full():
            return call._replace(pattern=self.pattern)
        if call.pattern == Causal():
            return call._replace(pattern=self.causal)
        return call._replace(pattern=call.pattern & self.pattern)

    def _beside(self, mask: PatternMask, name: str) -> tuple[Pattern, dict[Any, Any]]:
        """The pattern beside a mask, and its plans; made once for all layers that share the mask."""
        made: tuple[Pattern, dict[Any, Any]] | None = mask.plans.get(self)
        if made is not None:
            return made

        pattern = self._joined(mask, name)
        if mask.dropped:
            first = mask.dropped.start
            q_len, k_len = mask.sizes[2:]
            check_kept(pattern, first, k_len - q_len - first + 1)
        made = pattern, {}
        mask.plans[self] = made
        return made

    def _joined(self, mask: PatternMask, name: str) -> Pattern:
        """The pairs that a mask and the pattern allow; kept for masks of equal values, since each token asks for it."""
        origins = (0,) if self._is_everywhere_equal() else mask.origins
        if not mask.pattern.by_value:
            return (mask.pattern & self._moved(mask.pattern, origins, name)).canonical()

        key = mask.pattern, origins
        pattern = self._kept.get(key)
        if pattern is None:
            pattern = (mask.pattern & self._moved(mask.pattern, origins, name)).canonical()
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[key] = pattern
        return pattern

    def _is_everywhere_equal(self) -> bool:
        """Whether it does not matter from which key positions count."""
        return self.by_distance or self.pattern == Full()

    def _moved(self, own_pattern: Pattern, origins: tuple[int, ...], name: str) -> Pattern:
        """The pattern counted from these origins, beside the pattern of a mask."""
        if self._is_everywhere_equal():
            return self.pattern
        if document_ids(own_pattern):
            raise UnsupportedError(_packed(name))
        moved = self.pattern.moved(origins)
        if moved is None:
            first_keys = str(origins if len(origins) > 1 else origins[0])
            raise UnsupportedError(_unmovable(name, first_keys))
        return moved

    def _beside_traced(self, mask: TracedMask, name: str) -> Pattern:
        """The pattern beside a mask of a graph; where they do not fit together, the graph raises when it runs.

        The mask has patterns of distances, `SameDocument` and `KeyMask`, joined by `&`.
        """
        if self.by_distance:
            return mask.pattern & self.pattern
        if mask.first_key != 0:
            raise UnsupportedError(_unknown(name, "keys of a cache that dropped the first ones"))
        for substitute, joined in mask.joined:
            if substitute is self:
                return joined  # made, and checked, for an earlier layer

        parts = []
        moved = self.pattern
        for part in mask.pattern.factors:
            if document_ids(part):
                (ids,) = document_ids(part)
                is_one_document = (ids == ids[..., :1]).all()
                part = SameDocument(checked(ids, is_one_document, _packed(name)))
            elif isinstance(part, KeyMask):
                unpadded = part.mask
                origins = unpadded.to(torch.int64).argmax(-1).reshape(-1)
                moved_by_row = self.pattern.moved(origins)
                if moved_by_row is None:
                    begins_at_0 = (origins == 0).all()
                    part = KeyMask(checked(unpadded, begins_at_0, _unmovable(name, "different")))
                else:
                    moved = moved_by_row
            parts.append(part)
        joined = moved
        for part in parts:
            joined = joined & part
        mask.joined.append((self, joined))
        return joined


def _check_first_keys(call: ModuleCall, mask: torch.Tensor, name: str) -> ModuleCall:
    """Refuse a call whose rows do not all begin at the first key; the graph refuses it where one is traced."""
    sentence = _unknown(name, "rows that begin at different keys or hold several documents")
    holds = _begin_at_first_key(mask)
    if call.bias is not None and torch.compiler.is_compiling():
        # The bias is the mask there, so the operation that checks has to be a part of it.
        return call._replace(bias=call.bias + checked(call.bias.new_zeros(1), holds, sentence))
    if not bool(holds):
        raise UnsupportedError(sentence)
    return call


def _begin_at_first_key(mask: torch.Tensor) -> torch.Tensor:
    """Whether all rows of a mask of pairs begin at the first key and hold one document, one boolean."""
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    visible = allowed.any(-2)  # (..., keys)
    seen_by_next_query = allowed.diagonal(-1, -2, -1)  # (..., keys - 1)
    begins = allowed[..., 0].flatten(1).any(1).all()
    is_one_document = (seen_by_next_query | ~visible[..., :-1]).all()
    return begins & is_one_document


def checked(x: torch.Tensor, holds: torch.Tensor, sentence: str) -> torch.Tensor:
    """The same tensor; the graph raises UnsupportedError with the sentence if `holds` is False when it runs."""
    return _operation.checked(x, holds, sentence)


@torch.library.impl("regard::checked", "CompositeExplicitAutograd")
def _check(x: torch.Tensor, holds: torch.Tensor, sentence: str) -> torch.Tensor:
    if not bool(holds):
        raise UnsupportedError(sentence)
    return x.clone()


@torch.library.register_fake("regard::checked")
def _like(x: torch.Tensor, holds: torch.Tensor, sentence: str) -> torch.Tensor:
    return torch.empty_like(x)


def _unknown(name: str, what: str) -> str:
    return (
        f"{name}, and was given a mask of pairs and {what}, so the key from which positions count is not known. "
        f"Give a mask (batch, length) instead of one of pairs, and run uncompiled where a cache drops keys"
    )


def _packed(name: str) -> str:
    return (
        f"{name}, which counts positions from the first key of a row, and this row packs several documents; "
        f"give each document a row, or choose a pattern of distances alone"
    )


def _unmovable(name: str, origins: str) -> str:
    return (
        f"{name}, which counts positions from the first key, for rows whose first keys are {origins}, and this "
        f"pattern cannot be moved by row; pad on the right, or give rows of one length"
    )
