"""Trained models as ONNX files, which other runtimes run."""

import logging
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, export

from regard.errors import UnsupportedError
from regard.packages import needed
from regard.storage.files import replace_file
from regard_lab.models.encoder import TextEncoder
from regard_lab.models.language import LanguageModel
from regard_lab.models.storage import load_model
from regard_lab.models.translation_transformer import TranslationTransformer

OPSET = 23  # the first with an operation for attention
# The names of the ids that each kind of model reads.
INPUTS: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    LanguageModel.KIND: (LanguageModel, ("ids",)),
    TextEncoder.KIND: (TextEncoder, ("ids",)),
    TranslationTransformer.KIND: (TranslationTransformer, ("source", "target")),
}


def export_onnx(folder: str | Path, path: Path, opset: int = OPSET) -> float | None:
    """Write a trained model as an ONNX file that takes any number of texts of any length.

    Its inputs are ids (batch, length), padded with 0 on either side: `ids`, or `source` and `target` of a translator.
    Its output `scores` is that of the model.

    Below `opset` 23 ONNX has no operation for attention, and it is written as products and a softmax.

    Returns:
        The largest difference between outputs of onnxruntime and of the model, or None without onnxruntime.

    Raises:
        UnsupportedError: a recurrent translator, or a mechanism that is not exported.
        MissingPackageError: onnx or onnxscript is not installed.
    """
    saved = load_model(folder)
    if saved.kind not in INPUTS:
        raise UnsupportedError(
            f"{folder} holds a model of kind {saved.kind!r}, whose loop over the words is not exported; those that "
            f"are exported are of kind {', '.join(INPUTS)}"
        )
    need_onnx()
    kind, names = INPUTS[saved.kind]
    model = kind.from_saved(saved, str(folder))
    longest = longest_text(model.config)
    batch = Dim("batch", min=1)
    shapes = {}
    for name in names:
        shapes[name] = {0: batch, 1: Dim(f"{name}_length", min=1, max=longest)}
    difference = None
    content = _onnx(model, _some_ids(names, 2, 7, longest), shapes, "scores", opset)
    if find_spec("onnxruntime"):
        with torch.no_grad():
            difference = _difference(model, content, names, longest)
    replace_file(path, content)
    return difference


def longest_text(config: Any) -> int | None:
    """The most ids of a text in an exported model: as many as it has learned positions; None for no limit."""
    return config.max_length if config.positions == "learned" else None


def need_onnx() -> None:
    """Raise a MissingPackageError unless the packages that write ONNX files are installed."""
    with needed("onnx", "an ONNX file", "onnx"), needed("onnxscript", "an ONNX file", "onnx"):
        import_module("onnx")
        import_module("onnxscript")


class _Encoder(nn.Module):
    """The encoder alone: sources (batch, source_length) -> (batch, source_length, dim)."""

    def __init__(self, model: TranslationTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        context, _ = self.model.encode(source)
        return context


class _NextScores(nn.Module):
    """The decoder alone: the logits after targets, given encoded sources."""

    def __init__(self, model: TranslationTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, source: torch.Tensor, context: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor:
        return self.model.score_next(source, context, target)


def onnx_translator(model: TranslationTransformer) -> dict[str, bytes]:
    """The two ONNX files of a whole translator, by their names, for a search that the caller runs.

    `encoder.onnx` has the input `source` (batch, source_length), padded with 0 on the right, and the output `context`.
    `decoder.onnx` has the inputs `source`, `context` and `target` (batch, target_length), without padding, and the
    output `scores` (batch, vocab_size): the logits of the next ids. It keeps no cache, and so works with every pattern.

    Raises:
        MissingPackageError: onnx or onnxscript is not installed.
    """
    need_onnx()
    longest = longest_text(model.config)
    batch = Dim("batch", min=1)
    source_axes = {0: batch, 1: Dim("source_length", min=1, max=longest)}
    target_axes = {0: batch, 1: Dim("target_length", min=1, max=longest)}
    (source,) = _some_ids(("source",), 2, 7, longest)
    target = source[:, :5].clamp(min=1)
    with torch.no_grad():
        context, _ = model.encode(source)
    encoder = _onnx(_Encoder(model), (source,), {"source": source_axes}, "context", OPSET)
    shapes = {"source": source_axes, "context": source_axes, "target": target_axes}
    decoder = _onnx(_NextScores(model), (source, context, target), shapes, "scores", OPSET)
    return {"encoder.onnx": encoder, "decoder.onnx": decoder}


def _onnx(
    model: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    shapes: dict[str, dict[int, Any]],
    output: str,
    opset: int,
) -> bytes:
    """An ONNX file of a model; `shapes` names the axes of each input that may have any size."""
    with torch.no_grad(), _quiet():
        program = export(model.eval(), inputs, dynamic_shapes=shapes)
        exported: Any = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            input_names=list(shapes),
            output_names=[output],
            verbose=False,
        )
    return exported.model_proto.SerializeToString()


@contextmanager
def _quiet() -> Generator[None]:
    """Without the warnings of the exporter, which are about itself and about packages that no model here needs."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    was_disabled = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.disabled = was_disabled


def _some_ids(
    names: tuple[str, ...], batch: int, length: int, longest: int | None
) -> tuple[torch.Tensor, ...]:
    """Ids of texts, whose lengths differ between the inputs, with padding at the end of the first text."""
    lengths = [max(2, min(length - place, longest or length)) for place in range(len(names))]
    texts = [torch.arange(batch * n).view(batch, n) % 3 + 1 for n in lengths]
    for ids in texts:
        ids[0, -1] = 0
    return tuple(texts)


def _difference(model: Any, content: bytes, names: tuple[str, ...], longest: int | None) -> float:
    session = import_module("onnxruntime").InferenceSession(content)
    largest = 0.0
    for batch, length in ((1, 5), (3, 11)):
        texts = _some_ids(names, batch, length, longest)
        inputs = {name: ids.numpy() for name, ids in zip(names, texts, strict=True)}
        (scores,) = session.run(None, inputs)
        difference = (torch.from_numpy(scores) - model(*texts)).abs().max()
        largest = max(largest, float(difference))
    return largest
