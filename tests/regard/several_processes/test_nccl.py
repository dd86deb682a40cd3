"""On GPUs: processes that exchange keys by NCCL compute what one process computes on the CPU.

NCCL refuses two processes on one GPU, so that keys are exchanged where there are two GPUs or more. With one GPU the
tests run with one process. `test_as_nccl_sends.py` checks on every machine what NCCL asks of the messages.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from regard import distributed
from regard.distributed import Layout
from several_processes import calls, test_passed_states
from several_processes.calls import on_one, together
from several_processes.pool import Pool
from several_processes.test_equals_one_process import PRIMES, cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]

LENGTHS = {1: (53,), **PRIMES}
DEVICE = "cuda"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """A process for each GPU, at most four."""
    devices = torch.cuda.device_count()
    started = Pool(4 if devices >= 4 else min(devices, 2), timeout=120, backend="nccl")
    yield started
    started.close()


@pytest.mark.parametrize("case", cases(), ids=str)
def test_processes_on_gpus_compute_what_one_process_computes(case, pool):
    case = replace(case, lengths=LENGTHS[pool.count], k_lengths=None)
    expected = on_one(case)
    results = together(case, pool.run(calls.on_processes, replace(case, device=DEVICE)))
    torch.testing.assert_close(results, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", test_passed_states.MECHANISMS)
def test_sums_that_are_passed_on_give_the_same(name, pool):
    count = max(pool.count, 2)
    if count != pool.count:
        pytest.skip("sums are passed on where there are two GPUs")
    parts = pool.run(test_passed_states.passed, count, name, True, DEVICE)
    for result, expected in test_passed_states.whole(count, name, True).items():
        together = test_passed_states.joined([part[result] for part in parts], count)
        assert (together - expected).abs().max() < 1e-10, result


def half(form: str) -> list[torch.Tensor]:
    """Output and gradients of this process's part in bfloat16, and of the same in float32."""
    rank = dist.get_rank()
    count = dist.get_world_size()
    layout = Layout("zigzag", (129,) * count)
    options = {"pattern": "causal", "layout": "zigzag", "form": form}
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        numbers = torch.Generator().manual_seed(2)
        qkv = []
        for heads in (4, 2, 2):
            x = torch.randn(1, heads, layout.length, 32, generator=numbers)
            part = distributed.shard(x, layout, rank).bfloat16()
            qkv.append(part.to(DEVICE, dtype).requires_grad_())
        output = distributed.attention(*qkv, dist.group.WORLD, **options)
        gradients = torch.autograd.grad(output.sum(), qkv)
        results += [x.detach().float().cpu() for x in (output, *gradients)]
    return results


@pytest.mark.parametrize("form", ["ring", "gather"])
def test_half_precision_is_close_to_float32(form, pool):
    for results in pool.run(half, form):
        for low, high in zip(results[:4], results[4:], strict=True):
            assert (low - high).abs().max() < 0.02 * high.abs().max()
