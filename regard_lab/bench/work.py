"""What is measured: works, contenders, the bounds they are expected to keep, and the tensors of a work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from regard.arguments import count_of
from regard.core.plan import Plan
from regard.errors import ArgumentError
from regard.mechanisms import GatedDelta, Mechanism
from regard.patterns import (
    Causal,
    CausalWindow,
    Full,
    GlobalTokens,
    KeyMask,
    KeySpan,
    Pattern,
    RandomBlocks,
    SlidingWindow,
    Strided,
)
from regard.testing import make_qkv

Formula = Callable[[Any, Any], Any]

BLOCK = 64
FULL = Full()
CAUSAL = Causal()
WINDOW = SlidingWindow(512)
CAUSAL_WINDOW = CausalWindow(512)
SMALL_WINDOW = SlidingWindow(64)
STRIDED = Causal() & Strided(64)
DRAWN = RandomBlocks(3, block=BLOCK, seed=0)
BIG_BIRD = SlidingWindow(192) | GlobalTokens(range(128)) | DRAWN

_FORMULAS: dict[Pattern, Formula] = {
    FULL: lambda i, j: i + j == i + j,  # positions may be negative
    CAUSAL: lambda i, j: j <= i,
    WINDOW: lambda i, j: abs(i - j) <= 256,
    CAUSAL_WINDOW: lambda i, j: (j <= i) & (i - j < 512),
    SMALL_WINDOW: lambda i, j: abs(i - j) <= 32,
    STRIDED: lambda i, j: (j <= i) & ((i - j < 64) | ((i - j) % 64 == 0)),
}
PADDED = {length: KeySpan(0, length * 3 // 4) for length in (16, 32, 128)}  # a quarter is padding
_FORMULAS |= {
    pattern: lambda i, j, length=length: (j < length * 3 // 4) & (i == i)
    for length, pattern in PADDED.items()
}
# Padding with holes: every fifth key is hidden.
HOLED: dict[int, Pattern] = {
    length: KeyMask(torch.arange(length) % 5 != 2) for length in (128, 512)
}
_FORMULAS |= {pattern: lambda i, j: (j % 5 != 2) & (i == i) for pattern in HOLED.values()}
DROPOUT_SEED = 11
GATED_LENGTH = 8  # keys after which a memory keeps 1/e of a key, or more
WHOLE = 512  # up to this length every row is checked


def formula(pattern: Pattern, length: int) -> Formula:
    """A function that returns which positions j each position i may look at, in a square call of `length`.

    Random blocks have no formula: they are read from the pattern as a table of blocks.

    Raises:
        ArgumentError: a pattern that no case measures.
    """
    if pattern in _FORMULAS:
        return _FORMULAS[pattern]
    if pattern != BIG_BIRD:
        raise ArgumentError(f"no formula is known for {pattern}; add it to regard_lab.bench.work")
    places = torch.arange(0, length, BLOCK)
    table = DRAWN.allows(places[:, None], places)  # (query blocks, key blocks)
    return lambda i, j: (
        (abs(i - j) <= 96) | (i < 128) | (j < 128) | table.to(i.device)[i // BLOCK, j // BLOCK]
    )


def allowed_pairs(pattern: Pattern, rows: list[int], q_len: int, k_len: int) -> NDArray[np.bool_]:
    """Which keys some queries may look at, (rows, k_len); the last query is aligned with the last key.

    >>> allowed_pairs(CAUSAL, [0, 1], 2, 3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    i = torch.tensor(rows)[:, None] + (k_len - q_len)
    return formula(pattern, k_len)(i, torch.arange(k_len)).expand(len(rows), k_len).numpy()


BYTES = {"float32": 4, "bfloat16": 2}  # of a number


@dataclass(frozen=True)
class Work:
    """One attention call to be measured.

    Args:
        q_len: number of queries.
        k_len: number of keys; q_len by default.
        heads: number of query heads.
        kv_heads: number of key/value heads; heads by default.
        head_dim: size of queries and keys.
        v_dim: size of values; head_dim by default.
        batch: number of texts.
        pattern: which pairs are allowed.
        backward: compute gradients of q, k and v (and of a learned bias) too.
        layout: memory layout, one of `regard.testing.LAYOUTS`.
        dropout: share of the weights dropped.
        learned_bias: add a bias for each head and pair that requires a gradient.
        cache_dtype: the dtype of k and v in a cache, if not that of q.
        dtype: the dtype of the tensors, "float32" or "bfloat16".
        mechanism: the mechanism; None for softmax.
        device: "cpu" or "cuda".
        caches: how many sets of tensors take turns, so that none stays in the processor's cache.
        latent: values are the first numbers of the keys, as in absorbed latent attention.

    >>> print(Work(1024, heads=2, backward=True))
    1,024 queries by 1,024 keys, 1 x 2 heads, head_dim 64, full, forward + backward
    """

    q_len: int
    k_len: int = 0
    heads: int = 8
    kv_heads: int = 0
    head_dim: int = 64
    v_dim: int = 0
    batch: int = 1
    pattern: Pattern = FULL
    backward: bool = False
    layout: str = "contiguous"
    dropout: float = 0.0
    learned_bias: bool = False
    cache_dtype: str | None = None
    dtype: str = "float32"
    mechanism: Mechanism | None = None
    device: str = "cpu"
    caches: int = 1
    latent: bool = False

    def __post_init__(self) -> None:
        defaults = {"k_len": self.q_len, "kv_heads": self.heads, "v_dim": self.head_dim}
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)

    @property
    def scale(self) -> float:
        """The factor of the dot products."""
        return self.head_dim**-0.5

    @property
    def group(self) -> int:
        """The number of query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def shares_keys(self) -> bool:
        """Whether queries and keys are the same vectors."""
        return self.mechanism is not None and self.mechanism.shares_keys

    @property
    def tensor_bytes(self) -> int:
        """Bytes of q, k, v and the output."""
        queries = self.heads * self.q_len * (self.head_dim + self.v_dim)
        keys = self.kv_heads * self.k_len * (self.head_dim + self.v_dim)
        return BYTES[self.dtype] * self.batch * (queries + keys)

    @property
    def gated(self) -> bool:
        """Whether the mechanism takes gates of each key, as the gated delta rule does."""
        return isinstance(self.mechanism, GatedDelta)

    def operations(self, pairs: int) -> int:
        """Floating-point operations of a softmax over `pairs` pairs of all heads; 0 for other mechanisms."""
        if self.mechanism is not None:
            return 0
        passes = 3.5 if self.backward else 1
        return int(2 * passes * (self.head_dim + self.v_dim) * pairs)

    @property
    def read_bytes(self) -> int:
        """Bytes of k and v as they are stored."""
        numbers = self.head_dim if self.latent else self.head_dim + self.v_dim
        size = BYTES[self.cache_dtype or self.dtype]
        return size * self.batch * self.kv_heads * self.k_len * numbers

    def as_long_as(self, length: int) -> Work:
        """The same work with `length` queries and keys."""
        return replace(self, q_len=length, k_len=length)

    @property
    def family(self) -> str:
        """A description without the lengths; works of one family are points of one curve."""
        heads = count_of(self.heads, "heads")
        if self.kv_heads != self.heads:
            heads += f" over {self.kv_heads}"
        words = [f"{self.batch} x {heads}", f"head_dim {self.head_dim}"]
        if self.v_dim != self.head_dim:
            words.append(f"v_dim {self.v_dim}")
        words.append(str(self.pattern))
        if self.mechanism is not None:
            words.append(str(self.mechanism))
        if self.latent:
            words.append("values inside of keys")
        if self.dtype != "float32":
            words.append(self.dtype)
        if self.layout != "contiguous":
            words.append(self.layout)
        if self.dropout:
            words.append(f"dropout {self.dropout}")
        if self.learned_bias:
            words.append("a learned bias")
        if self.cache_dtype:
            words.append(f"a cache in {self.cache_dtype}")
        if self.caches > 1:
            words.append(f"{self.caches} caches in turns")
        words.append("forward + backward" if self.backward else "forward")
        return ", ".join(words)

    def __str__(self) -> str:
        return f"{count_of(self.q_len, 'queries', ',')} by {count_of(self.k_len, 'keys', ',')}, {self.family}"


@dataclass(frozen=True)
class Tensors:
    """The tensors of a work, the same for every contender.

    q is (batch, heads, q_len, head_dim), k and v have kv_heads, `grad` is the gradient of the output, `bias` the
    learned bias if any, and `parameters` are those of the mechanism by name. All have the work's dtype; with a narrower
    cache, q, k and v are rounded to its dtype, so that every contender gets the same values.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad: torch.Tensor
    bias: torch.Tensor | None = None
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def leaves(self) -> dict[str, torch.Tensor]:
        """The tensors that require gradients, by the name of the gradient; keys that are the queries count once."""
        tensors = {"dq": self.q}
        if self.k is not self.q:
            tensors["dk"] = self.k
        tensors["dv"] = self.v
        if self.bias is not None:
            tensors["dbias"] = self.bias
        for name, parameter in self.parameters.items():
            tensors[f"d{name}"] = parameter
        return {name: x for name, x in tensors.items() if x.requires_grad}


