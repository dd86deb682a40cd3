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
# "`span` is the padding"
QUOTED_FIELD = re.compile(r"`([a-z]\w*)`(?: \([^)]*\))?(?::| is | says | marks )")


def documented_arguments(text: str) -> list[str]:
    """Names under "Args:", in order; entries may share a line or a name list."""
    lines = inspect.cleandoc(text).splitlines()
    if "Args:" not in lines:
        return []
    names: list[str] = []
    for line in lines[lines.index("Args:") + 1 :]:
        if line and not line.startswith("    "):
            break
        if (match := ENTRY.match(line[4:])) is not None:
            names += match[1].split(", ")
            names += [name for found in INLINE.findall(line) for name in found.split(", ")]
    return [name.lstrip("*") for name in names]


def documented_fields(text: str) -> list[str]:
    """Names explained in the docstring of a dataclass: lines such as "total: (batch, ...)", and "`span` is ..."."""
    lines = [line for line in inspect.cleandoc(text).splitlines() if not line.startswith(" ")]
    return [
        match[1] for line in lines if (match := FIELD.match(line)) is not None
    ] + QUOTED_FIELD.findall(text)


def known_names(thing: Callable[..., Any]) -> set[str] | None:
    """Parameters, and for a class its fields and annotations too; None where the signature cannot be read."""
    try:
        names = set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return None
    if inspect.isclass(thing):
        names |= {name for base in thing.__mro__ for name in vars(base).get("__annotations__", {})}
        names |= {
            name for name, _ in inspect.getmembers(thing, lambda value: isinstance(value, property))
        }
    return names


def defined(module: str) -> Iterator[tuple[str, Any]]:
    """Functions, classes and methods that a module defines, by qualified name."""
    for value in vars(importlib.import_module(module)).values():
        value = inspect.unwrap(value) if callable(value) else value
        if getattr(value, "__module__", None) != module or not (
            inspect.isclass(value) or inspect.isfunction(value)
        ):
            continue
        # left in a module by torch.compile
        if value.__qualname__.startswith("torch_dynamo_resume_in_"):
            continue
        yield value.__qualname__, value
        if inspect.isclass(value):
            for member in vars(value).values():
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
