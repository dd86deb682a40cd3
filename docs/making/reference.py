"""The pages of the reference: what each room exports, as its `__all__` says."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import regard

# Rooms in the order in which people meet them, and a line on what each is for.
ROOMS = {
    "regard": "the call, its plan, its details, errors",
    "regard.patterns": "who may look at whom",
    "regard.mechanisms": "how queries, keys and values become outputs",
    "regard.bias": "what is added to scores by distance",
    "regard.positions": "rotary, sinusoidal, learned",
    "regard.layers": "modules around the call",
    "regard.layers.caches": "the keys of a text so far",
    "regard.models": "translators, a language model, an encoder",
    "regard.text": "readers, tokenisers, batches",
    "regard.decoding": "search, sampling, scores",
    "regard.training": "the loop and its runs",
    "regard.inspection": "what a model looks at",
    "regard.lessons": "what the articles teach, shown by running it",
    "regard.walkthrough": "one sentence, step by step",
    "regard.comparison": "trained models side by side",
    "regard.conversion": "other models' weights, fewer key/value heads",
    "regard.bench": "timings beside other libraries",
    "regard.testing": "the oracle and its budget, for those who write a backend",
}


def reference_pages() -> dict[str, str]:
    """The text of every page by its name in docs/."""
    rooms = {name: import_module(name) for name in ROOMS if is_there(name)}
    pages = {f"reference/{name}.md": page(name, room) for name, room in rooms.items()}
    return {"reference/index.md": contents(rooms), **pages}


def is_there(name: str) -> bool:
    """Does this version of regard have the room, with a list of what it exports?"""
    return find_spec(name) is not None and hasattr(import_module(name), "__all__")


def contents(rooms: dict[str, ModuleType]) -> str:
    """The first page: all rooms."""
    lines = ["# Reference", "", "What is exported, with its formula, shapes, errors and source.", ""]
    lines += ["| room | what it is for | names |", "|---|---|---|"]
    lines += [f"| [`{name}`]({name}.md) | {ROOMS[name]} | {len(documented(room))} |" for name, room in rooms.items()]
    return "\n".join(lines) + "\n"


def page(name: str, room: ModuleType) -> str:
    """One room: a table of its names, and the docstring of each."""
    own = documented(room)
    lines = [f"# {name}", "", (inspect.getdoc(room) or "").split("\n\n")[0], "", "| name | what it is |", "|---|---|"]
    lines += [f"| [`{short}`](#{path}) | {first_sentence(value)} |" for short, (path, value) in own.items()]
    lines += [f"| `{short}` | `{value!r}` |" for short, value in constants(room).items()]
    for path, _ in own.values():
        lines += ["", f"::: {path}"]
    return "\n".join(lines) + "\n"


def documented(room: ModuleType) -> dict[str, tuple[str, Any]]:
    """Classes and functions by name: where their docstring is found, and the object."""
    values = {short: getattr(room, short) for short in room.__all__}
    own = {short: value for short, value in values.items() if getattr(value, "__name__", "") == short}
    # `import regard` is lazy, so that only the homes of its names can be read without running it.
    return {
        short: (f"{value.__module__ if room is regard else room.__name__}.{short}", value)
        for short, value in own.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }


def constants(room: ModuleType) -> dict[str, Any]:
    """Small values that a room exports beside classes and functions."""
    values = {short: getattr(room, short) for short in room.__all__}
    rest = {short: value for short, value in values.items() if short not in documented(room)}
    return {
        short: value
        for short, value in rest.items()
        if not isinstance(value, ModuleType) and len(repr(value)) < 80 and " at 0x" not in repr(value)
    }


def first_sentence(value: Any) -> str:
    """The first sentence of a docstring, fit for a cell."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?])\s+(?=[A-Z])", text)[0]
    return sentence.replace("|", "\\|")
