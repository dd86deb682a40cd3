"""Recurrences by the kernel: values and gradients of the plain operations, bits, and calls that do not fit."""

import ctypes
import itertools
import mmap
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.functional import normalize

import regard as rg
from regard import mechanisms as m
from regard.backends.native.library import CHUNK
from regard.backends.native.recurrence import RecurrenceKernel
from regard.backends.recurrence import PLAIN, RecurrenceInputs, Rule, ScanEngine, scan
from regard.errors import RegardError

from .calls import AVX2, AVX512, BEST, threads

UNIT = 1e-3  # added to the square of a length before vectors are brought to length 1


class HeadCounts(NamedTuple):
    q: int
    k: int
    v: int


class MemoryForm(NamedTuple):
    """What happens to a memory at each position.

    decays: 0 for none, 1 for a number of each head, 2 for one of each channel. strong: whether what is written has a
    strength. corrects: whether what the memory holds for a key is taken off before.
    """

    decays: int
    strong: bool
    corrects: bool


HEADS = [HeadCounts(2, 2, 2), HeadCounts(4, 2, 2), HeadCounts(2, 2, 6)]
MEMORIES = [
    MemoryForm(1, True, True),
    MemoryForm(2, True, True),
    MemoryForm(2, False, False),
    MemoryForm(0, True, True),
    MemoryForm(1, True, False),
    MemoryForm(0, False, False),
]


class RecurrenceSizes(NamedTuple):
    heads: HeadCounts
    length: int
    head_dim: int
    v_dim: int


SHORT = [RecurrenceSizes(heads, length, 5, 3) for heads in HEADS for length in (1, 2, 17, 70)]
LONG = [
    RecurrenceSizes(HeadCounts(1, 1, 1), 193, *dims) for dims in [(33, 40), (64, 16), (16, 130)]
]
CASES = [*itertools.product(SHORT, MEMORIES), *itertools.product(LONG, MEMORIES[:4])]


def draw_inputs(
    sizes: RecurrenceSizes, memory: MemoryForm, dtype: torch.dtype = torch.float32
) -> tuple[Rule, RecurrenceInputs]:
    """Tensors with keys of length 1, and log decays of 0, -1e6 and -inf among others."""
    heads, length, head_dim, v_dim = sizes
    q = torch.randn(2, heads.q, length, head_dim, dtype=dtype)
    k = normalize(torch.randn(2, heads.k, length, head_dim, dtype=dtype), dim=-1)
    v = torch.randn(2, heads.v, length, v_dim, dtype=dtype)
    log_decay = draw_log_decay(sizes, memory.decays, dtype) if memory.decays else None
    strength = torch.rand(2, heads.v, length, dtype=dtype) if memory.strong else None
    before = torch.randn(2, heads.v, head_dim, v_dim, dtype=dtype)
    return Rule(memory.corrects, 0.3), RecurrenceInputs(q, k, v, log_decay, strength, before)


def draw_log_decay(sizes: RecurrenceSizes, decays: int, dtype: torch.dtype) -> torch.Tensor:
    shape = [2, sizes.heads.v, sizes.length]
    if decays == 2:
        shape.append(sizes.head_dim)
    usual = -torch.rand(shape, dtype=dtype) / 5
    extremes = torch.tensor([0.0, -1e6, -torch.inf], dtype=dtype)[torch.randint(3, shape)]
    return torch.where(torch.rand(shape) < 0.05, extremes, usual)


def in_float64(inputs: RecurrenceInputs) -> RecurrenceInputs:
    return changed(inputs, torch.Tensor.double)


def changed(
    inputs: RecurrenceInputs, change: Callable[[torch.Tensor], torch.Tensor]
) -> RecurrenceInputs:
    return RecurrenceInputs(*(None if x is None else change(x) for x in inputs))


def halved(inputs: RecurrenceInputs) -> RecurrenceInputs:
    """The same with q, k and v in bfloat16."""
    return inputs._replace(q=inputs.q.bfloat16(), k=inputs.k.bfloat16(), v=inputs.v.bfloat16())


