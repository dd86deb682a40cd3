"""Every architecture that transformers can build small, through regard beside its own eager attention.

Harder than what `attach` compares: four rows of fourteen ids, of which one is padded, windows that are shorter than a
row, and weights so large that attention is not uniform.
"""

import contextlib
import json
import math
import signal
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hugging_face_small as small
import torch
from hugging_face_inputs import inputs_of
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
    inputs, expected = _with_own_attention(model, "eager", kind)
    try:
        attach(model, replace=kind in REPLACED)
    except RegardError as error:
        return report | {"status": REFUSED, "reason": str(error)}
    if model.differing:
        detach(model)
        with contextlib.suppress(ValueError):  # without sdpa it differs by what its sentence says
            inputs, expected = _with_own_attention(model, "sdpa", kind)
        attach(model)
    report["outside"] = list(dict.fromkeys(model.outside.values()))
    if expected is None:
        return report | {"status": ATTACHED}
    try:
        outputs = outputs_of(model, inputs)
        calls = explain(model, inputs).calls
    except RegardError as error:
        if "saw no attention" not in str(error):
            return report | {"status": WRONG, "reason": str(error)}
        return report | {"status": ATTACHED}
    far = max([_far(outputs, expected, inputs, name) for name in expected], default=0.0)
    if not far <= TOLERANCE or _sees_ahead(outputs, expected):
        return report | {"status": WRONG, "far": far}
    status = PARTLY if report["outside"] else EQUAL
    return report | {"status": status, "far": far, "calls": len(calls)}


def _with_own_attention(
    model: Any, implementation: str, kind: str
) -> tuple[dict[str, Any], dict[str, torch.Tensor] | None]:
    """The first inputs that the model runs on and its outputs with its own attention; it stays as it was."""
    configs = {id(config): config for config in _configs(model)}
    before = [(config, config._attn_implementation) for config in configs.values()]
    model.set_attn_implementation(implementation)
    for config in configs.values():
        config._attn_implementation_internal = implementation
    try:
        special = inputs_of(kind, model)
        candidates = tiny_inputs(model, ROWS, LENGTH) if special is None else [special]
        for inputs in candidates:
            with contextlib.suppress(Exception):
                return inputs, outputs_of(model, inputs)
        return {}, None
    except Exception:
        return {}, None
    finally:
        for config, name in before:
            config._attn_implementation_internal = name


def _configs(model: Any) -> list[PreTrainedConfig]:
    configs = [getattr(module, "config", None) for module in model.modules()]
    return [config for config in configs if isinstance(config, PreTrainedConfig)]


def outputs_of(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
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
