"""Folders of the Llama layout: their sizes and tensors, read and checked.

    config.json                  model_type, num_attention_heads, num_key_value_heads, ...
    model.safetensors            or model.safetensors.index.json, which names the shard of each tensor

Llama, Mistral, Qwen2 (with biases) and Qwen3 (with query and key norms shared by all heads) use this layout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.conversion.tensor_files import TensorFile
from regard.errors import CheckpointError, UnsupportedError
from regard.storage.files import TEXT_LIMIT, check_name
from regard.storage.sealed_json import parse_json
from regard.storage.tensors import DTYPES, Entry

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
PICKLED = (".bin", ".pt", ".pth", ".ckpt")

_LAYER = re.compile(r"((?:model\.)?layers\.(\d+))\.(.+)\.(weight|bias|inv_freq)")
_OUTSIDE = re.compile(r"(?:model\.)?(?:embed_tokens|norm)\.weight|lm_head\.weight")
RESIZED = ("self_attn.k_proj", "self_attn.v_proj")
KEPT = (
    "self_attn.q_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "self_attn.rotary_emb",
    "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm",
)  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """The sizes in a config."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    dim: int


class LlamaFolder:
    """A checked folder of the Llama layout; tensors are read on demand.


    Raises:
        CheckpointError: missing or damaged files, or inconsistent sizes.
        UnsupportedError: another family of models, pickled weights, or an unknown tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG_FILE)
        self.family = _checked_family(self.config, folder)
        self.sizes = _sizes(self.config, folder / CONFIG_FILE)
        self.index = read_json(folder / INDEX_FILE) if (folder / INDEX_FILE).exists() else None
        self.shards = {name: TensorFile(folder / name) for name in _shard_names(folder, self.index)}
        self._shard_of = {name: shard for shard in self.shards.values() for name in shard.entries}
        self._check_index()
        self._check_tensors()

    @property
    def entries(self) -> dict[str, Entry]:
        return {name: shard.entries[name] for name, shard in self._shard_of.items()}

    def read(self, name: str) -> torch.Tensor | None:
        """The tensor of this name, or None."""
        return self._shard_of[name].read(name) if name in self._shard_of else None

    def attention_names(self) -> list[str]:
        """The name prefix of each layer's attention, in the order of the layers."""
        prefixes = {match[2]: match[1] for name in self._shard_of if (match := _LAYER.fullmatch(name))}
        return [f"{prefixes[number]}.self_attn" for number in sorted(prefixes, key=int)]

    def _check_index(self) -> None:
        if self.index is None:
            return
        shards = {name: shard.path.name for name, shard in self._shard_of.items()}
        if wrong := sorted(dict(shards.items() ^ self.index["weight_map"].items())):
            raise CheckpointError(f"{self.folder / INDEX_FILE} and the shards disagree on the shard of {wrong[0]!r}")

    def _check_tensors(self) -> None:
        for name in self._shard_of:
            _check_understood(name, self.folder)
        sizes = self.sizes
        layers = self.attention_names()
        numbers = {match[2] for name in self._shard_of if (match := _LAYER.fullmatch(name))}
        if len(layers) != sizes.layers or numbers != set(map(str, range(sizes.layers))):
            raise CheckpointError(f"{self.folder} holds {len(layers)} layers; {CONFIG_FILE} says {sizes.layers}")
        for layer in layers:
            for part, heads in (("q_proj", sizes.heads), ("k_proj", sizes.kv_heads), ("v_proj", sizes.kv_heads)):
                self._check_shape(f"{layer}.{part}.weight", [heads * sizes.head_dim, sizes.dim])
                if f"{layer}.{part}.bias" in self._shard_of:
                    self._check_shape(f"{layer}.{part}.bias", [heads * sizes.head_dim])
            for part in ("q_norm", "k_norm"):
                if f"{layer}.{part}.weight" in self._shard_of:  # norms that differ by head could not be pooled
                    self._check_shape(f"{layer}.{part}.weight", [sizes.head_dim])

    def _check_shape(self, name: str, wanted: list[int]) -> None:
        if name not in self._shard_of:
            raise CheckpointError(f"{self.folder} lacks the tensor {name!r}")
        entry = self._shard_of[name].entries[name]
        if entry.shape != wanted or not DTYPES[entry.code].is_floating_point:
            raise CheckpointError(
                f"{self.folder}: {name!r} is {entry.code} {entry.shape}; the sizes in {CONFIG_FILE} need "
                f"floats {wanted}"
            )


def is_resized(name: str) -> bool:
    """Whether a tensor has a part for each key/value head."""
    match = _LAYER.fullmatch(name)
    return match is not None and match[3] in RESIZED


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
    if family not in FAMILIES:
        raise UnsupportedError(
            f"{folder} holds a model of type {str(family)[:80]!r}; supported types of the Llama layout are "
            f"{', '.join(FAMILIES)}"
        )
    if "quantization_config" in config:
        raise UnsupportedError(f"{folder} is quantised, and pooling needs floats; convert the model it was made from")
    return family


def _sizes(config: dict[str, Any], path: Path) -> Sizes:
    heads, dim = (_whole(config.get(name), name, path) for name in ("num_attention_heads", "hidden_size"))
    kv_heads, head_dim = config.get("num_key_value_heads"), config.get("head_dim")
    sizes = Sizes(
        layers=_whole(config.get("num_hidden_layers"), "num_hidden_layers", path),
        heads=heads,
        kv_heads=_whole(heads if kv_heads is None else kv_heads, "num_key_value_heads", path),
        head_dim=_whole(dim // heads if head_dim is None else head_dim, "head_dim", path),
        dim=dim,
    )
    if sizes.heads % sizes.kv_heads:
        raise CheckpointError(f"{path}: {heads} heads are not a multiple of {kv_heads} key/value heads")
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
    raise CheckpointError(f"{folder} has neither {WEIGHTS_FILE} nor {INDEX_FILE}")


def _check_understood(name: str, folder: Path) -> None:
    match = _LAYER.fullmatch(name)
    is_known = match is not None and match[3] in (*KEPT, *RESIZED)
    if match is not None and match[4] == "inv_freq":
        is_known = match[3] == "self_attn.rotary_emb"
    if not _OUTSIDE.fullmatch(name) and not is_known:
        raise UnsupportedError(
            f"{folder} holds the tensor {name!r}, which is not part of the Llama layout and may depend on the "
            f"key/value heads, so nothing is converted"
        )
