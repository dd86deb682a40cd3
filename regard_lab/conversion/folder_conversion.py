"""Conversion of Hugging Face folders to another number of key/value heads, one layer at a time."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.storage.files import write_folder
from regard.storage.tensors import DTYPES, raw_bytes
from regard_lab.conversion.alignment import align, largest_change, likeness
from regard_lab.conversion.calibration import moments_of_folder
from regard_lab.conversion.crossings import CROSSINGS, Crossing, folded
from regard_lab.conversion.heads import POOLINGS, TOLERANCE, Change, Conversion, Likeness, check_heads
from regard_lab.conversion.layouts import Layout, Read
from regard_lab.conversion.model_folders import CONFIG_FILE, INDEX_FILE, ModelFolder
from regard_lab.conversion.own_alignment import Calibration
from regard_lab.conversion.projections import Projections
from regard_lab.conversion.tensor_files import TensorFile, TensorWriter

LONG = 60  # seconds after which the user is told how long it takes
LENGTH = 5  # positions at which each layer is compared
PROVENANCE = "regard_conversion"  # in the config; other programs ignore it
COPIED = {".json", ".txt", ".model", ".jinja", ".tiktoken"}  # tokenisers and generation settings
COPIED_NAMES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
CODES = {dtype: code for code, dtype in DTYPES.items()}

Tensors = dict[str, torch.Tensor]


class Place(NamedTuple):
    """Where a tensor of the result is written."""

    shard: str
    dtype: torch.dtype
    shape: list[int]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


Moments = Callable[[int], torch.Tensor]
"""The second moments of the inputs of a layer's attention, by the number of the layer."""


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
    is_needed = method == "align" and calibration is not None and kv_heads < source.sizes.kv_heads
    with moments_of_folder(source, calibration) if is_needed else nullcontext(None) as moments:
        conversion = FolderConversion(source, kv_heads, method, moments, check, tell)
        write_folder(out, conversion.write, replace=True)
    return conversion.report()


