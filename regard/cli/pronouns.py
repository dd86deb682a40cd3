"""How a translator fares with the embedded corpus's question: what does *it* refer to?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.decoding import Translator
from regard.inspection import Agreement, HeadChoice, SwapCheck, choose_head, referent_agreement, swap_check
from regard.models import TranslationTransformer
from regard.text.pronouns import (
    contrast_accuracy,
    majority_baseline,
    make_contrast_pairs,
    make_split,
    pronoun_accuracy,
)
from regard.text.translation_data import PRONOUN_COUNTS

CONTRAST_PAIRS = 300
SWAPS = 300


@dataclass(frozen=True)
class PronounReport:
    """What was measured on test sentences whose pairs of nouns never occurred in training."""

    pronouns: float
    baseline: float
    contrast: float
    swaps: SwapCheck
    head: HeadChoice | None = None  # recurrent translators have no self-attention for *it* to look with
    agreement: Agreement | None = None

    def to_dict(self) -> dict[str, Any]:
        """The rates, 0 to 1, as JSON values."""
        looked = {}
        if self.head is not None and self.agreement is not None:
            looked = {
                "referent_agreement": self.agreement.agreement,
                "referent_preference": self.agreement.preference,
                "referent_chance": self.agreement.chance,
                "referent_head": {"layer": self.head.layer, "head": self.head.head},
            }
        return {
            "pronoun_accuracy": self.pronouns,
            "majority_baseline": self.baseline,
            "contrast_accuracy": self.contrast,
            **looked,
            "swap_followed": self.swaps.followed,
            "swap_kept": self.swaps.kept,
        }

    def lines(self) -> list[str]:
        """The rates in lines of text."""
        return [
            f"  pronouns     {self.pronouns:.3f} right; the commonest pronoun alone would get {self.baseline:.3f}",
            f"  contrast     {self.contrast:.3f} of pairs with one word changed have both pronouns right",
            *self._looked(),
            f"  swap         {self.swaps.followed:.3f} of pronouns follow when another gender's noun takes its place,",
            f"               {self.swaps.kept:.3f} stay when the other noun is swapped instead",
        ]

    def _looked(self) -> list[str]:
        if self.head is None or self.agreement is None:
            return []
        head = f"encoder layer {self.head.layer}, head {self.head.head}, from 0, chosen on validation sentences"
        found = self.agreement
        return [
            f"  agreement    {found.agreement:.3f} of *it* look most at their noun, {found.preference:.3f} more than "
            "at the other noun;",
            f"               blind choice {found.chance:.3f} ({head})",
        ]


def judge_pronouns(
    translator: Translator, seed: int, beam: int = 1, normalisation: str = "gnmt", alpha: float = 0.6
) -> PronounReport:
    """Measure everything about *it* on the embedded corpus."""

    def translate(lines: list[str]) -> list[str]:
        found = translator.translate(lines, beam=beam, normalisation=normalisation, alpha=alpha)
        return [translation.text for translation in found]

    model, tokeniser = translator.model, translator.tokeniser
    test = make_split("test", PRONOUN_COUNTS["test"], seed)
    contrast = make_contrast_pairs(CONTRAST_PAIRS, seed)
    firsts = translate([first.source for first, _ in contrast])
    seconds = translate([second.source for _, second in contrast])
    head = agreement = None
    if isinstance(model, TranslationTransformer):
        head = choose_head(model, tokeniser, make_split("valid", PRONOUN_COUNTS["valid"], seed))
        agreement = referent_agreement(model, tokeniser, test, head)
    return PronounReport(
        pronouns=pronoun_accuracy(test, translate([sentence.source for sentence in test])),
        baseline=majority_baseline(test),
        contrast=contrast_accuracy(contrast, list(zip(firsts, seconds, strict=True))),
        swaps=swap_check(translate, test[:SWAPS], seed),
        head=head,
        agreement=agreement,
    )
