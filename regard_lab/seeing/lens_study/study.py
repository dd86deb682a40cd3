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
from typing import Any

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
from regard_lab.seeing.lenses import Contrast, explain_contrasts, log_odds
from regard_lab.seeing.lenses.contrast import Batch, by_batch, run
from regard_lab.seeing.lenses.erasing import Erased, erased
from regard_lab.seeing.lenses.explaining import DEFAULT
from regard_lab.seeing.referents import HeadChoice, choose_head, it_weights
from regard_lab.seeing.watching import in_eval_mode
from regard_lab.text.pronouns import PronounSentence, make_split
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
            named = {"it": "encoder (attention of *it*)", "cross": "cross-attention"}
            heads = "; ".join(
                f"{named[kind]}: layer {layer}, head {head}"
                for kind, (layer, head) in self.heads.items()
            )
            yield f"Heads chosen on validation sentences, counted from 0: {heads}."

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
    for name, words in SWAPS.items():
        cells = (
            f"{routes[kind][name]:.3f}" if name in routes[kind] else "-"
            for kind in ("last", "first")
        )
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


def agreement(
    known: Sequence[KnownSentence], relevances: Sequence[Sequence[float]]
) -> tuple[float, float, float]:
    """How well relevances of the source words of each sentence find the cause of its pronoun.

    Returns:
        The share of sentences whose word of the largest relevance, except *it*, is the referent; the share in which the
        referent has a larger relevance than the other noun, where a tie does not count; and the share whose word of the
        largest relevance, except *it*, is the referent or the adjective.
    """
    top = order = cause = 0
    for one, values in zip(known, relevances, strict=True):
        best = max(
            (place for place in range(len(values)) if place != one.it), key=values.__getitem__
        )
        top += best == one.referent
        order += values[one.referent] > values[one.other]
        cause += best in (one.referent, one.adjective)
    return top / len(known), order / len(known), cause / len(known)


@torch.no_grad()
def deletion(
    translator: Translator, known: Sequence[KnownSentence], relevances: Sequence[Sequence[float]]
) -> float:
    """The mean fall of the pronoun's probability without the words of the largest relevance.

        mean over sentences and k = 1 ... DELETED of p(all) - p(without the k words of the largest relevance)

    The words are replaced in the embeddings by the mean of the sentence's words; p is among the three pronouns.
    """
    ranked = {
        id(one.contrast): sorted(range(len(row)), key=lambda place, row=row: -row[place])
        for one, row in zip(known, relevances, strict=True)
    }

    def falls(contrasts: list[Contrast], batch: Batch) -> list[float]:
        before = run(translator.model, batch).sigmoid()
        wanted = [
            Erased(
                row,
                "source",
                tuple(at for place in ranked[id(one)][:count] for at in one.source_words[place][1]),
            )
            for row, one in enumerate(contrasts)
            for count in range(1, DELETED + 1)
        ]
        after = erased(translator.model, batch, wanted).sigmoid().view(len(contrasts), DELETED)
        return (before - after.mean(1)).tolist()

    with in_eval_mode(translator.model):
        found = by_batch(translator.model, [one.contrast for one in known], falls)
    return math.fsum(found) / len(found)


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
    return agreement(known, _explained(translator, DEFAULT, known, sides=("source",))[0])[1]


SENTENCES = 200  # of the test split
CHOOSING = 200  # validation sentences by which heads are chosen
# By sentence and source word; passes and backward passes each.
Relevances = tuple[list[Sequence[float]], float, float]
Lens = Callable[[Sequence[KnownSentence]], Relevances]


