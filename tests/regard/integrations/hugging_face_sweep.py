"""Every architecture that transformers can build small, through regard beside its own eager attention.

Harder than what `attach` compares: four rows of fourteen ids, of which one is padded, windows that are shorter than a
row, and weights so large that attention is not uniform. Where the outputs have gradients, those are compared too.
"""

import contextlib
import json
import math
import signal
import warnings
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hugging_face_small as small
import torch
from hugging_face_checks import relative
from hugging_face_inputs import inputs_of
from torch import nn
from transformers import PreTrainedConfig

from regard.errors import RegardError
from regard.integrations.transformers import attach, detach, explain
from regard.integrations.transformers.comparing import unpadded_positions
from regard.integrations.transformers.tiny_inputs import tiny_inputs

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
REPORT = RESULTS / "pretrained_families_cpu" / "architectures.json"
ROWS = 4
LENGTH = 14
SECONDS = 60
# Relative to the norm of an output: of all unpadded positions, and of earlier ones after another last word.
TOLERANCE = 1e-4
CAUSAL = 1e-4
# Relative to the norm of one gradient, or to 1e-3 of the largest.
GRADIENTS = 1e-4
# The same in float64, of models whose gradients differ by more in float32: what is rounding falls with the precision.
# Not to 1e-16, since some models round to float32 on their way, as for their softmax.
DOUBLE = 1e-6
REPLACED = ("longformer", "led", "big_bird")
EQUAL = "equal"
PARTLY = "equal, parts outside"
ATTACHED = "not compared"
REFUSED = "refused"
UNBUILT = "not built"
WRONG = "wrong"


class LateError(BaseException):
    """A model took longer than SECONDS."""


@contextlib.contextmanager
def limited() -> Generator[None]:
    def late(*_: Any) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def row(kind: str) -> dict[str, Any]:
    """What regard does with an architecture: its status, and how far numbers differ or why it is not computed."""
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"type": kind, **_row(kind)}
    except LateError:
        return {"type": kind, "status": UNBUILT, "reason": f"it took more than {SECONDS} seconds"}


def _row(kind: str) -> dict[str, Any]:
    try:
        model = small.built(kind)
    except Exception as error:
        return {"status": UNBUILT, "reason": sentence_of(error)}
    report: dict[str, Any] = {"class": type(model).__name__}
    own = _with_own_attention(model, "eager", kind)
    try:
        attach(model, replace=kind in REPLACED)
    except RegardError as error:
        return report | {"status": REFUSED, "reason": str(error)}
    implementation = "eager"
    if any("sdpa" in sentence for sentence in model.differing.values()):
        implementation = "sdpa"
        detach(model)
        own = _with_own_attention(model, implementation, kind)
        attach(model)
    report["outside"] = list(dict.fromkeys(model.outside.values()))
    if own is None:
        return report | {"status": ATTACHED}
    try:
        outputs = outputs_of(model, own.inputs)
        calls = explain(model, own.inputs).calls
    except RegardError as error:
        if "saw no attention" not in str(error):
            return report | {"status": WRONG, "reason": str(error)}
        return report | {"status": ATTACHED}
    far = max([_far(outputs, own.outputs, own.inputs, name) for name in own.outputs], default=0.0)
    if not far <= TOLERANCE or _sees_ahead(outputs, own.outputs):
        return report | {"status": WRONG, "far": far}
    report |= {"far": far, "calls": len(calls), **_compared_gradients(model, own)}
    if not report.get("gradients", 0.0) <= GRADIENTS:
        report["gradients in double"] = _gradients_in_double(kind, implementation)
        if not report["gradients in double"] <= DOUBLE:
            return report | {"status": WRONG}
    return report | {"status": PARTLY if report["outside"] else EQUAL}


@dataclass
class _Own:
    """What a model computes with its own attention; without gradients, `ungraded` says why it has none."""

    inputs: dict[str, Any]
    outputs: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    ungraded: str = ""


def _with_own_attention(model: Any, implementation: str, kind: str) -> _Own | None:
    """The first inputs that the model runs on, and what it computes of them; it stays as it was."""
    configs = {id(config): config for config in _configs(model)}
    before = [(config, config._attn_implementation) for config in configs.values()]
    with contextlib.suppress(ValueError):  # not the model, but parts of it may have sdpa
        model.set_attn_implementation(implementation)
    for config in configs.values():
        config._attn_implementation_internal = implementation
    try:
        special = inputs_of(kind, model)
        candidates = tiny_inputs(model, ROWS, LENGTH) if special is None else [special]
        candidates = (_of_dtype(inputs, model.dtype) for inputs in candidates)
        for inputs in candidates:
            with contextlib.suppress(Exception):
                own = _Own(inputs, outputs_of(model, inputs))
                return _with_gradients(model, own)
        return None
    except Exception:
        return None
    finally:
        for config, name in before:
            config._attn_implementation_internal = name


