"""A model of transformers whose sequence is divided among processes: each computes the positions of its own part.

transformers makes masks and positions from the lengths that it sees, which are those of one part. Hooks before the
model's forward therefore exchange the lengths of all processes, and give the model the positions of its part and a
mask of padding for the whole sequence. Masks then have local queries and the keys of all; `regard_mask` notes on
each that it is shared, and `regard_attention` computes a call with such a mask over all processes.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import nn
from transformers import PreTrainedModel

from regard.arguments import shown
from regard.distributed.agreement import Announcement, agree, refuse_together, refusing_together
from regard.distributed.api import attention
from regard.distributed.contents import about_weights
from regard.distributed.group import Group
from regard.distributed.layout import Layout, check_division, shard
from regard.errors import ArgumentError, RegardError, ShapeError, UnsupportedError
from regard.functional.compiled import compiler_beside
from regard.patterns import Pattern
from regard.patterns.documents import document_ids

__all__ = [
    "SharedForward",
    "Sharing",
    "current",
    "part_of_batch",
    "share_model",
    "shared_now",
    "sharing_of",
]

# Models whose code was read and whose numbers over processes are compared with those of one process, by
# `config.model_type`. Others may use positions in ways that no mask shows: llama4 counts its temperatures from 0.
TYPES = (
    "llama",
    "mistral",
    "mixtral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "qwen2",
    "qwen3",
    "gpt_oss",
    "phi3",
    "olmo2",
    "gpt2",
    "gpt_neox",
    "bert",
    "modernbert",
)
# Ends of the names of classes whose outputs are one per position.
CLASSES = ("Model", "ForCausalLM", "LMHeadModel", "ForMaskedLM")
# Rotary frequencies that depend on the longest position a process sees.
BY_LENGTH = ("dynamic", "longrope")
# Keywords of a forward that can be honoured.
TAKEN = (
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "token_type_ids",
    "use_cache",
    "labels",
    "shift_labels",
    "num_items_in_batch",
    "output_hidden_states",
    "return_dict",
)
# What `part_of_batch` divides, along axis 1.
DIVIDED = ("input_ids", "inputs_embeds", "token_type_ids", "labels")
IGNORED = -100  # a label that counts for nothing, as in PyTorch's cross-entropy
# A loss that gets the keywords of the call.
LOSS = re.compile(r"loss_function\(.*?\*\*\w+", re.DOTALL)
COMPILED = "a model whose sequence is divided among processes is not compiled; call it outside of torch.compile"
HOOKS = "_regard_shared"  # on a model: what removes its hooks


@dataclass(frozen=True)
class Sharing:
    """How the sequence of a model is divided: what `attach` was given."""

    mesh: Any
    group: Group
    layout: str
    form: str

    def __deepcopy__(self, memo: dict[int, Any]) -> Sharing:
        return self  # a copied model has the same processes


class _Keywords(dict[str, Any]):
    """The keywords of a forward pass, to which a weak reference can point."""


@dataclass(eq=False)
class SharedForward:
    """One forward pass of a model over processes: the model whose forward began it, and the length of the sequence.

    `met`: whether the processes met after the beginning, in attention or to refuse the call. `keywords`: what the
    forward got; they exist as long as the forward runs, also if that is interrupted, when PyTorch calls no hook.
    """

    sharing: Sharing
    owner: nn.Module
    length: int
    met: bool = False
    keywords: Callable[[], _Keywords | None] = field(default=_Keywords, repr=False)

    def is_running(self) -> bool:
        return self.keywords() is not None

    def refuse(self, sentence: str, kind: type[RegardError] = UnsupportedError) -> NoReturn:
        """Raise an error, after it was reported to the other processes, so that they do not wait for this one."""
        error = kind(sentence)
        self.report(error)
        raise error

    def report(self, error: BaseException) -> None:
        """Report to the other processes that this one refuses the call, and why."""
        self.met = True
        group = self.sharing.group
        refuse_together(group, group.device_for(next(self.owner.parameters(), None)), error)

    def check_mask(self, pattern: Pattern, q_start: int, keys: int) -> None:
        """Raise unless a mask is that of the whole sequence, in positions that all processes know."""
        if keys != self.length or q_start:
            self.refuse(
                f"a mask of {keys} keys from position {-q_start} on was made, and the processes share "
                f"{self.length} positions; this model makes masks from its own part or from a cache"
            )
        if document_ids(pattern):
            self.refuse(
                f"a mask of {pattern} has documents of one part of the sequence, which the other processes do not "
                f"know; packed documents are computed on one process"
            )

    def refuse_call(self, module: nn.Module, why: str) -> NoReturn:
        """Raise because a module calls attention in a way that is not computed over processes."""
        self.refuse(
            f"{type(module).__name__} {why}, which is not computed over several processes; use one process: "
            f"attach(model) without mesh"
        )

    def attention(
        self,
        module: nn.Module,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pattern: Pattern,
        **options: Any,
    ) -> torch.Tensor:
        """Attention of this process's queries over the keys of all, (batch, heads, q_len, v_dim)."""
        if q.shape[2] != k.shape[2]:
            self.refuse_call(
                module,
                f"attends from {q.shape[2]} queries to {k.shape[2]} keys: a cache or a context",
            )
        sharing = self.sharing
        self.met = True
        return attention(
            q,
            k,
            v,
            sharing.mesh,
            layout=sharing.layout,
            form=sharing.form,
            pattern=pattern,
            **options,
        )


