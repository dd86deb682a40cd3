"""What the first page and the guides show of a trained model: the thing to try, and examples of the explorer.

The data of both comes from trained translators and from the weights of rxnmapper. Tests have no such model, so the
data is committed, and tests open what is stored. The pages have the script of today. The page that computes contains a
translator that differs from the demo's in its size, dim=64, hidden=128, vocab_size=700, and in its training,
steps=1900, batch_tokens=3200, learning_rate=4e-3, warmup_steps=150: two minutes on a GPU. `python -m docs.making RUN`
stores it of such a run, and all else of a run of the demo.
"""

from __future__ import annotations

import json
import re
import sys
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from regard_lab.cli.view import open_run
from regard_lab.decoding import Translator
from regard_lab.seeing import relevance
from regard_lab.seeing.explorer import Page
from regard_lab.seeing.explorer.page import page_of, to_answer

DOCS = Path(__file__).parents[1]
CHOICES = DOCS / "assets" / "start.json"
RECORDS = DOCS / "assets" / "explorations"
NOUNS = ("animal", "dog", "cat")
ENDINGS = ("too tired", "congested")
SENTENCE = "The {} didn't cross the street because it was {}."
PRONOUNS = ("es", "er", "sie")
REACTION = "CC(=O)Cl.NCc1ccccc1>>c1ccccc1CNC(C)=O"  # the product written backwards
EXAMPLES = ("live", "reaction")
MOST_PARAMETERS = 400_000  # of the model in the page that computes, so that its data stays small


def keep_examples(run: Path) -> None:
    """Store the data of the thing to try and of every example; that of the reaction only if rxnmapper is installed.

    Of a small translator that of the page that computes is stored alone.
    """
    RECORDS.mkdir(exist_ok=True)
    opened = open_run(run)
    text = SENTENCE.format(NOUNS[0], ENDINGS[0])
    live = None if opened.unplayed else opened.play(text, "int8")
    if live and live.model and live.model.parameters <= MOST_PARAMETERS:
        _keep("live", to_answer(live))
        return
    keep_choices(run)
    if find_spec("rxnmapper") is not None:
        _keep("reaction", _reaction())


def keep_choices(run: Path) -> None:
    """Store every version of the sentence, translated, with what its pronoun depends on."""
    translator = Translator.load(run)
    cases = [_case(translator, noun, ending) for noun in NOUNS for ending in ENDINGS]
    CHOICES.write_text(
        json.dumps({"cases": cases}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _keep(name: str, found: dict[str, Any]) -> None:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    (RECORDS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _case(translator: Translator, noun: str, ending: str) -> dict[str, Any]:
    """One version of the sentence: its translation, the pronoun, and the score of each source word by erasure."""
    source = SENTENCE.format(noun, ending)
    (translation,) = translator.translate([source])
    (pronoun,) = re.findall(r"weil (er|sie|es)\b", translation.text)
    others = [other for other in PRONOUNS if other != pronoun]
    scored = relevance(
        translator.model, translator.tokeniser, source, translation.ids, pronoun, others
    )
    pairs = zip(scored.source_words, scored.source_scores, strict=True)
    words = [[word, round(score, 2)] for word, score in pairs if word != "<end>"]
    return {
        "noun": noun,
        "ending": ending,
        "source": source,
        "words": words,
        "translation": translation.text,
        "pronoun": pronoun,
    }


def _reaction() -> dict[str, Any]:
    """All weights of RXNMapper on one reaction."""
    sys.path.insert(0, str(DOCS.parent / "tests" / "regard" / "integrations"))
    import atom_maps as maps

    from regard.integrations.transformers import attach, observe
    from regard_lab.seeing.transformers import explore_observed

    tokens = maps.tokens_of(REACTION, maps.vocabulary())
    model = attach(maps.load())
    with torch.no_grad(), observe(model, "weights") as observed:
        model(tokens.ids)
    explored = explore_observed(observed, tokens.words, title=f"RXNMapper reads {REACTION}")
    return to_answer(explored, exact=False)  # a fifth of the size


def example_page(name: str) -> Page:
    """The page of an example."""
    return page_of(json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8")))


def thing_to_try() -> str:
    """Buttons for both words, and each choice's translation under its source words, shaded by their scores."""
    lines = ['<div class="try">']
    for group, title, choices in (("noun", "Who", NOUNS), ("ending", "Why", ENDINGS)):
        lines.append(f"<fieldset><legend>{title}</legend>")
        lines += [
            f'<input type="radio" name="{group}" id="{group}-{at}"{" checked" if at == 0 else ""}>'
            f'<label for="{group}-{at}">{choice}</label>'
            for at, choice in enumerate(choices)
        ]
        lines.append("</fieldset>")
    for one in json.loads(CHOICES.read_text(encoding="utf-8"))["cases"]:
        largest = max(score for _, score in one["words"])
        shaded = " ".join(
            f'<span style="--share: {max(0, score) / largest:.2f}" title="{score:+.2f}">{escape(word)}</span>'
            for word, score in one["words"]
        )
        pronoun = f" {one['pronoun']} "
        german = escape(one["translation"]).replace(
            pronoun, f" <strong>{pronoun.strip()}</strong> "
        )
        lines += [
            f'<div class="case noun-{NOUNS.index(one["noun"])} ending-{ENDINGS.index(one["ending"])}">',
            f'<p class="source">{shaded}</p>',
            f'<p class="target">{german}</p>',
            "</div>",
        ]
    return "\n".join([*lines, "</div>"])
