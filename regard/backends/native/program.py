"""Programs: the layers of a network over a few rows, which the compiled library computes in one call.

Such layers take less time than the code of Python that calls them. A program is a list of operations on buffers
(rows, width) of float32 numbers. It reads the memory of the weights itself, so changed weights take effect at once. The
bits of a row do not depend on the other rows.
"""

from __future__ import annotations

import ctypes
import weakref
from copy import copy
from ctypes import POINTER, Structure, c_double, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.backends.native.filling import describe
from regard.backends.native.library import CCall, CSchedule, Library, load, refusal

MOST_ROWS = 64  # RG_MOST_PROGRAM_ROWS
MOST_BUFFERS = 64  # RG_MOST_BUFFERS
MOST_STEPS = 1024  # RG_MOST_STEPS
NO_ID = -1
AS_IT_IS = -1  # RG_AS_IT_IS
AMONG_ROWS = -2  # RG_AMONG_ROWS
WHOLE = 0  # RG_WHOLE
BOUNDED = 1  # RG_BOUNDED
BAD_SIZES = 2
BAD_ID = 9
NOT_FINITE = 10


class Kind(IntEnum):
    """What an operation computes, as in regard_native.h."""

    EMBED = 0
    PROJECT = 1
    NORM = 2
    ACTIVATE = 3
    MULTIPLY = 4
    ROTATE = 5
    ATTEND = 6
    RMS_NORM = 7
    PROJECT_PANELS = 8


Form = tuple[torch.Size, torch.dtype]  # of a weight

ACTIVATIONS = {"relu": 0, "gelu": 1, "gelu-tanh": 2, "silu": 3}


