"""The quality of translators, also on what *it* refers to, of language models, of classifiers and of encoders."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F

from regard.arguments import count_of
from regard.errors import ArgumentError, DataError, NotFoundError
from regard.reprs import brief
from regard_lab.decoding import Evaluation, Translator, evaluate
from regard_lab.decoding.lines import SharedWork
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.decoding.translator import Ends, Translation, rows_of
from regard_lab.models import LanguageModel, TranslationTransformer
from regard_lab.models.encoder import TextEncoder
from regard_lab.seeing.maps import has_encoder_weights
from regard_lab.seeing.referents import (
    Agreement,
    HeadChoice,
    SwapCheck,
    choose_head,
    referent_agreement,
    swap_check,
)
from regard_lab.text import Pair, read_pairs
from regard_lab.text.documents import read_documents, read_labelled, read_texts
from regard_lab.text.pronouns import (
    contrast_accuracy,
    majority_baseline,
    make_contrast_pairs,
    make_split,
    pronoun_accuracy,
)
from regard_lab.text.translation_data import PRONOUN_COUNTS, PRONOUNS
from regard_lab.training.recipes.classification import Classifier
from regard_lab.training.recipes.language import LanguageModelTraining, LanguageTask, lines_of
from regard_lab.training.recipes.masked_words import MaskedWordsTraining, MaskedWordTask
from regard_lab.training.recipes.recipe import Tell, silent
from regard_lab.training.recipes.run_folder import (
    Learned,
    count_trained,
    keeps_placeholders,
    read_settings,
    read_test,
)

CONTRAST_PAIRS = 300
SWAPS = 300
OWN_TEST = "the run's own test split"


@dataclass(frozen=True)
class PronounReport:
    """The rates on test sentences whose pairs of nouns never occurred in training."""

    pronouns: float
    baseline: float
    contrast: float
    swaps: SwapCheck
    head: HeadChoice | None = (
        None  # recurrent translators have no self-attention for *it* to look with
    )
    agreement: Agreement | None = None

    def to_dict(self) -> dict[str, Any]:
        """The rates, 0 to 1, as JSON values."""
        rates: dict[str, Any] = {
            "pronoun_accuracy": self.pronouns,
            "majority_baseline": self.baseline,
            "contrast_accuracy": self.contrast,
        }
        if self.head is not None and (found := self.agreement) is not None:
            rates |= {
                "referent_agreement": found.agreement,
                "referent_preference": found.preference,
                "referent_chance": found.chance,
                "referent_head": {"layer": self.head.layer, "head": self.head.head},
            }
        return rates | {"swap_followed": self.swaps.followed, "swap_kept": self.swaps.kept}

    def lines(self) -> list[str]:
        """The rates in lines of text."""
        looked = []
        if self.head is not None and (found := self.agreement) is not None:
            head = f"encoder layer {self.head.layer}, head {self.head.head}, from 0, chosen on validation sentences"
            most = rate(found.agreement)
            more = rate(found.preference)
            looked = [
                f"  agreement    {most} of *it* look most at their noun, {more} more than at the other noun;",
                f"               chance {rate(found.chance)} ({head})",
            ]
        followed = rate(self.swaps.followed)
        kept = rate(self.swaps.kept)
        return [
            f"  pronouns     {rate(self.pronouns)} right; the commonest pronoun alone would get {rate(self.baseline)}",
            f"  contrast     {rate(self.contrast)} of pairs with one word changed have both pronouns right",
            *looked,
            f"  swap         {followed} of pronouns follow when another gender's noun takes its place,",
            f"               {kept} stay when the other noun is swapped instead",
        ]


@dataclass(frozen=True)
class RunScores:
    """The quality of a translator in a run: `name` is that of the pairs; a run of the embedded corpus has pronouns.

    `trained` counts those of the pairs that the run has learned from; None where the run does not store them. `learned`
    has the best loss of the run; None for a saved model.
    """

    name: str
    evaluation: Evaluation
    pronouns: PronounReport | None = None
    trained: int | None = None
    learned: Learned | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        pronouns = self.pronouns.to_dict() if self.pronouns else {}
        return {
            "test": self.name,
            "trained_on": self.trained,
            "hardly_learned": None if self.learned is None else self.learned.hardly,
            **self.evaluation.to_dict(),
            **pronouns,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Each sentence with its scores, as `Evaluation.rows` has them."""
        return self.evaluation.rows()

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        scores = self.evaluation.scores
        values = {
            "BLEU": f"{scores.bleu:.2f}   {scores.bleu_signature}",
            "chrF": f"{scores.chrf:.2f}   {scores.chrf_signature}",
            "exact match": exact_matches(scores.exact_match, scores.count),
            "perplexity": f"{self.evaluation.perplexity:.3f} per id",
        }
        search = ", ".join(f"{key} {value}" for key, value in self.evaluation.settings.items())
        return [
            f"{count_of(scores.count, 'sentences')} of {self.name}, {search}",
            *on_training(self.trained, scores.count, "pairs", "new sentences"),
            *on_learning(self.learned),
            *(f"  {remark}" for remark in [Ends(self.evaluation.translations).remark()] if remark),
            *named(values),
            *(self.pronouns.lines() if self.pronouns else []),
        ]


