"""The tiled backend: patterns as few dense calls, exact to rounding, at about the cost of the kept pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import regard as rg
from regard import patterns as p
from regard.backends.tiled import backend as tiled_backend
from regard.backends.tiled import grouping
from regard.backends.tiled.grouping import lower
from regard.backends.tiled.program import Program, Terms
from regard.bias import Bias
from regard.patterns import Grid
from regard.testing import make_qkv

DOCUMENTS = torch.tensor([0] * 40 + [1] * 30 + [0] * 11 + [2] * 60)
PATTERNS: dict[str, p.Pattern] = {
    "window": p.SlidingWindow(6),
    "causal window": p.CausalWindow(7),
    "window in a span": p.CausalWindow(7) & p.KeySpan(3, 90),
    "window and global": p.SlidingWindow(8) | p.GlobalTokens([0, 17, 18, 40]),
    "causal window and global": (p.CausalWindow(9) | p.GlobalTokens([0, 33])) & p.Causal(),
    "not global": ~p.GlobalTokens([2, 5]) & p.SlidingWindow(20),
    "bigbird": p.SlidingWindow(6) | p.GlobalTokens(range(3)) | p.RandomBlocks(2, block=8, seed=3),
    "random edges": p.RandomBlocks(3, block=1, seed=1) & p.Causal(),
    "random past": p.RandomBlocks(2, block=8, seed=5, past=True) & p.Causal(),
    "strided": p.Causal() & p.Strided(5),
    "strided both ways": p.Strided(7),
    "strided alone": p.Strided(4, local=False),
    "two strides": p.Strided(5) | p.Strided(7, local=False),
    "fixed": p.Fixed(16, summary=2),
    "fixed causal": p.Causal() & p.Fixed(16, summary=2),
    "dilated": p.DilatedWindow(8, 3),
    "dilated causal": p.DilatedWindow(30, 2) & p.Causal(),
    "prefix": p.Causal() | p.Prefix(11),
    "far": ~p.SlidingWindow(9),
    "off a stride": ~(p.Strided(4, local=False) | p.KeySpan(5, 30)),
    "stride or global, causal": (p.Strided(6) | p.GlobalTokens([3, 50])) & p.Causal(),
    "documents": p.SameDocument(DOCUMENTS) & p.Causal(),
    "padding by row": p.SlidingWindow(6) & p.KeySpan(torch.tensor([3, 0]), torch.tensor([80, 33])),
    "by head": p.PerHead(
        [p.CausalWindow(3), p.Strided(5), p.SlidingWindow(4), p.CausalWindow(3), p.Fixed(8), p.Full()]
    ),
}
LENGTHS = {"equal": (97, 97, None), "keys": (31, 131, None), "queries": (131, 31, None), "shifted": (67, 101, 13)}


class Slopes(Bias):
    """Minus the distance, another slope for each head."""

    def by_distance(self, distances: torch.Tensor, heads: int) -> torch.Tensor:
        return -distances.abs().double() * torch.arange(1, heads + 1)[:, None] / 10


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch, fresh_plans: Callable[[], None]) -> None:
    """Programs for every batch row, however few pairs there are."""
    monkeypatch.setattr(tiled_backend, "ROW_PATTERNS", 0)


def answers(backend: str, qkv: tuple[torch.Tensor, ...], **options: Any) -> list[torch.Tensor]:
    """Output, log-sum-exp and the gradients of a loss over both."""
    q, k, v = (x.detach().clone().requires_grad_() for x in qkv)
    found = rg.attention_detail(q, k, v, backend=backend, **options)
    generator = torch.Generator().manual_seed(3)
    pulls = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in (found.output, found.log_sum_exp)]
    lse = found.log_sum_exp
    loss = (found.output * pulls[0]).sum() + (lse.masked_fill(lse == -torch.inf, 0) * pulls[1]).sum()
    return [found.output, lse.exp(), *torch.autograd.grad(loss, (q, k, v))]


@pytest.fixture(params=["kernel", "fused calls"])
def computed_by(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, fresh_plans: Callable[[], None]
) -> None:
    """Programs with residues by the native kernel, or by fused calls, as where there is no compiler."""
    if request.param == "fused calls":
        monkeypatch.setattr(tiled_backend, "kernels_for", lambda _: None)


@pytest.mark.usefixtures("small_rows", "computed_by")
@pytest.mark.parametrize("residues", ["dense", "nested"])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_equals_the_reference_with_its_gradients(
    name: str, lengths: str, residues: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if residues == "nested":
        monkeypatch.setattr(grouping, "RESIDUE_PAIRS", 0)
    q_len, k_len, q_start = LENGTHS[lengths]
    qkv = make_qkv(q_len=q_len, k_len=k_len, dtype=torch.float64)
    options = {"pattern": PATTERNS[name], "q_start": q_start}
    for found, expected in zip(answers("tiled", qkv, **options), answers("reference", qkv, **options), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("small_rows")
@pytest.mark.parametrize("heads", [(2, 2), (6, 3), (6, 1)])
@pytest.mark.parametrize("name", ["window and global", "strided", "dilated", "fixed", "prefix", "padding by row"])
def test_a_bias_by_distance_reaches_every_call(name: str, heads: tuple[int, int]) -> None:
    qkv = make_qkv(q_len=131, k_len=97, heads=heads[0], kv_heads=heads[1], dtype=torch.float64)
    options = {"pattern": PATTERNS[name], "bias": Slopes()}
    for found, expected in zip(answers("tiled", qkv, **options), answers("reference", qkv, **options), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_row_blocks_whose_masks_cannot_be_compared_never_share_one() -> None:
    changing = p.SameDocument(torch.arange(400) ** 2 // 900)  # documents that get shorter and shorter
    qkv = make_qkv(q_len=400, k_len=400, dtype=torch.float64)
    pattern = changing & p.SlidingWindow(64)
    options = {"pattern": pattern}
    for found, expected in zip(answers("tiled", qkv, **options), answers("reference", qkv, **options), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def program(pattern: p.Pattern, length: int, rows: int = 64) -> Program:
    return lower(pattern, Grid.whole(length, length), Terms(rows))


def test_a_window_is_one_call_and_its_edges() -> None:
    for length in (4096, 1_000_000):
        found = program(p.SlidingWindow(512), length)
        assert found.calls <= 10
        assert found.gathered == 0
        assert found.pairs <= 1.13 * p.SlidingWindow(512).count(length, length)


def test_a_strided_pattern_is_a_window_and_one_call_for_all_residues() -> None:
    found = program(p.Causal() & p.Strided(64), 4096)
    (residues,) = found.residues
    assert (residues.count, residues.kind, residues.size) == (64, "causal", 63)
    assert found.calls <= 6
    assert found.gathered == 0


def test_global_rows_are_computed_alone_and_without_a_mask() -> None:
    found = program(p.SlidingWindow(64) | p.GlobalTokens([0, 1, 1000]), 4096)
    (rows,) = found.apart
    assert rows.rows == (range(2), range(1000, 1001))
    assert rows.whole
    assert rows.keys == (range(4096),)


def test_row_blocks_of_bigbird_share_their_masks_and_calls() -> None:
    pattern = p.SlidingWindow(192) | p.GlobalTokens(range(128)) | p.RandomBlocks(3, block=64, seed=0)
    found = program(pattern, 16_384)
    assert found.pairs <= 1.15 * pattern.count(16_384, 16_384)
    assert len(found.groups) <= 40


@pytest.mark.parametrize("name", ["window and global", "bigbird", "fixed causal", "strided", "dilated"])
def test_no_program_computes_what_a_dense_mask_would(name: str) -> None:
    length = 2048
    assert program(PATTERNS[name], length).pairs < length * length / 3


@pytest.mark.parametrize("backend", ["tiled", "fused"])
def test_a_far_window_that_comes_into_sight_is_computed(backend: str) -> None:
    pattern = p.CausalWindow(8) | p.Diagonals(back=900, ahead=-896)
    q, k, v = make_qkv(q_len=2048, k_len=2048)
    found, expected = (rg.attention(q, k, v, pattern=pattern, backend=name) for name in (backend, "reference"))
    torch.testing.assert_close(found, expected)


def test_the_plan_of_a_long_window_says_its_share() -> None:
    q = torch.empty(1, 1, 1, 64).expand(1, 1, 1_000_000, 64)
    plan = rg.plan_attention(q, q, q, pattern="causal & causal_window(512)", backend="tiled")
    assert plan.share_of_pairs_computed < 0.0007
    assert plan == rg.plan_attention(q, q, q, pattern="causal_window(512)", backend="tiled")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pattern": p.SlidingWindow(4), "softcap": 2.0}, "no softcap"),
        ({"pattern": p.SlidingWindow(4), "dropout": 0.1}, "another random number generator"),
        ({"pattern": p.SlidingWindow(4), "bias": torch.zeros(5)}, "no structure"),
        ({"pattern": p.SlidingWindow(4), "q_start": torch.tensor([0, 1])}, "plan does not know the positions"),
        ({"pattern": p.Where(lambda i, j: i > j)}, "pair by pair"),
        ({"pattern": p.Full()}, "nothing to skip"),
        ({"pattern": p.Causal()}, "open on one side"),
        ({"pattern": p.SlidingWindow(4) & p.KeySpan(torch.tensor([0, 1]))}, "differs by batch row"),
    ],
)
def test_what_it_does_not_compute_it_says(options: dict[str, Any], words: str) -> None:
    q, k, v = make_qkv(q_len=5, k_len=5)
    with pytest.raises(rg.UnsupportedError, match=words):
        rg.attention(q, k, v, backend="tiled", **options)


def test_strict_refuses_row_blocks_that_compute_too_much() -> None:
    q, k, v = make_qkv(q_len=256, k_len=256)
    with pytest.raises(rg.UnsupportedError, match="more than twice as many"):
        rg.attention(q, k, v, pattern=p.CausalWindow(2), backend="tiled", strict=True)
    wide = rg.attention(q, k, v, pattern=p.CausalWindow(128), backend="tiled", strict=True)
    assert wide.shape == (2, 6, 256, 13)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(dtype: torch.dtype) -> None:
    qkv = make_qkv(q_len=200, k_len=200, dtype=dtype)
    found = rg.attention(*qkv, pattern=p.SlidingWindow(20), backend="tiled")
    exact = rg.attention(*(x.double() for x in qkv), pattern=p.SlidingWindow(20), backend="reference")
    assert found.dtype == dtype
    assert (found.double() - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
