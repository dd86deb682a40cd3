"""`regard compare` from Python: several attentions trained under one budget on the same data, and one report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from regard.arguments import of_kind, one_of, suggest
from regard.errors import ArgumentError, OccupiedError
from regard.storage.files import replace_file
from regard.storage.ownership import check_ours
from regard.storage.sealed_json import render_sealed
from regard_lab.decoding import Translator
from regard_lab.decoding.lines import share_of_work
from regard_lab.models import LanguageModel
from regard_lab.training import read_log
from regard_lab.training.comparison.measures import (
    LENGTH,
    Measures,
    Spent,
    count_numbers,
    measure_language_model,
    measure_translator,
    train_and_watch,
    warm_up,
    with_as_many_numbers,
)
from regard_lab.training.comparison.report import ABOUT_THE_STUDY, read_asked, read_measures, write_report
from regard_lab.training.config import CHOSEN, TrainingConfig, setting
from regard_lab.training.recipes.choosing import SIZES
from regard_lab.training.recipes.language import LanguageModelTraining
from regard_lab.training.recipes.recipe import Requested, Tell, silent
from regard_lab.training.recipes.run_folder import make_folder, read_settings
from regard_lab.training.recipes.translation import OF_THE_RECURRENT, OF_THE_TRANSFORMER, TranslationTraining
from regard_lab.training.record import Showing

TASKS = ("translation", "language-model")
TRANSLATORS = ("none", "bahdanau", "luong-general", "transformer")  # compared where none are named
STEPS = 2_000  # of each model, where neither steps nor minutes were given
ASKED, MEASURED = "asked.json", "measures.json"
LONGEST = 100  # letters of a folder's name; systems take 255 bytes
OWN = ("models", "kv_heads", "heads", "attention", "mechanism")  # what contenders differ in


@dataclass(frozen=True)
class ComparedModel:
    """What is compared: a name that may be a folder, and the settings that are its own."""

    name: str
    own: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The name in letters that every system takes; a long one is cut, and differs from others by its digest."""
        words = self.name.replace("&", "and").replace("|", "or").replace("~", "not ")
        letters = "".join(letter if letter.isalnum() or letter in "-=_." else "_" for letter in words)
        digest = hashlib.sha256(self.name.encode()).hexdigest()[:8]
        return letters if len(letters) <= LONGEST else f"{letters[:LONGEST]}-{digest}"


