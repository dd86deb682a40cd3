"""Checks of arguments, each one line where it is used: a value comes back as it is kept, or an ArgumentError names it.

    whole, real                  a number, from `least` to `most`
    yes_or_no, one_of            True or False; one of a few names
    of_kind, a_string, a_path    an object of a class; a string; a path
    a_list, each                 values of one class; values
    a_tensor                     a tensor of some dtypes and one of a few shapes
    in_memory                    a tensor whose numbers are where kernels read them
    check_fields                 the fields of a frozen dataclass, each by one of the checks above

`needs=` replaces the words after "it needs". Beside them: what counts as a number, and how a message quotes a value.
torch is not imported here, so that text can be read without it: tensors are known by their attributes, and functions
that have one import torch by its name. `sys.modules` is never read: a compiler that traces a call would wrap each of
its thousands of modules, which took longer than the rest of the graph.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar

from regard.errors import ArgumentError, ShapeError

KindT = TypeVar("KindT")
Kinds = type[Any] | tuple[type[Any], ...] | UnionType
NUMBERS: tuple[Kinds, ...] = (int, (int, float))  # kinds that mean a number: no True or False
PLAIN = frozenset({int, float, bool, str, type(None)})  # classes that `plain` need not look into
QUOTED_CHARACTERS = 80  # of a value, in a message
QUOTED_PATH_CHARACTERS = 200
ALWAYS_LISTED = 6  # names: a message lists so few beside a suggestion too
NEVER_LISTED = 12  # names: of more, a message names the command that prints them


def shown(value: object) -> str:
    """A value as a message quotes it: on one line, and not longer than a line; of a tensor or an array the shape.

    >>> shown(["a"])
    "['a']"
    """
    dtype = getattr(value, "dtype", None)
    if getattr(value, "is_nested", False):  # its shape cannot be read
        return f"a nested tensor of {dtype}"

    shape = getattr(value, "shape", None)
    is_tensor = hasattr(value, "requires_grad")
    if shape is not None and dtype is not None and (is_tensor or len(shape)):
        kind = "a tensor" if is_tensor else "an array"
        layout = str(getattr(value, "layout", "torch.strided"))
        of_layout = "" if layout == "torch.strided" else f" in layout {layout}"
        return f"{kind} {(*shape,)} of {dtype}{of_layout}"

    if isinstance(value, int) and value.bit_length() > 256:  # Python may refuse to write it
        return f"a whole number of {value.bit_length()} bits"
    text = " ".join(repr(value).split())
    return text if len(text) <= QUOTED_CHARACTERS else f"{text[: QUOTED_CHARACTERS - 3]}..."


def kind_of(value: object) -> str:
    """The kind of a value with its article.

    >>> kind_of(3), kind_of("a")
    ('an int', 'a str')
    """
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"{article} {name}"


def of_kind(name: str, value: Any, kind: Kinds, needs: str) -> Any:
    """The value, if it is of this kind; where numbers are meant, the Python number in a NumPy scalar or a 0-d tensor.

    >>> of_kind("max_words", 3, int, "a whole number")
    3
    """
    if kind in NUMBERS:
        value = number_in(value)
    if not _is_of_kind(value, kind):
        raise ArgumentError(f"{name} is {shown(value)}; it needs {needs}")
    return value


def _is_of_kind(value: object, kind: Kinds) -> bool:
    """True and False are of the class int, and no numbers."""
    if isinstance(value, bool) and kind in NUMBERS:
        return False
    return isinstance(value, kind)


def a_string(name: str, value: object) -> str:
    return of_kind(name, value, str, "a string")


def a_path(name: str, value: object) -> Path:
    """The path that a string or a path names.

    >>> a_path("folder", "runs/demo").name
    'demo'
    """
    if isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if isinstance(text, str):
            return Path(text)
    raise ArgumentError(f"{name} is {shown(value)}; it needs a path, as a string or a pathlib.Path")


def absent(path: str | os.PathLike[str]) -> str:
    """The sentence about a path that does not exist, with the name most like it in the same folder, if there is one.

    >>> absent("nowhere")
    'nowhere does not exist; check the path, which is relative to the current folder'
    """
    path = Path(path)
    with suppress(OSError, ValueError):  # no such folder; a path with a NUL
        neighbours = sorted(os.listdir(path.parent))
        alike = get_close_matches(path.name, neighbours, n=1, cutoff=0.7)
        if alike:
            return f"{path} does not exist; did you mean {path.parent / alike[0]}?"
    relative = "" if path.is_absolute() else ", which is relative to the current folder"
    return f"{str(path)[:QUOTED_PATH_CHARACTERS]} does not exist; check the path{relative}"


def a_list(name: str, values: Iterable[KindT], kind: Kinds, needs: str) -> list[KindT]:
    """The values in a list, if each is of this kind; a string is no list of strings.

    >>> a_list("lines", ("a", "b"), str, "strings, one for each line")
    ['a', 'b']
    """
    items = list(each(name, values, needs))
    if kind in NUMBERS:
        items = [number_in(item) for item in items]
    for item in items:
        if not _is_of_kind(item, kind):
            raise ArgumentError(f"{name} holds {shown(item)}; it needs {needs}")
    return items


def each(name: str, values: Iterable[Any], needs: str) -> Iterator[Any]:
    """An iterator over the values; a string, or anything else that holds no values, is refused."""
    with suppress(TypeError):  # no iterable, or a tensor without axes
        if not isinstance(values, str | bytes):
            return iter(values)
    raise ArgumentError(f"{name} is {shown(values)}; it needs {needs}")


# What to give instead of a tensor of a class of PyTorch whose memory is not its value.
_PLAIN_FORMS = {
    "CausalBias": "give pattern='causal', with q_start=0 where the first query stands at the first key "
    "(causal_upper_left)",
    "MaskedTensor": "give its get_data(), and its get_mask() as a pattern (KeyMask, Explicit)",
    "DTensor": "give its to_local() or full_tensor()",
    "AsyncCollectiveTensor": "give its wait()",
}


def refuse_wrapper(name: str, tensor: Any) -> None:
    """Raise a ShapeError if the class of a tensor computes its numbers, so that they are not those in its memory.

    Classes with `__torch_dispatch__` do, such as MaskedTensor and DTensor; those of tensors without values do not.
    """
    kind = type(tensor)
    module = kind.__module__
    if module in ("torch", "torch.nn.parameter") or module.startswith("torch._subclasses"):
        return
    import torch

    dispatch = torch.Tensor.__torch_dispatch__
    if kind.__torch_dispatch__ is dispatch and kind.__name__ != "CausalBias":
        return

    plain_form = _PLAIN_FORMS.get(kind.__name__, "give a plain torch.Tensor of its numbers")
    raise ShapeError(
        f"{name} is {kind_of(tensor)}, whose numbers are not those in its memory, which attention reads; "
        f"{plain_form}"
    )


def in_memory(name: str, x: Any) -> Any:
    """The tensor with its numbers in its memory, where kernels, indices and lists read them.

    Every tensor that a caller gives passes it before any of these. Those of a negated view (`z.conj().imag`) are there
    with the other sign, and those of a ZeroTensor of autograd are not there. They are written out, and a tensor whose
    memory was freed is refused. A traced graph does this itself.

    >>> import torch
    >>> in_memory("q", torch._neg_view(torch.ones(2))).is_neg()
    False
    """
    import torch

    if x.layout != torch.strided or x.is_nested or torch.compiler.is_compiling():
        return x  # refused elsewhere
    if x._is_zerotensor():
        if x.is_floating_point():
            return x + 0
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    if x.is_neg():
        return x.resolve_neg()

    has_storage = not torch._C._functorch.is_functorch_wrapped_tensor(x)
    if has_storage and x.numel() and not x.untyped_storage().nbytes():
        raise ShapeError(
            f"{name} {tuple(x.shape)} has no memory, since its storage was freed; give it before that"
        )
    return x


# Words of messages whose singular is not the plural without its "s".
SINGULAR = {"axes": "axis", "indices": "index", "vertices": "vertex"}


def count_of(count: float, unit: str, style: str = "") -> str:
    """A count with its unit, which is given in the plural, as the message needs it: singular for 1.

    Args:
        count: how many.
        unit: a plural, such as "words" or "validation batches".
        style: how the count is formatted, such as "," for thousands.

    >>> count_of(1, "words"), count_of(0, "words"), count_of(1234, "words", ","), count_of(1, "test queries")
    ('1 word', '0 words', '1,234 words', '1 test query')
    """
    if count != 1:
        return f"{count:{style}} {unit}"
    *before, noun = unit.split(" ")
    if noun in SINGULAR:
        noun = SINGULAR[noun]
    elif noun.endswith("ies"):
        noun = f"{noun[:-3]}y"
    elif noun.endswith(("sses", "ches", "xes")):
        noun = noun.removesuffix("es")
    else:
        noun = noun.removesuffix("s")
    return " ".join((f"{count:{style}}", *before, noun))


def number_in(value: Any) -> Any:
    """The Python number in a NumPy scalar, a 0-d array or a 0-d tensor without a gradient; anything else as it is.

    `plain` raises where this leaves a tensor as it is.
    """
    if (
        type(value) in PLAIN
        or getattr(value, "ndim", None) != 0
        or getattr(value, "requires_grad", False)
        or not hasattr(value, "item")
    ):
        return value
    try:
        return value.item()
    except (RuntimeError, NotImplementedError, ValueError):  # a tensor on "meta" has no number
        return value


def plain(name: str, value: Any) -> Any:
    """The Python number in a NumPy scalar, a 0-d array or a 0-d tensor; anything else as it is.

    What is kept is always a Python number, so that hashing, texts and files do not depend on where it came from.

    Raises:
        ArgumentError: a tensor whose number would lose its gradient, or cannot be read.

    >>> import torch
    >>> plain("scale", torch.tensor(0.5))
    0.5
    """
    if type(value) in PLAIN or getattr(value, "ndim", None) != 0 or not hasattr(value, "item"):
        return value
    if hasattr(value, "requires_grad"):
        import torch

        if value.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(
                f"{name} is a tensor that needs a gradient, and {name} is a number, which has none; multiply tensors "
                f"by it instead, or give {name}.item()"
            )
        number = number_in(value.detach())
    else:
        number = number_in(value)
    if type(number) not in PLAIN and hasattr(number, "item"):
        raise ArgumentError(
            f"{name} is {shown(value)}, whose number cannot be read here; give {name} as a Python number"
        )
    return number


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_symbolic(value: Any) -> bool:
    """Whether it is a size of a program that torch.export traces: a whole number that is not known yet."""
    kind = type(value)
    return kind.__name__ == "SymInt" and kind.__module__ == "torch"


def is_unknown(value: Any) -> bool:
    """Whether it is a float that a compiler keeps unknown, because it changed between two calls.

    Under torch.compile such a float has the class of a plain one. They differ in one thing: whether a constant is above
    0 is known, and of an unknown float the graph would need a condition to say it.
    """
    import torch

    if not isinstance(value, float) or not torch.compiler.is_dynamo_compiling():
        return False
    from regard.exporting import exporting

    if exporting():
        return False
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return not (statically_known_true(value > 0) or statically_known_true(value <= 0))


def as_input(number: float) -> Any:
    """A float as a tensor on the CPU, float64 (), that is an input of a compiled graph where the float is unknown.

    A product with a tensor is what the compiler keeps for all values; `torch.tensor(number)` would be a constant, and
    each value would compile another graph.
    """
    import torch

    return torch.ones((), dtype=torch.float64, device="cpu") * number


def whole(
    name: str, number: object, least: int | None = None, most: int | None = None, needs: str = ""
) -> int:
    """The number as a Python int, if it is a whole one within these bounds that fits 64 bits.

    >>> import torch
    >>> whole("size", torch.tensor(3), least=1)
    3
    """
    value = plain(name, number)
    if is_symbolic(value):
        return value
    if not is_whole(value) or not _within(value, least, most):
        needs = needs or _range("a whole number", least, most)
        raise ArgumentError(f"{name} is {shown(value)}; it needs {needs}")
    if not -(2**63) <= value < 2**63:
        raise ArgumentError(f"{name} is {shown(value)}; positions are counted in 64 bits")
    return value if type(value) is int else int(value)


def whole_or(
    name: str, number: object, default: int, least: int | None = None, most: int | None = None
) -> int:
    """What `whole` makes of a number; the default where it is None."""
    return default if number is None else whole(name, number, least, most)


def real(
    name: str,
    number: object,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    needs: str = "",
) -> float:
    """The number as a Python float, if it is a finite one within these bounds; `above` itself is outside.

    >>> real("dropout", 0.25, 0, 1)
    0.25
    """
    given = plain(name, number)
    if isinstance(given, int | float) and not isinstance(given, bool):
        try:
            # Inside a compiled graph a float may be unknown; as a member of a set it becomes a constant of the graph.
            (value,) = {float(given)}
        except OverflowError:  # a whole number beyond what a float reaches
            value = math.inf
        within = _within(value, least, most) and (above is None or value > above)
        if math.isfinite(value) and within:
            return value
    if not needs and above is not None:
        needs = f"a finite number above {above}"
    needs = needs or _range("a finite number", least, most)
    raise ArgumentError(f"{name} is {shown(given)}; it needs {needs}")


def _within(number: float, least: float | None, most: float | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)


def _range(kind: str, least: float | None, most: float | None) -> str:
    if least is None and most is None:
        return kind
    if most is None:
        return f"{kind}, {least} or more"
    if least is None:
        return f"{kind}, {most} or less"
    return f"{kind} from {least} to {most}"


def yes_or_no(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ArgumentError(f"{name} is {shown(value)}; it is True or False")
    return value


def one_of(name: str, value: Any, names: Collection[str], command: str = "") -> str:
    """The value, if it is one of these names; otherwise the message ends with `suggest`.

    >>> one_of("shared", "keys", ("keys", "values"))
    'keys'
    """
    if not isinstance(value, str) or value not in names:
        raise ArgumentError(f"{name} is {shown(value)}; {suggest(value, names, command)}")
    return value


def a_tensor(
    name: str,
    value: Any,
    needs: str,
    shapes: Iterable[Sequence[int | tuple[int, ...] | None]],
    *dtypes: Any,
) -> Any:
    """The value, if it is a dense tensor of one of these shapes and dtypes.

    Args:
        name: what the message calls it.
        value: what was given.
        needs: the dtypes and shapes in words, as the message ends.
        shapes: the size of each axis: a number, several of which one fits, or None for any size.
        dtypes: those that fit; any floating-point one if there are none.

    Raises:
        ShapeError: anything else, or a tensor whose class computes its numbers.

    >>> import torch
    >>> a_tensor("sink", torch.zeros(1, 8), "(heads,) or (batch or 1, heads)", [(8,), ((1, 2), 8)]).shape
    torch.Size([1, 8])
    """
    is_tensor = hasattr(value, "requires_grad") and not value.is_nested
    if not is_tensor or str(value.layout) != "torch.strided":
        raise ShapeError(f"{name} is {shown(value)}; it needs {needs}")
    has_dtype = value.dtype in dtypes if dtypes else value.dtype.is_floating_point
    if not has_dtype or not any(has_sizes(value.shape, sizes) for sizes in shapes):
        raise ShapeError(f"{name} is {shown(value)}; it needs {needs}")
    refuse_wrapper(name, value)
    return value


def has_sizes(shape: Sequence[int], sizes: Sequence[int | tuple[int, ...] | None]) -> bool:
    """Whether each axis of a shape has its size: a number, several of which one fits, or None for any size."""
    if len(shape) != len(sizes):
        return False
    for length, size in zip(shape, sizes, strict=True):
        if size is not None and length not in (size if isinstance(size, tuple) else (size,)):
            return False
    return True


def check_fields(owner: object, **checks: Callable[[str, Any], Any]) -> None:
    """Check fields of a frozen dataclass, and keep in each what its check returns.

    Args:
        owner: the object; messages call its fields "Performer's features".
        checks: by the name of a field a function of (name, value), such as `whole` or `partial(whole, least=1)`.

    >>> from dataclasses import dataclass
    >>> from functools import partial
    >>> @dataclass(frozen=True)
    ... class Window:
    ...     size: int
    ...     def __post_init__(self) -> None:
    ...         check_fields(self, size=partial(whole, least=1))
    >>> Window(0)
    Traceback (most recent call last):
    regard.errors.ArgumentError: Window's size is 0; it needs a whole number, 1 or more
    """
    kind = type(owner).__name__
    possessive = f"{kind}'" if kind.endswith("s") else f"{kind}'s"
    for field, check in checks.items():
        value = check(f"{possessive} {field}", getattr(owner, field))
        object.__setattr__(owner, field, value)


def suggest(name: object, names: Collection[str], command: str = "") -> str:
    """The end of a message about a name that does not exist: the names most like it, or all if they are few.

    Args:
        name: the name that does not exist.
        names: the names that do.
        command: prints the names, if they are too many for a message.

    >>> suggest("causl", ("full", "causal", "fixed", "prefix", "strided", "lattice", "summary"))
    "did you mean 'causal'?"
    >>> suggest("median", ("mean", "first")), suggest("frist", ("mean", "first"))
    ('there are mean, first', "did you mean 'first'? (there are mean, first)")
    """
    by_spelling = {_folded(known): known for known in names}
    wanted = _folded(name) if isinstance(name, str) else ""
    listed = f"there are {', '.join(names)}" if names else "there are none"

    if len(names) <= ALWAYS_LISTED:
        cutoff = 0.8 if len(wanted) < 6 else 0.85
        alike = get_close_matches(wanted, by_spelling, n=1, cutoff=cutoff)
        return f"did you mean {by_spelling[alike[0]]!r}? ({listed})" if alike else listed

    alike = [known for known in by_spelling if len(wanted) > 2 and wanted in known][:3]
    alike = alike or get_close_matches(wanted, by_spelling, n=3, cutoff=0.6)
    if alike:
        return f"did you mean {' or '.join(repr(by_spelling[known]) for known in alike)}?"
    if command and len(names) > NEVER_LISTED:
        return f"{command} prints all {len(names)}"
    return listed


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")
