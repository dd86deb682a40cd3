"""Linear layers whose weights are packed once for inference, in the order in which oneDNN multiplies them."""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

from regard.arguments import count_of, of_kind
from regard.errors import ShapeError, UnsupportedError
from regard.exporting import exporting
from regard.layers.latent import LatentAttention
from regard.layers.projection import Projection, is_plain_tensor, project
from regard.reprs import brief

__all__ = ["PackedWeights", "pack_weights", "unpack_weights"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)
DTYPES = (torch.float32, torch.bfloat16)
KINDS = (nn.Linear, Projection)  # exactly these; a subclass may do more than multiply
ROWS = 64  # that oneDNN is told to expect; from 16 rows on its order of numbers is the same
# The activations that oneDNN applies to a product: by name, its own name and variant. "none" applies nothing.
ACTIVATIONS = {
    "none": ("none", ""),
    "gelu": ("gelu", "none"),
    "gelu-tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
}
# Layers of PyTorch that read the weights of the linear layers inside of them, instead of calling them.
READ_WEIGHTS = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
# What a packed layer notes of its weight. A compiler reads numbers and flags, since it cannot look at the weight.
NOTES = ("packed", "dtype", "learns", "number", "origin", "origin_version")
UNPACK = "unpack_weights(model) undoes it, and so does detach(model) after attach(model, pack=True)"


@brief
@dataclass(frozen=True)
class PackedWeights:
    """Which linear layers of a module are packed.

    Args:
        layers: their names.
        plain: the reason why a linear layer stayed as it was, by name.
        bytes: of the packed weights. Each is kept once; the plain weight is freed, unless something else holds it.
    """

    layers: tuple[str, ...]
    plain: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 0

    def __str__(self) -> str:
        layers = count_of(len(self.layers), "linear layers")
        lines = [f"{layers} packed, {self.bytes / 2**20:.1f} MiB in place of as many"]
        lines += [f"{name} stays plain: {reason}" for name, reason in self.plain.items()]
        return "\n".join(lines)


def pack_weights(module: nn.Module) -> PackedWeights:
    """Pack the weights of the linear layers in a module once, instead of in every call; for inference on a CPU.

    In every call of a linear layer, PyTorch rearranges the weight into the order that its product reads. This function
    does so once. The results differ by rounding alone. It gains most for 3 to 100 rows, and for few rows of bfloat16; a
    layer of float32 that is called with one row, as in a step of decoding, loses a little.

    The plain weight is not kept: `layer.weight` becomes the packed tensor, which has a dtype, a shape and a device, and
    whose elements cannot be read or written. `state_dict` returns plain weights, and `load_state_dict`, `to`, copies
    and pickles pack again. A weight that is assigned to the layer is used plain. A parameter that was taken from the
    layer before no longer belongs to it: if it is changed in place, the next call raises. A change through its `.data`
    cannot be noticed.

    A packed layer computes no gradients: its calls raise in training mode, and with gradients enabled where its weights
    or its input need them. Layers whose weights are shared, on another device or in another dtype than float32 and
    bfloat16 stay as they are, and so do those whose weights are read by other modules.

    Args:
        module: a module in eval mode, such as `MultiHeadAttention` or a whole model.

    Returns:
        The layers that are packed now, also those that were before; those that stayed plain, with the reasons; and the
        bytes.

    Raises:
        UnsupportedError: the module is in training mode, none of its layers can be packed, or this PyTorch cannot pack
            weights on this processor; nothing was changed.

    >>> layer = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).eval()
    >>> x = torch.randn(5, 8)
    >>> with torch.inference_mode():
    ...     before = layer(x)
    ...     packed = pack_weights(layer)
    ...     print(packed.layers, torch.allclose(layer(x), before, atol=1e-5))
    ('0', '2') True
    >>> unpack_weights(layer)[0].weight.shape
    torch.Size([64, 8])
    """
    of_kind("module", module, nn.Module, "a module of PyTorch")
    check_packable(module)
    read_by_others = _read_by_others(module)
    uses = _uses_of_parameters(module)
    layers: list[str] = []
    plain: dict[str, str] = {}
    packed_bytes = 0
    for name, layer in module.named_modules():
        if type(layer) in KINDS or (isinstance(layer, PackedLinear) and not layer.is_packed):
            refusal = read_by_others.get(id(layer)) or _why_plain(layer, uses)
            if refusal is not None:
                plain[name] = refusal
                continue
            PackedLinear.pack(layer)
        if isinstance(layer, PackedLinear) and layer.is_packed:
            layers.append(name)
            packed_bytes += layer.weight.numel() * layer.weight.element_size()
    if not layers:
        name, why = next(iter(plain.items()), ("it", "it has none"))
        raise UnsupportedError(
            f"{type(module).__name__} has no linear layer that can be packed ({name}: {why}); packed are those of "
            f"float32 or bfloat16 on the CPU that are {' or '.join(sorted({kind.__name__ for kind in KINDS}))}"
        )
    return PackedWeights(tuple(layers), plain, packed_bytes)


