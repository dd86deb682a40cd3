"""Flipped bits in every file of a training run: refused with the file's name, or read as it was.

A run is trained once for a batch of cases. What is read is everything that a command reads: the model with its texts,
the settings, the test split, the log, the record of sessions, and the state that a resumed training takes.
"""

import random
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.storage import load_tensors
from regard_lab.models.storage import load_model, read_checkpoints
from regard_lab.training import read_log, read_run
from regard_lab.training.checkpoint import read_training
from regard_lab.training.identity import read_sessions
from regard_lab.training.recipes import TranslationTraining
from regard_lab.training.recipes.run_folder import count_trained, read_settings, read_test
from regard_lab.training.record import Log

from .running import Found

SLOW, LARGE = 1.0, 200 * 2**20  # seconds and bytes that a refusal may take


def make_run(folder: Path) -> Path:
    """A translator trained for two steps, with a log of some length."""
    (folder / "pairs.tsv").write_text(
        "".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(90))
    )
    run = folder / "run"
    settings = {
        "dim": 16,
        "layers": 1,
        "heads": 2,
        "vocab_size": 300,
        "warmup_steps": 1,
        "steps": 2,
    }
    given = {"data": [str(folder / "pairs.tsv")], **settings}
    TranslationTraining(TranslationTraining.new_config(given)).train(run, cpu=True)
    log = Log(run / "log.jsonl", step=2)
    for step in range(3, 30):
        log.write({"step": step, "kind": "training", "loss": 2.0 + step, "learning_rate": 0.1})
    return run


def read_of(run: Path, name: str) -> Any:
    """All that is read from a file of the run, by the functions that commands call."""
    file = Path(name).name
    if file == "log.jsonl":
        return read_log(run / file)
    if file == "run.json":
        told = read_sessions(run / file)
        if told[1]:
            raise RegardError(told[1][0])
        return told, read_run(run)
    if file in ("settings.json", "test.jsonl"):
        return read_settings(run), read_test(run)
    if file == "trained-pairs.hashes":
        return count_trained(run, read_test(run))
    last = read_checkpoints(run)
    assert last is not None
    if file in ("training.json", "optimiser.safetensors"):
        about = read_training(run / last.last)
        moments = load_tensors(run / last.last / "optimiser.safetensors", about["optimiser"])
        return about, {key: x.tolist() for key, x in moments.items()}
    saved = load_model(run)
    return (
        saved.config,
        {key: x.tolist() for key, x in saved.state.items()},
        saved.extra_files,
        last,
    )


def files_of(run: Path) -> list[str]:
    """Every file of the run that something reads."""
    unread = ("README.txt", "lock", "curves.png")
    every = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    return [
        name for name in every if Path(name).name not in unread and not name.startswith("samples/")
    ]


class Reader:
    """The run with what was read from each file before anything changed."""

    def __init__(self, folder: Path) -> None:
        self.run = make_run(folder)
        self.names = files_of(self.run)
        self.bytes = {name: (self.run / name).read_bytes() for name in self.names}
        self.whole = {name: read_of(self.run, name) for name in self.names}

    def is_true_part(self) -> bool:
        """Whether every line of the log is one that was written: only lines, not the log, have a check."""
        return all(line in self.whole["log.jsonl"] for line in read_log(self.run / "log.jsonl"))

    def judge(self, name: str, data: bytes, what: str, found: Found) -> None:
        """Read a file with other bytes."""
        path = self.run / name
        path.write_bytes(data)
        began = time.process_time()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            same = read_of(self.run, name) == self.whole[name]
            shorter = not same and name == "log.jsonl" and self.is_true_part()
            found.count(
                "read as before" if same else "a log with fewer lines or repeated ones, each true"
            )
            if not (same or shorter):
                found.wrong.append(f"{name}: {what} changes what is read, and nothing is said")
        except RegardError as refusal:
            found.count("refused")
            if not any(
                part in str(refusal) for part in (Path(name).name, self.run.name, "tokeniser")
            ):
                found.wrong.append(
                    f"{name}: {what} is refused without the name of the file: {refusal}"
                )
        except Exception as error:
            found.wrong.append(f"{name}: {what} raises {type(error).__name__}: {str(error)[:120]}")
        finally:
            path.write_bytes(self.bytes[name])
        seconds = time.process_time() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
        found.at_most("seconds of CPU for one file", seconds)
        found.at_most("MiB more at the highest", grown / 2**20)
        if seconds > SLOW or grown > LARGE:
            found.wrong.append(f"{name}: {what} takes {seconds:.1f} s and {grown / 2**20:.0f} MiB")


def flips(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one bit of one file: files in turn, the bit drawn."""
    found = Found()
    reader = Reader(folder)
    for number in numbers:
        draw = random.Random(f"flip {number}")
        name = reader.names[number % len(reader.names)]
        data = bytearray(reader.bytes[name])
        place = draw.randrange(len(data))
        bit = draw.randrange(8)
        data[place] ^= 1 << bit
        found.count(Path(name).name)
        reader.judge(name, bytes(data), f"bit {bit} of byte {place}, flipped,", found)
    return found


torch.set_num_threads(1)
