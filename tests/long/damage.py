"""Flipped bits and changed structures in every file of a training run: refused with the file's name, or read as it was.

A run is trained once for a batch of cases. What is read is everything that a command reads: the model with its texts,
the settings, the test split, the log, the record of sessions, and the state that a resumed training takes.
"""

import hashlib
import json
import random
import resource
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.errors import RegardError
from regard.storage import load_tensors
from regard.storage.sealed_json import parse_json, read_sealed, render_sealed
from regard.storage.tensors import SEAL_LENGTH
from regard_lab.decoding import Translator
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
    (folder / "pairs.tsv").write_text("".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(90)))
    run = folder / "run"
    settings = {"dim": 16, "layers": 1, "heads": 2, "vocab_size": 300, "warmup_steps": 1, "steps": 2}
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
    return saved.config, {key: x.tolist() for key, x in saved.state.items()}, saved.extra_files, last


def files_of(run: Path) -> list[str]:
    """Every file of the run that something reads."""
    unread = ("README.txt", "lock", "curves.png")
    every = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    return [name for name in every if Path(name).name not in unread and not name.startswith("samples/")]


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

    def fit(self, name: str, data: bytes) -> None:
        """Give the files that hold the hash of this one its new hash, as a forger would."""
        config, training = (self.run / name).with_name("config.json"), (self.run / name).with_name("training.json")
        digest = hashlib.sha256(data).hexdigest()
        if Path(name).name == "optimiser.safetensors":
            about = read_sealed(training)
            training.write_bytes(render_sealed({**about, "optimiser": seal_of(data)}))
        elif config.exists() and Path(name).name in (files := read_sealed_quietly(config).get("files", {})):
            new = seal_of(data) if name.endswith(".safetensors") else digest
            about = read_sealed(config)
            config.write_bytes(render_sealed({**about, "files": {**files, Path(name).name: new}}))

    def use(self, name: str) -> None:
        """What is done with content that was read: a translator, a resumed training."""
        if Path(name).name == "training.json":
            copy = self.run.with_name("copy")
            shutil.copytree(self.run, copy, dirs_exist_ok=True)
            try:
                config = TranslationTraining.decide(copy, {}, resume=True)
                TranslationTraining(config).prepare(copy).run(copy, resume=True, cpu=True)
            finally:
                shutil.rmtree(copy)
        elif Path(name).name == "settings.json":
            TranslationTraining.decide(self.run, {}, resume=True)
        else:
            Translator.load(self.run)

    def judge(self, name: str, data: bytes, what: str, found: Found, sealed: bool = False) -> None:
        """Read a file with other bytes. With a seal that fits, other content is what its writer wanted."""
        path = self.run / name
        path.write_bytes(data)
        if sealed:
            self.fit(name, data)
        began = time.process_time()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            same = read_of(self.run, name) == self.whole[name]
            if sealed:
                self.use(name)
            shorter = not same and not sealed and name == "log.jsonl" and self.is_true_part()
            other = (
                "a log with fewer lines or repeated ones, each true"
                if shorter
                else "other content under a fitting seal"
            )
            found.count("read as before" if same else other)
            if not (same or sealed or shorter):
                found.wrong.append(f"{name}: {what} changes what is read, and nothing is said")
        except RegardError as refusal:
            found.count("refused")
            if not any(part in str(refusal) for part in (Path(name).name, self.run.name, "tokeniser", "copy ")):
                found.wrong.append(f"{name}: {what} is refused without the name of the file: {refusal}")
        except Exception as error:
            found.wrong.append(f"{name}: {what} raises {type(error).__name__}: {str(error)[:120]}")
        finally:
            for changed in self.names if sealed else [name]:
                (self.run / changed).write_bytes(self.bytes[changed])
        seconds = time.process_time() - began
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) * 1024
        found.at_most("seconds of CPU for one file", seconds)
        found.at_most("MiB more at the highest", grown / 2**20)
        if seconds > SLOW or grown > LARGE:
            found.wrong.append(f"{name}: {what} takes {seconds:.1f} s and {grown / 2**20:.0f} MiB")