def check_packable(module: nn.Module) -> None:
    """Raise where no weight of a module can be packed: in training mode, and without the product of oneDNN."""
    if module.training:
        raise UnsupportedError(
            f"{type(module).__name__} is in training mode, and packed weights are for inference; call .eval() first"
        )
    reason = why_not_packed_here()
    if reason is not None:
        raise UnsupportedError(f"weights cannot be packed: {reason}; the module stays as it is")


def unpack_weights(module: ModuleT) -> ModuleT:
    """Give the packed linear layers of a module their plain weights and their own class back.

    Args:
        module: a module that `pack_weights` was given.

    Returns:
        The same module, with the same bits in its weights. A parameter that something else still holds, such as an
        optimiser, is the parameter of its layer again.
    """
    of_kind("module", module, nn.Module, "a module of PyTorch")
    for layer in [*module.modules()]:
        if isinstance(layer, PackedLinear):
            layer.unpack()
    return module


@cache
def why_not_packed_here() -> str | None:
    """Why this PyTorch cannot pack weights on this processor; None if it can."""
    x = torch.ones(2, 3)
    try:
        product = _multiply(x, _pack(torch.ones(5, 3)), None)
    except (AttributeError, RuntimeError) as error:
        return f"PyTorch {torch.__version__} has no packed product of oneDNN here ({error})"
    if not torch.equal(product, torch.full((2, 5), 3.0)):
        return "oneDNN multiplies wrongly on this processor"
    return None


def _pack(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)


