"""Models built on attention: plain modules with a frozen `Config`, `save(folder)` and `load(folder)`.

Batches hold ids padded with `PAD` on either side. Models detect the padding themselves; it never changes an output.
"""

from regard_lab.models.encoder import EncoderConfig, TextEncoder
from regard_lab.models.kinds import load_translation_model
from regard_lab.models.language import LanguageConfig, LanguageModel
from regard_lab.models.recurrent import RecurrentTranslator
from regard_lab.models.state import State
from regard_lab.models.storage import SavedModel, load_model, save_model
from regard_lab.models.translation_transformer import TranslationTransformer

__all__ = [
    "TranslationTransformer",
    "RecurrentTranslator",
    "LanguageModel",
    "LanguageConfig",
    "TextEncoder",
    "EncoderConfig",
    "State",
    "load_translation_model",
    "save_model",
    "load_model",
    "SavedModel",
]
