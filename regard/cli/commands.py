"""Commands that are imported when they run, so that `regard --help` is instant, and whose numbers are checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Source(NamedTuple):
    """Where a command is: a function of a module in this room, and the sentence that its help begins with."""

    module: str
    function: str
    sentence: str


class Checked(TyperCommand):
    """A command whose numbers fit 64 bits, and are finite."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        left = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            option = "--" + name.replace("_", "-")
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, float) and not math.isfinite(one):
                    raise typer.BadParameter(f"{option} is {one}; it needs a finite number", ctx=ctx)
                if isinstance(one, int) and not -(2**63) <= one < 2**63:
                    bits = one.bit_length()
                    raise typer.BadParameter(f"{option} is a number of {bits} bits; numbers have at most 63", ctx=ctx)
        return left


class Unloaded(TyperCommand):
    """A command of which only the name and the sentence are known; `load` imports it."""

    def __init__(self, name: str, source: Source) -> None:
        super().__init__(name, help=source.sentence, rich_markup_mode=None)
        self.source = source

    def load(self) -> Any:
        """The command with its options."""
        function = getattr(import_module(f"regard.cli.{self.source.module}"), self.source.function)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name, cls=Checked, help=self.source.sentence)(function)
        return typer.main.get_command(app)


class Commands(TyperGroup):
    """A group whose commands are listed in a table; each is imported when it is run or its help is asked for."""

    SOURCES: ClassVar[Mapping[str, Source]]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name, source in self.SOURCES.items():
            self.add_command(Unloaded(name, source))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Unloaded) else command, rest