def _multiply(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return _operation()(x, packed, bias, "none", [], "")


def _operation() -> Any:
    """The product of oneDNN, which can also activate or add."""
    return torch.ops.mkldnn._linear_pointwise


def _read_by_others(module: nn.Module) -> dict[int, str]:
    """Linear layers whose matrix another module reads, by identity, with the reason to leave them."""
    reasons: dict[int, str] = {}
    for owner in module.modules():
        if isinstance(owner, READ_WEIGHTS):
            reason = f"{type(owner).__name__} of PyTorch reads its weight itself"
            reasons |= {id(layer): reason for layer in owner.modules()}
        if isinstance(owner, LatentAttention):
            reason = "latent attention multiplies queries by its matrix"
            reasons |= {id(owner.to_k): reason, id(owner.to_v): reason}
        kv_b_proj = getattr(owner, "kv_b_proj", None)  # latent attention in models of transformers
        if kv_b_proj is not None:
            reasons[id(kv_b_proj)] = "latent attention multiplies queries by its matrix"
    return reasons


def _uses_of_parameters(module: nn.Module) -> Counter[int]:
    """How many modules hold each parameter, by its identity."""
    uses: Counter[int] = Counter()
    for owner in module.modules():
        uses.update(id(parameter) for parameter in owner._parameters.values())
    return uses


def _why_plain(layer: nn.Linear, uses: Counter[int]) -> str | None:
    """Why a linear layer stays as it is; None if it can be packed."""
    weight = layer._parameters.get("weight")
    if weight is None or not is_plain_tensor(weight):
        return "its weight is no plain parameter"
    if uses[id(weight)] > 1:
        return "its weight is shared with another layer"
    if weight.device.type != "cpu":
        return f"its weight lies on {weight.device.type}"
    if "forward" in layer.__dict__:
        return "its forward was replaced"
    if weight.dtype not in DTYPES:
        return f"its weight is {str(weight.dtype).removeprefix('torch.')}"
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this processor multiplies no bfloat16"
    return None if weight.numel() else "its weight is empty"


# Packed layers by a number, with which a compiled graph names them: a packed weight cannot stand in a graph.
_layers: weakref.WeakValueDictionary[int, PackedLinear] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class PackedLinear(Projection):
    """A linear layer whose weight is packed: `weight` is a tensor of oneDNN, and the only copy.

    A layer becomes one by a change of its class, so that hooks and references to it stay.
    """

    own_kind: type[nn.Linear]
    packed: torch.Tensor  # the same tensor as `weight`, until another one is assigned
    dtype: torch.dtype
    learns: bool  # whether the parameter needed a gradient
    number: int
    origin: Any  # a weak reference to the parameter that was packed, which others may still hold
    origin_version: int

    @staticmethod
    def pack(layer: nn.Linear) -> None:
        """Turn a linear layer into a packed one; also one of this class, whose weight is plain now."""
        packed = _packed_parameter(layer.weight)  # before anything changes
        if not isinstance(layer, PackedLinear):
            layer.__dict__["own_kind"] = type(layer)
            layer.__class__ = PackedLinear
        assert isinstance(layer, PackedLinear)
        layer._hold(packed)

    def unpack(self) -> None:
        """Become the plain layer again."""
        self._hold_plain()
        attributes = self.__dict__
        # First of all the class: a layer that is interrupted behind it is a plain one.
        self.__class__ = attributes["own_kind"]
        for name in ("own_kind", *NOTES):
            attributes.pop(name, None)

    @property
    def is_packed(self) -> bool:
        """False after a plain weight was assigned, or the layer was moved to where it cannot be packed."""
        packed = self.__dict__.get("packed")
        return packed is not None and self.__dict__.get("weight") is packed

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """(..., in_features) -> (..., out_features)."""
        if "weight" in self._parameters:
            return project(input, self.weight, self.bias)
        # Before anything looks at the packed weight: strict export cannot take it.
        if exporting() or torch._C._get_tracing_state() is not None:
            raise UnsupportedError(
                f"packed weights belong to this process and processor, and cannot be exported; {UNPACK}"
            )
        if not self.is_packed:  # a plain tensor stands in its place, as in functional_call
            return project(input, self.weight, self.bias)
        self._check_call(input)
        if torch.compiler.is_compiling():
            return torch.ops.regard.packed_product(input, self.number)
        return self.multiply(input)

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """The product with the packed weight, which the operation in a compiled graph computes too."""
        origin = self.origin()
        if origin is not None and origin._version != self.origin_version:
            raise UnsupportedError(
                f"the parameter of {self.in_features} by {self.out_features} from which a weight was packed was "
                f"changed in place since, and the packed weight was not; {UNPACK}, and then it can be packed again"
            )
        return _multiply(x, self.weight, self.bias)

    def is_current(self) -> bool:
        """Whether the layer holds its packed weight, and the parameter that was packed has not changed since."""
        own = self.__dict__
        if own.get("weight") is not own.get("packed"):
            return False
        origin = own["origin"]()
        return origin is None or origin._version == own["origin_version"]

    def multiply_and_activate(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """The product, with one of ACTIVATIONS applied to it while it is in the processor's cache.

        The caller checks before that `is_current` is true and that `forward` takes x.
        """
        name, form = ACTIVATIONS[activation]
        return _operation().default(x, self.weight, self._parameters["bias"], name, [], form)

    def multiply_and_add(self, x: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        """The product plus a tensor of its shape; the caller checks what `multiply_and_activate` asks for."""
        if added.shape[-1] != self.out_features or added.shape[:-1] != x.shape[:-1]:
            raise ShapeError(
                f"{(*added.shape,)} cannot be added to the product of {(*x.shape,)} and a matrix of "
                f"{self.out_features} rows"
            )
        return _operation().binary(x, added, self.weight, self._parameters["bias"], "add")

    def _check_call(self, x: torch.Tensor) -> None:
        """Raise for a call that a packed layer does not compute."""
        if self.training:
            raise UnsupportedError(
                f"a layer with packed weights is in training mode, and they are for inference; {UNPACK}"
            )
        if torch.is_grad_enabled() and self._needs_gradients(x):
            raise UnsupportedError(
                f"packed weights give no gradients, and gradients are enabled; call the model within "
                f"torch.inference_mode() or torch.no_grad(). {UNPACK}"
            )
        if x.dtype != self.dtype or torch.is_autocast_enabled("cpu"):
            autocast = ", under autocast" if torch.is_autocast_enabled("cpu") else ""
            raise UnsupportedError(
                f"weights were packed in {self.dtype}, and the input is {x.dtype}{autocast}; give inputs of "
                f"that dtype, without autocast. {UNPACK}"
            )
        if x.device.type != "cpu" or x.shape[-1:] != (self.in_features,):
            raise UnsupportedError(
                f"weights were packed for inputs on the CPU with {self.in_features} numbers, and the input has "
                f"{x.shape[-1] if x.ndim else 0} on {x.device.type}"
            )

    def _needs_gradients(self, x: torch.Tensor) -> bool:
        bias = self.bias
        learns = self.learns or (bias is not None and bias.requires_grad)
        return learns or x.requires_grad

    # --- which weight the layer holds ---

    def _hold(self, packed: torch.Tensor) -> None:
        """Hold a packed weight in the place of the parameter."""
        parameter = self._parameters["weight"]
        assert parameter is not None
        # PyTorch counts no changes of a tensor of inference mode.
        is_counted = not parameter.is_inference()
        # Numbers are never used twice, so a graph that was compiled for an earlier weight finds none.
        number = next(_numbers)
        _layers[number] = self
        self.__dict__.update(
            weight=packed,
            packed=packed,
            dtype=packed.dtype,
            learns=packed.requires_grad,
            number=number,
            origin=weakref.ref(parameter) if is_counted else _nothing,
            origin_version=parameter._version if is_counted else 0,
        )
        del self._parameters["weight"]

    def _hold_plain(self) -> None:
        """Hold the plain weight as a parameter; nothing changes where it is one already."""
        if not self.is_packed:
            return
        parameter = self.origin()
        if parameter is None:
            parameter = _plain_parameter(self.packed)
        # In front of the bias, where a linear layer has it.
        self._parameters = {"weight": parameter, **self._parameters}
        del self.__dict__["weight"]

    def _hold_packed_again(self) -> None:
        """Pack the parameter, if it can be packed where it is now."""
        weight = self._parameters.get("weight")
        if weight is not None and _why_plain(self, Counter()) is None:
            PackedLinear.pack(self)

    # --- what PyTorch does with the weights of a module ---

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._hold_plain()
        try:
            return super()._apply(fn, recurse)
        finally:
            self._hold_packed_again()

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        if self.is_packed:
            destination[f"{prefix}weight"] = self.weight.detach().to_dense()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *args: Any, **keywords: Any) -> None:
        self._hold_plain()
        try:
            super()._load_from_state_dict(*args, **keywords)
        finally:
            self._hold_packed_again()

    def __getstate__(self) -> dict[str, Any]:
        """The attributes with a plain weight: a packed one cannot be stored."""
        state = self.__dict__.copy()
        for name in NOTES:
            state.pop(name, None)
        if self.is_packed:
            parameter = _plain_parameter(state.pop("weight"))
            state["_parameters"] = {"weight": parameter, **self._parameters}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._hold_packed_again()

    @property
    def qconfig(self) -> Any:
        """As of `Projection`: PyTorch's quantisation would leave the layer as it is without a message."""
        raise AttributeError("qconfig")

    @qconfig.setter
    def qconfig(self, value: Any) -> None:
        raise UnsupportedError(
            f"torch.ao.quantization reads the weights of linear layers, and these are packed; {UNPACK}"
        )


def _nothing() -> None:
    """Stands for the weak reference to a parameter whose changes PyTorch does not count."""


def _packed_parameter(parameter: torch.Tensor) -> torch.Tensor:
    """The packed weight of a parameter, which needs a gradient if the parameter does."""
    # Outside of inference mode, so that it may need one.
    with torch.inference_mode(False), torch.no_grad():
        plain = parameter.detach()
        packed = _pack(plain.clone() if plain.is_inference() else plain)
    return packed.requires_grad_(parameter.requires_grad)


def _plain_parameter(packed: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(packed.detach().to_dense(), packed.requires_grad)


torch.library.define("regard::packed_product", "(Tensor x, int number) -> Tensor")


def _layer_of(number: int) -> PackedLinear:
    layer = _layers.get(number)
    if layer is None:
        raise UnsupportedError(
            "a compiled graph was made for packed weights that have been unpacked, packed again or freed since; call "
            "torch.compiler.reset(), and the next call compiles it for the present ones"
        )
    return layer


@torch.library.impl("regard::packed_product", "CPU")
def _packed_product(x: torch.Tensor, number: int) -> torch.Tensor:
    return _layer_of(number).multiply(x)


@torch.library.register_fake("regard::packed_product")
def _fake_packed_product(x: torch.Tensor, number: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], _layer_of(number).out_features)
