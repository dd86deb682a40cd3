"""Compares an attached model with its own attention, on tiny inputs that it may take."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from regard.core.plan import AttentionDetail
from regard.errors import RegardError, UnsupportedError
from regard.integrations.snapshot import Snapshot, unchanged
from regard.integrations.transformers.attending import ModuleCall, warned, watchers
from regard.integrations.transformers.latents import wanted_form
from regard.integrations.transformers.modules import configs_inside, models_inside
from regard.integrations.transformers.tiny_inputs import LENGTH, ROWS, tiny_inputs

__all__ = [
    "Checked",
    "TinyOutputs",
    "check_equal",
    "unpadded_positions",
]

# The largest difference from eager attention, relative to the norm of its output. Half precision is coarse, since a
# rounding error may send a token to another expert.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
TOLERANCE_OF_HALF = 0.25
TOLERANCE_ON_OTHER_DEVICES = 1e-2
# The largest change of earlier words by another last word, relative to their norm, in a model that is causal.
TOLERANCE_OF_CAUSAL = 1e-4
SMALLEST_NORM = 1e-12
WEIGHTS = "attentions"  # ends of the names of outputs that regard does not return
MOST_CHARACTERS = 200  # of the message of an exception

OwnAttention = Callable[[str], AbstractContextManager[None]]  # by the name of an implementation
Outputs = dict[str, torch.Tensor]


class Checked(NamedTuple):
    """What the comparison of a model with its own attention found.

    unreached: names of callers that no known inputs reach. differing: in which output a model that is taken differs
    from its eager attention, by the name of its class.
    """

    unreached: tuple[str, ...]
    differing: dict[str, str]


def check_equal(
    model: nn.Module, callers: Mapping[str, nn.Module], own_attention: OwnAttention
) -> Checked:
    """Raise unless the models inside of a module give the numbers of their own attention on tiny inputs.

    Each model runs once in the context `own_attention`, once with regard, and once more after all that these runs
    changed was restored. Numbers may not differ, no earlier word may look at a later one, and regard may refuse no
    call. Everything that the model holds stays as it is.
    """
    unreached = {id(module): name for name, module in callers.items()}
    differing: dict[str, str] = {}
    for part in models_inside(model):
        if unreached.keys().isdisjoint(map(id, part.modules())):
            continue
        with _undisturbed(model) as runs:
            comparison = _begin(runs, part, own_attention)
            if comparison is None:
                continue
            sentence = comparison.check()
        if sentence is not None:
            differing[type(part).__name__] = sentence
        for called in comparison.called:
            unreached.pop(called, None)
    return Checked(tuple(unreached.values()), differing)


def _begin(runs: _Runs, part: PreTrainedModel, own_attention: OwnAttention) -> _Comparison | None:
    """The comparison on the first tiny inputs that a model runs on with its eager attention; None if on none."""
    for inputs in tiny_inputs(part):
        try:
            with own_attention("eager"):
                eager = runs.outputs(part, inputs)
        except Exception:
            continue
        return _Comparison(runs, part, own_attention, inputs, eager)
    return None


class TinyOutputs:
    """What the models inside of a module return for tiny inputs, to be compared with what they return later."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._earlier: list[tuple[PreTrainedModel, Mapping[str, torch.Tensor], Outputs]] = []
        with _undisturbed(model) as runs:
            for part in models_inside(model):
                for inputs in tiny_inputs(part):
                    try:
                        outputs = runs.outputs(part, inputs)
                    except Exception:
                        continue
                    self._earlier.append((part, inputs, outputs))
                    break

    def __repr__(self) -> str:
        return f"TinyOutputs({', '.join(type(part).__name__ for part, _, _ in self._earlier)})"

    def check_again(self, when: str) -> None:
        """Raise unless the models return the same now, up to rounding; `when` names what was changed."""
        with _undisturbed(self._model) as runs:
            for part, inputs, earlier in self._earlier:
                name = type(part).__name__
                try:
                    outputs = runs.outputs(part, inputs)
                except Exception as error:
                    raise UnsupportedError(
                        f"{name} raises {type(error).__name__} {when} ({str(error)[:MOST_CHARACTERS]}); nothing was "
                        f"changed"
                    ) from error
                for key, expected in earlier.items():
                    distance = _relative(outputs[key], expected)
                    if distance > TOLERANCES.get(expected.dtype, TOLERANCE_OF_HALF):
                        raise UnsupportedError(
                            f"{name} differs {when} in {key} by {distance:.1e} of its norm; nothing was changed"
                        )


class _Difference(NamedTuple):
    """In which output a model differs from its own attention, and the sentence that refuses it, without its name."""

    what: str
    refusal: str


