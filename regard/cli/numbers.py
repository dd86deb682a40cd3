"""Numbers that no option means, refused before a command runs."""

from __future__ import annotations

import math
from typing import Any

import typer
from typer.core import TyperCommand


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


class App(typer.Typer):
    """Commands that check their numbers."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        options.setdefault("cls", Checked)
        return super().command(name, **options)