def results(engine: ScanEngine, rule: Rule, inputs: RecurrenceInputs) -> list[torch.Tensor]:
    """Output, memory and gradients."""
    output, memory, saved = engine.forward(rule, inputs, True)
    generator = torch.Generator().manual_seed(5)
    grads = []
    for x in (output, memory):
        grad = torch.randn(x.shape, generator=generator).bfloat16()  # the same numbers in any dtype
        grads.append(grad.to(x.dtype))
    gradients = engine.backward(rule, inputs, saved, grads)
    return [output, memory, *(x for x in gradients if x is not None)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_values_and_gradients_are_those_of_plain_operations(native, instructions, dtype, bound):
    for case in CASES:
        rule, inputs = draw_inputs(*case, dtype)
        found = results(RecurrenceKernel(native), rule, inputs)
        for x, exact in zip(found, results(PLAIN, rule, in_float64(inputs)), strict=True):
            assert (x - exact).abs().max() <= bound * exact.abs().max(), case


def test_a_step_is_the_first_position_of_a_text(native):
    kernel = RecurrenceKernel(native)
    wide_group = HeadCounts(8, 2, 2)
    for heads, memory, v_dim in itertools.product((*HEADS, wide_group), MEMORIES, (3, 75, 150)):
        rule, inputs = draw_inputs(RecurrenceSizes(heads, 1, 33, v_dim), memory)
        step = kernel.forward(rule, inputs, False)[:2]
        first_chunk = kernel.forward(rule, inputs, True)[:2]
        torch.testing.assert_close(step, first_chunk, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("in_half", [False, True])
@pytest.mark.parametrize("memory", MEMORIES)
def test_bits_depend_on_neither_threads_nor_instructions_nor_what_follows(native, memory, in_half):
    kernel = RecurrenceKernel(native)
    rule, inputs = draw_inputs(RecurrenceSizes(HeadCounts(2, 2, 4), 3 * CHUNK + 5, 43, 24), memory)
    if in_half:
        inputs = halved(inputs)
    expected = results(kernel, rule, inputs)
    for count, instructions in ((3, BEST), (1, AVX512), (1, AVX2)):
        native.handle.rg_use_instructions(instructions)
        with threads(count):
            found = results(kernel, rule, inputs)
        assert all(map(torch.equal, found, expected))

    beginning = inputs.part(slice(0, 2 * CHUNK), inputs.memory)
    output, after, _ = kernel.forward(rule, beginning, False)
    end = inputs.part(slice(2 * CHUNK, None), after)
    rest, _, _ = kernel.forward(rule, end, False)
    assert torch.equal(torch.cat((output, rest), 2), expected[0])


def memory_bound(inputs: RecurrenceInputs, rule: Rule) -> torch.Tensor:
    """How far rounding the memory before each chunk to bfloat16 may move the outputs of a call in float64."""
    bounds = []
    memory = inputs.memory
    heads = max(inputs.q.shape[1], inputs.v.shape[1])
    for first in range(0, inputs.v.shape[2], CHUNK):
        chunk = inputs.part(slice(first, first + CHUNK), memory)
        q = chunk.q.abs().repeat_interleave(heads // chunk.q.shape[1], 1)
        read = q @ memory.abs().repeat_interleave(heads // memory.shape[1], 1)
        bounds.append(2**-8 * rule.scale * read)
        _, memory = scan(PLAIN, rule, chunk)
    return torch.cat(bounds, 2)


BFLOAT16_CASES = [
    *itertools.product(SHORT, MEMORIES),
    (RecurrenceSizes(HeadCounts(3, 3, 3), 131, 61, 37), MEMORIES[0]),
    (RecurrenceSizes(HeadCounts(6, 2, 2), 67, 128, 128), MEMORIES[0]),
    (RecurrenceSizes(HeadCounts(2, 2, 6), 97, 131, 67), MEMORIES[3]),
]


def test_bfloat16_rounds_the_memory_that_queries_read_and_the_output_alone(native):
    for case in BFLOAT16_CASES:
        rule, inputs = draw_inputs(*case)
        half = halved(inputs)
        wide = in_float64(half)
        found, after, *gradients = results(RecurrenceKernel(native), rule, half)
        expected, exact_after, *exact_gradients = results(PLAIN, rule, wide)
        assert found.dtype == torch.bfloat16
        bound = memory_bound(wide, rule) + 2**-8 * expected.abs() + 2e-5 * expected.abs().max()
        assert ((found - expected).abs() <= bound).all(), case
        # The memory after it and the gradients are those of float32; gradients of q, k and v are rounded once.
        assert (after - exact_after).abs().max() <= 2e-5 * exact_after.abs().max(), case
        for x, exact in zip(gradients, exact_gradients, strict=True):
            rounding = 2**-8 * exact.abs() if x.dtype == torch.bfloat16 else 0
            assert ((x - exact).abs() <= rounding + 2e-5 * exact.abs().max()).all(), case


def at_the_end_of_pages(x: torch.Tensor) -> torch.Tensor:
    """A copy whose last number ends where memory may not be read any more."""
    size = x.numel() * x.element_size()
    page = mmap.PAGESIZE
    whole = -(-size // page) * page
    pages = mmap.mmap(-1, whole + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    no_access = 0
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + whole), page, no_access) == 0
    copy = torch.frombuffer(pages, dtype=x.dtype, count=x.numel(), offset=whole - size).reshape(
        x.shape
    )
    return copy.copy_(x)


@pytest.mark.parametrize("length", [1, 2, 37])
@pytest.mark.parametrize("in_half", [False, True])
def test_nothing_is_read_behind_a_tensor(native, instructions, length, in_half):
    kernel = RecurrenceKernel(native)
    for memory, dims in itertools.product(MEMORIES, [(5, 3), (33, 75), (64, 16)]):
        rule, inputs = draw_inputs(RecurrenceSizes(HeadCounts(2, 2, 4), length, *dims), memory)
        if in_half:
            inputs = halved(inputs)
        expected = kernel.forward(rule, inputs, False)[:2]
        found = kernel.forward(rule, changed(inputs, at_the_end_of_pages), False)[:2]
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("in_half", [False, True])
def test_views_have_the_bits_of_dense_tensors(native, in_half):
    kernel = RecurrenceKernel(native)
    for memory, length in itertools.product(MEMORIES, (1, 41)):
        rule, inputs = draw_inputs(RecurrenceSizes(HeadCounts(2, 2, 4), length, 31, 29), memory)
        if in_half:
            inputs = halved(inputs)
        expected = kernel.forward(rule, inputs, False)[:2]

        def as_part(x: torch.Tensor) -> torch.Tensor:
            """The same numbers between others, beginning at an odd place, with positions before heads."""
            room = x.new_full((*x.shape[:1], x.shape[2], x.shape[1], x.shape[3] + 4), torch.nan)
            part = room.transpose(1, 2)[..., 1:-3]
            return part.copy_(x)

        q, k, v = map(as_part, inputs[:3])
        found = kernel.forward(rule, inputs._replace(q=q, k=k, v=v), False)[:2]
        assert all(map(torch.equal, found, expected))


def of_length_1(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + UNIT).sqrt()


@pytest.mark.parametrize("length", [1, 70])
def test_half_precision_is_read_as_it_is_and_vectors_are_brought_to_length_1(native, length):
    kernel = RecurrenceKernel(native)
    for heads, memory in itertools.product(HEADS, MEMORIES):
        rule, inputs = draw_inputs(RecurrenceSizes(heads, length, 33, 20), memory)
        q, k, v = (x.bfloat16() for x in (3 * inputs.q, 2 * inputs.k, inputs.v))
        half = inputs._replace(q=q, k=k, v=v)
        unit_rule = rule._replace(unit=UNIT)
        found, after = scan(kernel, unit_rule, half)

        wide = in_float64(half)
        unit_inputs = wide._replace(q=of_length_1(wide.q), k=of_length_1(wide.k))
        expected, expected_after = scan(PLAIN, rule, unit_inputs)
        assert found.dtype == torch.bfloat16
        bound = memory_bound(unit_inputs, rule) + 2**-8 * expected.abs() + 1e-4
        assert ((found - expected).abs() <= bound).all()
        torch.testing.assert_close(after.double(), expected_after, rtol=1e-4, atol=1e-4)

        learning = [None if x is None else x.clone().requires_grad_() for x in half]
        output, _ = scan(kernel, unit_rule, RecurrenceInputs(*learning))
        leaves = [x for x in learning if x is not None]
        loss = output.float().square().sum()
        for gradient in torch.autograd.grad(loss, leaves, allow_unused=True):
            assert gradient is None or gradient.isfinite().all()


def test_denormal_numbers_are_what_they_were_after_a_call(native):
    rule, inputs = draw_inputs(RecurrenceSizes(HeadCounts(1, 1, 1), 70, 5, 3), MEMORIES[0])
    results(RecurrenceKernel(native), rule, inputs)
    assert (torch.full((64,), 1e-40) * 0.5).ne(0).all()


def set_field(name: str, value: Any, of: str | None = None) -> Any:
    """A damage: a field of the call, or of one of its tensors."""
    return lambda call: setattr(call if of is None else getattr(call, of), name, value)


# What is wrong: the code of the refusal, and what a test does to a call.
DAMAGES = {
    "no length": (2, set_field("length", 0)),
    "heads that do not divide": (2, set_field("key_heads", 3)),
    "vectors that are too long": (2, set_field("head_dim", 5000)),
    "a stride that leaves the tensor": (6, set_field("row", 900, of="k")),
    "log decays in another dtype": (6, set_field("type", 4, of="log_decay")),
    "log decays of each channel that are not there": (6, set_field("decays", 2)),
    "no values": (6, set_field("data", None, of="v")),
    "no memory": (7, set_field("before", None)),
    "no thread": (7, set_field("threads", 0)),
    "a length that is added to and below 0": (7, set_field("unit", -1.0)),
    "an unknown kind of decays": (7, set_field("decays", 3)),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_does_not_fit_is_refused_before_anything_is_written(native, name):
    code, damage = DAMAGES[name]
    rule, inputs = draw_inputs(RecurrenceSizes(HeadCounts(2, 2, 2), 9, 5, 3), MEMORIES[0])
    output = torch.full((2, 2, 9, 3), 7.0)
    call, borrowed = RecurrenceKernel(native)._call(rule, inputs, output, (None, None))
    damage(call)
    assert native.handle.rg_recur(ctypes.byref(call)) == code, borrowed
    assert (output == 7).all()
    with pytest.raises(RegardError, match="refused a call"):
        native.recur(call)


def test_the_kernel_is_chosen_for_a_recurrent_mechanism_and_reads_views():
    x = torch.randn(1, 130, 2, 64).transpose(1, 2)
    parameters = {"log_decay": -torch.rand(1, 2, 130), "strength": torch.rand(1, 2, 130)}
    options = {"pattern": "causal", "mechanism": m.GatedDelta(), "parameters": parameters}
    unit = normalize(x, dim=-1)
    assert rg.plan_attention(unit, unit, x, **options).backend == "native"
    found = rg.attention(unit, unit, x, backend="native", **options)
    expected = rg.attention(unit, unit, x, backend="linear", **options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
