"""Recurrent translation models: a bidirectional encoder, and a decoder that attends to it."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.arguments import count_of, of_kind
from regard.errors import ArgumentError
from regard.layers.caches.base import checked_rows
from regard.mechanisms.scores import Additive, Concat, Dot, General, LocalPredictive
from regard.patterns import KeySpan
from regard.reprs import brief
from regard_lab.models.base import (
    Aligned,
    Settings,
    TranslationBase,
    align,
    check_number,
    check_step,
)
from regard_lab.models.recurrent import cells
from regard_lab.models.recurrent.cells import CellState, Memory, MemoryAttention

CELLS = ("gru", "lstm")
ATTENTIONS = ("bahdanau", "luong-dot", "luong-general", "luong-concat", "none")
REACHES = ("global", "local-m", "local-p")


@brief
@dataclass(frozen=True, kw_only=True)
class RecurrentConfig(Settings):
    """The config of a RecurrentTranslator.

    Args:
        vocab_size: size of the vocabulary that source and target share.
        dim: size of the embeddings, and of the vectors that score the vocabulary.
        hidden: size of the decoder's state and of the encoder's states, half of which read forwards and half backwards.
        cell: "gru" or "lstm".
        encoder_layers, decoder_layers: number of layers on each side.
        attention: "bahdanau", "luong-dot", "luong-general", "luong-concat", or "none" for one source vector.
        reach: which words Luong's attention may look at: all ("global"), those around the target's position
            ("local-m"), or those around a predicted position ("local-p").
        window: the largest distance from that position; the paper's D.
        input_feeding: whether Luong's attentional vector is an input of the next step.
        tied: use one matrix for source, target and output vocabulary.
        dropout: of embeddings, between layers, and before the output vocabulary.

    Raises:
        ArgumentError: invalid sizes or choices.

    >>> RecurrentConfig(vocab_size=100, attention="luong-general").hidden
    128
    """

    vocab_size: int
    dim: int = 128
    hidden: int = 128
    cell: str = "gru"
    encoder_layers: int = 1
    decoder_layers: int = 1
    attention: str = "bahdanau"
    reach: str = "global"
    window: int = 10
    input_feeding: bool = False
    tied: bool = True
    dropout: float = 0.1

    def __post_init__(self) -> None:
        self.check_sizes(
            "vocab_size", "dim", "hidden", "encoder_layers", "decoder_layers", "window"
        )
        self.check_choice("cell", CELLS)
        self.check_choice("attention", ATTENTIONS)
        self.check_choice("reach", REACHES)
        self.check_flags("input_feeding", "tied")
        self.check_shares("dropout")
        if self.hidden % 2:
            raise ArgumentError(
                f"hidden is {self.hidden}; half of it reads backwards, so it must be even"
            )
        if not self.is_luong and (self.reach != "global" or self.input_feeding):
            raise ArgumentError(
                f"reach={self.reach!r}, input_feeding={self.input_feeding} with attention={self.attention!r}: only "
                f"luong-dot, luong-general and luong-concat support a local reach or input feeding"
            )

    @property
    def least_parameters(self) -> int:
        layers = self.encoder_layers + self.decoder_layers
        return self.vocab_size * self.dim + layers * self.hidden * self.hidden // 4

    @property
    def is_luong(self) -> bool:
        return self.attention.startswith("luong-")


def recurrent_layers(
    cell: str, input_dim: int, hidden: int, layers: int, dropout: float, **options: bool
) -> nn.RNNBase:
    """Layers of "gru" or "lstm" cells, batch first."""
    kind = nn.GRU if cell == "gru" else nn.LSTM
    between = dropout if layers > 1 else 0.0
    return kind(input_dim, hidden, layers, batch_first=True, dropout=between, **options)


class BidirectionalEncoder(nn.Module):
    """The bidirectional encoder: a state for each word, h_j = [forward h_j; backward h_j].

    Source: Neural Machine Translation by Jointly Learning to Align and Translate, Bahdanau et al. 2015, section 3.2.
    """

    def __init__(self, cell: str, dim: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.layers = recurrent_layers(cell, dim, hidden // 2, layers, dropout, bidirectional=True)

    def forward(self, x: torch.Tensor, live: KeySpan | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode x (batch, length, dim), padded on the right.

        Returns:
            The state of each word, (batch, length, hidden), and the last states of both directions, (batch, hidden).
        """
        if live is None:
            states, last = self.layers(x)
        else:
            assert isinstance(live.stop, torch.Tensor)
            lengths = live.stop.cpu().clamp(min=1)  # a batch row of padding only is read as one PAD
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            packed_states, last = self.layers(packed)
            states, _ = pad_packed_sequence(
                packed_states, batch_first=True, total_length=x.shape[1]
            )
        if isinstance(last, tuple):  # of an LSTM, with its memory
            last, _ = last
        forwards = last[-2]  # of last: (layers * 2, batch, hidden / 2)
        backwards = last[-1]
        return states, torch.cat([forwards, backwards], -1)


@dataclass
class RecurrentTranslationState:
    """The state of translations in progress: the memory of the source and the state of the decoder's cell."""

    memory: Memory
    cell: CellState

    @property
    def length(self) -> int:
        """Number of target ids so far."""
        return self.cell.place

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + self.cell.nbytes

    def reorder(self, index: torch.Tensor) -> None:
        """Continue batch row i from batch row `index[i]`; index: integers (new batch,)."""
        index = checked_rows(index, len(self.memory.values), "state")
        memory = self.memory.reorder(index)
        cell = self.cell.reorder(index)
        # in one statement, which an exception cannot divide
        self.memory, self.cell = memory, cell


