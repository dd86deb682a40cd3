"""Several attentions trained under one budget, side by side: what each costs, and how good it came to be.

`study.Comparison` trains and measures; `measure_translator` and `measure_language_model` look at one trained model,
`write_report` at all of them.
"""

from regard_lab.training.comparison.measures import (
    Footprint,
    Measures,
    Spent,
    footprint,
    measure_language_model,
    measure_translator,
)
from regard_lab.training.comparison.report import write_report

__all__ = [
    "measure_translator",
    "measure_language_model",
    "Measures",
    "Spent",
    "footprint",
    "Footprint",
    "write_report",
]
