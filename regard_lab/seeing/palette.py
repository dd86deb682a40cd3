"""The colours of pictures, lessons and the explorer, read from `palette.json`.

That file is the only place of a colour that more than one picture has: this module reads it for Python, and
`explorer/source/build.mjs` writes it into the script and the style of the explorer.
"""

import json
from importlib.resources import files

_COLOURS = json.loads(files("regard_lab.seeing").joinpath("palette.json").read_text("utf-8"))
_FIGURES = _COLOURS["figures"]
_PATTERNS = _COLOURS["patterns"]
_TRAINING = _COLOURS["training"]

# Of weights, from the background to the strongest.
SCALE: tuple[str, ...] = tuple(_COLOURS["weights"]["light"])
# Of what a word depends on, from the background to the strongest.
DEPENDS: tuple[str, ...] = tuple(_COLOURS["depends"]["light"])
# Of what speaks against a word, in the same order.
OPPOSES: tuple[str, ...] = tuple(
    _COLOURS["page"]["light"][name] for name in ("paper", "line", "edge", "faint", "ink")
)
# Of numbers below 0, from the background to the strongest.
AGAINST: tuple[str, ...] = tuple(_COLOURS["against"]["light"])
# Of pairs that are not allowed.
UNSEEN: str = _COLOURS["page"]["light"]["unseen"]

INK: str = _FIGURES["ink"]
FAINT: str = _FIGURES["faint"]
EDGES: str = _FIGURES["edges"]
PALE: str = _FIGURES["pale"]

# Of q, k and v wherever they are shown.
QUERY: str = _FIGURES["query"]
KEY: str = _FIGURES["key"]
VALUE: str = _FIGURES["value"]

# Okabe and Ito's, with the mark of each line, so that lines differ without colour too.
LINES: tuple[str, ...] = tuple(_FIGURES["lines"])
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<")

# Of the pairs of a pattern, and of positions that a stack reaches through other positions.
PAIR_COLOURS: tuple[str, ...] = (
    _PATTERNS["hidden"],
    _PATTERNS["inherited"],
    _PATTERNS["allowed"],
)

# Of the curves of a training run.
TRAINING_LOSS: str = _TRAINING["training"]
VALIDATION_LOSS: str = _TRAINING["validation"]
