"""Clauses about derivatives: gradients, second ones, and the transforms of functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from regard.testing.conformance.call import NeutralCall, Results, with_pairs
from regard.testing.conformance.clause import Attend, Clause
from regard.testing.conformance.clauses.making import SUMS, bits_clause, clause, compare_bits
from regard.testing.conformance.drawing import (
    HEADS,
    K_LEN,
    Q_LEN,
    draw,
    drawn_mask,
    new_call,
    row_bias,
)

DIFFERENCES = "differences of the oracle in float64"


def gradients_clauses() -> Iterator[Clause]:
    yield clause("gradients", "the gradients of q, k and v", new_call(gradients=SUMS))
    smaller = new_call(v_dim=16, gradients=SUMS)
    yield clause("gradients-v-dim", "gradients where v_dim is not head_dim", smaller)
    narrow = new_call(dtype="bfloat16", gradients=SUMS)
    sentence = "bfloat16 gradients within 2e-2"
    yield clause("gradients-bfloat16", sentence, narrow, tolerance=2e-2, reason="sums of roundings")
    half = new_call(dtype="float16", gradients=SUMS)
    yield clause("gradients-float16", "float16 gradients within 2e-3", half)
    ones = np.ones((1, 1, 2048, 32))
    summed = new_call(1, 1, 2048, 2, dtype="bfloat16", scale=0.0, gradients=("v",))
    sentence = "the gradient of a value is summed over 2,048 queries wider than in bfloat16"
    yield clause(
        "gradients-many-queries",
        sentence,
        replace(summed, grad_output=ones),
        tolerance=4e-3,
        reason="one rounding of 1,024",
    )
    exact = new_call(dtype="float64", gradients=SUMS)
    yield clause("gradients-float64", "float64 gradients within 1e-11", exact)
    causal = new_call(1, 2, 70, 131, causal=True, gradients=SUMS)
    aligned_first = {"aligned first with first": with_pairs(aligned="first")}
    sentence = "gradients of 70 causal queries over 131 keys"
    yield clause("gradients-causal", sentence, causal, alternatives=aligned_first)
    no_keys = new_call(k_len=0, gradients=SUMS)
    yield clause("gradients-no-keys", "without keys the gradient of q is zeros", no_keys)
    no_queries = new_call(q_len=0, gradients=SUMS)
    sentence = "without queries the gradients of k and v are zeros"
    yield clause("gradients-no-queries", sentence, no_queries)

    def twice(attend: Attend, call: NeutralCall) -> Results:
        first = attend(call)
        second = attend(call)
        names = [f"d{name}" for name in call.gradients]
        joined = [
            np.concatenate([results[name].ravel() for name in names]) for results in (first, second)
        ]
        return compare_bits(*joined)

    again = new_call(q_len=33, k_len=65, gradients=SUMS)
    yield bits_clause(
        "gradients-twice", "the gradients of two equal calls have the same bits", again, twice
    )


def second_derivatives_clauses() -> Iterator[Clause]:
    empty = drawn_mask(Q_LEN, K_LEN)
    empty[1] = False
    twice = partial(new_call, dtype="float64", gradients=SUMS, transform="second derivatives")
    cases = {
        "second": ("second derivatives of q, k and v", twice()),
        "second-causal-softcap": (
            "second derivatives under causal and softcap",
            twice(causal=True, softcap=2.0),
        ),
        "second-masked": (
            "second derivatives with a mask that leaves a row empty",
            twice(mask=empty),
        ),
        "second-bias": (
            "second derivatives beside a bias with -inf",
            twice(bias=row_bias(1, -np.inf)),
        ),
        "second-sink": (
            "second derivatives beside a sink",
            twice(sink=np.array([0.5, -1.0, 2.0])),
        ),
        "second-grouped": (
            "second derivatives with grouped heads",
            twice(heads=6, kv_heads=2),
        ),
    }
    for name, (sentence, call) in cases.items():
        yield clause(name, sentence, call, tolerance=1e-7, reason=DIFFERENCES)


def transforms_clauses() -> Iterator[Clause]:
    square = partial(new_call, q_len=6, k_len=6, causal=True)
    mapped = square(transform="vmap")
    yield clause("vmap", "a call that is mapped over a new axis is the loop", mapped)
    per_example = square(gradients=SUMS, transform="vmap")
    sentence = "gradients of each example, by mapping the gradient, are those of a loop"
    yield clause("vmap-gradient", sentence, per_example)
    forward = square(dtype="float64", transform="jvp")
    sentence = "forward-mode derivatives: the tangent of the output"
    yield clause("jvp", sentence, forward, tolerance=1e-7, reason=DIFFERENCES)
    masked = new_call(mask=drawn_mask(Q_LEN, K_LEN), dtype="float64", transform="jvp")
    sentence = "the tangent of a masked call"
    yield clause("jvp-mask", sentence, masked, tolerance=1e-7, reason=DIFFERENCES)
    functional = square(gradients=SUMS, transform="functional gradient")
    sentence = "the gradient as a transform of a function"
    yield clause("functional-gradient", sentence, functional)
    compiled = square(gradients=SUMS, transform="compile")
    sentence = "a compiled function is one graph with the same output and gradients"
    yield clause("compile", sentence, compiled)
    biased = new_call(bias=draw(1, HEADS, Q_LEN, K_LEN, seed=6), scale=0.3, transform="compile")
    yield clause("compile-bias", "a compiled call with a bias and a scale", biased)
