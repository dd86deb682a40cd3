"""`regard evaluate`: the quality of a translator or of a language model."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import ArgumentError
from regard_lab.cli.console import counting, out, out_json, say
from regard_lab.cli.hints import say_if_unfinished
from regard_lab.cli.options import Alpha, Beam, Json, Normalisation, Run, check_search, default
from regard_lab.decoding import Translator, sharing
from regard_lab.models import LanguageModel
from regard_lab.models.storage import kind_of_model
from regard_lab.training.recipes.evaluation import RunScores, evaluate_run, uncounted
from regard_lab.training.recipes.recipe import silent
from regard_lab.training.recipes.text_evaluation import TextScores, evaluate_text


def evaluate(
    run: Run,
    test: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEST",
            help="Files of pairs [default: the run's own test split]; for a language model, files of text.",
        ),
    ] = None,
    beam: Beam = default(Translator.translate, "beam"),
    normalisation: Normalisation = default(Translator.translate, "normalisation"),
    alpha: Alpha = default(Translator.translate, "alpha"),
    as_json: Json = False,
) -> None:
    """Evaluate on the named files, or on the run's test split; a run of the embedded corpus also on its pronouns.

    torchrun divides sentences, or batches of text, among its processes, of which the first one prints.
    """
    check_search(normalisation, beam)
    search = {"beam": beam, "normalisation": normalisation, "alpha": alpha}
    with sharing() as share:
        first = share is None or share.rank == 0
        tell = say if first else silent
        if first:
            say_if_unfinished(run)
        scores: RunScores | TextScores
        if kind_of_model(run) == LanguageModel.KIND:
            _check_language_model(run, search)
            scores = evaluate_text(run, test or [], tell=tell, share=share)
        else:
            counts = partial(counting, "translating") if first else uncounted
            scores = evaluate_run(run, test or [], tell=tell, counting=counts, share=share, **search)
    if not first:
        return
    if as_json:
        out_json(json.dumps(scores.to_dict()))
    else:
        for line in scores.lines():
            out(line)


def _check_language_model(run: Path, search: dict[str, Any]) -> None:
    """Refuse what is for translators."""
    if given := [f"--{name}" for name, value in search.items() if value != default(Translator.translate, name)]:
        raise ArgumentError(f"{' and '.join(given)} is for translators, and {run} is a language model; leave it out")
