"""What all models share: configs with checked values, checks of ids, saving and loading, embedding, and padding.

Texts are moved to the left, so that inside a model each begins at position 0.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from regard.arguments import (
    a_tensor,
    count_of,
    of_kind,
    one_of,
    real,
    shown,
    suggest,
    whole,
    yes_or_no,
)
from regard.core.keywords import OF_MODELS, refusing_keywords
from regard.errors import ArgumentError, CheckpointError, ShapeError
from regard.exporting import exporting
from regard.layers.projection import Projection, project
from regard.patterns import KeySpan
from regard.positions import Learned, Sinusoidal
from regard.reprs import brief
from regard_lab.models.storage import SavedModel, load_model, save_model
from regard_lab.text.vocabularies import PAD


def check_step(ids: torch.Tensor, state: object, kind: type, axes: int = 1) -> None:
    """Raise an ArgumentError unless these are the next ids of each text and a state of this model."""
    is_tensor = isinstance(ids, torch.Tensor)
    if not is_tensor or ids.dim() != axes or ids.dtype not in (torch.int64, torch.int32):
        shape = "(batch,)" if axes == 1 else "(batch, added)"
        raise ArgumentError(
            f"ids are {shown(ids)}; give an int64 tensor {shape}, the next ids of each text"
        )
    if not isinstance(state, kind):
        raise ArgumentError(
            f"state is {shown(state)}; give the {kind.__name__} that the model's `start` returns"
        )


def check_number(ids: torch.Tensor, texts: int) -> None:
    """Raise an ArgumentError unless there is one id for each text of a state."""
    if len(ids) != texts:
        raise ArgumentError(
            f"ids are {len(ids)} for {count_of(texts, 'texts')}; give one for each text"
        )


def check_ids(ids: torch.Tensor, vocab_size: int) -> None:
    """Raise an ArgumentError unless all ids are in the vocabulary."""
    if not isinstance(ids, torch.Tensor) or not _is_whole(ids.dtype):
        raise ArgumentError(f"ids are {shown(ids)}; give an integer tensor")
    if torch.compiler.is_compiling():  # a program has no ids yet
        return
    if not ids.numel():
        return
    smallest = int(ids.min())
    largest = int(ids.max())
    if smallest < 0 or largest >= vocab_size:
        raise ArgumentError(
            f"ids go from {smallest} to {largest}; this vocabulary goes from 0 to {vocab_size - 1}"
        )


def _is_whole(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


# Configs and models

LARGEST_SIZE = 2**31 - 1  # of one axis
MOST_LAYERS = 10_000  # a limit against typing errors


@brief
@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of model configs: frozen, compared by value; `__post_init__` calls the checks below."""

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """The config with these settings; the inverse of `to_dict`.

        Raises:
            ArgumentError: a setting that is unknown, missing or invalid.
        """
        of_kind("settings", settings, dict, "the settings by name, as to_dict gives them")
        known = [field.name for field in fields(cls)]
        unknown = sorted(settings.keys() - known)
        if unknown:
            raise ArgumentError(
                f"there is no setting {', '.join(unknown)}; {suggest(unknown[0], known)}"
            )
        needed = {field.name for field in fields(cls) if field.default is MISSING}
        missing = sorted(needed - settings.keys())
        if missing:
            raise ArgumentError(f"the setting {', '.join(missing)} is missing")
        return cls(**settings)

    def check_sizes(self, *names: str) -> None:
        """Raise an ArgumentError unless these settings are integers of at least 1."""
        for name in names:
            most = MOST_LAYERS if name.endswith("layers") else LARGEST_SIZE
            needs = f"an integer of at least 1, and a model has at most {most}"
            object.__setattr__(self, name, whole(name, getattr(self, name), 1, most, needs))

    @property
    def least_parameters(self) -> int:
        """A lower bound on the number of parameters, computed without building the model."""
        return 0

    def check_memory(self) -> None:
        """Raise an ArgumentError if the parameters in float32 need more memory than this machine has."""
        if torch.get_default_device().type == "meta":  # no memory is allocated
            return
        needed = 4 * self.least_parameters  # bytes
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > memory:
            raise ArgumentError(
                f"the parameters of this model would take at least {needed:,} bytes, and this machine has {memory:,} "
                f"bytes of memory; make it smaller"
            )

    def check_choice(self, name: str, choices: Iterable[str]) -> None:
        """Raise an ArgumentError unless the setting is one of the choices."""
        one_of(name, getattr(self, name), tuple(choices))

    def check_shares(self, *names: str) -> None:
        """Raise an ArgumentError unless these settings are numbers from 0 to 1."""
        for name in names:
            share = real(name, getattr(self, name), 0, 1, needs="a share from 0 to 1")
            object.__setattr__(self, name, share)

    def check_flags(self, *names: str) -> None:
        """Raise an ArgumentError unless these settings are booleans."""
        for name in names:
            yes_or_no(name, getattr(self, name))


