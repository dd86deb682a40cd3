"""Attention of 262,144 positions with a window of 512: one process beside four that share the sequence.

    .venv/bin/python benchmarks/several_processes.py [--length N]

Each process runs by itself, so that its peak memory is its own: the resident memory at its highest, less that before
its part of the tensors was made. One process computes everything; four compute a quarter each and exchange what the
window needs, by gloo on this machine. Both compute outputs and gradients, in float32; outputs are compared.
"""

import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import regard
from benchmarks.report import options
from regard import distributed
from regard_lab.text.writing import markdown_table

HEADS = 8
KV_HEADS = 2
HEAD_DIM = 64
WINDOW, FORM = "causal_window(512)", "ring"  # it keeps nothing of its pieces for the backward pass
CHECKED = 64  # queries at the start of each quarter, whose outputs are compared


def rows(length: int, first: int, count: int, heads: int, seed: int) -> torch.Tensor:
    """Rows of a tensor that is the same for every division of the sequence: each 1,024 rows have a seed."""
    numbers = []
    for block in range(first // 1024, (first + count - 1) // 1024 + 1):
        drawn = torch.Generator().manual_seed(seed * length + block)
        numbers.append(torch.randn(1024, heads, HEAD_DIM, generator=drawn))
    start = first % 1024
    return torch.cat(numbers)[start : start + count].transpose(0, 1)[None].contiguous()


def measure(rank: int, count: int, folder: str, length: int) -> None:
    """One process: its part of the tensors, outputs and gradients, and its memory and seconds, into the folder."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", count), rank=rank, world_size=count
    )
    first = rank * length // count
    each = length // count
    run(
        *(
            rows(length, 0, 1024, heads, seed)
            for heads, seed in ((HEADS, 9), (KV_HEADS, 8), (KV_HEADS, 7))
        ),
        count,
    )
    before = resident()
    q, k, v = (
        rows(length, first, each, heads, seed)
        for heads, seed in ((HEADS, 1), (KV_HEADS, 2), (KV_HEADS, 3))
    )
    made = resident()
    began = time.perf_counter()
    output = run(q, k, v, count)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1024 if sys.platform != "darwin" else 1
    )
    kept = {
        at: output[0, :, at - first : at - first + CHECKED].clone()
        for at in range(0, length, max(1, length // 4))
        if first <= at < first + each
    }
    spent = {"tensors": made - before, "peak": peak - before, "seconds": seconds}
    torch.save((spent, kept), f"{folder}/{rank}")
    dist.barrier()
    dist.destroy_process_group()


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
    return (
        int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        * resource.getpagesize()
    )


def on_processes(count: int, length: int) -> tuple[list[dict[str, Any]], dict[int, torch.Tensor]]:
    """What `count` new processes spent, and the outputs that are compared, by their position."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measure, (count, folder, length), nprocs=count)
        found = [torch.load(f"{folder}/{rank}") for rank in range(count)]
    return [spent for spent, _ in found], {
        at: output for _, kept in found for at, output in kept.items()
    }


def compare(length: int) -> dict[str, Any]:
    """Memory, seconds and bytes of one process and of four, and the largest difference of their outputs."""
    ((one,), alone), (four, together) = (on_processes(count, length) for count in (1, 4))
    traffic = distributed.bytes_exchanged(
        [length // 4] * 4,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        pattern=WINDOW,
        form=FORM,
        backward=True,
    )
    return {
        "length": length,
        "one": one,
        "four": four,
        "share": max(process["peak"] for process in four) / one["peak"],
        "difference": max(
            float((together[at] - output).abs().max()) for at, output in alone.items()
        ),
        "bytes": traffic.total,
    }


def report(found: dict[str, Any]) -> str:
    """The figures as a table."""
    every = [
        ("one process", found["one"]),
        *((f"process {at} of 4", one) for at, one in enumerate(found["four"])),
    ]
    lines = [
        (
            name,
            *(f"{one[what] / 2**20:.0f} MiB" for what in ("tensors", "peak")),
            f"{one['seconds']:.1f}",
        )
        for name, one in every
    ]
    return "\n".join(markdown_table(("", "memory of q, k, v", "peak memory", "seconds"), lines)) + (
        f"\n\nEach of four processes needs at most {found['share']:.3f} of the memory of one. They exchange "
        f"{found['bytes'] / 1024:.0f} KiB in all, forward and backward. The largest difference of the outputs compared "
        f"is {found['difference']:.1e}."
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--length", type=int, default=262_144)
    print(report(compare(parser.parse_args().length)))


if __name__ == "__main__":
    main()
