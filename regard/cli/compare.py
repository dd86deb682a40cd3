"""`regard compare`: several attentions trained under one budget, and one report about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from regard.bench.measuring import peak_of
from regard.cli.console import out_json, out_lines, say
from regard.cli.train import decide_settings, learn_tokeniser, train_translator
from regard.cli.train_language import LanguageSettings, run_language_training
from regard.cli.translator_settings import OF_THE_RECURRENT, OF_THE_TRANSFORMER, Settings
from regard.comparison import Measures, Spent, measure_language_model, measure_translator, write_report
from regard.decoding import Translator
from regard.errors import ArgumentError, CheckpointError, RegardError, UnsupportedError
from regard.models import LanguageModel
from regard.storage.files import replace_file
from regard.storage.ownership import check_ours
from regard.storage.sealed_json import read_sealed_or_older, render_sealed
from regard.text import Tokeniser
from regard.text.translation_data import TranslationData, load_translation_data
from regard.training import read_log, read_run

TASKS = ("translation", "language-model")
ASKED, MEASURED = "asked.json", "measures.json"
DEFAULTS: dict[str, Any] = {
    "task": "translation",
    "steps": 2_000,
    "cache_mib": 64.0,
    "length": 64,
    "equal_parameters": False,
}
ABOUT_THE_STUDY = ("task", "own", "cache_mib", "length", "equal_parameters")  # and not about a training


@dataclass(frozen=True)
class Contender:
    """What is compared: a name that may be a folder, and the settings that are its own."""

    name: str
    own: Mapping[str, Any]

    @property
    def folder(self) -> str:
        """The name in letters that every system takes."""
        return "".join(letter if letter.isalnum() or letter in "-=_." else "_" for letter in self.name)


def run_compare(
    out: Path, own: Mapping[str, Sequence[Any]], given: Mapping[str, Any], *, resume: bool, as_json: bool
) -> None:
    """Train each contender that is not done yet, measure it, and write the report anew after each.

    Args:
        out: the folder: one run for each contender, and the report.
        own: what the contenders differ in, as for `list_contenders`.
        given: what all have in common; with `resume` it may be left out.
    """
    asked = decide(out, own, {name: value for name, value in given.items() if value is not None}, resume)
    task = asked["task"]
    contenders = list_contenders(task, asked["own"])
    work: Translations | Writings = Writings(asked) if task == "language-model" else Translations(asked, contenders)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be made: {error.strerror}; choose another folder") from error
    replace_file(out / ASKED, render_sealed(asked))
    rows: list[Measures] = []
    for contender in contenders:
        run = out / contender.folder
        if (run / MEASURED).exists():
            rows.append(read_measures(run / MEASURED))
            continue
        say(f"== {contender.name}")
        try:
            row = work.train_and_measure(contender, run)
        except RegardError as error:
            if "interrupted" not in str(error):
                raise
            raise RegardError(
                f"interrupted; what is done is kept, go on with: regard compare --out {out} --resume"
            ) from error
        replace_file(run / MEASURED, render_sealed(row.to_dict()))
        rows.append(row)
        write_report(rows, asked, out)
    report, record, _ = write_report(rows, asked, out)
    if as_json:
        out_json(record.read_text().rstrip("\n"))
    else:
        out_lines(report.read_text().rstrip("\n"))


def listed(text: str | None) -> list[str]:
    """Names from a list with commas.

    >>> listed("none, bahdanau"), listed(None)
    (['none', 'bahdanau'], [])
    """
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def numbered(text: str | None) -> list[int]:
    """Numbers from a list with commas.

    Raises:
        ArgumentError: something else.
    """
    if strange := [part for part in listed(text) if not part.isdecimal() or int(part) < 1]:
        raise ArgumentError(f"{strange[0]!r} of {text!r} is no number of heads; write them as 8,2,1")
    return [int(part) for part in listed(text)]


def list_contenders(task: str, own: Mapping[str, Sequence[Any]]) -> list[Contender]:
    """One for each model; a Transformer or a language model once for each of its choices.

    Args:
        task: of `TASKS`.
        own: `models`, `kv_heads`, `heads` and `attention`, each a list that may be empty.

    >>> [one.name for one in list_contenders("translation", {"models": ["none", "transformer"], "kv_heads": [4, 1]})]
    ['none', 'transformer kv_heads=4', 'transformer kv_heads=1']
    """
    choices: list[dict[str, Any]] = [{}]
    names = ("heads", "kv_heads", "attention")
    for name in names:
        if own.get(name):
            choices = [{**choice, name: value} for choice in choices for value in own[name]]
    if task == "language-model":
        if own.get("models"):
            raise ArgumentError("--models are translators; language models differ by --attention, --heads, --kv-heads")
        told = [{**one, "attention": [one["attention"]]} if "attention" in one else one for one in choices]
        return [Contender(_told(one) or "causal", own) for one, own in zip(choices, told, strict=True)]
    models = own.get("models") or ["none", "bahdanau", "luong-general", "transformer"]
    found = []
    for model in models:
        for choice in choices if model == "transformer" else [{}]:
            found.append(Contender(" ".join(filter(None, (model, _told(choice)))), {"model": model, **choice}))
    if len({one.name for one in found}) < len(found):
        raise ArgumentError(f"a contender was named twice: {', '.join(one.name for one in found)}")
    return found


def decide(out: Path, own: Mapping[str, Sequence[Any]], given: Mapping[str, Any], resume: bool) -> dict[str, Any]:
    """What is asked for: of a new comparison, or of the one in the folder.

    Raises:
        ArgumentError: a task that does not exist, or no data.
        CheckpointError: the folder holds a comparison, and `resume` is not wanted or something else is asked for.
    """
    check_ours(out, {ASKED: read_asked}, "comparison")
    begun = (out / ASKED).exists()
    if begun and not resume:
        raise CheckpointError(f"{out} holds a comparison; go on with it by --resume, or choose another folder")
    kept = read_asked(out / ASKED) if begun else {}
    chosen = json.loads(json.dumps({**given, "own": {name: list(values) for name, values in own.items() if values}}))
    if begun and chosen == {"own": {}}:
        return kept
    asked = {**DEFAULTS, **chosen}
    if asked["task"] not in TASKS:
        raise ArgumentError(f"task {asked['task']!r} does not exist; there are {', '.join(TASKS)}")
    if not asked.get("data"):
        raise ArgumentError("--data is missing: name a file, or 'pronouns' for the embedded corpus")
    if begun and (changed := sorted(name for name in kept.keys() | asked.keys() if kept.get(name) != asked.get(name))):
        raise CheckpointError(
            f"{out} was begun with another {', '.join(changed)}: a comparison has one budget for all; take it back, or "
            f"choose another folder"
        )
    return asked


def read_asked(path: Path) -> dict[str, Any]:
    """What a comparison was begun with; one of a version before the seals is read as it is, and this is said.

    Raises:
        CheckpointError: damaged, or no such file.
    """
    kinds = (Settings, LanguageSettings)
    known = {*DEFAULTS, *ABOUT_THE_STUDY, *(field.name for kind in kinds for field in fields(kind))}
    return _kept(path, known, ("task", "own"))


def read_measures(path: Path) -> Measures:
    """A row that was measured before; likewise.

    Raises:
        CheckpointError, ArgumentError: damaged, or no such file.
    """
    known = [field.name for field in fields(Measures)]
    return Measures.from_dict(_kept(path, known, known))


def _kept(path: Path, known: Collection[str], needed: Iterable[str]) -> dict[str, Any]:
    content, is_sealed = read_sealed_or_older(path, known, needed)
    if not is_sealed:
        say(f"{path} was written before such files were sealed, so damage cannot be noticed")
    return content


class Translations:
    """Translators on one split of the pairs, with one tokeniser."""

    def __init__(self, asked: dict[str, Any], contenders: Sequence[Contender]) -> None:
        self.asked = asked
        self.wanted = {one.name: self._settings(one) for one in contenders}  # mistakes are told before any work

    @cached_property
    def data(self) -> TranslationData:
        first = next(iter(self.wanted.values()))
        data = load_translation_data(first.data, first.valid, first.seed)
        for note in data.notes:
            say(note)
        return data

    @cached_property
    def tokeniser(self) -> Tokeniser:
        return learn_tokeniser(next(iter(self.wanted.values())), self.data)

    @cached_property
    def numbers(self) -> int:
        """What the first contender has, which is what all have where that is asked for."""
        return count_numbers(next(iter(self.wanted.values())), self.tokeniser.vocab_size)

    def train_and_measure(self, contender: Contender, run: Path) -> Measures:
        settings = self.wanted[contender.name]
        if self.asked["equal_parameters"]:
            settings = with_as_many_numbers(settings, self.numbers, self.tokeniser.vocab_size)
        done: list[Any] = []
        peak = _peak(
            lambda: done.append(
                train_translator(run, settings, self.data, resume=True, cpu=True, tokeniser=self.tokeniser)
            )
        )
        result = done[0]
        if result.stopped == "interrupted":
            raise RegardError("interrupted")
        spent = Spent(result.steps, result.tokens, result.wall_seconds, result.cpu_seconds, peak)
        return measure_translator(
            contender.name, Translator.load(run), self.data.test or self.data.valid, spent, read_log(run / "log.jsonl"),
            cache_bytes=int(self.asked["cache_mib"] * 2**20), length=self.asked["length"],
        )  # fmt: skip

    def _settings(self, contender: Contender) -> Settings:
        """The contender's, and of the shared those that its model has."""
        others = OF_THE_RECURRENT if contender.own["model"] == "transformer" else OF_THE_TRANSFORMER
        shared = {name: value for name, value in self.asked.items() if name not in (*ABOUT_THE_STUDY, *others)}
        return decide_settings(Path(), {**shared, **contender.own}, resume=False)


