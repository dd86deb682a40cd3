"""`regard train ...`, `average` and `convert ...`: what trains or changes a model, and its progress."""

import os
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, suppress
from pathlib import Path
from typing import Annotated, Any

import torch
from typer import Argument, Option

from regard.arguments import count_of
from regard_lab.cli.console import (
    StoppedError,
    counting,
    has_terminal,
    keeping,
    note,
    out_json,
    out_lines,
    spoken,
    terminal,
)
from regard_lab.cli.options import Json, flag, with_settings
from regard_lab.conversion.folders import is_hugging_face
from regard_lab.conversion.latents import LatentSizes
from regard_lab.conversion.uptraining import Uptrained, Uptraining
from regard_lab.decoding.lines import share_of_work
from regard_lab.models.storage import CHECKPOINTS_FILE
from regard_lab.text.terminal import printable
from regard_lab.text.writing import duration
from regard_lab.training import (
    Event,
    Progress,
    Started,
    StepDone,
    Stopping,
    TrainingResult,
    Validated,
    average_checkpoints,
)
from regard_lab.training.identity import MAY_CHANGE
from regard_lab.training.recipes import (
    ClassifierTraining,
    LanguageModelTraining,
    MaskedWordsTraining,
    Recipe,
    TranslationTraining,
)
from regard_lab.training.recipes.choosing import SIZES
from regard_lab.training.recipes.continuing import check_still_there

MAY_BE_GIVEN = ", ".join(map(flag, MAY_CHANGE))
RESUME = (
    f"Continue the run in the folder with its settings; only {MAY_BE_GIVEN} may change. --data and --valid may name "
    "the same files in another place."
)
SIZE = f"Size of the model: {', '.join(SIZES)}. [default: from the data]"
FIRST = "preparing the first step"  # until it is done
STOPPING = "stopping: after this step the run is saved; press Ctrl-C again to end without saving"
LEAST_BAR = 5  # characters
WIDEST_BAR = 40
QUIET_STEPS = 100  # the least number of steps between two lines without a progress bar
QUIET_LINES = 10  # such lines in a training
QUIET_SECONDS = 60.0  # after which a training says that it goes on
ENDS = {
    "steps": "all steps are done",
    "minutes": "the minutes are over",
    "patience": "validation stopped improving",
    "interrupted": "interrupted",
}
METHODS_DONE = {
    "mean": "neighbours pooled by their mean",
    "first": "the first of each group kept",
    "align": "similar heads rotated and pooled by their mean",
    "latent": "keys and values factorised into latents",
}


def training_command(
    recipe: type[Recipe], sentence: str, variants: Mapping[str, Mapping[str, Any]] | None = None
) -> Callable:
    """The command that trains by a recipe; its options are the settings of the recipe, its help is the sentence."""

    def command(
        out: Annotated[Path, Option(metavar="RUN", help="The folder of the run.")],
        given: Mapping[str, Any],
        size: Annotated[str | None, Option("--size", metavar="NAME", help=SIZE)] = None,
        resume: Annotated[bool, Option("--resume", help=RESUME)] = False,
        cpu: Annotated[bool, Option("--cpu", help="Stay on the CPU.")] = False,
    ) -> None:
        go_on = ["regard", "train", recipe.COMMAND, "--out", str(out), "--resume"]

        def what_is_saved() -> str | None:
            if not (out / CHECKPOINTS_FILE).exists():
                return None
            return f"{out} keeps the run as it was last saved"

        with _one_voice(), keeping(what_is_saved, go_on):
            made = recipe.of(out, given, size=size, resume=resume, cpu=cpu, tell=note)
            if resume:
                check_still_there(out, made.config, given)
            with counting("preparing"):
                training = made.prepare(out if resume else None)
            with training_progress() as progress:
                result = training.run(out, resume=resume, cpu=cpu, samples=True, progress=progress)
            _conclude(out, result, training.judge(out, result), go_on)

    command.__doc__ = sentence
    return with_settings(recipe.Config, variants)(command)


translation = training_command(
    TranslationTraining, "Train a translator on pairs of sentences.", TranslationTraining.VARIANTS
)
language_model = training_command(LanguageModelTraining, "Train a language model on running text.")
masked_words = training_command(
    MaskedWordsTraining, "Train an encoder to predict hidden words in texts, one per line."
)
classifier = training_command(ClassifierTraining, "Train an encoder to sort texts by their labels.")


def _conclude(out: Path, result: TrainingResult, verdict: str | None, go_on: Sequence[str]) -> None:
    """Print how a training ended and how good the best model is; an interrupted one is a failure."""
    best = f", {verdict} at step {result.best_step}" if verdict else ""
    sentence = (
        f"{ENDS[result.stopped]}: {count_of(result.steps, 'steps', ',')}{best}, {duration(result.wall_seconds)} "
        f"({count_of(round(result.cpu_seconds), 'CPU seconds', ',')}); the run is in {out}"
    )
    if result.stopped == "interrupted":
        raise StoppedError(sentence, go_on=shlex.join(go_on))
    note(sentence)