def flips(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one bit of one file: files in turn, the bit drawn."""
    found, reader = Found(), Reader(folder)
    for number in numbers:
        draw = random.Random(f"flip {number}")
        name = reader.names[number % len(reader.names)]
        data = bytearray(reader.bytes[name])
        place, bit = draw.randrange(len(data)), draw.randrange(8)
        data[place] ^= 1 << bit
        found.count(Path(name).name)
        reader.judge(name, bytes(data), f"bit {bit} of byte {place}, flipped,", found)
    return found


def structures(numbers: Sequence[int], folder: Path) -> Found:
    """A case is one file with another structure: bytes moved, or JSON changed and sealed anew."""
    found, reader = Found(), Reader(folder)
    for number in numbers:
        draw = random.Random(f"structure {number}")
        name = reader.names[number % len(reader.names)]
        whole = reader.bytes[name]
        inner = None if draw.random() < 0.4 else in_json(whole, name, draw)
        if inner is None:
            what, data = in_bytes(whole, draw)
            found.count("bytes")
            reader.judge(name, data, what, found)
        else:
            what, data = inner
            found.count("JSON, sealed anew")
            reader.judge(name, data, what, found, sealed=True)
    return found


def in_bytes(whole: bytes, draw: random.Random) -> tuple[str, bytes]:
    """A block removed, doubled, moved, overwritten or cut off."""
    first, last = sorted(draw.randrange(len(whole) + 1) for _ in range(2))
    block, other = whole[first:last], draw.randbytes(draw.randrange(1, 20))
    forms: dict[str, bytes] = {
        "removed": whole[:first] + whole[last:],
        "doubled": whole[:last] + block + whole[last:],
        "moved to the front": block + whole[:first] + whole[last:],
        "zeroed": whole[:first] + bytes(len(block)) + whole[last:],
        "cut off": whole[:first],
        "followed by others": whole + other,
        "overwritten": whole[:first] + other + whole[first + len(other) :],
    }
    how = draw.choice(list(forms))
    return f"bytes {first} to {last}, {how},", forms[how]


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, 10**30, 0.5, -0.0, 1e308, "", "x", "../x", "/etc/passwd", "\ud7ff", [], {},
    [[]], "a" * 500, [1, 2], {"a": 1}, "__import__('os')", "NaN", 2**31 - 1,
)  # fmt: skip


def in_json(whole: bytes, name: str, draw: random.Random) -> tuple[str, bytes] | None:
    """The JSON of a file with one place changed, under a seal that fits; None for lines and for damaged files."""
    if not name.endswith((".json", ".safetensors")):
        return None
    if name.endswith(".safetensors"):
        size = int.from_bytes(whole[:8], "little")
        return in_header(whole, size, draw)
    content = parse_json(whole, name)
    sealed = isinstance(content, dict) and content.pop("sha256", None) is not None
    what = change(content, draw)
    return what, render_sealed(content) if sealed else json.dumps(content).encode()


def in_header(whole: bytes, size: int, draw: random.Random) -> tuple[str, bytes]:
    """The header of a file of tensors with one place changed, its length and its seal fitting."""
    content = parse_json(whole[8 : 8 + size], "header")
    metadata = content["__metadata__"]
    if draw.random() < 0.3:
        manifest = json.loads(metadata["regard_manifest"])
        what = change(manifest, draw)
        metadata["regard_manifest"] = json.dumps(manifest)
    else:
        what = change(content, draw)
    if isinstance(content.get("__metadata__"), dict):
        rest = {key: value for key, value in content["__metadata__"].items() if key != "regard_seal"}
        content = {"__metadata__": {"regard_seal": "", **rest}, **{k: v for k, v in content.items() if k[:2] != "__"}}
    text = json.dumps(content, separators=(",", ":")).encode()
    opening = b'{"__metadata__":{"regard_seal":"'
    length = (len(text) + SEAL_LENGTH).to_bytes(8, "little")
    seal = hashlib.sha256(length + text).hexdigest().encode()
    return what, length + text[: len(opening)] + seal + text[len(opening) :] + whole[8 + size :]


def seal_of(data: bytes) -> str:
    """The seal that a file of tensors opens with."""
    at = 8 + len(b'{"__metadata__":{"regard_seal":"')
    return data[at : at + SEAL_LENGTH].decode(errors="replace")


def read_sealed_quietly(path: Path) -> dict[str, Any]:
    """The content of a sealed file, empty where it is damaged itself."""
    try:
        content = read_sealed(path)
    except RegardError:
        return {}
    return content if isinstance(content.get("files"), dict) else {}


def change(content: Any, draw: random.Random) -> str:
    """One place of a JSON value, changed where it stands; the sentence says how."""
    places: list[tuple[Any, Any]] = []
    walk(content, places.append)
    if not places:
        return "nothing"
    inside, key = draw.choice(places)
    how = draw.choice(["replaced", "removed", "renamed", "wrapped", "repeated", "emptied"])
    if how == "removed":
        del inside[key]
    elif how == "renamed" and isinstance(inside, dict):
        inside[f"{key}x"] = inside.pop(key)
    elif how == "wrapped":
        inside[key] = [inside[key]]
    elif how == "repeated" and isinstance(inside, list):
        inside.append(inside[key])
    elif how == "emptied" and isinstance(inside[key], dict | list):
        inside[key] = type(inside[key])()
    else:
        inside[key] = draw.choice(VALUES)
        how = f"replaced by {str(inside[key])[:30]!r}"
    return f"the entry {str(key)[:60]!r}, {how},"


def walk(content: Any, see: Callable[[tuple[Any, Any]], None]) -> None:
    """Every place of a JSON value: what holds it, and its key or number."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items):
        see((content, key))
        walk(value, see)


torch.set_num_threads(1)
