"""Recording of attention statistics while a model runs, without changing the model."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from regard.arguments import shown, suggest
from regard.core.plan import AttentionDetail
from regard.core.result import Want, checked_wants
from regard.errors import ArgumentError, UnsupportedError
from regard.reprs import Described

_recording_of_thread: ContextVar[Recording | None] = ContextVar("recording", default=None)


class RecordedLayer(nn.Module):
    """A layer whose attention can be recorded."""

    # Active ones, in all threads; a compiled graph is specialised to these.
    recordings: tuple[Recording, ...] = ()


class Recording(Described):
    """The recorded AttentionDetails of a model, by the name of the layer: one for each time it ran."""

    def __init__(self, model: nn.Module, want: tuple[Want, ...]) -> None:
        self.want = want
        self._layers: dict[str, RecordedLayer] = {}
        for name, layer in model.named_modules():
            if isinstance(layer, RecordedLayer):
                self._layers[name] = layer
        self._names = {id(layer): name for name, layer in self._layers.items()}
        self.details: dict[str, list[AttentionDetail]] = {name: [] for name in self._layers}

    def includes(self, layer: nn.Module) -> bool:
        """Whether the layer belongs to the recorded model."""
        return id(layer) in self._names

    def begin(self) -> None:
        """Let every layer know of this recording."""
        for layer in self._layers.values():
            layer.recordings = (*layer.recordings, self)

    def end(self) -> None:
        """Undo `begin`, and as much of it as ran before an interruption."""
        for layer in self._layers.values():
            others = [recording for recording in layer.recordings if recording is not self]
            layer.recordings = tuple(others)

    def add(self, layer: nn.Module, detail: AttentionDetail) -> None:
        self.details[self._names[id(layer)]].append(detail)

    def __getitem__(self, name: str) -> list[AttentionDetail]:
        if name not in self.details:
            raise ArgumentError(
                f"no attention layer is called {name!r}; {suggest(name, self.details)}"
            )
        return self.details[name]


def current_recording(layer: RecordedLayer) -> Recording | None:
    """The active recording of this layer in this thread, or None.

    Raises:
        UnsupportedError: the layer is compiled while a recording is active.
    """
    if torch.compiler.is_compiling():  # context variables cannot be read here
        if layer.recordings:
            raise UnsupportedError(
                "a compiled layer cannot be recorded; call record_attention on the uncompiled model"
            )
        return None
    recording = _recording_of_thread.get()
    if recording is None or not recording.includes(layer):
        return None
    return recording


@contextmanager
def record_attention(
    model: nn.Module, want: Iterable[Want] | Want = ("weights",)
) -> Generator[Recording]:
    """Record the statistics in `want` of every attention layer of `model` while the `with` block runs.

    Outputs are unchanged. The recording belongs to this thread: calls from other threads are not recorded.

    Args:
        model: an attention layer, or a module that contains some.
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
        raise ArgumentError(
            f"record_attention takes a module with attention layers, not {shown(model)}"
        )
    recording = Recording(model, checked_wants(want))
    if not recording.details:
        way_out = ""
        if any(isinstance(layer, nn.MultiheadAttention) for layer in model.modules()):
            way_out = (
                "; record PyTorch's layers by replaced_attention(want=...) of "
                "regard.integrations.torch"
            )
        if any(kind.__module__.startswith("transformers.") for kind in type(model).__mro__):
            way_out = (
                "; for a model of transformers, call attach(model) and collect weights with: "
                "with observe(model, 'weights') as observed: ... (regard.integrations.transformers)"
            )
        raise ArgumentError(
            f"{type(model).__name__} has no MultiHeadAttention inside, so there is nothing to record{way_out}"
        )
    before = _recording_of_thread.get()
    try:
        _recording_of_thread.set(recording)
        recording.begin()
        yield recording
    finally:
        _recording_of_thread.set(before)
        recording.end()
