"""Measures the page with the demo's translator: how soon it answers, and whether its answers are the library's.

python benchmarks/explorer_page.py RUN    # on a quiet machine, some minutes

RUN is what `regard demo` made. The page is opened in a headless Chromium, in float32 and in int8. A keystroke is timed
from its event to the drawn page: in the view Heads to the translation with every head, and in the view Reader to the
colours of the lens.
"""

import json
import platform
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.report import RESULTS, heading, options, write
from regard_lab.decoding import Translator
from regard_lab.seeing import look
from regard_lab.seeing.explorer import explore_model, to_page
from regard_lab.seeing.lenses.contrast import alternatives
from regard_lab.seeing.lenses.explaining import explain_contrasts
from regard_lab.text.pronouns import PRONOUNS, pronoun_of
from regard_lab.text.writing import markdown_table

OUT = RESULTS / "explorer_page_cpu"
SENTENCE = "The animal didn't cross the street because it was too tired."
PRECISIONS = ("float32", "int8")
OPENED, TYPED = 9, 24  # how often a page is opened, and how many keys are typed in each view
# Milliseconds that the float32 page may take, and megabytes that each page may have.
LIMITS = {"ready": 500, "translation": 40, "colours": 120}
SIZES = {"float32": 5.0, "int8": 1.6}
ASK = """async ([what, question]) => {
    const {texts, ids, attention, lenses} = await regard.engine.ask(what, question), plain = {texts, ids, lenses};
    const kinds = Object.entries(attention ?? {}).map(([kind, one]) => [kind, [one.shape, [...one.weights]]]);
    return {...plain, attention: Object.fromEntries(kinds)};
}"""


@contextmanager
def opened(translator: Translator, precision: str, folder: str) -> Generator[tuple[Any, Any, Path]]:
    """A browser, its page with the model, and the page's file."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.regard_lab.explorer.browsing import chromium

    (translation,) = translator.translate([SENTENCE])
    shown = explore_model(
        translator.model,
        translator.tokeniser,
        SENTENCE,
        translator.words,
        target_ids=translation.ids,
        precision=precision,
        pronouns=PRONOUNS,
    )
    path = Path(folder, f"{precision}.html")
    to_page(shown).save(path)
    with chromium() as browser:
        yield browser, open_page(browser, path), path


def open_page(browser: Any, path: Path) -> Any:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_function("() => window.regard?.opened")
    return page


def speed(translator: Translator) -> dict[str, Any]:
    """Milliseconds until a page is ready, and from a key to the translation and to the lens; medians and all values."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            with opened(translator, precision, folder) as (browser, page, path):
                times: dict[str, list[float]] = {"ready": []}
                for _ in range(OPENED):
                    other = open_page(browser, path)
                    times["ready"].append(other.evaluate("regard.opened"))
                    other.close()
                for view, name, kept in (
                    ("Heads", "translation", "shown"),
                    ("Reader", "colours", "coloured"),
                ):
                    page.get_by_role("button", name=view, exact=True).click()
                    page.locator("#sentence").press("End")
                    page.wait_for_timeout(400)
                    page.evaluate(f"regard.{kept}.length = 0")
                    for at in range(TYPED):
                        page.keyboard.press("Backspace" if at % 2 == 0 else ".")
                        page.wait_for_timeout(250)
                    times[name] = page.evaluate(f"regard.{kept}")
                medians = {
                    name: {"median": round(median(one), 1), "all": list(map(round, one))}
                    for name, one in times.items()
                }
                size = round(path.stat().st_size / 1e6, 2)
                found[precision] = {"megabytes": size, "browser": browser.version, **medians}
    return found


