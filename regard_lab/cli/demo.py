"""`regard demo`: from training to a picture, on the embedded corpus."""

from __future__ import annotations

import webbrowser
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Option

from regard.arguments import count_of
from regard.errors import ArgumentError
from regard_lab.cli.console import StoppedError, keeping, note, out, out_json, out_text
from regard_lab.cli.demo_end import (
    PAIR,
    draw_pair_picture,
    last_lines,
    next_lines,
    pair_lines,
    picture_lines,
    score_lines,
    translate_pair,
    write_page,
    write_words,
)
from regard_lab.cli.options import Json
from regard_lab.cli.train import training_progress
from regard_lab.decoding import Translator, evaluate
from regard_lab.seeing import draw_maps, look
from regard_lab.seeing.lens_study import (
    Routes,
    choose_heads,
    draw_pronoun,
    known_sentences,
    lens_agreement,
    measure_routes,
    view_pronoun,
)
from regard_lab.seeing.maps import Kind
from regard_lab.seeing.picture import draw_heads
from regard_lab.text.pronouns import ARTICLE_SENTENCES, make_split
from regard_lab.text.remarks import Tell
from regard_lab.text.translation_data import PRONOUNS, TranslationData, load_translation_data
from regard_lab.text.writing import duration
from regard_lab.training import TrainingResult
from regard_lab.training.folders import check_run_folder
from regard_lab.training.recipes import TranslationTraining, read_settings
from regard_lab.training.recipes.continuing import continued_config
from regard_lab.training.recipes.evaluation import PronounReport, judge_pronouns
from regard_lab.training.recipes.run_folder import explain_run

# Chosen on validation sentences. Twins differ in one adjective, which moves the referent, and share a batch. The
# decoder sees three of its own words, so the gender has to come from the source. With four heads instead of eight, a
# training may never learn which noun an adjective fits; all ten runs of docs/demo.md learn it with eight.
SETTINGS = TranslationTraining.Config(
    data=(PRONOUNS,),
    twins=True,
    steps=2_800,
    dim=128,
    hidden=256,
    heads=8,
    layers=2,
    positions="rotary",
    attention="sliding_window(4)",
    decoder_attention="causal_window(3)",
    vocab_size=3_000,
    batch_tokens=800,
    learning_rate=3e-3,
    warmup_steps=140,
    schedule="inverse_square_root",
    cooldown=0.35,
    dropout=0.0,
    label_smoothing=0.0,
    validate_every=700,
)
BEFORE = (
    "On an idle machine this takes about five minutes. On a busy one it takes much longer; begin it there with "
    "OMP_NUM_THREADS=1. Ctrl-C stops it and keeps what was learned; the same command continues.",
    "A quick look, with a worse model: regard demo --steps 600 --out DIR",
    "The model reads ids: numbers for words and pieces of words. Each step of the training reads some sentences; the "
    "loss falls while it learns.",
)
PICTURES = "pictures"
EXPLAINED = 150  # test sentences for the lens and the routes
CHOOSING = 60  # validation sentences for a head


