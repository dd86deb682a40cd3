"""A text kept in constant memory: as sums over its keys, or as the memory into which they were written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import torch

from regard.arguments import a_path, count_of, shown, whole, whole_or, yes_or_no
from regard.backends.documents import (
    Texts,
    at_ends,
    put_back,
    texts_between,
    texts_packed,
    unpadded_keys,
)
from regard.backends.kernelised import Sums, Text, changed_by_key, follow
from regard.backends.native.recurrence import engine_on
from regard.backends.recurrence import RecurrenceInputs, Rule, scan, without_unseen
from regard.core.call import LOOKUP_ERRORS, Call
from regard.core.problem import Problem
from regard.errors import ArgumentError, CheckpointError, ShapeError, UnsupportedError
from regard.functional.jagged import checked_ends
from regard.layers.caches.base import Owned, checked_rows
from regard.layers.caches.files import whole_number
from regard.mechanisms.base import Mechanism
from regard.mechanisms.features import Kernelised
from regard.mechanisms.recurrent import Recurrent
from regard.patterns import Causal, Pattern
from regard.patterns.documents import beginnings, document_ids
from regard.patterns.grid import Grid, checked_device
from regard.storage import load_tensor_metadata, load_tensors, save_tensors

FORMAT = "1"
STATE_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Summed:
    """Sums over the keys so far.

    total: (batch, kv_heads, features, v_dim + 1), divided by exp(log) where log is given; of a recurrent mechanism its
        memory (batch, kv_heads, head_dim, v_dim).
    log: (batch, kv_heads, 1).
    mass: (batch, kv_heads, 1), the sum of the keys' weights without features, divided by exp(log), for mechanisms whose
        denominators have a lower bound.
    met: (batch, 1, 1), whether a key that is not padding came so far; None if one did in each batch row. Files use
        this name too.
    """

    total: torch.Tensor
    log: torch.Tensor | None = None
    mass: torch.Tensor | None = None
    met: torch.Tensor | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that are not None, by the names of their fields."""
        tensors = {}
        for field in fields(self):
            tensor = getattr(self, field.name)
            if tensor is not None:
                tensors[field.name] = tensor
        return tensors

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Summed:
        return Summed(**{name: change(x) for name, x in self.tensors.items()})

    def fits(self, mechanism: Mechanism, sizes: StateSizes) -> bool:
        """Whether dtypes and shapes are those of the sums of a mechanism with these sizes."""
        dtype = self.total.dtype
        if dtype not in STATE_DTYPES:
            return False
        by_head = (sizes.batch, sizes.kv_heads)
        state_shape = mechanism.state_shape(sizes.head_dim, sizes.v_dim)
        needed = {
            "total": (dtype, (*by_head, *state_shape)),
            "log": (dtype, (*by_head, 1)),
            "mass": (dtype, (*by_head, 1)),
            "met": (torch.bool, (sizes.batch, 1, 1)),
        }
        for name, tensor in self.tensors.items():
            if (tensor.dtype, tuple(tensor.shape)) != needed[name]:
                return False
        return True


@dataclass(frozen=True)
class StateSizes:
    """The sizes of a state, under the names that a problem and a file have for them."""

    batch: int
    kv_heads: int
    head_dim: int
    v_dim: int

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in vars(self).items())


@dataclass(frozen=True)
class _SoFar:
    """What a state holds: its sizes, the number of positions, and the sums; None before the first position."""

    sizes: StateSizes
    length: int = 0
    summed: Summed | None = None


def add(
    mechanism: Mechanism, before: Summed | None, text: Text, scale: float
) -> tuple[torch.Tensor, Summed]:
    """Outputs (batch, heads, n, v_dim) of the next n positions of a text, and the sums that include their keys."""
    met_before = None
    met_after = None
    if text.visible is not None:
        met_before = None if before is None else before.met
        if met_before is None:
            met_before = torch.full((1, 1, 1), before is not None, device=text.visible.device)
        met_after = met_before | text.visible.any(-1, keepdim=True)
        met_after = met_after.expand(text.q.shape[0], 1, 1)

    if isinstance(mechanism, Recurrent):
        output, after = _add_to_memory(mechanism, before, text, scale, met_before)
    else:
        assert isinstance(mechanism, Kernelised)
        output, after = _add_to_sums(mechanism, before, text, scale, met_before)
    return output, replace(after, met=met_after)


