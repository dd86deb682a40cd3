"""The pages of the reference: the names that each package exports in `__all__`, with their docstrings."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import regard
from regard.core.result import Statistics

# Packages in the order in which a reader needs them, with their purpose.
ROOMS = {
    "regard": "the attention call, plans, statistics, errors",
    "regard.patterns": "which query may look at which key",
    "regard.mechanisms": "softmax and other ways to compute outputs from queries, keys and values",
    "regard.bias": "bias by distance",
    "regard.positions": "rotary, sinusoidal and learned positions",
    "regard.layers": "multi-head attention as modules",
    "regard.layers.caches": "keys and values of earlier positions",
    "regard_lab.models": "translators, a language model, a text encoder",
    "regard_lab.text": "readers, tokenisers, batches",
    "regard_lab.decoding": "greedy search, beam search, sampling, scores",
    "regard_lab.training": "the training loop and its runs",
    "regard_lab.seeing": "attention weights of models, pictures, comparison with approximations",
    "regard_lab.seeing.explorer": "a page in which attention is explored",
    "regard_lab.seeing.lenses": "what a written word depends on",
    "regard_lab.seeing.lens_study": "lenses measured where swaps verify the cause",
    "regard_lab.walkthrough": "attention for one sentence, step by step",
    "regard_lab.training.comparison": "comparison of trained models",
    "regard.distributed": "attention over a sequence that several processes share",
    "regard_lab.conversion": "import of other models' weights, fewer key/value heads",
    "regard.integrations.torch": "PyTorch's attention functions computed by regard",
    "regard.integrations.transformers": "models of Hugging Face computed by regard, explained and observed",
    "regard_lab.bench": "speed and memory compared with other libraries",
    "regard_lab.seeing.transformers": "models of Hugging Face in the explorer",
    "regard.testing": "the float64 oracle and error budgets, for authors of backends",
}


def reference_pages() -> dict[str, str]:
    """The text of every page by its name in docs/."""
    rooms = {name: import_module(name) for name in ROOMS if is_there(name)}
    pages = {f"reference/{name}.md": page(name, room) for name, room in rooms.items()}
    return {"reference/index.md": contents(rooms), **pages}


def is_there(name: str) -> bool:
    """Whether the package exists and has `__all__`."""
    return find_spec(name) is not None and hasattr(import_module(name), "__all__")


def contents(rooms: dict[str, ModuleType]) -> str:
    """The first page: all packages."""
    lines = ["# Reference", "", "All exported names, with formulas, shapes, errors and sources.", ""]
    lines += ["| package | contents | names |", "|---|---|---|"]
    lines += [f"| [`{name}`]({name}.md) | {ROOMS[name]} | {len(documented(room))} |" for name, room in rooms.items()]
    return "\n".join(lines) + "\n"


def page(name: str, room: ModuleType) -> str:
    """The page of one package: a table of its names, and the docstring of each."""
    own = documented(room)
    lines = [f"# {name}", "", (inspect.getdoc(room) or "").split("\n\n")[0], "", "| name | description |", "|---|---|"]
    lines += [f"| [`{short}`](#{path}) | {first_sentence(value)} |" for short, (path, value) in own.items()]
    lines += [f"| `{short}` | `{value!r}` |" for short, value in constants(room).items()]
    for path, value in own.values():
        lines += ["", f"::: {path}"]
        if inspect.isclass(value) and issubclass(value, Statistics):  # what it inherits is what it is for
            lines += ["    options:", "      inherited_members: true"]
    return "\n".join(lines) + "\n"


def documented(room: ModuleType) -> dict[str, tuple[str, Any]]:
    """Classes and functions by name: the path of their docstring, and the object."""
    values = {short: getattr(room, short) for short in room.__all__}
    own = {short: value for short, value in values.items() if getattr(value, "__name__", "") == short}
    return {
        short: (f"{defining(room, short, value)}.{short}", value)
        for short, value in own.items()
        if inspect.isclass(value) or inspect.isfunction(value)
    }


def defining(room: ModuleType, short: str, value: Any) -> str:
    """The module in which the site finds a name: the package, if it can.

    `import regard` is lazy, so the names of `regard` are only found where they are defined. A function with the name of
    its own module would be mistaken for the module.
    """
    hidden = room is regard or value.__module__ == f"{room.__name__}.{short}"
    return value.__module__ if hidden else room.__name__


def constants(room: ModuleType) -> dict[str, Any]:
    """Small values that a package exports besides classes and functions."""
    values = {short: getattr(room, short) for short in room.__all__}
    rest = {short: value for short, value in values.items() if short not in documented(room)}
    return {
        short: value
        for short, value in rest.items()
        if not isinstance(value, ModuleType) and len(repr(value)) < 80 and " at 0x" not in repr(value)
    }


def first_sentence(value: Any) -> str:
    """The first sentence of a docstring, escaped for a table cell."""
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?])\s+(?=[A-Z])", text)[0]
    return sentence.replace("|", "\\|")
