"""A call of softmax attention as data, drawn from one whole number."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from .meanings import FULL, LEAVES, Node, Places, drawn

DTYPES = ("float64", "float32", "bfloat16", "float16")
LAYOUTS = ("contiguous", "transposed", "expanded", "shared heads", "sliced", "strided", "offset")
PLAIN_LENGTHS = (1, 1, 2, 3, 5, 5, 7, 7, 8, 11, 11, 13, 13, 16, 17, 19, 23, 29, 37)
LONG_LENGTHS = (61, 64, 67, 97, 128, 131, 257, 300)
DIMS = (1, 2, 3, 5, 8, 16, 19)
EVERYTHING = ("q", "k", "v", "bias")
TENSOR_SINKS = ("heads", "rows", "one")
STORED = ("bfloat16", "float16", "int8")
CaseT = TypeVar("CaseT")


@dataclass(frozen=True)
class Added:
    """A bias: "tensor" of these axes (1 or 0: whole or broadcast), "alibi", "slopes" or "t5"."""

    kind: str
    axes: tuple[int, ...] = ()
    dtype: str = "same"
    hides: float = 0.0  # share of entries that are -inf
    layout: str = "contiguous"
    buckets: int = 8
    distance: int = 13
    sides: bool = True


class Placed:
    """A case with sizes and the position of its first query."""

    @property
    def places(self: Any) -> Places:
        return Places(self.batch, self.heads, self.q_len, self.k_len, start_of(self))


@dataclass(frozen=True)
class SoftmaxCase(Placed):
    """Everything that a call is made of; `seed` decides its numbers."""

    seed: int
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    q_len: int = 5
    k_len: int = 5
    head_dim: int = 4
    v_dim: int = 4
    dtype: str = "float64"
    pattern: Node = FULL
    spelled: bool = False  # the pattern is passed as a text
    layouts: tuple[str, str, str] = ("contiguous",) * 3
    gain: float = 1.0
    scale: float | None = None
    softcap: float | None = None
    bias: Added | None = None
    dropout: float = 0.0
    dropout_seed: int = 0
    q_start: int | tuple[int, ...] | None = None
    # Of q, k, v, bias and sink those that need a gradient; without any the call is computed under no_grad.
    learners: tuple[str, ...] = ()
    want: tuple[Any, ...] = ()  # names of statistics, ("top_keys", n), ("weights_of", rows, heads)
    pulled: tuple[str, ...] = ()  # the statistics that a gradient comes in by, besides the output
    grad_layout: str = "contiguous"
    hidden: str = ""  # what stands in keys and values that no query may see: "", "nan" or "inf"
    blocks: str = "shipped"  # or "small"
    second: bool = False  # second derivatives too
    # The logits of sinks: "number", "heads" (heads,), "rows" (batch, heads) or "one" (batch, 1).
    sink: str = ""
    stored: str = (
        ""  # the dtype in which a cache keeps keys and values, which have no gradient then
    )

    def __str__(self) -> str:
        return described(self, SoftmaxCase(0))


def start_of(case: Any) -> tuple[int, ...]:
    """The position of the first query, of all batch rows or of each."""
    if isinstance(case.q_start, tuple):
        return tuple(case.q_start[b % len(case.q_start)] for b in range(case.batch))
    return (case.k_len - case.q_len if case.q_start is None else case.q_start,)


def described(case: Any, plain: Any) -> str:
    """The case as it is written, without what equals a plain one."""
    values = []
    for field in fields(case):
        value = getattr(case, field.name)
        if field.name == "seed" or value != getattr(plain, field.name):
            values.append(f"{field.name}={value!s}")
    return f"{type(case).__name__}({', '.join(values)})"


def draw_case(seed: int) -> SoftmaxCase:
    """The call that this number stands for."""
    r = random.Random(seed)
    q_len, k_len = _lengths(r)
    kv_heads = r.choice((1, 1, 2, 3))
    group = r.choice((1, 1, 2, 3))
    batch = r.choice((1, 1, 2, 2, 3))
    if q_len * k_len > 20_000:
        batch = 1
        kv_heads = 1
        group = r.choice((1, 2))
    learning = r.random() < 0.6
    plain = r.random() < 0.4  # what fused operations compute too
    has_bias = r.random() < (0.25 if plain else 0.45)
    bias = _bias(r, plain) if has_bias else None
    learners = tuple(name for name in EVERYTHING if r.random() < 0.75) if learning else ()
    if bias is None or bias.kind in ("alibi", "slopes"):
        learners = tuple(name for name in learners if name != "bias")
    has_want = r.random() < 0.35
    want = _want(r, q_len, group * kv_heads) if has_want else ()
    case = SoftmaxCase(
        seed,
        batch,
        kv_heads * group,
        kv_heads,
        q_len,
        k_len,
        head_dim=r.choice(DIMS),
        v_dim=r.choice(DIMS),
        dtype=r.choice(DTYPES[:2] + DTYPES) if learning else r.choice(DTYPES),
        pattern=drawn(r, max(q_len, k_len), list(LEAVES)),
        spelled=r.random() < 0.15,
        layouts=(_layout(r), _layout(r), _layout(r)),
        gain=r.choice((0.0, 0.3, 1.0, 1.0, 1.0, 4.0)),
        scale=r.choice((None, None, 0, 0.7, -0.6, 1.9, -1e-3)),
        softcap=None if plain else r.choice((None, None, 0.3, 2.0, 30.0)),
        bias=bias,
        dropout=0.0 if plain else _dropout(r),
        dropout_seed=r.choice((0, 1, -1, r.randint(-(2**63), 2**63 - 1))),
        q_start=_q_start(r, max(q_len, k_len), by_row=not plain),
        learners=learners,
        want=want,
        pulled=tuple(name_of(statistic) for statistic in want if r.random() < 0.6),
        grad_layout=r.choice(("contiguous", "contiguous", "transposed", "one number")),
        hidden=r.choice(("", "nan", "inf")),
        blocks=_blocks(r, q_len * k_len),
        second=r.random() < 0.4 and q_len * k_len < 2000,
        sink=r.choice(("", "", "", "number", "heads", "rows", "one")),
    )
    # Drawn last, so that a seed stands for the call that it stood for before sinks learned and caches were read.
    learns = learning and case.sink in TENSOR_SINKS and r.random() < 0.75
    stored = not learning and r.random() < 0.4
    if learns:
        case = replace(case, learners=(*learners, "sink"))
    if stored and not case.learners:
        case = replace(case, stored=r.choice(STORED))
    if case.want and r.random() < 0.5:
        case = replace(case, want=(*case.want, "sink"))
    return case


def name_of(statistic: Any) -> str:
    return statistic if isinstance(statistic, str) else statistic[0]


def _layout(r: random.Random) -> str:
    return r.choice(LAYOUTS) if r.random() < 0.6 else "contiguous"


def _dropout(r: random.Random) -> float:
    return r.choice((0.1, 0.5, 0.9, 1.0)) if r.random() < 0.3 else 0.0


def _blocks(r: random.Random, pairs: int) -> str:
    return r.choice(("shipped", "shipped", "small", "small")) if pairs < 400 else "shipped"


def _lengths(r: random.Random) -> tuple[int, int]:
    turn = r.random()
    if turn < 0.03:
        return r.choice(((0, 5), (5, 0), (0, 0)))
    if turn < 0.05:
        return r.choice(LONG_LENGTHS), r.choice(LONG_LENGTHS)
    if turn < 0.15:
        return r.choice((1, 2, 3)), r.choice(PLAIN_LENGTHS + LONG_LENGTHS)
    q_len = r.choice(PLAIN_LENGTHS)
    return (q_len, q_len) if turn < 0.45 else (q_len, r.choice(PLAIN_LENGTHS))


def _q_start(r: random.Random, n: int, by_row: bool) -> int | tuple[int, ...] | None:
    turn = r.random()
    if turn < 0.5:
        return None
    if turn < 0.75 or not by_row:
        return r.randint(-n // 2 - 1, n + 1)
    return tuple(r.randint(-n // 2 - 1, n + 1) for _ in range(3))


def _bias(r: random.Random, by_distance: bool) -> Added:
    turn = r.random() * (0.25 if by_distance else 1)
    if turn < 0.15:
        return Added("alibi")
    if turn < 0.25:
        return Added("slopes")
    if turn < 0.4:
        # No distance but the farthest is a power of another one here, so rounding decides no bucket.
        return Added(
            "t5",
            buckets=r.choice((4, 8, 16)),
            distance=r.choice((11, 13, 37)),
            sides=r.random() < 0.5,
        )
    return Added(
        "tensor",
        axes=tuple(r.randint(0, 1) for _ in range(r.choice((0, 1, 2, 3, 4, 4)))),
        dtype=r.choice(("same", "same", "float32", "float64")),
        hides=r.choice((0.0, 0.0, 0.2, 0.7)),
        layout=r.choice(("contiguous", "transposed", "expanded", "strided")),
    )


def _want(r: random.Random, q_len: int, heads: int) -> tuple[Any, ...]:
    statistics = ("log_sum_exp", "entropy", "received", "distance")
    want: list[Any] = [name for name in statistics if r.random() < 0.5]
    if r.random() < 0.3:
        want.append("weights")
    if r.random() < 0.4:
        want.append(("top_keys", r.choice((1, 2, 5, 50))))
    if r.random() < 0.3 and q_len:
        rows = tuple(r.sample(range(q_len), r.randint(1, min(3, q_len))))
        want.append(("weights_of", rows, r.choice((None, (r.randrange(heads),)))))
    return tuple(want)


def simpler(case: SoftmaxCase) -> Iterator[SoftmaxCase]:
    """Cases with one thing less, the largest steps first."""
    options = (
        "bias sink dropout softcap scale hidden stored layouts grad_layout blocks second spelled"
    )
    if case.want:
        yield replace(case, want=(), pulled=())
    for less in with_default(
        case, SoftmaxCase(case.seed), f"{options} q_start learners dtype gain"
    ):
        gone = {"bias"} if less.bias is None else set()
        gone |= {"sink"} if not less.sink else set()
        yield replace(less, learners=tuple(name for name in less.learners if name not in gone))
    for pattern in simpler_patterns(case.pattern):
        yield replace(case, pattern=pattern)
    for name in ("learners", "want", "pulled"):
        values = getattr(case, name)
        for value in values:
            yield replace(case, **{name: tuple(x for x in values if x != value)})
    if case.heads != case.kv_heads:
        yield replace(case, heads=case.kv_heads)
    if case.kv_heads > 1:
        yield replace(case, kv_heads=1, heads=case.heads // case.kv_heads)
    for name in ("batch", "q_len", "k_len", "head_dim", "v_dim"):
        size = getattr(case, name)
        for less in sorted({1, size // 2, size - 1}):
            if 0 < less < size:
                yield replace(case, **{name: less})


def with_default(case: CaseT, plain: CaseT, names: str) -> Iterator[CaseT]:
    """A case with one of these fields as in the plain one, where they differ."""
    for name in names.split():
        default = getattr(plain, name)
        if getattr(case, name) != default:
            yield replace(case, **{name: default})  # ty: ignore[invalid-argument-type]


def halved(case: CaseT, names: str) -> Iterator[CaseT]:
    """A case with half of one of these sizes, where it is above 1."""
    for name in names.split():
        if getattr(case, name) > 1:
            yield replace(case, **{name: getattr(case, name) // 2})  # ty: ignore[invalid-argument-type]


def simpler_patterns(node: Node) -> Iterator[Node]:
    if node.kind != "full":
        yield Node("full")
    yield from node.parts
    for place, part in enumerate(node.parts):
        before = node.parts[:place]
        after = node.parts[place + 1 :]
        if len(node.parts) > 1:
            yield replace(node, parts=before + after)
        for less in simpler_patterns(part):
            yield replace(node, parts=(*before, less, *after))
