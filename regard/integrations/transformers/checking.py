"""Whether a model gives the numbers of its own eager attention on tiny inputs that it may take."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from regard.core.plan import AttentionDetail
from regard.errors import RegardError, UnsupportedError
from regard.integrations.transformers.attending import ModuleCall, warned, watchers
from regard.integrations.transformers.modules import models_inside

__all__ = ["check_equal", "live_positions", "tiny_inputs"]

LENGTH, ROWS, PADDED, FRAMES = 7, 3, 2, 64  # ids of a row; rows; padded ids of the second row; frames of sound
SAMPLES = 4000  # of sound without features
# The largest difference from eager attention, relative to the norm of its output. Half precision is coarse, since a
# rounding error may send a token to another expert.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
ON_OTHER_DEVICES, HALF, CAUSAL = 1e-2, 0.25, 1e-4
NESTED = ("_parameters", "_buffers", "_modules")  # what a module holds in dictionaries of their own

Own = Callable[[], AbstractContextManager[None]]
Outputs = dict[str, torch.Tensor]


class _Calls:
    """A watcher that notes which modules call regard, and asks for no statistics."""

    def __init__(self) -> None:
        self.modules: set[int] = set()

    def wants(self, module: nn.Module) -> None:
        self.modules.add(id(module))

    def take(self, module: nn.Module, call: ModuleCall, detail: AttentionDetail) -> None:
        raise AssertionError("no statistics are wanted")


def check_equal(model: nn.Module, callers: Mapping[str, nn.Module], own: Own) -> tuple[str, ...]:
    """Raise unless the models inside of a module give the numbers of their own attention on tiny inputs.

    Each model runs once with its own attention and once with regard. Modes, generators and gradients stay as they are.

    Args:
        model: an attached model, or a module that holds some.
        callers: the modules that should call regard, by name.
        own: a context in which the model computes its own eager attention.

    Returns:
        The names of modules that were not compared, since no inputs are known that reach them.

    Raises:
        UnsupportedError: numbers differ, an earlier word looks at a later one, or regard refuses a call.
    """
    left = {id(module): name for name, module in callers.items()}
    for part in models_inside(model):
        if left.keys() & {id(one) for one in part.modules()}:
            for called in _compare(part, own):
                left.pop(called, None)
    return tuple(left.values())


def _compare(part: PreTrainedModel, own: Own) -> set[int]:
    """The modules that called regard while a model was compared with its own attention; empty if it cannot run."""
    with _undisturbed(part) as calls:
        inputs = expected = None
        for inputs in tiny_inputs(part):
            try:
                with own():
                    expected = _outputs(part, inputs)
                break
            except Exception:
                continue
        if inputs is None or expected is None:
            return set()
        calls.modules.clear()
        try:
            found = _outputs(part, inputs)
        except RegardError as error:
            raise UnsupportedError(f"{type(part).__name__} is not attached, and stays as it was: {error}") from error
        except Exception as error:
            raise UnsupportedError(
                f"{type(part).__name__} runs with eager attention on tiny inputs, and raises {type(error).__name__} "
                f"with regard ({str(error)[:200]}); nothing was changed"
            ) from error
        if calls.modules and (differs := _difference(part, inputs, expected, found)) is not None:
            raise UnsupportedError(f"{type(part).__name__} {differs}")
    return calls.modules


def _difference(
    part: PreTrainedModel, inputs: Mapping[str, torch.Tensor], expected: Outputs, found: Outputs
) -> str | None:
    """In which output a model differs from its own attention, in words; None if in none."""
    words = inputs.get("decoder_input_ids", inputs.get("input_ids", torch.empty(0)))
    for key, theirs in expected.items():
        ours, live = found.get(key), live_positions(inputs, theirs)
        most = max(TOLERANCES.get(theirs.dtype, HALF), ON_OTHER_DEVICES if part.device.type != "cpu" else 0.0)
        if ours is None or ours.shape != theirs.shape:
            return f"returns no {key} of {tuple(theirs.shape)} with regard; nothing was changed"
        far = _relative(ours[live], theirs[live])
        if far > most:
            return (
                f"differs from its own eager attention on tiny inputs: {key} by {far:.1e} of its norm, where at "
                f"most {most:.0e} is rounding; nothing was changed; attach(model, check=False) skips this comparison"
            )
        if theirs.shape[:2] != (ROWS, LENGTH) or len(words) != ROWS:
            continue
        alone, together = (_relative(one[0, :-1], one[2, :-1]) for one in (theirs, ours))
        if alone <= CAUSAL < together and together > most:
            return (
                f"is causal, and with regard another last word changes {key} of earlier words by "
                f"{together:.1e} of their norm; nothing was changed"
            )
    return None


def live_positions(inputs: Mapping[str, torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    """Where an output is compared: at the live positions of a sequence, otherwise in the rows without padding."""
    mask = inputs.get("decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask")
    if mask is not None and output.shape[:2] == mask.shape:
        return mask.bool()
    if output.dim() and mask is not None and len(output) == len(mask) and "decoder_input_ids" not in inputs:
        return mask.bool().all(-1)
    return torch.ones(output.shape[:1], dtype=torch.bool, device=output.device)


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of a difference over that of what is expected; 0 where the latter is not finite."""
    found, expected = found.double(), expected.double()
    if not bool(expected.isfinite().all()):
        return 0.0
    far = float((found - expected).norm() / expected.norm().clamp_min(1e-12))
    return far if far == far else float("inf")


