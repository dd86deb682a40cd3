"""The base of all recipes: decide the settings, read the data, and train a model into the folder of a training run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from regard.arguments import count_of, of_kind, one_of, suggest
from regard.errors import ArgumentError, OccupiedError, RegardError
from regard.reprs import Described, brief
from regard_lab.decoding.lines import share_of_work
from regard_lab.decoding.loading import TOKENISER_FILE, load_with_tokeniser
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.models.base import Storable
from regard_lab.models.storage import read_checkpoints
from regard_lab.text import Pair, Tokeniser
from regard_lab.text.lines import check_there
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.seen_words import remark_on_scripts
from regard_lab.text.tables import table_of
from regard_lab.text.translation_data import PRONOUNS
from regard_lab.text.vocabularies import UNITS
from regard_lab.training.engine import Task
from regard_lab.training.events import Progress
from regard_lab.training.folders import check_run_folder, check_writable
from regard_lab.training.loop import TrainingResult, train
from regard_lab.training.recipes.choosing import (
    SIZES,
    STACK,
    Amount,
    ChosenSettings,
    TrainingBudget,
    choose,
)
from regard_lab.training.recipes.continuing import continued_config
from regard_lab.training.recipes.run_config import RunConfig
from regard_lab.training.recipes.run_folder import (
    Samples,
    draw_run,
    goes_on,
    read_settings,
    show_each,
    write_run,
)
from regard_lab.training.recipes.starting import (
    StartingModel,
    load_start,
    source_of,
    source_settings,
    with_settings_of,
)

FINE_TUNING_RATE = 3e-4  # of a training that starts from a run, where none was given
# Sizes that some data may have, by which settings are checked before the data are read.
SOME = Amount(1_000, 100_000)
SOME_PIECES = 1_000
LEAST_CHARACTERS = 1_000  # to learn from; with fewer, only the command can be tried out
ROWS_OF_A_BATCH = 4  # of the longest rows, at least

Judge = Callable[[Path, TrainingResult], str | None]
"""A function of a run's folder and the result of its training. It returns a phrase about the best model, if any."""


def without_verdict(folder: Path, result: TrainingResult) -> str | None:
    """The default of `judge`: nothing is said."""


@brief
@dataclass(frozen=True, kw_only=True)
class Training:
    """A training that is ready to begin: model, data, settings, and the files that its folder stores.

    Args:
        config: the settings; they are stored in the folder.
        samples: returns lines with the output of the model for a few texts.
        test: pairs that are stored for the final evaluation.
        learned: pairs that are learned from; an evaluation on them reports it.
        files: texts that every checkpoint stores beside the tokeniser.
        judge: a phrase about the best model in the folder, from the result.
        tell: receives remarks.
    """

    config: RunConfig
    model: Storable | TranslationTransformer | RecurrentTranslator
    task: Task
    tokeniser: Tokeniser
    samples: Samples | None = None
    test: tuple[Pair, ...] = ()
    learned: Sequence[Pair] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    judge: Judge = without_verdict
    tell: Tell = silent

    def run(
        self,
        folder: Path,
        *,
        resume: bool = False,
        cpu: bool = False,
        samples: bool = False,
        progress: Progress | None = None,
    ) -> TrainingResult:
        """Train into the folder: settings and test split are written before the first step, curves after the last.

        Args:
            folder: a new folder, or with `resume` that of a training run.
            resume: continue the training run in the folder, or begin one if there is none.
            cpu, progress: as for `train`.
            samples: after each validation draw the curves and, of a translator, write what it makes of a few texts.

        Raises:
            RegardError: as for `train`.
        """
        resumed = read_checkpoints(folder) is not None
        settings = asdict(self.config)

        result = train(
            self.model,
            self.task,
            self.config.training_config(),
            folder,
            kind=self.model.KIND,
            model_config=self.model.config.to_dict(),
            resume=resume,
            progress=progress,
            cpu=cpu,
            extra_files={TOKENISER_FILE: self.tokeniser.to_json(), **self.files},
            on_begin=lambda: write_run(folder, settings, self.test, self.learned, resumed=resumed),
            on_validation=show_each(self.samples, self.tell) if samples else None,
        )
        if _is_main():
            was_interrupted = result.stopped == "interrupted"
            draw_run(folder, silent if was_interrupted else self.tell, tell_lost=True)
        return result