current: ContextVar[SharedForward | None] = ContextVar("shared", default=None)
# Ids of models whose forward runs, in any thread: a graph can read this, and no ContextVar.
running_forwards: dict[int, bool] = {}


def shared_now() -> SharedForward | None:
    """The forward pass over processes that is running, or None.

    Raises:
        UnsupportedError: one is running, and torch.compile traces it.
    """
    if not torch.compiler.is_compiling():
        shared = current.get()
        return shared if shared is not None and shared.is_running() else None
    if running_forwards:
        raise UnsupportedError(COMPILED)
    return None


def sharing_of(model: PreTrainedModel, mesh: Any, layout: str, form: str) -> Sharing | None:
    """How the sequence of a model would be divided; None without a mesh."""
    check_division(layout, form)
    if mesh is None:
        if (layout, form) != ("contiguous", "auto"):
            raise ArgumentError(
                f"layout {shown(layout)} and form {shown(form)} divide a sequence; give the mesh too"
            )
        if HOOKS in model.__dict__:
            raise UnsupportedError(
                f"the sequences of this {type(model).__name__} are divided among processes, where neither its patterns "
                f"nor its mechanisms are changed; detach(model) first"
            )
        return None
    check_shareable(model)
    return Sharing(mesh, Group.of(mesh), layout, form)


def share_model(model: PreTrainedModel, sharing: Sharing | None) -> None:
    """Divide the sequences of a model among processes; None: let it compute whole sequences again."""
    for hook in model.__dict__.pop(HOOKS, ()):
        hook.remove()
    if sharing is None:
        return
    hooks = model.__dict__[HOOKS] = []
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            hooks_of_part = _ForwardHooks(sharing)
            hooks.append(part.register_forward_pre_hook(hooks_of_part.begin, with_kwargs=True))
            hooks.append(part.register_forward_hook(hooks_of_part.end, always_call=True))


def check_shareable(model: PreTrainedModel) -> None:
    """Raise an UnsupportedError for a model whose numbers would not be those of one process."""
    reason = _why_not_shareable(model)
    if reason is not None:
        raise UnsupportedError(
            f"{type(model).__name__} over several processes: {reason}. Nothing was changed"
        )


def _why_not_shareable(model: PreTrainedModel) -> str | None:
    config = model.config
    if config.model_type not in TYPES:
        types = ", ".join(TYPES)
        return f"models of type {config.model_type!r} were not compared over processes; there are {types}"
    if not type(model).__name__.endswith(CLASSES):
        ends = ", ".join(CLASSES)
        return f"its outputs belong to a whole sequence; classes that end in {ends} have one per position"
    is_encoder_decoder = getattr(config, "is_encoder_decoder", False)
    if is_encoder_decoder or getattr(config, "add_cross_attention", False):
        return "it attends to a second sequence"
    if getattr(config, "output_router_logits", False):
        return (
            "the loss of its router is that of all positions; set config.output_router_logits=False"
        )
    for name, _ in model.named_modules():
        if name.split(".")[-1] == "pooler":
            return f"{name} reads the first position of each part; make the model with add_pooling_layer=False"
    kind = _rotary_by_length(model)
    if kind is None:
        return None
    return f"its rotary positions are {kind!r}, whose frequencies depend on the longest position of a process"


