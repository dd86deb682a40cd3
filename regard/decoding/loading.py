"""A saved model's folder, read once: the model's part and its tokeniser."""

from __future__ import annotations

from pathlib import Path

from regard.errors import ArgumentError, CheckpointError
from regard.kinds import of_kind
from regard.models import SavedModel, load_model
from regard.text import Tokeniser

TOKENISER_FILE = "tokeniser.json"


def load_with_tokeniser(folder: str | Path, kind: str | None = None) -> tuple[SavedModel, Tokeniser]:
    """What a folder holds, of one kind if that is given, and the tokeniser beside it.

    Raises:
        CheckpointError: missing, damaged, of another kind, or without a tokeniser.
    """
    saved = load_model(folder, kind)
    if TOKENISER_FILE not in saved.extra_files:
        raise CheckpointError(f"{folder} holds a model without {TOKENISER_FILE}, so its ids cannot be read")
    return saved, Tokeniser.from_json(saved.extra_files[TOKENISER_FILE])


def check_together(vocab_size: int, tokeniser: Tokeniser) -> None:
    """Raise an ArgumentError if a model of so many ids and a tokeniser were not trained together."""
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    if vocab_size != tokeniser.vocab_size:
        raise ArgumentError(
            f"the model has {vocab_size} ids and the tokeniser {tokeniser.vocab_size}; they were not trained together"
        )
