"""The help of every command, written to `regard_lab/cli/help.json`, so that `--help` imports no command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from regard_lab.cli.app import HELP_FILE, Unloaded, app


def made_help() -> str:
    """The current text of `help.json`: each command is imported and asked for its usage, arguments and options."""
    group = get_command(app)
    ctx = group.context_class(group, info_name="regard", **group.context_settings)
    found = {source.place: parts_of(command, inner) for source, command, inner in loaded_commands(group, ctx)}
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def loaded_commands(group: Any, ctx: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield source, imported command and context of each command in a group, those of its subgroups included."""
    for name, command in group.commands.items():
        if isinstance(command, Unloaded):
            loaded = command.load()
            yield command.source, loaded, loaded.context_class(loaded, info_name=name, parent=ctx)
        else:
            yield from loaded_commands(command, command.context_class(command, info_name=name, parent=ctx))


def parts_of(command: Any, ctx: Any) -> dict[str, Any]:
    """The entry of one command in `help.json`."""
    rows: dict[str, dict[str, str]] = {"argument": {}, "option": {}}
    for parameter in command.get_params(ctx):
        if (record := parameter.get_help_record(ctx)) is not None:
            name, help_text = record
            rows[parameter.param_type_name][name] = help_text
    return {
        "usage": command.collect_usage_pieces(ctx), "Arguments": rows["argument"], "Options": rows["option"],
    }  # fmt: skip


def is_help_fresh() -> bool:
    """Whether `help.json` is what the commands say now."""
    return HELP_FILE.exists() and HELP_FILE.read_text(encoding="utf-8") == made_help()


def write_help() -> None:
    """Replace `help.json`."""
    HELP_FILE.write_text(made_help(), encoding="utf-8")
