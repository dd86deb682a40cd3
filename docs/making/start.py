"""The thing to try on the first page: the demo's translator, with two words of its sentence to choose.

The translations and the scores of their words come from a trained model. Tests have no time to train one, so they are
stored as JSON, and tests compare the page with that file.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from docs.making.figures import DOCS
from regard_lab.decoding import Translator
from regard_lab.seeing import relevance

RECORD = DOCS / "assets" / "start.json"
NOUNS, ENDINGS = ("animal", "dog", "cat"), ("too tired", "congested")
GENDERS = {"es": "neuter", "er": "masculine", "sie": "feminine"}


def keep_start(run: Path) -> None:
    """Translate every version of the sentence with a trained translator, and store what its pronoun depends on."""
    translator = Translator.load(run)
    cases = [case(translator, noun, ending) for noun in NOUNS for ending in ENDINGS]
    RECORD.write_text(json.dumps({"cases": cases}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def case(translator: Translator, noun: str, ending: str) -> dict[str, Any]:
    """One version of the sentence: its translation, the pronoun, and the score of each source word by erasure."""
    source = f"The {noun} didn't cross the street because it was {ending}."
    (translation,) = translator.translate([source])
    (pronoun,) = re.findall(r"weil (er|sie|es)\b", translation.text)
    others = [other for other in GENDERS if other != pronoun]
    scored = relevance(translator.model, translator.tokeniser, source, translation.ids, pronoun, others)
    words = [
        [word, round(score, 2)]
        for word, score in zip(scored.source_words, scored.source_scores, strict=True)
        if word != "<end>"
    ]
    return {
        "noun": noun, "ending": ending, "source": source, "words": words, "translation": translation.text,
        "pronoun": pronoun,
    }  # fmt: skip


def thing_to_try() -> str:
    """Buttons for both words, and the translation of each choice with the words that its pronoun depends on."""
    cases = json.loads(RECORD.read_text(encoding="utf-8"))["cases"]
    lines = ['<div class="try">']
    for group, choices in (("noun", NOUNS), ("ending", ENDINGS)):
        lines.append(f"<fieldset><legend>{'Who' if group == 'noun' else 'Why'}</legend>")
        lines += [
            f'<input type="radio" name="{group}" id="{group}-{at}"{" checked" if at == 0 else ""}>'
            f'<label for="{group}-{at}">{choice}</label>'
            for at, choice in enumerate(choices)
        ]
        lines.append("</fieldset>")
    for one in cases:
        places = f"noun-{NOUNS.index(one['noun'])} ending-{ENDINGS.index(one['ending'])}"
        lines += [f'<div class="case {places}">', _sentence(one), _translation(one), "</div>"]
    return "\n".join([*lines, "</div>"])


def _sentence(one: dict[str, Any]) -> str:
    """The source words, shaded by their share of the largest score."""
    largest = max(score for _, score in one["words"])
    shaded = [
        f'<span style="--share: {max(0, score) / largest:.2f}" title="{score:+.2f}">{html.escape(word)}</span>'
        for word, score in one["words"]
    ]
    return f'<p class="source">{" ".join(shaded)}</p>'


def _translation(one: dict[str, Any]) -> str:
    text = re.sub(
        rf"\bweil {one['pronoun']}\b", f"weil <strong>{one['pronoun']}</strong>", html.escape(one["translation"])
    )
    return f'<p class="target">{text}</p>'


PARTS = {"thing-to-try": thing_to_try}
