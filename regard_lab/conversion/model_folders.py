"""Folders of Hugging Face: their sizes and tensors, checked by the table of layouts, read and written one at a time.

config.json                  model_type, num_attention_heads, num_key_value_heads, ...
model.safetensors            or model.safetensors.index.json, which names the shard of each tensor
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import CheckpointError, UnsupportedError
from regard.storage.files import check_name, open_plain, read_bytes
from regard.storage.sealed_json import parse_json
from regard.storage.tensors import CODES, DTYPES, HEADER_LIMIT, checked_entries, raw_bytes
from regard_lab.conversion.layouts import LAYOUTS, FamilyLayout, HeadSizes

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")


def blank(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take no memory, for the dtype and shape of a tensor."""
    return torch.zeros((), dtype=dtype).expand(tuple(shape))


class ModelFolder:
    """A checked folder of a family in the table of layouts; `entries` are `blank`, `read` gives the values of one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG_FILE)
        self.family = _checked_family(self.config, folder)
        self.layout: FamilyLayout = LAYOUTS[self.family]
        self.sizes = _sizes(self.config, self.layout, folder / CONFIG_FILE)
        self.index = read_json(folder / INDEX_FILE) if (folder / INDEX_FILE).exists() else None
        self.shards = {name: TensorFile(folder / name) for name in _shard_names(folder, self.index)}
        self._shard_of = {name: shard for shard in self.shards.values() for name in shard.entries}
        self.entries = {
            name: blank(entry.shape, DTYPES[entry.code])
            for shard in self.shards.values()
            for name, entry in shard.entries.items()
        }
        matches = [match for name in self.entries if (match := self.layout.pattern.fullmatch(name))]
        # The name prefix of each layer by its number, in the order of the layers.
        self.layers = {match[2]: match[1] for match in sorted(matches, key=lambda match: int(match[2]))}
        self._check_index()
        self._check_tensors()

    def shard_of(self, name: str) -> str:
        """The file name of the shard of a tensor."""
        return self._shard_of[name].path.name

    def read(self, name: str) -> torch.Tensor | None:
        """The tensor of this name, or None."""
        return self._shard_of[name].read(name) if name in self._shard_of else None

    def _check_index(self) -> None:
        if self.index is None:
            return
        shards = {name: shard.path.name for name, shard in self._shard_of.items()}
        if wrong := sorted(dict(shards.items() ^ self.index["weight_map"].items())):
            raise CheckpointError(f"{self.folder / INDEX_FILE} and the shards disagree on the shard of {wrong[0]!r}")

    def _check_tensors(self) -> None:
        for name in self.entries:
            if not self.layout.is_known(name):
                raise UnsupportedError(
                    f"{self.folder} holds the tensor {name!r}, which is not part of the layout of {self.family} and "
                    f"may depend on the key/value heads, so nothing is converted"
                )
        if set(self.layers) != set(map(str, range(self.sizes.layers))):
            raise CheckpointError(
                f"{self.folder} holds {count_of(len(self.layers), 'layers')}; {CONFIG_FILE} has {self.sizes.layers}"
            )
        shapes = self.layout.shapes(self.sizes)
        # norms that differ by head could not be pooled
        shapes |= {f"{name}.weight": [self.sizes.head_dim] for name in self.layout.norms or ()}
        needed = {f"{name}.weight" for name in self.layout.projections}
        for layer in self.layers.values():
            for name, wanted in shapes.items():
                if name in needed or f"{layer}.{name}" in self.entries:
                    self._check_shape(f"{layer}.{name}", wanted)

    def _check_shape(self, name: str, wanted: list[int]) -> None:
        if name not in self.entries:
            raise CheckpointError(f"{self.folder} lacks the tensor {name!r}")
        entry = self.entries[name]
        if [*entry.shape] != wanted or not entry.is_floating_point():
            raise CheckpointError(
                f"{self.folder}: {name!r} is {CODES[entry.dtype]} {[*entry.shape]}; the sizes in {CONFIG_FILE} need "
                f"floats {wanted}"
            )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file that another program wrote."""
    content = parse_json(read_bytes(path, links=True), path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return content


def _checked_family(config: dict[str, Any], folder: Path) -> str:
    family = config.get("model_type")
    if not isinstance(family, str) or family not in LAYOUTS:
        raise UnsupportedError(
            f"{folder} holds a model of type {str(family)[:80]!r}; supported types are {', '.join(LAYOUTS)}"
        )
    if "quantization_config" in config:
        raise UnsupportedError(f"{folder} is quantised, and pooling needs floats; convert the model it was made from")
    for setting, reason in (LAYOUTS[family].refused or {}).items():
        if config.get(setting):
            raise UnsupportedError(f"{folder} has {setting}={config[setting]!r} in its config: {reason}")
    return family


def _sizes(config: dict[str, Any], layout: FamilyLayout, path: Path) -> HeadSizes:
    dim_name, layers_name, heads_name, kv_name = layout.config
    heads, dim = (_whole(config.get(name), name, path) for name in (heads_name, dim_name))
    kv_heads, head_dim = (None if kv_name is None else config.get(kv_name)), config.get("head_dim")
    sizes = HeadSizes(
        layers=_whole(config.get(layers_name), layers_name, path),
        heads=heads,
        kv_heads=_whole(heads if kv_heads is None else kv_heads, str(kv_name), path),
        head_dim=_whole(dim // heads if head_dim is None else head_dim, "head_dim", path),
        dim=dim,
    )
    rotary = int(sizes.head_dim * layout.share(config))
    if rotary % 2 or rotary > sizes.head_dim:
        raise CheckpointError(
            f"{path}: positions rotate {rotary} of {sizes.head_dim} numbers; it must be an even number"
        )
    if sizes.heads % sizes.kv_heads:
        raise CheckpointError(
            f"{path}: {count_of(sizes.heads, 'heads')}, which is no multiple of "
            f"{count_of(sizes.kv_heads, 'key/value heads')}"
        )
    return sizes


def _whole(value: object, name: str, path: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"{path}: {name} is {value!r}; it must be an integer of at least 1")
    return value


def _shard_names(folder: Path, index: dict[str, Any] | None) -> list[str]:
    if index is not None:
        names = index.get("weight_map")
        if not isinstance(names, dict) or not names:
            raise CheckpointError(f"{folder / INDEX_FILE} has no weight_map")
        return sorted({check_name(name, folder / INDEX_FILE) for name in names.values()})
    if (folder / WEIGHTS_FILE).exists():
        return [WEIGHTS_FILE]
    if pickled := sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED):
        raise UnsupportedError(
            f"{folder} has its weights in {pickled[0]}, a pickle, which can run any code when it is loaded; load it "
            f"where you trust it and write safetensors with save_pretrained"
        )
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    renamed = f"; if {others[0]} holds all weights, name it {WEIGHTS_FILE}" if others else ""
    raise CheckpointError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}{renamed}")


