"""Learned tables of positions of a model: lengthened by repeating their rows, and cut again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from regard.arguments import whole
from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers.modules import models_inside
from regard.reprs import brief

__all__ = ["PositionTables", "position_tables"]

TABLES = re.compile(r"(position_embeddings?|wpe|embed_positions|pos_emb)")  # names of such tables
# That models hold beside their table, one column for each position.
BUFFERS = ("position_ids", "token_type_ids")


@dataclass(frozen=True)
class _PositionTable:
    """A learned table of positions.

    Args:
        owner: the module that holds the table, and perhaps buffers with a column for each row.
        module: the embedding.
        weight: what it holds before it is lengthened.
        buffers: of the owner, those that have a column for each row.
        offset: rows before that of position 0: two in RoBERTa (whose padding is position 1), in OPT and in BART.
    """

    owner: nn.Module
    module: nn.Embedding
    weight: nn.Parameter
    buffers: dict[str, torch.Tensor]
    offset: int

    @property
    def positions(self) -> int:
        return len(self.weight) - self.offset

    def lengthen(self, length: int) -> None:
        """Repeat the rows of the embedding, and give the buffers beside it as many columns."""
        requires_grad = self.weight.requires_grad
        weight = nn.Parameter(self._repeated(length), requires_grad=requires_grad)
        self._set(weight)
        for name, buffer in self.buffers.items():
            row = torch.arange(len(weight), device=buffer.device, dtype=buffer.dtype)
            lengthened = row if name == "position_ids" else torch.zeros_like(row)
            setattr(self.owner, name, lengthened[None])

    def restore(self) -> None:
        """Cut the embedding to its own length; its first rows stay as they are now."""
        rows = self.module.weight.detach()[: len(self.weight)]
        if self.module.weight is not self.weight and not torch.equal(rows, self.weight):
            self.weight.detach().copy_(rows)
        self._set(self.weight)
        for name, buffer in self.buffers.items():
            setattr(self.owner, name, buffer)

    def _repeated(self, length: int) -> torch.Tensor:
        """The weight whose rows of positions are repeated up to `length` of them."""
        weight = self.weight.detach()
        source = self.offset + torch.arange(length, device=weight.device) % self.positions
        return torch.cat((weight[: self.offset], weight[source]))

    def _set(self, weight: nn.Parameter) -> None:
        self.module.weight = weight
        self.module.num_embeddings = len(weight)


@brief
@dataclass(frozen=True)
class PositionTables:
    """The tables of positions of a model, and its configs with the lengths that they name."""

    tables: tuple[_PositionTable, ...]
    configs: tuple[tuple[Any, int], ...]

    def lengthen(self, length: int) -> None:
        """Repeat the rows of each table up to `length` positions."""
        for table in self.tables:
            table.lengthen(length)
        for config, known in self.configs:
            config.max_position_embeddings = known + length - self.tables[0].positions

    def restore(self) -> None:
        """Cut the tables to their own lengths; their first rows stay as they are now."""
        for table in self.tables:
            table.restore()
        for config, known in self.configs:
            config.max_position_embeddings = known


def position_tables(model: PreTrainedModel, length: int) -> PositionTables:
    """The learned tables of positions of a model.

    Raises:
        UnsupportedError: it has none, or computes its positions.
        ArgumentError: a table has `length` positions already.
    """
    whole("length", length, 1)
    name = type(model).__name__
    tables = []
    for path, module in model.named_modules():
        holder, _, last = path.rpartition(".")
        if not isinstance(module, nn.Embedding) or not TABLES.fullmatch(last):
            continue
        table = _table(name, model.get_submodule(holder), module)
        if table.positions >= length:
            raise ArgumentError(
                f"length is {length}, and {name} has a table of {table.positions} positions already; give more, or "
                f"leave length out"
            )
        tables.append(table)
    if not tables:
        raise UnsupportedError(
            f"{name} has no learned table of positions to lengthen; rotary positions and biases by distance are "
            f"computed for any length, so leave length out"
        )

    configs = {id(part.config): part.config for part in models_inside(model)}.values()
    lengths = []
    for config in configs:
        known = getattr(config, "max_position_embeddings", None)
        if isinstance(known, int):
            lengths.append((config, known))
    return PositionTables(tuple(tables), tuple(lengths))


def _table(model_name: str, owner: nn.Module, module: nn.Embedding) -> _PositionTable:
    """The table of an embedding, with what its owner holds beside it."""
    assert isinstance(module.weight, nn.Parameter)
    offset = getattr(module, "offset", None)
    if type(module) is not nn.Embedding and not isinstance(offset, int):
        raise UnsupportedError(
            f"the positions of {model_name} are computed ({type(module).__name__}), not learned, so repeating rows "
            f"would be another function; leave length out"
        )
    if not isinstance(offset, int):
        offset = 0 if module.padding_idx is None else module.padding_idx + 1

    buffers = {}
    for name in BUFFERS:
        buffer = getattr(owner, name, None)
        if isinstance(buffer, torch.Tensor) and buffer.shape[-1] == module.num_embeddings:
            buffers[name] = buffer
    return _PositionTable(owner, module, module.weight, buffers, offset)
