"""Clauses about tensors: shapes, zero sizes, grouped heads, layouts, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from regard.testing.conformance.call import (
    LAYOUTS,
    Array,
    NeutralCall,
    Results,
    empty_rows_are,
    right_results,
    with_opposite_mask,
    with_pairs,
)
from regard.testing.conformance.clause import Clause
from regard.testing.conformance.clauses.making import SUMS, clause, refusal
from regard.testing.conformance.drawing import (
    HEADS,
    K_LEN,
    Q_LEN,
    draw,
    drawn_mask,
    new_call,
)


def shapes_clauses() -> Iterator[Clause]:
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
    aligned_first = {"aligned first with first": with_pairs(aligned="first")}
    many = new_call(1, 2, 131, 521, 24, causal=True)
    sentence = "131 causal queries over 521 keys, head_dim 24"
    yield clause("many-queries", sentence, many, alternatives=aligned_first)
    long = new_call(2, 3, 1, 1543)
    yield clause("many-keys", "one query over 1,543 keys", long)
    many_heads = new_call(17, 5, 2, 3, 8)
    yield clause("many-heads", "17 batch rows of 5 heads", many_heads)


def zero_sizes_clauses() -> Iterator[Clause]:
    yield clause("no-queries", "0 queries give an output of 0 rows", new_call(q_len=0))
    no_keys = {"NaN": empty_rows_are("NaN")}
    yield clause(
        "no-keys", "0 keys: every row is empty, zeros", new_call(k_len=0), alternatives=no_keys
    )
    yield clause("no-batch", "batch 0 gives an output of batch 0", new_call(batch=0))
    yield clause("no-v-dim", "v_dim 0 gives an output without numbers", new_call(v_dim=0))


def _repeated(x: Array) -> Array:
    return np.broadcast_to(x[:1], x.shape)


def grouped_heads_clauses() -> Iterator[Clause]:
    def interleaved(call: NeutralCall) -> Results:
        """Query head h reads key/value head h mod kv_heads."""
        heads = call.sizes[1]
        repeats = heads // call.k.shape[1]
        repeated = replace(
            call, k=np.tile(call.k, (1, repeats, 1, 1)), v=np.tile(call.v, (1, repeats, 1, 1))
        )
        results = dict(right_results(repeated))
        for name in ("dk", "dv"):
            if name in results:
                x = results[name]
                results[name] = x.reshape(x.shape[0], repeats, -1, *x.shape[2:]).sum(1)
        return results

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
    step = new_call(heads=6, kv_heads=2, q_len=1, k_len=37)
    sentence = "one query of 6 heads over 2 and 37 keys"
    yield clause("grouped-one-query", sentence, step, alternatives=readings)
    narrow = new_call(heads=6, kv_heads=2, dtype="bfloat16")
    yield clause("grouped-bfloat16", "grouped heads in bfloat16", narrow, alternatives=readings)


def layouts_clauses() -> Iterator[Clause]:
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
    learning = new_call(layout="transposed", gradients=SUMS)
    yield clause("layout-gradient", "gradients of transposed views are right", learning)
    mask = np.broadcast_to(drawn_mask(Q_LEN, K_LEN), (2, HEADS, Q_LEN, K_LEN))
    expanded = new_call(mask=mask, changes={"mask_layout": "expanded"})
    yield clause("layout-mask", "a mask repeated with stride 0 is read rightly", expanded)

    yield clause(
        "inputs-unchanged",
        "q, k, v and the mask are not written to",
        new_call(mask=drawn_mask(Q_LEN, K_LEN), gradients=SUMS, wants=("changed inputs",)),
        right={"changed inputs": np.zeros(1)},
    )


def refusals_clauses() -> Iterator[Clause]:
    call = new_call()
    shorter = replace(call, k=draw(2, HEADS, K_LEN, 16, seed=2))
    yield refusal("wrong-head-dim", "keys of another head_dim than queries are refused", shorter)
    fewer = replace(call, v=call.v[:, :, :7])

    def without_values(call: NeutralCall) -> Results:
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
    fewer_heads = replace(new_call(heads=6), k=call.k, v=call.v[:, :2])
    sentence = "values of 2 heads beside keys of 3 are refused"
    yield refusal("wrong-value-heads", sentence, fewer_heads)
    mask = drawn_mask(4, K_LEN)
    yield refusal("wrong-mask-shape", "a mask (4, 9) for 5 queries is refused", new_call(mask=mask))

    added = new_call(bias=draw(1, 1, 4, K_LEN, seed=6))
    yield refusal("wrong-bias-shape", "a bias (1, 1, 4, 9) for 5 queries is refused", added)
    sinks = new_call(sink=np.zeros(2))
    yield refusal("wrong-sink-size", "2 sinks for 3 heads are refused", sinks)
    capped = new_call(softcap=-2.0)
    yield refusal("negative-softcap", "a softcap of -2 is refused", capped)
    integers = new_call(dtype="int32")
    yield refusal("integer-tensors", "q, k and v of integers are refused", integers)

    def broadcast(call: NeutralCall) -> Results:
        return right_results(replace(call, k=np.repeat(call.k, 2, 0), v=np.repeat(call.v, 2, 0)))

    mismatched = replace(call, k=call.k[:1], v=call.v[:1])
    sentence = "q of batch 2 over k and v of batch 1 is refused"
    yield refusal("batch-mismatch", sentence, mismatched, broadcast=broadcast)
    mixed = replace(call, changes={"k_dtype": "float64"})
    sentence = "float32 q and float64 k are refused"
    yield refusal("mixed-dtypes", sentence, mixed, computed=right_results)
    yield refusal("wrong-dropout", "dropout 1.5 is refused", new_call(dropout=1.5))
    integers = new_call(mask=drawn_mask(Q_LEN, K_LEN), changes={"mask_dtype": "int32"})

    def as_numbers(call: NeutralCall) -> Results:
        assert call.mask is not None
        return right_results(replace(call, mask=None, bias=call.mask.astype(float)[None, None]))

    yield refusal(
        "integer-mask",
        "a mask of integers 0 and 1 is refused",
        integers,
        one_means_allowed=right_results,
        one_is_masked=with_opposite_mask,
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