def _outputs(part: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> Outputs:
    """The tensors of numbers that a model returns, by name."""
    torch.manual_seed(0)
    output = part(**inputs)
    if not isinstance(output, Mapping):
        output = dict(enumerate(output if isinstance(output, tuple) else (output,)))
    return {str(key): x for key, x in output.items() if isinstance(x, torch.Tensor) and x.is_floating_point()}


@contextmanager
def _undisturbed(part: nn.Module) -> Generator[_Calls]:
    """A block whose forward passes leave modules, generators, gradients, observers and warnings as they were.

    What a module holds is kept by name, since a forward pass may change it: BigBird exchanges its attention for short
    inputs, and some rotary positions their frequencies.
    """
    devices = {one.device for one in part.parameters() if one.device.type == "cuda"}
    held = [(module, type(module), _held(module)) for module in part.modules()]
    calls, kinds = _Calls(), set(warned)
    token = watchers.set((calls,))
    try:
        with torch.random.fork_rng([*devices]), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for module, _, _ in held:
                module.training = False
            yield calls
    finally:
        watchers.reset(token)
        warned.intersection_update(kinds)
        for module, kind, attributes in held:
            module.__class__ = kind
            _hold(module, attributes)


def _held(module: nn.Module) -> dict[str, Any]:
    return {name: dict(value) if name in NESTED else value for name, value in module.__dict__.items()}


def _hold(module: nn.Module, attributes: dict[str, Any]) -> None:
    """Give a module back what it held; the dictionaries of its tensors and parts stay the same objects."""
    for name in module.__dict__.keys() - attributes.keys():
        del module.__dict__[name]
    for name, value in attributes.items():
        if name not in NESTED:
            module.__dict__[name] = value
        elif [*map(id, module.__dict__[name].values())] != [*map(id, value.values())]:
            module.__dict__[name].clear()
            module.__dict__[name].update(value)


def tiny_inputs(part: PreTrainedModel, rows: int = ROWS, length: int = LENGTH) -> Iterator[dict[str, Any]]:
    """Inputs that a model may take, by the names of its keywords: the first ones that it runs on are used.

    Of ids, the second row is padded, and the third is the first with another last word.
    """
    device, config = part.device, part.config
    takes = tuple(inspect.signature(type(part).forward).parameters)
    if device.type == "meta":
        return
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device, part.dtype)

    size, channels = _image(config), _first(config, "num_channels", "in_channels", "in_chans") or 3
    bins = _first(config, "num_mel_bins", "feature_size", "input_feat_per_channel", "hidden_size") or 80
    frames = 2 * (_first(config, "max_source_positions") or FRAMES // 2)
    words = _ids(part, rows, length, generator)
    more: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if config.is_encoder_decoder and "decoder_input_ids" in takes:
        more["decoder_input_ids"] = words["input_ids"].flip(0)[: 2 if part.main_input_name != "input_ids" else rows]
    pixels = {"pixel_values": drawn(2, channels, *size)}
    if "input_ids" in takes:
        yield words | more
        if "pixel_values" in takes:
            yield {name: one[:2] for name, one in words.items()} | pixels | more
    if "pixel_values" in takes:
        yield pixels | more
        yield {"pixel_values": drawn(2, _first(config, "num_frames") or 2, channels, *size)} | more
    if "grid_thw" in takes:
        numbers = channels * (_first(config, "temporal_patch_size") or 1) * (_first(config, "patch_size") or 1) ** 2
        grid = torch.tensor([[1, 4, 4]], device=device)
        for name in ("hidden_states", "pixel_values"):
            if name in takes:
                yield {name: drawn(16, numbers), "grid_thw": grid}
    if "input_values" in takes:
        yield {"input_values": drawn(2, SAMPLES)} | more
        yield {"input_values": drawn(2, 1, SAMPLES)} | more
    if "input_features" in takes:
        yield {"input_features": drawn(2, bins, frames)} | more
        yield {"input_features": drawn(2, frames, bins)} | more


def _ids(part: PreTrainedModel, rows: int, length: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Ids that no config names as a sign, and the mask of their padding: left of causal models, right of others."""
    config = part.config.get_text_config()
    size = _first(config, "vocab_size") or _first(part.config, "vocab_size") or 2
    signs = {value for one in (part.config, config) for value in _signs(one)}
    words = [one for one in range(min(size, 1000)) if one not in signs] or [0]
    ids = torch.tensor(words)[torch.randint(len(words), (rows, length), generator=generator)]
    live = torch.ones(rows, length, dtype=torch.long)
    left = part.can_generate() and not part.config.is_encoder_decoder
    live[1, slice(0, PADDED) if left else slice(length - PADDED, length)] = 0
    pad = getattr(config, "pad_token_id", None)
    ids[1] = ids[1].masked_fill(live[1] == 0, pad if isinstance(pad, int) and 0 <= pad < size else words[0])
    ids[2] = ids[0]
    ids[2, -1] = words[(words.index(int(ids[0, -1])) + 1) % len(words)]
    return {"input_ids": ids.to(part.device), "attention_mask": live.to(part.device)}


def _signs(config: Any) -> Iterator[int]:
    for name, value in config.to_dict().items():
        if name.endswith(("token_id", "token_index", "token")):
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int))


def _first(config: Any, *names: str) -> int | None:
    """The first of these settings that is a whole number."""
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def _image(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", None) or getattr(getattr(config, "vision_config", None), "image_size", None)
    if isinstance(size, dict):
        size = size["height"], size["width"]
    return (size, size) if isinstance(size, int) else tuple(size)[-2:] if size else (64, 64)
