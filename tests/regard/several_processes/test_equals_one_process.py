"""Outputs, statistics and gradients over 2 and 4 processes equal those of one process, for uneven parts too."""

import itertools
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import regard
from regard import bias, distributed, top_keys
from regard import mechanisms as m
from regard import patterns as p
from regard.distributed import pieces
from several_processes.calls import SharedCall, on_one, on_processes, together

PRIMES = {2: (31, 23), 4: (17, 13, 0, 19)}
EVERY = ("entropy", "received", "distance", "sink", top_keys(3))
PATTERNS = {
    "full": None,
    "causal": "causal",
    "sliding window": "sliding_window(8)",
    "causal window": "causal_window(5)",
    "dilated": "dilated_window(6, 3)",
    "strided": "causal & strided(5)",
    "fixed": "fixed(6, summary=2)",
    "bigbird": "sliding_window(4) | global_tokens(0, 30) | random_blocks(2, block=4, seed=1)",
    "random past": "causal & random_blocks(2, block=4, seed=1, past=true)",
    "prefix": "causal | prefix(9)",
    "same block": "same_block(8)",
    "not a window": "~sliding_window(10)",
    "no pair": "causal & ~causal",
    "heads": p.PerHead(
        [p.Causal(), p.SlidingWindow(4), p.Full(), p.CausalWindow(3) | p.GlobalTokens([2])]
    ),
}
OPTIONS = {
    "softcap": {"pattern": "causal", "softcap": 2.0, "scale": 0.7},
    "alibi": {"pattern": "causal_window(20)", "bias": bias.ALiBi()},
    "dropout": {"pattern": "causal", "dropout": 0.3, "dropout_seed": 5},
    "moved": {"pattern": "sliding_window(12)", "q_start": 7},
    "a number as sink": {"pattern": "causal_window(3)", "sink": 0.5},
    "linear": {"pattern": "causal", "mechanism": m.LinearTransformer()},
    "linear, full": {"mechanism": "linear"},
    "performer": {
        "pattern": "causal & key_span(3, 40)",
        "mechanism": m.Performer(features=16, seed=0),
    },
}
MADE = (
    "documents",
    "explicit",
    "where",
    "key_mask",
    "spans",
    "starts",
    "bias",
    "t5",
    "sinks",
    "general",
    "additive",
)


def wants_of(options: dict) -> tuple:
    if options.get("mechanism") is None:
        return EVERY
    return tuple(want for want in EVERY if want != "sink")


def cases() -> list[SharedCall]:
    """Each pattern and option once, with layouts, forms and numbers of processes in turn."""
    kinds: list[tuple[str, dict[str, Any], str]] = []
    kinds += [(name, {"pattern": pattern}, "") for name, pattern in PATTERNS.items()]
    kinds += [(name, options, "") for name, options in OPTIONS.items()]
    kinds += [(name, {}, name) for name in MADE]
    turns = itertools.cycle(itertools.product((4, 2), ("contiguous", "zigzag"), ("gather", "ring")))

    drawn = []
    for (name, options, make), (count, layout, form) in zip(kinds, turns, strict=False):
        want = () if make in ("general", "additive") else wants_of(options)
        drawn.append(
            SharedCall(name, PRIMES[count], options, make, layout=layout, form=form, want=want)
        )
    return drawn


def grid() -> list[SharedCall]:
    """Every pattern and option with every layout, form and number of processes."""
    ways = list(itertools.product((2, 4), ("contiguous", "zigzag"), ("gather", "ring")))
    every = []
    for case in cases():
        for count, layout, form in ways:
            every.append(replace(case, lengths=PRIMES[count], layout=layout, form=form))
    return every


def check(case: SharedCall, pools, compute=on_processes) -> None:
    """Compare each result with that of one process."""
    expected = on_one(case)
    results = together(case, pools(len(case.lengths)).run(compute, case))
    torch.testing.assert_close(results, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_processes_together_compute_what_one_process_computes(case, pools):
    check(case, pools)


@pytest.mark.parametrize("form", ["auto", "gather", "ring"])
def test_one_process_computes_alone(form, pools):
    case = SharedCall("alone", (31,), {"pattern": "causal"}, layout="zigzag", form=form, want=EVERY)
    check(case, pools)


INFERRED = ("causal", "heads", "bias", "sinks", "explicit", "t5", "alibi", "performer")


def on_processes_in_inference_mode(case: SharedCall):
    """Output and statistics of tensors that were made in inference mode, without gradients."""
    with torch.inference_mode():
        rank = dist.get_rank()
        q_layout, k_layout = case.layouts
        whole = case.tensors()
        options, _ = case.made(rank)
        q = distributed.shard(whole["q"], q_layout, rank)
        k = distributed.shard(whole["k"], k_layout, rank)
        v = distributed.shard(whole["v"], k_layout, rank)
        detail = distributed.attention_detail(
            q, k, v, dist.group.WORLD, layout=case.layout, want=case.want, **options
        )
        return {name: getattr(detail, name).numpy() for name in ("output", "entropy", "received")}


@pytest.mark.parametrize("case", [case for case in cases() if case.name in INFERRED], ids=str)
def test_inference_mode_gives_the_same(case, pools):
    expected = on_one(case)
    results = together(case, pools(len(case.lengths)).run(on_processes_in_inference_mode, case))
    assert results
    for name, result in results.items():
        assert (result - expected[name]).abs().max() < 1e-10, name


def kinds(dtype: torch.dtype) -> dict[str, torch.dtype]:
    case = SharedCall("kinds", PRIMES[2], {"pattern": "causal"}, dtype=dtype, want=EVERY)
    layout, _ = case.layouts
    rank = dist.get_rank()
    q, k, v = (distributed.shard(case.tensors()[name], layout, rank) for name in "qkv")
    group = dist.group.WORLD
    return dtypes(distributed.attention_detail(q, k, v, group, want=EVERY, pattern="causal"))


def dtypes(detail: Any) -> dict[str, torch.dtype]:
    names = ("output", "entropy", "received", "distance", "sink")
    dtype_of = {name: getattr(detail, name).dtype for name in names}
    return dtype_of | {"top_keys": detail.top_keys.weights.dtype}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_statistics_have_the_dtype_that_they_have_on_one_process(dtype, pools):
    x = torch.randn(1, 2, 5, 4).to(dtype)
    expected = dtypes(regard.attention_detail(x, x, x, want=EVERY, pattern="causal"))
    assert expected["top_keys"] == torch.float32
    assert pools(2).run(kinds, dtype) == [expected] * 2


def on_processes_in_small_pieces(case: SharedCall):
    with patch.object(pieces, "MOST_QUERIES_OF_A_PIECE", 5):
        return on_processes(case)


@pytest.mark.parametrize("case", [cases()[at] for at in (1, 3, 5, 7, 13, 22, 24, 27)], ids=str)
def test_pieces_of_few_queries_give_the_same(case, pools):
    check(case, pools, on_processes_in_small_pieces)


@pytest.mark.slow
@pytest.mark.parametrize("case", grid(), ids=str)
def test_every_layout_form_and_number_of_processes_computes_what_one_process_computes(case, pools):
    check(case, pools)