def _add_to_memory(
    mechanism: Recurrent,
    before: Summed | None,
    text: Text,
    scale: float,
    met: torch.Tensor | None,
) -> tuple[torch.Tensor, Summed]:
    """`add` for a recurrent mechanism; met: (batch or 1, 1, 1), whether a key came before."""
    q, k, v = text.q, text.k, text.v
    if before is None:
        memory = v.new_zeros(*v.shape[:2], k.shape[3], v.shape[3])
    else:
        memory = before.total
    inputs = RecurrenceInputs(q, k, v, *mechanism.gates(text.parameters, k, v), memory)
    if text.visible is not None:
        inputs = without_unseen(inputs, text.visible, met)
    output, memory = scan(engine_on(v), Rule(mechanism.corrects, scale), inputs)
    return output, Summed(memory)


def _add_to_sums(
    mechanism: Kernelised,
    before: Summed | None,
    text: Text,
    scale: float,
    met: torch.Tensor | None,
) -> tuple[torch.Tensor, Summed]:
    """`add` for a mechanism of features; met: (batch or 1, 1, 1), whether a key came before."""
    sums = None
    if before is not None:
        mass = None if before.mass is None else before.mass[..., None]
        sums = Sums(before.total, before.log, mass)
    output, _, after = follow(mechanism, engine_on(text.v), scale, text, sums, met)
    assert after is not None
    mass = None if after.mass is None else after.mass[..., 0]
    return output, Summed(after.total, after.log, mass)


def add_texts(
    mechanism: Mechanism, before: Summed | None, rows: Text, scale: float, texts: Sequence[Texts]
) -> tuple[torch.Tensor, Summed]:
    """The same where batch rows hold several texts, of which those that begin there start without sums.

    texts: all texts of the call. The sums that are returned are those of the last text of each row.
    """
    batch = rows.q.shape[0]

    def for_every_row(x: torch.Tensor) -> torch.Tensor:
        return x.expand(batch, *x.shape[1:])

    visible = None if rows.visible is None else for_every_row(rows.visible)
    by_row = changed_by_key(rows.parameters, mechanism.by_key, for_every_row)
    outputs = []
    after = []
    for group in texts:
        take = group.pack.take
        seen = group.pack.real[:, None]
        if visible is not None:
            seen = seen & take(visible)
        parameters = changed_by_key(by_row, mechanism.by_key, take)
        start = None
        if group.continues and before is not None:
            start = before.mapped(partial(torch.index_select, dim=0, index=group.rows))
        text = Text(take(rows.q), take(rows.k), take(rows.v), parameters, seen)
        output, summed = add(mechanism, start, text, scale)
        outputs.append(output)
        after.append(summed.tensors)

    at_end = {}
    for name in after[0]:
        of_texts = [tensors[name] for tensors in after]
        at_end[name] = at_ends(texts, of_texts, of_texts[0])
    return put_back([group.pack for group in texts], outputs, batch), Summed(**at_end)


