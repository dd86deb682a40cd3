"""Loads the compiled kernel: the structs of its C interface, and why it is not used if it is not."""

from __future__ import annotations

import ctypes
import os
import warnings
from contextlib import suppress
from ctypes import POINTER, Structure, c_char_p, c_double, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from regard.backends.native.build import LIBRARY, digest
from regard.errors import RegardError

VERSION = 10  # RG_VERSION in regard_native.h
MOST_ROWS = 192  # RG_MOST_ROWS
SPAN = 2048  # RG_SPAN
ROWS_OF_BITS = 64  # RG_ROWS_OF_BITS
NO_LIMIT = 2**63 - 1  # RG_NO_LIMIT
MOST_TOP = 512  # RG_MOST_TOP
CHUNK = 32  # RG_CHUNK
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3, torch.float64: 4}
# By the numbers of processor.h.
INSTRUCTIONS = {
    1: "vectors of 16 bytes",
    2: "AVX2",
    3: "AVX-512",
    4: "AVX-512 with BF16",
    5: "NEON",
}
SETTING = "REGARD_NATIVE"
BUILD = "run python -m regard.backends.native.build where a C++ compiler is, or after pip install 'regard[compiler]'"

# What a function of the kernel refuses, by the code that it returns.
_WRONG = {
    1: "this processor has neither AVX2 nor AVX-512, one of which its library needs",
    2: "a size is below 1 or too large, or heads are no multiple of kv_heads",
    3: "the row blocks of a schedule do not follow each other, or one is longer than 192 rows; or lists do not fit",
    4: "the runs of a row block are not ascending, or leave the keys of the call",
    5: "bounds or bits of a run lie outside their arrays",
    6: "a tensor has no memory, its strides lead outside it, or its dtype is unknown",
    7: "an array is missing, a statistic has no room, or the number of threads is below 1",
    8: "there was not enough memory",
    9: "an id is not in the table",
}


class CRowBlock(Structure):
    """The four numbers of a row block in `rg_schedule.block`."""

    _fields_ = [
        ("first_row", c_int32),
        ("end_row", c_int32),
        ("first_run", c_int32),
        ("end_run", c_int32),
    ]


class CRun(Structure):
    """The four numbers of a run of keys in `rg_schedule.run`.

    place: where its bounds or its bits begin.
    """

    _fields_ = [
        ("start", c_int32),
        ("stop", c_int32),
        ("kind", c_int32),
        ("place", c_int32),
    ]


class CSchedule(Structure):
    """rg_schedule."""

    _fields_ = [
        ("blocks", c_int32),
        ("runs", c_int32),
        ("bounds", c_int32),
        ("words", c_int32),
        ("origin", c_int32),
        ("block", c_void_p),
        ("run", c_void_p),
        ("lo", c_void_p),
        ("hi", c_void_p),
        ("bits", c_void_p),
    ]


class CTensor(Structure):
    """rg_tensor."""

    _fields_ = [
        ("data", c_void_p),
        ("batch", c_int64),
        ("head", c_int64),
        ("row", c_int64),
        ("size", c_int64),
        ("type", c_int32),
    ]


class CVisible(Structure):
    """rg_visible."""

    _fields_ = [
        *((name, c_int32) for name in ("rows", "heads", "q_len", "keys")),
        ("mask", c_void_p),
        *(
            (name, c_int64)
            for name in ("mask_row", "mask_head", "mask_query", "mask_key", "mask_size")
        ),
        ("start", c_void_p),
        ("stop", c_void_p),
        ("start_row", c_int64),
        ("stop_row", c_int64),
        ("position", c_void_p),
        ("position_row", c_int64),
        ("left", c_int64),
        ("right", c_int64),
        *((name, c_void_p) for name in ("schedule", "block", "run", "lo", "hi", "bits")),
        ("words", c_int64),
    ]


class CBias(Structure):
    """rg_bias."""

    _fields_ = [
        ("data", c_void_p),
        ("at", c_void_p),
        ("head", c_int64),
        ("row", c_int64),
        ("key", c_int64),
        ("size", c_int64),
    ]


