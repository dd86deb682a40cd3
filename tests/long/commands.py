"""Hostile invocations of every command: each ends soon, with a documented code and a sentence that names what is wrong.

Commands and options come from the parser, so a new one is enrolled by itself. Each invocation is a fork of one process
that has imported everything. What was accepted, and is still at work after half a second, is interrupted, which has to
end with 130. A word of a command line holds no NUL, since the system passes none; files and standard input do.
"""

import functools
import gc
import itertools
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typer.main import get_command

from regard_lab.cli.app import app
from regard_lab.text.terminal import printable

from .command_places import BASES, GIVEN, PLACES, inputs
from .running import Found

sys.path.insert(0, str(Path(__file__).parents[1] / "regard_lab" / "cli"))
from commanding import Forked, cpu_seconds

DOCUMENTED = {0, 1, 2, 130}  # README.md; and a reader that is gone, -SIGPIPE
# CPU seconds after which a command is interrupted; seconds after which it hangs
ACCEPTED, LONGEST = (
    0.5,
    30.0,
)
# seconds without a word that are too long; CPU seconds in which this is looked for
SILENT, WORKED = (
    10.0,
    12.0,
)
LINES, LENGTH = 6, 1500  # the most that is said about a mistake: usage, hint, and a sentence
COMMANDING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
PER_OPTION = 3  # values for each option, which take turns

WORDS = (
    "",
    "\udcff",
    "\x1b[2J\x07",
    "x" * 10_000,
    "■ über",
    "a\nb",
    "-",
    "../..",
    "(" * 3_000,
    "%s{0}",
    "\u202eback",
)
NUMBERS = (
    "",
    "x",
    "nan",
    "-1",
    "0",
    "9" * 30,
    "9" * 5_000,
    "1.5",
    "0x10",
    "½",
    "\udcff",
    "-9223372036854775809",
)
FRACTIONS = ("", "x", "nan", "-inf", "-1", "1e400", "1,5", "½", "\udcff", "9" * 5_000)
FILES = (
    *PLACES,
    "nowhere",
    "nowhere/deeper",
    "/proc/self/mem",
    "/dev/full",
    "x" * 5_000,
    "a\nb",
    "-x",
    "\udcff",
    "",
)
ENVIRONMENTS = {
    "COLUMNS": ("0", "-5", "x"),
    "TERM": ("", "\udcff"),
    "HOME": ("/nowhere",),
    "TMPDIR": ("/nowhere",),
    "WORLD_SIZE": ("x", "0"),
    "RANK": ("x", "7"),
    "PYTHONIOENCODING": ("ascii",),
    "NO_COLOR": ("1",),
}


@dataclass(frozen=True)
class Invocation:
    """The words of a command, where its streams go, and its environment."""

    label: str
    words: tuple[str, ...]
    named: tuple[str, ...] = ()  # one of them has to be in what is said about a mistake
    stdin: str = "/dev/null"  # a path; "closed" is none
    stdout: str = "file"  # or a path, "closed", "gone" for a pipe that nobody reads
    stderr: str = "file"
    environment: Mapping[str, str] = field(default_factory=dict)
    gone: bool = False  # is the working folder removed before?


@functools.cache
def _commands() -> dict[str, Any]:
    """Every command, by its name as it is typed."""

    def within(kind: Any, before: str) -> Iterator[tuple[str, Any]]:
        for name, command in kind.commands.items():
            if hasattr(command, "commands"):
                yield from within(command, f"{before}{name} ")
            else:
                yield before + name, command

    return dict(within(get_command(app), ""))


def names() -> tuple[str, ...]:
    """Every command, as it is typed."""
    return (*_commands(),)


@functools.cache
def parameters(name: str) -> tuple[Any, ...]:
    """The arguments and options of a command."""
    return tuple(_commands()[name].load().params)


def values_for(parameter: Any) -> tuple[str, ...]:
    """Hostile values by the kind of an option or argument."""
    kind = str(parameter.type_descriptor.annotation)
    if "Path" in kind or "FILE" in str(parameter.metavar):
        return FILES
    return NUMBERS if "int" in kind else FRACTIONS if "float" in kind else WORDS


def base(name: str) -> dict[str, str]:
    """Sensible values by parameter; of a command that is not in BASES, for what it requires."""
    kinds = {FILES: "{text}", NUMBERS: "2", FRACTIONS: "0.5", WORDS: "a b"}
    required = {one.name: kinds[values_for(one)] for one in parameters(name) if one.required}
    return {**required, **BASES.get(name, {})}


