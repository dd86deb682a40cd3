"""Hostile files by name: what reads them, and a function that makes them in a folder."""

import hashlib
import io
import json
import marshal
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from regard.layers.caches import load_cache, new_cache
from regard.storage import load_tensors, save_tensors
from regard.storage.sealed_json import read_sealed, render_sealed
from regard_lab.conversion import convert_kv_heads
from regard_lab.decoding import Generator, Translator
from regard_lab.models import LanguageConfig, LanguageModel, TranslationTransformer, load_model
from regard_lab.models.translation_transformer import TranslationConfig
from regard_lab.text import Tokeniser
from regard_lab.training import read_log, read_run
from regard_lab.training.checkpoint import average_checkpoints
from regard_lab.training.recipes.run_folder import read_settings, read_test

LINES = ["The animal sleeps.", "It was late.", "Das Tier schläft."]
WEIGHTS = "weights.safetensors"
CONFIG = "config.json"


class Runs:
    """A pickle of this calls a function when it is loaded."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call[0], self.call[1:]


def header(content: Any, data: bytes = b"") -> bytes:
    """A file of tensors with a header of our own making, under a seal that fits where it may have one."""
    is_text = isinstance(content, bytes)
    text = content if is_text else json.dumps(content, separators=(",", ":")).encode()
    opening = b'{"__metadata__":{"regard_seal":"'
    if text.startswith(opening):
        size = (len(text) + 64).to_bytes(8, "little")
        seal = hashlib.sha256(size + text).hexdigest().encode()
        text = text[: len(opening)] + seal + text[len(opening) :]
    return len(text).to_bytes(8, "little") + text + data


def forged(entry: Any) -> bytes:
    digest = hashlib.sha256(f"F32{[1]}".encode() + bytes(4)).hexdigest()
    manifest = json.dumps({"sha256": {"x": digest}, "tied": {}})
    metadata = {"regard_seal": "", "regard_manifest": manifest}
    return header({"__metadata__": metadata, "x": entry}, bytes(4))


def zipped(files: dict[str, bytes], before: bytes = b"") -> bytes:
    out = io.BytesIO(before)
    out.seek(0, os.SEEK_END)
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return out.getvalue()


def tar(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def torch_archive(content: Any, legacy: bool = False) -> bytes:
    out = io.BytesIO()
    torch.save(content, out, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


EVIL = pickle.dumps(Runs(os.system, "touch regard-was-here"))
ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
CONTENTS: dict[str, Callable[[], bytes]] = {  # what no reader may take for a file of its own
    "a pickle that calls the shell": lambda: EVIL,
    "a pickle of protocol 0": lambda: pickle.dumps(Runs(eval, "1"), 0),
    "a pickle that imports": lambda: pickle.dumps(Runs(__import__, "antigravity")),
    "an archive of torch": lambda: torch_archive({"x": torch.ones(2)}),
    "an archive of torch with a call": lambda: torch_archive(Runs(os.system, "true")),
    "an old archive of torch": lambda: torch_archive({"x": torch.ones(2)}, legacy=True),
    "a zip with a pickle": lambda: zipped({"archive/data.pkl": EVIL}),
    "a zip with parent paths": lambda: zipped({"../../x.py": b"1", "/etc/x": b"1"}),
    "a zip bomb": lambda: zipped({"zeros": bytes(30 * 2**20)}),
    "a zip in a zip": lambda: zipped({"a.zip": zipped({"b.zip": zipped({"data.pkl": EVIL})})}),
    "a tar with a parent path": lambda: tar("../../x.py", b"1"),
    "Python": lambda: b"#!/usr/bin/env python\nimport os; os.system('true')\n",
    "compiled Python": lambda: b"\xa7\r\r\n" + bytes(12) + marshal.dumps(compile("1", "x", "eval")),
    "a library": lambda: b"\x7fELF\x02\x01\x01" + bytes(100),
    "HDF5": lambda: b"\x89HDF\r\n\x1a\n" + bytes(100),
    "nothing": lambda: b"",
    "a header of 2**63 bytes": lambda: (2**63).to_bytes(8, "little") + b"{}",
    "a header of all bits": lambda: b"\xff" * 64,
    "a header that is too deep": lambda: header(
        b'{"__metadata__":{"regard_seal":""},"x":' + b"[" * 100_000
    ),
    "a header with a key twice": lambda: header(b'{"__metadata__":{"regard_seal":""},"x":1,"x":2}'),
    "a header that is no object": lambda: header(b"[1, 2]"),
    "a header with NaN": lambda: header(b'{"__metadata__":{"regard_seal":"","a":NaN}}'),
    "a name that is not UTF-8": lambda: header(b'{"__metadata__":{"regard_seal":""},"\xff\xfe":1}'),
    "a shape below 0": lambda: forged({**ONE, "shape": [-1]}),
    "a shape of 2**62": lambda: forged({**ONE, "shape": [2**61, 2]}),
    "a shape of 2000 axes": lambda: forged({**ONE, "shape": [1] * 2000}),
    "offsets that overlap": lambda: forged({**ONE, "data_offsets": [-4, 4]}),
    "offsets beyond the end": lambda: forged({**ONE, "data_offsets": [0, 2**40]}),
    "a dtype that is an object": lambda: forged({**ONE, "dtype": {"__class__": "os.system"}}),
    "a manifest that is a number": lambda: header(
        {"__metadata__": {"regard_seal": "", "regard_manifest": 7}, "x": ONE}
    ),
    "tensors followed by a zip": lambda: zipped({"archive/data.pkl": EVIL}, before=forged(ONE)),
}


def place(path: Path, name: str) -> None:
    """Put something that is no plain file at a path, or a file of 10 GB that takes no room."""
    path.unlink(missing_ok=True)
    if name == "a link to a device":
        path.symlink_to("/dev/zero")
    elif name == "a link to a file outside":
        path.symlink_to("/etc/hostname")
    elif name == "a pipe":
        os.mkfifo(path)
    elif name == "a folder":
        path.mkdir()
    else:
        with open(path, "wb") as file:
            file.write((2**33).to_bytes(8, "little"))
            file.truncate(10 * 2**30)


PLACED = ("a link to a device", "a link to a file outside", "a pipe", "a folder", "10 GB of zeros")


def translator(folder: Path, files: dict[str, str] | None = None) -> None:
    tokeniser = Tokeniser.train(LINES, 300)
    settings = {"dim": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "hidden_dim": 8}
    model = TranslationTransformer(TranslationConfig(vocab_size=tokeniser.vocab_size, **settings))
    model.save(folder, {"tokeniser.json": tokeniser.to_json(), **(files or {})})


def language(folder: Path) -> None:
    tokeniser = Tokeniser.train(LINES, 300)
    config = LanguageConfig(vocab_size=tokeniser.vocab_size, dim=8, heads=2, layers=1, hidden_dim=8)
    LanguageModel(config).save(folder, {"tokeniser.json": tokeniser.to_json()})


def change_sealed(path: Path, **entries: Any) -> None:
    """Give a sealed file other entries, and a seal that fits them."""
    path.write_bytes(render_sealed({**read_sealed(path), **entries}))


def hugging_face(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        head_dim=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        bos_token_id=1,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def sharded(folder: Path, shard: str) -> None:
    from safetensors.torch import load_file

    hugging_face(folder)
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, shard)})
    )


def training_run(folder: Path) -> None:
    """A folder like one of a training run, with one checkpoint."""
    folder.mkdir(exist_ok=True)
    translator(folder / "step-000001")
    (folder / "checkpoints.json").write_bytes(
        render_sealed({"format": 1, "last": "step-000001", "best": None})
    )
    (folder / "settings.json").write_bytes(render_sealed({"settings": {}, "files": {}}))


# What reads a place, and what makes a harmless one there.
READERS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "tensors": (load_tensors, lambda path: save_tensors(path, {"x": torch.ones(1)})),
    "a cache": (load_cache, lambda path: new_cache("dynamic", 1, 1, 2).save(path)),
    "a model": (load_model, translator),
    "a translator": (Translator.load, translator),
    "a generator": (Generator.load, language),
    "a run": (lambda path: (read_settings(path), load_model(path), read_run(path)), training_run),
    "a test split": (read_test, training_run),
    "an average": (lambda path: average_checkpoints(path, 2, path.parent / "out"), training_run),
    "a log": (read_log, lambda path: path.write_bytes(b"")),
    "a folder of Hugging Face": (
        lambda path: convert_kv_heads(path, path.parent / "out", 2),
        hugging_face,
    ),
}
PATHS = (
    "/etc/passwd",
    "../../../etc/passwd",
    "..",
    ".hidden",
    "a/b",
    "C:\\x",
    "file:///etc/passwd",
    "x\0y",
    "//host/x",
    "",
)
CHOSEN: tuple[dict[str, Any], ...] = (
    {"kind": "os.system"},
    {"kind": "../../x"},
    {"config": {"__class__": "subprocess.Popen"}},
    {"config": {"dim": "8"}},
    {"config": {"dim": 10**12}},
    {"config": {"backend": "evil"}},
    {"kind": ["translation"]},
    {"format": 10**9},
    {"config": {"attention": "__import__('os').system('true')"}},
    {"config": []},
)


def _content(name: str, path: Path) -> None:
    path.write_bytes(CONTENTS[name]())


def _inside(name: str, folder: Path) -> None:
    translator(folder)
    (folder / WEIGHTS).write_bytes(CONTENTS[name]())


def _listed(name: str, folder: Path) -> None:
    translator(folder)
    files = read_sealed(folder / CONFIG)["files"]
    change_sealed(folder / CONFIG, files={**files, name: "0" * 64})


def _pointed(name: str, folder: Path) -> None:
    training_run(folder)
    change_sealed(folder / "checkpoints.json", last=name)


def _linked(folder: Path) -> None:
    training_run(folder)
    (folder / "step-000001").rename(folder.parent / "elsewhere")
    (folder / "step-000001").symlink_to(folder.parent / "elsewhere")


def _text(name: str, text: str, folder: Path) -> None:
    translator(folder, {name: text})


def _pickled(folder: Path) -> None:
    hugging_face(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(EVIL)


def _remote(folder: Path) -> None:
    hugging_face(folder)
    config = json.loads((folder / CONFIG).read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoModel": "modeling_evil.Evil"}}
    (folder / CONFIG).write_text(json.dumps(config))
    (folder / "modeling_evil.py").write_text("import os; os.system('true')")


def _evil_weights(name: str, folder: Path) -> None:
    hugging_face(folder)
    (folder / "model.safetensors").write_bytes(CONTENTS[name]())


def _other_config(entries: dict[str, Any], folder: Path) -> None:
    translator(folder)
    change_sealed(folder / CONFIG, **entries)


# What reads a file, and what makes it, by what is wrong with it.
FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {}
for name in CONTENTS:
    FILES[f"tensors: {name}"] = ("tensors", partial(_content, name))
for name in PLACED:
    FILES[f"tensors: {name}"] = ("tensors", partial(place, name=name))
for name in list(CONTENTS)[:8]:
    FILES[f"a cache: {name}"] = ("a cache", partial(_content, name))
for name in list(CONTENTS)[:14]:
    FILES[f"weights of a model: {name}"] = ("a model", partial(_inside, name))
for path in PATHS:
    FILES[f"a model lists the file {path!r}"] = ("a model", partial(_listed, path))
for path in PATHS:
    FILES[f"a run points to {path!r}"] = ("a run", partial(_pointed, path))
OF_HUGGING_FACE = "a folder of Hugging Face"
for path in PATHS:
    FILES[f"an index names the shard {path!r}"] = (OF_HUGGING_FACE, partial(sharded, shard=path))
for name in CONTENTS:
    FILES[f"converted weights: {name}"] = (OF_HUGGING_FACE, partial(_evil_weights, name))
for entries in CHOSEN:
    FILES[f"a config says {str(entries)[:60]}"] = ("a translator", partial(_other_config, entries))
CODE = "__import__('os').system('true')"
FILES |= {
    "a checkpoint is a link": ("a run", _linked),
    "weights are a pickle": (OF_HUGGING_FACE, _pickled),
    "a config names code beside it": (OF_HUGGING_FACE, _remote),
    "a tokeniser is code": ("a translator", partial(_text, "tokeniser.json", CODE)),
    "a tokeniser is deep": ("a translator", partial(_text, "tokeniser.json", "[" * 100_000)),
    "words are a pickle": (
        "a translator",
        partial(_text, "source-words.json", EVIL.decode("latin-1")),
    ),
    "a log is a pickle": ("a log", lambda path: path.write_bytes(EVIL + b"\n")),
    "a log is a device": ("a log", partial(place, name="a link to a device")),
    "an average of a run that points outside": ("an average", partial(_pointed, "/etc/passwd")),
}
