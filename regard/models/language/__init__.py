"""The language model: a decoder alone, of any pattern, mechanism and positions, continued in any cache."""

from regard.models.language.config import LanguageConfig
from regard.models.language.model import LanguageModel
from regard.models.language.state import LanguageState

__all__ = ["LanguageModel", "LanguageConfig", "LanguageState"]
