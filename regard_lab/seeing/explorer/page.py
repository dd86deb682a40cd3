"""Writes an exploration as one page of HTML that needs no network: weights packed into bytes, one script, one style.

Weights are stored as one byte each on a square-root scale, so that small weights keep their size, and deflated. A page
with few weights contains them as float32 too, and then every number on it is exact.
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from regard import __version__
from regard.packages import needed
from regard.storage.files import replace_file
from regard_lab.seeing.explorer.records import (
    FEW_NUMBERS,
    MOST_NUMBERS,
    ShownWalk,
    changes_to_json,
    rounded,
    sums_of,
)
from regard_lab.seeing.explorer.records import shown_sentence as _sentence
from regard_lab.seeing.explorer.records import shown_text as _shown
from regard_lab.seeing.explorer.sources import Attention, Exploration, Second
from regard_lab.seeing.lenses.record import Relevance

EXACT = 400_000  # weights of a page that are stored as float32 too
THUMBNAIL = 48  # rows and columns of a thumbnail
HEIGHT = 760  # pixels of the frame in a notebook
# Starts the engine before the browser has read the tensors behind it, so that both are ready at the same time.
STARTER = (
    "regardWorker=new Worker(URL.createObjectURL("
    'new Blob([document.getElementById("regard-engine").textContent])))'
)


@dataclass(frozen=True, eq=False)
class Page:
    """A page of the explorer; a notebook shows it in a frame that may not reach the notebook or the network.

    Args:
        html: the page.
    """

    html: str

    def save(self, path: str | Path) -> None:
        """Write the page atomically.

        Raises:
            CheckpointError: the file could not be written.
        """
        replace_file(Path(path), self.html.encode())

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{HEIGHT}px;border:0"
        frame = (
            f'sandbox="allow-scripts allow-downloads" style="{style}" title="Attention explorer"'
        )
        return f'<iframe {frame} srcdoc="{escape(self.html)}"></iframe>'

    def widget(self) -> Any:
        """The page as a Jupyter widget, by anywidget: Python reads what is chosen in it, and chooses.

        Its trait `chosen` has the names and values of the page's address, as texts: `widget.chosen = {"view": "map"}`
        shows the heat map, and `widget.observe(function, "chosen")` is called when a reader chooses. It needs a running
        kernel; the page itself, which a cell displays without it, does not.

        Raises:
            MissingPackageError: anywidget is not installed.
        """
        with needed("anywidget", "a widget", "notebook"):
            import anywidget  # ty: ignore[import-not-found]
            import traitlets  # ty: ignore[import-not-found]

        class ExplorerWidget(anywidget.AnyWidget):
            _esm = _read("widget.js")
            html = traitlets.Unicode().tag(sync=True)
            height = traitlets.Int(HEIGHT).tag(sync=True)
            chosen = traitlets.Dict(
                key_trait=traitlets.Unicode(), value_trait=traitlets.Unicode()
            ).tag(sync=True)

        return ExplorerWidget(html=self.html)

    def __repr__(self) -> str:
        return f"Page({len(self.html):,} characters)"


@dataclass
class Packed:
    """Arrays as one text of base64; each begins at a multiple of four characters, so that it is read by itself."""

    parts: list[str] = field(default_factory=list)
    length: int = 0

    def add(self, array: torch.Tensor) -> list[int]:
        """Append a deflated array; return the index of its first character, and the number of its characters."""
        deflated = zlib.compress(array.contiguous().numpy().tobytes(), 6)
        text = b64encode(deflated).decode()
        start, self.length = self.length, self.length + len(text)
        self.parts.append(text)
        return [start, len(text)]

    def __str__(self) -> str:
        return "".join(self.parts)


def unpacked(packed: str, place: list[int]) -> bytes:
    """The bytes of one array.

    >>> packed = Packed()
    >>> place = packed.add(torch.tensor([1, 2], dtype=torch.uint8))
    >>> unpacked(str(packed), place)
    b'\\x01\\x02'
    """
    start, length = place
    return zlib.decompress(b64decode(packed[start : start + length]))


def to_bytes(weights: torch.Tensor) -> torch.Tensor:
    """Weights from 0 to 1 as one byte each on a square-root scale: round(255 · sqrt(weight)).

    >>> to_bytes(torch.tensor([0.0, 0.25, 1.0]))
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return (weights.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)


