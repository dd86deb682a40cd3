"""The cases of `regard bench`: regard as a contender, the peers of each case, and the bounds that are promised."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from regard.core.plan import Plan
from regard.core.result import Want, top_keys
from regard.core.tensors import Stored
from regard.functional import attention, attention_detail, plan_attention
from regard.mechanisms import Additive, LinearTransformer, Softmax
from regard.patterns import Pattern
from regard.testing.cases import LAYOUTS
from regard_lab.bench import peers
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


def with_statistic(want: Want) -> Contender:
    """regard with a statistic besides the output."""
    return Contender(
        f"regard + {want}",
        _with(want),
        judged_at=WHOLE if want == "received" else None,
        plan=lambda work, tensors: plan_of(work, tensors, (want,)),
    )


def _linear(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    work = Work(length, heads=4, pattern=CAUSAL, mechanism=LinearTransformer(), backward=backward)
    return _against(
        work, (peers.PERFORMER_PYTORCH, peers.FAST_TRANSFORMERS, peers.SDPA_SOFTMAX), faster
    )


def _additive(length: int, faster: dict[Contender, float], *, backward: bool = False) -> Contest:
    mechanism = Softmax(Additive(query_dim=128, key_dim=128, hidden=128))
    work = Work(length, heads=1, head_dim=128, mechanism=mechanism, backward=backward)
    return _against(work, (peers.BROADCAST,), faster)


def _against(work: Work, others: tuple[Contender, ...], faster: dict[Contender, float]) -> Contest:
    return _contest(
        f"n={work.q_len}" + (", forward + backward" if work.backward else ""), work, others, faster
    )


def _contest(
    label: str,
    work: Work,
    others: Iterable[Contender],
    faster: dict[Contender, float] | None = None,
) -> Contest:
    """regard against other libraries; `faster` maps a contender to the promised speed ratio."""
    promises = tuple(
        Promise("faster", REGARD.name, peer.name, bound) for peer, bound in (faster or {}).items()
    )
    return Contest(label, work, (REGARD, *others), promises)


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


ENTROPY, RECEIVED, SUM, TOP = (
    with_statistic(want) for want in ("entropy", "received", "log_sum_exp", top_keys(8))
)
SPARSE = peers.SDPA_MASK, peers.FLEX
WINDOW_PEERS = (*SPARSE, peers.LOCAL_ATTENTION, peers.LONGFORMER)


def _sparse(
    pattern: Pattern, length: int, heads: int, faster: dict[Contender, float] | None = None
) -> Contest:
    return _contest(f"n={length}", Work(length, heads=heads, pattern=pattern), SPARSE, faster)


def _plain(pattern: Pattern, length: int, **options: Any) -> Contest:
    work = Work(length, heads=2, pattern=pattern, **options)
    words = [
        f"{pattern}, n={length}",
        *(str(value) for key, value in options.items() if key == "layout"),
    ]
    words += ["forward + backward"] if work.backward else []
    return _contest(", ".join(words), work, (peers.SDPA,), {peers.SDPA: 0.97})


def _windows(
    length: int, faster: dict[Contender, float] | None = None, *, backward: bool = False
) -> Contest:
    work = Work(length, heads=2, pattern=WINDOW, backward=backward)
    others = tuple(
        peer
        for peer in WINDOW_PEERS
        if not (backward and peer is peers.SDPA_MASK and length > 4096)
    )
    return _contest(f"n={length}", work, others, faster)


def _decoding(
    label: str, k_len: int, faster: dict[Contender, float], cache_dtype: str | None = None
) -> Contest:
    work = Work(1, k_len, heads=8, kv_heads=2, cache_dtype=cache_dtype)
    return _contest(label, work, (peers.SDPA_GROUPED, peers.SDPA_REPEATED), faster)


def _statistics(length: int) -> Contest:
    bounds = {SUM: 1.05, ENTROPY: 2.0, RECEIVED: 1.9, TOP: 3.5}
    promises = (Promise("slower", one.name, REGARD.name, bound) for one, bound in bounds.items())
    return Contest(f"n={length}", Work(length, heads=1), (REGARD, *bounds), tuple(promises))


def _cliffs(length: int, heads: int) -> tuple[Contest, ...]:
    slow: tuple[tuple[str, dict[str, Any], float], ...] = (
        ("v_dim 32", {"v_dim": 32}, 2.0),
        ("a learned bias, forward + backward", {"learned_bias": True, "backward": True}, 2.0),
        ("dropout 0.1", {"dropout": 0.1}, 1.5),
        ("dropout 0.1, forward + backward", {"dropout": 0.1, "backward": True}, 1.5),
    )
    return tuple(
        _contest(
            f"{label}, n={length}",
            Work(length, heads=heads, **options),
            (peers.SDPA,),
            {peers.SDPA: bound},
        )
        for label, options, bound in slow
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


_SHORT = tuple(
    _short(n, n, heads, 64, 1.05) for n, heads in ((64, 8), (128, 8), (256, 8), (197, 12))
)
_TEXT = tuple(_short(4096, 77, 8, head_dim, 1.1) for head_dim in (40, 64))
_ONE_QUERY = tuple(
    _one_query(8, head_dim, n) for head_dim in (64, 128) for n in (1024, 4096, 16384)
)

_TINY = Contest(
    "16 queries, 4 heads",
    Work(16, heads=4),
    (REGARD, PLAN_RUN, peers.SDPA),
    (
        Promise("slower by", REGARD.name, peers.SDPA.name, 60),
        Promise("slower by", PLAN_RUN.name, peers.SDPA.name, 25),
    ),
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
            (
                *(_plain(pattern, n) for pattern in (FULL, CAUSAL) for n in (512, 2048, 8192)),
                *(
                    _plain(CAUSAL, 2048, layout=layout)
                    for layout in LAYOUTS
                    if layout != "contiguous"
                ),
                *(_plain(pattern, 2048, backward=True) for pattern in (FULL, CAUSAL)),
            ),
            tuple(_plain(pattern, 1024) for pattern in (FULL, CAUSAL)),
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
                *(_sparse(STRIDED, n, 4) for n in (1024, 2048)),
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
        Case("overhead", "Overhead of a call on tiny tensors", (_TINY,), (_TINY,)),
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
        *MECHANISM_CASES,
    )
}


# On a GPU: the sizes and the dtype of models that run there. No bound is promised: regard calls PyTorch's kernels.
_GPU = Work(1, heads=16, dtype="bfloat16", device="cuda")


def _on_gpu(
    n: int, pattern: Pattern, others: tuple[Contender, ...], *, backward: bool = False
) -> Contest:
    label = f"{pattern}, n={n}" + (", forward + backward" if backward else "")
    return _contest(label, replace(_GPU.as_long_as(n), pattern=pattern, backward=backward), others)


def _decoding_on_gpu(batch: int, k_len: int) -> Contest:
    work = replace(_GPU, k_len=k_len, kv_heads=4, batch=batch)
    return _contest(f"{batch} x {k_len:,} keys", work, (peers.SDPA_GROUPED, peers.SDPA_REPEATED))


_LINEAR = Work(1, heads=16, pattern=CAUSAL, mechanism=LinearTransformer(), device="cuda")
CUDA_CASES: dict[str, Case] = {
    name: Case(name, title, contests, contests[:1])
    for name, title, contests in (
        (
            "plain",
            "Full and causal attention",
            (
                *(
                    _on_gpu(n, pattern, (peers.SDPA,))
                    for pattern in (FULL, CAUSAL)
                    for n in (2048, 16384)
                ),
                _on_gpu(8192, CAUSAL, (peers.SDPA,), backward=True),
            ),
        ),
        (
            "decode",
            "One query against a long cache, 16 heads over 4",
            (_decoding_on_gpu(1, 16384), _decoding_on_gpu(8, 16384), _decoding_on_gpu(1, 65536)),
        ),
        (
            "window",
            "A sliding window of 512",
            (
                *(_on_gpu(n, WINDOW, SPARSE) for n in (4096, 16384)),
                _on_gpu(16384, WINDOW, SPARSE, backward=True),
            ),
        ),
        (
            "big-bird",
            "A window, global tokens and random blocks",
            (_on_gpu(16384, BIG_BIRD, SPARSE),),
        ),
        ("strided", "The Sparse Transformer's strided pattern", (_on_gpu(16384, STRIDED, SPARSE),)),
        (
            "statistics",
            "Statistics beside the output",
            (Contest("n=8192", _GPU.as_long_as(8192), (REGARD, SUM, ENTROPY, RECEIVED, TOP)),),
        ),
        (
            "linear",
            "Causal linear attention, elu + 1",
            tuple(
                _contest(f"n={n}", _LINEAR.as_long_as(n), (peers.SDPA_SOFTMAX,))
                for n in (4096, 16384)
            ),
        ),
        (
            "overhead",
            "Overhead of a call on tiny tensors",
            (
                _contest(
                    "16 queries, 4 heads", Work(16, heads=4, device="cuda"), (PLAN_RUN, peers.SDPA)
                ),
            ),
        ),
    )
}


def cases_on(device: str) -> dict[str, Case]:
    """The cases of a device, by name: small calls in float32 on "cpu", long ones in bfloat16 on "cuda"."""
    return CUDA_CASES if device == "cuda" else CASES


def contests_of(case: Case, *, quick: bool) -> tuple[Contest, ...]:
    """The contests of a case, or those of a quick run."""
    return case.quick if quick else case.contests
