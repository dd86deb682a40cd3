"""Measures pages of the explorer in a headless Chromium, and those of other viewers where they are installed.

python benchmarks/explorer.py

Random causal weights of 12 layers of 12 heads over 64, 128 and 512 words, and one streamed head over 100,000 positions.
Each page is opened from a file in a browser without a network. Other viewers are measured in the same run, each as a
page of what its own call returns. Their packages ask for old versions of others, so install them in a folder of their
own, and run with PYTHONPATH=PEERS; one that cannot be imported is named in the report:

    pip install --target PEERS --no-deps bertviz circuitsvis inspectus attnview 'importlib-metadata<9' zipp
    pip install --target PEERS ipython

BertViz and CircuitsVis load their scripts from another host, so without a network their pages stay empty; what they
asked for is counted. Needs playwright and Chromium. Writes results/explorer_cpu_202611.md.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "regard_lab")]
from explorer.browsing import chromium  # noqa: E402
from explorer.making import weights  # noqa: E402

from regard.patterns import Causal  # noqa: E402
from regard_lab.bench.results import environment, package_version  # noqa: E402
from regard_lab.seeing import show  # noqa: E402
from regard_lab.seeing.explorer import stream_head  # noqa: E402

OUT = HERE / "results" / "explorer_cpu_202611.md"
LONG = 100_000
PEER_SIZES, PATIENCE = (64, 128), 120_000  # words; milliseconds for a page to settle
INIT = """
new PerformanceObserver((list) => { for (const one of list.getEntries()) window.painted = one.startTime; })
    .observe({type: "paint", buffered: true});
