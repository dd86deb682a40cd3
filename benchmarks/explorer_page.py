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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.report import RESULTS, heading, options, write
from regard_lab.decoding import Translation, Translator
from regard_lab.seeing import look
from regard_lab.seeing.explorer import explore_model, to_page
from regard_lab.seeing.lenses.contrast import alternatives
from regard_lab.seeing.lenses.explaining import explain_contrasts
from regard_lab.text.pronouns import PRONOUNS, pronoun_of
from regard_lab.text.writing import markdown_table

OUT = RESULTS / "explorer_page_cpu"
SENTENCE = "The animal didn't cross the street because it was too tired."
PRECISIONS = ("float32", "int8")
OPENED = 9  # times that a page is opened
TYPED = 24  # keys that are typed in each view
# What is timed by the view, and the list of the page that has its times.
VIEWS = {"Heads": ("translation", "shown"), "Reader": ("colours", "coloured")}
# Milliseconds that the float32 page may take, and megabytes that each page may have.
LIMITS = {"ready": 500, "translation": 40, "colours": 120}
SIZES = {"float32": 5.0, "int8": 1.6}
# A question that a later one of the page takes the place of is answered by null, and asked again.
ASK = """async ([what, question]) => {
    let answer = null;
    while (!answer) answer = await regard.engine.ask(what, question);
    const {texts, ids, attention, lenses} = answer, plain = {texts, ids, lenses};
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
    page = browser.open_another({"viewport": {"width": 1280, "height": 900}})
    page.goto(path.as_uri())
    page.wait_for_function("() => window.regard?.opened")
    return page


def speed(translator: Translator) -> dict[str, Any]:
    """Milliseconds until a page is ready, and from a key to the translation and to the lens; medians and all values."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            with opened(translator, precision, folder) as (browser, page, path):
                figures[precision] = {
                    "megabytes": round(path.stat().st_size / 1e6, 2),
                    "browser": browser.version,
                }
                for name, times in page_times(browser, page, path).items():
                    of_name = {"median": round(median(times), 1), "all": list(map(round, times))}
                    figures[precision][name] = of_name
    return figures


def page_times(browser: Any, page: Any, path: Path) -> dict[str, list[float]]:
    """Milliseconds of every opening of a page, and of every key in both views."""
    times: dict[str, list[float]] = {"ready": []}
    for _ in range(OPENED):
        new_page = open_page(browser, path)
        times["ready"].append(new_page.evaluate("regard.opened"))
        new_page.close()
    for view, (name, list_of_times) in VIEWS.items():
        page.get_by_role("tab", name=view, exact=True).click()
        if not page.locator("#sentence").count():
            page.locator(".plain").click()
        page.locator("#sentence").press("End")
        page.wait_for_timeout(400)
        page.evaluate(f"regard.{list_of_times}.length = 0")
        for number in range(TYPED):
            page.keyboard.press("Backspace" if number % 2 == 0 else ".")
            page.wait_for_timeout(250)
        times[name] = page.evaluate(f"regard.{list_of_times}")
    return times


@torch.no_grad()
def same(translator: Translator, lines: list[str]) -> dict[str, Any]:
    """Words, weights, and the most important word of each sentence's pronoun, in the page and by the library."""
    figures: dict[str, Any] = {}
    translations = translator.translate(lines)
    with tempfile.TemporaryDirectory() as folder:
        for precision in PRECISIONS:
            comparison = PageComparison(translator)
            with opened(translator, precision, folder) as (_, page, _path):
                for source, translation in zip(lines, translations, strict=True):
                    comparison.add(page, source, translation)
            figures[precision] = comparison.figures()
    return figures


