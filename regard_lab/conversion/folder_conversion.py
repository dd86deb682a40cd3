"""Conversion of Hugging Face folders to another number of key/value heads, one layer at a time.

Only to calibrate on a text is the whole model loaded, as transformers computes it.
"""

import hashlib
import json
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError, CheckpointError, NotFoundError, UnsupportedError
from regard.packages import needed
from regard.storage.files import write_folder
from regard.storage.tensors import raw_bytes
from regard_lab.conversion.alignment import align, likeness
from regard_lab.conversion.heads import (
    POOLINGS,
    Change,
    Conversion,
    Likeness,
    Projections,
    check_heads,
    largest_difference,
    provenance,
    within_rounding,
)
from regard_lab.conversion.layouts import CROSSINGS, Crossing, FamilyLayout, Read, Tensors, folded, present
from regard_lab.conversion.model_folders import CONFIG_FILE, INDEX_FILE, ModelFolder, TensorFile, TensorWriter, blank
from regard_lab.conversion.own_models import Calibration, moments_of

ROW, ROWS = 256, 32  # ids in a row of the calibration text, and the most rows


def row_ids(folder: Path, text: str, rows: int = ROWS) -> torch.Tensor:
    """The beginning of a text as ids of the folder's own tokeniser, in rows of equal length: (rows, length)."""
    with needed("transformers", "a text for a Hugging Face folder", "transformers"):
        from transformers import AutoTokenizer
    try:
        tokeniser: Any = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise NotFoundError(f"{folder} has no tokeniser that transformers can read: {_first_line(error)}") from error
    ids = torch.tensor(tokeniser(text, add_special_tokens=False)["input_ids"], dtype=torch.long)
    if len(ids) < 2:
        raise ArgumentError(f"the text has {count_of(len(ids), 'ids')} of this model's tokeniser; it needs at least 2")
    length = min(ROW, len(ids))
    return ids[: len(ids) // length * length].reshape(-1, length)[:rows]


@torch.no_grad()
def moments_of_folder(source: ModelFolder, calibration: Calibration) -> dict[str, torch.Tensor]:
    """The second moments of the inputs of each layer's attention, by its number.

    Args:
        calibration: runs the model, such as `lambda model: model(ids)`; it is transformers' model without its head.
    """
    with needed("transformers", "a text for a Hugging Face folder", "transformers"):
        from transformers import AutoModel
    model = AutoModel.from_pretrained(source.folder, dtype="auto").eval()
    inside = f"{model.base_model_prefix}."
    layers = {f"{name.removeprefix(inside)}.{source.layout.q}": number for number, name in source.layers.items()}
    return {layers[name]: moment for name, moment in moments_of(model, layers, calibration).items()}


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]


# Conversion

LONG = 60  # seconds after which the time of all layers is reported
LENGTH = 5  # positions at which each layer is compared
PROVENANCE = "regard_conversion"  # in the config; other programs ignore it
COPIED = {".json", ".txt", ".model", ".jinja", ".tiktoken"}  # tokenisers and generation settings
COPIED_NAMES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")


def convert_folder(
    folder: Path,
    out: Path,
    kv_heads: int,
    method: str,
    *,
    calibration: Calibration | None = None,
    check: bool = True,
    tell: Callable[[str], object] | None = None,
) -> Conversion:
    """Convert a folder of Hugging Face; programs that load the source load the result. See `convert_kv_heads`."""
    source = ModelFolder(folder)
    check_convertible(source, kv_heads, method)
    is_needed = method == "align" and kv_heads < source.sizes.kv_heads
    moments = moments_of_folder(source, calibration) if calibration is not None and is_needed else None
    conversion = FolderConversion(source, kv_heads, method, moments, check, tell)
    write_folder(out, conversion.write, replace=True)
    return conversion.report()


