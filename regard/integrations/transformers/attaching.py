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
from typing import Any, NamedTuple, TypeVar

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from regard.arguments import a_path, yes_or_no
from regard.core.plan import AttentionDetail
from regard.errors import CheckpointError, NotFoundError, RegardError, UnsupportedError
from regard.integrations.snapshot import Snapshot, unchanged
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
BEFORE = "_regard_before"  # on a model: its configs with the implementations that they had
HOOKS = "_regard_hooks"  # on a model: what removes hooks
REPORTED = ("outside", "unchecked", "differing")  # on a model: see `attach`
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
WEIGHTS = "attentions"  # ends of the names of outputs that regard does not return

ModelT = TypeVar("ModelT", bound=nn.Module)
Own = Callable[[str], AbstractContextManager[None]]  # by the name of an implementation
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
    which one is padded and one has another last word, or small images or sounds. A model that differs from its eager
    attention and equals its `sdpa`, such as BLT, is taken, and `model.differing` says so. That is three forward passes
    without gradients, which leave hooks, attributes, buffers, configs and generators as they were; the last one finds a
    model that they changed nevertheless. `model.unchecked` names modules that no such input reached.

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
        The same model, with `outside` (reasons by name), `unchecked` (names) and `differing` (sentences by the class
        of a model). `detach` gives it back its own attention.

    Raises:
        UnsupportedError: no module of the model would call regard, the numbers differ from those of its own attention,
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
    before = [(config, config._attn_implementation) for config in configs]
    switched = _configs_to_switch(model, configs, outside)
    sharing = sharing_of(model, mesh, layout, form)  # ty: ignore[invalid-argument-type]
    new = any(config._attn_implementation != NAME for config in switched)
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
        checked = Checked((), {})
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
            checked = check_equal(model, calling, partial(_own_attention, model, configs, switch))
    except BaseException:
        detach(model)
        raise
    if new or "outside" not in model.__dict__:
        model.__dict__.update(
            outside=outside, unchecked=checked.unreached, differing=checked.differing
        )
        for hook in model.__dict__.get(HOOKS, ()):
            hook.remove()
        # Each model inside refuses output_attentions=True: what models return for it without weights differs.
        names = [(config, config._attn_implementation) for config in configs]
        refuse = partial(_refuse_weights, names)
        model.__dict__[HOOKS] = [
            part.register_forward_pre_hook(refuse, with_kwargs=True)
            for part in models_inside(model)
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
    model: nn.Module,
    configs: list[PreTrainedConfig],
    switch: Callable[[], None],
    implementation: str,
) -> Generator[None]:
    """The model with its own modules, and their own attention of this name, inside the block."""
    _restore_modules(model)
    now = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation_internal = implementation
    try:
        yield
    finally:
        for config, name in zip(configs, now, strict=True):
            config._attn_implementation_internal = name
        switch()


def _refuse_weights(
    names: list[tuple[PreTrainedConfig, str]],
    part: PreTrainedModel,
    given: Any,
    keywords: dict[str, Any],
) -> None:
    """Before a forward of an attached model: refuse to return weights, also where its own code asks for them.

    names: the implementation of each config since `attach`.
    """
    asked = keywords.get("output_attentions")
    if not (part.config.output_attentions if asked is None else asked):
        return
    now = part.config._attn_implementation
    if now == NAME:
        raise UnsupportedError(NO_WEIGHTS)
    if all(config is not part.config or name == now for config, name in names):
        return
    for config, name in names:
        config._attn_implementation_internal = name
    raise UnsupportedError(
        f"{type(part).__name__} is attached, and was set to {now!r} to return weights, as Whisper's "
        f"generate(return_token_timestamps=True) does by itself; regard stores no weights, and computes the model "
        f"again from now on. Call detach(model) before this, and attach(model) after it"
    )


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
    before: list[tuple[PreTrainedConfig, str]] = model.__dict__.pop(BEFORE, [])
    _restore_modules(model)
    for config in configs_inside(model):
        if config._attn_implementation == NAME:
            config._attn_implementation_internal = "sdpa"
    for config, name in before:
        config._attn_implementation_internal = name
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
    """The model attached, and afterwards as it was, whatever runs of the block changed in it."""
    is_attached = any(part.config._attn_implementation == NAME for part in models_inside(model))
    with unchanged(model):
        if is_attached:
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


