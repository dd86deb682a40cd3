"""Looking at attention while a model works, without changing the model."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn

from regard.detail import AttentionDetail
from regard.errors import ArgumentError
from regard.statistics import Want, checked_wants

_current: ContextVar[Recording | None] = ContextVar("recording", default=None)


class RecordedLayer(nn.Module):
    """A layer that tells the recording that listens, if one does, what its attention did."""


class Recording:
    """What the attention layers of a model did, by the layer's name: one AttentionDetail for each time it ran."""

    def __init__(self, model: nn.Module, want: tuple[Want, ...]) -> None:
        self.want = want
        self._names = {id(module): name for name, module in model.named_modules() if isinstance(module, RecordedLayer)}
        self.details: dict[str, list[AttentionDetail]] = {name: [] for name in self._names.values()}

    def listens_to(self, layer: nn.Module) -> bool:
        return id(layer) in self._names

    def add(self, layer: nn.Module, detail: AttentionDetail) -> None:
        self.details[self._names[id(layer)]].append(detail)

    def __getitem__(self, name: str) -> list[AttentionDetail]:
        if name not in self.details:
            raise ArgumentError(f"no attention layer is called {name!r}; there are {', '.join(self.details)}")
        return self.details[name]


def current_recording(layer: nn.Module) -> Recording | None:
    """The recording that listens to this layer in this thread, if there is one."""
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

    >>> import torch
    >>> from regard.layers import MultiHeadAttention
    >>> layer = MultiHeadAttention(dim=8, heads=2)
    >>> with record_attention(layer) as recording:
    ...     y = layer(torch.zeros(1, 3, 8))
    >>> recording[""][0].weights.shape
    torch.Size([1, 2, 3, 3])
    """
    recording = Recording(model, checked_wants(want))
    if not recording.details:
        raise ArgumentError(f"{type(model).__name__} has no MultiHeadAttention inside, so there is nothing to record")
    token = _current.set(recording)
    try:
        yield recording
    finally:
        _current.reset(token)