def make_tensors(work: Work, seed: int = 0) -> Tensors:
    """Make the tensors of a work from a seed.

    >>> make_tensors(Work(4, heads=2)).q.shape
    torch.Size([1, 2, 4, 64])
    """
    q, k, v = make_qkv(
        batch=work.batch,
        heads=work.heads,
        kv_heads=work.kv_heads,
        q_len=work.q_len,
        k_len=work.k_len,
        head_dim=work.head_dim,
        v_dim=work.v_dim,
        seed=seed,
        layout=work.layout,
        dtype=getattr(torch, work.dtype),
    )
    if work.cache_dtype is not None:
        cache_dtype = getattr(torch, work.cache_dtype)
        q, k, v = (x.to(cache_dtype).float() for x in (q, k, v))
    if work.latent:
        v = k[..., : work.v_dim]
    # The order of the draws is that of the seeds: the gradient, the bias, the parameters.
    generator = torch.Generator().manual_seed(seed + 1)
    grad = torch.randn(work.batch, work.heads, work.q_len, work.v_dim, generator=generator)
    bias = None
    if work.learned_bias:
        bias = torch.randn(1, work.heads, work.q_len, work.k_len, generator=generator)
    parameters: Any = {}
    if work.mechanism is not None:
        parameters = work.mechanism.new_parameters(work.heads, work.kv_heads, generator)
    if work.gated:
        q, k = (normalize(x.float(), dim=-1).to(x.dtype) for x in (q, k))
        gates = work.batch, work.heads, work.k_len
        parameters = {
            "log_decay": -torch.rand(gates, generator=generator) / GATED_LENGTH,
            "strength": torch.rand(gates, generator=generator).to(q.dtype).float(),
        }

    def leaf(x: torch.Tensor) -> torch.Tensor:
        return x.detach().to(work.device).requires_grad_(work.backward)

    q = leaf(q)
    return Tensors(
        q=q,
        k=q if work.shares_keys else leaf(k),
        v=leaf(v),
        grad=grad.to(work.device, q.dtype),
        bias=None if bias is None else leaf(bias),
        parameters={name: leaf(x) for name, x in parameters.items()},
    )


