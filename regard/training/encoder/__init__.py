"""Reading as a task: words that are hidden and found again, and texts with a label."""

from regard.training.encoder.classification import ClassificationTask, LabelledTexts
from regard.training.encoder.masked_words import MASK, HiddenWords, MaskedWordTask, hide_words

__all__ = ["MaskedWordTask", "HiddenWords", "hide_words", "MASK", "ClassificationTask", "LabelledTexts"]
