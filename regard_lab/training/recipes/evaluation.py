"""The quality of a translator: on pairs, on its run's own test split, and on what *it* refers to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.decoding import Evaluation, SharedWork, Translator, evaluate
from regard_lab.decoding.loading import load_with_tokeniser
from regard_lab.decoding.translator import Ends
from regard_lab.models import LanguageModel, TranslationTransformer
from regard_lab.seeing import Agreement, HeadChoice, SwapCheck, choose_head, referent_agreement, swap_check
from regard_lab.seeing.maps import has_encoder_weights
from regard_lab.text import read_pairs
from regard_lab.text.documents import read_documents
from regard_lab.text.pronouns import (
    contrast_accuracy,
    majority_baseline,
    make_contrast_pairs,
    make_split,
    pronoun_accuracy,
)
from regard_lab.text.translation_data import PRONOUN_COUNTS, PRONOUNS
from regard_lab.training.recipes.language import LanguageModelTraining, LanguageTask
from regard_lab.training.recipes.recipe import Tell, silent
from regard_lab.training.recipes.run_folder import count_trained, read_settings, read_test

CONTRAST_PAIRS = 300
SWAPS = 300


@dataclass(frozen=True)
class PronounReport:
    """The rates on test sentences whose pairs of nouns never occurred in training."""

    pronouns: float
    baseline: float
    contrast: float
    swaps: SwapCheck
    head: HeadChoice | None = None  # recurrent translators have no self-attention for *it* to look with
    agreement: Agreement | None = None

    def to_dict(self) -> dict[str, Any]:
        """The rates, 0 to 1, as JSON values."""
        rates = {}
        if self.head is not None and self.agreement is not None:
            rates = {
                "referent_agreement": self.agreement.agreement,
                "referent_preference": self.agreement.preference,
                "referent_chance": self.agreement.chance,
                "referent_head": {"layer": self.head.layer, "head": self.head.head},
            }
        return {
            "pronoun_accuracy": self.pronouns,
            "majority_baseline": self.baseline,
            "contrast_accuracy": self.contrast,
            **rates,
            "swap_followed": self.swaps.followed,
            "swap_kept": self.swaps.kept,
        }

    def lines(self) -> list[str]:
        """The rates in lines of text."""
        return [
            f"  pronouns     {rate(self.pronouns)} right; the commonest pronoun alone would get {rate(self.baseline)}",
            f"  contrast     {rate(self.contrast)} of pairs with one word changed have both pronouns right",
            *self._looked(),
            f"  swap         {rate(self.swaps.followed)} of pronouns follow when another gender's noun takes its "
            "place,",
            f"               {rate(self.swaps.kept)} stay when the other noun is swapped instead",
        ]

    def _looked(self) -> list[str]:
        if self.head is None or self.agreement is None:
            return []
        head = f"encoder layer {self.head.layer}, head {self.head.head}, from 0, chosen on validation sentences"
        found = self.agreement
        return [
            f"  agreement    {rate(found.agreement)} of *it* look most at their noun, {rate(found.preference)} more "
            "than at the other noun;",
            f"               chance {rate(found.chance)} ({head})",
        ]


@dataclass(frozen=True)
class RunScores:
    """The quality of a translator in a run: `name` is that of the pairs; a run of the embedded corpus has pronouns.

    `trained` counts those of the pairs that the run has learned from; None where the run does not store them.
    """

    name: str
    evaluation: Evaluation
    pronouns: PronounReport | None = None
    trained: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "test": self.name,
            "trained_on": self.trained,
            **self.evaluation.to_dict(),
            **(self.pronouns.to_dict() if self.pronouns else {}),
        }

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
            *self._trained_on(),
            *(f"  {remark}" for remark in [Ends(self.evaluation.translations).remark()] if remark),
            *(f"  {key:<12} {value}" for key, value in values.items()),
            *(self.pronouns.lines() if self.pronouns else []),
        ]

    def _trained_on(self) -> list[str]:
        """A line about pairs that were learned from, or that these are not known; none where there are none."""
        if self.trained is None:
            return ["  not known which pairs were trained on"]
        if not self.trained:
            return []
        which = (
            "these pairs were"
            if self.trained == self.evaluation.scores.count
            else f"{self.trained:,} of these pairs were"
        )
        return [f"  {which} trained on, so the figures are better than those of new sentences"]


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


Counting = Callable[[int], AbstractContextManager[Callable[[int], None] | None]]
"""From the number of sentences, a context that gives a function to be called with how many more are done."""


def uncounted(total: int) -> AbstractContextManager[None]:
    """Progress that is not shown."""
    return nullcontext()


def evaluate_run(
    run: str | Path,
    test: Sequence[str | Path] = (),
    *,
    tell: Tell = silent,
    counting: Counting = uncounted,
    **search: Any,
) -> RunScores:
    """Score the best model of a run, or a saved one: BLEU, chrF, exact match and perplexity.

    Args:
        test: files of pairs; by default the run's own test split, where a run of the embedded corpus is also evaluated
            on what *it* refers to.
        search: beam, normalisation, alpha and share, as for `Translator.translate`.

    Raises:
        CheckpointError: no translator, or no test split.
        DataError: files that cannot be read.

    >>> evaluate_run("nowhere")
    Traceback (most recent call last):
    regard.errors.NotFoundError: nowhere does not exist; check the path, which is relative to the current folder
    """
    translator = Translator.load(run)
    if test:
        read = read_pairs(*test)
        tell(read.report())
        pairs, name = read.pairs, " + ".join(map(str, test))
    else:
        name = "the run's own test split"
        pairs = read_test(Path(run))
    with counting(len(pairs)) as progress:
        evaluation = evaluate(translator, pairs, progress=progress, **search)
    settings = read_settings(Path(run)) or {}
    pronouns = None
    if not test and settings.get("data") == [PRONOUNS]:
        pronouns = judge_pronouns(translator, int(settings.get("seed", 0)), **search)
    return RunScores(name, evaluation, pronouns, count_trained(Path(run), pairs))


def judge_pronouns(translator: Translator, seed: int, **search: Any) -> PronounReport:
    """Measure everything about *it* on the embedded corpus.

    Args:
        search: beam, normalisation, alpha and share, as for `Translator.translate`.
    """

    def translate(lines: list[str]) -> list[str]:
        return [translation.text for translation in translator.translate(lines, **search)]

    model, tokeniser = translator.model, translator.tokeniser
    test = make_split("test", PRONOUN_COUNTS["test"], seed)
    contrast = make_contrast_pairs(CONTRAST_PAIRS, seed)
    firsts = translate([first.source for first, _ in contrast])
    seconds = translate([second.source for _, second in contrast])
    head = agreement = None
    if isinstance(model, TranslationTransformer) and has_encoder_weights(model):
        head = choose_head(model, tokeniser, make_split("valid", PRONOUN_COUNTS["valid"], seed))
        agreement = referent_agreement(model, tokeniser, test, head)
    return PronounReport(
        pronouns=pronoun_accuracy(test, translate([sentence.source for sentence in test])),
        baseline=majority_baseline(test),
        contrast=contrast_accuracy(contrast, list(zip(firsts, seconds, strict=True))),
        swaps=swap_check(translate, test[:SWAPS], seed),
        head=head,
        agreement=agreement,
    )


@dataclass(frozen=True)
class TextScores:
    """The loss of a language model on a text, in nats an id; `learned_from` are those of the files it was trained on.

    >>> scores = TextScores("new.txt", loss=2.0, ids=300, characters=1000, block=64)
    >>> round(scores.perplexity, 3), round(scores.bits_per_character, 3)
    (7.389, 0.866)
    """

    name: str
    loss: float
    ids: int
    characters: int
    block: int
    learned_from: tuple[str, ...] = ()

    @property
    def perplexity(self) -> float:
        """`exp(loss)`, per id; that of a model that has learned nothing is the size of its vocabulary."""
        return math.exp(min(self.loss, 700.0))

    @property
    def bits_per_character(self) -> float:
        """`loss · ids / (characters · ln 2)`, which can be compared across tokenisers."""
        return self.loss * self.ids / (self.characters * math.log(2))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "test": self.name, **{key: value for key, value in asdict(self).items() if key != "name"},
            "perplexity": self.perplexity, "bits_per_character": self.bits_per_character,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Everything in lines of text."""
        values = {
            "loss": f"{self.loss:.4f} nats per id",
            "perplexity": f"{self.perplexity:.3f} per id",
            "bits": f"{self.bits_per_character:.3f} per character",
        }
        learned = f"  {' + '.join(self.learned_from)}: trained on, so the figures are better than those of a new text"
        return [
            f"{count_of(self.characters, 'characters', ',')} of {self.name}, {count_of(self.ids, 'ids', ',')} in "
            f"blocks of up to {count_of(self.block, 'ids', ',')}",
            *([learned] if self.learned_from else []),
            *(f"  {key:<12} {value}" for key, value in values.items()),
        ]


