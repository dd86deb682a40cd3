"""Whether `attach` and `detach` leave a model of transformers as it was: hooks, attributes, buffers, configs, outputs.

What a model holds is described here by code of its own, which shares nothing with the snapshot that is tested.
"""

import copy
import itertools
import types
import warnings
from collections import deque
from typing import Any

import hugging_face_sweep as sweep
import torch
from hugging_face_families import REFUSED, REPLACED, Family
from torch import nn
from transformers import PreTrainedModel

from regard.errors import RegardError, UnsupportedError
from regard.integrations.transformers import attach, detach
from regard.integrations.transformers.comparing import unpadded_positions
from regard.integrations.transformers.tiny_inputs import tiny_inputs

ROWS = 3
LENGTH = 11
TOLERANCE = 1e-4  # relative to the norm of an output
OPTIONS = [
    {"hidden_states": hidden_states, "attentions": attentions, "use_cache": use_cache}
    for hidden_states, attentions, use_cache in itertools.product((True, False), repeat=3)
]
ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, type)


class Description:
    """Every object that a model reaches by attributes and containers, by the path to it.

    Two descriptions are equal if the same objects are at the same paths, with the same contents.
    """

    def __init__(self, model: nn.Module) -> None:
        self.lines: dict[str, Any] = {}
        self._seen: dict[int, Any] = {}
        self._describe("model", model)

    def changes_to(self, other: "Description") -> list[str]:
        """The paths at which another description differs."""
        paths = dict.fromkeys([*self.lines, *other.lines])
        missing = object()
        pairs = {
            path: (self.lines.get(path, missing), other.lines.get(path, missing)) for path in paths
        }
        return [path for path, (before, now) in pairs.items() if before != now]

    def _describe(self, path: str, value: Any) -> None:
        if isinstance(value, ATOMS):
            self.lines[path] = repr(value)
            return
        self.lines[path] = type(value).__name__, id(value)
        if id(value) in self._seen or isinstance(value, types.ModuleType):
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self._describe_tensor(path, value)
        if isinstance(value, dict):
            self.lines[f"{path} keys"] = [repr(key) for key in value]
            for key, content in value.items():
                self._describe(f"{path}[{key!r}]", content)
        if isinstance(value, list | tuple | deque):
            self.lines[f"{path} length"] = len(value)
            for index, content in enumerate(value):
                self._describe(f"{path}[{index}]", content)
        if isinstance(value, set | frozenset):
            self.lines[f"{path} members"] = sorted(map(repr, value))
        if isinstance(value, types.FunctionType | types.MethodType):
            return
        for name, attribute in getattr(value, "__dict__", {}).items():
            self._describe(f"{path}.{name}", attribute)
        if isinstance(value, nn.Module):
            self.lines[f"{path} attributes"] = list(value.__dict__)

    def _describe_tensor(self, path: str, x: torch.Tensor) -> None:
        self.lines[f"{path} learns"] = x.requires_grad
        self.lines[f"{path} sizes"] = x.shape, x.stride(), x.data_ptr()
        numbers = x.detach().cpu().contiguous().view(-1).tolist()
        self.lines[f"{path} numbers"] = repr(numbers)  # so that NaN equals NaN


def flattened(output: Any, path: str = "output") -> dict[str, torch.Tensor]:
    """The tensors of numbers in what a model returns, also inside of tuples and mappings, without caches."""
    if isinstance(output, torch.Tensor):
        return {path: output} if output.is_floating_point() else {}
    items: Any = ()
    if isinstance(output, tuple | list):
        items = enumerate(output)
    elif isinstance(output, dict):
        items = output.items()
    tensors: dict[str, torch.Tensor] = {}
    for name, item in items:
        tensors |= flattened(item, f"{path}.{name}")
    return tensors


