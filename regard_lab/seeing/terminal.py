"""Weights as a map of characters for terminals and logs, and words as labels that are safe to print."""

import codecs
import unicodedata
from collections.abc import Sequence

import torch
from rich.cells import cell_len, set_cell_size

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


def shortened(label: str, longest: int = LONGEST) -> str:
    """The label, cut to `longest` characters of which the last is then "…".

    >>> shortened("Donaudampfschifffahrt", 6)
    'Donau…'
    """
    return label if len(label) <= longest else f"{label[: longest - 1]}…"


def fitted(text: str, width: int, end: str = "…") -> str:
    """The text in at most `width` terminal cells; a text that was cut ends in `end`.

    >>> fitted("猫の手も借りたい", 6)
    '猫の…'
    """
    if cell_len(text) <= width:
        return text
    text = text[: 4 * width]  # a letter may be followed by marks of width 0
    while cell_len(text) + cell_len(end) > width:
        text = text[:-1]
    return f"{text}{end}"


def _shown(character: str) -> str:
    is_hidden = unicodedata.category(character)[0] in "CZ" and character != " "
    if is_hidden:
        return character.encode("unicode_escape").decode("ascii")
    return character


STEPS = (0.75, 0.5, 0.25, 0.05)  # the least weight of each shade
SHADES = "█▓▒░"
PLAIN_SHADES = "#*+."
LEGEND = "{} from 0.75  {} 0.50  {} 0.25  {} 0.05"
SHORT_LEGEND = "{} .75 {} .5 {} .25 {} .05"
CELL = 2  # characters a column


def terminal_map(
    weights: torch.Tensor,
    rows: Sequence[str],
    columns: Sequence[str],
    width: int = 80,
    encoding: str = "utf-8",
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
    rows = a_list("rows", rows, str, "a list of labels")
    columns = a_list("columns", columns, str, "a list of labels")
    width = whole("width", width)
    if weights.shape != (len(rows), len(columns)):
        raise ShapeError(
            f"weights are {tuple(weights.shape)}; the labels need ({len(rows)}, {len(columns)})"
        )
    if width < 24:
        raise ArgumentError(f"width is {width}; a map needs at least 24 characters")
    try:
        codecs.lookup(a_string("encoding", encoding))
    except LookupError:
        raise ArgumentError(
            f"encoding {encoding!r} is unknown; give one such as 'utf-8' or 'ascii'"
        ) from None

    shades = SHADES if has(encoding, SHADES) else PLAIN_SHADES
    end = plain("…", encoding)

    def label(word: str, longest: int) -> str:
        return fitted(plain(visible(word), encoding), longest, end)

    names = [label(row, min(LONGEST, width // 3)) for row in rows]
    heads = [label(column, 12) for column in columns]
    margin = max(map(cell_len, names), default=0)
    at_once = (width - margin - 1) // CELL
    lines = []
    for start in range(0, max(len(columns), 1), at_once):
        block = slice(start, start + at_once)
        lines += _header(heads[block], margin)
        for name, row in zip(names, weights[:, block].tolist(), strict=True):
            cells = "".join(_shade(weight, shades) * CELL for weight in row)
            lines.append(f"{set_cell_size(name, margin)} {cells}".rstrip(" "))
    legend = LEGEND.format(*shades)
    if len(legend) > width:
        legend = SHORT_LEGEND.format(*shades)
    return "\n".join([*lines, legend])


def _header(columns: Sequence[str], margin: int) -> list[str]:
    """The column labels, which fit, written vertically above their columns."""
    words = [_letters(column) for column in columns]
    height = max(map(len, words), default=0)
    padded = [[" "] * (height - len(word)) + word for word in words]
    lines = []
    for letters in zip(*padded, strict=True):
        cells = "".join(set_cell_size(letter, CELL) for letter in letters)
        lines.append(f"{'':{margin}} {cells}".rstrip(" "))
    return lines


def _shade(weight: float, shades: str) -> str:
    for least, shade in zip(STEPS, shades, strict=True):
        if weight >= least:
            return shade
    return " "


def _letters(label: str) -> list[str]:
    """Letters with their combining marks."""
    letters: list[str] = []
    for character in label:
        if letters and unicodedata.category(character)[0] == "M":
            letters[-1] += character
        else:
            letters.append(character)
    return letters