class _Comparison:
    """One model beside its own attention, on inputs that it runs on.

    Args:
        runs: in which the model stays as it is.
        part: the model.
        own_attention: the context in which it computes its own attention.
        inputs: what it is called with.
        eager: the outputs of its eager attention.
    """

    def __init__(
        self,
        runs: _Runs,
        part: PreTrainedModel,
        own_attention: OwnAttention,
        inputs: Mapping[str, torch.Tensor],
        eager: Outputs,
    ) -> None:
        self.part = part
        self.inputs = inputs
        self.called: set[int] = set()  # ids of the modules that called regard
        self._runs = runs
        self._own_attention = own_attention
        self._eager = eager
        self._name = type(part).__name__

    def check(self) -> str | None:
        """Raise unless the numbers are equal; returns a sentence on what may differ, or None."""
        self._runs.called.clear()
        outputs = self._outputs_by_regard()
        self.called = set(self._runs.called)
        if not self.called:
            return None

        expected = self._eager
        sentences = []
        difference = self._difference(expected, outputs)
        if difference is not None:
            self._check_own_attention_repeats()
            sdpa = self._outputs_of_sdpa()
            if sdpa is None or self._difference(sdpa, outputs) is not None:
                raise UnsupportedError(f"{self._name} {difference.refusal}")
            sentences.append(
                f"equal to its own sdpa attention, which is not its eager attention: {difference.what}"
            )
            expected = sdpa
        sentences += self._unasked_weights()

        self._check_unchanged(self._difference(expected, self._outputs_by_regard()))
        return "; ".join(sentences) or None

    def _unasked_weights(self) -> list[str]:
        """A sentence on the weights that eager attention returns although no config asks for them, if it does."""
        asked = any(config.output_attentions for config in configs_inside(self.part))
        names = {_output_of(key): None for key in self._eager if _is_weights(key)}
        if asked or not names:
            return []
        return [
            f"its eager attention returns {', '.join(names)} without being asked, and regard's attention stores no "
            f"weights, so these outputs hold none; collect them with: with observe(model, 'weights') as observed: ..."
        ]

    def _check_own_attention_repeats(self) -> None:
        """Raise if the model with its eager attention does not give the same outputs again."""
        with self._own_attention("eager"):
            again = self._runs.outputs(self.part, self.inputs)
        self._check_unchanged(self._difference(self._eager, again))

    def _check_unchanged(self, difference: _Difference | None) -> None:
        if difference is None:
            return
        raise UnsupportedError(
            f"{self._name} is changed by its own forward passes in a way that cannot be taken back, such as in its "
            f"weights: run again on the same inputs, it {difference.what}. It is not attached; load it anew before it "
            f"is used, and call attach(model, check=False), which does not run it"
        )

    def _outputs_by_regard(self) -> Outputs:
        """The outputs of the attached model; what it raises is a reason to refuse it."""
        # Latent attention is compared absorbed: expanded it computes what the model itself does.
        form = wanted_form.set("absorbed")
        try:
            return self._runs.outputs(self.part, self.inputs)
        except RegardError as error:
            raise UnsupportedError(
                f"{self._name} is not attached, and stays as it was: {error}"
            ) from error
        except Exception as error:
            raise UnsupportedError(
                f"{self._name} runs with eager attention on tiny inputs, and raises {type(error).__name__} with "
                f"regard ({str(error)[:MOST_CHARACTERS]}); nothing was changed"
            ) from error
        finally:
            wanted_form.reset(form)

    def _outputs_of_sdpa(self) -> Outputs | None:
        """The outputs of the model with PyTorch's attention; None if no part has that, or it does not run with it.

        Grounding DINO has none, but its text encoder does, and is loaded with it.
        """
        if not any(part._supports_sdpa for part in models_inside(self.part)):
            return None
        try:
            with self._own_attention("sdpa"):
                return self._runs.outputs(self.part, self.inputs)
        except Exception:
            return None

    def _difference(self, expected: Outputs, outputs: Outputs) -> _Difference | None:
        """In which output the model differs from its own attention, weights aside; None if in none."""
        for key, theirs in expected.items():
            if _is_weights(key):
                continue
            ours = outputs.get(key)
            if ours is None or ours.shape != theirs.shape:
                what = f"returns no {key} of {tuple(theirs.shape)}"
                return _Difference(what, f"{what} with regard; nothing was changed")
            difference = self._distance(key, theirs, ours) or self._look_ahead(key, theirs, ours)
            if difference is not None:
                return difference
        for key in outputs:
            if key not in expected and not _is_weights(key):
                what = f"returns {key} besides the outputs of its own attention"
                return _Difference(what, f"{what} with regard; nothing was changed")
        return None

    def _distance(self, key: str, theirs: torch.Tensor, ours: torch.Tensor) -> _Difference | None:
        """The difference of an output whose numbers are not those of the model's own attention; None if they are."""
        unpadded = unpadded_positions(self.inputs, theirs)
        distance = _relative(ours[unpadded], theirs[unpadded])
        tolerance = self._tolerance(theirs)
        if distance <= tolerance:
            return None
        how_far = f"{key} by {distance:.1e} of its norm, where at most {tolerance:.0e} is rounding"
        return _Difference(
            f"differs in {how_far}",
            f"differs from its own eager attention on tiny inputs: {how_far}; nothing was changed; "
            f"attach(model, check=False) skips this comparison",
        )

    def _look_ahead(self, key: str, theirs: torch.Tensor, ours: torch.Tensor) -> _Difference | None:
        """The difference of an output whose earlier words see the last one with regard alone; None otherwise.

        The first and the third row of ids differ in their last word.
        """
        words = self.inputs.get("decoder_input_ids", self.inputs.get("input_ids"))
        if words is None or len(words) != ROWS or theirs.shape[:2] != (ROWS, LENGTH):
            return None
        own_change = _relative(theirs[0, :-1], theirs[2, :-1])
        change = _relative(ours[0, :-1], ours[2, :-1])
        if own_change > TOLERANCE_OF_CAUSAL or change <= TOLERANCE_OF_CAUSAL:
            return None
        if change <= self._tolerance(theirs):
            return None
        what = f"lets another last word change {key} of earlier words by {change:.1e} of their norm"
        return _Difference(what, f"is causal, and with regard {what}; nothing was changed")

    def _tolerance(self, output: torch.Tensor) -> float:
        tolerance = TOLERANCES.get(output.dtype, TOLERANCE_OF_HALF)
        if self.part.device.type == "cpu":
            return tolerance
        return max(tolerance, TOLERANCE_ON_OTHER_DEVICES)


