"""Models built on attention: plain modules with a frozen `Config`, `save(folder)` and `load(folder)`.

Batches hold ids padded with `PAD` on either side. Models detect the padding themselves; it never changes an output.
"""

from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.models.kinds import load_translation_model
from regard_lab.models.language import LanguageConfig, LanguageModel, LanguageState
from regard_lab.models.recurrent import (
    LongShortTermMemoryNetwork,
    RecurrentTranslationState,
    RecurrentTranslator,
)
from regard_lab.models.state import LayerCaches, State, Writer
from regard_lab.models.storage import SavedModel, load_model, save_model
from regard_lab.models.translation_transformer import TranslationState, TranslationTransformer

__all__ = [
    "TranslationTransformer",
    "TranslationState",
    "RecurrentTranslator",
    "RecurrentTranslationState",
    "LongShortTermMemoryNetwork",
    "LanguageModel",
    "LanguageConfig",
    "LanguageState",
    "TextEncoder",
    "EncoderConfig",
    "State",
    "Writer",
    "LayerCaches",
    "load_translation_model",
    "save_model",
    "load_model",
    "SavedModel",
]
