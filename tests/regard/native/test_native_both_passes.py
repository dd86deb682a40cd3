"""Both passes of a call with gradients, which two functions of C compute: same bits, wherever the tensors lie."""

import gc
import sys
import weakref
from collections.abc import Callable
from types import CodeType, FrameType

import pytest
import torch
from side_by_side import run_in_threads
from torch import Tensor

import regard as rg
from regard import patterns as p
from regard.backends.native import both_passes as native_passes
from regard.backends.native import filling, kernel
from regard.backends.native.both_passes import pass_functions

pytestmark = [
    pytest.mark.skipif(pass_functions() is None, reason="only Python computes both passes here"),
    pytest.mark.usefixtures("fresh_plans"),
]
BATCH, HEADS, KV_HEADS, Q_LEN, K_LEN, DIM, V_DIM = 3, 4, 2, 13, 17, 8, 5
PATTERNS: dict[str, Callable[[], p.Pattern | None]] = {
    "none": lambda: None,
    "causal": p.Causal,
    "a window": lambda: p.SlidingWindow(5),
    "a mask": lambda: p.KeyMask(torch.rand(BATCH, K_LEN) < 0.7),
    "causal and a mask": lambda: p.Causal() & p.KeyMask(torch.rand(BATCH, K_LEN) < 0.7),
    "spans": lambda: p.KeySpan(0, torch.tensor([3, 17, 11])),
    "a boolean for each pair and head": lambda: p.Explicit(
        torch.rand(1, HEADS, Q_LEN, K_LEN) < 0.6
    ),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def turned(x: Tensor) -> Tensor:
    """The same numbers, where heads and positions are exchanged in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def columns_first(x: Tensor) -> Tensor:
    """The same numbers, with a last axis that is not dense."""
    return x.transpose(2, 3).contiguous().transpose(2, 3)


def every_other(x: Tensor) -> Tensor:
    """The same numbers in every other row of a larger tensor."""
    larger = torch.full((*x.shape[:2], 2 * x.shape[2], x.shape[3]), torch.nan, dtype=x.dtype)
    larger[:, :, ::2] = x
    return larger[:, :, ::2]


LAYOUTS = [torch.clone, turned, columns_first, every_other]


def tensors(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = (HEADS, Q_LEN, DIM), (KV_HEADS, K_LEN, DIM), (KV_HEADS, K_LEN, V_DIM)
    return [torch.randn(BATCH, *shape, dtype=dtype) for shape in shapes]


def both_passes(qkv: list[Tensor], grad: Tensor, **options) -> list[Tensor]:
    """Output and gradients."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    output = rg.attention(*leaves, **options)
    return [output, *torch.autograd.grad(output, leaves, grad)]


@pytest.fixture
def by_python(monkeypatch):
    """Both passes as they are computed where there are no functions of C."""

    def compute(qkv: list[Tensor], grad: Tensor, **options) -> list[Tensor]:
        with monkeypatch.context() as patched:
            patched.setattr(kernel, "pass_functions", lambda: None)
            return both_passes(qkv, grad, **options)

    return compute


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PATTERNS)
def test_both_passes_have_the_bits_of_those_by_python(name, dtype, by_python):
    pattern = PATTERNS[name]()
    for layout in LAYOUTS:
        for layout_of_gradient in LAYOUTS:
            qkv = [layout(x) for x in tensors(dtype)]
            grad = layout_of_gradient(torch.randn(BATCH, HEADS, Q_LEN, V_DIM, dtype=dtype))
            found = both_passes(qkv, grad, pattern=pattern)
            wanted = by_python(qkv, grad, pattern=pattern)
            assert all(map(torch.equal, found, wanted))


def test_gradients_of_a_log_sum_exp_have_the_bits_of_those_by_python(monkeypatch):
    results = []
    qkv = tensors()
    for library_passes in (pass_functions(), None):
        monkeypatch.setattr(kernel, "pass_functions", lambda found=library_passes: found)
        leaves = [x.clone().requires_grad_() for x in qkv]
        detail = rg.attention_detail(*leaves, pattern=p.Causal())
        log_sum_exp = detail.log_sum_exp
        results.append(torch.autograd.grad(log_sum_exp.exp().sum() + detail.output.sum(), leaves))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_warm_call_fills_no_struct_in_python(name, monkeypatch, fresh_plans):
    answers = []
    library_passes = pass_functions()

    def noted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            answers.append(function(*arguments))
            return answers[-1]

        return call

    noting = native_passes.PassFunctions(*map(noted, library_passes))
    monkeypatch.setattr(kernel, "pass_functions", lambda: noting)
    qkv = tensors()
    grad = torch.randn(BATCH, HEADS, Q_LEN, V_DIM)
    for _ in range(3):
        both_passes(qkv, grad, pattern=PATTERNS[name]())
    pattern = PATTERNS[name]()
    answers.clear()
    codes = codes_entered(lambda: both_passes(qkv, grad, pattern=pattern))
    assert [x is not None for x in answers] == [True, True]  # both passes
    assert filling.describe.__code__ not in codes


