"""The kernel in forked processes, in workers of a DataLoader, and in several threads that share a plan."""

import multiprocessing
from typing import Any

import pytest
import torch

import regard as rg

X = torch.randn(2, 4, 700, 32, generator=torch.Generator().manual_seed(5))


def attend(x: torch.Tensor = X) -> torch.Tensor:
    return rg.attention(x, x, x, pattern="causal", backend="native")


@pytest.fixture
def _two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


# enough work for two threads of the kernel, and too little for two of PyTorch
SMALL = X[:1, :, :120].contiguous()


def _in_child(connection: Any) -> None:
    connection.send(attend(SMALL).sum().item())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("_two_threads")
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have():
    attend()  # the parent's pool of threads exists now
    expected = attend(SMALL).sum().item()
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(theirs,))
    child.start()
    try:
        assert ours.poll(60), "the child hangs"
        assert ours.recv() == expected
    finally:
        child.kill()
        child.join()
