"""Processes that know each other by gloo on loopback. They are started once, and each test gives them a function.

With backend="nccl" each process has a GPU of its own.
"""

import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

SECONDS_FOR_A_FUNCTION = 60
SECONDS_FOR_A_START = 300  # for the imports of all processes, on a busy machine

# Imported once and not in each process; optimisers import torch._dynamo, which takes seconds.
PRELOADED = [
    "torch.distributed.tensor.parallel",
    "torch._dynamo",
    "regard.distributed",
    "several_processes.calls",
]

# Imported with them where a test that needs it was collected.
MODELS = "regard.integrations.transformers"


class Pool:
    """`count` processes of one group; `run` calls a function in each and returns what each of them returned."""

    def __init__(
        self, count: int, timeout: int = SECONDS_FOR_A_FUNCTION // 2, backend: str = "gloo"
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        preloaded = [*PRELOADED, MODELS] if MODELS in sys.modules else PRELOADED
        context.set_forkserver_preload(preloaded)
        self.count = count
        self.sound = True
        store = Path(tempfile.mkdtemp()) / "store"
        pipes = [context.Pipe() for _ in range(count)]
        self.ends = [end for end, _ in pipes]
        self.processes = [
            context.Process(
                target=serve,
                args=(rank, count, str(store), pipes[rank][1], timeout, backend),
                daemon=True,
            )
            for rank in range(count)
        ]
        for process in self.processes:
            process.start()
        for rank, end in enumerate(self.ends):
            started = end.poll(SECONDS_FOR_A_START)
            assert started, f"process {rank} did not start within {SECONDS_FOR_A_START} s"
            end.recv()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returned in each process; an exception there is raised here, with its traceback."""
        for end in self.ends:
            end.send((function, args))
        return [result for result, _ in self._answers(raising=True)]

    def refusals(self, function: Callable[..., Any], *args: Any) -> list[str]:
        """The message with which the function failed in each process; "" where it did not."""
        for end in self.ends:
            end.send((function, args))
        return [message for _, message in self._answers(raising=False)]

    def _answers(self, raising: bool) -> list[tuple[Any, str]]:
        answers = []
        for rank, end in enumerate(self.ends):
            answered = end.poll(SECONDS_FOR_A_FUNCTION)
            assert answered, f"process {rank} did not answer within {SECONDS_FOR_A_FUNCTION} s"
            answers.append(end.recv())
        failed = [trace for _, _, trace in answers if trace]
        self.sound = self.sound and not (raising and failed)
        if raising and failed:
            raise AssertionError("\n".join(failed))
        return [(result, message) for result, message, _ in answers]

    def close(self) -> None:
        for end in self.ends:
            end.close()
        for process in self.processes:
            process.join(SECONDS_FOR_A_FUNCTION)


def serve(rank: int, count: int, store: str, end: Connection, timeout: int, backend: str) -> None:
    """What each process does: join the group, then call the functions that arrive until the other end closes."""
    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if "POISONED_MEMORY" in os.environ:  # see tests/long/plugin.py
        torch.set_deterministic_debug_mode("warn")
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        backend,
        store=torch.distributed.FileStore(store, count),
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=timeout),
    )
    end.send("ready")
    while True:
        try:
            function, args = end.recv()
        except EOFError:
            break
        try:
            end.send((function(*args), "", ""))
        except Exception as error:
            end.send((None, f"{type(error).__name__}: {error}", traceback.format_exc()))
    torch.distributed.destroy_process_group()