def _of_dtype(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Inputs whose numbers are of a dtype."""
    cast = {}
    for name, x in inputs.items():
        is_numbers = isinstance(x, torch.Tensor) and x.is_floating_point()
        cast[name] = x.to(dtype) if is_numbers else x
    return cast


def _with_gradients(model: Any, own: _Own) -> _Own:
    try:
        own.gradients = gradients_of(model, own.inputs, own.outputs)
    except Exception as error:
        own.ungraded = sentence_of(error)
    return own


def _compared_gradients(model: Any, own: _Own) -> dict[str, Any]:
    """How far the gradients of an attached model differ, or why they were not compared."""
    if own.ungraded:
        return {"ungraded": own.ungraded}
    try:
        gradients = gradients_of(model, own.inputs, own.outputs)
    except Exception as error:
        return {"gradients": math.inf, "raised": sentence_of(error)}
    # Those that are no numbers with the model's own attention are not compared.
    expected = {name: x for name, x in own.gradients.items() if bool(x.isfinite().all())}
    ours = {name: x for name, x in gradients.items() if name in expected}
    if gradients.keys() != own.gradients.keys() or not _are_finite(ours):
        return {"gradients": math.inf}
    return {"gradients": relative(ours, expected)}


def _gradients_in_double(kind: str, implementation: str) -> float:
    """How far the gradients of a model of float64 differ."""
    model = small.built(kind).double()
    own = _with_own_attention(model, implementation, kind)
    assert own is not None
    attach(model, replace=kind in REPLACED, check=False)
    return _compared_gradients(model, own).get("gradients", math.inf)


def _are_finite(gradients: dict[str, torch.Tensor]) -> bool:
    return all(bool(gradient.isfinite().all()) for gradient in gradients.values())


def gradients_of(
    model: Any, inputs: dict[str, Any], expected: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Gradients of the outputs, weighted by random factors and added, by parameter, by input, and by embeddings.

    A sum without factors would not do: that of a layer norm is constant. expected: outputs, which tell the positions.

    Raises:
        ValueError: no output has a gradient.
    """
    numbers = {
        name: x.clone().requires_grad_()
        for name, x in inputs.items()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
    }
    embedded: list[torch.Tensor] = []

    def keep(_: Any, __: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.retain_grad()
            embedded.append(output)

    embeddings = _input_embeddings(model)
    hook = None if embeddings is None else embeddings.register_forward_hook(keep)
    try:
        # Copied, since a model may change its inputs in place, which leaves refuse.
        copies = {name: x.clone() for name, x in numbers.items()}
        outputs = _tensors(model, inputs | copies)
        _weighted_sum(outputs, expected, inputs).backward()
    finally:
        if hook is not None:
            hook.remove()
        parameters = dict(model.named_parameters())
        leaves = parameters | numbers | {f"embeddings {i}": x for i, x in enumerate(embedded)}
        gradients = {name: x.grad for name, x in leaves.items() if x.grad is not None}
        model.zero_grad()
    return gradients


def _input_embeddings(model: Any) -> nn.Module | None:
    try:
        return model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return None


def _weighted_sum(
    outputs: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], inputs: dict[str, Any]
) -> torch.Tensor:
    """The sum of all outputs at the positions that are compared, each times a number of its own."""
    generator = torch.Generator().manual_seed(9)
    terms = []
    for name, output in outputs.items():
        unpadded = unpadded_positions(inputs, expected[name])
        if output.requires_grad and bool(expected[name][unpadded].isfinite().all()):
            numbers = output[unpadded]
            factors = torch.randn(numbers.shape, generator=generator).to(numbers.dtype)
            terms.append((numbers * factors).sum())
    if not terms:
        raise ValueError("no output has a gradient")
    return torch.stack(terms).sum()


def _configs(model: Any) -> list[PreTrainedConfig]:
    configs = [getattr(module, "config", None) for module in model.modules()]
    return [config for config in configs if isinstance(config, PreTrainedConfig)]


def outputs_of(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        return _tensors(model, inputs)


def _tensors(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The outputs that are tensors of numbers."""
    torch.manual_seed(0)
    output = model(**inputs)
    tensors = {name: x for name, x in output.items() if isinstance(x, torch.Tensor)}
    return {name: x for name, x in tensors.items() if x.is_floating_point()}


def _far(
    outputs: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    inputs: dict[str, Any],
    name: str,
) -> float:
    """The norm of a difference over that of the output, where `unpadded_positions` compares it."""
    unpadded = unpadded_positions(inputs, expected[name])
    theirs = expected[name][unpadded]
    if not bool(theirs.isfinite().all()):
        return 0.0
    far = float((outputs[name][unpadded] - theirs).norm() / theirs.norm().clamp_min(1e-12))
    return float("inf") if math.isnan(far) else far


def _sees_ahead(outputs: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether another last word changes earlier outputs, where it does not with eager attention."""
    for name, theirs in expected.items():
        if theirs.dim() != 3 or theirs.shape[:2] != (ROWS, LENGTH):
            continue
        if _change_ahead(theirs) <= CAUSAL < _change_ahead(outputs[name]):
            return True
    return False


def _change_ahead(output: torch.Tensor) -> float:
    """How far the earlier outputs of two rows differ, whose last words differ."""
    return float((output[0, :-1] - output[2, :-1]).norm() / output.norm())


def sentence_of(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[-1].strip()}"[:160]


def architectures() -> list[str]:
    """The types of models for which transformers lists a class."""
    return [kind for kind in small.types() if small.classes_of(kind)]


def committed() -> dict[str, dict[str, Any]]:
    """The rows of the committed report, by type."""
    rows = json.loads(REPORT.read_text(encoding="utf-8"))["architectures"]
    return {row["type"]: row for row in rows}