class Comparison:
    """Train contenders that differ in their attention and in nothing else, measure each, and report.

    Args:
        config: the settings; those that are None are chosen by the data and the budget, as `regard train` does.
        tell: is handed remarks about what is read and trained.
        showing: shows the events of a training.

    Raises:
        ArgumentError: contenders or settings that cannot be.

    >>> [one.name for one in Comparison(Comparison.Config(data=("pronouns",), models=("none", "bahdanau"))).contenders]
    ['none', 'bahdanau']
    """

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """What is compared, and what all contenders have in common.

        Args:
            data: data as for `regard train` of this task; or pronouns, the embedded corpus.
            valid: validation data; without them they are split off.
            task: what is trained: translation or language-model.
            models: translators, by name.
            kv_heads: train the Transformer with each of these numbers of key/value heads, such as 8,2,1.
            heads: train the Transformer with each of these numbers of heads, such as 1,8.
            attention: train the Transformer with this pattern in its encoder, or the language model; may be repeated.
            mechanism: the same with this mechanism: softmax, linear, 'performer(features=64)', ...; may be repeated.
            equal_parameters: widen or narrow all models to as many parameters as the first has.
            steps: optimiser steps of each model; 2,000 without minutes.
            minutes: minutes of training of each model, in place of steps.
            size: size of the models: tiny, small or base.
            dim: size of the vectors of all models.
            layers: layers of all models.
            positions: encoding of positions in the Transformer.
            dropout: dropout of all models.
            vocab_size: sub-words at most.
            batch_tokens: ids in a batch; for language models at least one block of text, 256.
            learning_rate: peak learning rate of all models.
            warmup_steps: warm-up steps of all models, in which the learning rate rises linearly.
            schedule: the learning rate after the warm-up: inverse_square_root, cosine or constant.
            label_smoothing: share of the probability that is spread over all ids.
            validate_every: steps between validations.
            seed: seed of the weights and of the order of the data.
            cache_mib: report how many texts fit into a cache of this many MiB.
            length: length of those texts, in ids.
        """

        data: tuple[str, ...] = setting((), metavar="FILE")
        valid: tuple[str, ...] = setting((), metavar="FILE")
        task: str = setting("translation")
        models: tuple[str, ...] = setting((), metavar="NAME,...", shown=",".join(TRANSLATORS), listed=True)
        kv_heads: tuple[int, ...] = setting((), metavar="N,...", listed=True)
        heads: tuple[int, ...] = setting((), metavar="N,...", listed=True)
        attention: tuple[str, ...] = setting((), metavar="PATTERN")
        mechanism: tuple[str, ...] = setting((), metavar="NAME")
        equal_parameters: bool = setting(False)
        steps: int | None = setting(None, least=1, shown=f"{STEPS}, without --minutes")
        minutes: float | None = setting(None)
        size: str | None = setting(None, shown="from the data", metavar="NAME")
        dim: int | None = setting(None, least=2, shown=CHOSEN)
        layers: int | None = setting(None, least=1, shown=CHOSEN)
        positions: str | None = setting(None, shown=CHOSEN)
        dropout: float | None = setting(None, shown=CHOSEN)
        vocab_size: int | None = setting(None, least=260, shown=CHOSEN)
        batch_tokens: int | None = setting(None, least=16, shown=CHOSEN)
        learning_rate: float | None = setting(None, shown=CHOSEN)
        warmup_steps: int | None = setting(None, least=0, shown=CHOSEN)
        schedule: str | None = setting(None, shown=CHOSEN)
        label_smoothing: float | None = setting(None, shown=CHOSEN)
        validate_every: int | None = setting(None, least=1, shown=CHOSEN)
        seed: int | None = setting(None, least=0, shown=f"{TrainingConfig.seed}")
        cache_mib: float = setting(64.0)
        length: int = setting(LENGTH, least=1)

        def __post_init__(self) -> None:
            if self.steps is None and self.minutes is None:
                object.__setattr__(self, "steps", STEPS)
            if self.size is not None:
                one_of("size", self.size, SIZES)

        def asked(self) -> dict[str, Any]:
            """The settings that were chosen as JSON values, as `asked.json` holds them."""
            chosen = {name: value for name, value in asdict(self).items() if value is not None and value != ()}
            own = {name: chosen.pop(name) for name in OWN if name in chosen}
            return json.loads(json.dumps({**chosen, "own": own}))

        @classmethod
        def of_asked(cls, asked: Mapping[str, Any]) -> Self:
            """The inverse of `asked`."""
            flat = {**{name: value for name, value in asked.items() if name != "own"}, **asked["own"]}
            settings: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in flat.items()
            }
            return cls(**settings)

    def __init__(self, config: Config, tell: Tell = silent, showing: Showing = nullcontext) -> None:
        of_kind("config", config, self.Config, "a Comparison.Config")
        self.config, self.tell, self.showing = config, tell, showing
        if config.task not in TASKS:
            raise ArgumentError(f"task {config.task!r} does not exist; {suggest(config.task, TASKS)}")
        if not config.data:
            raise ArgumentError("--data is missing: name a file, or 'pronouns' for the embedded corpus")
        self.asked = config.asked()
        self.contenders = list_contenders(config.task, self.asked["own"], self.asked)
        self._work = (LanguageModels if config.task == "language-model" else Translators)(self)

    @classmethod
    def of(
        cls, out: str | Path, given: Mapping[str, Any], *, resume: bool = False, tell: Tell = silent,
        showing: Showing = nullcontext,
    ) -> Self:  # fmt: skip
        """A new comparison, or the one in the folder.

        Args:
            given: the settings that were given; with `resume` all may be left out.
            resume: go on with the comparison in the folder, where there is one.
            tell, showing: as for the class.

        Raises:
            ArgumentError: as for the class.
            CheckpointError: the folder holds a comparison, and `resume` is not wanted or other settings are given.
        """
        out = Path(out)
        check_ours(out, {ASKED: read_asked}, "comparison")
        begun = (out / ASKED).exists()
        if begun and not resume:
            raise OccupiedError(f"{out} holds a comparison; go on with it by --resume, or choose another folder")
        kept = read_asked(out / ASKED) if begun else {}
        if begun and not given:
            return cls(cls.Config.of_asked(kept), tell, showing)
        comparison = cls(cls.Config(**given), tell, showing)
        asked = comparison.asked
        changed = ", ".join(sorted(name for name in kept.keys() | asked.keys() if kept.get(name) != asked.get(name)))
        if begun and changed:
            raise OccupiedError(f"{out} was begun with another {changed}; leave that out, or choose another folder")
        return comparison

    def run(self, out: str | Path) -> Compared:
        """Train each contender that is not done yet, measure it, and write the report anew after each.

        Args:
            out: the folder: one run for each contender, and the report.

        Raises:
            CheckpointError: the folder cannot be written.
            RegardError: as for a training.
        """
        out = Path(out)
        share_of_work()  # refused before anything is written
        self._work.read()
        make_folder(out)
        replace_file(out / ASKED, render_sealed(self.asked))
        rows: list[Measures] = []
        if not all((out / one.folder / MEASURED).exists() for one in self.contenders):
            warm_up(self.config.task)
        for contender in self.contenders:
            run = out / contender.folder
            if (run / MEASURED).exists():
                rows.append(read_measures(run / MEASURED))
                continue
            self.tell(f"== {contender.name}")
            row = self._train_and_measure(contender, run)
            if row is None:
                return Compared(rows, interrupted=True)
            replace_file(run / MEASURED, render_sealed(row.to_dict()))
            rows.append(row)
            if len(rows) < len(self.contenders):  # the last one follows
                write_report(rows, self.asked, out)
        markdown, record, _ = write_report(rows, self.asked, out)
        return Compared(rows, markdown.read_text(), record.read_text())

    def _train_and_measure(self, contender: ComparedModel, run: Path) -> Measures | None:
        """One row; None where it was interrupted."""
        result, peak = train_and_watch(self._work.recipe(contender, run), run, self.showing)
        if result.stopped == "interrupted":
            return None
        spent = Spent(result.steps, result.tokens, result.wall_seconds, result.cpu_seconds, peak)
        cache = {"cache_bytes": int(self.config.cache_mib * 2**20), "length": self.config.length}
        return self._work.measured(contender.name, run, spent, read_log(run / "log.jsonl"), cache)

    def given_to(self, contender: ComparedModel, *others: str) -> dict[str, Any]:
        """The contender's own settings, and of the shared ones all but those of the study and of other models."""
        shared = {name: value for name, value in self.asked.items() if name not in (*ABOUT_THE_STUDY, *others)}
        return {**shared, **contender.own}


