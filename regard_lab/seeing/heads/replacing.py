"""The heads of a model by name, what each returns while it runs, and runs in which some return something else."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from regard.arguments import kind_of, shown, suggest
from regard.errors import ArgumentError, UnsupportedError
from regard_lab.models import LanguageModel, TextEncoder, TranslationTransformer
from regard_lab.seeing.lenses.contrast import Change, Layer, Subject

Outputs = dict[Layer, torch.Tensor]  # what the heads return: (rows, length, heads, v_dim)


class Head(NamedTuple):
    """One head: "encoder", "decoder" or "cross" of a translator, or "self"; layers and heads are counted from 0.

    >>> Head.of("cross 1.2"), str(Head("self", 0, 3))
    (Head(attention='cross', layer=1, head=2), 'self 0.3')
    """

    attention: str
    layer: int
    head: int

    @classmethod
    def of(cls, text: str) -> Self:
        """The head of a text such as "cross 1.2" or "0.3", which is that of "self"."""
        match = re.fullmatch(
            r"(?:(encoder|decoder|cross|self)[ -])?(\d{1,6})\.(\d{1,6})", text.strip()
        )
        if match is None:
            raise ArgumentError(
                f"{shown(text)} is no head; write the kind of attention, layer.head, as in 'cross 1.2'"
            )
        return cls(match[1] or "self", int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.attention} {self.layer}.{self.head}"


def attention_layers(model: nn.Module) -> dict[Layer, Any]:
    """The attention of each layer of a model of `regard_lab.models`; refuses a model without heads."""
    if isinstance(model, TranslationTransformer):
        parts = {"encoder": [one.attention for one in model.encoder]}
        parts["decoder"] = [one.self_attention for one in model.decoder]
        parts["cross"] = [one.cross_attention for one in model.decoder]
    elif isinstance(model, LanguageModel | TextEncoder):
        parts = {"self": [one.attention for one in model.blocks]}
    else:
        raise UnsupportedError(
            f"heads are those of TranslationTransformer, LanguageModel, TextEncoder and Pretrained models of "
            f"transformers, and the model is {kind_of(model)}"
        )
    return {(kind, at): one for kind, layers in parts.items() for at, one in enumerate(layers)}


@contextmanager
def changing(model: nn.Module, change: Change) -> Generator[None]:
    """Let a function replace what the heads of each layer return, before they are projected, while the block runs."""
    with ExitStack() as hooks:
        if isinstance(model, Subject):
            hooks.enter_context(model.changing(change))
        else:
            for layer, one in attention_layers(model).items():
                hook = partial(_projected, partial(change, layer), one.heads)
                hooks.callback(one.to_output.register_forward_pre_hook(hook).remove)
        yield


def _projected(
    change: Callable[[torch.Tensor], torch.Tensor], heads: int, _: Any, given: Any
) -> torch.Tensor:
    return change(given[0].unflatten(-1, (heads, -1))).flatten(-2)


@contextmanager
def recording(model: nn.Module) -> Generator[Outputs]:
    """What the heads of each layer return in one run of the model."""
    outputs: Outputs = {}

    def keep(layer: Layer, output: torch.Tensor) -> torch.Tensor:
        outputs[layer] = output.detach()
        return output

    with changing(model, keep):
        yield outputs


@contextmanager
def replacing(model: nn.Module, heads: Sequence[Head], instead: Outputs) -> Generator[None]:
    """Row r of each run returns something else in the head `heads[r % len(heads)]`.

    Args:
        instead: (rows or 1, length or 1, heads, v_dim) of each layer. Position p of a text returns what stands at p
            there, or at the last one; a run that continues texts is at the positions after those before.
    """
    read = dict.fromkeys(instead, 0)  # positions before

    def change(layer: Layer, output: torch.Tensor) -> torch.Tensor:
        rows, length, count, _ = output.shape
        own = torch.tensor(
            [[(*layer, at) == head for at in range(count)] for head in heads], device=output.device
        )
        start = read[layer]
        stored = instead[layer].to(output.device)
        read[layer] += length
        places = torch.arange(start, start + length, device=output.device).clamp(
            max=stored.shape[1] - 1
        )
        return torch.where(
            own.repeat(rows // len(heads), 1)[:, None, :, None], stored[:, places], output
        )

    with changing(model, change):
        yield


def named_heads(counts: Mapping[Layer, int], heads: Sequence[Head | str] | None) -> list[Head]:
    """The chosen heads, all by default, of layers with so many heads each; refuses heads that do not exist."""
    there = [Head(*layer, head) for layer, count in counts.items() for head in range(count)]
    if heads is None:
        return there
    chosen = [Head.of(str(head)) for head in ([heads] if isinstance(heads, str | Head) else heads)]
    if not chosen:
        raise ArgumentError(
            "heads is empty; name heads such as 'cross 1.2', or leave it out for all"
        )
    for head in chosen:
        if head not in there:
            raise ArgumentError(
                f"there is no head {str(head)!r}; {suggest(str(head), list(map(str, there)))}"
            )
    return list(dict.fromkeys(chosen))
