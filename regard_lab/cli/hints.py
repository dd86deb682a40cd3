"""Remarks that explain why a result is poor or slow: what was typed, or the state of the run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from regard.arguments import count_of
from regard.errors import RegardError
from regard_lab.cli.commands import in_quotes
from regard_lab.cli.console import say
from regard_lab.models.storage import read_checkpoints

if TYPE_CHECKING:
    from regard_lab.decoding.translator import Ends

FAR, LONG = 3, 40  # a sentence is far too long from so many times the longest known one on, and from so many words on


def remark_on_arguments(run: object, sentences: Sequence[str]) -> str | None:
    """What to say about sentences that were probably typed without quotes, or about one that is empty.

    >>> remark_on_arguments("runs/demo", ["The", "animal"])
    '2 sentences were read, each of one word; put a sentence in quotes: regard translate runs/demo "The animal"'
    """
    if len(sentences) > 1 and all(len(sentence.split()) == 1 for sentence in sentences):
        return (
            f"{len(sentences)} sentences were read, each of one word; put a sentence in quotes: "
            f"regard translate {shlex.quote(str(run))} {in_quotes(' '.join(sentences))}"
        )
    if any(not sentence.strip() for sentence in sentences):
        return "a sentence without words gives an empty line"
    return None


def remark_on_training(run: Path) -> str | None:
    """What to say about the model of a training that has not ended; None for one that has, or for a saved model."""
    from regard_lab.training.checkpoint import RunState, read_training

    checkpoints = read_checkpoints(run)
    if checkpoints is None:
        return None
    last, used = (read_training(run / name) for name in (checkpoints.last, checkpoints.best or checkpoints.last))
    state, config = RunState(**last["state"]), last["config"]
    planned, patience, minutes = config.get("steps") or state.last_step, config.get("patience"), config.get("minutes")
    ended = planned is not None and state.step >= planned
    if config.get("steps") is not None:
        ended |= patience is not None and state.without_improvement >= patience
    elif minutes is not None:
        ended |= state.wall_seconds + state.look_seconds >= 60 * minutes
    if ended:
        return None
    of = f" of {planned:,}" if planned is not None else ""
    return (
        f"this model is at step {used['state']['step']:,}{of}; its training is not finished, so its results may "
        f"make no sense"
    )


def say_if_unfinished(run: Path) -> None:
    """Say so when the model of an unfinished training is used."""
    if (remark := remark_on_training(run)) is not None:
        say(remark)


def say_of(ends: Ends) -> None:
    """Say how many translations are empty or have no end."""
    if (remark := ends.remark()) is not None:
        say(remark)


class TrainedLength:
    """Compares the length of texts with the blocks that a language model was trained on; says once if one is longer.

    Args:
        run: the folder of the run; other folders do not hold the size of the blocks.
    """

    def __init__(self, run: Path) -> None:
        from regard_lab.training.recipes.run_folder import read_settings

        try:
            block = (read_settings(run) or {}).get("block")
        except (RegardError, OSError):  # a remark is not worth an error
            block = None
        self.block = block if isinstance(block, int) else None

    def say_of(self, ids: int) -> None:
        """Say so if a text of so many ids is longer than a block."""
        if self.block is not None and ids > self.block:
            say(
                f"the text has {ids:,} ids, and this model was trained on {self.block:,} at once; what it writes after "
                f"the first {self.block:,} may make no sense"
            )
            self.block = None


class Lengths:
    """Compares sentences with those that a training run kept aside for its test, which are like those it learned from.

    Args:
        run: the folder of the run.
    """

    def __init__(self, run: Path) -> None:
        self.run = run

    @cached_property
    def longest(self) -> int | None:
        """The words of the longest sentence of the test split; None if there is none that can be read."""
        from regard_lab.training.recipes.run_folder import read_test

        try:
            pairs, _ = read_test(self.run)
        except (RegardError, OSError):  # a remark is not worth an error
            return None
        return max((len(pair.source.split()) for pair in pairs), default=None)

    def remark(self, sentence: str) -> str | None:
        """What to say about a sentence that is far longer than those; None for others."""
        words = len(sentence.split())
        if words < LONG or self.longest is None or words < FAR * self.longest:
            return None
        return (
            f"a sentence has {words:,} words, and the longest of the test sentences of this run has "
            f"{count_of(self.longest, 'words')}: it is far longer than any that the model was trained for, so its "
            f"translation takes long and is a guess; give one sentence at a time"
        )


def remarks_at_start(run: Path, sentences: Sequence[str]) -> list[str]:
    """All that there is to say before the first sentence is translated."""
    remarks = (remark_on_training(run), remark_on_arguments(run, sentences))
    return [remark for remark in remarks if remark is not None]