@dataclass(frozen=True)
class Compared:
    """The rows of a comparison and its report as Markdown and as JSON, both empty where it was interrupted."""

    rows: list[Measures]
    markdown: str = ""
    record: str = ""
    interrupted: bool = False


def list_contenders(task: str, own: Mapping[str, Sequence[Any]], shared: Iterable[str] = ()) -> list[ComparedModel]:
    """One contender for each model; a Transformer or a language model once for each of its choices.

    Args:
        own: `models`, `kv_heads`, `heads`, `attention` and `mechanism`, each a list that may be empty.
        shared: names of the settings given for all models; one that no model reads is refused.

    >>> [one.name for one in list_contenders("translation", {"models": ["none", "transformer"], "kv_heads": [4, 1]})]
    ['none', 'transformer kv_heads=4', 'transformer kv_heads=1']
    """
    choices: list[dict[str, Any]] = [{}]
    for name in ("heads", "kv_heads", "attention", "mechanism"):
        if own.get(name):
            choices = [{**choice, name: value} for choice in choices for value in own[name]]
    if task == "language-model":
        if own.get("models"):
            raise ArgumentError("--models are translators; language models take --attention, --mechanism, --heads ...")
        lists = ("attention", "mechanism")  # one for each layer
        own_settings = [{name: [one[name]] if name in lists else one[name] for name in one} for one in choices]
        contenders = [
            ComparedModel(_named(one) or "causal", own) for one, own in zip(choices, own_settings, strict=True)
        ]
    else:
        models = own.get("models") or TRANSLATORS
        of_one = [*choices[0], *(name for name in shared if name in OF_THE_TRANSFORMER)]
        if of_one and "transformer" not in models:
            said = ", ".join(f"--{name.replace('_', '-')}" for name in of_one)
            raise ArgumentError(f"{said} belongs to the Transformer; leave it out, or add transformer to --models")
        contenders = [
            ComparedModel(" ".join(filter(None, (model, _named(choice)))), {"model": model, **choice})
            for model in models
            for choice in (choices if model == "transformer" else [{}])
        ]
    if len({one.folder for one in contenders}) < len(contenders):
        raise ArgumentError(f"a contender was named twice: {', '.join(one.name for one in contenders)}")
    return contenders


