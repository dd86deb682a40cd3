"""The clauses: what a call of attention gives, case by case, with the readings of others that have a name.

Each function makes the clauses of a group; `CLAUSES` has all of them by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from regard.testing.conformance.call import (
    LAYOUTS,
    Array,
    Call,
    Reading,
    Results,
    empty_rows_are,
    right_results,
    with_pairs,
    without,
)
from regard.testing.conformance.clause import TOLERANCES, Attend, Clause
from regard.testing.conformance.drawing import (
    FLOAT32_LOWEST,
    HEADS,
    INFINITY,
    K_LEN,
    Q_LEN,
    draw,
    drawn_mask,
    in_dtype,
    new_call,
    row_bias,
    with_numbers,
)

SUMS = ("q", "k", "v")


def clause(name: str, sentence: str, call: Call, **details: Any) -> Clause:
    """A clause whose right answer is that of the oracle; its group is set by the function that lists it."""
    details.setdefault("tolerance", TOLERANCES[call.dtype])
    if "right" not in details:
        details["right"] = right_results(call)
    return Clause(name, "", sentence, call, **details)


def refusal(name: str, sentence: str, call: Call, **alternatives: Reading) -> Clause:
    """A clause whose right answer is an error."""
    named = {words.replace("_", " "): read for words, read in alternatives.items()}
    return Clause(name, "", sentence, call, right=None, alternatives=named)


def _shapes() -> Iterator[Clause]:
    yield clause("one-head", "softmax(q k / sqrt(head_dim)) v, one head", new_call(1, 1))
    yield clause("heads-and-batch", "batch rows and heads are independent", new_call())
    yield clause("more-queries", "more queries than keys, no mask", new_call(q_len=9, k_len=4))
    yield clause("one-query", "one query over many keys", new_call(q_len=1, k_len=17))
    yield clause("one-key", "one key: the output is its value", new_call(k_len=1))
    yield clause("v-dim-smaller", "values may be smaller than keys", new_call(v_dim=16))
    yield clause("v-dim-larger", "values may be larger than keys", new_call(v_dim=64))
    yield clause("odd-head-dim", "head_dim 5", new_call(head_dim=5))
    yield clause("head-dim-1", "head_dim 1", new_call(head_dim=1))
    large = new_call(heads=2, head_dim=576, v_dim=512)
    yield clause("head-dim-576", "head_dim 576 with values of 512", large)


def _zero_sizes() -> Iterator[Clause]:
    yield clause("no-queries", "0 queries give an output of 0 rows", new_call(q_len=0))
    no_keys = {"NaN": empty_rows_are("NaN")}
    yield clause(
        "no-keys", "0 keys: every row is empty, zeros", new_call(k_len=0), alternatives=no_keys
    )
    yield clause("no-batch", "batch 0 gives an output of batch 0", new_call(batch=0))
    yield clause("no-v-dim", "v_dim 0 gives an output without numbers", new_call(v_dim=0))


def _scale() -> Iterator[Clause]:
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


def _opposite(call: Call) -> Results:
    assert call.mask is not None
    return right_results(replace(call, mask=~call.mask.astype(bool)))


def _added_ten_thousand(call: Call) -> Results:
    """The mask as a bias of -10,000, which leaves some weight to masked keys."""
    assert call.mask is not None
    lowered = np.where(call.mask, 0.0, -10_000.0)
    bias = lowered if call.bias is None else call.bias + lowered
    four_axes = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    return right_results(replace(call, mask=None, bias=four_axes))


def _masks() -> Iterator[Clause]:
    lowered = {"mask added as -10000": _added_ten_thousand}
    mask = drawn_mask(Q_LEN, K_LEN)
    yield clause(
        "mask-true-looks",
        "True in a boolean mask (q_len, k_len) means: may look",
        new_call(mask=mask),
        alternatives={"True = masked": _opposite, **lowered},
    )
    for name, sentence, shape in (
        ("mask-by-batch", "a mask (batch, 1, q_len, k_len)", (2, 1, Q_LEN, K_LEN)),
        ("mask-by-head", "a mask (1, heads, q_len, k_len)", (1, HEADS, Q_LEN, K_LEN)),
    ):
        yield clause(name, sentence, new_call(mask=drawn_mask(*shape)), alternatives=lowered)

    places = np.arange(K_LEN)
    lengths = np.array([[9], [4]])
    right_padding = (places < lengths)[:, None, None]
    left_padding = (places >= K_LEN - lengths)[:, None, None]
    for name, side, padding in (
        ("mask-of-keys", "right", right_padding),
        ("mask-left-padding", "left", left_padding),
    ):
        sentence = f"a mask (batch, 1, 1, k_len) hides padding on the {side}"
        yield clause(name, sentence, new_call(mask=padding), alternatives=lowered)

    strong = new_call(mask=mask, scale=1.0)
    keys = with_numbers(strong.k, (slice(None), slice(None), ~mask.any(0)), 0.0)
    high = mask.copy()
    high[:, 4] = False
    keys[:, :, 4] = 20_000.0 * np.sign(strong.q[:, :, 0]) / 32
    yield clause(
        "mask-strong",
        "a masked key has weight 0 even if its score is 20,000 above the others",
        replace(strong, mask=high, k=in_dtype(keys, "float32")),
        alternatives=lowered,
        tolerance=2e-3,
        reason="scores of some thousands",
    )
    bias = draw(2, HEADS, Q_LEN, K_LEN, seed=6)
    both = {"mask ignored": without("mask"), "bias ignored": without("bias")}
    together = new_call(mask=mask, bias=bias)
    yield clause("mask-and-bias", "a boolean mask and a bias together", together, alternatives=both)
    square = new_call(k_len=Q_LEN, mask=drawn_mask(Q_LEN, Q_LEN), causal=True)
    both = {"mask ignored": without("mask"), "causal ignored": without("causal")}
    sentence = "a boolean mask and the causal flag: both must allow"
    yield clause("mask-and-causal", sentence, square, alternatives=both)
    square = new_call(k_len=Q_LEN, bias=draw(2, HEADS, Q_LEN, Q_LEN, seed=6), causal=True)
    both = {"bias ignored": without("bias"), "causal ignored": without("causal")}
    sentence = "a bias and the causal flag together"
    yield clause("bias-and-causal", sentence, square, alternatives=both)


def _causal() -> Iterator[Clause]:
    ignored = {"causal ignored": without("causal")}
    square = new_call(q_len=7, k_len=7, causal=True)
    yield clause(
        "causal-square", "key j is seen by query i if j <= i", square, alternatives=ignored
    )
    top_left = {"aligned first with first": with_pairs(aligned="first")}

    def last_row_sees_all(call: Call) -> Results:
        found = dict(top_left["aligned first with first"](call))
        unmasked = right_results(replace(call, causal=False))["output"]
        found["output"] = found["output"].copy()
        found["output"][:, :, -1] = unmasked[:, :, -1]
        return found

    yield clause(
        "causal-fewer-queries",
        "3 queries, 7 keys: the last query is aligned with the last key",
        new_call(q_len=3, k_len=7, causal=True),
        alternatives={
            **top_left,
            "aligned first with first, the last row sees all": last_row_sees_all,
            **ignored,
        },
    )
    yield clause(
        "causal-more-queries",
        "7 queries, 3 keys: the last ones are aligned, and the first 4 rows are empty: zeros",
        new_call(q_len=7, k_len=3, causal=True),
        alternatives={
            **top_left,
            "empty rows are NaN": empty_rows_are("NaN"),
            "empty rows are the mean of all values": empty_rows_are("mean"),
            **ignored,
        },
    )
    one = new_call(q_len=1, causal=True)
    yield clause("causal-one-query", "1 query, 9 keys: it sees all", one, alternatives=top_left)

    def aligned_with_real_keys(call: Call) -> Results:
        """The last query at the last key that is no padding."""
        assert call.key_lengths is not None
        q_len = call.sizes[2]
        firsts = tuple(length - q_len for length in call.key_lengths)
        return right_results(replace(call, first_positions=firsts))

    yield clause(
        "causal-key-lengths",
        "padding on the right does not move the diagonal",
        new_call(q_len=6, k_len=6, causal=True, key_lengths=(6, 4)),
        alternatives={
            "aligned with the last real key": aligned_with_real_keys,
            "key lengths ignored": without("key_lengths"),
        },
    )
    starts = new_call(q_len=4, causal=True, first_positions=(0, 3))
    yield clause("causal-first-positions", "each batch row has a first position of its own", starts)
    grouped = new_call(heads=6, kv_heads=2, q_len=6, k_len=6, causal=True, gradients=SUMS)
    yield clause(
        "causal-grouped-gradient", "gradients of a causal call with grouped heads", grouped
    )


def _windows() -> Iterator[Clause]:
    ignored = {"window ignored": without("window")}
    wider = {"one key more": with_pairs(wider=1), "one key less": with_pairs(wider=-1)}
    for name, sentence, window in (
        ("window-causal", "window (2, 0): the own key and 2 before", (2, 0)),
        ("window-both-sides", "window (2, 2): 2 keys on each side and the own one", (2, 2)),
        ("window-asymmetric", "window (3, 1)", (3, 1)),
        ("window-zero", "window (0, 0): the output is the value of the own place", (0, 0)),
        ("window-open-left", "window (unlimited, 1)", (None, 1)),
    ):
        call = new_call(q_len=9, window=window)
        yield clause(name, sentence, call, alternatives={**wider, **ignored})
    yield clause(
        "window-fewer-queries",
        "window (2, 0), 3 queries, 9 keys: the last is aligned with the last",
        new_call(q_len=3, window=(2, 0)),
        alternatives={"aligned first with first": with_pairs(aligned="first"), **wider, **ignored},
    )
    large = new_call(q_len=7, k_len=7, causal=True, window=(100, 0))
    yield clause("window-large", "a window larger than the text changes nothing", large)


def _empty_rows() -> Iterator[Clause]:
    readings: Mapping[str, Reading] = {
        "NaN": empty_rows_are("NaN"),
        "the mean of all values": empty_rows_are("mean"),
        "as if nothing were masked": empty_rows_are("unmasked"),
    }
    mask = drawn_mask(Q_LEN, K_LEN)
    mask[1] = False
    masked = new_call(mask=mask)
    yield clause(
        "empty-row-mask",
        "a row without a key by a boolean mask gives zeros",
        masked,
        alternatives=readings,
    )
    yield clause(
        "empty-row-bias",
        "a row whose bias is -inf everywhere gives zeros",
        new_call(bias=row_bias(1, -INFINITY)),
        alternatives=readings,
    )
    keys = np.ones((2, 1, 1, K_LEN), dtype=bool)
    keys[1] = False
    yield clause(
        "empty-batch-row",
        "a batch row whose keys are all padding gives zeros",
        new_call(mask=keys),
        alternatives=readings,
    )
    none = new_call(mask=np.zeros((Q_LEN, K_LEN), dtype=bool))
    yield clause("empty-all", "a mask without any True gives zeros", none, alternatives=readings)
    yield clause(
        "empty-key-length",
        "a batch row of length 0 gives zeros",
        new_call(key_lengths=(9, 0)),
        alternatives=readings,
    )
    yield clause(
        "empty-window",
        "a row whose window lies before the keys gives zeros",
        new_call(q_len=9, k_len=4, window=(2, 0)),
        alternatives={
            "aligned first with first": with_pairs(aligned="first"),
            "aligned first with first, the mean of all values": empty_rows_are(
                "mean", aligned="first"
            ),
            **readings,
        },
    )
    yield clause(
        "empty-row-gradient",
        "gradients of a call with an empty row are finite and right",
        replace(masked, gradients=SUMS, grad_output=draw(2, HEADS, Q_LEN, 32, seed=4)),
    )
    yield clause(
        "empty-row-log-sum-exp",
        "the log-sum-exp of an empty row is -inf",
        replace(masked, wants=("log_sum_exp",)),
    )
    yield clause(
        "empty-row-weights",
        "the weights of an empty row are zeros",
        replace(masked, wants=("weights",)),
        alternatives=readings,
    )
    lowest = new_call(bias=row_bias(1, FLOAT32_LOWEST))
    mean = right_results(lowest)["output"].copy()
    mean[:, :, 1] = lowest.v.mean(2)
    yield clause(
        "lowest-bias",
        "a row whose bias is the lowest float32 number everywhere is not empty: the mean of the values",
        lowest,
        right={"output": mean},
        alternatives={"zeros": _zeros_in_row(1)},
    )


def _zeros_in_row(row: int) -> Reading:
    def read(call: Call) -> Results:
        output = right_results(call)["output"].copy()
        output[:, :, row] = 0
        return {"output": output}

    return read


def _hidden_keys() -> Iterator[Clause]:
    mask = drawn_mask(Q_LEN, K_LEN)
    mask[:, 4] = False
    plain = new_call(mask=mask)
    right = right_results(plain)
    hidden = (slice(None), slice(None), 4)
    for name, number in (("nan", math.nan), ("inf", INFINITY), ("huge", 3e38)):
        for what in ("key", "value"):
            tensor = "k" if what == "key" else "v"
            planted = with_numbers(getattr(plain, tensor), hidden, number)
            yield clause(
                f"hidden-{name}-{what}",
                f"{number} in a {what} that no query may look at has no effect",
                replace(plain, **{tensor: planted}),
                right=right,
            )
    bias = np.zeros((1, 1, Q_LEN, K_LEN))
    bias[..., 4] = -INFINITY
    by_bias = new_call(bias=bias)
    nan_behind = replace(by_bias, k=with_numbers(by_bias.k, hidden, math.nan))
    yield clause("hidden-by-bias", "NaN behind a bias of -inf has no effect", nan_behind)
    padded = new_call(key_lengths=(9, 4))
    padding = (1, slice(None), slice(4, None))
    nan_padding = replace(
        padded,
        k=with_numbers(padded.k, padding, math.nan),
        v=with_numbers(padded.v, padding, math.nan),
    )
    yield clause("hidden-padding", "NaN beyond the key lengths has no effect", nan_padding)

    learning = new_call(mask=mask, gradients=SUMS)
    nan_gradient = replace(
        learning,
        k=with_numbers(learning.k, hidden, math.nan),
        v=with_numbers(learning.v, hidden, math.nan),
    )
    yield clause("hidden-gradient", "gradients stay right with NaN in a hidden key", nan_gradient)

    causal = new_call(q_len=6, k_len=6, causal=True)
    last = (slice(None), slice(None), 5)
    yield clause(
        "future-nan",
        "NaN in the last key reaches only the last query of a causal call",
        replace(causal, k=with_numbers(causal.k, last, math.nan)),
    )
    call = new_call()
    yield clause(
        "other-batch-row-nan",
        "NaN in one batch row does not reach another",
        replace(call, v=with_numbers(call.v, (1,), math.nan)),
    )
    yield clause(
        "nan-query",
        "NaN in a query reaches its own row alone",
        replace(call, q=with_numbers(call.q, (0, 0, 2), math.nan)),
        alternatives={"zeros": _zeros_of_nan_queries},
    )
    some = mask.copy()
    some[:2, 4] = True
    seen = new_call(mask=some)
    yield clause(
        "visible-nan",
        "NaN in a key reaches the queries that may look at it, and no other",
        replace(seen, k=with_numbers(seen.k, hidden, math.nan)),
    )
    numbers = draw(2, HEADS, Q_LEN, K_LEN, seed=6)
    nan_bias = new_call(mask=mask, bias=np.where(mask, numbers, math.nan))
    expected = right_results(replace(nan_bias, bias=np.where(mask, numbers, 0.0)))
    sentence = "NaN of the bias at a masked pair is not used"
    yield clause("masked-nan-bias", sentence, nan_bias, right=expected)


def _zeros_of_nan_queries(call: Call) -> Results:
    output = right_results(call)["output"]
    return {"output": np.where(np.isnan(output), 0.0, output)}


def _grouped_heads() -> Iterator[Clause]:
    def interleaved(call: Call) -> Results:
        """Query head h reads key/value head h mod kv_heads."""
        heads = call.sizes[1]
        repeats = heads // call.k.shape[1]
        repeated = replace(
            call, k=np.tile(call.k, (1, repeats, 1, 1)), v=np.tile(call.v, (1, repeats, 1, 1))
        )
        found = dict(right_results(repeated))
        for name in ("dk", "dv"):
            if name in found:
                x = found[name]
                found[name] = x.reshape(x.shape[0], repeats, -1, *x.shape[2:]).sum(1)
        return found

    readings = {"head h reads group h mod groups": interleaved}
    grouped = new_call(heads=6, kv_heads=3)
    sentence = "6 query heads over 3: head h reads group h // 2"
    yield clause("grouped", sentence, grouped, alternatives=readings)
    yield clause("multi-query", "6 query heads over 1", new_call(heads=6, kv_heads=1))
    learning = new_call(heads=6, kv_heads=3, gradients=SUMS)
    sentence = "the gradient of a key/value head is the sum over its query heads"
    yield clause("grouped-gradient", sentence, learning, alternatives=readings)
    masked = new_call(heads=6, kv_heads=3, mask=drawn_mask(1, 6, Q_LEN, K_LEN))
    sentence = "a mask for each query head with grouped heads"
    yield clause("grouped-mask", sentence, masked, alternatives=readings)


def _bias() -> Iterator[Clause]:
    ignored = {"bias ignored": without("bias")}
    bias = draw(2, HEADS, Q_LEN, K_LEN, seed=6)

    def scaled_too(call: Call) -> Results:
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

    def rounded(call: Call) -> Results:
        assert call.bias is not None
        return right_results(replace(call, bias=in_dtype(call.bias, "bfloat16")))

    sentence = "a float32 bias beside bfloat16 tensors is not rounded"
    yield clause("bias-float32-beside-bfloat16", sentence, wide, alternatives={"rounded": rounded})


def _softcap() -> Iterator[Clause]:
    def after_bias(call: Call) -> Results:
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


def _sinks() -> Iterator[Clause]:
    sink = np.array([0.5, -1.0, 2.0])
    ignored = {"ignored": without("sink")}

    def scaled(call: Call) -> Results:
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


def _numbers() -> Iterator[Clause]:
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


def _gradients() -> Iterator[Clause]:
    yield clause("gradients", "the gradients of q, k and v", new_call(gradients=SUMS))
    smaller = new_call(v_dim=16, gradients=SUMS)
    yield clause("gradients-v-dim", "gradients where v_dim is not head_dim", smaller)
    narrow = new_call(dtype="bfloat16", gradients=SUMS)
    sentence = "bfloat16 gradients within 2e-2"
    yield clause("gradients-bfloat16", sentence, narrow, tolerance=2e-2, reason="sums of roundings")
    exact = new_call(dtype="float64", gradients=SUMS)
    yield clause("gradients-float64", "float64 gradients within 1e-11", exact)


def _layouts() -> Iterator[Clause]:
    sentences = {
        "transposed": "views of (batch, length, heads, dim) are read rightly",
        "sliced": "views with a gap after every number are read rightly",
        "offset": "views that begin inside their storage are read rightly",
        "expanded": "a batch row repeated with stride 0 is read rightly",
        "negated": "negated views are read rightly",
    }
    for layout in LAYOUTS:
        call = new_call(layout=layout)
        if layout == "expanded":
            call = replace(call, **{name: _repeated(getattr(call, name)) for name in "qkv"})
        yield clause(f"layout-{layout}", sentences[layout], call)


def _repeated(x: Array) -> Array:
    return np.broadcast_to(x[:1], x.shape)


def _dropout() -> Iterator[Clause]:
    # Equal weights and values 1: the mean over many rows shows whether kept weights are divided by 1 - p.
    many = new_call(1, 4, 64, 64, scale=0.0, v=np.ones((1, 4, 64, 32)), dropout=0.5)

    def mean(attend: Attend, call: Call) -> Results:
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

    def spread(attend: Attend, call: Call) -> Results:
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

    def twice(attend: Attend, call: Call) -> Results:
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


def _determinism() -> Iterator[Clause]:
    call = new_call(q_len=33, k_len=65)

    def changed_bits(first: Array, second: Array) -> Results:
        return {"changed": np.array([float((first != second).sum())])}

    same = {"changed": np.zeros(1)}
    exact = {"right": same, "tolerance": 0.0, "reason": "the same bits"}

    def twice(attend: Attend, call: Call) -> Results:
        return changed_bits(attend(call)["output"], attend(call)["output"])

    yield clause("same-bits-twice", "two equal calls give the same bits", call, ask=twice, **exact)

    def row_alone(attend: Attend, call: Call) -> Results:
        alone = replace(call, q=call.q[1:2], k=call.k[1:2], v=call.v[1:2])
        return changed_bits(attend(call)["output"][1:2], attend(alone)["output"])

    sentence = "a batch row alone gives the bits that it has in a batch"
    batch = new_call(batch=5, q_len=33, k_len=65)
    yield clause("batch-invariance", sentence, batch, ask=row_alone, **exact)

    def step_by_step(attend: Attend, call: Call) -> Results:
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

    def first_key_alone(call: Call) -> Results:
        """A step whose only query is aligned with the first key."""
        return {"output": np.repeat(call.v[:, :, :1], call.sizes[2], 2)}

    yield clause(
        "decoding",
        "token by token over growing keys is one causal pass",
        new_call(q_len=8, k_len=8, causal=True),
        ask=step_by_step,
        alternatives={"each step sees the first key alone": first_key_alone},
    )


def _statistics() -> Iterator[Clause]:
    mask = drawn_mask(Q_LEN, K_LEN)
    call = new_call(mask=mask, wants=("log_sum_exp",))

    def base_two(call: Call) -> Results:
        found = dict(right_results(call))
        found["log_sum_exp"] = found["log_sum_exp"] / math.log(2)
        return found

    sentence = "the log-sum-exp of the scores, as a natural logarithm"
    yield clause("log-sum-exp", sentence, call, alternatives={"base 2": base_two})
    weights = new_call(mask=mask, wants=("weights",))
    yield clause("weights", "the weights of each head", weights)


def _refusals() -> Iterator[Clause]:
    call = new_call()
    shorter = replace(call, k=draw(2, HEADS, K_LEN, 16, seed=2))
    yield refusal("wrong-head-dim", "keys of another head_dim than queries are refused", shorter)
    fewer = replace(call, v=call.v[:, :, :7])

    def without_values(call: Call) -> Results:
        return right_results(replace(call, k=call.k[:, :, :7]))

    yield refusal(
        "fewer-values",
        "fewer values than keys are refused",
        fewer,
        keys_without_a_value_are_ignored=without_values,
    )
    five = new_call(heads=5)
    five = replace(five, k=five.k[:, :3], v=five.v[:, :3])
    yield refusal("heads-not-a-multiple", "5 query heads over 3 are refused", five)
    mask = drawn_mask(4, K_LEN)
    yield refusal("wrong-mask-shape", "a mask (4, 9) for 5 queries is refused", new_call(mask=mask))

    def broadcast(call: Call) -> Results:
        return right_results(replace(call, k=np.repeat(call.k, 2, 0), v=np.repeat(call.v, 2, 0)))

    other = replace(call, k=call.k[:1], v=call.v[:1])
    sentence = "q of batch 2 over k and v of batch 1 is refused"
    yield refusal("batch-mismatch", sentence, other, broadcast=broadcast)
    mixed = replace(call, changes={"k_dtype": "float64"})
    sentence = "float32 q and float64 k are refused"
    yield refusal("mixed-dtypes", sentence, mixed, computed=right_results)
    yield refusal("wrong-dropout", "dropout 1.5 is refused", new_call(dropout=1.5))
    integers = new_call(mask=drawn_mask(Q_LEN, K_LEN), changes={"mask_dtype": "int32"})

    def as_numbers(call: Call) -> Results:
        assert call.mask is not None
        return right_results(replace(call, mask=None, bias=call.mask.astype(float)[None, None]))

    yield refusal(
        "integer-mask",
        "a mask of integers 0 and 1 is refused",
        integers,
        one_looks=right_results,
        one_is_masked=_opposite,
        added_as_numbers=as_numbers,
    )
    nowhere = new_call(q_len=9, window=(-3, 0))
    yield refusal(
        "negative-window",
        "window (-3, 0), which allows no key, is refused",
        nowhere,
        every_row_empty=lambda call: {"output": np.zeros_like(call.q)},
        no_limit_on_the_left=lambda call: right_results(replace(call, window=(None, 0))),
    )


GROUPS = {
    "shapes": _shapes,
    "zero sizes": _zero_sizes,
    "scale": _scale,
    "masks": _masks,
    "causal": _causal,
    "windows": _windows,
    "empty rows": _empty_rows,
    "hidden keys": _hidden_keys,
    "grouped heads": _grouped_heads,
    "bias": _bias,
    "softcap": _softcap,
    "sinks": _sinks,
    "numbers": _numbers,
    "gradients": _gradients,
    "layouts": _layouts,
    "dropout": _dropout,
    "determinism": _determinism,
    "statistics": _statistics,
    "refusals": _refusals,
}


def _all() -> dict[str, Clause]:
    clauses: dict[str, Clause] = {}
    for group, make in GROUPS.items():
        for made in make():
            assert made.name not in clauses, made.name
            clauses[made.name] = replace(made, group=group)
    return clauses


CLAUSES = _all()
