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


def measure(rank: int, count: int, folder: str, length: int) -> None:
    """One process: its part of the tensors, outputs and gradients, and its memory and seconds, into the folder."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", count), rank=rank, world_size=count
    )
    first = rank * length // count
    rows_of_process = length // count
    # a short call loads what is loaded once
    q = rows(length, 0, 1024, HEADS, 9)
    k = rows(length, 0, 1024, KV_HEADS, 8)
    v = rows(length, 0, 1024, KV_HEADS, 7)
    run(q, k, v, count)
    del q, k, v

    before = resident()
    q = rows(length, first, rows_of_process, HEADS, 1)
    k = rows(length, first, rows_of_process, KV_HEADS, 2)
    v = rows(length, first, rows_of_process, KV_HEADS, 3)
    with_tensors = resident()
    began = time.perf_counter()
    output = run(q, k, v, count)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform != "darwin":  # elsewhere in kibibytes
        peak *= 1024
    compared = {}
    for position in range(0, length, max(1, length // 4)):
        if first <= position < first + rows_of_process:
            start = position - first
            compared[position] = output[0, :, start : start + CHECKED].clone()
    spent = {"tensors": with_tensors - before, "peak": peak - before, "seconds": seconds}
    torch.save((spent, compared), f"{folder}/{rank}")
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
    _, pages, *_ = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    return int(pages) * resource.getpagesize()


def on_processes(count: int, length: int) -> tuple[list[dict[str, Any]], dict[int, torch.Tensor]]:
    """What `count` new processes spent, and the outputs that are compared, by their position."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(measure, (count, folder, length), nprocs=count)
        of_processes = [torch.load(f"{folder}/{rank}") for rank in range(count)]
    outputs: dict[int, torch.Tensor] = {}
    for _, compared in of_processes:
        outputs |= compared
    return [spent for spent, _ in of_processes], outputs


def compare(length: int) -> dict[str, Any]:
    """Memory, seconds and bytes of one process and of four, and the largest difference of their outputs."""
    (alone,), outputs = on_processes(1, length)
    four, outputs_of_four = on_processes(4, length)
    differences = []
    for position, output in outputs.items():
        differences.append(float((outputs_of_four[position] - output).abs().max()))
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
        "one": alone,
        "four": four,
        "share": max(process["peak"] for process in four) / alone["peak"],
        "difference": max(differences),
        "bytes": traffic.total,
    }


def report(figures: dict[str, Any]) -> str:
    """The figures as a table."""
    processes = {"one process": figures["one"]}
    for number, of_process in enumerate(figures["four"]):
        processes[f"process {number} of 4"] = of_process
    rows = []
    for name, spent in processes.items():
        memory = [f"{spent[what] / 2**20:.0f} MiB" for what in ("tensors", "peak")]
        rows.append([name, *memory, f"{spent['seconds']:.1f}"])
    table = markdown_table(("", "memory of q, k, v", "peak memory", "seconds"), rows)
    sentences = (
        f"Each of four processes needs at most {figures['share']:.3f} of the memory of one. They exchange "
        f"{figures['bytes'] / 1024:.0f} KiB in all, forward and backward. The largest difference of the outputs "
        f"compared is {figures['difference']:.1e}."
    )
    return "\n".join([*table, "", sentences])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--length", type=int, default=262_144)
    print(report(compare(parser.parse_args().length)))


if __name__ == "__main__":
    main()