class COperation(Structure):
    """rg_operation."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in ("kind", "source", "into", "keys", "values", "activation", "adds")
        ),
        ("head_dim", c_int32),
        ("number", c_double),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("weight_size", c_int64),
        ("bias_size", c_int64),
        ("call", c_void_p),
        ("back", c_int64),
    ]


class CProgram(Structure):
    """rg_program."""

    _fields_ = [
        ("operations", c_int32),
        ("operation", POINTER(COperation)),
        ("buffers", c_int32),
        ("width", POINTER(c_int32)),
        ("given", POINTER(c_void_p)),
        ("rows", c_int32),
        ("place", c_int32),
        ("ids", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("rotated", c_int32),
        ("places", c_int32),
    ]


class CWriting(Structure):
    """rg_writing."""

    _fields_ = [
        ("program", POINTER(CProgram)),
        ("vectors", c_void_p),
        ("logits", c_int32),
        ("steps", c_int32),
        ("beam", c_int32),
        ("nevers", c_int32),
        ("never", c_void_p),
        ("end", c_int64),
        ("ids", c_void_p),
        ("log_probs", c_void_p),
        ("parents", c_void_p),
        ("totals", c_void_p),
        ("floors", c_void_p),
        ("written", c_int32),
        ("scored", c_int32),
    ]


class Beam(NamedTuple):
    """The hypotheses of a beam search, which are neighbouring rows of a program.

    totals: float64 (texts, beam): the log-probability of each row, the likeliest of a text first.
    floors: float64 (texts,): writing stops before a step in which the likeliest total of a text is at most this.
    """

    totals: torch.Tensor
    floors: torch.Tensor


class Choice(NamedTuple):
    """How a program chooses the ids of the texts that it continues.

    steps: the most steps.
    never: int64; ids that are not chosen.
    end: the id that ends a text, if there is one.
    beam: None for the likeliest id of each row.
    """

    steps: int
    never: torch.Tensor
    end: int | None
    beam: Beam | None = None


class Written(NamedTuple):
    """What a program has written.

    ids, log_probs: int64 and float64 (steps, rows), of each step.
    parents: int32 (steps, rows), of a beam: the row that each row continues.
    is_scored: whether the logits are those of one step more, which is not written. Then all ids are appended to their
        texts, else all but the last.
    """

    ids: torch.Tensor
    log_probs: torch.Tensor
    parents: torch.Tensor | None
    is_scored: bool

    def steps(self) -> list[tuple[list[int], list[float]]]:
        """The ids and log-probabilities of each step."""
        return list(zip(self.ids.tolist(), self.log_probs.tolist(), strict=True))

    def last_ids(self, before: torch.Tensor) -> torch.Tensor:
        """The ids of the last step, int64 (rows,); those before where there is none."""
        return self.ids[-1] if len(self.ids) else before


class Panels(NamedTuple):
    """A matrix in panels of neighbouring outputs: (outputs / width, inputs, width), float32 at an address.

    The caller keeps its memory alive until a program that reads it has run.
    """

    address: int
    outputs: int
    inputs: int
    width: int


class HeadSizes(NamedTuple):
    """The sizes of an attention: heads of queries and of keys, and the dims of keys and values."""

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int


class Attending:
    """An attention of a program: its call, whose keys and values are written before the program runs."""

    def __init__(self, sizes: HeadSizes, scale: float, softcap: float | None) -> None:
        self.sizes = sizes
        self._scale = scale
        self._softcap = softcap
        self.struct = CCall(
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=sizes.head_dim,
            v_dim=sizes.v_dim,
            scale=scale,
            softcap=softcap or 0.0,
            threads=1,
        )
        self._schedule = CSchedule(blocks=1, runs=1)
        self._block = (c_int32 * 4)()
        self._run = (c_int32 * 4)()
        self._schedule.block = ctypes.addressof(self._block)
        self._schedule.run = ctypes.addressof(self._run)
        self.struct.schedules = 1
        self.struct.schedule = ctypes.addressof(self._schedule)
        self._read: tuple[Any, ...] = ()  # what the struct points at
        # The keys and values that the struct describes now; the caller keeps them alive.
        self._text: tuple[Any, Any] = (_gone, _gone)

    def of_same_sizes(self) -> Attending:
        """Another one, which reads no keys yet."""
        return Attending(self.sizes, self._scale, self._softcap)

    def read(
        self, k: torch.Tensor, v: torch.Tensor, readers: int, mask: torch.Tensor | None = None
    ) -> None:
        """Let the queries of `readers` neighbouring rows look at all keys of each text.

        Args:
            k: (texts, kv_heads, keys, head_dim); v: (texts, kv_heads, keys, v_dim).
            mask: added to the scores, float32 (texts, 1, 1, keys).
        """
        struct = self.struct
        keys = k.shape[2]
        self._write_sizes(len(k), readers, keys)
        self._block[:] = (0, readers, 0, 1)
        self._run[:] = (0, keys, 0, 0)
        describe(struct.k, k)
        describe(struct.v, v)
        struct.bias.data = None
        self._read = (k, v)
        if mask is None:
            return
        first_entries = torch.arange(len(k), device="cpu") * keys
        struct.bias.data = mask.data_ptr()
        struct.bias.at = first_entries.data_ptr()
        struct.bias.head = 0
        struct.bias.row = 0
        struct.bias.key = 1
        struct.bias.size = mask.numel()
        self._read = (k, v, mask, first_entries)

    def read_text(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Let the query of each row look at its own text; k and v hold its entries and free slots behind them.

        The caller keeps both alive until the program has run.
        """
        described_k, described_v = self._text
        if described_k() is k and described_v() is v:
            return
        self._text = (_gone, _gone)  # until both are described
        self._write_sizes(len(k), 1, k.shape[2])
        describe(self.struct.k, k)
        describe(self.struct.v, v)
        self._text = (weakref.ref(k), weakref.ref(v))

    def read_rows(
        self, texts: int, length: int, bounds: tuple[torch.Tensor, torch.Tensor] | None
    ) -> None:
        """Let the queries of each text look at the keys of that text; a text is `length` neighbouring rows.

        Args:
            bounds: int32 (length,), the first key of each query and the end of its keys; None for all keys.
        """
        self._write_sizes(texts, length, length)
        self._block[:] = (0, length, 0, 1)
        schedule = self._schedule
        if bounds is None:
            self._run[:] = (0, length, WHOLE, 0)
            schedule.bounds = 0
            return
        self._run[:] = (0, length, BOUNDED, 0)
        lo, hi = bounds
        schedule.bounds = length
        schedule.lo = lo.data_ptr()
        schedule.hi = hi.data_ptr()
        self._read = bounds

    def _write_sizes(self, batch: int, q_len: int, keys: int) -> None:
        struct = self.struct
        struct.batch = batch
        struct.q_len = q_len
        struct.keys = keys
        width = self.sizes.heads * self.sizes.head_dim
        _write_rows(struct.q, batch, q_len, width, self.sizes.head_dim)
        width = self.sizes.heads * self.sizes.v_dim
        _write_rows(struct.out, batch, q_len, width, self.sizes.v_dim)


