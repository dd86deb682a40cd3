"""The fla backend without a GPU: functions of this file stand in for those of flash-linear-attention.

They take its layout and compute the step of each mechanism. tests/regard/contracts/test_cuda.py compares the package's
kernels where they are.
"""

import sys
from types import ModuleType

import pytest
import torch
from test_recurrent import MEMBERS, given

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
    q, k, v = (x.float() for x in (q, k, v))
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, k))
    memory = initial_state
    outputs = []
    for t in range(k.shape[1]):
        if g is not None:
            decay = g[:, t].exp()  # (batch, heads) or (batch, heads, head_dim)
            memory = (decay[..., None, None] if decay.dim() == 2 else decay[..., None]) * memory
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


def both(mechanism, tensors, parameters, pattern, **options):
    """Output and gradients in bfloat16 by fla, and in float64 by the reference of the same numbers."""
    found = []
    for backend in ("fla", "reference"):
        wide = (lambda x: x) if backend == "fla" else torch.Tensor.double
        leaves = [wide(x).detach().requires_grad_() for x in tensors]
        given = {name: wide(x).detach().requires_grad_() for name, x in parameters.items()}
        options |= {"mechanism": mechanism, "parameters": given, "pattern": pattern}
        output = rg.attention(*leaves, backend=backend, **options)
        loss = output.double().square().sum()
        found.append([output, *torch.autograd.grad(loss, [*leaves, *given.values()])])
    return zip(*found, strict=True)


def drawn(mechanism, heads=HEADS["equal"], length=23):
    q, k, v, parameters = given(mechanism, length, heads, DIMS, torch.float32)
    return [x.bfloat16() for x in (q, k, v)], parameters


@every
@pytest.mark.parametrize("heads", HEADS)
def test_the_package_is_given_what_the_step_needs(installed, mechanism, heads):
    for one, exact in both(mechanism, *drawn(mechanism, HEADS[heads]), "causal"):
        assert (one - exact).norm() <= 2**-7 * exact.norm()


def test_padding_documents_and_later_queries_are_those_of_the_reference(installed):
    ids = torch.tensor([0] * 9 + [1] * 4 + [0] * 10)
    padding = p.KeySpan(torch.tensor([0, 4]), torch.tensor([19, 23]))
    for pattern in (p.Causal() & padding, p.Causal() & p.SameDocument(ids)):
        for one, exact in both(m.GatedDelta(), *drawn(m.GatedDelta()), pattern):
            assert (one - exact).norm() <= 2**-7 * exact.norm(), pattern
    (q, k, v), parameters = drawn(m.GatedDelta(), HEADS["grouped"])
    parameters = {name: x[:, :, :9] for name, x in parameters.items()}
    for one, exact in both(
        m.GatedDelta(), (q, k[:, :, :9], v[:, :, :9]), parameters, "causal", q_start=0
    ):
        assert (one - exact).norm() <= 2**-7 * exact.norm()


@pytest.mark.parametrize(
    "mechanism", [m.SSD(), m.GatedLinear(), m.GatedDelta(), m.KimiDelta()], ids=str
)
def test_a_memory_that_forgets_everything_is_exact(installed, mechanism):
    tensors, parameters = drawn(mechanism)
    parameters["log_decay"][:, :, [5, 11]] = -torch.inf
    for one, exact in both(mechanism, tensors, parameters, "causal"):
        assert (one - exact).norm() <= 2**-7 * exact.norm()


def test_what_it_cannot_honour_is_refused_with_the_reason(installed, monkeypatch):
    def reason(dtype=torch.bfloat16, dims=DIMS, **options):
        q, k, v, parameters = given(m.GatedDelta(), 9, HEADS["equal"], dims, dtype)
        options = {
            "mechanism": m.GatedDelta(),
            "parameters": parameters,
            "backend": "fla",
        } | options
        with pytest.raises(rg.UnsupportedError) as refusal:
            rg.attention(q, k, v, pattern="causal", **options)
        return str(refusal.value)

    assert "rounding float32 to 10 bits, and q is torch.float32" in reason(torch.float32)
    assert "of 16 to 256 numbers, an even number of them, not head_dim 8" in reason(dims=(8, 16))
    assert "v_dim 17" in reason(dims=(16, 17))
    assert "recurrent memories, not linear" in reason(
        mechanism=m.LinearTransformer(), parameters=None
    )
    with monkeypatch.context() as here:
        here.setattr(fla, "operation", lambda *kind: "flash-linear-attention is not installed")
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
    tensors, parameters = drawn(m.GatedDelta(), length=21)  # no plan is kept for this length
    options = {
        "pattern": "causal",
        "mechanism": m.GatedDelta(),
        "parameters": parameters,
        "backend": "fla",
    }
    assert rg.attention(*tensors, **options).isfinite().all()
    with pytest.raises(
        rg.UnsupportedError, match=r"no right gradient for decays by head; install Triton 3\.7\.1"
    ):
        rg.attention(*(x.requires_grad_() for x in tensors), **options)
    assert all(
        one.isfinite().all() for one, _ in both(m.KimiDelta(), *drawn(m.KimiDelta()), "causal")
    )
    for module, name, value in (
        (chunk, "IS_NVIDIA_HOPPER", False),
        (chunk, "TRITON_ABOVE_3_4_0", False),
        (chunk, "TRITON_ABOVE_3_7_1", True),
        (fla, "find_spec", lambda name: name == "tilelang" or None),
    ):
        with monkeypatch.context() as here:
            here.setattr(module, name, value)
            fla._backward_by_head.cache_clear()
            assert fla._backward_by_head() is None
    fla._backward_by_head.cache_clear()


def test_second_derivatives_are_refused(installed):
    (q, k, v), parameters = drawn(m.GatedDelta())
    q.requires_grad_()
    output = rg.attention(
        q, k, v, pattern="causal", mechanism=m.GatedDelta(), parameters=parameters, backend="fla"
    )
    with pytest.raises(rg.UnsupportedError, match="'fla' has no second derivatives"):
        torch.autograd.grad(output.sum(), q, create_graph=True)
