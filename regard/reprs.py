"""Short reprs: an object on one line, with the sizes of what would be long; and digests of all that an object holds."""

from __future__ import annotations

import dis
import hashlib
import sys
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

from regard.errors import UnsupportedError

KindT = TypeVar("KindT", bound=type)
FEW = 4  # values of a collection that are shown
LONGEST = 48  # characters of one value
DEEPEST = 64  # objects inside objects
PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, range, slice)
LIBRARIES = {*sys.stdlib_module_names, "numpy", "regard", "torch"} - {"__main__"}  # code that is alike everywhere
# Names by which code may read any attribute; methods that no operator calls; attributes that are no option.
ALL_NAMES = {"__dict__", "vars", "asdict", "astuple", "attrgetter", "getattr"}
UNREAD = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__repr__", "__str__", "__hash__", "__del__"}
APART = {"serial", "training", "_canonical", "_levels"}


def brief(kind: KindT) -> KindT:
    """A decorator of dataclasses: the repr leaves out what equals its default, and gives sizes of what is long.

    >>> from dataclasses import dataclass
    >>> @brief
    ... @dataclass
    ... class Weights:
    ...     of: str
    ...     numbers: list[int]
    ...     scale: float = 1.0
    >>> Weights("a word", list(range(1000)))
    Weights(of='a word', numbers=<list of 1,000>)
    """
    kind.__repr__ = _brief_repr  # ty: ignore[invalid-assignment]
    return kind


class Described:
    """A base whose repr names the attributes of an object that are public, as `brief` writes them."""

    def __repr__(self) -> str:
        shown = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return _written(self, shown)