def _gone() -> None:
    """Stands for a weak reference whose tensor was deleted."""


def _write_rows(struct: Any, batch: int, q_len: int, width: int, dim: int) -> None:
    """Describe heads that lie in the rows of a buffer: (batch, q_len, heads, dim)."""
    struct.batch = q_len * width
    struct.head = dim
    struct.row = width
    struct.size = batch * q_len * width
    struct.type = 0


class Program:
    """A list of operations; each method that is named after an operation adds one.

    A program belongs to one state of texts. Only one thread at a time may run it.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._struct = CProgram(places=1)
        self._address = ctypes.byref(self._struct)
        self._operations: list[COperation] = []
        self._widths: list[int] = []
        # The weights, in the order of the fields that hold their addresses.
        self._weights: list[torch.Tensor] = []
        self._fields: list[tuple[int, str]] = []
        self._addresses: list[tuple[int, bool]] = []
        self._read: list[torch.Tensor] = []
        self._turns: tuple[torch.Tensor, ...] = ()
        self._rows_given: dict[int, int] = {}  # by buffer: the rows of the tensor that serves as it
        self._attendings: dict[int, Attending] = {}  # by the number of their operation
        self._held: list[Any] = []  # what else the structs point at

    def buffer(self, width: int) -> int:
        """The number of a new buffer (rows, width)."""
        self._widths.append(width)
        return len(self._widths) - 1

    def width(self, buffer: int) -> int:
        return self._widths[buffer]

    def embed(self, table: torch.Tensor, factor: float, into: int) -> int:
        """into = rows of the table · factor, plus the vectors of `add_to_rows`; returns the number of the operation."""
        operation = self._add(Kind.EMBED, into, into, number=factor)
        self._point(operation, "weight", table)
        return operation

    def project(
        self,
        source: int,
        into: int,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        adds: bool = False,
    ) -> None:
        """into = source weightᵀ + bias, added to what `into` holds if `adds`."""
        operation = self._add(Kind.PROJECT, source, into, adds=adds)
        self._point(operation, "weight", weight)
        self._point(operation, "bias", bias)

    def project_panels(
        self, source: int, into: int, panels: Panels, bias: torch.Tensor | None, adds: bool = False
    ) -> None:
        """As `project`, with a matrix in panels, which is faster for more than a few rows."""
        operation = self._add(
            Kind.PROJECT_PANELS,
            source,
            into,
            adds=adds,
            weight=panels.address,
            weight_size=panels.outputs * panels.inputs,
            head_dim=panels.width,
        )
        self._point(operation, "bias", bias)

    def norm(
        self,
        source: int,
        into: int,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        epsilon: float,
    ) -> None:
        """into = the rows of source with mean 0 and variance 1, times weight, plus bias."""
        operation = self._add(Kind.NORM, source, into, number=epsilon)
        self._point(operation, "weight", weight)
        self._point(operation, "bias", bias)

    def rms_norm(self, source: int, into: int, weight: torch.Tensor | None, epsilon: float) -> None:
        """into = the rows of source, divided by the root of the mean of their squares, times weight."""
        operation = self._add(Kind.RMS_NORM, source, into, number=epsilon)
        self._point(operation, "weight", weight)

    def activate(self, buffer: int, activation: str) -> None:
        self._add(Kind.ACTIVATE, buffer, buffer, activation=ACTIVATIONS[activation])

    def multiply(self, source: int, into: int) -> None:
        self._add(Kind.MULTIPLY, source, into)

    def rotate(self, buffer: int, head_dim: int) -> None:
        """Rotate the heads of a buffer by the cosines and sines of the place."""
        self._struct.rotated = head_dim
        self._add(Kind.ROTATE, buffer, buffer, head_dim=head_dim)

    def attend(self, queries: int, into: int, attending: Attending) -> None:
        """into = attention of the queries over the keys that `Attending.read` gives."""
        self._attend(queries, into, attending, back=AS_IT_IS)

    def attend_to_text(
        self, queries: int, keys: int, values: int, into: int, attending: Attending, back: int
    ) -> None:
        """Append keys and values to the text of each row; into = attention over the last entries of that text.

        back: how many entries before its own a query looks at.
        """
        self._attend(queries, into, attending, keys=keys, values=values, back=back)

    def attend_among_rows(
        self, queries: int, keys: int, values: int, into: int, attending: Attending
    ) -> None:
        """into = attention of the queries over keys and values of the rows of each text; see `Attending.read_rows`."""
        self._attend(queries, into, attending, keys=keys, values=values, back=AMONG_ROWS)

    def _attend(self, queries: int, into: int, attending: Attending, **fields: int) -> None:
        call = ctypes.addressof(attending.struct)
        operation = self._add(Kind.ATTEND, queries, into, call=call, **fields)
        self._attendings[operation] = attending

    def _add(self, kind: Kind, source: int, into: int, **fields: Any) -> int:
        self._operations.append(COperation(kind=kind, source=source, into=into, **fields))
        return len(self._operations) - 1

    def _point(self, operation: int, field: str, weight: torch.Tensor | None) -> None:
        if weight is not None:
            self._weights.append(weight)
            self._fields.append((operation, field))

    def finish(self) -> bool:
        """Make the program ready to run; returns whether the library takes its weights and sizes."""
        if len(self._widths) > MOST_BUFFERS:
            return False
        operations = (COperation * len(self._operations))(*self._operations)
        widths = (c_int32 * len(self._widths))(*self._widths)
        given = (c_void_p * len(self._widths))()
        struct = self._struct
        struct.operations = len(operations)
        struct.operation = operations
        struct.buffers = len(widths)
        struct.width = widths
        struct.given = given
        self._operation_structs = operations
        self._given = given
        self._held += [operations, widths, given]
        return self.follow_weights()

    def copy(self) -> tuple[Program, dict[Attending, Attending]]:
        """A program of the same operations and weights, and its attention in the place of each of this one.

        They read no keys yet. A copy takes less time than a new program. This one must be finished.
        """
        other = copy(self)
        operations = type(self._operation_structs).from_buffer_copy(self._operation_structs)
        given = type(self._given)()
        other._struct = CProgram.from_buffer_copy(self._struct)
        other._struct.operation = operations
        other._struct.given = given
        other._address = ctypes.byref(other._struct)
        other._operation_structs = operations
        other._given = given
        other._rows_given = {}
        other._turns = ()
        other._attendings = {}
        attendings = {}
        for number, attending in self._attendings.items():
            own = attending.of_same_sizes()
            operations[number].call = ctypes.addressof(own.struct)
            other._attendings[number] = attendings[attending] = own
        return other, attendings

    def forms(self) -> list[Form]:
        """The shapes and dtypes that the weights have now."""
        return [(weight.shape, weight.dtype) for weight in self._weights]

    def has_weights(self) -> bool:
        """Whether the weights are where they were."""
        addresses = [(weight.data_ptr(), weight.is_contiguous()) for weight in self._weights]
        return addresses == self._addresses

    def follow_weights(self) -> bool:
        """Read the addresses of the weights again; returns whether the program can still read all of them."""
        if self.has_weights():
            return True
        self._addresses = []
        # These share the memory of the weights and keep it alive, even if another thread gives a
        # weight other memory while the program runs.
        self._read = [weight.detach() for weight in self._weights]
        if not all(map(_is_read, self._weights)):
            return False
        for (number, field), weight in zip(self._fields, self._read, strict=True):
            operation = self._operation_structs[number]
            setattr(operation, field, weight.data_ptr())
            setattr(operation, f"{field}_size", weight.numel())
        self._addresses = [(weight.data_ptr(), True) for weight in self._read]
        return True

    def stand_at(self, places: int) -> None:
        """Give row r the position place + r % `places`; without a call, each row has the position `place` of `run`."""
        self._struct.places = places

    def add_to_rows(self, operation: int, vectors: torch.Tensor) -> None:
        """Add vectors (places, width) to the rows of an embedding; they must live until the program has run."""
        struct = self._operation_structs[operation]
        struct.bias = vectors.data_ptr()
        struct.bias_size = vectors.numel()

    def rotate_by(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotate by these cosines and signed sines (places, head_dim), float32, until others are given."""
        self._struct.cos = cos.data_ptr()
        self._struct.sin = sin.data_ptr()
        self._turns = (cos, sin)  # while the struct points at them

    def give(self, buffer: int, tensor: torch.Tensor) -> None:
        """Use the memory of a tensor (rows, width) as a buffer, until another is given."""
        self._given[buffer] = tensor.data_ptr()
        self._rows_given[buffer] = tensor.numel() // self._widths[buffer]

    def run(self, rows: int, place: int, ids: torch.Tensor | None = None) -> bool:
        """Run all operations for this number of rows; `place` is the position of the first, see `stand_at`.

        Returns:
            Whether all attentions gave finite numbers. If not, the buffers hold unfinished numbers, and other code has
            to compute the step.

        Raises:
            IndexError: an id is not in the table.
            RegardError: sizes that do not fit the program.
        """
        self._begin(rows, place, ids)
        return _is_finite(self._library.handle.rg_run(self._address))

    def write(
        self,
        logits: int,
        ids: torch.Tensor,
        place: int,
        choice: Choice,
        vectors: torch.Tensor | None = None,
    ) -> Written:
        """Run the program step by step; each step reads the ids that the one before has chosen.

        It ends before a step in which a text or its search may end, or whose numbers are not finite. The cosines and
        sines that were given have a row for each step.

        Args:
            logits: the buffer (rows, vocab_size) by which ids are chosen.
            ids: int64 (rows,), those that the first step reads; place: their position.
            choice: how many steps there are at most, and which ids are chosen.
            vectors: (steps, width), what `add_to_rows` would add in each step.

        Raises:
            IndexError, RegardError: as for `run`.
        """
        rows = len(ids)
        steps = choice.steps
        self._begin(rows, place, ids)
        if not _fits(choice, rows):
            raise refusal(BAD_SIZES)
        chosen = torch.empty(steps, rows, dtype=torch.int64, device="cpu")
        log_probs = torch.empty(steps, rows, dtype=torch.float64, device="cpu")
        writing = CWriting(
            program=ctypes.pointer(self._struct),
            vectors=None if vectors is None else vectors.data_ptr(),
            logits=logits,
            steps=steps,
            beam=1,
            nevers=len(choice.never),
            never=choice.never.data_ptr(),
            end=NO_ID if choice.end is None else choice.end,
            ids=chosen.data_ptr(),
            log_probs=log_probs.data_ptr(),
        )
        parents = None
        if choice.beam is not None:
            totals = choice.beam.totals.clone()  # it is changed
            parents = torch.empty(steps, rows, dtype=torch.int32, device="cpu")
            writing.beam = totals.shape[1]
            writing.parents = parents.data_ptr()
            writing.totals = totals.data_ptr()
            writing.floors = choice.beam.floors.data_ptr()
        _is_finite(self._library.handle.rg_write(ctypes.byref(writing)))
        written = writing.written
        return Written(
            chosen[:written],
            log_probs[:written],
            None if parents is None else parents[:written],
            bool(writing.scored),
        )

    def _begin(self, rows: int, place: int, ids: torch.Tensor | None) -> None:
        """Write what a run needs for so many rows."""
        fewest = min(self._rows_given.values(), default=rows)
        if ids is not None:
            fewest = min(fewest, ids.numel())
        if rows > fewest:
            raise refusal(BAD_SIZES)
        struct = self._struct
        struct.rows = rows
        struct.place = place
        if ids is not None:
            struct.ids = ids.data_ptr()


def _fits(choice: Choice, rows: int) -> bool:
    """Whether the memory of a choice can be read for so many rows."""
    tensors = [(choice.never, torch.int64)]
    if choice.beam is not None:
        totals, floors = choice.beam
        if totals.dim() != 2 or totals.numel() != rows or floors.shape != totals.shape[:1]:
            return False
        tensors += [(totals, torch.float64), (floors, torch.float64)]
    return all(
        x.dtype == dtype and x.device.type == "cpu" and x.is_contiguous() for x, dtype in tensors
    )


def _is_finite(code: int) -> bool:
    """Whether a run has finished; False where a number was not finite."""
    if code == BAD_ID:
        raise IndexError("an id is not in the table")
    if code and code != NOT_FINITE:
        raise refusal(code)
    return not code


def _is_read(weight: torch.Tensor) -> bool:
    """Whether a program can read the memory of this weight directly."""
    return (
        type(weight) in (torch.Tensor, nn.Parameter)
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and weight.numel() > 0
        and not weight.is_neg()
    )


def library_of_programs() -> Library | None:
    """The compiled library; None where there is none."""
    library = load()
    return None if isinstance(library, str) else library
