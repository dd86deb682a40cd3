"""On a GPU: random calls equal the formulas; other mechanisms, layers and caches give the results of the CPU."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from fuzz import judging
from fuzz.cases import draw_case
from fuzz.judging import EACH, judge, takes_softmax
from fuzz.running import Tally

import regard as rg
from regard import mechanisms as m
from regard import patterns as p
from regard import positions as pos
from regard.mechanisms.base import Sizes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's compiler
]

ON_CUDA = takes_softmax(EACH, device="cuda")
PARTS = 2
CASES = 400  # of each part; of 100 in a row tiled may compute none
COMPILED = 24  # cases of each part that FlexAttention computes, since every one compiles a kernel
CALLS: dict[str, dict[str, Any]] = {
    "linear": {"mechanism": m.LinearTransformer(), "pattern": "causal"},
    "performer": {"mechanism": m.Performer(64, seed=0), "pattern": "causal"},
    "random features": {"mechanism": m.RandomFeature(32, seed=0), "pattern": "causal"},
}


@pytest.fixture(autouse=True)
def _fresh_memory_is_poisoned() -> None:
    """Not here: it asks for deterministic operations, and on cuda not every operation is."""


@pytest.mark.parametrize("part", range(PARTS))
def test_random_calls_equal_the_formulas_on_cuda(part, monkeypatch):
    without_flex = tuple(name for name in ON_CUDA if name != "flex")
    monkeypatch.setattr(judging, "SECOND", without_flex)  # flex refuses second derivatives
    tally = Tally()
    for seed in range(part * CASES, (part + 1) * CASES):
        case = draw_case(seed)
        compiled = tally.counts["flex", "right"]
        backends = tuple(ON_CUDA) if compiled < COMPILED else without_flex
        verdicts = judge(case, backends, device="cuda")
        tally.add(verdicts)
        wrong = [verdict for verdict in verdicts if verdict.outcome == "off"]
        assert not wrong, (case, wrong)
    print(f"\n{tally}")
    idle = [name for name in ON_CUDA if not tally.counts[name, "right"]]
    assert not idle, f"no call was computed by {idle}"


@pytest.mark.parametrize("name", CALLS)
def test_a_mechanism_and_its_gradients_are_those_of_the_cpu(name):
    def call(device: str) -> Iterable[torch.Tensor]:
        qkv = tensors(device)
        output = rg.attention(*qkv, **CALLS[name])
        return [output, *torch.autograd.grad(output.square().sum(), qkv)]

    alike(call)


@pytest.mark.parametrize(
    "name", ["retention", "ssd", "gated_linear", "delta_rule", "gated_delta", "kimi_delta"]
)
def test_the_kernels_of_flash_linear_attention_compute_the_step(name):
    pytest.importorskip("fla.ops")
    mechanism = m.parse(name)
    q = torch.nn.functional.normalize(drawn(2, 2, 203, 64), dim=-1)
    v = drawn(2, 4, 203, 64)
    drawn_parameters = {}
    for parameter, shape in mechanism.parameter_shapes(Sizes(2, 4, 4, 203, 64)).items():
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        drawn_parameters[parameter] = -x if parameter == "log_decay" else x

    def results(device: str, dtype: torch.dtype, backend: str) -> list[torch.Tensor]:
        qkv = [x.bfloat16().to(device, dtype).requires_grad_() for x in (q, q, v)]
        parameters = {}
        for parameter, x in drawn_parameters.items():
            wide = x.to(device, torch.promote_types(dtype, torch.float32))
            parameters[parameter] = wide.requires_grad_()
        options = {"mechanism": mechanism, "parameters": parameters}
        output = rg.attention(*qkv, pattern="causal", backend=backend, **options)
        leaves = [*qkv, *parameters.values()]
        return [output, *torch.autograd.grad(output.double().square().sum(), leaves)]

    computed = results("cuda", torch.bfloat16, "fla")
    expected = results("cpu", torch.float64, "reference")
    for x, exact in zip(computed, expected, strict=True):
        assert (x.cpu() - exact).norm() <= 2**-6 * exact.norm()


@pytest.mark.parametrize("kind", [None, "dynamic", "static", "ring"])
def test_a_layer_and_its_caches_are_those_of_the_cpu(kind):
    def call(device: str) -> Iterable[torch.Tensor]:
        torch.manual_seed(0)
        layer = rg.MultiHeadAttention(
            dim=32, heads=4, kv_heads=2, pattern=p.Causal(), positions=pos.Rotary()
        )
        layer = layer.to(device)
        x = drawn(2, 24, 32).to(device)
        if kind is None:
            return [layer(x)]
        capacity = {} if kind == "dynamic" else {"capacity": 32}
        cache = layer.new_cache(batch=2, kind=kind, **capacity)
        with torch.no_grad():
            return [layer(x[:, first : first + 3], cache=cache) for first in range(0, 24, 3)]

    alike(call)


@pytest.mark.parametrize("pattern", ["full", "causal", "sliding_window(8)"])
def test_a_visible_nan_is_not_suppressed(pattern):
    q, k, v = tensors("cuda", requires_grad=False)
    k[:, :, 66] = torch.nan
    assert rg.attention(q, k, v, pattern=pattern)[:, :, 66].isnan().all()


def test_a_compiled_call_is_that_of_the_cpu():
    def call(device: str) -> Iterable[torch.Tensor]:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return rg.attention(q, k, v, pattern="causal & causal_window(16)")

        function = torch.compile(attend, fullgraph=True) if device == "cuda" else attend
        return [function(*tensors(device, requires_grad=False))]

    alike(call)


def alike(call: Callable[[str], Iterable[torch.Tensor]]) -> None:
    """The results on both devices are equal within float32's rounding, and finite at the same places."""
    for on_cpu, on_cuda in zip(call("cpu"), call("cuda"), strict=True):
        expected = on_cpu.detach()
        size = expected.nan_to_num(0, 0, 0).abs().max().item()
        bound = 1e-4 * max(size / 10, 1.0)
        torch.testing.assert_close(on_cuda.detach().cpu(), expected, rtol=1e-4, atol=bound)


def tensors(device: str, requires_grad: bool = True) -> tuple[torch.Tensor, ...]:
    qkv = drawn(2, 4, 67, 16), drawn(2, 2, 67, 16), drawn(2, 2, 67, 16)
    return tuple(x.to(device).requires_grad_(requires_grad) for x in qkv)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
