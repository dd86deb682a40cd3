"""Flipped bits in every file of a training run: refused with the file's name, or read as it was.

A run is trained once for a batch of cases. What is read is everything that a command reads: the model with its texts,
the settings, the test split, the log, the record of sessions, and the state that a resumed training takes.
"""

import random
import resource
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.storage import load_tensors
from regard_lab.models.storage import load_model, read_checkpoints
from regard_lab.training import read_log, read_run
from regard_lab.training.checkpoint import read_training
from regard_lab.training.identity import read_sessions
from regard_lab.training.log import Log
from regard_lab.training.recipes import TranslationTraining
from regard_lab.training.recipes.run_folder import count_trained, read_settings, read_test

from .running import Found

# What a refusal may take.
MOST_SECONDS = 1.0
MOST_BYTES = 200 * 2**20


def make_run(folder: Path) -> Path:
    """A translator trained for two steps, with a log of some length."""
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(90)))
    run = folder / "run"
    sizes = {"dim": 16, "layers": 1, "heads": 2, "vocab_size": 300}
    settings = {"data": [str(pairs)], **sizes, "warmup_steps": 1, "steps": 2}
    TranslationTraining(TranslationTraining.new_config(settings)).train(run, cpu=True)
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
        sessions, remarks = read_sessions(run / file)
        if remarks:
            raise RegardError(remarks[0])
        return sessions, read_run(run)
    if file in ("settings.json", "test.jsonl"):
        return read_settings(run), read_test(run)
    if file == "trained-pairs.hashes":
        return count_trained(run, read_test(run))
    checkpoints = read_checkpoints(run)
    assert checkpoints is not None
    if file in ("training.json", "optimiser.safetensors"):
        folder = run / checkpoints.last
        state = read_training(folder)
        moments = load_tensors(folder / "optimiser.safetensors", state["optimiser"])
        return state, numbers_of(moments)
    saved = load_model(run)
    return saved.config, numbers_of(saved.state), saved.extra_files, checkpoints


def numbers_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, list]:
    return {name: x.tolist() for name, x in tensors.items()}


UNREAD = ("README.txt", "lock", "curves.png")


def files_of(run: Path) -> list[str]:
    """Every file of the run that something reads."""
    names = []
    for path in run.rglob("*"):
        name = path.relative_to(run).as_posix()
        if path.is_file() and path.name not in UNREAD and not name.startswith("samples/"):
            names.append(name)
    return sorted(names)


def most_memory() -> int:
    """The most bytes that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class ReadRun:
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
        memory = most_memory()
        wrong = self._what_is_wrong(name, found)
        path.write_bytes(self.bytes[name])
        seconds = time.process_time() - began
        grown = most_memory() - memory
        if wrong is not None:
            found.wrong.append(f"{name}: {what} {wrong}")
        found.at_most("seconds of CPU for one file", seconds)
        found.at_most("MiB more at the highest", grown / 2**20)
        if seconds > MOST_SECONDS or grown > MOST_BYTES:
            found.wrong.append(f"{name}: {what} takes {seconds:.1f} s and {grown / 2**20:.0f} MiB")

    def _what_is_wrong(self, name: str, found: Found) -> str | None:
        """What is wrong with how a changed file is read or refused, or None."""
        try:
            if read_of(self.run, name) == self.whole[name]:
                found.count("read as before")
                return None
            if name == "log.jsonl" and self.is_true_part():
                found.count("a log with fewer lines or repeated ones, each true")
                return None
            return "changes what is read, and nothing is said"
        except RegardError as refusal:
            found.count("refused")
            names = (Path(name).name, self.run.name, "tokeniser")
            if any(part in str(refusal) for part in names):
                return None
            return f"is refused without the name of the file: {refusal}"
        except Exception as error:
            return f"raises {type(error).__name__}: {str(error)[:120]}"


def flips(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one bit of one file: files in turn, the bit drawn."""
    found = Found()
    reader = ReadRun(folder)
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
