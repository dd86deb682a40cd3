"""The formulas by which languages choose a plural form, for catalogues that do not name theirs.

Source: the GNU gettext manual, section Additional functions for plural forms; Unicode CLDR, language plural rules.
"""

from __future__ import annotations

from regard_lab.text.memories import language_code

NOT_ONE = "nplurals=2; plural=(n != 1);"
MORE_THAN_ONE = "nplurals=2; plural=(n > 1);"
ONLY_FORM = "nplurals=1; plural=0;"
EAST_SLAVIC = (
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) "
    "? 1 : 2);"
)
WEST_SLAVIC = "nplurals=3; plural=(n==1 ? 0 : n>=2 && n<=4 ? 1 : 2);"
LANGUAGES_OF = {
    NOT_ONE: (
        "af an ast az bg bn ca da de el en eo es et eu fi fo fur fy gl gu ha he hi hu ia is it ka kk kn ku ky lb ml mn "
        "mr nb ne nl nn no or pa ps pt rw sd so sq sv sw ta te tk ur"
    ),
    MORE_THAN_ONE: "ak am br fa fil fr ln mg mi oc pt-br ti tl tr uz wa zu",
    ONLY_FORM: "ay bo dz id ja jbo km ko lo ms my sah su th tt ug vi wo zh",
    EAST_SLAVIC: "be bs hr ru sr uk",
    WEST_SLAVIC: "cs sk",
    "nplurals=3; plural=(n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2);": "pl",
    "nplurals=4; plural=(n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3);": "sl",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);": "lt",
    "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2);": "lv",
    "nplurals=3; plural=(n==1 ? 0 : (n==0 || (n%100 > 0 && n%100 < 20)) ? 1 : 2);": "ro",
    "nplurals=6; plural=(n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5);": "ar",
    "nplurals=4; plural=(n==1 ? 0 : n==2 ? 1 : (n != 8 && n != 11) ? 2 : 3);": "cy",
    "nplurals=5; plural=(n==1 ? 0 : n==2 ? 1 : n<7 ? 2 : n<11 ? 3 : 4);": "ga",
    "nplurals=4; plural=(n==1 ? 0 : n==0 || (n%100>1 && n%100<11) ? 1 : n%100>10 && n%100<20 ? 2 : 3);": "mt",
    "nplurals=2; plural=(n%10==1 && n%100!=11 ? 0 : 1);": "mk",
}
FORMULAS = {
    language: formula
    for formula, languages in LANGUAGES_OF.items()
    for language in languages.split()
}


def plural_formula(language: str) -> str | None:
    """The header's line for a language or a variety of it; None where it is not known.

    >>> plural_formula("pt_BR"), plural_formula("de_AT"), plural_formula("tlh")
    ('nplurals=2; plural=(n > 1);', 'nplurals=2; plural=(n != 1);', None)
    """
    code = language_code(language).partition("@")[0]
    return FORMULAS.get(code) or FORMULAS.get(code.partition("-")[0])