class Storable(nn.Module):
    """A module that can be saved and loaded; `KIND` names it in its folder, `Config` is the class of its config."""

    KIND: ClassVar[str]
    Config: ClassVar[type[Settings]]
    config: Any

    def save(self, folder: str | Path, extra_files: dict[str, str] | None = None) -> None:
        """Write the model into a folder atomically."""
        save_model(folder, self.config.to_dict(), self.state_dict(), self.KIND, extra_files)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load a saved model, or the best one of a training run, in eval mode.

        Raises:
            CheckpointError: the folder is missing, damaged, or holds a model of another kind.
        """
        return cls.from_saved(load_model(folder, cls.KIND), str(folder))

    @classmethod
    def from_saved(cls, saved: SavedModel, where: str) -> Self:
        """Build a model from `saved`, read from `where`; sizes are checked before memory is allocated."""
        of_kind("saved", saved, SavedModel, "what load_model gives")
        stored = sum(tensor.numel() for tensor in saved.state.values())
        try:
            config = cls.Config.from_dict(saved.config)
            if config.least_parameters > stored:
                raise ArgumentError(
                    f"it has at least {config.least_parameters} parameters and the file {stored}"
                )
            with torch.device("meta"):
                model = cls(config)
            model.load_state_dict(saved.state, strict=True, assign=True)
        except (ArgumentError, RuntimeError, TypeError) as error:
            raise CheckpointError(
                f"{where} holds weights that do not fit its config: {error}"
            ) from error
        return model.requires_grad_(True).eval()


class TextModel(Storable):
    """A model over one vocabulary: it embeds ids, runs its layers and gives logits for every id of the vocabulary."""

    embedding: nn.Embedding
    positions: nn.Module | None
    dropout: nn.Dropout
    to_vocabulary: nn.Module | None

    def _embed(
        self,
        ids: torch.Tensor,
        places: torch.Tensor | None = None,
        *,
        table: nn.Module | None = None,
        factor: float = 1.0,
        vectors: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Vectors (..., dim) of ids (...): `dropout(table[ids] · factor + positions[places])`.

        The table is by default the model's own; `vectors` (..., dim) are used instead of `table[ids]`; without places
        no positions are added.
        """
        check_ids(ids, self.config.vocab_size)
        if vectors is None:
            x = (self.embedding if table is None else table)(ids)
        else:
            shape = (*ids.shape, self.embedding.embedding_dim)
            needs = f"a vector for each id: ids {tuple(ids.shape)} need a tensor {shape}"
            x = a_tensor("vectors", vectors, needs, [shape])
        if factor != 1.0:
            x = x * factor
        if places is not None and self.positions is not None:
            x = x + self.positions(places).to(x.dtype)
        return self.dropout(x)

    def _through(self, layer: Callable[..., torch.Tensor], *inputs: Any) -> torch.Tensor:
        """The output of a layer; with gradient_checkpointing, its inside is computed again in the backward pass."""
        if self.config.gradient_checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def _score(self, x: torch.Tensor) -> torch.Tensor:
        """Logits (..., vocab_size) of vectors (..., dim): by the embeddings if they are tied, else by a matrix."""
        if self.to_vocabulary is None:
            return project(x, self.embedding.weight)
        return self.to_vocabulary(x)


