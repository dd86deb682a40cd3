"""The cases of `regard bench`: regard as a contender, the peers of each case, and the bounds that are promised."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from regard.core.plan import Plan
from regard.core.result import Want, top_keys
from regard.core.tensors import Stored
from regard.functional import attention, attention_detail, plan_attention
from regard.mechanisms import Additive, GatedDelta, LinearTransformer, Softmax
from regard.patterns import KeyMask, KeySpan, Pattern
from regard.testing.cases import LAYOUTS
from regard_lab.bench import peers
from regard_lab.bench.whole import WHOLE_CASES
from regard_lab.bench.work import (
    BIG_BIRD,
    CAUSAL,
    CAUSAL_WINDOW,
    DROPOUT_SEED,
    FULL,
    HOLED,
    PADDED,
    STRIDED,
    WHOLE,
    WINDOW,
    Attend,
    Case,
    Contender,
    Contest,
    Promise,
    Tensors,
    Work,
    unpromised,
)


def options(work: Work, tensors: Tensors) -> dict[str, Any]:
    """The keyword arguments of `attention` for a work."""
    keywords: dict[str, Any] = {"pattern": work.pattern}
    if work.mechanism is not None:
        keywords |= {"mechanism": work.mechanism, "parameters": tensors.parameters}
    if work.dropout:
        keywords |= {"dropout": work.dropout, "dropout_seed": DROPOUT_SEED}
    if tensors.bias is not None:
        keywords["bias"] = tensors.bias
    return keywords


def keys_and_values(work: Work, tensors: Tensors) -> tuple[Any, Any]:
    """k and v as stored in the work's cache."""
    if work.cache_dtype is None:
        return tensors.k, tensors.v
    dtype = getattr(torch, work.cache_dtype)
    return Stored(tensors.k.to(dtype)), Stored(tensors.v.to(dtype))


def plan_of(work: Work, tensors: Tensors, want: tuple[Want, ...] = ()) -> Plan:
    """The plan of the work."""
    k, v = keys_and_values(work, tensors)
    return plan_attention(tensors.q, k, v, want=want, **options(work, tensors))


def _by_attention(work: Work, tensors: Tensors) -> Attend:
    k, v = keys_and_values(work, tensors)
    return partial(attention, tensors.q, k, v, **options(work, tensors))


def _by_plan(work: Work, tensors: Tensors) -> Attend:
    k, v = keys_and_values(work, tensors)
    plan = plan_of(work, tensors)
    if tensors.bias is None and not work.dropout:
        return partial(plan.run, tensors.q, k, v)
    return partial(plan.run, tensors.q, k, v, bias=tensors.bias, dropout_seed=DROPOUT_SEED)


def _by_new_masks(work: Work, tensors: Tensors) -> Attend:
    """Attention with the padding of the batch as a mask that is new in each call, as each batch of a training has."""
    visible = work.pattern.dense(1, work.k_len).reshape(-1, work.k_len)[-1:]
    visible = visible.expand(work.batch, -1).clone()

    def attend() -> torch.Tensor:
        return attention(tensors.q, tensors.k, tensors.v, pattern=KeyMask(visible))

    return attend


def _by_new_lengths(work: Work, tensors: Tensors) -> Attend:
    """Attention with the lengths of the texts as numbers that are new in each call."""
    visible = work.pattern.dense(1, work.k_len).reshape(-1, work.k_len)[-1]
    lengths = visible.sum().expand(work.batch).clone()

    def attend() -> torch.Tensor:
        return attention(tensors.q, tensors.k, tensors.v, pattern=KeySpan(0, lengths.clone()))

    return attend


def _by_detail(want: Want) -> Callable[[Work, Tensors], Attend]:
    """Attention with one statistic; `top_keys` is checked by its weights, since equal weights may be in any order."""
    name = want if isinstance(want, str) else "top_weights"

    def prepare(work: Work, tensors: Tensors) -> Attend:
        detail_of_call = partial(
            attention_detail, tensors.q, tensors.k, tensors.v, want=want, **options(work, tensors)
        )

        def attend() -> dict[str, torch.Tensor]:
            detail = detail_of_call()
            if name == "top_weights":
                return {"output": detail.output, name: detail.top_keys.weights}
            return {"output": detail.output, name: getattr(detail, name)}

        return attend

    return prepare