def _is_main() -> bool:
    """Whether this process writes the files of the run: the first of those that train together."""
    return share_of_work()["rank"] == 0


@dataclass(frozen=True)
class Requested:
    """The settings that the user gave, before the data are read, and the name of the size, if any."""

    given: Mapping[str, Any]
    size: str | None = None
    cpu: bool = False

    @property
    def budget(self) -> TrainingBudget:
        """What ends the training, as far as it was given."""
        return TrainingBudget(
            steps=self.given.get("steps"),
            minutes=self.given.get("minutes"),
            patience=self.given.get("patience"),
            accelerated=not self.cpu and torch.accelerator.is_available(),
        )


class Recipe(Described, ABC):
    """How one kind of model is trained from files: reading, tokeniser, model, task, run.

    A recipe that is made from a `Config` trains with exactly these settings. One that `of` makes for a new run chooses
    what was not given when the data are read, by their amount and the budget.

    Args:
        config: the settings, an instance of the class's `Config`.
        tell: receives remarks about what is read and trained.
    """

    COMMAND: ClassVar[str]  # the word under `regard train`
    DATA: ClassVar[str]  # what `data` names, for an error
    Config: ClassVar[type[RunConfig]]  # nested in each recipe
    # Settings that come from the run of `from_run`, where one is named.
    OF_THE_SOURCE: ClassVar[tuple[str, ...]] = ()
    pieces_are_given: bool = False  # the tokeniser comes from elsewhere

    def __init__(self, config: Any, tell: Tell = silent) -> None:
        of_kind("config", config, self.Config, f"a {type(self).__name__}.Config")
        self.config: Any = config  # of the class's own Config
        self.tell = tell
        self._requested: Requested | None = None  # of a run whose settings are not all decided

    # --- before the data are read

    @classmethod
    def of(
        cls,
        folder: str | Path,
        given: Mapping[str, Any],
        *,
        size: str | None = None,
        resume: bool = False,
        cpu: bool = False,
        tell: Tell = silent,
    ) -> Self:
        """The recipe of a new run, or of the run in the folder with what may change changed.

        Args:
            given: the settings that were given; the others are chosen by the data and the budget, or stay as they
                were in the run that is resumed.
            size: of the model: tiny, small or base; by default it is chosen.
            resume: go on with the run in the folder, where there is one.
            cpu: it will be trained on the CPU even where there is an accelerator.

        Raises:
            ArgumentError: no data, or settings that the run in the folder was not begun with.
            CheckpointError: the folder holds something else.
        """
        folder = Path(folder)
        _check_folder(folder, resume)
        given = {name: value for name, value in given.items() if value is not None}

        settings_of_run = read_settings(folder) if resume else None
        if settings_of_run is not None:
            config = continued_config(cls.Config, folder, settings_of_run, given)
            if size is not None:
                raise ArgumentError(
                    f"the sizes of the run in {folder} are decided; leave --size out"
                )
            return cls(config, tell)

        given = cls._with_source(given, size)
        no_run = f"there is no training run in {folder} to resume"
        if not given.get("data"):
            way = f"{no_run}; to begin one, " if resume else ""
            raise ArgumentError(f"{way}--data is missing: name {cls.DATA}")
        recipe = cls(cls.new_config(given), tell)
        if resume:
            tell(f"{no_run}; a new one begins")
        if size is not None:
            one_of("size", size, SIZES)
        recipe._requested = Requested(given, size, cpu)
        recipe.check_early(recipe._requested)
        return recipe

    @classmethod
    def _with_source(cls, given: dict[str, Any], size: str | None) -> dict[str, Any]:
        """The settings that were given, with those of the run that the training starts from, if any."""
        source = given.get("from_run")
        if source is not None:
            of_source = cls.settings_from(source)
            cls.check_left_to_source(source, given, size)
            return {**of_source, **given}
        if "new_pieces" in given:
            raise ArgumentError(
                "--new-pieces adds to the vocabulary of a run; name the run by --from, or leave it out"
            )
        return given

    @classmethod
    def check_left_to_source(cls, source: str, given: Mapping[str, Any], size: str | None) -> None:
        """Raise an ArgumentError that names the given settings which the run in `source` decides."""
        named = [name for name in cls.OF_THE_SOURCE if given.get(name) is not None]
        if size is not None:
            named.append("size")
        if named:
            raise ArgumentError(
                f"--from {source} decides {', '.join(named)}; leave that out, or leave out --from"
            )

    @classmethod
    def settings_from(cls, source: str) -> dict[str, Any]:
        """The settings that a training takes over from the run in `source` from which it starts.

        Raises:
            NotFoundError: a model without the settings of its training, or a run of another command.
        """
        settings = source_settings(cls.Config, source, cls.COMMAND)
        return {
            name: settings[name]
            for name in cls.OF_THE_SOURCE
            if settings.get(name) not in (None, [])
        }

    @classmethod
    def new_config(cls, given: Mapping[str, Any]) -> RunConfig:
        """The settings of a new run, with defaults for what was not given."""
        return cls.Config(**given)

    def check_early(self, requested: Requested) -> None:
        """Raise for settings that no size of the model allows, such as a misspelt pattern, before data are read."""
        config = self.config
        for path in {*config.data, *config.valid} - {PRONOUNS}:
            check_there(table_of(Path(path)).path)
        if config.tokeniser not in UNITS:
            raise ArgumentError(
                f"tokeniser {config.tokeniser!r} does not exist; {suggest(config.tokeniser, UNITS)}"
            )

        refusals: list[RegardError] = []
        sizes = SIZES if requested.size is None else (requested.size,)
        for size in sizes:
            try:
                settings = self.choose(SOME, replace(requested, size=size)).settings
                replace(config, **settings).model_config(SOME_PIECES)
            except RegardError as refusal:
                refusals.append(refusal)
            else:
                return
        raise refusals[0]

    # --- once they are read

    @abstractmethod
    def choose(self, amount: Amount, requested: Requested) -> ChosenSettings:
        """Choose the settings that were not given, by the amount of data."""

    def choose_stack(
        self, amount: Amount, requested: Requested, longest: int, **more: Any
    ) -> ChosenSettings:
        """The choice for a model that is one stack of layers, whose batch holds four of the longest rows."""
        budget = requested.budget
        batch_tokens = max(budget.batch_tokens, ROWS_OF_A_BATCH * longest)
        more = {"batch_tokens": batch_tokens, **more}
        return choose(STACK, amount, budget, requested.given, size=requested.size, more=more)

    def rate(self) -> dict[str, float]:
        """The learning rate of a training that starts from a run, which is low so that it forgets little."""
        if source_of(self.config) is None:
            return {}
        return {"learning_rate": FINE_TUNING_RATE}

    def settle(self, amount: Amount) -> None:
        """Choose the settings that were not given, once the data are read, and set the seed; report what and why."""
        if amount.characters < LEAST_CHARACTERS:
            self.tell(
                f"there is too little to learn from: {count_of(amount.texts, amount.what, ',')} of "
                f"{count_of(amount.characters, 'characters', ',')} in all. The model will learn them by heart and know "
                f"nothing else, and validation on as little says nothing; use this to try out the command only"
            )
        if self._requested is not None:
            choice = self.choose(amount, self._requested)
            self.config = replace(self.config, **choice.settings)
            self._requested = None
            self.tell(choice.reason)
        torch.manual_seed(self.config.seed)

    def starting_model(
        self, begun: Path | None, lines: Sequence[str], targets: Sequence[str] = ()
    ) -> StartingModel | None:
        """The model to start from, for a training that names a run by `from_run`.

        Args:
            begun: the folder of a run that goes on. It starts from its own checkpoint, so the run that it came from may
                be gone.
            lines, targets: what will be learned from; pieces for them are added to the vocabulary by `new_pieces`.

        Raises:
            UnsupportedError: many of their characters are in no piece, and `new_pieces` was not given.
        """
        source = source_of(self.config)
        if source is None:
            return None
        if begun is not None and goes_on(begun):
            saved, tokeniser = load_with_tokeniser(begun)
            start = StartingModel(with_settings_of(self.config, saved), tokeniser, str(begun))
        else:
            start = load_start(self.config, source, lines, targets, self.tell)
        self.pieces_are_given = True
        return start

    def remark_on_scripts(self, lines: Iterable[str], kind: str) -> None:
        """Tell of lines without spaces between words, where the tokeniser is of a kind that joins letters to words."""
        remark = remark_on_scripts(lines, kind)
        if remark is not None:
            self.tell(remark)

    @abstractmethod
    def prepare(self, begun: Path | None = None) -> Training:
        """Read the data, learn the tokeniser and make the model; `begun` is the folder of a run that goes on."""

    def ready(self, name: str, more: str = "", **parts: Any) -> Training:
        """The training, after a remark such as

        `a language model of 812,345 parameters, 2,000 sub-words; 5,000 steps of up to 8,192 ids, 120 an epoch`.
        """
        config = self.config
        training: Any = Training(config=config, tell=self.tell, **parts)
        parameters = sum(parameter.numel() for parameter in training.model.parameters())
        pieces = self._count_of_pieces(training.tokeniser)
        steps = "steps" if config.steps is None else count_of(config.steps, "steps", ",")
        ids = config.batch_tokens * config.batches_per_step * share_of_work()["world"]
        epoch = training.task.batches.steps_per_epoch / config.batches_per_step
        self.tell(
            f"{name} of {count_of(parameters, 'parameters', ',')}, {pieces}{more}; "
            f"{steps} of up to {count_of(ids, 'ids', ',')}, {epoch:,.0f} an epoch"
        )
        return training

    def _count_of_pieces(self, tokeniser: Tokeniser) -> str:
        """The size of a vocabulary, and why it has no more sub-words where it might have more."""
        size = tokeniser.vocab_size
        if tokeniser.kind == "byte":
            return f"{size:,} bytes"
        if tokeniser.kind == "character":
            return f"{size:,} characters and bytes"
        most = self.config.vocab_size
        if size >= most or self.pieces_are_given:
            return f"{size:,} sub-words"
        reason = "the text has no more"
        if getattr(self.config, "trim_vocabulary", False):
            reason = "those that occur only inside longer ones are dropped"
        return f"{size:,} sub-words (of at most {most:,}; {reason})"

    def train(self, folder: str | Path, *, resume: bool = False, **session: Any) -> TrainingResult:
        """Prepare and train into a folder; `session` is what `Training.run` takes beside."""
        check_run_folder(folder)
        folder = Path(folder)
        training = self.prepare(folder if resume else None)
        return training.run(folder, resume=resume, **session)


def _check_folder(folder: Path, resume: bool) -> None:
    """Raise if a run may not be begun or resumed in the folder."""
    check_run_folder(folder)
    checkpoints = None if resume else read_checkpoints(folder)
    if checkpoints is not None:
        raise OccupiedError(
            f"{folder} already holds a training run ({checkpoints.last}); go on with it by --resume, or choose another "
            f"folder"
        )
    if _is_main():
        check_writable(folder)
