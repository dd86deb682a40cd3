"""Lenses on trained translators where the truth is known: the embedded corpus, whose referents its grammar records.

Swaps of nouns and adjectives verify on the model itself what its pronouns depend on; lenses are measured against that.
"""

from regard_lab.seeing.lens_study.figure import PronounView, draw_pronoun, view_pronoun
from regard_lab.seeing.lens_study.known import (
    KnownSentence,
    Routes,
    known_sentences,
    measure_routes,
)
from regard_lab.seeing.lens_study.study import (
    LensReport,
    choose_heads,
    lens_agreement,
    study_lenses,
)

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
