"""A model that a folder can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from regard.errors import ArgumentError, CheckpointError
from regard.kinds import of_kind
from regard.models.settings import Settings
from regard.models.storage import SavedModel, load_model, save_model


class Storable(nn.Module):
    """A module that its config builds: `KIND` names it in a folder, `Config` is what its config is made with."""

    KIND: ClassVar[str]
    Config: ClassVar[type[Settings]]
    config: Any

    def save(self, folder: str | Path, extra_files: dict[str, str] | None = None) -> None:
        """Write the model into a folder, whole or not at all."""
        save_model(folder, self.config.to_dict(), self.state_dict(), self.KIND, extra_files)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The model that `save` wrote, or the best one of a training run, ready for use.

        Raises:
            CheckpointError: missing, damaged, or a model of another kind.
        """
        return cls.from_saved(load_model(folder, cls.KIND), str(folder))

    @classmethod
    def from_saved(cls, saved: SavedModel, where: str) -> Self:
        """The model in what was read from `where`; sizes are compared before any memory is taken for them."""
        of_kind("saved", saved, SavedModel, "what load_model gives")
        try:
            config = cls.Config.from_dict(saved.config)
            held = sum(tensor.numel() for tensor in saved.state.values())
            if config.least_parameters > held:
                raise ArgumentError(f"it has at least {config.least_parameters} parameters and the file {held}")
            with torch.device("meta"):
                model = cls(config)
            model.load_state_dict(saved.state, strict=True, assign=True)
        except (ArgumentError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"{where} holds weights that are not those of its config: {error}") from error
        return model.requires_grad_(True).eval()
