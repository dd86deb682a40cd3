"""Messages with plural forms as texts to translate: which source belongs to which form of the language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard_lab.text.placeholders import find_placeholders
from regard_lab.text.plurals import PluralForms


@dataclass(frozen=True)
class PluralPlan:
    """The place of the text of each form among all texts of a document; a message without plural has one form."""

    places: tuple[int, ...]

    @classmethod
    def of(
        cls, singular: str, plural: str | None, forms: PluralForms | None, texts: list[str]
    ) -> PluralPlan:
        """Add the sources of a message to the texts.

        The form of one thing is the translation of msgid, the others are those of msgid_plural. If the form of one is
        also that of other numbers, as 21 in Russian, it is the translation of msgid only if that names the number too.

        >>> texts = []
        >>> russian = PluralForms(count=3, one=0, several=2, others_as_one=True)
        >>> PluralPlan.of("one file", "%d files", russian, texts).places, texts
        ((0, 0, 0), ['%d files'])
        >>> PluralPlan.of("%d file", "%d files", russian, texts).places, texts
        ((1, 2, 2), ['%d files', '%d file', '%d files'])
        """
        if plural is None or forms is None:
            texts.append(singular)
            return cls((len(texts) - 1,))
        if forms.others_as_one and _identities(singular) != _identities(plural):
            singular = plural
        sources = [plural] * forms.count
        sources[forms.one] = singular
        places: dict[str, int] = {}
        for source in sources:
            if source not in places:
                places[source] = len(texts)
                texts.append(source)
        return cls(tuple(places[source] for source in sources))

    def forms(self, translations: Sequence[str | None]) -> list[str] | None:
        """The translation of each form; None if one of them is missing."""
        forms = []
        for place in self.places:
            translation = translations[place]
            if translation is None:
                return None
            forms.append(translation)
        return forms


def _identities(text: str) -> list[tuple[str, str]]:
    placeholders = find_placeholders(text)
    return sorted(one.identity for one in placeholders if one.kind == "variable")
