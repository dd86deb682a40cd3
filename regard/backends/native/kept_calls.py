"""The function of C that repeats a call with other tensors, and the table of calls that it knows.

A small call takes less time than the code of Python that looks its plan up. The compiled library therefore has a
function that Python calls like its own. It reads q, k and v itself, finds an earlier call of the same layout and
options, and runs the kernel.

The library is built without the headers of Python and of PyTorch, so one build serves every version: it gets the
addresses of functions of Python's stable ABI, and reads tensors by the interface that DLPack defines for C. Where one
of these is missing there is no such function, and Python computes every call.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import sysconfig
from collections.abc import Callable, Sequence
from ctypes import (
    POINTER,
    Structure,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
    py_object,
)
from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad

from regard.backends.native.filling import PRODUCTS_PER_THREAD, KernelCall, output_layout
from regard.backends.native.library import NO_LIMIT, Library, load
from regard.backends.native.steps import Growing
from regard.core.tensors import BEFORE_AUTOGRAD

TENSORS = 3
OPTIONS = 13  # RG_OPTIONS
_DLPACK_MAJOR = 1
_FUNCTIONS = (
    "PyCFunction_NewEx",
    "PyObject_CallNoArgs",
    "PyObject_CallFunctionObjArgs",
    "PyObject_Call",
    "PyObject_GetAttr",
    "PyObject_IsTrue",
    "PyObject_RichCompareBool",
    "PyLong_AsLong",
    "PyErr_ExceptionMatches",
    "PyErr_Clear",
    "Py_IncRef",
    "Py_DecRef",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)


class CDescribed(Structure):
    """rg_described."""

    _fields_ = [
        ("data", c_void_p),
        ("device", c_int32),
        ("device_number", c_int32),
        ("axes", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("size", POINTER(c_int64)),
        ("stride", POINTER(c_int64)),
        ("offset", c_uint64),
    ]


class CExchange(Structure):
    """DLPackExchangeAPI, as far as it is used."""

    _fields_ = [
        ("major", c_int32),
        ("minor", c_int32),
        *((name, c_void_p) for name in ("older", "allocate", "export", "import_", "describe")),
    ]


class CPython(Structure):
    """rg_python."""

    _fields_ = [
        *((name, c_void_p) for name in (*_FUNCTIONS, "describe")),
        *(
            (name, py_object)
            for name in (
                "none",
                "unknown",
                "any_exception",
                "tensor",
                "integer",
                "is_cpu",
                "requires_grad",
                "is_neg",
                "is_zero",
                "is_functional",
                "empty_strided",
                "get_num_threads",
                "is_grad_enabled",
                "transforms",
                "function_modes",
            )
        ),
        ("quiet", py_object * 4),
        *(
            (name, py_object)
            for name in ("is_included", "before_autograd", "forward_mode", "level")
        ),
    ]


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
        *((name, py_object) for name in ("memory", "layout", "kind")),
        ("call", c_void_p),
        ("most_threads", c_int32),
        ("must_be_sound", c_int32),
        ("first_key", c_int64),
        ("first_value", c_int64),
        ("growth", POINTER(CGrowth)),
    ]


class KeptCalls:
    """The calls that the compiled library repeats.

    repeat: takes q, k, v and the options of a call; returns its output, None if only Python computes it, or UNKNOWN.
    """

    UNKNOWN = "unknown"

    def __init__(self, library: Library, describe: int) -> None:
        self.library = library
        # Of functions that run while Python's lock is held, unlike those of `library.handle`.
        self._handle = ctypes.PyDLL(None, handle=library.handle._handle)
        self._handle.rg_repeat.restype = py_object
        self._handle.rg_repeat.argtypes = [POINTER(CPython)]
        self._handle.rg_keep_call.restype = c_int32
        self._handle.rg_keep_call.argtypes = [POINTER(CKeptCall)]
        self._handle.rg_forget_calls.restype = None
        self._handle.rg_class_of.restype = py_object
        self._handle.rg_class_of.argtypes = [py_object]
        self._python = _functions_and_objects(
            describe
        )  # the library holds no references of its own
        self.repeat: Callable[..., Any] = self._handle.rg_repeat(ctypes.byref(self._python))

    def reads_classes(self) -> bool:
        """Whether the library finds the class of an object where this Python has it."""
        return all(self._handle.rg_class_of(x) is type(x) for x in (None, 1.0, "", self))

    def keep(
        self,
        arguments: Sequence[Any],
        kernel_call: KernelCall,
        must_be_sound: bool,
        first_key: int = 0,
        first_value: int = 0,
        growth: CGrowth | None = None,
    ) -> None:
        """Keep a call with these arguments of `repeat`.

        Args:
            kernel_call: its struct, which no other call uses.
            must_be_sound: whether Python computes a call again whose output is not finite.
            first_key: how many bytes behind the first number of k the kernel begins to read.
            first_value: the same of v.
            growth: of a call that stands for those with other numbers of keys.
        """
        layout = output_layout(kernel_call.problem)
        kind = {"dtype": kernel_call.problem.dtype, "device": torch.device("cpu")}
        kept = CKeptCall(
            arguments=(py_object * (TENSORS + OPTIONS))(*arguments),
            memory=(kernel_call, layout, kind),
            layout=layout,
            kind=kind,
            call=ctypes.addressof(kernel_call.struct),
            most_threads=kernel_call.most_threads,
            must_be_sound=must_be_sound,
            first_key=first_key,
            first_value=first_value,
            growth=None if growth is None else ctypes.pointer(growth),
        )
        self._handle.rg_keep_call(ctypes.byref(kept))

    def keep_growing(self, arguments: Sequence[Any], growing: Growing, keys: range) -> None:
        """Keep a call for all that differ in the number of keys, one of `keys`, and in their first position."""
        window = growing.window
        growth = CGrowth(
            least_keys=keys.start,
            most_keys=keys.stop - 1,
            left=NO_LIMIT if window.left is None else window.left,
            right=NO_LIMIT if window.right is None else window.right,
            start=growing.start,
            stop=growing.stop,
            products_per_key=growing.struct.products_per_key,
            products_per_thread=PRODUCTS_PER_THREAD,
        )
        # An output that is not finite may come from keys that no query looks at.
        self.keep(arguments, growing.struct, must_be_sound=True, growth=growth)

    def leave(self, arguments: Sequence[Any]) -> None:
        """Leave calls like this one to Python; `repeat` returns None for them without checking more."""
        kept = CKeptCall(arguments=(py_object * (TENSORS + OPTIONS))(*arguments))
        self._handle.rg_keep_call(ctypes.byref(kept))

    def forget(self) -> None:
        self._handle.rg_forget_calls()


@cache
def kept_calls() -> KeptCalls | None:
    """The calls that the library repeats; None where this Python or PyTorch does not offer what that needs."""
    library = load()
    if isinstance(library, str) or not _has_stable_objects():
        return None
    describe = _description_of_tensors()
    if describe is None:
        return None
    try:
        calls = KeptCalls(library, describe)
    except AttributeError:  # of a function of Python or PyTorch that another version has not
        return None
    return calls if calls.reads_classes() else None


def _has_stable_objects() -> bool:
    """Whether objects lie as Python's stable ABI says, and a lock keeps threads apart."""
    is_locked = not sysconfig.get_config_var("Py_GIL_DISABLED")
    return sys.implementation.name == "cpython" and is_locked and struct.calcsize("P") == 8


