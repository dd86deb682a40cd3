"""`regard evaluate`: the scores of a translator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.cli.console import counting, out, out_json, say
from regard.cli.pronouns import judge_pronouns
from regard.cli.runs import read_settings, read_test
from regard.cli.translate import check_search
from regard.decoding import Evaluation, Translator, evaluate
from regard.text import read_pairs
from regard.text.translation_data import PRONOUNS


def run_evaluate(run: Path, test: list[str], *, beam: int, normalisation: str, alpha: float, as_json: bool) -> None:
    """Score on the named pairs, or on the run's own test split; a run of the embedded corpus also on its pronouns."""
    check_search(normalisation)
    translator = Translator.load(run)
    if test:
        read = read_pairs(*test)
        say(read.report())
        pairs, name = read.pairs, " + ".join(test)
    else:
        name = "the run's own test split"
        pairs, notes = read_test(run)
        for note in notes:
            say(note)
    with counting("translating", len(pairs)) as progress:
        result = evaluate(translator, pairs, beam=beam, normalisation=normalisation, alpha=alpha, progress=progress)
    settings = read_settings(run) or {}
    report = None
    if not test and settings.get("data") == [PRONOUNS]:
        report = judge_pronouns(translator, int(settings.get("seed", 0)), beam, normalisation, alpha)
    if as_json:
        out_json(json.dumps({"test": name, **result.to_dict(), **(report.to_dict() if report else {})}))
    else:
        for line in [*describe(result, name), *(report.lines() if report else [])]:
            out(line)


def describe(result: Evaluation, name: str) -> list[str]:
    """The scores in lines of text."""
    scores = result.scores
    found: dict[str, Any] = {
        "BLEU": f"{scores.bleu:.2f}   {scores.bleu_signature}",
        "chrF": f"{scores.chrf:.2f}   {scores.chrf_signature}",
        "exact match": f"{scores.exact_match:.3f}",
        "perplexity": f"{result.perplexity:.3f} an id",
    }
    search = ", ".join(f"{key} {value}" for key, value in result.settings.items())
    return [f"{scores.count} sentences of {name}, {search}", *(f"  {key:<12} {value}" for key, value in found.items())]