def unpadded_positions(inputs: Mapping[str, torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    """Where an output is compared: at the unpadded positions of a sequence, otherwise in the rows without padding."""
    decodes = "decoder_input_ids" in inputs
    mask = inputs.get("decoder_attention_mask" if decodes else "attention_mask")
    if mask is not None and output.shape[:2] == mask.shape:
        return mask.bool()
    if mask is not None and not decodes and output.dim() and len(output) == len(mask):
        return mask.bool().all(-1)
    return torch.ones(output.shape[:1], dtype=torch.bool, device=output.device)


def _relative(output: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of a difference over that of what is expected; 0 where the latter is not finite."""
    output = output.double()
    expected = expected.double()
    if not bool(expected.isfinite().all()):
        return 0.0
    distance = float((output - expected).norm() / expected.norm().clamp_min(SMALLEST_NORM))
    is_nan = distance != distance
    return float("inf") if is_nan else distance


def _output_of(key: str) -> str:
    """The name of the output that a tensor inside of tuples is in."""
    return key.partition("[")[0]


def _is_weights(key: str) -> bool:
    return _output_of(key).endswith(WEIGHTS)


def _outputs(part: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> Outputs:
    """The tensors of numbers that a model returns, by name, also inside of tuples: those of a tuple get its index."""
    torch.manual_seed(0)
    output = part(**inputs)
    if not isinstance(output, Mapping):
        output = dict(enumerate(output if isinstance(output, tuple) else (output,)))
    waiting = [(str(key), value) for key, value in output.items()]
    tensors: Outputs = {}
    while waiting:
        key, value = waiting.pop(0)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            tensors[key] = value
        elif isinstance(value, tuple | list):
            waiting += [(f"{key}[{index}]", inner) for index, inner in enumerate(value)]
    return tensors


@dataclass
class _Runs:
    """Forward passes of a model that leave it as it was, and a watcher that notes which modules call regard."""

    model: nn.Module
    snapshot: Snapshot

    def __post_init__(self) -> None:
        self.called: set[int] = set()

    def outputs(self, part: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> Outputs:
        """The outputs of a model in eval mode, after which it is as before."""
        for module in self.model.modules():
            module.training = False
        try:
            # Copied, since a model may change in place what it returned.
            return {key: x.clone() for key, x in _outputs(part, inputs).items()}
        finally:
            self.snapshot.restore()

    def wants(self, module: nn.Module) -> None:
        self.called.add(id(module))

    def take(
        self, module: nn.Module, call: ModuleCall, detail: AttentionDetail, output: Any
    ) -> torch.Tensor:
        raise AssertionError("no statistics are wanted")


@contextmanager
def _undisturbed(model: nn.Module) -> Generator[_Runs]:
    """A block whose forward passes leave the model, generators, gradients, observers and warnings as they were."""
    warned_before = set(warned)
    with unchanged(model) as snapshot, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = _Runs(model, snapshot)
        token = watchers.set((runs,))
        try:
            yield runs
        finally:
            watchers.reset(token)
            warned.intersection_update(warned_before)
