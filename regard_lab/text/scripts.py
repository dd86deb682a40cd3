"""Scripts that write no spaces between words, such as Chinese and Thai, in which a sentence is taken for one word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice

# Thai, Lao, Tibetan, Burmese, Khmer; kana; Han. Korean has spaces.
_RANGES = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
UNSPACED = re.compile(f"[{_RANGES}]")
LOOKED_AT = 5_000  # lines
FEWEST = 0.1  # share of the lines from which on it is said
SHOWN = 12  # characters of the example


def split_unspaced(word: str) -> Iterator[str]:
    """The parts of a word: each letter of a script without spaces, with its marks, and the runs of other letters.

    >>> list(split_unspaced("我有2只cats"))
    ['我', '有', '2', '只', 'cats']
    """
    part = ""
    for letter in word:
        joined = unicodedata.category(letter)[0] == "M" or not (UNSPACED.match(letter) or UNSPACED.match(part[:1]))
        if part and not joined:
            yield part
            part = ""
        part += letter
    if part:
        yield part


def remark_on_scripts(lines: Iterable[str], kind: str) -> str | None:
    """A sentence about lines without spaces between words, if there are many and the tokeniser joins letters to words.

    Args:
        lines: the texts from which a tokeniser learns.
        kind: its kind, as in `Tokeniser.train`.

    >>> remark_on_scripts(["这只动物没有过马路，因为它太累了。", "The animal was tired."], "bpe")[:64]
    '50% of the lines have no spaces between words (这只动物没有过马路，因为 ...)'
    >>> remark_on_scripts(["这只动物没有过马路，因为它太累了。"], "character")
    """
    if kind != "bpe":
        return None
    looked_at, unspaced, example = 0, 0, ""
    for line in islice(lines, LOOKED_AT):
        letters = sum(map(str.isalpha, line))
        looked_at += letters > 0
        if 2 * len(UNSPACED.findall(line)) > letters > 0:
            unspaced, example = unspaced + 1, example or line.strip()
    if unspaced < FEWEST * looked_at or not unspaced:
        return None
    shown = example if len(example) <= SHOWN else f"{example[:SHOWN]} ..."
    return (
        f"{unspaced / looked_at:.0%} of the lines have no spaces between words ({shown}): a whole sentence counts as "
        f"one word, and pieces may grow to phrases; --tokeniser character (or byte) learns letters instead"
    )
