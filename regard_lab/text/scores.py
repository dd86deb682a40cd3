"""BLEU, chrF and exact matches of translations, with the settings that make them comparable."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from regard.arguments import a_list
from regard.errors import ArgumentError
from regard.packages import needed
from regard_lab.text.cleaning import APOSTROPHES, UNSPACED, drop_invisible, normalise


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

    All three compare the texts after `drop_invisible` and `normalise`, outputs and references alike, so that they agree
    on which texts are equal: two texts that differ only in white space, in soft hyphens or in the form of an apostrophe
    are. BLEU and chrF are those of
    sacreBLEU for the whole corpus, with its default settings; the signatures name them, and `apostrophes:straight` if
    a text has typographic apostrophes, with which sacreBLEU alone gives another number. References without spaces
    between words are compared letter by letter: `tok:zh` for Chinese, otherwise `tok:char`.

    Raises:
        ArgumentError: no sentences, unequal numbers, or values that are not strings.
        MissingPackageError: `sacrebleu` is not installed.

    Source: Papineni et al. 2002 (BLEU); Popović 2015 (chrF); Post 2018 (sacreBLEU).

    >>> scores = score(["Das Tier war müde .", "Es sang"], ["Das Tier war müde .", "Sie sang"])
    >>> scores.exact_match, scores.count, scores.bleu_signature.split("|")[0]
    (0.5, 2, 'nrefs:1')
    """
    needs = "a list of strings, one for each sentence"
    outputs = a_list("outputs", outputs, str, needs)
    references = a_list("references", references, str, needs)
    if len(outputs) != len(references) or not outputs:
        raise ArgumentError(
            f"{len(outputs)} outputs and {len(references)} references were given; give equally many, and at least one"
        )

    typographic = any(text.translate(APOSTROPHES) != text for text in (*outputs, *references))
    outputs = [_as_compared(text) for text in outputs]
    references = [_as_compared(text) for text in references]
    with needed("sacrebleu", "BLEU and chrF"):
        from sacrebleu.metrics import BLEU, CHRF

    # With `force` nothing is remarked about texts that look tokenised.
    bleu = BLEU(tokenize=_word_splitter(references), force=True)
    chrf = CHRF()
    matches = sum(output == wanted for output, wanted in zip(outputs, references, strict=True))
    note = "|apostrophes:straight" if typographic else ""
    return Scores(
        bleu=_percent(bleu.corpus_score(outputs, [references]).score),
        bleu_signature=f"{bleu.get_signature()}{note}",
        chrf=_percent(chrf.corpus_score(outputs, [references]).score),
        chrf_signature=f"{chrf.get_signature()}{note}",
        exact_match=matches / len(outputs),
        count=len(outputs),
    )


def score_each(outputs: Sequence[str], references: Sequence[str]) -> list[dict[str, float | bool]]:
    """BLEU, chrF and exact match of each translation with its reference, both after `normalise`, one by one.

    BLEU is the sentence BLEU of sacreBLEU, which counts only the orders of n-grams that the sentence has and smooths
    the others; a mean of it is not the BLEU of a corpus. Raises as `score`.

    >>> score_each(["Das Tier war müde ."], ["Das Tier war müde ."])
    [{'bleu': 100.0, 'chrf': 100.0, 'exact_match': True}]
    """
    score(outputs, references)  # refuses what cannot be compared
    from sacrebleu.metrics import BLEU, CHRF

    outputs = [_as_compared(text) for text in outputs]
    references = [_as_compared(text) for text in references]
    bleu = BLEU(tokenize=_word_splitter(references), effective_order=True)
    chrf = CHRF()
    measures: list[dict[str, float | bool]] = []
    for output, wanted in zip(outputs, references, strict=True):
        measures.append(
            {
                "bleu": _percent(bleu.sentence_score(output, [wanted]).score),
                "chrf": _percent(chrf.sentence_score(output, [wanted]).score),
                "exact_match": output == wanted,
            }
        )
    return measures


def _as_compared(text: str) -> str:
    return normalise(drop_invisible(text))


def _word_splitter(references: Sequence[str]) -> str:
    """How sacreBLEU splits texts into words, by the letters of the references.

    >>> _word_splitter(["Datei %s fehlt"]), _word_splitter(["无法打开文件 %s"]), _word_splitter(["ファイル"])
    ('13a', 'zh', 'char')
    """
    text = "".join(references)
    letters = sum(map(str.isalpha, text))
    unspaced = UNSPACED.findall(text)
    if 3 * len(unspaced) <= letters:
        return "13a"
    chinese = sum("\u3400" <= letter <= "\u9fff" for letter in unspaced)
    return "zh" if 2 * chinese > len(unspaced) else "char"


def _percent(value: float) -> float:
    return min(value, 100.0)  # a perfect BLEU is computed as 100.00000000000004
