"""Random and damaged calls of the kernel, also for a build with sanitizers: fuzz_native.py LIBRARY CASES [SEED]

Every call either computes or is refused by its entry; sanitizers stop the process at the first read or write outside of
the memory of a tensor. `test_native_sanitized.py` builds the library and runs this file.
"""

import contextlib
import ctypes
import math
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import regard as rg
from regard import patterns as p
from regard.backends.native import backend, filling, library
from regard.backends.native.filling import KernelCall, describe, fill_gradients
from regard.backends.native.library import MOST_TOP, CCall, CStatistics
from regard.backends.native.lowering import Lowered
from regard.backends.native.recurrence import RecurrenceKernel
from regard.backends.recurrence import RecurrenceInputs, Rule
from regard.backends.schedule import Arrays
from regard.core.result import NAMES, TopKeys, Want
from regard.core.tensors import Stored
from regard.errors import RegardError

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from native.test_native_interrupted import kinds, wrong_after_exceptions, wrong_with_calls_inside

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


def size(draw: random.Random, most: int) -> int:
    return draw.choice([1, 2, draw.randint(1, 20), draw.randint(1, most)])


def pattern_of(draw: random.Random, q_len: int, k_len: int, heads: int, batch: int) -> p.Pattern:
    window = draw.randint(1, 70)
    start = draw.randint(0, k_len)
    seeded = torch.Generator().manual_seed(draw.randrange(2**31))
    mask = torch.rand(q_len, k_len, generator=seeded) < draw.random()
    block = draw.choice([1, 16, 17, 40])
    rows = draw.choice([1, 16, 70])
    lists = draw.choice([1, heads])
    listed = torch.randint(
        -1, -(-k_len // block), (1, lists, -(-q_len // rows), 5), generator=seeded
    )
    choices = [
        p.Full(),
        p.Causal(),
        p.SlidingWindow(window),
        p.CausalWindow(window + 1),
        p.Explicit(mask),
        p.SlidingWindow(window) | p.GlobalTokens([draw.randrange(k_len)]),
        p.Strided(window + 1) & p.Causal(),
        p.KeySpan(start, k_len) & p.Causal(),
        ~p.SlidingWindow(window),
        p.RandomBlocks(1, block=16, seed=3),
        p.KeySpan(torch.arange(batch) % (k_len + 1), torch.full((batch,), k_len))
        & p.SlidingWindow(window),
        p.PerHead([draw.choice([p.Causal(), p.SlidingWindow(window)]) for _ in range(heads)]),
        *(
            p.ChosenBlocks(listed, block, rows) & band
            for band in (p.Full(), p.Causal(), p.CausalWindow(window))
        ),
    ]
    return draw.choice(choices)


def strided(draw: random.Random, *shape: int) -> torch.Tensor:
    """Random numbers whose memory ends with the last of them, in one of several layouts."""
    batch, heads, rows, dim = shape
    kind = draw.randrange(4)
    if kind == 0:
        return torch.randn(shape)
    if kind == 1:
        return torch.randn(batch, rows, heads, dim).transpose(1, 2)
    if kind == 2:
        return torch.randn(batch, heads, dim, rows).transpose(2, 3)
    return torch.randn(1, heads, rows, dim).expand(batch, -1, -1, -1)


def beside_each_other(draw: random.Random) -> None:
    """A plan in several threads of Python, each with threads of the kernel; the results are those of one thread."""
    q_len = size(draw, 200)
    k_len = size(draw, 300)
    plans = [torch.randn(1, 2, n, 16) for n in (q_len, k_len, k_len)]
    plan = rg.plan_attention(*plans, pattern=pattern_of(draw, q_len, k_len, 2, 1), backend="native")
    calls = [tuple(torch.randn_like(x) for x in plans) for _ in range(6)]
    expected = [plan.run(*one) for one in calls]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda one: plan.run(*one), calls))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def compute(draw: random.Random) -> None:
    """A sound call, forward and backward; its result is finite."""
    kv_heads = draw.randint(1, 2)
    batch = draw.randint(1, 2)
    heads = kv_heads * draw.randint(1, 3)
    q_len = size(draw, 250)
    k_len = size(draw, 300)
    head_dim = size(draw, 70)
    v_dim = size(draw, 70)
    latent = draw.random() < 0.25  # values are the first numbers of the keys
    if latent:
        head_dim = size(draw, 200)
        v_dim = draw.randint(1, head_dim)
    if draw.random() < (0.3 if q_len < 3 else 0.05):  # several spans, which threads share
        k_len += 4096
    dtype = draw.choice(DTYPES)
    q = strided(draw, batch, heads, q_len, head_dim).to(dtype)
    k, v = (strided(draw, batch, kv_heads, k_len, dim).to(dtype) for dim in (head_dim, v_dim))
    options = {
        "pattern": pattern_of(draw, q_len, k_len, heads, batch),
        "softcap": draw.choice([None, None, 3.0]),
        "dropout": draw.choice([0.0, 0.0, 0.3]),
        "bias": draw.choice(
            [None, None, rg.bias.ALiBi(), torch.randn(heads, 1, k_len, requires_grad=True)]
        ),
        "scale": draw.choice([None, -0.5]),
        "sink": draw.choice([None, None, 0.5, torch.randn(heads)]),
    }
    want = wanted(draw, heads, q_len, k_len)
    learning = draw.random() < 0.6
    if not learning and dtype == torch.float32 and draw.random() < 0.4:
        k, v = (Stored((x * 9).to(torch.int8), torch.rand(*x.shape[:3], 1)) for x in (k, v))
        v = Stored(k.numbers[..., :v_dim], k.scales) if latent else v
    else:
        q, k, v = (x.detach().requires_grad_(learning) for x in (q, k, v))
        v = k[..., :v_dim] if latent else v
    with torch.set_grad_enabled(learning):
        found = rg.attention_detail(q, k, v, backend="native", want=want, **options)
        assert found.output.isfinite().all()
        check(found, set(map(name_of, want)), k_len)
        if learning:
            found.output.sum().backward()
            assert q.grad.isfinite().all()


