"""Loads a model, switches its attention to regard and back, and refuses models that would never call it.

What is attached is compared with the model's own eager attention, on tiny inputs that it may take.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from regard.arguments import a_path, yes_or_no
from regard.core.plan import AttentionDetail
from regard.errors import CheckpointError, NotFoundError, RegardError, UnsupportedError
from regard.integrations.transformers.attending import ModuleCall, warned, watchers
from regard.integrations.transformers.latents import give_back, keep_latents, wanted_form
from regard.integrations.transformers.masks import NO_WEIGHTS
from regard.integrations.transformers.modules import (
    callers,
    configs_inside,
    exchangeable,
    models_inside,
    outside_of,
    owner_of,
    recurs,
    replaceable,
)
from regard.integrations.transformers.recurring import exchange_recurrent, restore_recurrent
from regard.integrations.transformers.sharing import HOOKS as SHARED
from regard.integrations.transformers.sharing import share_model, sharing_of

__all__ = ["attach", "attached", "detach", "live_positions", "load_folder", "tiny_inputs"]

NAME = "regard"
REPLACEMENTS = "_regard_replacements"  # what `replace_attention` changed in a model, oldest first
BEFORE, HOOKS = (
    "_regard_before",
    "_regard_hooks",
)  # on a model: its settings by the id of the config; what removes hooks
REPORTED = ("outside", "unchecked")  # on a model: see `attach`
LENGTH, ROWS, PADDED, FRAMES = (
    7,
    3,
    2,
    64,
)  # ids of a row; rows; padded ids of the second row; frames of sound
SAMPLES = 4000  # of sound without features
# The largest difference from eager attention, relative to the norm of its output. Half precision is coarse, since a
# rounding error may send a token to another expert.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
ON_OTHER_DEVICES = 1e-2
HALF = 0.25
CAUSAL = 1e-4
NESTED = ("_parameters", "_buffers", "_modules")  # what a module holds in dictionaries of their own

ModelT = TypeVar("ModelT", bound=nn.Module)
Own = Callable[[], AbstractContextManager[None]]
Outputs = dict[str, torch.Tensor]


def attach(
    model: ModelT,
    *,
    replace: bool = False,
    check: bool = True,
    mesh: Any = None,
    layout: str = "contiguous",
    form: str = "auto",
) -> ModelT:
    """Make regard compute the attention of a loaded model, part by part.

    Modules that would not call regard, such as windows in a model's own code, stay as they are. `model.outside` names
    them with the reason. A model without any module that calls regard is refused. The attention of Bloom, MPT, MPNet,
    DeBERTa, WavLM, TrOCR and Falcon is exchanged for modules of regard with the same weights. So are the recurrent
    layers of hybrid models: gated delta (Qwen3-Next, Qwen3.5, OLMo Hybrid), Kimi delta, Mamba-2 and lightning
    (MiniMax); on a GPU with the kernels that transformers calls for them, they stay.

    Before it returns, the model is compared with its own eager attention on tiny inputs: three rows of seven ids, of
    which one is padded and one has another last word, or small images or sounds. That is two forward passes without
    gradients, which leave modes, generators and caches as they were. `model.unchecked` names modules that no such input
    reached.

    With `mesh` each process computes its own part of the sequence, and calls the model with the ids of that part, in
    the same order; see `part_of_batch`. Outputs are those of its positions. The gradients of weights are this
    process's part: sum them over the processes.

    Args:
        model: a model of transformers with its weights, or a module that holds one (peft, sentence-transformers).
        replace: exchange the attention modules of Longformer, LED and BigBird, which never call registered attention,
            for modules of regard with the same weights and the same numbers.
        check: False skips the comparison.
        mesh: a DeviceMesh of one dimension, or a ProcessGroup, whose processes share the sequence.
        layout: with `mesh`: "contiguous" or "zigzag", see `regard.distributed.Layout`.
        form: with `mesh`: as for `regard.distributed.attention`.

    Returns:
        The same model, with `outside` (reasons by name) and `unchecked` (names). `detach` gives it back its own
        attention.

    Raises:
        UnsupportedError: no module of the model would call regard, the numbers differ from those of eager attention,
            or the model cannot be divided among processes; nothing was changed.
        ArgumentError: no model of transformers, or layout or form without mesh.

    >>> import transformers
    >>> config = transformers.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    >>> model = attach(transformers.GPT2Model(config))
    >>> model.config._attn_implementation, model.outside
    ('regard', {})
    >>> detach(model).config._attn_implementation
    'sdpa'
    """
    yes_or_no("check", check)
    exchanged = [
        part
        for part in models_inside(model)
        if exchangeable(part) or (replace and replaceable(part))
    ]
    replaced = {id(part) for part in exchanged if replaceable(part)}
    outside = outside_of(model, [*exchanged, *filter(recurs, model.modules())])
    configs = configs_inside(model)
    before = {id(config): config._attn_implementation for config in configs}
    switched = _configs_to_switch(model, configs, outside)
    sharing = sharing_of(model, mesh, layout, form)  # ty: ignore[invalid-argument-type]
    new = any(before[id(config)] != NAME for config in switched)
    model.__dict__.setdefault(BEFORE, before)

    def switch() -> None:
        exchange_recurrent(model)
        if exchanged:
            _replaced().replace_modules(model)
        for config in switched:
            config._attn_implementation_internal = NAME
        for part in exchanged:
            if type(part).__module__.endswith(
                ("modeling_longformer", "modeling_led", "modeling_mpt")
            ):
                part.config._attn_implementation_internal = (
                    "eager"  # its own code reads the numbers of that mask
                )

    try:
        switch()
        unchecked: tuple[str, ...] = ()
        calling = callers(model)
        keep_latents(calling.values(), NAME)
        _check_set(
            model,
            [
                module
                for name, module in calling.items()
                if id(owner_of(model, name)) not in replaced
            ],
        )
        if check and new and not any(one in model.__dict__ for one in (REPLACEMENTS, SHARED)):
            unchecked = check_equal(model, calling, partial(_own_attention, model, configs, switch))
    except BaseException:
        detach(model)
        raise
    if new or "outside" not in model.__dict__:
        model.__dict__.update(outside=outside, unchecked=unchecked)
        # Each model inside refuses output_attentions=True: what models return for it without weights differs.
        parts = models_inside(model)
        model.__dict__[HOOKS] = [
            one.register_forward_pre_hook(_refuse_weights, with_kwargs=True) for one in parts
        ]
    share_model(model, sharing)  # ty: ignore[invalid-argument-type]
    return model


def _configs_to_switch(
    model: nn.Module, configs: list[PreTrainedConfig], outside: dict[str, str]
) -> list[PreTrainedConfig]:
    """The configs without those that modules outside read, and no module that calls regard."""
    calling = callers(model)
    read = {True: set(), False: set()}
    for name, module in model.named_modules():
        if name in calling or name in outside:
            config = getattr(module, "config", None) or owner_of(model, name).config
            read[name in calling].add(id(config))
    return [config for config in configs if id(config) not in read[False] - read[True]]


def _check_set(model: nn.Module, calling: list[nn.Module]) -> None:
    """Raise for attention modules that would read another implementation from their configs."""
    configs = [(type(one).__name__, getattr(one, "config", None)) for one in calling]
    missed = {
        kind for kind, config in configs if getattr(config, "_attn_implementation", NAME) != NAME
    }
    if missed:
        raise UnsupportedError(
            f"attn_implementation='{NAME}' cannot be set on {', '.join(sorted(missed))} inside of "
            f"{type(model).__name__}, so regard would compute a part of it only; nothing was changed"
        )


@contextmanager
def _own_attention(
    model: nn.Module, configs: list[PreTrainedConfig], switch: Callable[[], None]
) -> Generator[None]:
    """The model with its own modules and their eager attention inside the block."""
    _restore_modules(model)
    now = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation_internal = "eager"
    try:
        yield
    finally:
        for config, name in zip(configs, now, strict=True):
            config._attn_implementation_internal = name
        switch()


def _refuse_weights(part: PreTrainedModel, given: Any, keywords: dict[str, Any]) -> None:
    asked = keywords.get("output_attentions")
    if (
        part.config.output_attentions if asked is None else asked
    ) and part.config._attn_implementation == NAME:
        raise UnsupportedError(NO_WEIGHTS)


def detach(model: ModelT) -> ModelT:
    """Give a model back the attention that it had before `attach`, and undo what `replace_attention` changed.

    Args:
        model: a model that was attached, or made with attn_implementation="regard", which then gets "sdpa".

    Returns:
        The same model.
    """
    for replacement in [*model.__dict__.get(REPLACEMENTS, ())]:
        replacement.undo()
    share_model(model, None)  # ty: ignore[invalid-argument-type]
    give_back(model)
    for hook in model.__dict__.pop(HOOKS, ()):
        hook.remove()
    for name in REPORTED:
        model.__dict__.pop(name, None)
    before: dict[int, str] = model.__dict__.pop(BEFORE, {})
    _restore_modules(model)
    for config in configs_inside(model):
        if config._attn_implementation == NAME or id(config) in before:
            config._attn_implementation_internal = before.get(id(config), "sdpa")
    return model


def _restore_modules(model: nn.Module) -> None:
    """Give the modules that were exchanged their own classes."""
    restore_recurrent(model)
    if any(replaceable(part) or exchangeable(part) for part in models_inside(model)):
        _replaced().restore_modules(model)


def _replaced() -> ModuleType:
    """The replacements, which load the code of the models that they replace."""
    return import_module("regard.integrations.transformers.replaced")


@contextmanager
def attached(model: PreTrainedModel) -> Generator[None]:
    """The model attached, and given back its own attention afterwards if it was not."""
    if any(part.config._attn_implementation == NAME for part in models_inside(model)):
        yield
        return
    attach(model, check=False)
    try:
        yield
    finally:
        detach(model)


def load_folder(folder: str | Path) -> tuple[PreTrainedModel, Any]:
    """Load a model in eval mode, and its tokenizer, from a folder in the format of Hugging Face.

    Only files of the folder are read: no network, no code of the folder, and weights as safetensors alone.

    Raises:
        NotFoundError: no folder, or one without a tokenizer.
        UnsupportedError: a class that this version of transformers does not have.
        CheckpointError: the weights cannot be read.

    >>> load_folder("nowhere")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere is not a folder; give one with config.json, weights and a tokenizer
    """
    folder = a_path("folder", folder)
    if not folder.is_dir():
        raise NotFoundError(
            f"{folder} is not a folder; give one with config.json, weights and a tokenizer"
        )
    own: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(folder, **own)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedError(
            f"{folder} has no config that transformers can read: {_first_line(error)}"
        ) from error
    named = (config.architectures or [None])[0]
    kind = getattr(transformers, named, None) if named else transformers.AutoModel
    if kind is None:
        raise UnsupportedError(
            f"{folder} holds a {named}, which transformers {transformers.__version__} does not have"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **own)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise NotFoundError(
            f"{folder} has no tokenizer that transformers can read: {_first_line(error)}"
        ) from error
    try:
        model = kind.from_pretrained(folder, use_safetensors=True, **own)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the weights in {folder} cannot be read: {_first_line(error)}"
        ) from error
    return model.eval(), tokenizer


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


class _Calls:
    """A watcher that notes which modules call regard, and asks for no statistics."""

    def __init__(self) -> None:
        self.modules: set[int] = set()

    def wants(self, module: nn.Module) -> None:
        self.modules.add(id(module))

    def take(
        self, module: nn.Module, call: ModuleCall, detail: AttentionDetail, output: Any
    ) -> torch.Tensor:
        raise AssertionError("no statistics are wanted")


def check_equal(model: nn.Module, callers: Mapping[str, nn.Module], own: Own) -> tuple[str, ...]:
    """Raise unless the models inside of a module give the numbers of their own attention on tiny inputs.

    Each model runs once in the context `own`, in which it computes its own attention, and once with regard. Numbers may
    not differ, no earlier word may look at a later one, and regard may refuse no call. Modes, generators and gradients
    stay as they are. Returns the names of those callers that no known inputs reach.
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
        form = wanted_form.set(
            "absorbed"
        )  # of latent attention; the expanded form is the model's own
        try:
            found = _outputs(part, inputs)
        except RegardError as error:
            raise UnsupportedError(
                f"{type(part).__name__} is not attached, and stays as it was: {error}"
            ) from error
        except Exception as error:
            raise UnsupportedError(
                f"{type(part).__name__} runs with eager attention on tiny inputs, and raises {type(error).__name__} "
                f"with regard ({str(error)[:200]}); nothing was changed"
            ) from error
        finally:
            wanted_form.reset(form)
        if calls.modules and (differs := _difference(part, inputs, expected, found)) is not None:
            raise UnsupportedError(f"{type(part).__name__} {differs}")
    return calls.modules


