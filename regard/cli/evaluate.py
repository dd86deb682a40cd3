"""`regard evaluate`: the quality of a translator."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer

from regard.cli.console import counting, out, out_json, say
from regard.cli.options import Alpha, Beam, Json, Normalisation, Run, check_search, default
from regard.decoding import Translator
from regard.training.recipes.evaluation import evaluate_run


def evaluate(
    run: Run,
    test: Annotated[
        list[str] | None, typer.Argument(metavar="TEST.tsv", help="Files of pairs. [default: the run's own test split]")
    ] = None,
    beam: Beam = default(Translator.translate, "beam"),
    normalisation: Normalisation = default(Translator.translate, "normalisation"),
    alpha: Alpha = default(Translator.translate, "alpha"),
    as_json: Json = False,
) -> None:
    """Evaluate on the named pairs, or on the run's test split; a run of the embedded corpus also on its pronouns."""
    check_search(normalisation)
    scores = evaluate_run(
        run, test or [], tell=say, counting=partial(counting, "translating"), beam=beam, normalisation=normalisation,
        alpha=alpha,
    )  # fmt: skip
    if as_json:
        out_json(json.dumps(scores.to_dict()))
    else:
        for line in scores.lines():
            out(line)