def wanted(draw: random.Random, heads: int, q_len: int, k_len: int) -> list[Want]:
    """The statistics that a call requests; those of weights, if any, are checked against the log-sum-exp."""
    want: list[Want] = [name for name in NAMES if draw.random() < 0.15]
    if draw.random() < 0.2:
        want.append(rg.top_keys(draw.choice([1, 8, draw.randint(1, MOST_TOP + 1), k_len + 3])))
    if draw.random() < 0.2:
        rows = draw.sample(range(q_len), draw.randint(1, min(q_len, 5)))
        want.append(
            rg.weights_of(
                rows, draw.choice([None, draw.sample(range(heads), draw.randint(1, heads))])
            )
        )
    return list(dict.fromkeys([*want, "log_sum_exp", "sink"])) if want else []


def name_of(want: Want) -> str:
    return (
        want
        if isinstance(want, str)
        else "top_keys"
        if isinstance(want, TopKeys)
        else "chosen_weights"
    )


def check(found: rg.AttentionDetail, want: set[str], k_len: int) -> None:
    """The statistics of a call agree with each other: its weights sum to 1 in every row that is not empty."""
    if not want:
        return
    total = (
        found.log_sum_exp > -math.inf
    ).double() - found.sink  # of the weights of the keys of each row
    close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-3, check_dtype=False)
    if "received" in want:
        close(found.received.sum(-1), total.sum(-1))
    if "weights" in want:
        close(found.weights.sum(-1), total)
    if "chosen_weights" in want:
        assert found.chosen_weights.sum(-1).max() <= 1.0001
    if "entropy" in want:
        assert -1e-4 <= found.entropy.min() <= found.entropy.max() <= math.log(k_len + 1) + 1e-4
    if "distance" in want:
        assert found.distance.isfinite().all()
    if "top_keys" in want:
        keys, weights = found.top_keys.indices, found.top_keys.weights
        assert ((keys >= -1) & (keys < k_len)).all()
        assert (weights.diff(dim=-1) <= 1e-6).all()
        assert (weights.double().sum(-1) <= total + 1e-3).all()


def interrupted(draw: random.Random) -> None:
    """Calls after one that an exception stopped, and calls inside a call, return the same bits as alone."""
    runs = kinds()[draw.choice(list(kinds()))]()
    assert wrong_after_exceptions(runs, 10, draw) == 0
    assert wrong_with_calls_inside(runs, 5, draw) == 0


