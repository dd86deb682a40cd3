"""The language model: a decoder-only Transformer with any pattern, mechanism, positions and kind of cache."""

from regard.models.language.config import LanguageConfig
from regard.models.language.model import LanguageModel
from regard.models.language.state import LanguageState

__all__ = ["LanguageModel", "LanguageConfig", "LanguageState"]
