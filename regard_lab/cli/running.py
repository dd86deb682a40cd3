"""What the commands that use a trained model share: remarks on its results, and files whose lines processes divide."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from regard.arguments import count_of
from regard.errors import ArgumentError, NotFoundError, RegardError
from regard.packages import needed
from regard_lab.cli.app import in_quotes
from regard_lab.cli.console import counting, keeping, note
from regard_lab.decoding import share_lines
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.models import LanguageModel, SavedModel, TextEncoder
from regard_lab.models.kinds import translation_model
from regard_lab.models.storage import read_checkpoints
from regard_lab.text import Tokeniser, read_lines
from regard_lab.text.exchange import is_document
from regard_lab.text.lines import is_packed, plain_path
from regard_lab.training.checkpoint import RunState, read_training
from regard_lab.training.recipes.run_folder import LearnedLoss, read_settings, read_test

# From both on, a sentence is far longer than those that a model was trained on.
FAR = 3  # times the words of the longest known sentence
LONG = 40  # words


def is_typed(given: Sequence[str] | None) -> bool:
    """Whether texts come from a person who types them line by line."""
    return not given and sys.stdin.isatty()


def read_texts(given: Sequence[str] | None, what: str, at_once: int = 1) -> Iterator[list[str]]:
    """The texts that were given, or lines of standard input, so many at once; typed ones one by one."""
    if is_typed(given):
        note(f"one {what} per line; end with Ctrl-D")
        at_once = 1
    texts = iter(given or read_lines(sys.stdin.buffer))
    while chunk := list(islice(texts, at_once)):
        yield chunk


def remark_on_arguments(run: object, sentences: Sequence[str]) -> str | None:
    """A remark on sentences that were probably typed without quotes, or on one that is empty.

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
    """A remark on the model of a training that has not ended, or has hardly learned; None for a saved model."""
    checkpoints = read_checkpoints(run)
    if checkpoints is None:
        return None
    last = read_training(run / checkpoints.last)
    used = read_training(run / (checkpoints.best or checkpoints.last))
    state = RunState(**last["state"])
    if _has_ended(state, last["config"]):
        learned = LearnedLoss.of_run(run)
        return None if learned is None else learned.remark()

    step = f"{used['state']['step']:,}"
    planned = _planned_steps(state, last["config"])
    if planned is not None:
        step += f" of {planned:,}"
    return (
        f"this model is at step {step}; its training is not finished, so its results may make no "
        f"sense"
    )


def _planned_steps(state: RunState, config: Mapping[str, Any]) -> int | None:
    return config.get("steps") or state.last_step


def _has_ended(state: RunState, config: Mapping[str, Any]) -> bool:
    """Whether a training has done what it was started for: its steps, its patience or its minutes are over."""
    planned = _planned_steps(state, config)
    if planned is not None and state.step >= planned:
        return True
    patience = config.get("patience")
    minutes = config.get("minutes")
    if config.get("steps") is not None:
        return patience is not None and state.without_improvement >= patience
    if minutes is not None:
        return state.wall_seconds + state.look_seconds >= 60 * minutes
    return False


def open_model(run: Path) -> tuple[Any, Tokeniser, SavedModel]:
    """The model of a run or of a folder, its tokeniser, and all that was saved; with a remark on its training."""
    saved, tokeniser = load_with_tokeniser(run)
    note(remark_on_training(run))
    for kind in (LanguageModel, TextEncoder):
        if saved.kind == kind.KIND:
            return kind.from_saved(saved, str(run)), tokeniser, saved
    return translation_model(saved, str(run)), tokeniser, saved


def load_hugging_face(run: Path) -> tuple[Any, Any]:
    """The model and the tokenizer of a Hugging Face folder."""
    with needed("transformers", "a Hugging Face folder", "transformers"):
        from regard.integrations.transformers.loading import load_folder
    return load_folder(run)


class TrainedLength:
    """Compares the length of texts with the blocks that a language model was trained on; only runs hold their size."""

    def __init__(self, run: Path) -> None:
        try:
            block = (read_settings(run) or {}).get("block")
        except (RegardError, OSError):  # a remark is not worth an error
            block = None
        self.block = block if isinstance(block, int) else None

    def remark(self, ids: int) -> str | None:
        """A remark on the first text that is longer than a block; None on others."""
        block = self.block
        if block is None or ids <= block:
            return None
        self.block = None
        return (
            f"the text has {ids:,} ids, and this model was trained on {block:,} at once; what it writes after the "
            f"first {block:,} may make no sense"
        )


