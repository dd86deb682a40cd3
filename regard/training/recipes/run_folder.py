"""What a training run keeps beside its checkpoints: its settings, and its test split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError, NotFoundError
from regard.storage.files import open_plain, replace_file
from regard.storage.sealed_json import read_sealed, render_sealed
from regard.text import Pair, read_pairs
from regard.training.explanation import FILES, explain_files
from regard.training.loop import SETTINGS_FILE

TEST_FILE = "test.jsonl"
NO_TEST = "{} keeps no test split; name a file of pairs to score it on"
FILES_OF_RECIPES = {
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
    explain_files(run, {**FILES, **FILES_OF_RECIPES})
    lines = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in test).encode()
    hashes = {TEST_FILE: hashlib.sha256(lines).hexdigest()}
    replace_file(run / SETTINGS_FILE, render_sealed({"settings": settings, "files": hashes}))
    replace_file(run / TEST_FILE, lines)


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


def read_test(run: Path) -> tuple[list[Pair], list[str]]:
    """The run's own test split, and what there is to say about it: that it is not sealed, or has damaged lines.

    The run's settings hold its SHA-256. Runs of versions before that are read as they are, and this is said.

    Raises:
        NotFoundError: the run has none, because it was given its validation pairs.
        CheckpointError: it is damaged.
    """
    path = run / TEST_FILE
    if (expected := _sealed_hash(run)) is None:
        if not path.exists() or path.stat().st_size == 0:
            raise NotFoundError(NO_TEST.format(run))
        read = read_pairs(path)
        return read.pairs, [f"{path} was written before test splits were sealed, so damage cannot be noticed",
                            *([read.report()] if read.dropped else [])]  # fmt: skip
    with open_plain(path) as file:
        data = file.read()
    if hashlib.sha256(data).hexdigest() != expected:
        raise CheckpointError(
            f"{path} does not match its SHA-256 in {SETTINGS_FILE}: it was changed or damaged after the run was begun; "
            f"put it back, name a file of pairs, or begin the training anew"
        )
    if not data:
        raise NotFoundError(NO_TEST.format(run))
    return read_pairs(path).pairs, []


def _sealed_hash(run: Path) -> str | None:
    """The SHA-256 of the test split as the settings have it; None in a run of a version before that."""
    path = run / SETTINGS_FILE
    if not path.exists():
        return None
    files = read_sealed(path).get("files")
    if files is None:
        return None
    if not isinstance(files, dict) or not isinstance(files.get(TEST_FILE), str):
        raise CheckpointError(f"{path} holds no SHA-256 of {TEST_FILE}")
    return files[TEST_FILE]
