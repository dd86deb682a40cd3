"""Plural forms of catalogues: which form of a message belongs to one thing, and which to several.

A language may have more forms than singular and plural, in any order: in Arabic the first of six is that of zero. The
header of a catalogue has a formula of C that gives the form of a number n.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from gettext import c2py

HAS_FORMULA = re.compile(r"^\s*plural-forms\s*:[^\S\n]*\S", re.IGNORECASE | re.MULTILINE)
FORMULA = re.compile(r"nplurals\s*=\s*(\d{1,3})\s*;\s*plural\s*=\s*([^;\n]*)", re.IGNORECASE)
SEVERAL = range(2, 101)  # the numbers of which most decide the form of msgid_plural

UNTRANSLATED = "without translation"
NO_FORMULA = "plural, and the header has no formula that can be read"
OTHER_COUNT = "plural, with another number of forms than the header says"
NO_FORM = "plural, with the form of this number empty or missing"


@dataclass(frozen=True)
class PluralForms:
    """The number of forms of a language, the form of n = 1, and the form of `several`.

    `several` is the form that most numbers from 2 to 100 have; of equally many, that of the smallest number. `assumed`
    says that the header has no formula, and that `n != 1` is used, as gettext does. `others_as_one` says that another
    number than 1 has the form of 1 too, as 21 in Russian.

    Source: the GNU gettext manual, section Additional functions for plural forms.
    """

    count: int = 2
    one: int = 0
    several: int = 1
    assumed: bool = True
    others_as_one: bool = False

    @classmethod
    def of_header(cls, header: str) -> "PluralForms | None":
        """The forms of a header; None if it has a formula that gives no form for one of these numbers.

        >>> PluralForms.of_header("Plural-Forms: nplurals=2; plural=(n > 1);")
        PluralForms(count=2, one=0, several=1, assumed=False, others_as_one=True)
        >>> PluralForms.of_header("Plural-Forms: nplurals=2; plural=n/0;")
        """
        if not HAS_FORMULA.search(header):
            return cls()
        formula = FORMULA.search(header)
        if formula is None:
            return None

        count = int(formula[1])
        try:
            form_of = c2py(formula[2])
            singular = form_of(1)
            zero = form_of(0)
            plurals = Counter(form_of(number) for number in SEVERAL)
        except (ValueError, ArithmeticError, SyntaxError, RecursionError, MemoryError):
            return None
        if not all(0 <= form < count for form in (zero, singular, *plurals)):
            return None
        ((several, _),) = plurals.most_common(1)
        others_as_one = singular in (zero, *plurals)
        return cls(count, singular, several, assumed=False, others_as_one=others_as_one)


def plural_sides(
    sources: tuple[str, str], translations: Mapping[int, str], forms: PluralForms | None
) -> list[tuple[str, str] | str]:
    """The pairs of a message with plural forms, or for each why there is none.

    Args:
        sources: msgid and msgid_plural.
        translations: those of each form, by its number.
        forms: those of the header.

    >>> arabic = PluralForms(count=3, one=1, several=2)
    >>> plural_sides(("%d byte", "%d bytes"), {0: "none", 1: "one", 2: ""}, arabic)
    [('%d byte', 'one'), 'plural, with the form of this number empty or missing']
    """
    if not any(translations.values()):
        return [UNTRANSLATED]
    if forms is None:
        return [NO_FORMULA]
    if max(translations) + 1 != forms.count:
        return [OTHER_COUNT]
    sides: list[tuple[str, str] | str] = []
    for source, form in zip(sources, (forms.one, forms.several), strict=True):
        translation = translations.get(form, "")
        sides.append((source, translation) if translation else NO_FORM)
    return sides


class PluralCounts:
    """Counts the pairs of msgid_plural of a catalogue."""

    def __init__(self) -> None:
        self.plurals = 0
        self.assumed = False

    def remark(self) -> str | None:
        """A phrase about them; None if there are none.

        >>> counts = PluralCounts()
        >>> counts.plurals = 3
        >>> counts.remark()
        '3 of the messages are plurals: msgid_plural with the form that most numbers from 2 to 100 have'
        """
        if not self.plurals:
            return None
        are = "is a plural" if self.plurals == 1 else "are plurals"
        remark = (
            f"{self.plurals:,} of the messages {are}: "
            "msgid_plural with the form that most numbers from 2 to 100 have"
        )
        if self.assumed:
            remark += "; the header has no Plural-Forms, so the first of two forms is that of n = 1"
        return remark
