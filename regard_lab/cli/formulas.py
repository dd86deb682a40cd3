"""Formulas of Markdown as a terminal prints them: a fraction bar, roots, signs of Unicode, and no braces."""

from __future__ import annotations

import re

SIGNS = {
    "cdot": "·",
    "le": "≤",
    "ge": "≥",
    "ll": "≪",
    "approx": "≈",
    "sim": "~",
    "in": "∈",
    "circ": "∘",
    "odot": "⊙",
    "sum": "Σ",
    "prod": "Π",
    "top": "ᵀ",
    "lvert": "|",
    "rvert": "|",
    "lfloor": "⌊",
    "rfloor": "⌋",
    "ldots": "...",
    "times": "×",
    "mid": "|",
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "pi": "π",
    "infty": "∞",
}
GAPS = {"quad": "\u2003", "qquad": "\n"}  # an em space, and a line of its own
WITHOUT_SIGN = frozenset({"left", "right", "displaystyle", ",", ";", "!"})
IN_ONE_WORD = frozenset({"text", "operatorname", "mathrm"})  # their argument is printed as it is
RAISED = {"2": "²", "3": "³", "ᵀ": "ᵀ"}
TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[{}_^]|[^\\{}_^]")
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+)\$", re.DOTALL)
LESSON_LINK = re.compile(r"\[([^\]]*)\]\((\w+)\.md\)")
LINK_IN_PARENTHESES = re.compile(rf"\({LESSON_LINK.pattern}\)")
PAGE_LINK = re.compile(r"\[([^\]]*)\]\(\.\./([\w./-]+)\.md\)")


def in_words(markdown: str) -> str:
    r"""Markdown whose formulas and links a terminal can print.

    >>> in_words(r"It costs $n \cdot w$, not $\frac{n^2}{2}$ ([why](scale.md)).")
    'It costs `n · w`, not `n²/2` (why: `regard lesson scale`).'
    >>> in_words("Words outside count too, by [the layer below](windows.md).")
    'Words outside count too, by the layer below (`regard lesson windows`).'
    """
    text = FORMULA.sub(_printed, markdown)
    text = LINK_IN_PARENTHESES.sub(r"(\1: `regard lesson \2`)", text)
    text = LESSON_LINK.sub(r"\1 (`regard lesson \2`)", text)
    return PAGE_LINK.sub(r"\1 (docs/\2.md)", text)


def _printed(match: re.Match[str]) -> str:
    displayed, inside = match.groups()
    if displayed is None:
        return f"`{formula_in_words(inside)}`"
    return f"\n```text\n{formula_in_words(displayed)}\n```\n"


def formula_in_words(formula: str) -> str:
    r"""A formula of LaTeX as text.

    >>> formula_in_words(r"\frac{a + b}{\sqrt{d / H}}")
    '(a + b)/√(d / H)'
    >>> formula_in_words(r"α_{i j} = \frac{\exp(s_{i j})}{\sum_{l \le i} \exp(s_{i l})}")
    'α_ij = exp(s_ij)/(Σ_(l ≤ i) exp(s_il))'
    >>> formula_in_words(r"\gamma = \text{argmax}_{(x, y)} \, β")
    'γ = argmax_(x, y) β'
    >>> formula_in_words(r"10000^{2 c / d} W_q^\top")
    '10000^(2 c / d) W_qᵀ'
    """
    text = _sequence(TOKEN.findall(formula)[::-1])
    lines = [re.sub(" +", " ", line).replace("\u2003", "  ").strip() for line in text.split("\n")]
    return "\n".join(line for line in lines if line)


def _sequence(tokens: list[str]) -> str:
    """What the tokens up to a closing brace say; `tokens` are in reverse order, and what was read is removed."""
    text = ""
    while tokens:
        if tokens[-1] == "}":
            tokens.pop()
            break
        text += _item(tokens)
    return text


def _item(tokens: list[str]) -> str:
    """The next token with its arguments."""
    token = tokens.pop()
    if token == "{":
        return _sequence(tokens)
    if token == "_":
        return f"_{_index(_argument(tokens))}"
    if token == "^":
        raised = _argument(tokens)
        return RAISED.get(raised, f"^{_index(raised)}")
    if not token.startswith("\\"):
        return token

    command = token[1:]
    if command == "frac":
        numerator = _factor(_argument(tokens))
        return f"{numerator}/{_factor(_argument(tokens))}"
    if command == "sqrt":
        return f"√{_factor(_argument(tokens))}"
    if command == "tilde":
        return f"{_argument(tokens)}~"
    if command in IN_ONE_WORD:
        return _argument(tokens)
    if command in WITHOUT_SIGN:
        return ""
    return SIGNS.get(command) or GAPS.get(command, command)


def _argument(tokens: list[str]) -> str:
    """The next item that is not a blank."""
    while tokens and tokens[-1].isspace():
        tokens.pop()
    return _item(tokens).strip() if tokens else ""


def _index(text: str) -> str:
    """A subscript or an exponent: letters without blanks between them, anything longer in parentheses."""
    if re.fullmatch(r"\w( \w)*", text):
        return text.replace(" ", "")
    is_one = re.fullmatch(r"\w+|\([^()]*\)", text)
    return text if is_one else f"({text})"


def _factor(formula: str) -> str:
    """The formula in parentheses, unless it is a letter, a number, a root, or the value of a function."""
    is_one = re.fullmatch(r"√?[\w²³ᵀ]+(\^\w+)?|\w+\([^()]*\)|√\([^()]*\)", formula)
    return formula if is_one else f"({formula})"
