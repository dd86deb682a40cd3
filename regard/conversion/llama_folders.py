"""Conversion of folders in the Llama layout to another number of key/value heads, one tensor at a time."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from regard.conversion.heads import TOLERANCE, Change, Conversion, check_heads, resized
from regard.conversion.llama_layout import CONFIG_FILE, INDEX_FILE, LlamaFolder, is_resized
from regard.conversion.tensor_files import TensorFile, write_tensors
from regard.errors import ArgumentError, CheckpointError, RegardError
from regard.functional import attention
from regard.storage.files import write_folder
from regard.storage.tensors import DTYPES, Entry, raw_bytes

LENGTH = 5  # positions at which each layer is compared


def checked_difference(source: LlamaFolder, written: LlamaFolder, method: str) -> float:
    """The largest difference over all layers between attention with the written heads and the reference.

    The reference has one key/value head per query head: the source's heads, pooled and repeated. Rotations and norms of
    heads are the same on both sides, so they are left out.

    Raises:
        CheckpointError: weights that are not finite.
        RegardError: the difference is too large.
    """
    before, after, heads = source.sizes.kv_heads, written.sizes.kv_heads, source.sizes.heads
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, LENGTH, source.sizes.dim, generator=generator, dtype=torch.float64)

    def pooled_and_repeated(tensor: torch.Tensor) -> torch.Tensor:
        return resized(resized(tensor, before, after, method), after, heads)

    worst = 0.0
    for layer in written.attention_names():
        keys_and_values = [f"{layer}.{part}" for part in ("k_proj", "v_proj")]
        q = projected(x, source, f"{layer}.q_proj", heads)
        grouped = [projected(x, written, name, after) for name in keys_and_values]
        repeated = [projected(x, source, name, heads, pooled_and_repeated) for name in keys_and_values]
        output, expected = (attention(q, *kv, pattern="causal") for kv in (grouped, repeated))
        difference = float((output - expected).abs().max() / expected.abs().max().clamp(min=1))
        if math.isnan(difference):
            raise CheckpointError(f"{layer} of {source.folder} holds weights that are not finite; nothing was written")
        worst = max(worst, difference)
    if not worst <= TOLERANCE:
        raise RegardError(
            f"a converted layer and the one with its heads repeated differ by {worst:.1e} (at most {TOLERANCE:.0e}); "
            f"nothing was written. This is a bug of regard; please report it with the config of the model"
        )
    return worst


def projected(
    x: torch.Tensor,
    folder: LlamaFolder,
    name: str,
    heads: int,
    changed: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> torch.Tensor:
    """x (1, LENGTH, dim) projected by weights to which `changed` was applied: (1, heads, LENGTH, head_dim)."""
    parts = [folder.read(f"{name}.{part}") for part in ("weight", "bias")]
    weight, bias = (None if part is None else changed(part).double() for part in parts)
    assert weight is not None
    return F.linear(x, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)


PROVENANCE = "regard_conversion"  # in the config; other programs ignore it
COPIED = {".json", ".txt", ".model", ".jinja", ".tiktoken"}  # tokenisers and generation settings
COPIED_NAMES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")


def convert_llama(folder: Path, out: Path, kv_heads: int, method: str, check: bool) -> Conversion:
    """Convert a folder of the Llama layout; programs that load the source load the result. See `convert_kv_heads`."""
    source = LlamaFolder(folder)
    sizes = source.sizes
    check_heads(sizes.kv_heads, kv_heads, method)
    if sizes.heads % kv_heads or kv_heads == sizes.kv_heads:
        raise ArgumentError(
            f"{folder} has {sizes.heads} heads and {sizes.kv_heads} key/value heads; {kv_heads} is no "
            f"conversion; give another number that divides {sizes.heads}"
        )
    conversion = LlamaConversion(source, kv_heads, method)
    differences: list[float] = []

    def write(aside: Path) -> None:
        conversion.write(aside)
        if check:
            differences.append(checked_difference(source, LlamaFolder(aside), method))

    write_folder(out, write, replace=True)
    return conversion.report(differences[0] if check else None)


@dataclass(frozen=True)
class LlamaConversion:
    """The conversion of one folder to another number of key/value heads."""

    source: LlamaFolder
    kv_heads: int
    method: str

    def write(self, aside: Path) -> None:
        """Write all files of the converted folder into `aside`."""
        digest = hashlib.sha256()
        for name, shard in self.source.shards.items():
            shapes = {key: (entry.code, self.shape(key, entry)) for key, entry in shard.entries.items()}
            with open(aside / name, "xb") as file:
                write_tensors(file, shapes, self._tensors(shard, digest), shard.metadata)
        names = [*self.source.shards, *self._copy_others(aside)]
        if self.source.index is not None:
            self._write_index(aside, self.source.index)
            names.append(INDEX_FILE)
        self._write_config(aside, digest.hexdigest(), names)

    def shape(self, name: str, entry: Entry) -> list[int]:
        """The shape of a tensor after the conversion."""
        rows, *rest = entry.shape or [1]
        return [rows // self.source.sizes.kv_heads * self.kv_heads, *rest] if is_resized(name) else entry.shape

    def report(self, difference: float | None) -> Conversion:
        """The report, computed from the sizes."""
        entries, sizes = self.source.entries, self.source.sizes
        weights = [entry for name, entry in entries.items() if is_resized(name) and name.endswith(".weight")]
        width = sizes.head_dim * sum(
            DTYPES[entry.code].itemsize for entry in weights
        )  # bytes of one head in all layers
        now = sum(math.prod(entry.shape) for entry in entries.values())
        return Conversion(
            kind=self.source.family,
            method=self._method,
            heads=sizes.heads,
            kv_heads={"num_key_value_heads": Change(sizes.kv_heads, self.kv_heads)},
            parameters=Change(now, sum(math.prod(self.shape(name, entry)) for name, entry in entries.items())),
            kv_bytes={"token": Change(sizes.kv_heads * width, self.kv_heads * width)},
            difference=difference,
        )

    @property
    def _method(self) -> str:
        return "repeat" if self.kv_heads > self.source.sizes.kv_heads else self.method

    def _tensors(self, shard: TensorFile, digest: Any) -> Iterator[torch.Tensor]:
        """The converted tensors of a shard, one at a time; the source tensors are added to the digest."""
        for name in shard.entries:
            tensor = shard.read(name)
            digest.update(name.encode())
            digest.update(raw_bytes(tensor))
            if is_resized(name):
                tensor = resized(tensor, self.source.sizes.kv_heads, self.kv_heads, self.method)
            yield tensor

    def _copy_others(self, aside: Path) -> list[str]:
        """Copy tokenisers, generation settings and licences; return their names."""
        copied = []
        for path in sorted(self.source.folder.iterdir()):
            is_wanted = path.suffix in COPIED or path.name.startswith(COPIED_NAMES)
            is_written = path.name == CONFIG_FILE or path.name.endswith(".index.json")
            if path.is_file() and is_wanted and not is_written and path.name not in self.source.shards:
                shutil.copyfile(path, aside / path.name)
                copied.append(path.name)
        return copied

    def _write_index(self, aside: Path, index: dict[str, Any]) -> None:
        """Write the index: the same tensors in the same shards, with new totals."""
        about = index.get("metadata")
        about = dict(about) if isinstance(about, dict) else {}
        counts = {name: math.prod(self.shape(name, entry)) for name, entry in self.source.entries.items()}
        widths = {name: DTYPES[entry.code].itemsize for name, entry in self.source.entries.items()}
        about["total_size"] = sum(count * widths[name] for name, count in counts.items())
        if "total_parameters" in about:
            about["total_parameters"] = sum(counts.values())
        _write_json(aside / INDEX_FILE, {**index, "metadata": about})

    def _write_config(self, aside: Path, digest: str, names: list[str]) -> None:
        """Write the config with the new number of heads and the provenance of the weights."""
        config = self.source.config
        provenance = {
            "conversion": "kv-heads",
            "method": self._method,
            "groups": "neighbours",
            "num_key_value_heads": {"before": self.source.sizes.kv_heads, "after": self.kv_heads},
            "source_sha256": digest,
            "files": sorted(names),
        }
        if PROVENANCE in config:
            provenance["earlier"] = config[PROVENANCE]
        _write_json(aside / CONFIG_FILE, {**config, "num_key_value_heads": self.kv_heads, PROVENANCE: provenance})


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
