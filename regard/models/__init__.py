"""The models that attention was made for: plain modules with a frozen `Config`, `save(folder)` and `load(folder)`.

Batches hold ids padded with `PAD` on either side; a model finds the padding itself and is not changed by it.
"""

from regard.models.storage import SavedModel, load_model, save_model
from regard.models.translation_transformer import TranslationState, TranslationTransformer

__all__ = ["TranslationTransformer", "TranslationState", "save_model", "load_model", "SavedModel"]
