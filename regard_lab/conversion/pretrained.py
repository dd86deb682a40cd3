"""Conversion of Hugging Face folders: transformers loads and saves the model, whose layers are converted in memory."""

import shutil
import zlib
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.arguments import count_of
from regard.errors import ArgumentError, CheckpointError, NotFoundError, UnsupportedError
from regard.packages import needed
from regard.positions import Rotary
from regard.storage.files import check_name, read_bytes, write_folder
from regard.storage.sealed_json import parse_json
from regard_lab.conversion.alignment import align
from regard_lab.conversion.heads import (
    POOLINGS,
    Change,
    Conversion,
    HeadedLayer,
    KeySpace,
    Projections,
    check_heads,
    hash_of_tensors,
    largest_difference,
    pooled_by_loops,
    provenance,
    within_rounding,
)
from regard_lab.conversion.own_models import Calibration, moments_of

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
PROVENANCE = "regard_conversion"  # in the config; other programs ignore it
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
COPIED = {".json", ".txt", ".model", ".jinja", ".tiktoken"}  # tokenisers and generation settings
COPIED_NAMES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
OUTPUTS = ("o_proj", "dense", "out_proj")
NORMS = ("q_norm", "k_norm")
# Families whose positions rotate the halves of each head, or no part of it: what `align` may rotate.
ROTARY = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "phi",
    "stablelm",
)
LENGTH = 5  # positions at which each layer is compared
ROW, ROWS = 256, 32  # ids in a row of the calibration text, and the most rows


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file that another program wrote."""
    content = parse_json(read_bytes(path, links=True), path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return content


def row_ids(folder: Path, text: str, rows: int = ROWS) -> torch.Tensor:
    """The beginning of a text as ids of the folder's own tokeniser, in rows of equal length: (rows, length)."""
    with needed("transformers", "a text for a Hugging Face folder", "transformers"):
        from transformers import AutoTokenizer
    try:
        tokeniser: Any = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise NotFoundError(
            f"{folder} has no tokeniser that transformers can read: {_first_line(error)}"
        ) from error
    ids = torch.tensor(tokeniser(text, add_special_tokens=False)["input_ids"], dtype=torch.long)
    if len(ids) < 2:
        raise ArgumentError(
            f"the text has {count_of(len(ids), 'ids')} of this model's tokeniser; it needs at least 2"
        )
    length = min(ROW, len(ids))
    return ids[: len(ids) // length * length].reshape(-1, length)[:rows]


@contextmanager
def quiet() -> Generator[None]:
    """Without the progress bars and warnings of transformers."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    loud = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(loud)
        if shown:
            logging.enable_progress_bar()


def load_folder(folder: Path) -> Any:
    """The model of a folder in its own dtype, as transformers loads it from safetensors, with every tensor in place."""
    with needed("transformers", "a Hugging Face folder", "transformers"):
        import transformers
        from safetensors import SafetensorError, safe_open
    config = read_json(folder / CONFIG_FILE)
    if "quantization_config" in config:
        raise UnsupportedError(
            f"{folder} is quantised, and pooling needs floats; convert the model it was made from"
        )
    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled and not any(folder.glob("*.safetensors")):
        raise UnsupportedError(
            f"{folder} has its weights in {pickled[0]}, a pickle, which can run any code when it is loaded; load it "
            f"where you trust it and write safetensors with save_pretrained"
        )
    if (folder / INDEX_FILE).exists():
        for name in dict.fromkeys(
            (read_json(folder / INDEX_FILE).get("weight_map") or {}).values()
        ):
            check_name(name, folder / INDEX_FILE)
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, "pt"):  # which checks the header
                pass
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is damaged; put a whole file there: {_first_line(error)}"
            ) from error
    named = str((config.get("architectures") or ["AutoModelForCausalLM"])[0])
    kind = getattr(transformers, named, None)
    kinds = transformers.PreTrainedModel | transformers.AutoModelForCausalLM
    if not (isinstance(kind, type) and issubclass(kind, kinds)):
        raise UnsupportedError(
            f"{folder} holds a model of class {named[:80]!r}, which transformers does not have"
        )
    of_kind = getattr(getattr(kind, "config_class", None), "model_type", config.get("model_type"))
    if config.get("model_type") != of_kind:
        raise UnsupportedError(
            f"{folder} says that its {named} is of type {str(config.get('model_type'))[:80]!r}"
        )
    try:
        with quiet():
            model, about = kind.from_pretrained(
                folder, dtype="auto", use_safetensors=True, output_loading_info=True
            )
    except Exception as error:
        raise CheckpointError(f"transformers cannot load {folder}: {_first_line(error)}") from error
    if wrong := {name: found for name, found in about.items() if found}:
        wrong = next(
            f"{name.replace('_', ' ')} such as {min(map(str, found))!r}"
            for name, found in wrong.items()
        )
        raise CheckpointError(
            f"{folder} has {wrong}; save the whole model again with save_pretrained"
        )
    return model.eval()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".split("\n")[0][:300]


class PretrainedConversion:
    """A model of a Hugging Face folder, and its conversion to another number of key/value heads.

    Args:
        kv_heads, method: as for `convert_kv_heads`.
    """

    def __init__(self, folder: Path, kv_heads: int, method: str) -> None:
        self.folder, self.kv_heads = folder, kv_heads
        self.model = load_folder(folder)
        self.config = self.model.config
        self.family = str(self.config.model_type)
        self.before = self._heads_of_config()
        check_heads(self.before, kv_heads, method)
        heads = self.config.num_attention_heads
        if heads % kv_heads or kv_heads == self.before:
            raise ArgumentError(
                f"{folder} has {count_of(heads, 'heads')} and {count_of(self.before, 'key/value heads')}; "
                f"{kv_heads} is no conversion; give another number that divides {heads}"
            )
        self.method = "repeat" if kv_heads > self.before else method
        if self.method == "align" and self.family not in ROTARY:
            raise UnsupportedError(
                f"align rotates keys, and how {self.family!r} rotates them by position is not known; use mean, or "
                f"a model of {', '.join(ROTARY)}"
            )
        self.head_dim = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        self.layers = {
            name: self._layer(name, module)
            for name, module in self.model.named_modules()
            if hasattr(module, "k_proj") or hasattr(module, "qkv_proj")
        }
        if not self.layers:
            raise UnsupportedError(
                f"no layer of {self.family!r} has k_proj or qkv_proj, so nothing is converted"
            )
        self.digest = hash_of_tensors(self.model.state_dict())
        self.parameters = self._parameters()
        self.differences, self.changes = list[float](), list[float]()

    def _heads_of_config(self) -> int:
        config = self.config
        if config.is_encoder_decoder or config.get_text_config() is not config:
            raise UnsupportedError(
                f"{self.folder} holds {self.family!r}, not one decoder; only those are converted"
            )
        if config.is_heterogeneous:
            raise UnsupportedError(
                f"the layers of {self.family!r} have heads of several sizes; none are converted"
            )
        kv_heads = config.to_dict().get("num_key_value_heads")
        if not isinstance(kv_heads, int):
            raise UnsupportedError(
                f"transformers has no grouped heads for {self.family!r}, so it would not load the result; convert a "
                f"model whose config has num_key_value_heads, such as one of {', '.join(ROTARY[:3])}"
            )
        return kv_heads

    def _layer(self, name: str, module: nn.Module) -> HeadedLayer:
        """The projections of an attention layer, of which every parameter is understood."""
        names = ["qkv_proj"] * 3 if hasattr(module, "qkv_proj") else ["q_proj", "k_proj", "v_proj"]
        output = next((part for part in OUTPUTS if hasattr(module, part)), OUTPUTS[0])
        heads = self.config.num_attention_heads
        width = self.head_dim
        dim = self.config.hidden_size
        rows = dict.fromkeys(names, 0)
        for part, count in zip(names, (heads, self.before, self.before), strict=True):
            rows[part] += count * width
        wanted: dict[str, tuple[int, ...]] = {
            f"{part}.weight": (count, dim) for part, count in rows.items()
        }
        wanted |= {f"{part}.bias": (count,) for part, count in rows.items()}
        wanted |= {f"{output}.weight": (dim, heads * width), f"{output}.bias": (dim,)}
        wanted |= {f"{norm}.weight": (width,) for norm in NORMS}
        for part, parameter in module.named_parameters():
            if wanted.get(part) != tuple(parameter.shape):
                raise UnsupportedError(
                    f"{name}.{part} of {self.family!r} is {tuple(parameter.shape)}, and may depend on the key/value "
                    f"heads, so nothing is converted"
                )
        return HeadedLayer(*map(module.get_submodule, [*names, output]), heads, self.before)

    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @torch.no_grad()
    def convert(self, calibration: Calibration | None = None, *, check: bool = True) -> None:
        """Convert every layer in memory; "align" is given the model without its head to calibrate, and `check` compares
        each layer with the same one with its heads repeated."""
        moments: Mapping[str, torch.Tensor] = {}
        if self.method == "align" and calibration is not None:
            queries = {name: layer.q for name, layer in self.layers.items()}
            moments = moments_of(queries, lambda: calibration(self.model.base_model))
        for name, layer in self.layers.items():
            self._convert_layer(name, layer, moments.get(name), check)
        self.config.num_key_value_heads = self.kv_heads
        with torch.device("meta"):
            needed = {
                name: tensor.shape
                for name, tensor in type(self.model)(self.config).state_dict().items()
            }
        if needed != {name: tensor.shape for name, tensor in self.model.state_dict().items()}:
            raise UnsupportedError(
                f"{self.family!r} would not load with {count_of(self.kv_heads, 'key/value heads')}"
            )

    def _convert_layer(
        self, name: str, layer: HeadedLayer, moment: torch.Tensor | None, check: bool
    ) -> None:
        before = turned = layer.read()
        if not all(part.isfinite().all() for part in (before.q, before.k, before.v, before.o)):
            raise CheckpointError(
                f"{name} of {self.folder} holds weights that are not finite; nothing was written"
            )
        if self.method == "align":
            turned = self._aligned(name, before, moment)
        pooling = self.method if self.method in POOLINGS else "mean"
        layer.write(turned.resized(self.kv_heads, pooling, zlib.crc32(name.encode())))
        if check:
            written = replace(layer, kv_heads=self.kv_heads).read()
            k, v = (
                pooled_by_loops(heads, self.kv_heads, pooling, drawn)
                for heads, drawn in ((turned.k, written.k), (turned.v, written.v))
            )
            parts = (part.to(self.model.dtype).double() for part in (turned.q, k, v, turned.o))
            expected = Projections(*parts).repeated()
            difference = largest_difference(
                written.outputs(self._inputs()), expected.outputs(self._inputs())
            )
            fault = f"{name} and the same layer with its heads repeated differ"
            self.differences.append(within_rounding(difference, fault))

    def _aligned(self, name: str, layer: Projections, moment: torch.Tensor | None) -> Projections:
        """The layer with rotated heads; the change of its outputs is noted."""
        module = self.model.get_submodule(name)
        norms = [
            module.get_parameter(f"{norm}.weight").double()
            for norm in NORMS
            if hasattr(module, norm)
        ]
        rope = getattr(self.config, "rope_parameters", None) or {}
        dims = int(self.head_dim * rope.get("partial_rotary_factor", 1.0))
        space = KeySpace(Rotary(dims=dims), normed=bool(norms))
        turned = align(layer, self.kv_heads, moment, space).applied(layer)
        change = largest_difference(
            *(each.outputs(self._inputs(), space, norms) for each in (turned, layer))
        )
        self.changes.append(
            within_rounding(change, f"{name}: with rotated heads its outputs change")
        )
        return turned

    def _inputs(self) -> torch.Tensor:
        return torch.randn(
            1, LENGTH, self.config.hidden_size, generator=torch.Generator().manual_seed(0)
        ).double()

    def save(self, out: Path) -> None:
        """Write the converted model, its tokeniser, generation settings and licences into a folder, atomically."""

        def write(aside: Path) -> None:
            with quiet():
                self.model.save_pretrained(aside)
            for path in sorted(self.folder.iterdir()):
                is_wanted = path.suffix in COPIED or path.name.startswith(COPIED_NAMES)
                if (
                    path.is_file()
                    and is_wanted
                    and path.name != INDEX_FILE
                    and not (aside / path.name).exists()
                ):
                    shutil.copyfile(path, aside / path.name)
            heads = {"num_key_value_heads": {"before": self.before, "after": self.kv_heads}}
            files = sorted(path.name for path in aside.iterdir())
            record = {
                **provenance(self.method, heads),
                "source_sha256": self.digest,
                "files": files,
            }
            if earlier := getattr(self.config, PROVENANCE, None):
                record["earlier"] = earlier
            setattr(self.config, PROVENANCE, record)
            self.config.save_pretrained(aside)

        write_folder(out, write, replace=True)

    def report(self) -> Conversion:
        """The report; bytes of the cache are computed from the sizes."""
        width = 2 * len(self.layers) * self.head_dim * self.model.dtype.itemsize
        return Conversion(
            kind=self.family,
            method=self.method,
            heads=self.config.num_attention_heads,
            kv_heads={"num_key_value_heads": Change(self.before, self.kv_heads)},
            parameters=Change(self.parameters, self._parameters()),
            kv_bytes={"token": Change(self.before * width, self.kv_heads * width)},
            difference=max(self.differences, default=None),
            invariance=max(self.changes, default=None),
        )