def named(values: Mapping[str, str]) -> list[str]:
    """A line for each value with its name.

    >>> named({"loss": "1.2 nats per id"})
    ['  loss         1.2 nats per id']
    """
    return [f"  {name:<12} {value}" for name, value in values.items()]


def on_training(trained: int | None, count: int, what: str, new: str) -> list[str]:
    """A line about what of a test was learned from, or that this is not known; none where nothing was.

    >>> on_training(3, 3, "pairs", "new sentences")
    ['  these pairs were trained on, so the figures are better than those of new sentences']
    """
    if trained is None:
        return [f"  not known which {what} were trained on"]
    if not trained:
        return []
    verb = "was" if trained == 1 else "were"
    which = f"these {what} were" if trained == count else f"{trained:,} of these {what} {verb}"
    return [f"  {which} trained on, so the figures are better than those of {new}"]


def on_learning(learned: Learned | None) -> list[str]:
    """A line about a run that has hardly learned; none for any other."""
    remark = None if learned is None else learned.remark()
    return [] if remark is None else [f"  {remark}"]


def exact_matches(share: float, count: int) -> str:
    """The share of exact matches with the number behind it.

    >>> exact_matches(598 / 600, 600), exact_matches(2999 / 3000, 3000)
    ('0.997   598 of 600', '0.999   2,999 of 3,000')
    """
    return f"{rate(share)}   {round(share * count):,} of {count:,}"


def rate(share: float) -> str:
    """A share to the nearest of three decimals, except that a share below 1 is never written as 1.000.

    >>> rate(1.0), rate(0.9999), rate(0.9966)
    ('1.000', '0.999', '0.997')
    """
    return f"{share:.3f}" if share >= 1 else f"{min(share, 0.999):.3f}"


def perplexity_of(loss: float) -> float:
    """`exp(loss)`, which is a finite number for any loss in nats."""
    return math.exp(min(loss, 700.0))


Counting = Callable[[int], AbstractContextManager[Callable[[int], None]]]
"""Takes the number of sentences; gives a context with a function to be called with the number of newly done ones."""
uncounted: Counting = lambda total: nullcontext(lambda done: None)  # noqa: E731


class PartlyEvaluated(KeyboardInterrupt):
    """An evaluation was interrupted; `rows` has what was done, with scores, as `--out` writes it."""

    def __init__(self, what: str, total: int, done: int, rows: list[dict[str, Any]]) -> None:
        super().__init__(f"{done:,} of {count_of(total, what, ',')} done")
        self.rows = rows


@contextmanager
def _keeping(
    what: str, total: int, done: Sized, rows: Callable[[], list[dict[str, Any]]] = list
) -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise PartlyEvaluated(what, total, len(done), rows() if done else []) from None


