"""The examples of the explorer on the site: their data is committed, and the site's hook makes pages of it.

So the pages always have the script of today. The data comes from a trained translator, from the weights of rxnmapper,
and from a text; tests have neither, and open what is stored.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from docs.making.figures import DOCS
from regard.patterns import Causal
from regard_lab.cli.view import open_run
from regard_lab.seeing.explorer import Exploration, Page, page_of, stream_head, to_answer, to_long_answer

RECORDS = DOCS / "assets" / "explorations"
SENTENCE = "The animal didn't cross the street because it was too tired."
REACTION = "CC(=O)Cl.NCc1ccccc1>>c1ccccc1CNC(C)=O"  # the product written backwards
TEXT = "conventions.md"
# The name of each example: the view that it opens with, the height of its frame, and what it is.
EXAMPLES = {
    "pronoun": ("#view=reader", 720, "The explorer on the sentence above: choose a German word, a lens, or a view"),
    "reaction": ("#view=map&layer=10&head=5&row=20", 900, "All heads of the model of reactions on one reaction"),
    "document": ("", 860, "One head over a whole page of this documentation"),
}


def keep_explorations(run: Path) -> None:
    """Store the data of every example; that of the reaction only if rxnmapper is installed."""
    RECORDS.mkdir(exist_ok=True)
    _keep("pronoun", to_answer(_pronoun(run)))
    if find_spec("rxnmapper") is not None:
        _keep("reaction", to_answer(_reaction(), exact=False))  # a fifth of the size
    _keep("document", _document())


def _keep(name: str, answer: dict[str, Any]) -> None:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    (RECORDS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _pronoun(run: Path) -> Exploration:
    """What `regard view` shows of the sentence; without its walk-through, which is larger than all the rest."""
    return open_run(run).read(SENTENCE, None)


def _reaction() -> Exploration:
    """All weights of RXNMapper on one reaction."""
    sys.path.insert(0, str(DOCS.parent / "tests" / "regard" / "integrations"))
    import atom_maps as maps

    from regard.integrations.transformers import attach, observe
    from regard_lab.seeing.transformers import explore_observed

    tokens = maps.tokens_of(REACTION, maps.vocabulary())
    model = attach(maps.load())
    with torch.no_grad(), observe(model, "weights") as observed:
        model(tokens.ids)
    return explore_observed(observed, tokens.words, title=f"RXNMapper reads {REACTION}")


def _document() -> dict[str, Any]:
    """A head that was made by hand, over a long text: a word looks at its earlier occurrences, the nearest most.

    The query and key of a word are a random vector of the word, and rotations that make near keys larger.
    """
    words = re.findall(r"\w+|[^\w\s]", (DOCS / TEXT).read_text(encoding="utf-8"))
    known = {word: number for number, word in enumerate(dict.fromkeys(map(str.lower, words)))}
    vectors = torch.randn(len(known), 64, generator=torch.Generator().manual_seed(0))
    own = vectors[[known[word.lower()] for word in words]]
    own = 5.5 * own / own.norm(dim=1, keepdim=True)
    angles = torch.arange(len(words))[:, None] / torch.tensor([300.0, 3000.0])
    near = 1.5 * torch.cat([angles.cos(), angles.sin()], 1)
    both = torch.cat([own, near], 1)
    head = stream_head(both, both, words, pattern=Causal(), scale=0.5, links=8)
    title = f"A head made by hand, over {len(words):,} words: each looks at its earlier occurrences"
    return to_long_answer(head, title=title)


def example_page(name: str) -> Page:
    """The page of an example, with the script of today."""
    return page_of(json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8")))


def frame(name: str, up: str = "") -> str:
    """The HTML that shows an example in a page of the site; `up` leads to the first page's folder."""
    view, height, title = EXAMPLES[name]
    address = f"{up}explorations/{name}.html{view}"
    return (
        f'<iframe class="explorer" src="{address}" title="{title}" loading="lazy" height="{height}"></iframe>\n'
        f'<p class="explorer-note">{title}. <a href="{address}">Open it alone</a>.</p>'
    )


PARTS = {
    "explore-pronoun": lambda: frame("pronoun"),
    "explore-reaction": lambda: frame("reaction", "../"),
    "explore-document": lambda: frame("document", "../"),
}