KINDS = {
    "faster": "{ours} is {number:.2f}x as fast as {other} (promised: at least {bound:g}x)",
    "slower": "{ours} takes {number:.2f}x the time of {other} (promised: at most {bound:g}x)",
    "slower by": "{ours} takes {number:.1f} µs more than {other} (promised: at most {bound:g})",
}


@dataclass(frozen=True)
class Promise:
    """A promised bound on a ratio or difference between two contenders; times are medians of CPU time on 1 thread.

    Ratios differ between families of processors, so a bound that was set for one is checked on that one alone.

    Args:
        kind: "faster" (other's time / ours, at least `bound`), "slower" (our time / other's, at most) or "slower by"
            (our time - other's in µs, at most).
        ours: the contender for which the promise is made.
        other: the contender it is compared with.
        bound: the limit.
        family: the family of processors for which it was set, as of `processors.family`; "" for every one.

    >>> promise = Promise("faster", "regard", "SDPA", 2.0)
    >>> ratio = promise.measured({"regard": {"cpu": {"median": 1.0}}, "SDPA": {"cpu": {"median": 3.0}}})
    >>> ratio, promise.kept(ratio), promise.sentence(ratio)
    (3.0, True, 'regard is 3.00x as fast as SDPA (promised: at least 2x): kept')
    """

    kind: str
    ours: str
    other: str
    bound: float
    family: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ArgumentError(
                f"a promise of kind {self.kind!r} does not exist; there are {', '.join(KINDS)}"
            )

    def measured(self, records: Mapping[str, Mapping[str, Any]]) -> float | None:
        """The measured number, from the records of the contenders; None if one of them was not measured."""
        times = []
        for name in (self.ours, self.other):
            if "cpu" not in records.get(name, {}):
                return None
            times.append(records[name]["cpu"]["median"])
        ours, other = times
        if self.kind == "faster":
            return other / ours
        if self.kind == "slower by":
            return (ours - other) * 1e6
        return ours / other

    def kept(self, number: float) -> bool:
        """Whether the measured number is within the bound."""
        return number >= self.bound if self.kind == "faster" else number <= self.bound

    def sentence(self, number: float | None) -> str:
        """One sentence with the measured number, the bound, and whether the promise was kept."""
        if number is None:
            return f"{self.ours} against {self.other}: {self.kind} {self.bound:g} was not measured"
        verdict = "kept" if self.kept(number) else "missed"
        text = KINDS[self.kind].format(
            ours=self.ours, other=self.other, number=number, bound=self.bound
        )
        return f"{text}: {verdict}"


