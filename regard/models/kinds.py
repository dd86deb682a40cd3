"""The kinds of models that translate, by the names that their folders hold."""

from __future__ import annotations

from pathlib import Path

from regard.errors import CheckpointError
from regard.models.recurrent import RecurrentTranslator
from regard.models.storage import SavedModel, load_model
from regard.models.translation_transformer import KIND, TranslationTransformer

TranslationModel = TranslationTransformer | RecurrentTranslator

TRANSLATORS: dict[str, type[TranslationTransformer] | type[RecurrentTranslator]] = {
    KIND: TranslationTransformer,
    RecurrentTranslator.KIND: RecurrentTranslator,
}


def load_translation_model(folder: str | Path) -> TranslationModel:
    """The translator that a folder holds, of whatever kind.

    Raises:
        CheckpointError: missing, damaged, or a model that does not translate.
    """
    return translation_model(load_model(folder), str(folder))


def translation_model(saved: SavedModel, where: str) -> TranslationModel:
    """The translator in what was read from `where`.

    Raises:
        CheckpointError: a model that does not translate, or one whose weights are not those of its config.
    """
    if saved.kind not in TRANSLATORS:
        raise CheckpointError(
            f"{where} holds a model of kind {saved.kind!r}, which does not translate; those that do are "
            f"{', '.join(TRANSLATORS)}"
        )
    return TRANSLATORS[saved.kind].from_saved(saved, where)
