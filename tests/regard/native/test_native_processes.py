"""The kernel in a forked process, which has none of its parent's threads."""

import multiprocessing
from typing import Any

import pytest
import torch

import regard as rg

from .calls import threads

LONG = torch.randn(2, 4, 700, 32, generator=torch.Generator().manual_seed(5))
# Enough work for two threads of the kernel, and too little for two of PyTorch.
SHORT = LONG[:1, :, :120].contiguous()


def sum_of_output(x: torch.Tensor) -> float:
    return rg.attention(x, x, x, pattern="causal", backend="native").sum().item()


def send_sum(connection: Any) -> None:
    connection.send(sum_of_output(SHORT))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    with threads(2):
        sum_of_output(LONG)  # the parent's pool of threads exists now
        expected = sum_of_output(SHORT)
        receiving, sending = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=send_sum, args=(sending,))
        child.start()
        try:
            assert receiving.poll(60), "the child hangs"
            assert receiving.recv() == expected
        finally:
            child.kill()
            child.join()
