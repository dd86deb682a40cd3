"""How good a trained model is: translators, also on what *it* refers to, language models, classifiers and encoders.

Each kind of model has a function that evaluates it, and scores that know their lines of text and their JSON.
"""

from regard_lab.training.recipes.evaluation.classifiers import ClassScores, evaluate_classifier
from regard_lab.training.recipes.evaluation.counting import Counting, PartlyEvaluated, uncounted
from regard_lab.training.recipes.evaluation.encoders import HiddenWordScores, evaluate_encoder
from regard_lab.training.recipes.evaluation.translators import (
    PronounReport,
    RunScores,
    evaluate_run,
    judge_pronouns,
)
from regard_lab.training.recipes.evaluation.writers import TextScores, evaluate_text

__all__ = [
    "evaluate_run",
    "judge_pronouns",
    "RunScores",
    "PronounReport",
    "evaluate_text",
    "TextScores",
    "evaluate_classifier",
    "ClassScores",
    "evaluate_encoder",
    "HiddenWordScores",
    "Counting",
    "uncounted",
    "PartlyEvaluated",
]
