"""The table of calls that the compiled library repeats with other tensors.

A small call takes less time than the code of Python that looks its plan up. A function of C therefore reads q, k and v
itself, finds an earlier call of the same layout and options, and runs the kernel.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p, py_object
from functools import cache
from typing import Any

import torch

from regard.backends.native.filling import PRODUCTS_PER_THREAD, KernelCall, output_layout
from regard.backends.native.interpreter import Interpreter, interpreter
from regard.backends.native.library import limit_of
from regard.backends.native.steps import Growing
from regard.patterns.band import EVERY_PAIR, Band

TENSORS = 3
OPTIONS = 13  # RG_OPTIONS
ANY_KEYS = range(1, 1 << 31)  # their numbers that the library can count


class CGrowth(Structure):
    """rg_growth."""

    _fields_ = [
        ("least_keys", c_int32),
        ("most_keys", c_int32),
        *(
            (name, c_int64)
            for name in (
                "left",
                "right",
                "start",
                "stop",
                "products_per_key",
                "products_per_thread",
            )
        ),
    ]


class CKeptCall(Structure):
    """rg_kept_call."""

    _fields_ = [
        ("arguments", py_object * (TENSORS + OPTIONS)),
        *((name, py_object) for name in ("function", "memory", "layout", "keywords")),
        ("call", c_void_p),
        ("most_threads", c_int32),
        ("must_be_sound", c_int32),
        ("first_key", c_int64),
        ("first_value", c_int64),
        ("growth", POINTER(CGrowth)),
        ("keys_by_row", c_int32),
    ]


class KeptCalls:
    """The calls that the compiled library repeats.

    repeat: takes q, k, v and the options of a call; returns its output, None if only Python computes it, or UNKNOWN.
    """

    def __init__(self, opened: Interpreter) -> None:
        self._handle = opened.handle
        self._handle.rg_keep_call.restype = c_int32
        self._handle.rg_keep_call.argtypes = [POINTER(CKeptCall)]
        self._handle.rg_forget_calls.restype = None
        self.repeat = opened.function("rg_repeat")

    def keep(
        self,
        arguments: Sequence[Any],
        kernel_call: KernelCall,
        must_be_sound: bool,
        first_key: int = 0,
        first_value: int = 0,
        growth: CGrowth | None = None,
        keys_by_row: bool = False,
    ) -> None:
        """Keep a call with these arguments of `repeat`.

        Args:
            kernel_call: its struct, which no other call uses.
            must_be_sound: whether Python computes a call again whose output is not finite.
            first_key: how many bytes behind the first number of k the kernel begins to read.
            first_value: the same of v.
            growth: given if the call stands for all calls like it with other numbers of keys.
            keys_by_row: whether the pattern among the arguments is the structure of `RowKeys`.
        """
        layout = output_layout(kernel_call.problem)
        keywords = {"dtype": kernel_call.problem.dtype, "device": torch.device("cpu")}
        kept = CKeptCall(
            arguments=(py_object * (TENSORS + OPTIONS))(*arguments),
            memory=(kernel_call, layout, keywords),
            layout=layout,
            keywords=keywords,
            call=ctypes.addressof(kernel_call.struct),
            most_threads=kernel_call.most_threads,
            must_be_sound=must_be_sound,
            first_key=first_key,
            first_value=first_value,
            growth=None if growth is None else ctypes.pointer(growth),
            keys_by_row=keys_by_row,
        )
        self._handle.rg_keep_call(ctypes.byref(kept))

    def keep_growing(self, arguments: Sequence[Any], growing: Growing, keys: range) -> None:
        """Keep one call for all calls like it, with any number of keys in `keys` and any first position."""
        growth = _growth_of(growing.window, keys, growing.struct.products_per_key)
        growth.start = growing.start
        growth.stop = growing.stop
        # Keys that no query looks at may make an output that is not finite; Python computes it then.
        self.keep(arguments, growing.struct, must_be_sound=True, growth=growth)

    def keep_by_row(self, arguments: Sequence[Any], kernel_call: KernelCall, window: Band) -> None:
        """Keep one call for all calls like it, whatever the keys of their batch rows, their number and first position.

        Among the arguments, the structure of the pattern's `RowKeys` stands for the pattern.
        """
        growth = _growth_of(window, ANY_KEYS, kernel_call.products_per_key)
        self.keep(arguments, kernel_call, must_be_sound=True, growth=growth, keys_by_row=True)

    def keep_function(
        self, arguments: Sequence[Any], function: Callable[..., Any], keys_by_row: bool = False
    ) -> None:
        """Keep a function that computes calls like this one: of q, k, v, pattern and q_start, to the output or None."""
        kept = CKeptCall(
            arguments=(py_object * (TENSORS + OPTIONS))(*arguments),
            function=function,
            keys_by_row=keys_by_row,
        )
        if keys_by_row:
            kept.growth = ctypes.pointer(_growth_of(EVERY_PAIR, ANY_KEYS))
        self._handle.rg_keep_call(ctypes.byref(kept))

    def forget(self) -> None:
        self._handle.rg_forget_calls()


def _growth_of(window: Band, keys: range, products_per_key: int = 0) -> CGrowth:
    """For calls with any number of keys in `keys`, whose queries look at a window."""
    return CGrowth(
        least_keys=keys.start,
        most_keys=keys.stop - 1,
        left=limit_of(window.left),
        right=limit_of(window.right),
        products_per_key=products_per_key,
        products_per_thread=PRODUCTS_PER_THREAD,
    )


@cache
def kept_calls() -> KeptCalls | None:
    """The calls that the library repeats; None where Python computes every call."""
    opened = interpreter()
    return None if opened is None else KeptCalls(opened)