def check_convertible(source: ModelFolder, kv_heads: int, method: str) -> None:
    """Refuse a number of heads or a method that cannot be.

    Raises:
        ArgumentError: numbers that do not divide, the present number, or an unknown method.
        UnsupportedError: no class of transformers can represent the result.
    """
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
        source: the folder.
        kv_heads, method: as for `convert_kv_heads`.
        moments: for "align", what a text gave; None without one.
        check: compare each layer with its reference.
        tell: is handed a sentence if the layers after the first take long.
    """

    source: ModelFolder
    kv_heads: int
    method: str
    moments: Moments | None = None
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
    def layout(self) -> Layout:
        """The layout of the result."""
        return self.source.layout if self.crossing is None else self.crossing.layout

    def write(self, aside: Path) -> None:
        """Write all files of the converted folder into `aside`."""
        places = self.places
        with ExitStack() as opened:
            writers: dict[str, TensorWriter] = {}
            for shard in dict.fromkeys(place.shard for place in places.values()):
                own = {
                    name: (CODES[place.dtype], place.shape) for name, place in places.items() if place.shard == shard
                }
                writer = TensorWriter(aside / shard, own, self.source.shards[shard].metadata)
                writers[shard] = opened.enter_context(closing(writer))
            written = {shard: TensorFile(aside / shard) for shard in writers}

            def read_back(name: str) -> torch.Tensor | None:
                return written[places[name].shard].read(name) if name in places else None

            def save(tensors: Tensors) -> None:
                for name, tensor in tensors.items():
                    writers[places[name].shard].write(name, tensor)

            for name in self.others():
                save(self.other(name, self._digested))
            for done, number in enumerate(self.source.layer_names()):
                begin = time.monotonic()
                self._write_layer(number, save, read_back)
                if done == 0:
                    self._tell_how_long(time.monotonic() - begin)
            for writer in writers.values():
                writer.check_complete()
        files = [*writers, *self._copy_others(aside)]
        if self.source.index is not None:
            self._write_index(aside, self.source.index)
            files.append(INDEX_FILE)
        self._write_config(aside, files)

    def _tell_how_long(self, seconds: float) -> None:
        """Tell how long all layers take, from the time of the first, unless that is soon over."""
        layers = len(self.source.layer_names())
        if self.tell is not None and seconds * (layers - 1) > LONG:
            self.tell(
                f"the first of {layers} layers took {seconds:.0f} s; all take about {seconds * layers / 60:.0f} min"
            )

    # What each tensor of the source becomes: once as shapes, once as values

    def others(self) -> list[str]:
        """The names of the tensors that are not projections of attention."""
        return [name for name in self.source.entries if not self.source.layout.is_projection(name)]

    def other(self, name: str, read: Read) -> Tensors:
        """What a tensor outside the projections becomes."""
        if self.crossing is not None:
            return self.crossing.others(name, read)
        tensor = read(name)
        assert tensor is not None
        return {name: tensor}

    def layer(self, number: str, layer: Projections) -> Tensors:
        """The tensors of a layer from its pooled projections."""
        places = self._layer_shapes(number)
        made = self.layout.write(layer, self._dtype(self.source.layer_names()[number]))
        made = {f"{self._written_name(number)}.{part}": tensor for part, tensor in made.items()}
        zeros = {
            name: torch.zeros(place.shape, dtype=place.dtype) for name, place in places.items() if name not in made
        }
        return {name: tensor for name, tensor in (made | zeros).items() if name in places}

    def _layer_shapes(self, number: str) -> dict[str, Place]:
        """Where the projections of a layer are written. A bias is written where the source, or the result, has one."""
        name = self.source.layer_names()[number]
        first = f"{name}.{self.source.layout.q}.weight"
        own = self.layout.shapes(replace(self.source.sizes, kv_heads=self.kv_heads))
        places = {}
        for part, shape in own.items():
            is_kept = self.crossing is None and f"{name}.{part}" in self.source.entries
            was_moved = part.startswith(self.layout.o) and f"{name}.{self.source.layout.o}.bias" in self.source.entries
            if part.endswith("bias") and (was_moved or not (is_kept or self.crossing is not None)):
                continue
            origin = f"{name}.{part}" if is_kept else first
            places[f"{self._written_name(number)}.{part}"] = Place(
                self.source.shard_of(origin), self._dtype(name), shape
            )
        return places

    def _written_name(self, number: str) -> str:
        return self.source.layer_names()[number] if self.crossing is None else self.crossing.layer(number)

    @cached_property
    def places(self) -> dict[str, Place]:
        """The shard, dtype and shape of each tensor of the result."""
        found: dict[str, Place] = {}
        for origin in self.others():
            for name, tensor in self.other(origin, self.source.shaped).items():
                shard = self.source.shard_of(name if name in self.source.entries else origin)
                found[name] = Place(shard, tensor.dtype, list(tensor.shape))
        for number in self.source.layer_names():
            found |= self._layer_shapes(number)
        order = {name: number for number, name in enumerate(self.source.entries)}
        return dict(sorted(found.items(), key=lambda item: (order.get(item[0], len(order)), item[0])))

    def _dtype(self, layer: str) -> torch.dtype:
        return DTYPES[self.source.entries[f"{layer}.{self.source.layout.q}.weight"].code]

    def _digested(self, name: str) -> torch.Tensor | None:
        """A tensor of the source, which is added to the hash of the source."""
        tensor = self.source.read(name)
        if tensor is not None and name not in self._digests:
            self._digests[name] = hashlib.sha256(raw_bytes(tensor)).digest()
        return tensor

    # One layer

    def _write_layer(self, number: str, save: Callable[[Tensors], None], read_back: Read) -> None:
        name = self.source.layer_names()[number]
        seed = zlib.crc32(name.encode())
        pooling = self.method if self.method in POOLINGS else "mean"
        dtype = self._dtype(name)
        pooled = self._aligned(number, name, self._original(name)).resized(self.kv_heads, pooling, seed)
        fold = self._fold(name)
        save(self.layer(number, fold(pooled)))
        if self.check:
            self._check_layer(number, fold(pooled), dtype, read_back)

    def _original(self, name: str) -> Projections:
        layer = self.source.layout.read(name, self.source.sizes, self._digested)
        self._check_finite(name, layer)
        return layer

    def _aligned(self, number: str, name: str, layer: Projections) -> Projections:
        """The layer with rotated heads, if the method asks for it; the change of its outputs is noted."""
        if self.kv_heads >= layer.kv_heads:
            return layer
        moment = None if self.moments is None else self.moments(int(number))
        turned = layer
        if self.method == "align":
            space = self.source.layout.space(self.source.config, self.source.sizes.head_dim)
            turned = align(layer, self.kv_heads, moment, space).applied(layer)
            weights = [self.source.read(f"{name}.{norm}.weight") for norm in self.source.layout.norms or ()]
            norms = [weight.double() for weight in weights if weight is not None]
            self.changes.append(
                largest_change(layer, turned, space, self._inputs(), (norms[0], norms[1]) if norms else None)
            )
            if not self.changes[-1] <= TOLERANCE:
                raise RegardError(
                    f"{name}: with rotated heads its outputs change by {self.changes[-1]:.1e} (at most "
                    f"{TOLERANCE:.0e}); nothing was written. This is a bug of regard; please report it with the config"
                )
        self.likenesses.append(likeness(name, layer, turned, self.kv_heads, moment))
        return turned

    def _fold(self, name: str) -> Callable[[Projections], Projections]:
        """What the projections become in the other family, if the result is one."""
        if self.crossing is None or self.crossing.folded is None:
            return lambda layer: layer
        norm = [self.source.read(f"{name}.{self.crossing.folded}.{kind}") for kind in ("weight", "bias")]
        weight, bias = (part.double() for part in norm if part is not None)
        return partial(folded, weight=weight, bias=bias)

    def _check_layer(self, number: str, pooled: Projections, dtype: torch.dtype, read_back: Read) -> None:
        """Compare the written heads with the reference, which has one key/value head for each query head.

        Rotations by position and norms of heads are the same on both sides, so they are left out.
        """
        name = self._written_name(number)
        written = self.layout.read(name, replace(self.source.sizes, kv_heads=self.kv_heads), read_back)
        rounded = Projections(*(part.to(dtype).double() for part in (pooled.q, pooled.k, pooled.v, pooled.o)))
        x = self._inputs()
        output, expected = written.outputs(x), rounded.repeated().outputs(x)
        difference = float((output - expected).abs().max() / expected.abs().max().clamp(min=1))
        if not difference <= TOLERANCE:
            raise RegardError(
                f"{name} and the same layer with its heads repeated differ by {difference:.1e} (at most "
                f"{TOLERANCE:.0e}); nothing was written. This is a bug of regard; please report it with the config"
            )
        self.differences.append(difference)

    def _inputs(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(1, LENGTH, self.source.sizes.dim, generator=generator, dtype=torch.float64)

    def _check_finite(self, name: str, layer: Projections) -> None:
        if not all(part.isfinite().all() for part in (layer.q, layer.k, layer.v, layer.o)):
            raise CheckpointError(
                f"{name} of {self.source.folder} holds weights that are not finite; nothing was written"
            )

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
        about["total_size"] = sum(place.numel * place.dtype.itemsize for place in self.places.values())
        if "total_parameters" in about:
            about["total_parameters"] = sum(place.numel for place in self.places.values())
        weight_map = {name: place.shard for name, place in self.places.items()}
        _write_json(aside / INDEX_FILE, {**index, "metadata": about, "weight_map": weight_map})

    def _write_config(self, aside: Path, names: list[str]) -> None:
        """Write the config with the new number of heads and the provenance of the weights."""
        config, crossing = self.source.config, self.crossing
        digest = hashlib.sha256(b"".join(name.encode() + self._digests[name] for name in sorted(self._digests)))
        provenance = {
            "conversion": "kv-heads",
            "method": self._method,
            "groups": "similar heads" if self.method == "align" else "neighbours",
            "num_key_value_heads": {"before": self.source.sizes.kv_heads, "after": self.kv_heads},
            "source_sha256": digest.hexdigest(),
            "files": sorted(names),
        }
        if PROVENANCE in config:
            provenance["earlier"] = config[PROVENANCE]
        if crossing is not None:
            provenance["model_type"] = {"before": self.source.family, "after": crossing.family}
            made = crossing.config(config, self.kv_heads)
        else:
            made = {**config, "num_key_value_heads": self.kv_heads}
        _write_json(aside / CONFIG_FILE, {**made, PROVENANCE: provenance})

    def report(self) -> Conversion:
        """The report, computed from the sizes."""
        sizes = self.source.sizes
        widths = [
            DTYPES[self.source.entries[f"{name}.{part}.weight"].code].itemsize
            for name in self.source.layer_names().values()
            for part in (self.source.layout.k, self.source.layout.v)
        ]
        width = sizes.head_dim * sum(widths)  # bytes of the keys and values of one head in all layers
        return Conversion(
            kind=self.source.family,
            method=self._method,
            heads=sizes.heads,
            kv_heads={"num_key_value_heads": Change(sizes.kv_heads, self.kv_heads)},
            parameters=Change(
                sum(math.prod(entry.shape) for entry in self.source.entries.values()),
                sum(place.numel for place in self.places.values()),
            ),
            kv_bytes={"token": Change(sizes.kv_heads * width, self.kv_heads * width)},
            difference=max(self.differences) if self.differences else None,
            invariance=max(self.changes) if self.changes else None,
            likeness=tuple(self.likenesses),
            became=None if self.crossing is None else self.crossing.family,
        )

    @property
    def _method(self) -> str:
        return "repeat" if self.kv_heads > self.source.sizes.kv_heads else self.method


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