def evaluate_run(
    run: str | Path,
    test: Sequence[str | Path] = (),
    *,
    keep_placeholders: bool | None = None,
    tell: Tell = silent,
    counting: Counting = uncounted,
    **search: Any,
) -> RunScores:
    """Score the best model of a run, or a saved one: BLEU, chrF, exact match and perplexity.

    Args:
        test: files of pairs; by default the run's own test split, where a run of the embedded corpus is also evaluated
            on what *it* refers to.
        keep_placeholders: as for `read_pairs`; by default as in the training of the run.
        search: beam, normalisation, alpha and share, as for `Translator.translate`.

    Raises:
        CheckpointError: no translator, or no test split.
        DataError: files that cannot be read.
        PartlyEvaluated: a KeyboardInterrupt, with what was done.

    >>> evaluate_run("nowhere")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere does not exist; check the path, which is relative to the current folder
    """
    translator = Translator.load(run)
    if test:
        if keep_placeholders is None:
            keep_placeholders = keeps_placeholders(Path(run))
        read = read_pairs(*test, keep_placeholders=keep_placeholders)
        tell(read.report())
        pairs = read.pairs
        name = " + ".join(map(str, test))
    else:
        pairs = read_test(Path(run))
        name = OWN_TEST
    settings = read_settings(Path(run)) or {}
    pronouns = None
    kept: dict[int, list[Translation]] = {}

    def rows():
        return rows_of(
            [kept[at][0] for at in sorted(kept)], [pairs[at].target for at in sorted(kept)]
        )

    with _keeping("sentences", len(pairs), kept, rows):
        with counting(len(pairs)) as progress:
            evaluation = evaluate(translator, pairs, progress=progress, kept=kept, **search)
        if not test and settings.get("data") == [PRONOUNS]:
            pronouns = judge_pronouns(translator, int(settings.get("seed", 0)), **search)
    learned = Learned.of_run(Path(run))
    return RunScores(name, evaluation, pronouns, count_trained(Path(run), pairs), learned)


def judge_pronouns(translator: Translator, seed: int, **search: Any) -> PronounReport:
    """Measure everything about *it* on the embedded corpus; `search` is what `Translator.translate` takes."""

    def translate(lines: list[str]) -> list[str]:
        return [translation.text for translation in translator.translate(lines, **search)]

    model, tokeniser = translator.model, translator.tokeniser
    test = make_split("test", PRONOUN_COUNTS["test"], seed)
    contrast = make_contrast_pairs(CONTRAST_PAIRS, seed)
    both = [
        translate([sentence.source for sentence in side]) for side in zip(*contrast, strict=True)
    ]
    head = agreement = None
    if isinstance(model, TranslationTransformer) and has_encoder_weights(model):
        head = choose_head(model, tokeniser, make_split("valid", PRONOUN_COUNTS["valid"], seed))
        agreement = referent_agreement(model, tokeniser, test, head)
    return PronounReport(
        pronouns=pronoun_accuracy(test, translate([sentence.source for sentence in test])),
        baseline=majority_baseline(test),
        contrast=contrast_accuracy(contrast, list(zip(*both, strict=True))),
        swaps=swap_check(translate, test[:SWAPS], seed),
        head=head,
        agreement=agreement,
    )