# The processors of the committed reports for which bounds on the ratio to another library were set.
PROMISED_ON = "Zen 5"
EVERY_FAMILY = ""
REGARD = Contender("regard", _by_attention, plan=plan_of)
PLAN_RUN = Contender("regard, plan.run", _by_plan, plan=plan_of)
NEW_MASK = Contender("regard, a new mask", _by_new_masks, plan=plan_of)
NEW_LENGTHS = Contender("regard, new lengths", _by_new_lengths, plan=plan_of)


def with_statistic(want: Want) -> Contender:
    """regard with a statistic besides the output."""
    return Contender(
        f"regard + {want}",
        _by_detail(want),
        judged_at=WHOLE if want == "received" else None,
        plan=lambda work, tensors: plan_of(work, tensors, (want,)),
    )


def _linear(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    work = Work(length, heads=4, pattern=CAUSAL, mechanism=LinearTransformer(), backward=backward)
    others = (peers.PERFORMER_PYTORCH, peers.FAST_TRANSFORMERS, peers.SDPA_SOFTMAX)
    return _contest(_length_of(work), work, others, faster)


def _additive(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    mechanism = Softmax(Additive(query_dim=128, key_dim=128, hidden=128))
    work = Work(length, heads=1, head_dim=128, mechanism=mechanism, backward=backward)
    return _contest(_length_of(work), work, (peers.BROADCAST,), faster)


def _length_of(work: Work) -> str:
    label = f"n={work.q_len}"
    return f"{label}, forward + backward" if work.backward else label


def _contest(
    label: str,
    work: Work,
    others: Iterable[Contender],
    faster: dict[Contender, float] | None = None,
    family: str = PROMISED_ON,
) -> Contest:
    """regard against other libraries; `faster` maps a contender to the speed ratio promised for a family."""
    promises = []
    for peer, bound in (faster or {}).items():
        promises.append(Promise("faster", REGARD.name, peer.name, bound, family))
    return Contest(label, work, (REGARD, *others), tuple(promises))


MECHANISM_CASES = (
    Case(
        "linear",
        "Causal linear attention, elu + 1",
        (
            _linear(
                4096,
                {peers.PERFORMER_PYTORCH: 20, peers.FAST_TRANSFORMERS: 1, peers.SDPA_SOFTMAX: 3.5},
            ),
            _linear(4096, {peers.PERFORMER_PYTORCH: 22, peers.FAST_TRANSFORMERS: 1}, backward=True),
        ),
        (_linear(1024, {}), _linear(1024, {}, backward=True)),
    ),
    Case(
        "additive",
        "Bahdanau's attention, 128 hidden numbers",
        (
            _additive(2048, {peers.BROADCAST: 1}),
            _additive(2048, {peers.BROADCAST: 1}, backward=True),
        ),
        unpromised([_additive(512, {})]),
    ),
)


ENTROPY = with_statistic("entropy")
RECEIVED = with_statistic("received")
LOG_SUM_EXP = with_statistic("log_sum_exp")
TOP_KEYS = with_statistic(top_keys(8))
SPARSE = (peers.SDPA_MASK, peers.FLEX)
LONGEST_MASK_BACKWARD = 4096  # positions; SDPA with a mask of a longer backward pass is not timed
WINDOW_PEERS = (*SPARSE, peers.LOCAL_ATTENTION, peers.LONGFORMER)


def _sparse(
    pattern: Pattern, length: int, heads: int, faster: dict[Contender, float] | None = None
) -> Contest:
    return _contest(f"n={length}", Work(length, heads=heads, pattern=pattern), SPARSE, faster)


def _plain(pattern: Pattern, length: int, **options: Any) -> Contest:
    work = Work(length, heads=2, pattern=pattern, **options)
    words = [f"{pattern}, n={length}"]
    if "layout" in options:
        words.append(work.layout)
    if work.backward:
        words.append("forward + backward")
    return _contest(", ".join(words), work, (peers.SDPA,), {peers.SDPA: 0.97}, EVERY_FAMILY)


def _windows(
    length: int, faster: dict[Contender, float] | None = None, *, backward: bool = False
) -> Contest:
    work = Work(length, heads=2, pattern=WINDOW, backward=backward)
    others = list(WINDOW_PEERS)
    if backward and length > LONGEST_MASK_BACKWARD:
        others.remove(peers.SDPA_MASK)
    return _contest(f"n={length}", work, others, faster)


def _decoding(
    label: str, k_len: int, faster: dict[Contender, float], cache_dtype: str | None = None
) -> Contest:
    work = Work(1, k_len, heads=8, kv_heads=2, cache_dtype=cache_dtype)
    return _contest(label, work, (peers.SDPA_GROUPED, peers.SDPA_REPEATED), faster)


def _statistics(length: int) -> Contest:
    bounds = {LOG_SUM_EXP: 1.05, ENTROPY: 2.0, RECEIVED: 1.9, TOP_KEYS: 3.5}
    promises = []
    for contender, bound in bounds.items():
        promises.append(Promise("slower", contender.name, REGARD.name, bound))
    return Contest(f"n={length}", Work(length, heads=1), (REGARD, *bounds), tuple(promises))


def _cliffs(length: int, heads: int) -> tuple[Contest, ...]:
    def cliff(label: str, bound: float, **options: Any) -> Contest:
        work = Work(length, heads=heads, **options)
        return _contest(f"{label}, n={length}", work, (peers.SDPA,), {peers.SDPA: bound})

    return (
        cliff("v_dim 32", 2.0, v_dim=32),
        cliff("a learned bias, forward + backward", 2.0, learned_bias=True, backward=True),
        cliff("dropout 0.1", 1.5, dropout=0.1),
        cliff("dropout 0.1, forward + backward", 1.5, dropout=0.1, backward=True),
    )


RUNTIMES = (peers.SDPA, peers.ONNX_MULTI_HEAD, peers.ONNX_ATTENTION, peers.OPENVINO)


def _short(q_len: int, k_len: int, heads: int, head_dim: int, bound: float) -> Contest:
    label = f"{q_len:,} x {k_len}, {heads} heads of {head_dim}"
    work = Work(q_len, k_len, heads=heads, head_dim=head_dim)
    return _contest(label, work, RUNTIMES, dict.fromkeys(RUNTIMES, bound))


def _one_query(kv_heads: int, head_dim: int, k_len: int) -> Contest:
    """One query of 8 heads, whose caches are larger together than that of the processor."""
    work = Work(1, k_len, heads=8, kv_heads=kv_heads, head_dim=head_dim)
    work = replace(work, caches=max(2, 2**27 // work.tensor_bytes))
    label = f"{k_len:,} keys, 8 heads over {kv_heads} of {head_dim}"
    bounds = {peers.ONNX_GROUPED: 1.1, peers.BYTES_SUMMED: 0.8}
    return _contest(label, work, (peers.SDPA_GROUPED, *bounds), bounds)


# Kernels of servers for CPUs.
SERVED = (peers.VLLM, peers.SGLANG)
HALF = "bfloat16"


def _prefill(length: int, dtype: str = "float32") -> Contest:
    work = Work(length, heads=8, pattern=CAUSAL, dtype=dtype)
    label = f"causal, {length:,} tokens, 8 heads of 64, {dtype}"
    return _contest(label, work, (*SERVED, peers.SDPA))


def _causal_window(length: int, dtype: str = "float32") -> Contest:
    work = Work(length, heads=8, pattern=CAUSAL_WINDOW, dtype=dtype)
    label = f"a causal window of 512, {length:,} tokens, 8 heads of 64, {dtype}"
    return _contest(label, work, SERVED)


def _served_query(k_len: int, kv_heads: int, dtype: str = "float32") -> Contest:
    work = Work(1, k_len, heads=8, kv_heads=kv_heads, dtype=dtype)
    work = replace(work, caches=max(2, 2**27 // work.tensor_bytes))
    label = f"one query, {k_len:,} keys, 8 heads over {kv_heads} of 64, {dtype}"
    return _contest(label, work, (*SERVED, peers.SDPA_GROUPED))


def _latents(k_len: int, dtype: str = "float32") -> Contest:
    work = Work(1, k_len, heads=16, kv_heads=1, head_dim=576, v_dim=512, dtype=dtype, latent=True)
    label = f"one query over {k_len:,} latents of 576, 16 heads, {dtype}"
    return _contest(label, work, SERVED)


def _single(work: Work) -> Work:
    return replace(work, dtype="float32")


def _gated_delta(length: int) -> Contest:
    work = Work(length, heads=4, head_dim=128, pattern=CAUSAL, mechanism=GatedDelta(), dtype=HALF)
    ours = replace(REGARD, judged_at=peers.GATED_JUDGED_AT)
    in_float32 = replace(ours, name="regard in float32", works_on=_single)
    label = f"gated delta, {length:,} tokens, 4 heads of 128, bfloat16"
    return Contest(label, work, (ours, in_float32, peers.SGLANG_GATED))


_SERVING = (
    *(_prefill(length) for length in (16, 512, 2048)),
    *(_prefill(length, HALF) for length in (512, 2048)),
    *(_causal_window(4096, dtype) for dtype in ("float32", HALF)),
    *(_served_query(k_len, 2) for k_len in (256, 1024, 4096)),
    _served_query(4096, 8),
    *(_served_query(k_len, 2, HALF) for k_len in (256, 4096)),
    *(_latents(4096, dtype) for dtype in ("float32", HALF)),
    *(_gated_delta(length) for length in (256, 1024, 4096)),
)
_SHORT = (
    _short(64, 64, 8, 64, 1.05),
    _short(128, 128, 8, 64, 1.05),
    _short(256, 256, 8, 64, 1.05),
    _short(197, 197, 12, 64, 1.05),
)
_TEXT = (_short(4096, 77, 8, 40, 1.1), _short(4096, 77, 8, 64, 1.1))
_ONE_QUERY = (
    _one_query(8, 64, 1024),
    _one_query(8, 64, 4096),
    _one_query(8, 64, 16384),
    _one_query(8, 128, 1024),
    _one_query(8, 128, 4096),
    _one_query(8, 128, 16384),
)
_PLAIN = (
    *(_plain(FULL, n) for n in (512, 2048, 8192)),
    *(_plain(CAUSAL, n) for n in (512, 2048, 8192)),
    *(_plain(CAUSAL, 2048, layout=layout) for layout in LAYOUTS if layout != "contiguous"),
    _plain(FULL, 2048, backward=True),
    _plain(CAUSAL, 2048, backward=True),
)

_TINY = Contest(
    "16 queries, 4 heads",
    Work(16, heads=4),
    (REGARD, PLAN_RUN, peers.SDPA),
    (
        Promise("slower by", REGARD.name, peers.SDPA.name, 60, PROMISED_ON),
        Promise("slower by", PLAN_RUN.name, peers.SDPA.name, 25, PROMISED_ON),
    ),
)


def _small(q_len: int, k_len: int, batch: int = 1) -> Contest:
    work = Work(q_len, k_len, heads=8, batch=batch)
    label = f"{batch} x {q_len} queries over {k_len} keys, 8 heads of 64"
    return Contest(label, work, (REGARD, peers.SDPA))


_SMALL = (_small(16, 16), _small(1, 1), _small(1, 4), _small(1, 1, batch=64))


def _padded(batch: int, length: int, bound: float, *, backward: bool = False) -> Contest:
    """A batch with padding: its mask is new in each call, that of the peer is made in advance."""
    work = Work(length, heads=8, batch=batch, pattern=PADDED[length], backward=backward)
    also = ", forward + backward" if backward else ""
    label = f"{batch} x {length}{also}"
    promise = Promise("faster", NEW_MASK.name, peers.SDPA_MASK.name, bound, "Zen 4")
    return Contest(label, work, (REGARD, NEW_MASK, peers.SDPA_MASK), (promise,))


def _spanned(batch: int, length: int, heads: int, head_dim: int) -> Contest:
    """A batch whose lengths are new in each call."""
    work = Work(length, heads=heads, head_dim=head_dim, batch=batch, pattern=PADDED[length])
    contenders = (REGARD, NEW_LENGTHS, peers.SDPA_MASK)
    return Contest(f"lengths, {batch} x {length}, {heads} heads of {head_dim}", work, contenders)


def _holed(batch: int, length: int, heads: int, *, backward: bool = False) -> Contest:
    """A batch whose padding has holes; its mask is new in each call."""
    work = Work(length, heads=heads, batch=batch, pattern=HOLED[length], backward=backward)
    also = ", forward + backward" if backward else ""
    label = f"with holes, {batch} x {length}{also}"
    return Contest(label, work, (REGARD, NEW_MASK, peers.SDPA_MASK))


_PADDED = (
    _padded(1, 16, 0.25),
    _padded(8, 16, 0.5),
    _padded(8, 128, 1.1),
    _padded(8, 128, 1.05, backward=True),
    *unpromised((_padded(1, 16, 1, backward=True), _padded(8, 16, 1, backward=True))),
    _holed(32, 128, 8),
    _holed(32, 128, 8, backward=True),
    _holed(32, 512, 2),
    _holed(32, 512, 2, backward=True),
    _spanned(1, 32, 12, 32),
    _spanned(8, 32, 12, 32),
    _spanned(8, 16, 8, 64),
)
_DECODING = (
    _decoding("16,384 keys", 16384, {peers.SDPA_GROUPED: 2.5, peers.SDPA_REPEATED: 8}),
    _decoding("16,384 keys in bfloat16", 16384, {peers.SDPA_GROUPED: 8}, "bfloat16"),
)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "plain",
            "Full and causal attention in any layout",
            _PLAIN,
            (_plain(FULL, 1024), _plain(CAUSAL, 1024)),
        ),
        Case(
            "cliffs",
            "Where SDPA leaves its fast path",
            _cliffs(2048, 4),
            unpromised(_cliffs(512, 4)),
        ),
        Case(
            "decode",
            "One query against a long cache, 8 heads over 2",
            (_decoding("4,096 keys", 4096, {}), *_DECODING, _decoding("32,768 keys", 32768, {})),
            _DECODING,
        ),
        Case(
            "window",
            "A sliding window of 512, forward",
            (
                *map(_windows, (2048, 4096, 8192)),
                _windows(
                    16384,
                    {
                        peers.FLEX: 2.3,
                        peers.LOCAL_ATTENTION: 4,
                        peers.LONGFORMER: 7,
                        peers.SDPA_MASK: 25,
                    },
                ),
            ),
            (_windows(2048), _windows(4096)),
        ),
        Case(
            "window-backward",
            "A sliding window of 512, forward and backward",
            (
                _windows(4096, {peers.SDPA_MASK: 4}, backward=True),
                _windows(16384, {peers.LOCAL_ATTENTION: 2.2, peers.LONGFORMER: 6}, backward=True),
            ),
            (_windows(2048, backward=True),),
        ),
        Case(
            "big-bird",
            "A window, global tokens and random blocks, forward",
            (
                _sparse(BIG_BIRD, 4096, 2, {peers.SDPA_MASK: 2.8}),
                _sparse(BIG_BIRD, 16384, 2, {peers.SDPA_MASK: 18, peers.FLEX: 1.2}),
            ),
            (_sparse(BIG_BIRD, 4096, 2),),
        ),
        Case(
            "strided",
            "The Sparse Transformer's strided pattern, forward",
            (
                _sparse(STRIDED, 1024, 4),
                _sparse(STRIDED, 2048, 4),
                _sparse(STRIDED, 4096, 4, {peers.SDPA_MASK: 8}),
            ),
            (_sparse(STRIDED, 2048, 2),),
        ),
        Case(
            "statistics",
            "Statistics beside the output",
            (_statistics(8192),),
            unpromised([_statistics(2048)]),
        ),
        Case("overhead", "Overhead of a call on tiny tensors", (_TINY, *_SMALL), (_TINY,)),
        Case(
            "padding",
            "A batch whose padding mask is new in every call",
            _PADDED,
            unpromised(_PADDED[1:3]),
        ),
        Case(
            "short",
            "Full attention over few positions, beside runtimes of exported models",
            _SHORT,
            _SHORT[:1],
        ),
        Case("text", "Image positions that look at the words of a text", _TEXT, _TEXT[:1]),
        Case(
            "one-query",
            "One query, caches in turns, beside onnxruntime and a sum over the same bytes",
            (*_ONE_QUERY, _one_query(2, 64, 4096)),
            unpromised(_ONE_QUERY[:1]),
        ),
        Case(
            "serving",
            "Kernels of vLLM and SGLang for CPUs",
            _SERVING,
            (_SERVING[0], _SERVING[7], _SERVING[-3]),
        ),
        *MECHANISM_CASES,
    )
}


# On a GPU: the sizes and the dtype of models that run there. No bound is promised: regard calls PyTorch's kernels.
_GPU = Work(1, heads=16, dtype="bfloat16", device="cuda")


def _on_gpu(
    n: int, pattern: Pattern, others: tuple[Contender, ...], *, backward: bool = False
) -> Contest:
    work = replace(_GPU.as_long_as(n), pattern=pattern, backward=backward)
    return _contest(f"{pattern}, {_length_of(work)}", work, others)


def _decoding_on_gpu(batch: int, k_len: int) -> Contest:
    work = replace(_GPU, k_len=k_len, kv_heads=4, batch=batch)
    return _contest(f"{batch} x {k_len:,} keys", work, (peers.SDPA_GROUPED, peers.SDPA_REPEATED))


_LINEAR = Work(1, heads=16, pattern=CAUSAL, mechanism=LinearTransformer(), device="cuda")
_TINY_ON_GPU = Work(16, heads=4, device="cuda")


def _case_on_gpu(name: str, title: str, *contests: Contest) -> Case:
    """A case whose quick run has the first contest."""
    return Case(name, title, contests, contests[:1])


CUDA_CASES: dict[str, Case] = {
    case.name: case
    for case in (
        _case_on_gpu(
            "plain",
            "Full and causal attention",
            _on_gpu(2048, FULL, (peers.SDPA,)),
            _on_gpu(16384, FULL, (peers.SDPA,)),
            _on_gpu(2048, CAUSAL, (peers.SDPA,)),
            _on_gpu(16384, CAUSAL, (peers.SDPA,)),
            _on_gpu(8192, CAUSAL, (peers.SDPA,), backward=True),
        ),
        _case_on_gpu(
            "decode",
            "One query against a long cache, 16 heads over 4",
            _decoding_on_gpu(1, 16384),
            _decoding_on_gpu(8, 16384),
            _decoding_on_gpu(1, 65536),
        ),
        _case_on_gpu(
            "window",
            "A sliding window of 512",
            _on_gpu(4096, WINDOW, SPARSE),
            _on_gpu(16384, WINDOW, SPARSE),
            _on_gpu(16384, WINDOW, SPARSE, backward=True),
        ),
        _case_on_gpu(
            "big-bird",
            "A window, global tokens and random blocks",
            _on_gpu(16384, BIG_BIRD, SPARSE),
        ),
        _case_on_gpu(
            "strided",
            "The Sparse Transformer's strided pattern",
            _on_gpu(16384, STRIDED, SPARSE),
        ),
        _case_on_gpu(
            "statistics",
            "Statistics beside the output",
            Contest(
                "n=8192",
                _GPU.as_long_as(8192),
                (REGARD, LOG_SUM_EXP, ENTROPY, RECEIVED, TOP_KEYS),
            ),
        ),
        _case_on_gpu(
            "linear",
            "Causal linear attention, elu + 1",
            _contest("n=4096", _LINEAR.as_long_as(4096), (peers.SDPA_SOFTMAX,)),
            _contest("n=16384", _LINEAR.as_long_as(16384), (peers.SDPA_SOFTMAX,)),
        ),
        _case_on_gpu(
            "overhead",
            "Overhead of a call on tiny tensors",
            _contest("16 queries, 4 heads", _TINY_ON_GPU, (PLAN_RUN, peers.SDPA)),
        ),
    )
}


def cases_on(device: str) -> dict[str, Case]:
    """The cases of a device, by name: small calls in float32 on "cpu", long ones in bfloat16 on "cuda"."""
    return CUDA_CASES if device == "cuda" else CASES | WHOLE_CASES


def contests_of(case: Case, *, quick: bool) -> tuple[Any, ...]:
    """The contests of a case, or those of a quick run."""
    return case.quick if quick else case.contests
