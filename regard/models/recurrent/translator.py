"""The translators before the Transformer: a recurrent encoder, and a recurrent decoder that attends to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from regard.caches.given import check_rows
from regard.errors import ArgumentError
from regard.kinds import of_kind
from regard.layers import Projection, project
from regard.mechanisms.scores import Additive, Concat, Dot, General, LocalPredictive, Score
from regard.models.ids import check_step
from regard.models.padding import align
from regard.models.recurrent.cells import AttentionCell, BahdanauCell, CellState, FixedVectorCell, LuongCell, Recurrent
from regard.models.recurrent.config import RecurrentConfig
from regard.models.recurrent.encoder import BidirectionalEncoder, recurrent_layers
from regard.models.recurrent.memory import Memory, MemoryAttention
from regard.models.storable import Storable


@dataclass
class RecurrentTranslationState:
    """Where a translation stands: what the decoder remembers of the source, and its cell."""

    memory: Memory
    cell: CellState

    @property
    def length(self) -> int:
        """Target ids decoded so far."""
        return self.cell.place

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + self.cell.nbytes

    def reorder(self, index: torch.Tensor) -> None:
        """Row i goes on from what row `index[i]` was; index: integers (new batch,)."""
        check_rows(index, len(self.memory.values), "state")
        self.memory, self.cell = self.memory.reorder(index), self.cell.reorder(index)


class RecurrentTranslator(Storable):
    """A bidirectional encoder, and a decoder that attends to it as Bahdanau's or Luong's does, or not at all.

    The first state is s_0 = tanh(W_s [last forward state; last backward state]), an LSTM's memory likewise. With
    "bahdanau" and "none" a maxout layer reads state, context and last word (appendix A.2.2, where it reads s_{t-1};
    here s_t, as in equation 4); with Luong's scores the attentional vector itself scores the vocabulary (equation 6).

    Source: Bahdanau et al. 2015, Neural Machine Translation by Jointly Learning to Align and Translate; Luong et al.
    2015, Effective Approaches to Attention-based Neural Machine Translation; Cho et al. 2014 ("none").

    >>> model = RecurrentTranslator(RecurrentConfig(vocab_size=100, dim=16, hidden=16)).eval()
    >>> source, target = torch.tensor([[5, 6, 7]]), torch.tensor([[2, 8]])
    >>> model(source, target).shape
    torch.Size([1, 2, 100])
    """

    KIND = "recurrent-translator"
    Config = RecurrentConfig

    def __init__(self, config: RecurrentConfig) -> None:
        of_kind("config", config, RecurrentConfig, "a RecurrentConfig").check_memory()
        super().__init__()
        self.config = config
        dim, hidden = config.dim, config.hidden
        self.embedding = nn.Embedding(config.vocab_size, dim)
        self.target_embedding = None if config.tied else nn.Embedding(config.vocab_size, dim)
        self.to_vocabulary = None if config.tied else Projection(dim, config.vocab_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = BidirectionalEncoder(config.cell, dim, hidden, config.encoder_layers, config.dropout)
        self.cell = new_cell(config)
        self.readout = None if config.is_luong else Maxout(hidden + hidden + dim, dim)
        self.to_first_state = nn.Linear(hidden, (2 if config.cell == "lstm" else 1) * config.decoder_layers * hidden)
        self._initialise()

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores of each next target id.

        Args:
            source: ids (batch, source_length), padded with PAD on either side.
            target: ids (batch, target_length) that begin with BEGIN, padded likewise.

        Returns:
            (batch, target_length, vocab_size): place t scores the id that follows target[:, t].
        """
        state = self.start(source)
        aligned = align(target)
        if len(target) != len(source):
            raise ArgumentError(f"source has {len(source)} texts and target {len(target)}; they are as many")
        x = self._embed(aligned.ids, self.target_embedding)  # (batch, target_length, dim)
        outputs, _ = self.cell.sequence(x, state.cell, state.memory)
        return aligned.put_back(self._score(outputs, x))

    def start(self, source: torch.Tensor) -> RecurrentTranslationState:
        """The state from which sources (batch, source_length) are translated step by step."""
        aligned = align(source)
        states, last = self.encoder(self._embed(aligned.ids, None), aligned.span)  # last: (batch, hidden)
        if self.config.attention == "none":
            memory = self.cell.attention.remember(last[:, None])
        else:
            memory = self.cell.attention.remember(states, aligned.span)
        return RecurrentTranslationState(memory, self.cell.begin(self._first_state(last)))

    def step(self, ids: torch.Tensor, state: RecurrentTranslationState) -> torch.Tensor:
        """Scores (batch, vocab_size) of the next id, after `ids` (batch,) have followed what the state holds."""
        check_step(ids, state, RecurrentTranslationState)
        if len(ids) != len(state.memory.values):
            raise ArgumentError(f"ids are {len(ids)} for {len(state.memory.values)} texts; give one for each text")
        x = self._embed(ids, self.target_embedding)  # (batch, dim)
        output, state.cell = self.cell(x, state.cell, state.memory)
        return self._score(output, x)

    def _first_state(self, last: torch.Tensor) -> Recurrent:
        first = torch.tanh(self.to_first_state(last))
        parts = first.unflatten(-1, (-1, self.config.decoder_layers, self.config.hidden)).permute(1, 2, 0, 3)
        return (parts[0].contiguous(), parts[1].contiguous()) if len(parts) == 2 else parts[0].contiguous()

    def _embed(self, ids: torch.Tensor, table: nn.Module | None) -> torch.Tensor:
        if ids.numel() and not (0 <= int(ids.min()) and int(ids.max()) < self.config.vocab_size):
            raise ArgumentError(
                f"ids go from {int(ids.min())} to {int(ids.max())}; this vocabulary goes from 0 to "
                f"{self.config.vocab_size - 1}"
            )
        table = self.embedding if table is None else table
        return self.dropout(table(ids) * math.sqrt(self.config.dim))

    def _score(self, outputs: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.readout is not None:
            outputs = self.readout(torch.cat([outputs, x], -1))
        outputs = self.dropout(outputs)
        return project(outputs, self.embedding.weight) if self.to_vocabulary is None else self.to_vocabulary(outputs)

    def _initialise(self) -> None:
        """Recurrent matrices orthogonal (Bahdanau et al. 2015, appendix B.1), others as Glorot and Bengio 2010 draw
        them; embeddings so that their scaled vectors have unit variance."""
        for name, parameter in self.named_parameters():
            if "weight_hh" in name:
                for gate in parameter.split(parameter.shape[1]):
                    nn.init.orthogonal_(gate)
            elif parameter.dim() == 2 and "embedding" not in name and ".learned." not in name:
                nn.init.xavier_uniform_(parameter)
        for table in (self.embedding, self.target_embedding):
            if table is not None:
                nn.init.normal_(table.weight, std=self.config.dim**-0.5)


class Maxout(nn.Module):
    """t_j = max(t~_{2j-1}, t~_{2j}) of a linear layer's t~.

    Source: Maxout Networks, Goodfellow et al. 2013; as an output layer, Bahdanau et al. 2015, appendix A.2.2.
    """

    def __init__(self, size: int, to: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 2 * to)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., size) -> (..., to)."""
        return self.linear(x).unflatten(-1, (-1, 2)).amax(-1)


def new_cell(config: RecurrentConfig) -> AttentionCell:
    """The decoder's cell, with the attention that a config asks for."""
    dim, hidden = config.dim, config.hidden
    joined = hidden if not config.is_luong else dim if config.input_feeding else 0  # beside each word's embedding
    layers = recurrent_layers(config.cell, dim + joined, hidden, config.decoder_layers, config.dropout)
    if config.attention == "none":
        return FixedVectorCell(layers)
    attention = MemoryAttention(new_score(config), config.window if config.reach == "local-m" else None)
    if config.is_luong:
        return LuongCell(layers, attention, memory_dim=hidden, output_dim=dim, input_feeding=config.input_feeding)
    return BahdanauCell(layers, attention)


def new_score(config: RecurrentConfig) -> Score:
    """How the decoder's state is compared with the encoder's: all of them, inside too, have the size `hidden`."""
    hidden = config.hidden
    score = {
        "bahdanau": Additive(hidden, hidden, hidden),
        "luong-dot": Dot(),
        "luong-general": General(hidden, hidden),
        "luong-concat": Concat(hidden, hidden, hidden),
    }[config.attention]
    return LocalPredictive(score, config.window, query_dim=hidden) if config.reach == "local-p" else score
