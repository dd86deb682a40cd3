"""What a training run keeps beside its checkpoints: its settings, its test split, samples and curves."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import CheckpointError, NotFoundError, OccupiedError, RegardError
from regard.storage.files import open_plain, replace_file
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.models.encoder import TextEncoder
from regard_lab.models.storage import read_checkpoints
from regard_lab.text import Pair, read_pairs
from regard_lab.text.cleaning import tidy
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.terminal import printable
from regard_lab.training.checkpoint import SAVED, read_training
from regard_lab.training.curves import draw_curves
from regard_lab.training.folders import SETTINGS_FILE
from regard_lab.training.identity import FILES, explain_files

TEST_FILE = "test.jsonl"
TRAINED_FILE = "trained-pairs.hashes"
# Files of a run that goes on; that they hold the same is checked by their hash.
MAY_MOVE = ("data", "valid")
SAMPLES_FOLDER = "samples"
# Seconds between drawings of the curves in training; the last one follows the last step.
DRAW_EVERY = 10.0
HARDLY = 0.6  # share of the loss of guessing; a run with more has hardly learned
HASH_BYTES = 8  # two of a billion pairs share them with a probability of 3 %
NO_TEST = "{} keeps no test split; name a file of pairs to evaluate it on"
FILES_OF_RECIPES = {
    SETTINGS_FILE: "the options of the command that began this run",
    TEST_FILE: "pairs that were kept out of the training, to evaluate the model on; empty where there are none",
    TRAINED_FILE: "8 bytes of the SHA-256 of each pair that was learned from, by which an evaluation recognises it",
}
FILES_OF_SOME = {
    "curves.png": "the curves of log.jsonl as a picture",
    "samples/": "what a translator made of a few validation pairs after each validation, and what it looked at",
    "pictures/": "what the demo drew",
    "it.html": "a page that holds the demo's model: change a word, and see what it translates and why",
    "words.txt": "the English words that the demo's model knows",
}

Samples = Callable[[torch.nn.Module, Path], list[str]]
"""A function of a model and a path. It returns lines of sample output and may draw a picture at the path."""


def explain_run(run: Path) -> None:
    """Write README.txt: what each file is that every run has, and of those that only some have, each that is there."""
    some = {name: what for name, what in FILES_OF_SOME.items() if (run / name).exists()}
    explain_files(run, {**FILES, **FILES_OF_RECIPES, **some})


def write_run(
    run: Path,
    settings: dict[str, Any],
    test: Sequence[Pair],
    learned: Sequence[Pair] = (),
    *,
    resumed: bool = False,
) -> None:
    """Keep the settings, the test split and hashes of the pairs that are learned from, each whole or not at all."""
    lines = [json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in test]
    test_split = "".join(lines).encode()
    is_resumed_run = resumed and (run / SETTINGS_FILE).exists()
    if is_resumed_run and _sealed_hash(run, TEST_FILE) != _sha256(test_split):
        raise OccupiedError(
            f"{run} was begun with other data (its {TEST_FILE} does not hold the {count_of(len(test), 'test pairs')} "
            f"that they give now); name the files that it was begun with, unchanged, or choose another folder"
        )

    explain_run(run)
    files = {TEST_FILE: test_split}
    trained = {_hash_of(pair) for pair in learned}
    # What the run itself learned before counts too, or the run that it starts from.
    run_before = run if resumed else settings.get("from_run")
    if run_before is not None:
        trained |= _trained_in(run_of(Path(run_before))) or set()
    if trained:
        files[TRAINED_FILE] = b"".join(sorted(trained))
    hashes = {name: _sha256(data) for name, data in files.items()}
    # The settings have the hashes, so a kill between the files leaves one that does not match, and is told.
    replace_file(run / SETTINGS_FILE, render_sealed({"settings": settings, "files": hashes}))
    for name, data in files.items():
        replace_file(run / name, data)


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


def memory_settings(run: Path) -> dict[str, Any]:
    """How a run was trained to read translation memories, as arguments of `read_pairs`."""
    settings = read_settings(run_of(run)) or {}
    names = ("keep_placeholders", "keep_tags", "all_translations")
    return {name: settings.get(name) is True for name in names}


def read_test(run: Path) -> list[Pair]:
    """The run's own test split, which matches the SHA-256 in the run's settings.

    Raises:
        NotFoundError: the run has none, because it was given its validation pairs.
        CheckpointError: it is damaged.
    """
    path = run / TEST_FILE
    if not (run / SETTINGS_FILE).exists():
        raise NotFoundError(
            f"{NO_TEST.format(run)}; a model that was made from a run is evaluated on its {TEST_FILE}"
        )
    data = _sealed_bytes(path)
    if not data:
        raise NotFoundError(NO_TEST.format(run))
    return read_pairs(path).pairs


def count_trained(run: Path, pairs: Sequence[Pair]) -> int | None:
    """How many of these pairs the run has learned from; None where the run does not store them."""
    trained = _trained_in(run_of(run))
    return None if trained is None else sum(_hash_of(pair) in trained for pair in pairs)


@dataclass(frozen=True)
class LearnedLoss:
    """What a run has learned: its best validation loss, and the loss of guessing all ids alike, in nats an id.

    >>> LearnedLoss(loss=4.5, guess=7.1).remark()
    'this model has hardly learned: its best validation loss is 4.50 nats an id, more than 0.6 of the 7.10 of guessing \
all ids alike, so its results may make no sense'
    """

    loss: float
    guess: float

    @classmethod
    def of_run(cls, run: Path) -> LearnedLoss | None:
        """That of a run that writes texts and was validated; None for others, and for a saved model.

        Raises:
            CheckpointError: the run is damaged.
        """
        checkpoints = read_checkpoints(run)
        if checkpoints is None:
            return None
        training = read_training(run / checkpoints.last)
        loss = training["state"]["best_loss"]
        model = training["fingerprint"].get("model") or {}
        if loss is None or model.get("kind") == TextEncoder.KIND:
            return None
        vocab_size = (model.get("config") or {}).get("vocab_size")
        if not isinstance(vocab_size, int) or vocab_size < 2:
            return None
        return cls(loss, math.log(vocab_size))

    @property
    def hardly(self) -> bool:
        """Whether the loss is more than 0.6 of that of guessing; less needs more than the frequencies of sub-words."""
        return self.loss > HARDLY * self.guess

    def remark(self) -> str | None:
        """A sentence about a run that has hardly learned; None for any other."""
        if not self.hardly:
            return None
        return (
            f"this model has hardly learned: its best validation loss is {self.loss:.2f} nats an id, more than "
            f"{HARDLY} of the {self.guess:.2f} of guessing all ids alike, so its results may make no sense"
        )


def run_of(folder: Path) -> Path:
    """The run to which a folder belongs: that of a checkpoint, else the folder itself."""
    resolved = folder.resolve()
    if SAVED.fullmatch(resolved.name) and not (folder / SETTINGS_FILE).exists():
        return resolved.parent
    return folder


def goes_on(run: Path) -> bool:
    """Whether the folder holds a run with checkpoints, from which a training goes on."""
    return run.is_dir() and read_checkpoints(run) is not None


def _trained_in(run: Path) -> set[bytes] | None:
    """The hashes of the pairs that a run has learned from; None where it does not store them."""
    path = run / TRAINED_FILE
    if not path.exists():
        return None
    data = _sealed_bytes(path)
    return {data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES)}


def _hash_of(pair: Pair) -> bytes:
    text = f"{tidy(pair.source)}\t{tidy(pair.target)}"
    return hashlib.sha256(text.encode()).digest()[:HASH_BYTES]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sealed_hash(run: Path, name: str) -> str:
    """The SHA-256 of a file as the settings of its run have it."""
    files = read_sealed(run / SETTINGS_FILE).get("files")
    if not isinstance(files, dict) or not isinstance(files.get(name), str):
        raise CheckpointError(f"{run / SETTINGS_FILE} holds no SHA-256 of {name}")
    return files[name]


def _sealed_bytes(path: Path) -> bytes:
    """The bytes of a file whose SHA-256 the settings of its run have."""
    expected = _sealed_hash(path.parent, path.name)
    with open_plain(path) as file:
        data = file.read()
    if _sha256(data) != expected:
        raise CheckpointError(
            f"{path} does not match its SHA-256 in {SETTINGS_FILE}: it was changed or damaged after the run was begun; "
            f"put it back, name a file of pairs, or begin the training anew"
        )
    return data


def show_each(samples: Samples | None, tell: Tell) -> Callable[[torch.nn.Module, int, Path], None]:
    """A function to call after each validation: it writes samples, and draws the curves every DRAW_EVERY seconds."""
    drawn = time.monotonic()

    def show(model: torch.nn.Module, step: int, run: Path) -> None:
        nonlocal drawn
        if samples is not None:
            write_samples(samples, model, step, run, tell)
        if time.monotonic() - drawn >= DRAW_EVERY:
            draw_run(run, tell)
            drawn = time.monotonic()

    return show


def write_samples(
    samples: Samples, model: torch.nn.Module, step: int, run: Path, tell: Tell = silent
) -> None:
    """Keep lines and picture of a step in `samples/step-000250.txt` and `.png`.

    What cannot be shown (logits that are not finite, a picture without matplotlib) is noted in the file. What cannot
    be written is reported. Neither stops the training.
    """
    path = run / SAMPLES_FOLDER / f"step-{step:06d}.txt"
    try:
        is_first = not path.parent.exists()
        path.parent.mkdir(exist_ok=True)
        if is_first:
            explain_run(run)
        try:
            lines = samples(model, path.with_suffix(".png"))
        except RegardError as error:
            lines = [f"there is nothing to show: {error}"]
        text = "".join(f"{printable(line)}\n" for line in lines)
        replace_file(path, text.encode(), durable=False)
    except OSError as error:
        tell(f"no samples: {error.filename or path}: {error.strerror or error}")
    except RegardError as error:
        tell(f"no samples: {error}")


def draw_run(run: Path, tell: Tell = silent, *, tell_lost: bool = False) -> None:
    """Draw the curves, or report why there are none: a picture stops no training, whatever the log holds."""
    try:
        lost = draw_curves(run / "log.jsonl", run / "curves.png")
    except Exception as error:  # whatever a drawing library raises for numbers that cannot be drawn
        tell(f"no picture: {reason_of(error)}")
        return
    explain_run(run)
    if tell_lost:
        for sentence in lost:
            tell(sentence)


def reason_of(error: Exception) -> str:
    """What an error says; one that is not ours begins with its kind."""
    return str(error) if isinstance(error, RegardError) else f"{type(error).__name__}: {error}"
