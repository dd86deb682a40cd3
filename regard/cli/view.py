"""`regard view`: a sentence and a trained model in the explorer, as a local page or as a file."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.console import check_picture_name, out, say
from regard.cli.options import Run, listed
from regard.cli.why import INSTEAD
from regard.decoding import Translator
from regard.decoding.loading import load_with_tokeniser
from regard.errors import ArgumentError
from regard.inspection import draw_maps, look
from regard.inspection.explorer import Exploration, explore_text, explore_translation, to_page
from regard.inspection.explorer.server import ExplorerServer
from regard.inspection.maps import check_attends
from regard.models import LanguageModel, TextEncoder
from regard.text import Tokeniser, tidy
from regard.text.pronouns import PRONOUNS, pronoun_of

Reading = Callable[[str], Exploration]


def view(
    run: Run,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A sentence to translate, or a text to read.")],
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page that needs no network, instead of serving it."),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the attention of a translation, instead of serving it."),
    ] = None,
    why: Annotated[str | None, typer.Option(metavar="WORD", help="The written word that is shown first.")] = None,
    instead: Annotated[str | None, typer.Option(metavar="WORDS", help=INSTEAD)] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the local page; 0 for a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="Open the local page in a browser.")] = False,
) -> None:
    """Explore the attention of a trained model, and what each word that it wrote depends on."""
    _check(text, export, png, why, instead)
    saved, tokeniser = load_with_tokeniser(run)
    if saved.kind in (LanguageModel.KIND, TextEncoder.KIND):
        if given := [name for name, value in (("--why", why), ("--png", png)) if value is not None]:
            raise ArgumentError(
                f"{' and '.join(given)} is for translations, and {run} holds a {saved.kind}; leave it out"
            )
        kind = LanguageModel if saved.kind == LanguageModel.KIND else TextEncoder
        read, label = _reading_text(kind.from_saved(saved, str(run)), tokeniser), "Text"
    else:
        translator = Translator.load(run)
        check_attends(translator.model)  # before any work
        read, label = _translating(translator, why, listed(instead)), "Sentence"
        if png is not None:
            _draw(translator, text, png)
    exploration = read(text) if export is not None or png is None else None
    if export is not None and exploration is not None:
        to_page(exploration).save(export)
        say(f"the page is {export}; it needs no network")
    elif exploration is not None:
        general = _translating(translator, None, []) if why is not None else read
        _serve(ExplorerServer(exploration, general, text=text, label=label, port=port), browser)


def _check(text: str, export: Path | None, png: Path | None, why: str | None, instead: str | None) -> None:
    if not text.strip():
        raise ArgumentError("the TEXT is empty; give a sentence")
    if why is None and instead is not None:
        raise ArgumentError("--instead belongs to --why; say which written word to explain")
    if export is not None and export.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError(f"the page {export} is HTML; give it a name that ends in .html")
    if export is not None and (export.is_dir() or not export.parent.is_dir()):
        raise ArgumentError(f"the page {export} cannot be written: its folder does not exist, or it is a folder")
    if png is not None:
        check_picture_name(png)


def _translating(translator: Translator, why: str | None, others: list[str]) -> Reading:
    """Translates a sentence and explains each word; the word that is shown first is `why`, or a German pronoun."""

    def read(text: str) -> Exploration:
        (translation,) = translator.translate([text])
        if not translation.ids:
            raise ArgumentError(
                f"the translation of {tidy(text)!r} is empty, so there is nothing to show; give another"
            )
        asked: dict[str, Any] = {"of": why, "instead_of": others} if why is not None else _pronoun(translation.text)
        return explore_translation(
            translator.model, translator.tokeniser, text, translation.ids,
            title=f"{tidy(text)} → {tidy(translation.text)}", **asked,
        )  # fmt: skip

    return read


def _pronoun(text: str) -> dict[str, Any]:
    """The question about the pronoun of a German sentence, if it has one: what it stands for is not obvious."""
    pronoun = pronoun_of(text)
    words = [word.strip(".,;:!?").lower() for word in text.split()]
    if pronoun is None or words.count(pronoun) != 1:
        return {}
    return {"of": pronoun, "instead_of": [other for other in PRONOUNS if other != pronoun]}


def _reading_text(model: LanguageModel | TextEncoder, tokeniser: Tokeniser) -> Reading:
    return lambda text: explore_text(model, tokeniser, text, title=tidy(text))


def _draw(translator: Translator, text: str, png: Path) -> None:
    (translation,) = translator.translate([text])
    maps = look(translator.model, translator.tokeniser, text, translation.ids)
    draw_maps(maps, png, title=f"{tidy(text)} → {tidy(translation.text)}")
    say(f"the attention is drawn in {png}")


def _serve(server: ExplorerServer, browser: bool) -> None:
    with server:
        out(server.url)
        say("the page is served to this machine until Ctrl-C ends it")
        if browser:
            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
