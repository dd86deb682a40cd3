"""Normalised text: one Unicode form, ordinary spaces, no invisible characters."""

import re
import unicodedata

from regard.arguments import a_string

# Typographic apostrophes, as articles and word processors write them.
APOSTROPHES = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc", "'"))
LONE_SURROGATES = re.compile("[\ud800-\udfff]")
# White space that is not typography.
ORDINARY_SPACE = re.compile("[\t-\r\x1c-\x20\x85\u2028\u2029]+")

# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer; kana; Han. Korean has spaces.
_UNSPACED_RANGES = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
    "\u3040-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
UNSPACED = re.compile(f"[{_UNSPACED_RANGES}]")

# Characters without a sign of their own: soft hyphens, zero-width spaces and joiners, byte order marks. Between letters
# of scripts without spaces a zero-width space divides words; where letters change their form, joiners are spelling.
UNSPACED_SCRIPTS = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
STANDING_LETTERS = "0-9A-Za-z\u00aa-\u05ff\u1e00-\u1fff"  # Latin, Greek, Cyrillic, Armenian, Hebrew
HIDDEN = "\u00ad\u034f\u2060-\u2064\ufeff"
DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"


def _invisible(hidden: str) -> re.Pattern[str]:
    after_letters = f"(?<=[{STANDING_LETTERS}])[{hidden}\u200b-\u200d]+"
    return re.compile(f"{after_letters}|[{hidden}]|(?<![{UNSPACED_SCRIPTS}])\u200b")


INVISIBLE = _invisible(HIDDEN)
INVISIBLE_OR_DIRECTION = _invisible(HIDDEN + DIRECTIONS)


def drop_invisible(text: str, directions: bool = True) -> str:
    r"""The text without soft hyphens, zero-width characters and, by `directions`, marks of the direction; in form NFC.

    Joiners stay where they belong to the spelling, as in Persian and in emoji, and so does a zero-width space between
    letters of a script without spaces, such as Khmer.

    >>> drop_invisible("ani\u00admal\u200b, نمی\u200cخواهم"), drop_invisible("👩\u200d🚀") == "👩\u200d🚀"
    ('animal, نمی\u200cخواهم', True)
    """
    if a_string("text", text).isascii():
        return text
    pattern = INVISIBLE_OR_DIRECTION if directions else INVISIBLE
    return pattern.sub("", unicodedata.normalize("NFC", text))


def tidy(text: str) -> str:
    r"""The text in Unicode form NFC, stripped, each run of white space as one space.

    White space is what Python calls so, including tabs, no-break spaces, carriage returns, form feeds and U+2028.

    >>> tidy("\u00a0cafe\u0301 \t au\u2028lait\r")
    'café au lait'
    """
    return " ".join(unicodedata.normalize("NFC", a_string("text", text)).split())


def tidy_target(text: str) -> str:
    r"""The text in Unicode form NFC, stripped, with the typography of a language.

    Each run of spaces, tabs and line ends becomes one space, as by `tidy`; no-break and other special spaces remain.

    >>> tidy_target(" «\u202fQui est\tla\u0300\u202f?\u202f» \n")
    '«\u202fQui est là\u202f?\u202f»'
    """
    return ORDINARY_SPACE.sub(" ", unicodedata.normalize("NFC", a_string("text", text))).strip()


def normalise(text: str) -> str:
    """The text as a tokeniser reads it: `tidy`, with typographic apostrophes replaced by "'".

    Lone surrogates, which UTF-8 cannot encode, become U+FFFD.

    >>> normalise("The animal didn’t  cross the street.")
    "The animal didn't cross the street."
    """
    if not a_string("text", text).isascii():
        text = LONE_SURROGATES.sub("\ufffd", text).translate(APOSTROPHES)
    return tidy(text)
