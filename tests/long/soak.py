"""Train, generate and view for minutes in one process: memory, open files and results are those of the beginning."""

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .running import Found

WARM = 0.3  # the share of the time before which memory is not measured
SLOPE = 1.0  # MiB a minute


def work(numbers: Sequence[int], folder: Path) -> Found:
    """A case is a minute; those of a batch are spent in one process."""
    command = [sys.executable, "-m", "tests.long.soak", str(folder), str(60 * len(numbers))]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    found = Found()
    if done.returncode:
        found.wrong.append(f"minutes from {numbers[0]}: {done.stderr.strip()[-400:]}")
        return found
    rows = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    found.count("rounds", len(rows))
    found.count("minutes", len(numbers))
    return add_up(rows, 60.0 * len(numbers), found)


def add_up(rows: list[tuple[float, ...]], seconds: float, found: Found) -> Found:
    """Rows of (seconds, MiB resident, open files, threads): the slope and what grew."""
    settled = [row for row in rows if row[0] > WARM * seconds]
    first, last = settled[0], settled[-1]
    slope = 60 * statistics.linear_regression([r[0] for r in settled], [r[1] for r in settled]).slope
    found.at_most("MiB a minute", round(slope, 3))
    found.at_most("MiB resident", max(row[1] for row in rows))
    found.at_most("open files more at the end", last[2] - first[2])
    if slope > SLOPE:
        found.wrong.append(f"memory grows by {slope:.2f} MiB a minute after {WARM:.0%} of {seconds:.0f} seconds")
    if last[2] > first[2] or last[3] > first[3]:
        found.wrong.append(f"{last[2] - first[2]:.0f} files and {last[3] - first[3]:.0f} threads more are open")
    return found


def resident() -> float:
    """MiB of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def one_round(folder: Path) -> tuple[str, ...]:
    """Train a translator and continue it, translate, look, write a page and a cache: what came out, as text."""
    import torch

    import regard as rg
    from regard.layers.caches import load_cache, new_cache
    from regard_lab.decoding import Generator, Translator
    from regard_lab.seeing import look
    from regard_lab.seeing.explorer import explore_translation, to_page
    from regard_lab.training.recipes import TranslationTraining

    from .hostile_files import language

    small = {"dim": 16, "layers": 1, "heads": 2, "vocab_size": 300, "warmup_steps": 1}
    pairs = folder / "pairs.tsv"
    pairs.write_text("".join(f"sentence number {n}\tSatz Nummer {n}\n" for n in range(60)))
    run = folder / "run"
    given = {"data": [str(pairs)], "steps": 3, **small}
    TranslationTraining(TranslationTraining.new_config(given)).train(run, cpu=True)
    config = TranslationTraining.decide(run, {"steps": 5}, resume=True)
    TranslationTraining(config).prepare(run).run(run, resume=True, cpu=True)
    translator = Translator.load(run)
    said = [one.text for one in translator.translate(["sentence number 7"], beam=2, max_length=8)]
    ids = translator.tokeniser.encode("Satz")
    page = to_page(explore_translation(translator.model, translator.tokeniser, "sentence number 7", ids, title="a"))
    maps = look(translator.model, translator.tokeniser, "sentence number 7", ids)
    language(folder / "language")
    written = Generator.load(folder / "language").generate(["The animal"], max_tokens=8)
    cache = new_cache("paged", 1, 2, 4)
    torch.manual_seed(1)
    q = torch.randn(1, 4, 6, 4)
    cache.append(q[:, :2], q[:, :2])
    cache.save(folder / "cache.safetensors")
    keys = load_cache(folder / "cache.safetensors").keys
    detail = rg.attention_detail(q, keys, keys, pattern="causal & causal_window(3)", want=["entropy", "received"])
    shutil.rmtree(run)
    return (
        *said,
        written[0][0].text,
        f"{maps.matrix('encoder').sum():.6f}",
        f"{detail.entropy.sum():.6f}",
        str(len(page.html)),
    )


def main(folder: Path, seconds: float) -> int:
    """Print a row after each round; 1 if a round gave another result than the first."""
    import torch

    torch.set_num_threads(1)
    began, first = time.monotonic(), None
    while time.monotonic() - began < seconds:
        result = one_round(folder)
        first = first or result
        if result != first:
            print(f"a round gave {result}, and the first gave {first}", file=sys.stderr)
            return 1
        threads = len(os.listdir("/proc/self/task"))
        files = len(os.listdir("/proc/self/fd"))
        print(f"{time.monotonic() - began:.1f} {resident():.2f} {files} {threads}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
