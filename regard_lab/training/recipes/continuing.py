"""Which settings and files a training run goes on with: those that it was begun with, but for what may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from regard.arguments import absent
from regard.errors import ArgumentError, CheckpointError, NotFoundError
from regard_lab.text.tables import table_of
from regard_lab.text.translation_data import PRONOUNS
from regard_lab.training.config import GONE, as_named_now
from regard_lab.training.identity import MAY_CHANGE
from regard_lab.training.recipes.run_config import RunConfig
from regard_lab.training.recipes.run_folder import MAY_MOVE, SETTINGS_FILE

ConfigT = TypeVar("ConfigT", bound=RunConfig)


def continued_config(
    kind: type[ConfigT],
    folder: Path,
    settings: Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
) -> ConfigT:
    """The settings of the run in a folder, with changes.

    Args:
        kind: the Config of the recipe that goes on with it.
        settings: as the folder holds them.
        changes: settings that were given now.

    Raises:
        ArgumentError: changes of what may not change; a run of another command, or with a setting that is gone.
        CheckpointError: settings that cannot be used.
    """
    before = _stored_config(kind, folder, settings)
    after = replace(before, **(changes or {}))
    changed = []
    for name in sorted(entry.name for entry in fields(kind)):
        old = getattr(before, name)
        new = getattr(after, name)
        if old != new and name not in (*MAY_CHANGE, *MAY_MOVE):
            changed.append(f"{name} {old!r} -> {new!r}")
    if changed:
        raise ArgumentError(
            f"{folder} was begun with other settings ({', '.join(changed)}); leave them out, or begin another run. "
            f"What ends a training, such as --minutes, may be changed"
        )
    return after


def _stored_config(kind: type[ConfigT], folder: Path, settings: Mapping[str, Any]) -> ConfigT:
    """The settings that a run was begun with."""
    settings = as_named_now(settings)
    for name, value_now in GONE.items():
        if settings.get(name, value_now) != value_now:
            raise ArgumentError(
                f"{folder} was begun by an earlier version, with the setting {name}, which is gone; begin a new run "
                f"in another folder"
            )
    strange = unknown_settings(kind, settings)
    if strange:
        raise ArgumentError(
            f"{folder} holds a run of another command (it has {strange[0]!r}); take another folder"
        )
    known = {name: value for name, value in settings.items() if name not in GONE}
    try:
        return kind(**known)
    except ArgumentError as error:
        raise CheckpointError(
            f"{folder / SETTINGS_FILE} holds settings that cannot be used: {error}"
        ) from error


def unknown_settings(kind: type[RunConfig], settings: Mapping[str, Any]) -> list[str]:
    """The names of settings that a Config never had, sorted: a run of another command has them."""
    known = {entry.name for entry in fields(kind)}
    return sorted(settings.keys() - known - GONE.keys())


def check_still_there(folder: Path, config: RunConfig, given: Mapping[str, Any]) -> None:
    """Raise a NotFoundError if a file that the run in the folder was begun with is not where it was."""
    for name in MAY_MOVE:
        for path in getattr(config, name):
            file = table_of(Path(path)).path
            if path == PRONOUNS or file.exists():
                continue
            if name in given:
                raise NotFoundError(absent(file))
            relative = ", relative to the folder in which it was begun"
            if file.is_absolute():
                relative = ""
            raise NotFoundError(
                f"{file} does not exist here, and the run in {folder} was begun with this path{relative}; name the "
                f"place of the file by --{name}, or resume the run where that path is right"
            )
