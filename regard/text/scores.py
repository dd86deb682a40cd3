"""BLEU, chrF and exact matches of translations, with the settings that make them comparable."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from regard.arguments import a_list
from regard.errors import ArgumentError
from regard.text.lines import normalise
from regard.text.packages import needed


@dataclass(frozen=True)
class Scores:
    """Quality of `count` translations: BLEU and chrF from 0 to 100, exact matches from 0 to 1."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    count: int

    def to_dict(self) -> dict[str, float | int | str]:
        """The measures as JSON values."""
        return asdict(self)


def score(outputs: Sequence[str], references: Sequence[str]) -> Scores:
    """Compare translations with one reference each: BLEU, chrF and exact matches.

    BLEU and chrF are those of sacreBLEU for the whole corpus, with its default settings on the texts as given; the
    signatures name the settings. Two texts match exactly if they are equal after `normalise`.

    Raises:
        ArgumentError: no sentences, unequal numbers, or values that are not strings.
        MissingPackageError: `sacrebleu` is not installed.

    Source: Papineni et al. 2002 (BLEU); Popović 2015 (chrF); Post 2018 (sacreBLEU).

    >>> scores = score(["Das Tier war müde .", "Es sang"], ["Das Tier war müde .", "Sie sang"])
    >>> scores.exact_match, scores.count, scores.bleu_signature.split("|")[0]
    (0.5, 2, 'nrefs:1')
    """
    needs = "a list of strings, one for each sentence"
    outputs, references = a_list("outputs", outputs, str, needs), a_list("references", references, str, needs)
    if len(outputs) != len(references) or not outputs:
        raise ArgumentError(
            f"{len(outputs)} outputs and {len(references)} references were given; give equally many, and at least one"
        )
    with needed("sacrebleu", "BLEU and chrF"):
        from sacrebleu.metrics import BLEU, CHRF

    bleu, chrf = BLEU(force=True), CHRF()  # force: no remark on texts that look tokenised
    matches = sum(normalise(out) == normalise(ref) for out, ref in zip(outputs, references, strict=True))
    return Scores(
        bleu=_percent(bleu.corpus_score(outputs, [references]).score),
        bleu_signature=str(bleu.get_signature()),
        chrf=_percent(chrf.corpus_score(outputs, [references]).score),
        chrf_signature=str(chrf.get_signature()),
        exact_match=matches / len(outputs),
        count=len(outputs),
    )


def _percent(value: float) -> float:
    return min(value, 100.0)  # a perfect BLEU is computed as 100.00000000000004