def typed(name: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """A command line: options first, then arguments in their order."""
    options: list[str] = []
    arguments: list[str] = []
    for one in parameters(name):
        if one.name in values:
            value = values[one.name]
            is_argument = one.param_type_name == "argument"
            words = (
                [value] if is_argument else [one.opts[0]] if one.is_flag else [one.opts[0], value]
            )
            (arguments if is_argument else options).extend(words)
    return (*name.split(), *options, *arguments)


def invocations(name: str) -> list[Invocation]:
    """All hostile invocations of a command."""
    sensible = base(name)
    plain = typed(name, sensible)
    found = []
    for at, one in enumerate(parameters(name)):
        option = one.opts[0]
        if getattr(one, "is_flag", False):
            found.append(Invocation(f"{option}=1", (*plain, f"{option}=1"), (option,)))
            continue
        values = values_for(one)
        several = values if values is FILES and one.name in sensible else values[:0]
        turns = several or [
            values[(PER_OPTION * at + turn) % len(values)] for turn in range(PER_OPTION)
        ]
        for value in turns:
            words = typed(name, {**sensible, one.name: value})
            own = {
                option,
                one.name,
                one.name.replace("_", "-"),
                one.name.replace("_", " "),
                str(one.metavar),
            }
            quoted = value or ("." if values is FILES else "''")
            found.append(Invocation(f"{option} {value[:30]!r}", words, (*own, quoted)))
        if one.param_type_name != "argument":
            without = typed(
                name, {key: value for key, value in sensible.items() if key != one.name}
            )
            found.append(Invocation(f"{option} without a value", (*without, option), (option,)))
    misspelt = [
        f"{one.opts[0][:-1]}q" for one in parameters(name) if one.param_type_name != "argument"
    ][:5]
    for word in ("--no-such-option", "--no-such-option=1", "-Z", "--help=1", *misspelt):
        found.append(Invocation(word, (*plain, word), (word.partition("=")[0],)))
    found += [Invocation(f"too much: {word[:30]!r}", (*plain, "left", word)) for word in WORDS]
    found += [
        Invocation("no arguments", tuple(name.split())),
        Invocation("--", (*plain, "--", "--json", "--")),
    ]
    for place in ("closed", "{binary}", "{empty}", "/proc/self/mem"):
        found.append(Invocation(f"standard input: {place}", plain, stdin=place))
    for place in ("closed", "gone", "/dev/full"):
        found.append(Invocation(f"standard output: {place}", plain, stdout=place))
    found += [
        Invocation(f"standard error: {place}", (*plain, "-Z"), stderr=place)
        for place in ("closed", "/dev/full")
    ]
    for variable, settings in ENVIRONMENTS.items():
        found += [
            Invocation(f"{variable}={one!r}", plain, environment={variable: one})
            for one in settings
        ]
    return [*found, Invocation("the working folder is gone", plain, gone=True)]


# One invocation


def descriptor(place: str, number: int, here: Path) -> int | None:
    """A file descriptor for a stream, or None for a closed one."""
    if place == "closed":
        return None
    if place == "gone":
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    path = str(here / f"stream{number}") if place == "file" else place
    return os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600)


# What was new in training from a run, decoding, scoring and reading: a command, a parameter and its values.
OF_OPTION = 40
OPTIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    **{
        f"{name} --from": (name, "from_run", FILES)
        for name in ("train translation", "train language-model")
    },
    "train translation --new-pieces": ("train translation", "new_pieces", NUMBERS),
    **{
        f"translate --{name}": ("translate", name.replace("-", "_"), NUMBERS)
        for name in ("count", "min-length", "max-length", "no-repeat")
    },
    "translate --repetition-penalty": ("translate", "repetition_penalty", FRACTIONS),
    "translate --prefix": ("translate", "prefix", WORDS),
    "translate --align": ("translate", "align", WORDS),
    "evaluate --out": ("evaluate", "out", FILES),
    "score RUN": ("score", "run", FILES),
    "score FILE": ("score", "texts", FILES),
    "FILE:1,2": (
        "score",
        "texts",
        tuple(
            f"{{pairs}}:{columns}"
            for n in NUMBERS
            for columns in (f"{n},2", f"1,{n}", f"{n},{n}", f"1,2,{n}")
        ),
    ),
    **{
        f"FILE{end}": (
            "score",
            "texts",
            tuple(f"{{hostile}}/{number}{end}" for number in range(OF_OPTION)),
        )
        for end in GIVEN
    },
}
# What may stand beside such an option, in turns.
BESIDE: dict[str, tuple[dict[str, str], ...]] = {
    "translate": (
        {},
        {"beam": "3", "as_json": "", "align": ""},
        {"sentences": ""},
        {"run": "{language_model}"},
    ),
    "evaluate": (
        {},
        {"as_json": ""},
        {"run": "{classifier}", "test": "{labels}"},
        {"run": "{language_model}"},
    ),
    "score": ({}, {"as_json": ""}, {"run": "{language_model}"}),
    "train": ({}, {"resume": ""}, {"data": "{hostile}/0.gz"}, {"vocab_size": "10"}),
}


