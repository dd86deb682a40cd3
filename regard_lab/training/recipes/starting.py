"""What a training takes over from the run that it starts from (`--from`): settings, model and vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from regard.arguments import count_of
from regard.errors import NotFoundError, UnsupportedError
from regard_lab.decoding.loading import load_with_tokeniser, seen_words_of, with_pieces
from regard_lab.models import SavedModel
from regard_lab.text import Tokeniser
from regard_lab.text.remarks import Tell
from regard_lab.text.seen_words import SeenWords
from regard_lab.training.recipes.continuing import unknown_settings
from regard_lab.training.recipes.run_config import RunConfig
from regard_lab.training.recipes.run_folder import SETTINGS_FILE, read_settings, run_of

FOREIGN = 0.01  # new data are refused if this share of their characters or more is in no piece of a run's vocabulary
NAMED_CHARACTERS = 3  # of those that are in no piece


class StartingModel(NamedTuple):
    """The model that a training starts from, its tokeniser, and the folder in which both were."""

    saved: SavedModel
    tokeniser: Tokeniser
    folder: str

    @property
    def words(self) -> SeenWords | None:
        """The words that it was trained on; None where they are not stored."""
        return seen_words_of(self.saved, self.folder)


def source_of(config: RunConfig) -> str | None:
    """The run from which a training starts; None where none is named, or the recipe has no such setting."""
    return getattr(config, "from_run", None)


def source_settings(kind: type[RunConfig], source: str, command: str) -> dict[str, Any]:
    """The settings of the run in `source`, for a training of the same command.

    Raises:
        NotFoundError: a model without the settings of its training, or a run of another command.
    """
    settings = read_settings(run_of(Path(source)))
    if settings is None:
        load_with_tokeniser(source)  # says what is wrong with a folder that holds no model
        raise NotFoundError(
            f"{source} holds a model without {SETTINGS_FILE}; name the run that it was made from"
        )
    strange = unknown_settings(kind, settings)
    if strange:
        raise NotFoundError(
            f"{source} is a run of another command than train {command} (it has {strange[0]!r})"
        )
    return settings


def load_start(
    config: RunConfig, source: str, lines: Sequence[str], targets: Sequence[str], tell: Tell
) -> StartingModel:
    """The model of the run in `source`, with pieces for new data.

    Args:
        config: of the new training; it decides the dropout, and how many pieces may be added.
        source: a run, or a saved model.
        lines, targets: what will be learned from.
        tell: receives remarks.

    Raises:
        UnsupportedError: many of their characters are in no piece, and `new_pieces` was not given.
    """
    saved, tokeniser = load_with_tokeniser(source)
    wider = _extended(config, source, tokeniser, lines, targets, tell)
    spelling = "which spells any text"
    if wider is not tokeniser:
        added = wider.vocab_size - tokeniser.vocab_size
        verb = "is" if added == 1 else "are"
        spelling = f"to which {count_of(added, 'pieces', ',')} of the new data {verb} added"
    tell(
        f"{source} decides the model and its vocabulary of {tokeniser.vocab_size:,} pieces, {spelling}; "
        f"its optimiser starts anew"
    )
    saved = with_pieces(saved, tokeniser, wider)
    return StartingModel(with_settings_of(config, saved), wider, source)


def with_settings_of(config: RunConfig, saved: SavedModel) -> SavedModel:
    """A saved model with those settings of a training that change no weight, where it has them."""
    changes = {
        "dropout": config.dropout,
        "gradient_checkpointing": config.gradient_checkpointing,
    }
    known = {name: value for name, value in changes.items() if name in saved.config}
    return replace(saved, config={**saved.config, **known})


def _extended(
    config: RunConfig,
    source: str,
    tokeniser: Tokeniser,
    lines: Sequence[str],
    targets: Sequence[str],
    tell: Tell,
) -> Tokeniser:
    """The tokeniser of the run in `source` with the pieces that `new_pieces` adds, if any."""
    new_pieces: int | None = getattr(config, "new_pieces", None)
    if new_pieces:
        return tokeniser.extended(lines, new_pieces, targets)
    text = "\n".join([*lines, *targets])
    unknown = tokeniser.unknown_characters(text)
    if not unknown or new_pieces == 0:
        return tokeniser

    count = unknown.total()
    characters = [repr(character) for character, _ in unknown.most_common(NAMED_CHARACTERS)]
    fact = (
        f"{count_of(count, 'characters', ',')} of {len(text):,} in the new data, such as "
        f"{', '.join(characters)}, are in no piece of the vocabulary"
    )
    if count / len(text) >= FOREIGN:
        raise UnsupportedError(
            f"{fact} of {source}, and 2 to 4 bytes would spell each; add pieces by --new-pieces 500, or allow "
            f"bytes by --new-pieces 0"
        )
    tell(f"{fact}, so that bytes spell them; --new-pieces N adds pieces for them")
    return tokeniser
