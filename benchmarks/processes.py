"""Runs a function in several new processes of one gloo group on this machine; other scripts here import it."""

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist


def on_processes(count: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What the function returned in each of `count` new processes; ends this one if one of them ends without."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes = [context.Pipe(duplex=False) for _ in range(count)]
        processes = [
            context.Process(target=_serve, args=(rank, count, f"{folder}/store", function, args, end), daemon=True)
            for rank, (_, end) in enumerate(pipes)
        ]
        for process, (_, end) in zip(processes, pipes, strict=True):
            process.start()
            end.close()  # so that a process that dies closes the last one, and is not waited for
        try:
            found = [end.recv() for end, _ in pipes]
        except EOFError:
            sys.exit(f"one of {count} processes ended before it answered; what it printed is above")
        for process in processes:
            process.join()
    return found


def _serve(
    rank: int, count: int, store: str, function: Callable[..., Any], args: tuple[Any, ...], end: Connection
) -> None:
    """One process: join the others, call the function, send what it returned."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count)
    end.send(function(*args))
    dist.barrier()
    dist.destroy_process_group()
