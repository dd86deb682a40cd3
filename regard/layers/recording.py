"""Looking at attention while a model works, without changing the model."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from regard.detail import AttentionDetail
from regard.errors import ArgumentError, UnsupportedError
from regard.kinds import shown
from regard.statistics import Want, checked_wants

_current: ContextVar[Recording | None] = ContextVar("recording", default=None)


class RecordedLayer(nn.Module):
    """A layer that tells the recording that listens, if one does, what its attention did."""

    recordings = 0  # that listen, in any thread; a compiled graph holds for as many as there were


class Recording:
    """What the attention layers of a model did, by the layer's name: one AttentionDetail for each time it ran."""

    def __init__(self, model: nn.Module, want: tuple[Want, ...]) -> None:
        self.want = want
        self._layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, RecordedLayer)}
        self._names = {id(layer): name for name, layer in self._layers.items()}
        self.details: dict[str, list[AttentionDetail]] = {name: [] for name in self._layers}

    def listens_to(self, layer: nn.Module) -> bool:
        return id(layer) in self._names

    def count(self, more: int) -> None:
        for layer in self._layers.values():
            layer.recordings += more

    def add(self, layer: nn.Module, detail: AttentionDetail) -> None:
        self.details[self._names[id(layer)]].append(detail)

    def __getitem__(self, name: str) -> list[AttentionDetail]:
        if name not in self.details:
            raise ArgumentError(f"no attention layer is called {name!r}; there are {', '.join(self.details)}")
        return self.details[name]


def current_recording(layer: RecordedLayer) -> Recording | None:
    """The recording that listens to this layer in this thread, if there is one.

    Raises:
        UnsupportedError: one listens while the layer is compiled.
    """
    if torch.compiler.is_compiling():  # where nothing can be asked about this thread
        if layer.recordings:
            raise UnsupportedError("a compiled layer tells nothing to record_attention; record the model uncompiled")
        return None
    recording = _current.get()
    return recording if recording is not None and recording.listens_to(layer) else None


@contextmanager
def record_attention(model: nn.Module, want: Iterable[Want] | Want = ("weights",)) -> Generator[Recording]:
    """While the block runs, every MultiHeadAttention in `model` also tells the statistics in `want`.

    The output stays what it is; the recording belongs to this thread, so other users of the model are not seen.

    Args:
        model: a module with attention layers inside, or one itself.
        want: as for `attention_detail`.

    Raises:
        ArgumentError: a model without attention layers.

    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(dim=8, heads=2)
    >>> with record_attention(layer) as recording:
    ...     y = layer(torch.zeros(1, 3, 8))
    >>> recording[""][0].weights.shape
    torch.Size([1, 2, 3, 3])
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"record_attention was given {shown(model)}; it needs a module with attention layers")
    recording = Recording(model, checked_wants(want))
    if not recording.details:
        raise ArgumentError(f"{type(model).__name__} has no MultiHeadAttention inside, so there is nothing to record")
    token = _current.set(recording)
    recording.count(1)
    try:
        yield recording
    finally:
        recording.count(-1)
        _current.reset(token)
