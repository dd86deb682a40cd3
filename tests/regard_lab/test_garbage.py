"""Every public name, given anything for any of its parameters, works or raises a sentence of the family RegardError."""

import contextlib
import importlib
import inspect
import io
import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from sensible import INSTANCES, SENSIBLE

import regard as rg
from regard.storage import save_tensors

PACKAGES = (
    "regard.patterns",
    "regard_lab.text",
    "regard_lab.models",
    "regard_lab.decoding",
    "regard_lab.training",
    "regard_lab.conversion",
    "regard_lab.seeing",
    "regard.storage",
    "regard_lab.walkthrough",
    "regard_lab.bench",
)

GARBAGE: dict[str, Any] = {
    "None": None,
    "object": object(),
    "x": "x",
    "empty text": "",
    "3": 3,
    "-1": -1,
    "huge": 10**30,
    "1.5": 1.5,
    "nan": math.nan,
    "list": [],
    "dict": {},
    "function": lambda: 0,
    "integers": torch.tensor([[1, 2]]),
    "empty": torch.empty(0),
    "bytes": b"x",
    "True": True,
}

# What patterns are asked by the planner for every block of rows, with positions that it counted itself.
PROTOCOL = (
    "allows",
    "evaluate",
    "form",
    "read",
    "segments",
    "on_lattice",
    "mapped",
    "for_head",
    "for_row",
    "check",
    "sees_all",
    "of_heads",
    "of_queries",
    "moved",
    "settled",
    "hold",
    "key_range",
    "placed",
)
CONFIGS = ("LanguageConfig", "EncoderConfig")
CHECKS = ("check_choice", "check_flags", "check_shares", "check_sizes")
OWN_FIELDS = [".".join(names) for names in itertools.product(CONFIGS, CHECKS)]
LEFT_OUT: dict[str, str] = {
    "Pattern": "abstract",
    **dict.fromkeys(("Progress", "Task", "Batch", "State"), "a type"),
    **dict.fromkeys(OWN_FIELDS, "asked by __post_init__ about fields of its own"),
    "run_bench": "takes minutes",
    "examine": "takes seconds, and has no parameter",
    "train": "trains",
    "share_lines": "says a TypeError; it was in no package that is tried",
    "convert_kv_heads": "takes seconds",
    "load_converted": "takes seconds",
    **dict.fromkeys(("draw_maps", "draw_pattern"), "takes seconds"),
}
TYPES = ("Task", "Batch", "State")


def public_names() -> Iterator[tuple[str, str, Any]]:
    """(package, name, what it is), each object once, under the first package that shows it."""
    seen: set[int] = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing) and id(thing) not in seen:
                seen.add(id(thing))
                yield package, name, thing


def methods(name: str, kind: type) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The public methods of a class with where to take them from: an instance, or the class for a class method."""
    for method in dir(kind):
        taken = (
            method.startswith("_")
            or (hasattr(torch.nn.Module, method) and method != "forward")
            or hasattr(tuple, method)
        )
        how = inspect.getattr_static(kind, method, None)
        if (
            taken
            or not callable(getattr(kind, method, None))
            or inspect.isclass(getattr(kind, method))
        ):
            continue
        if isinstance(how, classmethod | staticmethod):
            yield f"{name}.{method}", lambda method=method: getattr(kind, method)
        elif name in INSTANCES:
            yield f"{name}.{method}", lambda method=method: getattr(INSTANCES[name](), method)


def targets(package: str) -> dict[str, Callable[[], Any]]:
    callables: dict[str, Callable[[], Any]] = {}
    for home, name, thing in public_names():
        if home == package:
            callables[name] = lambda thing=thing: thing
            if inspect.isclass(thing):
                callables |= methods(name, thing)
    inner = PROTOCOL if package == "regard.patterns" else ()
    return {
        name: get
        for name, get in callables.items()
        if name not in LEFT_OUT
        and name.split(".")[0] not in TYPES
        and name.split(".")[-1] not in inner
    }


def parameters_of(function: Any) -> list[inspect.Parameter]:
    return [
        p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD
    ]


def arguments(
    name: str, function: Any, garbage: Callable[[inspect.Parameter, bool], Any]
) -> tuple[list, dict]:
    """Positional and named arguments: garbage where the function returns some, else what is sensible or nothing.

    It is asked with each parameter, and whether that needs a value for which nothing sensible is there.
    """
    positional = []
    named = {}
    for p in parameters_of(function):
        keys = (f"{name}.{p.name}", *([p.name] if p.default is p.empty else []))
        made = next((SENSIBLE[key] for key in keys if key in SENSIBLE), None)
        value = garbage(p, made is None and p.default is p.empty and p.kind is not p.VAR_POSITIONAL)
        if value is p.empty and made is not None:
            value = made()
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            positional += [value] if value is not p.empty else []
        elif value is not p.empty:
            named[p.name] = value
    return positional, named


def calls(name: str, function: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """One call for each parameter and each piece of garbage, with the others as they should be."""
    for chosen in parameters_of(function):
        for label, garbage in GARBAGE.items():

            def call(chosen: str = chosen.name, garbage: Any = garbage) -> Any:
                copied = copy(garbage)  # a function may write into a dict
                arguments_of_call = arguments(
                    name,
                    function,
                    lambda p, needed: copied if needed or p.name == chosen else p.empty,
                )
                return function(*arguments_of_call[0], **arguments_of_call[1])

            yield f"{name}({chosen.name}={label})", call


def fault(call: Callable[[], Any]) -> str:
    """What went wrong, empty where the call worked or was refused by a sentence."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            result = call()
            if isinstance(result, Iterator):
                list(islice(result, 99))
    except rg.RegardError as refusal:
        words = str(refusal)
        return "" if 15 < len(words) < 1500 else f"says {words!r}"
    except Exception as error:
        if isinstance(error, TypeError) and "<lambda>() takes 0 positional" in str(error):
            return ""  # Python's own word about the function that was handed over
        return f"{type(error).__name__}: {str(error)[:90]}"
    return ""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lines.txt").write_text("one\n")
    (tmp_path / "lines.tsv").write_text("one\teins\n")
    (tmp_path / "log.jsonl").write_text("")
    save_tensors(tmp_path / "a.safetensors", {"a": torch.ones(2)})
    return tmp_path


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.usefixtures("here")
def test_garbage_works_or_is_refused_by_a_sentence(package):
    faults: dict[str, str] = {}
    for name, get in targets(package).items():
        for label, call in calls(name, get()):
            if words := fault(call):
                faults[label] = words
    assert not faults, "\n".join(f"{label}: {words}" for label, words in faults.items())
