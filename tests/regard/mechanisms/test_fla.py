"""The fla backend without a GPU: functions of this file stand in for those of flash-linear-attention.

They take its layout and compute the step of each mechanism. tests/regard/contracts/test_cuda.py compares the package's
kernels where they are.
"""

import sys
from types import ModuleType

import pytest
import torch
from recurrent_calls import MEMBERS, DrawnRecurrence, draw_call

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard.backends import BACKENDS, fla
from regard.backends.fla import FlashLinear

every = pytest.mark.parametrize("mechanism", MEMBERS, ids=str)
HEADS = {"equal": (2, 2, 2), "grouped": (6, 2, 2), "more values": (2, 2, 4)}
DIMS = (18, 22)


def stepped(q, k, v, *, scale, initial_state, output_final_state, g=None, beta=None):
    """Position by position, tensors (batch, n, heads, ...); like the kernels it takes no log decay of -inf."""
    assert output_final_state
    assert initial_state.dtype == torch.float32
    assert g is None or g.isfinite().all()
    assert all(x is None or x.is_contiguous() for x in (q, k, v, g, beta))
    q, k, v = q.float(), k.float(), v.float()
    q = q.repeat_interleave(v.shape[2] // q.shape[2], 2)
    k = k.repeat_interleave(v.shape[2] // k.shape[2], 2)
    memory = initial_state
    outputs = []
    for t in range(k.shape[1]):
        if g is not None:
            decay = g[:, t].exp()  # (batch, heads) or (batch, heads, head_dim)
            if decay.dim() == 2:
                decay = decay[..., None]
            memory = decay[..., None] * memory
        update = v[:, t]
        if beta is not None:
            update = beta[:, t, :, None] * (update - torch.einsum("bhde,bhd->bhe", memory, k[:, t]))
        memory = memory + torch.einsum("bhd,bhe->bhde", k[:, t], update)
        outputs.append(scale * torch.einsum("bhde,bhd->bhe", memory, q[:, t]))
    return torch.stack(outputs, 1), memory


@pytest.fixture
def installed(monkeypatch):
    """The package, of these functions, on the CPU."""
    for module, name in fla.NAMES.values():
        for part in (module, module.rpartition(".")[0], "fla"):
            monkeypatch.setitem(sys.modules, part, sys.modules.get(part) or ModuleType(part))
        monkeypatch.setattr(sys.modules[module], name, stepped, raising=False)
    fla.operation.cache_clear()
    monkeypatch.setitem(BACKENDS, "fla", FlashLinear(devices=("cpu",)))
    yield
    fla.operation.cache_clear()


def draw_half(mechanism, heads=HEADS["equal"], length=23) -> DrawnRecurrence:
    """A call whose q, k and v are bfloat16, and its parameters float32."""
    call = draw_call(mechanism, length, heads, DIMS, torch.float32)
    call.q = call.q.bfloat16()
    call.k = call.k.bfloat16()
    call.v = call.v.bfloat16()
    return call


def check_against_reference(call: DrawnRecurrence, pattern="causal", **options) -> None:
    """Output and gradients by fla are those of the same numbers in float64 by the reference."""
    exact = call.to(torch.float64).output_and_gradients(pattern, backend="reference", **options)
    computed = call.output_and_gradients(pattern, backend="fla", **options)
    for numbers, exact_numbers in zip(computed, exact, strict=True):
        error = (numbers - exact_numbers).norm()
        assert error <= 2**-7 * exact_numbers.norm(), pattern


@every
@pytest.mark.parametrize("heads", HEADS)
def test_the_package_is_given_what_the_step_needs(installed, mechanism, heads):
    check_against_reference(draw_half(mechanism, HEADS[heads]))


def test_padding_documents_and_later_queries_are_those_of_the_reference(installed):
    ids = torch.tensor([0] * 9 + [1] * 4 + [0] * 10)
    padding = p.KeySpan(torch.tensor([0, 4]), torch.tensor([19, 23]))
    check_against_reference(draw_half(m.GatedDelta()), p.Causal() & padding)
    check_against_reference(draw_half(m.GatedDelta()), p.Causal() & p.SameDocument(ids))
    grouped = draw_half(m.GatedDelta(), HEADS["grouped"])
    check_against_reference(grouped.with_keys(slice(0, 9)), q_start=0)


@pytest.mark.parametrize(
    "mechanism", [m.SSD(), m.GatedLinear(), m.GatedDelta(), m.KimiDelta()], ids=str
)
def test_a_memory_that_forgets_everything_is_exact(installed, mechanism):
    call = draw_half(mechanism)
    call.parameters["log_decay"][:, :, [5, 11]] = -torch.inf
    check_against_reference(call)


def test_what_it_cannot_honour_is_refused_with_the_reason(installed, monkeypatch):
    def reason(dtype=torch.bfloat16, dims=DIMS, **options):
        call = draw_call(m.GatedDelta(), 9, HEADS["equal"], dims, dtype)
        defaults = {"mechanism": call.mechanism, "parameters": call.parameters, "backend": "fla"}
        with pytest.raises(rg.UnsupportedError) as refusal:
            rg.attention(call.q, call.k, call.v, pattern="causal", **(defaults | options))
        return str(refusal.value)

    assert "rounding float32 to 10 bits, and q is torch.float32" in reason(torch.float32)
    assert "of 16 to 256 numbers, an even number of them, not head_dim 8" in reason(dims=(8, 16))
    assert "v_dim 17" in reason(dims=(16, 17))
    assert "recurrent memories, not linear" in reason(
        mechanism=m.LinearTransformer(), parameters=None
    )
    with monkeypatch.context() as patch:
        patch.setattr(fla, "operation", lambda *kind: "flash-linear-attention is not installed")
        assert "not installed" in reason()
    monkeypatch.setitem(BACKENDS, "fla", FlashLinear())
    assert "for cuda, and the tensors are on cpu" in reason()


def test_a_package_that_is_missing_or_broken_gives_the_reason(monkeypatch):
    fla.operation.cache_clear()
    monkeypatch.setitem(sys.modules, "fla", None)
    assert (
        fla.operation(True, "head")
        == "flash-linear-attention is not installed; pip install flash-linear-attention"
    )
    fla.operation.cache_clear()
    monkeypatch.setattr(fla, "import_module", lambda name: 1 / 0)
    assert "cannot be loaded: ZeroDivisionError" in str(fla.operation(True, "head"))
    fla.operation.cache_clear()


def test_gradients_that_the_package_has_wrong_are_refused(installed, monkeypatch):
    chunk = ModuleType("fla.ops.common.chunk_o")
    chunk.IS_NVIDIA_HOPPER = chunk.TRITON_ABOVE_3_4_0 = True
    chunk.TRITON_ABOVE_3_7_1 = False
    for part in (chunk.__name__, "fla.ops.common"):
        monkeypatch.setitem(sys.modules, part, chunk)
    fla._backward_by_head.cache_clear()
    call = draw_half(m.GatedDelta(), length=21)  # no plan is kept for this length
    assert call.output(backend="fla").isfinite().all()
    with pytest.raises(
        rg.UnsupportedError, match=r"no right gradient for decays by head; install Triton 3\.7\.1"
    ):
        call.output_and_gradients(backend="fla")
    by_channel = draw_half(m.KimiDelta()).output_and_gradients(backend="fla")
    assert all(numbers.isfinite().all() for numbers in by_channel)
    for module, name, value in (
        (chunk, "IS_NVIDIA_HOPPER", False),
        (chunk, "TRITON_ABOVE_3_4_0", False),
        (chunk, "TRITON_ABOVE_3_7_1", True),
        (fla, "find_spec", lambda name: name == "tilelang" or None),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            fla._backward_by_head.cache_clear()
            assert fla._backward_by_head() is None
    fla._backward_by_head.cache_clear()


def test_second_derivatives_are_refused(installed):
    call = draw_half(m.GatedDelta())
    call.q.requires_grad_()
    output = call.output(backend="fla")
    with pytest.raises(rg.UnsupportedError, match="'fla' has no second derivatives"):
        torch.autograd.grad(output.sum(), call.q, create_graph=True)
