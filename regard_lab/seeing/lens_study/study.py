"""The lens benchmark: sentences whose cause was verified on the trained model, every lens measured on them, the report.

The report is JSON, and Markdown to read.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.arguments import count_of, of_kind, whole
from regard.errors import ArgumentError, DataError
from regard.reprs import brief
from regard.storage.files import replace_file
from regard_lab.decoding import Translator
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.seeing.lens_study.known import (
    SWAPS,
    KnownSentence,
    known_sentences,
    measure_routes,
    swapped,
)
from regard_lab.seeing.lenses import Contrast, explain_contrasts
from regard_lab.seeing.lenses.contrast import ContrastBatch, by_batch, run
from regard_lab.seeing.lenses.erasing import Erased, erased
from regard_lab.seeing.lenses.explaining import DEFAULT, log_odds
from regard_lab.seeing.referents import choose_head, it_weights
from regard_lab.seeing.watching import in_eval_mode
from regard_lab.text.pronouns import PronounSentence, make_split
from regard_lab.text.remarks import Tell, silent
from regard_lab.text.translation_data import LEARNED

JSON = "lenses.json"
MARKDOWN = "lenses.md"
LENS_ROWS = {
    "random": "random relevance",
    "it": "raw attention of *it*, best encoder head",
    "cross": "raw cross-attention, mean of all heads",
    "cross_head": "raw cross-attention, best head",
    "rollout": "attention rollout",
    "erase": "erasure (default)",
    "gradients": "integrated gradients",
    "swap": "swap of the nouns (a reference that knows them)",
}
COLUMNS = {
    "top": "top word is the referent",
    "order": "referent above the other noun",
    "cause": "top word is referent or adjective",
    "deletion": "deletion",
}


@brief
@dataclass
class LensReport:
    """The figures of one run.

    Args:
        name: the run.
        weights: a hash of its parameters.
        sentences, seed: the test sentences that were translated.
        right: how many of them have the right pronoun.
        agreement: `lens_agreement` on all of those.
        heads: the chosen heads, [layer, head]: "it" of the encoder, "cross" of the decoder.
        routes: as `Routes.to_dict` gives them.
        rows: the shares of `COLUMNS` for each lens, by the keys of `LENS_ROWS`, and its passes through the model.
        machine: versions and threads.
    """

    name: str
    weights: str
    sentences: int
    seed: int
    right: int = 0
    agreement: float | None = None
    heads: dict[str, list[int]] = field(default_factory=dict)
    routes: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    machine: str = ""

    @property
    def count(self) -> int:
        """The number of sentences with a verified cause, on which the lenses are measured."""
        return int(self.routes["verified"])

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return asdict(self)

    @classmethod
    def load(cls, folder: Path) -> LensReport:
        """The report in a folder.

        Raises:
            DataError: there is none, or it is damaged.
        """
        try:
            return cls(**json.loads((folder / JSON).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{folder / JSON} is not a report of lenses: {error}") from error

    def save(self, folder: Path | None) -> None:
        """Write JSON and Markdown; a folder of None writes nothing."""
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"
        replace_file(folder / JSON, content.encode())
        replace_file(folder / MARKDOWN, ("\n".join(self.markdown()) + "\n").encode())

    def markdown(self) -> Iterator[str]:
        """The report in Markdown."""
        yield from ("# Lenses on a translator with known causes", "")
        yield from (f"- {sentence}" for sentence in self.summary())
        yield from (
            "",
            "## Swaps",
            "",
            "Mean probability of the written pronoun among *es*, *er* and *sie*.",
            "",
        )
        yield from routes_table(self.routes)
        yield from ("", "## Lenses", "")
        yield from lens_table(self.rows)
        yield from ("", self.legend, "", "## How it was measured", "")
        yield f"- Command: `regard lenses {self.name} --sentences {self.sentences} --seed {self.seed}`"
        yield f"- Hash of the model's weights: {self.weights}"
        yield f"- Versions: {self.machine}"

    def summary(self) -> Iterator[str]:
        """What was measured, in sentences."""
        yield (
            f"{self.right} of {count_of(self.sentences, 'test sentences')} have the right pronoun. "
            f"Swaps verify the cause of "
            f"{self.count}: the pronoun depends on the referent and on the adjective, and not on the other noun."
        )
        if self.agreement is not None:
            yield (
                f"Over all {self.right}, the share in which the default lens puts the referent above the other noun "
                f"is {self.agreement:.3f}."
            )
        if self.heads:
            stacks = {"it": "encoder (attention of *it*)", "cross": "cross-attention"}
            heads = []
            for kind, (layer, head) in self.heads.items():
                heads.append(f"{stacks[kind]}: layer {layer}, head {head}")
            yield f"Heads chosen on validation sentences, counted from 0: {'; '.join(heads)}."

    @property
    def legend(self) -> str:
        """What the columns of the lens table mean."""
        return (
            f"Shares of {count_of(self.count, 'sentences')}, with a standard error of at most "
            f"{0.5 / math.sqrt(self.count):.3f}. *It* itself does not count as the top word. Deletion: the mean fall "
            "of the pronoun's probability without the 1, 2, 3 and 4 words of largest relevance. Passes: forward + "
            "backward."
        )


def routes_table(routes: Mapping[str, Any]) -> Iterator[str]:
    """The routes as a Markdown table."""
    last, first = routes["counts"]
    yield f"| swapped | subordinate clause last ({last}) | first ({first}) |"
    yield "|---|---|---|"
    for swap, words in SWAPS.items():
        cells = []
        for order in ("last", "first"):
            shares = routes[order]
            cells.append(f"{shares[swap]:.3f}" if swap in shares else "-")
        yield f"| {words} | {' | '.join(cells)} |"


def lens_table(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The lenses as a Markdown table."""
    yield f"| lens | {' | '.join(COLUMNS.values())} | passes |"
    yield f"|---|{'---|' * len(COLUMNS)}---|"
    for name, row in rows.items():
        cells = " | ".join(f"{row[column]:.3f}" for column in COLUMNS)
        back = f" + {row['backward_passes']:.0f}" if row["backward_passes"] else ""
        yield f"| {LENS_ROWS[name]} | {cells} | {row['passes']:.0f}{back} |"


