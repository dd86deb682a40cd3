"""Latent attention in models of transformers, in the cheaper of its two forms.

Such a module makes one latent c for each token and one rotary key r for all heads, keeps both in its cache, and expands
all of them to keys and values of every head in each call. Head h computes, with matrices U and V of its own,

    k_h = [U_h c; r],  v_h = V_h c,    so that    q_h · k_h = (U_hᵀ q_h) · c + q_rot · r,    Σ w v_h = V_h Σ w c.

The right sides are the absorbed form: one key/value head, whose keys are [c; r] and whose values are c. A step of
decoding expands nothing then. Long prompts cost less expanded. Source: DeepSeek-V2 (2024), section 2.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from regard.errors import UnsupportedError
from regard.integrations.transformers.caches import cache_with, check_batch
from regard.layers.caches.entries import FreeSlots, is_closed
from regard.layers.projection import matrix_of

__all__ = [
    "EXPAND",
    "Latents",
    "LatentLayer",
    "expand_latents",
    "form_of",
    "keep_latents",
    "latent_cache",
    "wanted_form",
]

EXPAND = "expand_kv"  # the method of a module of transformers that expands latents
HOOK = "_regard_latents_hook"  # attribute of a module: what removes its hook
JOINED = "_regard_latents"  # attribute of latents: the tensor that holds them beside rotary keys, and these keys
LEAST_SPARE = 64  # entries beyond those that a new room begins with
# "auto", or for comparisons "absorbed" or "expanded".
wanted_form: ContextVar[str] = ContextVar("wanted_form", default="auto")


def keep_latents(modules: Iterable[nn.Module], implementation: str) -> None:
    """Let modules pass their latents to attention unexpanded, and grow caches in place, while this implementation
    computes it."""
    for module in modules:
        if hasattr(type(module), EXPAND) and EXPAND not in module.__dict__:
            module.__dict__[EXPAND] = partial(_pass_on, module, implementation)
            hook = partial(_grow_in_place, implementation)
            module.__dict__[HOOK] = module.register_forward_pre_hook(hook, with_kwargs=True)


def expand_latents(model: nn.Module) -> None:
    """Let modules expand their latents again."""
    for module in model.modules():
        if module.__dict__.pop(EXPAND, None) is not None:
            module.__dict__.pop(HOOK).remove()


def _grow_in_place(implementation: str, module: Any, args: Any, keywords: dict[str, Any]) -> None:
    """Before a forward: a plain layer of its growing cache becomes a LatentLayer with the same entries."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return
    if module.config._attn_implementation != implementation:
        return
    cache = next((value for value in keywords.values() if type(value) is DynamicCache), None)
    if cache is None or cache.offloading:
        return
    layers = cache.layers
    index = module.layer_idx
    if index == len(layers) and cache.layer_class_to_replicate is DynamicLayer:
        layers.append(LatentLayer())
    elif index < len(layers) and type(layers[index]) is DynamicLayer:
        layers[index] = LatentLayer(layers[index])


def _pass_on(module: Any, implementation: str, latents: torch.Tensor, rotary: torch.Tensor) -> Any:
    """In the place of the module's method EXPAND: latents and rotary keys as they are, for this implementation."""
    if module.config._attn_implementation == implementation:
        return latents, rotary
    return _expand(module, latents, rotary)


def _expand(module: Any, latents: torch.Tensor, rotary: torch.Tensor) -> Any:
    """Keys and values of every head, by the module's own code."""
    return getattr(type(module), EXPAND)(module, latents, rotary)