def codes_entered(call: Callable[[], object]) -> set[CodeType]:
    """The functions that a call enters, by their code."""
    codes = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return codes


@pytest.mark.parametrize("layout", [torch.clone, turned])
def test_gradients_lie_as_their_tensors(layout):
    qkv = [layout(x) for x in tensors()]
    grad = torch.randn(BATCH, HEADS, Q_LEN, V_DIM)
    gradients = both_passes(qkv, grad)[1:]
    assert [x.stride() for x in gradients] == [x.stride() for x in qkv]


def test_axes_that_are_expanded_or_overlap_get_gradients_of_their_own(by_python):
    q, k, v = tensors()
    spread = k[:, :1].expand(-1, KV_HEADS, -1, -1)
    numbers = torch.randn(BATCH, KV_HEADS, K_LEN + V_DIM)
    overlapping = numbers.as_strided(v.shape, (KV_HEADS * numbers.shape[2], numbers.shape[2], 1, 1))
    grad = torch.randn(BATCH, HEADS, Q_LEN, V_DIM)
    found = both_passes([q, spread, overlapping], grad, pattern="causal")
    wanted = by_python([q, spread.contiguous(), overlapping.contiguous()], grad, pattern="causal")
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_a_call_that_is_known_keeps_none_of_its_tensors():
    grad = torch.randn(BATCH, HEADS, Q_LEN, V_DIM)
    for pattern in (None, p.Causal(), p.KeyMask(torch.ones(BATCH, K_LEN, dtype=torch.bool))):
        for _ in range(3):
            qkv = [x.requires_grad_() for x in tensors()]
            held = [weakref.ref(x) for x in qkv]
            torch.autograd.grad(rg.attention(*qkv, pattern=pattern), qkv, grad)
            del qkv
            gc.collect()
            assert all(reference() is None for reference in held)


def test_which_tensors_want_gradients_decides_about_the_call_that_is_repeated():
    qkv = tensors()
    for _ in range(2):
        for wanting in (
            (False, False, False),
            (True, True, True),
            (False, True, False),
            (True, False, True),
        ):
            leaves = [
                x.clone().requires_grad_(wants) for x, wants in zip(qkv, wanting, strict=True)
            ]
            for _ in range(3):
                output = rg.attention(*leaves, pattern="causal")
                assert output.requires_grad == any(wanting)
                with torch.no_grad():
                    assert not rg.attention(*leaves, pattern="causal").requires_grad


def test_numbers_that_are_not_in_memory_are_read_by_a_call_that_is_repeated():
    qkv = tensors()
    grad = torch.randn(BATCH, HEADS, Q_LEN, V_DIM)
    for _ in range(3):
        wanted = both_passes(qkv, grad)
    for place in range(3):
        negated = list(qkv)
        negated[place] = torch._neg_view(-qkv[place])
        found = both_passes(negated, grad)
        for ours, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(ours, theirs)


def test_many_positions_keep_few_structs():
    grad = torch.randn(BATCH, HEADS, Q_LEN, V_DIM)
    for start in range(80):
        both_passes(
            tensors(), grad, pattern=p.KeyMask(torch.rand(BATCH, K_LEN) < 0.7), q_start=start
        )
    kernels = [x for x in gc.get_objects() if type(x) is kernel.Kernel]
    assert max(len(x._kept_passes) for x in kernels) == 64


def test_threads_share_the_structs_of_a_plan():
    wrong = []
    grad = torch.randn(BATCH, HEADS, Q_LEN, V_DIM)
    cases = []
    for _ in range(6):
        qkv = tensors()
        pattern = p.Causal() & p.KeyMask(torch.rand(BATCH, K_LEN) < 0.7)
        cases.append((qkv, pattern, both_passes(qkv, grad, pattern=pattern)))

    def compute(qkv, pattern, wanted):
        for _ in range(60):
            found = both_passes(qkv, grad, pattern=pattern)
            if not all(map(torch.equal, found, wanted)):
                wrong.append(pattern)

    raised = run_in_threads([lambda case=case: compute(*case) for case in cases])
    assert not raised
    assert not wrong
