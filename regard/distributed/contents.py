"""Texts that differ where two processes have different weights or options, by which they compare these."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from regard.mechanisms import Mechanism
from regard.patterns import Pattern
from regard.reprs import Described, brief_value

# Words of 8 bytes that a checksum reads at once.
_WORDS_AT_ONCE = 2**17

# Odd numbers with the bits of the golden ratio: products with them are spread evenly.
_GOLDEN = -0x61C8864680B583EB
_GOLDEN_OF_CHUNKS = 0x9E3779B97F


def about_weights(parameters: Iterable[torch.Tensor]) -> str:
    """A text with a checksum of the weights, which differs where two processes have different ones.

    The checksum depends on dtype, shape, and the bits and place of each number, and not on the device. Tensors that
    are sharded over processes are left out, since each process holds another part of them.
    """
    weights = [weight.detach() for weight in parameters if not isinstance(weight, DTensor)]
    sums = [(str(weight.dtype), tuple(weight.shape), _checksum(weight)) for weight in weights]
    digest = hashlib.sha256(str(sums).encode()).hexdigest()[:8]
    return f"weights with the checksum {digest}; load one state_dict everywhere, or give all processes one seed"


@torch.no_grad()
def _checksum(x: torch.Tensor) -> int:
    """The sum modulo 2^64 of a hash of each 8 bytes and their place, computed where the tensor is.

    With w the bytes as an integer and p a hash of their place, the hash is u ^ (u >> 32), where u = _GOLDEN w + p.
    """
    flat = x.flatten()
    words_in_all = -(-flat.nbytes // 8)
    places = torch.arange(min(_WORDS_AT_ONCE, words_in_all), device=x.device)
    for _ in range(2):
        places.add_(1).mul_(_GOLDEN)
        places ^= places >> 32

    words = torch.empty_like(places)
    words_as_bytes = words.view(torch.uint8)
    total = torch.zeros((), dtype=torch.int64, device=x.device)
    numbers_at_once = _WORDS_AT_ONCE * 8 // flat.element_size()
    for chunk, start in enumerate(range(0, flat.numel(), numbers_at_once)):
        content = flat[start : start + numbers_at_once].contiguous().view(torch.uint8)
        words_as_bytes[: len(content)].copy_(content)
        words_as_bytes[len(content) :].zero_()
        mixed = (words * _GOLDEN).add_(places).add_(chunk * _GOLDEN_OF_CHUNKS)
        total += mixed.bitwise_xor_(mixed >> 32).sum()
    return int(total)


# Texts of patterns. Their tensors are copies, so that nothing changes them while a pattern lives.
_texts_of_patterns: WeakKeyDictionary[Pattern, str] = WeakKeyDictionary()


def contents(value: Any) -> str:
    """A text that differs where two processes have patterns or options of different numbers.

    Tensors are compared by their numbers, wherever an option holds them; functions by their names.
    """
    if value is None or isinstance(value, int | float):
        return str(value)
    unchanging = isinstance(value, Pattern) and _is_of_regard(value)
    if unchanging and value.by_value:
        return str(value)
    if unchanging and value in _texts_of_patterns:
        return _texts_of_patterns[value]

    name = str(value) if isinstance(value, Pattern | Mechanism) else brief_value(value)
    checksum = hashlib.sha256(_numbers_as_text(value).encode()).hexdigest()[:16]
    text = f"{name} with the checksum {checksum}"
    if unchanging:
        _texts_of_patterns[value] = text
    return text


def _is_of_regard(pattern: Pattern) -> bool:
    """Whether a pattern and its parts are of classes of regard, whose numbers never change."""
    return all(type(part).__module__.startswith("regard.") for part in pattern.walk())


def _numbers_as_text(value: Any) -> str:
    """All numbers that an option holds: in its attributes and their items, and in the tensors of a torch module."""
    if isinstance(value, torch.Tensor):
        return _tensor_as_text(value)
    if isinstance(value, bool | int | float | str | range | None):
        return repr(value)

    kind = type(value).__qualname__
    items: list[Any] = []
    if isinstance(value, list | tuple):
        items = [*value]
    elif isinstance(value, Mapping):
        for name_and_item in value.items():
            items += name_and_item
    elif isinstance(value, nn.Module | Described):
        items = _attributes(value)
        if isinstance(value, nn.Module):
            items += value.state_dict().items()
    elif callable(value):
        return getattr(value, "__qualname__", kind)
    else:
        return kind
    return f"{kind}({', '.join(map(_numbers_as_text, items))})"


def _tensor_as_text(x: torch.Tensor) -> str:
    about = f"{x.dtype} {tuple(x.shape)}"
    if isinstance(x, DTensor) or x.is_meta:
        return about
    dense = x if x.layout == torch.strided else x.to_dense()
    return f"{about} {_checksum(dense.detach())}"


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Public attributes with their names, but for those that follow from others, or count or switch something."""
    attributes = []
    for name, attribute in sorted(vars(value).items()):
        derived = isinstance(getattr(type(value), name, None), cached_property)
        if not name.startswith("_") and name not in ("serial", "training") and not derived:
            attributes.append((name, attribute))
    return attributes