DELETED = 4  # words


class CauseShares(NamedTuple):
    """Shares of sentences.

    Args:
        top: the word of the largest relevance, except *it*, is the referent.
        order: the referent has a larger relevance than the other noun; a tie does not count.
        cause: the word of the largest relevance, except *it*, is the referent or the adjective.
    """

    top: float
    order: float
    cause: float


def agreement(known: Sequence[KnownSentence], relevances: Sequence[Sequence[float]]) -> CauseShares:
    """How well relevances of the source words of each sentence find the cause of its pronoun."""
    top = 0
    order = 0
    cause = 0
    for sentence, scores in zip(known, relevances, strict=True):
        places = [place for place in range(len(scores)) if place != sentence.it]
        best = max(places, key=scores.__getitem__)
        top += best == sentence.referent
        order += scores[sentence.referent] > scores[sentence.other]
        cause += best in (sentence.referent, sentence.adjective)
    count = len(known)
    return CauseShares(top / count, order / count, cause / count)


@torch.no_grad()
def deletion(
    translator: Translator, known: Sequence[KnownSentence], relevances: Sequence[Sequence[float]]
) -> float:
    """The mean fall of the pronoun's probability without the words of the largest relevance.

        mean over sentences and k = 1 ... DELETED of p(all) - p(without the k words of the largest relevance)

    The words are replaced in the embeddings by the mean of the sentence's words; p is among the three pronouns.
    """
    ranked: dict[int, list[int]] = {}  # places of words by contrast
    for sentence, scores in zip(known, relevances, strict=True):
        places = sorted(range(len(scores)), key=lambda place, scores=scores: -scores[place])
        ranked[id(sentence.contrast)] = places

    def falls(contrasts: list[Contrast], batch: ContrastBatch) -> list[float]:
        before = run(translator.model, batch).sigmoid()
        wanted = []
        for row, contrast in enumerate(contrasts):
            for count in range(1, DELETED + 1):
                ids: list[int] = []
                for place in ranked[id(contrast)][:count]:
                    ids += contrast.source_words[place][1]
                wanted.append(Erased(row, "source", tuple(ids)))
        after = erased(translator.model, batch, wanted).sigmoid().view(len(contrasts), DELETED)
        return (before - after.mean(1)).tolist()

    with in_eval_mode(translator.model):
        values = by_batch(translator.model, [sentence.contrast for sentence in known], falls)
    return math.fsum(values) / len(values)


