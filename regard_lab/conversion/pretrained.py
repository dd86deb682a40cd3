"""Conversion of Hugging Face folders: transformers loads and saves the model, whose layers are converted in memory."""

import shutil
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
    as_json,
    check_heads,
    hash_of_tensors,
    largest_difference,
    pooled_by_loops,
    provenance,
    within_rounding,
)
from regard_lab.conversion.own_models import Calibration, count_of_parameters, moments_of

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
COMPARED_POSITIONS = 5  # at which each layer is compared
ROW_IDS = 256  # in a row of the calibration text
MOST_ROWS = 32


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file that another program wrote."""
    content = parse_json(read_bytes(path, links=True), path)
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a JSON object")
    return content


def row_ids(folder: Path, text: str) -> torch.Tensor:
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
    length = min(ROW_IDS, len(ids))
    whole_rows = len(ids) // length
    return ids[: whole_rows * length].reshape(-1, length)[:MOST_ROWS]


@contextmanager
def quiet() -> Generator[None]:
    """Without the progress bars and warnings of transformers."""
    from transformers.utils import logging

    has_progress_bar = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_progress_bar:
            logging.enable_progress_bar()


def load_folder(folder: Path) -> Any:
    """The model of a folder in its own dtype, as transformers loads it from safetensors, with every tensor in place."""
    with needed("transformers", "a Hugging Face folder", "transformers"):
        import transformers
    config = read_json(folder / CONFIG_FILE)
    if "quantization_config" in config:
        raise UnsupportedError(
            f"{folder} is quantised, and pooling needs floats; convert the model it was made from"
        )
    _check_files_of_weights(folder)
    model_class = _model_class(folder, config, transformers)
    try:
        with quiet():
            model, loading_info = model_class.from_pretrained(
                folder, dtype="auto", use_safetensors=True, output_loading_info=True
            )
    except Exception as error:
        raise CheckpointError(f"transformers cannot load {folder}: {_first_line(error)}") from error
    for kind, names in loading_info.items():  # such as missing_keys
        if names:
            fault = f"{kind.replace('_', ' ')} such as {min(map(str, names))!r}"
            raise CheckpointError(
                f"{folder} has {fault}; save the whole model again with save_pretrained"
            )
    return model.eval()


def _check_files_of_weights(folder: Path) -> None:
    """Raise unless the weights are whole files of safetensors inside of the folder."""
    from safetensors import SafetensorError, safe_open

    pickled = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLED)
    if pickled and not any(folder.glob("*.safetensors")):
        raise UnsupportedError(
            f"{folder} has its weights in {pickled[0]}, a pickle, which can run any code when it is loaded; load it "
            f"where you trust it and write safetensors with save_pretrained"
        )
    index = folder / INDEX_FILE
    if index.exists():
        file_of_tensor = read_json(index).get("weight_map") or {}
        for name in dict.fromkeys(file_of_tensor.values()):
            check_name(name, index)
    for path in folder.glob("*.safetensors"):
        try:
            with safe_open(path, "pt"):  # which checks the header
                pass
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is damaged; put a whole file there: {_first_line(error)}"
            ) from error


def _model_class(folder: Path, config: dict[str, Any], transformers: Any) -> Any:
    """The class of transformers that a config names, of the type that it names too."""
    name = str((config.get("architectures") or ["AutoModelForCausalLM"])[0])
    model_class = getattr(transformers, name, None)
    loadable = transformers.PreTrainedModel | transformers.AutoModelForCausalLM
    if not isinstance(model_class, type) or not issubclass(model_class, loadable):
        raise UnsupportedError(
            f"{folder} holds a model of class {name[:80]!r}, which transformers does not have"
        )
    model_type = config.get("model_type")
    config_class = getattr(model_class, "config_class", None)
    if getattr(config_class, "model_type", model_type) != model_type:
        raise UnsupportedError(f"{folder} says that its {name} is of type {str(model_type)[:80]!r}")
    return model_class


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".split("\n")[0][:300]


class PretrainedConversion:
    """A model of a Hugging Face folder, and its conversion to another number of key/value heads.

    Args:
        kv_heads, method: as for `convert_kv_heads`.
    """

    def __init__(self, folder: Path, kv_heads: int, method: str) -> None:
        self.folder = folder
        self.kv_heads = kv_heads
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
        self.layers = {}
        for name, module in self.model.named_modules():
            if hasattr(module, "k_proj") or hasattr(module, "qkv_proj"):
                self.layers[name] = self._layer(name, module)
        if not self.layers:
            raise UnsupportedError(
                f"no layer of {self.family!r} has k_proj or qkv_proj, so nothing is converted"
            )
        self.digest = hash_of_tensors(self.model.state_dict())
        self.parameters = count_of_parameters(self.model)
        # Of each layer: from the reference with repeated heads, and from the layer before its heads were rotated.
        self.differences: list[float] = []
        self.changes: list[float] = []

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
        heads = self.config.num_attention_heads
        dim = self.config.hidden_size
        output = next((part for part in OUTPUTS if hasattr(module, part)), OUTPUTS[0])
        if hasattr(module, "qkv_proj"):
            names = ["qkv_proj"] * 3
            rows = {"qkv_proj": (heads + 2 * self.before) * self.head_dim}
        else:
            names = ["q_proj", "k_proj", "v_proj"]
            rows = dict.fromkeys(names, self.before * self.head_dim)
            rows["q_proj"] = heads * self.head_dim

        shapes: dict[str, tuple[int, ...]] = {}
        for part, count in rows.items():
            shapes[f"{part}.weight"] = (count, dim)
            shapes[f"{part}.bias"] = (count,)
        shapes[f"{output}.weight"] = (dim, heads * self.head_dim)
        shapes[f"{output}.bias"] = (dim,)
        for norm in NORMS:
            shapes[f"{norm}.weight"] = (self.head_dim,)
        for part, parameter in module.named_parameters():
            if shapes.get(part) != tuple(parameter.shape):
                raise UnsupportedError(
                    f"{name}.{part} of {self.family!r} is {tuple(parameter.shape)}, and may depend on the key/value "
                    f"heads, so nothing is converted"
                )
        return HeadedLayer(*map(module.get_submodule, [*names, output]), heads, self.before)

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
            unfilled = type(self.model)(self.config)
        if _shapes(unfilled) != _shapes(self.model):
            raise UnsupportedError(
                f"{self.family!r} would not load with {count_of(self.kv_heads, 'key/value heads')}"
            )

    def _convert_layer(
        self, name: str, layer: HeadedLayer, moment: torch.Tensor | None, check: bool
    ) -> None:
        projections = layer.read()
        if not projections.is_finite():
            raise CheckpointError(
                f"{name} of {self.folder} holds weights that are not finite; nothing was written"
            )
        if self.method == "align":
            projections = self._aligned(name, projections, moment)
        pooling = self.method if self.method in POOLINGS else "mean"
        layer.write(projections.resized(self.kv_heads, pooling))
        if not check:
            return

        written = replace(layer, kv_heads=self.kv_heads).read()
        k = pooled_by_loops(projections.k, self.kv_heads, pooling)
        v = pooled_by_loops(projections.v, self.kv_heads, pooling)
        repeated = replace(projections, k=k, v=v).rounded(self.model.dtype).repeated()
        x = self._inputs()
        difference = largest_difference(written.outputs(x), repeated.outputs(x))
        fault = f"{name} and the same layer with its heads repeated differ"
        self.differences.append(within_rounding(difference, fault))

    def _aligned(self, name: str, layer: Projections, moment: torch.Tensor | None) -> Projections:
        """The layer with rotated heads; the change of its outputs is noted."""
        module = self.model.get_submodule(name)
        norms = []
        for norm in NORMS:
            if hasattr(module, norm):
                norms.append(module.get_parameter(f"{norm}.weight").double())
        rope = getattr(self.config, "rope_parameters", None) or {}
        dims = int(self.head_dim * rope.get("partial_rotary_factor", 1.0))
        space = KeySpace(Rotary(dims=dims), normed=bool(norms))

        rotated = align(layer, self.kv_heads, moment, space).applied(layer)
        x = self._inputs()
        change = largest_difference(
            rotated.outputs(x, space, norms), layer.outputs(x, space, norms)
        )
        fault = f"{name}: with rotated heads its outputs change"
        self.changes.append(within_rounding(change, fault))
        return rotated

    def _inputs(self) -> torch.Tensor:
        """Random inputs of a layer, the same in each call."""
        generator = torch.Generator().manual_seed(0)
        shape = (1, COMPARED_POSITIONS, self.config.hidden_size)
        return torch.randn(shape, generator=generator).double()

    def save(self, out: Path) -> None:
        """Write the converted model, its tokeniser, generation settings and licences into a folder, atomically."""

        def write(aside: Path) -> None:
            with quiet():
                self.model.save_pretrained(aside)
            for path in sorted(self.folder.iterdir()):
                if _is_copied(path) and not (aside / path.name).exists():
                    shutil.copyfile(path, aside / path.name)
            heads = as_json({"num_key_value_heads": Change(self.before, self.kv_heads)})
            record = {
                **provenance(self.method, heads),
                "source_sha256": self.digest,
                "files": sorted(path.name for path in aside.iterdir()),
            }
            earlier = getattr(self.config, PROVENANCE, None)
            if earlier:
                record["earlier"] = earlier
            setattr(self.config, PROVENANCE, record)
            self.config.save_pretrained(aside)

        write_folder(out, write, replace=True)

    def report(self) -> Conversion:
        """The report; bytes of the cache are computed from the sizes."""
        bytes_of_head = 2 * len(self.layers) * self.head_dim * self.model.dtype.itemsize
        return Conversion(
            kind=self.family,
            method=self.method,
            heads=self.config.num_attention_heads,
            kv_heads={"num_key_value_heads": Change(self.before, self.kv_heads)},
            parameters=Change(self.parameters, count_of_parameters(self.model)),
            kv_bytes={"token": Change(self.before * bytes_of_head, self.kv_heads * bytes_of_head)},
            difference=max(self.differences, default=None),
            invariance=max(self.changes, default=None),
        )


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _is_copied(path: Path) -> bool:
    """Whether a file beside the weights belongs to the converted model too."""
    if not path.is_file() or path.name == INDEX_FILE:
        return False
    return path.suffix in COPIED or path.name.startswith(COPIED_NAMES)
