"""Caches of hybrid models that go back: a memory cannot be cut, so its last positions are computed again from a copy.

transformers tells a cache to record its past before it speculates, and crops it after each draft. From then on a layer
holds a copy of its memory as it was at the last crop, and the keys, values and gates of the positions since. `crop`
computes the memory from the copy and the positions that stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from transformers.cache_utils import (
    CacheLayerMixin,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

from regard.arguments import count_of
from regard.backends.native.recurrence import engine_on
from regard.backends.recurrence import RecurrenceInputs, Rule, scan
from regard.core.tensors import map_tensors
from regard.errors import UnsupportedError
from regard.integrations.transformers.caches import cache_among
from regard.integrations.transformers.modules import RECURRING, is_recurrent, models_inside

__all__ = [
    "Tape",
    "allow_drafts",
    "forbid_drafts",
    "recording",
    "recording_layer",
    "shifts_inputs",
    "tape_of_call",
]

STATEFUL = "_is_stateful"  # of models that transformers does not speculate with
# Layers of caches that hold a memory, alone or beside the entries of attention.
WITH_MEMORIES = (LinearAttentionLayer, LinearAttentionAndFullAttentionLayer)
# Recurrent layers whose code asks this of a cache keep all inputs of their convolution while it records its past.
ASKED = "is_recording_past"
# The tape of the layer that computes now.
tape_of_call: ContextVar[Tape | None] = ContextVar("tape_of_call", default=None)


class _Recorded(NamedTuple):
    """The inputs of a call that change a memory, as in `RecurrenceInputs`."""

    rule: Rule
    k: torch.Tensor
    v: torch.Tensor
    log_decay: torch.Tensor | None
    strength: torch.Tensor | None

    def of_rows(self, rows: torch.Tensor) -> _Recorded:
        rule, *by_position = self
        return _Recorded(rule, *map_tensors(lambda x: x.index_select(0, rows), by_position))


class Tape:
    """A copy of a memory, (batch, heads, head_dim, v_dim), and the calls that changed it since."""

    def __init__(self) -> None:
        self._memory: torch.Tensor | None = None
        self._calls: tuple[_Recorded, ...] = ()
        self._transposed = False

    def __repr__(self) -> str:
        return f"Tape({count_of(self.positions, 'positions')}, {self.nbytes:,} bytes)"

    @property
    def positions(self) -> int:
        """How many positions are recorded."""
        return sum(call.k.shape[2] for call in self._calls)

    @property
    def nbytes(self) -> int:
        """Bytes of the copy, and of the keys, values and gates."""
        held = [self._memory]
        for _, *by_position in self._calls:
            held += by_position
        return sum(x.nbytes for x in held if x is not None)

    def note(self, rule: Rule, inputs: RecurrenceInputs, *, transposed: bool) -> None:
        """Record a call, before its memory is written over.

        transposed: whether the cache holds (batch, heads, v_dim, head_dim).
        """
        # Keys and values are parts of larger tensors, which copies do not keep.
        by_position = map_tensors(lambda x: x.detach().clone(), inputs[1:5])
        if not self._calls:
            self._memory = inputs.memory.detach().clone()
            self._transposed = transposed
        self._calls = (*self._calls, _Recorded(rule, *by_position))

    def memory_after(self, positions: int) -> Any:
        """The memory after the first so many recorded positions, as the cache holds it."""
        memory: Any = self._memory
        for rule, k, v, log_decay, strength in self._calls:
            count = min(positions, k.shape[2])
            if not count:
                break
            # Queries read a memory and do not change it.
            inputs = RecurrenceInputs(k, k, v, log_decay, strength, memory)
            _, memory = scan(engine_on(v), rule, inputs.part(slice(count), memory))
            positions -= count
        return memory.mT if self._transposed else memory

    def of_rows(self, rows: torch.Tensor) -> Tape:
        """The tape of other batch rows, which are some of these."""
        tape = Tape()
        if self._memory is not None:
            tape._memory = self._memory.index_select(0, rows)
        tape._calls = tuple(call.of_rows(rows) for call in self._calls)
        tape._transposed = self._transposed
        return tape


class _Rewinds(LinearAttentionLayer):
    """A layer of a cache that goes back to any position since its last crop."""

    kind: type[LinearAttentionLayer]  # the class that it had
    _tape: Tape | None = None
    _width: int = 0  # how many inputs of the convolution it held when the tape began
    _records: bool = False  # during a call that is recorded
    _missed: bool = False  # whether a call since the last crop was not recorded

    def __repr__(self) -> str:
        tape = self._tape or Tape()
        positions = count_of(tape.positions, "positions")
        return f"{type(self).__name__}({positions} recorded in {tape.nbytes} bytes)"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle finds classes by name, and cannot find one that is made here.
        return _new_layer, (self.kind,), self.__dict__

    @property
    def is_croppable(self) -> bool:
        softmax = _softmax_kind(self.kind)
        return self._has_all() and (softmax is None or softmax.is_croppable is True)

    def start_call(self, *, shifts: bool) -> Tape:
        """The tape on which the next call is recorded.

        shifts: whether the call drops the oldest input that is held for the convolution when it adds its own.
        """
        # A layer that was reset still has tensors, and its next call does not read them.
        inputs = self.conv_states[0] if self.has_previous_state[0] else None
        if self._tape is None:
            self._width = 0 if inputs is None else inputs.shape[-1]
            self._tape = Tape()
        if shifts and inputs is not None:
            # The oldest is needed again if this position is removed, and there must be as many as the kernel reads.
            kernel: Any = self.conv_kernel_size[0]
            missing = max(0, kernel - inputs.shape[-1])
            self.conv_states[0] = functional.pad(inputs, (missing + 1, 0))
            self._width += missing
        self._records = True
        return self._tape

    def end_call(self) -> None:
        self._records = False

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, state_idx: int = 0, **others: Any
    ) -> torch.Tensor:
        """Hold the memory after a call."""
        self._missed = self._missed or not self._records
        return super().update_recurrent_state(recurrent_states, state_idx, **others)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` positions, and forget what is needed to remove earlier ones."""
        if not self.record_past or tokens_to_remove > 0:
            super().crop(tokens_to_remove)  # which raises
        if tokens_to_remove:
            memory: Any = self.recurrent_states[0]
            earlier = self._memory_before(-tokens_to_remove)
            with torch.no_grad():
                memory.copy_(earlier)

        if self.conv_states[0] is not None:
            LinearAttentionLayer.crop(self, tokens_to_remove)
        softmax = _softmax_kind(self.kind)
        if softmax is not None:
            softmax.crop(self, tokens_to_remove)
        self._forget()

    def _memory_before(self, removed: int) -> torch.Tensor:
        """The memory before so many of the last positions."""
        if not self._has_all():
            raise UnsupportedError(
                "this cache cannot go back: calls since its last crop were not recorded, as they were compiled, held "
                "packed texts, or ran without regard; use a new cache, or call cache.crop(0) before what may be removed"
            )
        positions = 0 if self._tape is None else self._tape.positions
        if self._tape is None or removed > positions:
            raise UnsupportedError(
                f"this cache goes back by at most {count_of(positions, 'positions')}, those since its last crop, and "
                f"{removed} are to be removed; use a new cache, or crop it more often"
            )
        return self._tape.memory_after(positions - removed)

    def _has_all(self) -> bool:
        """Whether all calls since the last crop are recorded."""
        if self._missed:
            return False
        inputs = self.conv_states[0]
        if inputs is None or self._tape is None:
            return True
        return inputs.shape[-1] - self._width == self._tape.positions

    def _forget(self) -> None:
        self._tape = None
        self._missed = False

    def reset(self) -> None:
        """Hold no positions."""
        self.kind.reset(self)
        self._forget()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Hold these batch rows."""
        tape = None if self._tape is None else self._tape.of_rows(beam_idx)
        self.kind.reorder_cache(self, beam_idx)
        self._tape = tape


def _softmax_kind(kind: type) -> Any:
    """The class that holds the entries of attention in a layer of this kind."""
    return next((base for base in kind.__bases__ if issubclass(base, CacheLayerMixin)), None)


@cache
def _class_for(kind: type[LinearAttentionLayer]) -> type[_Rewinds]:
    members = {"kind": kind, "__module__": __name__, "__doc__": _Rewinds.__doc__}
    return type(f"Rewinding{kind.__name__}", (_Rewinds, kind), members)


def _new_layer(kind: type[LinearAttentionLayer]) -> _Rewinds:
    """A layer without attributes, which pickle sets."""
    return object.__new__(_class_for(kind))


def recording_layer(module: Any, values: Any) -> _Rewinds | None:
    """The layer of a cache in which a recurrent module of regard records its call; None if its cache does not record.

    values: of the module's call.
    """
    held = cache_among(*values)
    layers = getattr(held, "layers", None)
    number = getattr(module, "layer_idx", None)
    if layers is None or number is None or number >= len(layers):
        return None
    layer = layers[number]
    if not getattr(layer, "record_past", False):
        return None
    if type(layer) in WITH_MEMORIES and layer.number_of_states == 1:
        layer.__class__ = _class_for(type(layer))
    return layer if isinstance(layer, _Rewinds) else None


@contextmanager
def recording(layer: _Rewinds, *, shifts: bool) -> Generator[None]:
    """Record the call of the block in a layer of a cache."""
    before = tape_of_call.get()
    try:
        # Inside, since an interruption may come right after the tape is set.
        tape_of_call.set(layer.start_call(shifts=shifts))
        yield
    finally:
        tape_of_call.set(before)
        layer.end_call()


def shifts_inputs(kind: type[nn.Module]) -> bool:
    """Whether the code of a class writes over inputs of its convolution while a cache records its past."""
    return ASKED not in inspect.unwrap(kind.forward).__code__.co_names


# --- models ---


def allow_drafts(model: nn.Module, outside: Iterable[str]) -> None:
    """Let transformers speculate with each model inside of which regard computes all memories.

    outside: the names of the modules that regard does not compute.
    """
    kept = {
        id(module)
        for module in map(model.get_submodule, outside)
        if is_recurrent(type(module).__name__)
    }
    for part in models_inside(model):
        inside = set(map(id, part.modules()))
        is_ours = any(type(module).__module__ == RECURRING for module in part.modules())
        if getattr(part, STATEFUL, False) and is_ours and kept.isdisjoint(inside):
            part.__dict__[STATEFUL] = False


def forbid_drafts(model: nn.Module) -> None:
    """The opposite of `allow_drafts`."""
    for part in models_inside(model):
        part.__dict__.pop(STATEFUL, None)
