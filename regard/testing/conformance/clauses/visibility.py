"""Clauses about which query may look at which key: masks, causal order, windows, empty rows, hidden keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from regard.testing.conformance.call import (
    NeutralCall,
    Reading,
    Results,
    empty_rows_are,
    right_results,
    with_opposite_mask,
    with_pairs,
    without,
)
from regard.testing.conformance.clause import Clause
from regard.testing.conformance.clauses.making import SUMS, clause
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


def _added_ten_thousand(call: NeutralCall) -> Results:
    """The mask as a bias of -10,000, which leaves some weight to masked keys."""
    assert call.mask is not None
    lowered = np.where(call.mask, 0.0, -10_000.0)
    bias = lowered if call.bias is None else call.bias + lowered
    four_axes = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    return right_results(replace(call, mask=None, bias=four_axes))


def masks_clauses() -> Iterator[Clause]:
    lowered = {"mask added as -10000": _added_ten_thousand}
    mask = drawn_mask(Q_LEN, K_LEN)
    yield clause(
        "mask-true-looks",
        "True in a boolean mask (q_len, k_len) means: may look",
        new_call(mask=mask),
        alternatives={"True = masked": with_opposite_mask, **lowered},
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

    everything = new_call(mask=np.ones((Q_LEN, K_LEN), dtype=bool))
    yield clause("mask-all-true", "a mask of True alone changes nothing", everything)
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
    either_ignored = {"mask ignored": without("mask"), "bias ignored": without("bias")}
    together = new_call(mask=mask, bias=bias)
    yield clause(
        "mask-and-bias", "a boolean mask and a bias together", together, alternatives=either_ignored
    )
    square = new_call(k_len=Q_LEN, mask=drawn_mask(Q_LEN, Q_LEN), causal=True)
    either_ignored = {"mask ignored": without("mask"), "causal ignored": without("causal")}
    sentence = "a boolean mask and the causal flag: both must allow"
    yield clause("mask-and-causal", sentence, square, alternatives=either_ignored)
    square = new_call(k_len=Q_LEN, bias=draw(2, HEADS, Q_LEN, Q_LEN, seed=6), causal=True)
    either_ignored = {"bias ignored": without("bias"), "causal ignored": without("causal")}
    sentence = "a bias and the causal flag together"
    yield clause("bias-and-causal", sentence, square, alternatives=either_ignored)


def causal_clauses() -> Iterator[Clause]:
    ignored = {"causal ignored": without("causal")}
    square = new_call(q_len=7, k_len=7, causal=True)
    yield clause(
        "causal-square", "key j is seen by query i if j <= i", square, alternatives=ignored
    )
    top_left = {"aligned first with first": with_pairs(aligned="first")}

    def last_row_sees_all(call: NeutralCall) -> Results:
        results = dict(top_left["aligned first with first"](call))
        unmasked = right_results(replace(call, causal=False))["output"]
        results["output"] = results["output"].copy()
        results["output"][:, :, -1] = unmasked[:, :, -1]
        return results

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
    one_query = new_call(q_len=1, causal=True)
    yield clause(
        "causal-one-query", "1 query, 9 keys: it sees all", one_query, alternatives=top_left
    )

    def aligned_with_real_keys(call: NeutralCall) -> Results:
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


def windows_clauses() -> Iterator[Clause]:
    ignored = {"window ignored": without("window")}
    wider = {"one key more": with_pairs(wider=1), "one key less": with_pairs(wider=-1)}
    for name, sentence, window in (
        ("window-causal", "window (2, 0): the own key and 2 before", (2, 0)),
        ("window-both-sides", "window (2, 2): 2 keys on each side and the own one", (2, 2)),
        ("window-asymmetric", "window (3, 1)", (3, 1)),
        ("window-zero", "window (0, 0): the output is the value of the own place", (0, 0)),
        ("window-open-left", "window (unlimited, 1)", (None, 1)),
        ("window-open-right", "window (1, unlimited)", (1, None)),
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
    learning = new_call(heads=6, kv_heads=2, q_len=9, window=(2, 0), gradients=SUMS)
    sentence = "gradients of a window with grouped heads"
    yield clause("window-gradient", sentence, learning, alternatives={**wider, **ignored})


def empty_rows_clauses() -> Iterator[Clause]:
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
    def read(call: NeutralCall) -> Results:
        output = right_results(call)["output"].copy()
        output[:, :, row] = 0
        return {"output": output}

    return read


def hidden_keys_clauses() -> Iterator[Clause]:
    mask = drawn_mask(Q_LEN, K_LEN)
    mask[:, 4] = False
    plain = new_call(mask=mask)
    right = right_results(plain)
    hidden = (slice(None), slice(None), 4)
    for name, word, number in (
        ("nan", "NaN", math.nan),
        ("inf", "infinity", INFINITY),
        ("huge", "3e38", 3e38),
    ):
        for what in ("key", "value"):
            tensor = "k" if what == "key" else "v"
            planted = with_numbers(getattr(plain, tensor), hidden, number)
            yield clause(
                f"hidden-{name}-{what}",
                f"{word} in a {what} that no query may look at has no effect",
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


def _zeros_of_nan_queries(call: NeutralCall) -> Results:
    output = right_results(call)["output"]
    return {"output": np.where(np.isnan(output), 0.0, output)}
