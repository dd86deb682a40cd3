"""The tiled backend: strided and dilated patterns by the kernel or by fused calls, against the reference in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.backends import tiled
from regard.backends.native.kernel import Differentiated
from regard.backends.native.library import load
from regard.bias import Bias
from regard.testing import make_qkv

BUILT = not isinstance(load(), str)
PATTERNS: dict[str, p.Pattern | str] = {
    text: text
    for text in (
        "strided(7)",
        "causal & strided(11)",
        "strided(5, local=false)",
        "strided(5) | strided(7, local=false)",
        "dilated_window(10, 3)",
        "causal & dilated_window(30, 2)",
        "causal & (strided(13) | global_tokens(2, 40))",
        "causal & strided(7) & key_span(20, 25)",
    )
}
PATTERNS["by batch row"] = p.Strided(6) & p.KeySpan(torch.tensor([3, 0]), torch.tensor([80, 33]))
PATTERNS["by head"] = p.PerHead(
    [
        p.CausalWindow(3),
        p.Strided(5),
        p.SlidingWindow(4),
        p.CausalWindow(3),
        p.DilatedWindow(4, 8),
        p.Full(),
    ]
)
SIZES = (  # q_len, k_len, q_start
    (127, 127, None),
    (31, 131, None),
    (131, 31, None),  # with empty rows
    (67, 101, 13),
)


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
        method = getattr(Differentiated, name)

        def noted(*arguments: Any, name: str = name, method: Any = method) -> Any:
            calls.append(name)
            return method(*arguments)

        monkeypatch.setattr(Differentiated, name, noted)
    return calls


HEADS = ((1, 1), (6, 3), (6, 1))
SINK = torch.tensor([0.5, -1.0, 2.0, -torch.inf, 0.0, 1.5])
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"bias": Slopes()}, {"sink": SINK, "scale": -0.37})
BOUNDS = {torch.float64: 1e-11, torch.float32: 2e-4, torch.bfloat16: 0.06, torch.float16: 0.01}


def results(
    backend: str, qkv: tuple[torch.Tensor, ...], sink: torch.Tensor | None = None, **options: Any
) -> list[torch.Tensor]:
    """Output, log-sum-exp and the gradients of a loss over both, in float64."""
    leaves = [x.detach().clone().requires_grad_() for x in qkv]
    q, k, v = leaves
    if sink is not None:
        wide = torch.promote_types(q.dtype, torch.float32)
        sink = sink.to(wide, copy=True)[: q.shape[1]].requires_grad_()
        leaves.append(sink)
    found = rg.attention_detail(q, k, v, backend=backend, sink=sink, **options)
    assert found.output.dtype == q.dtype

    lse = found.log_sum_exp
    generator = torch.Generator().manual_seed(3)
    by_output = torch.randn(found.output.shape, generator=generator, dtype=torch.float64)
    by_lse = torch.randn(lse.shape, generator=generator, dtype=torch.float64)
    loss = (found.output * by_output).sum()
    loss = loss + (lse.masked_fill(lse == -torch.inf, 0) * by_lse).sum()
    gradients = torch.autograd.grad(loss, leaves)
    return [x.detach().double() for x in (found.output, lse.exp(), *gradients)]


@pytest.mark.each_value(pairs=[("name", "calls_of_kernel")])
@pytest.mark.parametrize("number", range(len(SIZES)))
@pytest.mark.parametrize("name", PATTERNS)
def test_values_and_gradients_equal_the_reference(name, number, calls_of_kernel):
    """Every two of heads, dtypes and options meet in some pattern."""
    q_len, k_len, q_start = SIZES[number]
    for turn, (heads, kv_heads) in enumerate(HEADS if name != "by head" else HEADS[1:]):
        dtype = [*BOUNDS][(number + turn) % 4]
        options = OPTIONS[(len(name) + number + turn) % 3]
        qkv = make_qkv(heads=heads, kv_heads=kv_heads, q_len=q_len, k_len=k_len, dtype=dtype)
        options = {"pattern": PATTERNS[name], "q_start": q_start, **options}
        exact = results("reference", tuple(x.double() for x in qkv), **options)
        for found, expected in zip(results("tiled", qkv, **options), exact, strict=True):
            atol = BOUNDS[dtype] * max(1, float(expected.abs().max()))
            torch.testing.assert_close(found, expected, rtol=BOUNDS[dtype], atol=atol)
    assert calls_of_kernel is None or set(calls_of_kernel) == {"forward", "backward"}


def test_equal_residues_are_one_part_and_few_pairs_are_computed():
    q = torch.empty(1, 1, 1, 64).expand(1, 4, 4096, 64)
    plan = rg.plan_attention(q, q, q, pattern="causal & strided(64)", backend="tiled")
    window, *residues = plan._offer.run.args[1].shares[0].parts
    assert [(part.call_count, part.problem.batch, part.size) for part in residues] == [(1, 64, 63)]
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
        (
            {"pattern": "sliding_window(4)"},
            "not dense among every n-th position; native and fused compute it",
        ),
    ],
)
def test_what_it_does_not_compute_it_refuses(options: dict[str, Any], words: str) -> None:
    qkv = make_qkv(q_len=5, k_len=5)
    with pytest.raises(rg.UnsupportedError, match=words):
        rg.attention(*qkv, backend="tiled", **{"pattern": "strided(2)", **options})


@pytest.mark.skipif(not BUILT, reason="the native library is not built here")
@pytest.mark.parametrize(
    ("pattern", "q_len", "options", "backend", "words"),
    [
        ("strided(64)", 4096, {}, "tiled", "native, "),
        ("causal & strided(64)", 4096, {}, "tiled", "native, "),
        (
            "strided(64)",
            4096,
            {"softcap": 30.0},
            "native",
            "tiled refused: the fused operations have no softcap",
        ),
        ("causal & strided(64)", 128, {}, "native", "tiled, "),
        ("strided(64)", 1, {}, "tiled", "native, "),
    ],
)
def test_the_plan_names_the_backend_of_a_strided_pattern(
    pattern, q_len, options, backend, words, calls_of_kernel
):
    if calls_of_kernel is None:
        return
    k_len = 4096 if q_len == 1 else q_len
    q, k = (torch.empty(1, 1, 1, 64).expand(1, 8, length, 64) for length in (q_len, k_len))
    plan = rg.plan_attention(q, k, k, pattern=pattern, **options)
    assert plan.backend == backend
    assert words in str(plan)


def test_random_blocks_of_a_head_are_drawn_among_all_keys_where_the_call_reaches_fewer() -> None:
    random = p.RandomBlocks(2, block=1, seed=3)  # a draw depends on the number of keys
    qkv = make_qkv(batch=2, heads=2, kv_heads=2, q_len=3, k_len=29, dtype=torch.float64)
    pattern = p.PerHead([random, p.DilatedWindow(3, 5)]) & p.KeySpan(0, 13)
    found = rg.attention(*qkv, pattern=pattern, q_start=5, backend="tiled")
    expected = rg.attention(*qkv, pattern=pattern, q_start=5, backend="reference")
    torch.testing.assert_close(found, expected)
