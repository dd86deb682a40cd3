"""Attention of 262,144 positions with a window of 512: one process beside four that share the sequence.

    .venv/bin/python benchmarks/several_processes.py [--length N] [--json]

Each process runs by itself, so that its peak memory is its own: the resident memory at its highest, less that before
its part of the tensors was made. One process computes everything; four compute a quarter each and exchange what the
window needs, by gloo on this machine. Both compute outputs and gradients, in float32; outputs are compared.
"""

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from processes import on_processes

import regard
from regard import distributed
from regard_lab.bench.report import markdown_table

HEADS, KV_HEADS, HEAD_DIM = 8, 2, 64
WINDOW = "causal_window(512)"
FORM = "ring"  # it keeps nothing of its pieces for the backward pass
CHECKED = 64  # queries at the start of each quarter, whose outputs are compared


def rows(length: int, first: int, count: int, heads: int, seed: int) -> torch.Tensor:
    """Rows of a tensor that is the same for every division of the sequence: each 1,024 rows have a seed."""
    numbers = []
    for block in range(first // 1024, (first + count - 1) // 1024 + 1):
        drawn = torch.Generator().manual_seed(seed * length + block)
        numbers.append(torch.randn(1024, heads, HEAD_DIM, generator=drawn))
    start = first % 1024
    return torch.cat(numbers)[start : start + count].transpose(0, 1)[None].contiguous()


def measure(length: int) -> dict[str, Any]:
    """One process: its part of the tensors, outputs and gradients, and its memory and seconds."""
    rank, count = dist.get_rank(), dist.get_world_size()
    first, each = rank * length // count, length // count
    run(rows(length, 0, 1024, HEADS, 9), rows(length, 0, 1024, KV_HEADS, 8), rows(length, 0, 1024, KV_HEADS, 7), count)
    before = resident()
    q, k, v = (rows(length, first, each, heads, seed) for heads, seed in ((HEADS, 1), (KV_HEADS, 2), (KV_HEADS, 3)))
    made, began = resident(), time.perf_counter()
    output = run(q, k, v, count)
    seconds = time.perf_counter() - began
    quarter = max(1, length // 4)
    found = {
        first + at: output[0, :, at : at + CHECKED].clone().numpy() for at in range(each) if (first + at) % quarter == 0
    }
    return {"tensors": made - before, "peak": peak() - before, "seconds": seconds, "rows": found}


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, count: int) -> torch.Tensor:
    """Output after a backward pass; with several processes over all of them."""
    for x in (q, k, v):
        x.requires_grad_()
    if count == 1:
        output = regard.attention(q, k, v, pattern=WINDOW)
    else:
        output = distributed.attention(q, k, v, dist.group.WORLD, pattern=WINDOW, form=FORM)
    output.sum().backward()
    return output.detach()


def resident() -> int:
    """Bytes of memory in use now."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * resource.getpagesize()


def peak() -> int:
    """The most bytes of memory in use so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1024 if sys.platform != "darwin" else 1)


def compare(length: int) -> dict[str, Any]:
    """Memory, seconds and bytes of one process and of four, and the largest difference of their outputs."""
    (one,), four = (on_processes(count, measure, length) for count in (1, 4))
    rows_of_four = {at: output for process in four for at, output in process["rows"].items()}
    traffic = distributed.bytes_exchanged(
        [length // 4] * 4, kv_heads=KV_HEADS, head_dim=HEAD_DIM, pattern=WINDOW, form=FORM, backward=True
    )
    return {
        "length": length,
        "one": {name: one[name] for name in ("tensors", "peak", "seconds")},
        "four": [{name: process[name] for name in ("tensors", "peak", "seconds")} for process in four],
        "share": max(process["peak"] for process in four) / one["peak"],
        "difference": max(float(abs(rows_of_four[at] - output).max()) for at, output in one["rows"].items()),
        "bytes": traffic.total,
    }


def report(found: dict[str, Any]) -> str:
    """The figures as a table."""
    mebi = 2**20
    every = [("one process", found["one"]), *((f"process {at} of 4", one) for at, one in enumerate(found["four"]))]
    rows = [
        (name, *(f"{one[what] / mebi:.0f} MiB" for what in ("tensors", "peak")), f"{one['seconds']:.1f}")
        for name, one in every
    ]
    lines = [
        *markdown_table(("", "memory of q, k, v", "peak memory", "seconds"), rows),
        "",
        f"Each of four processes needs at most {found['share']:.3f} of the memory of one. They exchange "
        f"{found['bytes'] / 1024:.0f} KiB in all, forward and backward. The largest difference of the outputs compared "
        f"is {found['difference']:.1e}.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the comparison."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--length", type=int, default=262_144)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    found = compare(chosen.length)
    print(json.dumps(found) if chosen.json else report(found))


if __name__ == "__main__":
    main()