class RecurrentTranslator(TranslationBase):
    """A recurrent translation model: a bidirectional encoder, and a decoder with Bahdanau's, Luong's or no attention.

    The first state is s_0 = tanh(W_s [last forward state; last backward state]), and likewise the memory of an LSTM.
    With "bahdanau" and "none", a maxout layer reads state, context and last word (appendix A.2.2 reads s_{t-1}; here
    s_t, as in equation 4). With Luong's scores, the attentional vector itself scores the vocabulary (equation 6).

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
        hidden = config.hidden
        self._new_tables()
        self.encoder = BidirectionalEncoder(
            config.cell, config.dim, hidden, config.encoder_layers, config.dropout
        )
        self.cell = new_cell(config)
        self.readout = None
        if not config.is_luong:
            self.readout = Maxout(hidden + hidden + config.dim, config.dim)
        tensors = 2 if config.cell == "lstm" else 1  # of a layer's state
        self.to_first_state = nn.Linear(hidden, tensors * config.decoder_layers * hidden)
        self._initialise()

    def _logits(
        self,
        source: torch.Tensor,
        source_vectors: torch.Tensor | None,
        target: Aligned,
        vectors: torch.Tensor | None,
    ) -> torch.Tensor:
        state = self.start(source, source_vectors)
        if len(target.ids) != len(source):
            raise ArgumentError(
                f"source has {count_of(len(source), 'texts')} and target {len(target.ids)}; give as many of both"
            )
        # x: (batch, target_length, dim)
        x = self._embed_scaled(target.ids, table=self.target_embedding, vectors=vectors)
        outputs, _ = self.cell.sequence(x, state.cell, state.memory)
        return self._read_out(outputs, x)

    def start(
        self, source: torch.Tensor, vectors: torch.Tensor | None = None
    ) -> RecurrentTranslationState:
        """The state for translating sources (batch, source_length) step by step."""
        aligned = align(source)
        vectors = aligned.move(vectors)
        x = self._embed_scaled(aligned.ids, vectors=vectors)  # (batch, source_length, dim)
        states, last = self.encoder(x, aligned.span)  # last: (batch, hidden)
        if self.config.attention == "none":
            memory = self.cell.attention.remember(last[:, None])
        else:
            memory = self.cell.attention.remember(states, aligned.span)
        return RecurrentTranslationState(memory, self.cell.begin(self._first_state(last)))

    def step(self, ids: torch.Tensor, state: RecurrentTranslationState) -> torch.Tensor:
        """Append `ids` (batch,) to the targets of the state, and return scores (batch, vocab_size) of the next ids."""
        check_step(ids, state, RecurrentTranslationState)
        check_number(ids, len(state.memory.values))
        x = self._embed_scaled(ids, table=self.target_embedding)  # (batch, dim)
        output, state.cell = self.cell(x, state.cell, state.memory)
        return self._read_out(output, x)

    def _first_state(self, last: torch.Tensor) -> cells.Recurrent:
        first = torch.tanh(self.to_first_state(last))
        tensors = first.unflatten(-1, (-1, self.config.decoder_layers, self.config.hidden))
        tensors = tensors.permute(1, 2, 0, 3)  # (1 or 2, layers, batch, hidden)
        hidden = tensors[0].contiguous()
        if len(tensors) == 1:
            return hidden
        return hidden, tensors[1].contiguous()

    def _read_out(self, outputs: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self.readout is not None:
            outputs = self.readout(torch.cat([outputs, x], -1))
        return self._score(self.dropout(outputs))

    def _initialise_matrix(self, name: str, matrix: nn.Parameter) -> None:
        """Recurrent matrices orthogonally (Bahdanau et al. 2015, appendix B.1), others as Glorot."""
        if "weight_hh" in name:
            for gate in matrix.split(matrix.shape[1]):
                nn.init.orthogonal_(gate)
        elif ".learned." not in name:
            super()._initialise_matrix(name, matrix)


class Maxout(nn.Module):
    """A maxout layer: t_j = max(t~_{2j-1}, t~_{2j}) of the output t~ of a linear layer.

    Source: Maxout Networks, Goodfellow et al. 2013; as an output layer, Bahdanau et al. 2015, appendix A.2.2.
    """

    def __init__(self, size: int, to: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 2 * to)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(..., size) -> (..., to)."""
        return self.linear(x).unflatten(-1, (-1, 2)).amax(-1)


def new_cell(config: RecurrentConfig) -> cells.AttentionCell:
    """The decoder's cell with the attention of a config."""
    hidden = config.hidden
    input_dim = config.dim
    if not config.is_luong:
        input_dim += hidden  # of the context
    elif config.input_feeding:
        input_dim += config.dim  # of the attentional vector
    layers = recurrent_layers(config.cell, input_dim, hidden, config.decoder_layers, config.dropout)
    if config.attention == "none":
        return cells.FixedVectorCell(layers)
    if config.attention == "bahdanau":
        score = Additive(hidden, hidden, hidden)
        return cells.BahdanauCell(layers, MemoryAttention(score))

    scores_of_luong = {
        "luong-dot": Dot(),
        "luong-general": General(hidden, hidden),
        "luong-concat": Concat(hidden, hidden, hidden),
    }
    score = scores_of_luong[config.attention]
    if config.reach == "local-p":
        score = LocalPredictive(score, config.window, query_dim=hidden)
    window = config.window if config.reach == "local-m" else None
    return cells.LuongCell(
        layers,
        MemoryAttention(score, window),
        memory_dim=hidden,
        output_dim=config.dim,
        input_feeding=config.input_feeding,
    )
