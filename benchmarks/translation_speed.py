"""Compares the speed of translation with Hugging Face's `generate`, for a Marian model with the same weights.

python benchmarks/translation_speed.py [--quick]

Times are CPU seconds on one thread, measured in turns, the least of several rounds. Both write the same number of ids,
and equal outputs are counted before timing. The matrix products, which both libraries need, are timed separately:
"possible" is the ratio of Hugging Face's time to theirs. The same is repeated in bfloat16. Needs transformers. Writes a
report into results/.
"""

import platform
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "regard_lab" / "decoding"))
from hugging_face_models import marian

from benchmarks.report import RESULTS, heading, options
from regard.layers import project
from regard_lab.bench.measuring import Pace, take_turns
from regard_lab.bench.report import markdown_table
from regard_lab.decoding import SpecialIds, beam_search, greedy_search
from regard_lab.text import PAD

NEVER = (0, 1, 2, 3)  # END too, so that both write equally many ids
FULL = {"vocab": 58_101, "dim": 512, "heads": 8, "layers": 6, "hidden": 2048, "places": 512}  # as opus-mt-en-de
QUICK = {"vocab": 8_000, "dim": 256, "heads": 8, "layers": 3, "hidden": 1024, "places": 512}
CASES = ((1, 1, 2.0), (1, 4, 2.0), (32, 1, 1.2), (32, 4, 1.2))  # batch, beam, promised speed ratio
HEAD = ("batch", "beam", "same texts", "generate, s", "regard, s", "ratio", "promised", "products, s", "possible")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    sizes, words, rounds = (QUICK, 12, 3) if quick else (FULL, 32, 5)
    theirs, ours = marian(transformers, 0.05, **sizes)
    lines = [
        *heading(
            "Speed of translation", f", transformers {transformers.__version__}, Python {platform.python_version()}"
        ),
        "A Marian model with the same weights translates with regard and with Hugging Face's `generate`. Times are CPU",
        f"seconds on one thread, the least of {rounds}. “Possible” is the ratio if regard needed no time beside the",
        "matrix products, which both need; they are timed alone.",
        "",
        f"- Model: {', '.join(f'{name} {value:,}' for name, value in sizes.items())}",
        f"- {words} ids per text are written, from sources of 13 to 20 ids",
    ]
    for dtype in (torch.float32, torch.bfloat16):
        rows = [timed(theirs.to(dtype), ours.to(dtype), *case, words=words, rounds=rounds) for case in CASES]
        lines += ["", f"## {str(dtype).removeprefix('torch.')}", "", *markdown_table(HEAD, rows)]
    report = "\n".join([*lines, ""])
    print(report)
    if not quick:
        (RESULTS / f"translation_speed_cpu_{date.today():%Y%m}.md").write_text(report)


def timed(theirs, ours, batch: int, beam: int, goal: float, *, words: int, rounds: int) -> tuple[str, ...]:
    """Time one case; return its row of the report."""
    sources = texts(batch, ours.config.vocab_size)
    runs = [searcher(theirs, sources, beam, words), our_searcher(ours, sources, beam, words)]
    same = sum(a == b for a, b in zip(runs[0](), runs[1](), strict=True))
    calls = dict(zip(("theirs", "ours", "products"), [*runs, products(ours, sources, beam, words)], strict=True))
    times = take_turns(calls, time.process_time, Pace(rounds=rounds, slow_rounds=rounds, shortest=0))
    their_time, our_time, alone = (min(one.samples) for one in times.values())
    verdict = f"{goal} {'kept' if their_time / our_time >= goal else 'missed'}"
    figures = (f"{figure:.2f}" for figure in (their_time, our_time, their_time / our_time))
    return str(batch), str(beam), f"{same} of {batch}", *figures, verdict, f"{alone:.2f}", f"{their_time / alone:.2f}"


def products(model, sources: torch.Tensor, beam: int, words: int) -> Callable[[], object]:
    """The matrix products of a translation: those of the encoder once, those of the decoder at every step."""
    config, rows = model.config, len(sources)
    dtype = model.embedding.weight.dtype
    read, written = (
        torch.randn(sources.numel(), config.dim, dtype=dtype),
        torch.randn(rows * beam, config.dim, dtype=dtype),
    )

    @torch.inference_mode()
    def run() -> None:
        for layer in model.encoder:
            through(read, layer.attention, layer.feed_forward)
        for layer in model.decoder:
            layer.cross_attention.to_k(read), layer.cross_attention.to_v(read)
        for _ in range(words):
            for layer in model.decoder:
                cross = layer.cross_attention
                through(written, layer.self_attention, layer.feed_forward)
                cross.to_output(cross.to_q(written))
            project(written, model.embedding.weight)

    return run


def through(x: torch.Tensor, attention, feed_forward) -> None:
    attention.to_k(x), attention.to_v(x), attention.to_output(attention.to_q(x))
    feed_forward.narrow(feed_forward.widen(x))


def texts(batch: int, vocab: int) -> torch.Tensor:
    """Sources of 13 to 20 ids, padded on the right."""
    ids = torch.randint(4, vocab, (batch, 20), generator=torch.Generator().manual_seed(0))
    for row in range(batch):
        ids[row, 20 - row % 8 :] = PAD
    return ids


def searcher(model, sources: torch.Tensor, beam: int, words: int) -> Callable[[], list[list[int]]]:
    options = {"num_beams": beam, "early_stopping": "never", "length_penalty": 1.0} if beam > 1 else {}
    mask = (sources != PAD).long()

    def run() -> list[list[int]]:
        ids = model.generate(
            sources, attention_mask=mask, max_new_tokens=words, do_sample=False, suppress_tokens=list(NEVER),
            renormalize_logits=beam > 1, **options,
        )  # fmt: skip
        return ids[:, 1:].tolist()

    return run


def our_searcher(model, sources: torch.Tensor, beam: int, words: int) -> Callable[[], list[list[int]]]:
    special = SpecialIds(never=NEVER)

    def run() -> list[list[int]]:
        if beam == 1:
            return [list(output.ids) for output in greedy_search(model, sources, words, special)]
        rows = beam_search(model, sources, beam, normalisation="average", max_length=words, special=special)
        return [list(row[0].ids) for row in rows]

    return run


if __name__ == "__main__":
    main()