def brief_value(value: object) -> str:
    """A value in a few characters.

    >>> import torch
    >>> brief_value(torch.zeros(2, 3)), brief_value((1, 2)), brief_value(["word"] * 99)
    ('<tensor (2, 3) float32>', '(1, 2)', '<list of 99>')
    """
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if dtype is not None and shape is not None:
        return f"<{type(value).__name__.lower()} {(*shape,)} {str(dtype).removeprefix('torch.')}>"
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…")
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, range):
        return repr(value)
    if isinstance(value, Mapping) or (isinstance(value, Collection) and not is_dataclass(value)):
        return _brief_collection(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"<{getattr(value, '__name__', 'function').strip('<>')}>"
    text = repr(value)
    return text if len(text) <= LONGEST and "\n" not in text and " at 0x" not in text else f"<{type(value).__name__}>"


def _brief_collection(values: Collection[Any]) -> str:
    name = type(values).__name__
    if len(values) > FEW and isinstance(values, tuple) and (run := _as_range(values)) is not None:
        return repr(run)
    if len(values) > FEW:
        return f"<{name} of {len(values):,}>"
    parts = [*values, *values.values()] if isinstance(values, Mapping) else [*values]
    plain = all(isinstance(part, str | int | float | bool | None) for part in parts)
    text = repr(values)
    return text if plain and len(text) <= 2 * LONGEST else f"<{name} of {len(values):,}>" if values else text


def _as_range(values: tuple[Any, ...]) -> range | None:
    """The range with these values, if they are consecutive whole numbers."""
    if not all(type(value) is int for value in values):
        return None
    run = range(values[0], values[-1] + 1)
    return run if len(run) == len(values) and all(map(int.__eq__, run, values)) else None


def _brief_repr(self: Any) -> str:
    shown = {}
    for one in fields(self):
        value = getattr(self, one.name)
        standard = one.default if one.default_factory is MISSING else one.default_factory()
        if one.repr and not (standard is not MISSING and _alike(value, standard)):
            shown[one.name] = value
    return _written(self, shown)


def _alike(value: object, standard: object) -> bool:
    return value is standard or (type(value) is type(standard) and not hasattr(value, "shape") and value == standard)


def _written(self: object, shown: Mapping[str, object]) -> str:
    return f"{type(self).__qualname__}({', '.join(f'{name}={brief_value(value)}' for name, value in shown.items())})"


class Contents:
    """Digests of all that values hold: numbers, texts, tensors, and the code of functions with what they read.

    Equal values have equal digests, on other processes too. Of an object count the attributes that the code of some
    function in the value names; of objects of regard, all that are public.

    Args:
        of_tensor: a text about a tensor and its numbers.
        kept: the digest that is kept of a value, or None.

    >>> size = 3
    >>> contents = Contents(lambda x: f"{x.dtype} {x.tolist()}", lambda value: None)
    >>> contents.digest([1, 2.0]) == contents.digest([1, 2.0]), contents.digest([1, 2.0]) == contents.digest([1, 2])
    (True, False)
    """

    def __init__(self, of_tensor: Callable[[Any], str], kept: Callable[[Any], str | None]) -> None:
        self._of_tensor, self._kept = of_tensor, kept
        self._names: set[str] = set()  # of attributes that the code read so far names
        self._digests: dict[int, tuple[object, str]] = {}  # by id; an object is kept, so that no other one gets its id

    def digest(self, value: object) -> str:
        """The digest, 16 hexadecimal digits."""
        while True:  # until no more attributes are named
            names, self._digests = len(self._names), {}
            found = self._digest(value, 0)
            if len(self._names) == names:
                return found

    def _digest(self, value: object, depth: int) -> str:
        if depth > DEEPEST:
            raise UnsupportedError(
                f"an option holds objects inside objects, more than {DEEPEST} deep, which are not compared; hold its "
                f"numbers in a tuple or a tensor"
            )
        if id(value) in self._digests:
            return self._digests[id(value)][1]
        self._digests[id(value)] = value, f"around {depth}"  # for a value that holds itself
        if (found := self._kept(value)) is None:
            text, parts = self._parts(value)
            digests = [self._digest(part, depth + 1) for part in parts]
            if isinstance(value, set | frozenset):  # their order differs between processes
                digests.sort()
            found = hashlib.sha256("\n".join([text, *digests]).encode()).hexdigest()[:16]
        self._digests[id(value)] = value, found
        return found

    def _parts(self, value: Any) -> tuple[str, Iterable[Any]]:
        """A text about a value itself, and the values that it holds."""
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind in PLAIN:
            return f"{name} {value!r}", ()
        if isinstance(value, type):
            return f"class {value.__qualname__}", self._of_class(value)
        if hasattr(value, "requires_grad_") and hasattr(value, "dtype"):
            return self._of_tensor(value), ()
        if hasattr(value, "tobytes") and hasattr(value, "dtype"):
            numbers = value.tolist() if value.dtype.hasobject else hashlib.sha256(value.tobytes()).hexdigest()
            return f"{name} {value.dtype} {value.shape}", (numbers,)
        if isinstance(value, CodeType):
            self._names |= _reads(value).names
            return f"{value.co_code.hex()} {value.co_names}", value.co_consts
        if isinstance(value, FunctionType):
            return self._of_function(value)
        if isinstance(value, MethodType):
            return name, (value.__func__, *self._of_object(value.__self__, called=False))
        if isinstance(value, partial):
            return name, (value.func, value.args, value.keywords)
        if isinstance(value, property | staticmethod | classmethod | cached_property | weakref.ref | Enum):
            return name, (_inside(value),)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}", () if _of_library(value.__name__) else self._named(vars(value))
        if kind.__module__ == "torch":  # a dtype or a device, whose index differs between processes
            return f"{name} {getattr(value, 'type', value)}", ()
        return name, self._of_object(value, called=True)

    def _of_function(self, function: FunctionType) -> tuple[str, Iterable[Any]]:
        held = [function.__defaults__, function.__kwdefaults__, *self._named(vars(function))]
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # it is empty
                held.append(cell.cell_contents)
        if _of_library(function.__module__):
            return f"{function.__module__}.{function.__qualname__}", held
        named = function.__globals__
        read = (named[name] for name in _reads(function.__code__).globals if name in named)
        return "function", (function.__code__, *held, *read)

    def _of_class(self, kind: type) -> list[Any]:
        """What code names, and the methods that operators call; all methods of subclasses of regard's classes."""
        found: list[Any] = []
        for base in kind.__mro__:
            for name, member in () if _of_library(base.__module__) else sorted(vars(base).items()):
                special = name.startswith("__") and not (name == "__eq__" and is_dataclass(base))
                method = isinstance(member, FunctionType | property | staticmethod | classmethod | cached_property)
                called = method and name not in UNREAD and (special or _of_regard(kind))
                if called or self._reads(name) or (_of_regard(kind) and not name.startswith("_")):
                    found += name, member
        return found

    def _of_object(self, value: Any, called: bool) -> list[Any]:
        """The class of an object, its items and its attributes; `called`: of a torch module, what `forward` reads."""
        kind = type(value)
        held: list[Any] = [] if _of_library(kind.__module__) else [kind]
        if isinstance(value, Mapping):
            items = [(key, value[key]) for key in value if kind.__name__ != "_Environ" or key in self._names]
            ordered = sorted(items, key=lambda item: item[0]) if all(type(key) is str for key, _ in items) else items
            held += [part for item in ordered for part in item]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            held += value
        elif not hasattr(value, "__dict__") and _of_library(kind.__module__):
            held += _reduced(value)
        if called and (forward := getattr(kind, "forward", None)) is not None and not _of_library(kind.__module__):
            held.append(forward)
        return held + self._named(_attributes(value), _of_regard(kind) or kind.__module__.startswith("torch.nn."))

    def _named(self, attributes: Mapping[str, Any], public: bool = False) -> list[Any]:
        """Those of some attributes that code names, or also all that are public, each after its name."""
        chosen = [x for x in sorted(attributes) if self._reads(x) or (public and x[0] != "_")]
        return [part for name in chosen if name not in APART for part in (name, attributes[name])]

    def _reads(self, name: str) -> bool:
        return name in self._names or name == "__wrapped__" or (name[:2] != "__" and bool(ALL_NAMES & self._names))