class Latents(NamedTuple):
    """Operands of a call of latent attention in one form.

    q, k, v, scale: as `attention` takes them. value_matrices: V of each head, (heads, v_dim, latent_dim), by which the
    output is multiplied; None in the expanded form. form: its name, and why it is expanded if the sizes do not decide.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scale: float
    value_matrices: torch.Tensor | None
    form: str

    def output(self, summed: torch.Tensor) -> torch.Tensor:
        """(batch, heads, q_len, v_dim) from what attention summed."""
        if self.value_matrices is None:
            return summed
        return torch.einsum("bhqr,hdr->bhqd", summed, self.value_matrices)


def form_of(
    module: Any,
    q: torch.Tensor,
    latents: torch.Tensor,
    rotary: torch.Tensor,
    scale: float | None,
    why_expanded: str | None,
) -> Latents:
    """A call of a module that kept its latents, absorbed or expanded.

    Args:
        q: (batch, heads, q_len, nope_dim + rope_dim).
        latents: (batch, 1, k_len, latent_dim).
        rotary: (batch, 1, k_len, rope_dim).
        scale: as `attention` takes it, for expanded keys.
        why_expanded: why keys must be expanded; None if they need not.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    reason = why_expanded or _why_not_absorbed(module, q, latents, rotary)
    if reason is None and _costs_less(module, q.shape, latents.shape[2], latents.shape[3]):
        return _absorb(module, q, latents, rotary, scale)
    form = "expanded" if reason is None else f"expanded ({reason})"
    k, v = _expand(module, latents, rotary)
    return Latents(q, k, v, scale, None, form)


def _absorb(
    module: Any, q: torch.Tensor, latents: torch.Tensor, rotary: torch.Tensor, scale: float
) -> Latents:
    nope_dim = module.qk_nope_head_dim
    latent_dim = latents.shape[3]
    # (heads, nope_dim + v_dim, latent_dim)
    matrices = module.kv_b_proj.weight.view(q.shape[1], -1, latent_dim)
    key_matrices, value_matrices = matrices.split([nope_dim, module.v_head_dim], 1)  # U and V
    absorbed = torch.einsum("bhqd,hdr->bhqr", q[..., :nope_dim], key_matrices)
    q = torch.cat((absorbed, q[..., nope_dim:]), -1)
    k, its_rotary = getattr(latents, JOINED, (None, None))
    if k is None or its_rotary is not rotary:
        k = torch.cat((latents, rotary), -1)
    return Latents(q, k, k[..., :latent_dim], scale, value_matrices, "absorbed")


def _why_not_absorbed(
    module: Any, q: torch.Tensor, latents: torch.Tensor, rotary: torch.Tensor
) -> str | None:
    """Why a call cannot be absorbed, whatever its sizes are; None if it can."""
    linear = module.kv_b_proj
    if type(matrix_of(linear)) not in (nn.Parameter, torch.Tensor) or linear.bias is not None:
        return "kv_b_proj is not a plain linear layer"
    dtypes = {x.dtype for x in (q, latents, rotary, linear.weight)}
    if len(dtypes) > 1 or torch.is_autocast_enabled(q.device.type):
        return "its tensors have several dtypes"
    return None


def _costs_less(module: Any, q_shape: torch.Size, k_len: int, latent_dim: int) -> bool:
    """Whether the absorbed form has fewer products, of one head; a causal pattern is supposed."""
    q_len = q_shape[2]
    if torch.compiler.is_compiling():  # a graph serves many lengths
        return q_len == 1
    form = wanted_form.get()
    if form != "auto":
        return form == "absorbed"
    pairs = q_len * (2 * k_len - q_len + 1) // 2
    rope_dim = q_shape[3] - module.qk_nope_head_dim
    expanded_dim = module.qk_nope_head_dim + module.v_head_dim
    by_token = latent_dim * expanded_dim  # to absorb a query, or to expand a key and a value
    absorbed = pairs * (2 * latent_dim + rope_dim) + q_len * by_token
    expanded = pairs * (expanded_dim + rope_dim) + k_len * by_token
    return absorbed < expanded


