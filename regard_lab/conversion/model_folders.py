"""Folders of Hugging Face: their sizes and tensors, read and checked by the table of layouts.

config.json                  model_type, num_attention_heads, num_key_value_heads, ...
model.safetensors            or model.safetensors.index.json, which names the shard of each tensor
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import CheckpointError, UnsupportedError
from regard.storage.files import TEXT_LIMIT, check_name
from regard.storage.sealed_json import parse_json
from regard.storage.tensors import DTYPES, Entry
from regard_lab.conversion.layouts import LAYOUTS, Layout, Sizes
from regard_lab.conversion.tensor_files import TensorFile

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")


class ModelFolder:
    """A checked folder of a family in the table of layouts; tensors are read on demand.

    Raises:
        CheckpointError: missing or damaged files, or inconsistent sizes.
        UnsupportedError: another family of models, pickled weights, or an unknown tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG_FILE)
        self.family = _checked_family(self.config, folder)
        self.layout: Layout = LAYOUTS[self.family]
        self.sizes = _sizes(self.config, self.layout, folder / CONFIG_FILE)
        self.index = read_json(folder / INDEX_FILE) if (folder / INDEX_FILE).exists() else None
        self.shards = {name: TensorFile(folder / name) for name in _shard_names(folder, self.index)}
        self._shard_of = {name: shard for shard in self.shards.values() for name in shard.entries}
        self._check_index()
        self._check_tensors()

    @property
    def entries(self) -> dict[str, Entry]:
        return {name: shard.entries[name] for name, shard in self._shard_of.items()}

    def shard_of(self, name: str) -> str:
        """The file name of the shard of a tensor."""
        return self._shard_of[name].path.name

    def read(self, name: str) -> torch.Tensor | None:
        """The tensor of this name, or None."""
        return self._shard_of[name].read(name) if name in self._shard_of else None

    def shaped(self, name: str) -> torch.Tensor | None:
        """Zeros of the same shape and dtype that take no memory, or None."""
        if name not in self._shard_of:
            return None
        entry = self._shard_of[name].entries[name]
        return torch.zeros((), dtype=DTYPES[entry.code]).expand(entry.shape)

    def layer_names(self) -> dict[str, str]:
        """The name prefix of each layer by its number, in the order of the layers."""
        matches = (self.layout.pattern.fullmatch(name) for name in self._shard_of)
        prefixes = {match[2]: match[1] for match in matches if match}
        return {number: prefixes[number] for number in sorted(prefixes, key=int)}

    def _check_index(self) -> None:
        if self.index is None:
            return
        shards = {name: shard.path.name for name, shard in self._shard_of.items()}
        if wrong := sorted(dict(shards.items() ^ self.index["weight_map"].items())):
            raise CheckpointError(f"{self.folder / INDEX_FILE} and the shards disagree on the shard of {wrong[0]!r}")

    def _check_tensors(self) -> None:
        for name in self._shard_of:
            if not self.layout.is_known(name):
                raise UnsupportedError(
                    f"{self.folder} holds the tensor {name!r}, which is not part of the layout of {self.family} and "
                    f"may depend on the key/value heads, so nothing is converted"
                )
        sizes = self.sizes
        layers = self.layer_names()
        if len(layers) != sizes.layers or set(layers) != set(map(str, range(sizes.layers))):
            raise CheckpointError(
                f"{self.folder} holds {count_of(len(layers), 'layers')}; {CONFIG_FILE} says {sizes.layers}"
            )
        for layer in layers.values():
            for name, wanted in self._wanted(layer).items():
                self._check_shape(name, wanted)

    def _wanted(self, layer: str) -> dict[str, list[int]]:
        """The shapes of a layer's projections, and of the biases and norms that it has."""
        shapes = {f"{layer}.{name}": shape for name, shape in self.layout.shapes(self.sizes).items()}
        # norms that differ by head could not be pooled
        shapes |= {f"{layer}.{name}.weight": [self.sizes.head_dim] for name in self.layout.norms or ()}
        needed = {f"{layer}.{name}.weight" for name in self.layout.projections}
        return {name: shape for name, shape in shapes.items() if name in needed or name in self._shard_of}

    def _check_shape(self, name: str, wanted: list[int]) -> None:
        if name not in self._shard_of:
            raise CheckpointError(f"{self.folder} lacks the tensor {name!r}")
        entry = self._shard_of[name].entries[name]
        if entry.shape != wanted or not DTYPES[entry.code].is_floating_point:
            raise CheckpointError(
                f"{self.folder}: {name!r} is {entry.code} {entry.shape}; the sizes in {CONFIG_FILE} need "
                f"floats {wanted}"
            )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file that another program wrote.

    Raises:
        CheckpointError: the file is missing, too large, or not a JSON object.
    """
    try:
        if path.stat().st_size > TEXT_LIMIT:
            raise CheckpointError(
                f"{path} has {path.stat().st_size} bytes; a file of this kind has at most {TEXT_LIMIT}"
            )
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    content = parse_json(data, path)
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


def _sizes(config: dict[str, Any], layout: Layout, path: Path) -> Sizes:
    dim_name, layers_name, heads_name, kv_name = layout.config
    heads, dim = (_whole(config.get(name), name, path) for name in (heads_name, dim_name))
    kv_heads, head_dim = (None if kv_name is None else config.get(kv_name)), config.get("head_dim")
    sizes = Sizes(
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
