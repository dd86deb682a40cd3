"""Weights as a map of characters for terminals and logs, and words as labels that are safe to print."""

import codecs
import unicodedata
from collections.abc import Sequence

import torch

from regard.arguments import a_list, a_string, whole
from regard.core.tensors import check_tensor
from regard.errors import ArgumentError, ShapeError
from regard_lab.text.terminal import has, plain

EMPTY = "\u2423"  # "␣": the label of an empty word
LONGEST = 18  # characters of a label; a longer word ends in "…"


def visible(word: str) -> str:
    r"""Make a word safe to print: control, format, private and unusual space characters become escapes.

    >>> visible("a\nb"), visible("\u202eevil"), visible("")
    ('a\\nb', '\\u202eevil', '␣')
    """
    return "".join(_shown(character) for character in a_string("word", word)) or EMPTY


def visible_text(text: str) -> str:
    """The same for a text that is no label: for an empty one nothing is shown.

    >>> visible_text(""), visible_text("a\\tb")
    ('', 'a\\\\tb')
    """
    return visible(text) if text else ""


def shortened(label: str, longest: int = LONGEST) -> str:
    """The label, cut to `longest` characters of which the last is then "…".

    >>> shortened("Donaudampfschifffahrt", 6)
    'Donau…'
    """
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def _shown(character: str) -> str:
    hidden = unicodedata.category(character)[0] in "CZ" and character != " "
    return character.encode("unicode_escape").decode("ascii") if hidden else character


STEPS = (0.75, 0.5, 0.25, 0.05)  # the least weight of each shade
SHADES, PLAIN_SHADES = "█▓▒░", "#*+."
LEGEND, SHORT_LEGEND = "{} from 0.75  {} 0.50  {} 0.25  {} 0.05", "{} .75 {} .5 {} .25 {} .05"
CELL = 2  # characters a column


def terminal_map(
    weights: torch.Tensor, rows: Sequence[str], columns: Sequence[str], width: int = 80, encoding: str = "utf-8"
) -> str:
    """Draw weights as a map of characters, with row labels on the left, vertical column labels and a legend.

    If not all columns fit into a line, the map is divided into several blocks of columns.

    Args:
        weights: (rows, columns), each from 0 to 1.
        rows, columns: labels.
        width: the most characters in a line, at least 24.
        encoding: of the terminal, as `sys.stdout.encoding`. If it lacks the shades, # * + . stand for them; letters
            that it lacks are written as escapes.

    Returns:
        Lines of at most `width` characters, without a final line break.

    Raises:
        ShapeError: weights of another size than the labels.
        ArgumentError: a width below 24, or an unknown encoding.

    >>> print(terminal_map(torch.tensor([[0.8, 0.2], [0.5, 0.5]]), ["the", "cat"], ["die", "Tür"]))
        d T
        i ü
        e r
    the ██░░
    cat ▓▓▓▓
    █ from 0.75  ▓ 0.50  ▒ 0.25  ░ 0.05
    >>> print(terminal_map(torch.tensor([[0.8, 0.2]]), ["the"], ["a", "b"], encoding="ascii"))
        a b
    the ##..
    # from 0.75  * 0.50  + 0.25  . 0.05
    """
    check_tensor("weights", weights)
    rows, columns = (a_list(n, labels, str, "a list of labels") for n, labels in (("rows", rows), ("columns", columns)))
    width = whole("width", width)
    if weights.shape != (len(rows), len(columns)):
        raise ShapeError(f"weights are {tuple(weights.shape)}; the labels need ({len(rows)}, {len(columns)})")
    if width < 24:
        raise ArgumentError(f"width is {width}; a map needs at least 24 characters")
    shades = SHADES if has(_known(encoding), SHADES) else PLAIN_SHADES
    longest = min(LONGEST, width // 3)
    names = [_fitted(row, longest, encoding) for row in rows]
    margin = max(map(cells_of, names), default=0)
    names = [name + " " * (margin - cells_of(name)) for name in names]
    at_once = (width - margin - 1) // CELL
    blocks = [
        [
            *_header([_fitted(column, 12, encoding) for column in columns[start : start + at_once]], margin),
            *_body(names, weights[:, start : start + at_once], shades),
        ]
        for start in range(0, max(len(columns), 1), at_once)
    ]
    legend = LEGEND.format(*shades)
    legend = legend if len(legend) <= width else SHORT_LEGEND.format(*shades)
    return "\n".join([line for block in blocks for line in block] + [legend])


def _known(encoding: str) -> str:
    """The encoding, if Python has it."""
    try:
        codecs.lookup(a_string("encoding", encoding))
    except LookupError:
        raise ArgumentError(f"encoding {encoding!r} is unknown; give one such as 'utf-8' or 'ascii'") from None
    return encoding


def _header(columns: Sequence[str], margin: int) -> list[str]:
    """The column labels, which fit, written vertically above their columns."""
    words = [_letters(column) for column in columns]
    height = max(map(len, words), default=0)
    lines = []
    for line in range(height):
        letters = (word[line - height] if line >= height - len(word) else " " for word in words)
        cells = "".join(letter + " " * (CELL - cells_of(letter)) for letter in letters)
        lines.append(f"{'':{margin}} {cells}".rstrip(" "))
    return lines


def _body(names: Sequence[str], weights: torch.Tensor, shades: str) -> list[str]:
    return [
        f"{name} {''.join(_shade(weight, shades) * CELL for weight in row)}".rstrip(" ")
        for name, row in zip(names, weights.tolist(), strict=True)
    ]


def _shade(weight: float, shades: str) -> str:
    return next((shade for least, shade in zip(STEPS, shades, strict=True) if weight >= least), " ")


def _fitted(word: str, longest: int, encoding: str) -> str:
    """The printable word in at most `longest` terminal cells, in characters that the encoding has."""
    label = plain(visible(word), encoding)
    kept = longest
    while cells_of(shown := plain(shortened(label, kept), encoding)) > longest:
        kept -= 1
    return shown


def _letters(label: str) -> list[str]:
    """Letters with their combining marks."""
    letters: list[str] = []
    for character in label:
        if letters and unicodedata.category(character)[0] == "M":
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def cells_of(text: str) -> int:
    """The width of a text in terminal cells: 2 for East Asian characters and emoji, 0 for marks."""
    return sum(
        0 if unicodedata.category(character)[0] == "M" else 1 + (unicodedata.east_asian_width(character) in "WF")
        for character in text
    )