def of_option(label: str) -> list[Invocation]:
    """The hostile invocations of one of OPTIONS: its values alone, and then beside other options."""
    name, parameter, values = OPTIONS[label]
    sensible = {"run": "{translator}", "texts": "{pairs}"} if name == "score" else base(name)
    if "train" in name:  # the sizes of the model are those of the other run
        sensible = {"from_run": "{translator}"} | {
            key: sensible[key] for key in ("data", "out", "steps", "cpu")
        }
    found, (one,) = [], [one for one in parameters(name) if one.name == parameter]
    for beside, value in itertools.islice(
        itertools.product(BESIDE[name.split()[0]], values), OF_OPTION
    ):
        words = typed(name, {**sensible, parameter: value, **beside})
        if getattr(one, "is_flag", False):
            words = tuple(f"{word}={value}" if word == one.opts[0] else word for word in words)
        found.append(Invocation(f"{value[:40]!r} beside {beside}", words))
    return found


def options(numbers: Sequence[int], folder: Path, size: int = OF_OPTION) -> Found:
    """A case is one of OPTIONS; of its invocations, the first `size` are run, and none may be silent for long."""
    load_everything()
    found = Found()
    places = inputs(folder / "inputs", run_command)
    for label in (list(OPTIONS)[number] for number in numbers):
        judge_each(f"regard {label}", of_option(label)[:size], places, folder, found, WORKED)
    return found


def judge_each(
    what: str,
    ones: Sequence[Invocation],
    places: Mapping[str, str],
    folder: Path,
    found: Found,
    accepted: float,
) -> None:
    """Count invocations, and note each that ends badly or changes what commands are given."""
    before = state_of(folder / "inputs")
    for one in ones:
        found.count(what)
        if reason := judged(one, places, folder / "case", found, accepted):
            found.wrong.append(f"{what}, {one.label}: {reason}")
        if (now := state_of(folder / "inputs")) != before:
            found.wrong.append(f"{what}, {one.label}: it changed {sorted({*now} ^ {*before})[:3]}")
            before = now


def judged(
    one: Invocation, places: Mapping[str, str], here: Path, found: Found, accepted: float = ACCEPTED
) -> str | None:
    """What is wrong with how a command ended, or None."""
    shown = [printable(word.format(**places) if word in PLACES else word) for word in one.named]
    silence = found.largest.pop("seconds of silence", 0.0)
    code, said, left = ended_with(one, places, here, found, accepted)
    silent = found.largest["seconds of silence"]
    found.at_most("seconds of silence", silence)
    if silent > SILENT:
        return f"it was silent for {silent:.1f} seconds"
    if code == -signal.SIGKILL:
        return f"it was at work after {LONGEST:.0f} seconds"
    return fault(replace(one, named=tuple(shown)), code, said, left)