class Translators:
    """Translators on one split of the pairs, with one tokeniser."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison, self.config = comparison, comparison.config
        self.given: dict[str, dict[str, Any]] = {}
        for one in comparison.contenders:
            others = OF_THE_RECURRENT if one.own["model"] == "transformer" else OF_THE_TRANSFORMER
            self.given[one.name] = {"steps": None, **comparison.given_to(one, *others)}
        # Refused before any work; what was not given is chosen when the pairs are read.
        self.configs = {name: TranslationTraining.new_config(given) for name, given in self.given.items()}

    @property
    def first(self) -> TranslationTraining.Config:
        """The settings of the first contender."""
        return next(iter(self.configs.values()))

    @cached_property
    def shared(self) -> TranslationTraining:
        """Holds the pairs and the tokeniser that all have in common."""
        return TranslationTraining(self.first, self.comparison.tell)

    @cached_property
    def numbers(self) -> int:
        """The parameters of the first contender, which is what all have with equal_parameters."""
        return count_numbers(self.first, self.shared.tokeniser.vocab_size)

    def read(self) -> None:
        """Read the pairs and choose what was not given, so that mistakes are known before a folder is made."""
        reasons: dict[str, list[str]] = {}  # contenders by the sentence about them
        for name, config in self.configs.items():
            requested = Requested(self.given[name], self.config.size, cpu=True)
            choice = TranslationTraining(config).choose(self.shared.amount, requested)
            self.configs[name] = replace(config, **choice.settings)
            reasons.setdefault(choice.reason, []).append(name)
        for reason, names in reasons.items():
            self.comparison.tell(reason if len(reasons) == 1 else f"{', '.join(names)}: {reason}")
        self.shared.config = self.first
        for config in self.configs.values():
            config.model_config(self.shared.tokeniser.vocab_size)

    def recipe(self, contender: ComparedModel, run: Path) -> TranslationTraining:
        """What trains a contender into its folder."""
        config, shared = self.configs[contender.name], self.shared
        if self.config.equal_parameters:
            config = with_as_many_numbers(config, self.numbers, shared.tokeniser.vocab_size)
        return TranslationTraining(config, self.comparison.tell, data=shared.data, tokeniser=shared.tokeniser)

    def measured(
        self, name: str, run: Path, spent: Spent, log: list[dict[str, Any]], cache: dict[str, int]
    ) -> Measures:
        """One row."""
        test = self.shared.data.test or self.shared.data.valid
        return measure_translator(name, Translator.load(run), test, spent, log, **cache)


class LanguageModels:
    """Language models on one text."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison, self.config = comparison, comparison.config
        if self.config.equal_parameters:
            raise ArgumentError("--equal-parameters is for translators; leave it out")
        if self.config.label_smoothing is not None:
            raise ArgumentError("--label-smoothing belongs to translators; leave it out")
        self._remarked: set[str] = set()

    def _remark(self, remark: str) -> None:
        """Report a remark once, although every model reads the same text."""
        if remark not in self._remarked:
            self._remarked.add(remark)
            self.comparison.tell(remark)

    def read(self) -> None:
        """Refuse settings that cannot be, before any model is trained; each model reads the text by itself."""
        for contender in self.comparison.contenders:
            given = self.comparison.given_to(contender)
            requested = Requested(given, self.config.size, cpu=True)
            LanguageModelTraining(LanguageModelTraining.new_config(given)).check_early(requested)

    def recipe(self, contender: ComparedModel, run: Path) -> LanguageModelTraining:
        """What trains a contender into its folder."""
        new = read_settings(run) is None
        return LanguageModelTraining.of(
            run, self.comparison.given_to(contender), size=self.config.size if new else None, resume=not new, cpu=True,
            tell=self._remark,
        )  # fmt: skip

    def measured(
        self, name: str, run: Path, spent: Spent, log: list[dict[str, Any]], cache: dict[str, int]
    ) -> Measures:
        """One row."""
        return measure_language_model(name, LanguageModel.load(run), spent, log, **cache)


def _named(choice: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())