def check_convertible(source: ModelFolder, kv_heads: int, method: str) -> None:
    """Refuse a number of heads or a method that cannot be."""
    sizes, folder = source.sizes, source.folder
    check_heads(sizes.kv_heads, kv_heads, method)
    if sizes.heads % kv_heads or kv_heads == sizes.kv_heads:
        raise ArgumentError(
            f"{folder} has {count_of(sizes.heads, 'heads')} and {count_of(sizes.kv_heads, 'key/value heads')}; "
            f"{kv_heads} is no conversion; give another number that divides {sizes.heads}"
        )
    crossing = CROSSINGS.get(source.family)
    reason = None if crossing is None else crossing.refusal(source.config, kv_heads)
    if reason is not None:
        raise UnsupportedError(f"{folder} cannot be converted: {reason}")


@dataclass
class FolderConversion:
    """The conversion of one folder to another number of key/value heads.

    Args:
        kv_heads, method: as for `convert_kv_heads`.
        moments: for "align", the second moments of the inputs of a layer's attention, by its number; None without a
            text.
        tell: receives a sentence if the layers after the first take long.
    """

    source: ModelFolder
    kv_heads: int
    method: str
    moments: Mapping[str, torch.Tensor] | None = None
    check: bool = True
    tell: Callable[[str], object] | None = None
    differences: list[float] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    likenesses: list[Likeness] = field(default_factory=list)
    _digests: dict[str, bytes] = field(default_factory=dict)

    @property
    def crossing(self) -> Crossing | None:
        return CROSSINGS.get(self.source.family)

    @property
    def layout(self) -> FamilyLayout:
        """The layout of the result."""
        return self.source.layout if self.crossing is None else self.crossing.layout

    def write(self, aside: Path) -> None:
        """Write all files of the converted folder into `aside`."""
        with ExitStack() as opened:
            writers: dict[str, TensorWriter] = {}
            for shard in dict.fromkeys(self.shards.values()):
                own = {name: self.shapes[name] for name in self.shapes if self.shards[name] == shard}
                writer = TensorWriter(aside / shard, own, self.source.shards[shard].metadata)
                writers[shard] = opened.enter_context(writer)
            written = {shard: TensorFile(aside / shard) for shard in writers}

            def read_back(name: str) -> torch.Tensor | None:
                return written[self.shards[name]].read(name) if name in self.shards else None

            def save(tensors: Tensors) -> None:
                for name, tensor in tensors.items():
                    writers[self.shards[name]].write(name, tensor)

            for name in self._others():
                save(self._other(name, self._digested))
            begin = time.monotonic()
            for done, number in enumerate(self.source.layers):
                if done == 1:
                    self._report_time(time.monotonic() - begin)
                self._convert_layer(number, save, read_back)
        files = [*writers, *self._copy_others(aside)]
        if self.source.index is not None:
            self._write_index(aside, self.source.index)
            files.append(INDEX_FILE)
        self._write_config(aside, files)

    def _report_time(self, seconds: float) -> None:
        """Report how long all layers take, from the time of the first, unless that is soon over."""
        layers = len(self.source.layers)
        if self.tell is not None and seconds * (layers - 1) > LONG:
            self.tell(
                f"the first of {layers} layers took {seconds:.0f} s; all take about {seconds * layers / 60:.0f} min"
            )

    # What each tensor of the source becomes: once as shapes, once as values

    def _others(self) -> list[str]:
        """The names of the tensors that are not projections of attention."""
        return [name for name in self.source.entries if not self.source.layout.is_projection(name)]

    def _other(self, name: str, read: Read) -> Tensors:
        """What a tensor outside the projections becomes."""
        return {name: present(name, read)} if self.crossing is None else self.crossing.others(name, read)

    def _layer(self, number: str, parts: Tensors) -> Tensors:
        """Of the parts of a layer those that are written, by their names; biases as in the source, or all of them."""
        name, written = self.source.layers[number], self._written_name(number)
        if self.crossing is None:
            wholes = {f"{name}.{part}": tensor for part, tensor in parts.items()}
            return {whole: tensor for whole, tensor in wholes.items()
                    if whole in self.source.entries and self.source.layout.is_projection(whole)}  # fmt: skip
        moved = f"{name}.{self.source.layout.o}.bias" in self.source.entries  # as one of the others
        return {f"{written}.{part}": tensor for part, tensor in parts.items()
                if not (moved and part == f"{self.layout.o}.bias")}  # fmt: skip

    def _written_name(self, number: str) -> str:
        return self.source.layers[number] if self.crossing is None else self.crossing.layer(number)

    def _query(self, number: str) -> str:
        return f"{self.source.layers[number]}.{self.source.layout.q}.weight"

    def _dtype(self, number: str) -> torch.dtype:
        return self.source.entries[self._query(number)].dtype

    @cached_property
    def _planned(self) -> dict[str, tuple[str, torch.Tensor]]:
        """The shard of each tensor of the result, and its dtype and shape."""
        source, planned = self.source, {}
        for origin in self._others():
            for name, tensor in self._other(origin, source.entries.get).items():
                shard = source.shard_of(name if name in source.entries else origin)
                planned[name] = shard, blank(tensor.shape, tensor.dtype)
        for number in source.layers:
            shapes = self.layout.shapes(replace(source.sizes, kv_heads=self.kv_heads))
            parts = {part: blank(shape, self._dtype(number)) for part, shape in shapes.items()}
            for name, tensor in self._layer(number, parts).items():
                origin = name if self.crossing is None else self._query(number)
                planned[name] = source.shard_of(origin), tensor
        order = {name: at for at, name in enumerate(source.entries)}
        return dict(sorted(planned.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))

    @cached_property
    def shards(self) -> dict[str, str]:
        """The file name of the shard of each tensor of the result."""
        return {name: shard for name, (shard, _) in self._planned.items()}

    @cached_property
    def shapes(self) -> Tensors:
        """A `blank` tensor for each tensor of the result."""
        return {name: tensor for name, (_, tensor) in self._planned.items()}

    def _digested(self, name: str) -> torch.Tensor | None:
        """A tensor of the source, which is added to the hash of the source."""
        tensor = self.source.read(name)
        if tensor is not None and name not in self._digests:
            self._digests[name] = hashlib.sha256(raw_bytes(tensor)).digest()
        return tensor

    # One layer

    def _convert_layer(self, number: str, save: Callable[[Tensors], None], read_back: Read) -> None:
        name = self.source.layers[number]
        layer = self.source.layout.read(name, self.source.sizes, self._digested)
        if not all(part.isfinite().all() for part in (layer.q, layer.k, layer.v, layer.o)):
            raise CheckpointError(
                f"{name} of {self.source.folder} holds weights that are not finite; nothing was written"
            )
        pooling = self.method if self.method in POOLINGS else "mean"
        pooled = self._aligned(number, layer).resized(self.kv_heads, pooling, zlib.crc32(name.encode()))
        del layer  # two copies in float64 fewer while the result is written and compared
        if self.crossing is not None and self.crossing.folded is not None:
            norm = [present(f"{name}.{self.crossing.folded}.{kind}", self.source.read) for kind in ("weight", "bias")]
            pooled = folded(pooled, *(part.double() for part in norm))
        parts = {f"{self.layout.o}.bias": torch.zeros(self.source.sizes.dim, dtype=self._dtype(number))}
        save(self._layer(number, parts | self.layout.write(pooled, self._dtype(number))))
        if self.check:
            self._check_layer(number, pooled, read_back)

    def _aligned(self, number: str, layer: Projections) -> Projections:
        """The layer with rotated heads, if the method needs it; the change of its outputs is noted."""
        if self.kv_heads >= layer.kv_heads:
            return layer
        name, source = self.source.layers[number], self.source
        moment = None if self.moments is None else self.moments[number]
        turned = layer
        if self.method == "align":
            space = source.layout.space(source.config, source.sizes.head_dim)
            turned = align(layer, self.kv_heads, moment, space).applied(layer)
            norms = [present(f"{name}.{norm}.weight", source.read).double() for norm in source.layout.norms or ()]
            output, expected = (each.outputs(self._inputs(), space, norms) for each in (turned, layer))
            change = largest_difference(output, expected)
            self.changes.append(within_rounding(change, f"{name}: with rotated heads its outputs change"))
        self.likenesses.append(likeness(name, layer, turned, self.kv_heads, moment))
        return turned

    def _check_layer(self, number: str, pooled: Projections, read_back: Read) -> None:
        """Compare the written heads with the reference, which has one key/value head for each query head.

        Rotations by position and norms of heads are the same on both sides, so they are left out.
        """
        name, dtype, x = self._written_name(number), self._dtype(number), self._inputs()
        written = self.layout.read(name, replace(self.source.sizes, kv_heads=self.kv_heads), read_back)
        rounded = Projections(*(part.to(dtype).double() for part in (pooled.q, pooled.k, pooled.v, pooled.o)))
        difference = largest_difference(written.outputs(x), rounded.repeated().outputs(x))
        fault = f"{name} and the same layer with its heads repeated differ"
        self.differences.append(within_rounding(difference, fault))

    def _inputs(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(1, LENGTH, self.source.sizes.dim, generator=generator, dtype=torch.float64)

    # Other files and the report

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
        """Write the index of the shards, with new totals."""
        about = index.get("metadata")
        about = dict(about) if isinstance(about, dict) else {}
        about["total_size"] = sum(tensor.nbytes for tensor in self.shapes.values())
        if "total_parameters" in about:
            about["total_parameters"] = sum(tensor.numel() for tensor in self.shapes.values())
        _write_json(aside / INDEX_FILE, {**index, "metadata": about, "weight_map": self.shards})

    def _write_config(self, aside: Path, names: list[str]) -> None:
        """Write the config with the new number of heads and the provenance of the weights."""
        config, crossing = self.source.config, self.crossing
        digest = hashlib.sha256(b"".join(name.encode() + self._digests[name] for name in sorted(self._digests)))
        heads = {"num_key_value_heads": {"before": self.source.sizes.kv_heads, "after": self.kv_heads}}
        record = {**provenance(self._method, heads), "source_sha256": digest.hexdigest(), "files": sorted(names)}
        if PROVENANCE in config:
            record["earlier"] = config[PROVENANCE]
        made = {**config, "num_key_value_heads": self.kv_heads}
        if crossing is not None:
            record["model_type"] = {"before": self.source.family, "after": crossing.family}
            made = crossing.config(config, self.kv_heads)
        _write_json(aside / CONFIG_FILE, {**made, PROVENANCE: record})

    def report(self) -> Conversion:
        """The report, computed from the sizes."""
        source, kv_heads = self.source, self.source.sizes.kv_heads
        widths = [source.entries[f"{name}.{part}.weight"].dtype.itemsize
                  for name in source.layers.values() for part in (source.layout.k, source.layout.v)]  # fmt: skip
        width = source.sizes.head_dim * sum(widths)  # bytes of the keys and values of one head in all layers
        numbers = [sum(tensor.numel() for tensor in tensors.values()) for tensors in (source.entries, self.shapes)]
        return Conversion(
            kind=source.family,
            method=self._method,
            heads=source.sizes.heads,
            kv_heads={"num_key_value_heads": Change(kv_heads, self.kv_heads)},
            parameters=Change(*numbers),
            kv_bytes={"token": Change(kv_heads * width, self.kv_heads * width)},
            difference=max(self.differences, default=None),
            invariance=max(self.changes, default=None),
            likeness=tuple(self.likenesses),
            became=None if self.crossing is None else self.crossing.family,
        )

    @property
    def _method(self) -> str:
        return "repeat" if self.kv_heads > self.source.sizes.kv_heads else self.method


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