@dataclass(frozen=True)
class TextScores:
    """The loss of a language model on a text, in nats an id; `trained` counts those of its lines that it learned from.

    It is None where the run does not store them. `learned` is as for `RunScores`.

    >>> scores = TextScores("new.txt", loss=2.0, ids=300, characters=1000, block=64)
    >>> round(scores.perplexity, 3), round(scores.bits_per_character, 3)
    (7.389, 0.866)
    """

    name: str
    loss: float
    ids: int
    characters: int
    block: int
    line_count: int = 0
    trained: int | None = None
    learned: Learned | None = None

    @property
    def perplexity(self) -> float:
        """`exp(loss)`, per id; that of a model that has learned nothing is the size of its vocabulary."""
        return perplexity_of(self.loss)

    @property
    def bits_per_character(self) -> float:
        """`loss · ids / (characters · ln 2)`, which can be compared across tokenisers."""
        return self.loss * self.ids / (self.characters * math.log(2))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "test": self.name,
            "trained_on": self.trained,
            "hardly_learned": None if self.learned is None else self.learned.hardly,
            "loss": self.loss,
            "ids": self.ids,
            "characters": self.characters,
            "block": self.block,
            "line_count": self.line_count,
            "perplexity": self.perplexity,
            "bits_per_character": self.bits_per_character,
        }

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        values = {
            "loss": f"{self.loss:.4f} nats per id",
            "perplexity": f"{self.perplexity:.3f} per id",
            "bits": f"{self.bits_per_character:.3f} per character",
        }
        return [
            f"{count_of(self.characters, 'characters', ',')} of {self.name}, {count_of(self.ids, 'ids', ',')} in "
            f"blocks of up to {count_of(self.block, 'ids', ',')}",
            *on_training(self.trained, self.line_count, "lines", "a new text"),
            *on_learning(self.learned),
            *named(values),
        ]


@torch.inference_mode()
def evaluate_text(
    run: str | Path,
    texts: Sequence[str | Path],
    *,
    tell: Tell = silent,
    counting: Counting = uncounted,
    share: SharedWork | None = None,
) -> TextScores:
    """The loss of a language model on texts, cut into blocks as those that it was validated on.

        loss = -Σ log p(id | BEGIN, the ids before it in its block) / ids

    The END of each document counts among the ids.

    Args:
        texts: UTF-8 files, or .jsonl files with a "text" in each line.
        share: divides the batches among processes, each of which returns the same scores; see
            `regard_lab.decoding.lines.sharing`.

    Raises:
        ArgumentError: no texts.
        CheckpointError: no language model.
        DataError: files that cannot be read.

    Source: perplexity as in Jurafsky and Martin, Speech and Language Processing, section 3.3.
    """
    if not texts:
        raise ArgumentError(
            f"{run} holds a language model, which keeps no test split; name a text: regard evaluate {run} TEXT.txt"
        )
    saved, tokeniser = load_with_tokeniser(run, LanguageModel.KIND)
    model = LanguageModel.from_saved(saved, str(run)).eval()
    settings = read_settings(Path(run)) or {}
    read = read_documents(*texts)
    tell(read.report())
    block = int(settings.get("block", LanguageModelTraining.Config.block))
    if model.config.positions == "learned":
        block = min(block, model.config.max_length)
    task = LanguageTask(
        read.texts[:1], read.texts, tokeniser, block=block, batch_tokens=max(block, 2048)
    )
    rank, processes = (0, 1) if share is None else (share.rank, share.count)
    own = []
    batches = task.validation_batches()
    with _keeping("batches", len(batches), own), counting(len(batches)) as progress:
        for number, batch in enumerate(batches):
            if number % processes == rank:
                loss, count = task.loss(model, batch)
                own.append((number, float(loss), count))
            progress(1)
    # Summed in the order of one process.
    found = own if share is None else sorted(share.gathered(own))
    total = sum(loss for _, loss, _ in found)
    ids = sum(count for _, _, count in found)
    lines = lines_of(read.texts)
    return TextScores(
        " + ".join(map(str, texts)),
        total / ids,
        ids,
        read.characters,
        block,
        len(lines),
        count_trained(Path(run), lines),
        Learned.of_run(Path(run)),
    )


BINS = 10  # of probabilities, for a classifier's calibration
CONFUSED = 5  # confusions that are named
TEXTS_AT_ONCE = 32


