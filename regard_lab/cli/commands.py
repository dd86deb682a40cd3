"""Commands that are imported when they run, so that `--help` is instant, and whose numbers are checked."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from regard.errors import ArgumentError
from regard_lab.cli.interrupts import heed_interrupts

# The usage and options of every command, as its help shows them. Options take their defaults from functions and Configs
# whose modules import torch, which takes seconds; so `make figures` writes the help here, and a test keeps it current.
HELP_FILE = Path(__file__).with_name("help.json")


LONE_SURROGATES = re.compile("[\ud800-\udfff]")  # bytes of a word that are not UTF-8
USAGE_ERROR: Any = typer.BadParameter.__base__  # any mistake in what was typed


class Source(NamedTuple):
    """Where a command is: a function of a module in `regard_lab.cli`, and the sentence that its help begins with."""

    module: str
    function: str
    sentence: str

    @property
    def place(self) -> str:
        """The key of the command in `help.json`, such as `train.translation`."""
        return f"{self.module}.{self.function}"


class Completion(NamedTuple):
    """A word that Tab offers, with the sentence that some shells show beside it, as Typer reads them."""

    value: str
    help: str
    type: str = "plain"


class Checked(TyperCommand):
    """A command whose numbers fit 64 bits, and are finite, and which Ctrl-C interrupts once it has begun."""

    def invoke(self, ctx: Any) -> Any:
        heed_interrupts()
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = tuple(args)
        try:
            left = super().parse_args(ctx, args)
        except USAGE_ERROR as error:
            if (sentence := in_a_sentence(ctx.command_path, error, typed)) is None:
                raise
            raise ArgumentError(sentence) from error
        ctx.params = {name: as_typed(value, typed) for name, value in ctx.params.items()}
        options = {one.name for one in self.params if not isinstance(one, TyperArgument)}
        for name, value in ctx.params.items():
            option = "--" + name.replace("_", "-")
            for one in value if isinstance(value, list | tuple) else (value,):
                if name in options and isinstance(one, str) and LONE_SURROGATES.search(one):
                    raise typer.BadParameter(f"{option} is {one!r}, which is not text in UTF-8", ctx=ctx)
                if isinstance(one, float) and not math.isfinite(one):
                    raise typer.BadParameter(f"{option} is {one}; it needs a finite number", ctx=ctx)
                if isinstance(one, int) and not -(2**63) <= one < 2**63:
                    bits = one.bit_length()
                    raise typer.BadParameter(f"{option} is a number of {bits} bits; numbers have at most 63", ctx=ctx)
        return left


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


RANGE = re.compile(r"Input should be (greater|less) than or equal to (-?\d+)")  # in the message of Typer


def in_a_sentence(command: str, error: Any, typed: Sequence[str]) -> str | None:
    """A sentence for a number that an option does not take, or for a text without quotes; None for other mistakes."""
    if outside := RANGE.fullmatch(str(error)):
        names = error.param.opts
        given = [typed[place + 1] for place, word in enumerate(typed[:-1]) if word in names]
        given += [word.partition("=")[2] for word in typed if "=" in word and word.partition("=")[0] in names]
        bound = f"at {'least' if outside[1] == 'greater' else 'most'} {outside[2]}"
        return f"{names[0]} is {given[-1][:40]}; it has to be {bound}" if given else None
    if extra := re.search(r"unexpected extra argument(?:s|\(s\))? \((.*)\)", str(error)):
        words = [word for word in typed if not word.startswith("-")]
        return (
            f"{command} takes one text, and {extra[1]!r} is left over; put a text of several words in "
            f"quotes, as in {command} {in_quotes(' '.join(words))}"
        )
    return None


@cache
def kept_help() -> dict[str, dict[str, Any]]:
    """The help in `help.json` by command: its usage, its arguments and its options, each with a sentence."""
    return json.loads(HELP_FILE.read_text(encoding="utf-8"))


# What the value of an option is called in the help, if the option does not say it.
VALUES = {int: "N", float: "X", Path: "FILE", str: "TEXT"}


def name_value(parameter: Any) -> None:
    """Let the help call an option's value by a word and leave out the type of an argument, which has a name."""
    if isinstance(parameter, TyperArgument):
        parameter.display_type_rich = lambda ctx: None
    elif parameter.metavar is None and not parameter.is_flag:
        kind = parameter.type_descriptor.annotation
        parameter.metavar = VALUES.get(next(iter(get_args(kind)), kind), "TEXT")


class Unloaded(TyperCommand):
    """A command that is not imported yet: it prints its help from `help.json`, and `load` imports it to run."""

    def __init__(self, name: str, source: Source) -> None:
        loose = {"ignore_unknown_options": True, "allow_extra_args": True}  # the command itself knows its options
        super().__init__(name, help=source.sentence, rich_markup_mode=None, context_settings=loose)
        self.source = source

    def load(self) -> Any:
        """The command with its options."""
        function = getattr(import_module(f"regard_lab.cli.{self.source.module}"), self.source.function)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name, cls=Checked, help=self.source.sentence)(function)
        command = typer.main.get_command(app)
        for parameter in command.params:
            name_value(parameter)
        return command

    def can_help(self, ctx: Any, args: list[str]) -> bool:
        """Whether `--help` is the only option; beside another one, which may be a mistake, the command decides."""
        options = [word for word in args if word.startswith("-")]
        return len(options) == 1 and options[0] in ctx.help_option_names and self.source.place in kept_help()

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The options that begin so, from `help.json`, so that Tab answers at once; files are left to the shell."""
        rows = kept_help()[self.source.place]["Options"] if incomplete.startswith("-") else {}
        return [
            Completion(name, sentence)
            for names, sentence in rows.items()
            for name in re.findall(r"(?<!\S)--[a-z][a-z-]*", names)
            if name.startswith(incomplete)
        ]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return kept_help()[self.source.place]["usage"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title in ("Arguments", "Options"):
            if rows := kept_help()[self.source.place][title]:
                with formatter.section(title):
                    formatter.write_dl(list(rows.items()))


class Commands(TyperGroup):
    """A group whose commands are listed in a table; each is imported when it runs."""

    SOURCES: ClassVar[Mapping[str, Source]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, source in self.SOURCES.items():
            self.add_command(Unloaded(name, source))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, Unloaded) and not (ctx.resilient_parsing or command.can_help(ctx, rest)):
            command = command.load()
        return name, command, rest
