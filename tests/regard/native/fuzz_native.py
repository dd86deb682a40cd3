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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

import regard as rg
from regard import patterns as p
from regard.backends.native import backend, filling, library
from regard.backends.native.bands import EVERY_KEY_BEFORE
from regard.backends.native.filling import KernelCall, describe, fill_gradients
from regard.backends.native.library import MOST_TOP, CCall, CStatistics
from regard.backends.native.lowering import Lowered
from regard.backends.native.program import ACTIVATIONS, Attending, HeadSizes, Panels, Program
from regard.backends.native.recurrence import RecurrenceKernel
from regard.backends.recurrence import RecurrenceInputs, Rule
from regard.backends.schedule import Arrays
from regard.core.result import NAMES, Want
from regard.core.tensors import Stored
from regard.errors import RegardError

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from native.test_native_interrupted import KINDS, wrong_after_exceptions, wrong_with_calls_inside

DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


def draw_size(draw: random.Random, most: int) -> int:
    return draw.choice([1, 2, draw.randint(1, 20), draw.randint(1, most)])


def draw_pattern(draw: random.Random, q_len: int, k_len: int, heads: int, batch: int) -> p.Pattern:
    window = draw.randint(1, 70)
    start = draw.randint(0, k_len)
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    mask = torch.rand(q_len, k_len, generator=generator) < draw.random()
    block = draw.choice([1, 16, 17, 40])
    query_block = draw.choice([1, 16, 70])
    shape = (1, draw.choice([1, heads]), -(-q_len // query_block), 5)
    lists = torch.randint(-1, -(-k_len // block), shape, generator=generator)
    blocks = p.ChosenBlocks(lists, block, query_block)
    ends = torch.full((batch,), k_len)
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
        p.KeySpan(torch.arange(batch) % (k_len + 1), ends) & p.SlidingWindow(window),
        p.PerHead([draw.choice([p.Causal(), p.SlidingWindow(window)]) for _ in range(heads)]),
        blocks & p.Full(),
        blocks & p.Causal(),
        blocks & p.CausalWindow(window),
    ]
    return draw.choice(choices)


def draw_tensor(draw: random.Random, *shape: int) -> torch.Tensor:
    """Random numbers whose memory ends with the last of them, in one of several layouts."""
    batch, heads, rows, dim = shape
    layout = draw.randrange(4)
    if layout == 0:
        return torch.randn(shape)
    if layout == 1:
        return torch.randn(batch, rows, heads, dim).transpose(1, 2)
    if layout == 2:
        return torch.randn(batch, heads, dim, rows).transpose(2, 3)
    return torch.randn(1, heads, rows, dim).expand(batch, -1, -1, -1)


def compute_in_threads(draw: random.Random) -> None:
    """A plan in several threads of Python, each with threads of the kernel; the results are those of one thread."""
    q_len = draw_size(draw, 200)
    k_len = draw_size(draw, 300)
    qkv = [torch.randn(1, 2, length, 16) for length in (q_len, k_len, k_len)]
    pattern = draw_pattern(draw, q_len, k_len, 2, 1)
    plan = rg.plan_attention(*qkv, pattern=pattern, backend="native")
    calls = [tuple(torch.randn_like(x) for x in qkv) for _ in range(6)]
    expected = [plan.run(*call) for call in calls]
    with ThreadPoolExecutor(3) as pool:
        outputs = list(pool.map(lambda call: plan.run(*call), calls))
    assert all(map(torch.equal, outputs, expected))


def compute(draw: random.Random) -> None:
    """A sound call, forward and backward; its result is finite."""
    kv_heads = draw.randint(1, 2)
    batch = draw.randint(1, 2)
    heads = kv_heads * draw.randint(1, 3)
    q_len = draw_size(draw, 250)
    k_len = draw_size(draw, 300)
    head_dim = draw_size(draw, 70)
    v_dim = draw_size(draw, 70)
    latent = draw.random() < 0.25  # values are the first numbers of the keys
    if latent:
        head_dim = draw_size(draw, 200)
        v_dim = draw.randint(1, head_dim)
    if draw.random() < (0.3 if q_len < 3 else 0.05):  # several spans, which threads share
        k_len += 4096
    dtype = draw.choice(DTYPES)
    q = draw_tensor(draw, batch, heads, q_len, head_dim).to(dtype)
    k = draw_tensor(draw, batch, kv_heads, k_len, head_dim).to(dtype)
    v = draw_tensor(draw, batch, kv_heads, k_len, v_dim).to(dtype)
    learned_bias = torch.randn(heads, 1, k_len, requires_grad=True)
    options = {
        "pattern": draw_pattern(draw, q_len, k_len, heads, batch),
        "softcap": draw.choice([None, None, 3.0]),
        "dropout": draw.choice([0.0, 0.0, 0.3]),
        "bias": draw.choice([None, None, rg.bias.ALiBi(), learned_bias]),
        "scale": draw.choice([None, -0.5]),
        "sink": draw.choice([None, None, 0.5, torch.randn(heads)]),
    }
    wants = draw_wants(draw, heads, q_len, k_len)
    learning = draw.random() < 0.6
    in_int8 = not learning and dtype == torch.float32 and draw.random() < 0.4
    if in_int8:
        k, v = (Stored((x * 9).to(torch.int8), torch.rand(*x.shape[:3], 1)) for x in (k, v))
        if latent:
            v = Stored(k.numbers[..., :v_dim], k.scales)
    else:
        q, k, v = (x.detach().requires_grad_(learning) for x in (q, k, v))
        if latent:
            v = k[..., :v_dim]
    with torch.set_grad_enabled(learning):
        detail = rg.attention_detail(
            q, k, v, backend="native", want=list(wants.values()), **options
        )
        assert detail.output.isfinite().all()
        check_statistics(detail, wants, k_len)
        if learning:
            detail.output.sum().backward()
            assert q.grad.isfinite().all()


def draw_wants(draw: random.Random, heads: int, q_len: int, k_len: int) -> dict[str, Want]:
    """The statistics that a call requests, by name; with some, the log-sum-exp and the weight of the sink too."""
    wants: dict[str, Want] = {name: name for name in NAMES if draw.random() < 0.15}
    if draw.random() < 0.2:
        count = draw.choice([1, 8, draw.randint(1, MOST_TOP + 1), k_len + 3])
        wants["top_keys"] = rg.top_keys(count)
    if draw.random() < 0.2:
        rows = draw.sample(range(q_len), draw.randint(1, min(q_len, 5)))
        some_heads = draw.sample(range(heads), draw.randint(1, heads))
        wants["chosen_weights"] = rg.weights_of(rows, draw.choice([None, some_heads]))
    if wants:
        wants |= {"log_sum_exp": "log_sum_exp", "sink": "sink"}
    return wants


def check_statistics(detail: rg.AttentionDetail, wants: dict[str, Want], k_len: int) -> None:
    """The statistics of a call agree with each other: its weights sum to 1 in every row that is not empty."""
    if not wants:
        return
    has_weights = detail.log_sum_exp > -math.inf
    total = has_weights.double() - detail.sink  # of the weights of the keys of each row
    assert_close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-3, check_dtype=False)
    if "received" in wants:
        assert_close(detail.received.sum(-1), total.sum(-1))
    if "weights" in wants:
        assert_close(detail.weights.sum(-1), total)
    if "chosen_weights" in wants:
        assert detail.chosen_weights.sum(-1).max() <= 1.0001
    if "entropy" in wants:
        assert detail.entropy.min() >= -1e-4
        assert detail.entropy.max() <= math.log(k_len + 1) + 1e-4
    if "distance" in wants:
        assert detail.distance.isfinite().all()
    if "top_keys" in wants:
        keys = detail.top_keys.indices
        weights = detail.top_keys.weights
        assert ((keys >= -1) & (keys < k_len)).all()
        assert (weights.diff(dim=-1) <= 1e-6).all()
        assert (weights.double().sum(-1) <= total + 1e-3).all()


def interrupt(draw: random.Random) -> None:
    """Calls after one that an exception stopped, and calls inside a call, return the same bits as alone."""
    runs = KINDS[draw.choice(list(KINDS))]()
    assert wrong_after_exceptions(runs, 10, draw) == 0
    assert wrong_with_calls_inside(runs, 5, draw) == 0


def compute_damaged(draw: random.Random) -> None:
    """A call whose schedule or sizes were changed at random: the entry refuses it, or it is as sound as any other."""
    q_len = draw.randint(1, 200)
    k_len = draw.randint(1, 200)
    dim = draw.randint(1, 40)
    q = torch.randn(1, 2, q_len, dim)
    k = torch.randn(1, 1, k_len, dim)
    v = torch.randn(1, 1, k_len, dim)
    pattern = draw_pattern(draw, q_len, k_len, 2, 1)
    plan = rg.plan_attention(q, k, v, pattern=pattern, backend="native")
    if not plan.keys:
        return
    kernel = plan._offer.run.__self__
    plan.run(q, k, v)
    if not kernel._lowered:
        return
    lowered = damage_schedules(draw, next(iter(kernel._lowered.values())))

    keys = plan.keys
    kernel_call = KernelCall(plan.problem)
    struct = kernel_call.struct
    struct.first_key = keys.start
    struct.keys = len(keys)
    struct.threads = draw.choice([1, 2, 4])
    struct.schedules = len(lowered.schedules)
    struct.schedule = lowered.address
    output = torch.empty(1, 2, q_len, dim)
    sums = torch.zeros(1, 2, q_len)
    struct.log_sum_exp = sums.data_ptr()
    tensors = q, k[:, :, keys.start : keys.stop], v[:, :, keys.start : keys.stop], output
    for tensor_struct, x in zip(kernel_call.tensors, tensors, strict=True):
        describe(tensor_struct, x)
    room = [torch.empty(x.shape) for x in tensors[:3]]
    gradients = fill_gradients(output, None, room, None, False)

    if draw.random() < 0.3:
        damage_sizes(draw, struct)
    if draw.random() < 0.3:
        of_gradients = gradients.dout, gradients.dq, gradients.dk, gradients.dv
        damage_strides(draw, draw.choice([*kernel_call.tensors, *of_gradients]))
    struct.threads = min(struct.threads, 4)
    borrowed = damage_statistics(draw, struct, heads=2, q_len=q_len, keys=len(keys))
    try:
        if draw.random() < 0.5:
            kernel.library.forward(kernel_call.address)
        else:
            kernel.library.backward(kernel_call.address, gradients)
    except RegardError:
        return
    finally:
        del borrowed  # the call points at it


def damage_schedules(draw: random.Random, lowered: Lowered) -> Lowered:
    """The same schedules with a few other numbers."""
    schedules = []
    for arrays, origin in lowered.schedules:
        copies = [
            x.clone() for x in (arrays.blocks, arrays.runs, arrays.lo, arrays.hi, arrays.bits)
        ]
        for _ in range(draw.randint(1, 3)):
            numbers = draw.choice(copies).view(-1)
            if len(numbers):
                place = draw.randrange(len(numbers))
                near = int(numbers[place]) + draw.randint(-40, 40)
                numbers[place] = draw.choice([near, draw.randint(-(2**31), 2**31 - 1), 0])
        schedules.append((Arrays(*copies), draw.choice([origin, origin + draw.randint(-50, 50)])))
    return Lowered(schedules, None)


SIZES = ("batch", "heads", "kv_heads", "q_len", "head_dim", "v_dim", "first_key", "keys", "threads")


def damage_sizes(draw: random.Random, struct: CCall) -> None:
    name = draw.choice(SIZES)
    near = getattr(struct, name) + draw.randint(-2, 300)
    setattr(struct, name, draw.choice([0, -1, 1, 2, 3, near]))


def damage_strides(draw: random.Random, tensor_struct: library.CTensor) -> None:
    name = draw.choice(["batch", "head", "row"])
    near = getattr(tensor_struct, name) + draw.randint(-9, 9)
    setattr(tensor_struct, name, draw.choice([0, -1, 1, near, draw.randint(-(2**62), 2**62)]))


def damage_statistics(draw: random.Random, call: CCall, heads: int, q_len: int, keys: int) -> Any:
    """Point a call at statistics of which some are missing or changed; returns what must live until it is computed.

    The interface gives no sizes of these arrays, so that only their pointers, counts and places are changed.
    """
    if draw.random() < 0.4:
        return None
    memory = {
        "entropy": torch.zeros(heads, q_len, dtype=torch.int64),
        "distance": torch.zeros(heads, q_len, dtype=torch.int64),
        "top_weights": torch.zeros(heads, q_len, MOST_TOP, dtype=torch.int64),
        "top_keys": torch.zeros(heads, q_len, MOST_TOP, dtype=torch.int64),
        "received": torch.zeros(heads, keys),
        "weights": torch.zeros(heads, q_len, keys),
        "head_slot": torch.arange(heads, dtype=torch.int32),
        "row_slot": torch.arange(q_len, dtype=torch.int32),
    }
    for name in ("head_slot", "row_slot"):
        slots = memory[name]
        if draw.random() < 0.3:
            place = draw.randrange(len(slots))
            slots[place] = draw.choice([-1, -2, len(slots), draw.randint(-(2**31), 2**31 - 1)])
    struct = CStatistics()
    for name, x in memory.items():
        setattr(struct, name, None if draw.random() < 0.2 else x.data_ptr())
    struct.top = draw.choice([0, 1, draw.randint(1, MOST_TOP), MOST_TOP + 1, -1])
    struct.weight_heads = draw.choice([heads, 0, -1])
    struct.weight_rows = draw.choice([q_len, q_len, 0])
    starts = torch.tensor([draw.randint(-9, 9)])
    call.start = draw.choice([None, starts.data_ptr()])
    if draw.random() < 0.2:
        call.log_sum_exp = None
    call.statistics = ctypes.addressof(struct)
    return struct, memory, starts


def compute_recurrence(draw: random.Random) -> None:
    """A recurrence with its gradients, as it is or with a damaged struct."""
    head_dim = draw_size(draw, 70)
    length = draw_size(draw, 130)
    heads = draw.choice([(2, 2, 2), (4, 2, 2), (2, 2, 6), (1, 1, 1)])
    v_dim = draw_size(draw, 70)
    decays = draw.choice([0, 1, 2])
    dtype = draw.choice(DTYPES)
    q = draw_tensor(draw, 2, heads[0], length, head_dim).to(dtype)
    k = draw_tensor(draw, 2, heads[1], length, head_dim).to(dtype)
    v = draw_tensor(draw, 2, heads[2], length, v_dim).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    log_decay = None
    if decays:
        by_channel = (head_dim,) if decays == 2 else ()
        log_decay = -torch.rand(2, heads[2], length, *by_channel, dtype=wide)
    strength = torch.rand(2, heads[2], length, dtype=wide) if draw.random() < 0.5 else None
    memory = torch.rand(2, heads[2], head_dim, v_dim, dtype=wide)
    inputs = RecurrenceInputs(q, k / 8, v, log_decay, strength, memory)
    learns = draw.random() < 0.5
    rule = Rule(draw.random() < 0.5, 0.5, 0.0 if learns or draw.random() < 0.5 else 1e-6)
    kernel = RecurrenceKernel(backend.load())
    if draw.random() < 0.3:
        output = v.new_empty(2, max(heads), length, v_dim)
        call, _borrowed = kernel._call(rule, inputs, output, (None, None))
        names = ("heads", "key_heads", "kv_heads", "length", "head_dim", "v_dim", "decays")
        setattr(call, draw.choice(names), draw.choice([-1, 0, 5, 1 << 20]))
        with contextlib.suppress(RegardError):
            kernel.library.recur(call)
        return
    output, after, saved = kernel.forward(rule, inputs, learns)
    if learns:
        grads = [torch.ones_like(output), torch.ones_like(after)]
        kernel.backward(rule, inputs, saved, grads)


def compute_program(draw: random.Random) -> None:
    """A layer over a few rows: embedding, norm, attention to a text or among the rows of each text, gated feed-forward;
    some with a damaged number."""
    texts, length = draw.choice([(1, 1), (2, 1), (5, 1), (24, 1), (1, 13), (3, 7), (2, 31)])
    rows = texts * length
    dim, hidden = draw_size(draw, 70), draw_size(draw, 70)
    kv_heads, group, head_dim = draw.choice([1, 2]), draw.choice([1, 3]), 2 * draw_size(draw, 20)
    heads = kv_heads * group
    room, place = draw.choice([(1, 0), (7, 3), (40, 39)])
    among_rows = length > 1 or draw.random() < 0.2
    v_dim = draw_size(draw, 40) if among_rows else head_dim
    loaded = backend.load()
    assert isinstance(loaded, library.Library)
    program = Program(loaded)
    x, normed, gate, wide = (program.buffer(size) for size in (dim, dim, hidden, hidden))
    q, into = (program.buffer(heads * size) for size in (head_dim, v_dim))
    k, v = (program.buffer(kv_heads * size) for size in (head_dim, v_dim))
    embedding = program.embed(torch.randn(9, dim), 1.5, x)
    program.norm(x, normed, torch.randn(dim), torch.randn(dim), 1e-5)
    for buffer in (q, k, v):
        program.project(normed, buffer, torch.randn(program.width(buffer), dim), None)
    program.rotate(q, head_dim)
    program.rotate(k, head_dim)
    attending = Attending(HeadSizes(heads, kv_heads, head_dim, v_dim), 0.5, None)
    if among_rows:
        bounds = draw_bounds(draw, length)
        attending.read_rows(texts, length, bounds)
        program.attend_among_rows(q, k, v, into, attending)
    else:
        entries = torch.randn(2, rows, kv_heads, room, head_dim)
        keys, values = entries.unbind()
        attending.read_text(keys, values)
        program.attend_to_text(q, k, v, into, attending, draw.choice([0, 5, EVERY_KEY_BEFORE]))
    program.project(into, x, torch.randn(dim, heads * v_dim), torch.randn(dim), adds=True)
    program.rms_norm(x, normed, None, 1e-5)
    for buffer in (gate, wide):
        program.project(normed, buffer, torch.randn(hidden, dim), torch.randn(hidden))
    program.activate(gate, draw.choice([*ACTIVATIONS]))
    program.multiply(gate, wide)
    program.project(wide, x, torch.randn(dim, hidden), None, adds=True)
    panels = torch.randn(3, dim, 32)  # it lives until the program has run
    of_panels = program.buffer(96)
    matrix = Panels(panels.data_ptr(), 96, dim, 32)
    program.project_panels(x, of_panels, matrix, torch.randn(96), adds=True)
    assert program.finish()
    # The interface gives no sizes of the cosines and sines, so that they are as many as the places.
    turns = torch.randn(2, length, head_dim)
    program.stand_at(length)
    program.rotate_by(turns[0], turns[1])
    vectors = torch.randn(length, dim)
    program.add_to_rows(embedding, vectors)
    output = torch.empty(rows, dim)
    program.give(x, output)
    if draw.random() < 0.4:
        damage_program(draw, program, attending)
    ids = torch.tensor(
        [draw.choice([0, 8] if draw.random() < 0.9 else [-1, 9]) for _ in range(rows)]
    )
    with contextlib.suppress(RegardError, IndexError):
        program.run(rows + draw.choice([0, 0, 0, 1]), place + draw.choice([0, 0, 0, 1]), ids)


def draw_bounds(draw: random.Random, length: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The first key of each query and the end of its keys; None for all keys."""
    if draw.random() < 0.4:
        return None
    places = torch.arange(length, dtype=torch.int32)
    before, after = draw.randint(0, 9), draw.randint(0, 9)
    return (places - before).clamp(min=0), (places + after + 1).clamp(max=length)


def damage_program(draw: random.Random, program: Program, attending: Attending) -> None:
    """Change a number of an operation, or of the attention."""
    names = ["kind", "source", "into", "keys", "values", "activation", "head_dim", "weight_size"]
    damaged: Any = draw.choice([*program._operation_structs])
    if draw.random() < 0.3:
        names = ["bias_size"]
        damaged = program._operation_structs[0]
    elif draw.random() < 0.4:
        names = ["batch", "q_len", "kv_heads", "heads", "head_dim", "v_dim", "keys"]
        damaged = attending.struct
    setattr(damaged, draw.choice(names), draw.choice([-1, 0, 3, 5, 17, 1 << 30]))


def use_threads(count: int) -> None:
    """So many threads of the kernel. PyTorch gets as many, unless OMP_NUM_THREADS=1 leaves it alone in its thread: a
    sanitizer of threads cannot follow how PyTorch's own ones wait for each other."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        torch.get_num_threads = lambda: count
    else:
        torch.set_num_threads(count)


def work_of(number: int) -> Callable[[random.Random], None]:
    """What a case does: kinds in turn."""
    if number % 7 == 3:
        return compute_recurrence
    if number % 7 == 5:
        return compute_program
    if number % 20 == 0:
        return compute_in_threads
    if number % 20 == 10:
        return interrupt
    return compute_damaged if number % 3 == 2 else compute


def main(path: str, cases: int, seed: int) -> None:
    loaded = library.load(Path(path))
    assert isinstance(loaded, library.Library), loaded
    backend.load = lambda: loaded  # type: ignore[assignment]
    filling.PRODUCTS_PER_THREAD = 1  # threads share calls of any size
    for number in range(cases):
        draw = random.Random(seed + number)
        torch.manual_seed(seed + number)
        use_threads(draw.choice([1, 2, 4]))
        loaded.handle.rg_use_instructions(ctypes.c_int32(draw.choice([0, 2, 3])))
        work_of(number)(draw)
    print(f"{cases} calls")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0)