def demo(
    run: Annotated[
        Path,
        Option("--out", metavar="RUN", help="Folder of the run; an interrupted run is continued."),
    ] = Path("runs/demo"),
    steps: Annotated[
        int | None,
        Option(min=1, help="Training steps; fewer take less time and give a worse model."),
    ] = None,
    seed: Annotated[
        int, Option(min=0, help="Seed of the weights and of the order of the data.")
    ] = SETTINGS.seed,
    browser: Annotated[
        bool, Option("--open", help="Open the page with the trained model in a browser.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a translator here, and see what its pronouns depend on."""
    show = note if as_json else out
    say = note if as_json else partial(out_text, indent="   ")
    check_run_folder(run)
    settings = _settings(run, steps, seed)
    tell = note if as_json else out_text
    tell(
        'What does "it" refer to? English has one word for all nouns; German has es, er and sie, by the noun\'s gender.'
    )
    show("")
    data = load_translation_data(settings.data, seed=settings.seed, twins=settings.twins)
    tell(
        f"1. Training on {len(data.train):,} sentences that a grammar writes; the two nouns of a test sentence occur "
        f"together in none of them"
    )
    for line in BEFORE:
        say(line)
    trained = _train(run, settings, data)
    if trained.stopped == "interrupted":
        raise StoppedError(
            f"interrupted after {count_of(trained.steps, 'steps')}; the same command goes on from there"
        )
    show(
        f"   {count_of(trained.steps, 'steps', ',')}, {duration(trained.wall_seconds)} "
        f"({count_of(round(trained.cpu_seconds), 'CPU seconds', ',')})"
    )
    kept = f"the trained model is kept in {run}, and the same command goes on from there"
    with keeping(lambda: kept):
        _evaluate(run, settings.seed, data, trained, show, as_json, browser)


def _settings(run: Path, steps: int | None, seed: int) -> TranslationTraining.Config:
    """The settings of the demo, or of the one that was begun in this folder."""
    settings = replace(SETTINGS, steps=steps or SETTINGS.steps, seed=seed)
    begun = read_settings(run)
    if begun is None:
        return settings
    expected = {"data": [PRONOUNS], "steps": settings.steps, "seed": seed}
    if any(begun.get(name) != value for name, value in expected.items()):
        raise ArgumentError(
            f"{run} holds a run with other settings; give another folder with --out, or remove it"
        )
    return continued_config(TranslationTraining.Config, run, begun)


def _train(
    run: Path, settings: TranslationTraining.Config, data: TranslationData
) -> TrainingResult:
    training = TranslationTraining(settings, tell=note, data=data).prepare(run)
    with training_progress() as progress:
        return training.run(run, resume=True, cpu=True, progress=progress)


def _evaluate(
    run: Path,
    seed: int,
    data: TranslationData,
    trained: TrainingResult,
    show: Tell,
    as_json: bool,
    browser: bool,
) -> None:
    """Show a pair of sentences and a page to try more, print the scores, and draw what the model looks at."""
    translator = Translator.load(run)
    folder = run / PICTURES
    folder.mkdir(exist_ok=True)
    say = note if as_json else partial(out_text, indent="   ")

    show("")
    show("2. One word changed, and the pronoun with it")
    note("   choosing a head of the decoder on other sentences ...")
    valid = known_sentences(translator, make_split("valid", CHOOSING, seed))
    layer, number = choose_heads(translator, valid)["cross"]
    cross = (layer, number)
    pair = translate_pair(translator, cross)
    for line in pair_lines(pair, cross):
        say(line)
    pictures = [str(path) for path in draw_pair_picture(pair, folder / "pair.png")]
    note("   writing a page that holds the model ...")
    page = write_page(run, PAIR[0])
    words = write_words(run)
    show("")
    for line in next_lines(run, page, words):
        say(line)

    show("")
    show(
        f"3. Results on {len(data.test)} test sentences, whose two nouns never occurred together in training"
    )
    note(f"   translating {len(data.test)} test sentences, which can take a minute ...")
    result = evaluate(translator, data.test)
    report = judge_pronouns(translator, seed)
    note("   erasing and swapping words, to see what the pronouns depend on ...")
    agreement, routes = _what_is_used(translator, seed)
    for line in score_lines(result, report, agreement):
        say(line)

    show("")
    pictures += _look_at_articles(translator, report, cross, routes, folder)
    explain_run(run)
    show(f"4. Pictures in {folder}")
    for line in picture_lines(pictures):
        say(line)
    show("")
    for line in last_lines(page):
        say(line)
    if as_json:
        out_json(
            {
                "train_cpu_seconds": round(trained.cpu_seconds, 1),
                "steps": trained.steps,
                **result.to_dict(),
                **report.to_dict(),
                "pair": list(pair.translations),
                "page": str(page),
                "pictures": pictures,
                "lens_agreement": agreement,
            }
        )
    if browser:
        webbrowser.open(page.absolute().as_uri())


def _what_is_used(translator: Translator, seed: int) -> tuple[float | None, Routes | None]:
    """Measure the default lens and the routes on test sentences."""
    test = make_split("test", EXPLAINED, seed)
    known = known_sentences(translator, test)
    agreement = lens_agreement(translator, test)
    if not any(sentence.as_grammar for sentence in known):
        return agreement, None
    return agreement, measure_routes(translator, known, seed)


def _look_at_articles(
    translator: Translator,
    report: PronounReport,
    cross: tuple[int, int],
    routes: Routes | None,
    folder: Path,
) -> list[str]:
    """Draw where heads looked in the sentences of articles, and what their pronouns depend on; the paths drawn."""
    head = report.head
    assert head is not None, "the demo trains a Transformer"
    heads: dict[Kind, tuple[int, int | None]] = {"encoder": (head.layer, head.head), "cross": cross}
    maps = None
    pictures = []
    sentences = [sentence for sentence in ARTICLE_SENTENCES if "’" not in sentence.source]
    translations = translator.translate([sentence.source for sentence in sentences])
    for number, (sentence, translation) in enumerate(zip(sentences, translations, strict=True), 1):
        maps = look(translator.model, translator.tokeniser, sentence.source, translation.ids)
        path = folder / f"article-{number}.png"
        title = f"{sentence.source} → {translation.text} (heads chosen on validation sentences)"
        draw_maps(maps, path, title=title, heads=heads)
        pictures.append(path)
        view = view_pronoun(translator, sentence, translation, cross)
        if view is not None:
            path = folder / f"article-{number}-used.png"
            draw_pronoun(view, path, routes)
            pictures.append(path)
    if maps is not None:
        path = folder / "every-head.png"
        draw_heads(maps, path)
        pictures.append(path)
    return list(map(str, pictures))