def lens_agreement(translator: Translator, sentences: Sequence[PronounSentence]) -> float | None:
    """How often the default lens gives the referent of *it* a larger relevance than the other noun.

    The written pronoun is explained against the other two, over the source.

    Args:
        translator: a translator trained on the embedded corpus, of any kind.
        sentences: such as `make_split("test", 150)`.

    Returns:
        The share of the sentences whose pronoun is right; None if it is right in none. A random order has 0.5.
    """
    known = known_sentences(translator, sentences)
    if not known:
        return None
    measured = _explained(translator, DEFAULT, known, sides=("source",))
    return agreement(known, measured.relevances).order


SENTENCES = 200  # of the test split
CHOOSING = 200  # validation sentences by which heads are chosen


@dataclass(frozen=True)
class MeasuredLens:
    """A lens on some sentences.

    Args:
        relevances: by sentence and source word.
        passes, backward_passes: through the model, for each sentence.
    """

    relevances: list[Sequence[float]]
    passes: float
    backward_passes: float = 0


MeasureLens = Callable[[Sequence[KnownSentence]], MeasuredLens]


def study_lenses(
    translator: Translator,
    *,
    sentences: int = SENTENCES,
    seed: int = 0,
    out: Path | None = None,
    name: str = "RUN",
    tell: Tell = silent,
) -> LensReport:
    """Verify by swaps what the pronouns depend on, and measure each lens on the verified sentences.

    Args:
        translator: a translator trained on the embedded corpus.
        sentences: number of test sentences to translate.
        seed: of the corpus, the swaps and the random lens.
        out: the folder of the report.
        name: what the report calls the run.
        tell: called with a message before each lens.

    Returns:
        The report.

    Raises:
        ArgumentError: a translator that gets no pronoun right.
    """
    of_kind("translator", translator, Translator, "a Translator")
    whole("sentences", sentences, 1)
    test = make_split("test", sentences, seed)
    known = known_sentences(translator, test)
    routes = None
    chosen = []
    if any(sentence.as_grammar for sentence in known):
        routes = measure_routes(translator, known, seed)
        chosen = [sentence for sentence, sure in zip(known, routes.verified, strict=True) if sure]
    if routes is None or not chosen:
        raise ArgumentError(
            f"of {count_of(len(test), 'test sentences')}, {len(known)} have the right pronoun and 0 a cause that "
            f"swaps verify; lenses are measured on {LEARNED}"
        )

    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    threads = count_of(torch.get_num_threads(), "threads")
    report = LensReport(
        name=name,
        weights=weights_hash(translator),
        sentences=len(test),
        seed=seed,
        right=len(known),
        agreement=lens_agreement(translator, test),
        routes=routes.to_dict(),
        machine=f"{versions}, {platform.machine()}, {threads}",
    )
    for lens, measure in lenses_of(translator, report, seed, tell).items():
        tell(f"{LENS_ROWS[lens]} ...")
        measured = measure(chosen)
        row = agreement(chosen, measured.relevances)._asdict()
        row["deletion"] = deletion(translator, chosen, measured.relevances)
        row["passes"] = measured.passes
        row["backward_passes"] = measured.backward_passes
        report.rows[lens] = {column: round(float(value), 3) for column, value in row.items()}
    report.save(out)
    return report


