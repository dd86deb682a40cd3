"""Clauses about the numbers: scale, bias, softcap, sinks, precision, statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from regard.testing.conformance.call import (
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
    # Queries times the scale are up to 7e38, the scores up to some thousands.
    q = in_dtype(1e30 * draw(2, HEADS, Q_LEN, 32, seed=1), "float32")
    k = in_dtype(1e-36 * draw(2, HEADS, K_LEN, 32, seed=2), "float32")
    yield clause(
        "scale-large",
        "a query times the scale may be beyond the range of float32 if the score is not",
        new_call(scale=2e8, q=q, k=k),
        tolerance=2e-3,
        reason="rounding of scores of some thousands",
        alternatives=ignored,
    )


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
    unrounded = new_call(
        dtype="bfloat16",
        scale=0.0,
        bias=np.where(drawn_mask(1, 1, Q_LEN, K_LEN), 261.5, 261.0),
        changes={"bias_dtype": "float32"},
    )

    def rounded(call: NeutralCall) -> Results:
        assert call.bias is not None
        return right_results(replace(call, bias=in_dtype(call.bias, "bfloat16")))

    sentence = "a float32 bias beside bfloat16 tensors is not rounded"
    yield clause(
        "bias-float32-beside-bfloat16", sentence, unrounded, alternatives={"rounded": rounded}
    )


def softcap_clauses() -> Iterator[Clause]:
    def after_bias(call: NeutralCall) -> Results:
        """The cap of scores to which the bias was added already."""
        scores = call.q @ np.swapaxes(call.k, 2, 3) * call.q.shape[3] ** -0.5
        if call.bias is not None:
            scores = scores + call.bias
        assert call.softcap is not None
        capped = call.softcap * np.tanh(scores / call.softcap)
        return right_results(replace(call, scale=0.0, softcap=None, bias=capped))

    ignored = {"ignored": without("softcap")}
    readings = {**ignored, "after the bias": after_bias}
    capped = new_call(softcap=2.0)
    sentence = "scores become softcap · tanh(scores / softcap)"
    yield clause("softcap", sentence, capped, alternatives=ignored)
    biased = new_call(softcap=2.0, bias=draw(2, HEADS, Q_LEN, K_LEN, seed=6))
    yield clause("softcap-bias", "softcap comes before the bias", biased, alternatives=readings)
    masked = new_call(softcap=2.0, mask=drawn_mask(Q_LEN, K_LEN))
    sentence = "a masked pair stays masked under a softcap"
    yield clause("softcap-mask", sentence, masked, alternatives=ignored)
    learning = new_call(q_len=6, k_len=6, causal=True, softcap=2.0, gradients=SUMS)
    sentence = "gradients of a causal call with softcap"
    yield clause("softcap-gradient", sentence, learning, alternatives=ignored)
    # All products of a row and a key have one sign, so that their sum has it whatever the order.
    signs = np.where(np.arange(K_LEN) % 3 == 0, -1.0, 1.0)[:, None]
    beyond = new_call(
        softcap=2.0,
        q=in_dtype(3e37 * np.abs(draw(2, HEADS, Q_LEN, 32, seed=1)), "float32"),
        k=in_dtype(signs * (1 + np.abs(draw(2, HEADS, K_LEN, 32, seed=2))) * 100, "float32"),
    )
    sentence = "scores beyond the range of float32 become ±softcap, not NaN"
    yield clause("softcap-overflow", sentence, beyond)
    scaled = new_call(softcap=2.0, scale=1e38)
    sentence = "a scale of 1e38 makes every score ±softcap, with the sign of its product"
    yield clause("softcap-large-scale", sentence, scaled, alternatives=ignored)
    learning = new_call(q_len=6, k_len=6, causal=True, softcap=2.0, scale=1e38, gradients=SUMS)
    sentence = "and the gradients of q and k are 0 then, not NaN"
    yield clause("softcap-large-scale-gradient", sentence, learning)
    above = new_call(softcap=1e20)
    sentence = "a softcap far above the scores changes nothing"
    zeros = {"scores become 0": lambda call: right_results(replace(call, scale=0.0, softcap=None))}
    yield clause("softcap-far-above", sentence, above, alternatives=zeros)


def sinks_clauses() -> Iterator[Clause]:
    sink = np.array([0.5, -1.0, 2.0])
    ignored = {"ignored": without("sink")}

    def scaled(call: NeutralCall) -> Results:
        assert call.sink is not None
        return right_results(replace(call, sink=call.sink * call.used_scale))

    readings = {**ignored, "scaled": scaled}
    sentence = "the sink of each head takes part in the sum, without a value"
    yield clause("sink", sentence, new_call(sink=sink), alternatives=readings)
    with_both = new_call(sink=sink, scale=0.7, softcap=1.0)
    yield clause(
        "sink-scale", "neither scale nor softcap change the sink", with_both, alternatives=readings
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
    no_sink = new_call(sink=np.full(HEADS, -math.inf))
    yield clause("sink-minus-infinity", "a sink of -inf changes nothing", no_sink)
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
    half = replace(many, dtype="float16")
    sentence = "the mean of 4,096 values 1 in float16 is 1"
    yield clause("float16-many-keys", sentence, half, tolerance=5e-4, reason="one rounding of 1")
    yield _cancelling()
    yield _narrow_output()
    yield _subnormal()
    yield from _scores_beyond_the_range()
    high = new_call(dtype="float16", scale=0.001, q=300 * draw(2, HEADS, Q_LEN, 32, seed=1))
    high = replace(high, q=in_dtype(high.q, "float16"), k=in_dtype(100 * high.k, "float16"))
    sentence = "float16 products above 65,504 are summed in float32 before the scale"
    yield clause("float16-overflow", sentence, high, tolerance=4e-3, reason="scores of hundreds")


def _cancelling() -> Clause:
    """Each value occurs twice, once with the other sign, so that their sum is small beside the terms."""
    call = new_call(1, 2, 8, 512, dtype="bfloat16", scale=0.02)
    values = in_dtype(draw(1, 2, 256, 32, seed=3) + 8, "bfloat16")
    return clause(
        "bfloat16-cancelling",
        "sums of bfloat16 numbers that cancel are right within 3e-3",
        replace(call, v=np.concatenate([values, -values], 2)),
        tolerance=3e-3,
        reason="rounding of the output, and of weights to either side",
    )


def _narrow_output() -> Clause:
    """Whether each number of the output is one of bfloat16."""

    def rest(attend: Attend, call: NeutralCall) -> Results:
        output = attend(call)["output"]
        return {"rest": output - in_dtype(output, "bfloat16")}

    call = new_call(dtype="bfloat16")
    zeros = {"rest": np.zeros(call.q.shape)}
    sentence = "the output of bfloat16 tensors is one of bfloat16"
    return clause(
        "bfloat16-output", sentence, call, ask=rest, right=zeros, tolerance=0.0, reason="exact"
    )


def _subnormal() -> Clause:
    """Values of 1e-39, compared as multiples of it."""
    call = new_call()
    call = replace(call, v=in_dtype(1e-39 * call.v, "float32"))

    def enlarged(attend: Attend, call: NeutralCall) -> Results:
        return {"output": attend(call)["output"] * 1e39}

    right = {"output": right_results(call)["output"] * 1e39}
    sentence = "values of 1e-39, below the normal numbers of float32, are not lost"
    return clause(
        "subnormal-values",
        sentence,
        call,
        ask=enlarged,
        right=right,
        tolerance=1e-4,
        reason="subnormal numbers have few digits",
        alternatives={"lost": lambda call: {"output": np.zeros(call.q.shape)}},
    )


def _scores_beyond_the_range() -> Iterator[Clause]:
    """One row of queries of 3e38 beside keys of 100, so that each of its products is beyond float32."""
    for name, sign in (("above", 1.0), ("below", -1.0)):
        call = new_call(1, 1, scale=1.0, k=np.full((1, 1, K_LEN, 32), 100.0))
        q = call.q.copy()
        q[0, 0, 1] = sign * in_dtype(np.array(3e38), "float32")
        call = replace(call, q=q)
        right = right_results(call)["output"].copy()
        right[0, 0, 1] = math.nan if sign > 0 else 0.0
        sentence = {
            "above": "a score above the range of float32 is inf: its row is NaN",
            "below": "a row whose scores are all below the range of float32 is empty: zeros",
        }[name]
        mean = right.copy()
        mean[0, 0, 1] = call.v[0, 0].mean(0)
        nan = right.copy()
        nan[0, 0, 1] = math.nan
        yield clause(
            f"scores-{name}-range",
            sentence,
            call,
            right={"output": right},
            alternatives={
                "the mean of all values": lambda call, mean=mean: {"output": mean},
                "NaN": lambda call, nan=nan: {"output": nan},
            },
        )


def statistics_clauses() -> Iterator[Clause]:
    mask = drawn_mask(Q_LEN, K_LEN)
    call = new_call(mask=mask, wants=("log_sum_exp",))

    def base_two(call: NeutralCall) -> Results:
        results = dict(right_results(call))
        results["log_sum_exp"] = results["log_sum_exp"] / math.log(2)
        return results

    sentence = "the log-sum-exp of the scores, as a natural logarithm"
    yield clause("log-sum-exp", sentence, call, alternatives={"base 2": base_two})
    weights = new_call(mask=mask, wants=("weights",))
    yield clause("weights", "the weights of each head", weights)