def damaged(draw: random.Random) -> None:
    """A call whose schedule or sizes were changed at random: the entry refuses it, or it is as sound as any other."""
    q_len = draw.randint(1, 200)
    k_len = draw.randint(1, 200)
    dim = draw.randint(1, 40)
    q = torch.randn(1, 2, q_len, dim)
    k = torch.randn(1, 1, k_len, dim)
    v = torch.randn(1, 1, k_len, dim)
    plan = rg.plan_attention(
        q, k, v, pattern=pattern_of(draw, q_len, k_len, 2, 1), backend="native"
    )
    if not plan.keys:
        return
    kernel = plan._offer.run.__self__
    plan.run(q, k, v)
    if not kernel._lowered:
        return
    lowered = next(iter(kernel._lowered.values()))
    schedules = []
    for arrays, origin in lowered.schedules:
        arrays = [
            x.clone() for x in (arrays.blocks, arrays.runs, arrays.lo, arrays.hi, arrays.bits)
        ]
        for _ in range(draw.randint(1, 3)):
            x = draw.choice(arrays).view(-1)
            if len(x):
                at = draw.randrange(len(x))
                x[at] = draw.choice(
                    [int(x[at]) + draw.randint(-40, 40), draw.randint(-(2**31), 2**31 - 1), 0]
                )
        schedules.append((Arrays(*arrays), draw.choice([origin, origin + draw.randint(-50, 50)])))
    kernel_call = KernelCall(plan.problem)
    output = torch.empty(1, 2, q_len, dim)
    sums = torch.zeros(1, 2, q_len)
    keys = plan.keys
    struct = kernel_call.struct
    struct.first_key = keys.start
    struct.keys = len(keys)
    struct.threads = draw.choice([1, 2, 4])
    broken = Lowered(schedules, None)
    struct.schedules = len(schedules)
    struct.schedule = broken.address
    tensors = q, k[:, :, keys.start : keys.stop], v[:, :, keys.start : keys.stop], output
    for tensor_struct, x in zip(kernel_call.tensors, tensors, strict=True):
        describe(tensor_struct, x)
    struct.log_sum_exp = sums.data_ptr()
    found = [torch.empty(x.shape) for x in tensors[:3]]
    gradients = fill_gradients(output, None, found, None, False)
    if draw.random() < 0.3:
        name = draw.choice(
            [
                "batch",
                "heads",
                "kv_heads",
                "q_len",
                "head_dim",
                "v_dim",
                "first_key",
                "keys",
                "threads",
            ]
        )
        sizes = [0, -1, 1, 2, 3, getattr(struct, name) + draw.randint(-2, 300)]
        setattr(struct, name, draw.choice(sizes))
    if draw.random() < 0.3:
        into = draw.choice(
            [*kernel_call.tensors, gradients.dout, gradients.dq, gradients.dk, gradients.dv]
        )
        name = draw.choice(["batch", "head", "row"])
        strides = [
            0,
            -1,
            1,
            getattr(into, name) + draw.randint(-9, 9),
            draw.randint(-(2**62), 2**62),
        ]
        setattr(into, name, draw.choice(strides))
    struct.threads = min(struct.threads, 4)
    statistics = damaged_statistics(draw, struct, heads=2, q_len=q_len, keys=len(keys))
    try:
        if draw.random() < 0.5:
            kernel.library.forward(kernel_call.address)
        else:
            kernel.library.backward(kernel_call.address, gradients)
    except RegardError:
        return
    finally:
        del statistics  # the call points at it


