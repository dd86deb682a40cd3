"""The commands as a table; each is imported when it runs, so that `--help` is instant, and its numbers are checked."""

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from regard import __version__
from regard.errors import ArgumentError
from regard_lab.cli.interrupts import heed_interrupts

# What the help of every command shows. Options take their defaults from functions and Configs whose modules import
# torch, which takes seconds; so `make figures` writes the help here, and a test keeps it current.
HELP_FILE = Path(__file__).with_name("help.json")
# What messages of Typer say.
OUTSIDE = re.compile(r"Input should be (greater|less) than or equal to (-?\d+)")
LEFT_OVER = re.compile(r"unexpected extra argument(?:s|\(s\))? \((.*)\)")
USAGE_ERROR: Any = typer.BadParameter.__base__  # any mistake in what was typed
# Letters of a word that says what a command is about.
LONG = 5
# How the help names the value of an option that has no other word.
VALUES = {int: "N", float: "X", Path: "FILE", str: "TEXT"}


class CheckedCommand(TyperCommand):
    """A command whose numbers fit 64 bits, and are finite, and which Ctrl-C interrupts once it has begun."""

    def invoke(self, ctx: Any) -> Any:
        heed_interrupts()
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = tuple(args)
        try:
            left_over = super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            sentence = sentence_for(ctx.command_path, error, typed)
            if sentence is None:
                raise
            raise ArgumentError(sentence) from error

        ctx.params = {name: as_typed(value, typed) for name, value in ctx.params.items()}
        arguments = [param.name for param in self.params if isinstance(param, TyperArgument)]
        for name, value in ctx.params.items():
            values = value if isinstance(value, list | tuple) else [value]
            faults = [fault_of(each, is_option=name not in arguments) for each in values]
            for fault in filter(None, faults):
                raise typer.BadParameter(f"--{name.replace('_', '-')} is {fault}", ctx=ctx)
        return left_over


def is_in_utf8(text: str) -> bool:
    """Whether a text as it was typed is UTF-8; Python reads other bytes as lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def fault_of(value: object, *, is_option: bool) -> str | None:
    """What an option cannot take: a text that is not UTF-8, a number that is not finite or does not fit 64 bits."""
    if is_option and isinstance(value, str) and not is_in_utf8(value):
        return f"{value!r}, which is not text in UTF-8"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}; it needs a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return f"a number of {value.bit_length()} bits; numbers have at most 63"
    return None


def as_typed(value: Any, typed: Sequence[str]) -> Any:
    """A whole number, if one was typed for an option that takes fractions too: an error quotes it as it was typed.

    >>> as_typed(-1.0, ["--minutes", "-1"]), as_typed(2.0, ["--dropout=2"]), as_typed(2.0, ["--dropout", "2.0"])
    (-1, 2, 2.0)
    >>> as_typed(1e16, ["--dropout=10000000000000000"])  # from 2**53 on a float may differ from what was typed
    1e+16
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        whole = str(int(value))
        if any(whole in (word, word.partition("=")[2]) for word in typed):
            return int(value)
    return value


def in_quotes(text: str) -> str:
    """A text as it is typed in a shell.

    >>> print(in_quotes("My cat sleeps"), in_quotes('a "b" $c'))
    "My cat sleeps" 'a "b" $c'
    """
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


def sentence_for(command: str, error: Any, typed: Sequence[str]) -> str | None:
    """A sentence for a number that an option does not take, or for a text without quotes; None for other mistakes."""
    outside = OUTSIDE.fullmatch(str(error))
    if outside is not None:
        value = _typed_value(error.param.opts, typed)
        if value is None:
            return None
        bound = "at least" if outside[1] == "greater" else "at most"
        return f"{error.param.opts[0]} is {value[:40]}; it has to be {bound} {outside[2]}"

    left_over = LEFT_OVER.search(str(error))
    if left_over is not None:
        words = " ".join(word for word in typed if not word.startswith("-"))
        return (
            f"{command} takes one text, and {left_over[1]!r} is left over; put a text of several "
            f"words in quotes, as in {command} {in_quotes(words)}"
        )
    return None


def _typed_value(names: Iterable[str], typed: Sequence[str]) -> str | None:
    """What was typed for an option of these names, as `--name value` or `--name=value`; the last counts."""
    separate = None
    joined = None
    for word, following in zip(typed, [*typed[1:], None], strict=True):
        name, equals, value = word.partition("=")
        if word in names and following is not None:
            separate = following
        elif equals and name in names:
            joined = value
    return separate if joined is None else joined