def _outputs(model: Any, inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    with torch.no_grad():
        return flattened(model(**inputs))


def _weights(outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of attention among the outputs of a model."""
    return {name: x for name, x in outputs.items() if name.split(".")[1].endswith("attentions")}


def _differences(
    when: str,
    inputs: dict[str, Any],
    expected: dict[str, torch.Tensor],
    outputs: dict[str, torch.Tensor],
) -> list[str]:
    if list(expected) != list(outputs):
        return [f"{when}: {len(outputs)} outputs instead of {len(expected)}"]
    faults = []
    for name, theirs in expected.items():
        unpadded = unpadded_positions(inputs, theirs)
        ours = outputs[name][unpadded].double()
        theirs = theirs[unpadded].double()
        if not bool(theirs.isfinite().all()):
            continue
        far = float((ours - theirs).norm() / theirs.norm().clamp_min(1e-12))
        if not far <= TOLERANCE:
            faults.append(f"{when}: {name} differs by {far:.1e} of its norm")
    return faults


def _first_inputs(model: Any) -> dict[str, Any] | None:
    """The first tiny inputs that a copy of a model runs on, which its own config lets keep a cache or not."""
    for inputs in tiny_inputs(model, ROWS, LENGTH):
        options = {name: value for name, value in inputs.items() if name != "use_cache"}
        try:
            _outputs(copy.deepcopy(model), options)
        except Exception:
            continue
        return options
    return None


def _set(model: nn.Module, options: dict[str, bool]) -> None:
    parts = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
    for config in [part.config for part in parts]:
        if options["attentions"]:
            config._attn_implementation_internal = "eager"
        config.output_hidden_states = options["hidden_states"]
        config.output_attentions = options["attentions"]
    # Of the outermost model alone: encoders refuse to keep a cache.
    for config in (parts[0].config, parts[0].config.get_text_config()):
        if hasattr(config, "use_cache"):
            config.use_cache = options["use_cache"]


def row(model: Any, options: dict[str, bool], replace: bool = False) -> dict[str, Any]:
    """What `attach` and `detach` change in a model that was never run; `faults` is empty if nothing."""
    _set(model, options)
    inputs = _first_inputs(model)
    never_attached = copy.deepcopy(model)
    before = Description(model)
    try:
        attach(model, replace=replace)
    except RegardError as refused:
        changes = before.changes_to(Description(model))
        faults = [f"refused, and changed: {path}" for path in changes]
        return {"status": sweep.REFUSED, "reason": str(refused), "faults": faults}
    detach(model)
    faults = [f"changed: {path}" for path in before.changes_to(Description(model))]
    if inputs is None:
        return {"status": sweep.ATTACHED, "faults": faults}
    attach(model, replace=replace)
    expected = _outputs(never_attached, inputs)
    unasked = {} if options["attentions"] else _weights(expected)
    if unasked and "without being asked" not in " ".join(model.differing.values()):
        faults.append(f"during: nothing says that {[*unasked]} are not returned")
    numbers = {name: x for name, x in expected.items() if name not in unasked}
    try:
        during = _outputs(model, inputs)
    except UnsupportedError as refused:
        if not options["attentions"] or "stores no weights" not in str(refused):
            faults.append(f"during: {refused}")
    else:
        faults += _differences("during", inputs, numbers, during)
    detach(model)
    faults += _differences("after", inputs, expected, _outputs(model, inputs))
    return {"status": sweep.EQUAL, "outputs": len(numbers), "faults": faults}


def row_of_family(family: Family, options: dict[str, bool]) -> dict[str, Any]:
    assert family.status != REFUSED
    return row(family.model(), options, family.status == REPLACED)


def row_of_kind(kind: str, options: dict[str, bool]) -> dict[str, Any]:
    """The same of an architecture that transformers can build small."""
    try:
        with sweep.limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = sweep.small.built(kind)
            except Exception as error:
                return {"status": sweep.UNBUILT, "reason": sweep.sentence_of(error), "faults": []}
            return row(model, options, kind in sweep.REPLACED)
    except sweep.LateError:
        return {"status": sweep.UNBUILT, "reason": "it took too long", "faults": []}