def ended_with(
    one: Invocation, places: Mapping[str, str], here: Path, found: Found, accepted: float = ACCEPTED
) -> tuple[int, str | None, list[str]]:
    """The exit code, what standard error holds, and the names that are left in the working folder."""
    shutil.rmtree(here, ignore_errors=True)
    (here / "work").mkdir(parents=True)

    def settle() -> None:
        os.chdir(here / "work")
        if one.gone:
            shutil.rmtree(here / "work")

    words = (
        word.format(**places) if "{" in word and "%" not in word else word for word in one.words
    )
    opened = enumerate(place.format(**places) for place in (one.stdin, one.stdout, one.stderr))
    streams = {number: descriptor(place, number, here) for number, place in opened}
    process = Forked(
        *words, streams=streams, prepare=settle, TOKENIZERS_PARALLELISM="false", **one.environment
    )
    for number in streams.values():
        if number is not None:
            os.close(number)
    began = time.monotonic()
    interrupted = False
    written = {}
    spoke = began
    while (code := process.poll()) is None:
        now = time.monotonic()
        if now - began > (LONGEST + accepted) * (2 if interrupted else 1):
            process.send_signal(signal.SIGKILL)
        if not interrupted and (cpu_seconds(process.pid) > accepted or now - began > LONGEST - 5):
            process.send_signal(signal.SIGINT)
            interrupted = True
        if (sizes := {path: path.stat().st_size for path in here.glob("stream?")}) != written:
            written = sizes
            spoke = now
        found.at_most("seconds of silence", now - spoke)
        time.sleep(0.003)
    process.communicate()
    found.count("accepted" if code == 0 else "interrupted" if interrupted else "refused")
    found.at_most("seconds", time.monotonic() - began)
    said = (here / "stream2").read_text("utf-8", "replace") if (here / "stream2").exists() else None
    return code, said, sorted(path.name for path in here.glob("work/**/*"))


def fault(one: Invocation, code: int, said: str | None, left: Sequence[str]) -> str | None:
    """What is wrong with an exit code, with what was said, or with what is left in the working folder."""
    if code == -signal.SIGPIPE and one.stdout == "gone":
        return None
    if code not in DOCUMENTED:
        return f"the exit code is {code}: {(said or '').strip()[-200:]!r}"
    if torn := [name for name in left if ".writing-" in name or code == 2]:
        return f"exit code {code} leaves {torn[:3]}"
    if said is None:
        return None
    if "Traceback" in said or "Exception ignored" in said:
        return f"a traceback: {said.strip()[-200:]!r}"
    if COMMANDING.search(said):
        return f"control characters: {said[:200]!r}"
    if code in (0, 130):
        return None
    begin = re.search(r"^(?:Usage|regard): ", said, re.MULTILINE)  # remarks may come before it
    said = said[begin.start() :] if begin else said
    if not said.strip() or len(said) > LENGTH or len(said.splitlines()) > LINES:
        return f"exit code {code} with {len(said)} characters in {len(said.splitlines())} lines: {said[:200]!r}"
    if one.named and not any(
        word.strip()[:60].casefold() in said.casefold() for word in one.named if word.strip()
    ):
        return f"exit code {code} without a name of what is wrong: {said.strip()[-200:]!r}"
    return None


def load_everything() -> None:
    """Import what commands import, so that a fork need not."""
    import accelerate  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import torch._dynamo
    import torch.distributed.tensor

    torch.set_num_threads(1)
    for name in names():
        parameters(name)
    import rich.progress  # noqa: F401

    with suppress(Exception):
        # what a parser imports when it is first used
        app(["doctor", "--json=1"], standalone_mode=False)
    gc.freeze()  # a fork then copies less memory


def part_of(name: str, part: int, size: int) -> list[Invocation]:
    """Of the invocations of a command, so many from everywhere in the list (part 0), or the rest (part 1)."""
    every = invocations(name)
    first = (
        {at * len(every) // size for at in range(size)}
        if len(every) > size
        else {*range(len(every))}
    )
    return [one for at, one in enumerate(every) if (at in first) == (part == 0)]


def work(numbers: Sequence[int], folder: Path, size: int = 42) -> Found:
    """A case is one of the two parts of a command's invocations; the first parts of all commands come first."""
    load_everything()
    found = Found()
    places = inputs(folder / "inputs", run_command)
    for number in numbers:
        part, at = divmod(number, len(names()))
        name = names()[at]
        judge_each(f"regard {name}", part_of(name, part, size), places, folder, found, ACCEPTED)
    return found


def run_command(*words: str) -> None:
    """Run a command that has to succeed."""
    process = Forked(*words)
    _, said = process.communicate()
    assert process.returncode == 0, (
        f"regard {' '.join(words)} ended with {process.returncode}: {said.decode()}"
    )


def state_of(folder: Path) -> frozenset[tuple[str, int, int]]:
    """The files of a folder with their sizes and times."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return frozenset((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