def to_page(exploration: Exploration, *, live: Mapping[str, Any] | None = None) -> Page:
    """Write an exploration as a page.

    Args:
        exploration: what the page shows.
        live: what a local page may ask its server for; None for a page that stands alone.
    """
    return _page(exploration.title, to_answer(exploration, live=live), is_live=live is not None)


def page_of(answer: Mapping[str, Any]) -> Page:
    """Write stored data, as `to_answer` returns it, as a page that stands alone."""
    header: dict[str, Any] = {**answer["header"], "version": __version__, "live": None}
    return _page(header["title"], {**answer, "header": header}, is_live=False)


def _page(title: str, answer: dict[str, Any], *, is_live: bool) -> Page:
    script, style = (_read(name) for name in ("explorer.js", "explorer.css"))
    # "<" ends a script element and an HTML comment begins with it, so none is left in the data.
    data = json.dumps(answer["header"], ensure_ascii=True, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    connects = "'self'" if is_live else "'none'"
    held = answer.get("held", {})
    computes = f" '{_digest(STARTER)}' 'wasm-unsafe-eval'; worker-src blob:" if held else ""
    rules = (
        f"default-src 'none'; script-src '{_digest(script)}'{computes}; style-src '{_digest(style)}'; "
        f"img-src data: blob:; connect-src {connects}; base-uri 'none'; form-action 'none'"
    )
    begins = f"{_text('engine', _read('engine.js'))}\n<script>{STARTER}</script>" if held else ""
    return Page(
        "\n".join(
            (
                '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{rules}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">',
                f"<title>{escape(_shown(title or 'Attention'))}</title>\n<style>{style}</style>\n</head>\n<body>",
                '<div id="regard-explorer"><p>This page needs JavaScript, and contains all of it.</p></div>',
                f'<script type="application/json" id="regard-header">{data}</script>',
                *(
                    begins,
                    _text("arrays", answer["arrays"]),
                    *(_text(name, text) for name, text in held.items()),
                ),
                f'<script type="module">{script}</script>\n</body>\n</html>\n',
            )
        )
    )


def _text(name: str, text: str) -> str:
    return f'<script type="text/plain" id="regard-{name}">{text}</script>'


def to_answer(
    exploration: Exploration, *, live: Mapping[str, Any] | None = None, exact: bool | None = None
) -> dict[str, Any]:
    """The data of a page as JSON values: its header, its arrays as one text, and what it holds of a model.

    Args:
        exploration, live: as for `to_page`.
        exact: whether weights are stored as float32 too; by default, if there are at most 400,000.
    """
    packed = Packed()
    header = header_of(exploration, packed, exact=exact) | {
        "live": None if live is None else dict(live)
    }
    model = exploration.model
    held = {} if model is None else {"held": {"model": model.text, "tensors": model.packed}}
    return {"header": header, "arrays": str(packed), **held}


def walk_to_answer(walk: ShownWalk) -> dict[str, Any]:
    """A walkthrough as JSON values, and its arrays as one text."""
    packed = Packed()
    return {"walk": walk.to_json(packed.add), "arrays": str(packed)}


def header_of(
    exploration: Exploration, packed: Packed, *, exact: bool | None = None
) -> dict[str, Any]:
    """Everything except the arrays as JSON values; the arrays are added to `packed`."""
    if exact is None:
        exact = sum(one.weights.numel() for one in exploration.attentions) <= EXACT
    walk = exploration.walk
    return {
        "version": __version__,
        "title": _sentence(exploration.title, 400),
        "texts": {
            name: [_shown(word) for word in words] for name, words in exploration.texts.items()
        },
        "attentions": [_attention(one, packed, exact=exact) for one in exploration.attentions],
        "explained": {
            place: [_relevance(one) for one in lenses]
            for place, lenses in exploration.explained.items()
        },
        "written": exploration.written,
        "chosen": exploration.chosen,
        "notes": [_sentence(note, 400) for note in exploration.notes],
        "patterns": [one.to_json(packed.add) for one in exploration.patterns],
        "walk": None
        if walk is None
        else walk.to_json(packed.add, MOST_NUMBERS if exploration.model is None else FEW_NUMBERS),
        "changes": None
        if exploration.changes is None
        else changes_to_json(exploration.changes, exploration.follows),
        "second": None if exploration.second is None else _second(exploration.second, packed),
        "model": None if exploration.model is None else exploration.model.to_json(),
    }


def _second(second: Second, packed: Packed) -> dict[str, Any]:
    """What an exploration is compared with: its own header, and which words are the same."""
    matched = {name: [list(one) for one in pairs] for name, pairs in second.matched.items()}
    return {
        "said": _sentence(second.said, 400),
        "matched": matched,
        "header": header_of(second.exploration, packed),
    }


def _attention(one: Attention, packed: Packed, *, exact: bool) -> dict[str, Any]:
    layers, heads, rows, columns = one.weights.shape
    small = F.adaptive_max_pool2d(
        one.weights.flatten(0, 1)[None], (min(rows, THUMBNAIL), min(columns, THUMBNAIL))
    )[0]
    return {
        "name": one.name,
        "rows": one.rows,
        "columns": one.columns,
        "row_title": one.row_title,
        "column_title": one.column_title,
        "unwritten": one.unwritten,
        "links": one.links,
        "says": one.says and _sentence(one.says, 400),
        "sums": sums_of(one.weights),
        "shape": [layers, heads, rows, columns],
        "statistics": {
            name: [rounded(row) for row in values.tolist()]
            for name, values in {**head_statistics(one), **one.measured}.items()
        },
        "thumbnails": {"shape": list(small.shape[1:]), "place": packed.add(to_bytes(small))},
        "bytes": [[packed.add(to_bytes(head)) for head in layer] for layer in one.weights],
        "exact": [[packed.add(head.float()) for head in layer] for layer in one.weights]
        if exact
        else None,
    }


def head_statistics(one: Attention) -> dict[str, torch.Tensor]:
    """The measures by which heads are sorted, each (layers, heads).

        entropy   mean over rows of -sum w ln w, in nats
        first     mean over rows of the weight of the first key
        received  the largest share of all weight that one key receives
        distance  mean over rows of sum w |i - j|; only between words of one text

    >>> one = Attention("a", "text", "text", torch.eye(2)[None, None])
    >>> {name: value.item() for name, value in head_statistics(one).items()}
    {'entropy': 0.0, 'first': 0.5, 'received': 0.5, 'distance': 0.0}
    """
    weights = one.weights
    rows, columns = weights.shape[2:]
    statistics = {
        "entropy": -torch.xlogy(weights, weights).sum(-1).mean(-1) + 0.0,
        "first": weights[..., 0].mean(-1),
        "received": weights.mean(-2).amax(-1),
    }
    if one.rows == one.columns or {one.rows, one.columns} == {"target", "read"}:
        apart = (torch.arange(rows)[:, None] - torch.arange(columns)).abs().float()
        statistics["distance"] = (weights * apart).sum(-1).mean(-1)
    return statistics


def _relevance(one: Relevance) -> dict[str, Any]:
    record = one.to_dict()
    for side in ("source", "written"):
        record[side] = [[_shown(pair["word"]), round(pair["score"], 5)] for pair in record[side]]
    return {
        **{
            name: record[name]
            for name in ("lens", "place", "log_odds", "probability", "source", "written", "note")
        },
        "word": _shown(one.word),
        "others": [_shown(other) for other in one.others],
        "cost": one.cost,
    }


def _read(name: str) -> str:
    return files("regard_lab.seeing.explorer").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