def _rotary_by_length(model: nn.Module) -> str | None:
    """The kind of rotary positions that reads lengths, if a module has it; a dict has one for each kind of layer."""
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
            if kind in BY_LENGTH:
                return kind
    return None


@dataclass
class _ForwardHooks:
    """What happens before and after each forward of a model: the hooks that divide its sequence."""

    sharing: Sharing
    tokens: list[Token[SharedForward | None]] = field(default_factory=list)
    knows_weights: bool = False  # to be those of the other processes

    def begin(self, model: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Agree with the other processes, and complete what the model gets."""
        if torch.compiler.is_compiling() or compiler_beside() is not None:
            raise UnsupportedError(COMPILED)
        if shared_now() is not None:  # a model inside of the model whose forward began
            return None
        running_forwards.pop(id(model), None)  # it is there if the last forward was interrupted

        group = self.sharing.group
        group.begin()
        names = [*inspect.signature(model.forward).parameters]
        keywords = _Keywords(zip(names, args, strict=False))
        keywords.update(options)
        with refusing_together(group, group.device_for(next(model.parameters(), None))):
            x = _checked(model, keywords, group.count)
            words = self._words(model, x, keywords)
        length = x.shape[1]
        learning = torch.is_grad_enabled()
        announcement = Announcement(words, q_len=length, k_len=length, learning=learning)
        agreed = agree(group, group.device_for(x), announcement)
        whole = Layout(self.sharing.layout, agreed.q_lengths)
        self.knows_weights = True

        shared = SharedForward(self.sharing, model, whole.length, keywords=ref(keywords))
        _complete(keywords, x, whole, shared)
        if "use_cache" in names:
            keywords["use_cache"] = False
        running_forwards[id(model)] = True
        self.tokens[:] = [current.set(shared)]
        return (), keywords

    def _words(self, model: nn.Module, x: torch.Tensor, keywords: Mapping[str, Any]) -> list[str]:
        """What has to be equal on all processes."""
        words = [
            f"model {type(model).__name__}",
            f"batch {x.shape[0]}",
            f"layout {self.sharing.layout}",
            f"form {self.sharing.form}",
            f"padding {_digest(keywords.get('attention_mask'))}",
        ]
        if not self.knows_weights:
            words.append(about_weights(model.parameters()))
        return words

    def end(self, model: nn.Module, args: Any, output: Any) -> None:
        """After a forward, also one that failed."""
        shared = current.get()
        if shared is None or shared.owner is not model or not self.tokens:
            return
        current.reset(self.tokens.pop())
        running_forwards.pop(id(model), None)
        if output is None and not shared.met:
            # It failed, and the others wait for it in their first attention.
            shared.report(sys.exception() or RegardError("its model failed"))


def _complete(
    keywords: dict[str, Any], x: torch.Tensor, layout: Layout, shared: SharedForward
) -> None:
    """Add the positions of this part, and the mask of the whole sequence."""
    rank = shared.sharing.group.rank
    empty = [process for process, length in enumerate(layout.lengths) if not length]
    if empty:
        raise ShapeError(
            f"process {empty[0]} of {len(layout.lengths)} holds no positions; give each one at least"
        )

    positions = layout.positions(rank).to(x.device)[None]
    asked = keywords.get("position_ids")
    if asked is not None:
        is_same = asked.shape[-1:] == positions.shape[-1:] and bool((asked == positions).all())
        if not is_same:
            shared.refuse(
                f"position_ids on process {rank} are not the positions of its part, which begin with "
                f"{positions[0, :4].tolist()}; leave them out",
                ArgumentError,
            )
    keywords["position_ids"] = positions

    mask = keywords.get("attention_mask")
    shape = (x.shape[0], layout.length)
    if mask is None:
        mask = torch.ones(shape, dtype=torch.long, device=x.device)
    elif mask.shape != shape:
        shared.refuse(
            f"attention_mask is {shown(mask)}; over several processes it is that of the whole sequence, {shape}, on "
            f"every process",
            ShapeError,
        )
    keywords["attention_mask"] = mask


def _checked(model: nn.Module, keywords: Mapping[str, Any], processes: int) -> torch.Tensor:
    """The ids or embeddings of this part, (batch, length, ...), if a forward has what can be honoured."""
    name = type(model).__name__
    unknown = [
        keyword
        for keyword, value in keywords.items()
        if keyword not in TAKEN and value is not None and value is not False
    ]
    if keywords.get("use_cache"):
        unknown.append("use_cache")
    if unknown:
        raise UnsupportedError(
            f"{name} over several processes was called with {unknown[0]}; it computes a whole sequence at once, "
            f"without a cache: to generate, use one process. It takes {', '.join(TAKEN)}"
        )
    x = keywords.get("inputs_embeds")
    if x is None:
        x = keywords.get("input_ids")
    if not isinstance(x, torch.Tensor) or x.dim() < 2:
        raise ArgumentError(
            f"{name} was called with input_ids {shown(x)}; give those of this process, (batch, length)"
        )
    mask = keywords.get("attention_mask")
    if mask is not None and (not isinstance(mask, torch.Tensor) or mask.dim() != 2):
        raise UnsupportedError(
            f"attention_mask is {shown(mask)}; over several processes it marks the live keys, (batch, length)"
        )
    if mask is not None and processes > 1 and mask.shape[1] <= x.shape[1]:
        raise ShapeError(
            f"attention_mask has {mask.shape[1]} positions and this process {x.shape[1]}; over several processes it is "
            f"that of the whole sequence, on every process"
        )
    if keywords.get("labels") is not None:
        _check_labels(model, keywords)
    return x


def _check_labels(model: nn.Module, keywords: Mapping[str, Any]) -> None:
    shifted = keywords.get("shift_labels")
    count = keywords.get("num_items_in_batch")
    missing = shifted is None or count is None
    causal = type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
    if missing or not causal or not LOSS.search(inspect.getsource(type(model).forward)):
        raise UnsupportedError(
            f"{type(model).__name__} was given labels, and would shift and average those of its own part alone; "
            f"causal models take those of part_of_batch(batch, mesh), which have shift_labels and num_items_in_batch. "
            f"For others compute the loss from the logits"
        )


def _digest(mask: torch.Tensor | None) -> str:
    """Differs between different masks of padding."""
    if mask is None:
        return "none"
    unpadded = mask.bool().cpu().numpy().tobytes()
    return hashlib.sha256(unpadded).hexdigest()[:16]


def part_of_batch(
    batch: Mapping[str, Any], mesh: Any, *, layout: str = "contiguous"
) -> dict[str, Any]:
    """This process's part of a batch, as a model takes it that was attached with `mesh`.

    Labels are those of the next position, so they are shifted before they are divided. With them the model's loss is
    this process's share of the mean over the whole batch: sum losses and gradients over the processes.

    Args:
        batch: input_ids or inputs_embeds of the whole sequence, (batch, length, ...), the same on every process;
            token_type_ids, labels, and attention_mask, which stays whole.
        mesh: as for `attach`.
        layout: as for `attach`.

    Raises:
        ArgumentError: something else in the batch, or an unknown layout.

    >>> import torch.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun starts several
    >>> ids = torch.tensor([[5, 6, 7]])
    >>> part = part_of_batch({"input_ids": ids, "labels": ids}, dist.group.WORLD)
    >>> part["shift_labels"].tolist(), int(part["num_items_in_batch"])
    ([[6, 7, -100]], 2)
    >>> dist.destroy_process_group()
    """
    whole = {name: value for name, value in batch.items() if value is not None}
    unknown = [name for name in whole if name not in (*DIVIDED, "attention_mask")]
    if unknown:
        raise ArgumentError(
            f"the batch has {unknown[0]}; {', '.join(DIVIDED)} and attention_mask are known. Positions are those of "
            f"the whole sequence, and the model adds them"
        )
    x = whole.get("input_ids", whole.get("inputs_embeds"))
    if not isinstance(x, torch.Tensor) or x.dim() < 2:
        raise ArgumentError(
            f"the batch has input_ids {shown(x)}; give those of the whole sequence, (batch, length)"
        )

    group = Group.of(mesh)
    divided = Layout.even(layout, x.shape[1], group.count)
    part = {
        name: shard(whole[name], divided, group.rank, dim=1) for name in DIVIDED if name in whole
    }
    if "attention_mask" in whole:
        part["attention_mask"] = whole["attention_mask"]
    if "labels" in whole:
        shifted = nn.functional.pad(whole["labels"][:, 1:], (0, 1), value=IGNORED)
        part["shift_labels"] = shard(shifted, divided, group.rank, dim=1)
        part["num_items_in_batch"] = (shifted != IGNORED).sum()
    return part
