"""How text is cleaned before anything else reads it: two steps, each the identity on its own result."""

import re
import unicodedata

from regard.kinds import a_string

# Typographic apostrophes; articles and word processors write them, keyboards do not.
APOSTROPHES = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc", "'"))
LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def tidy(text: str) -> str:
    r"""The text in Unicode form NFC, stripped, each run of white space as one space.

    White space is Python's: tabs, no-break spaces, lone carriage returns, form feeds and U+2028 included.

    >>> tidy("\u00a0cafe\u0301 \t au\u2028lait\r")
    'café au lait'
    """
    return " ".join(unicodedata.normalize("NFC", a_string("text", text)).split())


def normalise(text: str) -> str:
    """The text as a tokeniser reads it: `tidy`, with typographic apostrophes as "'".

    Lone surrogates, which no UTF-8 can hold, become U+FFFD.

    >>> normalise("The animal didn’t  cross the street.")
    "The animal didn't cross the street."
    """
    if not a_string("text", text).isascii():
        text = LONE_SURROGATES.sub("\ufffd", text).translate(APOSTROPHES)
    return tidy(text)