@cache
def stored_help() -> dict[str, dict[str, Any]]:
    """The help in `help.json` by command: its sentence, its usage, its arguments and its options."""
    return json.loads(HELP_FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Completion:
    """An option that the shell proposes, as Typer reads it."""

    value: str
    help: str
    type: str = "plain"


class Unloaded(TyperCommand):
    """A command that is not imported yet: it prints its help from `help.json`, and `load` imports it to run.

    Args:
        place: its module and function, such as "train.translation"; the key in `help.json`.
    """

    def __init__(self, name: str, place: str) -> None:
        self.place = place
        self.stored = stored_help().get(place, {})
        # The options are those of the command itself, which `load` imports.
        loose = {"ignore_unknown_options": True, "allow_extra_args": True}
        sentence = self.stored.get("sentence")
        super().__init__(name, help=sentence, rich_markup_mode=None, context_settings=loose)

    def load(self) -> Any:
        """The command with its options; its docstring is its sentence."""
        module_name, _, function_name = self.place.partition(".")
        module = import_module(f"regard_lab.cli.{module_name}")
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name, cls=CheckedCommand)(getattr(module, function_name))

        command: Any = typer.main.get_command(app)
        for parameter in command.params:
            if isinstance(parameter, TyperArgument):
                parameter.display_type_rich = lambda ctx: None  # its name is enough
            elif parameter.metavar is None and not parameter.is_flag:
                kind = parameter.type_descriptor.annotation
                kind_of_one = next(iter(get_args(kind)), kind)
                parameter.metavar = VALUES.get(kind_of_one, "TEXT")
        return command

    def can_help(self, ctx: Any, args: list[str]) -> bool:
        """Whether `--help` is the only option; beside another one, which may be a mistake, the command decides."""
        options = [word for word in args if word.startswith("-")]
        return len(options) == 1 and options[0] in ctx.help_option_names and bool(self.stored)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The options that begin so, from `help.json`, so that Tab is instant; files are left to the shell."""
        if not incomplete.startswith("-"):
            return []
        completions = []
        for usage, sentence in self.stored["Options"].items():
            names = re.findall(r"(?<!\S)--[a-z][a-z-]*", usage)
            begun = [name for name in names if name.startswith(incomplete)]
            completions += [Completion(name, sentence) for name in begun]
        return completions

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return self.stored["usage"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title in ("Arguments", "Options"):
            rows = self.stored[title]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(list(rows.items()))


class Commands(TyperGroup):
    """A group whose commands are listed by name with their module; each is imported when it runs."""

    MODULES: ClassVar[Mapping[str, str]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, module in self.MODULES.items():
            self.add_command(Unloaded(name, f"{module}.{name.replace('-', '_')}"))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if not isinstance(command, Unloaded):
            return name, command, rest
        # The shell's Tab and `--help` are answered from the stored help.
        if ctx.resilient_parsing or command.can_help(ctx, rest):
            return name, command, rest
        return name, command.load(), rest


@dataclass(frozen=True)
class Listed:
    """A command in the list of all: its module, None for a group of commands, and a summary that fits a line."""

    module: str | None
    summary: str


# All commands in the order of the three doors of README.md, each under what it is for.
LISTED: dict[str, dict[str, Listed]] = {
    "Learn attention": {
        "demo": Listed("demo", "train a translator here, and see what its pronouns depend on"),
        "walkthrough": Listed("walkthrough", "what attention does with a sentence, step by step"),
        "lesson": Listed("lesson", "claims of articles about attention, computed"),
        "show": Listed("show", "draw a pattern: which query may look at which key"),
    },
    "Inspect a model": {
        "view": Listed("view", "a model and a sentence in the explorer, as a page"),
        "heads": Listed("heads", "what a model loses without each of its heads"),
        "lenses": Listed("evaluate", "which explanation method finds the words that were used"),
    },
    "Train a model and use it": {
        "train": Listed(None, "train a translator, language model, encoder or classifier"),
        "translate": Listed("translate", "translate sentences"),
        "generate": Listed("generate", "continue prompts with a language model"),
        "classify": Listed("generate", "label texts"),
        "evaluate": Listed("evaluate", "the quality of a model on test texts"),
        "score": Listed("evaluate", "how probable a model finds given texts"),
        "compare": Listed("evaluate", "several models on the same test texts"),
        "average": Listed("train", "the mean of the last checkpoints of a training"),
        "convert": Listed(None, "fewer key/value heads, or latents, in a trained model"),
        "export": Listed("export", "write a model for servers, or as an ONNX file"),
    },
    "Use the library": {
        "plan": Listed("plan", "which backend would compute a call, and why"),
        "bench": Listed("bench", "the speed of regard here, beside other libraries"),
        "conformance": Listed("conformance", "what libraries compute as attention, case by case"),
        "doctor": Listed("bench", "versions, and a check of every backend"),
    },
}


def commands_about(typed: str) -> list[str]:
    """The commands whose summaries have a word that begins as what was typed, such as "explore"."""
    meant = []
    for group in LISTED.values():
        for name, listed in group.items():
            words = re.findall(r"\w+", listed.summary)
            if len(typed) >= LONG and any(word.startswith(typed.lower()) for word in words):
                meant.append(name)
    return meant


class TopLevel(Commands):
    MODULES: ClassVar = {
        name: listed.module
        for group in LISTED.values()
        for name, listed in group.items()
        if listed.module is not None
    }

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except USAGE_ERROR as error:
            meant = commands_about(args[0])
            if meant:
                names = ", ".join(map(repr, meant))
                error.message = f"No such command {args[0]!r}. Did you mean {names}?"
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, group in LISTED.items():
            with formatter.section(title):
                formatter.write_dl([(name, listed.summary) for name, listed in group.items()])


class Train(Commands):
    MODULES: ClassVar = dict.fromkeys(
        ("translation", "language-model", "masked-words", "classifier"), "train"
    )


class Convert(Commands):
    MODULES: ClassVar = dict.fromkeys(("kv-heads", "latent"), "train")


app = typer.Typer(
    cls=TopLevel,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(typer.Typer(cls=Train, help="Train a model.", no_args_is_help=True), name="train")
app.add_typer(
    typer.Typer(cls=Convert, help="Change a trained model.", no_args_is_help=True), name="convert"
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention for PyTorch: train, translate, evaluate and see what a model looks at.

    `regard COMMAND --help` says more about a command.
    """