class Checked(NamedTuple):
    """What the comparison of a model with its own attention found.

    unreached: names of callers that no known inputs reach. differing: of models that differ from eager attention and
    equal their own sdpa, by the name of the class, in which output.
    """

    unreached: tuple[str, ...]
    differing: dict[str, str]


def check_equal(model: nn.Module, callers: Mapping[str, nn.Module], own: Own) -> Checked:
    """Raise unless the models inside of a module give the numbers of their own attention on tiny inputs.

    Each model runs once in the context `own`, in which it computes its own attention, once with regard, and once more
    after all that these runs changed was restored. Numbers may not differ, no earlier word may look at a later one, and
    regard may refuse no call. Everything that the model holds stays as it is.
    """
    left = {id(module): name for name, module in callers.items()}
    differing: dict[str, str] = {}
    for part in models_inside(model):
        if left.keys() & {id(one) for one in part.modules()}:
            for called in _compare(model, part, own, differing):
                left.pop(called, None)
    return Checked(tuple(left.values()), differing)


def _compare(
    model: nn.Module, part: PreTrainedModel, own: Own, differing: dict[str, str]
) -> set[int]:
    """The modules that called regard while a model was compared with its own attention; empty if it cannot run."""
    with _undisturbed(model) as runs:
        inputs = expected = None
        for inputs in tiny_inputs(part):
            try:
                with own("eager"):
                    expected = runs.outputs(part, inputs)
                break
            except Exception:
                continue
        if inputs is None or expected is None:
            return set()
        runs.called.clear()
        found = _run_by_regard(runs, part, inputs)
        called = set(runs.called)
        if not called:
            return called
        difference = _difference(part, inputs, expected, found)
        if difference is not None:
            _check_repeats(runs, part, inputs, own, expected)
            expected = _outputs_of_sdpa(runs, part, inputs, own)
            if expected is None or _difference(part, inputs, expected, found) is not None:
                raise UnsupportedError(f"{type(part).__name__} {difference.refusal}")
            differing[type(part).__name__] = (
                f"equal to its own sdpa attention, which is not its eager attention: {difference.what}"
            )
        again = _run_by_regard(runs, part, inputs)
        difference = _difference(part, inputs, expected, again)
        if difference is not None:
            raise UnsupportedError(_changed(part, difference))
    return called


def _check_repeats(
    runs: _Runs,
    part: PreTrainedModel,
    inputs: Mapping[str, torch.Tensor],
    own: Own,
    expected: Outputs,
) -> None:
    """Raise if a model with its eager attention does not give the same outputs again."""
    with own("eager"):
        again = runs.outputs(part, inputs)
    difference = _difference(part, inputs, expected, again)
    if difference is not None:
        raise UnsupportedError(_changed(part, difference))


def _changed(part: PreTrainedModel, difference: _Difference) -> str:
    return (
        f"{type(part).__name__} is changed by its own forward passes in a way that cannot be taken back, such as in "
        f"its weights: run again on the same inputs, it {difference.what}. It is not attached; load it anew before it "
        f"is used, and call attach(model, check=False), which does not run it"
    )


def _run_by_regard(
    runs: _Runs, part: PreTrainedModel, inputs: Mapping[str, torch.Tensor]
) -> Outputs:
    """The outputs of a model that is attached; what it raises is a reason to refuse it."""
    form = wanted_form.set("absorbed")  # of latent attention; the expanded form is the model's own
    try:
        return runs.outputs(part, inputs)
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


def _outputs_of_sdpa(
    runs: _Runs, part: PreTrainedModel, inputs: Mapping[str, torch.Tensor], own: Own
) -> Outputs | None:
    """The outputs of a model with PyTorch's attention; None if it has none or does not run with it."""
    if not part._supports_sdpa:
        return None
    try:
        with own("sdpa"):
            return runs.outputs(part, inputs)
    except Exception:
        return None