@torch.inference_mode()
def evaluate_text(
    run: str | Path, texts: Sequence[str | Path], *, tell: Tell = silent, share: SharedWork | None = None
) -> TextScores:
    """The loss of a language model on texts, cut into blocks as those that it was validated on.

        loss = -Σ log p(id | BEGIN, the ids before it in its block) / ids

    The END of each document counts among the ids.

    Args:
        texts: UTF-8 files, or .jsonl files with a "text" in each line.
        share: divides the batches among processes, see `regard_lab.decoding.sharing`; each returns the same scores.

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
    task = LanguageTask(read.texts[:1], read.texts, tokeniser, block=block, batch_tokens=max(block, 2048))
    rank, processes = (0, 1) if share is None else (share.rank, share.count)
    own = []
    for number, batch in enumerate(task.validation_batches()):
        if number % processes == rank:
            loss, count = task.loss(model, batch)
            own.append((number, float(loss), count))
    found = own if share is None else sorted(share.gathered(own))  # summed in the order of one process
    total, ids = sum(loss for _, loss, _ in found), sum(count for _, _, count in found)
    learned = {Path(path).resolve() for path in settings.get("data", ())}
    return TextScores(
        " + ".join(map(str, texts)), total / ids, ids, read.characters, block,
        tuple(str(path) for path in texts if Path(path).resolve() in learned),
    )  # fmt: skip