class _Reads(NamedTuple):
    globals: tuple[str, ...]
    names: frozenset[str]


@lru_cache(maxsize=1024)
def _reads(code: CodeType) -> _Reads:
    """The global variables that code reads, and all that may be names of attributes; of functions inside it too."""
    inside = [_reads(one) for one in code.co_consts if isinstance(one, CodeType)]
    own = [step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    names = {*code.co_names, *(one for one in code.co_consts if isinstance(one, str) and one.isidentifier())}
    every = dict.fromkeys([*own, *(name for one in inside for name in one.globals)])
    return _Reads(tuple(every), frozenset(names.union(*(one.names for one in inside))))


def _inside(value: Any) -> Any:
    """What a property, a method of a class, a weak reference or a member of an enumeration stands for."""
    if isinstance(value, weakref.ref):
        return value()
    found = (getattr(value, name, None) for name in ("fget", "func", "__func__", "value"))
    return next((one for one in found if one is not None), None)


def _of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


def _of_regard(kind: type) -> bool:
    return any(base.__module__.startswith("regard.") for base in kind.__mro__)


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots and the tensors of a torch module included; no cached ones."""
    slots = [name for base in type(value).__mro__ for name in _slots(base)]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    for name in ("_parameters", "_buffers", "_modules"):
        found |= found.get(name) or {}
    return {x: one for x, one in found.items() if not isinstance(getattr(type(value), x, None), cached_property)}


def _slots(kind: type) -> tuple[str, ...]:
    slots = () if _of_library(kind.__module__) else vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(x for x in slots if x not in ("__dict__", "__weakref__"))


def _reduced(value: Any) -> list[Any]:
    """What pickle would write of an object of a library; nothing if it cannot be pickled."""
    try:
        found = value.__reduce_ex__(2)
    except Exception:
        return []
    return [found] if isinstance(found, str) else [*found[:3], *(found[3] or () if len(found) > 3 else ())]
