"""What a run keeps beside its checkpoints: the settings it was begun with, and its test split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError
from regard.storage.files import replace_file
from regard.storage.sealed_json import read_sealed, render_sealed
from regard.text import Pair, read_pairs
from regard.training.explanation import FILES, explain_files

SETTINGS_FILE = "settings.json"
TEST_FILE = "test.jsonl"
CLASSES_FILE = "classes.json"
LONGEST_FILE = "longest.json"  # the ids of a text that a classifier reads
FILES_OF_COMMANDS = {
    SETTINGS_FILE: "the options of the command that began this run",
    TEST_FILE: "pairs that were kept out of the training, to score the model on; empty where there are none",
    "curves.png": "the curves of log.jsonl as a picture",
    "samples/": "what the model made of a few validation texts after each validation, and what a translator looked at",
    "pictures/": "what the demo drew",
}


def write_run(run: Path, settings: dict[str, Any], test: Sequence[Pair]) -> None:
    """Keep both, each whole or not at all.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{run} cannot be made: {error.strerror}; choose another folder") from error
    explain_files(run, {**FILES, **FILES_OF_COMMANDS})
    lines = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in test)
    replace_file(run / TEST_FILE, lines.encode())
    replace_file(run / SETTINGS_FILE, render_sealed({"settings": settings}))


def read_settings(run: Path) -> dict[str, Any] | None:
    """The settings a run was begun with; None where there is no run.

    Raises:
        CheckpointError: they are damaged.
    """
    if not (run / SETTINGS_FILE).exists():
        return None
    settings = read_sealed(run / SETTINGS_FILE).get("settings")
    if not isinstance(settings, dict):
        raise CheckpointError(f"{run / SETTINGS_FILE} holds no settings")
    return settings


def read_test(run: Path) -> list[Pair]:
    """The run's own test split.

    Raises:
        CheckpointError: the run has none, because it was given its validation pairs.
    """
    path = run / TEST_FILE
    if not path.exists() or path.stat().st_size == 0:
        raise CheckpointError(f"{run} keeps no test split; name a file of pairs to score it on")
    return read_pairs(path).pairs
