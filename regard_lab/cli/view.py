"""`regard view`: a sentence and a trained model in the explorer, as a local page or as a file."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from typer import Argument, Option

from regard.errors import ArgumentError, RegardError
from regard_lab.cli.app import in_quotes
from regard_lab.cli.console import check_name, counting, note, out
from regard_lab.cli.interrupts import heed_interrupts, leave, quiet_interrupts
from regard_lab.cli.options import Run
from regard_lab.cli.running import load_hugging_face, open_model
from regard_lab.cli.translate import (
    Instead,
    Place,
    check_goes_with_why,
    draw_translation,
    show_relevance,
    words_instead,
)
from regard_lab.conversion.folders import is_hugging_face
from regard_lab.decoding import Translator
from regard_lab.decoding.loading import seen_words_of
from regard_lab.models import LanguageModel
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing import LENSES, Relevance, draw_attention, draw_relevance, relevance
from regard_lab.seeing.explorer import explore_model, explore_text, explore_translation, to_page
from regard_lab.seeing.explorer.engine import reason_against
from regard_lab.seeing.explorer.records import ShownWalk
from regard_lab.seeing.explorer.server import ExplorerServer
from regard_lab.seeing.explorer.sources import Exploration, compared
from regard_lab.seeing.lenses.contrast import find_contrast, find_place
from regard_lab.seeing.lenses.explaining import check_options
from regard_lab.seeing.maps import check_attends
from regard_lab.text.cleaning import tidy, tidy_target
from regard_lab.text.pronouns import PRONOUNS, pronoun_of
from regard_lab.text.pronouns.lexicon import words_of_a_kind
from regard_lab.text.seen_words import SeenWords
from regard_lab.text.translation_data import PRONOUNS as PRONOUN_TASK
from regard_lab.training.recipes.classification import CLASSES_FILE
from regard_lab.training.recipes.run_folder import read_settings
from regard_lab.walkthrough.walks import walk_whole_run
from regard_lab.walkthrough.writing import shown_walk

MANY_WORDS = 60  # from here on, explaining them is announced as slow


@quiet_interrupts()  # nothing is lost: files are written whole
def view(
    run: Run,
    text: Annotated[
        str, Argument(metavar="TEXT", help="A sentence to translate, or a text to read.")
    ],
    export: Annotated[
        Path | None,
        Option(
            metavar="FILE.html", help="Write a page that needs no network, instead of serving it."
        ),
    ] = None,
    pictures: Annotated[
        list[Path] | None,
        Option(
            "--picture",
            "--png",
            "--svg",
            metavar="FILE",
            help="Draw attention, as PNG, SVG or PDF.",
        ),
    ] = None,
    why: Annotated[
        str | None, Option(metavar="WORD", help="The written word that is shown first.")
    ] = None,
    instead: Instead = None,
    lens: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Print what the word, or class, of --why depends on, by default the last word that the model "
            f"chose, where it reads one text: {', '.join(LENSES)}.",
        ),
    ] = None,
    place: Place = None,
    with_run: Annotated[
        Path | None,
        Option(
            "--with",
            metavar="RUN",
            help="Compare with another run, as before and after a conversion.",
        ),
    ] = None,
    second: Annotated[
        str | None,
        Option(
            metavar="TEXT", help="Compare with another sentence, of this run or that of --with."
        ),
    ] = None,
    with_model: Annotated[
        bool,
        Option(
            "--model/--no-model", help="Put the model into the page, which then computes by itself."
        ),
    ] = True,
    int8: Annotated[
        bool,
        Option(
            "--int8", help="Store its weights in 8 bits: a quarter of the size, and less exact."
        ),
    ] = False,
    port: Annotated[
        int, Option(min=0, max=65535, help="Port of the local page; 0 for a free one.")
    ] = 0,
    browser: Annotated[bool, Option("--open", help="Open the local page in a browser.")] = False,
) -> None:
    """Explore the attention of a trained model, and what each word that it wrote depends on, in a local page."""
    if not text.strip():
        raise ArgumentError("the TEXT is empty; give a sentence")
    if second is not None and not second.strip():
        raise ArgumentError("the sentence of --second is empty; give one, or leave it out")
    if export is not None:
        check_name(export, "page")
    for path in pictures or ():
        check_name(path)
    question = {"of": why, "instead_of": words_instead(instead), "place": place}
    if lens is not None:
        _print_relevance(run, text, lens, pictures or [], **question)
        return
    check_goes_with_why(why, {"--instead": instead, "--place": place})
    if int8 and not with_model:
        raise ArgumentError(
            "--int8 stores the model of the page, and --no-model leaves it out; give one of them"
        )
    opened = open_run(run, {} if why is None else question)
    for path in pictures or ():
        opened.draw(text, path)
    if export is None and pictures:
        return
    compares = with_run is not None or second is not None
    computes = with_model and not compares and not opened.unplayed
    if with_model and not computes:
        reason = opened.unplayed or "it compares, and pages that compare contain no model"
        note(f"the page is written without its model: {reason}")
    words = len(text.split())
    if not computes and words >= MANY_WORDS:
        note(
            f"the text has {words} words, which are read again many times to explain what is written; this may take "
            f"minutes. --picture draws the attention alone, in seconds"
        )
    general = replace(opened, asked={})  # for other texts, in which the word of --why may not occur
    compared_run = general if with_run is None else open_run(with_run)
    if compared_run.label != opened.label:
        raise ArgumentError(
            f"{run} and {with_run} cannot be compared: one translates, and the other does not"
        )

    def read(text: str, first: OpenedRun = general) -> Exploration:
        exploration = first.read(text)
        if not compares:
            return exploration
        title_parts = [] if with_run is None else [str(with_run)]
        if second is None:
            # the words of the first, so that both agree
            compared_exploration = compared_run.read(text, exploration)
        else:
            title_parts.append(tidy(second))
            compared_exploration = compared_run.read(second)
        return compared(exploration, compared_exploration, ": ".join(title_parts))

    is_counted = isinstance(opened, OpenedPretrained) and export is not None
    counted_model = opened.model if is_counted else None
    with counting("computing" if computes else "explaining words", model=counted_model):
        if computes:
            exploration = opened.play(text, "int8" if int8 else None)
        else:
            exploration = read(text, opened)
        page = None
        if export is not None:
            page = to_page(replace(exploration, walk=opened.walk(text)))

    if export is None or page is None:
        form: dict[str, Any] = {}
        if not computes:
            form = {"read": read, "text": text, "label": opened.label}
        _serve(ExplorerServer(exploration, walk=opened.walk, port=port, **form), browser)
        return
    page.save(export)
    if not computes:
        note(f"the page is {export}; it needs no network")
        return
    megabytes = f"{len(page.html) / 1e6:.1f} MB"
    contained = exploration.notes[0].removeprefix("This page contains the model: ")
    published, *_ = contained.split(". It ")
    note(f"the page is {export}, {megabytes}; it needs no network, and publishes its {published}")


def _print_relevance(
    run: Path, text: str, lens: Any, pictures: Sequence[Path], **asked: Any
) -> None:
    """Print what a word that a language model, or a model of transformers, chose depends on; draw it where asked."""
    check_options(lens)
    if is_hugging_face(run):
        with counting("explaining words"):
            model, tokenizer = load_hugging_face(run)
            from regard_lab.seeing.transformers import pretrained_relevance

            explained = pretrained_relevance(model, tokenizer, text, lens=lens, **asked)
    else:
        explained = _relevance_of_run(run, text, lens, **asked)
    show_relevance(explained)
    for path in pictures:
        draw_relevance(explained, path)
        note(f"the words with their relevance are drawn in {path}")


def _relevance_of_run(run: Path, text: str, lens: Any, of: str | None, **asked: Any) -> Relevance:
    """What a word of a text that a language model of regard_lab read depends on; by default the last word."""
    model, tokeniser, _ = open_model(run)
    if isinstance(model, TranslationModel):
        raise ArgumentError(
            f"--lens of view is for models that read one text, and {run} translates; "
            f"use: regard translate {run} {in_quotes(text)} --why WORD --lens {lens}"
        )
    if not isinstance(model, LanguageModel):
        raise ArgumentError(
            f"--lens explains a word that a model wrote, and {run} holds an encoder, which writes none; leave --lens "
            f"out to see its attention"
        )
    ids = tokeniser.encode(text)
    words = tokeniser.words(ids)
    if len(words) < 2:
        raise ArgumentError(
            "the text has one word, before which nothing was read; give a longer text"
        )
    if of is None:
        of, _ = words[-1]
        asked["place"] = len(words) - 1
    with counting("explaining words"):
        return relevance(model, tokeniser, None, ids, of, lens=lens, **asked)


@dataclass(frozen=True)
class OpenedRun:
    """A language model or an encoder that reads texts.

    Args:
        run: its folder.
        asked: `of`, `instead_of` and `place` of the word of --why; empty without --why.
        words, classes: as for `explore_model`.
    """

    run: Path
    model: Any
    tokeniser: Any
    asked: Mapping[str, Any] = field(default_factory=dict)
    words: SeenWords | None = None
    classes: Sequence[str] = ()
    label: ClassVar = "Text"

    @property
    def unplayed(self) -> str | None:
        """Why a page cannot contain the model; None if it can."""
        return reason_against(self.model)

    def play(self, text: str, precision: str | None) -> Exploration:
        """A page that contains the model."""
        return explore_model(
            self.model, self.tokeniser, text, self.words, classes=self.classes, precision=precision
        )

    def read(self, text: str, like: Exploration | None = None) -> Exploration:
        """What the page shows of a text; `like` is what another run makes of it."""
        return explore_text(self.model, self.tokeniser, text, title=tidy(text))

    def walk(self, text: str) -> ShownWalk:
        """Every step of the computation, or the reason why it cannot be shown."""
        try:
            return self.steps(text)
        except RegardError as error:
            return ShownWalk((), note=f"No walk-through can be shown: {error}.")

    def steps(self, text: str) -> ShownWalk:
        return shown_walk(walk_whole_run(self.run, text))

    def draw(self, text: str, path: Path) -> None:
        exploration = self.read(text)
        draw_attention(exploration, path, title=tidy(text))
        for attention in exploration.attentions:
            note(attention.says)
        note(f"the attention is drawn in {path}")


class OpenedTranslator(OpenedRun):
    """A translator, each of whose words is explained; first that of --why, or a German pronoun."""

    label: ClassVar = "Sentence"

    @cached_property
    def translator(self) -> Translator:
        return Translator(self.model, self.tokeniser, self.words)

    @cached_property
    def writes_pronouns(self) -> bool:
        """Whether the run learned German pronouns, of which one is then shown first."""
        try:
            settings = read_settings(self.run) or {}
        except (RegardError, OSError):  # which word is first is not worth an error
            return False
        return settings.get("data") == [PRONOUN_TASK]

    def pronoun(self, text: str, ids: Sequence[int]) -> dict[str, Any]:
        """The question about the pronoun of a translation, if its task asks it: what it stands for is not obvious."""
        pronoun = pronoun_of(text) if self.writes_pronouns else None
        words = [word.lower() for word, _ in self.tokeniser.words(list(ids))]
        # "sie-sie" is two words of it
        return {"of": pronoun} if pronoun and words.count(pronoun) == 1 else {}

    def play(self, text: str, precision: str | None) -> Exploration:
        (translation,) = self.translator.translate([text])
        first = None
        if self.asked:
            first = self._first_question(text, translation.ids)
        return explore_model(
            self.model,
            self.tokeniser,
            text,
            self.words,
            target_ids=translation.ids,
            precision=precision,
            asked=first,
            pronouns=PRONOUNS if self.writes_pronouns else (),
            alike=words_of_a_kind() if self.writes_pronouns else (),
        )

    def _first_question(self, text: str, ids: Sequence[int]) -> dict[str, Any]:
        """The word of --why, its place among the written words, and the words that it is compared with."""
        asked = self.asked
        place = find_place(self.tokeniser, text, ids, asked["of"], asked["place"])
        word, _ = self.tokeniser.words(list(ids))[place]
        if asked["instead_of"]:  # a word that cannot stand there is refused
            find_contrast(self.tokeniser, text, ids, **asked)
        return {"word": word, "place": place, "others": list(asked["instead_of"]) or None}

    def read(self, text: str, like: Exploration | None = None) -> Exploration:
        """The attention of a translation: its own or, beside another run, that of `like`, so that the words agree."""
        (translation,) = self.translator.translate([text])
        if not translation.ids:
            raise ArgumentError(
                f"the translation of {tidy(text)!r} is empty, so there is nothing to show; give another"
            )
        written = translation.text
        ids = translation.ids
        notes = ()
        if like is not None and like.written_text and like.written_text != written:
            notes = (f"This run would write: {tidy_target(written)}",)
            written = like.written_text
            ids = tuple(self.tokeniser.encode_target(like.written_text, text))
        exploration = explore_translation(
            self.model,
            self.tokeniser,
            text,
            ids,
            title=f"{tidy(text)} → {tidy_target(written)}",
            **(self.asked or self.pronoun(written, ids)),
        )
        return replace(exploration, notes=(*exploration.notes, *notes), written_text=written)

    def steps(self, text: str) -> ShownWalk:
        (translation,) = self.translator.translate([text])
        words = self.tokeniser.words(list(translation.ids))
        pronoun = self.pronoun(translation.text, translation.ids).get("of")
        place = None
        for word, ids in words:
            if word.lower() == pronoun:
                # the number, from 1, of the sub-word that was read last before it was written
                place = ids.start + 1
                break
        remark = ""
        if self.tokeniser.encode_target(translation.text, text) != list(translation.ids):
            place = None
            remark = (
                "When the translation is split into sub-words again, they differ from those that the model wrote; "
                "the steps use the new ones. "
            )
        walk = shown_walk(walk_whole_run(self.run, translation.text, context=text, word=place))
        return replace(walk, note=remark + walk.note)

    def draw(self, text: str, path: Path) -> None:
        (translation,) = self.translator.translate([text])
        draw_translation(self.translator, translation, None, path)


class OpenedPretrained(OpenedRun):
    """A model of Hugging Face."""

    unplayed: ClassVar = "pages compute models of regard_lab, and this is one of Hugging Face"

    def read(self, text: str, like: Exploration | None = None) -> Exploration:
        from regard_lab.seeing.transformers import explore_pretrained

        return explore_pretrained(
            self.model, self.tokeniser, text, title=tidy(text), changes=True, **self.asked
        )

    def walk(self, text: str) -> ShownWalk:
        return ShownWalk((), note="Walk-throughs of Hugging Face models are not supported.")


def open_run(run: Path, asked: Mapping[str, Any] | None = None) -> OpenedRun:
    """A training run, a saved model or a Hugging Face folder, ready to read texts.

    Args:
        run: its folder.
        asked: as for `OpenedRun`.
    """
    asked = asked or {}
    if is_hugging_face(run):
        return OpenedPretrained(run, *load_hugging_face(run), asked)
    model, tokeniser, saved = open_model(run)
    words = seen_words_of(saved, run)
    if isinstance(model, TranslationModel):
        check_attends(model)  # before any work
        return OpenedTranslator(run, model, tokeniser, asked, words)
    if asked:
        way = "leave it out"
        if isinstance(model, LanguageModel):
            way += ", or add --lens erase"
        raise ArgumentError(
            f"--why of a page is for translations, and {run} holds a {saved.kind}; {way}"
        )
    classes = json.loads(saved.extra_files.get(CLASSES_FILE, "[]"))
    return OpenedRun(run, model, tokeniser, asked, words, classes)


def _serve(server: ExplorerServer, browser: bool) -> None:
    heed_interrupts()
    try:
        with server:
            out(server.url)
            note("the page is served to this machine until Ctrl-C ends it")
            if browser:
                webbrowser.open(server.url)
            server.serve_forever()
    except KeyboardInterrupt:
        note("ended")
        leave(0)  # a sentence may still be read
