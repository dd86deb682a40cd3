"""What replaced layers compute: a pattern beside a model's own mask, counted from the first live key of each row.

Inside torch.compile the first live key of a row is known when the graph runs. Prefixes and spans of keys are moved by
a tensor there. What other patterns and packed texts need is checked by the operation `regard::checked`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from regard.errors import UnsupportedError
from regard.integrations.transformers.attending import ModuleCall
from regard.integrations.transformers.masks import PatternMask, TracedMask
from regard.integrations.transformers.window_cache import check_kept
from regard.mechanisms import Mechanism
from regard.patterns import Causal, Full, KeyMask, Pattern, SameDocument

__all__ = ["Substitute"]

MOST_KEPT = 64  # joined patterns of one replacement
torch.library.define("regard::checked", "(Tensor x, Tensor holds, str sentence) -> Tensor")
_operation: Any = torch.ops.regard


class Substitute:
    """A pattern and a mechanism for the calls of a module; the modules of one replacement share it.

    Args:
        pattern: positions are counted from the first live key of each batch row.
        mechanism: None for the module's own softmax.
    """

    def __init__(self, pattern: Pattern, mechanism: Mechanism | None) -> None:
        self.pattern, self.mechanism = pattern, mechanism
        self._kept: dict[tuple[Pattern, tuple[int, ...]], Pattern] = {}
        # Computed here, since torch.compile does not trace it; patterns keep their period once it was computed.
        self.causal, self.text = (Causal() & pattern).canonical(), str(pattern)
        self.by_distance = pattern.period == 1

    def of(self, module: nn.Module, call: ModuleCall, given: torch.Tensor | None, q_len: int, k_len: int) -> ModuleCall:
        """The call that is computed instead: pairs that both its own pattern and this one allow.

        Args:
            module, call: a module and its own call.
            given: the mask that transformers gave.
            q_len, k_len: sizes of the call.

        Raises:
            UnsupportedError: the positions that the pattern needs are not known.
        """
        if self.mechanism is not None:
            scale = call.scale if "scale" in self.mechanism.options else None  # that of the softmax
            call = call._replace(mechanism=self.mechanism, scale=scale)
        name = f"{type(module).__name__} computes {self.text}"
        if isinstance(given, PatternMask):
            pattern, plans = self._beside(given, name)
            return call._replace(pattern=pattern, q_start=given.begin, plans=plans)
        if self.pattern == Full():
            return call
        if isinstance(given, TracedMask):
            return call._replace(pattern=self._beside_traced(given, name))
        if q_len != k_len and (given is not None or not self.by_distance):
            raise UnsupportedError(_unknown(name, f"{q_len} queries beside {k_len} keys of a cache"))
        if given is not None and not self.by_distance:
            sentence = _unknown(name, "rows that begin at different keys or hold several documents")
            holds = _begin_at_first_key(given)
            if call.bias is not None and torch.compiler.is_compiling():  # the mask, as it is added there
                call = call._replace(bias=call.bias + checked(call.bias.new_zeros(1), holds, sentence))
            elif not bool(holds):
                raise UnsupportedError(sentence)
        if call.pattern == Full():
            return call._replace(pattern=self.pattern)
        return call._replace(pattern=self.causal if call.pattern == Causal() else call.pattern & self.pattern)

    def _beside(self, mask: PatternMask, name: str) -> tuple[Pattern, dict[Any, Any]]:
        """The pattern beside a mask, and its plans; made once for all layers that share the mask."""
        made: tuple[Pattern, dict[Any, Any]] | None = mask.plans.get(self)
        if made is None:
            origins = (0,) if self.by_distance or self.pattern == Full() else mask.origins
            key = mask.pattern, origins
            pattern = self._kept.get(key) if mask.pattern.by_value else None
            if pattern is None:
                pattern = (mask.pattern & self._moved(mask.pattern, origins, name)).canonical()
                if mask.pattern.by_value:  # each id of a text asks for it
                    if len(self._kept) >= MOST_KEPT:
                        self._kept.clear()
                    self._kept[key] = pattern
            if mask.dropped:
                first, (q_len, k_len) = mask.dropped.start, mask.sizes[2:]
                check_kept(pattern, first, k_len - q_len - first + 1)
            made = mask.plans[self] = pattern, {}
        return made

    def _moved(self, own: Pattern, origins: tuple[int, ...], name: str) -> Pattern:
        """The pattern counted from these origins, beside the pattern of a mask."""
        if self.by_distance or self.pattern == Full():
            return self.pattern
        if own.documents:
            raise UnsupportedError(_packed(name))
        moved = self.pattern.moved(origins)
        if moved is None:
            raise UnsupportedError(_unmovable(name, str(origins if len(origins) > 1 else origins[0])))
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
        parts, moved = [], self.pattern
        for part in mask.pattern.factors:
            if part.documents:
                (ids,) = part.documents
                part = SameDocument(checked(ids, (ids == ids[..., :1]).all(), _packed(name)))
            elif isinstance(part, KeyMask):
                live = part.mask
                origins = live.to(torch.int64).argmax(-1).reshape(-1)
                by_row = self.pattern.moved(origins)
                if by_row is None:
                    part = KeyMask(checked(live, (origins == 0).all(), _unmovable(name, "different")))
                else:
                    moved = by_row
            parts.append(part)
        joined = moved
        for part in parts:
            joined = joined & part
        mask.joined.append((self, joined))
        return joined


def _begin_at_first_key(mask: torch.Tensor) -> torch.Tensor:
    """Whether all rows of a mask of pairs begin at the first key and hold one document, one boolean."""
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    live, beside = allowed.any(-2), allowed.diagonal(-1, -2, -1)  # (.., keys), and each key seen by the query after it
    return allowed[..., 0].flatten(1).any(1).all() & (beside | ~live[..., :-1]).all()


def checked(x: torch.Tensor, holds: torch.Tensor, sentence: str) -> torch.Tensor:
    """The same tensor; the graph raises UnsupportedError with the sentence if `holds` is False when it runs."""
    return _operation.checked(x, holds, sentence)


@torch.library.impl("regard::checked", "CompositeExplicitAutograd")
def _checked(x: torch.Tensor, holds: torch.Tensor, sentence: str) -> torch.Tensor:
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
