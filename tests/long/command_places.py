"""What hostile invocations of commands are given: runs, data, and files that are not what a command expects."""

import gzip
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from regard.storage import save_tensors

from .hostile_files import CONTENTS

TINY = (
    "--steps",
    "2",
    "--dim",
    "8",
    "--heads",
    "2",
    "--layers",
    "1",
    "--vocab-size",
    "300",
    "--cpu",
)
# Sensible values of parameters by command; a command that is not here gets some for the parameters it requires.
SIZES = {"out": "new", "steps": "2", "dim": "8", "heads": "2", "vocab_size": "300", "cpu": ""}
BASES: dict[str, dict[str, str]] = {
    "train translation": {"data": "{pairs}", **SIZES},
    "train language-model": {"data": "{text}", **SIZES},
    "train masked-words": {"data": "{text}", **SIZES},
    "train classifier": {"data": "{labels}", **SIZES},
    "convert kv-heads": {"model": "{language_model}", "kv_heads": "1", "out": "new"},
    "demo": {"out": "new", "steps": "2"},
    "translate": {"run": "{translator}", "sentences": "a b"},
    "generate": {"run": "{language_model}", "prompts": "a", "max_tokens": "3"},
    "classify": {"run": "{classifier}", "texts": "a b"},
    "evaluate": {"run": "{translator}", "test": "{pairs}"},
    "average": {"run": "{translator}", "out": "new", "last": "2"},
    "compare": {"runs": "{translator},{translator}", "data": "{pairs}", "out": "new"},
    "show": {"pattern": "causal"},
    "plan": {"q_len": "8"},
    "walkthrough": {"text": "a b"},
    "view": {"run": "{translator}", "text": "a b", "export": "new.html"},
    "lesson": {"name": "causal"},
    "lenses": {"run": "{translator}", "sentences": "2"},
    "bench": {"names": "plain", "quick": ""},
}
PAIRS = b"".join(b"a %d b\tein %d c\n" % (n, n) for n in range(60))


def mo_header(*words: int) -> bytes:
    return struct.pack("<7I", 0x950412DE, *words)


XML = b'<?xml version="1.0"?><tmx version="1.4"><body>'
# What a reader is given beside the files of `hostile_files`, by the end of the file's name.
GIVEN: dict[str, Callable[[], tuple[bytes, ...]]] = {
    ".gz": lambda: (
        gzip.compress(PAIRS)[:-6],
        gzip.compress(PAIRS)[:12],
        gzip.compress(PAIRS)[:-8] + bytes(8),
        gzip.compress(b""),
        gzip.compress(gzip.compress(PAIRS)),
        gzip.compress(bytes(30 * 2**20)),
        gzip.compress(PAIRS) + b"left over",
        gzip.compress(b"x" * 5_000_000),
        gzip.compress(bytes(range(256)) * 9),
        PAIRS,
    ),
    ".po": lambda: (
        b'msgid "a',
        b'msgid "a"\nmsgstr',
        b'msgid "a"\nmsgid "b"\n',
        b'msgstr "b"\n',
        b"# nothing\n" * 9,
        b'"a"\n',
        b'msgid ""\nmsgstr "Content-Type: text/plain; charset=nope\\n"\nmsgid "a"\nmsgstr "b"\n',
        b"\xff\xfe\x00m",
        b'msgid "a"\nmsgstr[99999999999] "b"\n',
        b'msgid "\\xzz\\"\nmsgstr "\\777"\n',
    ),
    ".mo": lambda: (
        mo_header(0, 0, 0, 0, 0, 0)[:4],
        mo_header(0, 2**32 - 1, 28, 28, 0, 0),
        mo_header(0, 1, 2**32 - 8, 28, 0, 0),
        mo_header(9, 1, 28, 36, 0, 0),
        mo_header(0, 1, 28, 36, 0, 0) + struct.pack("<4I", 2**31, 28, 1, 2**31),
        mo_header(0, 3, 0, 0, 0, 0),
        mo_header(0, 1, 28, 28, 0, 0),
        mo_header(0, 0, 28, 28, 2**32 - 1, 28),
        mo_header(0, 1, 28, 36, 0, 0) + struct.pack("<4I", 2, 44, 2, 44) + b"\xff\xfe\0",
        PAIRS,
    ),
    ".tmx": lambda: (
        XML,
        XML + b"</body></tmx>",
        XML + b"<tu><tuv><seg>a</seg></tuv></tu></body></tmx>",
        PAIRS,
        XML + b"<tu>" * 50_000,
        b'<!DOCTYPE t [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><tmx>&b;</tmx>',
        XML + b"\0</body></tmx>",
        b"<tmx/>",
        b'<!DOCTYPE t [<!ENTITY x SYSTEM "file:///etc/hostname">]><tmx><body>&x;</body></tmx>',
        b'<?xml version="1.0" encoding="nope"?><tmx/>',
    ),
    ".jsonl": lambda: (
        b"[1, 2]\n",
        b'{"source": 1, "target": 2}\n',
        b"[" * 100_000,
        b'{"source": NaN}\n',
        b'{"source": "a"}\n',
        b'{"source": "\\ud800", "target": "b"}\n' * 9,
        b'{"source": "a", "target": "b"',
        b"\xef\xbb\xbf{}\n",
        b'{"a": ' + b"9" * 5_000 + b"}\n",
        b'{"source": {"x": []}, "target": null}\n',
    ),
}
INPUTS = {
    "hostile": "hostile",
    "translator": "translator",
    "language_model": "language_model",
    "classifier": "classifier",
    "broken": "broken",
    "torn": "torn",
    "foreign": "foreign",
    "folder": "a folder",
    "file": "file",
    "empty": "empty.tsv",
    "binary": "binary.tsv",
    "text": "text.txt",
    "pairs": "pairs.tsv",
    "labels": "labels.tsv",
    "tensors": "qkv.safetensors",
}
# Files and folders, one of which is what a parameter wants at most.
PLACES = tuple(
    f"{{{name}}}"
    for name in (
        "folder",
        "file",
        "empty",
        "binary",
        "broken",
        "torn",
        "foreign",
        "tensors",
        "translator",
        "language_model",
        "classifier",
        "pairs",
    )
)


