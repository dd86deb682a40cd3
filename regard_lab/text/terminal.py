r"""Text as a terminal or another stream may get it: nothing in it commands the terminal, all of it can be encoded.

The characters that could command (controls of C0 and C1, line separators, marks that turn the direction of a line,
invisible tags, halves of surrogate pairs) are shown as the escapes that Python and JSON write: \x1b, \u202e. All other
characters stay, those that join letters or emoji included. Every command shows its text through these functions.

Where the encoding of a stream lacks a character of a drawing or a formula, it has a plain stand-in:

    ■ ■ ·   becomes   # # .        in ASCII; cp1252 has the dot, so there it is   # # ·

Every other character that the encoding lacks is an escape too: \xfc, \u732b.
"""

import codecs
import re
from typing import Any

# Cc; Zl and Zp; the bidirectional controls; what is invisible and joins nothing; tags; halves of pairs.
_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_COMMANDS_IN_LINES = re.compile(f"(?![\n\t]){_COMMANDS.pattern}")  # line ends and tabs stay
_ENDS_OF_LINES = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")  # those of str.splitlines


def printable(text: str) -> str:
    r"""One line of text for a terminal; what ends a line is an escape too.

    >>> print(printable("a\x1b[2Jb\nc\u202ed"))
    a\x1b[2Jb\nc\u202ed
    """
    return _COMMANDS.sub(lambda match: _escaped(match[0]), text)


def printable_lines(text: str) -> str:
    r"""The lines of a text for a terminal: line ends and tabs stay, all else is as in `printable`.

    >>> print(printable_lines("a\tb\n\x1b[2J"))
    a	b
    \x1b[2J
    """
    return _COMMANDS_IN_LINES.sub(lambda match: _escaped(match[0]), text)


def one_line(text: str) -> str:
    r"""A line of data for another program: as it stands, but for what would end the line, which is an escape.

    >>> one_line("a\rb\x1b[0m")
    'a\\rb\x1b[0m'
    """
    return _ENDS_OF_LINES.sub(lambda match: _escaped(match[0]), text)


def printable_json(text: str) -> str:
    r"""JSON text for a terminal: the same values, with the characters in question as JSON's own escapes.

    >>> print(printable_json('{"text": "\x9b2J\u202e"}'))
    {"text": "\u009b2J\u202e"}
    """
    return _COMMANDS_IN_LINES.sub(lambda match: json_escaped(match[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def json_escaped(character: str) -> str:
    r"""The escape that JSON has for a character.

    >>> print(json_escaped("ü"), json_escaped("🦊"))
    \u00fc \ud83e\udd8a
    """
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


HANDLER = "regard.plain"  # the name of the codec error handler

_WORDS = (
    "…|... —|-- «|<< »|>> ‹|< ›|> →|-> ←|<- ↔|<-> ±|+- √|sqrt Σ|sum ∑|sum ∞|inf ‖||| ≥|>= ≤|<= ≠|!= ≈|~ ∈|in €|EUR ĉ|c^"
    " Ω|Omega α|alpha ε|epsilon θ|theta λ|lambda π|pi σ|sigma φ|phi ω|omega"
    " ⁰|^0 ¹|^1 ²|^2 ³|^3 ⁴|^4 ⁵|^5 ⁶|^6 ⁷|^7 ⁸|^8 ⁹|^9 ⁻|^- ᵀ|^T"
)
STAND_INS = {
    **dict(zip("■□▪█▓▒░·•␣│─━╺╸", "#o+#+-..*_|----", strict=True)),
    **dict(zip("“”„’‘‚×−–‐‑µμℓ∘↓↑▸⋅", "\"\"\"'''x----uulov^>.", strict=True)),
    **dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)),
    **dict(re.findall(r"(\S)\|(\S+)", _WORDS)),
    "°": " degrees",
}


def stand_in(character: str) -> str:
    r"""What is written for a character that an encoding lacks.

    >>> stand_in("■"), stand_in("√"), stand_in("ü")
    ('#', 'sqrt', '\\xfc')
    """
    return STAND_INS.get(character) or _escaped(character)


def plain(text: str, encoding: str) -> str:
    r"""The text with stand-ins for what the encoding lacks.

    >>> plain("Tür → ■", "ascii"), plain("Tür → ■", "latin-1"), plain("Tür → ■", "utf-8")
    ('T\\xfcr -> #', 'Tür -> #', 'Tür → ■')
    """
    return text.encode(encoding, _handler()).decode(encoding)


def plain_json(text: str, encoding: str) -> str:
    r"""JSON text with the same values, in which characters that the encoding lacks are JSON's own escapes.

    >>> plain_json('{"text": "Tür"}', "ascii")
    '{"text": "T\\u00fcr"}'
    """
    return "".join(letter if has(encoding, letter) else json_escaped(letter) for letter in text)


def has(encoding: str, text: str) -> bool:
    """Whether every character of a text can be written in an encoding.

    >>> has("cp1252", "Tür"), has("cp1252", "■")
    (True, False)
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def write_plainly(stream: Any) -> None:
    """From now on, write stand-ins where the encoding of a stream lacks a character; other streams are left alone."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=_handler())


def _handler() -> str:
    codecs.register_error(HANDLER, _replaced)
    return HANDLER


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(stand_in, error.object[error.start : error.end])), error.end
