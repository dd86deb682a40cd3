"""Load a saved model together with its tokeniser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from regard.arguments import of_kind
from regard.errors import ArgumentError, CheckpointError, NotFoundError
from regard_lab.models import SavedModel, load_model
from regard_lab.text import Tokeniser
from regard_lab.text.seen_words import SeenWords, is_symbol

TOKENISER_FILE = "tokeniser.json"
# The words of the training texts; of a translator those of its sources.
WORDS_FILE = "source-words.json"
# The parameters that have a row for each id.
TABLES = ("embedding.weight", "target_embedding.weight", "to_vocabulary.weight")


def load_with_tokeniser(
    folder: str | Path, kind: str | None = None
) -> tuple[SavedModel, Tokeniser]:
    """The saved model in a folder, optionally of one kind only, and its tokeniser."""
    saved = load_model(folder, kind)
    if TOKENISER_FILE not in saved.extra_files:
        raise NotFoundError(
            f"{folder} holds a model without {TOKENISER_FILE}, so its ids cannot be read"
        )
    return saved, _from_file(Tokeniser, saved, TOKENISER_FILE, folder)


def with_pieces(saved: SavedModel, tokeniser: Tokeniser, wider: Tokeniser) -> SavedModel:
    """A saved model with the pieces that `wider` adds to its tokeniser.

    The row of a new piece is the mean of the rows of the pieces that spelled it before; no other number changes.
    """
    new_pieces = wider.vocabulary.pieces[tokeniser.vocab_size :]
    spelled = tokeniser.vocabulary.spelled(new_pieces)
    state = dict(saved.state)
    for name in state.keys() & set(TABLES):
        table = state[name]
        new_rows = [table[ids].double().mean(0).to(table.dtype) for ids in spelled]
        state[name] = torch.stack([*table, *new_rows])
    config = {**saved.config, "vocab_size": wider.vocab_size}
    return replace(saved, config=config, state=state)


def seen_words_of(saved: SavedModel, folder: str | Path) -> SeenWords | None:
    """The words and symbols of the training texts of a saved model; None where none are stored.

    Models of earlier versions stored no symbols: those of their vocabulary count, except where it has only bytes.
    """
    if WORDS_FILE not in saved.extra_files:
        return None
    words: SeenWords = _from_file(SeenWords, saved, WORDS_FILE, folder)
    if words.symbols is not None or TOKENISER_FILE not in saved.extra_files:
        return words
    tokeniser: Tokeniser = _from_file(Tokeniser, saved, TOKENISER_FILE, folder)
    if tokeniser.kind == "byte":
        return words
    return replace(words, symbols=frozenset(filter(is_symbol, tokeniser.whole_characters())))


def _from_file(kind: Any, saved: SavedModel, name: str, folder: str | Path) -> Any:
    try:
        return kind.from_json(saved.extra_files[name])
    except CheckpointError as error:
        raise CheckpointError(f"{folder} holds a {name} that cannot be used: {error}") from error


def check_together(vocab_size: int, tokeniser: Tokeniser) -> None:
    """Raise an ArgumentError if the vocabulary size of a model is not that of the tokeniser."""
    of_kind("tokeniser", tokeniser, Tokeniser, "a Tokeniser")
    if vocab_size != tokeniser.vocab_size:
        raise ArgumentError(
            f"the model has {vocab_size} ids and the tokeniser {tokeniser.vocab_size}; they were not trained together"
        )
