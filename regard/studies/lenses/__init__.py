"""Lenses on trained translators where the truth is known: the embedded corpus, whose referents its grammar records.

Swaps of nouns and adjectives verify on the model itself what its pronouns depend on; lenses are measured against that.
"""

from regard.studies.lenses.figure import PronounView, draw_pronoun, view_pronoun
from regard.studies.lenses.known import KnownSentence, known_sentences
from regard.studies.lenses.report import LensReport
from regard.studies.lenses.routes import Routes, measure_routes
from regard.studies.lenses.scoring import lens_agreement
from regard.studies.lenses.study import choose_heads, study_lenses

__all__ = [
    "study_lenses",
    "LensReport",
    "lens_agreement",
    "known_sentences",
    "KnownSentence",
    "measure_routes",
    "Routes",
    "choose_heads",
    "view_pronoun",
    "PronounView",
    "draw_pronoun",
]