@dataclass
class Lengths:
    """Compares sentences with the test sentences of a run, which are like those that it learned from."""

    run: Path

    @cached_property
    def longest(self) -> int | None:
        """The words of the longest sentence of the test split; None if there is none that can be read."""
        try:
            pairs = read_test(self.run)
        except (RegardError, OSError):  # a remark is not worth an error
            return None
        return max((len(pair.source.split()) for pair in pairs), default=None)

    def remark(self, sentence: str) -> str | None:
        """A remark on a sentence that is far longer than those; None on others."""
        words = len(sentence.split())
        if words < LONG or self.longest is None or words < FAR * self.longest:
            return None
        return (
            f"a sentence has {words:,} words, and the longest of the test sentences of this run has "
            f"{count_of(self.longest, 'words')}: it is far longer than any that the model was trained for, so its "
            f"translation takes long and is a guess; give one sentence at a time"
        )


INPUT = typer.Option(
    "--input",
    metavar="FILE",
    help="Read lines from a file, with --out; torchrun divides them among processes.",
)
OUT = typer.Option(
    "--out",
    "-o",
    metavar="FILE",
    help="Write the lines to a file, in order; if the command is killed, the same command goes on.",
)


def check_no_document(sentences: Sequence[str], options: Mapping[str, object]) -> None:
    """Refuse options of files of messages where none is translated, and such a file that is given as a sentence."""
    given = [name for name, value in options.items() if value]
    if given:
        raise ArgumentError(
            f"{given[0]} is for a file of messages (.xliff, .tmx, .po): name it with --out, or leave {given[0]} "
            f"out"
        )
    for sentence in sentences:
        if is_document(sentence) and os.path.isfile(sentence):
            raise ArgumentError(
                f"{sentence} is a file; a copy of it with translations is written by: --out FILE"
            )


def check_one_process() -> None:
    """Refuse several processes of torchrun, for work that one does."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes != "1":
        raise ArgumentError(
            f"torchrun started {processes} processes, and one translates a file of messages; start the command alone"
        )


def files_of(
    source: Path | None, out: Path | None, arguments: Sequence[str] | None, **excluded: Any
) -> tuple[Path, Path] | None:
    """The files of --input and --out, None without both; an ArgumentError for options that do not fit together."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if source is None and out is None:
        if processes != "1":
            raise ArgumentError(
                f"torchrun started {processes} processes, which would all read the same standard input; give "
                f"--input FILE and --out FILE"
            )
        return None
    if source is None or out is None:
        raise ArgumentError("--input FILE and --out FILE go together; give both or none")
    if is_packed(out):
        raise ArgumentError(
            f"--out {out} would be packed, and lines are written plain; name it {plain_path(out)}"
        )
    if arguments:
        raise ArgumentError(
            f"give sentences by --input {source} or as arguments, not both; {count_of(len(arguments), 'arguments')} "
            f"came too"
        )
    of_one_sentence = [name for name, value in excluded.items() if value]
    if of_one_sentence:
        raise ArgumentError(
            f"--{of_one_sentence[0]} needs one sentence as an argument; leave it out, or --input "
            f"and --out"
        )
    return source, out


def write_lines(
    run: Path,
    files: tuple[Path, Path],
    compute: Callable[[Sequence[str], int], Sequence[str]],
    **options: Any,
) -> None:
    """Read the lines of a file, compute this process's share, and note when the result is complete."""
    source, out = files
    if not source.is_file():
        raise NotFoundError(f"--input {source} is not a file")
    lines = list(read_lines(source))
    settings = f"{run.resolve()} {_marks_of(run)} {sorted(options.items(), key=str)}"
    parts = Path(f"{out}.parts")

    def how_to_go_on() -> str | None:
        if not parts.exists():
            return None
        return f"{parts} keeps what is done, and the same command goes on"

    with counting("lines", len(lines)) as progress, keeping(how_to_go_on):

        def compute_and_count(chunk: Sequence[str], first: int) -> Sequence[str]:
            written = compute(chunk, first)
            progress(len(chunk))
            return written

        complete = share_lines(lines, out, compute_and_count, settings=settings)
    if complete:
        note(f"{out} is complete: {count_of(len(lines), 'lines', ',')}")


def _marks_of(run: Path) -> list[tuple[str, int, int]]:
    """The files of a run with their sizes and times, by which a changed model is recognised."""
    files = sorted(path for path in run.rglob("*") if path.is_file())
    marks = []
    for path in files:
        status = path.stat()
        marks.append((str(path.relative_to(run)), status.st_size, status.st_mtime_ns))
    return marks
