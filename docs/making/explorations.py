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
    live = None
    if not opened.unplayed:
        live = opened.play(SENTENCE.format(NOUNS[0], ENDINGS[0]), "int8")
    if live and live.model and live.model.parameters <= MOST_PARAMETERS:
        _keep("live", to_answer(live))
        return
    keep_choices(run)
    if find_spec("rxnmapper") is not None:
        _keep("reaction", _reaction())


def keep_choices(run: Path) -> None:
    """Store every version of the sentence, translated, with what its pronoun depends on."""
    translator = Translator.load(run)
    cases = []
    for noun in NOUNS:
        for ending in ENDINGS:
            cases.append(_case(translator, noun, ending))
    text = json.dumps({"cases": cases}, indent=1, ensure_ascii=False)
    CHOICES.write_text(text + "\n", encoding="utf-8")


def _keep(name: str, answer: dict[str, Any]) -> None:
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
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
    words = []
    for word, score in zip(scored.source_words, scored.source_scores, strict=True):
        if word != "<end>":
            words.append([word, round(score, 2)])
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
    lines += _buttons("noun", "Who", NOUNS)
    lines += _buttons("ending", "Why", ENDINGS)
    for case in json.loads(CHOICES.read_text(encoding="utf-8"))["cases"]:
        lines += _case_lines(case)
    return "\n".join([*lines, "</div>"])


def _buttons(group: str, title: str, choices: tuple[str, ...]) -> list[str]:
    lines = [f"<fieldset><legend>{title}</legend>"]
    for number, choice in enumerate(choices):
        name = f"{group}-{number}"
        checked = " checked" if number == 0 else ""
        button = f'<input type="radio" name="{group}" id="{name}"{checked}>'
        lines.append(f'{button}<label for="{name}">{choice}</label>')
    return [*lines, "</fieldset>"]


def _case_lines(case: dict[str, Any]) -> list[str]:
    """A sentence, shaded by the scores of its words, and its translation with the pronoun in bold."""
    largest = max(score for _, score in case["words"])
    shaded = []
    for word, score in case["words"]:
        style = f"--share: {max(0, score) / largest:.2f}"
        shaded.append(f'<span style="{style}" title="{score:+.2f}">{escape(word)}</span>')
    pronoun = case["pronoun"]
    german = escape(case["translation"]).replace(f" {pronoun} ", f" <strong>{pronoun}</strong> ")
    noun = f"noun-{NOUNS.index(case['noun'])}"
    ending = f"ending-{ENDINGS.index(case['ending'])}"
    return [
        f'<div class="case {noun} {ending}">',
        f'<p class="source">{" ".join(shaded)}</p>',
        f'<p class="target">{german}</p>',
        "</div>",
    ]
