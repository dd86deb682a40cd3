"""The encoder: one network reads forwards, another backwards."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.patterns import KeySpan


def recurrent_layers(
    cell: str, input_dim: int, hidden: int, layers: int, dropout: float, **options: bool
) -> nn.RNNBase:
    """Layers of "gru" or "lstm" cells, batch first."""
    kind = nn.GRU if cell == "gru" else nn.LSTM
    between = dropout if layers > 1 else 0.0
    return kind(input_dim, hidden, layers, batch_first=True, dropout=between, **options)


class BidirectionalEncoder(nn.Module):
    """What each word says in its sentence: h_j = [forward h_j; backward h_j].

    Source: Neural Machine Translation by Jointly Learning to Align and Translate, Bahdanau et al. 2015, section 3.2.
    """

    def __init__(self, cell: str, dim: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = recurrent_layers(cell, dim, hidden // 2, layers, dropout, bidirectional=True)

    def forward(self, x: torch.Tensor, live: KeySpan | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The states of x (batch, length, dim), padded on the right: of each word, (batch, length, hidden), and the
        last of both directions, (batch, hidden)."""
        if live is None:
            states, last = self.layers(x)
        else:
            assert isinstance(live.stop, torch.Tensor)
            lengths = live.stop.cpu().clamp(min=1)  # a row of nothing but padding is read as one PAD
            packed, last = self.layers(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
            states, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.shape[1])
        last = last[0] if isinstance(last, tuple) else last  # (layers * 2, batch, hidden / 2)
        return states, torch.cat([last[-2], last[-1]], -1)
