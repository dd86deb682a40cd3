"""`replace_attention`: other patterns or mechanisms for chosen layers of a model, and how to undo it.

A pattern is joined with a model's own mask, and counted from the first live key of each row. Inside torch.compile that
key is known when the graph runs. Prefixes and spans of keys are moved by a tensor there. What other patterns and packed
texts need is checked by the operation `regard::checked`.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel

from regard.arguments import count_of, kind_of, whole
from regard.errors import ArgumentError, ShapeError, UnsupportedError
from regard.integrations.transformers.attaching import NAME, REPLACEMENTS, attach, detach
from regard.integrations.transformers.attending import CHANGE, ModuleCall
from regard.integrations.transformers.masks import PatternMask, TracedMask
from regard.integrations.transformers.modules import layer_names, models_inside, replaceable
from regard.integrations.transformers.window_cache import check_kept, window_cache
from regard.mechanisms import Mechanism
from regard.mechanisms import parse as parse_mechanism
from regard.patterns import Causal, Full, KeyMask, Pattern, SameDocument, as_pattern
from regard.patterns.documents import document_ids

__all__ = ["Replacement", "replace_attention"]

CROSSING = re.compile(r"(encoder_attn|encdecattention|cross_?attn|cross_?attention)", re.IGNORECASE)
TABLES = re.compile(
    r"(position_embeddings?|wpe|embed_positions|pos_emb)"
)  # names of learned tables of positions
BUFFERS = (
    "position_ids",
    "token_type_ids",
)  # that models hold beside their table, one column for each position
MOST_KEPT = 64  # joined patterns of one replacement
torch.library.define("regard::checked", "(Tensor x, Tensor holds, str sentence) -> Tensor")
_operation: Any = torch.ops.regard


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
        self._change = Substitute(pattern, mechanism)
        self._tables: _Tables | None = None
        self._attached = False

    def __repr__(self) -> str:
        return f"Replacement({type(self.model).__name__}: {self})"

    def __str__(self) -> str:
        """In words: what the layers compute."""
        computed = (
            str(self.pattern) if self.mechanism is None else f"{self.pattern} by {self.mechanism}"
        )
        tables = "" if self.length is None else f", tables of {self.length} positions"
        modules = (
            self.layers[0]
            if len(self.layers) == 1
            else count_of(len(self.layers), "attention modules")
        )
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

    def __exit__(self, *_: object) -> None:
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
    chosen = parse_mechanism(mechanism) if isinstance(mechanism, str) else mechanism
    if not isinstance(chosen, Mechanism | None):
        raise ArgumentError(
            f"mechanism is {kind_of(mechanism)}; give a Mechanism or its text, such as 'linear_transformer'"
        )
    replacement = Replacement(model, _layers(model, layers), as_pattern(pattern), chosen, length)
    for name in replacement.layers:
        _check_layer(name, model.get_submodule(name), replacement.pattern, chosen)
    tables = None if length is None else _tables_of(model, length)
    before = {part.config._attn_implementation for part in models_inside(model)}
    attach(model)
    replacement._attached = before != {NAME}
    # Listed first, so that what is done can be undone after an exception at any line.
    model.__dict__.setdefault(REPLACEMENTS, []).append(replacement)
    try:
        if tables is not None and length is not None:
            replacement._tables = tables
            tables.lengthen(length)
        for module in replacement._modules():
            module.__dict__[CHANGE] = replacement._change
    except BaseException:
        replacement.undo()
        raise
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
    names = tuple(
        name for name in layer_names(model, None) if not CROSSING.search(name.rpartition(".")[2])
    )
    if not names:
        raise UnsupportedError(
            f"{type(model).__name__} has no module of self-attention that is known"
        )
    return names


def _check_layer(
    name: str, module: nn.Module, pattern: Pattern, mechanism: Mechanism | None
) -> None:
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
    heads = getattr(module, "num_heads", None) or getattr(
        getattr(module, "config", None), "num_attention_heads", None
    )
    for part in pattern.walk() if isinstance(heads, int) else ():
        if part.heads not in (None, heads):
            raise ShapeError(
                f"PerHead holds {count_of(part.heads, 'patterns')}, and {name!r} has {heads} heads"
            )
    if mechanism is None:
        return
    kind = type(mechanism).__name__
    if mechanism.shares_keys:
        raise UnsupportedError(
            f"{kind} needs queries that are the keys, and {name!r} projects them by other weights"
        )
    if len(list(mechanism.new_parameters(1).parameters())):
        raise UnsupportedError(
            f"{kind} has learned tensors of its own, and {name!r} has none for it; use it in "
            f"MultiHeadAttention(mechanism=...), which holds them, and train it"
        )


@dataclass(frozen=True)
class _PositionTable:
    """A learned table of positions.

    Args:
        owner: the module that holds the table, and perhaps buffers with a column for each row.
        module: the embedding.
        weight: what it holds before it is lengthened.
        buffers: of the owner, those that have a column for each row.
        offset: rows before that of position 0: two in RoBERTa (whose padding is position 1), in OPT and in BART.
    """

    owner: nn.Module
    module: nn.Embedding
    weight: nn.Parameter
    buffers: dict[str, torch.Tensor]
    offset: int

    @property
    def positions(self) -> int:
        return len(self.weight) - self.offset

    def lengthened(self, length: int) -> torch.Tensor:
        """The weight whose rows of positions are repeated up to `length` of them."""
        weight = self.weight.detach()
        source = self.offset + torch.arange(length, device=weight.device) % self.positions
        return torch.cat((weight[: self.offset], weight[source]))

    def lengthen(self, length: int) -> None:
        """Repeat the rows of the embedding, and give the buffers beside it as many columns."""
        requires_grad = self.weight.requires_grad
        weight = nn.Parameter(self.lengthened(length), requires_grad=requires_grad)
        self.module.weight, self.module.num_embeddings = weight, len(weight)
        for name, buffer in self.buffers.items():
            row = torch.arange(len(weight), device=buffer.device, dtype=buffer.dtype)
            lengthened = row if name == "position_ids" else torch.zeros_like(row)
            setattr(self.owner, name, lengthened[None])

    def restore(self) -> None:
        """Cut the embedding to its own length; its first rows stay as they are now."""
        rows = self.module.weight.detach()[: len(self.weight)]
        if self.module.weight is not self.weight and not torch.equal(rows, self.weight):
            self.weight.detach().copy_(rows)
        self.module.weight, self.module.num_embeddings = self.weight, len(self.weight)
        for name, buffer in self.buffers.items():
            setattr(self.owner, name, buffer)


@dataclass(frozen=True)
class _Tables:
    """The tables of positions of a model, and its configs with the lengths that they name."""

    tables: tuple[_PositionTable, ...]
    configs: tuple[tuple[Any, int], ...]

    def lengthen(self, length: int) -> None:
        """Repeat the rows of each table up to `length` positions."""
        for table in self.tables:
            table.lengthen(length)
        for config, known in self.configs:
            config.max_position_embeddings = known + length - self.tables[0].positions

    def restore(self) -> None:
        """Cut the tables to their own lengths; their first rows stay as they are now."""
        for table in self.tables:
            table.restore()
        for config, known in self.configs:
            config.max_position_embeddings = known


def _tables_of(model: PreTrainedModel, length: int) -> _Tables:
    """The learned tables of positions of a model; refused without one, or if one has `length` positions already."""
    whole("length", length, 1)
    name = type(model).__name__
    tables = []
    for path, module in model.named_modules():
        holder, _, last = path.rpartition(".")
        if not isinstance(module, nn.Embedding) or not TABLES.fullmatch(last):
            continue
        assert isinstance(module.weight, nn.Parameter)
        offset = getattr(module, "offset", None)
        if type(module) is not nn.Embedding and not isinstance(offset, int):
            raise UnsupportedError(
                f"the positions of {name} are computed ({type(module).__name__}), not learned, so repeating rows would "
                f"be another function; leave length out"
            )
        if not isinstance(offset, int):
            offset = 0 if module.padding_idx is None else module.padding_idx + 1
        owner = model.get_submodule(holder)
        held = {name: getattr(owner, name, None) for name in BUFFERS}
        buffers = {
            name: buffer
            for name, buffer in held.items()
            if isinstance(buffer, torch.Tensor) and buffer.shape[-1] == module.num_embeddings
        }
        tables.append(_PositionTable(owner, module, module.weight, buffers, offset))
        if tables[-1].positions >= length:
            raise ArgumentError(
                f"length is {length}, and {name} has a table of {tables[-1].positions} positions already; give more, "
                f"or leave length out"
            )
    if not tables:
        raise UnsupportedError(
            f"{name} has no learned table of positions to lengthen; rotary positions and biases by distance are "
            f"computed for any length, so leave length out"
        )
    configs = {id(part.config): part.config for part in models_inside(model)}.values()
    lengths = [(one, getattr(one, "max_position_embeddings", None)) for one in configs]
    return _Tables(
        tuple(tables), tuple((one, known) for one, known in lengths if isinstance(known, int))
    )


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

    def of(
        self,
        module: nn.Module,
        call: ModuleCall,
        given: torch.Tensor | None,
        q_len: int,
        k_len: int,
    ) -> ModuleCall:
        """The call that is computed instead: pairs that both its own pattern and this one allow.

        given: the mask that transformers gave. Refused where the positions that the pattern needs are not known.
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
            raise UnsupportedError(
                _unknown(name, f"{q_len} queries beside {k_len} keys of a cache")
            )
        if given is not None and not self.by_distance:
            sentence = _unknown(name, "rows that begin at different keys or hold several documents")
            holds = _begin_at_first_key(given)
            if (
                call.bias is not None and torch.compiler.is_compiling()
            ):  # the mask, as it is added there
                call = call._replace(
                    bias=call.bias + checked(call.bias.new_zeros(1), holds, sentence)
                )
            elif not bool(holds):
                raise UnsupportedError(sentence)
        if call.pattern == Full():
            return call._replace(pattern=self.pattern)
        return call._replace(
            pattern=self.causal if call.pattern == Causal() else call.pattern & self.pattern
        )

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
        if document_ids(own):
            raise UnsupportedError(_packed(name))
        moved = self.pattern.moved(origins)
        if moved is None:
            raise UnsupportedError(
                _unmovable(name, str(origins if len(origins) > 1 else origins[0]))
            )
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
                part = SameDocument(checked(ids, (ids == ids[..., :1]).all(), _packed(name)))
            elif isinstance(part, KeyMask):
                live = part.mask
                origins = live.to(torch.int64).argmax(-1).reshape(-1)
                by_row = self.pattern.moved(origins)
                if by_row is None:
                    part = KeyMask(
                        checked(live, (origins == 0).all(), _unmovable(name, "different"))
                    )
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
    live, beside = (
        allowed.any(-2),
        allowed.diagonal(-1, -2, -1),
    )  # (.., keys), and each key seen by the query after it
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
