"""Which names a docstring documents, and which of them do not exist."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

ENTRY = re.compile(r"^((?:\*{0,2}\w+, )*\*{0,2}\w+)(?: \([^)]*\))?:(?:\s|$)")
INLINE = re.compile(r"; ((?:\w+, )*\w+): ")  # "norm: ...; epsilon: ..." on one line
FIELD = re.compile(r"^([a-z]\w*): \S")
QUOTED_FIELD = re.compile(  # "`span` is the padding"
    r"`([a-z]\w*)`(?: \([^)]*\))?(?::| is | says | marks )"
)


def documented_arguments(text: str) -> list[str]:
    """Names under "Args:", in order; entries may share a line or a name list."""
    lines = inspect.cleandoc(text).splitlines()
    if "Args:" not in lines:
        return []
    names: list[str] = []
    for line in lines[lines.index("Args:") + 1 :]:
        if line and not line.startswith("    "):
            break
        match = ENTRY.match(line[4:])
        if match is None:
            continue
        for entry in [match[1], *INLINE.findall(line)]:
            names += entry.split(", ")
    return [name.lstrip("*") for name in names]


def documented_fields(text: str) -> list[str]:
    """Names explained in the docstring of a dataclass: lines such as "total: (batch, ...)", and "`span` is ..."."""
    matches = [FIELD.match(line) for line in inspect.cleandoc(text).splitlines()]
    return [match[1] for match in matches if match is not None] + QUOTED_FIELD.findall(text)


def known_names(thing: Callable[..., Any]) -> set[str] | None:
    """Parameters, and for a class its fields and annotations too; None where the signature cannot be read."""
    try:
        names = set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return None
    if inspect.isclass(thing):
        for base in thing.__mro__:
            names |= set(vars(base).get("__annotations__", {}))
        names |= dict(inspect.getmembers(thing, _is_property)).keys()
    return names


def _is_property(value: object) -> bool:
    return isinstance(value, property)


def defined(module: str) -> Iterator[tuple[str, Any]]:
    """Functions, classes and methods that a module defines, by qualified name."""
    for value in vars(importlib.import_module(module)).values():
        thing = inspect.unwrap(value) if callable(value) else value
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        # torch.compile leaves functions of its own in a module.
        resumed = thing.__qualname__.startswith("torch_dynamo_resume_in_")
        if thing.__module__ != module or resumed:
            continue
        yield thing.__qualname__, thing
        if inspect.isclass(thing):
            for member in vars(thing).values():
                function = getattr(member, "__func__", member)
                if inspect.isfunction(function) and function.__module__ == module:
                    yield function.__qualname__, function


def _code_without_docstring(kind: type) -> str:
    """The source of a class with a docstring, without it and without comments."""
    node = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(node, ast.ClassDef)
    return "\n".join(map(ast.unparse, [*node.bases, *node.body[1:]]))


def wrong_names(thing: Any) -> list[str]:
    """Documented arguments and fields of a function or class that do not exist."""
    text = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    known = known_names(thing)
    if not text or known is None:
        return []
    names = documented_arguments(text)
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
        code = _code_without_docstring(thing)  # a learned parameter is a string there
        names += [name for name in documented_fields(text) if not re.search(rf"\b{name}\b", code)]
    return [name for name in names if name not in known]