@torch.no_grad()
def same(translator: Translator, lines: list[str]) -> dict[str, Any]:
    """Words, weights, and the most important word of each sentence's pronoun, in the page and by the library."""
    found: dict[str, Any] = {}
    model, tokeniser = translator.model, translator.tokeniser
    expected = translator.translate(lines)
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            counts = {
                "sentences": len(lines),
                "same words": 0,
                "same most important word": 0,
                "pronouns": 0,
            }
            farthest = {"weight": 0.0, "score": 0.0}
            with opened(translator, precision, folder) as (_, page, _path):
                for source, one in zip(lines, expected, strict=True):
                    run = page.evaluate(ASK, ["run", {"source": source}])
                    if run["ids"]["target"] != list(one.ids):
                        continue
                    counts["same words"] += 1
                    maps = look(model, tokeniser, source, one.ids).merged()
                    for kind, (shape, weights) in run["attention"].items():
                        apart = np.abs(
                            np.array(weights).reshape(shape) - getattr(maps, kind).numpy()
                        ).max()
                        farthest["weight"] = max(farthest["weight"], float(apart))
                    words = run["texts"]["target"]
                    pronoun = pronoun_of(one.text)
                    if pronoun is None or words.count(pronoun) != 1:
                        continue
                    place = words.index(pronoun)
                    contrast = alternatives(model, tokeniser, source, one.ids, {place})[place]
                    record = explain_contrasts(model, tokeniser, [contrast], "erase")[0]
                    lens = page.evaluate(ASK, ["lens", {"source": source, "place": place}])[
                        "lenses"
                    ][0]
                    mine = [score for _, score in [*lens["source"], *lens["written"]]]
                    theirs = [*record.source_scores, *record.written_scores]
                    counts["pronouns"] += 1
                    counts["same most important word"] += int(np.argmax(mine) == np.argmax(theirs))
                    if lens["others"] == list(record.others):  # int8 may compare with another word
                        farthest["score"] = max(
                            farthest["score"], float(np.abs(np.subtract(mine, theirs)).max())
                        )
            found[precision] = {**counts, "largest difference": farthest}
    return found


ABOUT = """The page of the demo's translator (831,744 parameters), in headless Chromium on a machine of two cores (AMD
EPYC) that other programs used too. `regard view runs/demo "..." --export page.html` makes it, with `--int8` the small
one."""
EQUAL = """Both are compared with the library in float32. Weights are compared where the words are the same; the pronoun
of each sentence is explained by erasure, against the three words that are most probable beside it."""


def page(result: dict[str, Any]) -> list[str]:
    about = f", Python {platform.python_version()}"
    lines = [
        *heading(
            "A page that runs the model", about, "python benchmarks/explorer_page.py runs/demo"
        ),
        ABOUT,
        "",
    ]
    times = result["speed"]
    equal = result["same"]
    head = (
        "",
        "page, MB",
        "ready, ms",
        "key to translation and all heads, ms",
        "key to the lens's colours, ms",
    )
    rows = [
        (name, one["megabytes"], *(one[part]["median"] for part in LIMITS))
        for name, one in times.items()
    ]
    limits = (
        "limit",
        " and ".join(f"{one} ({name})" for name, one in SIZES.items()),
        *LIMITS.values(),
    )
    counted = (
        f"Medians of {OPENED} openings and of {TYPED} keys, Chromium {times['float32']['browser']}."
    )
    lines += ["## Speed", "", counted, "", *markdown_table(head, [*rows, limits]), ""]
    counts = ("sentences", "same words", "pronouns", "same most important word")
    head = ("", *counts, "largest difference of a weight", "of a score by erasure")
    rows = [
        (
            name,
            *(one[part] for part in counts),
            *(f"{apart:.1e}" for apart in one["largest difference"].values()),
        )
        for name, one in equal.items()
    ]
    return [*lines, "## The same as the library", "", EQUAL, "", *markdown_table(head, rows)]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder that `regard demo` made")
    parser.add_argument("--sentences", type=int, default=500)
    given = parser.parse_args()
    translator = Translator.load(given.run)
    lines = (given.run / "test.jsonl").read_text(encoding="utf-8").splitlines()[: given.sentences]
    sources = [json.loads(line)["source"] for line in lines]
    result = {"speed": speed(translator), "same": same(translator, sources)}
    print(write(OUT, "explorer_page", result, page(result)))


if __name__ == "__main__":
    main()
