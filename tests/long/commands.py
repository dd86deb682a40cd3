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
from typing import Any, NamedTuple

from typer.main import get_command

from regard_lab.cli.app import app
from regard_lab.text.terminal import printable

from .command_places import BASES, GIVEN, PLACES, inputs
from .running import Found

sys.path.insert(0, str(Path(__file__).parents[1] / "regard_lab" / "cli"))
from commanding import Forked, cpu_seconds

DOCUMENTED = {0, 1, 2, 130}  # README.md; and a reader that is gone, -SIGPIPE
INTERRUPTED_AFTER = 0.5  # CPU seconds; a command that is still at work was accepted
LONGEST = 30.0  # seconds after which a command hangs
LONGEST_SILENCE = 10.0  # seconds without a word
WATCHED_FOR_SILENCE = 12.0  # CPU seconds
# The most that is said about a mistake: usage, hint, and a sentence.
MOST_LINES = 6
MOST_CHARACTERS = 1500
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
    named: tuple[str, ...] = ()  # a sentence about a mistake holds one of them
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
    if "int" in kind:
        return NUMBERS
    return FRACTIONS if "float" in kind else WORDS


SENSIBLE = {FILES: "{text}", NUMBERS: "2", FRACTIONS: "0.5", WORDS: "a b"}


def base(name: str) -> dict[str, str]:
    """Sensible values by parameter; of a command that is not in BASES, for what it requires."""
    values = {}
    for parameter in parameters(name):
        if parameter.required:
            values[parameter.name] = SENSIBLE[values_for(parameter)]
    return {**values, **BASES.get(name, {})}


def typed(name: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """A command line: options first, then arguments in their order."""
    options: list[str] = []
    arguments: list[str] = []
    for parameter in parameters(name):
        if parameter.name not in values:
            continue
        value = values[parameter.name]
        if is_argument(parameter):
            arguments.append(value)
        else:
            options += [parameter.opts[0]] if parameter.is_flag else [parameter.opts[0], value]
    return (*name.split(), *options, *arguments)


def is_argument(parameter: Any) -> bool:
    return parameter.param_type_name == "argument"


def names_of(parameter: Any) -> set[str]:
    """How a sentence may call a parameter."""
    name = parameter.name
    ways = {name, name.replace("_", "-"), name.replace("_", " ")}
    return {parameter.opts[0], str(parameter.metavar), *ways}


def with_values(name: str, number: int, parameter: Any) -> Iterator[Invocation]:
    """A command with hostile values of one of its parameters, whose number decides which ones take their turn."""
    sensible = base(name)
    option = parameter.opts[0]
    if getattr(parameter, "is_flag", False):
        yield Invocation(f"{option}=1", (*typed(name, sensible), f"{option}=1"), (option,))
        return
    values = values_for(parameter)
    if values is not FILES or parameter.name not in sensible:
        first = PER_OPTION * number
        values = [values[(first + turn) % len(values)] for turn in range(PER_OPTION)]
    for value in values:
        words = typed(name, {**sensible, parameter.name: value})
        quoted = value or ("." if values_for(parameter) is FILES else "''")
        named = (*names_of(parameter), quoted)
        yield Invocation(f"{option} {value[:30]!r}", words, named)
    if not is_argument(parameter):
        sensible.pop(parameter.name, None)
        words = (*typed(name, sensible), option)
        yield Invocation(f"{option} without a value", words, (option,))


def with_wrong_words(name: str, plain: tuple[str, ...]) -> Iterator[Invocation]:
    """A command with options that it has not, with more arguments than it takes, and with none."""
    options = [parameter.opts[0] for parameter in parameters(name) if not is_argument(parameter)]
    misspelt = [f"{option[:-1]}q" for option in options[:5]]
    for word in ("--no-such-option", "--no-such-option=1", "-Z", "--help=1", *misspelt):
        yield Invocation(word, (*plain, word), (word.partition("=")[0],))
    for word in WORDS:
        yield Invocation(f"too much: {word[:30]!r}", (*plain, "left", word))
    yield Invocation("no arguments", tuple(name.split()))
    yield Invocation("--", (*plain, "--", "--json", "--"))


def with_wrong_surroundings(plain: tuple[str, ...]) -> Iterator[Invocation]:
    """A sensible command with other streams, in another environment, and without its working folder."""
    for place in ("closed", "{binary}", "{empty}", "/proc/self/mem"):
        yield Invocation(f"standard input: {place}", plain, stdin=place)
    for place in ("closed", "gone", "/dev/full"):
        yield Invocation(f"standard output: {place}", plain, stdout=place)
    for place in ("closed", "/dev/full"):
        yield Invocation(f"standard error: {place}", (*plain, "-Z"), stderr=place)
    for variable, settings in ENVIRONMENTS.items():
        for setting in settings:
            yield Invocation(f"{variable}={setting!r}", plain, environment={variable: setting})
    yield Invocation("the working folder is gone", plain, gone=True)


def invocations(name: str) -> list[Invocation]:
    """All hostile invocations of a command."""
    plain = typed(name, base(name))
    made: list[Invocation] = []
    for number, parameter in enumerate(parameters(name)):
        made += with_values(name, number, parameter)
    return [*made, *with_wrong_words(name, plain), *with_wrong_surroundings(plain)]


# One invocation


def descriptor(place: str, number: int, folder: Path) -> int | None:
    """A file descriptor for a stream, or None for a closed one."""
    if place == "closed":
        return None
    if place == "gone":
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    path = str(folder / f"stream{number}") if place == "file" else place
    return os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT, 0o600)