class _Difference(NamedTuple):
    """In which output a model differs from its own attention, and the sentence that refuses it, without its name."""

    what: str
    refusal: str


def _difference(
    part: PreTrainedModel, inputs: Mapping[str, torch.Tensor], expected: Outputs, found: Outputs
) -> _Difference | None:
    """In which output a model differs from its own attention; None if in none."""
    words = inputs.get("decoder_input_ids", inputs.get("input_ids", torch.empty(0)))
    for key, theirs in expected.items():
        ours = found.get(key)
        live = live_positions(inputs, theirs)
        most = max(
            TOLERANCES.get(theirs.dtype, HALF),
            ON_OTHER_DEVICES if part.device.type != "cpu" else 0.0,
        )
        if ours is None or ours.shape != theirs.shape:
            what = f"returns no {key} of {tuple(theirs.shape)}"
            return _Difference(what, f"{what} with regard; nothing was changed")
        far = _relative(ours[live], theirs[live])
        if far > most:
            how_far = f"{key} by {far:.1e} of its norm, where at most {most:.0e} is rounding"
            return _Difference(
                f"differs in {how_far}",
                f"differs from its own eager attention on tiny inputs: {how_far}; nothing was changed; "
                f"attach(model, check=False) skips this comparison",
            )
        if theirs.shape[:2] != (ROWS, LENGTH) or len(words) != ROWS:
            continue
        alone, together = (_relative(one[0, :-1], one[2, :-1]) for one in (theirs, ours))
        if alone <= CAUSAL < together and together > most:
            what = f"lets another last word change {key} of earlier words by {together:.1e} of their norm"
            return _Difference(what, f"is causal, and with regard {what}; nothing was changed")
    more = [key for key in found if key not in expected]
    if more:
        what = f"returns {more[0]} besides the outputs of its own attention"
        return _Difference(what, f"{what} with regard; nothing was changed")
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
    """The tensors of numbers that a model returns, by name, also inside of tuples; no weights of attention."""
    torch.manual_seed(0)
    output = part(**inputs)
    if not isinstance(output, Mapping):
        output = dict(enumerate(output if isinstance(output, tuple) else (output,)))
    waiting = [(str(key), x) for key, x in output.items() if not str(key).endswith(WEIGHTS)]
    found: Outputs = {}
    while waiting:
        key, x = waiting.pop(0)
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            found[key] = x
        elif isinstance(x, tuple | list):
            waiting += [(f"{key}[{at}]", inner) for at, inner in enumerate(x)]
    return found


class _Runs:
    """Forward passes of a model that leave it as it was, and a watcher that notes which modules call regard."""

    def __init__(self, model: nn.Module, snapshot: Snapshot) -> None:
        self._model, self._snapshot = model, snapshot
        self.called: set[int] = set()

    def outputs(self, part: PreTrainedModel, inputs: Mapping[str, torch.Tensor]) -> Outputs:
        """The outputs of a model in eval mode, after which it is as before."""
        for module in self._model.modules():
            module.training = False
        try:
            # Copied, since a model may change in place what it returned.
            return {key: x.clone() for key, x in _outputs(part, inputs).items()}
        finally:
            self._snapshot.restore()

    def wants(self, module: nn.Module) -> None:
        self.called.add(id(module))

    def take(
        self, module: nn.Module, call: ModuleCall, detail: AttentionDetail, output: Any
    ) -> torch.Tensor:
        raise AssertionError("no statistics are wanted")


@contextmanager
def _undisturbed(model: nn.Module) -> Generator[_Runs]:
    """A block whose forward passes leave the model, generators, gradients, observers and warnings as they were."""
    kinds = set(warned)
    with unchanged(model) as snapshot, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = _Runs(model, snapshot)
        token = watchers.set((runs,))
        try:
            yield runs
        finally:
            watchers.reset(token)
            warned.intersection_update(kinds)


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
