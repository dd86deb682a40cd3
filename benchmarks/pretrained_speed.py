"""Measures models of transformers through regard beside PyTorch's attention and eager attention.

python benchmarks/pretrained_speed.py [--rows NAME ...] [--layers 8] [--rounds 3]

Random models of 8 layers: dim 512, 8 query heads over 2, head_dim 64, windows of 256. Times are CPU
seconds on one thread, measured in turns in one process; a row shows the least of the rounds, and ratios of them. The
outputs of each round are compared. Decoding is timed for each token with a cache that is already filled. "Memory" runs
each contender in a process of its own. The report in results/ is written after each row; `--rows` measures some rows
again and leaves the others, so that a row that a busy machine disturbed can be repeated.
"""

import gc
import inspect
import json
import os
import platform
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers as tf

from benchmarks.report import RESULTS, options, table
from regard.integrations.transformers import observe

OUT = RESULTS / "pretrained_speed_cpu"
VOCAB, WINDOW = 1000, 256
BASE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1408,
    "max_position_embeddings": 32768,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "head_dim": 64}


# The keyword of a model for a cache, which transformers 5.24 renamed.
CACHE = "cache" if "cache" in inspect.signature(tf.LlamaModel.forward).parameters else "past_key_values"


def mistral(layers: int) -> Any:
    return tf.MistralModel(tf.MistralConfig(**BASE, **GROUPED, num_hidden_layers=layers, sliding_window=WINDOW))


def llama(layers: int) -> Any:
    return tf.LlamaModel(tf.LlamaConfig(**BASE, **GROUPED, num_hidden_layers=layers))


def modern_bert(layers: int) -> Any:
    sizes = {**BASE, "intermediate_size": 768, "num_hidden_layers": layers}
    return tf.ModernBertModel(
        tf.ModernBertConfig(
            **sizes, local_attention=WINDOW, global_attn_every_n_layers=3, pad_token_id=0, reference_compile=False
        )
    )