# What was new in training from a run, decoding, scoring and reading: a command, a parameter and its values.
OF_OPTION = 40


def columns() -> tuple[str, ...]:
    """A file of pairs with columns that do not exist."""
    files: list[str] = []
    for n in NUMBERS:
        files += f"{{pairs}}:{n},2", f"{{pairs}}:1,{n}", f"{{pairs}}:{n},{n}", f"{{pairs}}:1,2,{n}"
    return tuple(files)


OPTIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "train translation --from": ("train translation", "from_run", FILES),
    "train language-model --from": ("train language-model", "from_run", FILES),
    "train translation --new-pieces": ("train translation", "new_pieces", NUMBERS),
    "translate --count": ("translate", "count", NUMBERS),
    "translate --min-length": ("translate", "min_length", NUMBERS),
    "translate --max-length": ("translate", "max_length", NUMBERS),
    "translate --no-repeat": ("translate", "no_repeat", NUMBERS),
    "translate --repetition-penalty": ("translate", "repetition_penalty", FRACTIONS),
    "translate --prefix": ("translate", "prefix", WORDS),
    "translate --align": ("translate", "align", WORDS),
    "evaluate --out": ("evaluate", "out", FILES),
    "score RUN": ("score", "run", FILES),
    "score FILE": ("score", "texts", FILES),
    "FILE:1,2": ("score", "texts", columns()),
}
for ending in GIVEN:
    hostile_files = tuple(f"{{hostile}}/{number}{ending}" for number in range(OF_OPTION))
    OPTIONS[f"FILE{ending}"] = ("score", "texts", hostile_files)
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
    name, parameter_name, values = OPTIONS[label]
    sensible = {"run": "{translator}", "texts": "{pairs}"} if name == "score" else base(name)
    if "train" in name:  # the sizes of the model are those of the other run
        sensible = {key: sensible[key] for key in ("data", "out", "steps", "cpu")}
        sensible["from_run"] = "{translator}"
    by_name = {parameter.name: parameter for parameter in parameters(name)}
    parameter = by_name[parameter_name]
    made = []
    pairs = itertools.product(BESIDE[name.split()[0]], values)
    for beside, value in itertools.islice(pairs, OF_OPTION):
        words = typed(name, {**sensible, parameter_name: value, **beside})
        if getattr(parameter, "is_flag", False):
            option = parameter.opts[0]
            words = tuple(f"{word}={value}" if word == option else word for word in words)
        made.append(Invocation(f"{value[:40]!r} beside {beside}", words))
    return made


def options(numbers: Sequence[int], folder: Path, size: int = OF_OPTION) -> Found:
    """A case is one of OPTIONS; of its invocations, the first `size` are run, and none may be silent for long."""
    load_everything()
    found = Found()
    places = inputs(folder / "inputs", run_command)
    for number in numbers:
        label = list(OPTIONS)[number]
        some = of_option(label)[:size]
        judge_each(f"regard {label}", some, places, folder, found, WATCHED_FOR_SILENCE)
    return found


def judge_each(
    what: str,
    invocations: Sequence[Invocation],
    places: Mapping[str, str],
    folder: Path,
    found: Found,
    interrupted_after: float,
) -> None:
    """Count invocations, and note each that ends badly or changes what commands are given."""
    before = state_of(folder / "inputs")
    for invocation in invocations:
        found.count(what)
        fault = judge(invocation, places, folder / "case", found, interrupted_after)
        if fault is not None:
            found.wrong.append(f"{what}, {invocation.label}: {fault}")
        after = state_of(folder / "inputs")
        if after != before:
            changed = sorted(after ^ before)[:3]
            found.wrong.append(f"{what}, {invocation.label}: it changed {changed}")
            before = after


class Ending(NamedTuple):
    """How a command ended: its exit code, what standard error holds, and the names left in the working folder."""

    code: int
    said: str | None
    left: Sequence[str]
    silence: float = 0.0  # the most seconds without a word


