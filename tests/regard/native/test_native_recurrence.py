"""Recurrences by the kernel: values and gradients of the plain operations, bits, and calls that do not fit."""

import ctypes
import itertools

import pytest
import torch

import regard as rg
from regard import mechanisms as m
from regard.backends.native.library import CHUNK
from regard.backends.native.recurrence import RecurrenceKernel
from regard.backends.recurrence import PLAIN, RecurrenceInputs, Rule, scan
from regard.errors import RegardError

HEADS = [(2, 2, 2), (4, 2, 2), (2, 2, 6)]  # of q, of k, of v
KINDS = [
    (1, True, True),
    (2, True, True),
    (2, False, False),
    (0, True, True),
    (1, True, False),
    (0, False, False),
]
CASES = [
    *(
        (heads, length, (5, 3), kind)
        for heads, length, kind in itertools.product(HEADS, (1, 2, 17, 70), KINDS)
    ),
    *(
        ((1, 1, 1), 193, dims, kind)
        for dims, kind in itertools.product([(33, 40), (64, 16), (16, 130)], KINDS[:4])
    ),
]


def given(
    heads, length, dims, kind, dtype=torch.float64, extreme=True
) -> tuple[Rule, RecurrenceInputs]:
    """Tensors with keys of length 1, and log decays of 0, -1e6 and -inf among others."""
    decays, strong, corrects = kind
    q, k, v = (
        torch.randn(2, n, length, dim, dtype=dtype)
        for n, dim in zip(heads, (dims[0], *dims), strict=True)
    )
    of_decays = (2, heads[2], length, *dims[:1]) if decays == 2 else (2, heads[2], length)
    log_decay = -torch.rand(of_decays, dtype=dtype) / 5 if decays else None
    if log_decay is not None and extreme:
        ends = torch.tensor([0.0, -1e6, -torch.inf], dtype=dtype)[torch.randint(3, of_decays)]
        log_decay = torch.where(torch.rand(of_decays) < 0.05, ends, log_decay)
    strength = torch.rand(2, heads[2], length, dtype=dtype) if strong else None
    memory = torch.randn(2, heads[2], *dims, dtype=dtype)
    return Rule(corrects, 0.3), RecurrenceInputs(
        q, torch.nn.functional.normalize(k, dim=-1), v, log_decay, strength, memory
    )


def computed(engine, rule, tensors):
    """Output, memory and gradients."""
    output, memory, kept = engine.forward(rule, tensors, True)
    drawn = torch.Generator().manual_seed(5)
    grads = [
        torch.randn(x.shape, generator=drawn, dtype=torch.float64).to(x.dtype)
        for x in (output, memory)
    ]
    return [
        output,
        memory,
        *(x for x in engine.backward(rule, tensors, kept, grads) if x is not None),
    ]


@pytest.mark.parametrize("instructions", [0, 2])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_values_and_gradients_are_those_of_plain_operations(native, instructions, dtype, bound):
    native.handle.rg_use_instructions(instructions)
    for case in CASES:
        rule, tensors = given(*case, dtype)
        wide = RecurrenceInputs(*(None if x is None else x.double() for x in tensors))
        for one, exact in zip(
            computed(RecurrenceKernel(native), rule, tensors),
            computed(PLAIN, rule, wide),
            strict=True,
        ):
            assert (one - exact).abs().max() <= bound * exact.abs().max(), case