def gemma2(layers: int) -> Any:
    return tf.Gemma2Model(
        tf.Gemma2Config(
            **BASE, **GROUPED, num_hidden_layers=layers, sliding_window=WINDOW, attn_logit_softcapping=50.0,
            query_pre_attn_scalar=64,
        )
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One comparison: `promised` is the ratio other / ours that the issue asks for."""

    name: str
    model: Callable[[int], Any]
    kind: str  # forward, train, decode, observe, memory
    length: int
    other: str = "sdpa"
    promised: float | None = None
    batch: int = 1
    padded: bool = False
    cache: str = ""


def decoding_rows() -> list[Row]:
    rows = []
    for cache, model in (("dynamic", llama), ("static", llama), ("sliding", mistral)):
        for length in (2048, 8192, 16384):
            promised = 1.2 if (cache, length) == ("dynamic", 16384) else 0.97
            rows.append(
                Row(f"decoding, {cache} cache, {length:,}", model, "decode", length, "sdpa", promised, cache=cache)
            )
    for length in (2048, 8192, 16384):
        name = f"decoding, padded batch of 4, {length:,}"
        rows.append(Row(name, llama, "decode", length, "sdpa", 0.97, batch=4, padded=True, cache="dynamic"))
    for cache, model in (("dynamic", llama), ("sliding", mistral)):
        rows.append(Row(f"decoding, {cache} cache, 256", model, "decode", 256, cache=cache))
    return rows


ROWS = [
    Row("forward, windows", mistral, "forward", 8192, promised=3.5),
    Row("forward, windows and global layers", modern_bert, "forward", 8192, promised=3.0),
    Row("forward, softcap", gemma2, "forward", 4096, other="eager", promised=5.0),
    Row("forward, padded batch, 2,048", mistral, "forward", 2048, promised=1.7, batch=2, padded=True),
    Row("forward, padded batch, 4,096", mistral, "forward", 4096, promised=1.7, batch=2, padded=True),
    Row("forward, 16 tokens", mistral, "forward", 16),
    Row("training step, windows and global layers", modern_bert, "train", 4096, promised=2.0),
    *decoding_rows(),
    Row("observing the entropy of all layers", mistral, "observe", 2048, other="plain", promised=1 / 1.4),
    Row("memory, windows", mistral, "memory", 4096),
]  # fmt: skip


def clock() -> float:
    return time.process_time()


def inputs_of(row: Row) -> dict[str, torch.Tensor]:
    inputs = {"input_ids": torch.randint(1, VOCAB, (row.batch, row.length))}
    if row.padded:
        live = torch.ones(row.batch, row.length, dtype=torch.long)
        live[0, : row.length // 4] = 0  # left padding, as generation has it
        inputs["attention_mask"] = live
    return inputs


def measured(row: Row, layers: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = row.model(layers).eval()
    work = {"forward": forward, "train": train, "decode": decode, "observe": observing}[row.kind]
    times, difference = work(row, model, rounds)
    ours, other = min(times["regard"]), min(times[row.other])
    return {
        "seconds": {name: min(taken) for name, taken in times.items()},
        "medians": {name: statistics.median(taken) for name, taken in times.items()},
        "ratio": other / ours, "difference": difference,
    }  # fmt: skip


def difference_of(outputs: dict[str, torch.Tensor], live: torch.Tensor | None) -> float:
    ours, other = outputs.values()
    far = (ours - other).abs().amax(-1)
    return float(far.max() if live is None else far[live.bool()].max())


def in_turns(calls: dict[str, Callable[[], Any]], rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The seconds of each round of some calls, and what each returned last; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    found = {}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            start = clock()
            found[name] = call()
            times[name].append(clock() - start)
    return {name: taken[1:] for name, taken in times.items()}, found


def forward(row: Row, model: Any, rounds: int) -> tuple[dict[str, list[float]], float]:
    inputs = inputs_of(row)
    options = {"use_cache": False} if row.model is not modern_bert else {}

    def run(name: str) -> torch.Tensor:
        model.set_attn_implementation(name)
        return model(**inputs, **options).last_hidden_state

    with torch.no_grad():
        times, outputs = in_turns({name: partial(run, name) for name in ("regard", row.other)}, rounds)
    return times, difference_of(outputs, inputs.get("attention_mask"))


def train(row: Row, model: Any, rounds: int) -> tuple[dict[str, list[float]], float]:
    inputs = inputs_of(row)

    def run(name: str) -> torch.Tensor:
        model.set_attn_implementation(name)
        model.zero_grad()
        model(**inputs).last_hidden_state.square().mean().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    times, gradients = in_turns({name: partial(run, name) for name in ("regard", row.other)}, rounds)
    ours, other = gradients.values()
    return times, float((ours - other).norm() / other.norm())


def decode(row: Row, model: Any, rounds: int) -> tuple[dict[str, list[float]], float]:
    steps = 8 * rounds
    caches = {name: filled(row, model, steps + 4) for name in ("regard", row.other)}
    times: dict[str, list[float]] = {name: [] for name in caches}
    worst = 0.0
    with torch.no_grad():
        for step in range(steps + 2):
            outputs = {}
            for name, cache in caches.items():
                model.set_attn_implementation(name)
                at = row.length + step
                mask = None
                if row.padded:
                    mask = torch.ones(row.batch, at + 1, dtype=torch.long)
                    for padded in range(row.batch // 2):
                        mask[padded, : 100 * (padded + 1)] = 0
                start = clock()
                outputs[name] = model(
                    input_ids=torch.full((row.batch, 1), 5 + step), attention_mask=mask, **{CACHE: cache},
                    position_ids=torch.full((row.batch, 1), at),
                ).last_hidden_state  # fmt: skip
                times[name].append(clock() - start)
            worst = max(worst, difference_of(outputs, None))
    return {name: taken[2:] for name, taken in times.items()}, worst


def filled(row: Row, model: Any, more: int) -> Any:
    cache = {
        "dynamic": lambda: tf.DynamicCache(),
        "sliding": lambda: tf.DynamicCache(config=model.config),
        "static": lambda: tf.StaticCache(config=model.config, max_cache_len=row.length + more),
    }[row.cache]()
    generator = torch.Generator().manual_seed(0)
    for layer in range(model.config.num_hidden_layers):
        keys = torch.randn(row.batch, 2, row.length, 64, generator=generator)
        cache.update(keys, keys.flip(2), layer)
    return cache


def observing(row: Row, model: Any, rounds: int) -> tuple[dict[str, list[float]], float]:
    inputs = inputs_of(row)
    model.set_attn_implementation("regard")

    def run(watched: bool) -> torch.Tensor:
        with observe(model, "entropy") if watched else nullcontext():
            return model(**inputs, use_cache=False).last_hidden_state

    with torch.no_grad():
        times, outputs = in_turns({"plain": partial(run, False), "regard": partial(run, True)}, rounds)
    return times, difference_of(outputs, None)


def memory(row: Row, layers: int) -> dict[str, Any]:
    """Megabytes that one forward pass adds to a process, each contender in a process of its own."""
    found = {}
    for name in ("regard", "sdpa", "eager"):
        command = [sys.executable, __file__, "--memory-of", name, "--layers", str(layers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = float(done.stdout.split()[-1])
    return {"megabytes": found, "ratio": found["sdpa"] / max(found["regard"], 1.0)}


def memory_of(name: str, layers: int) -> float:
    row = next(row for row in ROWS if row.kind == "memory")
    model = row.model(layers).eval()
    model.set_attn_implementation(name)
    with torch.no_grad():
        model(torch.randint(1, VOCAB, (1, 64)), use_cache=False)
        inputs = inputs_of(row)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
        before = resident()
        model(**inputs, use_cache=False)
    return resident() - before


def resident() -> float:
    """The most memory of this process so far, in megabytes, as Linux counts it."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def markdown(report: dict[str, Any]) -> str:
    lines = [
        "# Models of transformers: speed",
        "",
        f'`{report["command"]}`; {report["machine"]}. A row is measured again with `--rows "its name"`.',
        "",
        f"CPU time on one thread, the least of the rounds in turns; dim 512, 8 heads over 2, windows of {WINDOW}. A "
        "ratio above 1 means that regard is faster; beside it is that of the medians. Difference: the largest between "
        "the outputs, or of all gradients relative to their norm. Load: the processes that wanted a processor; the "
        "machine has two.",
        "",
    ]
    cells = []
    for row in report["rows"]:
        if "megabytes" in row:
            sizes = ", ".join(f"{name} {size:,.0f} MB" for name, size in row["megabytes"].items())
            cells.append((row["name"], f"{row['layers']}, 1", sizes, "", f"{row['ratio']:.2f}", "", "", "",
                          f"{row['load']:.1f}"))  # fmt: skip
            continue
        ours, other = row["seconds"]["regard"], row["seconds"][row["other"]]
        kept = "" if row["promised"] is None else "kept" if row["ratio"] >= row["promised"] else "missed"
        promised = "" if row["promised"] is None else f"{row['promised']:.2f}"
        medians = row["medians"][row["other"]] / row["medians"]["regard"]
        cells.append((
            row["name"], f"{row['layers']}, {row['rounds']}", f"{1e3 * ours:,.1f} ms",
            f"{row['other']} {1e3 * other:,.1f} ms", f"{row['ratio']:.2f} ({medians:.2f})", promised, kept,
            f"{row['difference']:.0e}", f"{row['load']:.1f}",
        ))  # fmt: skip
    head = ("row", "layers, rounds", "regard", "other", "ratio (medians)", "promised", "", "difference", "load")
    return "\n".join([*lines, *table(head, cells)]) + "\n"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rows", nargs="*", default=[], help="parts of names of rows")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-of", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    tf.logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)
    if asked.memory_of:
        print(memory_of(asked.memory_of, asked.layers))
        return
    for row in ROWS:
        if asked.rows and not any(part in row.name for part in asked.rows):
            continue
        gc.collect()
        start = os.getloadavg()[0]
        found = memory(row, asked.layers) if row.kind == "memory" else measured(row, asked.layers, asked.rounds)
        found |= {"layers": asked.layers, "rounds": asked.rounds, "date": date.today().isoformat()}
        found |= {"load": max(start, os.getloadavg()[0])}
        written({"name": row.name, "other": row.other, "promised": row.promised, **found})
        print(json.dumps(found), flush=True)


def written(row: dict[str, Any]) -> None:
    """Put a row into the report, in the place of an earlier one of its name."""
    path = OUT / "speed.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    order = [known.name for known in ROWS]
    rows = [row, *(old for old in rows if old["name"] != row["name"] and old["name"] in order)]
    report: dict[str, Any] = {
        "command": "python benchmarks/pretrained_speed.py",
        "machine": f"torch {torch.__version__}, transformers {tf.__version__}, {platform.machine()}",
        "rows": sorted(rows, key=lambda one: order.index(one["name"])),
    }
    OUT.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (OUT / "speed.md").write_text(markdown(report), encoding="utf-8")


if __name__ == "__main__":
    main()
