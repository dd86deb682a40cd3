"""Learned tables of positions, lengthened by repeating their rows, and cut again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from regard.arguments import whole
from regard.errors import ArgumentError, UnsupportedError
from regard.integrations.transformers.attaching import models_inside
from regard.reprs import brief

__all__ = ["Tables", "tables_of", "tiled"]

NAMES = re.compile(r"(position_embeddings?|wpe|embed_positions|pos_emb)")
BUFFERS = ("position_ids", "token_type_ids")  # that models hold beside their table, one column for each position


@dataclass(frozen=True)
class Table:
    """A table of positions.

    Args:
        owner: the module that holds the table, and perhaps buffers with a column for each row.
        module: the embedding.
        weight: what it holds before it is lengthened.
        offset: rows before that of position 0: two in RoBERTa (whose padding is position 1), in OPT and in BART.
    """

    owner: nn.Module
    module: nn.Embedding
    weight: nn.Parameter
    offset: int

    @property
    def positions(self) -> int:
        """How many positions it had."""
        return len(self.weight) - self.offset

    def hold(self, weight: nn.Parameter) -> None:
        """Give the embedding this weight, and as many columns to the buffers beside it."""
        before, rows = self.module.num_embeddings, len(weight)
        self.module.weight, self.module.num_embeddings = weight, rows
        for name in BUFFERS:
            buffer = getattr(self.owner, name, None)
            if isinstance(buffer, torch.Tensor) and buffer.shape[-1] == before:
                row = torch.arange(rows, device=buffer.device, dtype=buffer.dtype)
                setattr(self.owner, name, (row if name == "position_ids" else torch.zeros_like(row))[None])


@brief
@dataclass(frozen=True)
class Tables:
    """The tables of a model, and its configs with the lengths that they name."""

    tables: tuple[Table, ...]
    configs: tuple[tuple[Any, int], ...]

    def lengthen(self, length: int) -> None:
        """Repeat the rows of each table up to `length` positions."""
        for table in self.tables:
            grown = tiled(table.weight.detach(), table.offset, length)
            table.hold(nn.Parameter(grown, requires_grad=table.weight.requires_grad))
        for config, known in self.configs:
            config.max_position_embeddings = known + length - self.tables[0].positions

    def restore(self) -> None:
        """Cut the tables to their own lengths; their first rows stay as they are now."""
        for table in self.tables:
            table.weight.data = table.module.weight.detach()[: len(table.weight)].clone()
            table.hold(table.weight)
        for config, known in self.configs:
            config.max_position_embeddings = known


def tables_of(model: PreTrainedModel, length: int) -> Tables:
    """The learned tables of a model.

    Raises:
        UnsupportedError: there is none, or one that is not learned.
        ArgumentError: one has `length` positions already.
    """
    whole("length", length, 1)
    named = {id(part.config): part.config for part in models_inside(model)}.values()
    configs = tuple((config, config.max_position_embeddings) for config in named if _names_length(config))
    found = [_table(model, name, module) for name, module in model.named_modules() if _is_table(name, module)]
    if not found:
        raise UnsupportedError(
            f"{type(model).__name__} has no learned table of positions to lengthen; rotary positions and biases by "
            f"distance are computed for any length, so leave length out"
        )
    for table in found:
        if table.positions >= length:
            raise ArgumentError(
                f"length is {length}, and {type(model).__name__} has a table of {table.positions} positions already; "
                f"give more, or leave length out"
            )
    return Tables(tuple(found), configs)


def _names_length(config: Any) -> bool:
    return isinstance(getattr(config, "max_position_embeddings", None), int)


def _is_table(name: str, module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) and NAMES.fullmatch(name.rpartition(".")[2]) is not None


def _table(model: PreTrainedModel, name: str, module: nn.Module) -> Table:
    assert isinstance(module, nn.Embedding)
    assert isinstance(module.weight, nn.Parameter)
    offset = getattr(module, "offset", None)
    if type(module) is not nn.Embedding and not isinstance(offset, int):
        raise UnsupportedError(
            f"the positions of {type(model).__name__} are computed ({type(module).__name__}), not learned, so "
            f"repeating rows would be another function; leave length out"
        )
    if not isinstance(offset, int):
        offset = 0 if module.padding_idx is None else module.padding_idx + 1
    return Table(model.get_submodule(name.rpartition(".")[0]), module, module.weight, offset)


def tiled(weight: torch.Tensor, offset: int, length: int) -> torch.Tensor:
    """A table (offset + positions, dim) whose rows of positions are repeated up to `length` of them.

    >>> tiled(torch.arange(5.0)[:, None], offset=2, length=7).flatten().int().tolist()
    [0, 1, 2, 3, 4, 2, 3, 4, 2]
    """
    source = offset + torch.arange(length, device=weight.device) % (len(weight) - offset)
    return torch.cat((weight[:offset], weight[source]))
