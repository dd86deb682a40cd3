"""The tiled backend: strided and dilated patterns by the kernel or by fused calls, against formulas in float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.backends import tiled
from regard.backends.native.kernel import Differentiated
from regard.backends.native.library import load
from regard.bias import Bias
from regard.testing import Budget, answer, make_qkv

BUILT = not isinstance(load(), str)
PATTERNS = {
    "strided(7)": lambda i, j: (abs(i - j) < 7) | ((i - j) % 7 == 0),
    "causal & strided(11)": lambda i, j: (j <= i) & ((i - j < 11) | ((i - j) % 11 == 0)),
    "strided(5, local=false)": lambda i, j: (i - j) % 5 == 0,
    "strided(5) | strided(7, local=false)": lambda i, j: (abs(i - j) < 5) | ((i - j) % 5 == 0) | ((i - j) % 7 == 0),
    "dilated_window(10, 3)": lambda i, j: ((i - j) % 3 == 0) & (abs(i - j) <= 15),
    "causal & dilated_window(30, 2)": lambda i, j: ((i - j) % 2 == 0) & (abs(i - j) <= 30) & (j <= i),
    "causal & (strided(13) | global_tokens(2, 40))": lambda i, j: (
        (j <= i) & ((i - j < 13) | ((i - j) % 13 == 0) | np.isin(i, (2, 40)) | np.isin(j, (2, 40)))
    ),
    "causal & strided(7) & key_span(20, 25)": lambda i, j: (
        (j <= i) & ((i - j < 7) | ((i - j) % 7 == 0)) & (j >= 20) & (j < 25)
    ),
}  # fmt: skip
VARYING = {
    "by batch row": p.Strided(6) & p.KeySpan(torch.tensor([3, 0]), torch.tensor([80, 33])),
    "by head": p.PerHead(
        [p.CausalWindow(3), p.Strided(5), p.SlidingWindow(4), p.CausalWindow(3), p.DilatedWindow(4, 8), p.Full()]
    ),
}
SIZES = ((127, 127, None), (31, 131, None), (131, 31, None), (67, 101, 13))  # more queries than keys: empty rows
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Slopes(Bias):
    """Minus the distance, another slope for each head."""

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return -distances.abs().double() * torch.arange(1, heads + 1)[:, None] / 10


@pytest.fixture(params=["kernel", "fused calls"], autouse=True)
def calls_of_kernel(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, fresh_plans: Callable[[], None]
) -> list[str] | None:
    """The calls of the kernel, where it computes the parts; None where fused calls do, as without the library."""
    if request.param == "fused calls":
        monkeypatch.setattr(tiled, "kernel_of", lambda _: None)
        return None
    if not BUILT:
        pytest.skip("the native library is not built here")
    calls: list[str] = []
    for name in ("forward", "backward"):
        own = getattr(Differentiated, name)
        monkeypatch.setattr(Differentiated, name, lambda *given, n=name, own=own: calls.append(n) or own(*given))
    return calls


def allowed(pattern: str, q_len: int, k_len: int, q_start: int | None = None) -> np.ndarray:
    """The pairs that a pattern allows, by its formula."""
    start = k_len - q_len if q_start is None else q_start
    return PATTERNS[pattern](np.arange(q_len)[:, None] + start, np.arange(k_len)[None])


def errors(
    pattern: str, dtype: torch.dtype, heads: tuple[int, int], sizes: tuple[int, int, int | None], **options: Any
) -> dict[str, float]:
    """The largest error of each result and gradient, in units of its bound."""
    q_len, k_len, q_start = sizes
    qkv = make_qkv(heads=heads[0], kv_heads=heads[1], q_len=q_len, k_len=k_len, dtype=dtype)
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv)
    leaves = {"dq": q, "dk": k, "dv": v}
    if (sink := options.get("sink")) is not None:
        options["sink"] = leaves["dsink"] = sink.detach().clone().requires_grad_()
    options |= {"q_start": q_start, "want": ["log_sum_exp"]}
    detail = rg.attention_detail(q, k, v, pattern=pattern, backend="tiled", **options)
    grad = torch.randn(detail.output.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    detail.output.backward(grad)
    numbers = [x.double() for x in qkv]
    scale = options.get("scale", 5**-0.5)
    expected = answer(
        *(x.numpy() for x in numbers), allowed(pattern, *sizes), scale=scale, grad_output=grad.double().numpy(),
        sink=None if sink is None else sink.detach().double().numpy(),
    )  # fmt: skip
    budget = Budget.of(*numbers, dtype, scale=scale, sink=sink, grad_output=grad.double(), answer=expected)
    found = {"output": detail.output, "log_sum_exp": detail.log_sum_exp} | {name: x.grad for name, x in leaves.items()}
    assert detail.output.dtype == dtype
    return {name: budget.share(name, x, getattr(expected, name)) for name, x in found.items()}


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("number", "sizes"), list(enumerate(SIZES)))
def test_values_and_gradients_equal_the_formula(pattern, number, sizes, calls_of_kernel):
    for turn, heads in enumerate(((1, 1), (6, 3), (6, 1))):
        shares = errors(pattern, DTYPES[(number + turn) % 4], heads, sizes)
        assert max(shares.values()) <= 1, (heads, shares)
    assert calls_of_kernel is None or set(calls_of_kernel) == {"forward", "backward"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_sinks_and_another_scale_equal_the_formula(dtype):
    wide = torch.promote_types(dtype, torch.float32)
    sink = torch.tensor([0.5, -1.0, 2.0, -torch.inf, 0.0, 1.5], dtype=wide)
    for pattern in ("strided(7)", "causal & strided(7) & key_span(20, 25)"):
        shares = errors(pattern, dtype, (6, 3), SIZES[2], sink=sink, scale=-0.37)
        assert max(shares.values()) <= 1, shares


def results(backend: str, qkv: tuple[torch.Tensor, ...], **options: Any) -> list[torch.Tensor]:
    """Output, log-sum-exp and the gradients of a loss over both."""
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv)
    found = rg.attention_detail(q, k, v, backend=backend, **options)
    lse = found.log_sum_exp
    generator = torch.Generator().manual_seed(3)
    pulls = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (found.output, lse)]
    loss = (found.output * pulls[0]).sum() + (lse.masked_fill(lse == -torch.inf, 0) * pulls[1]).sum()
    return [found.output, lse.exp(), *torch.autograd.grad(loss, (q, k, v))]


@pytest.mark.parametrize("bias", [None, Slopes()])
@pytest.mark.parametrize("pattern", [*PATTERNS, *VARYING])
def test_log_sum_exp_biases_and_patterns_by_row_and_head_equal_the_reference(pattern, bias):
    for q_len, k_len, q_start in SIZES:
        qkv = make_qkv(q_len=q_len, k_len=k_len, dtype=torch.float64)
        options = {"pattern": VARYING.get(pattern, pattern), "q_start": q_start, "bias": bias}
        for found, expected in zip(results("tiled", qkv, **options), results("reference", qkv, **options), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_equal_residues_are_one_part_and_few_pairs_are_computed():
    q = torch.empty(1, 1, 1, 64).expand(1, 4, 4096, 64)
    plan = rg.plan_attention(q, q, q, pattern="causal & strided(64)", backend="tiled")
    window, *residues = plan._offer.run.args[1].shares[0].parts
    assert [(part.times, part.problem.batch, part.size) for part in residues] == [(1, 64, 63)]
    assert plan.cost.pairs <= 2 * plan.problem.kept_pairs
    assert window.stride == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"softcap": 2.0}, "no softcap"),
        ({"dropout": 0.1}, "another random number generator"),
        ({"bias": torch.zeros(5)}, "no structure"),
        ({"q_start": torch.tensor([0, 1])}, "plan does not know the positions"),
        ({"pattern": p.Where(lambda i, j: i > j)}, "pair by pair"),
        ({"pattern": "sliding_window(4)"}, "not dense among every n-th position; native and fused compute it"),
    ],
)
def test_what_it_does_not_compute_it_refuses(options: dict[str, Any], words: str) -> None:
    with pytest.raises(rg.UnsupportedError, match=words):
        rg.attention(*make_qkv(q_len=5, k_len=5), backend="tiled", **{"pattern": "strided(2)", **options})


@pytest.mark.skipif(not BUILT, reason="the native library is not built here")
@pytest.mark.parametrize(
    ("backend", "pattern", "q_len", "options", "why"),
    [
        ("tiled", "strided(64)", 4096, {}, "native, "),
        ("tiled", "causal & strided(64)", 4096, {}, "native, "),
        ("native", "strided(64)", 4096, {"softcap": 30.0}, "tiled refused: the fused operations have no softcap"),
        ("native", "causal & strided(64)", 128, {}, "tiled, "),
        ("tiled", "strided(64)", 1, {}, "native, "),
    ],
)
def test_the_plan_names_the_backend_of_a_strided_pattern(backend, pattern, q_len, options, why, calls_of_kernel):
    q, k = (torch.empty(1, 1, 1, 64).expand(1, 8, length, 64) for length in (q_len, 4096 if q_len == 1 else q_len))
    plan = rg.plan_attention(q, k, k, pattern=pattern, **options)
    if calls_of_kernel is not None:
        assert (plan.backend, why in str(plan)) == (backend, True), plan


def test_random_blocks_of_a_head_are_drawn_among_all_keys_where_the_call_reaches_fewer() -> None:
    random = p.RandomBlocks(2, block=1, seed=3)  # a draw depends on the number of keys
    q, k, v = make_qkv(batch=2, heads=2, kv_heads=2, q_len=3, k_len=29, dtype=torch.float64)
    options = {"pattern": p.PerHead([random, p.DilatedWindow(3, 5)]) & p.KeySpan(0, 13), "q_start": 5}
    found, expected = (rg.attention(q, k, v, backend=name, **options) for name in ("tiled", "reference"))
    torch.testing.assert_close(found, expected)