@dataclass
class PageComparison:
    """How often a page and the library agree, and how far apart their numbers are at most."""

    translator: Translator
    sentences: int = 0
    same_words: int = 0
    same_most_important: int = 0
    pronouns: int = 0
    weight: float = 0.0
    score: float = 0.0

    def add(self, page: Any, source: str, translation: Translation) -> None:
        """Compare one sentence; its weights where the words are the same, its pronoun where it has one."""
        self.sentences += 1
        run = page.evaluate(ASK, ["run", {"source": source}])
        if run["ids"]["target"] != list(translation.ids):
            return
        self.same_words += 1
        model = self.translator.model
        maps = look(model, self.translator.tokeniser, source, translation.ids).merged()
        for kind, (shape, weights) in run["attention"].items():
            difference = np.array(weights).reshape(shape) - getattr(maps, kind).numpy()
            self.weight = max(self.weight, float(np.abs(difference).max()))

        words = run["texts"]["target"]
        pronoun = pronoun_of(translation.text)
        if pronoun is not None and words.count(pronoun) == 1:
            self._add_pronoun(page, source, translation, words.index(pronoun))

    def _add_pronoun(self, page: Any, source: str, translation: Translation, place: int) -> None:
        model = self.translator.model
        tokeniser = self.translator.tokeniser
        contrast = alternatives(model, tokeniser, source, translation.ids, {place})[place]
        (record,) = explain_contrasts(model, tokeniser, [contrast], "erase")
        answer = page.evaluate(ASK, ["lens", {"source": source, "place": place}])
        lens = answer["lenses"][0]
        of_page = [score for _, score in [*lens["source"], *lens["written"]]]
        of_library = [*record.source_scores, *record.written_scores]
        self.pronouns += 1
        self.same_most_important += int(np.argmax(of_page) == np.argmax(of_library))
        if lens["others"] == list(record.others):  # int8 may compare with another word
            difference = np.subtract(of_page, of_library)
            self.score = max(self.score, float(np.abs(difference).max()))

    def figures(self) -> dict[str, Any]:
        return {
            "sentences": self.sentences,
            "same words": self.same_words,
            "same most important word": self.same_most_important,
            "pronouns": self.pronouns,
            "largest difference": {"weight": self.weight, "score": self.score},
        }


ABOUT = """The page of the demo's translator (831,744 parameters), in headless Chromium on a machine of two cores (AMD
EPYC) that other programs used too. `regard view runs/demo "..." --export page.html` makes it, with `--int8` the small
one."""
EQUAL = """Both are compared with the library in float32. Weights are compared where the words are the same; the pronoun
of each sentence is explained by erasure, against the three words that are most probable beside it."""


def page(result: dict[str, Any]) -> list[str]:
    about = f", Python {platform.python_version()}"
    command = "python benchmarks/explorer_page.py runs/demo"
    lines = [*heading("A page that runs the model", about, command), ABOUT, ""]
    times = result["speed"]
    equal = result["same"]
    head = (
        "",
        "page, MB",
        "ready, ms",
        "key to translation and all heads, ms",
        "key to the lens's colours, ms",
    )
    rows: list[list[object]] = []
    for name, of_page in times.items():
        medians = [of_page[part]["median"] for part in LIMITS]
        rows.append([name, of_page["megabytes"], *medians])
    sizes = " and ".join(f"{size} ({name})" for name, size in SIZES.items())
    rows.append(["limit", sizes, *LIMITS.values()])
    browser = times["float32"]["browser"]
    counted = f"Medians of {OPENED} openings and of {TYPED} keys, Chromium {browser}."
    lines += ["## Speed", "", counted, "", *markdown_table(head, rows), ""]

    counts = ("sentences", "same words", "pronouns", "same most important word")
    head = ("", *counts, "largest difference of a weight", "of a score by erasure")
    rows = []
    for name, of_page in equal.items():
        differences = [f"{largest:.1e}" for largest in of_page["largest difference"].values()]
        rows.append([name, *(of_page[part] for part in counts), *differences])
    return [*lines, "## The same as the library", "", EQUAL, "", *markdown_table(head, rows)]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder that `regard demo` made")
    parser.add_argument("--sentences", type=int, default=500)
    asked = parser.parse_args()
    translator = Translator.load(asked.run)
    lines = (asked.run / "test.jsonl").read_text(encoding="utf-8").splitlines()[: asked.sentences]
    sources = [json.loads(line)["source"] for line in lines]
    result = {"speed": speed(translator), "same": same(translator, sources)}
    print(write(OUT, "explorer_page", result, page(result)))


if __name__ == "__main__":
    main()