class CLists(Structure):
    """rg_lists."""

    _fields_ = [
        ("block", c_void_p),
        ("batch", c_int64),
        ("list", c_int64),
        ("size", c_int64),
        *((name, c_int32) for name in ("batches", "lists", "count", "rows", "keys", "bounds")),
        ("lo", c_void_p),
        ("hi", c_void_p),
    ]


class CWindows(Structure):
    """rg_windows."""

    _fields_ = [
        ("windows", c_int32),
        ("first", c_void_p),
        ("cell", c_void_p),
    ]


class CCall(Structure):
    """rg_call."""

    _fields_ = [
        ("batch", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("q_len", c_int32),
        ("head_dim", c_int32),
        ("v_dim", c_int32),
        ("first_key", c_int32),
        ("keys", c_int32),
        ("threads", c_int32),
        ("precise", c_int32),
        ("scale", c_double),
        ("softcap", c_double),
        ("dropout", c_double),
        ("dropout_seed", c_uint64),
        ("start", c_void_p),
        ("bias", CBias),
        ("lists", c_void_p),
        ("windows", c_void_p),
        ("schedules", c_int32),
        ("schedule", c_void_p),
        ("schedule_of", c_void_p),
        ("q", CTensor),
        ("k", CTensor),
        ("v", CTensor),
        ("out", CTensor),
        ("k_scale", CTensor),
        ("v_scale", CTensor),
        ("log_sum_exp", c_void_p),
        ("row_sums", c_void_p),
        ("statistics", c_void_p),
        ("unsound", c_void_p),
    ]


class CStatistics(Structure):
    """rg_statistics."""

    _fields_ = [
        ("entropy", c_void_p),
        ("distance", c_void_p),
        ("received", c_void_p),
        ("top", c_int32),
        ("top_weights", c_void_p),
        ("top_keys", c_void_p),
        ("weights", c_void_p),
        ("weight_heads", c_int32),
        ("weight_rows", c_int32),
        ("head_slot", c_void_p),
        ("row_slot", c_void_p),
    ]


class CGradients(Structure):
    """rg_gradients."""

    _fields_ = [
        ("dout", CTensor),
        ("dlog_sum_exp", c_void_p),
        ("dq", CTensor),
        ("dk", CTensor),
        ("dv", CTensor),
        ("dbias", CTensor),
        ("dtable", CTensor),
    ]


class CRecurrence(Structure):
    """rg_recurrence."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in ("batch", "heads", "key_heads", "kv_heads", "length", "head_dim", "v_dim")
        ),
        ("threads", c_int32),
        ("delta", c_int32),
        ("decays", c_int32),
        ("scale", c_double),
        ("unit", c_double),
        *((name, CTensor) for name in ("q", "k", "v", "out", "log_decay", "strength")),
        *((name, c_void_p) for name in ("before", "after", "kept", "solved")),
    ]


class CRecurrenceGradients(Structure):
    """rg_recurrence_gradients."""

    _fields_ = [
        ("dout", CTensor),
        ("dafter", c_void_p),
        *((name, CTensor) for name in ("dq", "dk", "dv", "dlog_decay", "dstrength")),
        ("dbefore", c_void_p),
    ]


def limit_of(side: int | None) -> int:
    """The left or right side of a window, as the library takes it."""
    return NO_LIMIT if side is None else side


@dataclass(frozen=True)
class Library:
    """The loaded kernel."""

    handle: Any
    instructions: str

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and keys of the pairs that are computed together."""
        return (12, 32) if self.instructions.startswith("AVX-512") else (6, 16)

    def forward(self, call: Any) -> None:
        """Compute the output, and the log-sum-exp if there is memory for it; `call` is the address of a CCall.

        Raises:
            RegardError: the call does not fit the interface; nothing was written then.
        """
        if code := self.handle.rg_forward(call):
            raise refusal(code)

    def backward(self, call: Any, gradients: CGradients) -> None:
        """Compute the gradients; raises like `forward`."""
        if code := self.handle.rg_backward(call, ctypes.byref(gradients)):
            raise refusal(code)

    def lower(self, visible: CVisible) -> int:
        """Write the schedules of a call; returns how many words of bits they need, and is complete if it had as many.

        Raises:
            RegardError: the arrays or numbers do not fit the interface.
        """
        words = self.handle.rg_lower(ctypes.byref(visible))
        if words < 0:
            raise RegardError(
                "the native kernel refused the keys of a call: a size is below 1, an array is missing, or a number is "
                "too far from 0; name another backend"
            )
        return words

    def hides_extreme(
        self, visible: CVisible, x: CTensor, batch: int, heads: int, dim: int, limit: float
    ) -> bool:
        """Whether a number of a key that no query may look at is NaN or farther from 0 than the limit."""
        found = self.handle.rg_hides_extreme(
            ctypes.byref(visible), ctypes.byref(x), batch, heads, dim, limit
        )
        return bool(found)

    def recur(self, call: CRecurrence) -> None:
        """Compute a recurrence; raises like `forward`."""
        if code := self.handle.rg_recur(ctypes.byref(call)):
            raise refusal(code)

    def recur_back(self, call: CRecurrence, gradients: CRecurrenceGradients) -> None:
        """Compute the gradients of a recurrence; raises like `forward`."""
        if code := self.handle.rg_recur_back(ctypes.byref(call), ctypes.byref(gradients)):
            raise refusal(code)


def refusal(code: int) -> RegardError:
    """The error for a code that a function of the library returned."""
    return RegardError(
        f"the native kernel refused a call: {_WRONG.get(code, f'code {code}')}; name another backend"
    )


def _address_of_threads() -> int | None:
    """The address of PyTorch's function for threads, for a kernel that does not find it by name.

    PyTorch's wheel for x86-64 makes its OpenMP library visible. Those for 64-bit Arm and for macOS load it for PyTorch
    alone; a library that is not there, or that PyTorch has not loaded, is left alone.
    """
    libraries = Path(torch.__file__).parent / "lib"
    for name in ("libgomp.so.1", str(libraries / "libomp.dylib")):
        with suppress(OSError, AttributeError):
            opened = ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
            return ctypes.cast(opened.GOMP_parallel, c_void_p).value
    return None


@cache
def load(path: Path = LIBRARY) -> Library | str:
    """The library, or the reason why there is none.

    The environment variable REGARD_NATIVE=off turns it off; it is read when the first plan is made.
    """
    if (setting := os.environ.get(SETTING, "on")) != "on":
        if setting != "off":
            return f"{SETTING} is {setting!r}; it is on or off"
        return f"{SETTING}=off turns it off"
    if not path.is_file():
        return f"its library is not built; {BUILD}"
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as reason:
        return f"its library cannot be loaded ({reason})"
    handle.rg_sources.restype = c_char_p
    if handle.rg_version() != VERSION or handle.rg_sources().decode() != digest():
        return f"its library was built from other sources; {BUILD}"
    for function in (handle.rg_forward, handle.rg_backward, handle.rg_recur, handle.rg_recur_back):
        function.restype = c_int32
    handle.rg_forward.argtypes = [POINTER(CCall)]
    handle.rg_backward.argtypes = [POINTER(CCall), POINTER(CGradients)]
    handle.rg_lower.restype = c_int64
    handle.rg_lower.argtypes = [POINTER(CVisible)]
    handle.rg_hides_extreme.restype = c_int32
    handle.rg_hides_extreme.argtypes = [
        POINTER(CVisible),
        POINTER(CTensor),
        *[c_int32] * 3,
        c_double,
    ]
    handle.rg_run.restype = c_int32
    handle.rg_write.restype = c_int32
    handle.rg_recur.argtypes = [POINTER(CRecurrence)]
    handle.rg_recur_back.argtypes = [POINTER(CRecurrence), POINTER(CRecurrenceGradients)]
    instructions = INSTRUCTIONS.get(handle.rg_instructions())
    if instructions is None:
        return _WRONG[1]
    if not handle.rg_has_threads():
        handle.rg_use_threads(c_void_p(_address_of_threads()))
    if not handle.rg_has_threads():
        reason = "the OpenMP library of this PyTorch has no function GOMP_parallel"
        warnings.warn(
            f"the native backend computes with one thread: {reason}", RuntimeWarning, stacklevel=2
        )
    return Library(handle, instructions)
