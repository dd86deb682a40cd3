"""The lens benchmark: sentences whose cause was verified on the trained model, and every lens measured on them."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from regard.arguments import count_of, of_kind, whole
from regard.errors import ArgumentError
from regard_lab.decoding import Translator
from regard_lab.models import RecurrentTranslator, TranslationTransformer
from regard_lab.seeing import it_weights
from regard_lab.seeing.lens_study.known import KnownSentence, known_sentences
from regard_lab.seeing.lens_study.report import LENS_ROWS, LensReport, begin_report
from regard_lab.seeing.lens_study.routes import measure_routes, swapped
from regard_lab.seeing.lens_study.scoring import LensRow, agreement, deletion, lens_agreement
from regard_lab.seeing.lenses import explain, log_odds
from regard_lab.text.pronouns import make_split
from regard_lab.text.translation_data import LEARNED

SENTENCES = 200  # of the test split
CHOOSING = 200  # validation sentences by which heads are chosen
Scores = tuple[list[Sequence[float]], float, float]  # by sentence and source word; passes and backward passes each
Lens = Callable[[Sequence[KnownSentence]], Scores]


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
        out: the folder of the report, written after each lens; one that was begun there for the same weights goes on.
        name: what the report calls the run.
        tell: called with a message before each lens.

    Returns:
        The report.

    Raises:
        ArgumentError: a translator that gets no pronoun right, or a folder with the report of another one.
    """
    of_kind("translator", translator, Translator, "a Translator")
    whole("sentences", sentences, 1)
    test = make_split("test", sentences, seed)
    known = known_sentences(translator, test)
    routes = None if not any(one.as_grammar for one in known) else measure_routes(translator, known, seed)
    chosen = [] if routes is None else [one for one, sure in zip(known, routes.verified, strict=True) if sure]
    if routes is None or not chosen:
        raise ArgumentError(
            f"of {count_of(len(test), 'test sentences')}, {len(known)} have the right pronoun and 0 a cause that "
            f"swaps verify; lenses are measured on {LEARNED}"
        )
    report = begin_report(out, name=name, weights=weights_hash(translator), sentences=len(test), seed=seed)
    report.right, report.routes = len(known), routes.to_dict()
    lenses = lenses_of(translator, report, seed, tell)
    for lens in lenses:
        if lens in report.rows:
            tell(f"{lens}: measured before")
            continue
        tell(f"{LENS_ROWS[lens]} ...")
        report.rows[lens] = measure(translator, chosen, lens, lenses[lens]).to_dict()
        report.save(out)
    report.agreement = lens_agreement(translator, test)
    report.save(out)
    return report


def measure(translator: Translator, known: Sequence[KnownSentence], name: str, lens: Lens) -> LensRow:
    """The row of one lens."""
    started = time.process_time()
    scores, passes, backward_passes = lens(known)
    spent = time.process_time() - started
    top, order, cause = agreement(known, scores)
    return LensRow(
        name=name, top=top, order=order, cause=cause, deletion=deletion(translator, known, scores),
        passes=float(passes), backward_passes=float(backward_passes), milliseconds=1000 * spent / len(known),
    )  # fmt: skip


def lenses_of(translator: Translator, report: LensReport, seed: int, tell: Callable[[str], None]) -> dict[str, Lens]:
    """The lenses that a translator has, by the keys of `LENS_ROWS`; heads are chosen on validation sentences."""
    model = translator.model
    lenses: dict[str, Lens] = {"random": partial(_random, seed)}
    attends = not isinstance(model, RecurrentTranslator) or model.config.attention != "none"
    if attends and not report.heads:
        tell("choosing heads on validation sentences ...")
        valid = known_sentences(translator, make_split("valid", CHOOSING, seed))
        report.heads = choose_heads(translator, valid)
    if isinstance(model, TranslationTransformer):
        lenses["it"] = partial(_attention_of_it, translator, report.heads["it"])
    if attends:
        lenses["cross"] = partial(_explained, translator, "attention")
        lenses["cross_head"] = partial(_explained, translator, "attention", head=tuple(report.heads["cross"]))
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
    heads = {}
    if isinstance(model, TranslationTransformer):
        layers, count = model.config.encoder_layers, model.config.heads
        heads["it"] = _best(valid, layers, count, lambda head: _attention_of_it(translator, head, valid))
        layers = model.config.decoder_layers
    else:
        layers = count = 1
    heads["cross"] = _best(
        valid, layers, count, lambda head: _explained(translator, "attention", valid, head=tuple(head))
    )
    return heads


def _best(valid: Sequence[KnownSentence], layers: int, count: int, lens: Callable[[list[int]], Scores]) -> list[int]:
    if not valid:
        return [0, 0]
    heads = [[layer, head] for layer in range(layers) for head in range(count)]
    return max(heads, key=lambda head: agreement(valid, lens(head)[0])[0])


def _random(seed: int, known: Sequence[KnownSentence]) -> Scores:
    draw = random.Random(f"lenses {seed}")
    return [[draw.random() for _ in one.contrast.source_words] for one in known], 0, 0


def _attention_of_it(translator: Translator, head: Sequence[int], known: Sequence[KnownSentence]) -> Scores:
    looks = it_weights(translator.model, translator.tokeniser, [one.sentence for one in known])
    layer, number = head
    return [look.weights[layer, number].tolist() for look in looks], 1, 0


def _explained(translator: Translator, lens: str, known: Sequence[KnownSentence], **options: object) -> Scores:
    contrasts = [one.contrast for one in known]
    records = explain(translator.model, translator.tokeniser, contrasts, lens, **options)  # ty: ignore[invalid-argument-type]
    passes = sum(record.passes for record in records) / len(records)
    backward_passes = sum(record.backward_passes for record in records) / len(records)
    return [record.source_scores for record in records], passes, backward_passes


def _noun_swap(translator: Translator, seed: int, known: Sequence[KnownSentence]) -> Scores:
    """The fall of the log odds when a noun of the source is replaced by one of the third gender; other words have 0."""
    versions = [swapped(translator.tokeniser, one, seed) for one in known]
    odds = [log_odds(translator.model, [version[name] for version in versions])
            for name in ("nothing", "source", "other")]  # fmt: skip
    scores: list[Sequence[float]] = []
    for one, before, referent, other in zip(known, *odds, strict=True):
        values = [0.0] * len(one.contrast.source_words)
        values[one.referent], values[one.other] = before - referent, before - other
        scores.append(values)
    return scores, 3, 0


def weights_hash(translator: Translator) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all parameters."""
    digest = hashlib.sha256()
    for name, tensor in sorted(translator.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
