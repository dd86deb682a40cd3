"""`change_attention`: other patterns or mechanisms for chosen layers of a model, and how to undo it."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from regard.arguments import count_of, kind_of
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.integrations.transformers.attaching import CHANGES, NAME, attach, detach
from regard.integrations.transformers.attending import CHANGE
from regard.integrations.transformers.modules import exchanged_if_asked, layer_names, models_inside
from regard.integrations.transformers.position_tables import PositionTables, position_tables
from regard.integrations.transformers.substitute import Substitute
from regard.integrations.transformers.window_cache import window_cache
from regard.mechanisms import Mechanism
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import Pattern, as_pattern

__all__ = ["AttentionChange", "change_attention"]

CROSSING = re.compile(r"(encoder_attn|encdecattention|cross_?attn|cross_?attention)", re.IGNORECASE)


class AttentionChange:
    """What `change_attention` changed. `undo` takes it back; so does the end of a `with` block, and `detach`.

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
        self.model = model
        self.layers = layers
        self.pattern = pattern
        self.mechanism = mechanism
        self.length = length
        self._substitute = Substitute(pattern, mechanism)
        self._tables: PositionTables | None = None
        self._attached = False  # whether the model was attached for it, and is detached with it

    def __repr__(self) -> str:
        return f"AttentionChange({type(self.model).__name__}: {self})"

    def __str__(self) -> str:
        """In words: what the layers compute."""
        computed = str(self.pattern)
        if self.mechanism is not None:
            computed += f" by {self.mechanism}"
        modules = self.layers[0]
        if len(self.layers) != 1:
            modules = count_of(len(self.layers), "attention modules")
        tables = "" if self.length is None else f", tables of {self.length} positions"
        return f"{computed} in {modules}{tables}"

    def undo(self) -> PreTrainedModel:
        """Give the model its own attention and its own tables of positions back; calling it again changes nothing.

        Rows of a table that were trained since stay trained.
        """
        active: list[AttentionChange] = self.model.__dict__.get(CHANGES, [])
        if self not in active:
            return self.model
        active.remove(self)
        self._stop()
        if self._tables is not None:
            self._tables.restore()
        if not active:
            del self.model.__dict__[CHANGES]
            if self._attached:
                detach(self.model)
        elif self._attached:
            active[0]._attached = True
        return self.model

    def new_cache(self, attention_mask: torch.Tensor | None = None) -> DynamicCache:
        """An empty cache that keeps, in changed layers, only the keys that the pattern may still look at.

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
            self._stop()
            yield
        finally:
            self._start()

    def _modules(self) -> list[nn.Module]:
        return [self.model.get_submodule(name) for name in self.layers]

    def _start(self) -> None:
        for module in self._modules():
            module.__dict__[CHANGE] = self._substitute

    def _stop(self) -> None:
        for module in self._modules():
            module.__dict__.pop(CHANGE, None)

    def _apply(self, tables: PositionTables | None) -> None:
        """Change the model, which is attached."""
        # Listed first, so that what is done can be undone after an exception at any line.
        self.model.__dict__.setdefault(CHANGES, []).append(self)
        try:
            if tables is not None and self.length is not None:
                self._tables = tables
                tables.lengthen(self.length)
            self._start()
        except BaseException:
            self.undo()
            raise

    def __enter__(self) -> AttentionChange:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def change_attention(
    model: PreTrainedModel,
    layers: Iterable[str | int] | str | int = "all",
    *,
    pattern: Pattern | str | None = None,
    mechanism: Mechanism | str | None = None,
    length: int | None = None,
) -> AttentionChange:
    """Give layers of a loaded model another pattern or mechanism, with the same weights.

    A layer computes the pairs that both its own mask and the pattern allow, so causal layers stay causal and padding
    stays hidden. Positions count from the first unpadded key of each batch row. The outputs need training, except where
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
    >>> with change_attention(model, layers=[1], pattern="causal_window(4) | prefix(1)") as change:
    ...     change.layers
    ('h.1.attn',)
    """
    if pattern is None and mechanism is None:
        raise ArgumentError("nothing is changed; give pattern=, mechanism= or both")
    parsed = parse_mechanism(mechanism) if isinstance(mechanism, str) else mechanism
    if not isinstance(parsed, Mechanism | None):
        raise ArgumentError(
            f"mechanism is {kind_of(mechanism)}; give a Mechanism or its text, such as 'linear_transformer'"
        )
    change = AttentionChange(model, _layers(model, layers), as_pattern(pattern), parsed, length)
    for name in change.layers:
        _check_layer(name, model.get_submodule(name), change.pattern)
        if parsed is not None:
            _check_mechanism(name, parsed)
    tables = None if length is None else position_tables(model, length)

    implementations = {part.config._attn_implementation for part in models_inside(model)}
    attach(model)
    change._attached = implementations != {NAME}
    change._apply(tables)
    return change


def _layers(model: PreTrainedModel, layers: Any) -> tuple[str, ...]:
    """The names of the chosen modules, of a model that has them."""
    for part in models_inside(model):
        if exchanged_if_asked(part):
            raise UnsupportedError(
                f"{type(part).__name__} computes its windows or blocks in modules of its own, which take no other "
                f"pattern; change attention_window or block_size in its config, or replace the attention of BERT or "
                f"RoBERTa by such a pattern"
            )
    if layers != "all":
        return layer_names(model, layers)
    names = tuple(name for name in layer_names(model, None) if not _crosses(name))
    if not names:
        raise UnsupportedError(
            f"{type(model).__name__} has no module of self-attention that is known"
        )
    return names


def _check_layer(name: str, module: nn.Module, pattern: Pattern) -> None:
    """Raise for a module whose attention cannot be that of a pattern."""
    if CHANGE in module.__dict__:
        raise ArgumentError(f"the attention of {name!r} is changed already; undo that first")
    if _crosses(name) and pattern.compares_positions:
        raise UnsupportedError(
            f"{name!r} looks from one sequence into another, whose positions have no common origin with its own, and "
            f"{pattern} compares positions; choose layers of self-attention"
        )
    if getattr(module, "is_causal", False) and pattern.of_one_call:
        raise UnsupportedError(
            f"{name!r} is causal and may be called with a cache, and the rows of an explicit mask are rows of one "
            f"call; write the pattern by positions, such as Where(function)"
        )
    heads = _heads_of(module)
    if heads is None:
        return
    for part in pattern.walk():
        if part.heads not in (None, heads):
            raise ShapeError(
                f"PerHead holds {count_of(part.heads, 'patterns')}, and {name!r} has {heads} heads"
            )


def _check_mechanism(name: str, mechanism: Mechanism) -> None:
    """Raise for a mechanism that needs more than a module of softmax attention has."""
    kind = type(mechanism).__name__
    if mechanism.shares_keys:
        raise UnsupportedError(
            f"{kind} needs queries that are the keys, and {name!r} projects them by other weights"
        )
    if any(True for _ in mechanism.new_parameters(1).parameters()):
        raise UnsupportedError(
            f"{kind} has learned tensors of its own, and {name!r} has none for it; use it in "
            f"MultiHeadAttention(mechanism=...), which holds them, and train it"
        )


def _crosses(name: str) -> bool:
    """Whether a module looks from one sequence into another, by its name."""
    return CROSSING.search(name.rpartition(".")[2]) is not None


def _heads_of(module: nn.Module) -> int | None:
    """The number of query heads of a module; None if it does not say."""
    config = getattr(module, "config", None)
    heads = getattr(module, "num_heads", None) or getattr(config, "num_attention_heads", None)
    return heads if isinstance(heads, int) else None
