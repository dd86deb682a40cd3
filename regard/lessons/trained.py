"""The trained translators that lessons look into."""

from __future__ import annotations

from pathlib import Path

from regard.decoding import Translator
from regard.errors import ArgumentError, CheckpointError
from regard.models import TranslationTransformer

WAY_OUT = "'regard demo' trains one in minutes, in runs/demo"


def load_transformer(run: Path | None, lesson: str) -> tuple[Translator, TranslationTransformer]:
    """The translator in a run's folder, whose encoder has heads to look at.

    Raises:
        ArgumentError: none was named, or a recurrent translator.
        CheckpointError: no such folder, no translator in it, or a damaged one.
    """
    if run is None:
        raise ArgumentError(f"lesson {lesson} looks into a trained translator: --run RUN; {WAY_OUT}")
    if not run.is_dir():
        raise CheckpointError(f"{run} is no folder of a run; {WAY_OUT}")
    try:
        translator = Translator.load(run)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {WAY_OUT}") from error
    if not isinstance(translator.model, TranslationTransformer):
        raise ArgumentError(
            f"lesson {lesson} looks at self-attention, and {run} holds a {type(translator.model).__name__}; {WAY_OUT}"
        )
    return translator, translator.model
