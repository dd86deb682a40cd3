"""Clauses about the numbers: scale, bias, softcap, sinks, precision, gradients, dropout, equal bits, statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from regard.testing.conformance.call import (
    Array,
    NeutralCall,
    Results,
    empty_rows_are,
    right_results,
    without,
)
from regard.testing.conformance.clause import TOLERANCES, Attend, Clause
from regard.testing.conformance.clauses.making import SUMS, clause
from regard.testing.conformance.drawing import (
    HEADS,
    K_LEN,
    Q_LEN,
    draw,
    drawn_mask,
    in_dtype,
    new_call,
    row_bias,
)


def scale_clauses() -> Iterator[Clause]:
    ignored = {"scale ignored": without("scale")}
    yield clause(
        "scale-default",
        "the default scale is 1 / sqrt(head_dim)",
        new_call(head_dim=64),
        alternatives={"scale 1": lambda call: right_results(replace(call, scale=1.0))},
    )
    for name, sentence, scale in (
        ("scale-given", "a scale of 0.5 replaces the default", 0.5),
        ("scale-zero", "scale 0 gives the mean of the values", 0.0),
        ("scale-negative", "a negative scale turns the order of the keys around", -0.3),
    ):
        yield clause(name, sentence, new_call(scale=scale), alternatives=ignored)


def bias_clauses() -> Iterator[Clause]:
    ignored = {"bias ignored": without("bias")}
    bias = draw(2, HEADS, Q_LEN, K_LEN, seed=6)

    def scaled_too(call: NeutralCall) -> Results:
        assert call.bias is not None
        return right_results(replace(call, bias=call.bias * call.q.shape[3] ** -0.5))

    yield clause(
        "bias-full",
        "a bias (batch, heads, q_len, k_len) is added after the scale",
        new_call(bias=bias),
        alternatives={"scaled too": scaled_too, **ignored},
    )
    broadcast = new_call(bias=draw(1, HEADS, 1, K_LEN, seed=7))
    yield clause("bias-broadcast", "a bias (1, heads, 1, k_len) is broadcast", broadcast)
    learning = new_call(bias=bias, gradients=(*SUMS, "bias"))
    yield clause("bias-gradient", "the gradient of a bias", learning)
    summed = new_call(bias=draw(1, HEADS, Q_LEN, K_LEN, seed=7), gradients=("bias",))
    yield clause("bias-broadcast-gradient", "the gradient of a broadcast bias is summed", summed)
    zeros_and_ones = drawn_mask(1, 1, Q_LEN, K_LEN).astype(float)
    yield clause(
        "bias-of-zeros-and-ones",
        "a bias of 0.0 and 1.0 is added as numbers and masks nothing",
        new_call(bias=zeros_and_ones),
        alternatives=ignored,
    )
    lowered = new_call(bias=row_bias(1, -1e30))
    mean = right_results(lowered)["output"].copy()
    mean[:, :, 1] = lowered.v.mean(2)
    sentence = "a row lowered by 1e30 everywhere is not empty: the mean of the values"
    yield clause("bias-lowered", sentence, lowered, right={"output": mean})
    gradient = replace(
        lowered, scale=0.0, gradients=("v",), grad_output=draw(2, HEADS, Q_LEN, 32, seed=4)
    )
    equal = right_results(replace(gradient, bias=None))
    sentence = "and its gradients are those of equal weights 1 / k_len"
    yield clause("bias-lowered-gradient", sentence, gradient, right=equal)
    shifted = new_call(bias=row_bias(1, 1e4))
    yield clause(
        "bias-shift",
        "1e4 added to every score of a row changes nothing",
        shifted,
        tolerance=2e-3,
        reason="rounding of scores near 1e4",
    )
    wide = new_call(
        dtype="bfloat16",
        scale=0.0,
        bias=np.where(drawn_mask(1, 1, Q_LEN, K_LEN), 261.5, 261.0),
        changes={"bias_dtype": "float32"},
    )

    def rounded(call: NeutralCall) -> Results:
        assert call.bias is not None
        return right_results(replace(call, bias=in_dtype(call.bias, "bfloat16")))

    sentence = "a float32 bias beside bfloat16 tensors is not rounded"
    yield clause("bias-float32-beside-bfloat16", sentence, wide, alternatives={"rounded": rounded})


def softcap_clauses() -> Iterator[Clause]:
    def after_bias(call: NeutralCall) -> Results:
        """The cap of scores to which the bias was added already."""
        scores = call.q @ np.swapaxes(call.k, 2, 3) * call.q.shape[3] ** -0.5
        if call.bias is not None:
            scores = scores + call.bias
        assert call.softcap is not None
        capped = call.softcap * np.tanh(scores / call.softcap)
        return right_results(replace(call, scale=0.0, softcap=None, bias=capped))

    readings = {"ignored": without("softcap"), "after the bias": after_bias}
    capped = new_call(softcap=2.0)
    sentence = "scores become softcap · tanh(scores / softcap)"
    yield clause("softcap", sentence, capped, alternatives={"ignored": without("softcap")})
    biased = new_call(softcap=2.0, bias=draw(2, HEADS, Q_LEN, K_LEN, seed=6))
    yield clause("softcap-bias", "softcap comes before the bias", biased, alternatives=readings)
    masked = new_call(softcap=2.0, mask=drawn_mask(Q_LEN, K_LEN))
    sentence = "a masked pair stays masked under a softcap"
    yield clause("softcap-mask", sentence, masked, alternatives={"ignored": without("softcap")})
    learning = new_call(q_len=6, k_len=6, causal=True, softcap=2.0, gradients=SUMS)
    sentence = "gradients of a causal call with softcap"
    yield clause(
        "softcap-gradient", sentence, learning, alternatives={"ignored": without("softcap")}
    )


def sinks_clauses() -> Iterator[Clause]:
    sink = np.array([0.5, -1.0, 2.0])
    ignored = {"ignored": without("sink")}

    def scaled(call: NeutralCall) -> Results:
        assert call.sink is not None
        scale = call.q.shape[3] ** -0.5 if call.scale is None else call.scale
        return right_results(replace(call, sink=call.sink * scale))

    readings = {**ignored, "scaled": scaled}
    sentence = "the sink of each head takes part in the sum, without a value"
    yield clause("sink", sentence, new_call(sink=sink), alternatives=readings)
    both = new_call(sink=sink, scale=0.7, softcap=1.0)
    yield clause(
        "sink-scale", "neither scale nor softcap change the sink", both, alternatives=readings
    )
    causal = new_call(q_len=7, k_len=7, causal=True, sink=sink)
    yield clause("sink-causal", "a sink with a causal mask", causal, alternatives=ignored)
    mask = drawn_mask(Q_LEN, K_LEN)
    mask[1] = False
    empty = {"NaN": empty_rows_are("NaN"), "the mean of all values": empty_rows_are("mean")}
    sentence = "an empty row with a sink gives zeros"
    yield clause("sink-empty-row", sentence, new_call(mask=mask, sink=sink), alternatives=empty)
    learning = new_call(sink=sink, gradients=(*SUMS, "sink"))
    yield clause("sink-gradient", "the gradient of the sink", learning)
    large = new_call(sink=np.full(HEADS, 100.0))
    yield clause("sink-large", "a sink of 100 takes all the weight and does not overflow", large)


def numbers_clauses() -> Iterator[Clause]:
    large = new_call(scale=1.0, q=60 * draw(2, HEADS, Q_LEN, 32, seed=1))
    yield clause(
        "large-scores",
        "scores of some thousands do not overflow",
        replace(large, q=in_dtype(large.q, "float32")),
        tolerance=2e-3,
        reason="rounding of scores of some thousands",
    )
    for dtype in ("float64", "bfloat16", "float16"):
        sentence = f"{dtype} within {TOLERANCES[dtype]:g}"
        yield clause(dtype, sentence, new_call(dtype=dtype))
    long = new_call(1, 2, 64, 512, 64)
    sentence = "float32 is computed in float32: error below 2e-6 over 512 keys"
    yield clause("float32", sentence, long, tolerance=2e-6, reason="float32 products and sums")
    many = new_call(1, 1, 2, 4096, dtype="bfloat16", v=np.ones((1, 1, 4096, 32)))
    sentence = "the mean of 4,096 values 1 in bfloat16 is 1: sums are wider than bfloat16"
    yield clause("bfloat16-many-keys", sentence, many, tolerance=4e-3, reason="one rounding of 1")
    high = new_call(dtype="float16", scale=0.001, q=300 * draw(2, HEADS, Q_LEN, 32, seed=1))
    high = replace(high, q=in_dtype(high.q, "float16"), k=in_dtype(100 * high.k, "float16"))
    sentence = "float16 products above 65,504 are summed in float32 before the scale"
    yield clause("float16-overflow", sentence, high, tolerance=4e-3, reason="scores of hundreds")


def gradients_clauses() -> Iterator[Clause]:
    yield clause("gradients", "the gradients of q, k and v", new_call(gradients=SUMS))
    smaller = new_call(v_dim=16, gradients=SUMS)
    yield clause("gradients-v-dim", "gradients where v_dim is not head_dim", smaller)
    narrow = new_call(dtype="bfloat16", gradients=SUMS)
    sentence = "bfloat16 gradients within 2e-2"
    yield clause("gradients-bfloat16", sentence, narrow, tolerance=2e-2, reason="sums of roundings")
    exact = new_call(dtype="float64", gradients=SUMS)
    yield clause("gradients-float64", "float64 gradients within 1e-11", exact)


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


def determinism_clauses() -> Iterator[Clause]:
    call = new_call(q_len=33, k_len=65)

    def changed_bits(first: Array, second: Array) -> Results:
        return {"changed": np.array([float((first != second).sum())])}

    same = {"changed": np.zeros(1)}
    exact = {"right": same, "tolerance": 0.0, "reason": "the same bits"}

    def twice(attend: Attend, call: NeutralCall) -> Results:
        return changed_bits(attend(call)["output"], attend(call)["output"])

    yield clause("same-bits-twice", "two equal calls give the same bits", call, ask=twice, **exact)

    def row_alone(attend: Attend, call: NeutralCall) -> Results:
        alone = replace(call, q=call.q[1:2], k=call.k[1:2], v=call.v[1:2])
        return changed_bits(attend(call)["output"][1:2], attend(alone)["output"])

    sentence = "a batch row alone gives the bits that it has in a batch"
    batch = new_call(batch=5, q_len=33, k_len=65)
    yield clause("batch-invariance", sentence, batch, ask=row_alone, **exact)

    def step_by_step(attend: Attend, call: NeutralCall) -> Results:
        steps = []
        for length in range(1, call.sizes[3] + 1):
            step = replace(
                call,
                q=call.q[:, :, length - 1 : length],
                k=call.k[:, :, :length],
                v=call.v[:, :, :length],
            )
            steps.append(attend(step)["output"])
        return {"output": np.concatenate(steps, 2)}

    def first_key_alone(call: NeutralCall) -> Results:
        """A step whose only query is aligned with the first key."""
        return {"output": np.repeat(call.v[:, :, :1], call.sizes[2], 2)}

    yield clause(
        "decoding",
        "token by token over growing keys is one causal pass",
        new_call(q_len=8, k_len=8, causal=True),
        ask=step_by_step,
        alternatives={"each step sees the first key alone": first_key_alone},
    )


def statistics_clauses() -> Iterator[Clause]:
    mask = drawn_mask(Q_LEN, K_LEN)
    call = new_call(mask=mask, wants=("log_sum_exp",))

    def base_two(call: NeutralCall) -> Results:
        found = dict(right_results(call))
        found["log_sum_exp"] = found["log_sum_exp"] / math.log(2)
        return found

    sentence = "the log-sum-exp of the scores, as a natural logarithm"
    yield clause("log-sum-exp", sentence, call, alternatives={"base 2": base_two})
    weights = new_call(mask=mask, wants=("weights",))
    yield clause("weights", "the weights of each head", weights)
