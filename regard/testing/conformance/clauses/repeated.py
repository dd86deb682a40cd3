"""Clauses that ask several times or look at many numbers: dropout, equal bits, decoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from regard.testing.conformance.call import Array, NeutralCall, Results, right_results
from regard.testing.conformance.clause import Attend, Clause
from regard.testing.conformance.clauses.making import bits_clause, clause, compare_bits
from regard.testing.conformance.drawing import draw, new_call


def dropout_clauses() -> Iterator[Clause]:
    # Equal weights and values 1: the mean over many rows shows whether kept weights are divided by 1 - p.
    many = new_call(1, 4, 64, 64, scale=0.0, v=np.ones((1, 4, 64, 32)), dropout=0.5)

    def mean(attend: Attend, call: NeutralCall) -> Results:
        return {"mean": np.array([attend(call)["output"].mean()])}

    yield clause(
        "dropout-mean",
        "dropout 0.5 keeps the mean: kept weights are divided by 1 - p",
        many,
        ask=mean,
        right={"mean": np.ones(1)},
        tolerance=0.05,
        reason="a mean over 256 rows of 64 weights",
        alternatives={"not divided by 1 - p": lambda call: {"mean": np.array([0.5])}},
    )
    varied = replace(many, v=draw(1, 4, 64, 32, seed=3))

    def spread(attend: Attend, call: NeutralCall) -> Results:
        """Whether rows of equal weights differ, as they do only if weights were dropped."""
        output = attend(call)["output"]
        return {"differs": np.array([float(np.ptp(output[0, 0, :, 0]) > 1e-3)])}

    yield clause(
        "dropout-drops",
        "dropout 0.5 drops other weights in each row",
        varied,
        ask=spread,
        right={"differs": np.ones(1)},
        alternatives={"dropout ignored": lambda call: {"differs": np.zeros(1)}},
    )

    def twice(attend: Attend, call: NeutralCall) -> Results:
        return {"difference": attend(call)["output"] - attend(call)["output"]}

    yield clause(
        "dropout-seed",
        "the same seed drops the same weights",
        varied,
        ask=twice,
        right={"difference": np.zeros((1, 4, 64, 32))},
        tolerance=0.0,
        reason="the same bits",
    )

    # The values are the unit matrix, so the output is the weights after dropout.
    unit = np.broadcast_to(np.eye(64), (1, 4, 64, 64))
    shown = new_call(1, 4, 64, 64, head_dim=64, v=unit, dropout=0.25)

    def dropped_share(attend: Attend, call: NeutralCall) -> Results:
        return {"share": np.array([(attend(call)["output"] == 0).mean()])}

    yield clause(
        "dropout-share",
        "dropout 0.25 drops a quarter of the weights",
        shown,
        ask=dropped_share,
        right={"share": np.array([0.25])},
        tolerance=0.015,
        reason="16,384 weights: six standard deviations are 0.02",
        alternatives={
            "dropout ignored": lambda call: {"share": np.zeros(1)},
            "a quarter is kept": lambda call: {"share": np.array([0.75])},
        },
    )
    weights = right_results(replace(shown, dropout=0.0))["output"]

    def change_of_kept(attend: Attend, call: NeutralCall) -> Results:
        """The smallest and the largest factor between a kept weight and the same weight without dropout."""
        output = attend(call)["output"]
        factors = (output / weights)[output != 0]
        return {"factors": np.array([factors.min(), factors.max()])}

    yield clause(
        "dropout-kept",
        "each kept weight is that of the softmax divided by 1 - p, whatever else was dropped",
        shown,
        ask=change_of_kept,
        right={"factors": np.full(2, 4 / 3)},
        tolerance=1e-4,
        reason="weights as small as 1e-5",
        alternatives={"not divided by 1 - p": lambda call: {"factors": np.ones(2)}},
    )
    learning = replace(varied, gradients=("v",), grad_output=draw(1, 4, 64, 32, seed=4))

    def rest_of_linearity(attend: Attend, call: NeutralCall) -> Results:
        """Σ output · its gradient - Σ v · its gradient: the output is linear in v if both passes drop the same."""
        results = attend(call)
        assert call.grad_output is not None
        rest = (results["output"] * call.grad_output).sum() - (results["dv"] * call.v).sum()
        return {"rest": np.array([rest])}

    yield clause(
        "dropout-gradient",
        "the backward pass drops the weights that the forward pass dropped",
        learning,
        ask=rest_of_linearity,
        right={"rest": np.zeros(1)},
        tolerance=1e-3,
        reason="a sum of 8,192 products",
    )
    yield clause(
        "dropout-one",
        "dropout 1 gives zeros, not NaN",
        replace(varied, dropout=1.0),
        right={"output": np.zeros((1, 4, 64, 32))},
    )


def determinism_clauses() -> Iterator[Clause]:
    call = new_call(q_len=33, k_len=65)

    def twice(attend: Attend, call: NeutralCall) -> Results:
        return compare_bits(attend(call)["output"], attend(call)["output"])

    yield bits_clause("same-bits-twice", "two equal calls give the same bits", call, twice)

    def row_alone(attend: Attend, call: NeutralCall) -> Results:
        alone = replace(call, q=call.q[1:2], k=call.k[1:2], v=call.v[1:2])
        return compare_bits(attend(call)["output"][1:2], attend(alone)["output"])

    sentence = "a batch row alone gives the bits that it has in a batch"
    batch = new_call(batch=5, q_len=33, k_len=65)
    yield bits_clause("batch-invariance", sentence, batch, row_alone)

    def query_alone(attend: Attend, call: NeutralCall) -> Results:
        alone = replace(call, q=call.q[:, :, 7:8])
        return compare_bits(attend(call)["output"][:, :, 7:8], attend(alone)["output"])

    sentence = "a query alone gives the bits that it has among others"
    yield bits_clause("query-invariance", sentence, call, query_alone)

    def padded(attend: Attend, call: NeutralCall) -> Results:
        shorter = replace(call, k=call.k[:, :, :65], v=call.v[:, :, :65], mask=None)
        return compare_bits(attend(call)["output"], attend(shorter)["output"])

    is_text = np.broadcast_to(np.arange(70) < 65, (2, 1, 1, 70))
    behind = new_call(q_len=33, k_len=70, mask=is_text)
    sentence = "masked keys behind the others do not change a bit"
    yield bits_clause("padding-invariance", sentence, behind, padded)


def decoding_clauses() -> Iterator[Clause]:
    def in_steps_of(count: int) -> Any:
        """Ask for so many queries at a time, each time over the keys up to the last of them."""

        def ask(attend: Attend, call: NeutralCall) -> Results:
            steps: list[Array] = []
            for start in range(0, call.sizes[2], count):
                end = min(start + count, call.sizes[2])
                step = replace(
                    call,
                    q=call.q[:, :, start:end],
                    k=call.k[:, :, :end],
                    v=call.v[:, :, :end],
                )
                steps.append(attend(step)["output"])
            return {"output": np.concatenate(steps, 2)}

        return ask

    def first_key_alone(call: NeutralCall) -> Results:
        """A step whose only query is aligned with the first key."""
        heads = call.sizes[1]
        value = np.repeat(call.v[:, :, :1], heads // call.v.shape[1], 1)
        return {"output": np.repeat(value, call.sizes[2], 2)}

    def chunks_at_the_first_key(call: NeutralCall) -> Results:
        """Three queries at a time, whose first one is aligned with the first key."""
        chunks = []
        for start in range(0, call.sizes[2], 3):
            chunk = call.q[:, :, start : start + 3]
            keys = replace(call, q=chunk, first_positions=(0,) * call.sizes[0])
            chunks.append(right_results(keys)["output"])
        return {"output": np.concatenate(chunks, 2)}

    alone = {"each step sees the first key alone": first_key_alone}
    yield clause(
        "decoding",
        "token by token over growing keys is one causal pass",
        new_call(q_len=8, k_len=8, causal=True),
        ask=in_steps_of(1),
        alternatives=alone,
    )
    yield clause(
        "decoding-grouped",
        "and with 6 query heads over 2",
        new_call(heads=6, kv_heads=2, q_len=8, k_len=8, causal=True),
        ask=in_steps_of(1),
        alternatives=alone,
    )
    yield clause(
        "decoding-bfloat16",
        "and in bfloat16",
        new_call(q_len=8, k_len=8, causal=True, dtype="bfloat16"),
        ask=in_steps_of(1),
        alternatives=alone,
    )
    yield clause(
        "decoding-chunks",
        "three tokens at a time over growing keys are one causal pass",
        new_call(q_len=8, k_len=8, causal=True),
        ask=in_steps_of(3),
        alternatives={"each chunk is aligned with the first key": chunks_at_the_first_key},
    )
    yield clause(
        "decoding-window",
        "token by token with a window (2, 0) is one pass with it",
        new_call(q_len=8, k_len=8, window=(2, 0)),
        ask=in_steps_of(1),
        alternatives=alone,
    )