class TensorFile:
    """A safetensors file of another program: `entries` lists its tensors, `read` loads one.

    It has no checksums, unlike the files of `regard.storage.tensors`, so only its structure can be checked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_plain(path, links=True) as file:  # the Hugging Face cache consists of links
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > HEADER_LIMIT or 8 + length > size:
                raise CheckpointError(
                    f"{path} has {size} bytes and is truncated, or is not a tensor file; copy it again"
                )
            content = parse_json(file.read(length), f"the header of {path}")
        try:
            self.metadata: dict[str, str] = dict(content.pop("__metadata__", None) or {})
            self.entries = checked_entries(content, 8 + length, size, path)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: the header is not that of a tensor file ({error})") from error
        self._start = 8 + length

    def read(self, name: str) -> torch.Tensor:
        """Read one tensor to the CPU."""
        entry = self.entries[name]
        if entry.start == entry.stop:
            return torch.empty(entry.shape, dtype=DTYPES[entry.code])
        data = bytearray(entry.stop - entry.start)
        with open_plain(self.path, links=True) as file:
            file.seek(self._start + entry.start)
            if file.readinto(data) != len(data):
                raise CheckpointError(
                    f"{self.path} ended in the middle of tensor {name!r}; it may have been changed while it was read"
                )
        return torch.frombuffer(data, dtype=DTYPES[entry.code]).reshape(entry.shape)


class TensorWriter:
    """Writes a file of named tensors one at a time, in any order, so that only one is in memory.

    Args:
        path: a new file; it has its full size at once, so that `TensorFile` can open it while it is written.
        shapes: a `blank` tensor of the dtype and shape of each, by name.
    """

    def __init__(self, path: Path, shapes: Mapping[str, torch.Tensor], metadata: dict[str, str]) -> None:
        header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        self._places: dict[str, int] = {}
        start = 0
        for name, tensor in shapes.items():
            self._places[name], stop = start, start + tensor.nbytes
            header[name] = {"dtype": CODES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, stop]}
            start = stop
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8 bytes
        self._shapes, self._start, self._missing = dict(shapes), 8 + len(text), set(shapes)
        self._file = open(path, "xb")  # noqa: SIM115 (closed at the end of the `with` block)
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.truncate(self._start + start)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Write one of the tensors that were named."""
        wanted = self._shapes[name]
        assert (tensor.shape, tensor.dtype) == (wanted.shape, wanted.dtype), name
        self._file.seek(self._start + self._places[name])
        self._file.write(raw_bytes(tensor))
        self._file.flush()
        self._missing.remove(name)

    def __enter__(self) -> TensorWriter:
        return self

    def __exit__(self, error: object, *details: object) -> None:
        self._file.close()
        assert error is not None or not self._missing, sorted(self._missing)[:3]
