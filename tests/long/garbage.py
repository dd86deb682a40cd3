"""Random calls of every public name with garbage, and random texts of patterns: a value, or a sentence of the family.

Each batch runs in a fork, so that a crash is counted as one and ends nothing else.
"""

import contextlib
import functools
import inspect
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch

import regard as rg
from regard.errors import RegardError
from regard.patterns import Pattern, parse
from tests.regard.fuzz.meanings import LEAVES, TENSORS, Places, build, plain_leaf

from .running import Found

sys.path.insert(0, str(Path(__file__).parents[1]))
import test_garbage as single

SEVERAL = (0.15, 0.5)  # the share of the other parameters that hold garbage too


def in_fork(work: Callable[[Found], None], folder: Path, label: str) -> Found:
    """What a fork found; a signal that ended it is written down."""
    path = folder / "found.json"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            found = Found()
            work(found)
            path.write_text(json.dumps({"counts": found.counts, "wrong": found.wrong, "largest": found.largest}))
            code = 0
        except BaseException as error:
            os.write(2, f"{label}: {error!r}\n".encode())
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        return Found(wrong=[f"{label}: the process ended with {code}"])
    told = json.loads(path.read_text())
    found = Found(largest=told["largest"], wrong=told["wrong"])
    found.counts.update(told["counts"])
    return found


@functools.cache
def every() -> list[tuple[str, Callable[[], Any]]]:
    """Every public name with how to get it."""
    return [(name, get) for package in single.PACKAGES for name, get in single.targets(package).items()]


def call(draw: random.Random) -> tuple[str, Callable[[], Any]]:
    """A call with garbage for one parameter, and for some of the others; what it says, and how to make it."""
    name, get = draw.choice(every())
    function = get()
    parameters = single.parameters_of(function)
    if not parameters:
        return f"{name}()", function
    chosen, share, words = draw.choice(parameters).name, draw.choice(SEVERAL), []

    def garbage(p: inspect.Parameter, needed: bool) -> Any:
        if p.name != chosen and draw.random() >= share and not needed:
            return p.empty
        label = draw.choice(list(single.GARBAGE))
        words.append(f"{p.name}={label}")
        return copy(single.GARBAGE[label])

    positional, named = single.arguments(name, function, garbage)
    return f"{name}({', '.join(words)})", lambda: function(*positional, **named)


def calls(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one call."""

    def work(found: Found) -> None:
        torch.set_num_threads(1)
        place = folder / "here"
        place.mkdir(exist_ok=True)
        os.chdir(place)
        for name in ("lines.txt", "lines.tsv", "log.jsonl"):
            Path(name).write_text({"lines.txt": "one\n", "lines.tsv": "one\teins\n", "log.jsonl": ""}[name])
        rg.storage.save_tensors("a.safetensors", {"a": torch.ones(2)})
        for number in numbers:
            label, function = call(random.Random(f"garbage {number}"))
            found.count("calls")
            if words := single.fault(function):
                found.wrong.append(f"call {number}, {label}: {words}")

    with contextlib.suppress(FileNotFoundError):
        return in_fork(work, folder, f"calls from {numbers[0]}")
    return Found(wrong=[f"calls from {numbers[0]}: nothing was found"])


SIGNS = [
    *"()&|~,=.-+*/<>[]{}:;'\"\\ \t\n0123456789", "..", "all", "true", "false", "None", "nan",
    "1e9", "é", "ß", "\0", "\u202e", "𝟙",
    "9" * 30, "9" * 5000, "~" * 70, "(" * 70, "local=", "seed=", "stride=",
    "-1", "0..3", "3..0", "0..99999999999",
]  # fmt: skip


def text(draw: random.Random) -> str:
    """A text of names, numbers and signs; or a text of a pattern with some of its signs changed."""
    names = list(Pattern.registry.kinds)
    if draw.random() < 0.5:
        return "".join(draw.choice(names if draw.random() < 0.3 else SIGNS) for _ in range(draw.randrange(1, 25)))
    whole = list(written(draw))
    for _ in range(draw.choice([0, 0, 1, 2])):
        whole[draw.randrange(len(whole))] = draw.choice([*SIGNS, ""])
    return "".join(whole)


def written(draw: random.Random) -> str:
    """The text of a random pattern that has one."""
    kinds = Pattern.registry.kinds
    names = [name for name in LEAVES if name not in TENSORS and name in kinds and kinds[name].no_text is None]
    at = Places(1, 1, 9, 9, (0,))
    parts = [str(build(plain_leaf(draw, draw.choice(names), 9), at)) for _ in range(draw.randrange(1, 4))]
    return draw.choice([" & ", " | ", "&~"]).join(parts)


def texts(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one text: it is a pattern whose own text reads back as the same, or it is refused."""

    def work(found: Found) -> None:
        for number in numbers:
            given = text(random.Random(f"text {number}"))
            found.count("texts")
            try:
                pattern = parse(given)
                found.count("patterns")
                if parse(str(pattern)) != pattern:
                    found.wrong.append(f"text {number}: {given!r} is {pattern!s}, which reads back otherwise")
                if pattern.dense(4, 5).shape[-2:] != (4, 5):
                    found.wrong.append(f"text {number}: {given!r} has a mask of another shape")
            except RegardError as refusal:
                found.count("refused")
                if not 15 < len(str(refusal)) < 3000:
                    found.wrong.append(f"text {number}: {given!r} is refused by {str(refusal)!r}")
            except Exception as error:
                found.wrong.append(f"text {number}: {given!r} raises {type(error).__name__}: {str(error)[:90]}")

    return in_fork(work, folder, f"texts from {numbers[0]}")
