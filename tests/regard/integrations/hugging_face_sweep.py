"""Every architecture that transformers can build small, through regard beside its own eager attention.

Harder than what `attach` compares: four rows of fourteen ids, of which one is padded, windows that are shorter than a
row, and weights so large that attention is not uniform.
"""

import contextlib
import json
import signal
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hugging_face_small as small
import torch
from transformers import PreTrainedConfig

from regard.errors import RegardError
from regard.integrations.transformers import attach, detach, explain
from regard.integrations.transformers.comparing import live_positions
from regard.integrations.transformers.tiny_inputs import tiny_inputs

REPORT = (
    Path(__file__).parents[3]
    / "benchmarks"
    / "results"
    / "pretrained_families_cpu"
    / "architectures.json"
)
ROWS = 4
LENGTH = 14
SECONDS = 60
TOLERANCE, CAUSAL = 1e-4, 1e-4  # relative to the norm of an output
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
def _limited() -> Generator[None]:
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
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"type": kind, **_row(kind)}
    except LateError:
        return {"type": kind, "status": UNBUILT, "reason": f"it took more than {SECONDS} seconds"}


def _row(kind: str) -> dict[str, Any]:
    try:
        model = small.built(kind)
    except Exception as error:
        return {"status": UNBUILT, "reason": _first(error)}
    found: dict[str, Any] = {"class": type(model).__name__}
    inputs, expected = _own(model, "eager")
    try:
        attach(model, replace=kind in REPLACED)
    except RegardError as error:
        return found | {"status": REFUSED, "reason": str(error)}
    if model.differing:
        detach(model)
        with contextlib.suppress(ValueError):  # without sdpa it differs by what its sentence says
            inputs, expected = _own(model, "sdpa")
        attach(model)
    found["outside"] = list(dict.fromkeys(model.outside.values()))
    if expected is None:
        return found | {"status": ATTACHED}
    try:
        numbers = _outputs(model, inputs)
        calls = explain(model, inputs).calls
    except RegardError as error:
        if "saw no attention" not in str(error):
            return found | {"status": WRONG, "reason": str(error)}
        return found | {"status": ATTACHED}
    far = max([_far(numbers, expected, inputs, name) for name in expected], default=0.0)
    if not far <= TOLERANCE or _sees_ahead(numbers, expected):
        return found | {"status": WRONG, "far": far}
    return found | {
        "status": PARTLY if found["outside"] else EQUAL,
        "far": far,
        "calls": len(calls),
    }


def _own(model: Any, implementation: str) -> tuple[dict[str, Any], dict[str, torch.Tensor] | None]:
    """The first inputs that the model runs on and its outputs with its own attention; it stays as it was."""
    held = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(one): one for one in held if isinstance(one, PreTrainedConfig)}
    before = [(one, one._attn_implementation) for one in configs.values()]
    model.set_attn_implementation(implementation)
    for one, _ in before:
        one._attn_implementation_internal = implementation
    try:
        for inputs in tiny_inputs(model, ROWS, LENGTH):
            with contextlib.suppress(Exception):
                return inputs, _outputs(model, inputs)
        return {}, None
    except Exception:
        return {}, None
    finally:
        for one, name in before:
            one._attn_implementation_internal = name


def _outputs(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        output = model(**inputs)
    return {
        name: x
        for name, x in output.items()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
    }


def _far(
    found: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    inputs: dict[str, Any],
    name: str,
) -> float:
    """The norm of a difference over that of the output, of live positions; rows with padding are left out otherwise."""
    live = live_positions(inputs, expected[name])
    theirs = expected[name][live]
    if not bool(theirs.isfinite().all()):
        return 0.0
    far = float((found[name][live] - theirs).norm() / theirs.norm().clamp_min(1e-12))
    return far if far == far else float("inf")


def _sees_ahead(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    """Whether another last word changes earlier outputs, where it does not with eager attention."""
    for name, theirs in expected.items():
        if theirs.dim() == 3 and theirs.shape[:2] == (ROWS, LENGTH):
            alone, ours = (
                float((one[0, :-1] - one[2, :-1]).norm() / one.norm())
                for one in (theirs, found[name])
            )
            if alone <= CAUSAL < ours:
                return True
    return False


def _first(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[-1].strip()}"[:160]


def architectures() -> list[str]:
    """The types of models for which transformers lists a class."""
    return [kind for kind in small.types() if small.classes_of(kind)]


def committed() -> dict[str, dict[str, Any]]:
    """The rows of the committed report, by type."""
    return {
        one["type"]: one for one in json.loads(REPORT.read_text(encoding="utf-8"))["architectures"]
    }