def lenses_of(
    translator: Translator, report: LensReport, seed: int, tell: Tell
) -> dict[str, MeasureLens]:
    """The lenses that a translator has, by the keys of `LENS_ROWS`; heads are chosen on validation sentences."""
    model = translator.model
    attends = not isinstance(model, RecurrentTranslator) or model.config.attention != "none"
    self_attends = isinstance(model, TranslationTransformer)
    if attends:
        tell("choosing heads on validation sentences ...")
        valid = known_sentences(translator, make_split("valid", CHOOSING, seed))
        report.heads = choose_heads(translator, valid)

    explained = partial(_explained, translator)
    lenses: dict[str, MeasureLens] = {"random": partial(_random, seed)}
    if self_attends:
        lenses["it"] = partial(_attention_of_it, translator, report.heads["it"])
    if attends:
        cross_head = tuple(report.heads["cross"])
        lenses["cross"] = partial(explained, "attention")
        lenses["cross_head"] = partial(explained, "attention", head=cross_head)
    if self_attends:
        lenses["rollout"] = partial(explained, "rollout")
    lenses["erase"] = partial(explained, "erase", sides=("source",))
    lenses["gradients"] = partial(explained, "gradients", sides=("source",))
    lenses["swap"] = partial(_noun_swap, translator, seed)
    return lenses


def choose_heads(translator: Translator, valid: Sequence[KnownSentence]) -> dict[str, list[int]]:
    """The encoder head whose row of *it*, and the cross head whose row of the pronoun, most often has the referent
    on top.

    Args:
        translator: a translator with attention.
        valid: validation sentences, so that test sentences stay independent of the choice.
    """
    model = translator.model
    heads: dict[str, list[int]] = {}
    layers = 1
    heads_of_layer = 1
    if isinstance(model, TranslationTransformer):
        layers = model.config.decoder_layers
        heads_of_layer = model.config.heads
        heads["it"] = [0, 0]
        if valid:
            sentences = [known.sentence for known in valid]
            best = choose_head(model, translator.tokeniser, sentences)
            heads["it"] = [best.layer, best.head]

    def on_top(head: tuple[int, int]) -> float:
        measured = _explained(translator, "attention", valid, head=head)
        return agreement(valid, measured.relevances).top

    heads["cross"] = [0, 0]
    if valid:
        every_head = product(range(layers), range(heads_of_layer))
        heads["cross"] = list(max(every_head, key=on_top))
    return heads


def _random(seed: int, known: Sequence[KnownSentence]) -> MeasuredLens:
    draw = random.Random(f"lenses {seed}")
    relevances: list[Sequence[float]] = []
    for sentence in known:
        relevances.append([draw.random() for _ in sentence.contrast.source_words])
    return MeasuredLens(relevances, passes=0)


def _attention_of_it(
    translator: Translator, head: Sequence[int], known: Sequence[KnownSentence]
) -> MeasuredLens:
    sentences = [of_known.sentence for of_known in known]
    looks = it_weights(translator.model, translator.tokeniser, sentences)
    layer, number = head
    return MeasuredLens([look.weights[layer, number].tolist() for look in looks], passes=1)


def _explained(
    translator: Translator, lens: str, known: Sequence[KnownSentence], **options: object
) -> MeasuredLens:
    contrasts = [sentence.contrast for sentence in known]
    records = explain_contrasts(translator.model, translator.tokeniser, contrasts, lens, **options)  # ty: ignore[invalid-argument-type]
    return MeasuredLens(
        relevances=[record.source_scores for record in records],
        passes=sum(record.passes for record in records) / len(records),
        backward_passes=sum(record.backward_passes for record in records) / len(records),
    )


def _noun_swap(translator: Translator, seed: int, known: Sequence[KnownSentence]) -> MeasuredLens:
    """The fall of the log odds when a noun of the source is replaced by one of the third gender; other words have 0."""
    versions = [swapped(translator.tokeniser, sentence, seed) for sentence in known]

    def odds_after(swap: str) -> list[float]:
        return log_odds(translator.model, [of_sentence[swap] for of_sentence in versions])

    odds = zip(odds_after("nothing"), odds_after("source"), odds_after("other"), strict=True)
    relevances: list[Sequence[float]] = []
    for sentence, (before, without_referent, without_other) in zip(known, odds, strict=True):
        scores = [0.0] * len(sentence.contrast.source_words)
        scores[sentence.referent] = before - without_referent
        scores[sentence.other] = before - without_other
        relevances.append(scores)
    return MeasuredLens(relevances, passes=3)


def weights_hash(translator: Translator) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all parameters."""
    digest = hashlib.sha256()
    for name, tensor in sorted(translator.model.state_dict().items()):
        numbers = tensor.detach().cpu().contiguous().flatten()
        digest.update(name.encode())
        digest.update(numbers.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