def latent_cache(model: PreTrainedModel) -> DynamicCache:
    """A cache of an attached model with latent attention, in which the numbers of a token stand beside each other.

    It holds what the model's own cache holds: latent_dim + rope_dim numbers for each token and layer. A step appends to
    it in place, and attention reads it where it lies. Give it to the model or to `generate`, as cache=, or before
    transformers 5.24 as past_key_values=; crop and reorder it as any cache of transformers. An empty or filled
    DynamicCache becomes such a cache by itself in the first call without gradients.

    Raises:
        UnsupportedError: no layer of the model keeps latents alone in a growing cache.

    >>> import inspect
    >>> import transformers
    >>> from regard.integrations.transformers import attach
    >>> sizes = dict(q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=4, v_head_dim=4)
    >>> config = transformers.DeepseekV3Config(
    ...     vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    ...     num_key_value_heads=2, first_k_dense_replace=1, pad_token_id=0, **sizes)
    >>> model = attach(transformers.DeepseekV3ForCausalLM(config).eval())
    >>> cache = latent_cache(model)
    >>> keywords = inspect.signature(model.forward).parameters
    >>> keyword = "cache" if "cache" in keywords else "past_key_values"  # before transformers 5.24
    >>> model(torch.tensor([[1, 2, 3]]), **{keyword: cache}).logits.shape, cache.get_seq_length()
    (torch.Size([1, 3, 9]), 3)
    """
    modules: list[Any] = [module for module in model.modules() if EXPAND in module.__dict__]
    latent = {int(module.layer_idx) for module in modules}
    cache = cache_with(model, latent, max(latent, default=-1) + 1, LatentLayer)
    if cache is None:
        raise UnsupportedError(
            f"no layer of {type(model).__name__} keeps latents alone in a growing cache (some keep keys of an indexer "
            f"too); use the model's own cache, and attach(model) before this if its attention is latent"
        )
    return cache


class LatentLayer(DynamicLayer):
    """A layer of a cache that keeps latents and rotary keys beside each other, (batch, 1, room, latent_dim + rope_dim).

    Where no gradient is recorded, entries are appended in place; they move when the room is used up or after a reorder.
    Tensors that a caller has taken from it never change, as in a layer of transformers: a slot of the room is written
    once, and of several copies of the layer the first one that appends goes on in the room.
    """

    def __init__(self, layer: DynamicLayer | None = None) -> None:
        super().__init__()
        if layer is not None:
            self.__dict__.update(layer.__dict__)
        self._room: torch.Tensor | None = None
        self._free_slots = FreeSlots(0)  # of the room
        # Keys and values as views of the room, which they fill from its first slot on.
        self._views: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Append latents and rotary keys, and return all of them."""
        if torch.is_grad_enabled() or key_states.shape[1] != 1:
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        check_batch(self.keys, key_states)
        held = self.get_seq_length()
        end = held + key_states.shape[2]
        room = self._room
        if room is None or not self._may_write(room, held, end):
            room = self._new_room(key_states, value_states, held, end)
        latent_dim = key_states.shape[3]
        room[:, :, held:end, :latent_dim] = key_states
        room[:, :, held:end, latent_dim:] = value_states
        joined = room[:, :, :end]
        keys = joined[..., :latent_dim]
        values = joined[..., latent_dim:]
        setattr(keys, JOINED, (joined, values))
        self._room = room
        self.keys = keys
        self.values = values
        self._views = (keys, values)
        return keys, values

    def _new_room(
        self, key_states: torch.Tensor, value_states: torch.Tensor, held: int, end: int
    ) -> torch.Tensor:
        """A room for `end` entries and more, which begins with those that are held."""
        self._free_slots = FreeSlots(end)
        latent_dim = key_states.shape[3]
        width = latent_dim + value_states.shape[3]
        size = end + max(LEAST_SPARE, end // 4)
        room = key_states.new_empty(key_states.shape[0], 1, size, width)
        if self.keys is not None and self.values is not None and held:
            room[:, :, :held, :latent_dim] = self.keys
            room[:, :, :held, latent_dim:] = self.values
        return room

    def _may_write(self, room: torch.Tensor, held: int, end: int) -> bool:
        """Whether entries may be written into the room, from `held` to `end`."""
        if not self._holds_views() or room.shape[2] < end or is_closed(room):
            return False
        return self._free_slots.claim(held, end)

    def __getstate__(self) -> dict[str, Any]:
        if not self._holds_views() or self.keys is None or self.values is None:
            return self.__dict__ | {"_room": None}
        entries = {"keys": self.keys.clone(), "values": self.values.clone()}
        return self.__dict__ | entries | {"_room": None, "_views": (None, None)}

    def __copy__(self) -> LatentLayer:
        copied = LatentLayer()
        copied.__dict__.update(self.__dict__)
        return copied

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last entries."""
        held_views = self._holds_views()
        super().crop(tokens_to_remove)
        if held_views:
            self._views = (self.keys, self.values)

    def _holds_views(self) -> bool:
        """Whether keys and values are the views of the room; methods of transformers set other tensors."""
        return self._views[0] is self.keys and self._views[1] is self.values