def test_a_step_is_the_first_position_of_a_text(native):
    for heads, kind in itertools.product(HEADS, KINDS):
        rule, tensors = given(heads, 1, (33, 75), kind, torch.float32)
        step, chunk = (
            RecurrenceKernel(native).forward(rule, tensors, learns)[:2] for learns in (False, True)
        )
        for one, other in zip(step, chunk, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_bits_depend_on_neither_threads_nor_instructions_nor_what_follows(native):
    for kind in KINDS:
        rule, tensors = given((2, 2, 4), 3 * CHUNK + 5, (40, 24), kind, torch.float32)
        answers = []
        for threads, instructions in ((1, 0), (3, 0), (1, 2)):
            torch.set_num_threads(threads)
            native.handle.rg_use_instructions(instructions)
            answers.append(computed(RecurrenceKernel(native), rule, tensors))
        torch.set_num_threads(1)
        assert all(
            torch.equal(x, y)
            for other in answers[1:]
            for x, y in zip(answers[0], other, strict=True)
        ), kind
        first = tensors.part(slice(0, 2 * CHUNK), tensors.memory)
        output, memory, _ = RecurrenceKernel(native).forward(rule, first, False)
        rest, _, _ = RecurrenceKernel(native).forward(
            rule, tensors.part(slice(2 * CHUNK, None), memory), False
        )
        assert torch.equal(torch.cat((output, rest), 2), answers[2][0])


@pytest.mark.parametrize("length", [1, 70])
def test_half_precision_is_read_as_it_is_and_vectors_are_brought_to_length_1(native, length):
    for heads, kind in itertools.product(HEADS, KINDS):
        rule, tensors = given(heads, length, (33, 20), kind, torch.float32)
        half = tensors._replace(
            q=3 * tensors.q.bfloat16(), k=2 * tensors.k.bfloat16(), v=tensors.v.bfloat16()
        )
        found, memory = scan(RecurrenceKernel(native), rule._replace(unit=1e-3), half)
        wide = RecurrenceInputs(*(None if x is None else x.double() for x in half))
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-3).sqrt() for x in wide[:2])
        expected, after = scan(PLAIN, rule, wide._replace(q=q, k=k))
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), expected, rtol=2**-7, atol=1e-3)
        torch.testing.assert_close(memory.double(), after, rtol=1e-4, atol=1e-4)
        leaves = [x.clone().requires_grad_() for x in half if x is not None]
        parts = iter(leaves)
        learning = RecurrenceInputs(*(None if x is None else next(parts) for x in half))
        output, _ = scan(RecurrenceKernel(native), rule._replace(unit=1e-3), learning)
        grads = torch.autograd.grad(output.float().square().sum(), leaves, allow_unused=True)
        assert all(x is None or x.isfinite().all() for x in grads)


def test_denormal_numbers_are_what_they_were_after_a_call(native):
    rule, tensors = given((1, 1, 1), 70, (5, 3), KINDS[0], torch.float32)
    computed(RecurrenceKernel(native), rule, tensors)
    assert (torch.full((64,), 1e-40) * 0.5).ne(0).all()


DAMAGES = {
    "no length": (2, lambda call: setattr(call, "length", 0)),
    "heads that do not divide": (2, lambda call: setattr(call, "key_heads", 3)),
    "vectors that are too long": (2, lambda call: setattr(call, "head_dim", 5000)),
    "a stride that leaves the tensor": (6, lambda call: setattr(call.k, "row", 900)),
    "log decays in another dtype": (6, lambda call: setattr(call.log_decay, "type", 4)),
    "log decays of each channel that are not there": (6, lambda call: setattr(call, "decays", 2)),
    "no values": (6, lambda call: setattr(call.v, "data", None)),
    "no memory": (7, lambda call: setattr(call, "before", None)),
    "no thread": (7, lambda call: setattr(call, "threads", 0)),
    "a length that is added to and below 0": (7, lambda call: setattr(call, "unit", -1.0)),
    "an unknown kind of decays": (7, lambda call: setattr(call, "decays", 3)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_refused_before_anything_is_written(native, damage):
    code, change = DAMAGES[damage]
    rule, tensors = given((2, 2, 2), 9, (5, 3), KINDS[0], torch.float32)
    output = torch.full((2, 2, 9, 3), 7.0)
    call, held = RecurrenceKernel(native)._call(rule, tensors, output, (None, None))
    change(call)
    assert native.handle.rg_recur(ctypes.byref(call)) == code, held
    assert (output == 7).all()
    with pytest.raises(RegardError, match="refused a call"):
        native.recur(call)


def test_the_kernel_is_chosen_for_long_and_short_texts_and_reads_views():
    x = torch.randn(1, 130, 2, 64).transpose(1, 2)
    parameters = {"log_decay": -torch.rand(1, 2, 130), "strength": torch.rand(1, 2, 130)}
    options = {"pattern": "causal", "mechanism": m.GatedDelta(), "parameters": parameters}
    unit = torch.nn.functional.normalize(x, dim=-1)
    assert rg.plan_attention(unit, unit, x, **options).backend == "native"
    found, plain = (
        rg.attention(unit, unit, x, backend=name, **options) for name in ("native", "linear")
    )
    torch.testing.assert_close(found, plain, rtol=1e-5, atol=1e-6)