@contextmanager
def _one_voice() -> Generator[None]:
    """Of several processes only the first writes to standard error; at the end their group is closed."""
    is_first = share_of_work()["rank"] == 0
    with (
        open(os.devnull, "w") as silence,
        nullcontext() if is_first else redirect_stderr(silence),
    ):
        yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def training_progress() -> Generator[Progress]:
    """A context that gives a function for `train(progress=...)`: a bar on a terminal, else a line every few steps."""
    if not has_terminal():
        with counting("training", quiet=QUIET_SECONDS):
            yield _plain
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    column = BarColumn(bar_width=LEAST_BAR)
    count = TextColumn("{task.fields[steps]}")
    words = TextColumn("{task.description}")
    with Bar(column, count, words, console=terminal(), transient=True) as bar:
        task = bar.add_task(FIRST, total=None, steps="")
        yield lambda event: _live(event, bar, column, task)


def _live(event: Event, bar: Any, column: Any, task: Any) -> None:
    spoken()
    if isinstance(event, Started):
        first = f"preparing step {event.step + 1}" if event.step else FIRST
        bar.update(task, completed=event.step, total=event.steps, description=first)
    elif isinstance(event, StepDone):
        counts = [f"step {event.step}"]
        if event.steps is not None:
            counts = [f"training {event.step}/{event.steps}", f"{event.step / event.steps:.0%}"]
        column.bar_width, count, words = fitted(counts, _speeds(event), bar.console.width)
        bar.update(task, completed=event.step, total=event.steps, steps=count, description=words)
    elif isinstance(event, Stopping):
        _write_at_once(f"\r\x1b[K{STOPPING}\n")  # in the place of the bar, which is drawn again
    for line in _remarks(event):
        bar.console.print(printable(line), markup=False)


def _plain(event: Event) -> None:
    if isinstance(event, StepDone) and event.step != event.steps and _is_told(event):
        note(f"  step {_of_steps(event)}: {_speeds(event)[0]}")
    if isinstance(event, Stopping):
        _write_at_once(f"{STOPPING}\n")
    for line in _remarks(event):
        note(line)


def _is_told(event: StepDone) -> bool:
    """Whether a training without a progress bar writes a line for this step."""
    between = QUIET_STEPS
    if event.steps is not None:
        between *= max(1, round(event.steps / QUIET_STEPS / QUIET_LINES))
    return event.step % between == 0


def _of_steps(event: Started | StepDone) -> str:
    return f"{event.step}" if event.steps is None else f"{event.step} of {event.steps}"


def _write_at_once(text: str) -> None:
    """Write to standard error from the handler of a signal, where a stream may be in the middle of a line."""
    with suppress(OSError):
        os.write(2, text.encode())


def _speeds(event: StepDone) -> list[str]:
    """How the training goes, in several forms, the longest first; each ends in the time that is left, if known."""
    loss = f"loss {event.loss:.3f}"
    speed = f"{event.tokens_per_second:,.0f}"
    forms = [f"{loss}, {speed} target ids per second", f"{loss}, {speed} ids/s", loss]
    if event.seconds_left is None or event.step == event.steps:
        return [*forms, ""]
    left = f"{duration(event.seconds_left)} left"
    return [*(f"{form}, {left}" for form in forms), left]


def fitted(counts: Sequence[str], forms: Sequence[str], width: int) -> tuple[int, str, str]:
    """The width of the bar, the count and the words, each the longest form that fits a line of a terminal.

    The words become shorter before the count does.

    >>> forms = ["loss 2.1, 900 target ids per second, 1:05 left", "loss 2.1, 900 ids/s, 1:05 left", "1:05:20 left"]
    >>> for width in (120, 60, 40, 24):
    ...     fitted(["training 120000/500000", "24%"], forms, width)
    (40, 'training 120000/500000', 'loss 2.1, 900 target ids per second, 1:05 left')
    (6, 'training 120000/500000', 'loss 2.1, 900 ids/s, 1:05 left')
    (5, '24%', 'loss 2.1, 900 ids/s, 1:05 left')
    (7, '24%', '1:05:20 left')
    """
    for count in counts:
        room = width - len(f" {count} ")  # with the space on each side of the count
        for words in forms:
            if LEAST_BAR + len(words) <= room:
                return min(room - len(words), WIDEST_BAR), count, words
    return LEAST_BAR, counts[-1], forms[-1]


