"""`regard view`: a sentence and a trained model in the explorer, as a local page or as a file."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from regard.errors import ArgumentError, RegardError
from regard.packages import needed
from regard_lab.cli.console import check_name, counting, note, out
from regard_lab.cli.interrupts import heed_interrupts, leave, quiet_interrupts
from regard_lab.cli.options import Run
from regard_lab.cli.running import remark_on_training
from regard_lab.cli.translate import Instead, Place, check_goes_with_why, show_relevance, words_instead
from regard_lab.conversion.folders import is_hugging_face
from regard_lab.decoding import Translation, Translator
from regard_lab.decoding.loading import load_with_tokeniser, seen_words_of
from regard_lab.models import LanguageModel, TextEncoder
from regard_lab.models.kinds import TranslationModel
from regard_lab.seeing import LENSES, draw_attention, draw_maps, draw_relevance, look
from regard_lab.seeing.explorer import (
    Exploration,
    compared,
    explore_model,
    explore_text,
    explore_translation,
    reason_against,
    to_page,
)
from regard_lab.seeing.explorer.records import ShownWalk
from regard_lab.seeing.explorer.server import ExplorerServer
from regard_lab.seeing.lenses.contrast import find_contrast, find_place
from regard_lab.seeing.lenses.explaining import check_options
from regard_lab.seeing.maps import check_attends
from regard_lab.text import Tokeniser, tidy, tidy_target
from regard_lab.text.pronouns import PRONOUNS, pronoun_of
from regard_lab.training.recipes.classification import CLASSES_FILE
from regard_lab.walkthrough import shown_walk, walk_whole_run

MANY_WORDS = 60  # from here on, explaining them is announced as slow
Reading = Callable[[str, Exploration | None], Exploration]  # a text, and what another run makes of it


@quiet_interrupts()  # nothing is lost: files are written whole
def view(
    run: Run,
    text: Annotated[str, Argument(metavar="TEXT", help="A sentence to translate, or a text to read.")],
    export: Annotated[
        Path | None, Option(metavar="FILE.html", help="Write a page that needs no network, instead of serving it.")
    ] = None,
    pictures: Annotated[
        list[Path] | None,
        Option("--picture", "--png", "--svg", metavar="FILE", help="Draw attention, as PNG, SVG or PDF."),
    ] = None,
    why: Annotated[str | None, Option(metavar="WORD", help="The written word that is shown first.")] = None,
    instead: Instead = None,
    lens: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Of a Hugging Face folder: print what the word, or class, of --why depends on, by default the last "
            f"word that the model chose: {', '.join(LENSES)}.",
        ),
    ] = None,
    place: Place = None,
    with_run: Annotated[
        Path | None, Option("--with", metavar="RUN", help="Compare with another run, as before and after a conversion.")
    ] = None,
    second: Annotated[
        str | None, Option(metavar="TEXT", help="Compare with another sentence, of this run or that of --with.")
    ] = None,
    with_model: Annotated[
        bool, Option("--model/--no-model", help="Put the model into the page, which then computes by itself.")
    ] = True,
    int8: Annotated[
        bool, Option("--int8", help="Store its weights in 8 bits: a quarter of the size, and less exact.")
    ] = False,
    port: Annotated[int, Option(min=0, max=65535, help="Port of the local page; 0 for a free one.")] = 0,
    browser: Annotated[bool, Option("--open", help="Open the local page in a browser.")] = False,
) -> None:
    """Explore the attention of a trained model, and what each word that it wrote depends on."""
    if not text.strip():
        raise ArgumentError("the TEXT is empty; give a sentence")
    if second is not None and not second.strip():
        raise ArgumentError("the sentence of --second is empty; give one, or leave it out")
    if export is not None:
        check_name(export, "page")
    for path in pictures or ():
        check_name(path)
    if lens is not None:
        _print_relevance(run, text, lens, pictures or [], of=why, instead_of=words_instead(instead), place=place)
        return
    check_goes_with_why(why, {"--instead": instead, "--place": place})
    if int8 and not with_model:
        raise ArgumentError("--int8 stores the model of the page, and --no-model leaves it out; give one of them")
    opened = open_run(run, why, words_instead(instead), place)
    for path in pictures or ():
        _draw(opened, text, path)
    if export is None and pictures:
        return
    if with_model and with_run is None and second is None and opened.play is not None:
        with counting("computing"):
            exploration = opened.play(text, "int8" if int8 else None)
            page = None if export is None else to_page(replace(exploration, walk=opened.walk(text)))
        if export is not None and page is not None:
            page.save(export)
            held = f"its {exploration.notes[0].removeprefix('This page contains the model: ').split('. It ')[0]}"
            note(f"the page is {export}, {len(page.html) / 1e6:.1f} MB; it needs no network, and publishes {held}")
        else:
            _serve(ExplorerServer(exploration, walk=opened.walk, port=port), browser)
        return
    if with_model:
        other = "it compares, and pages that compare contain no model" if opened.play else opened.unplayed
        note(f"the page is written without its model: {other}")
    if (words := len(text.split())) >= MANY_WORDS:
        note(
            f"the text has {words} words, which are read again many times to explain what is written; this may take "
            f"minutes. --picture draws the attention alone, in seconds"
        )
    general = opened.without_question()
    other = general if with_run is None else open_run(with_run)
    if other.label != opened.label:
        raise ArgumentError(f"{run} and {with_run} cannot be compared: one translates, and the other does not")

    def read(text: str, first: OpenedRun = opened) -> Exploration:
        exploration = first.read(text, None)
        if with_run is None and second is None:
            return exploration
        title = ": ".join(str(part) for part in (with_run, second and tidy(second)) if part is not None)
        return compared(exploration, other.read(second or text, None if second else exploration), title)

    if export is not None:
        with counting("explaining words", model=opened.pretrained):
            page = to_page(replace(read(text), walk=opened.walk(text)))
        page.save(export)
        note(f"the page is {export}; it needs no network")
        return
    server = ExplorerServer(
        read(text), partial(read, first=general), walk=opened.walk, text=text, label=opened.label, port=port
    )
    _serve(server, browser)


def _print_relevance(run: Path, text: str, lens: Any, pictures: Sequence[Path], **asked: Any) -> None:
    """Print what a word that a model of transformers chose depends on, and draw it where asked."""
    check_options(lens)
    if not is_hugging_face(run):
        raise ArgumentError(f"--lens is for Hugging Face folders, and {run} is none; use regard translate --why")
    with needed("transformers", "a Hugging Face folder", "transformers"):
        from regard.integrations.transformers import load_folder
        from regard_lab.seeing.transformers import pretrained_relevance
    with counting("explaining words"):
        found = pretrained_relevance(*load_folder(run), text, lens=lens, **asked)
    show_relevance(found)
    for path in pictures:
        draw_relevance(found, path)
        note(f"the words with their relevance are drawn in {path}")


@dataclass(frozen=True)
class OpenedRun:
    """A run that reads texts.

    Args:
        play: makes a page that contains the model, of a text and a precision; None where `unplayed` says why not.
        pretrained: a model of Hugging Face.
    """

    run: Path
    label: str
    read: Reading
    translator: Translator | None
    play: Callable[[str, str | None], Exploration] | None = None
    unplayed: str = ""
    pretrained: Any = None

    def without_question(self) -> OpenedRun:
        """The run for other texts, in which the word of --why may not occur."""
        return self if self.translator is None else replace(self, read=_translating(self.translator, {}))

    def walk(self, text: str) -> ShownWalk:
        """Every step of the computation, or the reason why it cannot be shown."""
        try:
            if is_hugging_face(self.run):
                return ShownWalk((), note="Walk-throughs of Hugging Face models are not supported.")
            if self.translator is None:
                return shown_walk(walk_whole_run(self.run, text))
            (translation,) = self.translator.translate([text])
            tokeniser = self.translator.tokeniser
            place, remark = _reading_place(translation, tokeniser), ""
            if tokeniser.encode_target(translation.text) != list(translation.ids):
                place = None
                remark = (
                    "When the translation is split into sub-words again, they differ from those that the model wrote; "
                    "the steps use the new ones. "
                )
            walk = shown_walk(walk_whole_run(self.run, translation.text, context=text, word=place))
            return replace(walk, note=remark + walk.note)
        except RegardError as error:
            return ShownWalk((), note=f"No walk-through can be shown: {error}.")


def open_run(run: Path, why: str | None = None, others: Sequence[str] = (), place: int | None = None) -> OpenedRun:
    """A training run, a saved model or a Hugging Face folder, ready to read texts.

    Args:
        run: its folder.
        why, others, place: for translations: the written word that is shown first, what it is compared with, and which
            of the written words it is if it occurs more than once.
    """
    if is_hugging_face(run):
        return _open_pretrained(run, {} if why is None else {"of": why, "instead_of": others, "place": place})
    saved, tokeniser = load_with_tokeniser(run)
    note(remark_on_training(run))
    if saved.kind in (LanguageModel.KIND, TextEncoder.KIND):
        _check_no_why(why, run, saved.kind)
        model = (LanguageModel if saved.kind == LanguageModel.KIND else TextEncoder).from_saved(saved, str(run))
        words, reason = seen_words_of(saved, run), reason_against(model)
        classes = json.loads(saved.extra_files.get(CLASSES_FILE, "[]"))

        def play(text: str, precision: str | None) -> Exploration:
            return explore_model(model, tokeniser, text, words, classes=classes, precision=precision)

        read = lambda text, like: explore_text(model, tokeniser, text, title=tidy(text))  # noqa: E731
        return OpenedRun(run, "Text", read, None, None if reason else play, reason or "")
    translator = Translator.load(run)
    check_attends(translator.model)  # before any work
    reason = reason_against(translator.model)
    asked = {} if why is None else {"of": why, "instead_of": others, "place": place}
    play_translation = None if reason else partial(_playing, translator, asked)
    reading = _translating(translator, asked)
    return OpenedRun(run, "Sentence", reading, translator, play_translation, reason or "")


def _open_pretrained(folder: Path, asked: Mapping[str, Any]) -> OpenedRun:
    with needed("transformers", "a Hugging Face folder", "transformers"):
        from regard.integrations.transformers import load_folder
        from regard_lab.seeing.transformers import explore_pretrained
    model, tokenizer = load_folder(folder)

    once = [asked]  # for the first text; the word of --why may not occur in others

    def read(text: str, like: Exploration | None) -> Exploration:
        return explore_pretrained(
            model, tokenizer, text, title=tidy(text), changes=True, **(once.pop() if once else {})
        )

    reason = "pages compute models of regard_lab, and this is one of Hugging Face"
    return OpenedRun(folder, "Text", read, None, unplayed=reason, pretrained=model)


def _check_no_why(why: str | None, run: Path, kind: str) -> None:
    if why is not None:
        raise ArgumentError(f"--why is for translations, and {run} holds a {kind}; leave it out")


def _translating(translator: Translator, asked: Mapping[str, Any]) -> Reading:
    """Translates a sentence and explains each word; the word that is shown first is that of --why, or a German pronoun.

    With an exploration of another run, its translation is read instead: then both runs have the same words before them.
    """

    def read(text: str, like: Exploration | None) -> Exploration:
        (translation,) = translator.translate([text])
        if not translation.ids:
            raise ArgumentError(
                f"the translation of {tidy(text)!r} is empty, so there is nothing to show; give another"
            )
        written, ids, notes = translation.text, translation.ids, ()
        if like is not None and like.written_text and like.written_text != written:
            notes = (f"This run would write: {tidy_target(written)}",)
            written, ids = like.written_text, tuple(translator.tokeniser.encode_target(like.written_text))
        exploration = explore_translation(
            translator.model, translator.tokeniser, text, ids, title=f"{tidy(text)} → {tidy_target(written)}",
            **(asked or _pronoun(written, translator.tokeniser, ids)),
        )  # fmt: skip
        return replace(exploration, notes=(*exploration.notes, *notes), written_text=written)

    return read


def _playing(translator: Translator, asked: Mapping[str, Any], text: str, precision: str | None) -> Exploration:
    """A page that contains a translator; the word of --why is shown first."""
    model = translator.model
    assert isinstance(model, TranslationModel)
    (translation,) = translator.translate([text])
    first = None
    if asked:
        at = find_place(translator.tokeniser, text, translation.ids, asked["of"], asked["place"])
        word = translator.tokeniser.words(list(translation.ids))[at][0]
        if asked["instead_of"]:  # a word that cannot stand there is refused
            find_contrast(translator.tokeniser, text, translation.ids, **asked)
        first = {"word": word, "place": at, "others": list(asked["instead_of"]) or None}
    return explore_model(
        model, translator.tokeniser, text, translator.words, target_ids=translation.ids, precision=precision,
        asked=first, pronouns=PRONOUNS,
    )  # fmt: skip


def _pronoun(text: str, tokeniser: Tokeniser, ids: Sequence[int]) -> dict[str, Any]:
    """The question about the pronoun of a German sentence, if it has one: what it stands for is not obvious."""
    pronoun = pronoun_of(text)
    words = [word.lower() for word, _ in tokeniser.words(list(ids))]  # "sie-sie" is two words of it
    if pronoun is None or words.count(pronoun) != 1:
        return {}
    return {"of": pronoun, "instead_of": [other for other in PRONOUNS if other != pronoun]}


def _reading_place(translation: Translation, tokeniser: Tokeniser) -> int | None:
    """The number, from 1, of the sub-word that was read last before a German pronoun was written; None without one."""
    if not (asked := _pronoun(translation.text, tokeniser, translation.ids)):
        return None
    starts = [span.start for word, span in tokeniser.words(list(translation.ids)) if word.lower() == asked["of"]]
    return starts[0] + 1 if starts else None


def _draw(opened: OpenedRun, text: str, path: Path) -> None:
    translator = opened.translator
    if translator is None:
        draw_attention(opened.read(text, None), path, title=tidy(text))
    else:
        (translation,) = translator.translate([text])
        maps = look(translator.model, translator.tokeniser, text, translation.ids)
        draw_maps(maps, path, title=f"{tidy(text)} → {tidy_target(translation.text)}")
    note(f"the attention is drawn in {path}")


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
