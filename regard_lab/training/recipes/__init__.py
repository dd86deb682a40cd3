"""Whole trainings from files to a run: what `regard train` does, from Python.

A recipe has its settings as a nested frozen `Config`, reads the data, learns a tokeniser, makes the model and trains
it into a folder: `TranslationTraining.of("run", {"data": ("pairs.tsv",)}).train("run")`.
"""

from regard_lab.training.recipes.classification import (
    ClassificationTask,
    Classifier,
    ClassifierTraining,
)
from regard_lab.training.recipes.language import LanguageModelTraining, LanguageTask
from regard_lab.training.recipes.masked_words import MaskedWordsTraining, MaskedWordTask
from regard_lab.training.recipes.recipe import Recipe, RunConfig, Training
from regard_lab.training.recipes.run_folder import read_settings, read_test
from regard_lab.training.recipes.translation import TranslationTask, TranslationTraining

__all__ = [
    "Recipe",
    "RunConfig",
    "Training",
    "TranslationTraining",
    "TranslationTask",
    "LanguageModelTraining",
    "LanguageTask",
    "MaskedWordsTraining",
    "MaskedWordTask",
    "ClassifierTraining",
    "ClassificationTask",
    "Classifier",
    "read_settings",
    "read_test",
]
