"""Words as labels: nothing invisible, nothing that moves the cursor or turns the line around."""

import unicodedata

from regard.kinds import a_string

EMPTY = "\u2423"  # "␣": a word of nothing
LONGEST = 18  # characters of a label; a longer word ends in "…"


def visible(word: str) -> str:
    r"""The word with every control, format, private and unusual space character as its escape.

    >>> visible("a\nb"), visible("\u202eevil"), visible("")
    ('a\\nb', '\\u202eevil', '␣')
    """
    return "".join(_shown(character) for character in a_string("word", word)) or EMPTY


def shortened(label: str, longest: int = LONGEST) -> str:
    """The label, cut to `longest` characters of which the last is then "…".

    >>> shortened("Donaudampfschifffahrt", 6)
    'Donau…'
    """
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def _shown(character: str) -> str:
    hidden = unicodedata.category(character)[0] in "CZ" and character != " "
    return character.encode("unicode_escape").decode("ascii") if hidden else character