Attend = Callable[[], torch.Tensor | dict[str, torch.Tensor]]
Prepare = Callable[[Work, Tensors], Attend]


def unchanged(work: Work) -> Work:
    """The default of `Contender.works_on`: the work of the contest."""
    return work


@dataclass(frozen=True)
class Contender:
    """One way to compute a work.

    Args:
        name: its name in reports.
        prepare: makes the call to be timed from a work and its tensors; the call returns the output, or the output and
            statistics by name. Set-up that a user does once (masks, modules, plans) is part of `prepare`.
        package: the packages it needs besides torch, with spaces between; "" for none.
        compiles: True if its first call takes tens of seconds; a quick run omits it.
        device: the only device it runs on; "" for any.
        own_dropout: True if its dropout uses other random numbers; it is then checked without dropout.
        checked: False for a call that computes no attention, such as a sum over the same bytes.
        works_on: changes the work of the contest.
        judged_at: a shorter length at which its values are checked, if they depend on every row.
        plan: for regard, the plan that computes the work.
    """

    name: str
    prepare: Prepare
    package: str = ""
    compiles: bool = False
    device: str = ""
    own_dropout: bool = False
    checked: bool = True
    works_on: Callable[[Work], Work] = unchanged
    judged_at: int | None = None
    plan: Callable[[Work, Tensors], Plan] | None = None


@dataclass(frozen=True)
class Contest:
    """Several contenders that compute the same work; the first is regard.

    Args:
        label: its name within the case.
        work: the call to compute.
        contenders: in the order of the report.
        promises: bounds that are expected to hold.
    """

    label: str
    work: Work
    contenders: tuple[Contender, ...]
    promises: tuple[Promise, ...] = ()


def unpromised(contests: Iterable[Contest]) -> tuple[Contest, ...]:
    """The same contests without promises, for quick runs."""
    return tuple(replace(contest, promises=()) for contest in contests)


@dataclass(frozen=True)
class Case:
    """Contests on one subject, of one kind: `Contest` or `WholeContest`; `quick` are those of a quick run."""

    name: str
    title: str
    contests: tuple[Any, ...]
    quick: tuple[Any, ...]