class TranslationBase(TextModel):
    """A model that reads source ids and scores target ids, over one vocabulary with embeddings of unit variance."""

    target_embedding: nn.Embedding | None

    def _new_tables(self) -> None:
        """Make the embeddings, and what a model needs besides where its config does not tie them."""
        config = self.config
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.target_embedding = None
        self.to_vocabulary = None
        if not config.tied:
            self.target_embedding = nn.Embedding(config.vocab_size, config.dim)
            self.to_vocabulary = Projection(config.dim, config.vocab_size, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    @refusing_keywords("a translation model", OF_MODELS)
    def forward(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        *,
        source_vectors: torch.Tensor | None = None,
        target_vectors: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of each next target id.

        Args:
            source: ids (batch, source_length), padded with PAD on either side.
            target: ids (batch, target_length) that begin with BEGIN, padded likewise.
            source_vectors, target_vectors: (batch, length, dim), read instead of the embeddings of the ids, for
                gradients and for words without an id; the ids still decide which positions are padding.

        Returns:
            (batch, target_length, vocab_size): position t scores the id after target[:, t].
        """
        aligned = align(target)
        vectors = aligned.move(target_vectors)
        logits = self._logits(source, source_vectors, aligned, vectors)
        return aligned.put_back(logits)

    def _logits(
        self,
        source: torch.Tensor,
        source_vectors: torch.Tensor | None,
        target: Aligned,
        vectors: torch.Tensor | None,
    ) -> torch.Tensor:
        raise NotImplementedError

    def _embed_scaled(
        self, ids: torch.Tensor, places: torch.Tensor | None = None, **options: Any
    ) -> torch.Tensor:
        return self._embed(ids, places, factor=math.sqrt(self.config.dim), **options)

    def _initialise(self) -> None:
        """Glorot initialisation of matrices (Glorot and Bengio 2010); embeddings have unit variance after scaling."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and "embedding" not in name and not name.startswith("positions"):
                self._initialise_matrix(name, parameter)
        for table in (self.embedding, self.target_embedding):
            if table is not None:
                nn.init.normal_(table.weight, std=self.config.dim**-0.5)

    def _initialise_matrix(self, name: str, matrix: nn.Parameter) -> None:
        nn.init.xavier_uniform_(matrix)


def new_positions(kind: str, dim: int, max_length: int) -> nn.Module | None:
    """The module whose vectors are added to embeddings: "sinusoidal" or "learned"; None for any other kind."""
    if kind == "sinusoidal":
        return Sinusoidal(dim)
    if kind == "learned":
        return Learned(max_length, dim)
    return None


# Padding


@dataclass(frozen=True)
class Aligned:
    """Ids (batch, length) with all padding on the right.

    `span` is a pattern of the keys without padding, None if there is none. `start` (batch,) is how far each batch row
    was moved to the left, None if none was.
    """

    ids: torch.Tensor
    span: KeySpan | None
    start: torch.Tensor | None

    def move(self, x: torch.Tensor | None) -> torch.Tensor | None:
        """Move x (batch, length, ...), given for the original ids, as the ids were moved; None stays None."""
        if self.start is None or x is None:
            return x
        return _shifted(x, self.start)

    def put_back(self, x: torch.Tensor) -> torch.Tensor:
        """Move x (batch, length, ...), computed on these ids, back to the positions of the original ids."""
        if self.start is None:
            return x
        return _shifted(x, -self.start)


def _shifted(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Row i of x (batch, length, ...) from position `by[i]` on; beyond its ends the first or the last vector."""
    batch, length = x.shape[:2]
    rows = torch.arange(batch, device=x.device)[:, None]  # (batch, 1)
    places = torch.arange(length, device=x.device) + by[:, None]  # (batch, length)
    return x[rows, places.clamp(0, length - 1)]


def check_shape_of_ids(ids: torch.Tensor) -> None:
    """Raise an error if these are no ids (batch, length)."""
    if not isinstance(ids, torch.Tensor):
        raise ArgumentError(f"ids are {shown(ids)}; give an int64 tensor (batch, length)")
    if ids.dim() != 2 or ids.dtype != torch.int64:
        raise ShapeError(f"ids are {ids.dtype} {tuple(ids.shape)}; give int64 (batch, length)")


def align(ids: torch.Tensor) -> Aligned:
    """Move ids (batch, length), padded with PAD on either side, so that all padding is on the right.

    >>> align(torch.tensor([[0, 5, 6], [7, 8, 9]])).ids.tolist()
    [[5, 6, 0], [7, 8, 9]]
    """
    check_shape_of_ids(ids)
    is_text = ids != PAD
    has_values = not exporting()  # a program has no ids yet: any of them may be padding
    if has_values and bool(is_text.all()):
        return Aligned(ids, None, None)

    length = ids.shape[1]
    places = torch.arange(length, device=ids.device)
    start = torch.where(is_text, places, length).amin(1)
    stop = torch.where(is_text, places + 1, 0).amax(1)
    start = torch.minimum(start, stop)  # a batch row of padding only is not moved
    lengths = stop - start  # (batch,)
    span = KeySpan(0, lengths)
    if has_values and not bool(start.any()):
        return Aligned(ids, span, None)

    sources = (places + start[:, None]).clamp(max=length - 1)
    moved = ids.gather(1, sources)
    return Aligned(torch.where(places < lengths[:, None], moved, PAD), span, start)
