r"""Plain stand-ins for characters that the encoding of a stream lacks, so that every text can be written everywhere.

    ■ ■ ·   becomes   # # .        in ASCII; cp1252 has the dot, so there it is   # # ·

Each character of drawings and formulas has a stand-in. Every other character that the encoding lacks is written as the
escape that Python and JSON write: \xfc, \u732b.
"""

from __future__ import annotations

import codecs
from typing import Any

from regard_lab.text.terminal import json_escaped

HANDLER = "regard.plain"  # the name of the codec error handler

STAND_INS = {
    **dict(zip("■□▪█▓▒░·•␣│─━╺╸", "#o+#+-..*_|----", strict=True)),
    **dict(zip("“”„’‘‚×−–‐‑µμℓ∘↓↑▸⋅", "\"\"\"'''x----uulov^>.", strict=True)),
    **dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)),
    **{letter: f"^{digit}" for letter, digit in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ", "0123456789-T", strict=True)},
    "…": "...",
    "—": "--",
    "«": "<<",
    "»": ">>",
    "‹": "<",
    "›": ">",
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "±": "+-",
    "√": "sqrt",
    "Σ": "sum",
    "∑": "sum",
    "∞": "inf",
    "‖": "||",
    "≥": ">=",
    "≤": "<=",
    "≠": "!=",
    "≈": "~",
    "∈": "in",
    "°": " degrees",
    "€": "EUR",
    "ĉ": "c^",
    "Ω": "Omega",
    "α": "alpha",
    "ε": "epsilon",
    "θ": "theta",
    "λ": "lambda",
    "π": "pi",
    "σ": "sigma",
    "φ": "phi",
    "ω": "omega",
}


def stand_in(character: str) -> str:
    r"""What is written for a character that an encoding lacks.

    >>> stand_in("■"), stand_in("√"), stand_in("ü")
    ('#', 'sqrt', '\\xfc')
    """
    return STAND_INS.get(character) or character.encode("unicode_escape").decode("ascii")


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
