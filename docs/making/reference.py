"""The pages of the reference: the names that each package exports in `__all__`, with their docstrings."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from types import ModuleType
from typing import Any

import regard
from docs.making.rendering import table
from regard.core.result import Statistics

# Packages in the order in which a reader needs them.
ROOMS = """
    regard regard.patterns regard.mechanisms regard.bias regard.positions regard.layers regard.layers.caches
    regard_lab.models regard_lab.text regard_lab.decoding regard_lab.training regard_lab.seeing
    regard_lab.seeing.explorer regard_lab.seeing.lenses regard_lab.walkthrough
    regard.distributed regard_lab.conversion regard.integrations.torch
    regard.integrations.transformers regard.integrations.diffusers regard_lab.seeing.transformers
    regard.testing
""".split()  # noqa: SIM905


def reference_pages() -> dict[str, str]:
    """The text of every page by its name in docs/."""
    pages = {}
    rows = []
    for name in ROOMS:
        room = import_module(name)
        pages[f"reference/{name}.md"] = page(name, room)
        rows.append((f"[`{name}`]({name}.md)", first_sentence(room), len(documented(room))))
    about = "# Reference\n\nAll exported names, with formulas, shapes, errors and sources.\n\n"
    index = f"{about}{table('package | contents | names', rows)}\n"
    return {"reference/index.md": index, **pages}


def page(name: str, room: ModuleType) -> str:
    """The page of one package: a table of its names, and the docstring of each."""
    names = documented(room)
    rows = []
    for short, (path, value) in names.items():
        rows.append((f"[`{short}`](#{path})", first_sentence(value)))
    for short, value in constants(room).items():
        rows.append((f"`{short}`", f"`{value!r}`"))
    lines = [
        f"# {name}",
        "",
        (inspect.getdoc(room) or "").split("\n\n")[0],
        "",
        table("name | description", rows),
    ]
    for path, value in names.values():
        lines += ["", f"::: {path}"]
        # What it inherits is what it is for.
        if inspect.isclass(value) and issubclass(value, Statistics):
            lines += ["    options:", "      inherited_members: true"]
    return "\n".join(lines) + "\n"


def documented(room: ModuleType) -> dict[str, tuple[str, Any]]:
    """Classes and functions by name: the path of their docstring, and the object."""
    names = {}
    for short in room.__all__:
        value = getattr(room, short)
        is_documented = inspect.isclass(value) or inspect.isfunction(value)
        if is_documented and value.__name__ == short:
            names[short] = (f"{defining(room, short, value)}.{short}", value)
    return names


def defining(room: ModuleType, short: str, value: Any) -> str:
    """The module in which the site finds a name: the package, if it can.

    `import regard` is lazy, so the names of `regard` are only found where they are defined. A function with the name of
    its own module would be mistaken for the module.
    """
    hidden = room is regard or value.__module__ == f"{room.__name__}.{short}"
    return value.__module__ if hidden else room.__name__


def constants(room: ModuleType) -> dict[str, Any]:
    """Small values that a package exports besides classes and functions."""
    names = documented(room)
    small = {}
    for short in room.__all__:
        value = getattr(room, short)
        if short in names or isinstance(value, ModuleType):
            continue
        text = repr(value)
        if len(text) < 80 and " at 0x" not in text:
            small[short] = value
    return small


def first_sentence(value: Any) -> str:
    """The first sentence of a docstring, escaped for a table cell."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?])\s+(?=[A-Z])", text)[0]
    return sentence.replace("|", "\\|")