def study_lenses(
    translator: Translator,
    *,
    sentences: int = SENTENCES,
    seed: int = 0,
    out: Path | None = None,
    name: str = "RUN",
    tell: Callable[[str], None] = lambda line: None,
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
    routes = (
        None
        if not any(one.as_grammar for one in known)
        else measure_routes(translator, known, seed)
    )
    chosen = (
        []
        if routes is None
        else [one for one, sure in zip(known, routes.verified, strict=True) if sure]
    )
    if routes is None or not chosen:
        raise ArgumentError(
            f"of {count_of(len(test), 'test sentences')}, {len(known)} have the right pronoun and 0 a cause that "
            f"swaps verify; lenses are measured on {LEARNED}"
        )
    versions = (
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
    )
    report = LensReport(
        name,
        weights_hash(translator),
        len(test),
        seed,
        right=len(known),
        agreement=lens_agreement(translator, test),
        routes=routes.to_dict(),
        machine=f"{versions}, {count_of(torch.get_num_threads(), 'threads')}",
    )
    for lens, compute in lenses_of(translator, report, seed, tell).items():
        tell(f"{LENS_ROWS[lens]} ...")
        relevances, passes, backward_passes = compute(chosen)
        shares = [*agreement(chosen, relevances), deletion(translator, chosen, relevances)]
        row = dict(zip(COLUMNS, shares, strict=True)) | {
            "passes": passes,
            "backward_passes": backward_passes,
        }
        report.rows[lens] = {column: round(float(value), 3) for column, value in row.items()}
    report.save(out)
    return report


def lenses_of(
    translator: Translator, report: LensReport, seed: int, tell: Callable[[str], None]
) -> dict[str, Lens]:
    """The lenses that a translator has, by the keys of `LENS_ROWS`; heads are chosen on validation sentences."""
    model = translator.model
    lenses: dict[str, Lens] = {"random": partial(_random, seed)}
    attends = not isinstance(model, RecurrentTranslator) or model.config.attention != "none"
    if attends:
        tell("choosing heads on validation sentences ...")
        valid = known_sentences(translator, make_split("valid", CHOOSING, seed))
        report.heads = choose_heads(translator, valid)
    if isinstance(model, TranslationTransformer):
        lenses["it"] = partial(_attention_of_it, translator, report.heads["it"])
    if attends:
        lenses["cross"] = partial(_explained, translator, "attention")
        lenses["cross_head"] = partial(
            _explained, translator, "attention", head=tuple(report.heads["cross"])
        )
    if isinstance(model, TranslationTransformer):
        lenses["rollout"] = partial(_explained, translator, "rollout")
    lenses["erase"] = partial(_explained, translator, "erase", sides=("source",))
    lenses["gradients"] = partial(_explained, translator, "gradients", sides=("source",))
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
    shape = (1, 1)
    heads = {}
    if isinstance(model, TranslationTransformer):
        sentences = [one.sentence for one in valid]
        best = (
            choose_head(model, translator.tokeniser, sentences) if valid else HeadChoice(0, 0, 0.0)
        )
        heads["it"], shape = (
            [best.layer, best.head],
            (model.config.decoder_layers, model.config.heads),
        )

    def on_top(head: tuple[int, ...]) -> float:
        return agreement(valid, _explained(translator, "attention", valid, head=head)[0])[0]

    heads["cross"] = [*max(product(*map(range, shape)), key=on_top)] if valid else [0, 0]
    return heads


def _random(seed: int, known: Sequence[KnownSentence]) -> Relevances:
    draw = random.Random(f"lenses {seed}")
    return [[draw.random() for _ in one.contrast.source_words] for one in known], 0, 0


def _attention_of_it(
    translator: Translator, head: Sequence[int], known: Sequence[KnownSentence]
) -> Relevances:
    looks = it_weights(translator.model, translator.tokeniser, [one.sentence for one in known])
    layer, number = head
    return [look.weights[layer, number].tolist() for look in looks], 1, 0


def _explained(
    translator: Translator, lens: str, known: Sequence[KnownSentence], **options: object
) -> Relevances:
    contrasts = [one.contrast for one in known]
    records = explain_contrasts(translator.model, translator.tokeniser, contrasts, lens, **options)  # ty: ignore[invalid-argument-type]
    passes = sum(record.passes for record in records) / len(records)
    backward_passes = sum(record.backward_passes for record in records) / len(records)
    return [record.source_scores for record in records], passes, backward_passes


def _noun_swap(translator: Translator, seed: int, known: Sequence[KnownSentence]) -> Relevances:
    """The fall of the log odds when a noun of the source is replaced by one of the third gender; other words have 0."""
    versions = [swapped(translator.tokeniser, one, seed) for one in known]
    odds = [
        log_odds(translator.model, [version[name] for version in versions])
        for name in ("nothing", "source", "other")
    ]
    relevances: list[Sequence[float]] = []
    for one, before, referent, other in zip(known, *odds, strict=True):
        values = [0.0] * len(one.contrast.source_words)
        values[one.referent], values[one.other] = before - referent, before - other
        relevances.append(values)
    return relevances, 3, 0


def weights_hash(translator: Translator) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all parameters."""
    digest = hashlib.sha256()
    for name, tensor in sorted(translator.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(
            tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:16]