def _difference(
    part: PreTrainedModel, inputs: Mapping[str, torch.Tensor], expected: Outputs, found: Outputs
) -> str | None:
    """In which output a model differs from its own attention, in words; None if in none."""
    words = inputs.get("decoder_input_ids", inputs.get("input_ids", torch.empty(0)))
    for key, theirs in expected.items():
        ours = found.get(key)
        live = live_positions(inputs, theirs)
        most = max(
            TOLERANCES.get(theirs.dtype, HALF),
            ON_OTHER_DEVICES if part.device.type != "cpu" else 0.0,
        )
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
    mask = inputs.get(
        "decoder_attention_mask" if "decoder_input_ids" in inputs else "attention_mask"
    )
    if mask is not None and output.shape[:2] == mask.shape:
        return mask.bool()
    if (
        output.dim()
        and mask is not None
        and len(output) == len(mask)
        and "decoder_input_ids" not in inputs
    ):
        return mask.bool().all(-1)
    return torch.ones(output.shape[:1], dtype=torch.bool, device=output.device)


def _relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of a difference over that of what is expected; 0 where the latter is not finite."""
    found = found.double()
    expected = expected.double()
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
    return {
        str(key): x
        for key, x in output.items()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
    }


@contextmanager
def _undisturbed(part: nn.Module) -> Generator[_Calls]:
    """A block whose forward passes leave modules, generators, gradients, observers and warnings as they were.

    What a module holds is kept by name, since a forward pass may change it: BigBird exchanges its attention for short
    inputs, and some rotary positions their frequencies.
    """
    devices = {one.device for one in part.parameters() if one.device.type == "cuda"}
    held = [(module, type(module), _held(module)) for module in part.modules()]
    calls = _Calls()
    kinds = set(warned)
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
    return {
        name: dict(value) if name in NESTED else value for name, value in module.__dict__.items()
    }


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


def tiny_inputs(
    part: PreTrainedModel, rows: int = ROWS, length: int = LENGTH
) -> Iterator[dict[str, Any]]:
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

    size = _image(config)
    channels = _setting(config, "num_channels", "in_channels", "in_chans") or 3
    bins = (
        _setting(config, "num_mel_bins", "feature_size", "input_feat_per_channel", "hidden_size")
        or 80
    )
    frames = 2 * (_setting(config, "max_source_positions") or FRAMES // 2)
    words = _ids(part, rows, length, generator)
    more: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if config.is_encoder_decoder and "decoder_input_ids" in takes:
        more["decoder_input_ids"] = words["input_ids"].flip(0)[
            : 2 if part.main_input_name != "input_ids" else rows
        ]
    pixels = {"pixel_values": drawn(2, channels, *size)}
    if "input_ids" in takes:
        yield words | more
        if "pixel_values" in takes:
            yield {name: one[:2] for name, one in words.items()} | pixels | more
    if "pixel_values" in takes:
        yield pixels | more
        yield {
            "pixel_values": drawn(2, _setting(config, "num_frames") or 2, channels, *size)
        } | more
    if "grid_thw" in takes:
        numbers = (
            channels
            * (_setting(config, "temporal_patch_size") or 1)
            * (_setting(config, "patch_size") or 1) ** 2
        )
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


def _ids(
    part: PreTrainedModel, rows: int, length: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Ids that no config names as a sign, and the mask of their padding: left of causal models, right of others."""
    config = part.config.get_text_config()
    size = _setting(config, "vocab_size") or _setting(part.config, "vocab_size") or 2
    signs = {value for one in (part.config, config) for value in _signs(one)}
    words = [one for one in range(min(size, 1000)) if one not in signs] or [0]
    ids = torch.tensor(words)[torch.randint(len(words), (rows, length), generator=generator)]
    live = torch.ones(rows, length, dtype=torch.long)
    left = part.can_generate() and not part.config.is_encoder_decoder
    live[1, slice(0, PADDED) if left else slice(length - PADDED, length)] = 0
    pad = getattr(config, "pad_token_id", None)
    ids[1] = ids[1].masked_fill(
        live[1] == 0, pad if isinstance(pad, int) and 0 <= pad < size else words[0]
    )
    ids[2] = ids[0]
    ids[2, -1] = words[(words.index(int(ids[0, -1])) + 1) % len(words)]
    return {"input_ids": ids.to(part.device), "attention_mask": live.to(part.device)}


def _signs(config: Any) -> Iterator[int]:
    for name, value in config.to_dict().items():
        if name.endswith(("token_id", "token_index", "token")):
            yield from (
                one
                for one in (value if isinstance(value, list) else [value])
                if isinstance(one, int)
            )


def _setting(config: Any, *names: str) -> int | None:
    """The first of these settings that is a whole number."""
    return next(
        (value for name in names if isinstance(value := getattr(config, name, None), int)), None
    )


def _image(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", None) or getattr(
        getattr(config, "vision_config", None), "image_size", None
    )
    if isinstance(size, dict):
        size = size["height"], size["width"]
    return (size, size) if isinstance(size, int) else tuple(size)[-2:] if size else (64, 64)
