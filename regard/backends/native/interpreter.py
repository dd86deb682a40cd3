"""Functions of C that Python calls directly, for work so small that code of Python around it would take longer.

The library is built without the headers of Python and of PyTorch, so one build serves every version. At run time it
gets the addresses of functions of Python's stable ABI, and reads tensors by the interface that DLPack defines for C.
Where one of these is missing, the functions of C are not offered, and Python computes everything.
"""

from __future__ import annotations

import ctypes
import struct
import sys
import sysconfig
from collections.abc import Callable
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

from regard.backends.native.library import load
from regard.core.tensors import BEFORE_AUTOGRAD

UNKNOWN = "unknown"  # returned for a call that was not kept
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
    "PyLong_FromLongLong",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)


# Functions of the library that return a function of Python.
_MAKERS = (
    "rg_repeat",
    "rg_forward_with_sums",
    "rg_gradients_of_inputs",
    "rg_project",
    "rg_rotate",
    "rg_log_sum_exp",
)
# Attributes of a pattern and of its RowKeys.
_ROW_KEYS = ("row_keys", "structure", "starts", "stops", "mask", "of_call")


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
                "parameter",
                "integer",
                "text",
                "is_cpu",
                "requires_grad",
                "is_neg",
                "is_zero",
                "is_functional",
                "empty_strided",
                "new_empty",
                "empty_like",
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
        *((name, py_object) for name in _ROW_KEYS),
    ]


class Interpreter:
    """The compiled library, loaded so that its functions run under Python's lock and may use its objects."""

    def __init__(self, handle: Any, describe: int) -> None:
        self.handle = ctypes.PyDLL(None, handle=handle._handle)
        for name in _MAKERS:
            getattr(self.handle, name).restype = py_object
        self.handle.rg_open.restype = None
        self.handle.rg_open.argtypes = [POINTER(CPython)]
        self.handle.rg_class_of.restype = py_object
        self.handle.rg_class_of.argtypes = [py_object]
        # The library copies these addresses without references, so they are kept alive here.
        self._python = _functions_and_objects(describe)
        self.handle.rg_open(ctypes.byref(self._python))

    def reads_classes(self) -> bool:
        """Whether the library reads the class of an object correctly in this Python."""
        return all(self.handle.rg_class_of(x) is type(x) for x in (None, 1.0, "", self))

    def function(self, name: str) -> Callable[..., Any]:
        """The Python function that the library's function of this name makes, such as "rg_project"."""
        return getattr(self.handle, name)()


@cache
def interpreter() -> Interpreter | None:
    """The library for direct calls from Python; None where this Python or PyTorch lacks what they need."""
    library = load()
    if isinstance(library, str) or not _has_stable_objects():
        return None
    describe = _description_of_tensors()
    if describe is None:
        return None
    try:
        opened = Interpreter(library.handle, describe)
    except AttributeError:  # this version of Python or PyTorch lacks a function
        return None
    return opened if opened.reads_classes() else None


def _has_stable_objects() -> bool:
    """Whether objects have the memory layout of Python's stable ABI, and threads run one at a time under a lock."""
    is_locked = not sysconfig.get_config_var("Py_GIL_DISABLED")
    return sys.implementation.name == "cpython" and is_locked and struct.calcsize("P") == 8


def _description_of_tensors() -> int | None:
    """The address of PyTorch's function that describes a tensor; None if it is missing, or is wrong for an example."""
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
        unknown=UNKNOWN,
        any_exception=Exception,
        tensor=torch.Tensor,
        parameter=torch.nn.Parameter,
        integer=int,
        text=str,
        is_cpu=sys.intern("is_cpu"),
        requires_grad=sys.intern("requires_grad"),
        is_neg=torch.Tensor.is_neg,
        is_zero=torch.Tensor._is_zerotensor,
        is_functional=torch._is_functional_tensor,
        empty_strided=torch.empty_strided,
        new_empty=torch.Tensor.new_empty,
        empty_like=torch.empty_like,
        get_num_threads=torch.get_num_threads,
        is_grad_enabled=torch.is_grad_enabled,
        transforms=torch._C._functorch.peek_interpreter_stack,
        function_modes=torch._C._is_torch_function_mode_enabled,
        is_included=torch._C._dispatch_tls_is_dispatch_key_included,
        before_autograd=BEFORE_AUTOGRAD,
        forward_mode=forward_ad,
        level=sys.intern("_current_level"),
    )
    for name in _ROW_KEYS:
        setattr(python, name, sys.intern(name))
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
