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
from regard_lab.seeing.lenses.contrast import ChangeHeads, LayerName, Subject

Outputs = dict[LayerName, torch.Tensor]  # what the heads return: (rows, length, heads, v_dim)


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


def attention_layers(model: nn.Module) -> dict[LayerName, Any]:
    """The attention of each layer of a model of `regard_lab.models`; refuses a model without heads."""
    stacks: dict[str, list[Any]] = {}
    if isinstance(model, TranslationTransformer):
        stacks["encoder"] = [block.attention for block in model.encoder]
        stacks["decoder"] = [block.self_attention for block in model.decoder]
        stacks["cross"] = [block.cross_attention for block in model.decoder]
    elif isinstance(model, LanguageModel | TextEncoder):
        stacks["self"] = [block.attention for block in model.blocks]
    else:
        raise UnsupportedError(
            f"heads are those of TranslationTransformer, LanguageModel, TextEncoder and Pretrained models of "
            f"transformers, and the model is {kind_of(model)}"
        )

    layers = {}
    for kind, stack in stacks.items():
        for number, attention in enumerate(stack):
            layers[kind, number] = attention
    return layers


@contextmanager
def changing(model: nn.Module, change: ChangeHeads) -> Generator[None]:
    """Let a function replace what the heads of each layer return, before they are projected, while the block runs."""
    if isinstance(model, Subject):
        with model.changing(change):
            yield
        return
    with ExitStack() as hooks:
        for layer, attention in attention_layers(model).items():
            hook = partial(_change_heads, partial(change, layer), attention.heads)
            hooks.callback(attention.to_output.register_forward_pre_hook(hook).remove)
        yield


def _change_heads(
    change: Callable[[torch.Tensor], torch.Tensor],
    heads: int,
    _: nn.Module,
    arguments: tuple[torch.Tensor],
) -> torch.Tensor:
    """A hook before the output projection: what it projects in place of what the heads return side by side."""
    (outputs,) = arguments
    return change(outputs.unflatten(-1, (heads, -1))).flatten(-2)


@contextmanager
def recording(model: nn.Module) -> Generator[Outputs]:
    """What the heads of each layer return in one run of the model."""
    outputs: Outputs = {}

    def keep(layer: LayerName, output: torch.Tensor) -> torch.Tensor:
        outputs[layer] = output.detach()
        return output

    with changing(model, keep):
        yield outputs


@contextmanager
def replacing(model: nn.Module, heads: Sequence[Head], instead: Outputs) -> Generator[None]:
    """Row r of each run returns something else in the head `heads[r % len(heads)]`.

    Args:
        instead: (rows or 1, length or 1, heads, v_dim) of each layer of these heads. Position p of a text returns what
            stands at p there, or at the last one; a run that continues texts is at the positions after those before.
    """
    positions_before = dict.fromkeys(instead, 0)

    def change(layer: LayerName, output: torch.Tensor) -> torch.Tensor:
        if layer not in instead:
            return output
        rows, length, count, _ = output.shape
        replaced = torch.zeros(len(heads), count, dtype=torch.bool)
        for row, head in enumerate(heads):
            if (head.attention, head.layer) == layer:
                replaced[row, head.head] = True
        replaced = replaced.to(output.device).repeat(rows // len(heads), 1)  # (rows, heads)

        stored = instead[layer].to(output.device)
        start = positions_before[layer]
        positions_before[layer] += length
        places = torch.arange(start, start + length, device=output.device)
        places = places.clamp(max=stored.shape[1] - 1)
        return torch.where(replaced[:, None, :, None], stored[:, places], output)

    with changing(model, change):
        yield


def named_heads(counts: Mapping[LayerName, int], heads: Sequence[Head | str] | None) -> list[Head]:
    """The chosen heads, all by default, of layers with so many heads each; refuses heads that do not exist."""
    existing = []
    for layer, count in counts.items():
        existing += [Head(*layer, head) for head in range(count)]
    if heads is None:
        return existing

    named = [heads] if isinstance(heads, str | Head) else heads
    chosen = [Head.of(str(head)) for head in named]
    if not chosen:
        raise ArgumentError(
            "heads is empty; name heads such as 'cross 1.2', or leave it out for all"
        )
    for head in chosen:
        if head not in existing:
            raise ArgumentError(
                f"there is no head {str(head)!r}; {suggest(str(head), list(map(str, existing)))}"
            )
    return list(dict.fromkeys(chosen))
