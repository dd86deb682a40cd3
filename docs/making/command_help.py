"""The help of every command, written to `regard_lab/cli/help.json`, so that `--help` imports no command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from regard_lab.cli.app import Unloaded, app


def made_help() -> str:
    """The current text of `help.json`: each command is imported and asked for what its help shows."""
    group = get_command(app)
    ctx = group.context_class(group, info_name="regard", **group.context_settings)
    entries = {}
    for place, command, inner in loaded_commands(group, ctx):
        rows: dict[str, dict[str, str]] = {"argument": {}, "option": {}}
        for parameter in command.get_params(inner):
            record = parameter.get_help_record(inner)
            if record is not None:
                name, sentence = record
                rows[parameter.param_type_name][name] = sentence
        entries[place] = {
            "sentence": " ".join((command.help or "").split()),
            "usage": command.collect_usage_pieces(inner),
            "Arguments": rows["argument"],
            "Options": rows["option"],
        }
    return json.dumps(entries, indent=2, ensure_ascii=False) + "\n"


def loaded_commands(group: Any, ctx: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield place, imported command and context of each command in a group, those of its subgroups included."""
    for name, command in group.commands.items():
        if not isinstance(command, Unloaded):
            inner = command.context_class(command, info_name=name, parent=ctx)
            yield from loaded_commands(command, inner)
            continue
        loaded = command.load()
        yield command.place, loaded, loaded.context_class(loaded, info_name=name, parent=ctx)
