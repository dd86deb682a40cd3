"""Forecasts of calls over several processes beside real runs on 2 and 4 processes, and a million positions on paper.

    .venv/bin/python benchmarks/forecasts.py [--quick]

The constants of this machine are measured by `measure_machine` right before each call, on the same processes, and the
forecast from them is compared with the seconds that the call takes. The plan of a million positions takes its speed of
attention from the report of one GPU, `benchmarks/results/attention_cuda`; no machine with two GPUs was at hand, so that
its link is that of a specification. All of it is written to `benchmarks/results/forecasts_cpu/forecasts.json`, from
which docs/distributed.md is made. With --quick nothing is written.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from processes import on_processes

from regard import distributed
from regard.distributed import Layout, Machine, forecast

RESULTS = Path(__file__).parent / "results"
ROUNDS = 7
SIZES = {"heads": 8, "kv_heads": 8, "head_dim": 64}
BIGBIRD = "sliding_window(96) | global_tokens(0, 1, 2, 3) | random_blocks(3, block=32, seed=0)"
CASES = (  # pattern, layout, form, positions of each process
    ("full", "contiguous", "ring", 128),
    ("full", "contiguous", "ring", 1024),
    ("full", "contiguous", "gather", 1024),
    ("causal", "contiguous", "ring", 1024),
    ("causal", "zigzag", "ring", 1024),
    ("causal_window(256)", "contiguous", "gather", 2048),
    (BIGBIRD, "contiguous", "ring", 1024),
)
MILLION, GPUS = 1 << 20, (64, 256, 1024)
OF_MODEL = {"heads": 64, "kv_heads": 8, "head_dim": 128, "dtype": torch.bfloat16}
ON_PAPER = (
    ("full", "contiguous"),
    ("causal", "zigzag"),
    ("causal & causal_window(4096)", "contiguous"),
    (f"sliding_window(384) | global_tokens({', '.join(map(str, range(64)))}) | random_blocks(3, block=64, seed=0)",
     "contiguous"),
)  # fmt: skip


def run_case(pattern: str, layout: str, form: str, each: int, rounds: int) -> dict[str, Any]:
    """The constants, and the seconds of each round of a call on this process."""
    group, count = dist.group.WORLD, dist.get_world_size()
    machine = distributed.measure_machine(group, pattern=pattern, length=each, rounds=rounds, **SIZES)
    heads, dim = SIZES["heads"], SIZES["head_dim"]
    whole = [torch.randn(1, heads, each * count, dim, generator=torch.Generator().manual_seed(at)) for at in range(3)]
    divided = Layout(layout, (each,) * count)
    q, k, v = (distributed.part(x, divided, dist.get_rank()) for x in whole)
    seconds = []
    for _ in range(rounds + 1):  # the first one plans its pieces
        dist.barrier()
        began = time.perf_counter()
        distributed.attention(q, k, v, group, pattern=pattern, layout=layout, form=form)
        seconds.append(time.perf_counter() - began)
    return {"machine": vars(machine), "seconds": seconds[1:]}


def compare(count: int, pattern: str, layout: str, form: str, each: int, rounds: int) -> dict[str, Any]:
    """One call: constants, forecast and what was measured; a round ends when its slowest process is done."""
    found = on_processes(count, run_case, pattern, layout, form, each, rounds)
    machine = Machine(**found[0]["machine"])
    options = {**SIZES, "dtype": torch.float32, "pattern": pattern, "layout": layout, "form": form}
    plan = forecast([each] * count, machine=machine, **options)
    alone = forecast([each] * count, machine=replace(machine, bandwidth=1e18, latency=0, overhead=0), **options)
    measured = [max(of_round) for of_round in zip(*(one["seconds"] for one in found), strict=True)]
    return {
        "processes": count, "pattern": pattern, "layout": layout, "form": form, "positions": each,
        "machine": vars(machine), "forecast": max(plan.seconds), "computing": max(alone.seconds),
        "measured": statistics.median(measured), "least": min(measured), "most": max(measured),
    }  # fmt: skip


def tiny_calls(calls: int) -> float:
    """CPU seconds of this process's own thread for a call over one position each, around the ring; their median."""
    x, seconds = torch.randn(1, 8, 1, 64), []
    for _ in range(2 * calls):
        began = time.thread_time()
        distributed.attention(x, x, x, dist.group.WORLD, form="ring")
        seconds.append(time.thread_time() - began)
    return statistics.median(seconds[calls:])


def seconds_of_step() -> float:
    """CPU seconds that a host takes for each further step of a ring: those of 6 processes less those of 2, by 4."""
    few, many = (statistics.median(on_processes(count, tiny_calls, 200)) for count in (2, 6))
    return (many - few) / 4


def speed_of_gpu() -> dict[str, Any]:
    """Operations of attention per second in the report of one GPU: full attention in bfloat16, the longest length."""
    report = json.loads((RESULTS / "attention_cuda" / "bench.json").read_text(encoding="utf-8"))
    contests = {one["label"]: one for one in report["cases"]["plain"]["contests"]}
    length, heads, head_dim = 16_384, 16, 64
    seconds = contests[f"full, n={length}"]["contenders"]["regard"]["cuda"]["median"]
    return {"device": report["environment"]["device"], "flops": 4 * length**2 * heads * head_dim / seconds}


def plan_million() -> list[dict[str, Any]]:
    """The forecast of each pattern on each number of GPUs: the figures of the process with the largest value."""
    rows = []
    for pattern, layout in ON_PAPER:
        for gpus in GPUS:
            began = time.perf_counter()
            plan = forecast([MILLION // gpus] * gpus, pattern=pattern, layout=layout, machine=Machine(), **OF_MODEL)
            rows.append({
                "pattern": pattern, "layout": layout, "gpus": gpus, "form": plan.form, "received": max(plan.received),
                "memory": max(plan.memory), "compute": max(plan.compute), "seconds": max(plan.seconds),
                "waiting": max(plan.waiting), "efficiency": plan.efficiency,
            })  # fmt: skip
            print(f"{pattern[:40]} on {gpus}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Compare and plan; print the record as JSON, and write it unless --quick."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--quick", action="store_true", help="one case on 2 processes; nothing is written")
    quick = options.parse_args().quick
    compared = []
    for count in (2,) if quick else (2, 4):
        for case in CASES[:1] if quick else CASES:
            compared.append(compare(count, *case, rounds=2 if quick else ROUNDS))
            one = compared[-1]
            print(
                f"{count} processes, {one['pattern'][:40]}, {one['layout']}, {one['form']}: forecast "
                f"{1e3 * one['forecast']:.1f} ms, measured {1e3 * one['measured']:.1f} ms",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    record = {
        "date": date.today().isoformat(), "command": "python benchmarks/forecasts.py", "torch": torch.__version__,
        "python": platform.python_version(), "cores": os.cpu_count(), "sizes": SIZES, "rounds": ROUNDS,
        "compared": compared, "step": seconds_of_step(), "gpu": speed_of_gpu(), "assumed": vars(Machine()),
        "million": [] if quick else plan_million(),
    }  # fmt: skip
    text = json.dumps(record, indent=1)
    print(text)
    if not quick:
        folder = RESULTS / "forecasts_cpu"
        folder.mkdir(exist_ok=True)
        (folder / "forecasts.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
