"""How well a translator translates: new sentences, and on the embedded corpus what *it* refers to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.arguments import count_of
from regard_lab.decoding import Evaluation, Translator, evaluate
from regard_lab.decoding.translator import Ends, Translation, rows_of
from regard_lab.models import TranslationTransformer
from regard_lab.seeing.looks import words_away
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
from regard_lab.text.pronouns import (
    contrast_accuracy,
    majority_baseline,
    make_contrast_pairs,
    make_split,
    pronoun_accuracy,
)
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.translation_data import PRONOUN_COUNTS, PRONOUNS
from regard_lab.training.recipes.evaluation.counting import (
    Counting,
    telling_what_was_done,
    uncounted,
)
from regard_lab.training.recipes.evaluation.lines import (
    OWN_TEST,
    exact_matches,
    learning_lines,
    named_lines,
    rate,
    training_lines,
)
from regard_lab.training.recipes.run_folder import (
    LearnedLoss,
    count_trained,
    memory_settings,
    read_settings,
    read_test,
)

CONTRAST_PAIRS = 300
SWAPS = 300


@dataclass(frozen=True)
class PronounReport:
    """The rates on test sentences whose pairs of nouns never occurred in training.

    `head` and `agreement` are None for recurrent translators, which have no self-attention for *it* to look with.
    """

    pronouns: float
    baseline: float
    contrast: float
    swaps: SwapCheck
    head: HeadChoice | None = None
    agreement: Agreement | None = None

    def to_dict(self) -> dict[str, Any]:
        """The rates, 0 to 1, as JSON values."""
        rates: dict[str, Any] = {
            "pronoun_accuracy": self.pronouns,
            "majority_baseline": self.baseline,
            "contrast_accuracy": self.contrast,
        }
        if self.head is not None and self.agreement is not None:
            rates |= {
                "referent_agreement": self.agreement.agreement,
                "referent_preference": self.agreement.preference,
                "referent_chance": self.agreement.chance,
                "referent_offset": self.agreement.offset,
                "referent_by_offset": self.agreement.by_offset,
                "referent_head": {"layer": self.head.layer, "head": self.head.head},
            }
        return rates | {"swap_followed": self.swaps.followed, "swap_kept": self.swaps.kept}

    def lines(self) -> list[str]:
        """The rates in lines of text."""
        followed = rate(self.swaps.followed)
        kept = rate(self.swaps.kept)
        return [
            f"  pronouns     {rate(self.pronouns)} right; the commonest pronoun alone would get {rate(self.baseline)}",
            f"  contrast     {rate(self.contrast)} of pairs with one word changed have both pronouns right",
            *self._agreement_lines(),
            f"  swap         {followed} of pronouns follow when another gender's noun takes its place,",
            f"               {kept} stay when the other noun is swapped instead",
        ]

    def _agreement_lines(self) -> list[str]:
        """What *it* looks at, where it looks."""
        if self.head is None or self.agreement is None:
            return []
        head = f"encoder layer {self.head.layer}, head {self.head.head}, from 0, chosen on validation sentences"
        most = rate(self.agreement.agreement)
        more = rate(self.agreement.preference)
        return [
            f"  agreement    {most} of *it* look most at their noun, {more} more than at the other noun;",
            f"               always the word {words_away(self.agreement.offset)} {rate(self.agreement.by_offset)}, "
            f"chance {rate(self.agreement.chance)}",
            f"               ({head})",
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
    learned: LearnedLoss | None = None

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
        search = ", ".join(f"{key} {value}" for key, value in self.evaluation.settings.items())
        ends = Ends(self.evaluation.translations).remark()
        values = {
            "BLEU": f"{scores.bleu:.2f}   {scores.bleu_signature}",
            "chrF": f"{scores.chrf:.2f}   {scores.chrf_signature}",
            "exact match": exact_matches(scores.exact_match, scores.count),
            "perplexity": f"{self.evaluation.perplexity:.3f} per id",
        }
        placeholders = self.evaluation.placeholders()
        if placeholders.texts:
            share = rate(placeholders.kept / placeholders.texts)
            of_all = f"{placeholders.kept:,} of {count_of(placeholders.texts, 'translations', ',')}"
            values["placeholders"] = (
                f"{share}, {of_all} whose source has some keep each of them once"
            )
        lines = [
            f"{count_of(scores.count, 'sentences')} of {self.name}, {search}",
            *training_lines(self.trained, scores.count, "pairs", "new sentences"),
            *learning_lines(self.learned),
        ]
        if ends is not None:
            lines.append(f"  {ends}")
        lines += named_lines(values)
        if self.pronouns is not None:
            lines += self.pronouns.lines()
        return lines


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
    run = Path(run)
    name, pairs = _read_test_pairs(run, test, keep_placeholders, tell)
    settings = read_settings(run) or {}
    has_pronouns = not test and settings.get("data") == [PRONOUNS]

    done: dict[int, list[Translation]] = {}  # by the index of the pair

    def rows_so_far() -> list[dict[str, Any]]:
        indices = sorted(done)
        translations = [done[index][0] for index in indices]
        return rows_of(translations, [pairs[index].target for index in indices])

    pronouns = None
    with telling_what_was_done("sentences", len(pairs), done, rows_so_far):
        with counting(len(pairs)) as progress:
            evaluation = evaluate(translator, pairs, progress=progress, kept=done, **search)
        if has_pronouns:
            pronouns = judge_pronouns(translator, int(settings.get("seed", 0)), **search)
    trained = count_trained(run, pairs)
    return RunScores(name, evaluation, pronouns, trained, LearnedLoss.of_run(run))


def _read_test_pairs(
    run: Path, test: Sequence[str | Path], keep_placeholders: bool | None, tell: Tell
) -> tuple[str, list[Pair]]:
    """The name of the test, and its pairs."""
    if not test:
        return OWN_TEST, read_test(run)
    memory = memory_settings(run)
    if keep_placeholders is not None:
        memory["keep_placeholders"] = keep_placeholders
    read = read_pairs(*test, **memory)
    tell(read.report())
    return " + ".join(map(str, test)), read.pairs


def judge_pronouns(translator: Translator, seed: int, **search: Any) -> PronounReport:
    """Measure everything about *it* on the embedded corpus; `search` is what `Translator.translate` takes."""

    def translate(lines: list[str]) -> list[str]:
        return [translation.text for translation in translator.translate(lines, **search)]

    model = translator.model
    test = make_split("test", PRONOUN_COUNTS["test"], seed)
    contrast = make_contrast_pairs(CONTRAST_PAIRS, seed)
    firsts = translate([first.source for first, _ in contrast])
    seconds = translate([second.source for _, second in contrast])

    head = None
    agreement = None
    if isinstance(model, TranslationTransformer) and has_encoder_weights(model):
        valid = make_split("valid", PRONOUN_COUNTS["valid"], seed)
        head = choose_head(model, translator.tokeniser, valid)
        agreement = referent_agreement(model, translator.tokeniser, test, head)

    translations = translate([sentence.source for sentence in test])
    return PronounReport(
        pronouns=pronoun_accuracy(test, translations),
        baseline=majority_baseline(test),
        contrast=contrast_accuracy(contrast, list(zip(firsts, seconds, strict=True))),
        swaps=swap_check(translate, test[:SWAPS], seed),
        head=head,
        agreement=agreement,
    )
