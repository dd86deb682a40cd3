"""The language model: a decoder-only Transformer with any pattern, mechanism, positions and kind of cache."""

from regard_lab.models.language.config import LanguageConfig
from regard_lab.models.language.model import LanguageModel
from regard_lab.models.language.state import LanguageState

__all__ = ["LanguageModel", "LanguageConfig", "LanguageState"]