def damaged_statistics(draw: random.Random, call: CCall, heads: int, q_len: int, keys: int) -> Any:
    """Point a call at statistics of which some are missing or changed; returns what must live until it is computed.

    The interface gives no sizes of these arrays, so that only their pointers, counts and places are changed.
    """
    if draw.random() < 0.4:
        return None
    struct = CStatistics()
    shapes = {"entropy": (), "distance": (), "top_weights": (MOST_TOP,), "top_keys": (MOST_TOP,)}
    memory = {
        name: torch.zeros(heads, q_len, *last, dtype=torch.int64) for name, last in shapes.items()
    }
    memory |= {"received": torch.zeros(heads, keys), "weights": torch.zeros(heads, q_len, keys)}
    slots = {
        "head_slot": torch.arange(heads, dtype=torch.int32),
        "row_slot": torch.arange(q_len, dtype=torch.int32),
    }
    for x in slots.values():
        if draw.random() < 0.3:
            x[draw.randrange(len(x))] = draw.choice(
                [-1, -2, len(x), draw.randint(-(2**31), 2**31 - 1)]
            )
    memory |= slots
    for name, x in memory.items():
        setattr(struct, name, None if draw.random() < 0.2 else x.data_ptr())
    struct.top = draw.choice([0, 1, draw.randint(1, MOST_TOP), MOST_TOP + 1, -1])
    struct.weight_heads, struct.weight_rows = (
        draw.choice([heads, 0, -1]),
        draw.choice([q_len, q_len, 0]),
    )
    starts = torch.tensor([draw.randint(-9, 9)])
    call.start = draw.choice([None, starts.data_ptr()])
    if draw.random() < 0.2:
        call.log_sum_exp = None
    call.statistics = ctypes.addressof(struct)
    return struct, memory, starts


def recur(draw: random.Random) -> None:
    """A recurrence with its gradients, as it is or with a damaged struct."""
    (dims, length), heads = (
        (size(draw, 70), size(draw, 130)),
        draw.choice([(2, 2, 2), (4, 2, 2), (2, 2, 6), (1, 1, 1)]),
    )
    v_dim = size(draw, 70)
    kind = draw.choice([0, 1, 2])
    dtype = draw.choice(DTYPES)
    q, k, v = (
        strided(draw, 2, n, length, dim).to(dtype)
        for n, dim in zip(heads, (dims, dims, v_dim), strict=True)
    )
    wide = torch.promote_types(dtype, torch.float32)
    log_decay = (
        -torch.rand(2, heads[2], length, *((dims,) if kind == 2 else ()), dtype=wide)
        if kind
        else None
    )
    strength = torch.rand(2, heads[2], length, dtype=wide) if draw.random() < 0.5 else None
    memory = torch.rand(2, heads[2], dims, v_dim, dtype=wide)
    inputs = RecurrenceInputs(q, k / 8, v, log_decay, strength, memory)
    learns = draw.random() < 0.5
    rule = Rule(draw.random() < 0.5, 0.5, 0.0 if learns or draw.random() < 0.5 else 1e-6)
    kernel = RecurrenceKernel(backend.load())
    if draw.random() < 0.3:
        output = v.new_empty(2, max(heads), length, v_dim)
        call, _held = kernel._call(rule, inputs, output, (None, None))
        names = ("heads", "key_heads", "kv_heads", "length", "head_dim", "v_dim", "decays")
        setattr(call, draw.choice(names), draw.choice([-1, 0, 5, 1 << 20]))
        with contextlib.suppress(RegardError):
            kernel.library.recur(call)
        return
    output, after, kept = kernel.forward(rule, inputs, learns)
    if learns:
        kernel.backward(rule, inputs, kept, [torch.ones_like(output), torch.ones_like(after)])


def use_threads(count: int) -> None:
    """So many threads of the kernel. PyTorch gets as many, unless OMP_NUM_THREADS=1 leaves it alone in its thread: a
    sanitizer of threads cannot follow how PyTorch's own ones wait for each other."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        torch.get_num_threads = lambda: count
    else:
        torch.set_num_threads(count)


def main(path: str, cases: int, seed: int) -> None:
    loaded = library.load(Path(path))
    assert isinstance(loaded, library.Library), loaded
    backend.load = lambda: loaded  # type: ignore[assignment]
    filling.PRODUCTS_PER_THREAD = 1  # threads share calls of any size
    for case in range(cases):
        draw = random.Random(seed + case)
        torch.manual_seed(seed + case)
        use_threads(draw.choice([1, 2, 4]))
        loaded.handle.rg_use_instructions(ctypes.c_int32(draw.choice([0, 2, 3])))
        kind = beside_each_other if case % 20 == 0 else interrupted if case % 20 == 10 else damaged
        one = kind if case % 10 == 0 or case % 3 == 2 else compute
        (recur if case % 7 == 3 else one)(draw)
    print(f"{cases} calls")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
