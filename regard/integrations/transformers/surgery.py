"""`replace_attention`: other patterns or mechanisms for chosen layers of a model, and how to undo it."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from regard.arguments import count_of, kind_of
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.integrations.transformers.attaching import (
    NAME,
    REPLACEMENTS,
    attach,
    detach,
    models_inside,
    replaceable,
)
from regard.integrations.transformers.attending import CHANGE, Asked
from regard.integrations.transformers.masks import PatternMask
from regard.integrations.transformers.origins import (
    checked,
    joined_in_graph,
    packed,
    unmovable,
)
from regard.integrations.transformers.reading import TracedMask
from regard.integrations.transformers.tables import Tables, tables_of
from regard.integrations.transformers.watching import layer_names
from regard.integrations.transformers.window_cache import check_kept, mask_of_kept, window_cache
from regard.mechanisms import Mechanism
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import Causal, Full, Pattern, as_pattern

__all__ = ["Replacement", "replace_attention"]

MOST_KEPT = 64  # joined patterns of one replacement
CROSSING = re.compile(r"(encoder_attn|encdecattention|cross_?attn|cross_?attention)", re.IGNORECASE)


class Change:
    """A pattern and a mechanism for the calls of a module; the modules of one replacement share it.

    Args:
        pattern: positions are counted from the first live key of each batch row.
        mechanism: None for the module's own softmax.
    """

    def __init__(self, pattern: Pattern, mechanism: Mechanism | None) -> None:
        self.pattern, self.mechanism = pattern, mechanism
        self._kept: dict[tuple[Pattern, tuple[int, ...]], Pattern] = {}
        # Asked for here, since torch.compile does not trace it; patterns keep their period once it was asked for.
        self.causal, self.text = (Causal() & pattern).canonical(), str(pattern)
        self.by_distance = pattern.period == 1

    def mask_of(self, key: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor | None:
        """The mask of the keys that a `WindowLayer` kept; the given one for other caches."""
        return mask_of_kept(key, given)

    def of(self, module: nn.Module, asked: Asked, given: torch.Tensor | None, q_len: int, k_len: int) -> Asked:
        """The call that is computed instead: pairs that both its own pattern and this one allow.

        Raises:
            UnsupportedError: the positions that the pattern needs are not known.
        """
        if self.mechanism is not None:
            scale = asked.scale if "scale" in self.mechanism.options else None  # that of the softmax
            asked = asked._replace(mechanism=self.mechanism, scale=scale)
        if isinstance(given, PatternMask):
            pattern, plans = self._of_mask(module, given)
            return asked._replace(pattern=pattern, q_start=given.begin, plans=plans)
        if self.pattern == Full():
            return asked
        by_distance, name = self.by_distance, f"{type(module).__name__} computes {self.text}"
        if isinstance(given, TracedMask):
            return asked._replace(pattern=self._of_traced(given, name))
        if q_len != k_len and (given is not None or not by_distance):
            raise UnsupportedError(_unknown(name, f"{q_len} queries beside {k_len} keys of a cache"))
        if given is not None and not by_distance:
            sentence = _unknown(name, "rows that begin at different keys or hold several documents")
            holds = _begin_at_first_key(given)
            if asked.bias is not None and torch.compiler.is_compiling():  # the mask, as it is added there
                asked = asked._replace(bias=asked.bias + checked(asked.bias.new_zeros(1), holds, sentence))
            elif not bool(holds):
                raise UnsupportedError(sentence)
        if asked.pattern == Full():
            pattern = self.pattern
        else:
            pattern = self.causal if asked.pattern == Causal() else asked.pattern & self.pattern
        return asked._replace(pattern=pattern)

    def _of_traced(self, mask: TracedMask, name: str) -> Pattern:
        """The pattern beside a mask of a graph."""
        if self.by_distance:
            return mask.pattern & self.pattern
        if mask.first_key != 0:
            raise UnsupportedError(_unknown(name, "keys of a cache that dropped the first ones"))
        for change, joined in mask.joined:
            if change is self:
                return joined  # made, and checked, for an earlier layer
        joined = joined_in_graph(mask.pattern, self.pattern, name)
        mask.joined.append((self, joined))
        return joined

    def _of_mask(self, module: nn.Module, mask: PatternMask) -> tuple[Pattern, dict[Any, Any]]:
        """The pattern beside a mask, and its plans; made once for all layers that share the mask."""
        made: tuple[Pattern, dict[Any, Any]] | None = mask.plans.get(self)
        if made is None:
            joined = self._joined(module, mask.pattern, self._origins(mask))
            if mask.dropped:
                first, (q_len, k_len) = mask.dropped.start, mask.sizes[2:]
                check_kept(joined, first, k_len - q_len - first + 1)
            made = mask.plans[self] = joined, {}
        return made

    def _origins(self, mask: PatternMask) -> tuple[int, ...]:
        return (0,) if self.by_distance or self.pattern == Full() else mask.origins

    def _joined(self, module: nn.Module, own: Pattern, origins: tuple[int, ...]) -> Pattern:
        """The pairs of a mask and of the pattern, counted from its origins; kept, since each id of a text asks."""
        joined = self._kept.get((own, origins)) if own.by_value else None
        if joined is None:
            joined = (own & self._moved(module, own, origins)).canonical()
            if own.by_value:
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[own, origins] = joined
        return joined

    def _moved(self, module: nn.Module, own: Pattern, origins: tuple[int, ...]) -> Pattern:
        pattern = self.pattern
        if self.by_distance or pattern == Full():
            return pattern
        name = f"{type(module).__name__} computes {self.text}"
        if own.documents:
            raise UnsupportedError(packed(name))
        moved = pattern.moved(origins)
        if moved is None:
            raise UnsupportedError(unmovable(name, str(origins if len(origins) > 1 else origins[0])))
        return moved


def _begin_at_first_key(mask: torch.Tensor) -> torch.Tensor:
    """Whether all rows of a mask of pairs begin at the first key and hold one document, one boolean."""
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    live, beside = allowed.any(-2), allowed.diagonal(-1, -2, -1)  # (.., keys), and each key seen by the query after it
    return allowed[..., 0].flatten(1).any(1).all() & (beside | ~live[..., :-1]).all()


def _unknown(name: str, what: str) -> str:
    return (
        f"{name}, and was given a mask of pairs and {what}, so the key from which positions count is not known. "
        f"Give a mask (batch, length) instead of one of pairs, and run uncompiled where a cache drops keys"
    )


class Replacement:
    """What `replace_attention` changed. `undo` takes it back; so does the end of a `with` block, and `detach`.

    Args:
        model: the model.
        layers: names of the attention modules that were changed.
        pattern: which pairs are allowed, of those that the model's own mask allows.
        mechanism: None for the softmax of the model.
        length: positions that the model's tables were lengthened to, or None.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: tuple[str, ...],
        pattern: Pattern,
        mechanism: Mechanism | None,
        length: int | None,
    ) -> None:
        self.model, self.layers, self.length = model, layers, length
        self.pattern, self.mechanism = pattern, mechanism
        self._change = Change(pattern, mechanism)
        self._tables: Tables | None = None
        self._attached = False

    def __repr__(self) -> str:
        return f"Replacement({type(self.model).__name__}: {self})"

    def __str__(self) -> str:
        """In words: what the layers compute."""
        computed = str(self.pattern) if self.mechanism is None else f"{self.pattern} by {self.mechanism}"
        tables = "" if self.length is None else f", tables of {self.length} positions"
        modules = self.layers[0] if len(self.layers) == 1 else count_of(len(self.layers), "attention modules")
        return f"{computed} in {modules}{tables}"

    def _modules(self) -> list[nn.Module]:
        return [self.model.get_submodule(name) for name in self.layers]

    def undo(self) -> PreTrainedModel:
        """Give the model its own attention and its own tables of positions back; calling it again changes nothing.

        Rows of a table that were trained since stay trained.
        """
        active: list[Replacement] = self.model.__dict__.get(REPLACEMENTS, [])
        if self not in active:
            return self.model
        active.remove(self)
        for module in self._modules():
            module.__dict__.pop(CHANGE, None)
        if self._tables is not None:
            self._tables.restore()
        if not active:
            del self.model.__dict__[REPLACEMENTS]
            if self._attached:
                detach(self.model)
        elif self._attached:
            active[0]._attached = True
        return self.model

    def new_cache(self, attention_mask: torch.Tensor | None = None) -> DynamicCache:
        """An empty cache that keeps, in replaced layers, only the keys that the pattern may still look at.

        Give it to the model, or to `generate`, as cache=, or before transformers 5.24 as past_key_values=. Other
        layers get the model's own kind.

        Args:
            attention_mask: the mask of the prompt, (batch, length), where rows are padded on the left.

        Raises:
            UnsupportedError: the pattern may look at all keys, the model has several caches, or no layer can drop keys.
        """
        return window_cache(self.model, self._modules(), self.pattern, attention_mask)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Let the model compute its own attention inside the block; tables of positions keep their length."""
        try:
            for module in self._modules():
                module.__dict__.pop(CHANGE, None)
            yield
        finally:
            for module in self._modules():
                module.__dict__[CHANGE] = self._change

    def __enter__(self) -> Replacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def replace_attention(
    model: PreTrainedModel,
    layers: Iterable[str | int] | str | int = "all",
    *,
    pattern: Pattern | str | None = None,
    mechanism: Mechanism | str | None = None,
    length: int | None = None,
) -> Replacement:
    """Give layers of a loaded model another pattern or mechanism, with the same weights.

    A layer computes the pairs that both its own mask and the pattern allow, so causal layers stay causal and padding
    stays hidden. Positions count from the first live key of each batch row. The outputs need training, except where
    the pattern allows all that the layer would look at.

    Args:
        model: a model of transformers that `attach` takes; it is attached if it is not.
        layers: numbers or names of attention modules, as `explain` prints them, or "all" for all self-attention.
        pattern: such as `CausalWindow(1024) | Prefix(4)`, or its text; None for the pairs of the model.
        mechanism: such as `LinearTransformer()`, or its text; None for the softmax of the model, whose scale is left
            out where a mechanism has none.
        length: positions that learned tables are lengthened to, by repeating their rows (Longformer, section 5).

    Returns:
        A record whose `undo` takes the change back. It is a context manager too.

    Raises:
        UnsupportedError: the model never calls regard, has no table to lengthen, or a layer cannot take the change.
        ArgumentError: unknown layers, or nothing to change. Nothing was changed in any case.

    Source: Xiao et al. 2023 (StreamingLLM), section 3; Beltagy et al. 2020 (Longformer), section 5.

    >>> import transformers
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    >>> model = transformers.GPT2Model(config)
    >>> with replace_attention(model, layers=[1], pattern="causal_window(4) | prefix(1)") as replacement:
    ...     replacement.layers
    ('h.1.attn',)
    """
    if pattern is None and mechanism is None:
        raise ArgumentError("nothing is replaced; give pattern=, mechanism= or both")
    chosen = _mechanism(mechanism)
    replacement = Replacement(model, _layers(model, layers), as_pattern(pattern), chosen, length)
    for name in replacement.layers:
        _check_layer(name, model.get_submodule(name), replacement)
    tables = None if length is None else tables_of(model, length)
    before = {part.config._attn_implementation for part in models_inside(model)}
    attach(model)
    replacement._attached = before != {NAME}
    if tables is not None and length is not None:
        replacement._tables = tables
        tables.lengthen(length)
    for module in replacement._modules():
        module.__dict__[CHANGE] = replacement._change
    model.__dict__.setdefault(REPLACEMENTS, []).append(replacement)
    return replacement


def _layers(model: PreTrainedModel, layers: Any) -> tuple[str, ...]:
    """The names of the chosen modules, of a model that has them."""
    for part in models_inside(model):
        if replaceable(part):
            raise UnsupportedError(
                f"{type(part).__name__} computes its windows or blocks in modules of its own, which take no other "
                f"pattern; change attention_window or block_size in its config, or replace the attention of BERT or "
                f"RoBERTa by such a pattern"
            )
    if layers != "all":
        return layer_names(model, layers)
    names = tuple(name for name in layer_names(model, None) if not CROSSING.search(name.rpartition(".")[2]))
    if not names:
        raise UnsupportedError(f"{type(model).__name__} has no module of self-attention that is known")
    return names


def _mechanism(mechanism: Any) -> Mechanism | None:
    if mechanism is None:
        return None
    chosen = parse_mechanism(mechanism) if isinstance(mechanism, str) else mechanism
    if not isinstance(chosen, Mechanism):
        raise ArgumentError(
            f"mechanism is {kind_of(mechanism)}; give a Mechanism or its text, such as 'linear_transformer'"
        )
    return chosen


def _check_layer(name: str, module: nn.Module, replacement: Replacement) -> None:
    """Raise if a module cannot take the change."""
    pattern, mechanism = replacement.pattern, replacement.mechanism
    if CHANGE in module.__dict__:
        raise ArgumentError(f"the attention of {name!r} is replaced already; undo that first")
    if CROSSING.search(name.rpartition(".")[2]) and pattern.compares_positions:
        raise UnsupportedError(
            f"{name!r} looks from one sequence into another, whose positions have no common origin with its own, and "
            f"{pattern} compares positions; choose layers of self-attention"
        )
    if getattr(module, "is_causal", False) and pattern.of_one_call:
        raise UnsupportedError(
            f"{name!r} is causal and may be called with a cache, and the rows of an explicit mask are rows of one "
            f"call; write the pattern by positions, such as Where(function)"
        )
    heads = getattr(module, "num_heads", None) or getattr(getattr(module, "config", None), "num_attention_heads", None)
    if isinstance(heads, int):
        _check_heads(name, pattern, heads)
    if mechanism is not None:
        _check_mechanism(name, mechanism)


def _check_mechanism(name: str, mechanism: Mechanism) -> None:
    kind = type(mechanism).__name__
    if mechanism.shares_keys:
        raise UnsupportedError(f"{kind} needs queries that are the keys, and {name!r} projects them by other weights")
    if len(list(mechanism.new_parameters(1).parameters())):
        raise UnsupportedError(
            f"{kind} has learned tensors of its own, and {name!r} has none for it; use it in "
            f"MultiHeadAttention(mechanism=...), which holds them, and train it"
        )


def _check_heads(name: str, pattern: Pattern, heads: int) -> None:
    for part in pattern.walk():
        if part.heads not in (None, heads):
            raise ShapeError(f"PerHead holds {count_of(part.heads, 'patterns')}, and {name!r} has {heads} heads")
