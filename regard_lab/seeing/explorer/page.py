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
    shown_sentence,
    shown_text,
    sums_of,
)
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
        start = self.length
        self.parts.append(text)
        self.length += len(text)
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
    script = _read("explorer.js")
    style = _read("explorer.css")
    held = answer.get("held", {})
    rules = _content_security(script, style, is_live=is_live, computes=bool(held))
    # "<" ends a script element and an HTML comment begins with it, so none is left in the data.
    data = json.dumps(answer["header"], ensure_ascii=True, separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    engine = ""
    if held:
        engine = f"{_text('engine', _read('engine.js'))}\n<script>{STARTER}</script>"
    lines = [
        "<!doctype html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{rules}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(shown_text(title or 'Attention'))}</title>",
        f"<style>{style}</style>",
        "</head>",
        "<body>",
        '<div id="regard-explorer"><p>This page needs JavaScript, and contains all of it.</p></div>',
        f'<script type="application/json" id="regard-header">{data}</script>',
        engine,
        _text("arrays", answer["arrays"]),
        *(_text(name, text) for name, text in held.items()),
        f'<script type="module">{script}</script>',
        "</body>",
        "</html>",
        "",
    ]
    return Page("\n".join(lines))


def _content_security(script: str, style: str, *, is_live: bool, computes: bool) -> str:
    """What a page may run and ask for: its own script and style, and of a network its own server at most."""
    scripts = f"'{_digest(script)}'"
    workers = ""
    if computes:
        scripts += f" '{_digest(STARTER)}' 'wasm-unsafe-eval'"
        workers = " worker-src blob:;"
    connects = "'self'" if is_live else "'none'"
    return (
        f"default-src 'none'; script-src {scripts};{workers} style-src '{_digest(style)}'; "
        f"img-src data: blob:; connect-src {connects}; base-uri 'none'; form-action 'none'"
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
    header = header_of(exploration, packed, exact=exact)
    header["live"] = None if live is None else dict(live)
    answer: dict[str, Any] = {"header": header, "arrays": str(packed)}
    model = exploration.model
    if model is not None:
        answer["held"] = {"model": model.text, "tensors": model.packed}
    return answer


def walk_to_answer(walk: ShownWalk) -> dict[str, Any]:
    """A walkthrough as JSON values, and its arrays as one text."""
    packed = Packed()
    return {"walk": walk.to_json(packed.add), "arrays": str(packed)}


def header_of(
    exploration: Exploration, packed: Packed, *, exact: bool | None = None
) -> dict[str, Any]:
    """Everything except the arrays as JSON values; the arrays are added to `packed`."""
    attentions = exploration.attentions
    if exact is None:
        exact = sum(attention.weights.numel() for attention in attentions) <= EXACT
    texts = {}
    for name, words in exploration.texts.items():
        texts[name] = [shown_text(word) for word in words]
    explained = {}
    for place, lenses in exploration.explained.items():
        explained[place] = [_relevance(of_lens) for of_lens in lenses]

    # The arrays of attentions, patterns, walk and comparison follow each other in this order.
    header: dict[str, Any] = {
        "version": __version__,
        "title": shown_sentence(exploration.title, 400),
        "texts": texts,
        "attentions": [_attention(attention, packed, exact=exact) for attention in attentions],
        "explained": explained,
        "written": exploration.written,
        "chosen": exploration.chosen,
        "notes": [shown_sentence(note, 400) for note in exploration.notes],
        "patterns": [pattern.to_json(packed.add) for pattern in exploration.patterns],
        "walk": None,
        "changes": None,
        "second": None,
        "model": None,
    }
    if exploration.walk is not None:
        most = MOST_NUMBERS if exploration.model is None else FEW_NUMBERS
        header["walk"] = exploration.walk.to_json(packed.add, most)
    if exploration.changes is not None:
        header["changes"] = changes_to_json(exploration.changes, exploration.follows)
    if exploration.second is not None:
        header["second"] = _second(exploration.second, packed)
    if exploration.model is not None:
        header["model"] = exploration.model.to_json()
    return header


def _second(second: Second, packed: Packed) -> dict[str, Any]:
    """What an exploration is compared with: its own header, and which words are the same."""
    matched = {}
    for name, places in second.matched.items():
        matched[name] = [list(of_text) for of_text in places]
    return {
        "said": shown_sentence(second.said, 400),
        "matched": matched,
        "header": header_of(second.exploration, packed),
    }


def _attention(attention: Attention, packed: Packed, *, exact: bool) -> dict[str, Any]:
    weights = attention.weights
    rows, columns = weights.shape[2:]
    thumbnail = (min(rows, THUMBNAIL), min(columns, THUMBNAIL))
    small = F.adaptive_max_pool2d(weights.flatten(0, 1)[None], thumbnail)[0]
    statistics = {}
    for name, values in {**head_statistics(attention), **attention.measured}.items():
        statistics[name] = [rounded(of_layer) for of_layer in values.tolist()]

    # The arrays are packed in this order: thumbnails, bytes, exact numbers.
    record: dict[str, Any] = {
        "name": attention.name,
        "rows": attention.rows,
        "columns": attention.columns,
        "row_title": attention.row_title,
        "column_title": attention.column_title,
        "unwritten": attention.unwritten,
        "links": attention.links,
        "says": shown_sentence(attention.says, 400),
        "sums": sums_of(weights),
        "shape": list(weights.shape),
        "statistics": statistics,
        "thumbnails": {"shape": list(small.shape[1:]), "place": packed.add(to_bytes(small))},
        "bytes": _packed_heads(to_bytes(weights), packed),
        "exact": None,
    }
    if exact:
        record["exact"] = _packed_heads(weights.float(), packed)
    return record


def _packed_heads(weights: torch.Tensor, packed: Packed) -> list[list[list[int]]]:
    """The place of the array of each head, by layer."""
    places = []
    for layer in weights:
        places.append([packed.add(head) for head in layer])
    return places


def head_statistics(attention: Attention) -> dict[str, torch.Tensor]:
    """The measures by which heads are sorted, each (layers, heads).

        entropy   mean over rows of -sum w ln w, in nats
        first     mean over rows of the weight of the first key
        received  the largest share of all weight that one key receives
        distance  mean over rows of sum w |i - j|; only between words of one text

    >>> attention = Attention("a", "text", "text", torch.eye(2)[None, None])
    >>> {name: value.item() for name, value in head_statistics(attention).items()}
    {'entropy': 0.0, 'first': 0.5, 'received': 0.5, 'distance': 0.0}
    """
    weights = attention.weights
    rows, columns = weights.shape[2:]
    statistics = {
        "entropy": -torch.xlogy(weights, weights).sum(-1).mean(-1) + 0.0,
        "first": weights[..., 0].mean(-1),
        "received": weights.mean(-2).amax(-1),
    }
    texts = {attention.rows, attention.columns}
    if len(texts) == 1 or texts == {"target", "read"}:
        apart = (torch.arange(rows)[:, None] - torch.arange(columns)).abs().float()
        statistics["distance"] = (weights * apart).sum(-1).mean(-1)
    return statistics


def _relevance(relevance: Relevance) -> dict[str, Any]:
    record = relevance.to_dict()
    sides = {}
    for side in ("source", "written"):
        sides[side] = [[shown_text(pair["word"]), round(pair["score"], 5)] for pair in record[side]]
    return {
        "lens": relevance.lens,
        "place": relevance.place,
        "log_odds": relevance.log_odds,
        "probability": relevance.probability,
        **sides,
        "note": relevance.note,
        "word": shown_text(relevance.word),
        "others": [shown_text(other) for other in relevance.others],
        "cost": relevance.cost,
    }


def _read(name: str) -> str:
    return files("regard_lab.seeing.explorer").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