def _description_of_tensors() -> int | None:
    """The address of PyTorch's function that describes a tensor; None if there is none, or one that does otherwise."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if type(capsule).__name__ != "PyCapsule":
        return None
    pointer_of = ctypes.PYFUNCTYPE(c_void_p, py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    exchange = CExchange.from_address(pointer_of(capsule, b"dlpack_exchange_api"))
    if exchange.major != _DLPACK_MAJOR or not exchange.describe:
        return None

    example = torch.empty(2, 3, 5, 7, dtype=torch.bfloat16, device="cpu")[:, :, 1:].transpose(1, 2)
    found = CDescribed()
    describe = ctypes.PYFUNCTYPE(ctypes.c_int, py_object, c_void_p)(exchange.describe)
    if describe(example, ctypes.addressof(found)) or found.axes != example.dim():
        return None
    is_right = (
        (found.data or 0) + found.offset == example.data_ptr()
        and tuple(found.size[: found.axes]) == example.shape
        and tuple(found.stride[: found.axes]) == example.stride()
    )
    return exchange.describe if is_right else None


def _functions_and_objects(describe: int) -> CPython:
    """What the library needs of Python and PyTorch.

    Raises:
        AttributeError: a function is missing.
    """
    python = CPython(
        describe=describe,
        none=None,
        unknown=KeptCalls.UNKNOWN,
        any_exception=Exception,
        tensor=torch.Tensor,
        integer=int,
        is_cpu=sys.intern("is_cpu"),
        requires_grad=sys.intern("requires_grad"),
        is_neg=torch.Tensor.is_neg,
        is_zero=torch.Tensor._is_zerotensor,
        is_functional=torch._is_functional_tensor,
        empty_strided=torch.empty_strided,
        get_num_threads=torch.get_num_threads,
        is_grad_enabled=torch.is_grad_enabled,
        transforms=torch._C._functorch.peek_interpreter_stack,
        function_modes=torch._C._is_torch_function_mode_enabled,
        is_included=torch._C._dispatch_tls_is_dispatch_key_included,
        before_autograd=BEFORE_AUTOGRAD,
        forward_mode=forward_ad,
        level=sys.intern("_current_level"),
    )
    for name in _FUNCTIONS:
        address = ctypes.cast(getattr(ctypes.pythonapi, name), c_void_p)
        setattr(python, name, address.value)
    python.quiet[:] = [
        torch._C._is_any_autocast_enabled,
        torch._C._is_tracing,
        torch._C._len_torch_dispatch_stack,
        torch.autograd._profiler_enabled,
    ]
    return python
