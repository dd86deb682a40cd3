"""Compares the speed of translation with Hugging Face's `generate`, for a Marian model with the same weights.

python benchmarks/translation_speed.py [--quick]

Times are CPU seconds on one thread, measured in turns, the least of several rounds. Both write the same number of ids,
and equal outputs are counted before timing. The matrix products, which both libraries need, are timed separately:
"possible" is the ratio of Hugging Face's time to theirs. The same is repeated in bfloat16. Needs transformers. Writes a
report into results/.
"""

import cProfile
import platform
import pstats
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
import transformers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "regard_lab" / "decoding"))
from hugging_face_models import marian  # noqa: E402

from regard.layers import project  # noqa: E402
from regard_lab.bench.measuring import Pace, take_turns  # noqa: E402
from regard_lab.decoding import SpecialIds, beam_search, greedy_search  # noqa: E402
from regard_lab.text import PAD  # noqa: E402

NEVER = (0, 1, 2, 3)  # END too, so that both write equally many ids
FULL = {"vocab": 58_101, "dim": 512, "heads": 8, "layers": 6, "hidden": 2048, "places": 512}  # as opus-mt-en-de
QUICK = {"vocab": 8_000, "dim": 256, "heads": 8, "layers": 3, "hidden": 1024, "places": 512}
CASES = ((1, 1, 2.0), (1, 4, 2.0), (32, 1, 1.2), (32, 4, 1.2))  # batch, beam, promised speed ratio
PARTS = {
    "linear": "matrices", "bmm": "matrices", "mv": "matrices",
    "scaled_dot_product": "attention",
    "masked_fill": "hidden keys",
    "index_select": "reorder",
    "likeliest": "best of the vocabulary", "amax": "best of the vocabulary", "topk": "best of the vocabulary",
    "logsumexp": "probabilities",
}  # fmt: skip
HEAD = """
| batch | beam | same texts | generate, s | regard, s | ratio | promised | products, s | possible | regard's time |
|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    quick = "--quick" in sys.argv
    torch.set_num_threads(1)
    sizes, words, rounds = (QUICK, 12, 3) if quick else (FULL, 32, 5)
    theirs, ours = marian(transformers, 0.05, **sizes)
    lines = [
        "# Speed of translation",
        "",
        "A Marian model with the same weights translates with regard and with Hugging Face's `generate`. Times are CPU",
        f"seconds on one thread, the least of {rounds}. “Possible” is the ratio if regard needed no time beside the",
        "matrix products, which both need; they are timed alone.",
        "",
        f"- Model: {', '.join(f'{name} {value:,}' for name, value in sizes.items())}",
        f"- {words} ids per text are written, from sources of 13 to 20 ids",
        f"- Command: `python benchmarks/translation_speed.py{' --quick' * quick}`, {date.today()}",
        f"- torch {torch.__version__}, transformers {transformers.__version__}, Python {platform.python_version()}",
    ]
    for dtype in (torch.float32, torch.bfloat16):
        lines += ["", f"## {str(dtype).removeprefix('torch.')}", HEAD]
        for case in CASES:
            lines.append(line_of(theirs.to(dtype), ours.to(dtype), *case, words=words, rounds=rounds))
            print(lines[-1], file=sys.stderr, flush=True)
    report = "\n".join([*lines, ""])
    if quick:
        print(report)
        return
    path = HERE / "results" / f"translation_speed_cpu_{date.today():%Y%m}.md"
    path.write_text(report)
    print(path)


def line_of(theirs, ours, batch: int, beam: int, goal: float, *, words: int, rounds: int) -> str:
    """Time one case; return its row of the report."""
    sources = texts(batch, ours.config.vocab_size)
    runs = [searcher(theirs, sources, beam, words), our_searcher(ours, sources, beam, words)]
    same = sum(a == b for a, b in zip(runs[0](), runs[1](), strict=True))
    calls = dict(zip(("theirs", "ours", "products"), [*runs, products(ours, sources, beam, words)], strict=True))
    times = take_turns(calls, time.process_time, Pace(rounds=rounds, slow_rounds=rounds, shortest=0))
    their_time, our_time, alone = (min(one.samples) for one in times.values())
    ratio = their_time / our_time
    verdict = f"{goal} {'kept' if ratio >= goal else 'missed'}"
    return (
        f"| {batch} | {beam} | {same} of {batch} | {their_time:.2f} | {our_time:.2f} | {ratio:.2f} | {verdict} | "
        f"{alone:.2f} | {their_time / alone:.2f} | {where_time_goes(runs[1])} |"
    )


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


def where_time_goes(run: Callable[[], object]) -> str:
    """Shares of the time in a profile; the rest is Python and operations that are not listed."""
    profile = cProfile.Profile()
    profile.runcall(run)
    stats = pstats.Stats(profile)
    shares = dict.fromkeys(PARTS.values(), 0.0)
    for (file, _, name), (_, _, own, _, _) in stats.stats.items():
        if file.endswith("native/library.py"):  # ctypes calls the kernel from there, which a profile counts as Python
            shares["attention"] += own / stats.total_tt
        for part, label in PARTS.items():
            if (part in name and "built-in" in name) or f"'{part}'" in name:
                shares[label] += own / stats.total_tt
    shares["rest"] = 1 - sum(shares.values())
    return ", ".join(f"{label} {share:.0%}" for label, share in shares.items())


if __name__ == "__main__":
    main()