@brief
@dataclass(frozen=True)
class ClassScores:
    """How well a classifier sorts texts: `guesses` holds the probabilities of the classes for each of `pairs`."""

    name: str
    classes: tuple[str, ...]
    pairs: Sequence[Pair]
    guesses: Sequence[Sequence[float]]
    trained: int | None = None

    @cached_property
    def best(self) -> list[int]:
        """The class that is most probable for each text."""
        return [max(range(len(row)), key=row.__getitem__) for row in self.guesses]

    @cached_property
    def confusion(self) -> list[list[int]]:
        """How many texts of each class (row) were given each class (column)."""
        counts = Counter(zip((pair.target for pair in self.pairs), self.best, strict=True))
        return [
            [counts[label, given] for given in range(len(self.classes))] for label in self.classes
        ]

    @property
    def accuracy(self) -> float:
        """The share of the texts that are right."""
        return sum(self.confusion[at][at] for at in range(len(self.classes))) / len(self.pairs)

    @property
    def baseline(self) -> float:
        """The accuracy of the commonest class alone."""
        return max(map(sum, self.confusion)) / len(self.pairs)

    def by_class(self) -> list[dict[str, Any]]:
        """Texts, recall (of the texts of the class) and precision (of those that were given it) of each class."""
        columns = list(map(sum, zip(*self.confusion, strict=True)))
        return [
            {
                "class": label,
                "count": sum(row),
                "recall": row[at] / sum(row) if sum(row) else None,
                "precision": row[at] / columns[at] if columns[at] else None,
            }
            for at, (label, row) in enumerate(zip(self.classes, self.confusion, strict=True))
        ]

    def calibration(self) -> tuple[float, list[dict[str, float]]]:
        """The expected calibration error, and of each tenth of probabilities: texts, mean probability, share right.

            Σ over bins of (texts of the bin / texts) · |share right - mean probability|

        Source: Guo et al. 2017, On Calibration of Modern Neural Networks, section 2.
        """
        bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
        for pair, row, best in zip(self.pairs, self.guesses, self.best, strict=True):
            bins[min(BINS - 1, int(BINS * row[best]))].append(
                (row[best], self.classes[best] == pair.target)
            )
        columns = [tuple(zip(*one, strict=True)) for one in bins if one]
        filled = [
            {"count": len(right), "probability": fmean(probabilities), "right": fmean(right)}
            for probabilities, right in columns
        ]
        error = sum(one["count"] * abs(one["right"] - one["probability"]) for one in filled) / len(
            self.pairs
        )
        return error, filled

    def rows(self) -> list[dict[str, Any]]:
        """Each text with its label, the label that it was given and its probability, as JSON values."""
        return [
            {
                "text": pair.source,
                "label": pair.target,
                "given": self.classes[best],
                "probability": row[best],
            }
            for pair, row, best in zip(self.pairs, self.guesses, self.best, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the texts as JSON values."""
        error, bins = self.calibration()
        return {
            "test": self.name,
            "trained_on": self.trained,
            "count": len(self.pairs),
            "accuracy": self.accuracy,
            "majority_baseline": self.baseline,
            "classes": self.by_class(),
            "confusion": self.confusion,
            "calibration_error": error,
            "calibration": bins,
        }

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        count, (error, _) = len(self.pairs), self.calibration()
        confused = [
            (number, self.classes[true], self.classes[given])
            for true, row in enumerate(self.confusion)
            for given, number in enumerate(row)
            if number and true != given
        ]
        or_none = lambda share: "-" if share is None else rate(share)  # noqa: E731
        values = {
            "accuracy": exact_matches(self.accuracy, count),
            "baseline": f"{rate(self.baseline)}, by the commonest class alone",
            "calibration": f"its mean probability is {rate(fmean(map(max, self.guesses)))}; "
            f"expected calibration error {error:.3f}",
        }
        by_class = {
            one[
                "class"
            ]: f"recall {or_none(one['recall'])}, precision {or_none(one['precision'])}, "
            f"{count_of(one['count'], 'texts', ',')}"
            for one in self.by_class()
        }
        return [
            f"{count_of(count, 'texts', ',')} of {self.name}",
            *on_training(self.trained, count, "texts", "new texts"),
            *named(values),
            *named(by_class),
            *(
                f"  {number:,} of {true!r} were taken for {given!r}"
                for number, true, given in sorted(confused, reverse=True)[:CONFUSED]
            ),
        ]


def evaluate_classifier(
    run: str | Path,
    test: Sequence[str | Path] = (),
    *,
    tell: Tell = silent,
    counting: Counting = uncounted,
) -> ClassScores:
    """Sort texts whose labels are known, by default those of the run's own test split."""
    classifier = Classifier.load(run)
    if len(test) > 1:
        raise ArgumentError(f"{len(test)} files were given; texts with labels are read from one")
    if test:
        read = read_labelled(test[0], least=1)
        tell(read.report)
        pairs = read.pairs
        name = str(test[0])
    else:
        pairs = tuple(read_test(Path(run)))
        name = OWN_TEST
    if strange := sorted({pair.target for pair in pairs} - set(classifier.classes)):
        known = ", ".join(classifier.classes[:12])
        raise DataError(
            f"{name} has the label {strange[0]!r}, which {run} does not know; it knows {known}"
        )
    guesses: list[list[float]] = []
    sorted_so = lambda: ClassScores(name, tuple(classifier.classes), pairs[: len(guesses)], guesses)  # noqa: E731
    with (
        _keeping("texts", len(pairs), guesses, lambda: sorted_so().rows()),
        counting(len(pairs)) as progress,
    ):
        for start in range(0, len(pairs), TEXTS_AT_ONCE):
            some = pairs[start : start + TEXTS_AT_ONCE]
            guesses += classifier.probabilities([pair.source for pair in some])
            progress(len(some))
    return replace(sorted_so(), trained=count_trained(Path(run), pairs))


@dataclass(frozen=True)
class HiddenWordScores:
    """How well an encoder finds hidden words of texts: `loss` in nats a word, shares of the words that are right."""

    name: str
    words: int
    loss: float
    accuracy: float
    baseline: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "test": self.name,
            "words": self.words,
            "loss": self.loss,
            "perplexity": perplexity_of(self.loss),
            "accuracy": self.accuracy,
            "majority_baseline": self.baseline,
        }

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        right = exact_matches(self.accuracy, self.words)
        values = {
            "loss": f"{self.loss:.4f} nats per word (perplexity {perplexity_of(self.loss):.1f})",
            "accuracy": f"{right}; the commonest word alone would get {rate(self.baseline)}",
        }
        return [f"{count_of(self.words, 'hidden words', ',')} of {self.name}", *named(values)]


@torch.inference_mode()
def evaluate_encoder(
    run: str | Path,
    texts: Sequence[str | Path],
    *,
    tell: Tell = silent,
    counting: Counting = uncounted,
) -> HiddenWordScores:
    """Hide words of texts, a text a line, as validation hides them, and find them again."""
    saved, tokeniser = load_with_tokeniser(run, TextEncoder.KIND)
    model = TextEncoder.from_saved(saved, str(run)).eval()
    if model.config.head != "words":
        raise NotFoundError(
            f"{run} holds an encoder whose head is {model.config.head!r}; it finds no hidden words"
        )
    if not texts:
        raise ArgumentError(
            f"{run} holds an encoder, which keeps no test split; name a text: regard evaluate {run} TEXT.txt"
        )
    read = read_texts(*texts)
    tell(read.report())
    longest = min(MaskedWordsTraining.Config.longest, model.config.max_length)
    losses = []
    hits = 0
    words = Counter[int]()
    batches = MaskedWordTask(
        read.texts[:1], read.texts, tokeniser, longest=longest
    ).validation_batches()
    with _keeping("batches", len(batches), losses), counting(len(batches)) as progress:
        for batch in batches:
            scores = model(batch.ids, batch.places).double()
            losses.append(float(F.cross_entropy(scores, batch.words, reduction="sum")))
            hits += int((scores.argmax(-1) == batch.words).sum())
            words.update(batch.words.tolist())
            progress(1)
    name = " + ".join(map(str, texts))
    total = words.total()
    return HiddenWordScores(
        name, total, sum(losses) / total, hits / total, max(words.values()) / total
    )