class Writings:
    """Language models on one text."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        if asked["equal_parameters"]:
            raise ArgumentError(
                "--equal-parameters widens translators; patterns of a language model have no parameters"
            )

    def train_and_measure(self, contender: Contender, run: Path) -> Measures:
        given = {name: value for name, value in self.asked.items() if name not in ABOUT_THE_STUDY}
        peak = _peak(lambda: run_language_training(run, {**given, **contender.own}, resume=True, cpu=True))
        log = read_log(run / "log.jsonl")
        summary = read_run(run)
        spent = Spent(summary.step, summary.tokens, float(log[-1].get("seconds", 0.0)), None, peak)
        return measure_language_model(
            contender.name, LanguageModel.load(run), spent, log,
            cache_bytes=int(self.asked["cache_mib"] * 2**20), length=self.asked["length"],
        )  # fmt: skip


def with_as_many_numbers(settings: Settings, wanted: int, vocab_size: int) -> Settings:
    """The settings with `hidden` such that the model has as nearly as many numbers as wanted."""
    low, high = 1, 1 << 14  # of hidden / 2
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _with(settings, middle, vocab_size) < wanted else (low, middle)
    best = min((low, max(1, low - 1)), key=lambda half: abs(_with(settings, half, vocab_size) - wanted))
    return replace(settings, hidden=2 * best)


def count_numbers(settings: Settings, vocab_size: int) -> int:
    """The parameters that a model of these settings has; nothing is allocated."""
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in settings.new_model(vocab_size).parameters())


def _with(settings: Settings, half: int, vocab_size: int) -> int:
    return count_numbers(replace(settings, hidden=2 * half), vocab_size)


def _told(choice: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())


def _peak(work: Callable[[], object]) -> int | None:
    """Bytes held at most during the work; None where the system does not tell."""
    done = False

    def noted() -> None:
        nonlocal done
        work()
        done = True

    try:
        return peak_of(noted)
    except UnsupportedError:
        if done:
            raise
        work()
        return None
