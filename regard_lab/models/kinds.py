"""The kinds of models: Transformers, and translation models, which are loaded by the kind that a folder holds."""

from pathlib import Path

from regard.errors import NotFoundError
from regard_lab.models.encoder import TextEncoder
from regard_lab.models.language import LanguageModel
from regard_lab.models.recurrent import RecurrentTranslator
from regard_lab.models.storage import SavedModel, load_model, way_to_use
from regard_lab.models.translation_transformer import TranslationTransformer

Transformer = LanguageModel | TextEncoder | TranslationTransformer
TranslationModel = TranslationTransformer | RecurrentTranslator

TRANSFORMERS: dict[str, type[Transformer]] = {
    kind.KIND: kind for kind in (LanguageModel, TextEncoder, TranslationTransformer)
}
TRANSLATORS = {kind.KIND: kind for kind in (TranslationTransformer, RecurrentTranslator)}


def load_translation_model(folder: str | Path) -> TranslationModel:
    """Load the translation model in a folder, of any kind.

    Raises:
        CheckpointError: the folder is missing, damaged, or holds another kind of model.
    """
    return translation_model(load_model(folder), str(folder))


def translation_model(saved: SavedModel, where: str) -> TranslationModel:
    """Build the translation model in `saved`, read from `where`."""
    if saved.kind not in TRANSLATORS:
        raise NotFoundError(
            f"{where} holds a model of kind {saved.kind!r}, which does not translate; translation models are "
            f"{', '.join(TRANSLATORS)}{way_to_use(saved.kind)}"
        )
    return TRANSLATORS[saved.kind].from_saved(saved, where)
