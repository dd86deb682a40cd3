"""What a text says about the inputs of each layer of a Hugging Face folder, with one layer in memory at a time.

transformers computes the model; each layer receives its weights just before it runs and gives them up afterwards. The
second moments of a layer's inputs wait on disk until the layer is converted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.arguments import count_of
from regard.errors import ArgumentError, CheckpointError, NotFoundError, UnsupportedError
from regard.packages import needed
from regard.storage.tensors import load_tensors, save_tensors
from regard_lab.conversion.model_folders import ModelFolder
from regard_lab.conversion.own_models import Calibration, second_moment

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


@contextmanager
def moments_of_folder(source: ModelFolder, calibration: Calibration) -> Generator[Callable[[int], torch.Tensor]]:
    """Run the model of a folder on a text; gives a function from the number of a layer to its second moments.

    Args:
        source: the folder.
        calibration: runs the model, such as `lambda model: model(ids)`; it is transformers' model without its head.
    """
    with tempfile.TemporaryDirectory(prefix="regard-calibration-") as place:

        def path(number: int | str) -> Path:
            return Path(place) / f"{number}.safetensors"

        def observe(number: str, inputs: torch.Tensor) -> None:
            product, count = second_moment(inputs)
            if path(number).exists():
                earlier = load_tensors(path(number))
                product, count = product + earlier["sum"], count + int(earlier["count"])
            save_tensors(path(number), {"sum": product, "count": torch.tensor(count)}, durable=False)

        with torch.no_grad():
            calibration(streamed_model(source, observe))
        for number in source.layers:
            if not path(number).exists():
                raise ArgumentError(f"the calibration did not run layer {number}; let it call the model on a text")

        def moments(number: int) -> torch.Tensor:
            stored = load_tensors(path(number))
            return stored["sum"] / stored["count"]

        yield moments


def streamed_model(source: ModelFolder, observe: Callable[[str, torch.Tensor], None]) -> nn.Module:
    """The model of a folder in float32, whose layers have weights only while they run.

    Args:
        source: the folder.
        observe: receives the number of each layer and the inputs of its attention.
    """
    with needed("transformers", "a text for a Hugging Face folder", "transformers"):
        from transformers import AutoConfig, AutoModel
    config = AutoConfig.from_pretrained(source.folder)
    with torch.device("meta"):
        model = AutoModel.from_config(config).eval()
    _restore_buffers(model, config)
    saved = _saved_names(model, source)
    layers = {}
    for number, name in source.layers.items():
        layers[number] = name.removeprefix(f"{model.base_model_prefix}.")
    inside = tuple(f"{layer}." for layer in layers.values())
    _load(model, {name: saved[name] for name in saved if not name.startswith(inside)}, source)
    for number, name in layers.items():
        layer = model.get_submodule(name)
        own = {part.removeprefix(f"{name}."): saved[part] for part in saved if part.startswith(f"{name}.")}
        layer.register_forward_pre_hook(lambda module, _, own=own: _load(module, own, source))
        layer.register_forward_hook(lambda module, *_: _unload(module))
        query = layer.get_submodule(source.layout.q)
        query.register_forward_pre_hook(lambda _, inputs, number=number: observe(number, inputs[0]))
    return model


def _saved_names(model: nn.Module, source: ModelFolder) -> dict[str, str]:
    """The name in the folder of each parameter of the model."""
    prefix = f"{model.base_model_prefix}."
    names = {name.removeprefix(prefix): name for name in source.entries}
    wanted = dict(model.named_parameters())
    if missing := sorted(set(wanted) - set(names)):
        raise CheckpointError(f"{source.folder} lacks the tensor {missing[0]!r} that transformers expects")
    return {name: names[name] for name in wanted}


def _load(module: nn.Module, names: dict[str, str], source: ModelFolder) -> None:
    state = {name: tensor.float() for name, saved in names.items() if (tensor := source.read(saved)) is not None}
    module.load_state_dict(state, strict=False, assign=True)


def _unload(module: nn.Module) -> None:
    state = {name: parameter.to("meta") for name, parameter in module.named_parameters()}
    module.load_state_dict(state, strict=False, assign=True)


def _restore_buffers(model: nn.Module, config: Any) -> None:
    """Compute the buffers, which no file holds: frequencies of positions, and the scale of Gemma's embeddings."""
    for name, module in list(model.named_modules()):
        meta = [key for key, buffer in module.named_buffers(recurse=False) if buffer.is_meta]
        if not meta:
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        if type(module).__name__.endswith("RotaryEmbedding"):
            setattr(parent, name.rpartition(".")[2], type(module)(config=config))
        elif meta == ["embed_scale"]:
            scale: Any = module.scalar_embed_scale
            module.embed_scale = torch.tensor(scale)
        else:
            raise UnsupportedError(f"{name} of this model has the buffer {meta[0]!r}, which is not known here")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
