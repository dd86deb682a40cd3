"""`regard heads`: which heads of a model matter, by replacing what one at a time returns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.arguments import suggest
from regard.errors import ArgumentError, UnsupportedError
from regard_lab.cli.console import StoppedError, check_name, counting, note, out_result
from regard_lab.cli.options import Json, Run, default
from regard_lab.cli.running import load_hugging_face, open_model, read_texts
from regard_lab.cli.translate import Instead, Place, check_goes_with_why, words_instead
from regard_lab.conversion.folders import is_hugging_face
from regard_lab.decoding import Translator
from regard_lab.models import LanguageModel, TextEncoder
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing.heads import HeadEffects, ablate, draw_head_effects, head_scores, patch
from regard_lab.seeing.heads.effects import BY
from regard_lab.seeing.lens_study import known_sentences
from regard_lab.seeing.lens_study.known import swapped
from regard_lab.seeing.lenses import find_contrast
from regard_lab.seeing.lenses.contrast import against_alternatives
from regard_lab.text.pronouns import make_split
from regard_lab.training.recipes.run_folder import read_test

MEASURES = {
    "loss": "the loss of the right words",
    "bleu": "BLEU of a translator",
    "pronoun": "log odds of the German pronoun of the built-in corpus",
    "noun": "those log odds, where a head is that of the sentence with another noun",
    "adjective": "those, with another adjective",
}


PATCHED = ("noun", "adjective")  # measured by patching


@dataclass(frozen=True)
class OpenedModel:
    """A model and its tokeniser; `translator` is set if the model translates."""

    model: Any
    tokeniser: Any
    translator: Translator | None = None

    @property
    def has_two_sides(self) -> bool:
        return self.translator is not None or bool(getattr(self.model, "translates", False))

    def contrast(self, text: str, of: str, others: tuple[str, ...], place: int | None) -> Any:
        """What the model chose for a text: the word of --why, against others."""
        source = None
        ids = self.tokeniser.encode(text) if isinstance(self.model, LanguageModel) else []
        if self.translator is not None:
            (translation,) = self.translator.translate([text])
            source = text
            ids = list(translation.ids)
        elif not isinstance(self.model, LanguageModel):
            from regard_lab.seeing.transformers.explaining import contrasts_of

            contrasts = contrasts_of(self.model, text, of, others, place=place)
            _, last = contrasts.popitem()
            return last
        if others:
            return find_contrast(self.tokeniser, source, ids, of, others, place)
        return against_alternatives(self.model, self.tokeniser, source, ids, of, place)


def heads(
    run: Run,
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="TEXT",
            help="Texts [default: a translator's own test split; else lines of standard input].",
            show_default=False,
        ),
    ] = None,
    measure: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help=f"{'; '.join(f'{name}: {what}' for name, what in MEASURES.items())}. [default: loss]",
        ),
    ] = None,
    by: Annotated[
        str, Option(metavar="NAME", help=f"What a head returns instead: {', '.join(BY)}.")
    ] = default(ablate, "by"),
    why: Annotated[
        str | None, Option(metavar="WORD", help="Measure the log odds of this word of the texts.")
    ] = None,
    instead: Instead = None,
    place: Place = None,
    head: Annotated[
        list[str] | None, Option(metavar="HEAD", help="Only this head, as in 'cross 1.2'; repeat.")
    ] = None,
    sentences: Annotated[int, Option(min=1, help="Sentences of the test split.")] = 100,
    seed: Annotated[int, Option(min=0, help="Decides the other text of --by resample.")] = default(
        ablate, "seed"
    ),
    picture: Annotated[
        Path | None, Option(metavar="FILE", help="Also draw the effects: PNG, SVG or PDF.")
    ] = None,
    footer: Annotated[bool, Option(help="Write below the picture how to read it.")] = True,
    as_json: Json = False,
) -> None:
    """Measure which heads of a model matter: what it loses when one of them is replaced."""
    check_goes_with_why(why, {"--instead": instead, "--place": place})
    if measure is not None and why:
        raise ArgumentError(f"--measure is {measure}, and --why measures log odds; leave one out")
    if measure is not None and (why is not None or measure not in MEASURES):
        raise ArgumentError(f"--measure {measure!r} does not exist; {suggest(measure, MEASURES)}")
    if picture is not None:
        check_name(picture)
    opened = _open(run)
    measure = measure or "loss"
    if why is not None and isinstance(opened.model, TextEncoder):
        raise ArgumentError(
            f"--why is for words that a model writes, and {run} holds an encoder; leave it out"
        )
    effects: HeadEffects | None = None  # of the texts so far

    def keep(effects_so_far: HeadEffects) -> None:
        nonlocal effects
        before = 0 if effects is None else effects.texts
        advance(effects_so_far.texts - before)
        effects = effects_so_far

    options: dict[str, Any] = {"heads": head, "progress": keep}
    try:
        contrasts = words_instead(instead)
        measured = _measured_texts(opened, run, texts, measure, sentences, why, contrasts, place)
        with counting("measuring", len(measured)) as advance:
            if measured and measure in PATCHED:
                patch(opened.model, opened.tokeniser, measured, **options)
            else:
                options |= {"by": by, "seed": seed}
                options["measure"] = "bleu" if measure == "bleu" else None
                ablate(opened.model, opened.tokeniser, measured, **options)
    except KeyboardInterrupt:
        if effects is None:
            raise
        out_result(as_json, effects.to_dict, effects.text)
        raise StoppedError(
            f"interrupted; the figures are those of {effects.texts} of {effects.asked} texts"
        ) from None

    assert effects is not None, "both functions tell their effects at least once"
    if not opened.has_two_sides and head is None:
        try:  # how much a head looks at the word before, and at what followed the same word earlier
            effects = replace(effects, scores=head_scores(opened.model, seed=seed))
        except UnsupportedError as error:
            note(f"no scores of attention: {error}")
    out_result(as_json, effects.to_dict, effects.text)
    if picture is not None:
        draw_head_effects(effects, picture, footer=footer)
        note(f"the effects are drawn in {picture}")


def _open(run: Path) -> OpenedModel:
    if is_hugging_face(run):
        model, tokenizer = load_hugging_face(run)
        from regard_lab.seeing.transformers import Pretrained

        return OpenedModel(Pretrained(model, tokenizer), tokenizer)
    model, tokeniser, _ = open_model(run)
    if isinstance(model, TranslationModel):
        return OpenedModel(model, tokeniser, Translator(model, tokeniser))
    return OpenedModel(model, tokeniser)


def _measured_texts(
    opened: OpenedModel,
    run: Path,
    texts: Sequence[str] | None,
    measure: str,
    sentences: int,
    why: str | None,
    others: tuple[str, ...],
    place: int | None,
) -> list[Any]:
    """What is measured: pairs of texts, texts, or contrasts; for patching, pairs of contrasts."""
    translator = opened.translator
    if measure in ("pronoun", *PATCHED):
        if translator is None or texts:
            raise ArgumentError(
                f"--measure {measure} is of translators of the built-in corpus, without TEXT"
            )
        known = known_sentences(translator, make_split("test", sentences))
        if measure == "pronoun":
            return [sentence.contrast for sentence in known]
        changed = "source" if measure == "noun" else measure
        pairs = []
        for sentence in known:
            swaps = swapped(translator.tokeniser, sentence)
            contrast = sentence.contrast
            # a head is patched place by place, so both sources have equally many ids
            if changed in swaps and len(swaps[changed].source) == len(contrast.source):
                pairs.append((swaps[changed], contrast))
        return pairs
    if translator is not None and not texts and why is None:
        return read_test(run)[:sentences]

    written = []
    for chunk in read_texts(texts, "text"):
        written += [text for text in chunk if text.strip()]
    if why is not None:
        return [opened.contrast(text, why, others, place) for text in written]
    if translator is not None:
        translations = translator.translate(written)
        return [(translation.source, translation.text) for translation in translations]
    return written