new MutationObserver((_, watch) => {
    if (document.querySelector("[data-ready]")) { window.ready = performance.now(); watch.disconnect(); }
}).observe(document, {subtree: true, childList: true, attributes: true});
"""
HOVER = """async () => {
    const canvas = document.querySelector("canvas.heatmap"), box = canvas.getBoundingClientRect(), times = [];
    for (let at = 0; at < 60; at += 1) {
        const start = performance.now();
        canvas.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
            clientX: box.left + 40 + 5 * at, clientY: box.top + 60 + 6 * at}));
        document.body.offsetHeight;
        times.push(performance.now() - start);
        await new Promise(requestAnimationFrame);
    }
    return times.sort((a, b) => a - b);
}"""
SCROLL = """async () => {
    const box = document.querySelector(".links"), canvas = box.querySelector("canvas"), times = [];
    for (let at = 1; at <= 200; at += 1) {
        box.scrollTop = at * 9001;
        const start = performance.now();
        box.dispatchEvent(new Event("scroll"));
        canvas.getContext("2d").getImageData(0, 0, 1, 1);  // waits until it is painted
        times.push(performance.now() - start);
        await new Promise(requestAnimationFrame);
    }
    return times.sort((a, b) => a - b);
}"""
SETTLED = """async (patience) => {
    const start = performance.now();
    let [count, since] = [-1, start];
    while (performance.now() - start < patience) {
        const now = document.querySelectorAll("*").length;
        if (now !== count) [count, since] = [now, performance.now()];
        else if (performance.now() - since > 1500) return since;
        await new Promise((done) => setTimeout(done, 100));
    }
    return null;
}"""
DRAWN = """() => document.body.innerText.includes("word1")
    || [...document.querySelectorAll("svg *, canvas")].some((one) => one.getBoundingClientRect().width > 20)"""


class Watched:
    """A page in a browser without a network, with what it asked for and complained about."""

    def __init__(self, browser: Any, path: Path, hash: str = "") -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.context.set_default_timeout(PATIENCE)
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda one: self.asked.append(one.url))
        self.page.on("console", lambda one: one.type == "error" and self.complaints.append(one.text))
        self.page.on("pageerror", lambda one: self.complaints.append(str(one)))
        self.page.add_init_script(INIT)
        self.page.goto(path.as_uri() + hash)

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def row(self, name: str, path: Path, made: float) -> dict[str, Any]:
        """What is measured of every page."""
        outside = {one for one in self.asked if one.startswith(("http:", "https:"))}
        return {
            "page": name, "MB": path.stat().st_size / 1e6, "made": made,
            "painted": (self.page.evaluate("window.painted") or 0) / 1e3,
            "nodes": self.page.evaluate("document.querySelectorAll('*').length"), "asked": len(outside),
            "complaints": len(self.complaints),
        }  # fmt: skip


def ours(browser: Any, folder: Path, count: int) -> dict[str, Any]:
    """A page of 144 heads over so many words."""
    given, path = weights(12, 12, count, causal=True), folder / f"regard-{count}.html"
    start = time.perf_counter()
    show(given, [f"word{at}" for at in range(count)]).save(path)
    made = time.perf_counter() - start
    with Watched(browser, path, "#view=heads") as one:
        one.page.wait_for_selector("[data-ready]")
        ready = one.page.evaluate("window.ready") / 1e3
        row = one.row(f"regard, 12 × 12 heads, {count} words", path, made)
    with Watched(browser, path, "#view=map&head=3") as one:
        one.page.wait_for_selector("[data-ready]")
        one.page.wait_for_timeout(1000)
        times = one.page.evaluate(HOVER)
        row["complaints"] += len(one.complaints)
    return {**row, "ready": ready, "drawn": True, "hover": times[30], "worst hover": times[-1]}


def ours_long(browser: Any, folder: Path, count: int) -> dict[str, Any]:
    """A page of one streamed head, every row of it computed."""
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(count, 32, generator=generator) for _ in range(2))
    path = folder / "long.html"
    start = time.perf_counter()
    head = stream_head(q, k, [f"word{at * 7919 % 30_000}" for at in range(count)], pattern=Causal())
    streamed = time.perf_counter() - start
    show(head).save(path)
    with Watched(browser, path) as one:
        one.page.wait_for_selector("[data-ready]")
        ready = one.page.evaluate("window.ready") / 1e3
        row = one.row(f"regard, one head, {count:,} words", path, streamed)
        times = one.page.evaluate(SCROLL)
    return {**row, "ready": ready, "drawn": True, "scroll": times[100], "worst scroll": times[-1]}


def bertviz(given: torch.Tensor, words: list[str]) -> str:
    from bertviz import head_view

    return head_view([layer[None] for layer in given], words, html_action="return").data


def circuitsvis(given: torch.Tensor, words: list[str]) -> str:
    import circuitsvis

    return str(circuitsvis.attention.attention_heads(attention=given[0].numpy(), tokens=words))


def inspectus(given: torch.Tensor, words: list[str]) -> str:
    import inspectus.attention_viz as viz
    from IPython.display import HTML

    shown: list[str] = []
    for module in (viz, __import__("inspectus.utils", fromlist=["utils"])):
        module.display = lambda one: shown.append(one.data if isinstance(one, HTML) else str(one))
    import IPython.display

    IPython.display.display = lambda one, **_: shown.append(getattr(one, "data", str(one)))
    import inspectus

    inspectus.attention(given.numpy(), words)
    return "".join(shown)


def attnview(given: torch.Tensor, words: list[str]) -> str:
    from attnview import AttentionPattern, AttentionStudy, render_html

    layers = tuple(AttentionPattern.from_data(layer.tolist(), tokens=words) for layer in given)
    return render_html(AttentionStudy(layers, tuple(f"layer {at}" for at in range(len(layers)))))


PEERS: dict[str, Callable[[torch.Tensor, list[str]], str]] = {
    "bertviz": bertviz, "circuitsvis": circuitsvis, "inspectus": inspectus, "attnview": attnview
}  # fmt: skip


def peer(browser: Any, folder: Path, name: str, count: int) -> dict[str, Any]:
    """The page of another viewer, from the same weights."""
    given, path = weights(12, 12, count, causal=True), folder / f"{name}-{count}.html"
    start = time.perf_counter()
    html = PEERS[name](given, [f"word{at}" for at in range(count)])
    made = time.perf_counter() - start
    path.write_text(f"<!doctype html><meta charset=utf-8><title>{name}</title>{html}", encoding="utf-8")
    which = "1 layer of 12 heads" if name == "circuitsvis" else "12 × 12 heads"
    with Watched(browser, path) as one:
        settled = one.page.evaluate(SETTLED, PATIENCE)
        row = one.row(f"{name} {package_version(name)}, {which}, {count} words", path, made)
        drawn = one.page.evaluate(DRAWN)
    return {**row, "ready": None if settled is None else settled / 1e3, "drawn": drawn}


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each page."""
    lines = [
        "| page | MB | made, s | first paint, s | ready, s | DOM nodes | hover or scroll, ms | requests to other hosts "
        "| console errors | draws without a network |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        moved = [row.get("hover", row.get("scroll")), row.get("worst hover", row.get("worst scroll"))]
        shown = "" if moved[0] is None else f"{moved[0]:.1f} (most {moved[1]:.1f})"
        ready = "not in 120" if row["ready"] is None else f"{row['ready']:.2f}"
        lines.append(
            f"| {row['page']} | {row['MB']:.1f} | {row['made']:.1f} | {row['painted']:.2f} | {ready} | "
            f"{row['nodes']:,} | {shown} | {row['asked']} | {row['complaints']} | {'yes' if row['drawn'] else 'no'} |"
        )
    return "\n".join(lines)


def main() -> None:
    rows, missing = [], []
    show(weights(1, 1, 4))  # what is loaded once
    with chromium() as browser, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows += [ours(browser, folder, count) for count in (*PEER_SIZES, 512)]
        for name in PEERS:
            for count in PEER_SIZES:
                if package_version(name) is None:
                    missing.append(name)
                    break
                try:
                    rows.append(peer(browser, folder, name, count))
                except ImportError as error:
                    missing.append(f"{name} ({error})")
                    break
                print(json.dumps(rows[-1]), flush=True)
        rows.append(ours_long(browser, folder, LONG))
        version = browser.version
    found = environment()
    absent = f" Not installed or not importable, so not measured: {', '.join(missing)}." if missing else ""
    OUT.write_text(
        f"# Pages of the explorer\n\nMeasured on {date.today().isoformat()} by `python benchmarks/explorer.py` in "
        f"headless Chromium {version} without a network and without a GPU, on {found['processor']} with "
        f"{found['cores']} cores, torch {found['torch']}.{absent}\n\n{table(rows)}\n\n"
        "Hover: from a movement of the pointer over the heat map to the new read-out, with its layout. Scroll: one "
        "repaint of the list of rows, with its pixels. Both are medians, with the longest in brackets. Made: seconds "
        "until the page is a text; for the long head, seconds of streaming its weights. A page of another viewer is "
        "ready when its number of nodes has not changed for 1.5 s; CircuitsVis shows one layer. A viewer that asks "
        "another host for its script draws nothing here, so its times say nothing about its speed with a network.\n",
        encoding="utf-8",
    )
    print(OUT.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