class RecurrentState(Owned):
    """A text continued in constant memory: sums over the keys, or the memory of a recurrent mechanism, not the keys.

        S_i = S_{i-1} + φ(k_i) [v_i, 1]ᵀ,   [numerator, denominator]_i = φ(q_i) S_i,   or the step of the mechanism

    Continuing a text gives the same outputs as computing it at once. Gradients flow back through every recorded call.
    Tensors are never changed in place, so `copy.copy(state)` is an independent state at the same position.

    Args:
        mechanism: a mechanism of features, such as LinearTransformer(), or a recurrent one, such as GatedDelta().
        batch: number of texts in the batch.
        kv_heads: key/value heads; the heads of v where it has more than k.
        head_dim: size of a key.
        v_dim: size of a value; head_dim by default.
        dtype: of the sums, float32 or float64; narrower ones lose keys after a few hundred.
        device: device of the sums.
        shared: whether several layers may write to it; otherwise it belongs to the layer that writes first.

    Raises:
        UnsupportedError: a mechanism whose past is not a sum.
        ArgumentError: an unsupported dtype or size.

    Source: Transformers are RNNs, Katharopoulos et al. 2020, equations 16 to 20.

    >>> from regard.mechanisms import LinearTransformer
    >>> state = RecurrentState(LinearTransformer(), batch=1, kv_heads=2, head_dim=4)
    >>> for _ in range(3):
    ...     output = state.attend(torch.ones(1, 8, 1, 4), torch.ones(1, 2, 1, 4), torch.ones(1, 2, 1, 4))
    >>> state.length, output.shape, state.nbytes
    (3, torch.Size([1, 8, 1, 4]), 160)
    """

    _changing = ("_so_far", "_owner")

    def __init__(
        self,
        mechanism: Mechanism,
        batch: int,
        kv_heads: int,
        head_dim: int,
        v_dim: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        shared: bool = False,
    ) -> None:
        self.shared = yes_or_no("shared", shared)
        if not isinstance(mechanism, Mechanism) or not mechanism.has_state:
            name = str(mechanism) if isinstance(mechanism, Mechanism) else shown(mechanism)
            raise UnsupportedError(
                f"{name} cannot be continued in constant memory, which needs a mechanism of features or a recurrent "
                f"one (LinearTransformer, Performer, GatedDelta, ...); use regard.layers.caches.new_cache"
            )
        if not isinstance(dtype, torch.dtype) or dtype not in STATE_DTYPES:
            raise ArgumentError(f"dtype is {shown(dtype)}; sums are float32 or float64")
        self.mechanism = mechanism
        self.dtype = dtype
        self.device = checked_device(device)
        batch = whole("batch", batch, 0)
        kv_heads = whole("kv_heads", kv_heads, 1)
        head_dim = whole("head_dim", head_dim, 1)
        v_dim = whole_or("v_dim", v_dim, head_dim, 0)
        self._last_problem: tuple[Any, Any] = (None, None)  # the key and the problem of a call
        # Changed by one assignment: an interruption leaves all or nothing.
        self._so_far = _SoFar(StateSizes(batch, kv_heads, head_dim, v_dim))

    @property
    def length(self) -> int:
        """Number of positions so far; also the position of the next one."""
        return self._so_far.length

    @property
    def batch(self) -> int:
        """Number of batch rows."""
        return self._so_far.sizes.batch

    @property
    def nbytes(self) -> int:
        """Bytes held; constant after the first position."""
        summed = self._so_far.summed
        if summed is None:
            return 0
        return sum(tensor.nbytes for tensor in summed.tensors.values())

    def attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        pattern: Pattern | str | None = None,
        scale: float | None = None,
        parameters: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Add the next positions to the sums, and return the outputs of their queries.

        Args:
            q: queries (batch, heads, added, head_dim).
            k: keys (batch, kv_heads, added, head_dim).
            v: values (batch, kv_heads, added, v_dim).
            pattern: causal (None), or causal & key_span, key_mask or SameDocument; positions count from the first call.
                A document begins without a memory, and the state is that of the last one, which the next call
                continues where its ids say so.
            scale: as for `attention`; the same in every call.
            parameters: as for `attention`, for these keys.

        Returns:
            (batch, heads, added, v_dim) in q's dtype.

        Raises:
            ShapeError: tensors that do not fit this state, or that its dtype would round.
            UnsupportedError: another pattern, a document that comes again after another one, or an option that the
                mechanism does not have.
            ArgumentError: another call changed this state meanwhile.

        After an error the state is unchanged.
        """
        before = self._so_far
        pattern = "causal" if pattern is None else pattern
        call = Call(
            q, k, v, parameters=parameters, pattern=pattern, mechanism=self.mechanism, scale=scale
        )
        problem, is_plain = self._checked(call)
        if not is_plain:
            written = call.in_memory()
            q, k, v = (cast(torch.Tensor, x) for x in written[:3])
            parameters = written.parameters
        added = problem.k_len
        start = before.length
        length = start + added
        if isinstance(pattern, Pattern):
            # A mask has a boolean for every key, those of earlier calls included.
            pattern.check(problem.batch, problem.heads, added, length)
        if not added:
            return q.new_zeros(*q.shape[:3], problem.v_dim)

        grid = Grid(added, length, start, range(added), range(start, length), q.device)
        begins = beginnings(problem.pattern, problem.batch, range(start, length))
        visible = unpadded_keys(problem.pattern, grid)
        text = Text(q.to(self.dtype), k.to(self.dtype), v.to(self.dtype), parameters or {}, visible)
        with torch.autocast(q.device.type, enabled=False):
            if begins is None or not bool(begins.any()):
                output, summed = add(self.mechanism, before.summed, text, problem.scale)
            else:
                texts = texts_between(begins.to(q.device))
                output, summed = add_texts(
                    self.mechanism, before.summed, text, problem.scale, texts
                )
        self._go_on(before, length, summed)
        return output.to(q.dtype)

    def attend_varlen(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens: torch.Tensor,
        *,
        scale: float | None = None,
        parameters: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Continue each batch row of this state by one of the documents that are packed in q, k and v, without padding.

        Document d continues batch row d, which then holds the state after that document.

        Args:
            q: queries (all positions, heads, head_dim).
            k: keys (all positions, kv_heads, head_dim).
            v: values (all positions, kv_heads, v_dim).
            cu_seqlens: the first position of each document, and the end of the last; int32 or int64, (batch + 1,). A
                document may be empty.
            scale: as for `attention`; the same in every call.
            parameters: as for `attention`, for these keys, with one batch row: (1, kv_heads, all positions, ...).

        Returns:
            (all positions, heads, v_dim) in q's dtype. `length` grows by the longest document.

        Raises:
            ShapeError, UnsupportedError, ArgumentError: as for `attend`.

        Source: chunk_gated_delta_rule of flash-linear-attention, Yang et al. 2024, which takes and returns the same
        states.

        >>> from regard.mechanisms import Retention
        >>> state = RecurrentState(Retention(), batch=2, kv_heads=2, head_dim=4)
        >>> x = torch.randn(5, 2, 4)
        >>> state.attend_varlen(x, x, x, torch.tensor([0, 3, 5])).shape, state.length
        (torch.Size([5, 2, 4]), 3)
        """
        before = self._so_far
        ends = checked_ends(q, k, v, cu_seqlens)
        call = Call(
            *(x.transpose(0, 1)[None] for x in (q, k, v)),
            parameters=parameters,
            pattern="causal",
            mechanism=self.mechanism,
            scale=scale,
        )
        problem, is_plain = self._checked(call, documents=len(ends) - 1)
        if not is_plain:
            call = call.in_memory()
        longest = int(ends.diff().max()) if len(ends) > 1 else 0
        if not longest:
            return q.new_zeros(*q.shape[:2], problem.v_dim)

        texts = texts_packed(ends)
        with torch.autocast(q.device.type, enabled=False):
            queries, keys, values = (cast(torch.Tensor, x).to(self.dtype) for x in call[:3])
            rows = Text(queries, keys, values, call.parameters or {})
            output, summed = add_texts(self.mechanism, before.summed, rows, problem.scale, texts)
        self._go_on(before, before.length + longest, summed)
        return output[0].transpose(0, 1).to(q.dtype)

    def _go_on(self, before: _SoFar, length: int, summed: Summed) -> None:
        """Keep new sums, unless another call did so since this one began."""
        if self._so_far is not before:
            raise ArgumentError(
                f"this state was at position {before.length} when the call began and is at {self.length} now: another "
                f"call changed it meanwhile, such as one in a hook or another thread; let each call end before the "
                f"next one"
            )
        self._so_far = _SoFar(before.sizes, length, summed)

    def crop(self, length: int) -> None:
        """Forget everything (`length` 0) or nothing; keys cannot be removed from a sum.

        Raises:
            UnsupportedError: any other length.
        """
        length = whole("the length to crop to", length)
        if length not in (0, self.length):
            raise UnsupportedError(
                f"crop({length}): {self.length} positions are summed up and cannot be separated; crop to 0, or keep "
                f"copy.copy(state) at the positions to return to"
            )
        if not length:
            self._so_far = _SoFar(self._so_far.sizes)

    def reorder(self, index: torch.Tensor) -> None:
        """Replace batch row i by batch row `index[i]`, as beam search needs; index: integers (new batch,)."""
        index = checked_rows(index, self.batch, "state")
        before = self._so_far
        summed = before.summed
        if summed is not None:
            summed = summed.mapped(lambda x: x.index_select(0, index.to(x.device)))
        sizes = replace(before.sizes, batch=len(index))
        self._so_far = _SoFar(sizes, before.length, summed)

    def save(self, path: str | Path) -> None:
        """Write the sums to one safetensors file, atomically and with checksums.

        Raises:
            CheckpointError: the file could not be written; an old file is unchanged.
        """
        so_far = self._so_far
        words = {"state": str(self.mechanism), "format": FORMAT, "length": str(so_far.length)}
        for name, size in vars(so_far.sizes).items():
            words[name] = str(size)
        tensors = {} if so_far.summed is None else so_far.summed.tensors
        save_tensors(path, tensors, words)

    @classmethod
    def load(
        cls, path: str | Path, mechanism: Mechanism, device: torch.device | str = "cpu"
    ) -> Self:
        """Read a state of this mechanism that `save` wrote.

        Raises:
            CheckpointError: the file is missing, damaged, of another mechanism, or not a state.
        """
        path = a_path("path", path)
        state = cls(mechanism, 1, 1, 1, device=device)
        words = load_tensor_metadata(path)
        tensors = load_tensors(path)
        if (words.get("format"), words.get("state")) != (FORMAT, str(mechanism)):
            raise CheckpointError(
                f"{path} holds a state of {words.get('state')!r} in format {words.get('format')!r}; this call needs "
                f"one of {str(mechanism)!r} in format {FORMAT}"
            )
        length = whole_number(path, words, "length")
        numbers = {
            field.name: whole_number(path, words, field.name) for field in fields(StateSizes)
        }
        sizes = StateSizes(**numbers)
        summed = None
        fits = not tensors
        if "total" in tensors and tensors.keys() <= {field.name for field in fields(Summed)}:
            summed = Summed(**tensors)
            fits = summed.fits(mechanism, sizes)
        if bool(length) != bool(tensors) or not fits:
            shapes = {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
            raise CheckpointError(
                f"{path} holds {shapes}, which are not the sums of {mechanism} with length={length}, {sizes}"
            )
        if summed is not None:
            state.dtype = summed.total.dtype
            summed = summed.mapped(lambda x: x.to(device))
        state._so_far = _SoFar(sizes, length, summed)
        return state

    def _checked(self, call: Call, documents: int | None = None) -> tuple[Problem, bool]:
        """The problem of a call, and whether its tensors are known to have their numbers in their memory.

        Every argument is checked, once for calls that are alike.

        documents: how many are packed into the one batch row of the call, each for a batch row of the state.
        """
        try:
            key = call.key()
        except LOOKUP_ERRORS:
            key = None
        last_key, problem = self._last_problem
        if key is None or key != last_key:
            problem = call.problem()
        self._check(call.q, problem, problem.batch if documents is None else documents)
        if key is not None:
            self._last_problem = key, problem
        return problem, key is not None

    def _check(self, q: torch.Tensor, problem: Problem, batch: int) -> None:
        parts = problem.pattern.factors
        others = []
        for part in parts:
            separates = not part.made_of() and document_ids(part)
            if part != Causal() and not part.query_free and not separates:
                others.append(part)
        if others or Causal() not in parts:
            raise UnsupportedError(
                f"a state is continued by causal, alone or & key_span, & key_mask or & SameDocument, not by "
                f"{problem.pattern}"
            )
        if problem.q_len != problem.k_len:
            raise ShapeError(
                f"{count_of(problem.q_len, 'queries')} but {count_of(problem.k_len, 'keys')}; a "
                f"state takes a query and a key for each position"
            )
        for name, size in vars(self._so_far.sizes).items():
            size_of_call = batch if name == "batch" else getattr(problem, name)
            if size_of_call != size:
                raise ShapeError(f"{name} is {size_of_call} in this call and {size} in this state")
        dtype = torch.promote_types(q.dtype, self.dtype)
        if q.device.type != self.device.type or dtype != self.dtype:
            raise ShapeError(
                f"q is {q.dtype} on {q.device} and this state {self.dtype} on {self.device}; make one with "
                f"dtype={dtype}, device={q.device.type!r}"
            )

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return (
            f"RecurrentState({self.mechanism}, {self._so_far.sizes}, length={self.length}, {dtype})"
        )