def inputs(folder: Path, run_command: Callable[..., None]) -> dict[str, str]:
    """Make the inputs in a folder; their paths by name."""
    paths = {name: folder / file for name, file in INPUTS.items()}
    if not folder.exists():
        folder.mkdir(parents=True)
        make_files(paths)
        make_runs(paths, run_command)
    return {name: str(path) for name, path in paths.items()}


def make_files(paths: Mapping[str, Path]) -> None:
    hostile = paths["hostile"]
    hostile.mkdir()
    contents = [make() for make in CONTENTS.values()]
    for ending, make_contents in GIVEN.items():
        for number, content in enumerate([*make_contents(), *contents]):
            (hostile / f"{number}{ending}").write_bytes(content)
    paths["folder"].mkdir()
    (paths["folder"] / "diary.txt").write_text("mine")
    paths["file"].write_text("neither a run nor a table\n")
    paths["empty"].write_text("")
    paths["binary"].write_bytes(bytes(range(256)) * 20)
    paths["text"].write_text("a few words of text and some more\n" * 60)
    paths["pairs"].write_bytes(PAIRS)
    labels = [f"{'good' if n % 2 else 'bad'}\ta text {n}\n" for n in range(60)]
    paths["labels"].write_text("".join(labels))
    save_tensors(paths["tensors"], {name: torch.ones(1, 2, 6, 4) for name in "qkv"})


def make_runs(paths: Mapping[str, Path], run_command: Callable[..., None]) -> None:
    """Runs that are whole, and copies whose settings or weights are cut off."""
    for name, command, data in (
        ("translator", "translation", "pairs"),
        ("language_model", "language-model", "text"),
        ("classifier", "classifier", "labels"),
    ):
        run_command("train", command, "--data", str(paths[data]), "--out", str(paths[name]), *TINY)
    shutil.copytree(paths["translator"], paths["broken"])
    for path in paths["broken"].rglob("*.json"):
        path.write_text('{"kind": [')
    shutil.copytree(paths["translator"], paths["torn"])
    for path in paths["torn"].rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    paths["foreign"].mkdir()
    config = paths["foreign"] / "config.json"
    config.write_text('{"model_type": "llama", "num_attention_heads": 8}')
