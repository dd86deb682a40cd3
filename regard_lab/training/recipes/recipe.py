"""The base of all recipes: decide the settings, read the data, and train a model into the folder of a training run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from regard.arguments import absent, count_of, of_kind, one_of, suggest
from regard.errors import (
    ArgumentError,
    CheckpointError,
    NotFoundError,
    OccupiedError,
    RegardError,
    UnsupportedError,
)
from regard.reprs import Described, brief
from regard_lab.decoding.lines import share_of_work
from regard_lab.decoding.loading import TOKENISER_FILE, load_with_tokeniser, with_pieces
from regard_lab.models import (
    LanguageConfig,
    RecurrentTranslator,
    SavedModel,
    TranslationTransformer,
)
from regard_lab.models.base import Storable
from regard_lab.models.encoder import EncoderConfig
from regard_lab.models.storage import read_checkpoints
from regard_lab.text import Pair, Tokeniser
from regard_lab.text.documents import TextFile, split_tail
from regard_lab.text.lines import check_there
from regard_lab.text.pronouns import make_split
from regard_lab.text.seen_words import remark_on_scripts
from regard_lab.text.tables import table_of
from regard_lab.text.translation_data import PRONOUN_COUNTS, PRONOUNS
from regard_lab.text.vocabularies import UNITS
from regard_lab.training.config import CHOSEN, GONE, TrainingConfig, setting
from regard_lab.training.engine import Task
from regard_lab.training.identity import MAY_CHANGE
from regard_lab.training.loop import TrainingResult, check_run_folder, check_writable, train
from regard_lab.training.recipes.choosing import (
    SIZES,
    STACK,
    Amount,
    Choice,
    TrainingBudget,
    choose,
)
from regard_lab.training.recipes.run_folder import (
    MAY_MOVE,
    SETTINGS_FILE,
    Samples,
    Tell,
    draw_run,
    read_settings,
    run_of,
    show_each,
    silent,
    write_run,
)
from regard_lab.training.record import Progress

FINE_TUNING_RATE = 3e-4  # of a training that starts from a run, where none was given
# Sizes that some data may have, by which settings are checked before the data are read.
SOME, SOME_PIECES = Amount(1_000, 100_000), 1_000
LEAST_CHARACTERS = 1_000  # to learn from; with fewer, only the command can be tried out
FOREIGN = 0.01  # new data are refused if this share of their characters or more is in no piece of a run's vocabulary


@brief
@dataclass(frozen=True, kw_only=True)
class RunConfig(TrainingConfig):
    """Everything that decides a training run, whatever is trained; beside it stand the settings of `TrainingConfig`.

    Args:
        data: the files to learn from, or pronouns for the embedded corpus.
        valid: the files to validate on; without them a part of the data is held out.
        vocab_size: largest size of the vocabulary.
        tokeniser: kind of vocabulary; bpe learns sub-words from the data.
        positions: encoding of positions: rotary, alibi, learned, sinusoidal or none.
        dim: size of the vectors.
        heads: query heads.
        kv_heads: key/value heads of every attention.
        layers: layers of the model.
        dropout: share of the numbers that are dropped in training.
        gradient_checkpointing: recompute each layer in the backward pass, to save memory.
        batch_tokens: largest number of ids in a batch, padding included.
    """

    data: tuple[str, ...] = setting(metavar="FILE")
    valid: tuple[str, ...] = setting((), metavar="FILE")
    vocab_size: int = setting(8_000, least=260, shown=CHOSEN)
    tokeniser: str = setting("bpe", metavar="bpe|character|byte")
    positions: str = setting(LanguageConfig.positions)
    dim: int = setting(256, least=2, shown=CHOSEN)
    heads: int = setting(LanguageConfig.heads, least=1, shown=CHOSEN)
    kv_heads: int | None = setting(None, least=1, shown="heads")
    layers: int = setting(LanguageConfig.layers, least=1, shown=CHOSEN)
    dropout: float = setting(EncoderConfig.dropout, shown=CHOSEN)
    gradient_checkpointing: bool = setting(False)
    batch_tokens: int = setting(4_096, least=16, shown=CHOSEN)
    steps: int | None = setting(5_000, least=1, shown=CHOSEN)
    warmup_steps: int = setting(200, least=0, shown=CHOSEN)
    schedule: str = setting("cosine", shown=CHOSEN)
    weight_decay: float = setting(0.01, least=0)
    validate_every: int | None = setting(250, least=1, shown=CHOSEN)
    save_every: int | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            if one.type.startswith("tuple"):  # JSON and the command line have lists
                given = of_kind(one.name, getattr(self, one.name), list | tuple, "a list")
                object.__setattr__(self, one.name, tuple(given))
        super().__post_init__()

    def model_config(self, vocab_size: int) -> Any:
        """The config of the model, with a vocabulary of so many pieces."""

    def training_config(self) -> TrainingConfig:
        """The part of the settings that the loop takes."""
        own = {one.name: getattr(self, one.name) for one in fields(TrainingConfig)}
        own["save_every"] = self.save_every or self.validate_every
        return TrainingConfig(**own)


@brief
@dataclass(frozen=True, kw_only=True)
class StackConfig(RunConfig):
    """Those of a model that is one stack of layers: a language model or an encoder.

    Args:
        attention: pattern of the layers; may be repeated, and the layers take them in turn.
        mechanism: mechanism of the layers: softmax, linear, 'performer(features=256)', ...; may be repeated too.
        max_length: number of positions, if positions are learned.
    """

    attention: tuple[str, ...] = setting((), metavar="PATTERN")
    mechanism: tuple[str, ...] = setting((), metavar="NAME")
    max_length: int = setting(LanguageConfig.max_length, least=2)

    def model_settings(self) -> dict[str, Any]:
        """What every such model takes; patterns and mechanisms where they were named."""
        names = (
            "positions",
            "dim",
            "heads",
            "kv_heads",
            "layers",
            "dropout",
            "max_length",
            "gradient_checkpointing",
        )
        named = {"pattern": self.attention, "mechanism": self.mechanism}
        own = {name: getattr(self, name) for name in names}
        return own | {name: texts for name, texts in named.items() if texts}


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
    judge: Callable[[Path, TrainingResult], str | None] = lambda folder, result: None
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
        if not share_of_work()["rank"]:
            draw_run(
                folder, silent if result.stopped == "interrupted" else self.tell, tell_lost=True
            )
        return result


@dataclass(frozen=True)
class Requested:
    """The settings that the user gave, before the data are read, and the name of the size, if any."""

    given: Mapping[str, Any]
    size: str | None = None
    cpu: bool = False

    @property
    def budget(self) -> TrainingBudget:
        """What ends the training, as far as it was given."""
        steps, minutes, patience = (
            self.given.get(name) for name in ("steps", "minutes", "patience")
        )
        return TrainingBudget(
            steps, minutes, patience, accelerated=not self.cpu and torch.accelerator.is_available()
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
    OF_THE_RUN: ClassVar[tuple[str, ...]] = ()
    pieces_are_given: bool = False  # the tokeniser comes from elsewhere

    def __init__(self, config: Any, tell: Tell = silent) -> None:
        of_kind("config", config, self.Config, f"a {type(self).__name__}.Config")
        self.config: Any = config  # of the class's own Config
        self.tell = tell
        self._requested: Requested | None = None  # of a run whose settings are not all decided

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
        check_run_folder(folder)
        if not resume and (before := read_checkpoints(folder)) is not None:
            raise OccupiedError(
                f"{folder} already holds a training run ({before.last}); go on with it by --resume, or choose another "
                f"folder"
            )
        if not share_of_work()["rank"]:
            check_writable(folder)
        given = {name: value for name, value in given.items() if value is not None}
        begun = resume and read_settings(folder) is not None
        if given.get("new_pieces") is not None and given.get("from_run") is None and not begun:
            raise ArgumentError(
                "--new-pieces adds to the vocabulary of a run; name the run by --from, or leave it out"
            )
        if not begun and (source := given.get("from_run")) is not None:
            kept = cls.settings_from(source)
            cls.refuse_those_of(source, given, size)
            given = {**kept, **given}
        recipe = cls(cls.decide(folder, given, resume=resume), tell)
        if begun:
            if size is not None:
                raise ArgumentError(
                    f"the sizes of the run in {folder} are decided; leave --size out"
                )
            return recipe
        if resume:
            tell(f"there is no training run in {folder} to resume; a new one begins")
        recipe._requested = Requested(
            given, None if size is None else one_of("size", size, SIZES), cpu
        )
        recipe.check_early(recipe._requested)
        return recipe

    @classmethod
    def refuse_those_of(cls, source: str, given: Mapping[str, Any], size: str | None) -> None:
        """Raise an ArgumentError that names the given settings which the run in `source` decides."""
        if named := [
            name
            for name in (*cls.OF_THE_RUN, "size")
            if {**given, "size": size}.get(name) is not None
        ]:
            raise ArgumentError(
                f"--from {source} decides {', '.join(named)}; leave that out, or leave out --from"
            )

    @classmethod
    def settings_from(cls, source: str) -> dict[str, Any]:
        """The settings that a training takes over from the run in `source` from which it starts.

        Raises:
            NotFoundError: a model without the settings of its training, or a run of another command.
        """
        settings = read_settings(run_of(Path(source)))
        if settings is None:
            load_with_tokeniser(source)  # says what is wrong with a folder that holds no model
            raise NotFoundError(
                f"{source} holds a model without {SETTINGS_FILE}; name the run that it was made from"
            )
        if strange := sorted(
            settings.keys() - {one.name for one in fields(cls.Config)} - GONE.keys()
        ):
            raise NotFoundError(
                f"{source} is a run of another command than train {cls.COMMAND} (it has {strange[0]!r})"
            )
        return {
            name: settings[name] for name in cls.OF_THE_RUN if settings.get(name) not in (None, [])
        }

    def model_from(
        self, begun: Path | None, lines: Sequence[str], targets: Sequence[str] = ()
    ) -> tuple[SavedModel, Tokeniser, str] | None:
        """The model to start from, its tokeniser and its folder, for a training that names one by `from_run`.

        A resumed training reads its own checkpoint, so the run that it started from may be gone.

        Args:
            lines, targets: what will be learned from; pieces for them are added to the vocabulary by `new_pieces`.

        Raises:
            UnsupportedError: many of their characters are in no piece, and `new_pieces` was not given.
        """
        source: Any = getattr(self.config, "from_run", None)
        if source is None:
            return None
        if begun is not None and begun.is_dir() and read_checkpoints(begun) is not None:
            source = begun
        saved, tokeniser = load_with_tokeniser(source)
        changes = {
            name: getattr(self.config, name) for name in ("dropout", "gradient_checkpointing")
        }
        own = {name: value for name, value in changes.items() if name in saved.config}
        self.pieces_are_given = True
        if source != begun:
            wider = self.extended(source, tokeniser, lines, targets)
            added = wider.vocab_size - tokeniser.vocab_size
            more = f", to which {count_of(added, 'pieces', ',')} of the new data {'is' if added == 1 else 'are'} added"
            self.tell(
                f"{source} decides the model and its vocabulary of {tokeniser.vocab_size:,} pieces"
                f"{more if wider is not tokeniser else ', which spells any text'}; its optimiser starts anew"
            )
            saved = with_pieces(saved, tokeniser, wider)
            tokeniser = wider
        return replace(saved, config={**saved.config, **own}), tokeniser, str(source)

    def extended(
        self, source: Any, tokeniser: Tokeniser, lines: Sequence[str], targets: Sequence[str]
    ) -> Tokeniser:
        """The tokeniser of the run in `source` with the pieces that `new_pieces` adds, if any."""
        given: int | None = getattr(self.config, "new_pieces", None)
        if given:
            return tokeniser.extended(lines, given, targets)
        text = "\n".join([*lines, *targets])
        unknown = tokeniser.unknown_characters(text)
        share = unknown.total() / max(1, len(text))
        if unknown and given is None:
            fact = (
                f"{count_of(unknown.total(), 'characters', ',')} of {len(text):,} in the new data, such as "
                f"{', '.join(repr(one) for one, _ in unknown.most_common(3))}, are in no piece of the vocabulary"
            )
            if share >= FOREIGN:
                raise UnsupportedError(
                    f"{fact} of {source}, and 2 to 4 bytes would spell each; add pieces by --new-pieces 500, or allow "
                    f"bytes by --new-pieces 0"
                )
            self.tell(f"{fact}, so that bytes spell them; --new-pieces N adds pieces for them")
        return tokeniser

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
        for size in (requested.size,) if requested.size else SIZES:
            try:
                settings = self.choose(SOME, replace(requested, size=size)).settings
                replace(config, **settings).model_config(SOME_PIECES)
            except RegardError as refusal:
                refusals.append(refusal)
            else:
                return
        raise refusals[0]

    @classmethod
    def decide(cls, folder: Path, given: Mapping[str, Any], *, resume: bool) -> RunConfig:
        """The settings for `of`."""
        kept = read_settings(folder) if resume else None
        if kept is None:
            if not given.get("data"):
                nothing = (
                    f"there is no training run in {folder} to resume; to begin one, "
                    if resume
                    else ""
                )
                raise ArgumentError(f"{nothing}--data is missing: name {cls.DATA}")
            return cls.new_config(given)
        if gone := [name for name, now in GONE.items() if kept.pop(name, now) != now]:
            gone = f"{folder} was begun by an earlier version, with the setting {gone[0]}, which is gone"
            raise ArgumentError(f"{gone}; begin a new run in another folder")
        known = [one.name for one in fields(cls.Config)]
        if strange := sorted(kept.keys() - set(known)):
            raise ArgumentError(
                f"{folder} holds a run of another command (it has {strange[0]!r}); take another folder"
            )
        try:
            before = cls.Config(**kept)
        except ArgumentError as error:
            raise CheckpointError(
                f"{folder / SETTINGS_FILE} holds settings that cannot be used: {error}"
            ) from error
        after = cls.Config(**{**asdict(before), **given})
        changed = [
            f"{name} {getattr(before, name)!r} -> {getattr(after, name)!r}"
            for name in sorted(known)
            if getattr(before, name) != getattr(after, name)
            and name not in (*MAY_CHANGE, *MAY_MOVE)
        ]
        if changed:
            raise ArgumentError(
                f"{folder} was begun with other settings ({', '.join(changed)}); leave them out, or begin another run. "
                f"What ends a training, such as --minutes, may be changed"
            )
        return after

    @classmethod
    def new_config(cls, given: Mapping[str, Any]) -> RunConfig:
        """The settings of a new run, with defaults for what was not given."""
        return cls.Config(**given)

    def rate(self) -> dict[str, float]:
        """The learning rate of a training that starts from a run, which is low so that it forgets little."""
        return (
            {}
            if getattr(self.config, "from_run", None) is None
            else {"learning_rate": FINE_TUNING_RATE}
        )

    @abstractmethod
    def choose(self, amount: Amount, requested: Requested) -> Choice:
        """Choose the settings that were not given, by the amount of data."""

    def choose_stack(
        self, amount: Amount, requested: Requested, longest: int, **more: Any
    ) -> Choice:
        """The choice for a model that is one stack of layers, whose batch holds four of the longest rows."""
        more = {"batch_tokens": max(requested.budget.batch_tokens, 4 * longest), **more}
        return choose(
            STACK, amount, requested.budget, requested.given, size=requested.size, more=more
        )

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
            self.config, self._requested = replace(self.config, **choice.settings), None
            self.tell(choice.reason)
        torch.manual_seed(self.config.seed)

    def remark_on_scripts(self, lines: Iterable[str], kind: str) -> None:
        """Tell of lines without spaces between words, where the tokeniser is of a kind that joins letters to words."""
        if (remark := remark_on_scripts(lines, kind)) is not None:
            self.tell(remark)

    @abstractmethod
    def prepare(self, begun: Path | None = None) -> Training:
        """Read the data, learn the tokeniser and make the model; `begun` is the folder of a run that goes on."""

    def train(self, folder: str | Path, *, resume: bool = False, **session: Any) -> TrainingResult:
        """Prepare and train into a folder; `session` is what `Training.run` takes beside."""
        check_run_folder(folder)
        return self.prepare(Path(folder) if resume else None).run(
            Path(folder), resume=resume, **session
        )

    def ready(self, name: str, more: str = "", **parts: Any) -> Training:
        """The training, after a remark such as

        `a language model of 812,345 parameters, 2,000 sub-words; 5,000 steps of up to 8,192 ids, 120 an epoch`.
        """
        training: Any = Training(config=self.config, tell=self.tell, **parts)
        parameters = sum(parameter.numel() for parameter in training.model.parameters())
        config = self.config
        kind = training.tokeniser.kind
        size = training.tokeniser.vocab_size
        pieces = {"bpe": "sub-words", "character": "characters and bytes", "byte": "bytes"}[kind]
        if kind == "bpe" and size < config.vocab_size and not self.pieces_are_given:
            dropped = getattr(config, "trim_vocabulary", False)
            reason = (
                "those that occur only inside longer ones are dropped"
                if dropped
                else "the text has no more"
            )
            pieces += f" (of at most {config.vocab_size:,}; {reason})"
        ids = config.batch_tokens * config.accumulate * share_of_work()["world"]
        steps = "steps" if config.steps is None else count_of(config.steps, "steps", ",")
        epoch = training.task.batches.steps_per_epoch / config.accumulate
        self.tell(
            f"{name} of {count_of(parameters, 'parameters', ',')}, {size:,} {pieces}{more}; "
            f"{steps} of up to {count_of(ids, 'ids', ',')}, {epoch:,.0f} an epoch"
        )
        return training


def check_still_there(folder: Path, config: RunConfig, given: Mapping[str, Any]) -> None:
    """Raise a NotFoundError if a file that the run in the folder was begun with is not where it was."""
    for name in MAY_MOVE:
        for path in getattr(config, name):
            file = table_of(Path(path)).path
            if path == PRONOUNS or file.exists():
                continue
            if name in given:
                raise NotFoundError(absent(file))
            relative = (
                "" if file.is_absolute() else ", relative to the folder in which it was begun"
            )
            raise NotFoundError(
                f"{file} does not exist here, and the run in {folder} was begun with this path{relative}; name the "
                f"place of the file by --{name}, or resume the run where that path is right"
            )


def read_parts(
    config: RunConfig, read: Callable[..., TextFile], share: float, most: int, tell: Tell
) -> tuple[list[str], list[str]]:
    """Texts to learn from and to validate on; without files to validate on, the last of the texts are held out: `share`
    of the characters, at most `most`. `read` is `read_documents` or `read_texts`."""
    texts = read(*config.data)
    tell(texts.report())
    if config.valid:
        held_out = read(*config.valid)
        tell(held_out.report())
        tell_of_equal(texts.texts, held_out.texts, tell)
        return list(texts.texts), list(held_out.texts)
    train_texts, valid = split_tail(texts.texts, min(share, most / max(1, texts.characters)), most)
    tell(
        f"{count_of(sum(map(len, train_texts)), 'characters', ',')} to learn from; the last "
        f"{sum(map(len, valid)):,} validate"
    )
    tell_of_equal(train_texts, valid, tell)
    return train_texts, valid


def tell_of_equal(train: Iterable[str], valid: Iterable[str], tell: Tell) -> None:
    """Tell of lines with several words that are in the training and in the validation texts.

    >>> tell_of_equal(["a bird sang\\nit rained"], ["a bird sang", "it snowed"], print)
    1 of 2 validation lines is also learned from ('a bird sang'): the validation loss is lower than that of a new text
    """
    learned, held_out = (
        {line for text in texts for line in text.split("\n") if " " in line.strip()}
        for texts in (train, valid)
    )
    if equal := sorted(learned & held_out, key=lambda line: (-len(line), line)):
        verb = "is" if len(equal) == 1 else "are"
        tell(
            f"{len(equal):,} of {count_of(len(held_out), 'validation lines', ',')} {verb} "
            f"also learned from ({equal[0].strip()[:60]!r}): the validation loss is lower than that of a new text"
        )


def pronoun_sentences(config: RunConfig, tell: Tell) -> tuple[list[str], list[str]]:
    """The English sentences of the embedded corpus, to learn from and to validate on."""
    train_texts, valid = (
        [sentence.source for sentence in make_split(split, PRONOUN_COUNTS[split], config.seed)]
        for split in ("train", "valid")
    )
    tell(f"{count_of(sum(map(len, train_texts)), 'characters', ',')} of the embedded corpus")
    return train_texts, valid