def _remarks(event: Event) -> list[str]:
    if isinstance(event, Started):
        remarks = [f"  {remark}" for remark in event.notes]
        if event.step:
            remarks.insert(0, f"  going on after step {_of_steps(event)}")
        return remarks
    if isinstance(event, Validated):
        best = ", the best so far" if event.is_best else ""
        skills = "".join(f", {name} {share:.0%} right" for name, share in event.skills.items())
        return [f"  step {event.step}: validation loss {event.loss:.4f}{skills}{best}"]
    return []


def average(
    run: Annotated[
        Path,
        Argument(
            metavar="RUN",
            help="The folder of a training run that kept several checkpoints (--keep).",
        ),
    ],
    out: Annotated[Path, Option(metavar="DIR", help="The folder of the new model.")],
    last: Annotated[int, Option(min=1, help="How many of the last checkpoints to average.")] = 5,
) -> None:
    """Average the last checkpoints of a training run, which often improves the model."""
    with counting("averaging"):
        names = average_checkpoints(run, last, out)
    note(f"the mean of {', '.join(names)} is in {out}")


NewFolder = Annotated[
    Path, Option(metavar="DIR", help="A new folder; an earlier conversion there is replaced.")
]


@with_settings(Uptraining.Config)
def kv_heads(
    model: Annotated[
        Path, Argument(metavar="MODEL_DIR", help="A run, a saved model, or a Hugging Face folder.")
    ],
    kv_heads: Annotated[int, Option("--kv-heads", min=1, help="Key/value heads of each layer.")],
    out: NewFolder,
    given: Mapping[str, Any],
    as_json: Json = False,
) -> None:
    """Give a trained model fewer key/value heads (pooled), or more (repeated), and report what it saves."""
    _convert(model, kv_heads, out, given, as_json)


@with_settings(Uptraining.Config, without=("method",))
def latent(
    model: Annotated[
        Path,
        Argument(metavar="MODEL_DIR", help="A run or a saved model: a language model of regard."),
    ],
    latent_dim: Annotated[
        int, Option("--latent-dim", min=1, help="Numbers of a token that are not rotated.")
    ],
    out: NewFolder,
    given: Mapping[str, Any],
    rope_dim: Annotated[
        int | None,
        Option("--rope-dim", min=0, help="Rotated numbers of a token. [default: as many]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Factorise the keys and values of a trained language model into latents, and report what it saves."""
    _convert(model, LatentSizes(latent_dim, rope_dim), out, given, as_json)


def _convert(
    model: Path, to: int | LatentSizes, out: Path, given: Mapping[str, Any], as_json: bool
) -> None:
    uptraining = Uptraining(Uptraining.Config(**given), tell=note, showing=training_progress)
    steps = uptraining.config.steps

    def what_is_saved() -> str | None:
        if steps is None or not (out / CHECKPOINTS_FILE).exists():
            return None
        return f"{out} keeps the model as it was last saved, and the same command goes on"

    with counting("converting"), keeping(what_is_saved):
        done = uptraining.convert(model, out, to)
    if done.training is not None and done.training.stopped == "interrupted":
        raise StoppedError(
            f"interrupted after {done.training.steps} of {count_of(steps or 0, 'steps')}; the same command goes on"
        )
    if as_json:
        out_json({**done.to_dict(), "out": str(out)})
    else:
        out_lines(str(done))
        _remark_on_conversion(done, out)
    if done.report.method in METHODS_DONE and done.training is None:
        _advise_training(done, is_hugging_face(model))


def _advise_training(done: Uptrained, is_hugging_face: bool) -> None:
    """Remark that a conversion which loses something needs a training, and how to do it."""
    made = "latents" if done.report.method == "latent" else "pooled heads"
    difference = f"the outputs of {made} differ from those of the original heads"
    if done.losses:
        before = f"{done.losses.before:.4f}"
        difference += f", and the loss went from {before} to {done.losses.converted:.4f} nats an id"
    way = "where it is used before you rely on its outputs"
    if not is_hugging_face:
        way = (
            "before you rely on its outputs, by the same command into a new folder with --text FILE "
            "--uptrain-steps N; --text FILE alone measures what was lost"
        )
    note(f"{difference}: train the model {way}")


def _remark_on_conversion(done: Uptrained, out: Path) -> None:
    """Print what was done with the heads, and what was checked."""
    report, pooled = done.report, METHODS_DONE.get(done.report.method)
    note(f"{pooled or 'heads repeated'}; the model is in {out}")
    if report.invariance is not None:
        way = "rotating the heads, before they are pooled,"
        if report.method == "latent":
            way = "the same in latents that lose nothing"
        note(f"checked: {way} changes outputs by at most {report.invariance:.0e}")
    if report.difference is not None:
        limits = "; this says nothing about the quality of the model" if pooled else ""
        note(
            f"checked: the converted attention computes what the reference does with these heads (largest difference "
            f"{report.difference:.0e}){limits}"
        )