def judge(
    invocation: Invocation,
    places: Mapping[str, str],
    folder: Path,
    found: Found,
    interrupted_after: float = INTERRUPTED_AFTER,
) -> str | None:
    """What is wrong with how a command ended, or None."""
    ending = run(invocation, places, folder, found, interrupted_after)
    if ending.silence > LONGEST_SILENCE:
        return f"it was silent for {ending.silence:.1f} seconds"
    if ending.code == -signal.SIGKILL:
        return f"it was at work after {LONGEST:.0f} seconds"
    named = []
    for word in invocation.named:
        named.append(printable(word.format(**places) if word in PLACES else word))
    return fault_of(replace(invocation, named=tuple(named)), ending)


def start(invocation: Invocation, places: Mapping[str, str], folder: Path) -> Any:
    """The process of a command, with its streams in a folder, in whose folder `work` it runs."""
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)

    def enter() -> None:
        os.chdir(work)
        if invocation.gone:
            shutil.rmtree(work)

    words = []
    for word in invocation.words:
        names_place = "{" in word and "%" not in word
        words.append(word.format(**places) if names_place else word)
    streams = {}
    for number, place in enumerate((invocation.stdin, invocation.stdout, invocation.stderr)):
        streams[number] = descriptor(place.format(**places), number, folder)
    environment = {"TOKENIZERS_PARALLELISM": "false", **invocation.environment}
    process = Forked(*words, streams=streams, prepare=enter, **environment)
    for stream in streams.values():
        if stream is not None:
            os.close(stream)
    return process


def run(
    invocation: Invocation,
    places: Mapping[str, str],
    folder: Path,
    found: Found,
    interrupted_after: float = INTERRUPTED_AFTER,
) -> Ending:
    """Run a command until it ends, is interrupted, or is killed because it does not end."""
    process = start(invocation, places, folder)
    began = time.monotonic()
    spoke = began
    silence = 0.0
    interrupted = False
    written: dict[Path, int] = {}
    while (code := process.poll()) is None:
        now = time.monotonic()
        if now - began > (LONGEST + interrupted_after) * (2 if interrupted else 1):
            process.send_signal(signal.SIGKILL)
        worked = cpu_seconds(process.pid) > interrupted_after or now - began > LONGEST - 5
        if worked and not interrupted:
            process.send_signal(signal.SIGINT)
            interrupted = True
        sizes = {path: path.stat().st_size for path in folder.glob("stream?")}
        if sizes != written:
            written = sizes
            spoke = now
        silence = max(silence, now - spoke)
        time.sleep(0.003)
    process.communicate()
    if code == 0:
        found.count("accepted")
    else:
        found.count("interrupted" if interrupted else "refused")
    found.at_most("seconds of silence", silence)
    found.at_most("seconds", time.monotonic() - began)
    errors = folder / "stream2"
    said = errors.read_text("utf-8", "replace") if errors.exists() else None
    left = sorted(path.name for path in folder.glob("work/**/*"))
    return Ending(code, said, left, silence)


def fault_of(invocation: Invocation, ending: Ending) -> str | None:
    """What is wrong with an exit code, with what was said, or with what is left in the working folder."""
    code = ending.code
    said = ending.said
    if code == -signal.SIGPIPE and invocation.stdout == "gone":
        return None
    if code not in DOCUMENTED:
        return f"the exit code is {code}: {(said or '').strip()[-200:]!r}"
    wrongly_left = [name for name in ending.left if ".writing-" in name or code == 2]
    if wrongly_left:
        return f"exit code {code} leaves {wrongly_left[:3]}"
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
    lines = len(said.splitlines())
    if not said.strip() or len(said) > MOST_CHARACTERS or lines > MOST_LINES:
        return f"exit code {code} with {len(said)} characters in {lines} lines: {said[:200]!r}"
    words = [word.strip()[:60].casefold() for word in invocation.named if word.strip()]
    if invocation.named and not any(word in said.casefold() for word in words):
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
    whole = invocations(name)
    count = min(size, len(whole))
    first = {turn * len(whole) // count for turn in range(count)}
    return [made for number, made in enumerate(whole) if (number in first) == (part == 0)]


def work(numbers: Sequence[int], folder: Path, size: int = 42) -> Found:
    """A case is one of the two parts of a command's invocations; the first parts of all commands come first."""
    load_everything()
    found = Found()
    places = inputs(folder / "inputs", run_command)
    for number in numbers:
        part, place = divmod(number, len(names()))
        name = names()[place]
        some = part_of(name, part, size)
        judge_each(f"regard {name}", some, places, folder, found, INTERRUPTED_AFTER)
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
