"""The cases of `regard bench`: regard as a contender, the peers of each case, and the bounds that are promised."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from regard.arguments import suggest
from regard.core.plan import Plan
from regard.core.result import Want, top_keys
from regard.core.tensors import Stored
from regard.errors import ArgumentError
from regard.functional import attention, attention_detail, plan_attention
from regard.mechanisms import Additive, LinearTransformer, Linformer, Mechanism, Performer, RandomFeature, Softmax
from regard.patterns import Pattern
from regard.testing import LAYOUTS
from regard_lab.bench.peers import (
    BROADCAST,
    BYTES_SUMMED,
    FAST_TRANSFORMERS,
    FLEX,
    LOCAL_ATTENTION,
    LONGFORMER,
    ONNX_ATTENTION,
    ONNX_GROUPED,
    ONNX_MULTI_HEAD,
    OPENVINO,
    PERFORMER_PYTORCH,
    SDPA,
    SDPA_GROUPED,
    SDPA_MASK,
    SDPA_REPEATED,
    SDPA_SOFTMAX,
    XFORMERS,
)
from regard_lab.bench.work import (
    BIG_BIRD,
    CAUSAL,
    DROPOUT_SEED,
    FULL,
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
    return keywords | ({} if tensors.bias is None else {"bias": tensors.bias})


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
    given = options(work, tensors)
    return lambda: attention(tensors.q, k, v, **given)


def _by_plan(work: Work, tensors: Tensors) -> Attend:
    k, v = keys_and_values(work, tensors)
    plan = plan_of(work, tensors)
    if tensors.bias is None and not work.dropout:
        return lambda: plan.run(tensors.q, k, v)
    return lambda: plan.run(tensors.q, k, v, bias=tensors.bias, dropout_seed=DROPOUT_SEED)


def _with(want: Want) -> Callable[[Work, Tensors], Attend]:
    """Attention with one statistic; `top_keys` is checked by its weights, since equal weights may be in any order."""
    name = want if isinstance(want, str) else "top_weights"

    def prepare(work: Work, tensors: Tensors) -> Attend:
        given = options(work, tensors)

        def attend() -> dict[str, torch.Tensor]:
            detail = attention_detail(tensors.q, tensors.k, tensors.v, want=want, **given)
            statistic = detail.top_keys.weights if name == "top_weights" else getattr(detail, name)
            return {"output": detail.output, name: statistic}

        return attend

    return prepare


REGARD = Contender("regard", _by_attention, plan=plan_of)
PLAN_RUN = Contender("regard, plan.run", _by_plan, plan=plan_of)
TWICE_AS_LONG = replace(REGARD, name="regard, twice as long", works_on=lambda work: work.as_long_as(2 * work.q_len))


def at_length(length: int) -> Contender:
    """regard at another length, checked at a shorter one."""
    return replace(
        REGARD, name=f"regard, n={length:,}", works_on=lambda work: work.as_long_as(length), judged_at=4 * WHOLE
    )


def with_statistic(want: Want) -> Contender:
    """regard with a statistic besides the output."""
    return Contender(
        f"regard + {want}", _with(want), judged_at=WHOLE if want == "received" else None,
        plan=lambda work, tensors: plan_of(work, tensors, (want,)),
    )  # fmt: skip


ADDITIVE_MIB = 64  # peak memory beside the inputs


def _linear(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    work = Work(length, heads=4, pattern=CAUSAL, mechanism=LinearTransformer(), backward=backward)
    return _against(work, (PERFORMER_PYTORCH, FAST_TRANSFORMERS, SDPA_SOFTMAX), faster)


def _additive(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    mechanism = Softmax(Additive(query_dim=128, key_dim=128, hidden=128))
    contest = _against(
        Work(length, heads=1, head_dim=128, mechanism=mechanism, backward=backward), (BROADCAST,), faster
    )
    promises = (*contest.promises, Promise("holds", REGARD.name, "", ADDITIVE_MIB))
    return replace(contest, promises=promises, memory=(REGARD.name, BROADCAST.name))


def _against(work: Work, peers: tuple[Contender, ...], faster: dict[Contender, float]) -> Contest:
    return _contest(f"n={work.q_len}" + (", forward + backward" if work.backward else ""), work, peers, faster)


def _contest(
    label: str, work: Work, peers: Iterable[Contender], faster: dict[Contender, float] | None = None
) -> Contest:
    """regard against other libraries; `faster` maps a contender to the promised speed ratio."""
    promises = tuple(Promise("faster", REGARD.name, peer.name, bound) for peer, bound in (faster or {}).items())
    return Contest(label, work, (REGARD, *peers), promises)


def _growing(mechanism: Mechanism, pattern: Pattern, lengths: tuple[int, ...]) -> Contest:
    """Memory at doubling lengths; each may need at most 2.2 times the memory of the one before."""
    longer = tuple(at_length(n) for n in lengths[1:])
    names = (REGARD.name, *(one.name for one in longer))
    promises = tuple(Promise("more memory", larger, smaller, 2.2) for smaller, larger in pairwise(names))
    work = Work(lengths[0], heads=2, pattern=pattern, mechanism=mechanism)
    first = replace(REGARD, judged_at=longer[0].judged_at)
    return Contest(f"{mechanism}, {pattern}", work, (first, *longer), promises, timed=False, memory=names)


def _memory(lengths: tuple[int, ...]) -> tuple[Contest, ...]:
    subjects: Iterable[tuple[Mechanism, Pattern]] = (
        (LinearTransformer(), CAUSAL), (Performer(features=128), CAUSAL), (RandomFeature(features=64), CAUSAL),
        (LinearTransformer(), FULL), (Linformer(lengths[-1], rank=64), FULL),
    )  # fmt: skip
    return tuple(_growing(mechanism, pattern, lengths) for mechanism, pattern in subjects)


MECHANISM_CASES = (
    Case(
        "linear", "Causal linear attention, elu + 1",
        (
            _linear(4096, {PERFORMER_PYTORCH: 20, FAST_TRANSFORMERS: 1, SDPA_SOFTMAX: 3.5}),
            _linear(4096, {PERFORMER_PYTORCH: 22, FAST_TRANSFORMERS: 1}, backward=True),
        ),
        (_linear(1024, {}), _linear(1024, {}, backward=True)),
    ),
    Case(
        "additive", "Bahdanau's attention, 128 hidden numbers",
        (_additive(2048, {BROADCAST: 1}), _additive(2048, {BROADCAST: 1}, backward=True)),
        unpromised([_additive(512, {})]),
    ),
    Case(
        "linear-memory", "Memory of the linear mechanisms at doubling lengths",
        _memory(tuple(2**power for power in range(12, 17))),
        unpromised(_memory((4096, 8192))[:1]),
    ),
)  # fmt: skip


ENTROPY, RECEIVED, SUM, TOP = (with_statistic(want) for want in ("entropy", "received", "log_sum_exp", top_keys(8)))
WINDOW_PEERS = (SDPA_MASK, FLEX, LOCAL_ATTENTION, LONGFORMER)


def _square(pattern: Pattern, length: int, heads: int, **options: Any) -> Work:
    return Work(length, heads=heads, pattern=pattern, **options)


def _plain(pattern: Pattern, length: int, heads: int, **options: bool | str) -> Contest:
    work = _square(pattern, length, heads, **options)
    words = [f"{pattern}, n={length}", *(str(value) for key, value in options.items() if key == "layout")]
    words += ["forward + backward"] if work.backward else []
    return _contest(", ".join(words), work, (SDPA, XFORMERS), {SDPA: 0.97})


def _windows(
    length: int, heads: int, faster: dict[Contender, float] | None = None, *, backward: bool = False
) -> Contest:
    work = _square(WINDOW, length, heads, backward=backward)
    peers = tuple(peer for peer in WINDOW_PEERS if not (backward and peer is SDPA_MASK and length > 4096))
    return _contest(f"n={length}", work, peers, faster)


def _decoding(label: str, k_len: int, faster: dict[Contender, float], cache_dtype: str | None = None) -> Contest:
    work = Work(1, k_len, heads=8, kv_heads=2, cache_dtype=cache_dtype)
    return _contest(label, work, (SDPA_GROUPED, SDPA_REPEATED), faster)


def _statistics(length: int) -> Contest:
    bounds = {SUM: 1.05, ENTROPY: 2.0, RECEIVED: 1.9, TOP: 3.5}
    promises = (Promise("slower", one.name, REGARD.name, bound) for one, bound in bounds.items())
    return Contest(f"n={length}", _square(FULL, length, 1), (REGARD, *bounds), tuple(promises))


def _long_window(length: int, peers: tuple[Contender, ...] = ()) -> Contest:
    promises = (
        Promise("extra memory", REGARD.name, "", 1.5),
        Promise("more memory", TWICE_AS_LONG.name, REGARD.name, 2.2),
    )
    contenders = (REGARD, TWICE_AS_LONG, *peers)
    names = tuple(one.name for one in contenders)
    return Contest(f"n={length}", _square(WINDOW, length, 1), contenders, promises, timed=False, memory=names)


def _cliffs(length: int, heads: int) -> tuple[Contest, ...]:
    slow = (
        ("v_dim 32", {"v_dim": 32}, 2.0),
        ("a learned bias, forward + backward", {"learned_bias": True, "backward": True}, 2.0),
        ("dropout 0.1", {"dropout": 0.1}, 1.5),
        ("dropout 0.1, forward + backward", {"dropout": 0.1, "backward": True}, 1.5),
    )
    return tuple(
        _contest(f"{label}, n={length}", _square(FULL, length, heads, **options), (SDPA,), {SDPA: bound})
        for label, options, bound in slow
    )


RUNTIMES = (SDPA, ONNX_MULTI_HEAD, ONNX_ATTENTION, OPENVINO)


def _short(q_len: int, k_len: int, heads: int, head_dim: int, bound: float) -> Contest:
    label = f"{q_len:,} x {k_len}, {heads} heads of {head_dim}"
    work = Work(q_len, k_len, heads=heads, head_dim=head_dim)
    return _contest(label, work, RUNTIMES, dict.fromkeys(RUNTIMES, bound))


def _one_query(kv_heads: int, head_dim: int, k_len: int) -> Contest:
    """One query of 8 heads, whose caches are larger together than that of the processor."""
    work = Work(1, k_len, heads=8, kv_heads=kv_heads, head_dim=head_dim)
    work = replace(work, caches=max(2, 2**27 // work.tensor_bytes))
    label = f"{k_len:,} keys, 8 heads over {kv_heads} of {head_dim}"
    bounds = {ONNX_GROUPED: 1.1, BYTES_SUMMED: 0.8}
    return _contest(label, work, (SDPA_GROUPED, *bounds), bounds)


_SHORT = tuple(_short(n, n, heads, 64, 1.05) for n, heads in ((64, 8), (128, 8), (256, 8), (197, 12)))
_TEXT = tuple(_short(4096, 77, 8, head_dim, 1.1) for head_dim in (40, 64))
_ONE_QUERY = tuple(_one_query(8, head_dim, n) for head_dim in (64, 128) for n in (1024, 4096, 16384))

_TINY = Contest(
    "16 queries, 4 heads", Work(16, heads=4), (REGARD, PLAN_RUN, SDPA),
    (Promise("slower by", REGARD.name, SDPA.name, 60), Promise("slower by", PLAN_RUN.name, SDPA.name, 25)),
)  # fmt: skip
_DECODING = (
    _decoding("16,384 keys", 16384, {SDPA_GROUPED: 2.5, SDPA_REPEATED: 8}),
    _decoding("16,384 keys in bfloat16", 16384, {SDPA_GROUPED: 8}, "bfloat16"),
)

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        Case(
            "plain", "Full and causal attention in any layout",
            (
                *(_plain(pattern, n, 2) for pattern in (FULL, CAUSAL) for n in (512, 2048, 8192)),
                *(_plain(CAUSAL, 2048, 2, layout=layout) for layout in LAYOUTS if layout != "contiguous"),
                *(_plain(pattern, 2048, 2, backward=True) for pattern in (FULL, CAUSAL)),
            ),
            tuple(_plain(pattern, 1024, 2) for pattern in (FULL, CAUSAL)),
        ),
        Case("cliffs", "Where SDPA leaves its fast path", _cliffs(2048, 4), unpromised(_cliffs(512, 4))),
        Case(
            "decode", "One query against a long cache, 8 heads over 2",
            (_decoding("4,096 keys", 4096, {}), *_DECODING, _decoding("32,768 keys", 32768, {})),
            _DECODING,
        ),
        Case(
            "window", "A sliding window of 512, forward",
            (
                *(_windows(n, 2) for n in (2048, 4096, 8192)),
                _windows(16384, 2, {FLEX: 2.3, LOCAL_ATTENTION: 4, LONGFORMER: 7, SDPA_MASK: 25}),
            ),
            (_windows(2048, 2), _windows(4096, 2)),
        ),
        Case(
            "window-backward", "A sliding window of 512, forward and backward",
            (
                _windows(4096, 2, {SDPA_MASK: 4}, backward=True),
                _windows(16384, 2, {LOCAL_ATTENTION: 2.2, LONGFORMER: 6}, backward=True),
            ),
            (_windows(2048, 2, backward=True),),
        ),
        Case(
            "big-bird", "A window, global tokens and random blocks, forward",
            (
                _contest("n=4096", _square(BIG_BIRD, 4096, 2), (SDPA_MASK, FLEX), {SDPA_MASK: 2.8}),
                _contest("n=16384", _square(BIG_BIRD, 16384, 2), (SDPA_MASK, FLEX), {SDPA_MASK: 18, FLEX: 1.2}),
            ),
            (_contest("n=4096", _square(BIG_BIRD, 4096, 2), (SDPA_MASK, FLEX)),),
        ),
        Case(
            "strided", "The Sparse Transformer's strided pattern, forward",
            (
                *(_contest(f"n={n}", _square(STRIDED, n, 4), (SDPA_MASK, FLEX)) for n in (1024, 2048)),
                _contest("n=4096", _square(STRIDED, 4096, 4), (SDPA_MASK, FLEX), {SDPA_MASK: 8}),
            ),
            (_contest("n=2048", _square(STRIDED, 2048, 2), (SDPA_MASK, FLEX)),),
        ),
        Case("statistics", "Statistics beside the output", (_statistics(8192),), unpromised([_statistics(2048)])),
        Case(
            "memory", "Memory of a window beside q, k and v",
            (_long_window(65536, (LOCAL_ATTENTION,)),),
            unpromised([_long_window(16384)]),
        ),
        Case("overhead", "Overhead of a call on tiny tensors", (_TINY,), (_TINY,)),
        Case("short", "Full attention over few positions, beside runtimes of exported models", _SHORT, _SHORT[:1]),
        Case("text", "Image positions that look at the words of a text", _TEXT, _TEXT[:1]),
        Case(
            "one-query", "One query, caches in turns, beside onnxruntime and a sum over the same bytes",
            (*_ONE_QUERY, _one_query(2, 64, 4096)), unpromised(_ONE_QUERY[:1]),
        ),
        *MECHANISM_CASES,
    )
}  # fmt: skip


# On a GPU: the sizes and the dtype of models that run there. No bound is promised: regard calls PyTorch's kernels.
_GPU = Work(1, heads=16, dtype="bfloat16", device="cuda")


def _on_gpu(n: int, pattern: Pattern, peers: tuple[Contender, ...], *, backward: bool = False) -> Contest:
    label = f"{pattern}, n={n}" + (", forward + backward" if backward else "")
    return _contest(label, replace(_GPU.as_long_as(n), pattern=pattern, backward=backward), peers)


def _decoding_on_gpu(batch: int, k_len: int) -> Contest:
    work = replace(_GPU, k_len=k_len, kv_heads=4, batch=batch)
    return _contest(f"{batch} x {k_len:,} keys", work, (SDPA_GROUPED, SDPA_REPEATED))


_SPARSE = (SDPA_MASK, FLEX)
CUDA_CASES: dict[str, Case] = {
    case.name: replace(case, quick=case.contests[:1])
    for case in (
        Case(
            "plain", "Full and causal attention",
            (
                *(_on_gpu(n, pattern, (SDPA, XFORMERS)) for pattern in (FULL, CAUSAL) for n in (2048, 16384)),
                _on_gpu(8192, CAUSAL, (SDPA,), backward=True),
            ), (),
        ),
        Case("decode", "One query against a long cache, 16 heads over 4",
             (_decoding_on_gpu(1, 16384), _decoding_on_gpu(8, 16384), _decoding_on_gpu(1, 65536)), ()),
        Case(
            "window", "A sliding window of 512",
            (
                *(_on_gpu(n, WINDOW, _SPARSE) for n in (4096, 16384)),
                _on_gpu(16384, WINDOW, _SPARSE, backward=True),
            ), (),
        ),
        Case("big-bird", "A window, global tokens and random blocks", (_on_gpu(16384, BIG_BIRD, _SPARSE),), ()),
        Case("strided", "The Sparse Transformer's strided pattern", (_on_gpu(16384, STRIDED, _SPARSE),), ()),
        Case(
            "statistics", "Statistics beside the output",
            (Contest("n=8192", _GPU.as_long_as(8192), (REGARD, SUM, ENTROPY, RECEIVED, TOP)),), (),
        ),
        Case(
            "linear", "Causal linear attention, elu + 1",
            tuple(
                _contest(
                    f"n={n}", Work(n, heads=16, pattern=CAUSAL, mechanism=LinearTransformer(), device="cuda"),
                    (SDPA_SOFTMAX,),
                )
                for n in (4096, 16384)
            ), (),
        ),
        Case(
            "overhead", "Overhead of a call on tiny tensors",
            (_contest("16 queries, 4 heads", Work(16, heads=4, device="cuda"), (PLAN_RUN, SDPA)),), (),
        ),
    )
}  # fmt: skip


def cases_on(device: str) -> dict[str, Case]:
    """The cases of a device, by name: small calls in float32 on "cpu", long ones in bfloat16 on "cuda"."""
    return CUDA_CASES if device == "cuda" else CASES


def contests_of(case: Case, *, quick: bool) -> tuple[Contest, ...]:
    """The contests of a case, or those of a quick run."""
    return case.quick if quick else case.contests


def find_contest(case: str, label: str, *, quick: bool, device: str) -> Contest:
    """Find a contest by the name of its case and its label.

    Raises:
        ArgumentError: there is no such case or contest.
    """
    cases = cases_on(device)
    if case not in cases:
        raise ArgumentError(f"no case is called {case!r}; {suggest(case, cases)}")
    for contest in contests_of(cases[case], quick=quick):
        if contest.label == label:
            return contest
    raise ArgumentError(f"case {case!r} has no contest {label!r}")
