"""`regard convert ...`: commands that change a trained model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.arguments import count_of
from regard_lab.cli.console import StoppedError, keeping, out_json, out_lines, say
from regard_lab.cli.options import Json, with_settings
from regard_lab.cli.progress import training_progress
from regard_lab.conversion.folders import is_hugging_face
from regard_lab.conversion.report import Uptrained
from regard_lab.conversion.uptraining import Uptraining
from regard_lab.models.storage import CHECKPOINTS_FILE

METHODS_DONE = {
    "mean": "neighbours pooled by their mean",
    "first": "the first of each group kept",
    "random": "random heads instead of each group",
    "align": "similar heads rotated and pooled by their mean",
}


@with_settings(Uptraining.Config)
def kv_heads(
    model: Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="A run, a saved model, or a Hugging Face folder.")],
    kv_heads: Annotated[int, typer.Option("--kv-heads", min=1, help="Key/value heads of each layer.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder; an earlier conversion there is replaced.")],
    given: Mapping[str, Any],
    as_json: Json = False,
) -> None:
    """Convert, measure and train as far as was asked, and show it."""
    uptraining = Uptraining(Uptraining.Config(**given), tell=say, showing=training_progress)
    steps = uptraining.config.steps
    kept = f"{out} keeps the model as it was last saved, and the same command goes on"
    with keeping(lambda: kept if steps is not None and (out / CHECKPOINTS_FILE).exists() else None):
        done = uptraining.convert(model, out, kv_heads)
    if done.training is not None and done.training.stopped == "interrupted":
        raise StoppedError(
            f"interrupted after {done.training.steps} of {count_of(steps or 0, 'steps')}; the same command goes on"
        )
    pooled = METHODS_DONE.get(done.report.method)
    if as_json:
        out_json(json.dumps({**done.to_dict(), "out": str(out)}))
    else:
        out_lines(str(done))
        became = f", as a model of type {done.report.became}" if done.report.became else ""
        say(f"{pooled or 'heads repeated'}; the model is in {out}{became}")
        if done.report.invariance is not None:
            say(
                "checked: rotating the heads, before they are pooled, changes outputs by at most "
                f"{done.report.invariance:.0e}"
            )
        if done.report.difference is not None:
            unsaid = "; this says nothing about the quality of the model" if pooled else ""
            say(
                f"checked: the converted attention computes what the reference does with these heads (largest "
                f"difference {done.report.difference:.0e}){unsaid}"
            )
    if uptraining.config.report is not None:
        say(f"the report is in {uptraining.config.report}")
    if pooled and done.training is None:
        say(f"the outputs of pooled heads differ from those of the original heads{_rise(done)}: {_way_to_train(model)}")


def _rise(done: Uptrained) -> str:
    """What the pooling did to the loss, where a text was given to measure it on."""
    if done.losses is None:
        return ""
    return f", and the loss went from {done.losses.before:.4f} to {done.losses.converted:.4f} nats an id"


def _way_to_train(model: Path) -> str:
    """How a model whose heads were pooled is trained before its outputs are used."""
    if is_hugging_face(model):
        return "train the model where it is used before you rely on its outputs"
    return (
        "train the model before you rely on its outputs, by the same command into a new folder with --text FILE "
        "--uptrain-steps N; --text FILE alone measures what was lost"
    )
